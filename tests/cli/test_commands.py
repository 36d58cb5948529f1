"""Every command in-process: what it prints, as text and as JSON, and how it fails."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from diskreplay_cli import errors, text
from gymnasium import spaces
from helpers.commands import command, facts, failure, said
from ops.stores import fill, images

import diskreplay
from diskreplay.errors import DiskFullError
from diskreplay.ops.problems import Problem
from diskreplay.ops.verify import Verified


def test_version() -> None:
    assert command("--version").stdout == f"diskreplay {diskreplay.__version__}\n"


def test_record(path: str) -> None:
    assert "recorded 120 steps" in said("record", "CartPole-v1", path, "--steps", 120)
    document = facts("record", "CartPole-v1", path, "--steps", 150, "--resume")
    assert (document["steps"], document["new_steps"], document["stopped"]) == (150, 30, False)
    assert "150 steps already" in command("record", "CartPole-v1", path, "--steps", 150, "--resume").stdout
    assert "--resume" in failure("record", "CartPole-v1", path, "--steps", 150)


def test_inspect(path: str) -> None:
    images(path, rows=60, capacity=80)
    shown = said("inspect", path)
    for part in ("window", "of 80 transitions", "episodes", "length", "return", "lz4hc:4", "40x40", "healthy", "none"):
        assert part in shown, part
    lines = shown.splitlines()
    assert len(lines) <= 40
    assert max(len(line) for line in lines[1:]) <= 80
    assert "\x1b" not in shown
    assert facts("inspect", path)["streams"][0]["end"] == 60


def test_a_narrow_inspect_names_its_rows(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of lengths, returns and columns gave way first, and were gone."""
    images(path)
    monkeypatch.setenv("COLUMNS", "40")
    lines = [line for line in command("inspect", path).stdout.splitlines()[1:] if line.strip()]
    assert max(map(len, lines)) <= 40
    assert {"len", "ret", "obs", "rew"} <= {line[:3] for line in lines}


def test_inspect_says_where_steps_come_from(path: str) -> None:
    said("record", "Pendulum-v1", path, "--steps", "10")
    shown = said("inspect", path)
    assert "environment    Pendulum-v1" in shown
    assert f"gymnasium {gymnasium.__version__}" in shown
    assert facts("inspect", path)["provenance"]["env_spec"]["id"] == "Pendulum-v1"
    assert "provenance" not in facts("inspect", path)["settings"]


ODD = [
    ({"env_id": "Mine[bold]", "env_spec": {"kwargs": {"sizes": [1, 2]}}}, ["Mine[bold](sizes=[1, 2])"]),
    ({"env_id": ["a"], "env_spec": {"kwargs": 3, "additional_wrappers": [3, {}]}, "versions": 7}, ["['a'], None"]),
    (
        {"robot": {"arm": "[red]left"}, "env_spec": 3, "versions": {"a": [1]}},
        ['{"robot": {"arm": "[red]left"}}', "a [1]"],
    ),
    ({"text": "x" * 10_000}, ["xxx..."]),
]


@pytest.mark.parametrize(("told", "parts"), ODD, ids=[parts[0] for _, parts in ODD])
def test_inspect_shows_whatever_a_user_told(told: dict[str, Any], parts: list[str], path: str) -> None:
    space = gymnasium.spaces.Discrete(2)
    with diskreplay.ReplayBuffer.create(path, space, space, capacity=3, provenance=told):
        pass
    shown = said("inspect", path)
    assert len(shown.splitlines()) <= 40
    for part in parts:
        assert part in shown, part
    assert facts("inspect", path)["provenance"] == told


def test_inspect_says_how_episodes_end(path: str) -> None:
    images(path, rows=60)
    lines = said("inspect", path).splitlines()
    ends = facts("inspect", path)["streams"][0]["ends"]
    assert any(line.split() == ["ends", *f"{ends['terminated']} terminated, {ends['truncated']} truncated".split()]
               for line in lines)  # fmt: skip
    assert any(line.startswith("continuity     observations: ") for line in lines)
    assert any("of the 120 steps are resets or gaps, and no transitions" in line for line in lines)


