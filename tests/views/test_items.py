"""Every view over every kind of buffer, against the oracle: which ids are items, and each item bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.configs import CONFIGS, Config
from helpers.effort import stride
from helpers.model import Leaf, Log
from helpers.recording import Recording, recorded_in, reopen
from helpers.view_model import GOAL_CONFIGS, HINDSIGHT, VIEWS, check, items, name_of, standings

import diskreplay as dr
from diskreplay.errors import EvictedError, InputError, NotEnoughDataError
from diskreplay.index.log import Standing


def check_items(buffer: dr.ReplayBuffer, view: Any, logs: list[Log]) -> None:
    """All ways to see the items of a buffer say what the logs do."""
    expected = standings(view, logs)
    every = np.array(list(expected), np.int64)
    np.testing.assert_array_equal(buffer.draws.standing(every), list(expected.values()))
    there = items(view, logs)
    for each in every[[found != Standing.NOW for found in expected.values()]][:5].tolist():
        with pytest.raises(InputError, match=f"index {each} names no transition that can be sampled"):
            buffer.get([*there[:2], each])
    for log in logs:
        if log.begin:
            with pytest.raises(EvictedError, match="has left the window"):
                buffer.get([(log.number << 48) + log.begin * log.num_envs - 1])
    if not there:
        with pytest.raises(NotEnoughDataError):
            buffer.sample(1)
        return
    shown = buffer.get(there)
    if isinstance(view, dr.Hindsight):
        assert not shown.relabelled.any(), "get shows what was recorded"
    check(shown, view, logs)
    for size in {1, min(7, len(buffer))}:
        check(buffer.sample(size), view, logs)
    batches = list(buffer.shuffled(5, pool_bytes=1 << 10))
    assert sorted(each for batch in batches for each in batch.index.tolist()) == there
    for batch in batches:
        check(batch, view, logs)


@pytest.mark.long
@pytest.mark.parametrize("config", [*CONFIGS, *GOAL_CONFIGS], ids=repr)
def test_every_kind_of_buffer(path: str, config: Config) -> None:
    """Before the window has moved and after, with an episode open and after it is cut, in RAM and from disk."""
    recording = Recording(config)
    views = (VIEWS + (HINDSIGHT if config in GOAL_CONFIGS else []))[:: stride(5, "views")]
    with config.create(path) as buffer:
        for count, special in ((3, 0.0), (8, 0.15), (40, 0.25), (6, 0.0)):
            recording.add(buffer, count, special)
            for view in views:
                buffer.draws.view = buffer.draws.shown = view
                check_items(buffer, view, [recording.log])
    for view in views:
        with reopen(config, path, mode="r", view=view) as buffer:
            check_items(buffer, view, [recording.log])


@pytest.mark.long
@pytest.mark.parametrize("config", [CONFIGS[1], CONFIGS[8], CONFIGS[14], *GOAL_CONFIGS], ids=repr)
def test_several_streams(path: str, config: Config) -> None:
    recording = Recording(config)
    views = (VIEWS + (HINDSIGHT if config in GOAL_CONFIGS else []))[:: stride(5, "views")]
    with config.create(path) as buffer, reopen(config, path, stream="b", num_envs=3, capacity=33) as other:
        second = Recording(config, seed=1)
        second.log = config.log(1, 3, 33)
        second.actor = type(second.actor)(second.log, second.rng, config.action, config.extra)
        for _ in range(3):
            recording.add(buffer, 9)
            second.add(other, 8)
            other.commit()
            buffer.refresh()
            for view in views:
                buffer.draws.view = buffer.draws.shown = view
                check_items(buffer, view, [recording.log, second.log])


@pytest.mark.long(quick=9)
@pytest.mark.parametrize("view", VIEWS, ids=name_of)
def test_what_stands_now_or_never_stays_so(path: str, view: Any) -> None:
    """Row by row: only what stands at LATER may come to stand elsewhere."""
    config = Config("growing", Leaf((2,)), num_envs=3, capacity=90)
    recording = Recording(config, seed=5)
    seen: dict[int, int] = {}
    changes = set()
    with config.create(path, view=view) as buffer:
        for _ in range(120):
            recording.add(buffer, 1, special=0.25)
            every = np.arange(recording.log.begin * 3, recording.log.end * 3)
            for each, found in zip(every.tolist(), buffer.draws.standing(every).tolist(), strict=True):
                before = seen.get(each, found)
                assert before in (found, Standing.LATER)
                changes.add((before, found))
                seen[each] = found
    waits = set(seen.values()) | {before for before, _ in changes}
    if Standing.LATER in waits:
        assert (Standing.LATER, Standing.NOW) in changes


def test_episodes_are_those_that_the_buffer_lists(path: str) -> None:
    config = Config("episodes", Leaf((2,)), num_envs=2, capacity=80)
    with recorded_in(config, path, 70, seed=2, view=dr.PaddedEpisodes(50)) as (buffer, recording):
        whole = [each for each in buffer.episodes if each.complete_start and each.ended]
        batch = buffer.get([each.start * 2 + each.env for each in whole])
        assert len(whole) > 5
        assert batch.length.tolist() == [each.length for each in whole]
        assert batch.reward.sum(axis=1).tolist() == [each.total_reward for each in whole]
        assert len(items(dr.PaddedEpisodes(50), [recording.log])) == len(whole)


@pytest.mark.parametrize("view", [view for view in VIEWS if not isinstance(view, dr.Transition)], ids=name_of)
def test_nothing_asked_for(path: str, view: Any) -> None:
    config = CONFIGS[14]
    with recorded_in(config, path, 10, view=view) as (buffer, _):
        batch = buffer.get(np.empty(0, np.int64))
        assert (len(batch), batch.reward.shape[0], batch.reward.ndim) == (0, 0, 2)
