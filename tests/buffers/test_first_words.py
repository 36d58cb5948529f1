"""What a newcomer types first: facts, arrays by name, ids in brackets; or a sentence that says what to use instead."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import diskreplay as dr

BOX = spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = spaces.Discrete(4)


def filled(path: Any, **options: Any) -> dr.ReplayBuffer:
    """Two episodes of ten steps."""
    options = {"capacity": 50, "columns": {"skill": np.int16}, "seed": 0, **options}
    rb = dr.ReplayBuffer.create(path, BOX, ACTIONS, **options)
    for step in range(20):
        rb.add([0, 0, step / 32], step % 4, step, [0, 0, (step + 1) / 32], False, step % 10 == 9, skill=step)
    return rb


@pytest.fixture
def rb(path: str) -> Any:
    with filled(path) as buffer:
        yield buffer


class TestBatch:
    def test_arrays_by_name(self, rb: dr.ReplayBuffer) -> None:
        batch = rb.sample(8)
        assert batch["obs"] is batch.obs
        assert batch["skill"] is batch.extra["skill"]
        assert list(batch.keys()) == [
            "obs", "action", "reward", "next_obs", "terminated", "truncated", "discount", "index", "weight", "skill",
        ]  # fmt: skip
        assert dict(batch).keys() == batch.keys()
        assert {name: array.shape for name, array in batch.items()} == {
            name: array.shape for name, array in zip(batch.keys(), batch.values(), strict=True)
        }
        assert (lambda **arrays: arrays["next_obs"])(**batch) is batch.next_obs
        assert len(batch) == 8
        assert "skill" in batch
        assert "skil" not in batch
        assert 3 not in batch

    def test_a_name_that_is_none(self, rb: dr.ReplayBuffer) -> None:
        with pytest.raises(KeyError, match=r"the batch has no 'observation'; it has obs, action, .*, skill"):
            rb.sample(8)["observation"]

    @pytest.mark.parametrize("view", [None, dr.Sequence(4, burn_in=1), dr.PaddedEpisodes(12)], ids=repr)
    @pytest.mark.parametrize("key", [slice(2, 5), [4, 0], np.array([4, 0]), slice(None, None, -1)], ids=repr)
    def test_some_entries_are_a_batch_of_the_same_class(self, path: str, view: Any, key: Any) -> None:
        with filled(path, view=view) as rb:
            batch = rb.get(rb.items()) if view is not None else rb.sample(6)
            batch = batch if len(batch) > 4 else batch[[0, 1, 0, 1, 0, 1]]
            some = batch[key]
        assert type(some) is type(batch)
        for name, array in batch.items():
            np.testing.assert_array_equal(some[name], array[key])
        assert len(batch[batch.index == batch.index[0]]) >= 1

    @pytest.mark.parametrize("key", [0, -1, np.int64(3), (0, 1), None, 2.0], ids=repr)
    def test_one_entry_is_refused_by_a_sentence(self, rb: dr.ReplayBuffer, key: Any) -> None:
        with pytest.raises(TypeError, match=r"batch\.obs\[0\] is the first observation, batch\[:1\] a Batch"):
            rb.sample(8)[key]

    def test_entries_that_are_not_there(self, rb: dr.ReplayBuffer) -> None:
        with pytest.raises(IndexError):
            rb.sample(8)[[8]]

    def test_it_is_not_iterated_nor_unpacked(self, rb: dr.ReplayBuffer) -> None:
        batch = rb.sample(8)
        with pytest.raises(TypeError, match=r"take its arrays by name .*for name, array in batch\.items\(\)"):
            for _ in batch:
                pass
        with pytest.raises(TypeError, match="not iterated or unpacked"):
            _obs, _action, *_ = batch

    def test_what_is_not_held_is_no_key(self, path: str) -> None:
        with dr.MultiAgentReplayBuffer.create(path, BOX, ACTIONS, 2, capacity=9) as rb:
            rb.add(np.zeros((2, 3)), [0, 1], 1.0, np.zeros((2, 3)), True, False)
            batch = rb.sample(1)
        assert batch.state is None
        assert "state" not in batch
        assert batch["agent_mask"] is batch.agent_mask
        with pytest.raises(KeyError, match="the batch has no 'state'"):
            batch["state"]

    def test_a_column_with_the_name_of_a_field_stays_in_extra(self, path: str) -> None:
        with dr.ReplayBuffer.create(
            path, BOX, ACTIONS, capacity=9, columns={"is_first": np.int16}, view=dr.Sequence(2)
        ) as rb:
            for _ in range(4):
                rb.add([0, 0, 0], 0, 0.0, [0, 0, 0], False, False, is_first=7)
            batch = rb.sample(2)
        assert batch["is_first"] is batch.is_first
        assert (batch.extra["is_first"] == 7)[batch.mask].all()
        assert list(batch.keys()).count("is_first") == 1


class TestBuffer:
    def test_facts(self, rb: dr.ReplayBuffer) -> None:
        assert (rb.capacity, rb.observation_space, rb.action_space) == (50, BOX, ACTIONS)
        for name in ("capacity", "observation_space", "action_space"):
            with pytest.raises(AttributeError):
                setattr(rb, name, None)

    def test_capacity_is_of_the_stream_that_is_written(self, path: str) -> None:
        filled(path).close()
        with dr.ReplayBuffer.open(path, stream="second", num_envs=2, capacity=80) as second:
            assert (second.num_envs, second.capacity) == (2, 80)
        with dr.ReplayBuffer.open(path, mode="r") as reader:
            assert (reader.num_envs, reader.capacity) == (1, 50)

    def test_a_rollout(self, path: str) -> None:
        with dr.RolloutBuffer.create(path, BOX, ACTIONS, steps=4, num_envs=2) as rollout:
            assert (rollout.capacity, rollout.observation_space, rollout.action_space) == (8, BOX, ACTIONS)
            zeros = np.zeros((2, 3))
            for _ in range(4):
                rollout.add(zeros, [0, 1], [0, 1], zeros, [0, 0], [0, 0], value=[0, 0], log_prob=[0, 0])
            rollout.finish(last_value=[0, 0])
            batch = next(iter(rollout.minibatches(8)))
            assert batch["advantage"] is batch.advantage
            np.testing.assert_array_equal(rollout[batch.index].reward, batch.reward)
            for refused in (lambda: list(rollout), lambda: rollout[:2]):
                with pytest.raises(TypeError, match=r"minibatches\(64\)"):
                    refused()

    @pytest.mark.parametrize(
        "space",
        [
            BOX, spaces.Box(-1, 1, (), np.float64), spaces.Box(0, 255, (4, 4, 3), np.uint8),
            spaces.Discrete(5, start=2), spaces.MultiDiscrete([3, 4]), spaces.MultiDiscrete([[3, 4], [5, 6]]),
            spaces.MultiBinary(3),
            spaces.MultiBinary((2, 3)), spaces.Dict(a=BOX, b=spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(2)])),
        ],
        ids=str,
    )  # fmt: skip
    @pytest.mark.parametrize("rollout", [False, True])
    def test_agents_have_the_spaces_that_create_was_given(self, path: str, space: Any, rollout: bool) -> None:
        kind: Any = dr.MultiAgentRolloutBuffer if rollout else dr.MultiAgentReplayBuffer
        length = {"steps": 10} if rollout else {"capacity": 10}
        kind.create(path, space, space, 3, state_space=BOX, **length).close()
        with kind.open(path) as rb:
            assert (rb.observation_space, rb.action_space, rb.n_agents) == (space, space, 3)
            assert (rb.observation_space.dtype, rb.capacity) == (space.dtype, 10)

    def test_ids_in_brackets(self, rb: dr.ReplayBuffer) -> None:
        batch = rb.sample(8)
        for found in (rb[batch.index], rb[list(batch.index)], rb[rb.items()[:8]]):
            assert type(found) is dr.Batch
        np.testing.assert_array_equal(rb[batch.index].obs, batch.obs)
        assert len(rb[int(batch.index[0])]) == 1
        with pytest.raises(dr.errors.InputError):
            rb[99]

    @pytest.mark.parametrize("key", [slice(8), "obs", (0, 1)], ids=repr)
    def test_what_is_no_id_is_refused_by_a_sentence(self, rb: dr.ReplayBuffer, key: Any) -> None:
        with pytest.raises(TypeError, match=r"takes ids, as rb\[batch\.index\], and not .*rb\[rb\.items\(\)\[:8\]\]"):
            rb[key]

    def test_it_is_not_iterated(self, rb: dr.ReplayBuffer) -> None:
        for use in (lambda: list(rb), lambda: next(iter(rb))):
            with pytest.raises(TypeError, match=r"rb\.sample\(256\) gives a random batch, rb\.shuffled\(256\)"):
                use()

    def test_a_mixture(self, tmp_path: pathlib.Path) -> None:
        with filled(tmp_path / "a") as one, filled(tmp_path / "b", capacity=30) as other:
            mixture = dr.Mixture([one, other])
            assert (mixture.capacity, mixture.observation_space, mixture.action_space) == (80, BOX, ACTIONS)
            batch = mixture.sample(4)
            np.testing.assert_array_equal(mixture[batch.index]["obs"], batch["obs"])
            with pytest.raises(TypeError, match=r"mixture\.sample\(256\)"):
                list(mixture)


class TestOpen:
    """``dr.open``."""

    @pytest.mark.parametrize(
        "kind", [dr.ReplayBuffer, dr.RolloutBuffer, dr.MultiAgentReplayBuffer, dr.MultiAgentRolloutBuffer]
    )
    def test_a_buffer_of_the_class_that_made_the_store(self, path: str, kind: Any) -> None:
        agents = (2,) if "Agent" in kind.__name__ else ()
        length = {"steps": 10} if "Rollout" in kind.__name__ else {"capacity": 10}
        with kind.create(path, BOX, ACTIONS, *agents, **length), dr.open(path) as reader:
            assert type(reader) is kind
            assert reader.stream is None
        with dr.open(pathlib.Path(path), "r+", stream="other") as writer:
            assert type(writer) is kind
            assert writer.stream == "other"

    def test_options_are_those_of_the_class(self, path: str) -> None:
        with filled(path) as rb:
            rb.checkpoint("half")
        with dr.open(path, view=dr.Sequence(2), checkpoint="half", seed=3) as reader:
            assert type(reader.sample(2)) is dr.SequenceBatch
        with pytest.raises(TypeError, match="has no argument 'checkpiont'; did you mean 'checkpoint'"):
            dr.open(path, checkpiont="half")

    def test_no_store(self, tmp_path: pathlib.Path) -> None:
        with pytest.raises(dr.errors.StoreNotFoundError):
            dr.open(tmp_path / "none")
        with pytest.raises(dr.errors.NotAStoreError):
            dr.open(tmp_path)

    def test_its_help_says_first_that_it_reads(self) -> None:
        assert "to read it" in (dr.open.__doc__ or "").splitlines()[0]
