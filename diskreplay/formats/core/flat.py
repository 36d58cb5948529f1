"""Datasets of flat arrays: one array a column, one entry a step, episodes one after another.

:class:`FlatArrays` reads them in blocks, whatever holds them: HDF5, Zarr, NPZ or RAM. All that is needed of an array is
its ``shape``, its ``dtype``, and slicing along the first axis.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from gymnasium import spaces as gym_spaces

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core.layout import Layout, infer_choices, infer_dict, infer_space
from diskreplay.formats.core.transitions import BLOCK_BYTES, Source, Transitions, with_next_obs
from diskreplay.schema.columns import ACTION, DTYPES, OBS
from diskreplay.schema.ragged import Lists, offsets_of

Named = TypeVar("Named")


class ArrayLike(Protocol):
    """The interface of an array of steps.

    One of a ragged column gives :class:`~diskreplay.schema.ragged.Lists`. Its shape is that of an array with one item
    a step, and its ``row_bytes`` are the bytes that a step has on average.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of entries, and the shape of each."""

    @property
    def dtype(self) -> Any:
        """The dtype of the values, in whatever byte order."""

    def __getitem__(self, rows: slice) -> Any:
        """Return some entries, which are read now."""


class ListedArray:
    """The rows of a ragged column, from an array of items and one of offsets.

    Args:
        where: the name of the column in errors.
        items: ``(items, *shape)``.
        offsets: ``(N + 1,)``: row ``i`` has items ``[offsets[i], offsets[i + 1])``.

    Raises InputError for offsets that go back, or that are not those of so many items.
    """

    def __init__(self, where: str, items: ArrayLike, offsets: Array) -> None:
        count = length(where, "its items", items)
        if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or not len(offsets):
            raise InputError(f"{where}: offsets must be whole numbers (N + 1,), got {offsets.dtype} {offsets.shape}")
        if offsets[0] != 0 or offsets[-1] != count or (offsets[1:] < offsets[:-1]).any():
            raise InputError(f"{where}: offsets must go from 0 to {count:,}, its items, and never back")
        self._items, self._offsets = items, offsets.astype(np.int64, copy=False)
        self.shape, self.dtype = (len(offsets) - 1, *items.shape[1:]), native(items.dtype)
        self.row_bytes = count * item_bytes(items) // max(1, self.shape[0]) + 1

    def __getitem__(self, rows: slice) -> Lists:
        start, stop, _ = rows.indices(self.shape[0])
        offsets = self._offsets[start : max(start, stop) + 1]
        return Lists(_values(self._items, slice(int(offsets[0]), int(offsets[-1]))), offsets - offsets[0])


class Joined:
    """Arrays one after another as one.

    Args:
        where: the name of the array in errors.
        parts: the arrays.
        opened: opens the array of a number when entries of it are read; if None, ``parts`` stay open.
    """

    def __init__(
        self, where: str, parts: Sequence[ArrayLike], opened: Callable[[int], ArrayLike] | None = None
    ) -> None:  # fmt: skip
        first = parts[0]
        for part in parts:
            if part.shape[1:] != first.shape[1:] or native(part.dtype) != native(first.dtype):
                raise InputError(f"{where}: holds {part.dtype} {part.shape[1:]}, after {first.dtype} {first.shape[1:]}")
        self._stops = np.cumsum([length(where, "an array", part) for part in parts]).tolist()
        self._opened = opened or parts.__getitem__
        self.shape, self.dtype = (int(self._stops[-1]), *first.shape[1:]), native(first.dtype)

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        found = [np.empty((0, *self.shape[1:]), self.dtype)]
        begin = 0
        for number, end in enumerate(self._stops):
            if begin < stop and start < end:
                found.append(_values(self._opened(number), slice(max(start, begin) - begin, min(stop, end) - begin)))
            begin = end
        return np.concatenate(found)


def code_points(where: str, texts: Iterable[bytes]) -> ListedArray:
    """Return texts in UTF-8 as the rows of a ragged column; raise InputError for bytes that are none."""
    try:
        each = [text.decode().encode("utf-32-le") for text in texts]
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: holds bytes that are no text: {error}") from error
    lengths = np.array([len(text) // 4 for text in each], np.int64)
    return ListedArray(where, np.frombuffer(b"".join(each), "<i4"), offsets_of(lengths))


def utf8(name: str, rows: Lists) -> list[bytes]:
    """Return rows of code points as texts in UTF-8; raise InputError for others."""
    try:
        return [row.astype("<i4").tobytes().decode("utf-32-le").encode() for row in rows]
    except UnicodeDecodeError as error:
        raise InputError(f"{name} holds numbers that are no text, as the format would have them: {error}") from error


@dataclasses.dataclass(frozen=True)
class FlatArrays:
    """The arrays of a dataset.

    Attributes:
        where: the name of the dataset in errors.
        obs, action, extra: arrays ``(N, *shape)`` by our names, such as ``obs/camera``.
        reward: ``(N,)`` or ``(N, 1)``; zeros if None.
        terminated, truncated: ``(N,)`` bool, in RAM.
        last: ``(N,)`` bool, in RAM: the step ends an episode.
        next_obs: the next observations, like ``obs``, or None where only ``finals`` or nothing is known.
        finals: the final observation of each episode, ``(episodes, *shape)`` by leaf.
        layout: the layout that the dataset names; inferred if None.
        own_finals: take an episode's last observation as its final one.
        bare: the last entry of each episode is its final observation, and no step.
    """

    where: str
    obs: Mapping[str, ArrayLike]
    action: Mapping[str, ArrayLike]
    terminated: Array
    truncated: Array
    last: Array
    reward: ArrayLike | None = None
    extra: Mapping[str, ArrayLike] = dataclasses.field(default_factory=dict)
    next_obs: Mapping[str, ArrayLike] | None = None
    finals: Mapping[str, ArrayLike] | None = None
    layout: Layout | None = None
    own_finals: bool = False
    bare: bool = False

    def source(self) -> Source:
        """Return the dataset as a source; raise InputError for ragged lengths, or a layout that does not fit."""
        count = len(self.last)
        self._check_lengths()
        layout = self.layout or self._inferred()
        check_layout(self.where, layout, self.obs, self.action, self.extra)
        self._check_next_obs()

        def blocks() -> Iterator[Transitions]:
            if self.next_obs is None:
                return with_next_obs(self._blocks(), bare=self.bare)
            return (steps for steps, _ in self._blocks())

        open_end = count > 0 and not self.last[-1]
        episodes = int(self.last.sum()) + open_end
        steps = count - episodes if self.bare else count
        return Source(layout, steps, blocks, episodes, inferred=self.layout is None)

    def _check_lengths(self) -> None:
        count = len(self.last)
        following = {f"next {name}": array for name, array in (self.next_obs or {}).items()}
        for name, array in {**self.obs, **self.action, **self.extra, **following}.items():
            check_length(self.where, name, array, count)
        if self.reward is not None:
            check_length(self.where, "reward", self.reward, count)
            if math.prod(self.reward.shape[1:]) != 1 or is_ragged(self.reward):
                raise InputError(f"{self.where}: rewards must be one number a step, got {tuple(self.reward.shape[1:])}")

    def _check_next_obs(self) -> None:
        for what, leaves in (("next", self.next_obs), ("final", self.finals)):
            if leaves is not None and leaves.keys() != self.obs.keys():
                raise InputError(
                    f"{self.where}: the {what} observations {', '.join(leaves)} are not the observations "
                    f"{', '.join(self.obs)}; whoever maps the ones maps the others (--map)"
                )
        for name, array in (self.next_obs or {}).items():
            if tuple(array.shape) != tuple(self.obs[name].shape) or is_ragged(array) != is_ragged(self.obs[name]):
                raise InputError(f"{self.where}: the next observations of shape {array.shape} do not fit {name}")
        for name, array in (self.finals or {}).items():
            check_length(self.where, f"final {name}", array, int(self.last.sum()), "episodes")
            one, other = ((tuple(each.shape[1:]), native(each.dtype)) for each in (array, self.obs[name]))
            if one != other or is_ragged(array) != is_ragged(self.obs[name]):
                raise InputError(
                    f"{self.where}: the final observations of {one[1]} {one[0]} are not those of {name}, {other[1]} "
                    f"{other[0]}"
                )

    def _inferred(self) -> Layout:
        obs = {name.removeprefix(OBS).removeprefix("/"): _space(name, array) for name, array in self.obs.items()}
        columns = {name: (tuple(array.shape[1:]), native(array.dtype)) for name, array in self.extra.items()}
        for name, (_, dtype) in columns.items():
            if dtype.name not in DTYPES:
                raise InputError(f"{self.where}: {name}: a store holds no values of {dtype}; --columns leaves it out")
        reward = np.dtype(np.float32) if self.reward is None else native(self.reward.dtype)
        if reward.kind != "f":
            reward = np.dtype(np.float32 if reward.itemsize <= 2 else np.float64)
        ragged = frozenset(name for name, array in self.extra.items() if is_ragged(array))
        return Layout(infer_dict(obs), self.action_space(), columns, reward, ragged_columns=ragged)

    def action_space(self) -> Any:
        """Return the space of the actions, by their shapes and, of integers, by their values."""
        leaves = {name: self._action_space(name, array) for name, array in self.action.items()}
        return infer_dict({name.removeprefix(ACTION).removeprefix("/"): space for name, space in leaves.items()})

    def _action_space(self, name: str, array: ArrayLike) -> Any:
        space, dtype = _space(name, array), native(array.dtype)
        if dtype.kind not in "iu" or is_ragged(array) or not array.shape:
            return space
        parts = [part for part in chunks_of(array) if len(part)] or [np.zeros((1, *array.shape[1:]), dtype)]
        low = np.min([part.min(axis=0) for part in parts], axis=0)
        return infer_choices(low, np.max([part.max(axis=0) for part in parts], axis=0), dtype)

    def _spans(self) -> Iterator[slice]:
        """Yield ranges of steps of a few MB, whole chunks of the largest array."""
        arrays = [*self.obs.values(), *self.action.values(), *self.extra.values()]
        widths = [item_bytes(array) for array in arrays]
        step = (getattr(arrays[int(np.argmax(widths))], "chunks", None) or (1,))[0]
        size = max(1, BLOCK_BYTES // max(1, sum(widths)) // step) * step
        for start in range(0, len(self.last), size):
            yield slice(start, min(start + size, len(self.last)))

    def _blocks(self) -> Iterator[tuple[Transitions, dict[str, Any] | None]]:
        """Yield the steps, and where there are no next observations the final ones of the episodes that end there."""
        done = 0
        for rows in self._spans():
            count = rows.stop - rows.start
            reward = np.zeros(count, np.float32) if self.reward is None else _values(self.reward, rows)
            parts: list[Any] = [_each(part, rows) for part in (self.obs, self.next_obs or {}, self.action, self.extra)]
            parts += [reward.reshape(count), *(part[rows] for part in (self.terminated, self.truncated, self.last))]
            steps = Transitions(*parts)
            ends, finals = int(steps.last.sum()), None
            if self.own_finals:
                finals = {name: values[steps.last] for name, values in steps.obs.items()}
            elif self.finals is not None and self.next_obs is None:
                finals = _each(self.finals, slice(done, done + ends))
            done += ends
            yield steps, finals


def leaves_of(arrays: Mapping[str, Named], root: str) -> dict[str, Named]:
    """Return the arrays that are called ``root``, such as ``obs``, or are leaves below it, such as ``obs/camera``."""
    return {name: array for name, array in arrays.items() if name == root or name.startswith(f"{root}/")}


def native(dtype: Any) -> np.dtype[Any]:
    """Return the dtype in this machine's byte order."""
    return cast(np.dtype[Any], np.dtype(dtype).newbyteorder("="))


