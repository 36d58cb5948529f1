"""Programs that give compiled code damaged memory, in processes of their own: one that reads too far ends itself."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

TESTS = pathlib.Path(__file__).parent.parent


def fuzzed(module: str, *arguments: object) -> dict[str, int]:
    """How many cases ended in which way; the test fails with the stacks of a process that died."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", module, *map(str, arguments)],
        cwd=TESTS, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ended: dict[str, int] = json.loads(done.stdout)
    return ended
