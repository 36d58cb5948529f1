"""Many steps that are added at once, with the same result as one after another: checked together, written in runs.

A run is a step and the steps after it, each of which continues the step before it in every environment. Only the first
step of a run must be compared with the pending observation. In a store whose continuity is "flags" a run goes on over
observations that are not the next observations before them: these go to the patch table, all at once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Array
from diskreplay.engine.arguments import Row
from diskreplay.engine.continuity import same_rows
from diskreplay.schema.columns import CONTINUES

COMPARED_BYTES = 1 << 20
"""The bytes of observations that are compared in one go."""


@dataclasses.dataclass(frozen=True)
class Steps:
    """The checked steps; every array is ``(steps, num_envs, *shape)``, or ``(steps, *shape)`` for one environment.

    Attributes:
        values: the arguments, for all steps.
        columns: the values of all columns, in the order of the store's columns, for steps that go on.
    """

    values: Row
    columns: list[Array]

    @classmethod
    def of(cls, values: Row) -> Steps:
        return cls(values, values.columns(np.full(values.terminated.shape, CONTINUES, np.uint8)))

    def __len__(self) -> int:
        return len(self.values.terminated)

    def row(self, at: int) -> Row:
        """Return one step as the arguments of ``add``."""
        return self.values.step(at)

    def runs(self, by_flags: bool) -> Iterator[tuple[int, int]]:
        """Return the first step of each run, and one past its last; for steps without stacks.

        ``by_flags`` tells that a step with another observation goes on, too.
        """
        values = self.values
        goes_on = values.valid & ~(values.terminated | values.truncated)
        breaks = np.ones(goes_on.shape, bool)
        breaks[1:] = ~(goes_on[:-1] & values.valid[1:]) | (self.unlike[1:] & (not by_flags))
        firsts = np.flatnonzero(breaks.any(axis=tuple(range(1, breaks.ndim)))).tolist()
        return zip(firsts, [*firsts[1:], len(self)], strict=False)  # without a step there is no run

    @functools.cached_property
    def unlike(self) -> NDArray[np.bool_]:
        """Whose observation is not the next observation of the step before, of the shape of flags; no stacks."""
        found = np.zeros(self.values.terminated.shape, bool)
        for given, after in zip(self.values.obs, self.values.next_obs, strict=True):
            block = 1 + COMPARED_BYTES // max(1, given[:1].nbytes)
            for at in range(1, len(self), block):
                part = found[at : at + block]
                now, before = given[at : at + block], after[at - 1 : at - 1 + len(part)]
                shape = part.size, *now.shape[part.ndim :]
                part |= ~same_rows(before.reshape(shape), now.reshape(shape)).reshape(part.shape)
        return found
