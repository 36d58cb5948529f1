"""The reference page says what --help says, and --help says something of everything."""

from __future__ import annotations

import pathlib
import runpy

import click
import pytest
from diskreplay_cli.main import main

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def test_the_reference_is_up_to_date() -> None:
    reference = runpy.run_path(str(DOCS / "make_cli.py"))["reference"]
    assert (DOCS / "cli.md").read_text() == reference(), "run: python docs/make_cli.py"


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
        "checkpoints", "compact", "demo", "diff", "episodes", "export", "formats", "head", "import", "inspect",
        "merge", "record", "show", "split", "verify",
    ]  # fmt: skip
