"""What d3rlpy's own pickers and slicers make of steps of episodes: for a whole batch, of arrays that one read gives.

1. A transition has the observation of its step, or a stack that ends with it, and that of a later step, or of the end
   of its episode. A trajectory has those of the steps up to a transition's.
2. Before an episode's first step there are zeros; behind its last one is the next observation of that.
3. Sums are made in the order of d3rlpy's: they have the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from d3rlpy.dataset import (
    BasicTrajectorySlicer,
    BasicTransitionPicker,
    FrameStackTrajectorySlicer,
    FrameStackTransitionPicker,
    MultiStepTransitionPicker,
    PartialTrajectory,
    SparseRewardTransitionPicker,
    TrajectoryMiniBatch,
    Transition,
    TransitionMiniBatch,
)

from diskreplay.checks import Array
from diskreplay.compat.d3rlpy.episodes import Reader, with_last
from diskreplay.compat.d3rlpy.signatures import joined
from diskreplay.compat.disk_array import ReadSequence
from diskreplay.compat.rows import EpisodePlace, places, reward_spans
from diskreplay.reading.reads import Reads
from diskreplay.reading.samples import Samples
from diskreplay.schema.columns import REWARD
from diskreplay.schema.ids import Ids

STACKING = FrameStackTransitionPicker, FrameStackTrajectorySlicer
OWN = BasicTransitionPicker, SparseRewardTransitionPicker, MultiStepTransitionPicker, BasicTrajectorySlicer, *STACKING
"""The classes that are known here; any other may look at a whole episode."""


def stacked_frames(given: Any) -> int:
    """Return how many frames d3rlpy's own picker or slicer stacks, 1 if it stacks none."""
    return int(given._n_frames) if type(given) in STACKING else 1


class Draft:
    """What is read of steps around transitions ``(B,)``, with the engine's lock held.

    Raises EvictedError where a transition has left the window.
    """

    def __init__(self, reader: Reader, ids: Ids, reads: Reads) -> None:
        self._store, self._reads, self._layout = reader.store, reads, reader.layout
        self.where = places(self._store, ids)
        self.step: Array = self.where.step[:, None]

    def at(self, steps: Array) -> Samples:
        """Return the samples of steps ``(B, n)`` of the transitions' episodes, of which negative ones are zeros."""
        held = np.flatnonzero(steps >= 0)
        ids = self.where.ids(steps).ravel()[held]
        streams = self._store.engine.streams.all
        return Samples(self._store.schema, streams, ids, held, steps.size, reads=self._reads)

    def leaves(self, observe: Callable[[int], Any]) -> list[Any]:
        return [observe(leaf) for leaf in range(len(self._layout.shapes))]

    def actions(self, samples: Samples) -> Array:
        return samples.values(self._store.schema.action_columns[0])


def _shaped(leaves: Sequence[Array], count: int, shapes: Sequence[Any]) -> list[Array]:
    return [leaf.reshape(count, -1, *shape) for leaf, shape in zip(leaves, shapes, strict=True)]


def _stacks(leaf: Array, frames: int) -> Array:
    """Return stacks ``(B, T, frames * channels, ...)`` of frames ``(B, T + frames - 1, channels, ...)``."""
    steps = leaf.shape[1] - frames + 1
    return leaf if frames == 1 else np.concatenate([leaf[:, at : at + steps] for at in range(frames)], axis=2)


