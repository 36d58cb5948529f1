"""Bytes on disk: how many a store takes, and the error for a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
from collections.abc import Iterator

from diskreplay.errors import DiskFullError
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


@contextlib.contextmanager
def room_for(target: pathlib.Path) -> Iterator[None]:
    """DiskFullError that names what was to be written, whatever a format's library says of a full disk."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if _is_full(error):
            said = f"there is no room for {str(target)!r}; nothing was written: make room, and try again"
            raise DiskFullError(errno.ENOSPC, said) from error
        raise


def _is_full(error: BaseException | None) -> bool:
    """Whether an error, or one that it came from, is of a full disk. HDF5 and Arrow have the number in their text."""
    return error is not None and (
        (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT))
        or re.search(rf"errno (= )?({errno.ENOSPC}|{errno.EDQUOT})\b", str(error)) is not None
        or _is_full(error.__cause__ or error.__context__)
    )
