"""The ledger of a directory: by it the directory knows again the records that it puts under a URL.

The ledger is a file of JSON lines in the stream's directory, beside the array ``start``. Its first line holds the
stream's *origin*, a random name that every remote record repeats. Each further line holds the *write id* of a record,
and is durable before that record is put. A copy of the directory, or a backup of it, has the lines up to the moment
when it was made, and so does not know what the other directory puts from then on.

A line costs one sync. When the lines are many, the newest of them are written anew.

Two pushes of one process may note at once: a request of a buffer that was closed may still be under way when the stream
is opened again. So a ledger is read and changed under one lock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import secrets
from collections.abc import Iterator

from diskreplay.errors import CorruptionError, DiskFullError, WriteFailedError
from diskreplay.process.lifecycle import at_fork
from diskreplay.process.locks import Lock
from diskreplay.storage import files as fs
from diskreplay.storage import stream

NAME = "__remote.json"
"""The file name of the ledger, in the directory of the array ``start``."""
MOST_WRITES, KEPT_WRITES = 1000, 500
"""The lines after which the ledger is written anew, and how many of them are kept then."""
WRITE = re.compile(rb'^\{"write": "([0-9a-f]{32})"\}\n', re.MULTILINE)
"""A line that was written whole."""

_LOCK = Lock("the ledgers of pushes")
at_fork(_LOCK.renew)


@dataclasses.dataclass(frozen=True)
class Ledger:
    """The contents of a ledger.

    Attributes:
        origin: random name of the stream.
        writes: ids of records, the oldest first.
        size: bytes up to the end of the last whole line; a crash may have left a part of a line behind them.
    """

    origin: str
    writes: tuple[str, ...]
    size: int


def path(stream_path: str) -> str:
    return os.path.join(stream_path, stream.SCRATCH, NAME)


def empty(origin: str) -> bytes:
    """Return the bytes of a ledger that holds no record yet."""
    return _line("origin", origin)


def read(files: fs.Files, path: str) -> Ledger:
    """Read a ledger; raise FileNotFoundError if there is none, CorruptionError if its first line cannot be read."""
    with fs.translate_reads(path):
        data = files.read(path)
    first, line_feed, _ = data.partition(b"\n")
    try:
        origin = str(json.loads(first)["origin"])
        if not line_feed:
            raise ValueError("its first line has no end")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptionError(
            f"{path!r} cannot be read: {error!r}; go on in a stream of another name (stream=...)", file=path
        ) from error
    whole = list(WRITE.finditer(data, len(first) + 1))
    size = whole[-1].end() if whole else len(first) + 1
    return Ledger(origin, tuple(one[1].decode() for one in whole), size)


def start(files: fs.Files, path: str) -> Ledger:
    """Read the ledger of a stream, or make one with a new origin if there is none."""
    with _LOCK:
        try:
            return read(files, path)
        except FileNotFoundError:
            with _translated(path):
                _replace(files, path, empty(secrets.token_hex(16)))
            return read(files, path)


def note(files: fs.Files, path: str) -> str:
    """Add a new write id to a ledger durably, and return it.

    Raises DiskFullError or WriteFailedError where the disk does not take it: then nothing may be put under that id.
    """
    write = secrets.token_hex(16)
    with _LOCK, _translated(path):
        known = read(files, path)
        if len(known.writes) >= MOST_WRITES:
            kept = [_line("write", one) for one in (*known.writes[-KEPT_WRITES:], write)]
            _replace(files, path, b"".join([empty(known.origin), *kept]))
            return write
        file = files.open(path, write=True)
        if file.size() > known.size:
            file.truncate(known.size)
        file.pwrite([_line("write", write)], known.size)
        file.sync()
    return write


def _line(name: str, value: str) -> bytes:
    return json.dumps({name: value}).encode() + b"\n"


def _replace(files: fs.Files, path: str, data: bytes) -> None:
    fs.replace(files, path, data, os.path.join(os.path.dirname(path), ".tmp-ledger"))


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    """Turn an OSError inside into DiskFullError or WriteFailedError; the store itself goes on."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind, cure = (DiskFullError, "make room") if full else (WriteFailedError, "mend the cause")
        reason = os.strerror(error.errno) if error.errno else error
        raise kind(
            error.errno, f"noting in {path!r} what is pushed failed: {reason}; nothing was put: {cure} and push again"
        ) from error
