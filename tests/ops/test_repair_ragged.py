"""verify --repair of ragged columns: rows whose items or spans are lost are given up, and nothing else is."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.damage import flip
from helpers.effort import stride
from helpers.testing import FaultyFiles, SimulatedDisk
from hostile.test_ragged import set_span
from hostile.test_regressions import edit
from ops.stores import after_deaths

import diskreplay as dr
from diskreplay.errors import CorruptionError
from diskreplay.ops.repair import Repaired, repair
from diskreplay.ops.repair.plan import plan
from diskreplay.ops.verify import verify

TEXT = spaces.Text(6, min_length=0, charset="abc")
ROWS = {"tokens": 8, "obs": 8}
Rows = dict[int, tuple[Any, ...]]


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    return make(tmp_path / "a")


def make(path: Any, forge: Any = None, **options: Any) -> Any:
    """Rows 11 to 28 of a window of 18: five tokens each; episodes of six steps."""
    sizes: dict[str, Any] = {"chunk_rows": ROWS, "shard_rows": dict.fromkeys(ROWS, 16)}
    columns = {"tokens": ((None,), np.int32)}
    with dr.ReplayBuffer.create(
        path, TEXT, spaces.Discrete(3), capacity=18, columns=columns, seed=0, **sizes, **options
    ) as rb:
        add(rb, 29)
        if forge:
            forge(rb.engine.streams.writer)
    return path


def add(rb: dr.ReplayBuffer, rows: int, first: int = 0) -> None:
    for row in range(first, first + rows):
        texts = ["abc"[at % 3] + "abc"[at // 3 % 3] + "c" for at in (row, row + 1)]
        tokens = np.arange(5) + 10 * row
        rb.add(texts[0], 0, float(row), texts[1], row % 6 == 5, False, tokens=tokens)
        if row % 4 == 3:
            rb.commit()


def contents(store: Any, **options: Any) -> Rows:
    with dr.ReplayBuffer.open(store, mode="r", ragged="lists", **options) as rb:
        index = np.sort(np.concatenate([[], *(batch.index for batch in rb.shuffled(4))])).astype(int)
        batch = rb.get(index)
        parts: list[Iterator[Any]] = [map(bytes, batch.obs), map(bytes, batch.next_obs), iter(batch.reward.tolist())]
        return dict(zip(index.tolist(), zip(*parts, map(bytes, batch.extra["tokens"]), strict=True), strict=True))


def damage(store: pathlib.Path, name: str, chunk: int) -> None:
    """Flips a bit of a chunk of items that the newest index names."""
    file = store / f"streams/0/ragged/{name}/c.{chunk // 2}.0"
    offset, size = np.frombuffer(file.read_bytes()[-36:-4], "<u8").reshape(2, 2)[chunk % 2].tolist()
    flip(file, offset + size // 2)


def check(store: pathlib.Path, before: Rows, lost: set[int]) -> Repaired:
    """Repairs: these rows are gone, all others as they were; then goes on until all of them have left the window."""
    assert not verify(store).ok
    foreseen = plan(store)
    result = repair(store)
    assert verify(store).ok
    assert foreseen.streams == result.streams
    assert contents(store) == {row: values for row, values in before.items() if row not in lost}
    assert sum(loss.transitions for loss in result.streams) == len(lost)
    for first in range(29, 60, 3):
        with dr.ReplayBuffer.open(store) as rb:
            add(rb, 3, first)
        assert verify(store).ok
        assert len(contents(store)) >= 3
    return result


def test_lost_items_cost_the_rows_that_have_some(store: pathlib.Path) -> None:
    """Items 96 to 104 are of rows 19 and 20; row 18 loses its next observation."""
    before = contents(store)
    damage(store, "tokens", 12)
    (loss,) = check(store, before, {18, 19, 20}).streams
    assert (loss.columns, loss.chunks, loss.rows) == (("ragged/tokens",), 1, ((18, 21),))


def test_lost_items_of_observations_are_also_next_ones(store: pathlib.Path) -> None:
    before = contents(store)
    with dr.ReplayBuffer.open(store, mode="r") as rb:
        log = rb.engine.streams.all[0].log
        spans = {row: log.span("obs", row, row + 1)[0, 0].tolist() for row in range(11, 29)}
    damage(store, "obs", 8)
    lost = {row for row, (start, stop) in spans.items() if start < 72 and stop > 64}
    lost |= {row - 1 for row in lost if row % 6}  # the end of an episode has its next observation in a patch
    found = repair(store)
    assert verify(store).ok
    assert found.streams[0].columns == ("ragged/obs",)
    after = contents(store)
    assert after == {row: values for row, values in before.items() if row in after}
    assert lost <= before.keys() - after.keys()
    assert len(after) >= len(before) - len(lost) - 1, "the patch of one more"


def test_the_newest_items_are_lost(store: pathlib.Path) -> None:
    before = contents(store)
    damage(store, "tokens", 17)
    check(store, before, {26, 27, 28})


def test_a_shard_of_items_is_missing(store: pathlib.Path) -> None:
    before = contents(store)
    (store / "streams/0/ragged/tokens/c.6.0").unlink()
    (loss,) = check(store, before, {18, 19, 20, 21, 22}).streams
    assert loss.chunks == 2


@pytest.mark.long
@pytest.mark.parametrize("span", [(9, 3), (0, 4), (90, 1 << 40)], ids=str)
def test_forged_spans_are_given_up(tmp_path: pathlib.Path, span: tuple[int, int]) -> None:
    """Of the newest row, whose span becomes an empty one; the row before has its next observation in a patch."""
    store = make(tmp_path / "a", lambda writer: set_span(writer.rows["tokens"], 28, *span))
    before = contents(make(tmp_path / "b"))
    with pytest.raises(CorruptionError):
        contents(store)
    check(store, before, {28})


def test_a_forged_span_of_a_patch_is_put_back(tmp_path: pathlib.Path) -> None:
    """Of the next observation that was the newest at a commit, and became the next row's."""

    def forge(writer: Any) -> None:
        set_span(writer.patches["obs"], writer.patches["obs"].end - 1, 60, 9000)

    store, before = make(tmp_path / "a", forge), contents(make(tmp_path / "b"))
    check(store, before, set())


