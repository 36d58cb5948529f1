"""What the core in C is for: each figure beside what was wanted of it.

Processor time of a call, of the thread that calls and of the process (what moves to another thread is not gone), beside
other libraries' buffers and beside the floor, as `calls.py` measures them: `np.take` of what a batch shows
(observations twice) out of an array of each column, or of all frames, at places drawn before; `np.copyto` of the
observation, or of the batch's frames, which lie side by side; `memset` of the batch's bytes, which on some processors
is several times as fast as to copy them. No row here reads from a disk.
Steps are those of `rows.py`; frames are recorded ones. Processes that learn with priorities are those of `jobs.py`.

For a quick look: ``--steps 100000 --rounds 2``; ``--only`` takes names of rows, such as ``add jobs``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import re
import statistics
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping

import calls
import frames
import harness
import jobs
from calls import CASES, Costs

STEPS = 1_000_000
"""What the larger windows hold; the smaller ones hold a tenth."""
ROUNDS = 7
FIRST = 200_000
"""Rows of which the slowest are looked for."""
JOBS = 10
JOB_STEPS = 3_000
LAST = 1_000
"""Rows that come with a batch where memory is measured, the last ones."""
PEERS = {"SB3": "stable_baselines3", "cpprb": "cpprb"}
FLOORS = "np.take", "np.copyto", "memset"


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the table: cells as shown, and what is judged."""

    call: str
    held: str
    ours: str
    beside: str
    floor: str
    value: float | None  # of ours, or of ours over what stands beside it
    process: float | None  # the same of the process
    wanted: float
    unit: str = ""

    def cells(self) -> tuple[str, ...]:
        if self.value is None:
            judged, verdict = "", "" if not self.beside and self.ours else "not measured"
        else:
            judged = harness.number(self.value, self.unit)
            judged += "" if self.process is None else f" ({self.process:.3g})"
            verdict = "" if self.value <= self.wanted else "**missed**"
        wanted = harness.number(self.wanted, self.unit)
        return self.call, self.held, self.ours, self.beside, self.floor, judged, wanted, verdict


@dataclasses.dataclass(frozen=True)
class Call:
    """A call that is measured by turns; ``wanted`` are ratios of processor time to that of other contenders."""

    label: str
    measure: Callable[..., Costs]
    which: str | int
    held: int
    wanted: dict[str, float]

    def lines(self, costs: Costs) -> list[Line]:
        return [self.line(costs, other, wanted) for other, wanted in self.wanted.items()]

    def line(self, costs: Costs, other: str, wanted: float) -> Line:
        peers = [name for name in (PEERS if other == "best" else [other]) if name in costs]
        peer = min(peers, key=lambda name: costs[name]["thread"], default=None)
        floors = [name for name in FLOORS if name in costs and name != peer]
        value = process = None
        if peer:
            value, process = (costs["ours"][clock] / costs[peer][clock] for clock in ("thread", "process"))
        return Line(
            self.label,
            f"{self.held:,}",
            both(costs, "ours"),
            f"{peer} {both(costs, peer)}" if peer else "",
            ", ".join(f"{floor} {both(costs, floor)}" for floor in floors),
            value,
            process,
            wanted,
        )


def both(costs: Costs, name: str) -> str:
    return f"{costs[name]['thread']:.3g} ({costs[name]['process']:.3g})"


