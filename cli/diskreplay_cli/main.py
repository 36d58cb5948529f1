"""The command ``diskreplay``: each subcommand calls one function of :mod:`diskreplay.ops` and prints its result."""

from __future__ import annotations

import shlex
import sys

import click

import diskreplay
from diskreplay_cli import browser, changes, checkpoints, datasets, output, page, remote, text
from diskreplay_cli.errors import FAILED, INTERRUPTED, LOST, MISUSED, OneLineErrors

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 80}


FIRST_STEPS = """\
diskreplay demo                                      real Pong, in a minute
diskreplay record CartPole-v1 a.replay --steps 9000; diskreplay inspect a.replay
diskreplay --help                                    all commands"""


@click.group(name="diskreplay", cls=OneLineErrors, context_settings=CONTEXT, invoke_without_command=True)
@click.version_option(diskreplay.__version__, prog_name="diskreplay", message="%(prog)s %(version)s")
@click.pass_context
def main(context: click.Context) -> int:
    """Replay data of reinforcement learning on disk: record, look at, check, export.

    A store is one directory, a Zarr v3 hierarchy. Commands that only read work while another process writes the store.
    Exit status: 0 success, 1 verify found a problem, 2 an error, 3 salvage lost something, 130 interrupted.
    """
    if context.invoked_subcommand is not None:
        return 0
    if not output.console().is_terminal:
        raise click.UsageError("Missing command.", context)
    click.echo(FIRST_STEPS)
    return MISUSED


@main.command()
@click.argument("env_id")
@output.store_argument
@output.count_option("--steps", "Steps of all environments, in the end.", required=True)
@output.count_option("--envs", "Environments in lockstep.  [default: 1, or as the store]")
@click.option("--atari", is_flag=True, help="Preprocess Atari: 84x84 grey, every 4th frame, no-ops after a reset.")
@output.count_option("--frame-stack", "Frames that a sample stacks.  [default: 4 with --atari, else 1]")
@output.count_option("--capacity", "Steps to keep.  [default: 1000000, or --steps if more]")
@output.count_option("--seed", "Of environments and actions.", least=0, default=0)
@click.option("--resume", is_flag=True, help="Go on with the store at PATH, or begin it when there is none.")
@click.option(
    "--commit-seconds", type=click.FloatRange(0, min_open=True), metavar="SECONDS", default=2.0, show_default=True,
    help="How much a kill may lose.",
)  # fmt: skip
@output.json_option
def record(
    env_id: str, path: str, steps: int, envs: int | None, atari: bool, frame_stack: int | None, capacity: int | None,
    seed: int, resume: bool, commit_seconds: float, as_json: bool,
) -> int:  # fmt: skip
    """Record random play of an environment into a store at PATH.

    ENV_ID is the name of a Gymnasium environment, such as CartPole-v1. Ctrl-C commits what was recorded, ends, and says
    how to go on. A killed recording goes on from its last commit by the same command with --resume.
    """
    from diskreplay.ops.record import Recorded
    from diskreplay.ops.record import record as run

    with output.Progressing("recording", counted=True) as update:

        def report(state: Recorded) -> None:
            done = f"{text.size(state.stored_bytes)}, {text.ratio(state.ratio)}" if state.raw_bytes else ""
            update(state.steps, state.total_steps, f"{output.rate(state.new_steps, state.seconds)}  {done}")

        result = run(
            env_id, path, steps=steps, num_envs=envs, atari=atari, frame_stack=frame_stack, capacity=capacity,
            seed=seed, resume=resume, commit_seconds=commit_seconds, progress=report,
        )  # fmt: skip
    if as_json:
        output.print_json(result.to_json())
    elif result.new_steps or result.stopped:
        click.echo(
            f"recorded {text.plural(result.new_steps, 'step')}, ending {text.plural(result.new_episodes, 'episode')}, "
            f"in {result.seconds:.1f} s ({output.rate(result.new_steps, result.seconds)})\n"
            f"{path} has {result.steps:,} of {result.total_steps:,} steps, {text.size(result.stored_bytes)} on disk, "
            f"{text.compared(result.ratio)} than raw"
        )
    else:
        click.echo(f"{path} has {result.steps:,} steps already; ask for more --steps to go on")
    if result.resets and not as_json:
        transitions, resets = text.plural(result.transitions, "transition"), text.plural(result.resets, "step")
        click.echo(f"it holds {transitions}: {resets} only reset an environment")
    if not result.stopped:
        return 0
    options = {"--steps": steps, "--envs": envs, "--frame-stack": frame_stack, "--capacity": capacity, "--seed": seed}
    command = ["diskreplay", "record", env_id, path]
    command += [str(part) for name, value in options.items() if value is not None for part in (name, value)]
    command += (["--atari"] if atari else []) + ["--resume"]
    click.echo(f"stopped; everything is committed. To go on:\n  {shlex.join(command)}", err=True)
    return INTERRUPTED


