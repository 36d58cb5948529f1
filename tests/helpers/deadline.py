"""An end for the run of every case: a plugin of pytest, which ``conftest.py`` registers.

With ``DISKREPLAY_TEST_SECONDS=1800`` no case begins after so many seconds. ``.ci/run`` sets it to what its own time
leaves, so that it comes to an end on a machine that is three times as slow as another one. The end of the run says how
many cases were left out. Those that ``make test`` runs as well come last, so they are left out first.
"""

from __future__ import annotations

import math
import os
import time
from typing import Any

import pytest
from helpers import effort, tiers

VARIABLE = "DISKREPLAY_TEST_SECONDS"
SECONDS = effort.read(VARIABLE, "1800", os.environ[VARIABLE]) if VARIABLE in os.environ else math.inf
_end = time.monotonic() + SECONDS
_late = 0
"""Cases that were left out, of all processes in the one that prints."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Has each process of pytest-xdist, which gets one slice, run first what the quick form leaves out."""
    if not math.isinf(SECONDS):
        left = tiers.left_out(items)
        items.sort(key=lambda item: item not in left)
        processes = getattr(config, "workerinput", {}).get("workercount", 1)
        items[:] = [item for first in range(processes) for item in items[first::processes]]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol() -> bool | None:
    """Takes a case that comes too late for done."""
    global _late
    if time.monotonic() < _end:
        return None
    _late += 1
    return True


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["late"] = _late


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    global _late
    _late += getattr(node, "workeroutput", {}).get("late", 0)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _late:
        said = f"{_late} cases were left out: the {SECONDS:.0f} seconds of {VARIABLE} were over"
        terminalreporter.write_line(f"{said}; `make exhaustive` runs all")
