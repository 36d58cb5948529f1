"""A column that grows: what waits in RAM for a commit."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

import diskreplay as dr
from diskreplay.ops.verify import verify
from diskreplay.storage import column as columns
from diskreplay.storage.column import ColumnWriter

pytestmark = pytest.mark.own_thresholds  # with the small ones adding commits


class Unread(list[bytes]):
    """Bytes of chunks that must not be looked at."""

    def __iter__(self) -> Any:
        raise AssertionError


@contextlib.contextmanager
def opened(path: pathlib.Path, capacity: int = 1000) -> Iterator[tuple[dr.ReplayBuffer, ColumnWriter]]:
    box = gymnasium.spaces.Box(0, 255, (30, 30), np.uint8)
    with dr.ReplayBuffer.create(
        path, box, gymnasium.spaces.Discrete(2), capacity=capacity, chunk_rows=4, shard_rows=16, commit_rows=9999,
        commit_seconds=9999.0,
    ) as buffer:  # fmt: skip
        writer = buffer.engine.streams.writer
        assert writer is not None
        yield buffer, writer.rows["obs"]


@pytest.fixture
def column(tmp_path: pathlib.Path) -> Any:
    with opened(tmp_path / "a") as found:
        yield found


def add(buffer: dr.ReplayBuffer, column: ColumnWriter, rows: int) -> None:
    rng = np.random.default_rng(rows)
    for _ in range(rows):
        frame = rng.integers(0, 255, (30, 30), np.uint8)
        buffer.add(frame, 0, 0.0, frame, False, False)
    column.compress()
    for each in column.buffers.values():
        each.settle()


def waiting(column: ColumnWriter) -> int:
    return sum(len(data) for buffer in column.buffers.values() for data in buffer.encoded)


def test_waiting_bytes_are_those_of_the_chunks_that_wait(column: Any) -> None:
    buffer, obs = column
    for rows in (0, 3, 1, 9, 30):
        add(buffer, obs, rows)
        assert obs.waiting_bytes() == waiting(obs)
    assert obs.waiting_bytes() > 40 * 900
    buffer.commit()
    assert obs.waiting_bytes() == waiting(obs) == 0
    add(buffer, obs, 18)
    assert obs.waiting_bytes() == waiting(obs) > 0
    obs.rewind(50)
    assert obs.waiting_bytes() == waiting(obs) > 0
    obs.rewind(43)
    assert obs.waiting_bytes() == waiting(obs) == 0
    obs.append(np.zeros((18, 30, 30), np.uint8))  # the other columns have these rows


def test_waiting_bytes_do_not_look_at_all_chunks_again(column: Any) -> None:
    buffer, obs = column
    add(buffer, obs, 80)
    for each in obs.buffers.values():
        each.encoded = Unread(each.encoded)
    assert obs.waiting_bytes() > 80 * 900


def test_rows_that_left_the_window_before_the_commit_are_not_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "HANDED_BYTES", 8 * 900)
    with opened(tmp_path / "a", capacity=12) as (buffer, obs):
        add(buffer, obs, 100)
        assert sorted(obs.buffers) == [10, 11, 12], "the window began with row 84 when one was full the last time"
        before = buffer.get(buffer.items()).obs
        buffer.commit()
        assert sorted(file.name for file in (tmp_path / "a/streams/0/obs").glob("c.*")) == ["c.5.0.0.0", "c.6.0.0.0"]
        places = obs.entries.array[np.arange(20, 25) % obs.entries.length, 0, 0]
        assert (places >= 0).tolist() == [False, False, True, True, True], "the window begins with row 88"
    with dr.ReplayBuffer.open(tmp_path / "a", mode="r") as buffer:
        np.testing.assert_array_equal(buffer.get(buffer.items()).obs, before)
    assert verify(str(tmp_path / "a")).ok
