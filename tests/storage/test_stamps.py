"""Stamps of documents: files that are other ones have others, and what has the same is not read."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import textwrap
import time
import types
from collections.abc import Iterator
from typing import Any, cast
from unittest import mock

import pytest
from helpers import lives
from helpers.effort import examples
from helpers.testing import FaultyFiles
from hypothesis import example, given, settings
from hypothesis import strategies as st

import diskreplay as dr
from diskreplay.storage import metadata, stamps
from diskreplay.storage.files import Files, Kind
from diskreplay.storage.metadata import KnownDocuments

SETTLED_NS = 60_000_000
"""More than the ticks of any kernel, and little to wait for."""


class Clocked(Files):
    """Documents on a file system that gives the number of a removed file to the next one, and times by a coarse clock.

    That clock can be set back.
    """

    def __init__(self, tick: int) -> None:
        self.tick = tick
        self.clock = self.steady = 10**18
        self.there: dict[str, tuple[int, int, bytes]] = {}  # the file's number, its time, its bytes
        self.made = self.reads = 0
        self.eras = stamps.Eras()

    def make(self, name: str) -> None:
        number = next(n for n in range(len(self.there) + 1) if n not in {n for n, _, _ in self.there.values()})
        self.made += 1
        document = metadata.group_document({"id": self.made % 10}, f"checkpoints/{name}")
        self.there[name] = number, self.clock // self.tick * self.tick, json.dumps(document).encode()

    def wait(self, ns: int) -> None:
        self.clock, self.steady = self.clock + ns, self.steady + ns

    def documents(self) -> Iterator[tuple[str, Any]]:
        for name, (_, _, data) in self.there.items():
            yield name, json.loads(data)

    def list(self, path: str) -> list[str]:
        return sorted(self.there)

    def kind(self, path: str) -> Kind | None:
        return "directory"

    def size(self, path: str) -> int | None:
        return 100

    def read(self, path: str) -> bytes:
        self.reads += 1
        return self.there[path.split("/")[-2]][2]

    def stamps(self, folder: str, below: Any) -> Any:
        clocks = types.SimpleNamespace(time_ns=lambda: self.clock, monotonic_ns=lambda: self.steady)
        with mock.patch.object(stamps, "time", clocks):
            era, now = self.eras.now()
        return [stamps.stamp(self.stat(name.split("/")[0]), 0, era, now) for name in below]

    def stat(self, name: str) -> os.stat_result:
        number, at, data = self.there[name]
        times = {"st_mtime_ns": at, "st_ctime_ns": at}
        found = types.SimpleNamespace(st_dev=0, st_ino=number, st_size=len(data), **times)
        return cast(os.stat_result, found)


HALVES = st.integers(0, 8).map(lambda halves: halves * 500_000_000)
ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["drop", "again"]), st.sampled_from("aab")),
    st.tuples(st.sampled_from(["wait", "wait", "set back"]), HALVES),
    st.tuples(st.just("look"), st.none()),
    st.tuples(st.just("wait and look"), st.none()),
)


@settings(max_examples=examples(1000, least=60), deadline=None)
@given(st.sampled_from([1, 4_000_000, 1_000_000_000]), st.lists(ACTIONS, max_size=20))
@example(1, [("wait and look", None), ("set back", 3_000_000_000), ("again", "a"), ("wait and look", None)])
@example(1, [("wait and look", None), ("again", "a"), ("wait and look", None)])
@example(1_000_000_000, [("wait", 500_000_000), ("look", None), ("again", "a"), ("wait and look", None)])
def test_what_is_remembered_is_what_is_there(tick: int, actions: list[tuple[str, Any]]) -> None:
    """Whatever numbers are given again, however coarse the clock is, and however often it is set back."""
    disk = Clocked(tick)
    known = KnownDocuments(disk, "/checkpoints", lambda directory, said: said["id"])
    for action, value in [("again", "a"), *actions, ("look", None)]:
        if action in ("drop", "again"):
            disk.there.pop(value, None)
        if action == "again":
            disk.make(value)
        if action in ("wait", "wait and look"):
            disk.wait(value or 3_000_000_000)
        if action == "set back":
            disk.clock -= value
        if action in ("look", "wait and look"):
            said = {name: document["attributes"]["diskreplay"]["id"] for name, document in disk.documents()}
            assert known.read() == said
            assert known.same(said)


def test_bytes_are_read_of_what_is_young_and_no_more() -> None:
    disk = Clocked(4_000_000)
    known = KnownDocuments(disk, "/checkpoints", lambda directory, said: said["id"])
    for name in "abc":
        disk.make(name)
    reads = []
    for _ in range(6):
        said, before = known.read(), disk.reads
        reads.append(before)
        disk.wait(700_000_000)
    assert reads == [3, 6, 9, 12, 12, 12]
    assert known.read() is said, "what follows from it need not be found again"


@pytest.fixture
def settled_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "SETTLED_NS", SETTLED_NS)


def local(folder: pathlib.Path) -> None:
    if not stamps.is_local(str(folder)):
        pytest.skip(f"{folder} is on no file system whose files have stamps")


def documents_read(files: FaultyFiles) -> int:
    return sum(one.name == "read" and "/checkpoints/" in one.path for one in files.operations)


@pytest.mark.usefixtures("settled_soon")
def test_no_document_is_read_twice_once_it_has_a_stamp(tmp_path: pathlib.Path) -> None:
    """A commit with which shards leave the window, and ``checkpoints``, read every document each time."""
    local(tmp_path)
    files, path = FaultyFiles(), str(tmp_path / "a.replay")
    with lives.create(path, num_envs=1, rows=12, files=files) as buffer:
        first = 0

        def go_on(rows: int) -> int:
            nonlocal first
            for row in range(first, first + rows):
                buffer.add(**lives.step(0, row, 1))
            first += rows
            files.heal()
            buffer.commit()
            return documents_read(files)

        go_on(12)
        for number in range(20):
            buffer.checkpoint(f"{number:02}")
        go_on(28)
        time.sleep(2e-9 * SETTLED_NS)
        go_on(16)  # their stamps are taken
        assert go_on(16) == 0
        assert len(buffer.checkpoints) == 20
        files.heal()
        assert len(buffer.checkpoints) == 20
        assert documents_read(files) == 0
        buffer.drop_checkpoint("07")
        buffer.checkpoint("07")
        assert go_on(16) == 1, "the one that was made again"
        with dr.ReplayBuffer.open(path, mode="r", checkpoint="07", **lives.OPTIONS) as then:
            lives.check_all(then)


def test_networks_and_links_to_other_disks_have_no_stamps(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"a")
    found = file.stat()
    old = found.st_ctime_ns + 10 * stamps.SETTLED_NS
    assert stamps.stamp(found, found.st_dev, 0, old) is not None
    assert stamps.stamp(found, found.st_dev + 1, 0, old) is None, "the folder is on another device"
    assert stamps.stamp(found, found.st_dev, 0, found.st_ctime_ns) is None, "it is young, or from the future"
    if sys.platform.startswith("linux"):
        assert not stamps.is_local("/proc")
    with mock.patch.object(stamps, "is_local", return_value=False):
        assert stamps.stamps(str(tmp_path), ["a"]) == [None]
    assert stamps.stamps(str(tmp_path / "nothing"), ["a", "b"]) == [None, None]


AGAIN = """
    import sys
    from helpers import lives
    import diskreplay as dr

    with dr.ReplayBuffer.open(sys.argv[1], stream="b", **lives.OPTIONS) as other:
        for line in sys.stdin:
            other.refresh()
            other.drop_checkpoint("latest")
            other.checkpoint("latest")
            print("done", flush=True)
