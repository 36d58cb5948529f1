"""Where the tests' files lie: in RAM in the quick form, where there is room; a plugin of pytest.

The disk is a tenth of the quick form's processor time, and waits come on top; no test cuts the power (``fsync`` is left
out too). ``make exhaustive`` works on the disk, and so does whoever sets ``TMPDIR``.
"""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
from helpers import effort

RAM = "/dev/shm"
NEEDED_BYTES = 1 << 31

_made: str | None = None
"""The folder of this run, in the process that began it."""
_passed = False


def has_room(folder: str) -> bool:
    """Whether there is a file system with enough room, in which programs can be run too."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    runs = not found.f_flag & getattr(os, "ST_NOEXEC", 0)
    return runs and found.f_bavail * found.f_frsize >= NEEDED_BYTES and os.access(folder, os.W_OK)


def pytest_configure() -> None:
    """Processes that are started from here on, those of pytest-xdist too, get the same folder."""
    global _made
    if effort.SAMPLED and not os.environ.get("TMPDIR") and has_room(RAM):
        _made = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="diskreplay-", dir=RAM)
        tempfile.tempdir = None  # which may have been asked for before


def pytest_report_header() -> str:
    return f"files: in {tempfile.gettempdir()} (TMPDIR=... elsewhere)"


def pytest_sessionfinish(exitstatus: int) -> None:
    global _passed
    _passed = exitstatus == pytest.ExitCode.OK


def pytest_unconfigure() -> None:
    """RAM is given back; what a test left that failed can be looked at."""
    if _made is not None and _passed:
        shutil.rmtree(_made, ignore_errors=True)
