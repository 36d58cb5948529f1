"""The reference page says what --help says, and --help says something of everything."""

from __future__ import annotations

import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys

import click
import pytest
from diskreplay_cli.main import main
from helpers.commands import command
from helpers.programs import run

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def test_the_reference_is_up_to_date() -> None:
    reference = runpy.run_path(str(DOCS / "make_cli.py"))["reference"]
    assert (DOCS / "cli.md").read_text() == reference(), "run: python docs/make_cli.py"


def completed(**environment: str) -> str:
    """What the command prints for a shell that completes."""
    program = "import sys; sys.argv = ['diskreplay']; from diskreplay_cli.start import main; main()"
    done = run(program, **environment)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_documented_completion(shell: str) -> None:
    documented = re.findall(r"^(\w+)=(\w+) diskreplay >", (DOCS / "cli.md").read_text(), re.MULTILINE)
    assert ("_DISKREPLAY_COMPLETE", f"{shell}_source") in documented
    assert "diskreplay" in completed(_DISKREPLAY_COMPLETE=f"{shell}_source")


@pytest.mark.long
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


SHELLS = {
    "bash": """. {script}; COMP_WORDS=(diskreplay ins); COMP_CWORD=1; _diskreplay_completion diskreplay
        echo ${{COMPREPLY[*]}}""",
    "zsh": """zmodload zsh/zpty; zpty z zsh -f -i
        zpty -w z "PROMPT=; autoload -Uz compinit; compinit -u -d {script}.dump; . {script}; echo READY"
        zpty -r -m z out "*READY*READY*"; zpty -w -n z $'diskreplay ins\\t'; zpty -r -m z out "*inspect*"
        print -r -- $out""",
    "fish": """source {script}; complete -C "diskreplay ins" """,
}
"""For each shell, how it completes ``diskreplay ins``; zsh does so on a terminal alone."""


@pytest.mark.long
@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_itself_completes(shell: str, tmp_path: pathlib.Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script, folder = tmp_path / "script", pathlib.Path(sys.executable).parent
    script.write_text(completed(_DISKREPLAY_COMPLETE=f"{shell}_source"))
    bare = {"bash": "--norc", "zsh": "-f", "fish": "--no-config"}[shell]
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        [shell, bare, "-c", SHELLS[shell].format(script=script)], env=environment, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=300, check=False,
    )  # fmt: skip
    assert "inspect" in done.stdout, done.stderr


def every_command() -> dict[str, click.Command]:
    found = dict(main.commands)
    for name, each in main.commands.items():
        if isinstance(each, click.Group):
            found |= {f"{name} {below}": one for below, one in each.commands.items()}
    return found


@pytest.mark.parametrize("name", sorted(every_command()))
def test_every_command_and_option_has_help(name: str) -> None:
    command = every_command()[name]
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


def test_short_help_is_a_whole_sentence() -> None:
    """Where it does not fit, click cuts it, and puts dots there; of 80 columns it leaves two empty."""
    texts = [command(*group, "--help", terminal_width=78).output for group in ([], ["checkpoints"])]
    lists = re.findall(r"^Commands:\n((?:  .*\n)+)", "".join(texts), re.MULTILINE)
    assert len(lists) == 2
    for line in "".join(lists).splitlines():
        assert line.endswith("."), line
        assert not line.endswith("..."), line


def test_the_commands() -> None:
    assert sorted(main.commands) == [
        "checkpoints", "demo", "edit", "episodes", "export", "formats", "gc", "head", "import",
        "inspect", "merge", "pull", "push", "record", "relabel", "report", "resize", "salvage", "show", "split",
        "verify", "view",
    ]  # fmt: skip
