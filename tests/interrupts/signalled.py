"""A program that gets real signals at random moments: ``python -m interrupts.signalled PATH WORK ENDING SEED``.

A thread of its own sends them, so that they come while the main thread is anywhere. Rows are those of :mod:`lives`,
functions of their number, so that all that is read can be compared. It prints one line of JSON in the end.

WORK:
    add: rows onto a full window, with a commit now and then.
    sample: draws by priority, and updates them.
    refresh: a reader beside a writer.
    threads: ``add``, while another thread samples and a loader reads ahead.

ENDING:
    on: a notebook: each KeyboardInterrupt is caught, and the program goes on until so many came.
    close: one signal, and ``close()`` in a ``finally``.
    exit: SIGTERM, whose handler raises SystemExit, and ``close()`` in a ``finally``.
    default: SIGTERM, which ends the process at once.
"""

from __future__ import annotations

import faulthandler
import json
import os
import pathlib
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from helpers import lives
from helpers.odds import chances_of
from helpers.patience import PATIENCE

import diskreplay as dr
from diskreplay.errors import ClosedError, DiskReplayError, NotEnoughDataError, StateError

AGAIN_LOOKS, LOOK_SECONDS = 500, 0.01
"""Looks, not seconds: where the machine stands still, the signal is on its way for longer."""
OPTIONS = {**lives.OPTIONS, "commit_rows": 37, "num_envs": 2}


class Sender:
    """Sends signals to this process: the next one a random time after it was asked for.

    Python loses those that come while an object is removed, in its ``__del__``: like a person it then tries again.
    """

    def __init__(self, number: int, rng: random.Random, most_seconds: float) -> None:
        self.number, self.rng, self.most_seconds = number, rng, most_seconds
        self.wanted = threading.Semaphore(0)
        self.taken = False
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        while True:
            self.wanted.acquire()
            time.sleep(self.rng.uniform(0, self.most_seconds))
            while not self.taken:
                os.kill(os.getpid(), self.number)
                looks = 0
                while not self.taken and looks < AGAIN_LOOKS:
                    looks += 1
                    time.sleep(LOOK_SECONDS)  # no lock: the interrupt may be anywhere, also within one

    def ask(self) -> None:
        self.taken = False
        self.wanted.release()


