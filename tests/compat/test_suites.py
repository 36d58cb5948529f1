"""How other libraries' own tests are run (``interop/suites``), tried on tests that are made here."""

from __future__ import annotations

import importlib
import pathlib
import runpy
import subprocess
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SUITES = ROOT / "tests" / "interop" / "suites"


@pytest.fixture(scope="module")
def suite() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SUITES))
        return importlib.import_module("suite")


def test_pages_say_what_the_lists_say() -> None:
    for page, text in runpy.run_path(str(ROOT / "docs" / "make_suites.py"))["pages"]().items():
        assert page.read_text() == text, "run: python docs/make_suites.py"


def test_lists_are_whole(suite: Any) -> None:
    assert "sb3" in suite.names()
    for name in suite.names():
        listed = suite.listed(name)
        assert (SUITES / f"swap_{name}.py").exists()
        assert listed.passed
        reasons = [part.reason for part in listed.differs]
        assert len(set(reasons)) == len(reasons), "the count of a reason is that of its tests"
        assert all(part.shows and part.count and part.tests for part in listed.differs)
        if suite.listed(name).source.endswith(".gz"):
            assert f"{listed.package}=={listed.version} --hash=sha256:" in (SUITES / "sources.txt").read_text()


@pytest.mark.parametrize(
    ("pattern", "test", "named"),
    [
        ("a.py::test_x", "a.py::test_x", True),
        ("a.py::test_x", "a.py::test_x[1-b]", True),
        ("a.py::test_x", "a.py::test_xy", False),
        ("a.py::test_x[1-*]", "a.py::test_x[1-b]", True),
        ("a.py::test_x[1-*]", "a.py::test_x[2-b]", False),
        ("a.py::*", "a.py::Test::test_x[1]", True),
        ("a.py::test.x", "a.py::test_x", False),
    ],
)
def test_patterns(suite: Any, pattern: str, test: str, named: bool) -> None:
    assert suite.matches(pattern, test) is named


TESTS = """
import pytest

def test_passes(): pass

def test_differs(): raise ValueError("ours is read-only")

@pytest.mark.parametrize("case", range(9))
def test_cases(case): pass
"""

LIST = """
library = "a library"
package = "pytest"
version = "1"
source = "0"
folder = "."
files = ["test_it.py"]
passed = {passed}
cases = {cases}

[[differs]]
reason = "ours is read-only"
shows = "{shows}"
count = 1
tests = ["test_it.py::{test}"]
"""

VERDICTS = {
    "as listed": ({}, "", 0, "a library 1: 10 of 11 pass"),
    "one case of each test": ({"passed": 2, "cases": 1}, "", 0, "a library 1: 2 of 3 pass"),
    "another number passes": ({"passed": 9}, "", 1, "9 pass in the list, 10 do"),
    "fails for another reason": ({"shows": "no such method"}, "", 1, "It must fail with 'no such method'"),
    "a listed one passes": ({"test": "test_passes"}, "", 1, "It passes, and the list says that it differs"),
    "one fails that is not listed": ({}, "def test_more(): assert 0", 1, "1 failed"),
    "a pattern names no test": ({"test": "test_gone"}, "", 1, "no test is named test_it.py::test_gone"),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("verdict", VERDICTS)
def test_verdicts(verdict: str, workers: int, tmp_path: pathlib.Path) -> None:
    facts, more, code, said = VERDICTS[verdict]
    (tmp_path / "test_it.py").write_text(TESTS + more)
    facts = {"passed": 10, "cases": 0, "shows": "read-only", "test": "test_differs", **facts}
    (tmp_path / "list.toml").write_text(LIST.format(**facts))
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "differences", "--suite=list.toml",
        f"-n{workers}", "test_it.py",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(SUITES)}, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stdout + done.stderr
