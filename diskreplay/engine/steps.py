"""Many steps that are added at once, with the same result as one after another: checked together, written in runs.

A run is a step and the steps after it, each of which continues the step before it in every environment. Only the first
step of a run must be compared with the pending observation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.engine.arguments import Row
from diskreplay.engine.continuity import same_rows
from diskreplay.schema import CONTINUES

Array = NDArray[Any]

COMPARED_BYTES = 1 << 20
"""The bytes of observations that are compared in one go."""


@dataclasses.dataclass(frozen=True)
class Steps:
    """The checked steps; every array is ``(steps, num_envs, *shape)``, or ``(steps, *shape)`` for one environment.

    Attributes:
        values: the arguments, for all steps.
        starts: the start codes of the steps; that of a run's first step is found when the step is added.
        columns: the values of all columns, in the order of the store's columns.
    """

    values: Row
    starts: NDArray[np.uint8]
    columns: list[Array]

    @classmethod
    def of(cls, values: Row) -> Steps:
        starts = np.full(values.terminated.shape, CONTINUES, np.uint8)
        return cls(values, starts, values.columns(values.obs, starts))

    def __len__(self) -> int:
        return len(self.starts)

    def row(self, at: int) -> Row:
        """Return one step as the arguments of ``add``."""
        return self.values.step(at)

    def runs(self) -> Iterator[tuple[int, int]]:
        """Return the first step of each run, and one past its last; for steps without stacks."""
        firsts = np.flatnonzero(~self._follows()).tolist()
        return zip(firsts, [*firsts[1:], len(self)], strict=True)

    def _follows(self) -> NDArray[np.bool_]:
        """Tell which steps continue the step before in every environment, bool ``(steps,)``."""
        values = self.values
        follows = np.zeros(len(self), bool)
        if len(self) < 2:
            return follows
        going_on = values.valid & ~(values.terminated | values.truncated)
        follows[1:] = (going_on[:-1] & values.valid[1:]).reshape(len(self) - 1, -1).all(axis=1)
        for given, after in zip(values.obs, values.next_obs, strict=True):
            block = 1 + COMPARED_BYTES // max(1, given[0].nbytes)
            for at in range(1, len(self), block):
                stop = min(at + block, len(self))
                follows[at:stop] &= same_rows(after[at - 1 : stop - 1], given[at:stop])
        return follows
