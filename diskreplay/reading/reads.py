"""What is still to be read of a batch: planned under the buffer's lock, read without it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numpy.typing import DTypeLike, NDArray

from diskreplay.reading import blocks, compiled, gather
from diskreplay.reading.cache import ChunkCache
from diskreplay.reading.gather import Requests
from diskreplay.reading.tables import Tables
from diskreplay.reading.target import Target
from diskreplay.storage.column import ColumnReader

Empty = Callable[[tuple[int, ...], DTypeLike], NDArray[Any]]
"""As :func:`diskreplay.reading.blocks.empty`."""


class Reads:
    """The steps that fill the arrays of one batch, in order: chunks to read, and what is made of them afterwards.

    Args:
        empty: as ``numpy.empty``.
        tables: of the streams that are read; without them all is planned in Python.
    """

    def __init__(self, empty: Empty = blocks.empty, tables: Tables | None = None) -> None:
        self.empty = empty
        """Makes the large arrays that are filled."""
        self.tables = tables
        """Those of other streams may be given before the batch is planned."""
        self._steps: list[Callable[[], None]] = []
        self._plans: list[list[gather.Plan]] = []
        """Of the columns, each in the parts that it is read in; no step refers to this object, so that loans end."""
        self._on_disk = False
        """Whether it was asked for what is not in RAM as a whole."""
        self._begun = 0
        """Plans of which the downloads have begun."""

    def fetch(self, column: ColumnReader, requests: Requests, out: Target, cache: ChunkCache) -> None:
        """Copies what of the requests is in RAM, and takes up the rest; as :func:`gather.plan`. Needs the lock."""
        self.take_up(gather.plan(column, requests, out, cache), cache)

    def take_up(self, plan: gather.Plan, cache: ChunkCache) -> None:
        """Reads a plan later."""
        self._on_disk = True
        if not plan.empty:
            parts = [plan]
            self._plans.append(parts)
            self.then(functools.partial(gather.run, parts, cache))

    def then(self, step: Callable[[], None]) -> None:
        """A step that needs the arrays of those before it."""
        self._steps.append(step)

    def begin(self) -> None:
        """What is remote begins to be downloaded, of all columns at once; needs no lock."""
        for at in range(self._begun, len(self._plans)):
            self._plans[at][:] = [part for plan in self._plans[at] for part in gather.begin(plan)]
            self._begun = at + 1

    def finish(self) -> None:
        """Does all steps; needs no lock. CorruptionError names the place of a damaged chunk."""
        self.begin()
        if self._on_disk:
            compiled.load_if_due()
        for step in self._steps:
            step()
