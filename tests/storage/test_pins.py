"""Checkpoints that pin rows: what a commit reads of them, and what it remembers of those that were made again."""

from __future__ import annotations

import pathlib

import pytest
from helpers import lives
from helpers.effort import examples, stride
from helpers.testing import FaultyFiles, Operation, SimulatedDisk
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay as dr
from diskreplay.errors import CorruptionError
from diskreplay.schema.columns import INFO
from diskreplay.storage import metadata
from diskreplay.storage.commit import Commit, Stored, Table, needed_shards

PATH = "/a.replay"
SHARD = 8


def add(buffer: dr.ReplayBuffer, rows: int) -> None:
    lives.add(buffer, rows)
    buffer.commit()


def shards(disk: SimulatedDisk) -> set[int]:
    """Those of the frames of stream 0 that are on disk."""
    names = disk.list(f"{PATH}/streams/0/obs")
    return {int(name.split(".")[1]) for name in names if name.startswith("c.")}


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    lives.create(PATH, num_envs=1, rows=12, files=disk).close()
    return disk


def opened(files: SimulatedDisk | FaultyFiles, **options: object) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.open(PATH, files=files, **lives.OPTIONS | options)


def documents_read(files: FaultyFiles) -> int:
    """Reads of documents of checkpoints since the last ``heal``."""
    return sum(one.name == "read" and "/checkpoints/" in one.path for one in files.operations)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=8), st.integers(1, 7))
def test_shards_that_are_needed_are_those_of_the_definition(given: list[tuple[int, int]], rows: int) -> None:
    """A commit needs the shards from its first needed row on; the last that it names always, if only for its bytes."""
    commits, need = [], set()
    for begin, stored in given:
        tables = {INFO: Table(begin, begin + stored, begin)}
        last = max(stored - 1, 0) // rows
        arrays = {INFO: Stored(last, 9, stored, rows, rows, 1, "zstd:1")} if stored else {}
        commits.append(Commit(0, 1, 1, tables=tables, arrays=arrays))
        need |= {
            shard for shard in range(70) if stored and (begin < (shard + 1) * rows <= last * rows or shard == last)
        }
    assert needed_shards(commits, INFO) == need


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the groups whose documents are parsed, checkpoints' alone."""
    found: list[str] = []
    attributes = metadata.attributes

    def count(directory: str, data: bytes) -> dict[str, object]:
        if "/checkpoints/" in directory:
            found.append(directory.rpartition("/")[2])
        return attributes(directory, data)

    monkeypatch.setattr(metadata, "attributes", count)
    return found


def test_a_commit_reads_checkpoints_only_if_a_shard_leaves(disk: SimulatedDisk, parsed: list[str]) -> None:
    files = FaultyFiles(disk)
    with opened(files) as buffer:
        add(buffer, 12)
        for number in range(20):
            buffer.checkpoint(f"{number:02}")
        add(buffer, 28)  # the next shard leaves the window with row 46
        parsed.clear()
        for _ in range(4):
            files.heal()
            add(buffer, 1)
            assert documents_read(files) == 0, "no shard leaves the window"
        files.heal()
        add(buffer, 16)
        assert documents_read(files) == 20, "nothing is unlinked on account of what was remembered"
        assert not parsed, "what has the same bytes is not parsed"


def test_names_of_known_checkpoints_are_told_without_parsing(disk: SimulatedDisk, parsed: list[str]) -> None:
    with opened(disk) as buffer, opened(disk, mode="r") as reader:
        add(buffer, 12)
        for name in ("c", "b", "a"):
            buffer.checkpoint(name)
        assert reader.checkpoints == ["c", "b", "a"]
        parsed.clear()
        assert reader.checkpoints == ["c", "b", "a"]
        assert not parsed
        buffer.drop_checkpoint("c")
        buffer.checkpoint("c")
        parsed.clear()
        assert reader.checkpoints == ["b", "a", "c"], "it was made again, as the newest"
        assert parsed == ["c"]


