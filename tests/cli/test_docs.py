"""The reference page says what --help says, and --help says something of everything."""

from __future__ import annotations

import os
import pathlib
import re
import runpy
import subprocess
import sys

import click
import pytest
from diskreplay_cli.main import main

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def test_the_reference_is_up_to_date() -> None:
    reference = runpy.run_path(str(DOCS / "make_cli.py"))["reference"]
    assert (DOCS / "cli.md").read_text() == reference(), "run: python docs/make_cli.py"


def completed(**environment: str) -> str:
    """What the command prints for a shell that completes."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['diskreplay']; from diskreplay_cli.start import main; main()"],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_documented_completion(shell: str) -> None:
    documented = re.findall(r"^(\w+)=(\w+) diskreplay >", (DOCS / "cli.md").read_text(), re.MULTILINE)
    assert ("_DISKREPLAY_COMPLETE", f"{shell}_source") in documented
    assert "diskreplay" in completed(_DISKREPLAY_COMPLETE=f"{shell}_source")


@pytest.mark.parametrize(
    ("words", "at", "expected"),
    [
        ("diskreplay ins", "1", ["plain,inspect"]),
        ("diskreplay checkpoints re", "2", ["plain,restore"]),
        ("diskreplay export a b --format d4", "5", ["plain,d4rl"]),
        ("diskreplay inspect ./a", "2", ["file,./a"]),
    ],
)  # fmt: skip
def test_a_shell_completes(words: str, at: str, expected: list[str]) -> None:
    assert completed(_DISKREPLAY_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=at).splitlines() == expected


def every_command() -> dict[str, click.Command]:
    found = dict(main.commands)
    for name, command in main.commands.items():
        if isinstance(command, click.Group):
            found |= {f"{name} {below}": each for below, each in command.commands.items()}
    return found


@pytest.mark.parametrize("name", sorted(every_command()))
def test_every_command_and_option_has_help(name: str) -> None:
    command = every_command()[name]
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


def test_the_commands() -> None:
    assert sorted(main.commands) == [
        "checkpoints", "compact", "demo", "diff", "episodes", "export", "formats", "gc", "head", "import",
        "inspect", "merge", "pull", "push", "record", "report", "show", "split", "verify", "view",
    ]  # fmt: skip
