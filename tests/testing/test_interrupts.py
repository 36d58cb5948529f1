"""An exception comes at just the place that was asked for, and at no place where none could come."""

from __future__ import annotations

import contextlib
import doctest
import gc
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.testing import Interrupts, interrupts

HERE = [__name__]
LOCK = threading.Lock()


def guarded() -> list[int]:
    found = []
    for value in range(2):
        with LOCK:
            found.append(value)
            if value:
                return found
    return []


def nested() -> int:
    with LOCK, contextlib.nullcontext() as nothing:
        assert nothing is None
    with contextlib.nullcontext(), LOCK:
        return len([value for value in range(2) if value])


def trying() -> int:
    total = 0
    with LOCK:
        try:
            for value in range(2):
                try:
                    total += len(str(value))
                finally:
                    total += 1
        except ValueError:
            pass
    return total


def handling() -> int:
    with contextlib.suppress(KeyError):
        raise KeyError
    for wrong in (ValueError, TypeError):
        try:
            raise wrong
        except ValueError:
            continue
        except TypeError as error:
            str(error)
        finally:
            len("")
    try:
        raise OSError
    except OSError:
        return 1


def counting() -> Iterator[int]:
    yield 0
    yield 1


def test_the_example_runs() -> None:
    assert doctest.testmod(interrupts, raise_on_error=True).attempted > 5


@pytest.mark.parametrize("work", [guarded, nested, trying])
@pytest.mark.parametrize("at", interrupts.PLACES)
def test_no_place_leaves_a_lock_held(work: Any, at: Any) -> None:
    tool = Interrupts(at=at, within=HERE)
    count = tool.count(work)
    assert count > (3 if at == "check" else 6)
    assert not LOCK.locked()
    for number in range(count):
        place = tool.interrupt(number, work)
        assert place is not None
        assert (place.number, place.file) == (number, __file__)
        assert not LOCK.locked(), place
    assert tool.interrupt(count, work) is None


@pytest.mark.parametrize("at", interrupts.PLACES)
def test_no_exception_is_handled_for_ever(at: Any) -> None:
    tool = Interrupts(at=at, within=HERE)
    for number in range(tool.count(handling)):
        place = tool.interrupt(number, handling)
        assert sys.exc_info() == (None, None, None), place
    assert handling() == 1


def test_ends_of_with_and_lines_of_try_are_no_places() -> None:
    tool = Interrupts(within=HERE)
    tool.count(guarded)
    assert tool.passed_over == 2
    tool.count(trying)
    assert tool.passed_over == 4


def test_lines_are_those_that_are_run() -> None:
    tool = Interrupts(within=HERE)
    first = guarded.__code__.co_firstlineno
    lines = []
    for number in range(tool.count(guarded)):
        place = tool.interrupt(number, guarded)
        assert place is not None
        assert place.function == "guarded"
        lines.append(place.line - first)
    assert lines == [1, 2, 3, 4, 5, 2, 3, 4, 5, 6]
    assert str(place) == f"{__file__}:{first + 6} in guarded"


def test_generators_have_places() -> None:
    tool = Interrupts(within=HERE)
    numbers = counting()
    assert tool.count(lambda: next(numbers)) == 2  # of the lambda, and of the generator
    place = tool.interrupt(1, lambda: next(numbers))
    assert place is not None
    assert place.function == "counting"


def test_each_kind_of_place_is_finer_or_coarser() -> None:
    lines, bytecodes, checks = (Interrupts(at=at, within=HERE).count(guarded) for at in ("line", "bytecode", "check"))
    assert lines < bytecodes
    assert checks < bytecodes


def test_an_error_that_the_call_turns_into_another_is_raised() -> None:
    def translates() -> None:
        try:
            guarded()
        except MemoryError as error:
            raise ValueError("translated") from error

    tool = Interrupts(MemoryError, within=HERE)
    with pytest.raises(ValueError, match="translated"):
        tool.interrupt(4, translates)
    assert sys.gettrace() is None or "interrupts" not in repr(sys.gettrace())


def test_an_error_of_the_call_itself_is_raised() -> None:
    def fails() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Interrupts(within=HERE).interrupt(10, fails)


def test_a_signal_goes_to_the_handler_of_the_moment() -> None:
    came: list[int] = []

    def held_back() -> int:
        kept = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
        total = 0
        for value in range(3):
            total += value
        signal.signal(signal.SIGINT, kept)
        return total

    kept = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored, as in a background job
    try:
        tool = Interrupts(by="signal", within=HERE)
        places = [tool.interrupt(number, held_back) for number in range(tool.count(held_back))]
    finally:
        signal.signal(signal.SIGINT, kept)
    assert None not in places
    assert came == [signal.SIGINT] * (len(places) - 2)  # all but before it was installed and after it was removed


def test_what_the_collector_calls_has_no_places() -> None:
    """It may run in the middle of any call, and what is raised in it is printed and lost."""
    called: list[str] = []

    def watch(phase: str, info: dict[str, int]) -> None:
        called.append(phase)

    def allocate() -> int:
        kept = [[value] for value in range(5000)]
        return len(kept)

    gc.callbacks.append(watch)
    try:
        allocate()
        assert called  # so many objects start the collector, where it is on
        called.clear()
        tool = Interrupts(within=HERE)
        assert tool.count(allocate) < 5010
        assert not called
        assert tool.interrupt(2, allocate) is not None
    finally:
        gc.callbacks.remove(watch)
    assert gc.isenabled()


@pytest.mark.parametrize("options", [{"at": "everywhere"}, {"by": "mail"}, {"within": "diskreplay"}])
def test_bad_arguments(options: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Interrupts(**options)
