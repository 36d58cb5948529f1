"""The commands that change steps, in-process: what they print, as text and as JSON, and how they fail."""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import pytest
from cli.test_datasets import interrupted
from formats.roundtrip import store
from helpers.commands import facts, failure, said
from helpers.diff import diff

import diskreplay as dr

REWARDS = """
import numpy as np

SCALE = 2.0

def doubled(episode):
    return SCALE * episode.reward

def nothing(episode):
    return np.full(len(episode), np.nan)
"""


@pytest.fixture
def rewards(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in the working directory, as a user has it."""
    (tmp_path / "user_rewards.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # to which the command adds the working directory


def test_edit_prints_what_went(path: str, tmp_path: pathlib.Path) -> None:
    store()(path)
    planned = said("edit", path, tmp_path / "b", "--steps", "0:2", "--steps", "-1", "--episodes", "2:", "--dry-run")
    assert planned.splitlines() == [
        "would go          steps  of episodes",
        "from their begin  6      3",
        "from their end    3      3",
        "whole episodes    4      2",
        f"{tmp_path / 'b'} would have: 14 transitions of 5 episodes",
    ]
    assert not (tmp_path / "b").exists()
    done = said("edit", path, tmp_path / "b", "--steps", "2:4", "--where", "length > 4").splitlines()
    assert done[:3] == [
        "went               steps  of episodes",
        "from their middle  6      3",
        "3 episodes became several",
    ]
    assert done[3].startswith(f"{tmp_path / 'b'}: 21 transitions of 10 episodes, ")
    assert " on disk, in " in done[3]
    found = facts("edit", path, tmp_path / "c", "--drop-episodes", "0")
    assert found["removed"] == {"whole": {"steps": 5, "episodes": 1}}
    assert (found["transitions"], found["episodes"], found["divided"], found["dry_run"]) == (22, 6, 0, False)


def test_edit_keeps_what_export_keeps_and_drops_what_it_leaves_out(path: str, tmp_path: pathlib.Path) -> None:
    store()(path)
    said("export", path, tmp_path / "one.replay", "--where", "length > 4")
    said("edit", path, tmp_path / "two.replay", "--keep", "length > 4")
    assert diff(tmp_path / "one.replay", tmp_path / "two.replay") is None
    assert facts("edit", path, tmp_path / "rest", "--drop", "length > 4")["episodes"] == 4
    for wrong in (("--where", "length > 4"), ("--episodes", "0:2"), ("--where", "length > 4", "--dry-run")):
        line = failure("edit", path, tmp_path / "none", *wrong)
        assert "--drop CONDITION" in line
        assert "--keep CONDITION" in line
    assert not (tmp_path / "none").exists()


def test_edit_takes_a_file_of_ids(path: str, tmp_path: pathlib.Path) -> None:
    store()(path)
    (tmp_path / "ids.txt").write_text("2\n\n 7\n")
    np.save(tmp_path / "ids.npy", np.array([2, 7]))
    for number, name in enumerate(("ids.txt", "ids.npy")):
        found = facts("edit", path, tmp_path / f"out-{number}", "--ids", tmp_path / name)
        assert found["removed"] == {"middle": {"steps": 2, "episodes": 2}}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"2\nseven\n", "line 2: 'seven' is no id"),
        ("a.txt", b"1.0e+00\n", "line 1: '1.0e+00' is no id"),
        ("a.txt", b"-1\n", "line 1: '-1' is no id"),
        ("a.txt", b"9223372036854775808\n", "is no id"),
        ("a.txt", b"\xff\xfe\x00", "cannot be read as ids"),
        ("a.txt", b"", "none of the 27 steps"),
        ("a.txt", b"2\n99\n", "1 of 2 ids name no step"),
        ("a.npy", b"junk", "cannot be read as ids"),
        ("a.npy", b"", "cannot be read as ids"),
        ("missing.txt", None, "cannot be read as ids: No such file or directory"),
    ],
)
def test_a_file_with_junk_is_refused(
    name: str, content: bytes | None, words: str, path: str, tmp_path: pathlib.Path
) -> None:
    store()(path)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert words in failure("edit", path, tmp_path / "b", "--ids", tmp_path / name)
    assert not (tmp_path / "b").exists()


def test_edit_and_relabel(path: str, tmp_path: pathlib.Path, rewards: None) -> None:
    store()(path)
    out = tmp_path / "b"
    assert "edit STORE COPY --later shaped" in failure("relabel", path, "--reward", "user_rewards:doubled")
    assert said("edit", path, out, "--later", "shaped").startswith(f"{out}: 27 transitions of 7 episodes, ")
    printed = said("relabel", out, "--reward", "user_rewards:doubled")
    assert printed.startswith(f"{out}: shaped has new values for 27 steps of 7 episodes, in ")
    assert facts("relabel", out, "--reward", "user_rewards:doubled", "--column", "shaped")["steps"] == 27
    with dr.ReplayBuffer.open(out, mode="r") as buffer:
        batch = buffer.get(buffer.items())
        np.testing.assert_array_equal(batch.extra["shaped"], 2 * batch.reward)
    assert "float32, got nan; nothing was" in failure("relabel", out, "--reward", "user_rewards:nothing")
    with dr.ReplayBuffer.open(out):
        assert "being written" in failure("relabel", out, "--reward", "user_rewards:doubled")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("user_rewards", "is no module:function"), ("user_rewards:", "is no module:function"),
        ("user_rewards:missing", "cannot be loaded: AttributeError"), ("nowhere:at_all", "ModuleNotFoundError"),
        ("user_rewards:SCALE", "is float, no function"), ("leaves:any", "cannot be loaded: SystemExit: 3"),
        ("a b:c", "cannot be loaded: ValueError"),
    ],
)  # fmt: skip
def test_what_is_no_function_is_refused(
    given: str, words: str, path: str, tmp_path: pathlib.Path, rewards: None
) -> None:
    store(later={"shaped": np.float32})(path)
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)")
    assert words in failure("relabel", path, "--reward", given)


def test_an_interrupt_says_what_there_is(
    path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, rewards: None
) -> None:
    store(later={"shaped": np.float32})(path)

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("diskreplay.ops.edit.bytes_of", interrupt)
        assert interrupted("edit", path, tmp_path / "b", "--steps", "0") == f"{tmp_path / 'b'} is whole"
    monkeypatch.setattr("diskreplay.ops.edit.open_selected", interrupt)
    monkeypatch.setattr("diskreplay.ops.relabel.called", interrupt)
    assert interrupted("edit", path, tmp_path / "c", "--steps", "0") == "nothing was written"
    assert interrupted("relabel", path, "--reward", "user_rewards:doubled") == "nothing was written"
