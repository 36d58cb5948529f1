"""The places of output: facts to stdout, progress and errors to stderr, colours and bars only for a terminal."""

from __future__ import annotations

import csv
import io
import itertools
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from diskreplay_cli import text

if TYPE_CHECKING:
    from diskreplay.ops.result import Result

Command = TypeVar("Command", bound=Callable[..., Any])

MEASURED_ROWS = 1_000
"""The rows of a table that decide how wide its columns are; as many lines are printed at once."""


def out_option(help: str, default: str | None = None) -> Callable[[Command], Command]:
    """Return the option of a command that writes one file, required without a default."""
    return click.option(
        "-o", "--out", type=click.Path(), metavar="FILE", required=default is None, default=default,
        show_default=default is not None, help=help,
    )  # fmt: skip


def count_option(name: str, help: str, least: int = 1, **more: Any) -> Callable[[Command], Command]:
    """Return an option for a whole number from ``least`` on, whose default is shown."""
    shown = "default" in more
    return click.option(name, type=click.IntRange(least), metavar="N", show_default=shown, help=help, **more)


store_argument = click.argument("path", type=click.Path())
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace the output if it exists.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print the facts as one JSON document.")


def console() -> Console:
    """Return the console of stdout, without markup: paths and names are printed as they are."""
    return Console(markup=False, highlight=False, emoji=False)


def print_json(document: Mapping[str, Any]) -> None:
    """Print JSON, which has no infinities; ours never get into the facts, so that one would be a defect."""
    click.echo(json.dumps(document, indent=2, allow_nan=False))


def printed_json(found: Result | Mapping[str, Any], as_json: bool) -> bool:
    """Print what a command found or did as one document, and return True, if that is asked for."""
    if as_json:
        print_json(found if isinstance(found, Mapping) else found.to_json())
    return as_json


def print_wrapped(line: str) -> None:
    """Print a line, broken between words if the terminal is too narrow; paths stay in one piece."""
    stdout = console()
    if stdout.is_terminal:
        start = len(line) - len(line.lstrip(" 0123456789."))
        parts = textwrap.wrap(
            line, stdout.width, subsequent_indent=" " * (start or 4), break_long_words=False, break_on_hyphens=False,
            drop_whitespace=True, replace_whitespace=False,
        )  # fmt: skip
        line = "\n".join(parts)
    click.echo(line)


def print_table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print a table, or a block for each row if the terminal is too narrow for that.

    It is printed as the rows come: the first of them say how wide the columns are.
    """
    waiting = iter(rows)
    measured = list(itertools.islice(waiting, MEASURED_ROWS))
    widths = [max(map(cell_len, column)) for column in zip(header, *measured, strict=True)]
    stdout = console()
    rows = itertools.chain(measured, waiting)
    if stdout.is_terminal and sum(widths) + 2 * (len(widths) - 1) > stdout.width:
        _print_blocks(header, rows)
        return
    click.secho(_line(header, widths), bold=True)
    while lines := [_line(row, widths) for row in itertools.islice(rows, MEASURED_ROWS)]:
        click.echo("\n".join(lines))


def print_csv(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print comma-separated values as the rows come."""
    waiting = itertools.chain([header], rows)
    while some := list(itertools.islice(waiting, MEASURED_ROWS)):
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows(some)
        click.echo(file.getvalue(), nl=False)


def _line(cells: Iterable[str], widths: Sequence[int]) -> str:
    filled = (cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True))
    return "  ".join(filled).rstrip()


def _print_blocks(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print a table that is wider than the terminal: a line for each cell, an empty one between rows."""
    width = max(map(len, header))
    for number, row in enumerate(rows):
        lines = [f"{name:<{width}}  {cell}" for name, cell in zip(header, row, strict=True)]
        click.echo("\n".join([""] * (number > 0) + lines))


def plain_bars() -> bool:
    """Tell whether the output cannot carry block characters."""
    return "utf" not in (sys.stdout.encoding or "").lower()


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


class Progressing:
    """The progress of a command, a bar on stderr if that is a terminal; nothing else may be printed meanwhile.

    Call it with what is done, what there is in all, and a note. The bar shows while a ``with`` block runs, then it
    leaves no trace; :meth:`hide` takes it away until the next call.
    """

    def __init__(self, what: str, *, counted: bool) -> None:
        """Make a bar with ``what`` in front of it and, if it is ``counted``, with the two numbers."""
        self._what = what
        self._counted = counted
        self._bar: Bar | None = None

    def __call__(self, done: int, total: int, note: str = "") -> None:
        self.show()
        if self._bar is not None:
            self._bar.update(TaskID(0), completed=done, total=total, note=note)

    def __enter__(self) -> Self:
        self.show()
        return self

    def __exit__(self, *ended: object) -> None:
        self.hide()

    def show(self) -> None:
        console = Console(stderr=True, markup=False, highlight=False)
        if self._bar is None and console.is_terminal:
            self._bar = Bar(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=None),
                MofNCompleteColumn() if self._counted else TextColumn("{task.percentage:>3.0f} %", markup=False),
                TextColumn("{task.fields[note]}", markup=False),
                TimeRemainingColumn(compact=True),
                console=console,
                transient=True,
                expand=True,
            )
            self._bar.add_task(self._what, total=None, note="")
            self._bar.start()

    def hide(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()


def rate(count: int, seconds: float) -> str:
    return f"{text.number(round(count / seconds))}/s" if seconds > 0 else "-"
