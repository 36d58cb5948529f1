"""What a file system does not remove or move: open files that get another name, and directories that stay in place."""

from __future__ import annotations

import errno
import itertools
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers.effort import stride
from helpers.line import rows_in
from helpers.testing import Crash, FaultyFiles, Operation, SimulatedDisk, SimulatedObjects

import diskreplay as dr
from diskreplay.errors import CheckpointError
from diskreplay.ops import checkpoints as ops
from diskreplay.ops.inspect import inspect
from diskreplay.ops.verify import verify
from diskreplay.remote.push import Push
from diskreplay.storage import attachments, checkpoint_arrays
from diskreplay.storage import files as fs
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Store

SPACES = gymnasium.spaces.Box(-1e9, 1e9, (2000,), np.float32), gymnasium.spaces.Discrete(9)
LAYOUT: dict[str, Any] = {"chunk_rows": {"obs": 4}, "shard_rows": {"obs": 4}}
NFS, FUSE = ".nfs0000000000a1b2c3000000", ".fuse_hidden000000"


class Others:
    """Open files of other processes: removed, they stay under another name, as NFS and libfuse do it.

    ``busy`` is the error of a removal instead, as SMB does it; None for another name.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, prefix: str, busy: int | None = None) -> None:
        self.open: set[str] = set()
        self._hidden = 0
        self._unlink, self._prefix, self._busy = LocalFiles.unlink, prefix, busy
        monkeypatch.setattr(LocalFiles, "unlink", lambda files, path: self.unlink(files, path))

    def unlink(self, files: LocalFiles, path: str) -> None:
        if path not in self.open:
            self._unlink(files, path)
            return
        one = pathlib.Path(path)
        if self._busy is not None or one.name.startswith(".nfs"):
            number = self._busy or errno.EBUSY
            raise OSError(number, os.strerror(number), path)
        self._hidden += 1
        self.open ^= {path, str(one.rename(one.with_name(f"{self._prefix}{self._hidden:02}")))}

    def hold(self, path: pathlib.Path) -> None:
        self.open |= {str(one) for one in path.rglob("*") if one.is_file() and one.name != "zarr.json"}

    def moved(self, old: pathlib.Path, new: pathlib.Path) -> None:
        self.open = {path.replace(str(old), str(new)) for path in self.open}

    def close(self) -> None:
        """Close all: what has another name is gone."""
        for path in map(pathlib.Path, self.open):
            if self._prefix and path.name.startswith(self._prefix):
                path.unlink(missing_ok=True)
        self.open = set()


HELD = [(NFS, None), (FUSE, None), ("", errno.EBUSY), ("", errno.ETXTBSY), ("", errno.EACCES)]


@pytest.fixture(params=HELD, ids=lambda held: held[0] or errno.errorcode[held[1]])
def others(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Others:
    return Others(monkeypatch, *request.param)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "a.replay"


def add(buffer: dr.ReplayBuffer, rows: int = 6) -> None:
    for _ in range(rows):
        at = buffer.stats()["streams"][buffer.stream]["end"]
        buffer.add(np.full(2000, at), 0, float(at), np.full(2000, at + 1), False, False)
    buffer.commit()


def made(path: str | pathlib.Path, **options: Any) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.create(path, *SPACES, capacity=10, sampler=dr.Proportional(), **LAYOUT, **options)


def left(path: pathlib.Path) -> list[str]:
    return sorted(one.relative_to(path).as_posix() for one in path.rglob(".*"))


def test_a_file_of_a_dropped_checkpoint_that_is_open_stops_nobody(path: pathlib.Path, others: Others) -> None:
    """And its name is free at once, several times, though what was dropped before is still there."""
    scratch = path / "streams/0/start"
    with made(path) as buffer:
        for number in range(4):
            add(buffer)
            buffer.checkpoint("one", {"number": number}, attachments={"w": bytes(100_000)})
            others.hold(path / "checkpoints/one")
            for doomed in [scratch / ".tmp-dropped-one", *scratch.glob(".tmp-dropped-one-*")][:1]:
                others.moved(path / "checkpoints/one", doomed)
            buffer.drop_checkpoint("one")
            assert buffer.checkpoints == []
        buffer.checkpoint("two", keep=1)
        buffer.checkpoint("three", keep=1)
        assert buffer.checkpoints == ["three"]
        add(buffer)
    assert any(name.startswith("streams/0/start/.tmp-dropped-one") for name in left(path))
    assert verify(path).ok
    with dr.ReplayBuffer.open(path) as buffer:  # though it is still open
        add(buffer)
    others.close()
    with dr.ReplayBuffer.open(path) as buffer:
        assert left(path) == []
        assert buffer.checkpoints == ["three"]
        add(buffer)
    assert verify(path).ok


def test_a_shard_that_is_open_stops_no_window(path: pathlib.Path, others: Others) -> None:
    shards = path / "streams/0/obs"
    with made(path) as buffer:
        add(buffer, 9)
        others.hold(shards)
        for _ in range(5):
            add(buffer)
        buffer.sample(4)
    assert verify(path).ok
    assert not inspect(path).health
    others.close()
    with dr.ReplayBuffer.open(path) as buffer:
        add(buffer)
        assert len(buffer) == 10
    assert not (shards / "c.0.0.0").exists()
    assert left(path) == []


def test_a_stream_that_was_half_made_stops_no_other(path: pathlib.Path, others: Others) -> None:
    with made(path) as buffer:
        add(buffer)
        half = path / "streams/0/start/.tmp-stream-b"
        half.mkdir()
        (half / "c.0").write_bytes(b"x")
        others.hold(half)
        with dr.ReplayBuffer.open(path, stream="b") as other:
            add(other)
    with dr.ReplayBuffer.open(path) as buffer:
        assert sorted(buffer.stats()["streams"]) == ["0", "b"]
    others.close()
    dr.ReplayBuffer.open(path).close()
    assert left(path) == []


def test_the_command_drops_it_too(path: pathlib.Path, others: Others) -> None:
    with made(path) as buffer:
        add(buffer)
        for name in ("one", "two"):
            buffer.checkpoint(name, attachments={"w": bytes(1000)})
            others.hold(path / "checkpoints" / name)
            others.moved(path / "checkpoints" / name, path / "streams/0/start" / f".tmp-dropped-{name}")
    ops.drop(path, ["one", "two"])
    assert ops.checkpoints(path) == []
    assert verify(path).ok


def test_what_closing_kept_may_be_open(path: pathlib.Path, others: Others) -> None:
    for number in range(3):
        with dr.ReplayBuffer.open(path) if number else made(path) as buffer:
            add(buffer)
            buffer.update_priorities(buffer.sample(4).index, np.full(4, number + 1.0))
        others.hold(path / "streams/0/start/kept")
    assert rows_in(path) == 10
    assert verify(path).ok


@pytest.mark.parametrize("name", [NFS, FUSE])
@pytest.mark.parametrize("place", ["", "streams", "streams/0", "streams/0/obs", "streams/0/start", "checkpoints"])
def test_their_names_are_neither_damage_nor_somebodys(path: pathlib.Path, name: str, place: str) -> None:
    with made(path) as buffer:
        add(buffer)
        buffer.checkpoint("one")
    (path / place / name).write_bytes(b"an open file")
    if place == "checkpoints":
        (path / place / "gone").mkdir()
        (path / place / "gone" / name).write_bytes(b"an open file")
    assert verify(path).problems == ()
    assert not inspect(path).health
    assert [one.name for one in ops.checkpoints(path)] == ["one"]
    objects = SimulatedObjects()
    with dr.ReplayBuffer.open(path) as buffer:
        assert (buffer.checkpoints, sorted(buffer.stats()["streams"])) == (["one"], ["0"])
    Push(Store(str(path), LocalFiles()), "0", objects).run()
    assert not [key for key in objects.data if name in key]


# Directories that cannot be moved


def refusing(inner: fs.Files, *numbers: int) -> FaultyFiles:
    """Files that refuse to move a checkpoint's directory away and, with a second error, to unlink its document."""
    files = FaultyFiles(inner)

    def decide(operation: Operation) -> int | None:
        if operation.name == "rename" and ".tmp-dropped" in operation.target:
            return numbers[0]
        document = operation.name == "unlink" and operation.path.endswith("one/zarr.json")
        return numbers[1] if document and len(numbers) > 1 else None

    files.decide = decide
    return files


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EBUSY, errno.EACCES, errno.EPERM])
def test_a_checkpoint_that_cannot_move_is_dropped_where_it_is(path: pathlib.Path, number: int) -> None:
    with made(path, files=refusing(LocalFiles(), number)) as buffer:
        for kept in range(3):
            add(buffer)
            buffer.checkpoint(f"kept-{kept}", attachments={"w": b"x"}, keep=1)
        assert buffer.checkpoints == ["kept-2"]
        assert [one.name for one in (path / "checkpoints").iterdir() if one.is_dir()] == ["kept-2"]
        for _ in range(2):
            buffer.checkpoint("one", attachments={"w": b"x"})
            buffer.drop_checkpoint("one")
    assert verify(path).ok
    assert left(path) == []


