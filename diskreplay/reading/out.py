"""The arrays that a caller gives for a batch, and how the values of a batch get into them.

1. Observations are read straight into arrays that are laid out as they are read (:meth:`Out.pair`).
2. In a batch of items of ``T`` steps, ``next_obs`` may be ``obs`` one step later, in the same memory. Then each item
   has ``T + 1`` rows, which are read as a run (:meth:`Out.block`). The one after its last step is its next observation.
3. All the rest is copied once it is read (:meth:`Out.run`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.schema.ragged import Padded

Path = tuple[str, ...]
"""Where an array of a batch is: the name of its field, then keys of Dicts and places in Tuples."""


def arrays(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield what nested mappings and tuples hold but None, each with its path; values of ragged columns as a whole."""
    if isinstance(value, np.ndarray):  # most are, and to ask for a Mapping takes long
        yield path, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from arrays(part, (*path, str(name)))
    elif isinstance(value, tuple) and not isinstance(value, Padded):
        yield from arrays({str(at): part for at, part in enumerate(value)}, path)
    elif value is not None:
        yield path, value


def _whole_of(obs: Array, following: Array) -> Array | None:
    """Return the array ``(B, T + 1, ...)`` that has all but its last step in ``obs``, all but its first in the other.

    None if there is none.
    """
    if obs.ndim < 2 or obs.strides != following.strides or following.ctypes.data - obs.ctypes.data != obs.strides[1]:
        return None
    whole = np.lib.stride_tricks.as_strided(obs, (len(obs), obs.shape[1] + 1, *obs.shape[2:]), obs.strides)
    return whole if whole.flags.c_contiguous else None


def _next_of(path: Path) -> Path:
    return "next_obs", *path[1:]


class Out:
    """A caller's arrays for one batch; at last (:class:`.reads.LastStep`) it copies what was read elsewhere.

    Args:
        given: a mapping of a batch's fields, the caller's.
        like: the fields of a batch of no items.
        count: the number of items.
        direct: True if the observations are those of rows in their order, and ``next_obs`` those one row later.
        why_apart: why ``next_obs`` cannot be ``obs`` one step later; None if it can.

    Raises InputError for an array that is not like the batch's, or that shares memory with another.
    """

    def __init__(
        self, given: Mapping[str, Any], like: Mapping[str, Any], count: int, direct: bool, why_apart: str | None
    ) -> None:
        self._given: dict[Path, Array] = dict(arrays(given))
        wanted = dict(arrays(like))
        self._leaves = [path for path in wanted if path[0] == "obs"] if direct else []
        self._wholes: dict[Path, Array] = {}
        """The memory of observations and next observations that overlap, by the path of the former."""
        self._filled: set[Path] = set()
        """The observations that are read straight into the caller's arrays."""
        self._made: dict[Path, Array] = {}
        self._check(wanted, count)
        self._check_apart(why_apart)

    def _check(self, wanted: Mapping[Path, Any], count: int) -> None:
        if odd := sorted(wanted.keys() ^ self._given.keys()):
            has = "lacks" if odd[0] in wanted else "has, and the buffer's batches have not,"
            raise InputError(f"out must have the arrays of this buffer's batches; it {has} {'.'.join(odd[0])}")
        for path, array in self._given.items():
            name, like = ".".join(path), wanted[path]
            if not isinstance(like, np.ndarray):
                raise InputError(f"out cannot be given for {name}: the items of a ragged column have no fixed number")
            what = (count, *like.shape[1:]), like.dtype
            if not isinstance(array, np.ndarray) or (array.shape, array.dtype) != what or not array.flags.writeable:
                got = type(array).__name__
                if isinstance(array, np.ndarray):
                    got = f"{'' if array.flags.writeable else 'a read-only '}{array.dtype} {array.shape}"
                raise InputError(f"out.{name} must be a writeable array of {what[1]} {what[0]}, got {got}")

    def _check_apart(self, why_apart: str | None) -> None:
        for (one, array), (other, second) in itertools.combinations(self._given.items(), 2):
            if not np.may_share_memory(array, second):
                continue
            whole = _whole_of(array, second) if one[0] == "obs" and other == _next_of(one) else None
            if whole is None:
                raise InputError(
                    f"out.{'.'.join(one)} and out.{'.'.join(other)} must not share memory; next_obs may be obs one "
                    "step later, as SequenceBatch.overlapped makes them"
                )
            if why_apart is not None:
                raise InputError(f"out.next_obs cannot be out.obs one step later: {why_apart}")
            self._wholes[one] = whole

    def pair(self, leaf: int, shape: tuple[int, ...]) -> tuple[Array, Array] | None:
        """Return the arrays of a leaf and its next observations, ``(n, *shape)``; None if they cannot be filled."""
        path = self._leaves[leaf] if self._leaves else ()
        given = [self._given[each] for each in (path, _next_of(path))] if path else []
        if not given or path in self._wholes or not all([array.flags.c_contiguous for array in given]):
            return None
        self._filled.add(path)
        obs, following = (array.reshape(-1, *shape) for array in given)
        return obs, following

    def block(self, leaf: int, shape: tuple[int, ...]) -> tuple[Array, int] | None:
        """Return a leaf's rows, ``(B * (T + 1), *shape)``, and ``T``; None if its arrays do not overlap."""
        whole = self._wholes.get(self._leaves[leaf]) if self._leaves else None
        if whole is None:
            return None
        self._filled.add(self._leaves[leaf])
        return whole.reshape(-1, *shape), whole.shape[1] - 1

    def begin(self) -> None:
        """Take note that a batch is drawn, perhaps once more."""
        self._filled.clear()

    def take(self, made: Mapping[str, Any]) -> None:
        """Take note of the fields of the batch that was drawn, which are not read yet."""
        self._made = dict(arrays(made))

    def run(self) -> None:
        """Copy what was not read into the caller's arrays."""
        filled = self._filled.union(map(_next_of, self._filled))
        for path, array in self._given.items():
            if path not in filled:
                if path in self._wholes:
                    self._overlap(path)
                elif path[0] != "next_obs" or ("obs", *path[1:]) not in self._wholes:
                    np.copyto(array, self._made[path])
        self._made = {}

    def _overlap(self, path: Path) -> None:
        """Copy observations, and the next ones that are no other step's observation."""
        obs, following, mask = self._made[path], self._made[_next_of(path)], self._made["mask",]
        np.copyto(self._wholes[path][:, :-1], obs)
        np.copyto(self._wholes[path][:, -1], following[:, -1])
        last = mask[:, :-1] & ~mask[:, 1:]
        self._wholes[path][:, 1:-1][last] = following[:, :-1][last]