def test_inspect_cuts_long_spaces(path: str) -> None:
    """A space with bounds of its own for each of many elements filled the screen."""
    low = np.arange(500, dtype=np.float32) - 1000
    space = spaces.Dict(a=spaces.Box(low, low + 1, dtype=np.float32), b=spaces.Box(low, low + 2, dtype=np.float32))
    with diskreplay.ReplayBuffer.create(path, space, spaces.Discrete(2), capacity=5):
        pass
    lines = said("inspect", path).splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("obs "))
    shown = lines[at : next(at for at, line in enumerate(lines) if line.startswith("action"))]
    assert len(shown) <= 5
    assert "(in full: --json)" in " ".join("".join(shown).split())
    assert facts("inspect", path)["observation_space"] == str(space)


def test_record_explains_steps_that_are_no_transitions(path: str) -> None:
    """95,659 transitions after --steps 100000, without a word."""
    lines = said("record", "CartPole-v1", path, "--steps", 400, "--envs", 4).splitlines()
    document = facts("inspect", path)
    resets = 400 - document["transitions"]
    assert lines[-1] == f"it holds {document['transitions']} transitions: {resets} steps only reset an environment"
    assert resets > 0
    alone = said("record", "CartPole-v1", f"{path}-1", "--steps", 100).splitlines()
    assert not [line for line in alone if "reset" in line]


def test_inspect_of_a_damaged_store(path: str) -> None:
    images(path)
    file = pathlib.Path(path, "streams/0/obs/c.1.0.0.0")
    file.unlink()
    shown = said("inspect", path)
    assert "damaged" in shown
    assert str(file) in shown.replace("\n", "")
    assert facts("inspect", path)["health"]