def test_what_stays_of_it_goes_with_the_next_opening(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Others(monkeypatch, NFS)
    with made(path, files=refusing(LocalFiles(), errno.EXDEV)) as buffer:
        add(buffer)
        buffer.checkpoint("one", attachments={"w": bytes(1000)})
        held.hold(path / "checkpoints/one")
        buffer.drop_checkpoint("one")
        assert buffer.checkpoints == []
        with pytest.raises(CheckpointError, match=r"is left of a dropped checkpoint is at '.*one'"):
            buffer.checkpoint("one", attachments={"w": b"y"})
        buffer.checkpoint("two", attachments={"w": b"y"})
        add(buffer)
    assert verify(path).ok
    held.close()
    with dr.ReplayBuffer.open(path, stream="b") as buffer:
        buffer.checkpoint("one", attachments={"w": b"y"})
        assert buffer.checkpoints == ["two", "one"]


def test_one_that_nobody_may_touch_stays_and_the_writer_goes_on(path: pathlib.Path) -> None:
    with made(path, files=refusing(LocalFiles(), errno.EACCES, errno.EACCES)) as buffer:
        add(buffer)
        buffer.checkpoint("one", keep=1)
        with pytest.raises(CheckpointError, match="one' be moved or removed"):
            buffer.drop_checkpoint("one")
        buffer.checkpoint("two", keep=1)  # without a word: it is tried again with the next
        assert buffer.checkpoints == ["one", "two"]
        add(buffer)
    assert rows_in(path, checkpoint="one") == 6
    with dr.ReplayBuffer.open(path) as buffer:
        buffer.checkpoint("three", keep=1)
        assert buffer.checkpoints == ["three"]


def crashes() -> Iterator[SimulatedDisk]:
    """The disk after a kill, or a loss of power, at each operation of dropping what cannot move, and of evicting."""
    step = stride(11, "operations of a drop in place")
    for number in itertools.count(step - 1, step):
        disk = SimulatedDisk()
        with made("/a.replay", files=disk) as buffer:
            add(buffer)
            buffer.checkpoint("one", attachments={"w": bytes(300)})
            add(buffer, 12)
        files = refusing(disk, errno.EXDEV)
        refuse, count = files.decide, itertools.count()

        def decide(operation: Operation, refuse: Any = refuse, count: Any = count, number: int = number) -> int | None:
            if operation.name in WRITTEN and next(count) >= number:
                raise Crash(operation)
            return refuse(operation)

        with dr.ReplayBuffer.open("/a.replay", files=files) as buffer:
            files.decide = decide
            try:
                buffer.drop_checkpoint("one")
                buffer.commit()
            except Crash:
                pass
            else:
                files.decide = refuse
                return
            yield disk.after_kill()
            yield disk.after_power_loss()
            yield disk.after_kill().after_power_loss()
            files.decide = refuse


WRITTEN = ("unlink", "rmdir", "rename", "sync_dir", "pwrite", "sync", "mkdir")


@pytest.mark.filterwarnings("ignore::diskreplay.errors.SamplerWarning")  # priorities go with a crash, which it says
def test_a_crash_leaves_it_whole_or_dropped() -> None:
    count = 0
    for disk in crashes():
        count += 1
        names = {path for path in disk.contents() if path.startswith("/a.replay/checkpoints/one")}
        with dr.ReplayBuffer.open("/a.replay", mode="r", files=disk) as reader:
            there = reader.checkpoints
        if there:
            with dr.ReplayBuffer.open("/a.replay", mode="r", checkpoint="one", files=disk) as reader:
                assert (reader.get(reader.items()).obs[:, 0] == np.arange(6)).all()
                assert reader.attachment("w").read() == bytes(300)
        with dr.ReplayBuffer.open("/a.replay", files=disk) as buffer:
            assert buffer.checkpoints == there
            if not there:
                assert not {path for path in disk.contents() if path.startswith("/a.replay/checkpoints/one")}, names
                buffer.checkpoint("one")
            buffer.commit()
        assert verify("/a.replay", files=disk).ok
    assert count > 2


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "SHARD_BYTES", checkpoint_arrays.CHUNK_ROWS)
