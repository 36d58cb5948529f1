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

import pytest
from suite import Difference, Suite, matches

SUITE = pytest.StashKey[Suite]()
LISTED = pytest.StashKey[Difference]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--suite", required=True, help="the list, a TOML file")
    parser.addoption("--own", action="store_true", help="no class was swapped")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SUITE] = Suite.read(pathlib.Path(config.getoption("suite")))
    os.fsync = lambda fd: None  # no test here cuts the power


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what the list leaves out. A pattern that names no test is an error."""
    suite = config.stash[SUITE]
    stale = [
        pattern
        for part in (*suite.left_out, *suite.differs)
        for pattern in part.tests
        if not any(matches(pattern, item.nodeid) for item in items)
    ]
    if stale:
        raise pytest.UsageError(f"{config.getoption('suite')} names tests that are not there: {', '.join(stale)}")
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


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Says how many passed, and fails where the list has other numbers."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):
        return
    suite, own = session.config.stash[SUITE], session.config.getoption("own")
    passed = len(reporter.stats.get("passed", ()))
    found = collections.Counter(report.wasxfail for report in reporter.stats.get("xfailed", ()))
    reporter.write_line(f"\n{suite.library} {suite.version}: {passed} of {passed + found.total()} pass")
    if own or session.testsfailed:
        return
    wrong = [
        f"{part.count} in the list, {found[part.reason]} found: {part.reason}"
        for part in suite.differs
        if part.count != found[part.reason]
    ]
    if passed != suite.passed:
        wrong.append(f"{suite.passed} pass in the list, {passed} do")
    for line in wrong:
        reporter.write_line(line)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
