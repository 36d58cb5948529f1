"""Datasets in which every episode has arrays of its own: read one after another, and written while they come.

A reader says how an episode is opened as :class:`FlatArrays`; :func:`episodes_source` does the rest. A writer takes the
parts that :func:`episode_blocks` gives, so that an episode of any length goes through in blocks of a few MB.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import gymnasium
import numpy as np

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core.flat import ArrayLike, FlatArrays, Joined, ListedArray, is_ragged, length
from diskreplay.formats.core.layout import Layout, infer_choices
from diskreplay.formats.core.transitions import Source, Transitions, by_episode
from diskreplay.schema import spaces

Key = TypeVar("Key")


@dataclasses.dataclass(frozen=True)
class ArraySlice:
    """Entries ``[start, stop)`` of an array, each of shape ``value_shape``: nothing is read before it is asked for."""

    base: ArrayLike
    start: int
    stop: int
    value_shape: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stop - self.start, *self.value_shape

    @property
    def dtype(self) -> Any:
        return self.base.dtype

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """The chunks of the array below, if they begin with this part, else None."""
        return None if self.start else getattr(self.base, "chunks", None)

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.stop - self.start)
        values = np.asarray(self.base[slice(self.start + start, self.start + max(start, stop))])
        return values.reshape(len(values), *self.value_shape)


def array_slice(array: ArrayLike, start: int, stop: int) -> ArrayLike:
    """Return entries ``[start, stop)`` of an array, which are read when they are asked for, or now if it is ragged."""
    if is_ragged(array):
        return ListedArray("a part", *array[start:stop].parts)
    return ArraySlice(array, start, stop, tuple(array.shape[1:]))


def later(where: str, key: str, array: ArrayLike) -> ArrayLike:
    """Return an array of which each entry is the next one; the last entry, which has none, is its own."""
    count = length(where, key, array)
    parts = [array_slice(array, min(1, count), count), array_slice(array, max(0, count - 1), count)]
    return Joined(f"{where}: {key}", parts)


def reshaped(array: ArrayLike, shape: tuple[int, ...]) -> ArrayLike:
    """Return the array with entries of another shape, or the array itself if their sizes differ."""
    own = tuple(array.shape[1:])
    if not array.shape or own == shape or math.prod(own) != math.prod(shape):
        return array
    return ArraySlice(array, 0, array.shape[0], shape)


def single_integers(action: Mapping[str, ArrayLike]) -> dict[str, ArrayLike]:
    """Return actions of which one integer a step, ``(N, 1)``, is a single one, ``(N,)``."""
    whole = {name for name, array in action.items() if np.dtype(array.dtype).kind in "iu"}
    return {name: reshaped(array, ()) if name in whole else array for name, array in action.items()}


@dataclasses.dataclass(frozen=True)
class EpisodeBlock:
    """Some steps of one episode.

    Attributes:
        number: the number of the episode.
        start: the number of the first of these steps in the episode.
        steps: all of the same episode.
        ends: True if the episode ends here.
    """

    number: int
    start: int
    steps: Transitions
    ends: bool

    @property
    def stop(self) -> int:
        return self.start + len(self.steps)


def episode_blocks(blocks: Iterable[Transitions]) -> Iterator[EpisodeBlock]:
    """Yield the same steps by episode, a block at a time; the last episode ends at the last step."""
    number = start = 0
    every: Iterable[Any] = itertools.chain(by_episode(blocks), [None])
    for steps, after in itertools.pairwise(every):
        ends = after is None or bool(steps.last[-1])
        yield EpisodeBlock(number, start, steps, ends)
        number, start = (number + 1, 0) if ends else (number, start + len(steps))


def episodes_source(
    where: str, each: Sequence[Key], lengths: Sequence[int], opened: Callable[[Key, Layout | None], FlatArrays],
    layout: Layout | None = None,
) -> Source:  # fmt: skip
    """Return episodes as a source.

    Args:
        where: the name of the dataset in errors.
        each: the name of an episode in errors.
        lengths: steps of each, as the dataset declares them.
        opened: an episode's arrays; the layout is None as long as it is being inferred.
        layout: the layout that the dataset names; inferred from the first episode, and from all single integers as
            actions, if None.

    Raises InputError where there is neither a layout nor an episode. Episodes of another length than declared raise it
    when they are read.
    """
    if layout is None:
        layout = _inferred(where, each, opened)

    def blocks() -> Iterator[Transitions]:
        for key, count in zip(each, lengths, strict=True):
            arrays = opened(key, layout)
            if len(arrays.last) != count:
                raise InputError(
                    f"{arrays.where}: ragged lengths: {count:,} steps are declared, rewards has {len(arrays.last):,}"
                )
            if count:
                yield from arrays.source().blocks()

    return Source(layout, sum(lengths), blocks)


def _inferred(where: str, each: Sequence[Key], opened: Callable[[Key, Layout | None], FlatArrays]) -> Layout:
    if not each:
        raise InputError(f"{where}: there is no episode, and nothing else says what its steps look like")
    first = opened(each[0], None).source().layout
    if all(_range(space) is None for space in spaces.leaf_spaces(first.action_space)):
        return first
    every = [opened(key, None).source().layout.action_space for key in each[1:]]
    return dataclasses.replace(first, action_space=widest([first.action_space, *every]))


def widest(each: Sequence[gymnasium.Space[Any]]) -> gymnasium.Space[Any]:
    """Return the first of spaces inferred from episodes of one dataset, with integers as wide as in the widest."""
    first = each[0]
    if isinstance(first, gymnasium.spaces.Dict):
        keys = [(key, [sub[key] for sub in each if isinstance(sub, gymnasium.spaces.Dict) and key in sub.spaces])
                for key in first.spaces]  # fmt: skip
        return gymnasium.spaces.Dict([(key, widest(subs)) for key, subs in keys])
    ranges = [found for space in each if (found := _range(space)) is not None and space.shape == first.shape]
    if len(ranges) < len(each):
        return first
    low, high = np.min([low for low, _ in ranges], axis=0), np.max([high for _, high in ranges], axis=0)
    return infer_choices(low, high, np.dtype(first.dtype))


def _range(space: gymnasium.Space[Any]) -> tuple[Array, Array] | None:
    if isinstance(space, gymnasium.spaces.Box):
        return (space.low, space.high) if np.dtype(space.dtype).kind in "iu" else None
    found = spaces.choices(space)
    return found and (np.full(space.shape, found[0]), np.full(space.shape, found[1]))
