"""How long the first start takes: import, open and a first batch in a fresh process, with nothing compiled and again.

An empty folder for numba's machine code stands for a new installation; the second process finds in it what the first
one left. Bytecode is there, as pip leaves it: it is written whatever the environment says. Stores are small: 2,000
steps of 84x84 uint8 frames, and of 4 floats with priorities, so that the time is that of starting. Processor time,
medians over new folders; compared with a process that imports NumPy and Gymnasium, which every program of this field
does.

What goes on meanwhile is in the second table: wall time as the program sees it, of batches and of rows that are added
while a thread loads the compiled code, beside the same program where that code cannot be loaded.
"""

from __future__ import annotations

import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys

import harness
import numpy as np
from gymnasium import spaces

import diskreplay as dr

STEPS = 2_000
ROUNDS = 7

BARE = "import numpy, gymnasium"
IMPORT = "`import diskreplay`, NumPy and Gymnasium"
ENGINE = "that, and `diskreplay.ReplayBuffer`"
HELP = "`diskreplay --help`"
LAST = "for comparison: `import numpy, gymnasium`"
PROGRAMS = {
    IMPORT: f"{BARE}, diskreplay",
    ENGINE: f"{BARE}, diskreplay; diskreplay.ReplayBuffer",
    HELP: "import sys; sys.argv = ['diskreplay', '--help']; from diskreplay_cli.start import main; main()",
    "frames: import, open, `sample(32)`": (
        "import diskreplay as dr; dr.ReplayBuffer.open({frames!r}, mode='r', seed=0).sample(32)"
    ),
    "4 floats, `Proportional`: import, open, `sample(32)`, `update_priorities`": (
        "import diskreplay as dr; rb = dr.ReplayBuffer.open({vectors!r}, seed=0); batch = rb.sample(32); "
        "rb.update_priorities(batch.index, [1.0] * 32)"
    ),
}

TIMED = """
import json, statistics, sys, time
began = time.perf_counter()
if {python}:
    sys.modules["numba"] = None
import numpy as np
from gymnasium import spaces
import diskreplay as dr
{opening}
from diskreplay.engine import compiled_row
from diskreplay.reading import compiled
late, times, after = {late}, [], None
while len(times) < {calls} and (after is None or len(times) < after + {more}):
    start = time.perf_counter()
    {call}
    times.append(time.perf_counter() - start)
    if len(times) == 1:
        opened = time.perf_counter() - began
    if after is None and late.code is not None:
        after, at = len(times), time.perf_counter() - began
last = times[-{more}:]
print(json.dumps([opened, times[0], times[9], max(times[10:]), statistics.median(last), after and at, after]))
"""
MEANWHILE = {
    "frames, `sample(32)`": {
        "opening": "rb = dr.ReplayBuffer.open({frames!r}, mode='r', seed=0)",
        "late": "compiled.KERNEL",
        "call": "rb.sample(32)",
        "calls": "20_000",
        "more": "500",
    },
    "4 floats, `add`": {
        "opening": (
            "rb = dr.ReplayBuffer.create({vectors!r} + f'-{{time.time_ns()}}', spaces.Box(-1, 1, (4,), np.float32), "
            "spaces.Discrete(2), capacity=100_000); values = np.random.default_rng(0).random((1001, 4), np.float32)"
        ),
        "late": "compiled_row.KERNEL",
        "call": "n = len(times) % 1000; rb.add(values[n], 0, 1.0, values[n + 1], n == 999, False)",
        "calls": "1_000_000",
        "more": "20_000",
    },
}
"""Programs that go on until compiled code is there and some calls more, or for so many calls."""


