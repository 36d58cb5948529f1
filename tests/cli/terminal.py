"""A terminal for tests: a command behind a pseudo-terminal, and what a person would see of it in the end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

CLI = [sys.executable, "-m", "diskreplay_cli"]
ROWS = 40
SECONDS = 300

TOKEN = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b[78=>]|([\x00-\x1f])|([^\x00-\x1f]+)")


class Screen:
    """Lines as a terminal shows them, those that scrolled away included: what Rich and plain programs make use of."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.cells: list[list[str]] = [[]]
        self.wrapped = {0: False}
        self.row = self.column = 0

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            found = TOKEN.match(text, at)
            assert found, f"no terminal knows {text[at : at + 10]!r}"
            at = found.end()
            parameters, command, control, printed = found.groups()
            if command:
                self._command(parameters, command)
            elif control:
                self._control(control)
            elif printed:
                for character in printed:
                    self._print(character)

    def lines(self) -> list[str]:
        """What is to be read in the end; a line that was wider than the terminal is one again."""
        found: list[str] = []
        for row, cells in enumerate(self.cells):
            line = "".join(cells)
            if self.wrapped.get(row):
                found[-1] += line
            else:
                found.append(line)
        while found and not found[-1].strip():
            found.pop()
        return [line.rstrip() for line in found]

    def _print(self, character: str) -> None:
        if self.column >= self.columns:
            self._down()
            self.column = 0
            self.wrapped[self.row] = True
        cells = self.cells[self.row]
        cells += " " * (self.column + 1 - len(cells))
        cells[self.column] = character
        self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.cells):
            self.cells.append([])

    def _control(self, control: str) -> None:
        if control == "\n":
            self._down()
        elif control == "\r":
            self.column = 0
        elif control == "\b":
            self.column = max(0, self.column - 1)
        else:
            assert control == "\a", f"no test needs {control!r}"

    def _command(self, parameters: str, command: str) -> None:
        count = int(parameters) if parameters.isdigit() else 0
        if command == "A":
            self.row = max(0, len(self.cells) - ROWS, self.row - max(1, count))
        elif command == "K":
            cells = self.cells[self.row]
            if count == 2:
                cells.clear()
                self.wrapped[self.row] = False
            else:
                assert count == 0
                del cells[self.column :]
        else:
            assert command in "mhl", f"no test needs the command {command!r}"


class Seen(NamedTuple):
    status: int
    lines: list[str]
    """What a terminal shows in the end."""
    drawn: str
    """All that was sent to it."""


def run(
    *args: object, columns: int = 80, cwd: os.PathLike[str] | None = None, command: Sequence[str] = CLI,
    env: Mapping[str, str] = {}, until: str | None = None, number: signal.Signals | None = None,
) -> Seen:  # fmt: skip
    """Runs a command in a terminal of so many columns.

    Args:
        args: of the command.
        columns: of the terminal.
        cwd: where it runs.
        command: to run.
        env: more of the environment.
        until: a text at which it gets a signal,
        number: this one; or the Ctrl-C key of the terminal if None.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "CI")}
    plain |= {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **env}

    def hear() -> None:
        """Makes the terminal the process's own, for its Ctrl-C, which background jobs of a shell ignore."""
        for each in (signal.SIGINT, signal.SIGHUP):
            signal.signal(each, signal.SIG_DFL)
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [*command, *map(str, args)], stdin=theirs, stdout=theirs, stderr=theirs, env=plain, cwd=cwd,
        start_new_session=True, preexec_fn=hear, close_fds=True,
    )  # fmt: skip
    os.close(theirs)
    late = threading.Timer(SECONDS, process.kill)
    late.start()
    drawn = b""
    try:
        while True:
            try:
                got = os.read(ours, 1 << 16)
            except OSError:  # the last process that had the terminal has ended
                got = b""
            if not got:
                break
            drawn += got
            if until is not None and until.encode() in drawn:
                until = None
                if number is None:
                    os.write(ours, b"\x03")
                else:
                    process.send_signal(number)
        status = process.wait()
    finally:
        late.cancel()
        process.kill()
        process.wait()
        os.close(ours)
    screen = Screen(columns)
    text = drawn.decode()
    screen.feed(text)
    return Seen(status, screen.lines(), text)
