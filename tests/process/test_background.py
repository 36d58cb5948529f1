"""Threads that work aside: tasks of the pool, items made ahead, calls that a thread makes in the place of another."""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from helpers.forking import forked
from helpers.patience import PATIENCE
from helpers.programs import run
from helpers.testing import Interrupts

from diskreplay.errors import StateError
from diskreplay.process import background
from diskreplay.process.background import CallQueue, Prefetcher, Waited

COUNT = background.THREADS
PARTS = list(range(COUNT + 1))
"""Borders of as many parts as are done at once."""


def last(begin: int, end: int) -> int:
    return end


def no_thread() -> bool:
    return all(thread.name != "diskreplay-test" for thread in threading.enumerate())


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


# The pool


def test_parts_run_side_by_side_and_say_how_far_they_came() -> None:
    together, done = threading.Barrier(COUNT), []  # no part goes on before all have begun

    def work(begin: int, end: int) -> int:
        together.wait(PATIENCE)
        done.append(threading.get_ident())
        return end

    assert background.side_by_side(work, PARTS) == COUNT
    assert len(set(done)) == COUNT
    assert background.side_by_side(last, [7, 8]) == 8
    assert background.side_by_side(lambda begin, end: min(end, 5), [0, 3, 6, 9]) == 5
    assert background.side_by_side(lambda begin, end: begin if begin == 3 else end, [0, 3, 6, 9]) == 3


@pytest.mark.parametrize("failing", [0, 3, 6])
def test_errors_of_parts_come_once_all_is_over(failing: int) -> None:
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
    assert background.side_by_side(last, [0, 3, 6, 9]) == 9


def test_tasks_give_results_of_any_type_and_keep_nothing() -> None:
    class Call:
        def __call__(self, *borders: int) -> int:
            return max(borders, default=0)

    call = Call()
    tasks = [background.submit(functools.partial(set, [number])) for number in range(100)]
    assert [task.result() for task in tasks] == [{number} for number in range(100)]
    assert background.submit(lambda: None).result() is None
    assert (background.submit(call).result(), background.side_by_side(call, PARTS)) == (0, COUNT)
    gone = weakref.ref(call)
    del call
    wait_for(lambda: gc.collect() >= 0 and gone() is None)


def test_who_asks_while_all_threads_are_busy_does_it() -> None:
    hold, begun = threading.Event(), threading.Semaphore(0)

    def wait() -> bool:
        begun.release()
        return hold.wait(PATIENCE)

    busy = [background.submit(wait) for _ in range(background.THREADS)]
    try:
        for _ in busy:
            assert begun.acquire(timeout=PATIENCE)
        assert background.submit(threading.get_ident).result() == threading.get_ident()
        assert background.side_by_side(last, PARTS) == COUNT
    finally:
        hold.set()
    assert all(task.result() for task in busy)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_who_needs_a_task_gets_its_error_and_can_ask_again(error: type[BaseException]) -> None:
    calls: list[int] = []

    def fails() -> int:
        calls.append(1)
        if threading.current_thread() is threading.main_thread() and len(calls) < 4:
            raise error("damaged")
        return len(calls)

    task = background.Task(fails)
    for _ in range(3):
        with pytest.raises(error, match="damaged"):
            task.result()
    assert (task.result(), task.result(), len(calls)) == (4, 4, 4)


def test_a_forked_child_has_threads_of_its_own() -> None:
    background.side_by_side(last, PARTS)

    def in_child() -> int:
        together = threading.Barrier(COUNT)
        return background.side_by_side(lambda begin, end: together.wait(PATIENCE) * 0 + end, PARTS)

    assert forked(in_child) == COUNT


@pytest.mark.long
def test_no_thread_is_started_while_the_interpreter_ends() -> None:
    """Regression: on Python 3.11 the start of a thread never returned there."""
    program = """
from diskreplay.process import background

class Late:
    def __del__(self, run=background.side_by_side):
        print(run(lambda begin, end: end, [0, 10, 20]), flush=True)

late = Late()
late.itself = late
"""
    done = run(program)
    assert (done.stdout, done.stderr, done.returncode) == ("20\n", "", 0)


# Items made ahead


def test_all_items_come_in_order_then_the_end_for_ever() -> None:
    items = Prefetcher(lambda: iter([None, *range(1000)]), 3, "test")
    assert (list(items), list(items)) == ([None, *range(1000)], [])
    assert no_thread()


def test_no_more_items_are_made_than_may_wait_and_one() -> None:
    made: list[int] = []
    with Prefetcher(lambda: (made.append(item) or item for item in range(100)), 2, "test") as items:
        wait_for(lambda: len(made) == 3)
        assert next(items) == 0
        wait_for(lambda: len(made) == 4)
        time.sleep(0.1)
        assert made == [0, 1, 2, 3]


def test_an_error_comes_after_the_items_before_it() -> None:
    def make() -> Iterator[int]:
        yield 1
        raise KeyError("gone")

    items = Prefetcher(make, 5, "test")
    assert next(items) == 1
    with pytest.raises(KeyError, match="gone"):
        next(items)
    assert list(items) == []
    assert no_thread()


