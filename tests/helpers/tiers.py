"""Which cases ``make test`` runs, and what a case may cost there: a plugin of pytest, which ``conftest.py`` registers.

A case that takes more than 0.3 s of processor time, its own and its children's, has the mark ``long``. The quick form
(an effort below 1, :mod:`helpers.effort`) runs what is not long and, of each test function with long cases, as many of
these as its mark says, one by default: always the same ones, chosen so that every parameter varies. Where the mark
gives a reason none of them is run: the reason names the test that stands in.

Where several ``parametrize`` (or fixtures) multiply, the quick form runs so many of the short cases that each value of
each of them occurs: 10 formats by 3 kinds of images are 10 cases or a few more, not 30.

On CI `make test` fails where a case without the mark takes more than 3 s. What is used for the first time does not
count: imports are paid before the first case, fixtures of more than one case are left out.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import resource
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from helpers import effort

LONG = "long(reason=None, *, quick=1): takes more than 0.3 s of processor time; run by make exhaustive"
MOST_SECONDS = 3.0
"""Ten times what is asked: machines differ by three times, and a loaded one takes up to twice as much."""
CHECKS = bool(os.environ.get("CI") and os.environ.get("DISKREPLAY_TEST_BUDGET")) and effort.SAMPLED
"""Whether cases must keep to the budget: on CI, and in `make test` alone."""

LARGE = ("h5py", "pyarrow.dataset", "pyarrow.parquet", "torch")
"""Libraries whose import takes longer than a case may, where they are installed."""

_counted = 0.0
"""Seconds of the process that are told, or are nobody's."""
_case = 0.0
"""Seconds of the case so far."""


def _used() -> float:
    """Processor time of this process, and of its children that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in both)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", LONG)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not effort.SAMPLED:
        return
    left = left_out(items)
    if left:
        effort.left_out.add(("cases", len(items) - len(left), len(items)))
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """The cases that the quick form does not run."""
    long: dict[str, list[pytest.Item]] = {}
    short: dict[str, list[pytest.Item]] = {}
    for item in sorted(items, key=lambda item: zlib.crc32(item.name.encode())):
        cases = long if item.get_closest_marker("long") else short
        cases.setdefault(family(item), []).append(item)
    left: set[pytest.Item] = set()
    for name, items in long.items():
        left.update(items[0 if name in short else quick(items) :])
    for items in short.values():
        left.update(set(items) - covering(items))
    return left


def family(item: pytest.Item) -> str:
    """The test function of a case."""
    return item.nodeid.partition("[")[0]


def covering(cases: list[pytest.Item]) -> set[pytest.Item]:
    """Few of a family's cases, in which each value of each parameter occurs."""
    each = {case: values(case) for case in cases}
    if len(each[cases[0]]) < 2:
        return set(cases)
    missing = set().union(*each.values())
    kept = set()
    while missing:
        best = max(cases, key=lambda case: len(each[case] & missing))
        kept.add(best)
        missing -= each[best]
    return kept


def values(case: pytest.Item) -> set[tuple[int, str]]:
    """Each ``parametrize`` of a case, and what pytest calls its value, or values, there."""
    return set(enumerate(case.callspec._idlist)) if hasattr(case, "callspec") else set()


def quick(cases: list[pytest.Item]) -> int:
    """How many long cases of a family the quick form runs."""
    mark = cases[0].get_closest_marker("long")
    assert mark is not None
    return 0 if mark.args else int(mark.kwargs.get("quick", 1))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Where cases must keep to their budget, have each process import what is large before its first case."""
    several = getattr(session.config.option, "numprocesses", None)
    runs = hasattr(session.config, "workerinput") or not several
    if CHECKS and runs:
        for name in LARGE:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays to the end: the collector of garbage looks through it no more, and comes less often."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(5_000)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Iterator[None]:
    global _counted, _case
    _counted, _case = _used(), 0.0
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    """What a fixture of several cases costs is nobody's."""
    global _counted
    before, nobodys = _used(), _counted
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            _counted = nobodys + _used() - before


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    """Tell processor time as the duration, which is that of a loaded machine too; and refuse too much of it."""
    global _counted, _case
    report = yield
    now = _used()
    report.duration, _counted = now - _counted, now
    _case += report.duration
    too_much = call.when == "teardown" and report.passed and _case > MOST_SECONDS
    if CHECKS and too_much and not item.get_closest_marker("long"):
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} took {_case:.1f} s of processor time, its children's included. A case that takes more than "
            "0.3 s has the mark 'long': make it cheaper, or mark it @pytest.mark.long (tests/README.md)"
        )
    return report
