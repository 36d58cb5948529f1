"""The bytes that a directory takes on disk."""

from __future__ import annotations

import os

from diskreplay.storage.local_files import LocalFiles


def tree_bytes(path: str | os.PathLike[str]) -> int:
    """Return the size of all files below a directory; files that go away meanwhile do not count."""
    return LocalFiles().stored_bytes(os.fspath(path))
