"""What every benchmark here shares.

1. Timing: `seconds_of` calls a function over and over and returns every call's time; tables show medians.
2. Facts: versions, the machine, resident memory, bytes a folder takes on disk.
3. `fresh` calls a function of a benchmark in an interpreter of its own, on request inside a memory cgroup.
4. `write_section` keeps what a script measured in ``results.json``, and makes ``RESULTS.md`` from it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "RESULTS.md"
RECORD = HERE / "results.json"
SECTIONS = (
    "core", "adapters", "atari", "million", "memory_limit", "chunking", "priorities", "sb3", "formats", "commands",
    "checksums", "kernel", "cached", "sequences", "spent", "commits", "loading", "device", "starting", "report",
    "mixtures", "selections", "rollouts", "later", "ragged", "robots", "recording", "remote", "streams", "growth",
    "salvage", "ray_data", "ray_collectors",
)  # fmt: skip
PREFACE = """# Measured

Every section is written by the script it names; run the command to measure again. Times are medians, `ratio` is ours
over the peer's (smaller is better) unless a row says otherwise. A missed target is reported as measured.
"""


# Timing


def seconds_of(function: Callable[[], Any], calls: int, warmup: int = 0) -> list[float]:
    """Seconds of each of ``calls`` calls, after ``warmup`` that are not counted."""
    for _ in range(warmup):
        function()
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return seconds


def median_ms(seconds: Sequence[float]) -> float:
    return 1e3 * statistics.median(seconds)


@contextlib.contextmanager
def time_spent_in(owner: Any, name: str) -> Iterator[list[float]]:
    """Adds up the seconds spent in ``owner.name`` inside the block; the yielded list grows by one entry a call."""
    original, seconds = getattr(owner, name), []

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - start)

    setattr(owner, name, timed)
    try:
        yield seconds
    finally:
        setattr(owner, name, original)


# Facts


def machine() -> str:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores, {gigabytes:.0f} GB, Linux {platform.release().split('-')[0]}"
    )


def versions(*names: str) -> list[str]:
    """``numpy 2.4.6``, ...; what is not installed is left out."""
    found = []
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return found


def resident_bytes(field: str = "VmRSS") -> int:
    """A line of /proc/self/status, in bytes: ``VmRSS`` is resident now, ``VmHWM`` the most it has been."""
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith(field + ":")))


def available_bytes() -> int:
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))


def stored_bytes(folder: str | os.PathLike[str]) -> int:
    """Bytes that ``folder`` takes on disk, as ``du`` counts them: whole blocks, folders included, holes not."""
    paths = [pathlib.Path(folder), *pathlib.Path(folder).rglob("*")]
    return sum(512 * path.lstat().st_blocks for path in paths)


# Processes and files


@contextlib.contextmanager
def scratch(where: str | os.PathLike[str] | None = None) -> Iterator[pathlib.Path]:
    """A folder that is gone afterwards: on the same disk as the recorded frames unless ``where`` says otherwise."""
    with tempfile.TemporaryDirectory(prefix=".scratch-", dir=where or HERE, ignore_cleanup_errors=True) as folder:
        yield pathlib.Path(folder)


def fresh(function: Callable[..., Any], *args: Any, cgroup: pathlib.Path | None = None) -> Any:
    """Calls a function of a benchmark module in a fresh interpreter; arguments and result travel as JSON.

    With ``cgroup`` the process is in that control group before its interpreter starts, so that all it ever
    opens or maps is charged there.
    """
    module = pathlib.Path(function.__code__.co_filename).stem
    code = (
        f"import json, os, sys; out = os.fdopen(os.dup(1), 'w'); os.dup2(2, 1); sys.path.insert(0, {str(HERE)!r}); "
        f"import {module}; json.dump({module}.{function.__name__}(*json.loads(sys.argv[1])), out)"
    )
    command = [sys.executable, "-P", "-c", code, json.dumps(args)]
    if cgroup is not None:
        join = f'echo $$ > {shlex.quote(str(cgroup / "cgroup.procs"))} && exec "$@"'
        command = ["/bin/sh", "-c", join, "sh", *command]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if finished.returncode:
        raise RuntimeError(f"{module}.{function.__name__} ended with status {finished.returncode} in its own process")
    return json.loads(finished.stdout)


# Results


def parser(description: str | None, steps: int) -> argparse.ArgumentParser:
    """The options all benchmarks share."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--steps",
        type=int,
        default=steps,
        help=f"default {steps:,}; with any other number nothing is written to RESULTS.md",
    )
    return made


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]
    return "\n".join(lines)


