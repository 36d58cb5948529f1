"""The command line, in this process."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result
from diskreplay_cli.main import main


def command(*words: object, **options: Any) -> Result:
    """What a command does and says, given by its words; ``options`` are those of click's runner."""
    return CliRunner().invoke(main, [str(word) for word in words], **options)


def said(*words: object) -> str:
    """What a command prints that ends well, without a warning."""
    result = command(*words)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def facts(*words: object) -> dict[str, Any]:
    """What it prints as JSON."""
    document: dict[str, Any] = json.loads(said(*words, "--json"))
    return document


def failure(*words: object) -> str:
    """The one line of an error."""
    result = command(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("diskreplay: ")
    assert "Traceback" not in line
    return line
