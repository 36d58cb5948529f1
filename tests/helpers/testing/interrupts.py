"""An exception at any place of a call: what a Ctrl-C, a full memory or an error of the user's code leaves behind.

Places are lines, bytecodes, or just the points at which CPython looks for signals, of the functions of some packages.
Only the calling thread is traced.

Tracing knows places at which no exception can come: CPython looks for signals at the start of functions, at backward
jumps and after calls. One there would leave a lock held whose ``with`` block is sound, so they are passed over:

1. The end of a ``with`` block, before ``__exit__`` is called: it is no part of the block any more.
2. The line of a ``try:`` itself, in which nothing is done: it is part of no block.
3. Where CPython begins and ends to handle an exception: it would hold that one for handled for ever after.
4. With ``by="raise"``, the functions of :mod:`diskreplay.process.locks`: they take and release this package's locks
   with signals held back. With ``by="signal"`` they have places.

The garbage collector rests meanwhile: what it would call is no part of the call that it breaks into, and CPython prints
what is raised there and goes on.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import gc
import itertools
import signal
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any, Literal

LOCKS = "diskreplay.process.locks"
PLACES = ("line", "bytecode", "check")
CHECKS = frozenset(("RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "INSTRUMENTED_RESUME"))
"""The instructions after which CPython 3.11 to 3.13 looks for signals."""
HANDLING = ("PUSH_EXC_INFO", "POP_EXCEPT")
"""The instructions that note which exception is being handled."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A place of a call, about to be run.

    Attributes:
        number: the number of places before it in the call.
        file: the code's.
        line: 1 for the file's first.
        function: the name of the innermost one.
    """

    number: int
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclasses.dataclass
class Interrupts:
    """A tool that interrupts calls, each once and at one place.

    Attributes:
        error: the class of the exception, or a function that makes one.
        at: "line", each line that is run; "bytecode", each instruction; "check", only where CPython would handle a
            signal.
        by: "raise", the exception is raised there, whatever is being done; "signal", the handler of SIGINT is called
            there that is installed at this moment, so that code which holds signals back is respected.
        within: packages and modules whose functions have places; this package only by full names.
        passed_over: lines of the last call that were no places; see the module's docstring.

    >>> values = []
    >>> def fill():
    ...     for value in range(3):
    ...         values.append(value)
    >>> interrupts = Interrupts(MemoryError, within=[__name__])
    >>> count = interrupts.count(fill)
    >>> for number in range(count):
    ...     values.clear()
    ...     place = interrupts.interrupt(number, fill)
    ...     print(place.function, values)
    fill []
    fill []
    fill [0]
    fill [0]
    fill [0, 1]
    fill [0, 1]
    fill [0, 1, 2]
    >>> interrupts.interrupt(count, fill) is None  # the call came to its end before
    True
    """

    error: Callable[[], BaseException] = KeyboardInterrupt
    at: Literal["line", "bytecode", "check"] = "line"
    by: Literal["raise", "signal"] = "raise"
    within: Sequence[str] = ("diskreplay",)
    passed_over: int = dataclasses.field(default=0, init=False)
    _place: Place | None = dataclasses.field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.at not in PLACES:
            raise ValueError(f"at must be one of {', '.join(PLACES)}, got {self.at!r}")
        if self.by not in ("raise", "signal"):
            raise ValueError(f"by must be 'raise' or 'signal', got {self.by!r}")
        if isinstance(self.within, str):
            raise ValueError(f"within must be a sequence of names of packages, got {self.within!r}")

    def count(self, call: Callable[[], object]) -> int:
        """Return the number of places of a call, which is made once and comes to its end."""
        return self._run(call, -1)

    def interrupt(self, number: int, call: Callable[[], object]) -> Place | None:
        """Make a call and interrupt it at the place with this number, from 0.

        Returns the place, whether or not the exception came out of the call; None where the call was over before. An
        exception of another class that comes out of it is raised.
        """
        raised = self.error() if self.by == "raise" else None
        expected = KeyboardInterrupt if raised is None else type(raised)
        try:
            self._run(call, number, raised)
        except BaseException as error:
            if self._place is None or not isinstance(error, expected):
                raise
            error.__traceback__ = None  # its frames would keep alive what the call left behind
        return self._place

    def _run(self, call: Callable[[], object], number: int, raised: BaseException | None = None) -> int:
        """Make the call, and return how many places it had; ``_place`` is the one at which it was interrupted."""
        self.passed_over = count = 0
        self._place = None
        bytecodes = self.at != "line"

        def visit(frame: FrameType) -> None:
            nonlocal count
            if frame.f_lasti in _passed_over(frame.f_code):
                self.passed_over += self.at == "line"
                return
            count += 1
            if count == number + 1:
                sys.settrace(None)
                code = frame.f_code
                self._place = Place(number, code.co_filename, frame.f_lineno, code.co_qualname)
                if raised is not None:
                    raise raised
                handler = signal.getsignal(signal.SIGINT)
                if callable(handler):
                    handler(signal.SIGINT, frame)

        def enter(frame: FrameType, event: str, _: Any) -> Any:
            if not self._traced(frame.f_globals.get("__name__", "")):
                return None
            names = _names(frame.f_code)
            last = ""

            def trace(frame: FrameType, event: str, _: Any) -> Any:
                nonlocal last
                if event == "opcode":
                    name = names.get(frame.f_lasti, "")
                    if name == "NOP":
                        return trace
                    before, last = last, name
                    if self.at == "bytecode" or before in CHECKS:
                        visit(frame)
                elif event == "line" and not bytecodes:
                    visit(frame)
                return trace

            frame.f_trace_opcodes = bytecodes
            frame.f_trace_lines = not bytecodes
            return trace

        before, collects = sys.gettrace(), gc.isenabled()
        gc.disable()
        sys.settrace(enter)
        try:
            call()
        finally:
            sys.settrace(before)
            if collects:
                gc.enable()
        return count

    def _traced(self, module: str) -> bool:
        if self.by == "raise" and module == LOCKS:
            return False
        if module.startswith("helpers.testing."):
            return module in self.within
        return any(module == name or module.startswith(f"{name}.") for name in self.within)


@functools.cache
def _names(code: CodeType) -> dict[int, str]:
    return {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}


@functools.cache
def _passed_over(code: CodeType) -> frozenset[int]:
    """Return the instructions at which nothing can go wrong.

    They leave a ``with`` block as it should be, up to ``__exit__(None, None, None)``, or do nothing, or note which
    exception is being handled: no exception table leads from them to the end of the block that they stand in.
    """
    instructions = list(dis.get_instructions(code))
    found = {instruction.offset for instruction in instructions if instruction.opname in ("NOP", *HANDLING)}
    for first, second in itertools.pairwise(instructions):
        if (first.opname, first.arg, second.opname) == ("COPY", 3, "POP_EXCEPT"):  # where a handler itself fails
            found.add(first.offset)
    for at in range(len(instructions)):
        if [(i.opname, i.argval) for i in instructions[at : at + 3]] != [("LOAD_CONST", None)] * 3:
            continue
        rest = [i for i in instructions[at + 3 : at + 5] if i.opname != "PRECALL"]
        if not rest or (rest[0].opname, rest[0].arg) != ("CALL", 2):
            continue
        found.update(i.offset for i in instructions[at : at + 5] if i.offset <= rest[0].offset)
        while at and instructions[at - 1].opname in ("NOP", "SWAP"):  # the latter of a value to be returned
            at -= 1
            found.add(instructions[at].offset)
    return frozenset(found)
