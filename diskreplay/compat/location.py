"""The place of another library's buffer's store: a path, or a temporary directory that goes away with the buffer.

Those libraries never close a buffer. Here its store is closed when the buffer is garbage collected, at the latest when
the interpreter ends; :mod:`diskreplay.process.lifecycle` says when that is safe. A forked process closes and removes
nothing: the buffers belong to its parent.
"""

from __future__ import annotations

import functools
import pathlib
import shutil
import tempfile
import warnings

import numpy as np

from diskreplay.buffers.stored import StoredBuffer
from diskreplay.engine import lifetime
from diskreplay.errors import DiskReplayError
from diskreplay.process import lifecycle
from diskreplay.storage.paths import PathLike, full_path


class Location:
    """A store's path.

    Args:
        path: the directory of the store, which is made if nothing is there; None for a temporary one, which is removed
            when ``owner`` is forgotten, or the interpreter ends.
        owner: the buffer.
    """

    def __init__(self, path: PathLike | None, owner: object) -> None:
        lifecycle.catch_up()
        self.temporary = path is None
        if path is not None:
            self.path = full_path(path)
            return
        folder = tempfile.mkdtemp(prefix="diskreplay-")
        self.path = str(pathlib.Path(folder, "store"))
        _temporary.add(folder)
        lifecycle.when_forgotten(owner, functools.partial(_remove, folder))  # done last, with the store closed

    @property
    def exists(self) -> bool:
        """True if a store is there already."""
        return pathlib.Path(self.path, "zarr.json").exists()


def global_seed() -> int:
    """Return a seed drawn from numpy's global generator, which users of these libraries seed."""
    return int(np.random.randint(1 << 31))


_temporary: set[str] = set()
"""The directories that are removed with their buffers."""


def close_with(owner: object, buffer: StoredBuffer) -> None:
    """Have ``buffer`` closed, which commits, once ``owner`` is forgotten, at the latest when the interpreter ends."""
    lifecycle.when_forgotten(owner, functools.partial(_close, buffer))


def _close(buffer: StoredBuffer, ending: bool) -> None:
    if str(pathlib.Path(buffer.path).parent) in _temporary:
        lifetime.give_up(buffer.engine)
        return
    try:
        buffer.close()
    except DiskReplayError as error:
        if pathlib.Path(buffer.path).exists():
            warnings.warn(f"the newest rows of {buffer.path!r} are lost: {error}", ResourceWarning, stacklevel=2)


def _remove(folder: str, ending: bool) -> None:
    _temporary.discard(folder)
    shutil.rmtree(folder, ignore_errors=True)
