"""Whether a plan is read by compiled code, and from when on.

Loading numba and the kernel takes a program as long as reading some thousand chunks in Python. So they are loaded when
that many were read, which is then known to be worth it: whoever reads less never pays for it, and nobody pays more than
twice what would have been best.

The kernel reads local files only. It does not apply where a file has no descriptor of the system's, or the batch is
laid out in another way; nor anywhere in a process in which it cannot be loaded.
"""

from __future__ import annotations

import os
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.reading.scratch import scratch
from diskreplay.storage import files as fs
from diskreplay.storage.chunks import OVERHEAD_BYTES
from diskreplay.storage.column import ColumnReader, Locations

Read = Callable[[int, int], int]
"""Reads pieces from the first number on, below the second; gives the first piece that it could not read, or that."""

LOAD_AFTER = 20_000
"""Pieces that a process reads in Python before it loads the kernel."""

_pieces = 0
"""Pieces that were asked for so far; threads that count at once may miss some."""
_kernel: types.ModuleType | None = None
_missing = False
_loading = threading.Lock()


def load() -> types.ModuleType | None:
    """The kernel, loaded and compiled; None where this process cannot have it, and while another thread loads it."""
    global _kernel, _missing
    if _kernel is None and not _missing and _loading.acquire(blocking=False):
        try:
            from diskreplay.reading import kernel

            _missing = not kernel.FOUND
            if kernel.FOUND:
                kernel.compile_now()
                _kernel = kernel
        except MemoryError:
            raise
        except Exception:  # numba is for some versions of Python and numpy only: what Python reads is as right
            _missing = True
        finally:
            _loading.release()
    return _kernel


def _forked() -> None:
    """In a forked child: the thread that was loading is not there any more, and keeps numba's locks for ever."""
    global _missing, _loading
    if _loading.locked():
        _missing, _loading = True, threading.Lock()


os.register_at_fork(after_in_child=_forked)


def reader(column: ColumnReader, out: NDArray[Any], pieces: NDArray[np.int64], places: Locations) -> Read | None:
    """What reads the pieces ``(6, n)`` of a plan into ``out``; None where that is left to Python."""
    global _pieces
    if _kernel is None:
        if _missing:
            return None
        _pieces += len(places)
        if _pieces <= LOAD_AFTER:
            return None
    kernel = load()
    given = column.column
    files = [fs.descriptor(loan.file) for loan in places.loans]
    fits = out.flags.c_contiguous and out.dtype == given.dtype and out.shape[2:] == given.shape and out.size > 0
    if kernel is None or not fits or None in files:
        return None
    descriptors = np.array(files, np.int64)
    pieces = np.ascontiguousarray(pieces)
    flat = out.reshape(-1).view(np.uint8).reshape(len(out), -1)

    def read(begin: int, end: int) -> int:
        with scratch(column.decoded_bytes + OVERHEAD_BYTES) as encoded, scratch(column.decoded_bytes) as decoded:
            done: int = kernel.read(
                descriptors, pieces, places.array, begin, end, given.chunk_rows, given.item_bytes,
                given.codec.name == "none", encoded, decoded, flat,
            )  # fmt: skip
            return done

    return read
