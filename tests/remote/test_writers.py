"""More than one at a time: old processes, copies of a directory, two that make one store or join it at once."""

from __future__ import annotations

import functools
import os
import pathlib
import re
import threading
import warnings
from typing import Any

import pytest
from helpers.effort import stride
from helpers.forking import forked
from helpers.line import rows_in
from helpers.patience import PATIENCE
from helpers.testing import FaultyObjects, SimulatedObjects
from helpers.threads import together
from remote.world import SPACES, URL, Life, lived, observation, pushed, read, reader, rows_of, under

import diskreplay as dr
from diskreplay.compat.adapter_state import AdapterState
from diskreplay.errors import (
    ClosedError,
    InputError,
    NotAStoreError,
    RemoteConflictError,
    RemoteError,
    StateError,
    StoreExistsError,
    StoreNotFoundError,
)
from diskreplay.remote import background, numbers
from diskreplay.remote.background import BackgroundPush
from diskreplay.remote.failures import explained
from diskreplay.remote.push import Push
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Store


@pytest.mark.long
def test_an_old_process_that_goes_on_changes_nothing(tmp_path: pathlib.Path) -> None:
    life, base = pushed(tmp_path / "a", 20)
    counted = FaultyObjects(base.copy())
    Push(Store(life.path, LocalFiles()), "0", counted).run()
    life.add(15)
    life.push(FaultyObjects(base.copy()))
    for index in range(0, 12, stride(11, "requests of another process")):
        objects = base.copy()
        zombie = Push(Store(life.path, LocalFiles()), "0", objects)
        zombie.run()
        rows, before = list(life.rows), sorted(life.window())
        faulty = FaultyObjects(objects)
        faulty.decide = lambda at, request, index=index, zombie=zombie: zombie.run() if at == index else None
        life.add(1)
        life.push(faulty)
        assert read(objects, tmp_path / f"m{index}") == sorted(life.window()), (index, before, rows)


@pytest.mark.long
def test_a_copy_that_goes_another_way_is_refused(tmp_path: pathlib.Path) -> None:
    life, objects = lived(tmp_path / "a", 20), SimulatedObjects()
    mine = life.push(objects)
    other = life.copy(tmp_path / "b")
    other.writer = 7
    theirs = Push(Store(other.path, LocalFiles()), "0", objects)
    theirs.run()
    life.add(10)
    mine.run()
    other.add(12)
    for push in theirs, Push(Store(other.path, LocalFiles()), "0", objects):
        with pytest.raises(RemoteConflictError, match="another directory, which holds the same origin"):
            push.run()
        assert read(objects, tmp_path / "m") == sorted(life.window())
    life.add(3)
    mine.run()
    assert read(objects, tmp_path / "m") == sorted(life.window())
    life.buffer.close()
    other.buffer.close()


@pytest.mark.long
def test_copies_that_disturb_each_other_never_mix_rows(tmp_path: pathlib.Path) -> None:
    life, base = pushed(tmp_path / "a", 20)
    other = life.copy(tmp_path / "b")
    other.writer = 7
    life.add(10)
    other.add(12)
    counted = FaultyObjects(base.copy())
    other.push(counted)
    outcomes = set()
    for index in range(0, len(counted.requests), stride(11, "requests of another process")):
        objects = base.copy()
        faulty = FaultyObjects(objects)
        conflicts = []

        def meanwhile(at: int, request: object, index: int = index, objects: SimulatedObjects = objects) -> None:
            if at == index:
                try:
                    life.push(objects)
                except RemoteConflictError as error:
                    conflicts.append(error)  # noqa: B023

        faulty.decide = meanwhile
        try:
            other.push(faulty)
        except RemoteConflictError as error:
            conflicts.append(error)
        assert len(conflicts) == 1, index
        seen = read(objects, tmp_path / f"m{index}")
        assert seen in (sorted(life.window()), sorted(other.window())), index
        outcomes.add(seen == sorted(life.window()))
    assert outcomes == {True, False}
    life.buffer.close()
    other.buffer.close()


