"""A window larger than memory: 2**20 steps sampled under a limit of 600 MB, beside ``np.memmap`` of the raw frames.

The limit is a memory control group (cgroup v1 or v2), a new one for every run. The files' pages are dropped from the
page cache first and the process joins the group before its interpreter starts, so that every page it touches is charged
to it. Each contender then samples until its caches are as warm as the limit lets them be, and is timed: by turns, a
fresh process each. Without root, or where the memory controller is not to be had, the script says why and measures
nothing.

``np.memmap`` reads with the kernel's read-ahead, as it does by itself, and once more with ``MADV_RANDOM``, the best one
can tell it.

For a quick look: ``--steps 8192 --calls 5 --turns 1``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import contenders
import frames
import harness
import million
import numpy as np
import workload
from harness import Figure

LIMIT_BYTES = 600_000_000
BATCHES = (32, 256)
CGROUPS = pathlib.Path("/sys/fs/cgroup")


class Unavailable(Exception):
    """There is no memory control group to be had here; the message says why."""


# The limit


def own_group(name: str) -> str | None:
    """This process's group below a hierarchy's root; the empty name is that of cgroup v2."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if name in controllers.split(","):
            return path.lstrip("/")
    return None


@dataclasses.dataclass(frozen=True)
class Controller:
    """Where a memory control group can be made, and the names of its files."""

    parent: pathlib.Path
    limit: str  # most bytes
    swap: tuple[str, str | None]  # the file that keeps it out of swap, and what to write (None: the limit once more)
    peak: str  # most bytes so far


def controller() -> Controller:
    if os.geteuid() != 0:
        raise Unavailable("not root, and only root may make a memory control group here")
    if (CGROUPS / "memory" / "memory.limit_in_bytes").exists():
        names = "memory.limit_in_bytes", ("memory.memsw.limit_in_bytes", None), "memory.max_usage_in_bytes"
        found = Controller(CGROUPS / "memory" / (own_group("memory") or ""), *names)
    elif (CGROUPS / "cgroup.controllers").exists():
        found = Controller(parent_v2(), "memory.max", ("memory.swap.max", "0"), "memory.peak")
    else:
        raise Unavailable("neither a cgroup v1 memory hierarchy nor cgroup v2 is mounted at the usual place")
    if not os.access(found.parent, os.W_OK):
        raise Unavailable("the control group hierarchy is mounted read-only")
    return found


def parent_v2() -> pathlib.Path:
    """This process's group or, since a group with processes has no children that account memory, the one above it."""
    own = CGROUPS / (own_group("") or "")
    for parent in (own, own.parent) if own != CGROUPS else (own,):
        if "memory" in (parent / "cgroup.subtree_control").read_text().split():
            return parent
    raise Unavailable("cgroup v2 is there, but hands its memory controller down to no group beside this process's")


@contextlib.contextmanager
def limited(limit_bytes: int) -> Iterator[Callable[[], pathlib.Path]]:
    """Makes groups with that limit, a new one a call; all are removed in the end."""
    memory = controller()
    made: list[pathlib.Path] = []

    def group() -> pathlib.Path:
        path = memory.parent / f"diskreplay-bench-{os.getpid()}-{len(made)}"
        try:
            path.mkdir()
        except OSError as reason:
            raise Unavailable(f"a control group cannot be made: {reason.strerror}") from reason
        made.append(path)
        (path / memory.limit).write_text(str(limit_bytes))
        swap, value = memory.swap
        if (path / swap).exists():
            (path / swap).write_text(value or str(limit_bytes))
        return path

    try:
        yield group
    finally:
        for path in made:
            remove(path)


def remove(group: pathlib.Path) -> None:
    """The kernel may need a moment after the last process has gone."""
    for _ in range(50):
        try:
            return group.rmdir()
        except OSError:
            time.sleep(0.1)
    group.rmdir()


def drop_pages(*folders: str | os.PathLike[str]) -> None:
    """Takes all files of the folders out of the page cache."""
    os.sync()
    for path in (path for folder in folders for path in pathlib.Path(folder).rglob("*") if path.is_file()):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


# The contenders: each is called in a fresh process


