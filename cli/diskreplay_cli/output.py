"""Where output goes: facts to stdout, progress and errors to stderr; colours and bars only for a terminal."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click
from rich.console import Console
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


def plain_bars() -> bool:
    """Whether the output cannot carry block characters."""
    return "utf" not in (sys.stdout.encoding or "").lower()


class Note(ProgressColumn):
    """A text that the command puts into the task's fields."""

    def render(self, task: Task) -> Text:
        return Text(str(task.fields.get("note", "")))


@contextlib.contextmanager
def progress(what: str, *, counted: bool) -> Iterator[Callable[..., None]]:
    """A bar on stderr, if that is a terminal: call it with what is done, what there is in all, and a note.

    Args:
        what: in front of the bar.
        counted: whether to print the two numbers, too.
    """
    bar = Progress(
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
