"""Stamps: they tell a file from every other file that had or will have its name, without reading it.

Stamps are for files that are written once and replaced by a rename. A file's inode number and times tell which one it
is. A file has no stamp, and must be read, in three cases:

- The file system is not known to take its times from this machine's clock; or it answers from a cache, as network file
  systems do.
- The file is so young that another file with the same number could get the same times.
- The clock was set back, so that a later file could get them.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterable

Stamp = tuple[int, ...]

SETTLED_NS = 2_000_000_000
"""The age in ns from which a file has a stamp: more than the seconds or ticks in which file systems count time."""
LOCAL = {0xEF53, 0x58465342, 0x9123683E, 0x2FC12FC1, 0xF2F52010, 0x01021994, 0x794C7630}
"""The types of ext2 to ext4, XFS, btrfs, ZFS, F2FS, tmpfs and overlayfs, as ``statfs`` gives them."""


class Eras:
    """The periods between moments at which the clock was set back."""

    def __init__(self) -> None:
        self._number = 0
        self._ahead = 0
        """The most, since the era began, by which the clock was ahead of one that nobody sets."""

    def now(self) -> tuple[int, int]:
        """Return the number of the present era, and the time in ns by the clock."""
        now = time.time_ns()  # noqa: TID251  it orders nothing: a doubt about it has documents read
        ahead = now - time.monotonic_ns()
        if ahead < self._ahead - SETTLED_NS // 4:
            self._number, self._ahead = self._number + 1, ahead
        self._ahead = max(self._ahead, ahead)
        return self._number, now


_ERAS = Eras()


def stamps(folder: str, below: Iterable[str]) -> list[Stamp | None]:
    """Return the stamps of files, given by their paths below a folder; None for a file that must be read."""
    try:
        if not is_local(folder):
            return [None for _ in below]
        device = os.stat(folder).st_dev
    except OSError:  # reading says what is wrong
        return [None for _ in below]
    era, now = _ERAS.now()
    found: list[Stamp | None] = []
    for name in below:
        try:
            found.append(stamp(os.lstat(f"{folder}/{name}"), device, era, now))
        except OSError:
            found.append(None)
    return found


def stamp(found: os.stat_result, device: int, era: int, now: int) -> Stamp | None:
    """Return the stamp of a file from what ``lstat`` found, no earlier than the time ``now`` in ns, in an era."""
    if found.st_dev != device or found.st_ctime_ns > now - SETTLED_NS:
        return None
    return era, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def is_local(folder: str) -> bool:
    """Tell whether a folder is on a file system of this machine whose files can have stamps."""
    if not sys.platform.startswith("linux"):
        return False
    found = ctypes.create_string_buffer(512)  # more than the fields that any system has
    failed = ctypes.CDLL(None).statfs(os.fsencode(folder), found)
    return not failed and ctypes.c_long.from_buffer(found).value in LOCAL
