"""Many steps at once, added as if one after another: checked together, then written in runs.

A run is a step and those after it that continue it in every environment. Its first step is looked at as every row is;
the others need no look at the pending observation.
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
"""The bytes of observations that are compared at a time."""


@dataclasses.dataclass(frozen=True)
class Steps:
    """The checked steps; every array is ``(steps, num_envs, *shape)``, or ``(steps, *shape)`` of one environment.

    Attributes:
        values: of all steps.
        starts: their start codes; those of the first steps of runs are found when they are added.
        columns: values of each column, in the order of the store's.
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
        """Return one step, as ``add`` is given it."""
        return Row(*([part[at] for part in value] if isinstance(value, list) else value[at] for value in self.values))

    def runs(self) -> Iterator[tuple[int, int]]:
        """Return the first step of each run of single frames, and one past its last."""
        firsts = np.flatnonzero(~self._follows()).tolist()
        return zip(firsts, [*firsts[1:], len(self)], strict=True)

    def _follows(self) -> NDArray[np.bool_]:
        """Tell which steps continue the one before them in every environment, ``(steps,)``."""
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
