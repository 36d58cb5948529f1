"""The commands that show a store in a browser: as a file, or from a local server."""

from __future__ import annotations

import pathlib

import click

from diskreplay_cli import output, text


@click.command()
@output.store_argument
@output.out_option("FILE.html to write.", "report.html")
@click.option(
    "--episode",
    "episodes",
    type=int,
    multiple=True,
    metavar="K",
    help="Number of one that can be played; from the end if negative; may be given again.  "
    "[default: the best, worst, median and newest]",
)
@click.option(
    "--limit",
    type=click.FloatRange(0.5, 1000),
    metavar="MB",
    default=20.0,
    show_default=True,
    help="Megabytes that the file may have.",
)
@output.overwrite_option
@output.json_option
def report(
    path: str, out: str, episodes: tuple[int, ...], limit: float, overwrite: bool, as_json: bool
) -> None:  # fmt: skip
    """Write the store at PATH as one HTML file.

    The page needs no network and no server. It lists the episodes, plays some of them, and draws returns, lengths,
    actions, rewards and storage. The command and the page say what was left out to keep it small.
    """
    from diskreplay.report.write import report as run

    with output.Progressing("writing the page", counted=False) as update:
        result = run(path, out, episodes=episodes, limit_mb=limit, overwrite=overwrite, progress=update)
    if output.printed_json(result, as_json):
        return
    played = ", ".join(f"{number}" for number in result.episodes) or "none"
    click.echo(
        f"{result.file}: {text.plural(result.listed, 'episode')} listed, to be played: {played}; "
        f"{text.size(result.stored_bytes)} ({result.seconds:.1f} s)"
    )
    for line in result.left_out:
        click.echo(f"left out: {line}")
    click.echo(f"open it in a browser: {pathlib.Path(result.file).absolute().as_uri()}")


@click.command()
@output.store_argument
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", default=0, help="To listen on.  [default: a free one]"
)
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
def view(path: str, port: int, opens: bool) -> None:
    """Show the store at PATH in a browser, until Ctrl-C.

    It shows every episode, beside a writer too. Only programs on this machine that know the address can ask for the
    page. Nothing in the store is changed.
    """
    from diskreplay.report.serve import view as run

    def ready(url: str) -> None:
        click.echo(url)
        click.echo("Ctrl-C stops", err=True)
        if opens:
            click.launch(url)

    run(path, port=port, ready=ready)


COMMANDS = report, view
