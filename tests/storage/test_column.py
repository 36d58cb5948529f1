"""A column that grows: what waits in RAM for a commit."""

from __future__ import annotations

import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest

import diskreplay as dr
from diskreplay.storage.column import ColumnWriter, Waiting

pytestmark = pytest.mark.own_thresholds  # with the small ones adding commits


class Looked(dict[int, Waiting]):
    """Chunks, which counts how often one was looked for."""

    times = 0

    def get(self, *arguments: Any) -> Any:
        self.times += 1
        return super().get(*arguments)


@pytest.fixture
def column(tmp_path: pathlib.Path) -> Any:
    box = gymnasium.spaces.Box(0, 255, (30, 30), np.uint8)
    with dr.ReplayBuffer.create(
        tmp_path / "a", box, gymnasium.spaces.Discrete(2), capacity=1000, chunk_rows=4, shard_rows=16, commit_rows=9999,
        commit_seconds=9999.0,
    ) as buffer:  # fmt: skip
        writer = buffer.engine.streams.writer
        assert writer is not None
        yield buffer, writer.rows["obs"]


def add(buffer: dr.ReplayBuffer, column: ColumnWriter, rows: int) -> None:
    rng = np.random.default_rng(rows)
    for _ in range(rows):
        frame = rng.integers(0, 255, (30, 30), np.uint8)
        buffer.add(frame, 0, 0.0, frame, False, False)
    column.full()  # waits for their compression


def waiting(column: ColumnWriter) -> int:
    return sum(len(data) for chunk in column.waiting.values() for data in chunk.encoded)


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


@pytest.mark.long
def test_waiting_bytes_do_not_look_at_all_chunks_again(column: Any) -> None:
    buffer, obs = column
    obs.waiting = Looked(obs.waiting)
    add(buffer, obs, 80)
    assert len(obs.waiting) == 20 + 1, "and the write buffer"
    obs.waiting_bytes()
    obs.waiting.times = 0
    add(buffer, obs, 4)
    assert obs.waiting_bytes() == waiting(obs)
    assert obs.waiting.times == 2
