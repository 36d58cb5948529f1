"""Programs in processes of their own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
from typing import Any

from helpers.patience import PATIENCE

TESTS = str(pathlib.Path(__file__).parents[1])


def run(program: str, *arguments: object, flags: tuple[str, ...] = (), **environment: str) -> Any:
    """Runs a program to its end: its exit status, and what it printed.

    Args:
        program: the text, which may be indented, and import what the tests have.
        arguments: of the program.
        flags: of Python.
        environment: more of it.
    """
    folders = {"PYTHONPATH": os.pathsep.join([TESTS, *sys.path])}
    return subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(program), *map(str, arguments)],
        env={**os.environ, **folders, **environment}, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


def printed(program: str, *arguments: object, flags: tuple[str, ...] = (), **environment: str) -> str:
    """What a program prints that ends well."""
    done = run(program, *arguments, flags=flags, **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return str(done.stdout)
