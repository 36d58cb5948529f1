"""Reading a store under a URL from a mirror that is not there yet: what is asked for, and what is read ahead.

Requests wait at gates of the tests, so that what is under way meanwhile is known.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest
from gymnasium import spaces
from helpers import effort
from helpers.forking import forked
from helpers.patience import PATIENCE
from helpers.testing import FaultyObjects, Interrupts, SimulatedObjects
from helpers.testing.faulty_objects import Fault, Request
from helpers.threads import beside, together
from remote import world
from remote.world import SPACES, Life, lived, pushed, reader, rows_of

import diskreplay as dr
from diskreplay.errors import CorruptionError, InputError, RemoteError
from diskreplay.ops.inspect import inspect
from diskreplay.remote import prefetcher, shards
from diskreplay.remote.objects import Object
from diskreplay.remote.prefetcher import ShardPrefetcher
from diskreplay.remote.push import Push
from diskreplay.remote.remote_files import RemoteFiles
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Store

TAIL = "streams/0/start/tail.1"
SHARD = re.compile(r"streams/[^/]+/obs/c\.(\d+)\.")
SHARD_ROWS, SHARDS = 16, 8


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of some kB are downloaded in parts, as those of some MB are."""
    monkeypatch.setattr(shards, "WHOLE_BYTES", 0)
    monkeypatch.setattr(shards, "REQUEST_BYTES", 0)
    monkeypatch.setitem(world.LAYOUT, "shard_rows", {"obs": SHARD_ROWS, "action": 32})
    monkeypatch.setitem(world.LAYOUT, "chunk_rows", {"obs": 2, "action": 8})


@pytest.fixture
def life(tmp_path: pathlib.Path) -> Iterator[Life]:
    found = lived(tmp_path / "a", SHARD_ROWS * SHARDS, capacity=SHARD_ROWS * SHARDS)
    yield found
    found.buffer.close()


@pytest.fixture
def remote(life: Life) -> SimulatedObjects:
    objects = SimulatedObjects()
    life.push(objects)
    return objects


class Gate:
    """Objects whose downloads wait where a test says so.

    Attributes:
        objects: with the gate before them.
        holds: whether a download waits.
    """

    def __init__(self, inner: SimulatedObjects, holds: Callable[[Request], bool]) -> None:
        self.objects = FaultyObjects(inner)
        self.objects.decide = self._decide
        self.holds = holds
        self._arrived = threading.Semaphore(0)
        self._open = threading.Event()
        self._open.set()
        self.held: list[Request] = []

    def _decide(self, index: int, request: Request) -> Fault | None:
        if request.name == "get" and not self._open.is_set() and self.holds(request):
            self.held.append(request)
            self._arrived.release()
            assert self._open.wait(PATIENCE)
        return None

    def shut(self) -> None:
        """Forgets the requests that were made so far."""
        self.objects.requests.clear()
        self._open.clear()

    def wait(self, count: int) -> None:
        """Until so many more downloads wait."""
        for _ in range(count):
            assert self._arrived.acquire(timeout=PATIENCE), f"{len(self.held)} of {count}: {self.held}"

    def open(self) -> None:
        self._open.set()


def shards_of(requests: Iterable[Request], *, whole: bool) -> list[int]:
    """The numbers of the shards of observations that were asked for: whole, or in parts."""
    found = [(SHARD.match(one.key), one) for one in requests if one.name == "get"]
    return [int(match[1]) for match, one in found if match and (one.span is None) == whole]


def is_whole(request: Request) -> bool:
    return SHARD.match(request.key) is not None and request.span is None


def files_of(buffer: dr.ReplayBuffer) -> RemoteFiles:
    files = buffer.engine.store.files
    assert isinstance(files, RemoteFiles)
    return files


def join(buffer: dr.ReplayBuffer) -> None:
    """Waits until nothing is read ahead any more."""
    found, stop = files_of(buffer).shards.prefetcher, time.monotonic() + PATIENCE
    while True:
        with found._lock:  # the next begins with the end of one
            if not found.running:
                return
        assert time.monotonic() < stop
        time.sleep(0.001)


