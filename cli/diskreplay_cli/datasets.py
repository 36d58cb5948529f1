"""The commands for datasets, out of stores and into them, and for episodes and rows."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shlex
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import click

from diskreplay import formats
from diskreplay_cli import output, text
from diskreplay_cli.errors import Interrupted

loss_option = click.option("--allow-loss", is_flag=True, help="Write what can be held; count what is lost.")
where_option = click.option(
    "--where", metavar="CONDITION", help="Only episodes for which it holds: \"return > 100 and tag == 'expert'\"."
)


ENDINGS = {".hdf5": "d4rl", ".h5": "d4rl", ".npz": "npz", ".parquet": "parquet", ".zarr": "diffusion-policy"}
ENDINGS[".replay"] = "store"
"""The format of an export that names none, by what its path ends in."""


@contextlib.contextmanager
def counting(
    what: str, left: Callable[[], str] = str, *, in_bytes: bool = False
) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with the rate; call it with steps done and steps in all.

    Args:
        what: the words in front of the bar.
        left: a function, called after an interrupt, that returns what the interrupt has left, in words.
        in_bytes: True if bytes are counted: then the bar has no numbers of steps, and no rate.
    """
    started = time.perf_counter()

    def note(done: int, total: int) -> str:
        return (
            f"{text.size(done)} of {text.size(total)}" if in_bytes else output.rate(done, time.perf_counter() - started)
        )

    with output.Progressing(what, counted=not in_bytes) as update:
        try:
            yield lambda done, total: update(done, total, note(done, total))
        except KeyboardInterrupt as error:
            raise Interrupted(left()) from error


def written_to(*outs: str) -> Callable[[], str]:
    """Return a function that tells what became of writing datasets, each of which appears whole or not at all."""

    def found() -> list[tuple[int, int] | None]:
        from diskreplay.storage.paths import checked_path

        paths = [pathlib.Path(checked_path(out)) for out in outs]
        facts = [path.stat() if os.path.lexists(path) else None for path in paths]
        return [fact and (fact.st_dev, fact.st_ino) for fact in facts]

    before = found()

    def left() -> str:
        whole = [out for out, old, new in zip(outs, before, found(), strict=True) if new not in (None, old)]
        if not whole:
            return "nothing was written"
        return f"{' and '.join(whole)} {'is' if len(whole) == 1 else 'are'} whole"

    return left


def added_to(path: str) -> Callable[[], str]:
    """Return a function that tells what became of adding to a store, all or nothing."""
    from diskreplay.ops.inspect import row_ends

    before = row_ends(path)
    return lambda: f"{path} has all of it" if row_ends(path) != before else f"nothing was added to {path}"


def episode_range(value: str) -> slice:
    """Return numbers of episodes as Python counts them: ``7``, ``10:20``, ``-5:``."""
    try:
        ends = [int(part) if part.strip() else None for part in value.split(":")]
    except ValueError:
        ends = []
    if len(ends) == 1 and ends[0] is not None:
        return slice(ends[0], ends[0] + 1 or None)
    if len(ends) != 2:
        raise click.BadParameter(f"{value!r} is no range such as 10:20")
    return slice(*ends)


def pair(value: str) -> tuple[str, str]:
    """Return two names with an equals sign between them."""
    ours, _, theirs = value.partition("=")
    if not ours or not theirs:
        raise click.BadParameter(f"{value!r} is no pair such as obs/joints=observations/qpos")
    return ours, theirs


def names(value: str) -> tuple[str, ...]:
    """Return names with commas between them."""
    return tuple(name.strip() for name in value.split(","))


def numbers(value: str) -> tuple[int, ...]:
    """Return numbers with commas between them."""
    try:
        return tuple(map(int, value.split(",")))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no list such as 0,2") from error


