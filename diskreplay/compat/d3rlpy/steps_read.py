"""The steps of an episode that d3rlpy's own pickers and slicers read, so that no others are read from the store."""

from __future__ import annotations

import dataclasses
from typing import Any

from d3rlpy.dataset import (
    BasicTrajectorySlicer,
    BasicTransitionPicker,
    FrameStackTrajectorySlicer,
    FrameStackTransitionPicker,
    MultiStepTransitionPicker,
    SparseRewardTransitionPicker,
)


@dataclasses.dataclass(frozen=True)
class StepsRead:
    """Steps relative to a transition's.

    Attributes:
        observations: the steps whose observations are read, ascending.
        actions: the steps whose actions are read, ascending.
        each_reward: True if rewards are read one by one, and a step that nobody took must not have one.
    """

    observations: tuple[int, ...]
    actions: tuple[int, ...]
    each_reward: bool = False

    @property
    def before(self) -> int:
        """The number of steps before the transition that are read."""
        return -min(self.observations[0], self.actions[0])


def of_picker(picker: Any) -> StepsRead | None:
    """Return what a picker reads, or None for one that is not d3rlpy's own, which may read anything."""
    kind = type(picker)
    if kind in (BasicTransitionPicker, SparseRewardTransitionPicker):
        return StepsRead((0, 1), (0, 1), each_reward=kind is SparseRewardTransitionPicker)
    if kind is MultiStepTransitionPicker:
        return StepsRead((0, picker._n_steps), (0, picker._n_steps))
    if kind is FrameStackTransitionPicker:
        return StepsRead(tuple(range(1 - picker._n_frames, 2)), (0, 1))
    return None


def of_slicer(slicer: Any, length: int) -> StepsRead | None:
    """Return what a slicer of trajectories of ``length`` steps reads, or None for one that is not d3rlpy's own."""
    steps = tuple(range(1 - length, 1))
    if type(slicer) is BasicTrajectorySlicer:
        return StepsRead(steps, steps)
    if type(slicer) is FrameStackTrajectorySlicer:
        return StepsRead(tuple(range(2 - length - slicer._n_frames, 1)), steps)
    return None


def stacked_frames(picker: Any) -> int:
    """Return how many frames d3rlpy's own picker or slicer stacks, 1 if it stacks none."""
    stacks = type(picker) in (FrameStackTransitionPicker, FrameStackTrajectorySlicer)
    return int(picker._n_frames) if stacks else 1
