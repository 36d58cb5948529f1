"""The group that all commands hang on: errors are one line on stderr, and the exit status says what kind.

0 is success; 1, ``verify`` found a problem; 2, bad input, a store that cannot be opened, a fault of the disk; 130, an
interrupt.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from diskreplay.errors import DiskReplayError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130


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
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of our output went away, as `head` does; nothing more can be said, at exit neither.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(MISUSED)
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx else self.name
            fail(f"{error.format_message()} (see '{where} --help')")
        except click.ClickException as error:
            fail(error.format_message())
        except click.Abort:
            fail("interrupted", INTERRUPTED)
        except (DiskReplayError, OSError, ModuleNotFoundError) as error:
            fail(message(error))
        sys.exit(status if isinstance(status, int) else 0)


def fail(text: str, status: int = MISUSED) -> None:
    """One line on stderr, and out."""
    click.echo(f"diskreplay: {' '.join(text.split())}", err=True)
    sys.exit(status)


def message(error: Exception) -> str:
    """An error's text; of the system's errors without their number."""
    if isinstance(error, OSError) and error.strerror:
        named = not isinstance(error, DiskReplayError) and error.filename is not None
        return f"{error.filename}: {error.strerror}" if named else error.strerror
    return str(error)
