"""Parts of one piece of work: all of them are done, by several threads where there are some, without any where not."""

import gc
import os
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from unittest import mock

import pytest

from diskreplay.reading import threads

SECONDS = 60


@pytest.fixture(autouse=True)
def two_helpers() -> Iterator[None]:
    """As on a machine with three processors; helpers that other tests started stay with those."""
    with (
        mock.patch.object(threads, "_most", 2),
        mock.patch.object(threads, "_parts", queue.SimpleQueue()),
        mock.patch.object(threads, "_helpers", []),
    ):
        yield


def test_parts_run_side_by_side() -> None:
    together = threading.Barrier(3)  # none of the three goes on before all have begun
    done = []

    def work(begin: int, end: int) -> int:
        together.wait(SECONDS)
        done.append((begin, end, threading.get_ident()))
        return end

    for _ in range(2):  # each run starts a helper, until there are enough
        if len(threads._helpers) < 1:
            threads.run(lambda begin, end: end, [0, 1, 2])
    assert threads.run(work, [3, 5, 6, 9]) == 9
    assert sorted(done)[0][:2] == (3, 5)
    assert {each[:2] for each in done} == {(3, 5), (5, 6), (6, 9)}
    assert len({thread for *_, thread in done}) == 3
    assert threads.count() == 3


def test_without_helpers_the_caller_does_all() -> None:
    done = []

    def work(begin: int, end: int) -> int:
        done.append((begin, end))
        return end

    with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        assert threads.run(work, [0, 1, 2, 3]) == 3
    assert done == [(0, 1), (1, 2), (2, 3)]
    assert threads._parts.empty()  # nobody would ever take them out
    with mock.patch.object(threads, "_most", 0):
        assert threads.run(work, [0, 4, 5]) == 5
    assert threads._helpers == []
    assert threads.run(work, [7, 8]) == 8


def test_a_helper_that_comes_late_finds_nothing_to_do() -> None:
    done = []
    with mock.patch.object(threads, "_help", return_value=None):  # one that never takes a part
        assert threads.run(lambda begin, end: done.append(begin) or end, [0, 1, 2]) == 2
    left = threads._parts.get_nowait()
    assert not left.run()
    assert not hasattr(left, "work")
    assert done == [0, 1]


def test_how_far_it_came() -> None:
    assert threads.run(lambda begin, end: min(end, 5), [0, 3, 6, 9]) == 5
    assert threads.run(lambda begin, end: begin if begin == 3 else end, [0, 3, 6, 9]) == 3


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
        threads.run(work, [0, 3, 6, 9])
    assert sorted(over) == sorted({0, 3, 6} - {failing})
    assert threads.run(lambda begin, end: end, [0, 3, 6, 9]) == 9


@pytest.mark.long
def test_nothing_of_it_is_kept() -> None:
    class Work:
        def __call__(self, begin: int, end: int) -> int:
            return end

    work = Work()
    threads.run(work, [0, 1, 2, 3])
    gone = weakref.ref(work)
    del work
    gc.collect()
    assert gone() is None


def test_a_forked_child_starts_its_own() -> None:
    threads.run(lambda begin, end: end, [0, 1, 2])
    assert threads._helpers
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 2 if threads._helpers else 3
            together = threading.Barrier(2)

            def work(begin: int, end: int) -> int:
                together.wait(SECONDS)
                return end

            status = 0 if threads.run(work, [0, 1, 2]) == 2 and len(threads._helpers) == 1 else 4
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.long
def test_no_helper_is_started_while_the_interpreter_ends() -> None:
    """Regression: on Python 3.11 the start of a thread never returned there."""
    program = """
from diskreplay.reading import threads

class Late:
    def __del__(self, run=threads.run):
        print(run(lambda begin, end: end, [0, 10, 20]), flush=True)

threads._most = 2
late = Late()
late.itself = late
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS)
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
            assert begun.wait(SECONDS)  # then the helper is in the midst of the other part
            children.append(os.fork())
            if children[-1]:
                over.set()
        else:
            begun.set()
            assert over.wait(SECONDS)
        return end

    threads.run(lambda begin, end: end, [0, 1, 2])  # so that there is a helper
    found = threads.run(work, [0, 1, 2])
    if os.getpid() != parent:
        os._exit(0 if found == 2 else 1)
    assert found == 2
    assert os.waitpid(children[0], 0)[1] == 0
