"""The check of the environments in which a row continues the row before (docs/design/0018).

Most rows go on in all environments. For any other row a :class:`Break` says in which environments it does not go on,
and why. The core compares frames; where they are given as stacks, :class:`StackedRows` compares those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from diskreplay.checks import Array, Mask
from diskreplay.engine.leaves import ObsLeaf


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

    @classmethod
    def of(cls, unlike: Mask, begins: Mask, cut: Mask) -> Break:
        """Return the break with these masks of the environments."""
        return cls(_where(unlike), _where(begins), _where(cut))

    def __bool__(self) -> bool:
        """Return False if the row goes on everywhere after all."""
        return bool(self.unlike or self.begins)


class StackedRows:
    """What a store whose frames are given as stacks knows of the row before. Values lead with the environments.

    Args:
        leaves: the leaves of the observation.
        ended: a mask ``(num_envs,)``, True where the row before ended an episode, or was not a transition.
    """

    def __init__(self, leaves: Sequence[ObsLeaf], ended: Mask) -> None:
        self._ended = ended
        self._follows = np.ones(len(ended), bool)
        """True where the next stack of the row before follows from its stack by one new frame."""
        self._pending: list[Array | None] = [None] * len(leaves)
        """The newest next stack of each leaf; None if the leaf is given as single frames."""
        self._stacked = [number for number, leaf in enumerate(leaves) if leaf.stacked]

    def resume(self, follows: Mask, stacks: Sequence[Array]) -> None:
        """Go on after committed rows, with the newest next stacks ``(num_envs, frames, *shape)`` of each leaf."""
        self._follows = follows
        for leaf in self._stacked:
            self._pending[leaf] = stacks[leaf].copy()

    def find_break(
        self, given: Sequence[Array], frames: Sequence[Array], valid: Mask, cut: Mask | None, flags: bool
    ) -> Break:
        """Return how a row breaks with the row before.

        Args:
            given: the row's observation by leaf, as stacks if it is given so.
            frames: the newest frames of the pending observation, by leaf.
            valid: a mask ``(num_envs,)``, True where the row is a transition.
            cut: a mask of the environments that begin an episode in any case; None for none.
            flags: True if a row with another observation goes on, too, provided that its older frames are the same.
        """
        unlike = np.zeros(len(valid), bool)
        for now, frame, stack in zip(given, frames, self._pending, strict=True):
            unlike |= ~same_rows(now, frame if stack is None else stack)
        free = valid & ~self._ended
        if cut is not None:
            free &= ~cut
        goes_on = ~unlike
        if flags and np.count_nonzero(unlike):
            older = np.ones(len(valid), bool)
            for leaf in self._stacked:
                before = self._pending[leaf]
                assert before is not None
                older &= same_rows(given[leaf][:, :-1], before[:, :-1])
            goes_on |= older
        return Break.of(unlike, ~(goes_on & free & self._follows), free & ~goes_on)

    def keep(self, stacks: Sequence[Array], following: Sequence[Array]) -> list[int]:
        """Note the next stacks of an added row, and return the environments in which one does not follow."""
        self._follows = np.ones(len(self._follows), bool)
        for leaf in self._stacked:
            self._pending[leaf] = following[leaf].copy()
            self._follows &= same_rows(following[leaf][:, :-1], stacks[leaf][:, 1:])
        return _where(~self._follows)


def _where(mask: Mask) -> list[int]:
    found: list[int] = np.flatnonzero(mask).tolist()
    return found


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