def rows_in(buffer: dr.ReplayBuffer, *shards: int) -> np.ndarray:
    """The ids of a row in the midst of each of some shards: it and the one after it are in one chunk."""
    return buffer.items()[[shard * SHARD_ROWS + 4 for shard in shards]]


def test_a_batch_asks_for_chunks_and_waits_for_no_shard(
    life: Life, remote: SimulatedObjects, tmp_path: pathlib.Path
) -> None:
    gate = Gate(remote, is_whole)
    with reader(gate.objects, tmp_path / "m") as buffer:
        gate.shut()
        assert rows_of(buffer, rows_in(buffer, 1, 2, 5)) == [life.rows[shard * SHARD_ROWS + 4] for shard in (1, 2, 5)]
        parts = [one for one in gate.objects.requests if one.span is not None]
        assert sorted(shards_of(parts, whole=False)) == [1, 2, 5]
        assert all(one.span[1] - one.span[0] < 2 * 2 * world.WIDTH + 200 for one in parts if one.span)
        gate.open()
        join(buffer)
        assert sorted(shards_of(gate.objects.requests, whole=True)) == [1, 2, 5]
        asked = len(gate.objects.requests)
        rows_of(buffer, rows_in(buffer, 1, 2, 5))
        assert len(gate.objects.requests) == asked
        told = buffer.stats()["remote"]
        assert (told["ahead_shards"], told["failures"], told["error"]) == (3, 0, None)
        assert told["received_bytes"] > 0
        assert sorted(rows_of(buffer)) == sorted(life.window())


def test_who_looks_at_a_store_downloads_indexes(remote: SimulatedObjects) -> None:
    objects = FaultyObjects(remote)
    with world.under(objects):
        assert inspect(objects.url).health == ()
    assert sorted(shards_of(objects.requests, whole=False)) == list(range(SHARDS - 1))
    assert shards_of(objects.requests, whole=True) == [SHARDS - 1]  # it may grow


def test_the_shards_of_which_most_was_read_come_first(
    remote: SimulatedObjects, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetcher, "MOST_SHARDS", 1)
    gate = Gate(remote, is_whole)
    with reader(gate.objects, tmp_path / "m", cache_bytes=0) as buffer:
        gate.shut()
        rows_of(buffer, rows_in(buffer, 0))
        gate.wait(1)
        for shards in ((3,), (4, 6), (6,), (6, 4)):
            rows_of(buffer, rows_in(buffer, *shards))
        gate.open()
        join(buffer)
        assert shards_of(gate.objects.requests, whole=True) == [0, 6, 4, 3]


