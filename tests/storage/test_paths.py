"""Paths as users type them: a leading ``~`` is the home directory, at every door."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from diskreplay_cli.datasets import written_to
from helpers.commands import command, said
from helpers.testing.faulty_objects import SimulatedObjects

import diskreplay as dr
from diskreplay.compat.frames import ReplayBuffer
from diskreplay.errors import InputError, StoreNotFoundError
from diskreplay.ops.combine import merge, split
from diskreplay.ops.convert import export, import_dataset
from diskreplay.ops.edit import edit
from diskreplay.ops.inspect import inspect
from diskreplay.ops.record import record
from diskreplay.ops.resize import resize
from diskreplay.ops.show import show
from diskreplay.ops.verify import verify
from diskreplay.remote.place import default_mirror, open_remote
from diskreplay.report.write import report
from diskreplay.storage.paths import checked_path, checked_url

BOX, TURN = gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(2)
STEPS = [([at / 9] * 3, 1, 1.0, [(at + 1) / 9] * 3, at % 3 == 2, False) for at in range(9)]


@pytest.fixture
def home(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A home directory with a store ``a.replay``; the working directory is another, and stays empty."""
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    with dr.ReplayBuffer.create(tmp_path / "home" / "a.replay", BOX, TURN, capacity=20, seed=0) as buffer:
        for step in STEPS:
            buffer.add(*step)
    return tmp_path / "home"


def recorded(kind: Any, env: Any) -> None:
    with_steps = kind(env, "~/b.replay", capacity=20)
    with_steps.reset(seed=0)
    with_steps.close()


def framed() -> None:
    buffer = ReplayBuffer(10, 1, path="~/b.replay")
    for value in range(3):
        buffer.store_effect(buffer.store_frame(np.full(3, value, np.uint8)), value, 0.0, False)
    buffer.close()


MADE: dict[str, Callable[[], object]] = {
    "create": lambda: dr.ReplayBuffer.create("~/b.replay", BOX, TURN, capacity=10).close(),
    "a path object": lambda: dr.ReplayBuffer.create(pathlib.Path("~/b.replay"), BOX, TURN, capacity=10).close(),
    "open_or_create": lambda: dr.ReplayBuffer.open_or_create("~/b.replay", BOX, TURN, capacity=10).close(),
    "rollout": lambda: dr.RolloutBuffer.create("~/b.replay", BOX, TURN, steps=5).close(),
    "Record": lambda: recorded(dr.Record, gymnasium.make("CartPole-v1")),
    "VectorRecord": lambda: recorded(dr.VectorRecord, gymnasium.make_vec("CartPole-v1", 2)),
    "record": lambda: record("CartPole-v1", "~/b.replay", steps=5),
    "frames": framed,
    "export": lambda: export("~/a.replay", "~/b.replay", "store"),
    "import": lambda: import_dataset("~/a.replay", "~/b.replay", "store"),
    "merge": lambda: merge("~/b.replay", ["~/a.replay"]),
    "split": lambda: split("~/a.replay", [0.5], ["~/b.replay", "~/c.replay"]),
    "edit": lambda: edit("~/a.replay", "~/b.replay", steps=[slice(0, 1)]),
    "show": lambda: show("~/a.replay", "~/b.png"),
    "report": lambda: report("~/a.replay", "~/b.html"),
}
READ: dict[str, Callable[[], object]] = {
    "open": lambda: dr.open("~/a.replay").close(),
    "ReplayBuffer.open": lambda: dr.ReplayBuffer.open("~/a.replay").close(),
    "Mixture.open": lambda: dr.Mixture.open([("~/a.replay", {"mode": "r"})]).close(),
    "verify": lambda: verify("~/a.replay"),
    "inspect": lambda: inspect("~/a.replay"),
    "resize": lambda: resize("~/a.replay", 30),
    "a command": lambda: command("inspect", "~/a.replay", catch_exceptions=False).exit_code or None,
}


@pytest.mark.parametrize("door", MADE)
def test_what_is_made_is_made_at_home(home: pathlib.Path, door: str) -> None:
    MADE[door]()
    assert list(home.glob("b.*"))
    assert not list(pathlib.Path.cwd().iterdir())


@pytest.mark.parametrize("door", READ)
def test_what_is_read_is_read_at_home(home: pathlib.Path, door: str) -> None:
    READ[door]()
    assert [each.name for each in home.iterdir()] == ["a.replay"]
    assert not list(pathlib.Path.cwd().iterdir())


def test_an_interrupt_of_a_command_looks_at_home_too(home: pathlib.Path) -> None:
    left = written_to("~/b.npz")
    (home / "b.npz").write_text("whole")
    assert left() == "~/b.npz is whole"


def test_a_file_of_ids_is_at_home(home: pathlib.Path) -> None:
    (home / "ids.txt").write_text("1\n")
    said("edit", "~/a.replay", "~/b.replay", "--ids", "~/ids.txt")
    assert (home / "b.replay").is_dir()


def test_a_mirror_is_at_home(home: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISKREPLAY_MIRROR", "~/mirrors")
    assert default_mirror("s3://bucket/a").startswith(f"{home}/mirrors/a-")
    with pytest.raises(StoreNotFoundError, match="there is no store"):
        open_remote(SimulatedObjects("s3://bucket/a"), "~/copies")
    assert (home / "copies").is_dir()


def test_only_a_path_that_begins_so_is_at_home(home: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked_path("~/x") == f"{home}/x"
    assert checked_path("~") == str(home)
    for path in ("./~/x", "a/~", "x~", "file:///~/x", "~nobody-of-this-name/x"):
        assert checked_path(path) == path
    assert checked_url("file:///~/x") == "file:///~/x"
    with pytest.raises(StoreNotFoundError, match=str(home)):
        dr.open("~/none.replay")


def test_without_a_home_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(InputError, match="'~/x' is in a home directory, and there is none: set HOME"):
        checked_path("~/x")
