"""Handlers that use a buffer and return, and other code that comes in on the thread of a call: between changes."""

from __future__ import annotations

import gc
import pathlib
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from helpers import line
from helpers.effort import examples
from helpers.line import rows_in
from helpers.programs import printed
from helpers.testing import SimulatedDisk
from helpers.threads import beside
from interrupts import own
from interrupts.handlers import SUBJECTS, handled, run

import diskreplay as dr
from diskreplay.errors import StateError
from diskreplay.ops.verify import verify


@pytest.mark.parametrize("kind", SUBJECTS)
def test_handlers_run_between_changes(tmp_path: pathlib.Path, kind: str) -> None:
    run(SUBJECTS[kind](tmp_path), 5)


@pytest.mark.long
@pytest.mark.parametrize("kind", SUBJECTS)
def test_ten_thousand_handlers(
    tmp_path: pathlib.Path, kind: str, record_property: Callable[[str, object], None]
) -> None:
    count = examples(1250, "signals", least=50)
    inside = run(SUBJECTS[kind](tmp_path), count, seed=1)
    record_property("figures", f"{kind}: {count} signals, {inside} within calls")
    assert inside >= count // 10


def test_handlers_run_while_another_thread_is_waited_for(path: str) -> None:
    begun, done = threading.Event(), threading.Event()

    class Slow(dr.Transition):
        def draft(self, *arguments: Any) -> Any:
            begun.set()
            done.wait()
            return super().draft(*arguments)

    with line.create(path, view=Slow()) as buffer, handled(lambda number, frame: done.set()):
        line.add(buffer, 9)
        with beside(lambda: buffer.sample(3)):
            begun.wait()
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            line.add(buffer)
            assert done.is_set()


@pytest.mark.long
def test_actor_learner_and_handler_do_not_wait_for_each_other(path: str) -> None:
    """An actor's thread adds, the main thread draws, and its handler makes checkpoints."""
    count = examples(150, "signals", least=30)
    said = printed(
        """
        import os, signal, sys, threading
        from helpers import line
        os.fsync = lambda descriptor: None
        sys.setswitchinterval(1e-4)
        rb = line.create(sys.argv[1], 500)
        stop, made = threading.Event(), []

        def act():
            while not stop.is_set():
                line.add(rb, 1, 0.0)

        def save(number, frame):
            rb.checkpoint(f"c{len(made)}", keep=2)
            made.append(number)  # last: the next signal comes then, and one within another, and so on, fill the stack

        def send():
            seen = -1
            while not stop.wait(0.001):
                if len(made) > seen:
                    seen = len(made)
                    os.kill(os.getpid(), signal.SIGUSR1)

        line.add(rb, 1, 0.0)
        signal.signal(signal.SIGUSR1, save)
        threads = [threading.Thread(target=job) for job in (act, send)]
        for thread in threads:
            thread.start()
        while len(made) < int(sys.argv[2]):
            rb.sample(1)
        stop.set()
        for thread in threads:
            thread.join()
        rb.close()
        print(len(made))
        """,
        path,
        count,
        flags=("-Wignore",),
    )
    assert int(said) >= count
    assert verify(path).ok


CALLS: dict[str, Callable[[Any], object]] = {
    "add": line.add,
    "commit": lambda rb: rb.commit(),
    "checkpoint": lambda rb: rb.checkpoint(f"in {len(rb.checkpoints)}"),
    "clear": lambda rb: rb.clear(),
    "close": lambda rb: rb.close(),
    "length": len,
    "sample": lambda rb: rb.sample(2),
    "update_priorities": lambda rb: rb.update_priorities([1], [2.0]),
}
CHANGES = tuple(CALLS)[:5]
"""What is refused within any other call; the others may also be right."""


class Finalized:
    """Calls something when the collector finds it."""

    def __init__(self, call: Callable[[], object], raised: list[BaseException | None]) -> None:
        self.call, self.raised, self.circle = call, raised, self

    def __del__(self) -> None:
        try:
            self.call()
            self.raised.append(None)
        except BaseException as error:
            self.raised.append(error)


@pytest.mark.parametrize("within", ["commit", "checkpoint", "sample"])
@pytest.mark.parametrize("name", CALLS)
def test_what_comes_in_within_a_call_is_refused_or_right(path: str, within: str, name: str) -> None:
    """Finalizers, which the collector calls in code of the user's own: a file system in a commit, a view in a draw."""
    raised: list[BaseException | None] = []
    armed: list[bool] = []

    def collect() -> None:
        if armed:
            armed.clear()
            Finalized(lambda: CALLS[name](buffer), raised)
            gc.collect()

    class Disk(own.Files):
        def rename(self, *arguments: Any) -> None:
            collect()
            self.inner.rename(*arguments)

    class View(dr.Transition):
        def draft(self, *arguments: Any) -> Any:
            collect()
            return super().draft(*arguments)

    files = Disk(SimulatedDisk())
    buffer = line.create(path, files=files, view=View(), sampler=dr.Proportional())
    line.add(buffer, 20)
    buffer.sample(2)
    armed.append(True)
    CALLS[within](buffer)
    (error,) = raised
    assert error is None or isinstance(error, StateError)
    assert isinstance(error, StateError) or name not in CHANGES, f"{name} within {within} was let in"
    assert len(buffer) == 20
    line.add(buffer)
    buffer.close()
    assert verify(path, files=files).ok
    assert rows_in(path, files=files, sampler=dr.Uniform()) == 21
