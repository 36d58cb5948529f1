"""Tasks and parts of one piece of work: done by threads of the pool where it has some, else by whoever asks."""

import functools
import gc
import os
import queue
import threading
import time
import weakref
from collections.abc import Iterator
from unittest import mock

import pytest
from helpers.forking import forked
from helpers.patience import PATIENCE
from helpers.programs import run

from diskreplay.process import background
from diskreplay.process.background import Task


@pytest.fixture(autouse=True)
def two_helpers() -> Iterator[None]:
    """As on a machine with three processors; helpers that other tests started stay with those."""
    with (
        mock.patch.object(background, "THREADS", 3),
        mock.patch.object(background, "_tasks", queue.SimpleQueue()),
        mock.patch.object(background, "_started", 0),
    ):
        yield


def test_parts_run_side_by_side() -> None:
    together = threading.Barrier(3)  # none of the three goes on before all have begun
    done = []

    def work(begin: int, end: int) -> int:
        together.wait(PATIENCE)
        done.append((begin, end, threading.get_ident()))
        return end

    assert background.side_by_side(work, [3, 5, 6, 9]) == 9
    assert sorted(done)[0][:2] == (3, 5)
    assert {each[:2] for each in done} == {(3, 5), (5, 6), (6, 9)}
    assert len({thread for *_, thread in done}) == 3
    assert background.THREADS == 3


def test_without_helpers_the_caller_does_all() -> None:
    done = []

    def work(begin: int, end: int) -> int:
        done.append((begin, end))
        return end

    with mock.patch.object(background._thread, "start_new_thread", side_effect=RuntimeError("can't start new thread")):
        assert background.side_by_side(work, [0, 1, 2, 3]) == 3
    assert done == [(0, 1), (1, 2), (2, 3)]
    assert background._tasks.empty()  # nobody would ever take them out
    with mock.patch.object(background, "THREADS", 1):
        assert background.side_by_side(work, [0, 4, 5]) == 5
    assert not background._started
    assert background.side_by_side(work, [7, 8]) == 8


def test_a_helper_that_comes_late_finds_nothing_to_do() -> None:
    done = []
    with mock.patch.object(background, "_serve", return_value=None):  # one that never takes a part
        assert background.side_by_side(lambda begin, end: done.append(begin) or end, [0, 1, 2]) == 2
    left = background._tasks.get_nowait()
    left.run()
    assert left.done
    assert done == [0, 1]


def test_how_far_it_came() -> None:
    assert background.side_by_side(lambda begin, end: min(end, 5), [0, 3, 6, 9]) == 5
    assert background.side_by_side(lambda begin, end: begin if begin == 3 else end, [0, 3, 6, 9]) == 3


@pytest.mark.parametrize("failing", [0, 3, 6])
def test_errors_come_once_all_is_over(failing: int) -> None:
    over = []

    def work(begin: int, end: int) -> int:
        if begin == failing:
            raise KeyboardInterrupt(begin)
        time.sleep(0.01)
        over.append(begin)
        return end

    with pytest.raises(KeyboardInterrupt, match=str(failing)):
        background.side_by_side(work, [0, 3, 6, 9])
    assert sorted(over) == sorted({0, 3, 6} - {failing})
    assert background.side_by_side(lambda begin, end: end, [0, 3, 6, 9]) == 9


@pytest.mark.long
def test_nothing_of_it_is_kept() -> None:
    class Work:
        def __call__(self, begin: int, end: int) -> int:
            return end

    work = Work()
    background.side_by_side(work, [0, 1, 2, 3])
    gone = weakref.ref(work)
    del work
    gc.collect()
    assert gone() is None


def test_a_forked_child_starts_its_own() -> None:
    background.side_by_side(lambda begin, end: end, [0, 1, 2])
    assert background._started

    def in_child() -> list[int]:
        together = threading.Barrier(2)

        def work(begin: int, end: int) -> int:
            together.wait(PATIENCE)
            return end

        return [background.side_by_side(work, [0, 1, 2]), background._started]

    assert forked(in_child) == [2, 1]


@pytest.mark.long
def test_no_helper_is_started_while_the_interpreter_ends() -> None:
    """Regression: on Python 3.11 the start of a thread never returned there."""
    program = """
from diskreplay.process import background
from diskreplay.process.background import Task

class Late:
    def __del__(self, run=background.side_by_side):
        print(run(lambda begin, end: end, [0, 10, 20]), flush=True)

background.THREADS = 3
late = Late()
late.itself = late
"""
    done = run(program)
    assert (done.stdout, done.stderr, done.returncode) == ("20\n", "", 0)


def test_a_child_that_is_forked_while_its_parent_waits() -> None:
    """As by a signal's handler: the helper that has begun the last part is the parent's."""
    begun, over, main = threading.Event(), threading.Event(), threading.get_ident()
    children: list[int] = []
    parent = os.getpid()

    def work(begin: int, end: int) -> int:
        if os.getpid() != parent:
            return end
        if threading.get_ident() == main:
            assert begun.wait(PATIENCE)  # then the helper is in the midst of the other part
            children.append(os.fork())
            if children[-1]:
                over.set()
        else:
            begun.set()
            assert over.wait(PATIENCE)
        return end

    background.side_by_side(lambda begin, end: end, [0, 1, 2])  # so that there is a helper
    found = background.side_by_side(work, [0, 1, 2])
    if os.getpid() != parent:
        os._exit(0 if found == 2 else 1)
    assert (found, os.waitpid(children[0], 0)[1]) == (2, 0)


def test_results_of_any_type() -> None:
    tasks = [background.submit(functools.partial(set, [number])) for number in range(100)]
    assert [task.result() for task in tasks] == [{number} for number in range(100)]
    assert background.submit(lambda: None).result() is None


def test_a_thread_does_not_begin_what_was_asked_for() -> None:
    """It would do again what is done already, or being done."""
    calls: list[int] = []

    def count() -> int:
        calls.append(1)
        return len(calls)

    task = Task(count)
    assert task.result() == 1
    task.run()
    assert task.result() == len(calls) == 1


def test_who_asks_while_all_threads_are_busy_does_it() -> None:
    hold = threading.Event()
    begun = threading.Semaphore(0)

    def wait() -> bool:
        begun.release()
        return hold.wait(PATIENCE)

    busy = [background.submit(wait) for _ in range(background.THREADS)]
    try:
        for _ in busy:
            assert begun.acquire(timeout=PATIENCE)
        assert background.submit(threading.get_ident).result() == threading.get_ident()
    finally:
        hold.set()
    assert all(task.result() for task in busy)


def test_an_error_is_raised_to_whoever_needs_the_result() -> None:
    def fail() -> int:
        raise ValueError("damaged")

    task = background.submit(fail)
    for _ in range(2):
        with pytest.raises(ValueError, match="damaged"):
            task.result()
    assert not task.done


def test_who_is_interrupted_in_a_task_can_ask_again() -> None:
    calls: list[int] = []

    def interrupted_once() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return len(calls)

    task = Task(interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        task.result()
    assert task.result() == 2