@click.command()
@output.store_argument
@click.argument("out", type=click.Path())
@click.option(
    "--format", "format_name", type=click.Choice(list(formats.MODULES)),
    help=f"Of the dataset; see diskreplay formats.  [default: as OUT ends: {', '.join(ENDINGS)}]",
)  # fmt: skip
@click.option("--episodes", type=episode_range, metavar="A:B", help="Only these, as diskreplay episodes numbers them.")
@click.option(
    "--columns", type=names, metavar="NAMES", help="Only these observations and columns, with commas between."
)
@click.option("--min-return", type=float, metavar="X", help="Only episodes with at least this return.")
@click.option("--envs", type=numbers, metavar="N,...", help="Only episodes of these environments.")
@where_option
@click.option(
    "--compression", metavar="NAME", help="One of the format's, see diskreplay formats.  [default: the first]"
)
@click.option(
    "--task", metavar="COLUMN",
    help="Whose texts are the tasks of the steps, in lerobot.  [default: language_instruction or task]",
)  # fmt: skip
@click.option("--reward-column", metavar="NAME", help="Whose values, such as those of relabel, go out as the rewards.")
@loss_option
@output.overwrite_option
@output.json_option
def export(
    path: str, out: str, format_name: str | None, episodes: slice | None, columns: tuple[str, ...] | None,
    min_return: float | None, envs: tuple[int, ...] | None, where: str | None, compression: str | None,
    task: str | None, reward_column: str | None, allow_loss: bool, overwrite: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write the transitions of the store at PATH as a dataset OUT.

    What the format cannot hold is named, and nothing is written, unless the loss is allowed. Frames are written once,
    not stacked; memory stays small however large the store is.
    """
    from diskreplay.formats.selection import Selection
    from diskreplay.ops.convert import export as run

    name = format_name or ENDINGS.get("" if out.endswith("/") else pathlib.PurePath(out).suffix)
    if name is None:
        known = ", ".join(f"{ending} ({one})" for ending, one in ENDINGS.items())
        raise click.UsageError(f"{out!r} ends in no format: name it by --format, or end it in {known}")
    with counting("exporting", written_to(out)) as update:
        result = run(
            path, out, name, selection=Selection(episodes, min_return, envs, columns, where),
            allow_loss=allow_loss, overwrite=overwrite, compression=compression, task=task,
            reward_column=reward_column, progress=update,
        )  # fmt: skip
    if output.printed_json(result, as_json):
        return
    click.echo(
        f"{out}: {text.plural(result.transitions, 'transition')} of {text.plural(result.episodes, 'episode')} "
        f"as {result.format}, {text.size(result.stored_bytes)} on disk, {text.size(result.raw_bytes)} decoded, "
        f"in {result.seconds:.1f} s"
    )
    for what, count in result.lost.items():
        click.echo(f"lost: {what} ({count:,})")
    holds = formats.get(result.format).holds
    if result.envs > 1 and not holds.envs:
        click.echo(f"not kept: which of {result.envs} environments an episode comes from")
    if result.cut_starts and not holds.facts:
        click.echo(f"not kept: that the first steps of {text.plural(result.cut_starts, 'episode')} had left the window")


@click.command("import")
@click.argument("source", type=click.Path())
@output.store_argument
@click.option(
    "--format", "format_name", type=click.Choice([*formats.MODULES]), help="Of SOURCE.  [default: found from it]"
)
@click.option("--append", is_flag=True, help="Add to the store that is at PATH; nothing of it is evicted.")
@output.count_option("--capacity", "Steps that the store keeps.  [default: all of SOURCE]")
@click.option("--env", "env_id", metavar="ENV_ID", help="Take the spaces of this Gymnasium environment.")
@output.count_option("--frame-stack", "Frames that a sample stacks.  [default: as SOURCE says]")
@click.option(
    "--frames", type=click.Choice(["packets", "decoded"]), default="packets", show_default=True,
    help="Of videos: as they are, or decoded into ordinary columns.",
)  # fmt: skip
@click.option(
    "--map", "pairs", type=pair, multiple=True, metavar="OURS=THEIRS",
    help="The array of SOURCE for one of our names: obs/joints=observations/qpos. May be repeated.",
)  # fmt: skip
@click.option(
    "--columns",
    type=names,
    metavar="NAMES",
    help="Only these observations and columns, by our names, with commas between.",
)
@click.option(
    "--ends", metavar="KIND=NAME",
    help="The array that tells where episodes end: last, first, stops, lengths, episode or step_type=NAME; or whole.",
)  # fmt: skip
@click.option(
    "--align", type=click.Choice(["next", "previous"]),
    help="An action and reward belong to the observation of their entry, or led to it.",
)  # fmt: skip
@output.count_option("--max-episode-steps", "The time limit, where a file has no timeouts.")
@click.option("--allow-loss", is_flag=True, help="Leave out episodes with a reward that is not finite; count them.")
@output.json_option
def import_(
    source: str, path: str, format_name: str | None, append: bool, capacity: int | None, env_id: str | None,
    frame_stack: int | None, frames: Literal["packets", "decoded"], pairs: tuple[tuple[str, str], ...],
    columns: tuple[str, ...] | None, ends: str | None, align: Literal["next", "previous"] | None,
    max_episode_steps: int | None, allow_loss: bool, as_json: bool,
) -> None:  # fmt: skip
    """Read the dataset SOURCE into a store at PATH.

    Spaces are what SOURCE says, or inferred from its arrays. Steps without a next observation are no transitions and
    are left out, and counted. After an error nothing is left behind.
    """
    from diskreplay.ops.convert import env_spaces, import_dataset

    observation_space, action_space = env_spaces(env_id) if env_id is not None else (None, None)
    with counting("importing", added_to(path) if append else written_to(path)) as update:
        result = import_dataset(
            source, path, format_name, append=append, capacity=capacity, observation_space=observation_space,
            action_space=action_space, frame_stack=frame_stack, frames=frames, map=dict(pairs),
            columns=columns, ends=ends, align=align, max_episode_steps=max_episode_steps,
            allow_loss=allow_loss, progress=update,
        )  # fmt: skip
    if output.printed_json(result, as_json):
        return
    click.echo(
        f"{path}: {text.plural(result.transitions, 'transition')} of {text.plural(result.episodes, 'episode')} from "
        f"{result.format}, {text.size(result.stored_bytes)} on disk, in {result.seconds:.1f} s"
    )
    if result.evicted:
        click.echo(f"evicted: the oldest {text.plural(result.evicted, 'transition')}, for which there is no room")
    if result.dropped:
        click.echo(f"left out: {text.plural(result.dropped, 'step')} without a next observation")
    for note in result.notes:
        click.echo(note)
    if result.differing:
        click.echo(
            f"next observations that differ from the next step's: {result.differing:,} "
            "(kept: the store's continuity is flags)"
        )
    if result.ignored:
        click.echo(f"not read: {', '.join(result.ignored)}")
    for name in result.unfinished:
        click.echo(
            f"left by an import that was killed: the checkpoint {name}. What it added, and all after that, is taken "
            f"back by\n  {shlex.join(['diskreplay', 'checkpoints', 'restore', path, name])}\nand kept by\n"
            f"  {shlex.join(['diskreplay', 'checkpoints', 'drop', path, name])}"
        )


@click.command("formats")
@output.json_option
def formats_(as_json: bool) -> None:
    """List the formats of datasets, and what each can hold."""
    from diskreplay.formats.core import table

    if output.printed_json({"formats": [table.facts(format) for format in formats.every()]}, as_json):
        return
    for format in formats.every():
        output.print_wrapped(f"{format.name} ({table.ways(format)}, a {format.kind}): {format.title}")
        lacks = table.lacks(format)
        if format.write is None:
            continue
        output.print_wrapped(f"    cannot hold: {', '.join(lacks)}" if lacks else "    holds everything")
        if len(format.compressions) > 1:
            click.echo(f"    compression: {', '.join(format.compressions)}")
        if format.extra:
            click.echo(f"    needs: pip install 'diskreplay[{format.extra}]'")


@click.command()
@click.argument("paths", type=click.Path(), nargs=-1, required=True)
@click.argument("out", type=click.Path())
@loss_option
@output.json_option
def merge(paths: tuple[str, ...], out: str, allow_loss: bool, as_json: bool) -> None:
    """Make a store OUT with all episodes of the stores at PATHS."""
    from diskreplay.ops.combine import merge as run
    from diskreplay.storage.paths import checked_path, is_url

    first, last = (is_url(path) or os.path.lexists(checked_path(path)) for path in (paths[0], out))
    if last and not first:
        order = shlex.join(["diskreplay", "merge", *paths[1:], out, paths[0]])
        raise click.UsageError(f"there is no {paths[0]!r}, but {out!r}: OUT comes last, as with cp: {order}")
    with counting("merging", written_to(out)) as update:
        result = run(out, paths, allow_loss=allow_loss, progress=update)
    _print_written([result], as_json)


@click.command()
@output.store_argument
@click.argument("outs", type=click.Path(), nargs=-1)
@click.option(
    "--fraction", "fractions", type=click.FloatRange(0, 1, min_open=True, max_open=True), metavar="X", multiple=True,
    required=True, help="Share of the transitions, for each store; the rest is one more.",
)  # fmt: skip
@output.count_option("--seed", "Of the dealing.", least=0, default=0)
@where_option
@loss_option
@output.json_option
def split(
    path: str, outs: tuple[str, ...], fractions: tuple[float, ...], seed: int, where: str | None, allow_loss: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Deal the episodes of the store at PATH out to stores OUTS.

    It does so at random. Without OUTS, pong.replay becomes pong-1.replay, pong-2.replay and so on. Episodes stay whole.
    """
    from diskreplay.ops.combine import split as run
    from diskreplay.ops.combine import split_names

    with counting("splitting", written_to(*outs or map(str, split_names(path, fractions)))) as update:
        results = run(path, fractions, outs, seed=seed, where=where, allow_loss=allow_loss, progress=update)
    _print_written(results, as_json)


def _facts(facts: dict[str, Any]) -> str:
    return text.as_json(facts) if facts else ""


def _print_written(results: list[Any], as_json: bool) -> None:
    if output.printed_json({"stores": [result.to_json() for result in results]}, as_json):
        return
    for result in results:
        click.echo(
            f"{result.path}: {text.plural(result.transitions, 'transition')} of "
            f"{text.plural(result.episodes, 'episode')}, {text.size(result.stored_bytes)} on disk"
        )


@click.command()
@output.store_argument
@click.option(
    "--sort", type=click.Choice(["number", "length", "return", "end"]), default="number", show_default=True,
    help="In which order.",
)  # fmt: skip
@click.option("--reverse", is_flag=True, help="The largest first.")
@output.count_option("--limit", "Only the first so many.  [default: all]")
@where_option
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values, with a header.")
@output.json_option
def episodes(
    path: str, sort: str, reverse: bool, limit: int | None, where: str | None, as_csv: bool, as_json: bool
) -> None:
    """List the episodes of the store at PATH.

    Each line gives its length, its return, how it ended, and the facts that were told of it. An end is terminated,
    truncated, both, cut (another step came without a flag) or running. A star stands after the length of an episode
    whose first steps have left the window.
    """
    from diskreplay.ops.episodes import episodes as run
    from diskreplay.remote import open_store

    every = run(path, sort=sort, reverse=reverse, where=where)
    lines = every[:limit]
    if as_json:
        output.print_json({"episodes": [line.to_json() for line in lines]})
    elif as_csv:
        names = ["number", "stream", "env", "start", "stop", "length", "total_reward", "end", "complete", "facts"]
        rows = ({**line.to_json(), "facts": _facts(line.facts)}.values() for line in lines)
        output.print_csv(names, rows)
    else:
        told = any(line.facts for line in lines)
        cells = (
            (
                str(line.number), line.stream, str(line.env), f"{line.length:,}{'' if line.complete else '*'}",
                text.number(line.total_reward), line.end, *([_facts(line.facts)] if told else []),
            )
            for line in lines
        )  # fmt: skip
        output.print_table(("number", "stream", "env", "length", "return", "end", *(["facts"] if told else [])), cells)
        if len(lines) < len(every):
            click.echo(f"{len(lines):,} of {text.plural(len(every), 'episode')}")
        for column, video in open_store(path).schema.videos.items():
            click.echo(f"video {column}: {video}")


@click.command()
@output.store_argument
@output.count_option("--rows", "How many.", default=10)
@click.option("--episode", type=int, metavar="K", help="Of this episode; from the end if negative.")
@output.json_option
def head(path: str, rows: int, episode: int | None, as_json: bool) -> None:
    """Print the first transitions of the store at PATH as a table."""
    from diskreplay.ops.episodes import head as run

    found = run(path, rows, episode=episode)
    if not output.printed_json(found, as_json):
        output.print_table(found.columns, [tuple(_cell(row[name]) for name in found.columns) for row in found.rows])


def _cell(value: Any) -> str:
    import numpy as np

    if isinstance(value, np.ndarray) and value.size > 8:
        return f"{'x'.join(map(str, value.shape))} {value.dtype} {value.min():.4g}..{value.max():.4g}"
    if isinstance(value, np.ndarray):
        return np.array2string(value, precision=3, suppress_small=True, max_line_width=1 << 16).replace("\n", "")
    return text.number(float(value)) if isinstance(value, np.floating) and np.isfinite(value) else str(value)


COMMANDS = (export, import_, formats_, merge, split, episodes, head)