def ours(path: str, calls: int) -> dict[str, Any]:
    buffer = contenders.open_store(path)
    for _ in range(len(buffer) // 256):
        buffer.sample(256)
    return timed(buffer.sample, calls)


def raw(steps: int, random: bool, calls: int, warm_seconds: float) -> dict[str, Any]:
    """Windows of five frames out of memory maps of the raw frames: ``obs`` and ``next_obs`` are views of them."""
    maps = [frames.load(name).frame[: steps // len(frames.GAMES)] for name in frames.GAMES]
    for frame in maps if random else ():
        frame._mmap.madvise(mmap.MADV_RANDOM)
    rng = np.random.default_rng(0)

    def sample(n: int) -> np.ndarray:
        game = rng.integers(len(maps), size=n)
        rows = rng.integers(len(maps[0]) - workload.STACK, size=n)[:, None] + np.arange(workload.STACK + 1)
        out = np.empty((n, workload.STACK + 1, 84, 84), np.uint8)
        for number, frame in enumerate(maps):
            out[game == number] = frame[rows[game == number]]
        return out

    until = time.perf_counter() + warm_seconds
    while time.perf_counter() < until:
        sample(32)
    return timed(sample, calls)


def timed(sample: Callable[[int], Any], calls: int) -> dict[str, Any]:
    ms = {str(n): harness.median_ms(harness.seconds_of(lambda n=n: sample(n), calls, warmup=3)) for n in BATCHES}
    return {"ms": ms, "resident": harness.resident_bytes()}


# The report


def measure(path: str, steps: int, calls: int, turns: int, limit_bytes: int) -> dict[str, list[dict[str, Any]]]:
    """What every contender measured, a list entry a turn; ``peak`` is the most its group was charged with."""
    warm_seconds = 20 * min(1.0, steps / million.STEPS)
    runs = {
        "ours, no limit": (False, ours, path, calls),
        "ours": (True, ours, path, calls),
        "`np.memmap`": (True, raw, steps, False, max(3, calls // 10), warm_seconds),
        "`np.memmap`, `MADV_RANDOM`": (True, raw, steps, True, max(3, calls // 10), warm_seconds),
    }
    found: dict[str, list[dict[str, Any]]] = {label: [] for label in runs}
    peak = controller().peak
    with limited(limit_bytes) as group:
        for _ in range(turns):
            for label, (under_limit, function, *args) in runs.items():
                drop_pages(path, frames.FOLDER)
                cgroup = group() if under_limit else None
                result = harness.fresh(function, *args, cgroup=cgroup)
                if cgroup is not None and (cgroup / peak).exists():
                    result["peak"] = int((cgroup / peak).read_text())
                found[label].append(result)
                print(f"{label}: {result}", flush=True)
    return found


def report(found: dict[str, list[dict[str, Any]]], limit_bytes: int) -> str:
    def median(label: str, batch: int) -> float:
        return statistics.median(run["ms"][str(batch)] for run in found[label])

    def megabytes(label: str, key: str) -> str:
        return f"{max(run[key] for run in found[label]) / 1e6:,.0f}" if all(key in run for run in found[label]) else "-"

    rows = [
        (
            label,
            *(f"{median(label, batch):.2f}" for batch in BATCHES),
            megabytes(label, "resident"),
            megabytes(label, "peak"),
        )
        for label in found
    ]
    figures = []
    for batch in BATCHES:
        figures.append(
            Figure(
                f"`sample({batch})` beside itself without a limit",
                median("ours", batch),
                2,
                "ms",
                median("ours, no limit", batch),
            )
        )
        for label in ("`np.memmap`", "`np.memmap`, `MADV_RANDOM`"):
            aim = label != "`np.memmap`"
            figures.append(
                Figure(
                    f"`sample({batch})` beside {label}",
                    median("ours", batch),
                    1 / 50,
                    "ms",
                    median(label, batch),
                    aim=aim,
                )
            )
    return (
        f"At most {limit_bytes / 1e6:,.0f} MB for the process, the page cache it fills included.\n\n"
        + harness.table(("under the limit", "32, ms", "256, ms", "resident MB", "charged at most, MB"), rows)
        + "\n\n"
        + harness.figures(figures)
    )


def main() -> None:
    parser = harness.parser(__doc__, million.STEPS)
    parser.add_argument(
        "--store", help="a store that `million.py --path` left, with as many steps; recorded anew by default"
    )
    parser.add_argument("--limit-mb", type=int, default=LIMIT_BYTES // 1_000_000)
    parser.add_argument(
        "--calls", type=int, default=200, help="timed calls of ours a turn; np.memmap gets a tenth (default 200)"
    )
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    keep = arguments.steps == million.STEPS
    packages = harness.versions("diskreplay", "numpy", "numcodecs")
    title = f"{arguments.steps:,} steps under a memory limit"
    try:
        controller()
        frames.ensure(steps=arguments.steps // len(frames.GAMES))
        with harness.scratch() as scratch:
            path = arguments.store or str(scratch / "limit.replay")
            if arguments.store is None:
                harness.fresh(million.record, path, arguments.steps)
            limit_bytes = 1_000_000 * arguments.limit_mb
            found = measure(path, arguments.steps, arguments.calls, arguments.turns, limit_bytes)
        harness.write_section("memory_limit", title, packages, report(found, limit_bytes), keep=keep)
    except Unavailable as reason:
        harness.write_section("memory_limit", title, packages, f"Not measured: {reason}.", keep=keep)


if __name__ == "__main__":
    main()