def test_an_older_copy_is_refused(tmp_path: pathlib.Path) -> None:
    life, objects = pushed(tmp_path / "a", 10, "c")
    older = life.copy(tmp_path / "b")
    older.buffer.close()
    life.add(5, to=objects)
    with pytest.raises(RemoteConflictError, match="another directory, which holds the same origin"):
        older.push(objects)
    life.go_back("c")  # a newer timeline
    life.push(objects)
    with pytest.raises(RemoteConflictError, match="another directory, which holds the same origin"):
        older.push(objects)
    assert read(objects, tmp_path / "m") == sorted(life.window())


def test_two_stores_do_not_share_a_url(tmp_path: pathlib.Path) -> None:
    first, second, objects = Life(tmp_path / "a"), Life(tmp_path / "b", 1), SimulatedObjects()
    first.add(10)
    second.add(10)
    first.push(objects)
    with pytest.raises(RemoteConflictError, match="another store"):
        second.push(objects)
    assert read(objects, tmp_path / "m") == sorted(first.window())
    with under(objects), pytest.raises(StoreExistsError):
        dr.ReplayBuffer.create(tmp_path / "c", *SPACES, capacity=10, remote=URL)
    assert not (tmp_path / "c").exists()
    first.buffer.close()
    second.buffer.close()


@pytest.mark.long
def test_many_that_join_at_once_get_numbers_of_their_own(tmp_path: pathlib.Path) -> None:
    first, objects = pushed(tmp_path / "a", 5)
    lives: list[Life] = []

    def join(number: int) -> None:
        lives.append(Life(tmp_path / f"j{number}", number, remote=URL))

    with under(objects):
        together(*(functools.partial(join, number) for number in range(1, 9)))
        for life in lives:
            life.add(4)
            life.buffer.push(PATIENCE)
            life.buffer.close()
    everything = sorted(row for life in (first, *lives) for row in life.window())
    assert read(objects, tmp_path / "m") == everything
    first.buffer.close()


def test_two_streams_of_one_name_the_second_is_refused(tmp_path: pathlib.Path) -> None:
    first, objects = pushed(tmp_path / "a")
    lives = []
    for there, name in (objects.copy(), "b"), (objects.copy(), "c"):  # neither sees the other
        with under(there):
            lives.append(Life(tmp_path / name, 1, remote=URL, stream="actor"))
    for life in lives:
        life.add(6)
    lives[0].push(objects)
    with pytest.raises(RemoteConflictError):
        lives[1].push(objects)
    assert read(objects, tmp_path / "m") == sorted(lives[0].window())
    with under(objects), pytest.raises(RemoteConflictError, match="actor"):
        Life(tmp_path / "d", 1, remote=URL, stream="actor")
    for life in (first, *lives):
        life.buffer.close()


def test_numbers_are_claimed_whatever_the_first_streams_name(tmp_path: pathlib.Path) -> None:
    objects = SimulatedObjects()
    with under(objects):
        first = Life(tmp_path / "a", remote=URL, stream="actor-a")
        second = Life(tmp_path / "b", 1, remote=URL)
        for life in first, second:
            life.add(3)
            life.buffer.push(PATIENCE)
            life.buffer.close()
    assert not any(key.startswith("streams/0/") for key in objects.data)
    assert {numbers.key("actor-a", 0), numbers.key("actor-a", 1)} <= objects.data.keys()
    assert read(objects, tmp_path / "m") == sorted([*first.window(), *second.window()])


def test_going_back_is_refused_while_a_trainer_needs_the_rows(tmp_path: pathlib.Path) -> None:
    life, objects = pushed(tmp_path / "a", 10, "c", 30)
    with reader(objects, tmp_path / "m") as buffer:
        buffer.checkpoint("t")
        kept = sorted(rows_of(buffer))
    life.go_back("c")
    life.add(25)
    for _ in range(2):
        with pytest.raises(RemoteConflictError, match="'t'"):
            life.push(objects)
    assert read(objects, tmp_path / "m2", checkpoint="t") == kept
    with reader(objects, tmp_path / "m") as buffer:
        buffer.drop_checkpoint("t")
    life.push(objects)
    assert read(objects, tmp_path / "m2") == sorted(life.window())