def test_keeping_the_newest_checkpoints_parses_no_others(disk: SimulatedDisk, parsed: list[str]) -> None:
    """Each checkpoint that was made with ``keep`` parsed all that there were."""
    with opened(disk) as buffer:
        for number in range(20):
            buffer.checkpoint(f"other-{number}")
        for number in range(3):
            add(buffer, 1)
            buffer.checkpoint(f"kept-{number}", keep=2)
        parsed.clear()
        buffer.checkpoint("kept-3", keep=2)
        assert not parsed, "this store made them"
        assert (buffer.checkpoints[-2:], len(buffer.checkpoints)) == (["kept-2", "kept-3"], 22)


def test_a_name_that_another_writer_made_again_is_new(disk: SimulatedDisk) -> None:
    own, other = opened(disk), opened(disk, stream="b")
    add(own, 14)
    other.refresh()
    other.checkpoint("latest")
    add(own, 26)  # it has seen the checkpoint
    assert shards(disk) == {0, 1, 3, 4}
    other.refresh()
    other.drop_checkpoint("latest")
    other.checkpoint("latest")  # of rows 28 to 39
    add(own, 40)
    assert shards(disk) == {3, 4, 8, 9}
    with opened(disk, mode="r", checkpoint="latest") as then:
        lives.check_all(then)
        assert then.stats()["streams"]["0"]["end"] == 40
    own.close()
    other.close()


def at_operation(number: int) -> tuple[bool, SimulatedDisk]:
    """Another process makes a checkpoint again before an operation of a commit that evicts; whether it had
    so many, and the disk after one more commit.
    """
    disk = SimulatedDisk()
    lives.create(PATH, num_envs=1, rows=12, files=disk).close()
    files = FaultyFiles(disk)
    with opened(files) as own, opened(disk, stream="b") as other:
        add(own, 14)
        other.refresh()
        other.checkpoint("latest")
        add(own, 26)
        lives.add(own, 16)
        files.heal()
        passed = 0

        def decide(operation: Operation) -> None:
            nonlocal passed
            passed += 1
            if passed == number:
                other.refresh()
                other.drop_checkpoint("latest")
                other.checkpoint("latest")

        files.decide = decide
        own.commit()
        happened = passed >= number
        files.heal()
        add(own, 24)
    return happened, disk


@pytest.mark.long
def test_a_checkpoint_made_again_within_a_commit_is_whole() -> None:
    number = 0
    while True:
        number += stride(40, "operations of a commit")
        happened, disk = at_operation(number)
        if not happened:
            break
        with opened(disk, mode="r", checkpoint="latest") as then:
            lives.check_all(then)
            assert then.stats()["streams"]["0"]["end"] in (40, 56)


@pytest.mark.parametrize("again", [True, False])
def test_the_first_commit_after_a_drop_gives_the_space_back(disk: SimulatedDisk, again: bool) -> None:
    own, other = opened(disk), opened(disk, stream="b")
    add(own, 14)
    own.checkpoint("own")
    other.refresh()
    other.checkpoint("latest")
    add(own, 26)
    other.refresh()
    other.drop_checkpoint("latest")
    if again:
        other.checkpoint("latest")
    add(own, 1)
    assert shards(disk) == {0, 1, 3, 4}, "another pins the same rows"
    own.drop_checkpoint("own")
    add(own, 1)  # no shard leaves the window with this commit
    assert shards(disk) == {3, 4}
    own.close()
    other.close()


def test_a_link_is_refused_even_where_the_bytes_are_known(tmp_path: pathlib.Path) -> None:
    """What is parsed is looked at as before; a link to the very bytes that were read is the same document."""
    path = tmp_path / "a.replay"
    with lives.create(str(path), num_envs=1, rows=12) as buffer:
        add(buffer, 14)
        buffer.checkpoint("a")
        other = tmp_path / "elsewhere"
        (path / "checkpoints" / "a").rename(other)
        (path / "checkpoints" / "b").symlink_to(other)
        with pytest.raises(CorruptionError, match="is a link"):
            add(buffer, 26)
