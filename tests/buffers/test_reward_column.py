"""Rewards of another column: every view shows them, and a transition that lacks its value is never shown."""

from __future__ import annotations

import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from helpers.damage import files_below

import diskreplay as dr
from diskreplay.errors import InputError
from diskreplay.ops.relabel import relabel
from diskreplay.schema.columns import RECORDED
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Store

GOAL = Box(-1e6, 1e6, (1,), np.float32)
OBS = Dict({"observation": GOAL, "achieved_goal": GOAL, "desired_goal": GOAL})
LENGTH = 5


def nothing(achieved: Any, desired: Any, info: Any) -> Any:
    return np.zeros(len(achieved))


VIEWS: dict[str, Callable[[], Any]] = {
    "transition": dr.Transition,
    "three steps": lambda: dr.Transition(3, gamma=0.9),
    "sequence": lambda: dr.Sequence(3, burn_in=1),
    "across": lambda: dr.Sequence(4, across=True),
    "episodes": lambda: dr.PaddedEpisodes(LENGTH + 1),
    "hindsight": lambda: dr.Hindsight(nothing, ratio=0.0),
    "deltas": lambda: dr.DeltaTimestamps({"reward": [-1.0, 0.0, 2.0]}, fps=1),
}
NAMES = {"own": 3.0, "shaped": -2.0, "early": 1.0}
"""The columns that can be shown, and what of the recorded reward they are; ``early`` is one where that is above 10."""


def observation(number: float) -> dict[str, Any]:
    return dict.fromkeys(OBS.spaces, np.full(1, number, np.float32))


def make(path: Any, count: int = 23, envs: int = 1, **options: Any) -> None:
    """A store of episodes of five steps; the reward of each transition is its number."""
    options = {
        "capacity": 40,
        "num_envs": envs,
        "columns": {"own": np.int32, "early": bool, "pair": ((2,), np.float32), "text": ((None,), np.uint8)},
        "later": {"shaped": np.float64, "wide": ((2,), np.float32), "odd": np.complex64},
        **options,
    }
    with dr.ReplayBuffer.create(path, OBS, Box(0, 1, (1,), np.float32), **options) as rb:
        for number in range(count):
            add(rb, number)


