"""Copies of objects: their budget, those who share them, and what damages them."""

from __future__ import annotations

import errno
import functools
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from distributed.remote import downloader
from helpers import effort
from helpers.damage import flip
from helpers.testing import FaultyObjects, Interrupts, SimulatedObjects
from helpers.threads import together
from remote.world import Life, pushed, read, reader, rows_of

import diskreplay as dr
from diskreplay.errors import CorruptionError, DiskFullError, RemoteError
from diskreplay.remote.downloads import Download, Downloads
from diskreplay.remote.mirror import Mirror
from diskreplay.remote.objects import Object, ObjectStore


def _object(number: int, size: int = 100) -> Object:
    return Object(f"streams/0/obs/c.{number}.0", size, f"tag {number}", 0.0)


def test_the_budget_holds_and_the_last_used_stay(tmp_path: pathlib.Path) -> None:
    mirror = Mirror(str(tmp_path / "m"), 1000)
    for number in range(50):
        path = pathlib.Path(mirror.keep(_object(number), [b"a" * 60, b"b" * 40]))
        assert path.stat().st_size == 100
        assert mirror.used_bytes() <= 1000
        first = mirror.find(_object(0))
        assert first is not None, number  # it is used all the time
        os.utime(first, ns=(1 << 62, 1 << 62))
    kept = [number for number in range(50) if mirror.find(_object(number)) is not None]
    assert kept[0] == 0
    assert kept[1:] == list(range(50 - len(kept[1:]), 50))
    assert len(kept) >= 8


def test_the_budget_holds_while_many_are_downloaded_at_once(tmp_path: pathlib.Path) -> None:
    mirror = Mirror(str(tmp_path / "m"), 2000)
    over = []

    def keep(number: int) -> None:
        for more in range(20):
            mirror.keep(_object(number * 100 + more), [b"a" * 100])
            over.append(mirror.used_bytes() > 2000)

    together(*[functools.partial(keep, number) for number in range(8)])
    assert len(over) == 160
    assert not any(over)


@pytest.mark.parametrize("pieces", [[b"a" * 99], [b"a" * 101], []])
def test_no_copy_of_another_length_is_kept(tmp_path: pathlib.Path, pieces: list[bytes]) -> None:
    mirror = Mirror(str(tmp_path / "m"), 1000)
    with pytest.raises(RemoteError, match="instead of 100"):
        mirror.keep(_object(1), pieces)
    assert list((tmp_path / "m").iterdir()) == []


def test_two_stores_in_one_mirror_do_not_mix(tmp_path: pathlib.Path) -> None:
    first, second = (Mirror(str(tmp_path / "m"), 1000, url) for url in ("s3://b/one", "s3://b/two"))
    first.keep(_object(1), [b"a" * 100])
    assert second.find(_object(1)) is None


def test_what_else_lies_in_the_directory_is_left_alone(tmp_path: pathlib.Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "mine.txt").write_bytes(b"x" * 5000)
    mirror = Mirror(str(tmp_path / "m"), 300)
    for number in range(9):
        mirror.keep(_object(number), [b"a" * 100])
    assert (tmp_path / "m" / "mine.txt").stat().st_size == 5000


