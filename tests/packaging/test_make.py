"""``make`` in a checkout of somebody who lacks something: one line says what."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
OLD = '#!/bin/sh\ncase "$1" in -V) echo Python 3.10.13;; *) exit 1;; esac\n'
"""A Python that is too old: its only answer is its version."""
BARE = f'#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexec {sys.executable} "$@"\n'
"""One without venv, as Debian's is without python3-venv."""
OFFLINE = f"""#!/bin/sh
if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit; fi
if [ "$2" = pip ]; then echo 'ERROR: No matching distribution'; exit 1; fi
exec {sys.executable} "$@"
"""
"""One whose pip finds nothing."""


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("python", "says"),
    [
        (None, "There is no python; diskreplay needs Python 3.11 or newer, as in: make PYTHON=python3.12"),
        (OLD, "python is Python 3.10.13; diskreplay needs 3.11 or newer, as in: make PYTHON=python3.12"),
        (BARE, "python has no venv; on Debian and Ubuntu it comes with: apt install python3-venv"),
        (OFFLINE, "pip cannot install hatchling: is there a network? .venv/pip.log says what it tried"),
    ],
    ids=["none", "old", "bare", "offline"],
)
@pytest.mark.parametrize("target", ["demo", "test"])
def test_what_is_missing_is_said_in_one_line(
    tmp_path: pathlib.Path, python: str | None, says: str, target: str
) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "hatch_build.py"):
        shutil.copy(ROOT / name, tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("make", "sh", "echo", "touch", "rm", "mkdir", "cp"):
        (tools / name).symlink_to(str(shutil.which(name)))
    if python is not None:
        (tools / "python").write_text(python)
        (tools / "python").chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--no-print-directory", "PYTHON=python", target], cwd=tmp_path,
        env={**environment, "PATH": str(tools)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    said, ending = done.stderr.splitlines()
    assert said == says
    assert ending.startswith("make: *** ")
    assert done.stdout in ("", "Making .venv\n")


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_bytecode_is_written_whatever_the_environment_says(tmp_path: pathlib.Path) -> None:
    """Regression: each process that a test started compiled the whole package, a quarter of the run's time."""
    makefile = tmp_path / "Makefile"
    makefile.write_text(f'include {ROOT / "Makefile"}\nsaid:\n\t@echo "($$PYTHONDONTWRITEBYTECODE)"\n')
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--no-print-directory", "-f", str(makefile), "said"], cwd=tmp_path,
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "()\n"


def _printed(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_alone_lists_every_target_with_a_sentence() -> None:
    (line,) = re.findall(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.M)
    done = _printed()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == _printed("help").stdout
    listed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line.startswith("  "))
    assert list(listed) == line.split()
    assert all(sentence[0].isupper() for sentence in listed.values())


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_quick_runs_the_tests_that_are_named() -> None:
    commands = _printed("-n", "-o", ".venv/.dev-stamp", "quick", "FILE=tests/index").stdout.splitlines()
    assert commands[-1].split()[0] == "DISKREPLAY_TEST_EFFORT=0.1"
    assert commands[-1].endswith(" -m pytest -q tests/index")
    refused = _printed("-n", "-o", ".venv/.dev-stamp", "quick", "FILE=")
    assert refused.returncode == 2
    assert "make quick FILE=tests/index" in refused.stderr
