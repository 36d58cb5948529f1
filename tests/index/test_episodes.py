"""Episodes that are kept beside those that are found anew in the same rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.effort import examples
from helpers.testing import SimulatedDisk
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay as dr
from diskreplay.index import episodes as module
from diskreplay.index.fact_values import FactValues, values_of

PATH = "/a.replay"
BOX = spaces.Box(-math.inf, math.inf, (1,), np.float64)


def created(disk: SimulatedDisk, envs: int, rows: int) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.create(PATH, BOX, spaces.Discrete(2), num_envs=envs, capacity=rows * envs, files=disk)


def add(buffer: dr.ReplayBuffer, rng: np.random.Generator, ends: float, starts: float = 0.0) -> None:
    """A row: some episodes end with it, and some do not go on from the row before."""
    envs, end = buffer.num_envs, float(buffer.stats()["streams"]["0"]["end"])
    valid = rng.random(envs) < (0.9 if envs > 1 else 1)
    ended, jumps = rng.random((2, envs)) < [[ends], [starts]]
    row = (
        np.where(jumps, -1, end)[:, None], np.zeros(envs, int), rng.standard_normal(envs), np.full((envs, 1), end + 1),
        ended & valid, ~ended & valid & (rng.random(envs) < ends / 2),
    )  # fmt: skip
    shaped = [array if envs > 1 else array[0] for array in row]
    buffer.add(*shaped, valid=valid if envs > 1 else valid[0])


def check(buffer: dr.ReplayBuffer) -> None:
    """What is kept is equal, to the bit, to what is found anew."""
    fresh = [one for stream in buffer.engine.streams for one in module.episodes(stream.log, stream.facts)]
    assert buffer.episodes == fresh


@pytest.mark.long(quick=3)
@settings(max_examples=examples(150, least=15), deadline=None)
@given(
    st.sampled_from([1, 3]), st.integers(1, 30), st.sampled_from([0.0, 0.1, 0.5]), st.integers(0, 1 << 30),
    st.lists(st.sampled_from(["add", "add", "many", "look", "cut", "clear", "tell", "refresh", "resize"]), max_size=25),
)  # fmt: skip
def test_episodes_that_are_kept_are_those_that_are_there(
    envs: int, rows: int, ends: float, seed: int, calls: list[str]
) -> None:
    disk, rng = SimulatedDisk(), np.random.default_rng(seed)
    with created(disk, envs, rows) as buffer, dr.ReplayBuffer.open(PATH, mode="r", files=disk) as reader:
        for call in calls:
            if call in ("add", "many"):
                for _ in range(1 if call == "add" else int(rng.integers(2, 2 * rows + 2))):
                    add(buffer, rng, ends, ends / 3)
            elif call == "cut":
                buffer.cut()
            elif call == "clear":
                buffer.clear()
            elif call == "resize":
                buffer.resize(int(rng.integers(1, 40)) * envs)
            elif call == "tell" and buffer.episodes:
                every = buffer.episodes
                buffer.annotate_episode(every[int(rng.integers(len(every)))], note=int(rng.integers(9)))
            elif call == "refresh":
                buffer.commit()
                reader.refresh()
                check(reader)
            if call != "add":
                check(buffer)
        check(buffer)
        buffer.commit()
        reader.refresh()
        check(reader)


@pytest.mark.parametrize("count", [20, 60])
def test_only_episodes_that_are_new_are_made(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All were made at each call: 3.6 seconds of a million."""
    made = []
    episode = module.Episode

    def counted(*values: object) -> dr.Episode:
        made.append(values)
        return episode(*values)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "Episode", counted)
    rng = np.random.default_rng(0)
    with created(SimulatedDisk(), 1, count) as buffer:
        for _ in range(count):
            add(buffer, rng, 1.0)
        assert len(buffer.episodes) == len(made) == count
        made.clear()
        before = buffer.episodes
        assert not made
        before.clear()
        add(buffer, rng, 0.0)
        add(buffer, rng, 1.0)
        assert len(buffer.episodes) == count - 1, "the list that is handed out is the caller's own"
        assert len(made) <= 2, "the last one could have gone on"
        made.clear()
        buffer.annotate_episode(note="new")
        assert buffer.episodes[-1].facts == {"note": "new"}
        assert len(made) == 1


def test_an_episode_keeps_the_facts_that_it_was_found_with() -> None:
    with created(SimulatedDisk(), 1, 20) as buffer:
        add(buffer, np.random.default_rng(0), 1.0)
        buffer.annotate_episode(note=1)
        old = buffer.episodes[0]
        buffer.annotate_episode(old, note=2)
        assert (old.facts, buffer.episodes[0].facts) == ({"note": 1}, {"note": 2})
        old.facts["note"] = 3
        assert old.facts == {"note": 1}, "a copy"
        assert hash(old) == hash(buffer.episodes[0])
        assert repr(old).endswith("ended=True, facts={'note': 1})")


def test_the_values_of_sixteen_facts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those of eight were."""
    made: list[str] = []

    def counted(known: Sequence[dict[str, Any]], name: str) -> FactValues:
        made.append(name)
        return values_of(known, name)

    monkeypatch.setattr(module, "values_of", counted)
    names = [f"fact_{number}" for number in range(module.MOST_VALUES + 1)]
    with created(SimulatedDisk(), 1, 20) as buffer:
        add(buffer, np.random.default_rng(0), 1.0)
        buffer.annotate_episode(**dict.fromkeys(names, 1))
        kept = buffer.engine.streams.all[0].episodes
        for name in [*names, *names[1:]]:
            kept.values(name)
        assert made == names, "each was made once"
        kept.values(names[0])
        assert made == [*names, names[0]], "the oldest had made room"
