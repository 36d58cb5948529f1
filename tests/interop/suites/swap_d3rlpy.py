"""A pytest plugin: d3rlpy's replay buffer, and those that its two functions make, are ours."""

from __future__ import annotations

import types
from typing import Any

import d3rlpy.dataset
import numpy as np
from gymnasium import spaces

from diskreplay.compat.d3rlpy import DiskDataset


class ReplayBuffer(DiskDataset):
    """Takes d3rlpy's arguments. The spaces are those of the environment, of the first episode, or of the signatures."""

    def __init__(
        self, buffer: Any, transition_picker: Any = None, trajectory_slicer: Any = None,
        writer_preprocessor: Any = None, *, episodes: Any = (), env: Any = None, observation_signature: Any = None,
        action_signature: Any = None, reward_signature: Any = None, action_space: Any = None, action_size: Any = None,
        write_at_termination: bool = False,
    ) -> None:  # fmt: skip
        if env is None:
            first = episodes[0] if episodes else None
            seen = first.observation_signature if first else observation_signature
            done = first.action_signature if first else action_signature
            boxes = [spaces.Box(-np.inf, np.inf, *facts) for facts in zip(seen.shape, seen.dtype, strict=True)]
            discrete = np.dtype(done.dtype[0]).kind in "iu"
            size = max((int(each.actions.max()) + 1 for each in episodes), default=action_size) if discrete else None
            env = types.SimpleNamespace(
                observation_space=boxes[0] if len(boxes) == 1 else spaces.Tuple(boxes),
                action_space=spaces.Discrete(size) if discrete else spaces.Box(-np.inf, np.inf, done.shape[0]),
            )
        super().__init__(
            limit=getattr(buffer, "_limit", 100_000), env=env, transition_picker=transition_picker,
            trajectory_slicer=trajectory_slicer, writer_preprocessor=writer_preprocessor,
        )  # fmt: skip
        for episode in episodes or ():
            self.append_episode(episode)


for module in (d3rlpy.dataset, d3rlpy.dataset.replay_buffer):
    module.ReplayBuffer = ReplayBuffer
