"""Items made ahead in a thread: in order, no further than asked for, errors and ends in their turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from helpers.forking import forked
from helpers.patience import PATIENCE

from diskreplay.errors import StateError
from diskreplay.process.background import Prefetcher


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "diskreplay-test"]


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_all_items_in_order_then_the_end_for_ever() -> None:
    items = Prefetcher(lambda: iter(range(1000)), 3, "test")
    assert (list(items), list(items)) == (list(range(1000)), [])
    assert not threads()


def test_none_is_an_item() -> None:
    assert list(Prefetcher(lambda: iter([None, 1, None]), 1, "test")) == [None, 1, None]


def test_no_more_are_made_than_may_wait_and_one() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100):
            made.append(item)
            yield item

    with Prefetcher(items, 2, "test") as prefetched:
        wait_for(lambda: len(made) == 3)
        assert next(prefetched) == 0
        wait_for(lambda: len(made) == 4)
        time.sleep(0.3)
        assert made == [0, 1, 2, 3]


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyError("gone")

    prefetched = Prefetcher(items, 5, "test")
    assert next(prefetched) == 1
    with pytest.raises(KeyError, match="gone"):
        next(prefetched)
    assert list(prefetched) == []
    assert not threads()


def test_closing_waits_until_the_iterator_is_closed() -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            while True:
                yield 0
        finally:
            time.sleep(0.2)
            closed.set()

    with Prefetcher(items, 2, "test") as prefetched:
        next(prefetched)
    assert closed.is_set()
    assert not threads()
    prefetched.close()
    assert list(prefetched) == []


def test_a_forgotten_one_ends() -> None:
    prefetched = Prefetcher(lambda: iter(range(100)), 2, "test")
    next(prefetched)
    del prefetched
    wait_for(lambda: not threads())


def test_in_a_forked_process_it_is_refused_and_closes() -> None:
    with Prefetcher(lambda: iter(range(100)), 2, "test") as prefetched:
        next(prefetched)

        def in_child() -> None:
            with pytest.raises(StateError, match="the test's thread is in the process that this one was forked from"):
                next(prefetched)
            prefetched.close()

        assert forked(in_child) is None
        assert next(prefetched) == 1
