"""What all tests share."""

from __future__ import annotations

import math
import os
import pathlib
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from helpers import commits, deadline, effort, residency, scratch, tiers
from helpers.testing import thresholds

from diskreplay.buffers import opening
from diskreplay.engine import run


@pytest.fixture(autouse=True, scope="session")
def _no_fsync() -> Iterator[None]:
    """No test cuts the power, and syncing is most of the time that these would take; the seam still counts it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_commit_by_the_clock() -> Iterator[None]:
    """A machine may stand still in a test that knows its commits: only its own ``commit_seconds`` count."""
    check = opening.engine_options

    def never(options: Mapping[str, Any]) -> run.EngineOptions:
        found = check(options)
        by_default = found["commit_seconds"] == run.COMMIT_SECONDS
        return {**found, "commit_seconds": math.inf} if by_default else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "engine_options", never)
        yield


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c() -> Iterator[None]:
    """A shell's job in the background ignores SIGINT from its start, and so would each process that a test starts."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _residency() -> Iterator[None]:
    """What a test says by :func:`.residency.hold_up_to` ends with it."""
    with residency.restored():
        yield


@pytest.fixture
def path(tmp_path: pathlib.Path) -> str:
    """Where a store can be made."""
    return str(tmp_path / "a.replay")


@pytest.fixture
def commits_at_once() -> Iterator[None]:
    """A test that knows which rows are committed: adding waits for the commits that are due."""
    with commits.at_once():
        yield


@pytest.fixture
def small_thresholds() -> Iterator[None]:
    """The engine's thresholds are small during the test."""
    with thresholds.small_thresholds():
        yield


@pytest.fixture(params=["own thresholds", "small thresholds"])
def both_thresholds(request: pytest.FixtureRequest) -> None:
    """The test runs twice: with the engine's own thresholds and with small ones."""
    if request.param == "small thresholds":
        request.getfixturevalue("small_thresholds")
    return


SMALL = os.environ.get("DISKREPLAY_TEST_THRESHOLDS", "own") == "small"


@pytest.fixture(autouse=True)
def _small_if_asked(request: pytest.FixtureRequest) -> Iterator[None]:
    """A whole run with small thresholds, but for those that the format fixes: stores are read by other processes."""
    if not SMALL or request.node.get_closest_marker("own_thresholds"):
        yield
        return
    with thresholds.small_thresholds(in_format=False):
        yield


def pytest_configure(config: pytest.Config) -> None:
    asked = os.environ.get("DISKREPLAY_TEST_THRESHOLDS", "own")
    if asked not in ("own", "small"):
        raise pytest.UsageError(f"DISKREPLAY_TEST_THRESHOLDS must be 'own' or 'small', got {asked!r}")
    config.addinivalue_line("markers", "own_thresholds: what it measures depends on the engine's own thresholds")
    config.pluginmanager.register(tiers, "tiers")
    config.pluginmanager.register(deadline, "deadline")
    config.pluginmanager.register(scratch, "scratch")


def pytest_report_header() -> list[str]:
    return [
        f"test effort: {effort.EFFORT:g} ({effort.VARIABLE}=20 searches longer)",
        f"thresholds: {'small' if SMALL else 'own'} (DISKREPLAY_TEST_THRESHOLDS=small makes the engine's small)",
    ]


# What is said at the end; with pytest-xdist the processes that run the tests tell the one that prints.


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = sorted(effort.left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    effort.left_out.update(map(tuple, getattr(node, "workeroutput", {}).get("left_out", ())))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = terminalreporter.getreports("passed")
    lines = [value for report in reports for name, value in report.user_properties if name == "figures"]
    if said := effort.summary(effort.left_out):
        lines.append(said)
    for line in lines:
        terminalreporter.write_line(line)
