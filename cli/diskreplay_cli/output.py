"""Where output goes: facts to stdout, progress and errors to stderr; colours and bars only for a terminal."""

from __future__ import annotations

import contextlib
import json
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from diskreplay_cli import text

json_option = click.option("--json", "as_json", is_flag=True, help="Print the facts as one JSON document.")


def console() -> Console:
    """Of stdout. Markup is off: paths and names are printed as they are."""
    return Console(markup=False, highlight=False, emoji=False)


def print_json(document: Mapping[str, Any]) -> None:
    """JSON has no infinities; ours never get into the facts, so that one would be a defect."""
    click.echo(json.dumps(document, indent=2, allow_nan=False))


def print_wrapped(line: str) -> None:
    """A line, broken between words where a terminal is not wide enough for it."""
    stdout = console()
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    click.echo(textwrap.fill(line, stdout.width, subsequent_indent=indent) if stdout.is_terminal else line)


def plain_bars() -> bool:
    """Whether the output cannot carry block characters."""
    return "utf" not in (sys.stdout.encoding or "").lower()


class Note(ProgressColumn):
    """A text that the command puts into the task's fields."""

    def render(self, task: Task) -> Text:
        return Text(str(task.fields.get("note", "")))


class Narrower:
    """A renderable that leaves room in its lines for the ``^C`` of an interrupt, which then goes away with it."""

    def __init__(self, content: RenderableType) -> None:
        self.content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self.content, options.update_width(max(1, options.max_width - len("^C") - 1)))


class Bar(Progress):
    """A bar that an interrupt does not break."""

    def get_renderable(self) -> RenderableType:
        return Narrower(super().get_renderable())


@contextlib.contextmanager
def progress(what: str, *, counted: bool) -> Iterator[Callable[..., None]]:
    """A bar on stderr, if that is a terminal: call it with what is done, what there is in all, and a note.

    Args:
        what: in front of the bar.
        counted: whether to print the two numbers, too.
    """
    bar = Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        *((MofNCompleteColumn(),) if counted else (TextColumn("{task.percentage:>3.0f} %", markup=False),)),
        Note(),
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True, markup=False, highlight=False),
        transient=True,
        expand=True,
    )
    task: TaskID = bar.add_task(what, total=None)

    def update(done: int, total: int, note: str = "") -> None:
        bar.update(task, completed=done, total=total, note=note)

    if not bar.console.is_terminal:
        yield lambda done, total, note="": None
        return
    with bar:
        yield update


def rate(count: int, seconds: float) -> str:
    return f"{text.number(round(count / seconds))}/s" if seconds > 0 else "-"
