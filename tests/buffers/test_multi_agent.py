"""Steps of several agents against a plain list of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers import residency
from helpers.multi_agent_steps import KINDS, N_AGENTS, Kind, World
from helpers.view_model import content

import diskreplay as dr
from diskreplay import errors

GAMMA = 0.9


def create(path: str, kind: Kind, *, on_disk: bool = False, **options: Any) -> dr.MultiAgentReplayBuffer:
    """A buffer whose columns are reached on disk, but for the engine's own, or all stand in RAM."""
    if on_disk:
        residency.hold_up_to(1)
    return dr.MultiAgentReplayBuffer.create(
        path, *kind.spaces(), **{"capacity": 40 * kind.num_envs, **kind.options(), **options}
    )


def check(batch: dr.MultiAgentBatch, at: tuple[Any, ...], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        found = getattr(batch, name)
        if value is None:
            assert found is None, name
            continue
        value = np.asarray(value)
        assert found[at].shape == value.shape, name
        if name == "reward":
            np.testing.assert_allclose(found[at], value, rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(found[at], value, err_msg=name)


@pytest.mark.long(quick=11)
@pytest.mark.usefixtures("both_thresholds")
@pytest.mark.parametrize("on_disk", [False, True], ids=["in RAM", "on disk"])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_transitions(path: str, kind: Kind, n_step: int, on_disk: bool) -> None:
    view = dr.Transition(n_step, GAMMA)
    world, seen = World(kind), set()
    with create(path, kind, on_disk=on_disk, view=view) as buffer:
        for step in range(90):
            buffer.add(**world.arguments(world.step()))
            if step == 50:
                buffer.commit()
            if step > 10 and step % 10 == 0:
                batch = buffer.sample(9)
                assert isinstance(batch, dr.MultiAgentBatch)
                for item, index in enumerate(batch.index):
                    row, env = world.at(index)
                    assert world.log[row][env].valid
                    seen.add(row)
                    check(batch, (item,), world.expected(row, env, n_step, GAMMA))
        assert min(seen) < 20 < 60 < max(seen)
        dtypes = {"obs": "f4", "action": "i8" if kind.discrete else "f4", "reward": "f4", "agent_mask": bool}
        assert all(getattr(batch, name).dtype == dtype for name, dtype in dtypes.items())
        for name, dtype in (("available_actions", bool), ("action_onehot", "f4"), ("mean_action", "f4")):
            assert getattr(batch, name) is None or getattr(batch, name).dtype == dtype
        newest = [
            int(i) for i in range(89 * kind.num_envs, 90 * kind.num_envs) if world.log[89][i % kind.num_envs].valid
        ]
        newest = [i for i in newest if n_step == 1 or not world.log[89][i % kind.num_envs].goes_on]
        if n_step == 1 and newest:
            check(buffer.get(newest), (0,), world.expected(*world.at(newest[0]), 1, GAMMA))


@pytest.mark.long(quick=8)
@pytest.mark.usefixtures("both_thresholds")
@pytest.mark.parametrize("view", [dr.Sequence(4, gamma=GAMMA), dr.Sequence(4, across=True), dr.PaddedEpisodes(5)])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_items_of_several_steps(path: str, kind: Kind, view: Any) -> None:
    world = World(kind, 3)
    with create(path, kind, on_disk=kind.num_envs == 3, view=view) as buffer:
        world.fill(buffer, 60)
        batch = buffer.sample(12)
        held = batch.mask
        assert held.any()
        assert not held.all()
        assert batch.obs.shape == (12, held.shape[1], N_AGENTS, 2, 2)
        assert (batch.length is None) == isinstance(view, dr.Sequence)
        for item, index in enumerate(batch.index):
            row, env = world.at(index)
            for step in range(held.shape[1]):
                if held[item, step]:
                    check(batch, (item, step), world.expected(row + step, env, 1, view.gamma))
                else:
                    for name in ("obs", "action_onehot", "next_mean_action", "reward", "agent_mask"):
                        values = getattr(batch, name)
                        assert values is None or not values[item, step].any(), name


def test_shuffled_and_loader_give_the_same_batches(path: str) -> None:
    kind = KINDS[1]
    world = World(kind)
    with create(path, kind, on_disk=True) as buffer:
        world.fill(buffer, 30)
        found = []
        for batch in buffer.shuffled(7):
            for item, index in enumerate(batch.index):
                check(batch, (item,), world.expected(*world.at(index), 1, 0.99))
                found.append(int(index))
        valid = [i for i in range(90) if world.log[i // 3][i % 3].valid]
        assert sorted(found) == valid
        with buffer.loader(4) as loader:
            assert isinstance(next(loader), dr.MultiAgentBatch)


@pytest.mark.long
@pytest.mark.parametrize("sampler", [dr.Uniform(), dr.Proportional()], ids=["uniform", "proportional"])
def test_a_thousand_samples_after_a_checkpoint_are_the_same(path: str, sampler: Any) -> None:
    kind = KINDS[1]

    def run(buffer: dr.MultiAgentReplayBuffer, rows: list[Any]) -> list[bytes]:
        drawn = []
        for at in range(1000):
            batch = buffer.sample(1 + at % 4)
            drawn.append(content(batch))
            if at % 50 == 0:
                buffer.add(**rows[at // 50])
                if isinstance(sampler, dr.Proportional):
                    buffer.update_priorities(batch.index, batch.reward.sum(axis=1))
        return drawn

    world = World(kind)
    with create(path, kind, sampler=sampler) as buffer:
        world.fill(buffer, 50)
        buffer.checkpoint("here")
        rows = [world.arguments(world.step()) for _ in range(20)]
        expected = run(buffer, rows)
    with dr.MultiAgentReplayBuffer.open(path, checkpoint="here", seed=3, commit_seconds=1e9) as buffer:
        assert run(buffer, rows) == expected


@pytest.mark.usefixtures("both_thresholds")
def test_a_second_stream(path: str) -> None:
    kind = KINDS[3]
    worlds = [World(kind), World(dataclasses.replace(kind, num_envs=2), 5)]
    with (
        create(path, kind) as buffer,
        dr.MultiAgentReplayBuffer.open(path, stream="b", num_envs=2, capacity=50) as other,
    ):
        for _ in range(20):
            buffer.add(**worlds[0].arguments(worlds[0].step()))
            other.add(**worlds[1].arguments(worlds[1].step()))
        other.commit()
        buffer.refresh()
        batch = buffer.sample(40)
        streams = batch.index >> 48
        assert set(streams) == {0, 1}
        for item, index in enumerate(batch.index):
            world = worlds[streams[item]]
            check(batch, (item,), world.expected(*world.at(index & ((1 << 48) - 1)), 1, 0.99))


def test_actions_that_do_not_count_from_zero(path: str) -> None:
    box = spaces.Box(0, 1, (1,), np.float32)
    with dr.MultiAgentReplayBuffer.create(path, box, spaces.Discrete(3, start=5), 2, capacity=10) as buffer:
        obs = np.zeros((2, 1), np.float32)
        buffer.add(obs, [5, 7], 0.0, obs, False, False)
        batch = buffer.sample(1)
        np.testing.assert_array_equal(batch.action, [[5, 7]])
        np.testing.assert_array_equal(batch.action_onehot, [[[1, 0, 0], [0, 0, 1]]])
        assert batch.agent_mask.all()


def test_nested_observations_and_columns_of_the_user(path: str) -> None:
    space = spaces.Dict(a=spaces.Box(0, 255, (4, 4), np.uint8), b=spaces.Discrete(5))
    made = dr.MultiAgentReplayBuffer.create(
        path, space, spaces.Box(-1, 1, (2,), np.float32), 2, capacity=10, columns={"log": ((2,), np.float32)}
    )
    with made as buffer:
        obs = {"a": np.full((2, 4, 4), 7, np.uint8), "b": np.array([1, 4])}
        after = {"a": np.full((2, 4, 4), 9, np.uint8), "b": np.array([2, 3])}
        buffer.add(obs, np.zeros((2, 2), np.float32), 1.0, after, False, True, log=np.float32([1, 2]))
        batch = buffer.sample(1)
        np.testing.assert_array_equal(batch.obs["a"][0], obs["a"])
        np.testing.assert_array_equal(batch.next_obs["b"][0], [2, 3])
        np.testing.assert_array_equal(batch.extra["log"], [[1, 2]])
        assert batch.action_onehot is None
        assert (set(batch.extra), buffer.n_agents) == ({"log"}, 2)


def test_bad_arguments_change_nothing(path: str) -> None:
    kind = KINDS[1]
    world = World(kind)
    with create(path, kind) as buffer:
        good = world.arguments(world.step(gaps=False))
        bad: list[dict[str, Any]] = [
            {"state": None}, {"next_state": None}, {"available_actions": None}, {"next_available_actions": None},
            {"mean_action": None}, {"reward": np.zeros(3)}, {"reward": np.full((3, 3), np.nan)}, {"reward": "much"},
            {"available_actions": good["available_actions"] * 2}, {"agent_mask": np.ones(3, bool)},
            {"obs": good["obs"][:, :2]}, {"mean_action": good["mean_action"][0]}, {"agent_reward": np.zeros((3, 3))},
            {"more": 1},
        ]  # fmt: skip
        for change in bad:
            with pytest.raises(errors.InputError):
                buffer.add(**{**good, **change})
        assert len(buffer) == 0
        buffer.add(**good)
        assert len(buffer) == 3
    plain = Kind()
    with create(f"{path}2", plain) as buffer:
        good = World(plain).arguments(World(plain).step())
        for name in ("state", "available_actions", "mean_action"):
            with pytest.raises(errors.InputError, match=f"{name} was given"):
                buffer.add(**good, **{name: np.zeros(3)})


@pytest.mark.parametrize(
    "change",
    [
        {"n_agents": 0}, {"rewards": "both"}, {"available_actions": 1}, {"mean_action_shape": 4},
        {"mean_action_shape": (0,)}, {"columns": {"agent_mask": bool}}, {"columns": [1]}, {"observation_space": 3},
        {"state_space": 4}, {"view": dr.Hindsight(lambda a, d, i: a)},
        {"action_space": spaces.Box(-1, 1, (2,), np.float32), "available_actions": True},
    ],
    ids=lambda change: ", ".join(change),
)  # fmt: skip
def test_bad_settings(path: str, change: dict[str, Any]) -> None:
    space, action, count = Kind().spaces()
    good: dict[str, Any] = {"observation_space": space, "action_space": action, "n_agents": count, "capacity": 10}
    with pytest.raises(errors.InputError):
        dr.MultiAgentReplayBuffer.create(path, **{**good, **change})
    dr.MultiAgentReplayBuffer.create(path, **good).close()


def test_a_store_of_another_class_is_refused(path: str) -> None:
    space, action, _ = Kind().spaces()
    dr.ReplayBuffer.create(path, space, action, capacity=10).close()
    with pytest.raises(errors.NotAStoreError, match="several agents"):
        dr.MultiAgentReplayBuffer.open(path)
    with pytest.raises(errors.NotAStoreError):
        dr.MultiAgentRolloutBuffer.open(path)
    dr.ReplayBuffer.open(path).close()


@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (spaces.MultiBinary(3), np.ones((2, 3), np.int8), 7),
        (spaces.MultiBinary((2, 2)), np.zeros((2, 2, 2), np.int8), -1),
        (spaces.MultiDiscrete([2, 3]), np.array([[1, 2], [0, 0]]), 9),
        (spaces.MultiDiscrete([2, 3], start=[5, 5]), np.array([[6, 7], [5, 5]]), 4),
    ],
)
def test_actions_outside_of_the_space_of_an_agent_are_refused(path: str, space: Any, good: Any, bad: int) -> None:
    with dr.MultiAgentReplayBuffer.create(path, space, space, 2, capacity=20) as buffer:
        wrong = good.copy()
        wrong[1].flat[0] = bad
        with pytest.raises(errors.InputError, match="action: must lie in its space"):
            buffer.add(good, wrong, 1.0, good, False, False)
        assert len(buffer) == 0
        buffer.add(good, wrong, 1.0, good, False, False, agent_mask=[True, False])
        buffer.add(good, good, 1.0, good, False, False)
        np.testing.assert_array_equal(buffer.get([1]).obs[0], good)
    with dr.MultiAgentReplayBuffer.open(path) as buffer:
        buffer.add(good, good, 1.0, good, False, False)
        assert len(buffer) == 3
