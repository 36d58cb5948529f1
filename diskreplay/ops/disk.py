"""Bytes on disk: how many a store takes."""

from __future__ import annotations

import os
import pathlib

from diskreplay.remote.files import RemoteFiles
from diskreplay.storage.store import Store


def store_bytes(store: Store) -> int:
    """Sizes of all files of a store, or of its objects under a URL."""
    return store.files.stored_bytes() if isinstance(store.files, RemoteFiles) else tree_bytes(store.path)


def tree_bytes(path: str | os.PathLike[str]) -> int:
    """Sizes of all files below a directory; files that go away meanwhile do not count."""
    total = 0
    for folder, _, files in os.walk(path):
        total += sum(file_bytes(pathlib.Path(folder, name)) for name in files)
    return total


def file_bytes(path: pathlib.Path) -> int:
    """The size of a file, of a link itself; 0 when there is none (any more)."""
    try:
        return path.lstat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0
