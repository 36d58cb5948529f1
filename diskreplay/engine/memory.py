"""The memory that this process may take, and what is left of it."""

from __future__ import annotations

import os
import pathlib
import resource
import sys

GROUPS = pathlib.Path("/sys/fs/cgroup")
OWN_GROUP = pathlib.Path("/proc/self/cgroup")
HELD = pathlib.Path("/proc/self/statm")


def limit() -> int:
    """Return the bytes of the machine's memory, or of this process's control group if that may take less."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        machine = sys.maxsize
    return min(machine, *_group_limits())


def left() -> int:
    """Return the bytes that this process may still take: of its :func:`limit`, or of its address space if less."""
    try:
        mapped, resident, *_ = (int(pages) * resource.getpagesize() for pages in HELD.read_text().split())
    except (OSError, ValueError):  # the system does not tell
        mapped = resident = 0
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    room = sys.maxsize if addresses == resource.RLIM_INFINITY else addresses - mapped
    return max(0, min(limit() - resident, room))


def _group_limits() -> list[int]:
    """Return what the groups of this process may take, by cgroup v1 and v2; at least one number."""
    found = [sys.maxsize]
    try:
        groups = OWN_GROUP.read_text().splitlines()
    except OSError:
        return found
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            root, name = (GROUPS / controllers, "memory.limit_in_bytes" if controllers else "memory.max")
            own = root / path.lstrip("/")
            for folder in (own, *own.parents):
                if folder.is_relative_to(root):
                    found += _number(folder / name)
    return found


def _number(file: pathlib.Path) -> list[int]:
    try:
        return [int(file.read_text())]
    except (OSError, ValueError):  # not there, or "max"
        return []
