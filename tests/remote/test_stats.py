"""What ``stats()["remote"]`` and warnings say of what waits, was lost, or is not pushed."""

from __future__ import annotations

import pathlib
import warnings
from typing import Any

import pytest
from click.testing import CliRunner
from diskreplay_cli.main import main
from remote.world import RUN, URL, Life, reader, under

import diskreplay as dr
from diskreplay.errors import RemoteWarning
from diskreplay.ops.remote import push
from diskreplay.testing import FaultyObjects, SimulatedObjects


def _remote(life: Life, *names: str) -> tuple[Any, ...]:
    said = life.buffer.stats()["remote"]
    return tuple(said[name] for name in names)


def test_rows_that_wait_and_rows_that_are_lost_are_counted_after_going_back(tmp_path: pathlib.Path) -> None:
    objects = FaultyObjects(SimulatedObjects())
    with under(objects):
        life = Life(tmp_path / "a", capacity=20, remote=URL)
        life.add(20)
        life.buffer.push(300)
        life.add(15)
        life.checkpoint("c")  # rows 15 to 35
        life.buffer.push(300)
        life.add(15)
        life.buffer.push(300)
        assert _remote(life, "pushed_rows", "lag_rows", "lost_rows") == (50, 0, 0)
        life.buffer.close()
        objects.fail_at(0, times=None)
        life.buffer = dr.ReplayBuffer.open(life.path, checkpoint="c", remote=URL, **RUN)
        life.rows, life.timeline = list(life.saved["c"]), 1
        assert _remote(life, "lag_rows", "lost_rows") == (20, 0)
        life.add(8)
        assert _remote(life, "lag_rows", "lost_rows") == (20, 8)  # the window is full
        life.add(30)
        assert _remote(life, "lag_rows", "lost_rows") == (20, 38)
        objects.heal()
        life.buffer.push(300)
        assert _remote(life, "pushed_rows", "lag_rows", "lost_rows") == (73, 0, 38)
        life.add(3)
        life.buffer.push(300)
        assert _remote(life, "pushed_rows", "lag_rows", "lost_rows") == (76, 0, 38)
        life.buffer.close()


def test_a_first_push_waits_for_the_window_alone(tmp_path: pathlib.Path) -> None:
    life = Life(tmp_path / "a", capacity=20)
    life.add(50)
    life.buffer.close()
    objects = FaultyObjects(SimulatedObjects())
    objects.fail_at(0, times=None)
    with under(objects):
        life.buffer = dr.ReplayBuffer.open(life.path, remote=URL, **RUN)
        assert _remote(life, "lag_rows", "lost_rows") == (20, 0)  # nobody wanted the others to be sent
        life.add(5)
        assert _remote(life, "lag_rows", "lost_rows") == (20, 5)
        objects.heal()
        life.buffer.push(300)
        assert _remote(life, "pushed_rows", "lag_rows", "lost_rows") == (55, 0, 5)
        life.buffer.close()


def test_a_checkpoint_whose_name_another_has_there_is_said(tmp_path: pathlib.Path) -> None:
    objects = SimulatedObjects()
    with under(objects):
        life = Life(tmp_path / "a", remote=URL)
        life.add(20)
        life.buffer.push(300)
        with reader(objects, tmp_path / "m") as trainer:
            trainer.checkpoint("best")
        life.checkpoint("best")
        life.checkpoint("mine")
        with pytest.warns(RemoteWarning, match=f"checkpoint 'best' is here alone: at '{URL}' another's has that name"):
            life.buffer.push(300)
        assert _remote(life, "taken_checkpoints") == (["best"],)
        with warnings.catch_warnings():
            warnings.simplefilter("error", RemoteWarning)
            life.buffer.push(300)  # once
            life.buffer.drop_checkpoint("best")
            life.buffer.push(300)
            assert _remote(life, "taken_checkpoints") == ([],)
            life.buffer.close()
        with reader(objects, tmp_path / "m") as trainer:
            assert sorted(trainer.checkpoints) == ["best", "mine"]


def test_a_checkpoint_of_another_that_is_made_during_a_push_is_said(tmp_path: pathlib.Path) -> None:
    objects = SimulatedObjects()
    life = Life(tmp_path / "a")
    life.add(20)
    life.push(objects)
    life.checkpoint("best")
    faulty = FaultyObjects(objects)

    def first(index: int, request: Any) -> None:
        if request.name == "put" and request.key.startswith("checkpoints/best/"):
            faulty.heal()
            with reader(objects, tmp_path / "m") as trainer:
                trainer.checkpoint("best")

    faulty.decide = first
    assert life.push(faulty).sent.taken == ("best",)
    life.buffer.close()
    assert push(life.path, URL, objects).taken == ("best",)


def test_the_command_says_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = SimulatedObjects()
    life = Life(tmp_path / "a")
    life.add(20)
    life.push(objects)
    with reader(objects, tmp_path / "m") as trainer:
        trainer.checkpoint("best")
    life.checkpoint("best")
    life.buffer.close()
    monkeypatch.setattr("diskreplay.ops.remote.ObjectStore", lambda url: objects)
    result = CliRunner().invoke(main, ["push", life.path, URL])
    assert result.exit_code == 0, result.output
    assert "the checkpoint 'best' was not sent" in result.stderr
