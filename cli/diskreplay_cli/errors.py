"""The group of all commands: errors are one line on stderr, and the exit status says what kind.

0 is success, also where whoever reads the output has read enough; 1, ``verify`` found a problem; 2, bad input, a store
that cannot be opened, a fault of the disk; 3, ``salvage`` lost something; 130, an interrupt.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import click

from diskreplay.errors import DamageWarning, DiskReplayError, MisuseWarning, RemoteWarning
from diskreplay_cli.start import ending_interrupts

FAILED, MISUSED, LOST, INTERRUPTED = 1, 2, 3, 130


class Interrupted(click.Abort):
    """An interrupt of which there is more to say."""


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Show the library's warnings without a place in its code, and others as Python shows them."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(
            message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
            line: str | None = None,
        ) -> None:  # fmt: skip
            if issubclass(category, DamageWarning | MisuseWarning | RemoteWarning):
                click.echo(f"diskreplay: warning: {message}", err=True)
            else:
                shown(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


class OneLineErrors(click.Group):
    """A group whose errors have no traceback; anything but the errors named above is a defect and keeps its own."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            with ending_interrupts(), plain_warnings():
                status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of our output went away, as `head` does; nothing more can be said, at exit neither.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(_unheard(args))
        except SystemExit:  # of click itself, which says 1 where a reader went away: that is a problem
            sys.exit(_unheard(args))
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx else self.name
            fail(f"{error.format_message().removesuffix('.')} (see '{where} --help')")
        except click.ClickException as error:
            fail(error.format_message())
        except click.Abort as error:
            fail(f"interrupted; {error}" if str(error) else "interrupted", INTERRUPTED)
        except (DiskReplayError, OSError, ModuleNotFoundError) as error:
            fail(message(error))
        sys.exit(status if isinstance(status, int) else 0)


def _unheard(args: Sequence[str] | None) -> int:
    """Return the status of a command whose reader went away, as `head` does; the status of `verify` is its answer."""
    command = next((one for one in (sys.argv[1:] if args is None else args) if not one.startswith("-")), "")
    return MISUSED if command == "verify" else 0


def fail(text: str, status: int = MISUSED) -> None:
    """Print one line on stderr, and exit."""
    click.echo(f"diskreplay: {' '.join(text.split())}", err=True)
    sys.exit(status)


def message(error: Exception) -> str:
    """Return an error's text, without the system's number, and with commands in place of Python."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        named = not isinstance(error, DiskReplayError) and error.filename is not None
        text = f"{error.filename}: {error.strerror}" if named else error.strerror
    for python, command in COMMANDS.items():
        text = text.replace(python, command)
    return text


COMMANDS = {
    "ReplayBuffer.create makes one": "'diskreplay record' and 'diskreplay import' make one",
    "; ReplayBuffer.open and open_or_create open a store": "; choose another path",
    "close that writer, open another stream, or open with mode='r'": "close that writer",
    "drop them first (drop_checkpoint), go on from the last commit, or open the checkpoint with mode='r'":
        "drop them first ('diskreplay checkpoints drop')",
    "; who writes makes one, by create(path, ..., remote=url)": "; 'diskreplay push' makes one",
    ". Write a stream of another name (stream=...), or push to another URL": "; push to another URL",
    "num_envs must": "the number of environments must",
    "frame_stack must": "--frame-stack must",
    "frame_stack belongs": "--frame-stack belongs",
    ", or open it with mode='r'": "",
}  # fmt: skip
"""The words of the library's errors to programs, and to people at a command line."""
