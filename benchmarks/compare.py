"""Two runs of the benchmarks side by side: ``python benchmarks/compare.py A B`` prints B over A, figure by figure.

A and B are files such as ``benchmarks/results.json``, or commits, whose file of that name is read. A ratio says
something only between runs on one machine: where the machine or a version differs, the first line of a section says so.
``--beyond 1.1`` leaves out ratios between 1/1.1 and 1.1; ``--sections atari,million`` all other sections.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import harness

NUMBER = re.compile(r"(-?[\d,]*\.?\d+)( [^\d(]+)?( \(.*\))?")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", metavar="A")
    parser.add_argument("b", metavar="B")
    parser.add_argument("--beyond", type=float, default=1.0)
    parser.add_argument("--sections", help="comma-separated (default: those that both runs have)")
    arguments = parser.parse_args()
    a, b = record(arguments.a), record(arguments.b)
    wanted = arguments.sections.split(",") if arguments.sections else [name for name in a if name in b]
    if lacking := [name for name in wanted if name not in a or name not in b]:
        parser.error(f"not in both runs: {', '.join(lacking)}")
    for name in wanted:
        rows = [row for row in compared(a[name], b[name]) if not within(float(row[-1]), arguments.beyond)]
        if rows:
            print("\n\n".join([f"## {b[name]['title']}", differing(a[name], b[name])]))
            print("\n" + harness.table(("figure", "column", "A", "B", "B over A"), rows) + "\n")


def record(source: str) -> dict[str, Any]:
    """What ``results.json`` holds: of a file, or of a commit."""
    if pathlib.Path(source).exists():
        return json.loads(pathlib.Path(source).read_text())
    shown = subprocess.run(
        ["git", "-C", harness.HERE, "show", f"{source}:./{harness.RECORD.name}"], capture_output=True, text=True
    )
    if shown.returncode:
        raise SystemExit(f"{source} is no file, and no commit that has {harness.RECORD.name}: {shown.stderr.strip()}")
    return json.loads(shown.stdout)


def differing(a: dict[str, Any], b: dict[str, Any]) -> str:
    """When and of which commits both were measured, and what was not the same."""
    text = f"A: {a['date']}, commit {a['commit'] or 'unknown'}; B: {b['date']}, commit {b['commit'] or 'unknown'}."
    if a["machine"] != b["machine"]:
        text += f" Other machines: {a['machine']}; {b['machine']}."
    if others := sorted(set(a["versions"]) ^ set(b["versions"])):
        text += f" Other versions: {', '.join(others)}."
    return text


def compared(a: dict[str, Any], b: dict[str, Any]) -> Iterator[tuple[str, str, str, str, str]]:
    """Label, column, both values and their ratio, of each number that both sections hold."""
    before = dict(numbers(a))
    for place, text in numbers(b):
        if place in before and (old := value(before[place])):
            yield place[0], place[1], before[place], text, f"{value(text) / old:.2f}"


def numbers(section: dict[str, Any]) -> Iterator[tuple[tuple[str, str, int], str]]:
    """Each number of a section's tables, by its row's label, its column, and how often both came before."""
    seen: dict[tuple[str, str], int] = {}
    for part in section["body"]:
        if isinstance(part, str):
            continue
        for row in part["rows"]:
            texts = next((at for at, cell in enumerate(row) if at and NUMBER.fullmatch(cell)), 1)
            label = ", ".join(row[:texts])
            for column, cell in zip(part["header"][texts:], row[texts:], strict=False):
                if NUMBER.fullmatch(cell):
                    nth = seen[label, column] = seen.get((label, column), 0) + 1
                    yield (label, column, nth), cell


def value(text: str) -> float:
    found = NUMBER.fullmatch(text)
    assert found
    return float(found[1].replace(",", ""))


def within(ratio: float, beyond: float) -> bool:
    return beyond > 1 and 1 / beyond < ratio < beyond


if __name__ == "__main__":
    main()