def is_ragged(array: ArrayLike) -> bool:
    """Tell whether an array is of a ragged column, so that it gives Lists."""
    return getattr(array, "row_bytes", None) is not None


def _space(name: str, array: ArrayLike) -> Any:
    space = infer_space(tuple(array.shape[1:]), native(array.dtype), name)
    return gym_spaces.Sequence(space, stack=True) if is_ragged(array) else space


def _values(array: ArrayLike, rows: slice) -> Any:
    return array[rows] if is_ragged(array) else np.asarray(array[rows], native(array.dtype))


def _each(arrays: Mapping[str, ArrayLike], rows: slice) -> dict[str, Any]:
    return {name: _values(array, rows) for name, array in arrays.items()}


def length(where: str, name: str, array: ArrayLike) -> int:
    """Return the number of entries of an array; raise InputError for a single value."""
    if not array.shape:
        raise InputError(f"{where}: {name} must have an entry for each step, and is a single value")
    return int(array.shape[0])


def check_length(where: str, name: str, array: ArrayLike, count: int, what: str = "steps") -> None:
    """Raise InputError if an array does not have one entry for each step."""
    if tuple(array.shape[:1]) != (count,):
        got = f"has {array.shape[0]:,} entries" if array.shape else "is a single value"
        raise InputError(f"{where}: ragged lengths: {name} {got} for {count:,} {what}")


