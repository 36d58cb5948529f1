"""Tasks for threads: done once, by a thread or by whoever needs the result; errors are met where it is needed."""

from __future__ import annotations

import functools
import threading

import pytest

from diskreplay.storage.encoders import THREADS, Encoders, Task


def test_results_of_any_type() -> None:
    tasks = [Encoders.submit(functools.partial(set, [number])) for number in range(100)]
    assert [task.result() for task in tasks] == [{number} for number in range(100)]


def test_a_thread_does_not_begin_what_was_asked_for() -> None:
    """It would do again what is done already, or being done."""
    calls: list[int] = []

    def count() -> int:
        calls.append(1)
        return len(calls)

    task = Task(count)
    assert task.result() == 1
    task.work()
    assert task.result() == len(calls) == 1


def test_who_asks_while_all_threads_are_busy_does_it() -> None:
    hold = threading.Event()
    begun = threading.Semaphore(0)

    def wait() -> bool:
        begun.release()
        return hold.wait(60)

    busy = [Encoders.submit(wait) for _ in range(THREADS)]
    try:
        for _ in busy:
            assert begun.acquire(timeout=60)
        assert Encoders.submit(threading.get_ident).result() == threading.get_ident()
    finally:
        hold.set()
    assert all(task.result() for task in busy)


def test_an_error_is_raised_to_whoever_needs_the_result() -> None:
    def fail() -> int:
        raise ValueError("damaged")

    task = Encoders.submit(fail)
    for _ in range(2):
        with pytest.raises(ValueError, match="damaged"):
            task.result()
    assert not task.done
