"""How many bytes of a store are on disk."""

from __future__ import annotations

import os
import pathlib


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
