"""Transitions on their way from one dataset to another, a few MB at a time.

A :class:`Source` is a dataset to be read: a store, or a file of some format. It gives blocks of :class:`Transitions`,
in which every step has its true next observation. Formats that keep each observation once give blocks without them, and
:func:`with_next_obs` finds the next observations:

1. Within an episode it is the next step's observation.
2. At an episode's end it is the final observation, where the format holds one.
3. Where it does not, and the episode was terminated, nothing depends on it: the last observation stands in for it.
4. Otherwise the last step is no transition. It is left out, and the step before it becomes the episode's last, with
   its flag.
5. In a format whose episodes have a last entry for the final observation alone, that entry is no step.

Formats that keep an episode in one place take the transitions through :func:`by_episode`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from diskreplay.checks import Array
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.names import Names
from diskreplay.schema.columns import REWARD, TERMINATED
from diskreplay.schema.ragged import Lists, joined
from diskreplay.video import Video

BLOCK_BYTES = 4 << 20
"""The number of decoded bytes that a block of steps should have."""
NO_START = "first steps missing"
"""The name that is true among the facts of an episode of a :class:`Source` that lacks its first steps; of no fact."""

Arrays = Mapping[str, Any]
"""Arrays by the name of the column, such as ``obs/camera``; of ragged ones :class:`~diskreplay.schema.ragged.Lists`."""


@dataclasses.dataclass(frozen=True)
class Transitions:
    """Transitions in the order of their episodes; every array leads with their number ``n``.

    Attributes:
        obs, next_obs: ``(n, *shape)`` by the name of the observation leaf, such as ``obs/camera``; before
            :func:`with_next_obs` there are no next ones.
        action, extra: ``(n, *shape)`` by the name of the column.
        reward: ``(n,)``.
        terminated, truncated: ``(n,)`` bool, as recorded.
        last: ``(n,)`` bool: the next step is another episode's, or there is none.
    """

    obs: Arrays
    next_obs: Arrays
    action: Arrays
    extra: Arrays
    reward: Array
    terminated: Array
    truncated: Array
    last: Array

    def __len__(self) -> int:
        return len(self.reward)

    def span(self, start: int, stop: int) -> Transitions:
        """Return views of transitions ``[start, stop)``."""
        return self.only(slice(start, stop))

    def only(self, wanted: Array | slice) -> Transitions:
        """Return those transitions that a mask ``(n,)``, as copies, or a slice, as views, names."""
        changes: dict[str, Any] = {
            name: {key: one[wanted] for key, one in value.items()} if isinstance(value, Mapping) else value[wanted]
            for name, value in vars(self).items()
        }
        return Transitions(**changes)

    def columns(self) -> dict[str, Any]:
        """Return all but the next observations in one mapping: leaves and columns by name, ``reward`` and the flags."""
        flags = {"reward": self.reward, "terminated": self.terminated, "truncated": self.truncated}
        return {**self.obs, **self.action, **self.extra, **flags}

    def decoded_bytes(self, video: Mapping[str, Video]) -> int:
        """Return the bytes of all but the next observations; of the columns in ``video`` those of their frames."""
        frames = len(self) * sum(math.prod(one.shape) for one in video.values())
        rest = (values for name, values in self.columns().items() if name not in video)
        return frames + sum(int((one.values if isinstance(one, Lists) else one).nbytes) for one in rest)


@dataclasses.dataclass(frozen=True)
class Source:
    """A dataset that is open to be read.

    Attributes:
        layout: the layout of the steps.
        steps: the steps in it; ``blocks`` gives at most so many.
        blocks: an iterator over all steps; may be called again for another pass.
        episodes: the episodes in it; None where only reading tells.
        names: the names in the dataset, and which of them were read; all is known once the blocks were read.
        inferred: True if the spaces follow from the values alone.
        notes: what the reader found out or took for granted, a sentence each.
        facts: the facts of each of the episodes, in the order of the blocks; empty where the source has none. Of one
            that lacks its first steps, :data:`NO_START` is among them.
    """

    layout: Layout
    steps: int
    blocks: Callable[[], Iterator[Transitions]]
    episodes: int | None = None
    names: Names = dataclasses.field(default_factory=Names)
    notes: tuple[str, ...] = ()
    inferred: bool = False
    facts: Sequence[Mapping[str, Any]] = ()


def with_next_obs(blocks: Iterable[tuple[Transitions, Arrays | None]], *, bare: bool = False) -> Iterator[Transitions]:
    """Yield blocks, of any size, with their next observations; see the module's docstring.

    An episode that has not ended at the last block ends there, with neither flag.

    Args:
        blocks: steps without next observations, and by leaf the final observations ``(ends, *shape)`` of the episodes
            that end there, in order; None where the format holds none.
        bare: the last step of each episode is its final observation alone.
    """
    kept: Transitions | None = None
    for block, finals in blocks:
        if not len(block):
            continue
        known = block if kept is None else _joined([kept, block])
        # An open episode's last two steps wait: the very last lacks its next observation, and may yet be left out.
        back = 0 if known.last[-1] else 1 if len(known) == 1 or known.last[-2] else 2
        kept = known.span(len(known) - back, len(known)) if back else None
        if len(steps := _linked(known, len(known) - back, finals, bare)):
            yield steps
    if kept is not None:
        ended = dataclasses.replace(kept, last=np.append(kept.last[:-1], True))
        if len(steps := _linked(ended, len(kept), None, bare)):
            yield steps


def _linked(block: Transitions, count: int, finals: Arrays | None, bare: bool) -> Transitions:
    """Return the first ``count`` steps with their next observations; all but the last have a step after them."""
    first = block.span(0, count)
    ends = np.flatnonzero(first.last)
    following: dict[str, Any] = {}
    for name, values in block.obs.items():
        final = values[ends] if finals is None else finals[name]
        if isinstance(values, Lists):
            parts, start = [], 1
            for number, end in enumerate(ends.tolist()):
                parts += [values[start : end + 1], final[number : number + 1]]
                start = end + 2
            following[name] = joined([*parts, values[start : count + 1]])
            continue
        out = np.empty((count, *values.shape[1:]), values.dtype)
        known = values[1 : count + 1]
        out[: len(known)] = known
        out[ends] = final
        following[name] = out
    steps = dataclasses.replace(first, next_obs=following)
    lost = ends if bare else ends[~first.terminated[ends]]
    if finals is not None or not len(lost):
        return steps
    last, truncated = first.last.copy(), first.truncated.copy()
    before = lost[(lost > 0) & ~last[lost - 1]]
    last[before - 1] = True
    if not bare:
        truncated[before - 1] = truncated[before]
    left = np.ones(count, bool)
    left[lost] = False
    return dataclasses.replace(steps, last=last, truncated=truncated).only(left)


def by_episode(blocks: Iterable[Transitions]) -> Iterator[Transitions]:
    """Yield the same steps in blocks that end where episodes end: never two episodes in one block."""
    for steps in blocks:
        ends = (np.flatnonzero(steps.last) + 1).tolist()
        for start, stop in itertools.pairwise(sorted({0, *ends, len(steps)})):
            yield steps.span(start, stop)


def whole_episodes(blocks: Iterable[Transitions]) -> Iterator[Transitions]:
    """Yield the same steps, one block an episode; memory holds one episode and one block."""
    parts: list[Transitions] = []
    for steps in by_episode(blocks):
        parts.append(steps)
        if steps.last[-1]:
            yield parts[0] if len(parts) == 1 else _joined(parts)
            parts = []
    if parts:
        yield _joined(parts)


def whole(parts: list[Any]) -> Any:
    """Return the rows of several arrays, or of several :class:`~diskreplay.schema.ragged.Lists`, as one."""
    return joined(parts) if isinstance(parts[0], Lists) else np.concatenate(parts)


def nothing(values: Any) -> Any:
    """Return one entry that means nothing: zeros like those of an array, or one of Lists without an item."""
    return Lists(values.values[:0], np.zeros(2, np.int64)) if isinstance(values, Lists) else np.zeros_like(values[:1])


def no_steps(layout: Layout) -> Transitions:
    """Return no transition of a layout."""
    none: dict[str, Any] = {name: np.empty((0, *shape), dtype) for name, (shape, dtype) in layout.step_shapes.items()}
    none |= {name: Lists(none[name], np.zeros(1, np.int64)) for name in layout.ragged}
    obs, action, extra = ({name: none[name] for name in part} for part in (layout.obs, layout.action, layout.columns))
    return Transitions(obs, obs, action, extra, none[REWARD], *[none[TERMINATED]] * 3)


def _joined(parts: Sequence[Transitions]) -> Transitions:
    changes: dict[str, Any] = {}
    for name, value in vars(parts[0]).items():
        each = [getattr(part, name) for part in parts]
        named = isinstance(value, Mapping)
        changes[name] = {key: whole([one[key] for one in each]) for key in value} if named else whole(each)
    return Transitions(**changes)
