"""How much is tried, and what the end of a run says was left out."""

from __future__ import annotations

import importlib
import os
import pathlib
import re
import subprocess
import sys

import pytest
from helpers import effort
from helpers.asking import asking

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
    assert effort.examples(200, least=3) == examples
    assert effort.places(40, "deaths", least=3) == places
    assert effort.stride(7, "crash points") == stride
    assert (effort.summary(effort.left_out) == "") == (value >= 1)


def test_no_more_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    set_effort(monkeypatch, 0.1)
    assert effort.examples(5, least=9) == 5
    assert effort.stride(1, "crash points") == 1
    assert effort.left_out == set()


def test_what_was_left_out_is_said() -> None:
    parts = {("kills", 5, 25), ("random examples", 10, 100), ("random examples", 2, 3), ("crash points", 1, 20)}
    assert effort.summary(parts) == (
        "sampled: 1 of 20 crash points, 1 of 5 kills, 1 of 2 to 10 random examples; `make exhaustive` runs all"
    )


@pytest.mark.parametrize("text", ["", "all", "0", "-1", "nan", "inf"])
def test_no_effort(text: str) -> None:
    with pytest.raises(
        ValueError,
        match=re.escape(f"DISKREPLAY_TEST_EFFORT must be a number above 0, such as 0.1, 1 or 20, got {text!r}"),
    ):
        effort.read(text)


ASKS = """
import pytest
from helpers.effort import examples

COUNT = examples(7)

@pytest.fixture
def count():
    return COUNT

class Machine: ...
Machine.settings = COUNT
TestMachine = Machine

def test_by_a_fixture(count): ...
def test_by_a_name(): assert COUNT
def test_it_asks_nothing(path): ...
"""


def test_which_tests_ask(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_which_some_ask.py").write_text(ASKS)
    (tmp_path / "of_which_all_ask.py").write_text(ASKS.replace("@pytest.fixture", "@pytest.fixture(autouse=True)"))
    (tmp_path / "of_which_none_asks.py").write_text(
        ASKS.replace("from helpers.effort import examples", "examples = int")
    )
    found = {
        how: {name for name in asking(importlib.import_module(f"of_which_{how}")) if name.startswith(("test", "Test"))}
        for how in ("some_ask", "all_ask", "none_asks")
    }
    asked = {"TestMachine", "test_by_a_fixture", "test_by_a_name"}
    assert found == {"some_ask": asked, "all_ask": asked | {"test_it_asks_nothing"}, "none_asks": set()}


@pytest.mark.parametrize("processes", ["0", "2"])
def test_the_end_of_a_run(tmp_path: pathlib.Path, processes: str) -> None:
    """What other processes leave out is said, too."""
    pytest.importorskip("xdist", reason="without pytest-xdist there is one process")
    (tmp_path / "test_it.py").write_text(RUN)
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-n", processes, "-p", "no:cacheprovider", str(tmp_path)],
        env={
            **os.environ, "DISKREPLAY_TEST_EFFORT": "0.1", "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # importing those of other packages takes longest
        },
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines().count("20 4 7") == 2
    said = "sampled: 1 of 7 crash points, 1 of 10 deaths, 1 of 10 random examples; `make exhaustive` runs all"
    assert said in done.stdout.splitlines()
