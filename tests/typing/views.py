"""Which batches type checkers say that buffers give. Nobody runs it: ``make lint`` has mypy check each line.

With ``--strict`` an error that is ignored must be one.
"""

from __future__ import annotations

import fractions
from typing import Any, assert_type

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay as dr

OBS, ACTION = Box(-1, 1, (3,), np.float32), Discrete(2)


def reward(achieved: Any, desired: Any, info: Any) -> Any:
    return -abs(achieved - desired)


def buffers() -> None:
    plain = dr.ReplayBuffer.create("a", OBS, ACTION, capacity=10)
    assert_type(plain, dr.ReplayBuffer[dr.Batch])
    assert_type(plain.sample(2), dr.Batch)
    print(plain.sample(2).mask)  # type: ignore[attr-defined]
    sequences = dr.ReplayBuffer.create(
        path="a", observation_space=OBS, action_space=ACTION, capacity=10, view=dr.Sequence(5)
    )
    assert_type(sequences, dr.ReplayBuffer[dr.SequenceBatch])
    sequences.sample(2).mask.sum()
    assert_type(sequences.get([0]), dr.SequenceBatch)
    assert_type(next(sequences.loader(2)), dr.SequenceBatch)
    assert_type(next(sequences.shuffled(2)), dr.SequenceBatch)
    episodes = dr.ReplayBuffer.open("a", mode="r", view=dr.PaddedEpisodes(9))
    assert_type(episodes.sample(2).length, Any)
    goals = dr.ReplayBuffer.open_or_create("a", OBS, ACTION, capacity=10, view=dr.Hindsight(reward))
    assert_type(goals.sample(2).relabelled, Any)
    windows = dr.ReplayBuffer.open("a", view=dr.DeltaTimestamps({"action": [0.0, 0.1]}, fps=10))
    assert_type(windows.sample(2), dr.DeltaBatch)
    print(windows.sample(2).is_pad["action"])
    learn(plain)
    learn(sequences)
    assert_type(dr.Mixture([sequences, sequences]).sample(2), dr.SequenceBatch)
    agents = dr.MultiAgentReplayBuffer.create("a", OBS, ACTION, 2, capacity=10, view=dr.Sequence(5))
    assert_type(agents.sample(2), dr.MultiAgentBatch)
    assert_type(dr.MultiAgentReplayBuffer.open("a", view=dr.Sequence(5)).sample(2), dr.MultiAgentBatch)
    rollout = dr.RolloutBuffer.create("a", OBS, ACTION, steps=5)
    assert_type(next(rollout.minibatches(2)), dr.RolloutBatch)


def videos() -> None:
    for video in (dr.Video("h264", 64, 48, fps=30), dr.Video("h264", 64, 48, fps=29.97)):
        assert_type(video.fps, fractions.Fraction)
    dr.Video("av1", 64, 48, fps=fractions.Fraction(30000, 1001), parameters=[b"first"])
    dr.Video("av1", 64, 48, fps="30")  # type: ignore[arg-type]
    video.fps = fractions.Fraction(3)  # type: ignore[misc]


def learn(buffer: dr.ReplayBuffer) -> dr.Batch:
    return buffer.sample(2)


def options() -> None:
    dr.ReplayBuffer.create("a", OBS, ACTION, capacity=10, comit_rows=3)  # type: ignore[call-arg]
    dr.ReplayBuffer.create("a", OBS, ACTION, capacity=10, commit_rows="3")  # type: ignore[arg-type]
    dr.ReplayBuffer.create("a", OBS, ACTION)  # type: ignore[call-arg]
    dr.RolloutBuffer.open("a", capacity=3)  # type: ignore[call-arg]
    dr.ReplayBuffer.open("a", mode="w")  # type: ignore[arg-type]
    dr.ReplayBuffer.create("a", OBS, ACTION, capacity=10, view=3)  # type: ignore[arg-type]