def check_layout(
    where: str, layout: Layout, obs: Mapping[str, ArrayLike], action: Mapping[str, ArrayLike],
    extra: Mapping[str, ArrayLike],
) -> None:  # fmt: skip
    """Raise InputError if arrays are not those of a layout."""
    expected = {**layout.obs, **layout.action, **layout.columns}
    found = {**obs, **action, **extra}
    if expected.keys() != found.keys():
        odd = sorted(expected.keys() ^ found.keys())[0]
        raise InputError(f"{where}: {odd} is {'missing' if odd in expected else 'not in the description of its steps'}")
    for name, (shape, dtype) in expected.items():
        array = found[name]
        if is_ragged(array) != (name in layout.ragged):
            raise InputError(f"{where}: {name} is {'' if is_ragged(array) else 'not '}ragged, other than was described")
        if tuple(array.shape[1:]) != shape or native(array.dtype) != dtype:
            raise InputError(
                f"{where}: {name} holds {np.dtype(array.dtype)} {tuple(array.shape[1:])} a step, where {dtype} {shape} "
                f"was described"
            )


def flags(where: str, name: str, array: ArrayLike | None, count: int) -> Array:
    """Return an array of flags, which may be numbers and ``(count, 1)``, as ``(count,)`` bool, all False for None."""
    if array is None:
        return np.zeros(count, bool)
    check_length(where, name, array, count)
    if math.prod(array.shape[1:]) != 1 or is_ragged(array):
        raise InputError(f"{where}: {name} must be one flag a step, got {tuple(array.shape[1:])}")
    values = np.asarray(array[slice(None)])
    if values.dtype.kind == "b":
        values = values.view(np.uint8)  # a damaged file's booleans can be more than 0 and 1
    with np.errstate(invalid="ignore"):  # signalling NaNs
        fine = values.size == count and values.dtype.kind in "iuf" and ((values == 0) | (values == 1)).all()
    if not fine:
        raise InputError(f"{where}: {name} must be {count:,} flags, each 0 or 1")
    return values.reshape(count).astype(bool)


def item_bytes(array: ArrayLike) -> int:
    """Return the number of bytes of one entry, on average if they differ."""
    if is_ragged(array):
        return int(getattr(array, "row_bytes"))  # noqa: B009
    return int(np.prod(array.shape[1:], dtype=np.int64)) * int(np.dtype(array.dtype).itemsize)


def chunks_of(array: ArrayLike) -> Iterable[Array]:
    """Yield an array, some MB at a time."""
    size = max(1, BLOCK_BYTES // max(1, item_bytes(array)))
    for start in range(0, array.shape[0], size):
        yield np.asarray(array[slice(start, start + size)])
