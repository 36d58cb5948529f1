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


def test_the_example_runs() -> None:
    assert doctest.testmod(interrupts, raise_on_error=True).attempted > 5


@pytest.mark.parametrize("work", [guarded, nested, trying, handling])
@pytest.mark.parametrize("at", interrupts.PLACES)
def test_no_place_leaves_a_lock_held_or_an_exception_handled(work: Any, at: Any) -> None:
    tool = Interrupts(at=at, within=HERE)
    count = tool.count(work)
    assert count > (3 if at == "check" else 6)
    for number in range(count):
        place = tool.interrupt(number, work)
        assert place is not None
        assert (place.number, place.file) == (number, __file__)
        assert (LOCK.locked(), sys.exc_info()) == (False, (None, None, None)), place
    assert tool.interrupt(count, work) is None


def test_lines_are_those_that_are_run_but_for_ends_of_with_and_try() -> None:
    tool = Interrupts(within=HERE)
    first = guarded.__code__.co_firstlineno
    found = [tool.interrupt(number, guarded) for number in range(tool.count(guarded))]
    assert [place.line - first for place in found if place] == [1, 2, 3, 4, 5, 2, 3, 4, 5, 6]
    assert str(found[-1]) == f"{__file__}:{first + 6} in guarded"
    for work, passed_over in ((guarded, 2), (trying, 4)):
        tool.count(work)
        assert tool.passed_over == passed_over
    bytecodes, checks = (Interrupts(at=at, within=HERE).count(guarded) for at in ("bytecode", "check"))
    assert bytecodes > max(len(found), checks)


def test_generators_have_places() -> None:
    def counting() -> Iterator[int]:
        yield 0
        yield 1

    tool, numbers = Interrupts(within=HERE), counting()
    assert tool.count(lambda: next(numbers)) == 2  # of the lambda, and of the generator
    place = tool.interrupt(1, lambda: next(numbers))
    assert place is not None
    assert place.function.endswith("counting")


def test_an_error_that_is_another_or_the_calls_own_is_raised() -> None:
    def translates() -> None:
        try:
            guarded()
        except MemoryError as error:
            raise ValueError("translated") from error

    def fails() -> None:
        raise KeyboardInterrupt

    with pytest.raises(ValueError, match="translated"):
        Interrupts(MemoryError, within=HERE).interrupt(4, translates)
    with pytest.raises(KeyboardInterrupt):
        Interrupts(within=HERE).interrupt(10, fails)
    assert sys.gettrace() is None or "interrupts" not in repr(sys.gettrace())


def test_a_signal_goes_to_the_handler_of_the_moment() -> None:
    came: list[int] = []

    def held_back() -> int:
        kept = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
        total = sum([1, 2])
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
        return len([[value] for value in range(5000)])

    gc.callbacks.append(watch)
    try:
        allocate()
        assert called  # so many objects start the collector, where it is on
        called.clear()
        tool = Interrupts(within=HERE)
        assert tool.count(allocate) < 5010
        assert tool.interrupt(2, allocate) is not None
        assert not called
    finally:
        gc.callbacks.remove(watch)
    assert gc.isenabled()


@pytest.mark.parametrize("options", [{"at": "everywhere"}, {"by": "mail"}, {"within": "diskreplay"}])
def test_bad_arguments(options: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Interrupts(**options)
