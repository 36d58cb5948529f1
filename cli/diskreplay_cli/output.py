"""Where output goes: facts to stdout, progress and errors to stderr; colours and bars only for a terminal."""

from __future__ import annotations

import contextlib
import json
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
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
from rich.table import Table
from rich.text import Text

from diskreplay_cli import text

if TYPE_CHECKING:
    from diskreplay.ops.result import Result

Command = TypeVar("Command", bound=Callable[..., Any])


def out_option(help: str, default: str | None = None) -> Callable[[Command], Command]:
    """The option of a command that writes one file; without a default it must be given."""
    return click.option(
        "-o", "--out", type=click.Path(), metavar="FILE", required=default is None, default=default,
        show_default=default is not None, help=help,
    )  # fmt: skip


store_argument = click.argument("path", type=click.Path())
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace the output if it exists.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print the facts as one JSON document.")


def console() -> Console:
    """Of stdout. Markup is off: paths and names are printed as they are."""
    return Console(markup=False, highlight=False, emoji=False)


def print_json(document: Mapping[str, Any]) -> None:
    """JSON has no infinities; ours never get into the facts, so that one would be a defect."""
    click.echo(json.dumps(document, indent=2, allow_nan=False))


def printed_json(found: Result | Mapping[str, Any], as_json: bool) -> bool:
    """Prints what a command found or did as one document, where that is asked for; whether it was."""
    if as_json:
        print_json(found if isinstance(found, Mapping) else found.to_json())
    return as_json


def print_wrapped(line: str) -> None:
    """A line, broken between words where a terminal is not wide enough for it; paths stay in one piece."""
    stdout = console()
    if stdout.is_terminal:
        start = len(line) - len(line.lstrip(" 0123456789."))
        parts = textwrap.wrap(
            line, stdout.width, subsequent_indent=" " * (start or 4), break_long_words=False, break_on_hyphens=False,
            drop_whitespace=True, replace_whitespace=False,
        )  # fmt: skip
        line = "\n".join(parts)
    click.echo(line)


def print_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """A table, or a block for each row where the terminal is too narrow for that."""
    table = Table(*header, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    stdout = console()
    if not stdout.is_terminal:  # a pipe has no width: nothing is folded
        stdout.width = 1 << 12
    elif Measurement.get(stdout, stdout.options.update(max_width=1 << 12), table).maximum > stdout.width:
        _print_blocks(header, rows)
        return
    with stdout.capture() as captured:
        stdout.print(table, soft_wrap=False)
    for printed in captured.get().splitlines():
        click.echo(printed.rstrip())


def _print_blocks(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """A table that is wider than the terminal: a line for each cell, an empty one between rows."""
    width = max(map(len, header))
    for number, row in enumerate(rows):
        if number:
            click.echo()
        for name, cell in zip(header, row, strict=True):
            click.echo(f"{name:<{width}}  {cell}")


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


class Progressing:
    """How far a command is: a bar on stderr, if that is a terminal. While it shows, nothing else may be printed.

    Call it with what is done, what there is in all, and a note. The bar shows from :meth:`show` on, or the next call,
    to :meth:`hide`, and leaves no trace.
    """

    def __init__(self, what: str, *, counted: bool) -> None:
        """``what`` stands in front of the bar; ``counted``: whether to print the two numbers, too."""
        self._what = what
        self._counted = counted
        self._bar: Bar | None = None

    def __call__(self, done: int, total: int, note: str = "") -> None:
        self.show()
        if self._bar is not None:
            self._bar.update(TaskID(0), completed=done, total=total, note=note)

    def show(self) -> None:
        console = Console(stderr=True, markup=False, highlight=False)
        if self._bar is None and console.is_terminal:
            self._bar = Bar(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=None),
                *(
                    (MofNCompleteColumn(),)
                    if self._counted
                    else (TextColumn("{task.percentage:>3.0f} %", markup=False),)
                ),
                Note(),
                TimeRemainingColumn(compact=True),
                console=console,
                transient=True,
                expand=True,
            )
            self._bar.add_task(self._what, total=None)
            self._bar.start()

    def hide(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()


@contextlib.contextmanager
def progress(what: str, *, counted: bool) -> Iterator[Progressing]:
    """A bar that shows while the block runs; see :class:`Progressing`."""
    bar = Progressing(what, counted=counted)
    bar.show()
    try:
        yield bar
    finally:
        bar.hide()


def rate(count: int, seconds: float) -> str:
    return f"{text.number(round(count / seconds))}/s" if seconds > 0 else "-"
