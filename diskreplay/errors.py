"""Every exception that diskreplay raises, grouped by what a caller would do about it.

============================  ==================================================================
catch                         and then
============================  ==================================================================
:class:`InputError`           correct the call: nothing was changed
:class:`SampleError`          add more data, or sample again
:class:`OpenError`            name another path, version or checkpoint
:class:`LockedError`          close the other writer, or open with ``mode="r"``
:class:`RateLimitError`       look whether the process on the other side still runs, then call again
:class:`CollectorError`       mend the environment or the policy, then start the collectors again
:class:`StateError`           reopen the store, or do not use it after ``close``
:class:`CorruptionError`      run ``diskreplay verify``; go back to a checkpoint, or take a copy
                              (``diskreplay salvage`` writes what is whole to a new store)
:class:`ReadFailedError`      mend the disk or its mount, then call again
:class:`WriteFailedError`     make room or mend the disk, then reopen: the last commit is intact
:class:`FileSystemError`      put the store on a file system that has locks and syncs directories
:class:`RemoteError`          mend the network or the rights, then call again: what is local is intact
============================  ==================================================================

Each class has a stable ``code`` for programs; messages name the thing, the rule, the value and what to do.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable


def warn_outside(text: str, category: type[Warning]) -> None:
    """Warn in the name of the line outside of this package that led here."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("diskreplay."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


class DiskReplayError(Exception):
    """The base of every exception of this package; a class without a ``code`` of its own has that of its base."""

    code = "error"

    def __init_subclass__(cls, code: str = "") -> None:
        super().__init_subclass__()
        cls.code = code or cls.code


def end_block(close: Callable[[], object], error: BaseException | None) -> None:
    """Call ``close`` at the end of a block. What it raises is a note of the ``error`` that leaves the block, if any."""
    try:
        close()
    except DiskReplayError as lost:
        if error is None:
            raise
        error.add_note("\n".join([f"{type(lost).__name__}: {lost}", *getattr(lost, "__notes__", ())]))


class MisuseWarning(UserWarning):
    """The arguments have the signs of a mistake that is easily made; the message says what to write instead."""


class SamplerWarning(UserWarning):
    """A sampler begins anew: what the store keeps of one cannot be taken over; the message says why."""


class DamageWarning(UserWarning):
    """A file of a store is damaged, and what it says was read from another place; the message names both."""


class RemoteWarning(UserWarning):
    """Something is not in the remote store yet, and is safe where it is."""


class RateLimitWarning(UserWarning):
    """A side of a rate limiter has waited for long; the message says for how many inserts or samples, and of whom."""


class InputError(DiskReplayError, ValueError, code="input"):
    """An argument breaks a rule, and nothing was changed."""


class SchemaError(InputError, code="schema"):
    """A space, column or codec cannot be held by a store."""


class SampleError(DiskReplayError, ValueError, code="sample"):
    """The buffer cannot give this sample now."""


class NotEnoughDataError(SampleError, code="not-enough-data"):
    """Fewer transitions can be sampled than were asked for."""


class EvictedError(SampleError, LookupError, code="evicted"):
    """The named transition has left the window."""


class OpenError(DiskReplayError, code="open"):
    """There is no store to open under this name, or none that this version reads."""


class StoreNotFoundError(OpenError, FileNotFoundError, code="not-found"):
    """Nothing is at the path."""


class StoreExistsError(OpenError, FileExistsError, code="exists"):
    """A store, or something else, is already at the path."""


class NotAStoreError(OpenError, code="not-a-store"):
    """The path holds something that is not a diskreplay store."""


class FormatVersionError(OpenError, code="format-version"):
    """The store was written by a newer version, or by one from before the tag 1.0."""


class CheckpointError(OpenError, code="checkpoint"):
    """A checkpoint does not exist, exists already, or cannot be gone back to."""


class LockedError(DiskReplayError, code="locked"):
    """Another process writes this stream."""


class RateLimitError(DiskReplayError, TimeoutError, code="rate-limit"):
    """The other side of a rate limiter did not come far enough in the time given, and nothing was counted."""


class CollectorError(DiskReplayError, RuntimeError, code="collector"):
    """A collector has failed for good: its environment or its policy raised, or its process died again and again.

    What was committed is in the store.
    """


class StateError(DiskReplayError, code="state"):
    """The object cannot do this in its present state."""


class ReadOnlyError(StateError, code="read-only"):
    """The store was opened with ``mode="r"``."""


class ClosedError(StateError, code="closed"):
    """The store was closed."""


class CorruptionError(DiskReplayError, code="corruption"):
    """Bytes on disk are not what was committed.

    Attributes:
        file: path of the damaged file.
        offset: byte offset in it, or None where the whole file is meant.
        stream, column, rows: the place of what is lost; ``rows`` is half-open ``(start, stop)``; None where unknown.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        offset: int | None = None,
        stream: str | None = None,
        column: str | None = None,
        rows: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.file = file
        self.offset = offset
        self.stream = stream
        self.column = column
        self.rows = rows


class ReadFailedError(DiskReplayError, OSError, code="read-failed"):
    """The file system refused a read."""


class WriteFailedError(DiskReplayError, OSError, code="write-failed"):
    """The file system refused a write: the store takes no more writes until it is reopened, and reading goes on."""


class FileSystemError(WriteFailedError, code="file-system"):
    """The file system lacks what a store needs, such as locks of files, and nothing was made."""


class RemoteError(DiskReplayError, code="remote"):
    """Object storage refused a request, or did not answer: what is local is as it was, and you may call again."""


class RemoteConflictError(RemoteError, code="remote-conflict"):
    """The objects under a URL are not what this store pushed: another store, or another writer's rows."""


class DiskFullError(WriteFailedError, code="disk-full"):
    """No space is left on the device (ENOSPC or EDQUOT)."""