class Worker:
    """One store, and a loop over it."""

    def __init__(self, path: str, work: str, seed: int) -> None:
        self.path, self.work = path, work
        self.rng = np.random.default_rng(seed)
        self.sampler = (dr.Proportional if seed % 2 else dr.RankBased) if work == "sample" else dr.Uniform
        fresh = not pathlib.Path(path).exists()
        make = lives.create if fresh else dr.ReplayBuffer.open
        options = {name: value for name, value in OPTIONS.items() if fresh or name != "num_envs"}
        self.buffer: Any = make(path, sampler=self.sampler(), seed=seed, **options)
        self.reader: Any = None
        self.row = self.end
        self.stop = threading.Event()
        self.threads: list[threading.Thread] = []
        self.failures: list[str] = []
        self.add(45)
        if work == "refresh":
            self.buffer.commit()
            self.reader = dr.ReplayBuffer.open(path, mode="r", cache_bytes=0, seed=seed)

    @property
    def end(self) -> int:
        return int(self.buffer.stats()["streams"]["0"]["end"])

    def add(self, count: int) -> None:
        for _ in range(count):
            self.buffer.add(**lives.step(0, self.end, 2))

    def start_threads(self) -> None:
        if self.work == "threads":
            self.threads = [threading.Thread(target=self.guarded, args=(role,)) for role in (self.draw, self.load)]
            for thread in self.threads:
                thread.start()

    def guarded(self, role: Callable[[], None]) -> None:
        try:
            role()
        except (ClosedError, NotEnoughDataError):
            pass
        except BaseException as error:
            self.failures.append(f"a thread: {error!r}")

    def draw(self) -> None:
        while not self.stop.is_set():
            lives.check(self.buffer.sample(8), {0: 2})

    def load(self) -> None:
        with self.buffer.loader(8) as loader:
            while not self.stop.is_set():
                lives.check(next(loader), {0: 2})

    def join(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def once(self) -> None:
        """What is interrupted."""
        if self.work == "sample":
            self.buffer.update_priorities(self.buffer.sample(16).index, self.rng.random(16))
            self.add(1)
        elif self.work == "refresh":
            self.add(3)
            self.buffer.commit()
            self.reader.refresh()
            self.reader.sample(8)
        else:
            self.add(5)

    def check(self) -> int:
        """Everything that can be read; the number of transitions."""
        rows = lives.check_all(self.buffer)
        if self.reader is not None:
            behind = self.reader.stats()["streams"]["0"]["end"] < self.buffer.stats()["streams"]["0"]["committed"]
            assert self.reader.refresh() or not behind, "refresh() said False, and stayed behind"
            rows += lives.check_all(self.reader)
        if self.sampler is not dr.Uniform:
            state = self.buffer.stats()["streams"]["0"]
            ids = np.arange(state["begin"] * 2, state["end"] * 2)
            chances = chances_of(self.buffer, ids)
            assert (chances > 0).all(), f"{(chances == 0).sum()} of {len(ids)} transitions are never drawn"
            np.testing.assert_allclose(chances.sum(), 1)
        return rows


def go_on(worker: Worker, sender: Sender, count: int) -> dict[str, Any]:
    """Catches so many interrupts; after each all is compared."""
    caught = reopened = rows = 0
    wrong: list[str] = []
    while caught < count:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            sender.ask()
            while True:
                worker.once()
        except KeyboardInterrupt:
            sender.taken = True
            caught += 1
        except (StateError, ClosedError):
            reopened += 1
            caught += wait_for_signal(sender)
        except BaseException as error:
            wrong.append(f"the loop: {error!r}"[:300])
            caught += wait_for_signal(sender)
            break
        try:
            rows += worker.check()
            worker.once()
            rows += worker.check()
        except (StateError, ClosedError):
            reopened += 1
            shown = worker.end if not worker.buffer.engine.gate.closed else 0
            committed = worker.buffer.stats()["streams"].get("0", {}).get("committed", 0)
            try:
                worker.buffer.close()
            except DiskReplayError:
                worker.buffer.close()
            worker = Worker(worker.path, worker.work, caught)
            if not committed <= worker.row <= max(shown, worker.row):
                wrong.append(f"{worker.row} rows instead of {committed} to {shown}")
        except BaseException as error:
            wrong.append(f"after an interrupt: {error!r}"[:300])
            break
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    worker.join()
    shown = worker.end
    try:
        worker.buffer.close()
    except DiskReplayError:
        shown = 0
    return {"signals": caught, "reopened": reopened, "rows": rows, "shown": shown, "wrong": wrong + worker.failures}


def wait_for_signal(sender: Sender) -> int:
    """The one that is still on its way."""
    try:
        for _ in range(2 * AGAIN_LOOKS):
            time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        sender.taken = True
        return 1
    return 0


def close_at_the_end(worker: Worker, sender: Sender) -> dict[str, Any]:
    """One signal, ``close()`` in a ``finally``; what was shown before it must be there."""
    shown, closed, wrong = 0, "", []
    try:
        sender.ask()
        while True:
            shown = worker.end
            worker.once()
    except (KeyboardInterrupt, SystemExit):
        sender.taken = True
    except BaseException as error:
        wrong.append(f"the loop: {error!r}"[:300])
    finally:
        try:
            worker.join()
            worker.buffer.close()
        except DiskReplayError as error:
            closed = repr(error)[:300]
    return {"signals": 1, "shown": 0 if closed else shown, "closed": closed, "wrong": wrong + worker.failures}


def main(path: str, work: str, ending: str, seed: str, count: str = "10") -> None:
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    os.fsync = lambda fd: None  # nobody cuts the power here, and a busy disk takes its time
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if ending == "exit":
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    rng = random.Random(int(seed))
    worker = Worker(path, work, int(seed))
    worker.once()
    number = signal.SIGINT if ending in ("on", "close") else signal.SIGTERM
    sender = Sender(number, rng, 0.03)
    worker.start_threads()
    print("ready", flush=True)
    outcome = go_on(worker, sender, int(count)) if ending == "on" else close_at_the_end(worker, sender)
    print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