@pytest.mark.long
def test_a_checkpoint_within_going_back_is_whole_or_refused(tmp_path: pathlib.Path) -> None:
    life, base = pushed(tmp_path / "a", 10, "c", 30)
    trainer_rows = sorted(life.window())
    life.go_back("c")
    life.add(25)
    counted = FaultyObjects(base.copy())
    life.push(counted)
    seen = set()
    for index in range(0, len(counted.requests), stride(11, "requests of another process")):
        objects = base.copy()
        faulty, other = FaultyObjects(objects), FaultyObjects(objects)
        buffer = reader(other, tmp_path / f"m{index}")

        def at(number: int, request: object, index: int = index, buffer: dr.ReplayBuffer = buffer) -> None:
            if number == index:
                buffer.checkpoint("t")

        faulty.decide = at
        try:
            life.push(faulty)
            seen.add("pushed")
        except RemoteConflictError:
            seen.add("refused")
            allowed = [trainer_rows]
        else:
            allowed = [[], sorted(life.window())]
        assert read(objects, tmp_path / f"n{index}", checkpoint="t") in allowed, index
        buffer.close()
    assert seen == {"pushed", "refused"}


def test_rows_evicted_before_they_were_sent_are_counted(tmp_path: pathlib.Path) -> None:
    life, objects = Life(tmp_path / "a", capacity=20), SimulatedObjects()
    life.add(20)
    push = life.push(objects)
    life.add(55)
    push.run()
    assert push.sent.lost_rows == 35
    assert read(objects, tmp_path / "m") == sorted(life.window())


def test_a_missing_local_shard_is_damage_and_no_eviction(tmp_path: pathlib.Path) -> None:
    life, objects = lived(tmp_path / "a", 20), SimulatedObjects()
    next(pathlib.Path(life.path).glob("streams/0/obs/c.0.*")).unlink()
    with pytest.raises(dr.errors.CorruptionError, match="is missing"):
        life.push(objects)


def test_a_buffer_that_was_dropped_does_not_stop_the_next_one(tmp_path: pathlib.Path) -> None:
    objects = SimulatedObjects()
    faulty = FaultyObjects(objects)
    entered, go_on = threading.Event(), threading.Event()

    def slow(index: int, request: object) -> None:
        if getattr(request, "key", "").endswith("streams/0/zarr.json") and getattr(request, "name", "") == "put":
            entered.set()
            go_on.wait(PATIENCE)

    faulty.decide = slow
    with under(faulty):
        life = lived(tmp_path / "a", 9, remote=URL)
        assert entered.wait(PATIENCE)
    life.buffer.engine.end_pushing = lambda: None  # type: ignore[method-assign]  # its thread is left where it is
    life.buffer.close()
    with under(objects):
        again = Life(tmp_path / "a", remote=URL)
        again.rows = list(life.rows)
        again.add(9)
        again.buffer.push(PATIENCE)
        go_on.set()
        again.add(9)
        again.buffer.push(PATIENCE)
        again.buffer.close()
    assert read(objects, tmp_path / "m") == sorted(again.window())


class Counting(AdapterState):
    """Counts how often it is asked for what waits."""

    saves = 0

    def flush(self) -> None:
        self.saves += 1


def test_closing_saves_once_and_takes_nothing_while_it_pushes(tmp_path: pathlib.Path) -> None:
    """What a thread adds after the last commit would be here, and silently not there."""
    objects, refused = FaultyObjects(SimulatedObjects()), []
    with under(objects):
        life = Life(tmp_path / "a", remote=URL, push_seconds=3600.0)
        keeper = life.buffer.engine.companion = Counting(life.buffer)
        life.add(9)
        life.buffer.push(PATIENCE)
        row, after = observation(0, 0, 9), observation(0, 0, 10)
        life.buffer.add(row, 4, 9.0, after, False, True)  # not committed
        life.rows.append((0, 0, 9, 9))

        def adding(index: int, request: object) -> None:
            try:
                life.buffer.add(after, 0, 10.0, row, False, False)
            except ClosedError as error:
                refused.append(str(error))

        objects.decide = adding
        life.buffer.close()
    assert refused
    assert {line.rpartition(" is ")[2] for line in refused} == {"being closed, and takes no more rows"}
    assert keeper.saves == 1
    assert Store(life.path, LocalFiles()).checkpoint_names() == []
    assert read(objects.inner, tmp_path / "m") == sorted(life.window())
    assert rows_in(life.path) == 10