def test_a_full_disk_makes_room_and_then_says_so(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life, objects = pushed(tmp_path / "a", 40)
    life.buffer.close()
    real = Mirror._write
    full = [True]

    def write(mirror: Mirror, of: Object, pieces: Any) -> str:
        if full:
            full.pop()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(mirror, of, pieces)

    monkeypatch.setattr(Mirror, "_write", write)
    assert read(objects, tmp_path / "m") == sorted(life.window())
    full[:] = [True] * 1000
    with pytest.raises(DiskFullError, match="mirror"):
        read(objects, tmp_path / "m2")
    full.clear()
    assert read(objects, tmp_path / "m2") == sorted(life.window())


@pytest.fixture
def served(tmp_path: pathlib.Path) -> tuple[Life, SimulatedObjects]:
    life, objects = pushed(tmp_path / "a", 50)
    life.buffer.close()
    return life, objects


def test_a_damaged_copy_is_said_once_and_downloaded_again(
    served: tuple[Life, SimulatedObjects], tmp_path: pathlib.Path
) -> None:
    life, objects = served
    assert read(objects, tmp_path / "m") == sorted(life.window())
    for copy in sorted((tmp_path / "m").iterdir()):
        for at in (5, copy.stat().st_size // 2, copy.stat().st_size - 3):
            damaged = flip(copy, at)
            named = None
            try:
                assert read(objects, tmp_path / "m") == sorted(life.window())
            except CorruptionError as error:
                named = str(error.file)
            if named is not None:
                assert named.startswith(f"{objects.url}/streams/0/")
                assert not copy.exists() or damaged != copy.read_bytes()
            assert read(objects, tmp_path / "m") == sorted(life.window())
        with copy.open("r+b") as file:
            file.truncate(copy.stat().st_size - 1)
        assert read(objects, tmp_path / "m") == sorted(life.window())  # its length says so at once


def test_one_reader_goes_on_after_a_damaged_copy(served: tuple[Life, SimulatedObjects], tmp_path: pathlib.Path) -> None:
    life, objects = served
    with reader(objects, tmp_path / "m", cache_bytes=0) as buffer:
        rows_of(buffer)
        for copy in (tmp_path / "m").glob("[!.]*"):  # one that is read ahead may still be under way
            data = copy.read_bytes()
            with copy.open("r+b") as file:
                file.write(b"\xff" * (len(data) // 2))
        failed = 0
        for _ in range(30):
            try:
                rows = rows_of(buffer)
                break
            except CorruptionError:
                failed += 1
        assert sorted(rows) == sorted(life.window())
        assert failed


def test_damage_of_an_object_is_reported_every_time(
    served: tuple[Life, SimulatedObjects], tmp_path: pathlib.Path
) -> None:
    _, objects = served
    key = next(key for key in objects.data if key.startswith("streams/0/obs/c.1"))
    objects.data[key] = bytes(len(objects.data[key]))
    for _ in range(3):
        with pytest.raises(CorruptionError, match=r"streams/0/obs/c\.1"):
            read(objects, tmp_path / "m")


def test_an_interrupted_download_leaves_the_next_call_whole(
    served: tuple[Life, SimulatedObjects], tmp_path: pathlib.Path
) -> None:
    life, objects = served
    # Not in diskreplay.process.locks: what holds signals back is not interrupted by one.
    interrupts = Interrupts(within=[f"diskreplay.{room}" for room in ("buffers", "reading", "remote", "storage")])
    tried = effort.places(120, "interrupts of reading a remote store", least=12)
    for number in range(tried):
        with reader(objects, tmp_path / f"m{number}") as buffer:
            ids = buffer.items()
            interrupts.interrupt(number * 7 * (120 // tried), lambda: rows_of(buffer, ids))  # noqa: B023
            assert sorted(rows_of(buffer, ids)) == sorted(life.window()), number


def test_a_wait_for_a_slow_download_can_be_interrupted() -> None:
    downloads: Downloads[int] = Downloads()
    waiting, go_on = threading.Event(), threading.Event()

    def work(_: Download[int]) -> int:
        waiting.wait(60)
        time.sleep(0.2)  # until it is waited for, or nearly
        os.kill(os.getpid(), signal.SIGINT)
        go_on.wait(60)
        return 5

    download = downloads.begin("a", work)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # which may come at once
        waiting.set()
        download.result()
    go_on.set()
    assert downloads.begin("b", lambda _: 6).result() == 6


def test_a_cut_download_is_tried_again_at_once(served: tuple[Life, SimulatedObjects], tmp_path: pathlib.Path) -> None:
    life, objects = served
    faulty = FaultyObjects(objects)
    cut: set[str] = set()

    def decide(index: int, request: Any) -> Any:
        if request.name == "get" and "/c." in request.key and request.key not in cut:
            cut.add(request.key)
            return "cut"
        return None

    faulty.decide = decide
    assert read(faulty, tmp_path / "m") == sorted(life.window())
    assert cut


@pytest.fixture
def folder(served: tuple[Life, SimulatedObjects], tmp_path: pathlib.Path) -> str:
    """A URL of files."""
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'diskreplay[remote]'")
    url = f"file://{tmp_path}/remote/a.replay"
    life, _ = served
    life.push(ObjectStore(url))
    return url


def _start(url: str, mirror: pathlib.Path, most: int, rounds: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, downloader.__file__, url, str(mirror), str(most), str(rounds)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip


def test_processes_share_a_mirror_and_its_budget(folder: str, tmp_path: pathlib.Path) -> None:
    sizes = [one.size for one in ObjectStore(folder).list("streams/0/") if "/c." in one.key]
    most = max(sizes) * 4
    together = [_start(folder, tmp_path / "m", most, 6) for _ in range(3)]
    for process in together:
        said, _ = process.communicate(timeout=200)
        assert process.returncode == 0, said
        assert said.endswith("done\n")
    assert not any("tmp" in path.name for path in (tmp_path / "m").iterdir())
    assert Mirror(str(tmp_path / "m"), most).used_bytes() <= most + 2 * max(sizes)  # of what came at the same time


def test_kills_in_downloads_leave_no_half_copies(folder: str, served: Any, tmp_path: pathlib.Path) -> None:
    life, _ = served
    delays = [0.001 * number for number in range(effort.places(40, "kills of downloads", least=5))]
    for delay in delays:
        process = _start(folder, tmp_path / "m", 1 << 20, 1000)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay * 20)
        process.kill()
        process.communicate()
        with dr.ReplayBuffer.open(folder, mode="r", mirror=tmp_path / "m") as buffer:
            assert sorted(rows_of(buffer)) == sorted(life.window())
        _until_whole(tmp_path / "m")


def _until_whole(mirror: pathlib.Path) -> None:
    """Until nothing is half there: downloads that were begun ahead may be under way."""
    stop = time.monotonic() + 60
    while any("tmp" in path.name for path in mirror.iterdir()):
        assert time.monotonic() < stop
        time.sleep(0.01)
