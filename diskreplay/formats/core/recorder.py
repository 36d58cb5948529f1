"""The way of transitions into a store, through ``ReplayBuffer.extend``.

A store of one environment takes episodes one after another. ``add`` finds an episode's end by its flags, or where the
next observation given is not the one added. An episode that ends in neither flag, and with the very observation that
the next one begins with, would go on in it: a row that is no transition is put between them. So it is where the store's
continuity is that of flags, whatever the observations are.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay import spaces
from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.errors import MisuseWarning
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.transitions import Transitions
from diskreplay.views.batch import map_arrays

Array = NDArray[Any]


def add_steps(buffer: ReplayBuffer, blocks: Iterable[Transitions], *, open_end: bool = False) -> tuple[int, int]:
    """Add steps to a buffer with a stream of one environment, and return how many steps and episodes they were.

    Args:
        buffer: open for writing.
        blocks: the blocks of steps.
        open_end: True if the stream's newest episode has not ended; the steps do not go on in it.

    Raises what :meth:`ReplayBuffer.add` raises; the steps before stay. What looks like a mistake was made by another
    program, if it is one: nothing is said of it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MisuseWarning)
        return _record(buffer, blocks, open_end)


def add_facts(buffer: ReplayBuffer, facts: Sequence[Mapping[str, Any]], episodes: int) -> None:
    """Tell the buffer's stream the facts of the last ``episodes`` that were added, as far as its window has them.

    Nothing is told where the source said another number of episodes: then nobody knows whose facts they are.
    """
    if not any(facts) or len(facts) != episodes:
        return
    added = [episode for episode in buffer.episodes if episode.stream == buffer.engine.appender.log.stream]
    for episode, told in zip(reversed(added), reversed(facts), strict=False):
        if told:
            buffer.annotate_episode(episode, **told)


def _record(buffer: ReplayBuffer, blocks: Iterable[Transitions], open_end: bool) -> tuple[int, int]:
    layout = Layout.of(buffer.schema, stacked=True)
    obs_tree, action_tree = layout.obs_tree, layout.action_tree
    count = episodes = 0
    before: Transitions | None = None
    for steps in blocks:
        apart = _needing_gap(before, steps, by_flags=buffer.schema.continuity == "flags")
        if open_end and not count:
            apart.add(0)
        for start, stop in itertools.pairwise(sorted({0, len(steps), *apart})):
            part = steps.span(start, stop)
            obs = spaces.unflatten(obs_tree, [part.obs[leaf] for leaf in spaces.leaves(obs_tree)])
            next_obs = spaces.unflatten(obs_tree, [part.next_obs[leaf] for leaf in spaces.leaves(obs_tree)])
            action = spaces.unflatten(action_tree, [part.action[leaf] for leaf in spaces.leaves(action_tree)])
            if start in apart:
                first = functools.partial(map_arrays, lambda array: array[0])
                buffer.add(
                    first(obs), first(action), 0.0, first(obs), False, False, valid=False, **first(dict(part.extra))
                )
            buffer.extend(obs, action, part.reward, next_obs, part.terminated, part.truncated, **part.extra)
        count += len(steps)
        episodes += int(steps.last.sum())
        before = steps.span(len(steps) - 1, len(steps))
    return count, episodes + (before is not None and not before.last[0])


def _needing_gap(before: Transitions | None, steps: Transitions, by_flags: bool) -> set[int]:
    """Return the steps that need a row that is no transition before them; ``before`` is the step before the block.

    They begin an episode with the very observation in which the episode before ended, in neither flag; or with any,
    ``by_flags``, where observations are not compared.
    """
    ends = (np.flatnonzero(steps.last & ~steps.terminated & ~steps.truncated) + 1).tolist()
    found = {at for at in ends if at < len(steps) and (by_flags or _same(steps, at - 1, steps, at))}
    if before is not None and before.last[0] and not (before.terminated[0] or before.truncated[0]):
        found |= {0} if by_flags or _same(before, 0, steps, 0) else set()
    return found


def _same(one: Transitions, end: int, other: Transitions, begin: int) -> bool:
    """Tell whether the next observation of a step is another step's observation, bit for bit."""
    return all(values[end].tobytes() == other.obs[name][begin].tobytes() for name, values in one.next_obs.items())
