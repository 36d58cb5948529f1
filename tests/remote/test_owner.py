"""One owner of a remote stream: copies of a directory, backups, kills, power cuts, each beside the original."""

from __future__ import annotations

import contextlib
import errno
import json
import pathlib
import random
import shutil
import threading
from collections.abc import Callable
from typing import Any

import pytest
from helpers import effort
from helpers.commands import command
from helpers.patience import PATIENCE
from helpers.testing import FaultyFiles, FaultyObjects, SimulatedDisk, SimulatedObjects
from helpers.turns import KilledError, Turns
from remote.world import RUN, Life, Rows, lived, observation, pushed, read, reader, rows_of, under

import diskreplay as dr
from diskreplay.errors import CorruptionError, DiskFullError, RemoteConflictError, RemoteError, WriteFailedError
from diskreplay.ops import remote as commands
from diskreplay.ops.verify import verify
from diskreplay.remote import documents, ledger
from diskreplay.remote.objects import TakenError
from diskreplay.remote.push import Push
from diskreplay.storage.commit import Commit
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Checkpoint, Store

REFUSED = "another directory, which holds the same origin, has pushed to it"


@contextlib.contextmanager
def _refusing(objects: SimulatedObjects, match: str = REFUSED, error: type[Exception] = RemoteConflictError) -> Any:
    """A push is refused, and changes nothing."""
    before = dict(objects.data)
    with pytest.raises(error, match=match):
        yield
    assert objects.data == before


def _refused(life: Life, objects: SimulatedObjects, *said: Any) -> None:
    with _refusing(objects, *said):
        life.push(objects)


def _whole(objects: SimulatedObjects, life: Life, mirror: pathlib.Path) -> None:
    """The rows under the URL are those of a directory, and all of them are right."""
    assert read(objects, mirror) == sorted(life.window())
    with under(objects):
        assert verify(objects.url).problems == ()


def _end(record: bytes) -> int:
    return Commit.from_json(documents.ours(record), "").end


def _pair(folder: pathlib.Path, *, stale: bool = False) -> tuple[Life, Life, SimulatedObjects]:
    """A pushed directory and a copy of it; ``stale``: the original has pushed since the copy was made."""
    life, objects = pushed(folder / "a", 10, "c", 3)
    other = life.copy(folder / "b", 7)
    if stale:
        life.add(25, to=objects)
    return life, other, objects


@pytest.mark.long
def test_a_copy_from_before_the_last_push_empties_nothing(tmp_path: pathlib.Path) -> None:
    """Regression: the original's stream was made empty, and its checkpoints were removed."""
    life, other, objects = _pair(tmp_path, stale=True)
    life.checkpoint("later")
    life.push(objects)
    other.go_back("c")
    other.add(4)
    _refused(other, objects)
    _whole(objects, life, tmp_path / "m")
    with reader(objects, tmp_path / "m") as buffer:
        assert sorted(buffer.checkpoints) == ["c", "later"]
    life.add(5, to=objects)
    _whole(objects, life, tmp_path / "m")


