"""The calls that are made before a fork of this process, and after it in the parent and in the child.

A module registers with :func:`at_fork` when it is imported, and so after the modules that it stands on. After a fork
calls are made in that order: those about signals (:mod:`diskreplay.process.locks`), then those about threads, files and
locks, and last those about open buffers. Before a fork the order is the other way round. All calls are made, whatever
one of them raises.

The system is asked once. What is registered last there is called first before a fork, and last after it. Others take
locks of theirs before a fork, too. Were `logging` imported later, a fork would hold its lock while it waits for a
thread that logs within a batch, and needs that lock. Were `concurrent.futures` imported later, a handler that
ran at the end of a fork, and forks, would wait for the lock that the first fork holds.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # see above
import logging  # noqa: F401  # as above
import os
from collections.abc import Callable, Iterator

Call = Callable[[], None]

process = os.getpid()
"""The number of this process, kept since asking the system takes ``add`` half a microsecond more a row."""
_before: list[Call] = []
_in_parent: list[Call] = []
_in_child: list[Call] = []


def at_fork(*, before: Call | None = None, in_parent: Call | None = None, in_child: Call | None = None) -> None:
    """Have functions called from now on at each fork: before it, after it in the parent, and in the child."""
    if before is not None:
        _before.append(before)
    if in_parent is not None:
        _in_parent.append(in_parent)
    if in_child is not None:
        _in_child.append(in_child)


def _make(calls: Iterator[Call]) -> None:
    """Make calls in turn, all of them even if one raises or is interrupted."""
    try:
        for call in calls:
            call()
    except BaseException:  # the system prints it
        _make(calls)
        raise


def _renew() -> None:
    global process
    process = os.getpid()


at_fork(in_child=_renew)
os.register_at_fork(
    before=lambda: _make(reversed([*_before])), after_in_parent=lambda: _make(iter(_in_parent)),
    after_in_child=lambda: _make(iter(_in_child)),
)  # fmt: skip
