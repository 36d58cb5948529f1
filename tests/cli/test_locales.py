"""Every command in any locale, with any path: what a terminal cannot show is escaped, and none ends in a traceback."""

from __future__ import annotations

import io
import os
import pathlib
import subprocess
import sys

import pytest
from diskreplay_cli import start
from diskreplay_cli.main import main
from ops.stores import images

NAMES = {"letters": "é ☃.replay", "bytes": os.fsdecode(b"\xff\xe9.replay")}
"""Of a store: one of letters that latin-1 lacks in part, one that is no UTF-8."""
SETTINGS = {
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "strict": {"PYTHONIOENCODING": "utf-8:strict"},
    "locale C": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
}
COMMANDS = {
    "checkpoints": [["checkpoints", "list", "PATH"], ["checkpoints", "drop", "PATH", "é☃"]],
    "edit": [["edit", "PATH", "PATH-edited", "--steps", "0", "--later", "new", "--allow-loss"]],
    "episodes": [["episodes", "PATH"], ["episodes", "--csv", "PATH"], ["episodes", "--where", "é☃ > 1", "PATH"]],
    "export": [
        ["export", "PATH", "PATH.npz"],
        ["export", "PATH", "PATH.hdf5"],
        ["export", "PATH", "PATH.zarr", "--allow-loss"],
    ],
    "formats": [["formats"]],
    "gc": [["gc", "PATH"]],
    "head": [["head", "PATH"]],
    "import": [["import", "PATH.npz", "PATH-again"]],
    "inspect": [["inspect", "PATH"], ["inspect", "--json", "PATH"], ["inspect", "PATH-none"]],
    "merge": [["merge", "PATH", "PATH", "PATH-both"]],
    "pull": [["pull", "PATH", "PATH-pulled"]],
    "push": [["push", "PATH", "é☃://b"]],
    "record": [["record", "é☃-v1", "PATH-recorded", "--steps", "9"]],
    "relabel": [["relabel", "PATH-edited", "--reward", "é☃:f"]],
    "report": [["report", "PATH", "-o", "PATH.html"]],
    "resize": [
        ["resize", "PATH", "--capacity", "9000", "--dry-run"],
        ["resize", "PATH", "--capacity", "9001", "--json"],
    ],
    "salvage": [["salvage", "PATH", "PATH-salvaged", "--dry-run"], ["salvage", "PATH", "PATH-salvaged"]],
    "show": [["show", "PATH", "-o", "PATH.png"], ["show", "PATH", "-o", "PATH.gif"]],
    "split": [["split", "PATH", "--fraction", "0.5"]],
    "verify": [["verify", "PATH"]],
}
"""In an order in which each finds what it needs; ``demo`` takes long and prints nothing else, ``view`` goes on."""

DRIVER = """
import io, os, subprocess, sys, traceback
from diskreplay_cli import start
for line in sys.stdin.buffer.read().splitlines():
    sys.argv = ["diskreplay", *map(os.fsdecode, line.split(b"\\0"))]
    try:
        start.main()
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        traceback.print_exc()
        status = "TRACEBACK"
    sys.stdout.flush()
    print("status", status, *(arg.encode("ascii", "backslashreplace").decode() for arg in sys.argv[1:]))
"""
"""Runs the commands that it is given one after another, as processes of their own would take seconds each."""


@pytest.mark.long
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", NAMES)
def test_no_command_ends_in_a_traceback(tmp_path: pathlib.Path, name: str, setting: str) -> None:
    path = str(tmp_path / NAMES[name])
    try:
        images(path)
    except OSError:
        pytest.skip(f"the file system takes no name such as {NAMES[name]!r}")
    lines = [[arg.replace("PATH", path) for arg in args] for each in COMMANDS.values() for args in each]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], env={**os.environ, **SETTINGS[setting]}, capture_output=True, check=False,
        input=b"\n".join(b"\0".join(map(os.fsencode, args)) for args in lines),
    )  # fmt: skip
    errors = done.stderr.decode(errors="replace")
    assert "Traceback" not in errors, errors
    ends = [line for line in done.stdout.decode(errors="replace").splitlines() if line.startswith("status ")]
    assert len(ends) == len(lines)
    assert all(line.split()[1] in ("0", "2") for line in ends), ends
    failed = [line.split()[2] for line in ends if line.split()[1] == "2"]
    assert failed == ["checkpoints", "episodes", "gc", "inspect", "pull", "push", "record", "relabel"], errors


def run(monkeypatch: pytest.MonkeyPatch, stdout: io.TextIOWrapper | None, *args: str) -> tuple[object, str]:
    """Exit status and errors of the command in this process, with another stdout."""
    errors = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    for name, value in (("stdout", stdout), ("stderr", errors), ("argv", ["diskreplay", *args])):
        monkeypatch.setattr(sys, name, value)
    monkeypatch.setenv("COLUMNS", "400")  # nothing is folded
    with pytest.raises(SystemExit) as ended:
        start.main()
    errors.seek(0)
    return ended.value.code, errors.read()


@pytest.mark.parametrize(("encoding", "shown"), [("latin-1", "/é \\u2603.replay"), ("ascii", "/\\xe9 \\u2603.replay")])
def test_the_page_of_inspect(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, encoding: str, shown: str
) -> None:
    path = str(tmp_path / NAMES["letters"])
    images(path)
    stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    assert run(monkeypatch, stdout, "inspect", path) == (0, "")
    stdout.seek(0)
    assert shown in stdout.read()


def test_stdout_that_the_caller_closed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images(path)
    assert run(monkeypatch, None, "inspect", path) == (0, "")
    sys.stdout.close()


def test_no_command_is_forgotten() -> None:
    assert {*COMMANDS, "demo", "view"} == {*main.commands}


@pytest.mark.long
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "> /dev/full"])
def test_output_that_goes_nowhere(path: str, closed: str) -> None:
    images(path)
    command = f"{sys.executable} -m diskreplay_cli inspect {path} {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    full = b"diskreplay: No space left on device\n"
    assert (done.returncode, done.stderr) == ((2, full) if "full" in closed else (0, b""))
