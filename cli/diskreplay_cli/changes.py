"""The commands that change the steps of a store: they take some away, or give them other rewards."""

from __future__ import annotations

import os
import pathlib
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

import click

from diskreplay_cli import output, text
from diskreplay_cli.datasets import EpisodeRange, counting, loss_option, written_to

PLACES = {
    "begin": "from their begin",
    "middle": "from their middle",
    "end": "from their end",
    "whole": "whole episodes",
}


class IdFile(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """A file of ids: an array in ``.npy``, or text with an id a line."""

    name = "ids"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        import numpy as np

        from diskreplay.storage.paths import checked_path

        if not isinstance(value, str | os.PathLike):
            return value
        try:
            path = pathlib.Path(checked_path(value))
            if path.suffix == ".npy":
                with path.open("rb") as file:
                    return np.lib.format.read_array(file, allow_pickle=False)
            lines = list(map(str.strip, path.read_text("utf-8").splitlines()))
        except (OSError, ValueError, EOFError) as error:
            self.fail(f"{value!r} cannot be read as ids: {getattr(error, 'strerror', None) or error}", param, ctx)
        for number, line in enumerate(lines, 1):
            if line and not (line.isdecimal() and int(line) < 1 << 63):
                self.fail(f"{value!r}, line {number}: {line[:40]!r} is no id, a whole number", param, ctx)
        return np.array([int(line) for line in lines if line], np.int64)


class UserFunction(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """A function of the user's, as ``module:function``; the module may lie in the working directory."""

    name = "function"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Callable[..., Any]:
        module, _, function = str(value).partition(":")
        if not (module and function):
            self.fail(f"{value!r} is no module:function", param, ctx)
        if "" not in sys.path:
            sys.path.insert(0, "")
        try:
            found = pkgutil.resolve_name(value)
        except (Exception, SystemExit) as error:
            self.fail(f"{value!r} cannot be loaded: {type(error).__name__}: {error}", param, ctx)
        if not callable(found):
            self.fail(f"{value!r} is {type(found).__name__}, no function", param, ctx)
        loaded: Callable[..., Any] = found
        return loaded


@click.command()
@output.store_argument
@click.argument("out", type=click.Path())
@click.option("--drop", metavar="CONDITION", help='Whole episodes for which it holds go: "return < 10".')
@click.option("--keep", metavar="CONDITION", help="Whole episodes for which it does not hold go.")
@click.option(
    "--drop-episodes", type=EpisodeRange(), metavar="A:B", help="These go, as diskreplay episodes numbers them."
)
@click.option(
    "--steps", type=EpisodeRange(), metavar="A:B", multiple=True,
    help="Steps that go from each episode: 0:5 for the first five, -3: for the last three; may be repeated.",
)  # fmt: skip
@click.option("--where", metavar="CONDITION", help="With --steps: only from episodes for which it holds.")
@click.option("--episodes", type=EpisodeRange(), metavar="A:B", help="With --steps: only from these.")
@click.option("--ids", type=IdFile(), metavar="FILE", help="The ids of steps that go: an array (.npy), or one a line.")
@click.option(
    "--later", metavar="NAME", multiple=True, help="Give OUT a column for rewards that are written later (relabel)."
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@loss_option
@output.json_option
def edit(
    path: str, out: str, drop: str | None, keep: str | None, drop_episodes: slice | None, steps: tuple[slice, ...],
    where: str | None, episodes: slice | None, ids: Any, later: tuple[str, ...], dry_run: bool, allow_loss: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Copy the store at PATH to OUT, without some of its steps.

    An episode that loses steps in its middle becomes two, so that no sample spans the gap; one that loses its last
    steps ends truncated. The store at PATH stays as it is. Facts of episodes and values written later go along,
    priorities and checkpoints do not.
    """
    from diskreplay.ops.edit import edit as run

    with counting("editing", written_to(out)) as update:
        found = run(
            path, out, drop=drop, keep=keep, drop_episodes=drop_episodes, steps=steps, where=where, episodes=episodes,
            ids=ids, later=dict.fromkeys(later, "float32"), allow_loss=allow_loss, dry_run=dry_run, progress=update,
        )  # fmt: skip
    if output.printed_json(found, as_json):
        return
    rows = [(PLACES[place], counts["steps"], counts["episodes"]) for place, counts in found.removed.items()]
    if rows:
        header = ("would go" if dry_run else "went", "steps", "of episodes")
        output.print_table(header, ((what, f"{steps:,}", f"{count:,}") for what, steps, count in rows))
    if found.divided:
        click.echo(f"{text.plural(found.divided, 'episode')} became several")
    size = "" if dry_run else f", {text.size(found.stored_bytes)} on disk, in {found.seconds:.1f} s"
    click.echo(
        f"{out}{' would have' if dry_run else ''}: {text.plural(found.transitions, 'transition')} of "
        f"{text.plural(found.episodes, 'episode')}{size}"
    )


@click.command()
@output.store_argument
@click.option(
    "--reward", "function", type=UserFunction(), metavar="MODULE:FUNCTION", required=True,
    help="It is given an episode, a batch of its T steps, and returns an array (T,).",
)  # fmt: skip
@click.option("--column", metavar="NAME", help="The column to write.  [default: the only one that is written later]")
@output.json_option
def relabel(path: str, function: Callable[..., Any], column: str | None, as_json: bool) -> None:
    """Give the steps of the store at PATH rewards by a function.

    They go to a column that is written later; reward stays as it was recorded. Nothing is written before all values are
    there and were checked. No stream may be written meanwhile.
    """
    from diskreplay.ops.relabel import relabel as run

    with counting("relabelling", lambda: "nothing was written") as update:
        found = run(path, function, column, progress=update)
    if not output.printed_json(found, as_json):
        click.echo(
            f"{path}: {found.column} has new values for {text.plural(found.steps, 'step')} of "
            f"{text.plural(found.episodes, 'episode')}, in {found.seconds:.1f} s"
        )


COMMANDS = (edit, relabel)
