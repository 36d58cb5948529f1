"""A reader opens beside a writer that replaces the whole window while the reader is reading it."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable

import pytest
from helpers.configs import Config
from helpers.model import Leaf
from helpers.recording import Recording, recorded_in
from helpers.testing import FaultyFiles, Operation

import diskreplay as dr
from diskreplay.errors import CorruptionError, EvictedError
from diskreplay.reading import open_stream

PLAIN = Config("plain", Leaf((4,)), capacity=12, chunk_rows=2, shard_rows=4, small_chunk_rows=2, small_shard_rows=4)


class Racing(FaultyFiles):
    """Files of a reader: whenever it has read a commit record, and then opens a shard, ``commit`` is called before."""

    def __init__(self, commit: Callable[[], None]) -> None:
        super().__init__()
        self.due = False
        self.commit = commit
        self.decide = self.race

    def race(self, operation: Operation) -> None:
        name = pathlib.Path(operation.path).name
        self.due |= operation.name == "read" and operation.path.endswith("streams/0/zarr.json")
        if self.due and operation.name == "open_read" and name.startswith("c."):
            self.due = False
            self.commit()


def replace_window(recording: Recording, buffer: dr.ReplayBuffer) -> None:
    recording.add(buffer, 16, commit=True)


@pytest.mark.long
def test_a_reader_keeps_up_however_often_the_window_turns(path: str) -> None:
    recording, left = Recording(PLAIN), 15
    with PLAIN.create(path) as buffer:

        def commit() -> None:
            nonlocal left
            if left:
                left -= 1
                replace_window(recording, buffer)

        commit()
        with dr.ReplayBuffer.open(path, mode="r", files=Racing(commit)) as reader:
            assert not left
            recording.check(reader)


def test_a_reader_says_when_the_writer_outruns_it(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_stream, "OUTRUN_SECONDS", -1.0)
    with recorded_in(PLAIN, path) as (buffer, recording):
        replace_window(recording, buffer)
        with pytest.raises(EvictedError, match="replaces its window, rows 20 to 32, faster than it can be read"):
            dr.ReplayBuffer.open(path, mode="r", files=Racing(lambda: replace_window(recording, buffer)))


def test_damage_is_said_however_often_the_writer_commits(path: str) -> None:
    """Newer commits that need a damaged shard do not explain it."""
    large = dataclasses.replace(PLAIN, capacity=400)
    recording, commits = Recording(large), 0
    with large.create(path) as buffer:
        recording.add(buffer, 6, commit=True)
        for shard in pathlib.Path(path, "streams/0/reward").glob("c.*"):
            shard.write_bytes(bytes(shard.stat().st_size))

        def commit() -> None:
            nonlocal commits
            commits += 1
            recording.add(buffer, 1, commit=True)

        with pytest.raises(CorruptionError, match="reward"):
            dr.ReplayBuffer.open(path, mode="r", files=Racing(commit))
    assert 2 <= commits < 20, "two readings are enough"