def _each(function: Callable[[Array], Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields with a function applied to each array."""
    return {
        name: [*map(function, value)] if isinstance(value, list) else function(value) for name, value in fields.items()
    }


def _float32(array: Array) -> Array:
    return array.astype(np.float32, copy=False)


def transitions(reader: Reader, picker: Any, ids: Ids) -> tuple[dict[str, Any], Sequence[Transition]]:
    """Return the fields of transitions, arrays ``(B, ...)``, and the transitions, each made when it is looked at.

    Raises EvictedError where one has left the window; the transitions, where rewards to go have since.
    """
    layout, count, frames = reader.layout, len(ids), stacked_frames(picker)
    many = type(picker) is MultiStepTransitionPicker
    steps = int(picker._n_steps) if many else 1

    def draft(reads: Reads) -> tuple[Any, ...]:
        draft = Draft(reader, ids, reads)
        own, stop = draft.at(draft.step), draft.where.steps[:, None]
        ahead = np.minimum(draft.step + steps, stop)
        if frames == steps == 1:
            seen, following = map(list, zip(*draft.leaves(own.observe), strict=True))
        else:
            seen = draft.leaves(draft.at(draft.step + np.arange(1 - frames, 1)).current)
            following = draft.leaves(draft.at(ahead - 1).observe_next)
        each = draft.step + np.arange(steps)
        earned = (draft.at(np.where(each < ahead, each, -1)) if many else own).resident(REWARD)
        actions = draft.actions(own), draft.actions(draft.at(np.minimum(ahead, stop - 1)))
        return draft.where, ahead[:, 0], seen, following, *actions, earned

    where, ahead, seen, following, action, chosen, earned = reader.store.engine.read(draft)
    last = ahead == where.steps
    terminal = last & where.terminated
    action, chosen = (array.reshape(count, *layout.action_shape) for array in (action, chosen))
    for at in np.flatnonzero(last & ~terminal):
        after = reader.after(where.one(at))
        if after is not None and after.action is not None:
            chosen[at] = after.action
    seen, following = (_shaped(leaves, count, layout.shapes) for leaves in (seen, following))
    following = [np.concatenate([old[:, 1:], new], axis=1) for old, new in zip(seen, following, strict=True)]
    seen, following = ([_stacks(leaf, frames)[:, 0] for leaf in leaves] for leaves in (seen, following))
    for array in (*following, chosen):
        array[terminal] = 0
    fields = {
        "observation": joined(seen), "action": action, "reward": earned.reshape(count, -1),
        "next_observation": joined(following), "next_action": chosen, "terminal": terminal.astype(float),
        "interval": ahead - where.step,
    }  # fmt: skip
    if many:
        fields["reward"] = _returns(fields["reward"], fields["interval"], picker._gamma)
    to_go = functools.cache(lambda: _to_go(reader, picker, ids, where))

    def one(at: int) -> Transition:
        found = _each(lambda array: array[at] if array.ndim > 1 else array[at].item(), fields)
        return Transition(**found, rewards_to_go=to_go()[at])

    return fields, ReadSequence(lambda: count, one)


def _returns(rewards: Array, steps: Array, gamma: float) -> Array:
    """Return discounted sums ``(B, 1)`` of so many rewards each: those of as many are made together."""
    found, scales = np.empty((len(rewards), 1)), gamma ** np.arange(rewards.shape[1])
    for count in np.unique(steps):
        here = steps == count
        found[here, 0] = np.sum(rewards[here, :count] * scales[:count], axis=1)
    return found


def _to_go(reader: Reader, picker: Any, ids: Ids, where: EpisodePlace) -> list[Array]:
    """Return the rewards of episodes from transitions on ``(n, 1)``, or what the picker has in their place."""
    store, sparse = reader.store, type(picker) is SparseRewardTransitionPicker

    def draft(reads: Reads) -> list[Array]:
        store.engine.streams.check(store.view, ids)
        return reward_spans(store, where, where.step)

    found = store.engine.read(draft)
    for at, rewards in enumerate(found):
        after = reader.after(where.one(at))
        # A step that nobody took has no reward that could differ from those of a failure.
        found[at] = with_last(rewards, where.terminated[at] or (sparse and after is None), after)
        if sparse and np.all(found[at] == picker._step_reward):
            found[at] = np.array([[picker._failure_return]], np.float32)
    return found


def transition_batch(reader: Reader, picker: Any, ids: Ids) -> TransitionMiniBatch:
    """Return transitions as float32 arrays ``(B, ...)``; raise EvictedError where one has left the window."""
    fields, each = transitions(reader, picker, ids)
    fields |= {name: fields[name][:, None] for name in ("terminal", "interval")}
    return TransitionMiniBatch(
        **{f"{name}s": value for name, value in _each(_float32, fields).items()}, transitions=each
    )


def trajectories(reader: Reader, slicer: Any, ids: Ids, length: int) -> dict[str, Any]:
    """Return the fields of trajectories of ``length`` steps up to each transition, arrays ``(B, length, ...)``.

    Raises EvictedError where one has left the window.
    """
    layout, frames, count = reader.layout, stacked_frames(slicer), len(ids)

    def draft(reads: Reads) -> tuple[Any, ...]:
        draft = Draft(reader, ids, reads)
        steps = draft.step + np.arange(1 - length, 1)
        samples = draft.at(steps)
        older = samples if frames == 1 else draft.at(draft.step + np.arange(2 - length - frames, 1))
        seen = draft.leaves(older.current)
        spans = reward_spans(reader.store, draft.where, np.maximum(steps[:, 0], 0))
        return draft.where, steps, seen, draft.actions(samples), samples.resident(REWARD), spans

    where, steps, seen, actions, rewards, spans = reader.store.engine.read(draft)
    for at in np.flatnonzero(~where.terminated):
        spans[at] = with_last(spans[at], False, reader.after(where.one(at)))
    masks, rewards = steps >= 0, rewards.reshape(count, length, 1)
    totals = np.array([np.add.reduce(span, axis=None) for span in spans], rewards.dtype)[:, None, None]
    terminals = np.zeros((count, length, 1), np.float32)
    terminals[:, -1, 0] = where.terminated & (where.step == where.steps - 1)
    return {
        "observations": joined([_stacks(leaf, frames) for leaf in _shaped(seen, count, layout.shapes)]),
        "actions": actions.reshape(count, length, *layout.action_shape), "rewards": rewards,
        "returns_to_go": np.where(masks[..., None], totals - np.cumsum(rewards, axis=1) + rewards, 0),
        "terminals": terminals, "timesteps": (steps + 1) * masks, "masks": masks.astype(np.float32),
    }  # fmt: skip


def trajectory(reader: Reader, slicer: Any, ids: Ids, length: int) -> PartialTrajectory:
    """Return the trajectory up to the only transition of ``ids``; see :func:`trajectories`."""
    found = _each(lambda array: array[0], trajectories(reader, slicer, ids, length))
    if type(slicer) in STACKING:  # as d3rlpy's gives them
        found["observations"] = found["observations"].astype(float)
    return PartialTrajectory(**found, length=length)


def trajectory_batch(reader: Reader, slicer: Any, ids: Ids, length: int) -> TrajectoryMiniBatch:
    """Return trajectories as float32 arrays; see :func:`trajectories`."""
    return TrajectoryMiniBatch(**_each(_float32, trajectories(reader, slicer, ids, length)), length=length)
