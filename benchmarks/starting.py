"""How long a start takes: import, open and a first batch in a fresh process.

Bytecode is there, as pip leaves it: it is written whatever the environment says. Stores are small: 2,000 steps of 84x84
uint8 frames, and of 4 floats with priorities, so that the time is that of starting. Processor time, medians of the
rounds; compared with a process that imports NumPy and Gymnasium, which every program of this field does.
"""

from __future__ import annotations

import pathlib
import statistics

import harness
import jobs
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
FIRST = "4 floats, `Proportional`: import, open, `sample(32)`, `update_priorities`"
PROGRAMS = {
    IMPORT: f"{BARE}, diskreplay",
    ENGINE: f"{BARE}, diskreplay; diskreplay.ReplayBuffer",
    HELP: "import sys; sys.argv = ['diskreplay', '--help']; from diskreplay_cli.start import main; main()",
    "frames: import, open, `sample(32)`": (
        "import diskreplay as dr; dr.ReplayBuffer.open({frames!r}, mode='r', seed=0).sample(32)"
    ),
    FIRST: (
        "import diskreplay as dr; rb = dr.ReplayBuffer.open({vectors!r}, seed=0); batch = rb.sample(32); "
        "rb.update_priorities(batch.index, [1.0] * 32)"
    ),
    LAST: BARE,
}


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


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    arguments = parser.parse_args()
    with harness.scratch() as scratch:
        paths = fill(scratch, arguments.steps)
        programs = {label: program.format(**paths) for label, program in PROGRAMS.items()}
        found: dict[str, list[float]] = {label: [] for label in programs}
        for _ in range(arguments.rounds):
            for label, program in programs.items():
                found[label].append(jobs.run(program)[0])
    medians = {label: statistics.median(times) for label, times in found.items()}
    bare = medians[LAST]
    targets = [
        harness.Figure(f"{label}: beyond the import of NumPy and Gymnasium", medians[label] - bare, 0.8, "s", bare)
        for label in (IMPORT, ENGINE)
    ]
    targets += [harness.Figure(HELP, medians[HELP], 1, "s", bare), harness.Figure(FIRST, medians[FIRST], 0.5, "s")]
    body = f"Processor time of whole processes, {arguments.rounds} rounds.\n\n" + harness.table(
        ("program", "processor time"), [(label, f"{each:.2f} s") for label, each in medians.items()]
    )
    body += "\n\n" + harness.figures(targets)
    keep = arguments.steps == STEPS and arguments.rounds == ROUNDS
    harness.write_section("starting", "The first start", harness.versions("diskreplay", "numpy"), body, keep=keep)


if __name__ == "__main__":
    main()
