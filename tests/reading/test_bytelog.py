"""What every log of bytes does, shown with a kind of content that is defined here alone."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from helpers.line import OPEN, add, create

import diskreplay as dr
from diskreplay.errors import CorruptionError
from diskreplay.index.log import StreamLog
from diskreplay.ops.inspect import inspect
from diskreplay.ops.verify import verify
from diskreplay.reading import bytelog
from diskreplay.schema import columns as schema
from diskreplay.schema.columns import CHOSEN, Column, Schema
from diskreplay.storage import commit
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Store

TALLY = "tally/counts"


class Entry(NamedTuple):
    """How often a number was seen."""

    number: int
    count: int
    after: int


class Tally:
    """How often numbers were seen: records of two uint32, of which the last one of a number counts."""

    what = "the tally"
    slack = 64

    def __init__(self, log: StreamLog) -> None:
        self.log = log
        self.entries: dict[int, Entry] = {}
        self.new: dict[int, int] = {}

    def see(self, number: int) -> None:
        self.new[number] = self.seen().get(number, 0) + 1

    def seen(self) -> dict[int, int]:
        return {number: entry.count for number, entry in self.entries.items()} | self.new

    @property
    def unwritten(self) -> bool:
        return bool(self.new)

    def restart(self) -> None:
        self.entries = {}

    def records(self, data: bytelog.Bytes, at: int) -> Iterator[Entry]:
        for number, count in data[: len(data) // 8 * 8].view("<u4").reshape(-1, 2).tolist():
            if not count:
                raise ValueError(f"{number} was seen 0 times")
            at += 8
            yield Entry(number, count, at)

    def take(self, entry: Entry) -> None:
        self.entries[entry.number] = entry
        self.new.pop(entry.number, None)

    def news(self, at: int) -> tuple[bytelog.Bytes, None]:
        return np.array(list(self.new.items()), "<u4").reshape(-1).view(np.uint8), None

    def again(self, entry: Entry) -> bytes:
        lives = self.entries[entry.number].after == entry.after
        return np.array(entry[:2], "<u4").tobytes() if lives else b""

    def living_bytes(self) -> int:
        return 8 * len(self.entries)

    def problems(self) -> Iterator[str]:
        yield from (f"{number} was seen too often" for number, count in self.seen().items() if count > 1000)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has stores keep a tally; all that a kind of log must be entered in."""
    column = Column(TALLY, (), np.dtype(np.uint8), CHOSEN)
    logs = cast(Any, Schema.logs).fget
    monkeypatch.setattr(commit, "TABLES", (*commit.TABLES, "tally"))
    monkeypatch.setattr(schema.Schema, "logs", property(lambda self: {**logs(self), TALLY: column}))
    monkeypatch.setitem(bytelog.CONTENTS, TALLY, lambda schema, log: Tally(log))


def logged(buffer: dr.ReplayBuffer) -> bytelog.ByteLog:
    (stream,) = buffer.engine.streams
    return stream.logs[TALLY]


def tally(buffer: dr.ReplayBuffer) -> Tally:
    return cast(Tally, logged(buffer).content)


@pytest.mark.usefixtures("known")
def test_a_third_kind_of_log_is_its_content_alone(path: str) -> None:
    """Commits, readers beside them, reopening and going back to a checkpoint thread it through."""
    wanted: dict[int, int] = {}
    durable = half = wanted
    with create(path, 20) as buffer:
        for step in range(120):
            add(buffer)
            tally(buffer).see(step % 7)
            wanted[step % 7] = wanted.get(step % 7, 0) + 1
            if step == 60:
                buffer.checkpoint("half")
                half = dict(wanted)
            if step == 80:
                reader = dr.ReplayBuffer.open(path, mode="r")
                assert tally(reader).seen() == durable
            if step % 3 == 0:
                buffer.commit()
                durable = dict(wanted)
        reader.refresh()
        assert logged(buffer).end > 900, "so much was written"
        assert logged(buffer).end - logged(buffer).begin < 400, "what is dead goes"
    reader.refresh()
    assert tally(reader).seen() == wanted
    reader.close()
    assert verify(path).ok
    assert TALLY in [column.name for column in inspect(path).columns]
    with dr.ReplayBuffer.open(path, **OPEN) as again:
        assert tally(again).seen() == wanted
        assert not logged(again).unwritten
    with dr.ReplayBuffer.open(path, checkpoint="half", **OPEN) as back:
        assert tally(back).seen() == half
        tally(back).see(99)
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert tally(reader).seen() == {**half, 99: 1}
    assert verify(path).ok


@pytest.mark.usefixtures("known")
def test_what_a_third_kind_of_log_may_not_say_is_found(path: str) -> None:
    with create(path, 20) as buffer:
        add(buffer)
        tally(buffer).new = {3: 2000}
    assert [problem.what for problem in verify(path).problems] == ["3 was seen too often"]
    with dr.ReplayBuffer.open(path, **OPEN) as buffer:
        logged(buffer).waiting.append((logged(buffer).end, np.zeros(8, np.uint8)))
    with pytest.raises(CorruptionError, match="the tally cannot be read: 0 was seen 0 times"):
        dr.ReplayBuffer.open(path, mode="r")
    assert any("the tally cannot be read" in problem.what for problem in verify(path).problems)


@pytest.mark.usefixtures("known")
def test_a_store_without_it_has_no_trace_of_a_third_kind(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a"
    with create(path, 20) as buffer:
        add(buffer)
    assert not (path / "streams/0/tally").exists()
    assert "tally" not in str(Store(str(path), LocalFiles()).newest_commit("0").to_json())
