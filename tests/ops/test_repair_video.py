"""verify --repair of video columns: rows of which a packet is lost are given up, and all others show what they did."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.damage import flip
from helpers.effort import stride
from helpers.packets import Frames, clip
from helpers.testing import FaultyFiles, SimulatedDisk
from ops.stores import after_deaths

import diskreplay as dr
from diskreplay.engine import inputs
from diskreplay.errors import CorruptionError
from diskreplay.ops.repair import repair
from diskreplay.ops.repair.plan import plan
from diskreplay.ops.verify import verify

SHOWN = clip(count=23, every=5)
BOX = spaces.Box(0, 255, SHOWN.facts.shape, np.uint8)
CHUNK, SHARD = 256, 1024
ITEMS = "streams/0/ragged/obs"
Rows = dict[int, tuple[bytes, bytes]]


def make(path: Any, values: Sequence[Frames] = SHOWN.values, **options: Any) -> None:
    """A row for each frame but the last, in groups of five; episodes of eight steps."""
    sizes: dict[str, Any] = {"chunk_rows": {"obs": CHUNK}, "shard_rows": {"obs": SHARD}}
    with dr.ReplayBuffer.create(
        path, BOX, spaces.Discrete(3), capacity=18, video={"obs": SHOWN.facts}, seed=0, **sizes, **options
    ) as rb:
        add(rb, 0, 22, values)


def add(rb: dr.ReplayBuffer, first: int, stop: int, values: Sequence[Frames] = SHOWN.values) -> None:
    for at in range(first, stop):
        now, after = (values[n % 20] for n in (at, at + 1))
        rb.add(now, 0, float(at), after, at % 8 == 7, False)
        if at % 6 == 5:
            rb.commit()


def contents(path: Any, decodes: bool = True, **options: Any) -> Rows:
    """The packets of the observation and of the next one, by row; they are decoded, too."""
    with dr.ReplayBuffer.open(path, mode="r", ragged="lists", **options) as rb:
        batch = rb.get(rb.items())
        found = {
            int(at): (bytes(now), bytes(after))
            for at, now, after in zip(batch.index, batch.obs, batch.next_obs, strict=True)
        }
    with dr.ReplayBuffer.open(path, mode="r", **options) as rb:
        assert not decodes or len(rb.get(rb.items())) == len(found)
    return found


def shown_by(path: Any) -> dict[int, tuple[tuple[int, int], tuple[int, int]]]:
    """The spans of each row's packets and of its next observation's."""
    with dr.ReplayBuffer.open(path, mode="r") as rb:
        stream = rb.engine.streams.all[0]
        own = {row: tuple(stream.log.span("obs", row, row + 1)[0, 0].tolist()) for row in range(4, 22)}
        return {row: (own[row], own.get(row + 1, own[row])) for row in own}


def flip_chunk(path: pathlib.Path, number: int) -> None:
    """Flip a bit of a chunk of packets."""
    with dr.ReplayBuffer.open(path, mode="r") as rb:
        entries = rb.engine.streams.all[0].disk.items["obs"].entries
        offset, size = entries.array[number % entries.length, 0].tolist()
    flip(path / ITEMS / f"c.{number * CHUNK // SHARD}.0", offset + size // 2)


def check(path: pathlib.Path, before: Rows) -> Rows:
    """What a repair leaves, which it foresees, and which can be gone on with until all of it has left the window."""
    assert not verify(path).ok
    with pytest.raises(CorruptionError):
        contents(path)
    foreseen = plan(path)
    result = repair(path)
    assert result.ok
    assert foreseen.streams == result.streams
    left = contents(path)
    assert left.items() <= before.items()
    assert sum(loss.transitions for loss in result.streams) == len(before) - len(left)
    for first in range(25, 45, 5):
        with dr.ReplayBuffer.open(path) as rb:
            add(rb, first, first + 5)
        assert verify(path).ok
        assert len(contents(path)) >= 5
    return left


@pytest.mark.long(quick=3)
@pytest.mark.own_thresholds
@pytest.mark.parametrize("number", [0, 4, 8, 9, 13, 18, 27, 29, 39, 43, 44])
def test_a_lost_chunk_costs_the_rows_that_need_its_packets(tmp_path: pathlib.Path, number: int) -> None:
    """A row needs the packets from its key frame up to its own, and those of its next observation."""
    path = tmp_path / "a.replay"
    make(path)
    before, spans = contents(path), shown_by(path)
    flip_chunk(path, number)
    left = check(path, before)
    low, high = number * CHUNK, (number + 1) * CHUNK
    lost = {row for row, both in spans.items() if any(start < high and stop > low for start, stop in both)}
    assert before.keys() - left.keys() == lost


@pytest.mark.long
@pytest.mark.own_thresholds
def test_a_lost_shard_costs_all_that_it_holds(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.replay"
    make(path)
    before = contents(path)
    (path / ITEMS / "c.5.0").unlink()
    assert before.keys() - check(path, before).keys() == set(range(9, 15))


@pytest.mark.long
def test_forged_packets_cost_their_rows(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All chunks are whole, and a header says more bytes than there are."""
    path, values = tmp_path / "a.replay", list(SHOWN.values)
    values[12] = np.concatenate([np.full(4, 255, np.uint8), values[12][4:]])
    with monkeypatch.context() as patched:
        patched.setattr(inputs, "wrong_video", lambda *given: None)
        make(path, values)
    before = contents(path, decodes=False)
    assert before.keys() - check(path, before).keys() == {11, 12}


@pytest.mark.own_thresholds
@pytest.mark.long
def test_a_repair_of_packets_may_die_anywhere() -> None:
    """At any operation: repaired again, the same rows are left as after a repair that was not killed."""
    disk, path = SimulatedDisk(), "/a.replay"
    make(path, files=disk)
    before = contents(path, files=disk)
    file = disk.open(f"{path}/{ITEMS}/c.7.0", write=True)
    file.pwrite([bytes(400)], 0)
    file.sync()
    counting = FaultyFiles(disk.after_kill())
    assert repair(path, files=counting).ok
    expected = contents(path, files=counting)
    assert expected.items() < before.items()
    points = range(0, counting.count(), stride(8, "deaths within a repair of packets"))
    for at, after in after_deaths(disk, path, points):
        assert repair(path, files=after).ok
        assert contents(path, files=after) == expected, f"killed at operation {at} of {counting.count()}"
        with dr.ReplayBuffer.open(path, files=after) as rb:
            add(rb, 25, 27)
