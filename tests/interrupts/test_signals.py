"""Real signals at random moments, in programs of their own: whatever they print, and leave, is right."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import pytest
from helpers import lives
from helpers.effort import examples
from helpers.patience import PATIENCE

import diskreplay as dr
from diskreplay.ops.verify import verify

TESTS = pathlib.Path(__file__).parent.parent


def start(path: str, work: str, ending: str, seed: int, count: int = 1) -> tuple[int, Any]:
    """Runs the program; its exit status and what it says in the end, None where it says nothing."""
    folders = [str(TESTS), str(TESTS.parent), str(TESTS.parent / "cli")]
    done = subprocess.run(
        [sys.executable, "-m", "interrupts.signalled", path, work, ending, str(seed), str(count)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])},
        cwd=TESTS, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[:1] == ["ready"], done.stderr[-2000:]
    outcome = json.loads(lines[1]) if len(lines) > 1 else None
    assert outcome is not None or ending == "default", f"exit status {done.returncode}: {done.stderr[-2000:]}"
    return done.returncode, outcome


def check_store(path: str, shown: int) -> None:
    """What is left can be opened, is right, and holds what was shown when it was closed; and can be gone on with."""
    assert verify(path).problems == ()
    with dr.ReplayBuffer.open(path, sampler=dr.Uniform(), **lives.OPTIONS) as buffer:
        end = buffer.stats()["streams"]["0"]["end"]
        assert end >= shown, f"{shown - end} rows are lost that were there when it was closed without a word"
        lives.check_all(buffer)
        lives.add(buffer, 9)
        lives.check_all(buffer)


@pytest.mark.long("test_what_is_left_after_one_signal")
@pytest.mark.parametrize("work", ["add", "sample", "refresh", "threads"])
def test_a_notebook_goes_on_after_each_interrupt(path: str, work: str) -> None:
    status, outcome = start(path, work, "on", seed=1, count=examples(12, "signals", least=3))
    assert outcome["wrong"] == []
    assert status == 0
    assert outcome["rows"] > 0
    check_store(path, outcome["shown"])


@pytest.mark.long
@pytest.mark.parametrize("work", ["add", "sample", "refresh", "threads"])
@pytest.mark.parametrize("ending", ["close", "exit", "default"])
def test_what_is_left_after_one_signal(path: str, work: str, ending: str) -> None:
    for seed in range(examples(1)):
        status, outcome = start(path, work, ending, seed=seed)  # the store of the one before is gone on with
        if ending == "default":
            assert (status, outcome) == (-signal.SIGTERM, None)
        else:
            assert outcome["wrong"] == []
        check_store(path, outcome["shown"] if outcome else 0)
