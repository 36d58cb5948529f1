"""The commands for stores under a URL: push, pull, gc."""

from __future__ import annotations

import re

import click

from diskreplay_cli import output, text

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds(value: str) -> float:
    """Return the seconds of a time such as 30m, 12h or 1d."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", value)
    if found is None:
        raise click.BadParameter(f"{value!r} is no time such as 30m, 12h or 1d")
    return float(found[1]) * SECONDS[found[2] or "s"]


@click.command()
@click.argument("path", type=click.Path())
@click.argument("url")
@output.json_option
def push(path: str, url: str, as_json: bool) -> None:
    """Send what is new of the store at PATH to URL.

    URL is such as s3://bucket/pong.replay. Nobody may write the store meanwhile: a program that was given remote=URL
    pushes by itself. A second push sends what came since.
    """
    from diskreplay.ops.remote import push as run

    result = run(path, url)
    if output.printed_json(result, as_json):
        return
    click.echo(
        f"{result.url} has the rows of each stream up to {text.ends(result.streams)}; "
        f"{text.size(result.sent_bytes)} sent in {text.plural(result.requests, 'request')} ({result.seconds:.1f} s)"
    )
    for name in result.taken:
        click.echo(f"the checkpoint {name!r} was not sent: another's has that name there", err=True)


@click.command()
@click.argument("url")
@click.argument("path", type=click.Path())
@output.json_option
def pull(url: str, path: str, as_json: bool) -> None:
    """Copy the store under URL into a new one at PATH.

    All checkpoints come with it, and every chunk is verified.
    """
    from diskreplay.ops.remote import pull as run

    with output.Progressing("pulling", counted=False) as update:
        result = run(
            url, path, progress=lambda done, total: update(done, total, f"{text.size(done)} of {text.size(total)}")
        )
    if output.printed_json(result, as_json):
        return
    click.echo(
        f"{result.path} has the rows of each stream up to {text.ends(result.streams)}, "
        f"{text.plural(len(result.checkpoints), 'checkpoint')}, {text.size(result.stored_bytes)} "
        f"({result.seconds:.1f} s)"
    )


@click.command()
@click.argument("url")
@click.option(
    "--older-than", type=seconds, metavar="TIME", default="1d", show_default=True,
    help="How long nothing needed it, such as 12h: longer than readers go without a refresh.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@output.json_option
def gc(url: str, older_than: float, dry_run: bool, as_json: bool) -> None:
    """Remove what nothing in the store under URL needs.

    That is rows below every window that no checkpoint pins. The first run only notes what is dead, unless TIME is 0: a
    later one removes what was noted so long ago.
    """
    from diskreplay.ops.remote import gc as run

    result = run(url, older_than, dry_run=dry_run)
    if output.printed_json(vars(result), as_json):
        return
    click.echo(
        f"{'would remove' if dry_run else 'removed'} {text.plural(result.removed, 'object')}, "
        f"{text.size(result.removed_bytes)}; {text.plural(result.waiting, 'object')}, "
        f"{text.size(result.waiting_bytes)}, not dead for long enough"
    )


COMMANDS = push, pull, gc
