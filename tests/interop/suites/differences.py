"""A pytest plugin for another library's tests: those that a list names must fail as it says, and all others must pass.

It stands in the process of those tests, beside the plugin that swaps the class; ``suite.py`` starts both.
"""

from __future__ import annotations

import collections
import inspect
import os
import pathlib
import re
import zlib
from collections.abc import Generator
from typing import Any

import pytest
from suite import Difference, Suite, matches

SUITE = pytest.StashKey[Suite]()
LISTED = pytest.StashKey[Difference]()
STALE = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--suite", required=True, help="the list, a TOML file")
    parser.addoption("--own", action="store_true", help="no class was swapped")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SUITE] = Suite.read(pathlib.Path(config.getoption("suite")))
    config.stash[STALE] = set()
    os.fsync = lambda fd: None  # no test here cuts the power


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what the list leaves out, and notes which test must differ."""
    suite = config.stash[SUITE]
    parts = (*suite.left_out, *suite.differs)
    config.stash[STALE].update(
        pattern
        for pattern in (pattern for part in parts for pattern in part.tests)
        if not any(matches(pattern, item.nodeid) for item in items)
    )
    chosen = _sample([item for item in items if _asked(item, suite)], suite.cases)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]
    for item in items:
        for part in suite.differs:
            if part.names(item.nodeid) and (part.own or not config.getoption("own")):
                item.stash[LISTED] = part


def _asked(item: pytest.Item, suite: Suite) -> bool:
    text = item.nodeid + inspect.getsource(item.function)
    return bool(re.search(suite.naming, text)) and not any(part.names(item.nodeid) for part in suite.left_out)


def _sample(items: list[pytest.Item], cases: int) -> set[pytest.Item]:
    """At most so many cases of each test, whose parameters vary."""
    tests = collections.defaultdict(list)
    for item in sorted(items, key=lambda item: zlib.crc32(item.nodeid.encode())):
        tests[item.nodeid.split("[")[0]].append(item)
    return {item for each in tests.values() for item in each[: cases or None]}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    listed = item.stash.get(LISTED, None)
    if listed is None or report.skipped:
        return report
    if report.failed and report.when != "teardown" and re.search(listed.shows, report.longreprtext):
        report.outcome, report.wasxfail = "skipped", listed.reason
    elif report.failed:
        report.sections.append(("the list", f"It must fail with {listed.shows!r}: {listed.reason}"))
    elif report.when == "call":
        report.outcome, report.longrepr = "failed", f"It passes, and the list says that it differs: {listed.reason}"
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes over what a process of pytest-xdist found."""
    node.config.stash[STALE].update(getattr(node, "workeroutput", {}).get("stale", ()))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Says how many passed. Fails where the list has other numbers, or a pattern that names no test."""
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["stale"] = sorted(config.stash[STALE])
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    suite, own = config.stash[SUITE], config.getoption("own")
    passed = len(reporter.stats.get("passed", ()))
    found = collections.Counter(report.wasxfail for report in reporter.stats.get("xfailed", ()))
    reporter.write_line(f"\n{suite.library} {suite.version}: {passed} of {passed + found.total()} pass")
    wrong = [f"no test is named {pattern}" for pattern in sorted(config.stash[STALE])]
    if not own and not session.testsfailed:
        wrong += [
            f"{part.count} in the list, {found[part.reason]} found: {part.reason}"
            for part in suite.differs
            if part.count != found[part.reason]
        ]
        if passed != suite.passed:
            wrong.append(f"{suite.passed} pass in the list, {passed} do")
    for line in wrong:
        reporter.write_line(line)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