"""


@pytest.mark.long
@pytest.mark.usefixtures("settled_soon")
def test_another_process_makes_a_checkpoint_again(tmp_path: pathlib.Path) -> None:
    """Its rows stay, although its file may have the number of the one before."""
    local(tmp_path)
    path = str(tmp_path / "a.replay")
    with lives.create(path, num_envs=1, rows=12) as own:
        with dr.ReplayBuffer.open(path, stream="b", **lives.OPTIONS) as other:
            other.checkpoint("latest")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(AGAIN), path], text=True, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            row = 0
            for _ in range(8):
                time.sleep(2e-9 * SETTLED_NS)
                for _ in range(2):  # the first takes the stamp, with the second shards leave, too
                    row += 14
                    for at in range(row - 14, row):
                        own.add(**lives.step(0, at, 1))
                    own.commit()
                process.stdin.write("again\n")
                process.stdin.flush()
                assert process.stdout.readline() == "done\n"
                time.sleep(2e-9 * SETTLED_NS)
                end = row
                for at in range(row, row + 40):
                    own.add(**lives.step(0, at, 1))
                row += 40
                own.commit()
                with dr.ReplayBuffer.open(path, mode="r", checkpoint="latest", **lives.OPTIONS) as then:
                    lives.check_all(then)
                    assert then.stats()["streams"]["0"]["end"] == end
            process.stdin.close()