def test_the_command_refuses_a_copy_from_before_the_last_push(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life, other, objects = _pair(tmp_path, stale=True)
    other.go_back("c")
    other.buffer.close()
    monkeypatch.setattr(commands, "ObjectStore", lambda url: objects)
    result = command("push", other.path, objects.url)
    assert result.exit_code != 0
    assert "same origin" in result.stderr
    _whole(objects, life, tmp_path / "m")


@pytest.mark.long
def test_a_copy_that_is_behind_is_refused_each_time(tmp_path: pathlib.Path) -> None:
    """Regression: each start raises the sequence, and the sixth one got through."""
    life, other, objects = _pair(tmp_path, stale=True)
    for _ in range(8):
        other.buffer.close()
        other.buffer = dr.ReplayBuffer.open(other.path, **RUN)
        other.add(9)
        _refused(other, objects)
    _whole(objects, life, tmp_path / "m")


def test_a_copy_that_pushes_first_owns_the_stream(tmp_path: pathlib.Path) -> None:
    life, other, objects = _pair(tmp_path)
    other.add(2, to=objects)
    life.add(20)
    _refused(life, objects)
    other.add(2, to=objects)
    _whole(objects, other, tmp_path / "m")


def test_a_copy_that_has_nothing_new_takes_nothing_over(tmp_path: pathlib.Path) -> None:
    life, objects = pushed(tmp_path / "a", 10, "c")
    life.buffer.close()
    life.push(objects)
    for copy in ("b", "c"):
        shutil.copytree(life.path, tmp_path / copy)
    before = dict(objects.data)
    commands.push(tmp_path / "b", objects.url, objects)
    assert objects.data == before
    with under(objects), dr.ReplayBuffer.open(tmp_path / "c", remote=objects.url, **RUN) as buffer:
        buffer.push(PATIENCE)
    assert objects.data == before
    life.buffer = dr.ReplayBuffer.open(life.path, **RUN)
    life.add(1, to=objects)
    _whole(objects, life, tmp_path / "m")


def test_the_owner_goes_on_from_wherever_its_directory_is(tmp_path: pathlib.Path) -> None:
    life, objects = pushed(tmp_path / "a", 10)
    life.buffer.close()
    life.path = str(pathlib.Path(life.path).rename(tmp_path / "moved"))
    life.buffer = dr.ReplayBuffer.open(life.path, **RUN)
    life.add(3, to=objects)
    _whole(objects, life, tmp_path / "m")


def test_the_one_that_was_refused_goes_on_in_another_stream(tmp_path: pathlib.Path) -> None:
    life, other, objects = _pair(tmp_path, stale=True)
    other.buffer.drop_checkpoint("c")
    other.buffer.close()
    with under(objects), dr.ReplayBuffer.open(other.path, stream="again", remote=objects.url, **RUN) as buffer:
        buffer.add(*_row(9), False, True)
        buffer.push(PATIENCE)
    assert read(objects, tmp_path / "m") == sorted([*life.window(), (9, 0, 0, 90_000)])


def _row(writer: int) -> tuple[Any, ...]:
    return observation(writer, 0, 0), 0, 10_000.0 * writer, observation(writer, 0, 1)


def test_storage_that_was_set_back_is_brought_up_again(tmp_path: pathlib.Path) -> None:
    life, objects = pushed(tmp_path / "a", 10)
    backup = objects.copy()
    for _ in range(3):
        life.add(10, to=objects)
    life.push(backup)
    _whole(backup, life, tmp_path / "m")


def test_an_older_copy_with_a_newer_ledger_is_refused(tmp_path: pathlib.Path) -> None:
    life, other, objects = _pair(tmp_path, stale=True)
    for one in life, other:
        one.buffer.close()
    life.push(objects)
    shutil.copy(*(ledger.path(f"{one.path}/streams/0") for one in (life, other)))
    _refused(other, objects, "ahead of this directory")


def test_emptied_storage_is_filled_and_a_removed_record_is_not(tmp_path: pathlib.Path) -> None:
    life, objects = pushed(tmp_path / "a", 10)
    objects.data.clear()
    push = life.push(objects)
    _whole(objects, life, tmp_path / "m")
    del objects.data["streams/0/zarr.json"]
    life.add(3)
    with pytest.raises(RemoteConflictError, match="its record was removed"):
        push.run()


def test_a_record_that_is_put_late_is_the_owners(tmp_path: pathlib.Path) -> None:
    """The put was given up, and is done at any request of the next attempt, or not any more."""
    life, base = pushed(tmp_path / "a", 10)
    life.add(5)
    record, outcomes = "streams/0/zarr.json", set()
    for at in 1, 2, 3, 5, 8, 60:
        objects = base.copy()
        faulty = FaultyObjects(objects)
        late: list[Any] = []
        put = objects.put

        def held(key: str, data: bytes, tag: str | None = None) -> str:
            if key == record and not late and _end(data) == 15:  # noqa: B023
                late.append((key, data, tag))  # noqa: B023
                raise RemoteError("no answer came in time")
            return put(key, data, tag)  # noqa: B023

        objects.put = held  # type: ignore[method-assign]
        push = Push(Store(life.path, LocalFiles()), "0", faulty)
        with pytest.raises(RemoteError, match="in time"):
            push.run()
        faulty.heal()

        def lands(index: int, request: Any) -> None:
            if index == at:  # noqa: B023
                with contextlib.suppress(TakenError):
                    put(*late[0])  # noqa: B023
                    outcomes.add(at)  # noqa: B023

        faulty.decide = lands
        push.run()
        assert read(objects, tmp_path / f"m{at}") == sorted(life.window())
    assert 3 <= len(outcomes) <= 5


# Checkpoints


def test_a_copy_from_before_a_checkpoint_was_pushed_removes_none(tmp_path: pathlib.Path) -> None:
    """The checkpoint needs no newer rows: the record alone could not tell the copy."""
    life, objects = lived(tmp_path / "a", 10), SimulatedObjects()
    push = life.push(objects)
    shutil.copytree(life.path, tmp_path / "b")
    engine = life.buffer.engine
    made = Checkpoint("c", engine.streams.commits, {}, {}, 0.0).numbered(1, "0", {})
    engine.store.write_checkpoint(engine.streams.writer, made, {})
    push.run()
    assert any(key.startswith("checkpoints/c/") for key in objects.data)
    with pytest.raises(RemoteConflictError, match=REFUSED):
        commands.push(tmp_path / "b", objects.url, objects)
    assert any(key.startswith("checkpoints/c/") for key in objects.data)


def test_who_owns_a_stream_no_more_changes_no_checkpoint(tmp_path: pathlib.Path) -> None:
    life, other, objects = _pair(tmp_path)
    push = Push(Store(life.path, LocalFiles()), "0", objects)
    push.run()
    other.add(3)
    other.checkpoint("theirs")
    other.push(objects)
    life.buffer.drop_checkpoint("c")
    with _refusing(objects):
        push.run()


def test_two_streams_of_one_directory_have_owners_of_their_own(tmp_path: pathlib.Path) -> None:
    """A copy that owns one stream removes no checkpoint that the other's owner made, and adds none of its rows."""
    life, objects = lived(tmp_path / "a", 10), SimulatedObjects()
    dr.ReplayBuffer.open(life.path, stream="second", **RUN).close()
    life.buffer.refresh()
    life.push(objects, "0")
    life.push(objects, "second")
    life.buffer.close()
    shutil.copytree(life.path, tmp_path / "b")
    life.buffer = dr.ReplayBuffer.open(life.path, stream="0", **RUN)
    life.add(5)
    life.checkpoint("c")
    life.push(objects, "0")
    kept = dict(objects.data)
    with dr.ReplayBuffer.open(tmp_path / "b", stream="second", **RUN) as other:
        other.add(*_row(9), False, True)
        other.checkpoint("d")
        Push(Store(str(tmp_path / "b"), LocalFiles()), "second", objects).run()
    assert not any(key.startswith("checkpoints/d/") for key in objects.data)
    assert {key for key in kept if key.startswith("checkpoints/")} <= objects.data.keys()
    assert {key: data for key, data in kept.items() if "/0/" in key} == {
        key: data for key, data in objects.data.items() if "/0/" in key
    }


# At the same time


def _round(folder: pathlib.Path, seed: int) -> str:
    """Live copies push side by side, are killed, start again and go back: one goes on, and its rows are there."""
    rng = random.Random(seed)
    life, objects = Life(folder / "0"), SimulatedObjects()
    life.add(rng.randrange(1, 30))
    life.checkpoint("c")
    life.add(rng.randrange(30))
    if rng.random() < 0.8:
        life.push(objects)
    stale = {1} if objects.data and rng.random() < 0.3 else set()
    lives = [life, *(life.copy(folder / str(number), number) for number in range(1, rng.randrange(2, 5)))]
    if stale:
        life.add(3, to=objects)
        for replaced in lives[2:]:
            replaced.buffer.close()
        lives[2:] = [life.copy(folder / f"{number} later", number) for number in range(2, len(lives))]
    confirmed: dict[int, Rows] = {}
    refused: dict[int, str] = {}

    def role(number: int, life: Life) -> Callable[[FaultyObjects], None]:
        plan = [(rng.randrange(25), rng.random() < 0.2, rng.random() < 0.3) for _ in range(rng.randrange(1, 4))]

        def goes(there: FaultyObjects) -> None:
            push = Push(Store(life.path, LocalFiles()), "0", there)
            for rows, back, checkpoint in plan:
                if back:
                    for name in set(life.buffer.checkpoints) - {"c"}:
                        life.buffer.drop_checkpoint(name)
                    life.go_back("c")
                life.add(rows + 1)
                if checkpoint:
                    life.buffer.checkpoint(f"{number}-{len(life.rows)}-{life.timeline}")
                while True:
                    try:
                        push.run()
                        break
                    except RemoteConflictError as error:
                        refused[number] = str(error)
                        return
                    except RemoteError:
                        continue
                    except KilledError:
                        push = Push(Store(life.path, LocalFiles()), "0", there)
                confirmed[number] = sorted(life.window())
                assert set(confirmed) == {number}, "two directories were told that their rows are there"

        return goes

    Turns(objects, rng).run([role(number, life) for number, life in enumerate(lives)])
    assert not stale & confirmed.keys()
    (winner,) = confirmed
    assert set(refused) == set(range(len(lives))) - {winner}
    assert all("another" in said for said in refused.values())
    _whole(objects, lives[winner], folder / "m")
    for life in lives:
        life.buffer.close()
    return "the original" if winner == 0 else "a copy"


@pytest.mark.long
def test_of_copies_that_push_at_the_same_time_one_goes_on(tmp_path: pathlib.Path) -> None:
    _round(tmp_path, 1)


@pytest.mark.long("test_of_copies_that_push_at_the_same_time_one_goes_on")
def test_of_many_copies_that_push_at_the_same_time_one_goes_on(tmp_path: pathlib.Path) -> None:
    seen = set()
    for seed in range(effort.examples(40, "rounds of live copies", least=10)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        seen.add(_round(folder, seed))
        shutil.rmtree(folder)
    assert seen == {"the original", "a copy"}


def test_an_older_pushers_late_shard_is_replaced(tmp_path: pathlib.Path) -> None:
    """The interleaving that confirmed rows of one copy over shards of the other."""
    life, other, objects = _pair(tmp_path)
    old = Push(Store(life.path, LocalFiles()), "0", FaultyObjects(objects))
    old.run()
    life.add(2)
    other.add(4)
    faulty = FaultyObjects(objects)
    theirs = Push(Store(other.path, LocalFiles()), "0", faulty)
    record = "streams/0/zarr.json"
    puts: list[str] = []

    def after_the_fence(index: int, request: Any) -> None:
        if request.name == "put":
            puts.append(request.key)
        if len(puts) == 2 and puts[0] == record and request.name == "put":
            with pytest.raises(RemoteConflictError, match=REFUSED):
                old.run()  # puts a shard whose tag it knows, and then no record

    before = {key: data for key, data in objects.data.items() if "/obs/" in key}
    faulty.decide = after_the_fence
    theirs.run()
    assert puts[0] == record
    assert any(objects.data[key] != data for key, data in before.items())
    assert puts.count(record) == 2
    _whole(objects, other, tmp_path / "m")


# Crashes


def _moments(at: Callable[[SimulatedDisk, SimulatedObjects], None]) -> tuple[SimulatedDisk, SimulatedObjects]:
    """Pushes of several processes; ``at`` is called before every operation of the ledger and every request."""
    disk, objects = SimulatedDisk(), SimulatedObjects()
    life = Life(pathlib.Path("/a"), files=disk)
    files, there = FaultyFiles(disk), FaultyObjects(objects)
    there.decide = lambda index, request: at(disk, objects)

    def decide(operation: Any) -> None:
        if operation.name in ("open_write", "pwrite", "truncate", "sync", "rename", "sync_dir"):
            at(disk, objects)

    files.decide = decide
    for rows in 3, 9, 5:
        push = Push(Store(life.path, files), "0", there)
        life.add(rows)
        push.run()
        life.add(4)
        life.buffer.checkpoint(f"c{rows}")
        push.run()
    life.buffer.close()
    return disk, objects


def _rows_on(disk: SimulatedDisk) -> Rows:
    with dr.ReplayBuffer.open("/a", mode="r", files=disk) as buffer:
        return sorted(rows_of(buffer))


def _crashes(folder: pathlib.Path, every: int) -> tuple[int, int]:
    """Power cuts and kills at moments of pushes; how many were tried, and how many images pushed to what came after."""
    moments: list[tuple[SimulatedDisk, SimulatedObjects]] = []
    rng, count = random.Random(3), 0

    def at(disk: SimulatedDisk, objects: SimulatedObjects) -> None:
        nonlocal count
        count += 1
        if count % every == 0:
            image = (disk.after_power_loss(), disk.after_power_loss(rng), disk.after_kill())[count // every % 3]
            moments.append((image, objects.copy()))

    _, end = _moments(at)
    newest = json.loads(end.data["streams/0/zarr.json"])
    refused = 0
    for number, (image, objects) in enumerate(moments):
        backup = image.after_kill()
        Push(Store("/a", image), "0", objects).run()  # what comes after the crash goes on where it was
        assert read(objects, folder / f"m{number}") == _rows_on(image), number
        if json.loads(objects.data["streams/0/zarr.json"]) != newest:
            after = end.copy()
            known = ledger.read(backup, ledger.path("/a/streams/0")).writes if _has_ledger(backup) else ()
            if newest["attributes"]["diskreplay_remote"]["write"] not in known:
                with pytest.raises(RemoteConflictError):
                    Push(Store("/a", backup), "0", after).run()
                assert after.data == end.data, number
                refused += 1
    return len(moments), refused


def _has_ledger(disk: SimulatedDisk) -> bool:
    return disk.kind(ledger.path("/a/streams/0")) is not None


def test_after_a_crash_the_owner_goes_on_and_a_backup_does_not(tmp_path: pathlib.Path) -> None:
    tried, refused = _crashes(tmp_path, 19)
    assert tried > 3
    assert refused > 1


@pytest.mark.long
def test_after_a_crash_at_any_moment_of_a_push_the_owner_goes_on(tmp_path: pathlib.Path) -> None:
    every = effort.stride(11, "moments of pushes")
    tried, refused = _crashes(tmp_path, every)
    assert tried > 120 / every
    assert refused > 60 / every


# The ledger


def test_a_ledger_outlives_torn_lines_and_stays_short(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MOST_WRITES", 8)
    monkeypatch.setattr(ledger, "KEPT_WRITES", 3)
    files, path = LocalFiles(), str(tmp_path / "ledger")
    origin = ledger.start(files, path).origin
    noted: list[str] = []
    for torn in (b"", b"\n", b'\n{"write": "12', b"\0" * 47, b"\n\xff\n", b"\xff\n", b'\n{"write": "' + b"\xff" * 30):
        with open(path, "ab") as file:  # noqa: PTH123
            file.write(torn)
        noted.append(ledger.note(files, path))
        found = ledger.read(files, path)
        assert found.origin == origin
        assert list(found.writes) == noted
    for _ in range(20):
        noted.append(ledger.note(files, path))
        kept = ledger.read(files, path).writes
        assert 3 <= len(kept) <= 8
        assert list(kept) == noted[-len(kept) :]
    assert [one.name for one in tmp_path.iterdir()] == ["ledger"]


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"{}", b"[" * 100_000])
def test_a_ledger_that_cannot_be_read_is_damage_and_one_that_is_gone_is_not_ours(
    data: bytes, tmp_path: pathlib.Path
) -> None:
    life, objects = pushed(tmp_path / "a", 5)
    file = pathlib.Path(ledger.path(f"{life.path}/streams/0"))
    file.write_bytes(data)
    _refused(life, objects, ledger.NAME, CorruptionError)
    file.unlink()
    _refused(life, objects, "another writer made it")


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, DiskFullError), (errno.EIO, WriteFailedError)])
def test_nothing_is_put_where_the_ledger_cannot_be_written(
    number: int, kind: type[Exception], tmp_path: pathlib.Path
) -> None:
    life, objects = pushed(tmp_path / "a", 5)
    life.add(5)
    files = FaultyFiles()
    push = Push(Store(life.path, files), "0", objects)
    for count in range(4):
        before = dict(objects.data)
        files.fail_at(count, number)
        with pytest.raises(kind, match="nothing was put"):
            push.run()
        if count < 3:  # of the fence; then of the record
            assert objects.data == before
        assert read(objects, tmp_path / "m") == sorted(life.rows[:5])
    files.heal()
    push.run()
    _whole(objects, life, tmp_path / "m")