@pytest.mark.long
@pytest.mark.own_thresholds
@pytest.mark.parametrize("shard", [0, 1])
def test_lost_spans_become_empty_ones(store: pathlib.Path, shard: int) -> None:
    """Shards of 16 rows: the rows are given up, and the store goes on, whose oldest row has an empty span by then."""
    before = contents(store)
    file = store / f"streams/0/tokens/c.{shard}.0.0"
    file.write_bytes(bytes(file.stat().st_size))
    check(store, before, {row for row in before if row // 16 == shard})


def test_a_record_that_claims_more_items(store: pathlib.Path) -> None:
    """It cannot be believed, so the stream goes aside; the repair ends soon."""
    edit(store / "streams/0/zarr.json", lambda record: record["ragged"]["tokens"].update(end=1 << 40), "streams/0")
    assert repair(store).streams[0].whole
    assert verify(store).ok


def test_checkpoints_with_lost_items_go_aside(store: pathlib.Path) -> None:
    with dr.ReplayBuffer.open(store) as rb:
        rb.checkpoint("here")
        add(rb, 4, 29)
    before = contents(store)
    damage(store, "tokens", 12)
    found = repair(store)
    assert found.checkpoints == ("here",)
    assert verify(store).ok
    assert contents(store) == {row: values for row, values in before.items() if row not in {18, 19, 20}}


@pytest.mark.own_thresholds
@pytest.mark.long
def test_a_repair_of_items_may_die_anywhere() -> None:
    """At any operation: repaired again, the same rows are left as after a repair that was not killed."""
    disk, options = SimulatedDisk(), {"codec": {"tokens": "none"}}
    before = contents(make("/a.replay", files=disk, **options), files=disk)
    for name in ("ragged/tokens/c.6.0", "tokens/c.0.0.0"):
        file = disk.open(f"/a.replay/streams/0/{name}", write=True)
        file.pwrite([bytes(file.size() - 100)], 0)
        file.sync()
    counting = FaultyFiles(disk.after_kill())
    assert repair("/a.replay", files=counting).ok
    expected = contents("/a.replay", files=counting)
    assert expected.items() <= before.items()
    operations = counting.count()
    points = range(0, operations, stride(8, "deaths within a repair of items"))
    for at, after in after_deaths(disk, "/a.replay", points):
        assert repair("/a.replay", files=after).ok
        assert contents("/a.replay", files=after) == expected, f"killed at operation {at} of {operations}"
        with dr.ReplayBuffer.open("/a.replay", files=after) as rb:
            add(rb, 2, 29)