def fill(folder: pathlib.Path, steps: int) -> dict[str, str]:
    """The two stores' paths."""
    rng = np.random.default_rng(0)
    paths = {kind: str(folder / kind) for kind in ("frames", "vectors")}
    observations = {"frames": spaces.Box(0, 255, (84, 84), np.uint8), "vectors": spaces.Box(-1, 1, (4,), np.float32)}
    samplers = {"frames": dr.Uniform(), "vectors": dr.Proportional()}
    for kind, path in paths.items():
        space = observations[kind]
        stack = 4 if kind == "frames" else 1
        with dr.ReplayBuffer.create(
            path, space, spaces.Discrete(2), capacity=steps, sampler=samplers[kind], frame_stack=stack
        ) as buffer:
            obs = space.sample()
            for step in range(steps):
                after = rng.integers(0, 9, space.shape, np.uint8) if kind == "frames" else space.sample()
                ended = step % 200 == 199
                buffer.add(obs, 0, 1.0, after, ended, False)
                obs = space.sample() if ended else after
    return paths


def printed(program: str, kept: pathlib.Path) -> bytes:
    """What a process prints that runs the program; numba's machine code is kept in that folder."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(kept), "PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.run([sys.executable, "-c", program], check=True, env=environment, stdout=subprocess.PIPE).stdout


def seconds(program: str, kept: pathlib.Path) -> float:
    """Processor time of a process that runs the program and ends."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed(program, kept)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def meanwhile(paths: dict[str, str], scratch: pathlib.Path, rounds: int) -> str:
    """A table of what calls take while compiled code is loaded."""
    found: dict[tuple[str, str], list[list[float]]] = {}
    for turn in range(rounds):
        for number, (label, facts) in enumerate(MEANWHILE.items()):
            facts = {**facts, "opening": facts["opening"].format(**paths)}
            for kind in ("nothing kept", "kept", "never compiled"):
                calls = facts["calls"] if kind != "never compiled" else str(5 * int(facts["more"].replace("_", "")))
                program = TIMED.format(**{**facts, "calls": calls}, python=kind == "never compiled")
                result = json.loads(printed(program, scratch / f"while-{number}-{turn}"))
                found.setdefault((label, kind), []).append(result)
    rows = []
    for (label, kind), results in found.items():
        medians = [statistics.median(column) if None not in column else None for column in zip(*results, strict=True)]
        opened, first, tenth, longest, last, at, after = medians
        rows.append(
            (
                label, kind, f"{opened:.2f} s", f"{1e3 * first:.2f} ms", f"{1e6 * tenth:.0f} us",
                f"{1e3 * longest:.1f} ms", "-" if at is None else f"{at:.1f} s, {after:,.0f} calls",
                f"{1e6 * last:.0f} us",
            )
        )  # fmt: skip
    header = (
        "program", "compiled code", "until the first is done", "first call", "tenth", "longest later one",
        "until compiled", "median of the last",
    )  # fmt: skip
    return harness.table(header, rows)


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    arguments = parser.parse_args()
    programs = {**PROGRAMS, LAST: BARE}
    found: dict[str, list[list[float]]] = {label: [[], []] for label in programs}
    with harness.scratch() as scratch:
        paths = fill(scratch, arguments.steps)
        for turn in range(arguments.rounds):
            for number, (label, program) in enumerate(programs.items()):
                for times in found[label]:
                    times.append(seconds(program.format(**paths), scratch / f"kept-{number}-{turn}"))
        loaded = meanwhile(paths, scratch, arguments.rounds)
    medians = {label: [statistics.median(each) for each in times] for label, times in found.items()}
    rows = [(label, *(f"{each:.2f} s" for each in times)) for label, times in medians.items()]
    bare = medians[LAST][1]
    targets = [
        harness.Figure(f"{label}: beyond the last row", medians[label][1] - bare, 0.8, "s", bare)
        for label in (IMPORT, ENGINE)
    ]
    targets.append(harness.Figure(HELP, medians[HELP][1], 1, "s", bare))
    body = f"Processor time of whole processes, {arguments.rounds} rounds.\n\n" + harness.table(
        ("program", "first", "second"), rows
    )
    body += "\n\n" + harness.figures(targets)
    body += "\n\nCalls while compiled code is loaded, wall time, medians of the rounds:\n\n" + loaded
    keep = arguments.steps == STEPS and arguments.rounds == ROUNDS
    harness.write_section(
        "starting", "The first start", harness.versions("diskreplay", "numpy", "numba"), body, keep=keep
    )


if __name__ == "__main__":
    main()
