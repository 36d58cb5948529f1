"""Copies of the root's document: written with a store and its streams, read where the document cannot be."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import pathlib
import random
import shutil
from collections.abc import Iterator

import pytest
from helpers import line
from helpers.damage import files_below
from helpers.effort import stride
from helpers.line import add, rows_in
from helpers.testing import Crash, FaultyFiles, SimulatedDisk

import diskreplay as dr
from diskreplay.errors import CorruptionError, DamageWarning, FormatVersionError, ReadFailedError, StoreExistsError
from diskreplay.ops.convert import export
from diskreplay.ops.verify import verify
from diskreplay.storage import metadata, root
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Store

ROOT, COPY, OTHER = "zarr.json", "streams/0/start/root.json", "streams/b/start/root.json"
DAMAGED = [None, b"", b"{", b"\0" * 900, b"{}", b"[]", b'{"zarr_format":3,"node_type":"group"}', b"flipped", b"\xff"]


def ours(file: pathlib.Path) -> dict[str, object]:
    document = json.loads(file.read_bytes())
    return dict(document["attributes"]["diskreplay"] if file.name == "zarr.json" else document)


@pytest.fixture
def store(path: str) -> pathlib.Path:
    with line.create(path) as buffer:
        add(buffer, 5)
    dr.ReplayBuffer.open(path, stream="b").close()
    return pathlib.Path(path)


def damage(file: pathlib.Path, left: bytes | None) -> None:
    whole = file.read_bytes()
    file.unlink()
    if left is not None:
        file.write_bytes(whole.replace(b"float32", b"float64") if left == b"flipped" else left)


def test_the_first_sixteen_streams_have_a_copy(store: pathlib.Path) -> None:
    for number in range(16):
        dr.ReplayBuffer.open(store, stream=f"more-{number}").close()
    copies = [file for file in files_below(store) if file.endswith("root.json")]
    assert sorted(copies) == sorted([COPY, OTHER, *(f"streams/more-{number}/start/root.json" for number in range(14))])
    assert all(ours(store / file) == ours(store / ROOT) for file in copies)


@pytest.mark.parametrize("left", DAMAGED, ids=repr)
def test_a_lost_root_is_read_from_a_copy_and_put_back_by_a_writer(store: pathlib.Path, left: bytes | None) -> None:
    before = ours(store / ROOT)
    damage(store / ROOT, left)
    damage(store / COPY, left)  # another is there
    damaged = files_below(store)
    said = f"root document .*{ROOT}' .* is missing or damaged: its copy .*{OTHER}' is read"
    with pytest.warns(DamageWarning, match=said):
        assert rows_in(store) == 5
    with pytest.warns(DamageWarning, match=said):
        problems = verify(store).problems
    assert {str(store / ROOT)} <= {one.file for one in problems} <= {str(store / ROOT), str(store / COPY)}
    assert any("opening the store to write puts the document back" in one.what for one in problems)
    assert files_below(store) == damaged
    with pytest.raises(StoreExistsError):
        line.create(store)
    with pytest.warns(DamageWarning, match=said):
        buffer = dr.ReplayBuffer.open(store)
    assert ours(store / ROOT) == before
    add(buffer)
    buffer.close()
    assert rows_in(store) == 6
    assert {one.file for one in verify(store).problems} <= {str(store / COPY)}


def test_errors_of_the_disk_and_newer_versions_are_no_reason_to_read_a_copy(store: pathlib.Path) -> None:
    files = FaultyFiles()
    for number in (errno.EIO, errno.EACCES):
        files.decide = lambda operation, number=number: number if operation.path == str(store / ROOT) else None
        with pytest.raises(ReadFailedError):
            dr.ReplayBuffer.open(store, files=files)
    newer = {**ours(store / ROOT), "format_version": 99}
    (store / ROOT).write_bytes(metadata.dump(metadata.group_document(newer)))
    with pytest.raises(FormatVersionError):
        dr.ReplayBuffer.open(store)


def test_copies_that_differ_are_refused_without_a_root_and_a_problem_beside_one(store: pathlib.Path) -> None:
    line.create(f"{store}.other").close()
    shutil.copy(f"{store}.other/{COPY}", store / OTHER)
    assert rows_in(store) == 5
    (problem,) = verify(store).problems
    assert (problem.file, problem.what) == (str(store / OTHER), "it is no copy of the root document, which counts")
    (store / ROOT).unlink()
    for mode in ("r", "a"):
        with pytest.raises(CorruptionError, match=f"its copies differ: .*{COPY}, .*{OTHER}") as told:
            dr.ReplayBuffer.open(store, mode=mode)
        assert told.value.file == str(store / ROOT)
    (store / OTHER).unlink()
    with pytest.warns(DamageWarning):
        dr.ReplayBuffer.open(store).close()
    assert verify(store).ok


def test_one_that_was_put_back_meanwhile_stays_and_other_attributes_do_not_count(store: pathlib.Path) -> None:
    document = json.loads((store / ROOT).read_bytes())
    document["attributes"]["another's"] = 1
    (store / ROOT).unlink()
    (store / OTHER).write_text(json.dumps(ours(store / OTHER), sort_keys=True))
    with pytest.warns(DamageWarning):
        late = Store(str(store), LocalFiles())
    (store / ROOT).write_text(json.dumps(document))
    late.put_root_back()
    assert json.loads((store / ROOT).read_bytes()) == document
    assert verify(store).ok


def test_copies_of_a_store_have_it(store: pathlib.Path) -> None:
    shutil.copytree(store, f"{store}.copy")
    export(store, f"{store}.exported", "store")
    for copy in map(pathlib.Path, (f"{store}.copy", f"{store}.exported")):
        assert ours(copy / COPY) == ours(copy / ROOT)
        (copy / ROOT).unlink()
        with pytest.warns(DamageWarning):
            assert rows_in(copy) == 5


# Crashes


def crashes(deed: str) -> Iterator[tuple[SimulatedDisk, bool]]:
    """The disk after a crash at each operation of a deed, and whether the deed had ended."""
    for number in itertools.count(0, stride(13, f"operations of {deed}")):
        disk = SimulatedDisk()
        files = FaultyFiles(disk)
        if deed != "create":
            line.create("/a.replay", files=disk).close()
        if deed == "put back":
            disk.unlink("/a.replay/zarr.json")
            disk.sync_dir("/a.replay")
        files.crash_at(number)
        with contextlib.suppress(Crash), contextlib.ExitStack() as opened:
            options = {"stream": "b"} if deed == "join" else {}
            made = line.create if deed == "create" else dr.ReplayBuffer.open
            opened.callback(made("/a.replay", files=files, **options).close)
        for after in (disk.after_kill(), *map(disk.after_power_loss, (None, random.Random(number)))):
            yield after, not files.crashed
        if not files.crashed:
            return


@pytest.mark.long(quick=3)
@pytest.mark.parametrize("deed", ["create", "join", "put back"])
@pytest.mark.filterwarnings("ignore::diskreplay.errors.DamageWarning")
def test_a_crash_leaves_a_root_and_copies_that_are_right(deed: str) -> None:
    """Whatever has its name has its copy; what has none is made again, and nothing is left of the first attempt."""
    ended = 0
    for disk, done in crashes(deed):
        ended += done
        there = disk.size("/a.replay/zarr.json") is not None
        if there or deed == "join":
            copies = root.copies(disk, "/a.replay")
            assert len(copies) == len(disk.list("/a.replay/streams")) - 1
            assert set(map(json.dumps, copies.values())) == {json.dumps(Store("/a.replay", disk).attributes)}
        made = line.create if deed == "create" and not there else dr.ReplayBuffer.open
        made("/a.replay", files=disk).close()
        assert [path for path in disk.contents() if ".tmp" in path or path == "/a.replay/lock"] == []
        assert disk.size("/a.replay/zarr.json")
        assert verify("/a.replay", files=disk).ok
    assert ended == 3
