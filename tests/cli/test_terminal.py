"""Commands in a real terminal: what a person sees of them in the end, bars and all."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
from collections.abc import Callable

import pytest
from ops.stores import images

from cli import terminal

COLUMNS = [80, 120]
BAR = re.compile(r"[━╸╺]|--:--")


def clean(seen: terminal.Seen) -> list[str]:
    """The lines, of which none is left of a bar; there was one."""
    assert BAR.search(seen.drawn), "no bar was drawn"
    assert not [line for line in seen.lines if BAR.search(line)]
    assert "^C" not in "".join(seen.lines)
    return seen.lines


def masked(lines: list[str]) -> list[str]:
    """Lines without what another run measures anew."""
    return [re.sub(r"[\d.,]+ ?([kM]?B|s|ms|steps/s|/s)\b", "#", line) for line in lines]


def damage(path: str) -> None:
    pathlib.Path(path, "streams/0/obs/c.1.0.0.0").unlink()


def nothing(path: str) -> None:
    pass


@pytest.mark.long("ops/test_demo.py")
@pytest.mark.parametrize("columns", COLUMNS)
def test_the_demo_is_clean_lines(tmp_path: pathlib.Path, columns: int) -> None:
    """The bar of the recording stayed while the next steps were printed, and into them."""
    seen = terminal.run("demo", "out", "--steps", 400, columns=columns, cwd=tmp_path)
    assert seen.status == 0
    lines = clean(seen)
    assert max(map(len, lines)) <= columns
    steps = [line for line in lines if re.match(r"\d\. |Done|To see", line)]
    assert [line[:12] for line in steps] == [
        "1. Recording", "2. Sampling ", "3. Checkpoin", "4. Reopened ", "5. diskrepla", "6. diskrepla", "7. out/pong.",
        "8. out/pong.", "Done in " + steps[-2][8:12], "To see it in",
    ]  # fmt: skip
    assert all(line.startswith("   ") for line in lines if line and line not in steps)
    assert not [part for part in seen.drawn.split("\n") if BAR.search(part) and "1. Rec" in part]


@pytest.mark.long
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize(
    ("args", "before", "status"),
    [
        (("record", "CartPole-v1", "new.replay", "--steps", 300), nothing, 0),
        (("verify", "a.replay"), nothing, 0),
        (("verify", "a.replay"), damage, 1),
        (("export", "a.replay", "out.hdf5"), nothing, 0),
        (("import", "a.replay", "new.replay"), nothing, 0),
        (("merge", "a.replay", "new.replay"), nothing, 0),
        (("split", "a.replay", "--fraction", 0.5), nothing, 0),
        (("edit", "a.replay", "new.replay", "--steps", 0), nothing, 0),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_a_bar_leaves_no_trace(
    tmp_path: pathlib.Path, columns: int, args: tuple[object, ...], before: Callable[[str], None], status: int
) -> None:
    """A terminal shows in the end what a pipe gets."""
    for name in ("terminal", "pipe"):
        images(tmp_path / name / "a.replay")
        before(str(tmp_path / name / "a.replay"))
    seen = terminal.run(*args, columns=columns, cwd=tmp_path / "terminal")
    piped = subprocess.run(
        [*terminal.CLI, *map(str, args)], cwd=tmp_path / "pipe", stdout=subprocess.PIPE, text=True, check=False
    )
    assert (seen.status, piped.returncode) == (status, status)
    there = [line.replace(str(tmp_path / "terminal"), str(tmp_path / "pipe")) for line in clean(seen)]
    assert masked(there) == masked(piped.stdout.splitlines())


@pytest.mark.long
@pytest.mark.parametrize("columns", COLUMNS)
def test_control_c_leaves_clean_lines(tmp_path: pathlib.Path, columns: int) -> None:
    """The terminal prints ^C where the cursor is: at the end of the bar."""
    seen = terminal.run(
        "record", "CartPole-v1", "a.replay", "--steps", 10_000_000, columns=columns, cwd=tmp_path, until="/10000000"
    )
    assert seen.status == 130
    lines = clean(seen)
    assert [line.split()[0] for line in lines] == ["recorded", "a.replay", "stopped;", "diskreplay"]


@pytest.mark.long("test_control_c_leaves_clean_lines")
@pytest.mark.parametrize("columns", COLUMNS)
def test_control_c_in_the_demo(tmp_path: pathlib.Path, columns: int) -> None:
    seen = terminal.run("demo", "--steps", 10_000_000, columns=columns, cwd=tmp_path, until="/10000000")
    assert seen.status == 130
    lines = clean(seen)
    assert lines[0].startswith("1. Recording 10,000,000 steps")
    assert lines[-1] == "stopped; run the demo again to begin anew"


@pytest.mark.long
@pytest.mark.parametrize("columns", COLUMNS)
def test_the_command_by_itself_leads_on(tmp_path: pathlib.Path, columns: int) -> None:
    """It printed the whole help; in a pipe it is an error of one line."""
    seen = terminal.run(columns=columns, cwd=tmp_path)
    lines = seen.drawn.replace("\r", "").splitlines()
    assert (seen.status, len(lines)) == (2, 3)
    assert max(map(len, lines)) <= 80
    assert {*re.findall(r"diskreplay (\S+)", seen.drawn)} == {"demo", "record", "inspect", "--help"}
    piped = subprocess.run(terminal.CLI, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (piped.returncode, piped.stdout) == (2, "")
    assert piped.stderr == "diskreplay: Missing command (see 'diskreplay --help')\n"


def test_the_screen() -> None:
    """The terminal of these tests, against what real ones do."""
    screen = terminal.Screen(5)
    screen.feed("abcdefg\r\nx\ry\r\n\x1b[2Kgone\r\x1b[2K\x1b[1mkept\x1b[0m\b\b!\n\r12345\x1b[1A\rZ\x1b[K")
    assert screen.lines() == ["abcdefg", "y", "Z", "12345"]


PIP = """#!/bin/sh
# A Python whose pip warns as the real one does, unless it is told twice to be quiet, or not to.
case "$*" in
    *"-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python
                 printf '#!/bin/sh\\necho "the demo"\\n' > .venv/bin/diskreplay; chmod +x .venv/bin/diskreplay;;
    *"-m pip"*"-qq"*|*"--quiet --quiet"*) ;;
    *"-m pip"*) [ "$PIP_ROOT_USER_ACTION" = ignore ] || echo "WARNING: Running pip as the 'root'" >&2;;
esac
"""


def test_make_demo_prints_what_it_does_and_nothing_else(tmp_path: pathlib.Path) -> None:
    root = pathlib.Path(__file__).parents[2]
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "hatch_build.py"):
        shutil.copy(root / name, tmp_path)
    python = tmp_path / "python-with-pip"
    python.write_text(PIP)
    python.chmod(0o755)
    command = ["make", "--no-print-directory", "demo", f"PYTHON={python}"]
    first, again = (
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"})
        for _ in range(2)
    )
    assert first.stderr == again.stderr == ""
    assert first.stdout.splitlines() == [
        "Making .venv", "Installing diskreplay and the Atari emulator into .venv, and what they import", "the demo"
    ]  # fmt: skip
    assert again.stdout.splitlines() == ["the demo"]