@main.command()
@output.store_argument
@output.json_option
def inspect(path: str, as_json: bool) -> None:
    """Show what is in the store at PATH, on one screen.

    The window, episodes with their lengths and returns, every column with its layout and its size on disk, checkpoints,
    the last commit, and the outcome of a quick check.
    """
    from diskreplay.ops.inspect import inspect as run

    facts = run(path)
    if not output.printed_json(facts, as_json):
        page.print_page(output.console(), facts, output.plain_bars())


@main.command()
@output.store_argument
@output.json_option
def verify(path: str, as_json: bool) -> int:
    """Check every chunk and every invariant of the store at PATH.

    Every problem is named with its stream, column, rows, file and byte. Exit status 1 when there is one: then the
    command says what to do, which is to salvage what can be read, to go back to the newest whole checkpoint, or to take
    a copy of the store.
    """
    from diskreplay.ops.verify import verify as run

    with output.Progressing("verifying", counted=False) as update:
        result = run(path, lambda done, total: update(done, total, f"{text.size(done)} of {text.size(total)}"))
    if not output.printed_json(result.to_json(), as_json):
        for problem in result.problems:
            click.echo(str(problem))
        outcome = "no problem" if result.ok else text.plural(len(result.problems), "problem")
        click.echo(
            f"{outcome} in {text.plural(result.streams, 'stream')}, {text.plural(result.checkpoints, 'checkpoint')}, "
            f"{text.plural(result.chunks, 'chunk')}, {text.size(result.bytes)} ({result.seconds:.1f} s)"
        )
        for line in text.cures(result, path):
            click.echo(line)
    return 0 if result.ok else FAILED


@main.command()
@output.store_argument
@click.argument("out", type=click.Path())
@click.option("--dry-run", is_flag=True, help="Only say what would be kept and lost.")
@output.json_option
def salvage(path: str, out: str, dry_run: bool, as_json: bool) -> int:
    """Write all that can be read of a damaged store to a new one.

    Each transition is written bit for bit, or not at all, and episodes are cut where steps are missing. Metadata and
    attachments of checkpoints go to OUT.checkpoints. PATH stays as it is; nobody may write to it meanwhile. Exit
    status 3 if anything was lost.
    """
    from diskreplay.ops.salvage import salvage as run

    with datasets.counting("salvaging", datasets.written_to(out), in_bytes=True) as update:
        found = run(path, out, dry_run=dry_run, progress=update)
    if not output.printed_json(found, as_json):
        for line in text.damage(found):
            click.echo(line)
        output.print_table(text.SALVAGED, map(text.salvaged, found.streams))
        size = "" if dry_run else f", {text.size(found.stored_bytes)} on disk, in {found.seconds:.1f} s"
        click.echo(
            f"{out}{' would have' if dry_run else ''}: {text.plural(found.transitions, 'transition')} of "
            f"{text.plural(found.episodes, 'episode')}{size}"
        )
    return 0 if found.lossless else LOST