@pytest.mark.parametrize("end", ["close", "forget"])
def test_who_closes_or_forgets_ends_the_thread_and_the_iterator(end: str) -> None:
    closed = threading.Event()

    def make() -> Iterator[int]:
        try:
            yield from itertools.repeat(0)
        finally:
            closed.set()

    items = Prefetcher(make, 2, "test")
    next(items)
    if end == "close":
        items.close()
        assert closed.is_set()
        items.close()
        assert list(items) == []
    del items
    wait_for(no_thread)
    assert closed.is_set()


def test_a_forked_process_has_no_thread_of_its_parents() -> None:
    calls = make()
    with Prefetcher(lambda: iter(range(100)), 2, "test") as items:
        next(items)

        def in_child() -> None:
            for call in (lambda: next(items), lambda: calls.put(nothing), calls.check):
                with pytest.raises(StateError, match="thread is in the process that this one was forked from"):
                    call()
            items.close()
            calls.end()

        assert forked(in_child) is None
        assert next(items) == 1
    calls.end()


# Calls


def nothing() -> None:
    pass


def fail() -> None:
    raise KeyError("a call")


def make(most: int = 3, last: Callable[[], object] = nothing) -> CallQueue:
    return CallQueue(most, "test", last, lambda: "noted")


def wait_until_made(calls: CallQueue, most: int = 1) -> None:
    """Whoever finds room again knows that all calls before were made."""
    for _ in range(most + 1):
        calls.put(nothing)


def test_calls_are_made_in_order_and_the_last_one_last() -> None:
    made: list[int] = []
    calls = make(last=lambda: made.append(-1))
    for number in range(500):
        calls.put(functools.partial(made.append, number))
    for _ in range(2):
        calls.end()
        assert made == [*range(500), -1]
    assert no_thread()


def test_no_more_calls_wait_than_allowed_and_the_waits_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, go, began = make(most=2), threading.Event(), threading.Event()
    calls.put(lambda: (began.set(), go.wait()))
    began.wait()
    for _ in range(2):
        calls.put(nothing)
    assert calls.waited == Waited(0, 0.0)

    def monotonic() -> float:
        """The seconds until the thread goes on, which it does once the wait has begun."""
        now = 0.3 if go.is_set() else 0.0
        go.set()
        return now

    monkeypatch.setattr(sys.modules[CallQueue.__module__], "time", types.SimpleNamespace(monotonic=monotonic))
    calls.put(nothing)
    assert calls.waited == Waited(1, 0.3)
    calls.end()


def test_an_error_is_told_once_and_ends_a_series() -> None:
    made: list[str] = []
    calls = make(most=1)
    for call in (lambda: made.append("before"), fail, lambda: made.append("behind")):
        calls.put(call)
    wait_until_made(calls)
    calls.put(lambda: made.append("later, and not told yet"))
    with pytest.raises(KeyError, match="a call") as told:
        calls.check()
    assert (told.value.__notes__, made) == (["noted"], ["before"])
    calls.check()
    calls.put(lambda: made.append("anew"))
    calls.put(fail)
    with pytest.raises(KeyError):
        calls.end()
    calls.end()
    assert made == ["before", "anew"]
    assert no_thread()


def test_what_is_forgotten_is_done_first_and_its_error_is_a_warning() -> None:
    made: list[int] = []
    calls = make(last=lambda: made.append(2))
    calls.put(lambda: (time.sleep(0.1), made.append(1)))
    del calls
    assert made == [1, 2]
    calls = make()
    calls.put(fail)
    with pytest.warns(ResourceWarning, match=r"KeyError: 'a call'\nnoted"):
        del calls
    assert no_thread()


def checked(calls: CallQueue, told: list[Any]) -> None:
    """Check as a program does that goes on."""
    try:
        calls.check()
    except KeyError as error:
        told.append(error)
    except KeyboardInterrupt as interrupt:
        told.append(interrupt.__context__)
        raise


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("by", ["raise", "signal"])
def test_an_interrupt_at_any_place_loses_no_call(by: Literal["raise", "signal"], wrong: bool) -> None:
    """A call was put or was not, and an error is told, or comes with the interrupt that a signal makes."""
    interrupts = Interrupts(at="line" if by == "raise" else "check", by=by, within=["diskreplay.process.background"])
    for number in itertools.count():
        made: list[str] = []
        told: list[Any] = []
        calls = make(most=1)
        calls.put(fail if wrong else nothing)
        wait_until_made(calls)

        def use(calls: CallQueue = calls, made: list[str] = made, told: list[Any] = told) -> None:
            checked(calls, told)
            calls.put(lambda: made.append("one"))

        place = interrupts.interrupt(number, use)
        checked(calls, told)
        if by == "signal" or place is None:
            assert [type(error) for error in told if error is not None] == [KeyError] * wrong, place
        calls.put(functools.partial(made.append, "two"))
        calls.end()
        assert made in (["one", "two"], ["two"]), place
        if place is None:
            break
    assert number > 5
    assert no_thread()
