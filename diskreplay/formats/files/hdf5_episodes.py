"""HDF5 files with arrays of their own for every episode, written while the steps come.

An episode's length is known at its end. Until then an array waits in RAM as long as it is shorter than a chunk; what
grows beyond that becomes an array that can be extended. Whole episodes that wait are written as one chunk, or without
chunks where those would take more than they save.
"""

from __future__ import annotations

import pathlib
from typing import Any

from numpy.typing import NDArray

from diskreplay.formats.files.hdf5_writer import Hdf5ArrayWriter, NewFile

Array = NDArray[Any]


class EpisodesFile(NewFile):
    """A file that takes one episode after another."""

    def __init__(self, path: pathlib.Path, compression: str) -> None:
        super().__init__(path, compression)
        self._columns: dict[str, Hdf5ArrayWriter] = {}

    def append(self, key: str, values: Array) -> None:
        """Take entries ``(n, *shape)`` of an array of the episode at hand, and make its groups."""
        if key not in self._columns:
            self._columns[key] = Hdf5ArrayWriter(self.file, key, self._compression, self._compressor)
        self._columns[key].append(values)

    def end_episode(self) -> None:
        """End the arrays so far: no more comes for them."""
        for column in self._columns.values():
            column.finish()
        self._columns = {}
        self._compressor.check()
