"""Writes docs/cli.md, the reference of the command line, from what ``--help`` says: ``python docs/make_cli.py``.

A test compares the two, so that neither changes alone.
"""

from __future__ import annotations

import pathlib

import click
from diskreplay_cli.main import main

TARGET = pathlib.Path(__file__).with_name("cli.md")
HEAD = """# The command line

Made from `--help` by `python docs/make_cli.py`; change the texts in `cli/diskreplay_cli`.
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
    return f"## {title}\n\n```text\n{text}\n```\n"


if __name__ == "__main__":
    TARGET.write_text(reference())
