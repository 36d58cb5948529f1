"""Writers, a learner and readers on one store for minutes: operations, errors, memory.

Three processes write streams of their own and are killed and started again now and then; a learner process samples
from all with priorities, updates them, adds rows, commits, makes and drops checkpoints; two readers open, sample and
refresh.
Every transition that anybody is given is compared with what its index says it must be. There must be no error, and
from the second quarter to the last nobody's memory may grow by more than a tenth; nor may the store by more than a
half, which breathes with the dead bytes of its last shards.

    python benchmarks/soak.py --minutes 10
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import numpy as np
from helpers import lives

import diskreplay as dr
from diskreplay.errors import EvictedError, NotEnoughDataError
from diskreplay.ops.verify import verify

ACTORS, READERS = 3, 2
NUM_ENVS = {0: 2, 1: 1, 2: 4, 3: 2}
WINDOW_ROWS = 2_000
ALLOWED = {"store on disk": 0.5}
OPTIONS: dict[str, Any] = {"commit_rows": 200, "commit_seconds": 1.0, "cache_bytes": 4 << 20}
CONTEXT: Any = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["diskreplay.buffers.replay"])


def resident_bytes() -> int:
    """Memory of this process, shared pages included."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def store_bytes(path: str) -> int:
    """Bytes of all files that are still there when they are looked at."""
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += pathlib.Path(folder, name).stat().st_size
    return size


