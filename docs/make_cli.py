"""Writes docs/cli.md, the reference of the command line, from what ``--help`` says: ``python docs/make_cli.py``.

A test compares the two, so that neither changes alone.
"""

from __future__ import annotations

import pathlib
import re

import click
from diskreplay_cli.main import main

TARGET = pathlib.Path(__file__).with_name("cli.md")
SHARED = re.compile(r"\n  (-h, --help +Show this message and exit|--json +Print the facts as one JSON document)\.")
LISTS = re.compile(r"\n\nCommands:\n.*", re.DOTALL)
"""The list of a group's commands: the page has a section for each."""
HEAD = """# The command line

Made by `python docs/make_cli.py`; change the texts in `cli/diskreplay_cli`.

## At a glance

```sh
diskreplay record ALE/Pong-v5 pong.replay --atari --steps 100000 --frame-stack 4 --seed 0
diskreplay inspect pong.replay
diskreplay episodes pong.replay --sort return --reverse --limit 10
diskreplay checkpoints list pong.replay
diskreplay show pong.replay --episode 0 --out episode.gif
diskreplay report pong.replay -o pong.html
diskreplay view pong.replay
diskreplay export pong.replay pong.hdf5 --format d4rl
diskreplay import pong.hdf5 again.replay
diskreplay edit pong.replay trimmed.replay --steps 0:30
diskreplay verify pong.replay
diskreplay salvage pong.replay salvaged.replay --dry-run
```

`python -m diskreplay` is the same command. The blocks below are what `--help` prints, without the lists of commands and
without two options: every command has `--help`, and every command that prints facts has `--json` (one JSON document).
Ctrl-C commits and says how to go on; `record --resume` goes on, after a `kill -9` too. No command replaces a file
without `--overwrite`.

## Completion by the shell

For bash (4.4 or later), zsh and fish the command prints what the tab key completes by:

```sh
_DISKREPLAY_COMPLETE=bash_source diskreplay > ~/.diskreplay-complete.bash
_DISKREPLAY_COMPLETE=zsh_source diskreplay > ~/.diskreplay-complete.zsh
_DISKREPLAY_COMPLETE=fish_source diskreplay > ~/.config/fish/completions/diskreplay.fish
```

Fish finds it there; for bash add `. ~/.diskreplay-complete.bash` to `~/.bashrc`, for zsh
`. ~/.diskreplay-complete.zsh` to `~/.zshrc`.
"""


def reference() -> str:
    """The page: every command's help, as a terminal of 80 columns shows it."""
    parts = [HEAD]
    group = main.make_context("diskreplay", [], resilient_parsing=True, terminal_width=80)
    parts.append(section("diskreplay", main.get_help(group)))
    for name in main.list_commands(group):
        command = main.commands[name]
        context = command.make_context(name, [], group, resilient_parsing=True, terminal_width=80)
        parts.append(section(f"diskreplay {name}", command.get_help(context)))
        for below in command.list_commands(context) if isinstance(command, click.Group) else ():
            each = command.commands[below]
            inner = each.make_context(below, [], context, resilient_parsing=True, terminal_width=80)
            parts.append(section(f"diskreplay {name} {below}", each.get_help(inner)))
    return "\n".join(parts)


def section(title: str, text: str) -> str:
    """A command's help under its name, without the options and lists that the page has once."""
    text = re.sub(r"\n\nOptions:(?=\n\n|$)", "", LISTS.sub("", SHARED.sub("", text)))
    return f"## {title}\n\n```text\n{text}\n```\n"


if __name__ == "__main__":
    TARGET.write_text(reference())
