"""The place for what a repair moves or changes: a folder beside the store, with the same paths below it."""

# ruff: noqa: PTH118, PTH119, PTH120  # plain strings behind the seam to the file system, as in storage

from __future__ import annotations

import os

from diskreplay.schema.columns import Column
from diskreplay.storage import files as fs
from diskreplay.storage.column import shard_number
from diskreplay.storage.commit import Tail

COPY_BYTES = 1 << 30
"""The most bytes of a file that are copied: a damaged one may say that it is larger than any disk."""
BLOCK_BYTES = 8 << 20


class Quarantine:
    """A folder that is made when the first thing is put into it.

    Attributes:
        path: the path of the folder; None as long as there is none.
        moved: the paths below the store of what was moved into it.
    """

    def __init__(self, files: fs.Files, store: str) -> None:
        self.files = files
        self.store = store
        self.path: str | None = None
        self.moved: list[str] = []

    def _place(self, path: str) -> str:
        if self.path is None:
            number = 1
            while self.files.kind(place := f"{self.store}.quarantine-{number}") is not None:
                number += 1
            self.path = place
        below = os.path.relpath(path, self.store)
        place = os.path.join(self.path, below)
        fs.make_dirs(self.files, os.path.dirname(place))
        while self.files.kind(place) is not None:
            place += "+"
        self.moved.append(below)
        return place

    def take(self, path: str) -> None:
        """Move a file, a directory or whatever it is, if it is there."""
        if self.files.kind(path) is None:
            return
        place = self._place(path)
        self.files.rename(path, place)
        self.files.sync_dir(os.path.dirname(place))
        self.files.sync_dir(os.path.dirname(path))

    def copy(self, path: str) -> None:
        """Copy a file, at most its first GiB, if it is there."""
        if self.files.kind(path) != "file":
            return
        source = self.files.open(path)
        place = self._place(path)
        target = self.files.open(place, write=True)
        copy_bytes(source, target, min(source.size(), COPY_BYTES))
        target.sync()
        self.files.sync_dir(os.path.dirname(place))

    def keep_directory(self, path: str) -> None:
        """Move away what is not a directory, and make one if there is none."""
        if self.files.kind(path) == "directory":
            return
        self.take(path)
        fs.make_dirs(self.files, path)

    def keep_shard(self, path: str, column: Column, tail: Tail | None) -> None:
        """Copy a shard that recovery will cut or remove, as ``tail`` is the column's last."""
        shard = shard_number(os.path.basename(path), column)
        if shard is None or self.files.kind(path) != "file":
            return
        if tail is None or shard > tail.shard or (shard == tail.shard and (self.files.size(path) or 0) > tail.size):
            self.copy(path)


def copy_bytes(source: fs.File, target: fs.File, size: int) -> None:
    """Copy the first bytes of a file into an empty one, zeros as holes."""
    offset = 0
    while offset < size:
        data = source.pread(min(BLOCK_BYTES, size - offset), offset)
        if not data:
            break
        if data.count(0) < len(data):
            target.pwrite([data], offset)
        offset += len(data)
    target.truncate(offset)
