"""Real processes that record a real game, stopped and killed at moments of their own."""

from __future__ import annotations

import json
import pathlib
import shlex
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from helpers.patience import PATIENCE

import diskreplay as dr
from diskreplay.ops.verify import verify

CLI = [sys.executable, "-m", "diskreplay_cli"]
STEPS = 3000


def recording(path: str, *options: str) -> list[str]:
    game = ["record", "ALE/Pong-v5", path, "--steps", str(STEPS), "--atari", "--commit-seconds", "0.1"]
    return [*CLI, *game, *options]


def hear() -> None:
    """Jobs that a shell starts in the background are made to ignore SIGINT, and so are their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(path: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        recording(path, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=hear,
    )  # fmt: skip


def commit_of(path: str) -> dict[str, Any]:
    """The commit record, {} while there is no store."""
    try:
        document = json.loads(pathlib.Path(path, "streams/0/zarr.json").read_bytes())
    except FileNotFoundError:
        return {}
    record: dict[str, Any] = document["attributes"]["diskreplay"]
    return record


def rows_of(path: str) -> int:
    record = commit_of(path)
    end: int = record["tables"]["rows"][1] if record else 0
    return end


def wait_for(path: str, sequence: int, process: subprocess.Popen[str]) -> None:
    """Waits for a commit of the store; fails when the process ends before."""
    until = time.monotonic() + PATIENCE
    while commit_of(path).get("sequence", -1) < sequence:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.002)


INTERRUPTED = """
import os, signal, sys
from diskreplay_cli.start import main

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

module = sys.argv.pop()
sys.meta_path.insert(0, Interrupt())
main()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "ended"),
    [
        ("click", (-signal.SIGINT, "")),  # by the system, of which shells say 130
        ("diskreplay_cli.main", (-signal.SIGINT, "")),
        ("numpy", (130, "\ndiskreplay: interrupted\n")),  # what a command needs, it imports itself
        ("gymnasium", (130, "\ndiskreplay: interrupted\n")),
        ("diskreplay.ops.episodes", (130, "\ndiskreplay: interrupted\n")),
    ],
)
def test_an_interrupt_while_libraries_are_imported(module: str, ended: tuple[int, str], path: str) -> None:
    """Ctrl-C in the first moments printed the traceback of an import."""
    process = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "episodes", path, module], capture_output=True, text=True, check=False,
        preexec_fn=hear,
    )  # fmt: skip
    assert (process.returncode, process.stderr) == ended


@pytest.mark.long
def test_an_interrupt_is_not_heard_in_a_background(path: str) -> None:
    """Where SIGINT is ignored, it stays so."""
    code = "import signal, diskreplay_cli.start; signal.raise_signal(signal.SIGINT); diskreplay_cli.start.main()"
    process = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout == f"diskreplay {dr.__version__}\n"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_commits_and_says_how_to_go_on(path: str, number: signal.Signals) -> None:
    process = start(path, "--envs", "2", "--seed", "4")
    wait_for(path, 2, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in err
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        rows = buffer.stats()["streams"]["0"]["committed"]
        assert 0 < rows * 2 < STEPS
    assert f"{rows * 2:,} of {STEPS:,} steps" in out
    assert verify(path).ok
    command = shlex.split(err.splitlines()[-1])
    assert command[0] == "diskreplay"
    subprocess.run([*CLI, *command[1:]], check=True, capture_output=True, timeout=PATIENCE)
    assert rows_of(path) * 2 == STEPS
    assert verify(path).ok


@pytest.mark.long("test_an_interrupt_commits_and_says_how_to_go_on")
@pytest.mark.parametrize("sequence", [-1, 0, 1, 3])
def test_a_killed_recording_goes_on_from_its_last_commit(path: str, sequence: int) -> None:
    """Killed before there is a store, at its birth, and between commits."""
    process = start(path, "--resume")
    if sequence < 0:
        time.sleep(0.3)
    else:
        wait_for(path, sequence, process)
        time.sleep(0.013 * sequence)
    process.kill()
    process.communicate(timeout=PATIENCE)
    committed = rows_of(path)
    if committed:
        assert verify(path).ok
        with dr.ReplayBuffer.open(path, mode="r") as buffer:
            before = buffer.get(list(range(committed)))
    done = subprocess.run([*recording(path, "--resume"), "--json"], check=True, capture_output=True, timeout=PATIENCE)
    assert json.loads(done.stdout)["new_steps"] == STEPS - committed
    assert rows_of(path) == STEPS
    assert verify(path).ok
    if committed:
        with dr.ReplayBuffer.open(path, mode="r") as buffer:
            after = buffer.get(list(range(committed)))
        assert (before.obs == after.obs).all()
        assert (before.next_obs == after.next_obs).all()