def test_what_is_most_of_a_shard_or_small_is_downloaded_whole(
    life: Life, remote: SimulatedObjects, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = FaultyObjects(remote)
    with reader(objects, tmp_path / "m") as buffer:
        assert sorted(rows_of(buffer)) == sorted(life.window())
        assert sorted(shards_of(objects.requests, whole=False)) == list(range(SHARDS - 1))  # their indexes, at opening
        assert sorted(shards_of(objects.requests, whole=True)) == list(range(SHARDS))
    monkeypatch.setattr(shards, "WHOLE_BYTES", 1 << 20)
    with reader(objects, tmp_path / "other") as buffer:
        objects.heal()
        rows_of(buffer, rows_in(buffer, 2))
        assert shards_of(objects.requests, whole=False) == []


def test_the_budget_is_kept_and_a_full_mirror_is_not_churned(
    life: Life, remote: SimulatedObjects, tmp_path: pathlib.Path
) -> None:
    size = max(len(data) for key, data in remote.data.items() if SHARD.match(key))
    objects = FaultyObjects(remote)
    budget = 3 * size
    with reader(objects, tmp_path / "m", mirror_bytes=budget, seed=1) as buffer:
        mirror, received = files_of(buffer).mirror, 0
        least = effort.examples(100, "batches from a mirror that is smaller than the store", least=30)
        for number in range(3000):
            if number >= least and shards_of(objects.requests, whole=True):
                break
            rows_of(buffer, buffer.sample(2).index)
            join(buffer)
            assert mirror.used_bytes() <= budget
        parts = [one.span for one in objects.requests if one.span is not None]
        received = sum(stop - begin for begin, stop in parts)
        whole = shards_of(objects.requests, whole=True)
        # What is taken in for another costs no more than what was asked for in parts.
        assert len(whole) * size <= received + budget
        assert whole
        assert sorted(rows_of(buffer)) == sorted(life.window())


def test_a_shard_that_no_mirror_can_hold_is_read_in_parts(
    life: Life, remote: SimulatedObjects, tmp_path: pathlib.Path
) -> None:
    with reader(remote, tmp_path / "m", mirror_bytes=1) as buffer:
        assert sorted(rows_of(buffer)) == sorted(life.window())
        life.add(3, to=remote)
        assert buffer.refresh()
        assert sorted(rows_of(buffer)) == sorted(life.window())
        assert buffer.stats()["remote"]["ahead_shards"] == 0
        assert not list((tmp_path / "m").iterdir())


def test_several_readers_share_what_is_read_ahead(life: Life, remote: SimulatedObjects, tmp_path: pathlib.Path) -> None:
    first, second = FaultyObjects(remote), FaultyObjects(remote)
    with reader(first, tmp_path / "m") as one, reader(second, tmp_path / "m") as other:
        rows_of(one, rows_in(one, *range(SHARDS)))
        join(one)
        asked = len(second.requests)
        assert rows_of(other, rows_in(other, *range(SHARDS))) == rows_of(one, rows_in(one, *range(SHARDS)))
        assert len(second.requests) == asked

        def read(buffer: dr.ReplayBuffer) -> None:
            for _ in range(20):
                rows_of(buffer, buffer.sample(8).index)

        together(*[functools.partial(read, buffer) for buffer in (one, other, one, other)])


@pytest.mark.parametrize("fault", ["refused", "cut", "lost"])
def test_what_fails_ahead_is_counted_and_breaks_no_batch(
    fault: Fault, life: Life, remote: SimulatedObjects, tmp_path: pathlib.Path
) -> None:
    objects = FaultyObjects(remote)
    with reader(objects, tmp_path / "m", cache_bytes=0) as buffer:
        objects.decide = lambda index, request: fault if is_whole(request) else None
        rows_of(buffer, rows_in(buffer, 1, 4))
        join(buffer)
        told = buffer.stats()["remote"]
        assert (told["ahead_shards"], told["failures"]) == (0, 2)
        assert "a fault that a test asked for" in told["error"] or "instead of" in told["error"]
        assert rows_of(buffer, rows_in(buffer, 1, 4)) == [life.rows[shard * SHARD_ROWS + 4] for shard in (1, 4)]
        join(buffer)
        objects.heal()
        rows_of(buffer, rows_in(buffer, 1, 4))
        join(buffer)
        assert buffer.stats()["remote"]["ahead_shards"] == 2


@pytest.mark.parametrize("fault", ["refused", "cut", "lost"])
def test_a_failed_part_is_an_error_of_one_batch_alone(
    fault: Fault, life: Life, remote: SimulatedObjects, tmp_path: pathlib.Path
) -> None:
    objects = FaultyObjects(remote)
    with reader(objects, tmp_path / "m") as buffer:
        ids = rows_in(buffer, 3)
        objects.decide = lambda index, request: fault if SHARD.match(request.key) else None
        with pytest.raises(RemoteError):
            rows_of(buffer, ids)
        join(buffer)
        objects.heal()
        assert rows_of(buffer, ids) == [life.rows[3 * SHARD_ROWS + 4]]
    if fault == "cut":  # once is not enough: it is asked for again
        objects.decide = lambda index, request: fault if request.span is not None and index < 1 else None
        with reader(remote, tmp_path / "m2") as buffer:
            assert rows_of(buffer, rows_in(buffer, 3)) == [life.rows[3 * SHARD_ROWS + 4]]


def test_a_damaged_part_is_named_and_read_again(life: Life, remote: SimulatedObjects, tmp_path: pathlib.Path) -> None:
    key = next(key for key in remote.data if re.match(r"streams/[^/]+/obs/c\.2\.", key))
    right = remote.data[key]
    with reader(remote, tmp_path / "m") as buffer:
        remote.data[key] = bytes(byte ^ 255 for byte in right)
        ids = rows_in(buffer, 2)
        with pytest.raises(CorruptionError, match=r"s3://simulated/a\.replay/streams/0/obs/c\.2") as caught:
            rows_of(buffer, ids)
        assert caught.value.offset is not None
        join(buffer)
        remote.data[key] = right
        buffer.refresh()
        assert rows_of(buffer, ids) == [life.rows[2 * SHARD_ROWS + 4]]


def test_parts_of_a_shard_that_grew_or_was_taken_back_meanwhile(tmp_path: pathlib.Path) -> None:
    life, objects = pushed(tmp_path / "b", 40, "c", 3, capacity=SHARD_ROWS * SHARDS)
    with reader(objects, tmp_path / "m") as buffer:
        before = life.window()[:-1]  # what comes after the last row, a reader of the shard as it was does not have
        life.add(4, to=objects)
        ids = buffer.items()
        for which in range(len(before)):
            assert rows_of(buffer, ids[which : which + 1]) == before[which : which + 1]
    with reader(objects, tmp_path / "m2") as buffer:
        before = life.window()
        life.go_back("c")
        life.add(5, to=objects)
        for _ in range(10):
            seen = set(rows_of(buffer, buffer.sample(8).index))
            assert seen <= set(before) or seen <= set(life.window())
        buffer.refresh()
        assert sorted(rows_of(buffer)) == sorted(life.window())


def test_a_part_that_was_taken_back_is_no_network_error(tmp_path: pathlib.Path) -> None:
    life, objects = pushed(tmp_path / "b", 2, "c", 2 * SHARD_ROWS, capacity=SHARD_ROWS * SHARDS)
    with reader(objects, tmp_path / "m") as buffer:
        ids = rows_in(buffer, 0) + 8
        life.go_back("c")
        life.add(1, to=objects)
        with pytest.raises(InputError, match="names no transition"):  # after a look at what is there now
            buffer.get(ids)
        assert sorted(rows_of(buffer)) == sorted(life.window())


def test_a_shard_that_grew_is_downloaded_once_and_listed_once(tmp_path: pathlib.Path) -> None:
    life, inner = pushed(tmp_path / "b", 2 * SHARD_ROWS + 12, capacity=SHARD_ROWS * SHARDS)
    objects = FaultyObjects(inner)
    with reader(objects, tmp_path / "m", cache_bytes=0) as buffer:
        ids = rows_in(buffer, 2)
        for column in buffer.engine.streams.all[0].disk.columns.values():
            column.close_files()
        for copy in (tmp_path / "m").glob("*@*"):
            copy.unlink()
        life.add(2)
        life.push(inner)
        objects.heal()
        for _ in range(5):
            assert rows_of(buffer, ids) == [life.rows[2 * SHARD_ROWS + 4]]
            join(buffer)
        assert shards_of(objects.requests, whole=True) == [2]
        asked = len(objects.requests)
        rows_of(buffer, ids)
        assert len(objects.requests) == asked


def test_of_a_shard_or_tail_that_grew_the_new_bytes_are_downloaded(tmp_path: pathlib.Path) -> None:
    life, inner = pushed(tmp_path / "b", 2 * SHARD_ROWS + 8, "c", capacity=SHARD_ROWS * SHARDS)
    objects, (shard,), tail = FaultyObjects(inner), [key for key in inner.data if "/obs/c.2." in key], TAIL
    with reader(objects, tmp_path / "m") as buffer:
        for count, grown in ((2, [shard, tail]), (1, [tail])):
            sizes = {key: len(inner.data[key]) for key in (shard, tail)}
            life.add(count, to=inner)
            objects.heal()
            buffer.refresh()
            for key, size in sizes.items():
                spans = [one.span for one in objects.requests if one.name == "get" and one.key == key]
                assert spans == [(size, len(inner.data[key]))] * (key in grown)
            assert sorted(rows_of(buffer)) == sorted(life.window())
        life.go_back("c")
        life.add(4, to=inner)
        buffer.refresh()
        assert sorted(rows_of(buffer)) == sorted(life.window())


class SlowPieces:
    """Objects whose shards come in two pieces; the second of a whole one waits."""

    def __init__(self, inner: SimulatedObjects) -> None:
        self.inner = inner
        self.url = inner.url
        self.began, self.go_on = threading.Event(), threading.Event()
        self.slow = False
        self.whole = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def get(self, key: str, span: tuple[int, int] | None = None) -> tuple[Object, Iterable[bytes]]:
        found, pieces = self.inner.get(key, span)
        if not self.slow or span is not None or not SHARD.match(key):
            return found, pieces
        self.whole += 1

        def slow() -> Iterator[bytes]:
            first, second = pieces
            yield first
            self.began.set()
            assert self.go_on.wait(PATIENCE)
            yield second

        return found, slow()


@pytest.mark.parametrize("begun_by", ["a batch", "a shuffled pass"])
def test_close_calls_off_what_is_under_way(
    begun_by: str, remote: SimulatedObjects, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "STOP_SECONDS", 0.0)
    monkeypatch.setattr(prefetcher, "MOST_SHARDS", 1)
    objects = SlowPieces(remote)
    buffer = reader(objects, tmp_path / "m")  # type: ignore[arg-type]
    objects.slow = True
    store = files_of(buffer)
    if begun_by == "a batch":
        rows_of(buffer, rows_in(buffer, 1, 2, 3))
    else:
        for shard in range(SHARDS - 1):  # as a round does
            store.open(f"{world.URL}/streams/0/obs/c.{shard}.0.0").begin()
    assert objects.began.wait(PATIENCE)
    begun = store.shards.downloads.under_way()
    before = {path.name for path in (tmp_path / "m").glob("*@*")}
    buffer.close()  # although the network is silent
    objects.go_on.set()
    for download in begun:
        download.wait(PATIENCE)
    assert begun_by != "a batch" or objects.whole == 1
    assert {path.name for path in (tmp_path / "m").iterdir()} == before
    assert store.stats()["ahead_shards"] == store.stats()["failures"] == 0


def test_close_waits_for_what_is_under_way(remote: SimulatedObjects, tmp_path: pathlib.Path) -> None:
    for number in range(effort.examples(30, "closings beside what is read ahead", least=5)):
        with reader(remote, tmp_path / f"m{number}") as buffer:
            rows_of(buffer, rows_in(buffer, *range(SHARDS)))
            found = files_of(buffer).shards
        assert not found.downloads.under_way()
        assert not list((tmp_path / f"m{number}").glob("*.tmp-*"))


def test_a_forked_process_has_the_copies_and_closes(
    life: Life, remote: SimulatedObjects, tmp_path: pathlib.Path
) -> None:
    gate = Gate(remote, lambda request: is_whole(request) and "/c.0." not in request.key)
    with reader(gate.objects, tmp_path / "m", cache_bytes=0) as buffer:
        gate.shut()
        copied, other = rows_in(buffer, 0), rows_in(buffer, 1)
        rows_of(buffer, copied)
        join(buffer)
        rows_of(buffer, other)
        gate.wait(1)  # a thread is in the midst of reading ahead

        def in_child() -> None:
            assert rows_of(buffer, copied) == [life.rows[4]]
            with pytest.raises(RemoteError):
                rows_of(buffer, rows_in(buffer, 1))
            assert buffer.stats()["remote"]["ahead_shards"] == 1
            buffer.close()

        said = forked(in_child)
        gate.open()
        assert said is None
        assert rows_of(buffer, other) == [life.rows[SHARD_ROWS + 4]]


@pytest.mark.long
def test_interrupts_of_a_batch_in_parts_leave_the_next_one_right(
    life: Life, remote: SimulatedObjects, tmp_path: pathlib.Path
) -> None:
    interrupts = Interrupts(within=[f"diskreplay.{room}" for room in ("buffers", "reading", "remote", "storage")])
    tried = effort.places(120, "interrupts of reading parts of a remote store", least=12)
    for number in range(tried):
        with reader(remote, tmp_path / f"m{number}") as buffer:
            ids = rows_in(buffer, *range(SHARDS))
            interrupts.interrupt(number * 8 * (120 // tried), lambda: rows_of(buffer, ids))  # noqa: B023
            assert rows_of(buffer, ids) == [life.rows[shard * SHARD_ROWS + 4] for shard in range(SHARDS)], number


def test_a_loader_downloads_the_next_batches_meanwhile(
    life: Life, remote: SimulatedObjects, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShardPrefetcher, "note", lambda *_: None)  # so that each batch asks for what it needs
    gate = Gate(remote, lambda request: request.span is not None)
    with reader(gate.objects, tmp_path / "m", seed=3) as buffer:
        gate.shut()
        with buffer.loader(1, prefetch=3) as batches:
            gate.wait(4)  # one after another, the first would be the only one
            gate.open()
            seen = [rows_of(buffer, next(batches).index) for _ in range(12)]
    with reader(remote, tmp_path / "m2", seed=3) as buffer:
        assert seen == [rows_of(buffer, buffer.sample(1).index) for _ in range(12)]
    assert {row for rows in seen for row in rows} <= set(life.window())


def test_a_loader_s_error_of_the_network_ends_it(remote: SimulatedObjects, tmp_path: pathlib.Path) -> None:
    objects = FaultyObjects(remote)
    with reader(objects, tmp_path / "m") as buffer:
        objects.decide = lambda index, request: "refused" if SHARD.match(request.key) else None
        with buffer.loader(4) as batches:
            with pytest.raises(RemoteError):
                next(batches)
            with pytest.raises(StopIteration):
                next(batches)
        objects.heal()
        with buffer.loader(4) as batches:
            rows_of(buffer, next(batches).index)


def test_a_pass_downloads_the_shards_of_its_first_round_at_once(
    life: Life, remote: SimulatedObjects, tmp_path: pathlib.Path
) -> None:
    gate = Gate(remote, is_whole)
    with reader(gate.objects, tmp_path / "m") as buffer:
        gate.shut()
        found: list[world.Rows] = []
        with beside(lambda: found.extend(rows_of(buffer, b.index) for b in buffer.shuffled(8))):
            # The last is there since the store was opened; one after another, the first would be the only one.
            gate.wait(SHARDS - 1)
            gate.open()
        assert sorted(row for rows in found for row in rows) == sorted(life.window())
        assert not shards_of(gate.objects.requests, whole=False)


def test_columns_of_one_batch_are_asked_for_at_once(tmp_path: pathlib.Path) -> None:
    obs_space = spaces.Dict({name: spaces.Box(0, 255, (world.WIDTH,), np.uint8) for name in "abc"})
    path, objects = str(tmp_path / "d"), SimulatedObjects()
    layout = {f"obs/{name}": SHARD_ROWS for name in "abc"}
    with dr.ReplayBuffer.create(
        path, obs_space, SPACES[1], capacity=64, shard_rows=layout, chunk_rows=dict.fromkeys(layout, 2)
    ) as buffer:
        rng = np.random.default_rng(0)
        steps = [{n: rng.integers(0, 256, world.WIDTH, np.uint8) for n in "abc"} for _ in range(65)]
        for before, after in itertools.pairwise(steps):
            buffer.add(before, 0, 0.0, after, False, False)
    Push(Store(path, LocalFiles()), "0", objects).run()
    gate = Gate(objects, lambda request: request.span is not None)
    with reader(gate.objects, tmp_path / "m") as buffer:
        gate.shut()
        found: list[dr.Batch] = []
        with beside(lambda: found.append(buffer.get(buffer.items()[[20]]))):
            gate.wait(3)  # one after another, the first would be the only one
            gate.open()
        for name in "abc":
            assert np.array_equal(found[0].obs[name][0], steps[20][name])


def test_spans_that_are_close_are_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "REQUEST_BYTES", 10)
    assert shards.joined([(50, 60), (0, 5), (15, 20), (16, 18), (31, 40)]) == [(0, 20), (31, 60)]
    assert shards.cost([(0, 20), (31, 60)]) == 20 + 29 + 20
