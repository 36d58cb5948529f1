"""The way of transitions into a store, through ``ReplayBuffer.extend``.

1. A store of one environment takes episodes one after another. Each ends where its source says, in a flag or in none
   (:meth:`~diskreplay.ReplayBuffer.cut`), whatever the observations are.
2. Within an episode a step goes on though its observation is not the next observation before it, and both are kept.
   Only a store whose continuity is "flags" does that. So a new one is made as such a store, and where nothing differed
   it is made one of continuity "observations" before it has its name.
3. No such steps are added to a store of continuity "observations": :func:`without_differing`.
4. Steps are read ahead in a thread while others are added. Of more steps than are kept, the newest alone are added.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.engine.continuity import same_rows
from diskreplay.errors import InputError, MisuseWarning
from diskreplay.formats.core.layout import Layout, Shape
from diskreplay.formats.core.transitions import NO_START, Source, Transitions
from diskreplay.process.background import Prefetcher
from diskreplay.schema import spaces
from diskreplay.schema.ragged import Lists

BLOCKS_AHEAD = 2
"""The number of blocks of steps that wait to be added while the next one is read."""

MAX_FRAME_STACK = 1024
"""The most frames that a sample may stack."""

WAITING_BYTES = 64 << 20
"""The most decoded bytes of steps that wait in memory until it is known that they are among the newest."""


@dataclasses.dataclass(frozen=True)
class Added:
    """Steps that are in a store, or were.

    Attributes:
        steps, episodes: the numbers of both, as the store has them.
        differing: the steps whose next observation is not that of the next step of their episode.
    """

    steps: int = 0
    episodes: int = 0
    differing: int = 0

    def __add__(self, other: Added) -> Added:
        return Added(self.steps + other.steps, self.episodes + other.episodes, self.differing + other.differing)


def record(buffer: ReplayBuffer, source: Source, capacity: int | None = None) -> tuple[Added, int]:
    """Add a source to a buffer that was just opened, of a stream of one environment that keeps ``capacity`` steps.

    Returns:
        What was added, or would have been evicted at once; and how many steps of it the stream does not keep.
    """
    log, left = buffer.engine.appender.log, Added()
    before = len(log)
    # Some more steps than are kept, so that what the first episode and stacks begin with was there, and has left.
    wanted = 0 if capacity is None else 2 * capacity + MAX_FRAME_STACK
    with Prefetcher(source.blocks, BLOCKS_AHEAD, "import") as blocks:
        steps: Iterable[Transitions] = blocks
        if 0 < wanted * source.layout.step_bytes <= WAITING_BYTES:
            left, steps = newest(blocks, wanted)
        steps = without_differing(steps, source.layout, buffer)
        added = left + add_steps(buffer, steps, facts=source.facts[left.episodes :])
    add_facts(buffer, source.facts, added.episodes)
    return added, before + added.steps - len(log)


def newest(blocks: Iterable[Transitions], count: int) -> tuple[Added, Iterable[Transitions]]:
    """Read all blocks; return the steps and ends of episodes before the newest ``count`` steps, and these."""
    waiting: collections.deque[Transitions] = collections.deque()
    held, left = 0, Added()
    for steps in blocks:
        waiting.append(steps)
        held += len(steps)
        while held > count:
            oldest = waiting.popleft()
            out = min(len(oldest), held - count)
            if out < len(oldest):
                waiting.appendleft(oldest.span(out, len(oldest)))
            held -= out
            left += Added(out, int(oldest.last[:out].sum()))
    return left, waiting


def add_steps(buffer: ReplayBuffer, blocks: Iterable[Transitions], facts: Sequence[Mapping[str, Any]] = ()) -> Added:
    """Add steps to a buffer that was just opened, with a stream of one environment, and return what was added.

    Args:
        buffer: open for writing.
        blocks: the blocks of steps.
        facts: those of their episodes, which tell whose first steps are missing.

    Raises what :meth:`ReplayBuffer.add` raises; the steps before stay. What looks like a mistake was made by another
    program, if it is one: nothing is said of it.
    """
    layout, appender = Layout.of(buffer.schema, stacked=True), buffer.engine.appender
    count, episode, begins = 0, 0, True
    lacks = np.array([*(NO_START in told for told in facts), False])
    for steps in blocks:
        following = np.cumsum(steps.last) + episode
        flagged = (steps.terminated | steps.truncated) & ~lacks.take(following, mode="clip")
        ends = np.flatnonzero(steps.last & ~flagged) + 1
        for start, stop in itertools.pairwise(sorted({0, *ends.tolist(), len(steps)})):
            if begins:
                buffer.engine.cut(np.ones(1, bool), bool(lacks.take(episode, mode="clip")))
            _extend(buffer, layout, steps.span(start, stop))
            begins, episode = bool(steps.last[stop - 1]), int(following[stop - 1])
        count += len(steps)
    return Added(count, appender.signs.episodes, appender.signs.differing)


def _extend(buffer: ReplayBuffer, layout: Layout, steps: Transitions) -> None:
    obs, next_obs, action = (
        spaces.unflatten(tree, [values[leaf] for leaf in spaces.leaves(tree)])
        for tree, values in (
            (layout.obs_tree, steps.obs), (layout.obs_tree, steps.next_obs), (layout.action_tree, steps.action)
        )
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MisuseWarning)
        buffer.extend(obs, action, steps.reward, next_obs, steps.terminated, steps.truncated, **steps.extra)


def add_facts(buffer: ReplayBuffer, facts: Sequence[Mapping[str, Any]], episodes: int) -> None:
    """Tell the buffer's stream the facts of the last ``episodes`` that were added, as far as its window has them.

    Nothing is told where the source said another number of episodes: then nobody knows whose facts they are.
    """
    if not any(facts) or len(facts) != episodes:
        return
    added = [episode for episode in buffer.episodes if episode.stream == buffer.engine.appender.log.stream]
    for episode, told in zip(reversed(added), reversed(facts), strict=False):
        if found := {name: value for name, value in told.items() if name != NO_START}:
            buffer.engine.annotate_episode(episode, None, found)


def without_differing(blocks: Iterable[Transitions], layout: Layout, buffer: ReplayBuffer) -> Iterator[Transitions]:
    """Yield the blocks; raise InputError before one with a next observation that is not the next step's, bit for bit.

    Only a store of continuity "flags" takes it; another could not hold it without ending the episode.
    """
    if buffer.schema.continuity == "flags":
        yield from blocks
        return
    done, before = 0, None
    for steps in blocks:
        pairs = [(steps.span(0, len(steps) - 1), steps.span(1, len(steps)))]
        for one, other in pairs if before is None else [(before, steps.span(0, 1)), *pairs]:
            differ = np.zeros(len(one), bool)
            for name, shape in layout.obs.items():
                differ |= _unlike(one.next_obs[name], other.obs[name], shape)
            if (differ & ~one.last).any():
                step = done + int(np.argmax(differ & ~one.last)) - (one is before)
                raise InputError(
                    f"the next observation of step {step:,} is not the observation of the next step of its episode, "
                    f"and {buffer.path!r} holds no such steps (its continuity is 'observations'): import into a new "
                    "store; 'diskreplay merge' joins the two"
                )
        yield steps
        done, before = done + len(steps), steps.span(len(steps) - 1, len(steps))


def _unlike(one: Any, other: Any, shape: Shape) -> NDArray[np.bool_]:
    """Tell which values of two arrays differ, as values of a leaf's dtype, bit for bit."""
    if isinstance(one, Lists):
        return np.array([a.tobytes() != b.tobytes() for a, b in zip(one, other, strict=True)], bool)
    if not len(one):
        return np.zeros(0, bool)
    return ~same_rows(*(np.asarray(values).astype(shape[1], copy=False) for values in (one, other)))
