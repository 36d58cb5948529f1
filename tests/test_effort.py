"""How much is tried, and what the end of a run says was left out."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest
from helpers import effort

TESTS = pathlib.Path(__file__).parent

RUN = """
import pytest
from helpers.effort import examples, places, stride

EXAMPLES = examples(200, least=3)

@pytest.mark.parametrize("half", range(2))
def test_it(half, record_property):
    record_property("figures", f"{EXAMPLES} {places(40, 'deaths')} {stride(7, 'crash points')}")
"""


@pytest.fixture(autouse=True)
def _nothing_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "left_out", set())


def set_effort(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    monkeypatch.setattr(effort, "EFFORT", value)
    monkeypatch.setattr(effort, "SAMPLED", value < 1)


@pytest.mark.parametrize(
    ("value", "examples", "places", "stride"), [(0.001, 3, 3, 7), (0.1, 20, 4, 7), (1, 200, 40, 1), (20, 4000, 40, 1)]
)
def test_how_much(monkeypatch: pytest.MonkeyPatch, value: float, examples: int, places: int, stride: int) -> None:
    set_effort(monkeypatch, value)
    assert (effort.examples(200, least=3), effort.places(40, "deaths", least=3)) == (examples, places)
    assert effort.stride(7, "crash points") == stride
    assert (effort.summary(effort.left_out) == "") == (value >= 1)


def test_no_more_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    set_effort(monkeypatch, 0.1)
    assert (effort.examples(5, least=9), effort.stride(1, "crash points")) == (5, 1)
    assert effort.left_out == set()


def test_what_was_left_out_is_said() -> None:
    parts = {("kills", 5, 25), ("random examples", 10, 100), ("random examples", 2, 3), ("crash points", 1, 20)}
    assert effort.summary(parts) == (
        "sampled: 1 of 20 crash points, 1 of 5 kills, 1 of 2 to 10 random examples; `make exhaustive` runs all"
    )


@pytest.mark.parametrize("text", ["", "all", "0", "-1", "nan", "inf"])
def test_a_setting_is_a_number_above_0(text: str) -> None:
    said = f"DISKREPLAY_TEST_EFFORT must be a number above 0, such as 0.1, 1 or 20, got {text!r}"
    with pytest.raises(ValueError, match=re.escape(said)):
        effort.read("DISKREPLAY_TEST_EFFORT", "0.1, 1 or 20", text)


TIERS = """
import pytest

def work(seconds):
    end = tiers._used() + seconds
    while tiers._used() < end: pass

from helpers import tiers

@pytest.fixture(scope="module")
def of_several(): work(0.15)

def test_slow(): work(0.15)

@pytest.mark.long
@pytest.mark.parametrize("n", range(7))
def test_slow_and_marked(n): work(0.15 if not n else 0)

@pytest.mark.long(quick=3)
@pytest.mark.parametrize("n", range(7))
def test_many(n): ...

@pytest.mark.long("test_many stands in")
def test_left_out(): ...

@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.long)])
def test_one_of_which_is_long(n): ...

@pytest.fixture(params="xy")
def letter(request): ...

@pytest.mark.parametrize("n", range(4))
@pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 2), (2, 1)])
def test_a_product(n, a, b, letter): ...

def test_fixtures_are_nobodys(of_several): ...
"""
OURS = "CI", "DISKREPLAY_TEST_BUDGET", "DISKREPLAY_TEST_SECONDS"
"""Settings of the run that these tests are part of."""
LIMIT = """
from helpers import tiers
tiers.MOST_SECONDS = 0.1
"""


def run(folder: pathlib.Path, text: str, *arguments: str, more: str = "", **variables: str) -> tuple[int, list[str]]:
    """The exit status and the lines that pytest prints of a module with this conftest.py."""
    (folder / "test_it.py").write_text(text)
    (folder / "conftest.py").write_text((TESTS / "conftest.py").read_text() + more)
    environment = {
        **{name: value for name, value in os.environ.items() if name not in OURS},
        "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # importing those of other packages takes longest
        "TMPDIR": str(folder),
        **variables,
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, str(folder)], env=environment,
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()


@pytest.mark.long
@pytest.mark.parametrize(("effort", "status", "passed"), [("0.1", 1, 11), ("1", 0, 43)])
def test_a_case_without_the_mark_that_takes_long_fails_on_ci(
    tmp_path: pathlib.Path, effort: str, status: int, passed: int
) -> None:
    """In the quick form; it leaves out what is long but for as many as the marks say."""
    found, lines = run(
        tmp_path, TIERS, more=LIMIT, CI="true", DISKREPLAY_TEST_BUDGET="1", DISKREPLAY_TEST_EFFORT=effort
    )
    assert found == status, lines
    assert f"{passed} passed" in lines[-1]
    said = "\n".join(lines)
    assert (
        ("test_slow took 0." in said)
        == ("mark it @pytest.mark.long" in said)
        == ("1 error" in lines[-1])
        == bool(status)
    )


@pytest.mark.long("test_a_case_without_the_mark_that_takes_long_fails_on_ci")
def test_nothing_is_refused_elsewhere(tmp_path: pathlib.Path) -> None:
    found, lines = run(tmp_path, TIERS, "--durations=1", more=LIMIT, DISKREPLAY_TEST_EFFORT="0.1")
    assert (found, "11 passed" in lines[-1]) == (0, True), lines


@pytest.mark.long
@pytest.mark.parametrize("processes", ["0", "2"])
def test_the_end_of_a_run(tmp_path: pathlib.Path, processes: str) -> None:
    """What other processes leave out is said, too."""
    pytest.importorskip("xdist", reason="without pytest-xdist there is one process")
    status, lines = run(tmp_path, RUN, "-p", "xdist", "-n", processes, more=LIMIT, DISKREPLAY_TEST_EFFORT="0.1")
    assert status == 0, lines
    assert lines.count("20 4 7") == 2
    said = "sampled: 1 of 7 crash points, 1 of 10 deaths, 1 of 10 random examples; `make exhaustive` runs all"
    assert said in lines


LATE = """
import time

import pytest
from helpers import deadline

deadline._end = time.monotonic() + 1e6

def test_that_the_quick_form_runs_too():
    raise AssertionError("it comes first")

@pytest.mark.long("test_that_the_quick_form_runs_too")
@pytest.mark.parametrize("n", range(3))
def test_that_it_leaves_out(n):
    deadline._end = -1.0
"""


@pytest.mark.long
@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_run_begins_no_case_when_its_time_is_over(tmp_path: pathlib.Path, processes: str) -> None:
    """Each process runs one case, one of those that the quick form leaves out, and says what was left."""
    pytest.importorskip("xdist", reason="without pytest-xdist there is one process")
    asked = {"DISKREPLAY_TEST_SECONDS": "1000", "DISKREPLAY_TEST_EFFORT": "1"}
    status, lines = run(tmp_path, LATE, "-p", "xdist", "-n", processes, more=LIMIT, **asked)
    assert status == 0, lines
    ran = max(1, int(processes))
    assert f"{ran} passed" in lines[-1]
    said = f"{4 - ran} cases were left out: the 1000 seconds of DISKREPLAY_TEST_SECONDS were over"
    assert f"{said}; `make exhaustive` runs all" in lines
