"""The check of the environments in which a row continues the row before (docs/design/0018).

Most rows go on in all environments. For any other row a :class:`Break` says in which environments it does not go on,
and why. Two classes with the same methods do the check: one for a single environment, with plain numbers, and one for
several environments, with masks ``(num_envs,)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Array
from diskreplay.engine.leaves import ObsLeaf

Mask = NDArray[np.bool_]

LARGE_BYTES = 1 << 17
"""The size from which values are compared in place, and not as bytes."""


class Break(NamedTuple):
    """A row that does not go on everywhere.

    Attributes:
        unlike: the environments whose observation is not the pending one.
        begins: the environments in which the row does not continue the row before, so an episode begins.
        cut: those of ``begins`` in which only the observations differ: neither a flag nor ``cut()`` ended the episode.
    """

    unlike: list[int]
    begins: list[int]
    cut: list[int]


class OneEnvironment:
    """The state after the row before, for a single environment; values have no axis of environments.

    Attributes:
        goes_on: the start codes of a row that goes on everywhere.
        going: True if the next row goes on, provided that it has the pending observations; False until a row was added.
        ended: True if the row before ended an episode, or was not a transition.
        follows: True if the next stack of the row before follows from its stack by one new frame.
        pending: the newest next stack of each leaf; None if the leaf is given as single frames.
    """

    def __init__(self, leaves: Sequence[ObsLeaf]) -> None:
        self.goes_on: Any = np.uint8(0)
        self.going = False
        self.ended: Any = True
        self.follows: Any = True
        self.pending: list[Array | None] = [None] * len(leaves)
        self._stacked = [number for number, leaf in enumerate(leaves) if leaf.stacked]

    def resume(self, ended: Mask, follows: Mask, stacks: Sequence[Array]) -> None:
        """Go on after committed rows, with the newest next stacks ``(num_envs, frames, *shape)`` of each leaf."""
        self.ended, self.follows = bool(ended[0]), bool(follows[0])
        for leaf in self._stacked:
            self.pending[leaf] = stacks[leaf][0].copy()

    def find_break(
        self, given: Sequence[Any], frames: Sequence[Any], valid: Any, cut: Mask | None, flags: bool
    ) -> Break | None:
        """Return how a row breaks with the row before, or None if it does not.

        Args:
            given: the row's observation by leaf, as stacks if it is given so.
            frames: the newest frames of the pending observation, by leaf.
            valid: True if the row is a transition.
            cut: a mask of the environments that begin an episode in any case; None for none.
            flags: True if a row with another observation goes on, too, provided that its older frames are the same.
        """
        same = True
        for now, frame, stack in zip(given, frames, self.pending, strict=True):
            before = frame if stack is None else stack
            same = same and _same(np.asarray(now, before.dtype), before)
        goes_on = same or (flags and all(_older(given[n]) == _older(self.pending[n]) for n in self._stacked))
        free = valid and not self.ended and (cut is None or not cut[0])
        begins = not (goes_on and free and self.follows)
        if same and not begins:
            return None
        return Break([] if same else [0], [0] if begins else [], [0] if free and not goes_on else [])

    def note(self, terminated: Any, truncated: Any, valid: Any = None) -> None:
        """Note the flags of a row that was added; ``valid`` is None if the row is a transition everywhere."""
        self.ended = terminated or truncated or (valid is not None and not valid)
        self.going = not self.ended

    def keep(self, stacks: Sequence[Array], following: Sequence[Array]) -> list[int]:
        """Note the next stacks of an added row, and return the environments in which one does not follow."""
        self.follows = True
        for leaf in self._stacked:
            self.pending[leaf] = following[leaf].copy()
            self.follows = self.follows and following[leaf][:-1].tobytes() == stacks[leaf][1:].tobytes()
        return [] if self.follows else [0]

    def codes(self, codes: Mapping[int, int]) -> Any:
        """Return the start codes of a row: those given by environment, and for all others that it goes on."""
        return np.uint8(codes.get(0, 0))

    def moves(self, frames: Sequence[Any], following: Sequence[Any], env: int) -> bool:
        """Tell whether the next frames of an environment differ from its frames."""
        return any(np.any(now != after) for now, after in zip(frames, following, strict=True))

    def of(self, values: Any, env: int) -> Any:
        """Return the part of the values that belongs to an environment."""
        return values


class SeveralEnvironments:
    """The state after the row before, for several environments: with masks, and the environments as first axis."""

    def __init__(self, leaves: Sequence[ObsLeaf], num_envs: int) -> None:
        self.goes_on: Any = np.zeros(num_envs, np.uint8)
        self.going = False
        self.ended: Any = np.ones(num_envs, bool)
        self.follows: Any = np.ones(num_envs, bool)
        self.pending: list[Array | None] = [None] * len(leaves)
        self._stacked = [number for number, leaf in enumerate(leaves) if leaf.stacked]
        self._num_envs = num_envs

    def resume(self, ended: Mask, follows: Mask, stacks: Sequence[Array]) -> None:
        self.ended, self.follows = ended, follows
        for leaf in self._stacked:
            self.pending[leaf] = stacks[leaf].copy()

    def find_break(
        self, given: Sequence[Any], frames: Sequence[Any], valid: Any, cut: Mask | None, flags: bool
    ) -> Break | None:
        unlike = None
        for now, frame, stack in zip(given, frames, self.pending, strict=True):
            differ = _words(now) != _words(frame if stack is None else stack)
            if np.count_nonzero(differ):
                differ = differ.any(axis=1)
                unlike = differ if unlike is None else unlike | differ
        free = valid & ~self.ended
        if cut is not None:
            free &= ~cut
        continues = free & self.follows
        if unlike is None:
            if np.count_nonzero(continues) == self._num_envs:
                return None
            return Break([], _where(~continues), [])
        goes_on = ~unlike
        if flags:
            older = np.ones(self._num_envs, bool)
            for leaf in self._stacked:
                before = self.pending[leaf]
                assert before is not None
                older &= same_rows(given[leaf][:, :-1], before[:, :-1])
            goes_on |= older
        return Break(_where(unlike), _where(~(goes_on & continues)), _where(free & ~goes_on))

    def note(self, terminated: Any, truncated: Any, valid: Any = None) -> None:
        self.ended = terminated | truncated
        if valid is not None:
            self.ended |= ~valid
        self.going = not np.count_nonzero(self.ended)

    def keep(self, stacks: Sequence[Array], following: Sequence[Array]) -> list[int]:
        self.follows = np.ones(self._num_envs, bool)
        for leaf in self._stacked:
            self.pending[leaf] = following[leaf].copy()
            self.follows &= same_rows(following[leaf][:, :-1], stacks[leaf][:, 1:])
        return _where(~self.follows)

    def codes(self, codes: Mapping[int, int]) -> Any:
        found = np.zeros(self._num_envs, np.uint8)
        for env, code in codes.items():
            found[env] = code
        return found

    def moves(self, frames: Sequence[Any], following: Sequence[Any], env: int) -> bool:
        return any(now[env].tobytes() != after[env].tobytes() for now, after in zip(frames, following, strict=True))

    def of(self, values: Any, env: int) -> Any:
        return values[env]


def _older(stack: Any) -> bytes:
    found: bytes = stack[:-1].tobytes()
    return found


def _where(mask: Mask) -> list[int]:
    found: list[int] = np.flatnonzero(mask).tolist()
    return found


def _same(a: Array, b: Array) -> bool:
    # Copies that are this large are given fresh memory by the system, which takes longer than to compare them.
    return bool(same_rows(a[None], b[None])[0]) if b.nbytes >= LARGE_BYTES else a.tobytes() == b.tobytes()


def same_rows(a: Array, b: Array) -> Mask:
    """Tell which entries of the first axis are equal in both arrays, bit for bit."""
    same: Mask = (_words(a) == _words(b)).all(axis=1)
    return same


def _words(values: Array) -> Array:
    """View each entry of the first axis as integers, of eight bytes if the size allows, which compare fastest."""
    flat = values.reshape(len(values), -1)
    if flat.strides[1] != flat.itemsize:
        flat = np.ascontiguousarray(flat)
    return flat.view(np.uint64 if flat.shape[1] * flat.itemsize % 8 == 0 else np.uint8)
