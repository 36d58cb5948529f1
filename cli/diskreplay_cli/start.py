"""The start of the command, before anything large is imported, so that Ctrl-C is heard at once, without a traceback.

While the libraries are imported there is nothing to put in order: an interrupt ends the process as the system does,
which shells report as status 130. From then on the commands hear it.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator


def prepare_output() -> None:
    r"""Have every text go out, whatever the locale: letters that it lacks are written as ``\xe9``.

    Where the caller closed stdout or stderr, as ``>&-`` does, what is printed goes nowhere.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115  # until the end
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def ending_interrupts() -> Iterator[None]:
    """Have SIGTERM and SIGHUP do what Ctrl-C does in the block, unless they are ignored or handled already."""
    asking = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    ending = [number for number in asking if signal.getsignal(number) == signal.SIG_DFL]
    for number in ending:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)


def main() -> None:
    """Run the command line, and never return."""
    prepare_output()
    hears = (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )  # ignored in a shell's background, and stays so
    if hears:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from diskreplay_cli.errors import INTERRUPTED
        from diskreplay_cli.main import main as run
    except ImportError as error:
        if error.name != "fcntl":
            raise
        sys.exit(f"diskreplay: {error}")  # on Windows, what to do

    try:
        if hears:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run(prog_name="diskreplay")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