def add(rb: dr.ReplayBuffer[Any], number: int) -> None:
    at = observation(number + 100 * (number // LENGTH))
    after = observation(number + 1 + 100 * (number // LENGTH))
    extra = {"text": np.zeros(number % 3, np.uint8)} if "text" in rb.schema.ragged else {}
    rb.add(
        at, np.zeros(1, np.float32), float(number), after, number % LENGTH == LENGTH - 1, False,
        own=3 * number, early=number > 10, pair=np.zeros(2, np.float32), **extra,
    )  # fmt: skip


def plain(path: Any, **options: Any) -> None:
    """As :func:`make`, without the ragged column, which Hindsight refuses."""
    columns = {"own": np.int32, "early": bool, "pair": ((2,), np.float32)}
    make(path, columns=columns, **options)


def shaped(path: Any) -> None:
    relabel(path, lambda episode: -2.0 * episode.reward, "shaped")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.usefixtures("both_thresholds")
def test_every_view_shows_the_column_as_reward(name: str, view: str, path: str) -> None:
    plain(path)
    shaped(path)
    made = VIEWS[view]()
    with (
        dr.ReplayBuffer.open(path, mode="r", view=made, seed=3) as recorded,
        dr.ReplayBuffer.open(path, mode="r", view=made, seed=3, reward_column=name) as shown,
    ):
        for ours, theirs in (
            (shown.get(shown.items()), recorded.get(recorded.items())),
            (shown.sample(16), recorded.sample(16)),
            (pickle.loads(pickle.dumps(shown)).get(shown.items()), recorded.get(recorded.items())),
        ):
            wanted = NAMES[name] * theirs.reward
            if name == "early":
                wanted = discounted(theirs) if view == "three steps" else theirs.reward > 10
            np.testing.assert_allclose(ours.reward, wanted, rtol=1e-5)
            assert ours.reward.dtype == np.float32
            if view != "three steps":
                np.testing.assert_array_equal(ours.extra[RECORDED], theirs.reward)
            assert ours.extra.keys() - theirs.extra.keys() == {RECORDED}
            for field in ("terminated", "index", "weight"):
                np.testing.assert_array_equal(getattr(ours, field), getattr(theirs, field))
        assert [one.total_reward for one in shown.episodes] == [one.total_reward for one in recorded.episodes]


def discounted(batch: Any) -> np.ndarray:
    """Returns of three steps of rewards that are 1 above the number 10; ``index`` is the number of each transition."""
    numbers = batch.index[:, None] + np.arange(3)
    there = (numbers // LENGTH == numbers[:, :1] // LENGTH) & (numbers < 23)
    return (0.9 ** np.arange(3) * (there & (numbers > 10))).sum(axis=1)


@pytest.mark.usefixtures("small_thresholds")
def test_a_column_that_is_too_large_for_ram_is_held_as_the_reward_is(path: str) -> None:
    plain(path, count=40, capacity=30_000)
    shaped(path)
    with dr.ReplayBuffer.open(path) as rb:
        assert not {"own", "shaped"} & rb.engine.streams.written.log.held
    for name in ("own", "shaped"):
        with dr.ReplayBuffer.open(path, reward_column=name, view=dr.Transition(2, gamma=1.0)) as rb:
            assert name in rb.engine.streams.written.log.held
            whole = rb.get(rb.items())
            np.testing.assert_allclose(whole.reward[:3], NAMES[name] * np.array([1, 3, 5]))
            np.testing.assert_array_equal(whole.extra[name][:3], NAMES[name] * np.arange(3))


def test_transitions_without_a_value_are_counted_at_opening(path: str, tmp_path: pathlib.Path) -> None:
    make(path)
    with dr.ReplayBuffer.open(path) as rb:
        rb.write("shaped", rb.items()[:20], np.zeros(20))
        rb.checkpoint("early")
        rb.write("shaped", rb.items()[20:], [1.0, np.nan, np.inf])
    before = files_below(path)
    for options in ({"mode": "r"}, {}, {"mode": "a"}, {"stream": "new"}, {"view": dr.Sequence(3)}):
        with pytest.raises(InputError, match="2 of 23 transitions have no finite value of 'shaped'; write these first"):
            dr.ReplayBuffer.open(path, reward_column="shaped", **options)
    with pytest.raises(InputError, match="3 of 23 transitions"):
        dr.ReplayBuffer.open(path, reward_column="shaped", checkpoint="early")
    with pytest.raises(InputError, match="2 of 23 transitions"):
        dr.Mixture.open([(path, {"mode": "r", "reward_column": "shaped"})])
    with pytest.raises(InputError, match="2 of 23 transitions"):
        dr.open(path, reward_column="shaped")
    assert (before, Store(path, LocalFiles()).stream_names()) == (files_below(path), ["0"])
    with dr.ReplayBuffer.open(path) as rb:
        rb.write("shaped", rb.items()[-2:], [4.0, 5.0])
    with dr.ReplayBuffer.open(path, reward_column="shaped") as rb:
        assert rb.get(rb.items()).reward[-4:].tolist() == [0.0, 1.0, 4.0, 5.0]


@pytest.mark.parametrize("name", ["pair", "wide", "odd", "text", "reward", "terminated", "obs/observation", "no", ""])
def test_what_is_no_column_of_a_real_number_is_refused(name: str, path: str) -> None:
    make(path)
    with pytest.raises(InputError, match=f"one real number a step, got '{name}'; there are 'own', 'early', 'shaped'"):
        dr.ReplayBuffer.open(path, reward_column=name, stream="new")
    assert Store(path, LocalFiles()).stream_names() == ["0"]


def test_a_store_without_such_a_column_says_how_to_get_one(path: str) -> None:
    plain(path, later=None)
    with dr.ReplayBuffer.create(f"{path}.bare", GOAL, GOAL, capacity=3):
        pass
    with pytest.raises(InputError, match="there are none; 'diskreplay edit STORE COPY --later shaped'"):
        dr.open(f"{path}.bare", reward_column="shaped")
    with pytest.raises(TypeError, match="no argument 'reward_column'"):
        dr.ReplayBuffer.create(f"{path}.new", GOAL, GOAL, capacity=3, reward_column="own")  # type: ignore[call-overload]


def test_a_learner_writes_values_and_trains_on_them(path: str) -> None:
    make(path)
    shaped(path)
    with dr.ReplayBuffer.open(path, reward_column="shaped", view=dr.Transition(2, gamma=1.0)) as rb:
        rb.write("shaped", np.arange(23), np.full(23, 7.0))
        assert set(np.concatenate([rb.sample(16).reward for _ in range(9)]).tolist()) == {7.0, 14.0}
        add(rb, 23)
        add(rb, 24)
        with pytest.raises(InputError, match=r"1 of 1 transitions have no finite value of 'shaped'; .*rb\.write"):
            rb.get(rb.items()[-1:])
        with pytest.raises(InputError, match="no finite value"):
            rb.get([22])  # whose return has the reward of the next step
        with pytest.raises(InputError, match="no finite value"):
            list(rb.shuffled(16))
        rb.write("shaped", rb.items()[-2:], [1.0, 2.0])
        assert rb.get([22, 23, 24]).reward.tolist() == [8.0, 3.0, 2.0]


def test_a_reader_does_not_show_what_its_writer_has_not_written(path: str) -> None:
    make(path)
    shaped(path)
    with dr.ReplayBuffer.open(path) as writer, dr.open(path, reward_column="shaped") as reader:
        add(writer, 23)
        writer.commit()
        reader.refresh()
        with pytest.raises(InputError, match="no finite value of 'shaped'"):
            reader.get([23])
        writer.write("shaped", [23], [5.0])
        writer.commit()
        reader.refresh()
        assert reader.get([23]).reward.tolist() == [5.0]


def test_rows_that_are_no_transitions_lack_nothing(path: str) -> None:
    with dr.ReplayBuffer.create(
        path, GOAL, GOAL, capacity=20, num_envs=2, later={"shaped": "float32", "unwritten": "float32"}
    ) as rb:
        for at in range(6):
            now, after = (np.full((2, 1), number, np.float32) for number in (at, at + 1))
            rb.add(now, now, [at, -at], after, [False] * 2, [False] * 2, valid=[at != 3, True])
        ids = rb.items()
        rb.write("shaped", ids, np.arange(len(ids)))
    with dr.open(path, view=dr.Sequence(6, across=True), reward_column="shaped") as rb:
        batch = rb.get([0])
        assert batch.mask[0].tolist() == [True] * 3 + [False] + [True] * 2
        assert batch.reward[0].tolist() == [0, 2, 4, 0, 7, 9]
    with pytest.raises(InputError, match="11 of 11 transitions"):
        dr.open(path, reward_column="unwritten")


def test_mixtures_of_relabelled_and_other_stores(path: str, tmp_path: pathlib.Path) -> None:
    plain(path)
    shaped(path)
    plain(tmp_path / "two")
    with dr.open(path, reward_column="shaped") as one, dr.open(tmp_path / "two") as two, dr.open(
        path, reward_column="own"
    ) as three:  # fmt: skip
        for parts in ([one, two], [two, one]):
            batch = dr.Mixture(parts).sample(20)
            assert sorted({*np.sign(batch.reward).tolist()} - {0.0}) == [-1.0, 1.0]
            assert RECORDED not in batch.extra  # not all have one
        batch = dr.Mixture([one, three]).sample(20)
        assert (batch.extra[RECORDED][:10] * -2 == batch.reward[:10]).all()
        assert (batch.extra[RECORDED][10:] * 3 == batch.reward[10:]).all()


def test_a_column_that_was_called_so_already_stays(path: str) -> None:
    with dr.ReplayBuffer.create(path, GOAL, GOAL, capacity=20, columns={RECORDED: "float32", "b": "float32"}) as rb:
        rb.add([0.0], [0.0], 1.0, [1.0], True, False, recorded_reward=2.0, b=3.0)
    with dr.open(path, reward_column="b") as rb:
        assert (rb.get([0]).reward, rb.get([0]).extra[RECORDED]) == (3.0, 2.0)
    with dr.open(path, reward_column=RECORDED) as rb:
        assert (rb.get([0]).reward, rb.get([0]).extra[RECORDED]) == (2.0, 2.0)


@pytest.mark.usefixtures("small_thresholds")
def test_several_environments_and_streams_with_a_column_on_disk(path: str) -> None:
    options = {"capacity": 30_000, "num_envs": 2, "columns": {"own": "float64"}, "later": {"shaped": "float32"}}

    def record(rb: dr.ReplayBuffer[Any], start: int, stop: int) -> None:
        for at in range(start, stop):
            now, after = (np.full((2, 1), number, np.float32) for number in (at, at + 1))
            own = np.array([at, -at], float)
            rb.add(now, now, own, after, [at % 4 == 3] * 2, [False] * 2, own=2 * own)

    with dr.ReplayBuffer.create(path, GOAL, GOAL, **options) as rb:
        record(rb, 0, 13)
    with dr.ReplayBuffer.open(path, stream="b", reward_column="own", view=dr.Transition(2, gamma=1.0)) as rb:
        record(rb, 13, 40)
        rb.commit()
        for other in (rb, dr.open(path, view=dr.Transition(2, gamma=1.0), reward_column="own")):
            with dr.open(path, view=dr.Transition(2, gamma=1.0)) as recorded:
                ids = recorded.items()
                np.testing.assert_array_equal(other.get(ids).reward, 2 * recorded.get(ids).reward)
                np.testing.assert_array_equal(other.sample(32).extra["own"].shape, (32,))
        other.close()
