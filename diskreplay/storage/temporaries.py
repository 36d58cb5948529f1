"""The directories in which something is made before it gets its name.

Each is locked by its maker. One that nobody holds was left by a process that died, and goes.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets

from diskreplay.storage import files as fs


def take(files: fs.Files, parent: str, name: str) -> tuple[str, fs.FileLock]:
    """Make a directory in ``parent`` for what will be called ``name``, and take its lock."""
    while True:
        path = os.path.join(parent, f".{name}.tmp-{secrets.token_hex(8)}")
        files.mkdir(path)
        with contextlib.suppress(FileNotFoundError):
            try:
                lock = files.lock(path)
            except OSError:  # nobody will get it
                with contextlib.suppress(OSError):
                    files.rmdir(path)
                raise
            if lock is not None and files.kind(path) is not None:
                return path, lock
        # It was swept away before it was locked: another process makes the same.


def sweep(files: fs.Files, parent: str, name: str) -> None:
    """Remove the directories of makers that died."""
    for left in files.list(parent):
        if name_of(left) == name:
            path = os.path.join(parent, left)
            with contextlib.suppress(FileNotFoundError):  # another process sweeps too
                lock = files.lock(path)
                if lock is not None:
                    try:
                        fs.clear(files, path)
                    finally:
                        lock.release()


def name_of(directory: str) -> str | None:
    """Return the name of what is made in a directory, or None if nothing is made there."""
    match = re.fullmatch(r"\.(.+)\.tmp-[0-9a-f]{16}", directory, re.DOTALL)
    return match[1] if match else None