def planned(steps: int) -> dict[str, list[Call]]:
    few = steps // 10
    return {
        "add": [
            *(Call("`add`, 17 floats", calls.adding, "17 floats", held, {"SB3": 0.5}) for held in (few, steps)),
            Call("`add`, 84x84", calls.adding, "84x84", few // 5, {"SB3": 0.6}),
            Call("`add`, 376 floats", calls.adding, "376 floats", few, {"SB3": 1.0}),
        ],
        "lockstep": [
            Call(f"`add`, {name} of 17 floats", calls.adding, name, steps, {"SB3": 1.0})
            for name, case in CASES.items()
            if case.envs > 1
        ],
        "proportional": [
            Call(f"`Proportional`: `sample({batch})` and update", calls.proportional, batch, held, {"cpprb": 0.2})
            for held in (few, steps)
            for batch in (32, 256)
        ],
        "frames": [
            Call(f"4x84x84, cached: `sample({batch})`", calls.frames, batch, few, wanted)
            for batch, wanted in ((32, {"cpprb": 0.4}), (256, {"memset": 1.3}))
        ],
        "vectors": [
            Call("17 floats: `sample(256)`", calls.vectors, 256, held, {"np.take": 1.2, "cpprb": 0.55})
            for held in (few, steps)
        ],
        "torch": [
            Call(f"{name}: `add` and `sample(256)` as torch", calls.torch, name, steps, {"best": wanted})
            for name, wanted in (("17 floats", 0.6), ("64 environments", 0.7), ("1,024 environments", 0.9))
        ],
    }


# Whole processes


def start(steps: int, rounds: int) -> list[Line]:
    """A process that adds as many rows as the first batch needs, and ends after its update."""
    seconds, _ = jobs.by_turns(33, 32, rounds)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    label = "process start to the first prioritized update"
    return [Line(label, "33", *beside(medians, "s"), "", medians["ours"], None, 0.5, "s")]


def ten_jobs(steps: int, rounds: int) -> list[Line]:
    seconds, _ = jobs.by_turns(JOB_STEPS, 32, JOBS)
    sums = {name: sum(each) for name, each in seconds.items()}
    label = f"{JOBS} processes, each {JOB_STEPS:,} steps with a prioritized batch of 32"
    value = sums["ours"] / sums["cpprb"] if "cpprb" in sums else None
    return [Line(label, f"{JOB_STEPS:,}", *beside(sums, "s"), "", value, None, 1.0)]


def memory(steps: int, rounds: int) -> list[Line]:
    _, private = jobs.by_turns(steps, steps - LAST, 1)
    label = "private memory beyond NumPy, Gymnasium and the columns' bytes, `Proportional`"
    return [Line(label, f"{steps:,}", *beside(private, "MB"), "", private["ours"], None, 40, "MB")]


def first(steps: int, rounds: int) -> list[Line]:
    count, lines = min(FIRST, steps), []
    for name in ("17 floats", "84x84"):
        found = [harness.fresh(calls.first_rows, name, count) for _ in range(3)]
        middle = {what: statistics.median(each[what] for each in found) for what in found[0]}
        gap = f"a thread that only counts {harness.number(middle['counting'], 'ms')}"
        for what, wanted, beside in (("p99.9", 5, ""), ("longest", 20, gap)):
            label = f"{what} of the first {count:,} `add`, {name}, with their commits"
            value = middle[what]
            lines.append(Line(label, f"{count:,}", harness.number(value, "ms"), beside, "", value, None, wanted, "ms"))
    return lines


def writer(steps: int, rounds: int) -> list[Line]:
    found = harness.fresh(calls.beside_writer, steps // 10, 3.0 if steps == STEPS else 0.5, 3)
    cells = harness.number(found["beside"], "ms"), f"alone {harness.number(found['alone'], 'ms')}"
    label = "p99 of `sample(256)` while another thread adds 1,000 rows a second and commits each second"
    return [Line(label, f"{steps // 10:,}", *cells, "", found["beside"] / found["alone"], None, 2)]


def compilers() -> dict[str, float]:
    """MB on disk of what the package requires: all of it, and numba and llvmlite."""
    project = tomllib.loads((harness.HERE.parent / "pyproject.toml").read_text())["project"]
    waiting, bytes_of = list(project["dependencies"]), dict[str, int]()
    while waiting:
        requirement = waiting.pop()
        name = re.split(r"[^\w.-]", requirement)[0].lower()
        if name in bytes_of or "extra ==" in requirement:
            continue
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found = importlib.metadata.distribution(name)
            bytes_of[name] = sum(file.size or 0 for file in found.files or ())
            waiting += found.requires or []
    numba = sum(bytes_of.get(name, 0) for name in ("numba", "llvmlite"))
    return {"all": sum(bytes_of.values()) / 1e6, "numba": numba / 1e6}


def installation(steps: int, rounds: int) -> list[Line]:
    found = compilers()
    mine = f"{harness.number(found['numba'], 'MB')} of {harness.number(found['all'], 'MB')}"
    return [Line("numba and llvmlite in what it requires", "", mine, "", "", found["numba"], None, 0, "MB")]


def source(steps: int, rounds: int) -> list[Line]:
    """The lines of the core's source."""
    native, found = harness.HERE.parent / "native", []
    for what, endings, wanted in (("C, with headers", ("c", "h"), 2200), ("Cython", ("pyx", "pxi"), 1200)):
        lines = sum(len(file.read_text().splitlines()) for end in endings for file in native.glob(f"*.{end}"))
        found.append(Line(f"lines of {what}", "", f"{lines:,}", "", "", lines, None, wanted))
    return found


def instructions(steps: int, rounds: int) -> list[Line]:
    """The instructions of kernels' calls that `native/counts/run` compares with what is counted now."""
    committed = (harness.HERE.parent / "native" / "counts" / "committed").read_text().splitlines()
    counts = [line.split() for line in committed if not line.startswith("#")]
    made = ", ".join(f"{name} {int(count):,}" for name, count in counts)
    return [Line("instructions of a call, compared to 5 %", "", made, "", "", None, None, 6)]


WHOLE = {
    "start": start,
    "jobs": ten_jobs,
    "memory": memory,
    "first": first,
    "writer": writer,
    "installation": installation,
    "source": source,
    "instructions": instructions,
}


def beside(found: Mapping[str, float], unit: str) -> tuple[str, str]:
    """The cells of ours and of the peer."""
    peer = next((name for name in PEERS if name in found), None)
    return harness.number(found["ours"], unit), f"{peer} {harness.number(found[peer], unit)}" if peer else ""


def slowest(call: Call, costs: Costs) -> Iterator[tuple[str, ...]]:
    """A row for each contender of which it is known."""
    for name, each in costs.items():
        if "p99" in each and name not in FLOORS:
            yield call.label, f"{call.held:,}", name, f"{each['p99']:.3g}", f"{each['longest']:,.0f}"


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    names = [*planned(STEPS), *WHOLE]
    parser.add_argument("--only", nargs="+", choices=names, help="these rows; then nothing is written to RESULTS.md")
    arguments = parser.parse_args()
    frames.ensure()
    lines: list[Line] = []
    tails: list[tuple[str, ...]] = []
    for name in arguments.only or names:
        begun = time.perf_counter()
        for call in planned(arguments.steps).get(name, ()):
            costs = harness.fresh(call.measure, call.which, call.held, arguments.rounds)
            lines += call.lines(costs)
            tails += slowest(call, costs)
        if name in WHOLE:
            lines += WHOLE[name](arguments.steps, arguments.rounds)
        print(f"{name}: {time.perf_counter() - begun:.0f} s", flush=True)
    header = "call", "rows", "ours", "beside", "floor", "judged", "wanted", ""
    body = [
        "Microseconds of processor time of the thread that calls, and of the process in brackets, medians of "
        f"{arguments.rounds} rounds by turns, unless a unit stands there. What is judged is the ratio or, with a unit, "
        "ours.",
        harness.table(header, [line.cells() for line in lines]),
        *(
            f"{peer} is not installed: nothing was compared with it."
            for peer, package in PEERS.items()
            if not importlib.util.find_spec(package)
        ),
        "Microseconds by the clock, ours with its commits:",
        harness.table(("call", "rows", "buffer", "p99", "longest"), tails),
    ]
    packages = harness.versions("diskreplay", "numpy", "gymnasium", "numcodecs", "stable-baselines3", "torch", "cpprb")
    keep = arguments.steps == STEPS and arguments.rounds == ROUNDS and not arguments.only
    harness.write_section("core", "What the core is for", packages, "\n\n".join(body), keep=keep)


if __name__ == "__main__":
    main()
