"""The command line, in this process."""

from __future__ import annotations

from typing import Any

from click.testing import CliRunner, Result
from diskreplay_cli.main import main


def command(*words: object, **options: Any) -> Result:
    """What a command does and says, given by its words; ``options`` are those of click's runner."""
    return CliRunner().invoke(main, [str(word) for word in words], **options)
