"""Calls made by a thread: in order, no more waiting than allowed, errors told once, interrupts, forks and ends."""

from __future__ import annotations

import itertools
import threading
import time
import types
from collections.abc import Callable
from typing import Literal

import pytest
from helpers.forking import forked
from helpers.testing import Interrupts
from helpers.testing.interrupts import Place
from helpers.threads import together

from diskreplay.errors import StateError
from diskreplay.process import background
from diskreplay.process.background import CallQueue, Waited


def nothing() -> None:
    pass


def make(most: int = 3, last: Callable[[], object] = nothing, note: str = "noted") -> CallQueue:
    return CallQueue(most, "test", last, lambda: note)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "diskreplay-test"]


def fail() -> None:
    raise KeyError("a call")


def test_calls_are_made_in_order_and_the_last_one_last() -> None:
    made: list[int] = []
    calls = make(last=lambda: made.append(-1))
    for number in range(500):
        calls.put(lambda number=number: made.append(number))  # type: ignore[misc]
    calls.end()
    assert made == [*range(500), -1]
    calls.end()
    assert made == [*range(500), -1]
    assert not threads()


def test_no_more_wait_than_allowed_and_the_waits_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, go = make(most=2), threading.Event()
    assert calls.waited == Waited(0, 0.0)
    began = threading.Event()
    calls.put(lambda: (began.set(), go.wait()))
    began.wait()
    for _ in range(2):
        calls.put(nothing)
    assert calls.waited.count == 0

    def monotonic() -> float:
        """The seconds until the thread goes on, which it does once the wait has begun."""
        now = 0.3 if go.is_set() else 0.0
        go.set()
        return now

    monkeypatch.setattr(background, "time", types.SimpleNamespace(monotonic=monotonic))
    calls.put(nothing)
    assert calls.waited == Waited(1, 0.3)
    calls.end()


def test_an_error_is_raised_once_and_ends_a_series() -> None:
    made: list[str] = []
    calls, go = make(most=9), threading.Event()
    calls.put(lambda: made.append("before"))
    calls.put(lambda: (go.wait(), fail()))
    calls.put(lambda: made.append("behind"))
    go.set()
    calls.settle()
    calls.put(lambda: made.append("later, and not told yet"))
    with pytest.raises(KeyError, match="a call") as told:
        calls.check()
    assert (told.value.__notes__, made) == (["noted"], ["before"])
    calls.check()
    calls.put(lambda: made.append("anew"))
    calls.end()
    assert made == ["before", "anew"]


def test_the_end_raises_the_error() -> None:
    calls = make()
    calls.put(fail)
    with pytest.raises(KeyError):
        calls.end()
    calls.end()
    assert not threads()


def test_what_is_forgotten_is_done_first() -> None:
    made: list[int] = []
    calls = make(last=lambda: made.append(2))
    calls.put(lambda: (time.sleep(0.2), made.append(1)))
    del calls
    assert made == [1, 2]
    assert not threads()


def test_an_error_that_nobody_asked_for_is_a_warning() -> None:
    calls = make(note="5 were not recorded")
    calls.put(fail)
    with pytest.warns(ResourceWarning, match=r"KeyError: 'a call'\n5 were not recorded"):
        del calls


def test_settling_comes_from_any_thread_but_its_own() -> None:
    made: list[int] = []
    calls = make(last=lambda: made.append(-1))
    calls.put(lambda: made.append(0))
    calls.put(calls.settle)
    together(calls.settle)
    assert made == [0, -1]
    calls.end()
    calls.settle()
    assert made == [0, -1, -1]


def test_a_forked_process_has_no_thread() -> None:
    calls = make()
    calls.put(nothing)

    def in_child() -> None:
        for call in (lambda: calls.put(nothing), calls.check):
            with pytest.raises(StateError, match="the test thread is in the process that this one was forked from"):
                call()
        calls.settle()
        calls.end()

    assert forked(in_child) is None
    calls.end()


def checked(calls: CallQueue, told: list[BaseException | None]) -> None:
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
    place: Place | None = None
    for number in itertools.count():
        made: list[str] = []
        told: list[BaseException | None] = []
        calls = make(most=1)
        calls.put(fail if wrong else nothing)
        calls.settle()

        def use(calls: CallQueue = calls, made: list[str] = made, told: list[BaseException | None] = told) -> None:
            checked(calls, told)
            calls.put(lambda: made.append("one"))
            calls.settle()

        place = interrupts.interrupt(number, use)
        checked(calls, told)
        if by == "signal" or place is None:
            assert [type(error) for error in told if error is not None] == [KeyError] * wrong, place
        calls.put(lambda made=made: made.append("two"))  # type: ignore[misc]
        calls.end()
        assert made in (["one", "two"], ["two"]), place
        if place is None:
            break
    assert number > 5
    assert not threads()
