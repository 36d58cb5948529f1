"""Where a buffer of another library's keeps its rows: at a path, or in a temporary directory that goes with it.

Those libraries never close a buffer, so that here stores are closed once their buffers are forgotten:

1. That may be noticed by the garbage collector in the middle of anything, with any lock held. So the store is only put
   on a list then, and closed when the next buffer is made, or the interpreter ends.
2. A forked process closes and removes nothing: the buffers are its parent's.
"""

from __future__ import annotations

import atexit
import collections
import os
import pathlib
import shutil
import tempfile
import warnings
import weakref

import numpy as np

from diskreplay.buffers.stored import StoredBuffer
from diskreplay.errors import DiskReplayError
from diskreplay.paths import PathLike, full_path


class Place:
    """A store's path.

    Args:
        path: where the store is, or is to be made; None for a temporary directory, which is removed when ``owner`` is
            forgotten, or the interpreter ends.
        owner: the buffer.
    """

    def __init__(self, path: PathLike | None, owner: object) -> None:
        _close_forgotten()
        self.temporary = path is None
        if path is not None:
            self.path = full_path(path)
            return
        folder = tempfile.mkdtemp(prefix="diskreplay-")
        self.path = str(pathlib.Path(folder, "store"))
        self.remove = weakref.finalize(owner, _remove, folder, os.getpid())

    @property
    def exists(self) -> bool:
        """Whether a store is there already."""
        return pathlib.Path(self.path, "zarr.json").exists()


def global_seed() -> int:
    """A seed drawn from numpy's global generator, which is what users of these libraries seed."""
    return int(np.random.randint(1 << 31))


_held: dict[int, tuple[StoredBuffer, int]] = {}
"""Stores that are to be closed, and the process they belong to."""
_forgotten: collections.deque[int] = collections.deque()
"""Keys of those whose owners are gone."""
_removed: set[str] = set()
"""Temporary directories that are gone, unless a thread of a store that is still open wrote into one."""


def close_with(owner: object, buffer: StoredBuffer) -> None:
    """Closes ``buffer``, which commits, after ``owner`` was forgotten, at the latest when the interpreter ends."""
    _held[id(buffer)] = buffer, os.getpid()
    weakref.finalize(owner, _forgotten.append, id(buffer)).atexit = False


def _close_forgotten() -> None:
    while _forgotten:
        _close(_forgotten.popleft())


def _close_all() -> None:
    for key in list(_held):
        _close(key)


def _close(key: int) -> None:
    buffer, process = _held.pop(key)
    if process != os.getpid():
        return
    folder = str(pathlib.Path(buffer.path).parent)
    try:
        buffer.close()
    except DiskReplayError as error:
        if folder not in _removed and pathlib.Path(buffer.path).exists():
            warnings.warn(f"the newest rows of {buffer.path!r} are lost: {error}", ResourceWarning, stacklevel=2)
    if folder in _removed:
        _removed.remove(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _remove(folder: str, process: int) -> None:
    if process == os.getpid():
        _removed.add(folder)
        shutil.rmtree(folder, ignore_errors=True)


atexit.register(_close_all)
