"""Files of checkpoints under a URL: pushed, read, pulled and dropped with them, and downloaded by who asks for them."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from helpers.testing import FaultyObjects, SimulatedObjects
from remote.world import RUN, Life, reader, under

import diskreplay as dr
from diskreplay.errors import CorruptionError
from diskreplay.ops import remote as ops
from diskreplay.ops.verify import verify
from diskreplay.remote.collect import collect_garbage
from diskreplay.remote.place import open_remote
from diskreplay.storage import attachments, checkpoint_arrays

WEIGHTS = np.random.default_rng(0).bytes(200_000)


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "SHARD_BYTES", checkpoint_arrays.CHUNK_ROWS)


def _pushed(folder: pathlib.Path) -> tuple[Life, SimulatedObjects]:
    life, objects = Life(folder / "a"), SimulatedObjects()
    life.add(30)
    life.buffer.checkpoint("one", attachments={"learner.pt": WEIGHTS})
    life.push(objects)
    return life, objects


def test_a_pushed_checkpoint_has_them_and_who_does_not_ask_downloads_none(tmp_path: pathlib.Path) -> None:
    life, objects = _pushed(tmp_path)
    largest = max(len(data) for key, data in objects.data.items() if "/attachments/" in key)
    assert largest < 2 * checkpoint_arrays.CHUNK_ROWS  # one put for each shard
    faulty = FaultyObjects(objects)
    with reader(faulty, tmp_path / "m", checkpoint="one") as trainer:
        trainer.sample(8)
        assert not [one for one in faulty.requests if "/attachments/" in str(one)]
        assert trainer.restored.name == "one"
        with trainer.attachment("learner.pt") as file:
            file.seek(checkpoint_arrays.CHUNK_ROWS - 5)
            assert file.read(10) == WEIGHTS[checkpoint_arrays.CHUNK_ROWS - 5 :][:10]
            file.seek(0)
            assert file.read() == WEIGHTS
    life.buffer.drop_checkpoint("one")
    life.push(objects)
    assert not [key for key in objects.data if key.startswith("checkpoints/one/")]


def test_a_reader_makes_a_checkpoint_with_them_and_keeps_one(tmp_path: pathlib.Path) -> None:
    _, objects = _pushed(tmp_path)
    with reader(objects, tmp_path / "m") as trainer:
        for step in range(3):
            given = {"learner.pt": lambda file, step=step: file.write(WEIGHTS + bytes([step]))}
            trainer.checkpoint(f"step-{step}", {"step": step}, attachments=given, keep=1)
        assert trainer.checkpoints == ["one", "step-2"]
    assert not list((tmp_path / "m").glob(".checkpoint*"))
    collect_garbage(open_remote(objects, tmp_path / "gc"), 0)
    with reader(objects, tmp_path / "other", checkpoint="latest") as again:
        assert again.restored == dr.buffers.stored.Restored("step-2", {"step": 2})
        with again.attachment("learner.pt") as file:
            assert file.read() == WEIGHTS + bytes([2])


def test_a_pulled_copy_has_them(tmp_path: pathlib.Path) -> None:
    life, objects = _pushed(tmp_path)
    life.buffer.close()
    with under(objects):
        ops.pull(objects.url, tmp_path / "copy.replay", objects=objects)
    assert not verify(tmp_path / "copy.replay").problems
    with (
        dr.ReplayBuffer.open(tmp_path / "copy.replay", checkpoint="one", **RUN) as copied,
        copied.attachment("learner.pt") as file,
    ):
        assert file.read() == WEIGHTS


def test_a_damaged_one_is_named(tmp_path: pathlib.Path) -> None:
    _, objects = _pushed(tmp_path)
    key = next(key for key in objects.data if key.endswith("learner.pt/c.1.0"))
    damaged = bytearray(objects.data[key])
    damaged[100] ^= 1
    objects.put(key, bytes(damaged))
    with (
        reader(objects, tmp_path / "m", checkpoint="one") as trainer,
        trainer.attachment("learner.pt") as file,
        pytest.raises(CorruptionError, match=r"learner\.pt"),
    ):
        file.read()