class Report:
    """Counts of what a process did, told every second."""

    def __init__(self, role: str, pipe: Connection) -> None:
        self.role, self.pipe = role, pipe
        self.counts: dict[str, int] = {}
        self._told = 0.0

    def add(self, what: str, count: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + count
        if time.monotonic() - self._told > 1:
            self._told = time.monotonic()
            self.pipe.send((self.role, resident_bytes(), self.counts))
            self.counts = {}


def actor(path: str, number: int, report: Report) -> None:
    """Writes its own stream, checkpoints now and then."""
    envs = NUM_ENVS[number]
    name = f"actor-{number}"
    with dr.ReplayBuffer.open(path, stream=name, num_envs=envs, capacity=WINDOW_ROWS * envs, **OPTIONS) as buffer:
        row = buffer.stats()["streams"][name]["end"]
        while True:
            buffer.add(**lives.step(number, row, envs))
            row += 1
            report.add("rows added")
            if row % 700 == 0:
                renew_checkpoint(buffer, name, row)
                report.add("checkpoints")


def renew_checkpoint(buffer: dr.ReplayBuffer, mine: str, row: int) -> None:
    """One more checkpoint of this writer, and none but the last before it."""
    for old in [name for name in buffer.checkpoints if name.startswith(f"{mine}.")][:-1]:
        buffer.drop_checkpoint(old)
    buffer.checkpoint(f"{mine}.{row}.{time.time_ns()}")


def learner(path: str, number: int, report: Report) -> None:
    """Samples from all streams with priorities, and writes the first one."""
    with dr.ReplayBuffer.open(path, sampler=dr.Proportional(), seed=number, **OPTIONS) as buffer:
        row = buffer.stats()["streams"]["0"]["end"]
        while True:
            buffer.add(**lives.step(0, row, NUM_ENVS[0]))
            row += 1
            if len(buffer) > 256:
                batch = buffer.sample(64)
                lives.check(batch, NUM_ENVS)
                buffer.update_priorities(batch.index, np.abs(batch.reward) + 1)
                report.add("transitions compared", len(batch))
                report.add("updates of priorities")
            if row % 50 == 0:
                buffer.refresh()
                report.add("refreshes")
            if row % 1000 == 0:
                renew_checkpoint(buffer, "learner", row)
                report.add("checkpoints")
            report.add("rows added")


def reader(path: str, number: int, report: Report) -> None:
    """Opens, samples, lags behind, asks for what it saw before."""
    rng = random.Random(number)
    while True:
        with dr.ReplayBuffer.open(path, mode="r", cache_bytes=rng.choice([0, 4 << 20]), seed=number) as buffer:
            report.add("stores opened")
            for _ in range(100):
                try:
                    batch = buffer.sample(64)
                    lives.check(batch, NUM_ENVS)
                    report.add("transitions compared", len(batch))
                    if rng.random() < 0.2:
                        buffer.refresh()
                        lives.check(buffer.get(batch.index), NUM_ENVS)
                except NotEnoughDataError:
                    time.sleep(0.1)
                    buffer.refresh()
                except EvictedError:
                    report.add("transitions that had left")


def run(role: Any, path: str, number: int, pipe: Connection) -> None:
    role(path, number, Report(f"{role.__name__} {number}", pipe))


class Soak:
    """The processes, and what they told."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.counts: dict[str, int] = {}
        self.memory: dict[str, list[tuple[float, int]]] = {}
        self.disk: list[tuple[float, int]] = []
        self.errors: list[str] = []
        self.kills = 0
        self.started = time.monotonic()
        roles = [(learner, 0), *((actor, n + 1) for n in range(ACTORS)), *((reader, n) for n in range(READERS))]
        self.running = {role: self.start(*role) for role in roles}

    def start(self, role: Any, number: int) -> tuple[Any, Connection]:
        here, there = CONTEXT.Pipe()
        process = CONTEXT.Process(target=run, args=(role, self.path, number, there), daemon=True)
        process.start()
        there.close()
        return process, here

    def listen(self) -> None:
        """Takes what was told; a process that ended by itself is an error."""
        for (role, number), (process, pipe) in self.running.items():
            self.drain(pipe)
            if not process.is_alive():
                self.errors.append(f"{role.__name__} {number} ended with {process.exitcode}")
                self.running[role, number] = self.start(role, number)
        self.disk.append((time.monotonic() - self.started, store_bytes(self.path)))

    def drain(self, pipe: Connection) -> None:
        try:
            while pipe.poll():
                name, memory, counts = pipe.recv()
                self.memory.setdefault(name, []).append((time.monotonic() - self.started, memory))
                for what, count in counts.items():
                    self.counts[what] = self.counts.get(what, 0) + count
        except EOFError:
            pass

    def kill(self, role: tuple[Any, int]) -> None:
        """An actor dies and comes back; its memory is measured anew."""
        process, pipe = self.running[role]
        process.kill()
        process.join()
        self.drain(pipe)
        self.running[role] = self.start(*role)
        self.kills += 1

    def stop(self) -> None:
        for process, _ in self.running.values():
            process.kill()
            process.join()


def growth(points: list[tuple[float, int]], seconds: float) -> float:
    """The last quarter's mean over that of the second, less 1."""
    early = [value for at, value in points if seconds / 4 <= at < seconds / 2]
    late = [value for at, value in points if at >= seconds * 3 / 4]
    return float(np.mean(late) / np.mean(early) - 1) if early and late else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--kill-seconds", type=float, default=10.0, help="between kills of an actor")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    seconds = options.minutes * 60
    folder = tempfile.mkdtemp(prefix="diskreplay-soak-")
    try:
        path = f"{folder}/soak.replay"
        lives.create(path, NUM_ENVS[0], WINDOW_ROWS, chunk_rows=16, shard_rows=256).close()
        for number in range(1, ACTORS + 1):  # in the order of their numbers
            envs = NUM_ENVS[number]
            dr.ReplayBuffer.open(path, stream=f"actor-{number}", num_envs=envs, capacity=WINDOW_ROWS * envs).close()
        soak = Soak(path)
        killed = 0.0
        try:
            while (now := time.monotonic() - soak.started) < seconds:
                time.sleep(0.5)
                soak.listen()
                if now - killed > options.kill_seconds:
                    killed = now
                    soak.kill((actor, rng.randrange(ACTORS) + 1))
        finally:
            soak.stop()
        outcome = verify(path)
        # Actors are killed, so only who lived all the time tells of growth.
        grown = {name: growth(points, seconds) for name, points in soak.memory.items() if "actor" not in name}
        grown["store on disk"] = growth(soak.disk, seconds)
        print(json.dumps({
            "minutes": options.minutes,
            "operations": dict(sorted(soak.counts.items())),
            "actors killed": soak.kills,
            "errors": soak.errors + [problem.what for problem in outcome.problems],
            "resident megabytes": {name: round(points[-1][1] / 1e6) for name, points in sorted(soak.memory.items())},
            "store megabytes": round(soak.disk[-1][1] / 1e6, 1),
            "growth": {name: f"{value:+.1%}" for name, value in sorted(grown.items())},
        }, indent=1))  # fmt: skip
        if soak.errors or not outcome.ok or any(value > ALLOWED.get(name, 0.1) for name, value in grown.items()):
            raise SystemExit("there were errors, or something grew")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