def test_verify(path: str) -> None:
    images(path)
    assert said("verify", path).startswith("no problem in 1 stream")
    file = pathlib.Path(path, "streams/0/obs/c.1.0.0.0")
    file.unlink()
    result = command("verify", path)
    assert result.exit_code == 1
    assert f"{file}: the shard's file is missing (stream '0', column 'obs', rows 16 to 32)" in result.stdout
    copy = "to go on with a copy of the store: a backup, or what was pushed ('diskreplay pull')"
    assert result.stdout.splitlines()[-1] == copy
    result = command("verify", path, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert (document["problems"][0]["rows"], document["checkpoint"]) == ([16, 32], None)
    pathlib.Path(path, "zarr.json").write_text("{}")
    pathlib.Path(path, "streams/0/start/root.json").unlink()
    assert command("verify", path).stdout.splitlines()[-1] == copy


def test_verify_says_which_command_goes_back(path: str) -> None:
    images(path)
    with diskreplay.ReplayBuffer.open(path) as buffer:
        buffer.checkpoint("the first")
        fill(buffer, 30)
    pathlib.Path(path, "streams/0/obs/c.4.0.0.0").unlink()
    *_, read, back, _ = command("verify", path).stdout.splitlines()
    with eval(read.removeprefix("to read the newest whole checkpoint: ")) as buffer:
        assert len(buffer.checkpoints) == 1
    what, _, words = back.partition(": diskreplay ")
    assert what == "to go back to it, and discard what came after it"
    assert "30 rows discarded" in said(*shlex.split(words))
    assert said("verify", path).startswith("no problem in 1 stream, 1 checkpoint")


def test_who_speaks_of_damage_says_what_to_do(path: str, tmp_path: pathlib.Path) -> None:
    images(path)
    said("report", path, "-o", tmp_path / "page.html")
    for place in (str(diskreplay.errors.__doc__), (tmp_path / "page.html").read_text()):
        assert "go back to a checkpoint, or take a copy" in place
    explained = " ".join(said("verify", "--help").split())
    assert "go back to the newest whole checkpoint, or to take a copy of the store" in explained
    found = Verified("s3://b/x", 1, 1, 9, 99, 0.1, (Problem("it is damaged"),), "one")
    assert list(text.cures(found, "s3://b/x")) == [
        "to read the newest whole checkpoint: diskreplay.ReplayBuffer.open('s3://b/x', mode='r', checkpoint='one')",
        "to go on with a copy of the store: a backup, or the store that was pushed there",
    ]


def test_export(path: str, tmp_path: pathlib.Path) -> None:
    images(path)
    out = tmp_path / "a.hdf5"
    assert "transitions" in said("export", path, out)
    assert "exists" in failure("export", path, out)
    document = facts("export", path, out, "--overwrite", "--format", "d4rl", "--compression", "lzf")
    with h5py.File(out) as file:
        assert len(file["rewards"]) == document["transitions"]
    assert "--format" in failure("export", path, out, "--format", "csv")


def test_show(path: str, tmp_path: pathlib.Path) -> None:
    images(path)
    assert "episode 2 of" in said("show", path, "--episode", 2, "--out", tmp_path / "a.png")
    assert facts("show", path, "--episode", -1, "--out", tmp_path / "a.gif", "--scale", 1)["width"] == 40
    assert "exists; choose another name" in failure("show", path, "-o", tmp_path / "a.png")
    said("show", path, "-o", tmp_path / "a.png", "--overwrite")
    assert "episode must be" in failure("show", path, "--episode", 999, "--out", tmp_path / "b.png")


@pytest.mark.long
def test_demo(tmp_path: pathlib.Path) -> None:
    shown = said("demo", tmp_path / "out", "--steps", 300)
    assert "bit-identical" in shown
    assert "healthy" in shown
    assert (tmp_path / "out" / "pong.hdf5").exists()


@pytest.mark.parametrize(
    "args",
    [
        ("nonsense",),
        ("record",),
        ("record", "CartPole-v1", "PATH"),
        ("checkpoints",),
        ("record", "CartPole-v1", "PATH", "--steps", "0"),
        ("record", "CartPole-v1", "PATH", "--steps", "many"),
        ("record", "NoSuchEnv-v0", "PATH", "--steps", "5"),
        ("record", "CartPole-v1", "PATH", "--steps", "5", "--atari"),
        ("inspect", "PATH"),
        ("inspect", "PATH", "--colour"),
        ("verify", "PATH"),
        ("export", "PATH", "OUT.hdf5"),
        ("show", "PATH", "--out", "OUT.png"),
        ("show", "PATH"),
        ("import", "A"), ("import", "A", "B"), ("merge", "A"), ("merge", "A", "B"), ("split", "A"),
        ("split", "A", "--fraction", "2"), ("split", "A", "--fraction", "0.5"), ("head", "A"), ("episodes", "A"),
        ("episodes", "A", "--sort", "colour"), ("export", "A", "B", "--format", "x"), ("export", "A", "B"),
    ],
)  # fmt: skip
def test_errors_are_one_line_and_status_2(args: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    line = failure(*(str(tmp_path / arg) if arg.isupper() or arg.startswith("OUT.") else arg for arg in args))
    assert "Options:" not in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["inspect", "verify"])
def test_what_is_no_store(name: str, tmp_path: pathlib.Path) -> None:
    assert "not a diskreplay store" in failure(name, tmp_path)
    (tmp_path / "zarr.json").write_text("{")
    assert "not a diskreplay store" in failure(name, tmp_path)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            DiskFullError(28, "committing 'x' failed: No space left on device"),
            "committing 'x' failed: No space left on device",
        ),
        (PermissionError(13, "Permission denied", "/some/file"), "/some/file: Permission denied"),
        (ModuleNotFoundError("install it\nnow"), "install it now"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_faults_have_no_traceback(monkeypatch: pytest.MonkeyPatch, error: BaseException, said: str) -> None:
    def fail(path: str) -> None:
        raise error

    monkeypatch.setattr("diskreplay.ops.inspect.inspect", fail)
    status = 130 if isinstance(error, KeyboardInterrupt) else 2
    result = command("inspect", "x")
    assert result.exit_code == status
    assert result.stderr.strip() == f"diskreplay: {said}"


def test_errors_speak_of_commands(path: str, tmp_path: pathlib.Path) -> None:
    """They told people at a command line to call methods."""
    missing = failure("inspect", path)
    assert missing.endswith("; 'diskreplay record' and 'diskreplay import' make one")
    images(path)
    with diskreplay.ReplayBuffer.open(path) as buffer:
        buffer.checkpoint("one")
        assert failure("resize", path, "--capacity", 90).endswith("; close that writer")
        fill(buffer, 5)
        buffer.checkpoint("two")
    later = failure("checkpoints", "restore", path, "one")
    assert later.endswith("drop them first ('diskreplay checkpoints drop')")
    stacked = failure("import", path, path, "--append", "--frame-stack", 2)
    assert "--frame-stack belongs" in stacked
    for line in (missing, later, stacked):
        assert not re.search(r"ReplayBuffer|mode=|drop_checkpoint|\w\(\)|frame_stack", line)


def test_the_words_that_commands_replace_are_the_librarys() -> None:
    """An error that is worded anew is looked at here."""
    source = "".join(
        re.sub(r'"\n\s*f?"', "", file.read_text()) for file in pathlib.Path(diskreplay.__file__).parent.rglob("*.py")
    )
    named = {"frame_stack must": 'check_count("frame_stack"', "num_envs must": 'check_count("num_envs"'}
    for python in errors.COMMANDS:
        assert named.get(python, python) in source, python


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> None:
        raise AssertionError("a defect")

    monkeypatch.setattr("diskreplay.ops.inspect.inspect", fail)
    assert isinstance(command("inspect", "x").exception, AssertionError)


def test_a_missing_atari_package_is_one_line(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    assert "diskreplay[atari]" in failure("record", "ALE/Pong-v5", path, "--steps", 5, "--atari")
    assert not pathlib.Path(path).exists()


@pytest.mark.long
def test_output_that_cannot_carry_blocks_gets_plain_ones(path: str) -> None:
    images(path)
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    command = [sys.executable, "-m", "diskreplay_cli.main", "inspect", path]
    shown = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert shown.stdout.isascii()
    assert b"from min to max" in shown.stdout


@pytest.mark.long
def test_a_closed_pipe_is_no_error_to_see(path: str) -> None:
    images(path)
    command = f"{sys.executable} -m diskreplay_cli.main inspect {path} --json | head -c 1"
    shown = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    assert (shown.stdout, shown.stderr) == (b"{", b"")


@pytest.mark.long
@pytest.mark.parametrize(
    ("args", "status"),
    [
        (("verify",), 2), (("episodes",), 0), (("episodes", "--json"), 0), (("head",), 0), (("formats",), 0),
        (("inspect",), 0), (("checkpoints", "list"), 0),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else None,
)  # fmt: skip
def test_a_reader_that_went_away_has_read_enough(path: str, args: tuple[str, ...], status: int) -> None:
    """Of ``verify`` it is status 2: with 0, or with 1 as click ends then, it would say what it found."""
    images(path)
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "diskreplay_cli", *args, *([] if args == ("formats",) else [path])]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (status, b"")


def test_numbers_as_people_read_them() -> None:
    assert [text.size(n) for n in (0, 999, 1000, 1_500_000, 2 * 10**9, 3 * 10**12)] == [
        "0 B", "999 B", "1.0 kB", "1.5 MB", "2.0 GB", "3.0 TB",
    ]  # fmt: skip
    assert [text.number(n) for n in (0.0, -21.0, 20.25, 1234.5, 0.125)] == ["0", "-21", "20.2", "1,234.5", "0.125"]
    assert [text.ratio(n) for n in (0, 1.25, 93.2)] == ["-", "1.2x", "93x"]
    assert [text.compared(n) for n in (0, 0.25, 1, 93.2)] == ["- smaller", "4.0x larger", "1.0x smaller", "93x smaller"]
    assert [text.plural(n, "step") for n in (0, 1, 2000)] == ["0 steps", "1 step", "2,000 steps"]
    assert [text.ago(n) for n in (0.5, 1, 119, 86400 * 3)] == ["just now", "1 second ago", "1 minute ago", "3 days ago"]
    assert text.histogram([0, 1, 4, 8]) == " ▁▄█"
    assert text.histogram([1, 100], plain=True) == "_#"
    assert text.histogram([]) == ""
