"""Ragged columns under a URL: pushed, read through a mirror in parts and whole, pulled, evicted, gone back."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from gymnasium import spaces
from helpers.testing import SimulatedObjects
from remote import world
from remote.world import reader

import diskreplay as dr
from diskreplay.ops.verify import verify
from diskreplay.remote import shards
from diskreplay.remote.push import Push
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Store

TEXT = spaces.Text(20, min_length=0, charset="0123456789")
SMALL = {"chunk_rows": {"tokens": 64}, "shard_rows": {"tokens": 512}}


def tokens(number: int) -> np.ndarray:
    return np.arange(number * 7 % 90, dtype=np.int32) + number


def add(rb: dr.ReplayBuffer, first: int, count: int) -> None:
    for number in range(first, first + count):
        rb.add(str(number), 0, 0.0, str(number + 1), False, number % 9 == 8, tokens=tokens(number))
    rb.commit()


def check(rb: dr.ReplayBuffer, first: int, count: int) -> None:
    items = rb.items()
    batch = rb.get(items)
    assert items.tolist() == list(range(first, first + count))
    for at, number in enumerate(items.tolist()):
        padded = batch.extra["tokens"]
        assert padded.values[at, : padded.length[at]].tolist() == tokens(number).tolist()
        for text, want in ((batch.obs, number), (batch.next_obs, number + 1)):
            assert "".join(map(chr, text.values[at, : text.length[at]])) == str(want)


@pytest.mark.long(quick=2)
@pytest.mark.parametrize("whole", [True, False])
def test_they_are_pushed_and_read(tmp_path: pathlib.Path, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not whole:  # a batch downloads parts of shards
        monkeypatch.setattr(shards, "WHOLE_BYTES", 0)
        monkeypatch.setattr(shards, "REQUEST_BYTES", 0)
    objects, path = SimulatedObjects(), str(tmp_path / "a")
    columns = {"tokens": ((None,), np.int32)}

    def push() -> None:
        Push(Store(path, LocalFiles()), "0", objects).run()

    with dr.ReplayBuffer.create(
        path, TEXT, spaces.Discrete(2), capacity=80, columns=columns, **SMALL, **world.RUN
    ) as rb:  # fmt: skip
        add(rb, 0, 50)
        push()
        with reader(objects, tmp_path / "mirror", cache_bytes=0) as seen:
            check(seen, 0, 50)
            add(rb, 50, 100)
            rb.checkpoint("here")
            add(rb, 150, 30)
            push()
            assert seen.refresh()
            check(seen, 100, 80)
        with reader(objects, tmp_path / "other", checkpoint="here") as then:
            check(then, 70, 80)
    with dr.ReplayBuffer.open(path, checkpoint="here", **world.RUN) as rb:
        add(rb, 150, 5)
        push()
    with reader(objects, tmp_path / "mirror") as seen:
        check(seen, 75, 80)
    with world.under(objects):
        assert verify(objects.url).ok
