"""A buffer that nobody holds any more is gone at once, with its lock and its files: it is no reference cycle."""

from __future__ import annotations

import weakref

import pytest
from helpers import line
from helpers.crashes import uncollected

import diskreplay as dr


@pytest.fixture(autouse=True)
def _no_collector():
    with uncollected():
        yield


@pytest.mark.parametrize("sampler", [dr.Uniform, dr.Proportional, dr.RankBased])
@pytest.mark.parametrize("view", [dr.Transition(), dr.Sequence(3), dr.PaddedEpisodes(4)], ids=repr)
def test_a_replay_buffer_is_no_cycle(path, sampler, view) -> None:
    buffer = line.create(path, sampler=sampler(), view=view)
    for _ in range(4):
        line.play(buffer, 5)
    buffer.sample(4)
    buffer.commit()
    gone = weakref.ref(buffer)
    with pytest.warns(ResourceWarning, match="was not closed; now it is, and its rows are committed"):
        del buffer
    assert gone() is None
    dr.ReplayBuffer.open(path).close()


@pytest.mark.long
def test_a_rollout_buffer_is_no_cycle(path) -> None:
    buffer = dr.RolloutBuffer.create(path, line.LINE, line.TURN, steps=8)
    line.add(buffer, 8, value=0.0, log_prob=0.0)
    buffer.finish(0.0)
    assert sum(len(batch) for batch in buffer.minibatches(3)) == 8
    gone = weakref.ref(buffer)
    with pytest.warns(ResourceWarning, match="was not closed; now it is, and its rows are committed"):
        del buffer
    assert gone() is None
    dr.RolloutBuffer.open(path).close()