@main.command()
@output.store_argument
@output.count_option("--capacity", "Transitions that each stream is to keep.", required=True)
@click.option("--stream", metavar="NAME", help="The only one to resize.  [default: all]")
@click.option("--evict", is_flag=True, help="Give up the oldest where there are more.")
@click.option("--dry-run", is_flag=True, help="Only say what would be given up.")
@output.json_option
def resize(path: str, capacity: int, stream: str | None, evict: bool, dry_run: bool, as_json: bool) -> None:
    """Let the store at PATH keep more transitions, or fewer.

    Each of its streams does, in one commit. With --evict the oldest are given up for good; the space of those that
    a checkpoint needs comes back when that is dropped. No stream may be written meanwhile; readers may go on.
    """
    from diskreplay.ops.resize import resize as run

    results = run(path, capacity, stream, evict=evict, dry_run=dry_run)
    if output.printed_json({"streams": [result.to_json() for result in results]}, as_json):
        return
    for one in results:
        click.echo(
            f"stream {one.stream} {'would keep' if dry_run else 'keeps'} {text.plural(one.capacity, 'transition')} "
            f"(before: {one.before:,}), {one.evicted:,} evicted"
        )


@main.command()
@output.store_argument
@click.option(
    "--episode", type=int, metavar="K", default=0, show_default=True, help="Number of it; from the end if negative."
)
@output.out_option("FILE.png for a contact sheet, FILE.gif for an animation.")
@click.option(
    "--column", metavar="NAME", help="The observation to show.  [default: the first image, or else the first]"
)
@output.count_option("--frames", "At most so many.  [default: 40 for PNG, 500 for GIF]")
@click.option(
    "--fps", type=click.FloatRange(0.1, 100), metavar="N", help="Of an animation.  [default: the video's, or 15]"
)
@click.option("--scale", type=click.IntRange(1, 64), metavar="N", help="Enlarge the frames so many times.")
@output.overwrite_option
@output.json_option
def show(
    path: str,
    episode: int,
    out: str,
    column: str | None,
    frames: int | None,
    fps: float | None,
    scale: int | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Draw one episode of the store at PATH as a picture.

    It shows the observations: images, or curves of a vector's elements. Of two channels each is drawn, side by side.
    Curves are drawn over the episode's steps, into a PNG.
    """
    from diskreplay.ops.show import show as run

    result = run(
        path, out, episode=episode, column=column, frames=frames, fps=fps, scale=scale, overwrite=overwrite
    )  # fmt: skip
    drawn = text.plural(result.frames, "frame")
    if result.curves:
        drawn = f"{text.plural(result.curves, 'curve')} of {text.plural(result.frames, 'observation')}"
    if not output.printed_json(result, as_json):
        click.echo(
            f"{out}: {drawn} of episode {result.episode} of {result.episodes} "
            f"({text.plural(result.length, 'step')}, return {text.number(result.total_reward)}), "
            f"{result.width}x{result.height}, {text.size(result.stored_bytes)}"
        )


@main.command()
@click.argument("directory", type=click.Path(), default="demo-output")
@output.count_option("--steps", "Steps to record.", least=256, default=20_000)
def demo(directory: str, steps: int) -> int:
    """Try everything on real frames of Pong.

    It records, samples, checkpoints, reopens, inspects, draws and exports them. Everything goes into DIRECTORY
    (demo-output by default), where only what an earlier demo wrote is replaced.
    """
    from diskreplay.ops.demo import demo as run

    console = output.console()
    with output.Progressing("recording", counted=True) as bar:

        def say(line: str) -> None:
            bar.hide()  # its line is not to be printed into
            output.print_wrapped(line)

        finished = run(
            directory,
            steps=steps,
            say=say,
            show_facts=lambda facts: page.print_page(console, facts, output.plain_bars(), indent=3),
            progress=lambda state: bar(state.steps, state.total_steps, output.rate(state.new_steps, state.seconds)),
        )
    if not finished:
        click.echo("stopped; run the demo again to begin anew", err=True)
    return 0 if finished else INTERRUPTED


for command in (*datasets.COMMANDS, *changes.COMMANDS, *browser.COMMANDS, *remote.COMMANDS, checkpoints.checkpoints):
    main.add_command(command)


if __name__ == "__main__":
    sys.exit(main())
