"""The directories in which something is made before it gets its name.

Each has a file that its maker locks. One that nobody holds was left by a process that died, and goes.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets

from diskreplay.storage import files as fs

LOCK = "lock"
"""The name of the file that is locked, here and in a stream."""


def take(files: fs.Files, parent: str, name: str) -> tuple[str, fs.FileLock]:
    """Make a directory in ``parent`` for what will be called ``name``, and take its lock."""
    while True:
        path = os.path.join(parent, f".{name}.tmp-{secrets.token_hex(8)}")
        files.mkdir(path)
        try:
            if (lock := _lock(files, path)) is not None:
                return path, lock
        except OSError:  # nobody will get it
            with contextlib.suppress(OSError):
                fs.clear(files, path)
            raise
        # Another process, which makes the same, found it without a lock, and sweeps it away.


def sweep(files: fs.Files, parent: str, name: str) -> None:
    """Remove the directories of makers that died."""
    for left in files.list(parent):
        if name_of(left) == name:
            path = os.path.join(parent, left)
            if (lock := _lock(files, path)) is not None:
                try:
                    fs.clear(files, path)
                finally:
                    lock.release()


def _lock(files: fs.Files, path: str) -> fs.FileLock | None:
    """Take the lock of a directory; return None where another has it, or the directory is gone."""
    with contextlib.suppress(FileNotFoundError):
        return files.lock(os.path.join(path, LOCK))
    return None


def name_of(directory: str) -> str | None:
    """Return the name of what is made in a directory, or None if nothing is made there."""
    match = re.fullmatch(r"\.(.+)\.tmp-[0-9a-f]{16}", directory, re.DOTALL)
    return match[1] if match else None