def test_a_full_disk_is_said_and_pushes_go_on_with_room(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, full = SimulatedObjects(), [True]
    note = ledger.note

    def noting(files: Any, path: str) -> str:
        if full[0]:
            with ledger._translated(path):
                raise OSError(errno.ENOSPC, "No space left on device")
        return note(files, path)

    monkeypatch.setattr(ledger, "note", noting)
    with under(objects):
        life = lived(tmp_path / "a", 9, remote=objects.url)
        for _ in range(2):
            with pytest.raises(DiskFullError, match="make room and push again"):
                life.buffer.push(PATIENCE)
        assert "make room" in life.buffer.stats()["remote"]["error"]
        full[0] = False
        life.buffer.push(PATIENCE)  # at once, whatever the last one ran into
        life.buffer.close()
    assert read(objects, tmp_path / "m") == sorted(life.window())


def test_a_push_costs_one_sync_more_and_two_at_its_beginning(tmp_path: pathlib.Path) -> None:
    life, objects = pushed(tmp_path / "a")
    files = FaultyFiles()
    push = Push(Store(life.path, files), "0", objects)
    for syncs in 2, 1, 1:
        life.add(5)
        files.heal()
        push.run()
        assert files.count(("sync", "sync_dir")) == syncs


def test_two_pushes_of_one_process_lose_no_id(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "ledger")
    local, reading = LocalFiles(), threading.Event()
    files, noted = FaultyFiles(local), []
    ledger.start(local, path)

    def decide(operation: Any) -> None:
        if operation.name == "pwrite":  # the size is known, and nothing is written yet
            reading.set()
            beside.join(0.2)

    beside = threading.Thread(target=lambda: (reading.wait(PATIENCE), noted.append(ledger.note(local, path))))
    beside.start()
    files.decide = decide
    noted.append(ledger.note(files, path))
    beside.join(PATIENCE)
    assert sorted(ledger.read(local, path).writes) == sorted(noted)
    assert len(noted) == 2
