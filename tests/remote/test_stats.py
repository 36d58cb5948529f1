"""What ``stats()["remote"]`` and warnings say of what waits, was lost, or is not pushed."""

from __future__ import annotations

import pathlib
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.commands import command
from helpers.testing import FaultyObjects, SimulatedObjects
from remote.world import RUN, URL, Life, lived, observation, reader, under

import diskreplay as dr
from diskreplay.compat.adapter_state import AdapterState
from diskreplay.errors import RemoteWarning
from diskreplay.ops.remote import push


def _remote(life: Life, *names: str) -> tuple[Any, ...]:
    said = life.buffer.stats()["remote"]
    return tuple(said[name] for name in names)


def test_waiting_and_lost_rows_are_counted_after_going_back(tmp_path: pathlib.Path) -> None:
    objects = FaultyObjects(SimulatedObjects())
    with under(objects):
        life = lived(tmp_path / "a", 20, capacity=20, remote=URL)
        life.buffer.push(300)
        life.add(15)
        life.checkpoint("c")  # rows 15 to 35
        life.buffer.push(300)
        life.add(15)
        life.buffer.push(300)
        assert _remote(life, "pushed_rows", "lag_rows", "lost_rows") == (50, 0, 0)
        life.go_back("c")
        life.buffer.close()
        objects.fail_at(0, times=None)
        life.buffer = dr.ReplayBuffer.open(life.path, remote=URL, **RUN)
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
    life = lived(tmp_path / "a", 50, capacity=20)
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
        life = lived(tmp_path / "a", 20, remote=URL)
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


def test_anothers_checkpoint_made_during_a_push_is_said(tmp_path: pathlib.Path) -> None:
    objects = SimulatedObjects()
    life = lived(tmp_path / "a", 20)
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
    life = lived(tmp_path / "a", 20)
    life.push(objects)
    with reader(objects, tmp_path / "m") as trainer:
        trainer.checkpoint("best")
    life.checkpoint("best")
    life.buffer.close()
    monkeypatch.setattr("diskreplay.ops.remote.ObjectStore", lambda url: objects)
    result = command("push", life.path, URL)
    assert result.exit_code == 0, result.output
    assert "the checkpoint 'best' was not sent" in result.stderr


@pytest.fixture
def refused(tmp_path: pathlib.Path) -> Iterator[Any]:
    """Makes a writer whose URL holds another store, once its first push was refused; warnings are errors."""
    objects = SimulatedObjects()
    first = Life(tmp_path / "first")
    first.push(objects)
    first.buffer.close()

    def opened(path: pathlib.Path, **options: Any) -> Life:
        life = Life(path)
        life.buffer.close()
        life.buffer = dr.ReplayBuffer.open(path, remote=URL, **{**RUN, **options})
        pushing = life.buffer.engine.pushes.pushing
        assert pushing is not None
        while pushing._error is None:
            time.sleep(0.001)
        return life

    with under(objects), warnings.catch_warnings():
        warnings.simplefilter("error", RemoteWarning)
        yield opened


def test_a_warning_that_is_an_error_leaves_no_checkpoint_unmade(refused: Any, tmp_path: pathlib.Path) -> None:
    buffer = refused(tmp_path / "a").buffer
    with pytest.raises(RemoteWarning, match=r"nothing of .* is pushed: .* holds another store"):
        buffer.checkpoint("best")
    assert buffer.checkpoints == ["best"]
    with pytest.raises(RemoteWarning, match="not everything"):
        buffer.close()


@pytest.mark.parametrize("sampler", [None, dr.Proportional()], ids=["alone", "a keeper of priorities"])
def test_a_warning_that_is_an_error_leaves_no_buffer_open(refused: Any, sampler: Any, tmp_path: pathlib.Path) -> None:
    life = refused(tmp_path / "a", **{"sampler": sampler} if sampler else {})
    life.buffer.engine.companion = AdapterState(life.buffer) if sampler else None
    life.buffer.add(observation(0, 0, 0), 0, 0.0, observation(0, 0, 1), False, False)
    with pytest.raises(RemoteWarning, match="not everything"):
        life.buffer.close()
    with dr.ReplayBuffer.open(life.path) as buffer:  # its lock is free
        assert len(buffer) == 1
        assert sampler is None or buffer.saved_sampler.found is not None


def test_a_warning_that_is_an_error_ends_no_extend_half_way(refused: Any, tmp_path: pathlib.Path) -> None:
    buffer = refused(tmp_path / "a", commit_rows=4).buffer
    obs = np.stack([observation(0, 0, number) for number in range(21)])
    no = np.zeros(20, bool)
    with pytest.raises(RemoteWarning, match=r"nothing of .* is pushed: .* holds another store"):
        buffer.extend(obs[:-1], np.arange(20) % 5, np.arange(20.0), obs[1:], no, no)
    assert len(buffer) == 20
    with pytest.raises(RemoteWarning, match="not everything"):
        buffer.close()
