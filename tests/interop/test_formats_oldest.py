"""Parquet between the newest pyarrow and the oldest that is allowed, each in an environment of its own."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from formats.roundtrip import CASES, Case, check, read

from diskreplay import formats
from diskreplay.ops.convert import export, import_dataset

ROOT = pathlib.Path(__file__).parents[2]
COMMAND = ROOT / ".venv-oldest" / "bin" / "diskreplay"
NAMES = ("vectors, continuous actions", "matrices", "several choices", "dict", "colour images", "columns")

pytestmark = pytest.mark.skipif(not COMMAND.exists(), reason="make interop makes .venv-oldest")


def oldest(*arguments: Any) -> None:
    """Runs a command of the command line with the oldest pyarrow."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, env=own)
    assert done.returncode == 0, done.stderr


WRITERS: dict[str, Callable[[str, pathlib.Path], object]] = {
    "newest": lambda path, out: export(path, out, "parquet"),
    "oldest": lambda path, out: oldest("export", path, out, "--format", "parquet"),
}
READERS: dict[str, Callable[[pathlib.Path, str], object]] = {
    "newest": lambda out, path: import_dataset(out, path),
    "oldest": lambda out, path: oldest("import", out, path),
}


@pytest.mark.parametrize(("writer", "reader"), [("newest", "oldest"), ("oldest", "newest")])
@pytest.mark.parametrize("case", [case for case in CASES if case.name in NAMES], ids=repr)
def test_one_reads_what_the_other_wrote(
    case: Case, writer: str, reader: str, path: str, tmp_path: pathlib.Path
) -> None:
    case.make(path)
    WRITERS[writer](path, tmp_path / "a.parquet")
    READERS[reader](tmp_path / "a.parquet", str(tmp_path / "b.replay"))
    check(read(tmp_path / "b.replay"), read(path), formats.get("parquet").holds)
