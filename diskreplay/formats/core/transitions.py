"""Steps on their way from one dataset to another, a few MB at a time.

A :class:`Source` is a dataset to be read: a store, or a file of some format. It gives :class:`Steps`, in which every
step has its true next observation. Formats that keep each observation once give :class:`Piece` instead, and
:func:`joined` finds the next observations:

1. Within an episode it is the next step's observation.
2. At an episode's end it is the final observation, where the format holds one.
3. Where it does not, and the episode was terminated, nothing depends on it: the last observation stands in for it.
4. Otherwise the last step is no transition. It is left out, and the step before it becomes the episode's last, with
   its flag.

Formats that keep an episode in one place take the steps through :func:`by_episode`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.formats.core.layout import Layout

Array = NDArray[Any]
Arrays = Mapping[str, Array]
"""Arrays by the name of the column, such as ``obs/camera``."""


@dataclasses.dataclass(frozen=True)
class Steps:
    """Transitions in the order of their episodes; every array leads with their number ``n``.

    Attributes:
        obs, next_obs: ``(n, *shape)`` by the name of the observation leaf, such as ``obs/camera``.
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

    def part(self, start: int, stop: int) -> Steps:
        """Steps ``[start, stop)``: views."""
        found: Steps = _sliced(self, slice(start, stop))
        return found

    def columns(self) -> dict[str, Array]:
        """All but the next observations in one mapping: leaves and columns by name, ``reward`` and the flags."""
        flags = {"reward": self.reward, "terminated": self.terminated, "truncated": self.truncated}
        return {**self.obs, **self.action, **self.extra, **flags}


@dataclasses.dataclass(frozen=True)
class Piece:
    """Steps of a format that keeps each observation once; attributes as of :class:`Steps`.

    Attributes:
        finals: the final observation of each episode that ends in this piece, in order, ``(ends, *shape)`` by leaf;
            None where the format holds none.
    """

    obs: Arrays
    action: Arrays
    extra: Arrays
    reward: Array
    terminated: Array
    truncated: Array
    last: Array
    finals: Arrays | None = None

    def __len__(self) -> int:
        return len(self.reward)


@dataclasses.dataclass(frozen=True)
class Source:
    """A dataset that is open to be read.

    Attributes:
        layout: of its steps.
        steps: in it; ``blocks`` gives at most so many.
        blocks: an iterator over all steps; may be called again for another pass.
        episodes: in it; None where only reading tells.
        cuts: episodes that may end in neither flag.
        ignored: names in the source that no step takes.
    """

    layout: Layout
    steps: int
    blocks: Callable[[], Iterator[Steps]]
    episodes: int | None = None
    cuts: int = 0
    ignored: tuple[str, ...] = ()


def joined(pieces: Iterable[Piece]) -> Iterator[Steps]:
    """Pieces, of any size, with their next observations; see the module's docstring.

    An episode that has not ended at the last piece ends there, with neither flag.
    """
    kept: Piece | None = None
    for piece in pieces:
        if not len(piece):
            continue
        whole = piece if kept is None else _concatenated(kept, piece)
        # An open episode's last two steps wait: the very last lacks its next observation, and may yet be left out.
        back = 0 if whole.last[-1] else 1 if len(whole) == 1 or whole.last[-2] else 2
        kept = _sliced(whole, slice(len(whole) - back, None)) if back else None
        steps = _linked(whole, len(whole) - back)
        if len(steps):
            yield steps
    if kept is not None:
        last = kept.last.copy()
        last[-1] = True
        steps = _linked(dataclasses.replace(kept, last=last, finals=None), len(kept))
        if len(steps):
            yield steps


def _linked(piece: Piece, count: int) -> Steps:
    """The first ``count`` steps with their next observations; all but the last of them have a step after them."""
    last, truncated, terminated = piece.last[:count], piece.truncated[:count], piece.terminated[:count]
    ends = np.flatnonzero(last)
    following = {}
    for name, values in piece.obs.items():
        out = np.empty((count, *values.shape[1:]), values.dtype)
        known = values[1 : count + 1]
        out[: len(known)] = known
        out[ends] = values[ends] if piece.finals is None else piece.finals[name]
        following[name] = out
    steps = Steps(
        {name: values[:count] for name, values in piece.obs.items()}, following,
        {name: values[:count] for name, values in piece.action.items()},
        {name: values[:count] for name, values in piece.extra.items()},
        piece.reward[:count], terminated, truncated, last,
    )  # fmt: skip
    lost = ends[~terminated[ends]] if piece.finals is None else ends[:0]
    if not len(lost):
        return steps
    last, truncated = last.copy(), truncated.copy()
    before = lost[(lost > 0) & ~last[lost - 1]]
    last[before - 1] = True
    truncated[before - 1] = truncated[before]
    left = np.ones(count, bool)
    left[lost] = False
    found: Steps = _sliced(dataclasses.replace(steps, last=last, truncated=truncated), left)
    return found


def by_episode(blocks: Iterable[Steps]) -> Iterator[Steps]:
    """The same steps in blocks that end where episodes end: never two episodes in one, several of a long one."""
    for steps in blocks:
        start = 0
        for stop in (np.flatnonzero(steps.last) + 1).tolist():
            yield steps.part(start, stop)
            start = stop
        if start < len(steps):
            yield steps.part(start, len(steps))


def whole_episodes(blocks: Iterable[Steps]) -> Iterator[Steps]:
    """The same steps, one block an episode; in memory stands one episode and a block."""
    parts: list[Steps] = []
    for steps in by_episode(blocks):
        parts.append(steps)
        if steps.last[-1]:
            yield parts[0] if len(parts) == 1 else _concatenated(*parts)
            parts = []
    if parts:
        yield _concatenated(*parts)


def _sliced(steps: Any, rows: Any) -> Any:
    """The steps or piece with every array, or mapping of arrays, indexed by ``rows``; final observations are left."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(steps):
        value = getattr(steps, field.name)
        if field.name == "finals":
            changes[field.name] = None
        elif isinstance(value, Mapping):
            changes[field.name] = {name: values[rows] for name, values in value.items()}
        else:
            changes[field.name] = value[rows]
    return type(steps)(**changes)


def _concatenated(*parts: Any) -> Any:
    """Several in one; final observations are those of the last."""
    first = parts[0]
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(first):
        values = [getattr(part, field.name) for part in parts]
        if field.name == "finals":
            changes[field.name] = values[-1]
        elif isinstance(values[0], Mapping):
            changes[field.name] = {name: np.concatenate([value[name] for value in values]) for name in values[0]}
        else:
            changes[field.name] = np.concatenate(values)
    return type(first)(**changes)
