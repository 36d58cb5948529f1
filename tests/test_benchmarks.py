"""The page of results is what the scripts measured, and two runs can be compared."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import harness

    yield harness
    del sys.modules["harness"]


def test_the_page_is_made_of_the_record(harness):
    assert harness.RESULTS.read_text() == harness.page(json.loads(harness.RECORD.read_text()))


def test_a_run_replaces_its_own_section_alone(harness, tmp_path, monkeypatch):
    before = json.loads(harness.RECORD.read_text())
    monkeypatch.setattr(harness, "RECORD", tmp_path / "results.json")
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "RESULTS.md")
    harness.RECORD.write_text(json.dumps(before))
    measured = harness.table(("buffer", "ms"), [("ours", "0.5"), ("theirs", "")])
    harness.write_section("atari", "Atari", ["numpy 2"], f"What was measured.\n\n{measured}")
    after = json.loads(harness.RECORD.read_text())
    section = after.pop("atari")
    assert section["body"] == [
        "What was measured.",
        {"header": ["buffer", "ms"], "rows": [["ours", "0.5"], ["theirs", ""]]},
    ]
    assert (section["machine"], section["versions"][1:]) == (harness.machine(), ["numpy 2"])
    del before["atari"]
    assert after == before
    assert measured in harness.RESULTS.read_text()


def run_compare(*arguments):
    command = [sys.executable, BENCHMARKS / "compare.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def section(rows, **facts):
    body = ["Text with 3 numbers.", {"header": ["chunks", "batch", "ours", "met"], "rows": rows}]
    return {
        "title": "T",
        "date": "2026-01-02",
        "commit": "abc",
        "machine": "M",
        "versions": ["numpy 2"],
        "body": body,
    } | facts


def test_two_runs_are_compared_figure_by_figure(tmp_path):
    a = section([["8 rows", "`sample(32)`", "1,000 us", "met"], ["8 rows", "`sample(256)`", "2.00 ms (0.5)", "met"]])
    b = section(
        [["8 rows", "`sample(256)`", "3.00 ms (0.7)", ""], ["8 rows", "`sample(32)`", "1,010 us", ""]],
        versions=["numpy 3"],
    )
    for name, found in (("a", a), ("b", b)):
        (tmp_path / name).write_text(json.dumps({"kernel": found}))
    shown = run_compare(tmp_path / "a", tmp_path / "b")
    assert "| 8 rows, `sample(32)` | ours | 1,000 us | 1,010 us | 1.01 |" in shown.stdout, shown.stderr
    assert "| 8 rows, `sample(256)` | ours | 2.00 ms (0.5) | 3.00 ms (0.7) | 1.50 |" in shown.stdout
    assert "Other versions: numpy 2, numpy 3." in shown.stdout
    assert "Other machines" not in shown.stdout
    beyond = run_compare(tmp_path / "a", tmp_path / "b", "--beyond", "1.1").stdout
    assert "1.50" in beyond
    assert "1.01" not in beyond
    refused = run_compare(tmp_path / "a", tmp_path / "nowhere")
    assert refused.returncode
    assert "is no file, and no commit" in refused.stderr
    refused = run_compare(tmp_path / "a", tmp_path / "b", "--sections", "atari")
    assert refused.returncode
    assert "not in both runs: atari" in refused.stderr
