"""The commands that list and drop checkpoints, and go back to one."""

from __future__ import annotations

import json

import click

from diskreplay_cli import output, text


@click.group(no_args_is_help=False)
def checkpoints() -> None:
    """List checkpoints of a store, drop them, or go back to one."""


@checkpoints.command("list")
@output.store_argument
@output.json_option
def list_(path: str, as_json: bool) -> None:
    """List the checkpoints of the store at PATH.

    The oldest comes first, by their numbers. The maker is the stream whose writer made it, or a reader of a URL; the
    time is that of its maker's clock.

    An import into the store makes a checkpoint before-import-...; if no import is running, it was killed, and restore
    takes back what it added.
    """
    from diskreplay.ops.checkpoints import checkpoints as run

    lines = run(path)
    if as_json:
        output.print_json({"checkpoints": [line.to_json() for line in lines]})
    elif not lines:
        click.echo("no checkpoints")
    else:
        rows = [
            (
                line.name, str(line.number or ""), line.maker or "a reader", text.moment(line.time),
                text.ends({name: end for name, (_, end) in line.rows.items()}),
                text.attachments(line.attachments),
                text.shortened(json.dumps(line.metadata), 40) if line.metadata else "",
            )
            for line in lines
        ]  # fmt: skip
        output.print_table(("name", "number", "maker", "made", "row of each stream", "attachments", "metadata"), rows)


@checkpoints.command()
@output.store_argument
@click.argument("names", nargs=-1, required=True)
def drop(path: str, names: tuple[str, ...]) -> None:
    """Drop the checkpoints NAMES of the store at PATH; its rows stay.

    At least one stream must have no writer. A stream that is written gives back the space when its oldest shard
    leaves the window the next time.
    """
    from diskreplay.ops.checkpoints import drop as run

    run(path, names)
    click.echo(f"dropped {', '.join(names)}")


@checkpoints.command()
@output.store_argument
@click.argument("name")
@click.option(
    "--stream", metavar="NAME", help="The one to go back.  [default: that of the import, or that went on since]"
)
@output.json_option
def restore(path: str, name: str, stream: str | None, as_json: bool) -> None:
    """Go back to the checkpoint NAME of the store at PATH.

    What was added after it is discarded for good. One stream goes back, and must not be written meanwhile. The
    checkpoint stays, but for that of a killed import.
    """
    from diskreplay.ops.checkpoints import restore as run

    result = run(path, name, stream)
    if output.printed_json(result, as_json):
        return
    dropped = "; the checkpoint is dropped" if result.dropped else ""
    click.echo(
        f"stream {result.stream} ends at row {result.row:,} again, {text.plural(result.discarded, 'row')} "
        f"discarded{dropped}"
    )
