"""Contenders timed side by side, each in a process of its own.

A process each, because together they would not fit into memory, because dm-reverb needs other versions than the rest,
and because then each one's resident memory can be told. `race` keeps as many alive at the same time as memory allows
and goes round them, a short burst each, so that noise of the machine hits all alike. The order is another one in each
round: what ran before leaves its threads spinning, and the processor's cache full. This module is also what runs in
those processes: see `serve`.

Cold and warm stand apart. *Cold* is the first pass, as many draws as the window holds, each a batch of 32, with all
that comes once in it: code that is loaded, memory that is touched for the first time, chunks that are read and kept. It
is a mean, as few calls pay for most of that. *Warm* is what comes after a second pass, medians of bursts.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import contenders
import harness
from contenders import Contender

BURSTS = {32: (20, 3), 256: (5, 2)}  # batch size -> calls that count, calls before them
COLD = 32  # the batch size of the first pass


def serve(contender: str, packages: list[str], steps: int, scratch: str, options: dict[str, Any]) -> None:
    """The worker: builds, answers a line about itself, then a line of seconds for every ``[batch, calls, warmup]``."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print does not belong into the answers
    try:
        sample, unpack = getattr(contenders, contender)(steps, scratch, **options)
    except ImportError as reason:
        print(json.dumps({"skipped": str(reason).splitlines()[0]}), file=answers)
        return
    cold = harness.seconds_of(lambda: sample(COLD), max(1, steps // COLD))
    for _ in range(steps // 256):  # what the first pass did not meet
        sample(256)
    contenders.check(*unpack(sample(512)), 512)
    about = {
        "cold": 1e3 * statistics.fmean(cold), "resident": harness.resident_bytes(),
        "versions": harness.versions(*packages),
    }  # fmt: skip
    print(json.dumps(about), file=answers)
    for line in sys.stdin:
        batch, calls, warmup = json.loads(line)
        print(json.dumps(harness.seconds_of(lambda batch=batch: sample(batch), calls, warmup)), file=answers)


class Worker:
    """A contender's process; ``ready`` is its line about itself, or ``{"skipped": reason}``."""

    def __init__(self, contender: Contender, steps: int, scratch: pathlib.Path):
        request = [contender.builder, contender.packages, contender.steps or steps, str(scratch), contender.options]
        command = [contender.python, str(harness.HERE / "racing.py"), json.dumps(request)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.ready = json.loads(line) if line else {"skipped": f"its process ended with status {self.process.wait()}"}
        print(f"{contender.label}: {self.ready.get('skipped', 'ready')}", file=sys.stderr, flush=True)

    def seconds(self, batch: int, calls: int, warmup: int) -> list[float]:
        self.process.stdin.write(json.dumps([batch, calls, warmup]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


@dataclasses.dataclass
class Raced:
    """What was measured of one contender: ``ms`` are medians, ``ours`` those of the reference in the same rounds."""

    contender: Contender
    resident: int
    versions: list[str]
    cold: float  # mean milliseconds of a batch of COLD in the first pass
    ms: dict[int, float]
    ours: dict[int, float]


def race(
    ours: Sequence[Contender], others: Sequence[Contender], steps: int, scratch: pathlib.Path, rounds: int
) -> tuple[list[Raced], dict[str, str]]:
    """Times all contenders, in as few groups as fit into memory; the second result says who was skipped and why.

    ``ours`` are in every group (and reported once), and the first of them is the reference of the ratios.
    """
    raced: list[Raced] = []
    skipped: dict[str, str] = {}
    waiting = list(others)
    while waiting or not raced:
        group = [*ours]
        budget = 0.6 * harness.available_bytes() - sum(c.step_bytes * steps for c in ours)
        while waiting and (len(group) == len(ours) or waiting[0].step_bytes * steps <= budget):
            budget -= waiting[0].step_bytes * steps
            group.append(waiting.pop(0))
        found, without = race_group(group, steps, scratch, rounds)
        raced += [one for one in found if not raced or one.contender not in ours]
        skipped |= without
    return raced, skipped


def race_group(
    group: list[Contender], steps: int, scratch: pathlib.Path, rounds: int
) -> tuple[list[Raced], dict[str, str]]:
    """One group; its first contender is the reference and must run."""
    built = {contender: Worker(contender, steps, scratch) for contender in group}  # one after another
    workers = {contender: worker for contender, worker in built.items() if "skipped" not in worker.ready}
    if group[0] not in workers:
        raise RuntimeError(f"{group[0].label} does not run: {built[group[0]].ready['skipped']}")
    os.sync()
    seconds = {contender: {batch: [] for batch in BURSTS} for contender in workers}
    for turn in range(rounds):
        for contender, worker in random.Random(turn).sample(list(workers.items()), len(workers)):
            for batch, (calls, warmup) in BURSTS.items():
                seconds[contender][batch] += worker.seconds(batch, calls, warmup)
    for worker in built.values():
        worker.close()
    ms = {c: {batch: harness.median_ms(times) for batch, times in seconds[c].items()} for c in workers}
    raced = [
        Raced(c, *(w.ready[key] for key in ("resident", "versions", "cold")), ms[c], ms[group[0]])
        for c, w in workers.items()
    ]
    return raced, {c.label: worker.ready["skipped"] for c, worker in built.items() if c not in workers}


if __name__ == "__main__":
    serve(*json.loads(sys.argv[1]))
