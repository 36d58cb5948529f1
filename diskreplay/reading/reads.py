"""The steps that are left to make a batch: noted with ``engine.lock`` held, and done without it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

from numpy.typing import DTypeLike, NDArray

from diskreplay.native import core
from diskreplay.reading import blocks, gather
from diskreplay.reading.addresses import Addresses
from diskreplay.reading.cache import ChunkCache
from diskreplay.reading.out import Out
from diskreplay.reading.target import Target
from diskreplay.schema.columns import REWARD
from diskreplay.schema.ids import Ids
from diskreplay.schema.ragged import PADDED, Forms
from diskreplay.storage import handles
from diskreplay.storage.column import ColumnReader

Empty = Callable[[tuple[int, ...], DTypeLike], NDArray[Any]]
"""A function such as :func:`diskreplay.reading.blocks.empty`."""


class LastStep(Protocol):
    """A step that is done once all arrays of a batch have been read."""

    def run(self) -> None:
        """Do it, without a lock."""


class Reads:
    """The steps that fill the arrays of one batch, in order: they read chunks, then change what was read.

    Args:
        empty: a function such as ``numpy.empty``.
        addresses: those of the streams that are read; if None, or of other streams, they are found anew.
        forms: of the ragged columns.
        reward: the name of the column that batches show as rewards.
    """

    def __init__(
        self, empty: Empty = blocks.empty, addresses: Addresses | None = None, forms: Forms = PADDED,
        reward: str = REWARD,
    ) -> None:  # fmt: skip
        self.empty = empty
        """The function that makes the large arrays to fill."""
        self.addresses = addresses
        """Those of the streams; a caller may replace them before the batch is planned."""
        self.forms = forms
        self.reward = reward
        self.out: Out | None = None
        """The arrays that the caller gave for the batch."""
        self.last: dict[str, LastStep] = {}
        """What is done after all steps: the frames of video columns are decoded, then the caller's arrays filled."""
        self._steps: list[Callable[[], None]] = []
        self._plans: list[list[gather.Plan]] = []
        """The plans of the columns, each in the parts in which it is read.

        No step refers to this object, so that their files are given up with it.
        """
        self._begun = 0
        """The number of plans whose downloads have begun."""

    def fetch(self, column: ColumnReader, runs: Ids, out: Target, cache: ChunkCache) -> None:
        """Copy what is in RAM of runs of rows ``(5, n)``, and note the rest; the caller holds the lock.

        The numbers of a run are its place in the batch, environment, first and last row, and the row of step 0.
        """
        chunks = core.Chunks(cache, [column])
        self.add_plan(gather.plan(chunks, chunks.rows(0, runs), out), cache)

    def add_plan(self, plan: gather.Plan, cache: ChunkCache) -> None:
        """Note a plan, which :meth:`finish` reads; read it now if the batch would hold too many files."""
        if not plan.encoded and not plan.pieces.size:
            return
        held = sum(len(part.files) for parts in self._plans for part in parts)
        if plan.files and held + len(plan.files) > handles.POOL.most_held():
            gather.run(gather.begin(plan), cache)
            return
        parts = [plan]
        self._plans.append(parts)
        self.then(functools.partial(gather.run, parts, cache))

    def then(self, step: Callable[[], None]) -> None:
        """Note a step that needs the arrays of the steps before it."""
        self._steps.append(step)

    def begin(self) -> None:
        """Start the downloads of remote chunks, for all columns at once; this needs no lock."""
        for at in range(self._begun, len(self._plans)):
            self._plans[at][:] = [part for plan in self._plans[at] for part in gather.begin(plan)]
            self._begun = at + 1

    def finish(self) -> None:
        """Do all steps, without a lock; raise CorruptionError, which names the place, for a damaged chunk."""
        self.begin()
        for step in self._steps:
            step()
        for last in self.last.values():
            last.run()