def met(yes: bool | None) -> str:
    return "not measured" if yes is None else "met" if yes else "**not met**"


@dataclasses.dataclass(frozen=True)
class Figure:
    """A row of the table of targets: ``value`` (over ``peer``, if any) must be at most, or at least, ``target``."""

    label: str
    value: float
    target: float
    unit: str = ""
    peer: float | None = None
    at_least: bool = False
    aim: bool = False  # something to aim at: a miss is no failure

    def cells(self) -> tuple[str, ...]:
        judged = self.value if self.peer is None else self.value / self.peer
        reached = judged >= self.target if self.at_least else judged <= self.target
        peer, ratio = ("", "") if self.peer is None else (number(self.peer, self.unit), f"{judged:.2f}")
        target = f"{'aim: ' if self.aim else ''}at {'least' if self.at_least else 'most'} "
        target += number(self.target, self.unit) if self.peer is None else f"{self.target:g}x"
        return (
            self.label,
            number(self.value, self.unit),
            peer,
            ratio,
            target,
            ("reached" if reached else "not reached") if self.aim else met(reached),
        )


def number(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return f"{text} {unit}".strip()


def figures(rows: Sequence[Figure]) -> str:
    return table(("figure", "ours", "peer", "ratio", "target", ""), [row.cells() for row in rows])


def command() -> str:
    """The command that is running, as a reader would type it: absolute paths are shown as ``PATH``."""
    words = ["PATH" if pathlib.Path(word).is_absolute() else word for word in sys.argv[1:]]
    return shlex.join(["python", f"benchmarks/{pathlib.Path(sys.argv[0]).name}", *words])


def commit() -> str | None:
    """The commit that is checked out, with a ``+`` where files differ from it; None outside of a clone."""
    found = subprocess.run(
        ["git", "-C", HERE, "describe", "--always", "--dirty=+", "--exclude=*"], capture_output=True, text=True
    )
    return found.stdout.strip() if found.returncode == 0 else None


def write_section(name: str, title: str, packages: Sequence[str], body: str, *, keep: bool = True) -> None:
    """Prints a section; with ``keep`` it goes into ``results.json``, of which RESULTS.md is made anew.

    ``packages`` are from `versions`; ``body`` is text and tables, with an empty line between them.
    """
    section = {
        "title": title,
        "date": str(datetime.date.today()),
        "command": command(),
        "commit": commit(),
        "machine": machine(),
        "versions": [f"CPython {platform.python_version()}", *dict.fromkeys(packages)],
        "body": [block(text) for text in body.strip().split("\n\n")],
    }
    print(f"\n{rendered(section)}\n")
    if not keep:
        print("(another number of steps than the default: RESULTS.md is left as it is)")
        return
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    record = {key: {**record, name: section}[key] for key in SECTIONS if key == name or key in record}
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    RESULTS.write_text(page(record))


def block(text: str) -> str | dict[str, Any]:
    """A paragraph as it is; a table as its ``header`` and ``rows``."""
    if not text.startswith("| "):
        return text
    header, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines())
    return {"header": header, "rows": rows}


def rendered(section: dict[str, Any]) -> str:
    """A section of ``results.json`` as Markdown."""
    at = f" at `{section['commit']}`" if section["commit"] else ""
    head = f"{section['date']}, `{section['command']}`{at}. {section['machine']}. {', '.join(section['versions'])}."
    body = [part if isinstance(part, str) else table(part["header"], part["rows"]) for part in section["body"]]
    return "\n\n".join([f"## {section['title']}", head, *body])


def page(record: dict[str, dict[str, Any]]) -> str:
    """RESULTS.md of what ``results.json`` holds."""
    return PREFACE + "".join(f"\n{rendered(section)}\n" for section in record.values())
