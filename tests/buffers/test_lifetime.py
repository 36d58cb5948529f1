"""A buffer that nobody holds any more is gone at once, with its lock and its files: it is no reference cycle."""

from __future__ import annotations

import gc
import weakref

import gymnasium
import numpy as np
import pytest

import diskreplay as dr

SPACE, ACTIONS = gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(2)
STEP = (np.zeros(3, np.float32), 0, 0.0, np.zeros(3, np.float32), False, False)


@pytest.fixture(autouse=True)
def _no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("sampler", [dr.Uniform, dr.Proportional, dr.RankBased])
@pytest.mark.parametrize("view", [dr.Transition(), dr.Sequence(3), dr.PaddedEpisodes(4)], ids=repr)
def test_a_replay_buffer_is_no_cycle(path, sampler, view) -> None:
    buffer = dr.ReplayBuffer.create(path, SPACE, ACTIONS, capacity=100, sampler=sampler(), view=view)
    for at in range(20):
        buffer.add(*STEP[:5], at % 5 == 4)
    buffer.sample(4)
    buffer.commit()
    gone = weakref.ref(buffer)
    del buffer
    assert gone() is None
    dr.ReplayBuffer.open(path).close()


@pytest.mark.long
def test_a_rollout_buffer_is_no_cycle(path) -> None:
    buffer = dr.RolloutBuffer.create(path, SPACE, ACTIONS, steps=8)
    for _ in range(8):
        buffer.add(*STEP, value=0.0, log_prob=0.0)
    buffer.finish(0.0)
    assert sum(len(batch) for batch in buffer.minibatches(3)) == 8
    gone = weakref.ref(buffer)
    del buffer
    assert gone() is None
    dr.RolloutBuffer.open(path).close()