@pytest.mark.parametrize("pushed", [False, True], ids=["within its push", "after its push"])
def test_a_close_that_was_interrupted_is_done_by_the_next(
    pushed: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: after its push, the next one warned that not everything is pushed, as the buffer pushes no more."""
    objects = SimulatedObjects()
    with under(objects):
        life = lived(tmp_path / "a", 20, remote=URL)
        end = BackgroundPush.end

        def interrupted(self: BackgroundPush, timeout: float | None) -> None:
            if pushed:
                end(self, timeout)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(BackgroundPush, "end", interrupted)
            with pytest.raises(KeyboardInterrupt):
                life.buffer.close()
        if not pushed:
            life.add(9)  # it is open
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            life.buffer.close()
            life.buffer.close()
    assert read(objects, tmp_path / "m") == sorted(life.window())


def test_a_failure_that_no_second_try_mends_is_raised_at_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "FIRST_PAUSE", 0.01)
    life, objects = lived(tmp_path / "a", 5), SimulatedObjects()
    push = Push(Store(life.path, LocalFiles()), "0", objects)

    def broken() -> None:
        raise ValueError("a defect")

    push.run = broken  # type: ignore[method-assign]
    pushes = BackgroundPush(push)
    with pytest.raises(ValueError, match="a defect"):
        pushes.wait(None)
    assert isinstance(pushes.end(PATIENCE), ValueError)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_pushes_nothing_and_waits_for_nobody(tmp_path: pathlib.Path) -> None:
    objects = SimulatedObjects()
    with under(objects):
        life = lived(tmp_path / "a", 9, remote=URL)
        life.buffer.push(PATIENCE)
        held = reader(objects, tmp_path / "m")

        def in_child() -> None:
            before = len(objects.data)
            with pytest.raises(RemoteError, match="forked"):
                held.refresh()
            with pytest.raises(StateError, match="forked"):
                life.buffer.close()
            assert len(objects.data) == before

        assert forked(in_child) is None
        life.buffer.close()
        held.close()


@pytest.mark.parametrize(
    ("kind", "options", "error"),
    [
        (dr.ReplayBuffer, {"num_envs": 8, "capacity": 4}, InputError),
        (dr.ReplayBuffer, {"num_envs": -1}, InputError),
        (dr.ReplayBuffer, {"num_envs": 0}, InputError),
        (dr.ReplayBuffer, {"view": 3}, InputError),
        (dr.ReplayBuffer, {"checkpoint": "latest"}, StoreNotFoundError),
        (dr.RolloutBuffer, {}, NotAStoreError),
        (dr.MultiAgentReplayBuffer, {}, NotAStoreError),
    ],
)
def test_who_asks_for_what_cannot_be_joins_nothing(
    tmp_path: pathlib.Path, kind: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    """Regression: a number was claimed and a local store made, which nothing could open, and then it was looked."""
    life, objects = pushed(tmp_path / "a")
    life.buffer.close()
    before = objects.list("")
    with under(objects):
        with pytest.raises(error):
            kind.open(tmp_path / "b", remote=URL, **options)
        assert objects.list("") == before
        assert not (tmp_path / "b").exists()
        dr.ReplayBuffer.open(tmp_path / "b", remote=URL).close()


@pytest.mark.parametrize(
    "said",
    [
        "HTTP error: error sending request for url (https://one.blob.core.windows.net/c/x?sv=2022&sig=hidden)",
        "error sending request for url (http://user:hid/den@host:9000/bucket)",
        "Error performing GET https://host/x?X-Amz-Signature=hidden in 3s",
    ],
)
def test_urls_in_what_failed_say_no_signature_and_no_password(said: str) -> None:
    assert "host" in explained(said) or "one.blob.core.windows.net/c/x" in explained(said)
    assert not re.search("hid|den", explained(said))
