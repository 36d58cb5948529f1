"""The commands that change the steps of a store: they take some away, or give them other rewards."""

from __future__ import annotations

import pathlib
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

import click

from diskreplay_cli import output, text
from diskreplay_cli.datasets import counting, episode_range, loss_option, written_to

PLACES = {
    "begin": "from their begin",
    "middle": "from their middle",
    "end": "from their end",
    "whole": "whole episodes",
}


def ids_in_file(value: str) -> Any:
    """Return the ids in a file: an array in ``.npy``, or text with an id a line."""
    import numpy as np

    from diskreplay.storage.paths import checked_path

    try:
        path = pathlib.Path(checked_path(value))
        if path.suffix == ".npy":
            with path.open("rb") as file:
                return np.lib.format.read_array(file, allow_pickle=False)
        lines = list(map(str.strip, path.read_text("utf-8").splitlines()))
    except (OSError, ValueError, EOFError) as error:
        why = getattr(error, "strerror", None) or error
        raise click.BadParameter(f"{value!r} cannot be read as ids: {why}") from error
    for number, line in enumerate(lines, 1):
        if line and not (line.isdecimal() and int(line) < 1 << 63):
            raise click.BadParameter(f"{value!r}, line {number}: {line[:40]!r} is no id, a whole number")
    return np.array([int(line) for line in lines if line], np.int64)


def user_function(value: str) -> Callable[..., Any]:
    """Return a function of the user's, named ``module:function``; the module may lie in the working directory."""
    module, _, function = value.partition(":")
    if not (module and function):
        raise click.BadParameter(f"{value!r} is no module:function")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Callable[..., Any] = pkgutil.resolve_name(value)
    except (Exception, SystemExit) as error:
        raise click.BadParameter(f"{value!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise click.BadParameter(f"{value!r} is {type(found).__name__}, no function")
    return found


@click.command()
@output.store_argument
@click.argument("out", type=click.Path())
@click.option("--drop", metavar="CONDITION", help='Whole episodes for which it holds go: "return < 10".')
@click.option("--keep", metavar="CONDITION", help="Whole episodes for which it does not hold go.")
@click.option(
    "--drop-episodes", type=episode_range, metavar="A:B", help="These go, as diskreplay episodes numbers them."
)
@click.option(
    "--steps", type=episode_range, metavar="A:B", multiple=True,
    help="Steps that go from each episode: 0:5 for the first five, -3: for the last three; may be repeated.",
)  # fmt: skip
@click.option("--where", metavar="CONDITION", help="With --steps: only from episodes for which it holds.")
@click.option("--episodes", type=episode_range, metavar="A:B", help="With --steps: only from these.")
@click.option(
    "--ids", type=ids_in_file, metavar="FILE", help="The ids of steps that go: an array (.npy), or one a line."
)
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
    "--reward", "function", type=user_function, metavar="MODULE:FUNCTION", required=True,
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
