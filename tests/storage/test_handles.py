"""One pool of open shards: bounded, shared by all, given back by close, and never another row for it."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import itertools
import pathlib
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from helpers import lives
from helpers.crashes import uncollected
from helpers.effort import examples, stride
from helpers.programs import printed
from helpers.testing import FaultyFiles, SimulatedDisk
from helpers.threads import together

import diskreplay as dr
from diskreplay.errors import EvictedError, InputError, NotEnoughDataError, ReadFailedError, WriteFailedError
from diskreplay.reading import compiled, gather
from diskreplay.reading.open_stream import OpenStream
from diskreplay.storage import column, handles, local_files
from diskreplay.storage.handles import Handles, Pool
from diskreplay.storage.stream import StreamReader

FD = pathlib.Path("/proc/self/fd")


class Open:
    """A file that only knows whether it is open."""

    count = 0

    def __init__(self) -> None:
        Open.count += 1

    def __del__(self) -> None:
        Open.count -= 1

    def nothing(self, *_: object) -> Any:
        raise AssertionError("nobody reads it")

    pread = pwrite = truncate = sync = size = nothing


@contextlib.contextmanager
def pool_of(files: int) -> Iterator[Pool]:
    """A pool of the process that may keep so many files open, and keeps none yet."""
    with mock.patch.object(handles, "POOL", Pool(lambda: files)) as pool:
        yield pool


def held_open(path: str) -> list[str]:
    """What this process has open below a directory."""
    found = []
    for one in FD.iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            found.append(str(one.readlink()))
    return [name for name in found if name.startswith(path)]


def filled(path: str, rows: int = 40, **options: Any) -> None:
    with lives.create(path, num_envs=1, rows=rows, **options) as buffer:
        lives.add(buffer, rows, commit_every=8)


def reader(path: str, **options: Any) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.open(path, mode="r", **{"cache_bytes": 0} | options)


# The pool


def put(of: Handles, shard: int) -> None:
    """Opens a file."""
    of.keep({shard: Open()})


def test_the_least_recently_used_are_closed() -> None:
    with pool_of(3) as pool:
        mine = Handles()
        for shard in range(5):
            pool.make_room(1)
            put(mine, shard)
            assert mine.get(0) is not None  # used all the time
            assert Open.count == len(pool) == min(shard + 1, 3)
        assert [shard for shard in range(5) if mine.get(shard)] == [0, 3, 4]
        mine.drop_below(4)
        assert (Open.count, len(pool)) == (1, 1)
        mine.close()
        assert (Open.count, len(pool)) == (0, 0)


def test_a_file_that_somebody_holds_stays_open() -> None:
    with pool_of(2) as pool:
        mine = Handles()
        put(mine, 0)
        put(mine, 1)
        held = mine.get(0)
        pool.make_room(2)
        assert (Open.count, len(pool)) == (1, 0)
        assert mine.get(0) is None  # the next reader opens it again
        put(mine, 0)
        mine.close()
        assert Open.count == 1
        del held
        assert Open.count == 0


@pytest.mark.long
def test_owners_that_go_take_their_files_with_them() -> None:
    with uncollected(), pool_of(4) as pool:
        for _ in range(20):
            owner = Handles()
            pool.make_room(1)
            put(owner, 0)
            assert Open.count == len(pool) == 1
            del owner
            assert Open.count == len(pool) == 0


def test_half_is_given_up_where_the_system_has_no_more() -> None:
    with pool_of(100) as pool:
        mine = Handles()
        for shard in range(8):
            put(mine, shard)
        refusals = iter([errno.EMFILE, errno.ENFILE])

        def opening() -> str:
            for number in refusals:
                raise OSError(number, "")
            return "opened"

        assert local_files.with_room(opening) == "opened"
        assert Open.count == 2
        assert [shard for shard in range(8) if mine.get(shard)] == [6, 7]
        held = mine.get(6)
        with pytest.raises(OSError, match="again"):
            local_files.with_room(lambda: (_ for _ in ()).throw(OSError(errno.EMFILE, "and again")))
        assert (Open.count, len(pool)) == (1, 0)
        assert held is not None
        for number in (errno.EACCES, errno.ENOENT):
            with pytest.raises(OSError, match="no"):
                local_files.with_room(lambda number=number: (_ for _ in ()).throw(OSError(number, "no")))
        assert Open.count == 1
        mine.close()


@pytest.mark.parametrize(("soft", "files"), [(1024, 512), (256, 128), (40, 20), (8, 16), (1 << 20, 4096), (-1, 4096)])
def test_the_limit_is_that_of_the_system(soft: int, files: int) -> None:
    with mock.patch("resource.getrlimit", return_value=(soft, 1 << 20)):
        assert handles.limit() == files


# Under the limits of the system

NINE_STREAMS = """
import resource, sys
from helpers import lives
import diskreplay as dr

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
with dr.ReplayBuffer.open(sys.argv[1], mode="r", cache_bytes=0) as buffer:
    assert lives.check_all(buffer) == 9 * 262
    for _ in range(3):
        lives.check(buffer.sample(1024), dict.fromkeys(range(9), 1))
"""

ONE_BATCH = """
import os, resource, sys
from helpers import lives
import diskreplay as dr
from diskreplay.reading import compiled, gather
from diskreplay.storage import column

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
with dr.ReplayBuffer.open(sys.argv[1], mode="r", cache_bytes=0) as buffer:
    shards = set()
    opened = column.ColumnReader.open_shards
    def noted(self, wanted, **given):
        if self.column.name == "obs":
            shards.update(wanted)
        return opened(self, wanted, **given)
    column.ColumnReader.open_shards = noted
    lives.check(buffer.sample(2048), {0: 1})
    assert len(shards) > 1000, len(shards)
    assert 100 < len(os.listdir("/proc/self/fd")) < 160
assert len(os.listdir("/proc/self/fd")) < 20
"""

SMALL_LIMIT = """
import os, resource, sys
import numpy as np
from gymnasium import spaces
import diskreplay as dr

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
rng = np.random.default_rng(0)
box = spaces.Box(0, 255, (1100,), np.uint8)  # not kept in RAM
frames = rng.integers(256, size=(128, 8, 1100)).astype(np.uint8)
with dr.ReplayBuffer.create(
    sys.argv[1], spaces.Dict({str(leaf): box for leaf in range(8)}), spaces.Discrete(2), capacity=128, chunk_rows=1,
    shard_rows=2, cache_bytes=0, seed=0,
) as buffer:
    def obs(row):
        return {str(leaf): frames[row % 128, leaf] for leaf in range(8)}
    for row in range(128):
        buffer.add(obs(row), row % 2, float(row), obs(row + 1), False, False)
    buffer.commit()
    for size in (8, 16, 32, 128) * 3:  # of each column fewer files than may be held, and more
        batch = buffer.sample(size)
        rows = batch.reward.astype(int)
        for leaf in range(8):
            assert (batch.obs[str(leaf)] == frames[rows, leaf]).all()
            assert (batch.next_obs[str(leaf)] == frames[(rows + 1) % 128, leaf]).all()
"""

ELSEWHERE = """
import os, resource, sys
from helpers import lives
import diskreplay as dr
from diskreplay.errors import ReadFailedError

path = sys.argv[1]
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))

def take(taken):
    try:
        while True:
            taken.append(open("/dev/null"))
    except OSError as error:
        assert error.errno == 24
    return taken

with dr.ReplayBuffer.open(path, cache_bytes=0) as buffer:
    lives.add(buffer, 4)
    lives.check_all(buffer)
    taken = take([])  # all that the pool has not
    lives.check_all(buffer)
    buffer.commit()
    lives.check_all(buffer)
    with dr.ReplayBuffer.open(path, mode="r", cache_bytes=0) as second:
        lives.check_all(second)
    lives.check_all(buffer)
    for part in buffer.engine.streams:
        part.disk.close_files()
    take(taken)
    try:
        lives.check_all(buffer)
    except ReadFailedError as error:
        assert error.errno == 24 and "ulimit -n" in str(error), error
    else:
        raise SystemExit("no error, without any descriptor")
    taken.pop().close()
    lives.check_all(buffer)  # one will do
    for one in taken:
        one.close()
"""


@pytest.mark.long("test_threads_that_share_a_pool_of_two")
def test_nine_streams_of_131_shards(path: str) -> None:
    """Regression: each column of each stream kept 128 open."""
    lives.create(path, num_envs=1, rows=262, chunk_rows=1, shard_rows=2).close()
    for number in range(9):
        with dr.ReplayBuffer.open(path, stream=str(number), **lives.OPTIONS) as buffer:
            lives.add(buffer, 262, number, commit_every=20)
    printed(NINE_STREAMS, path, flags=("-W", "error"))


@pytest.mark.long("test_threads_that_share_a_pool_of_two")
def test_one_batch_over_two_thousand_shards(path: str) -> None:
    """Regression: a batch held every shard that it touches, and failed with "mend the disk"."""
    filled(path, 4000, chunk_rows=1, shard_rows=2)
    assert len(list(pathlib.Path(path, "streams", "0", "obs").glob("c.*"))) == 2000
    printed(ONE_BATCH, path, flags=("-W", "error"))


@pytest.mark.long
def test_five_hundred_shards_of_eight_columns_under_a_limit_of_64(path: str) -> None:
    printed(SMALL_LIMIT, path, flags=("-W", "error"))
    assert len(list(pathlib.Path(path, "streams", "0", "obs").rglob("c.*"))) >= 500


@pytest.mark.long
def test_descriptors_that_the_program_needs(path: str) -> None:
    """What the pool keeps is given up for whatever the store needs; only then there is an error."""
    filled(path, chunk_rows=2, shard_rows=2)
    printed(ELSEWHERE, path, flags=("-W", "error"))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_batch_is_read_in_parts_where_no_descriptor_is_left(number: int) -> None:
    """Also of a file system that is none of the system's; the first shard of a part cannot do without."""
    files = FaultyFiles(SimulatedDisk())
    with lives.create("/a.replay", num_envs=1, files=files) as buffer:
        lives.add(buffer, 40, commit_every=8)
    with pool_of(100), reader("/a.replay", files=files) as buffer:
        stream = next(iter(buffer.engine.streams)).disk
        frames = "/a.replay/streams/0/obs/c."

        def refuse(places: range) -> None:
            """Refuses to open shards of frames at these places, counted from now; none is open."""
            stream.close_files()
            opened = itertools.count()
            files.heal()
            files.decide = lambda it: (
                number if it.name == "open_read" and it.path.startswith(frames) and next(opened) in places else None
            )

        for place in range(1, 5):
            refuse(range(place, place + 1))
            lives.check_all(buffer)
            opened = [it.path for it in files.operations if it.name == "open_read" and it.path.startswith(frames)]
            assert len(set(opened)) == 5
            assert len(opened) == 6 + (place > 1)  # what was refused, and what gave way to the record
        refuse(range(1 << 40))
        with pytest.raises(ReadFailedError, match="ulimit"):
            lives.check_all(buffer)
        files.heal()
        lives.check_all(buffer)


# What close gives back


@pytest.mark.long
@pytest.mark.skipif(not FD.exists(), reason="this system does not tell which files are open")
def test_close_closes_everything_and_so_does_dropping_a_reader(path: str) -> None:
    """Regression: files were open until the collector ran, so that the file system could not be unmounted."""
    filled(path)
    with uncollected():
        assert held_open(path) == []
        for options in ({"mode": "r"}, {}, {"stream": "other"}):
            buffer = dr.ReplayBuffer.open(path, cache_bytes=0, **options)
            buffer.sample(30)
            buffer.refresh()
            ahead = buffer.shuffled(7)
            next(ahead)
            assert len(held_open(path)) > 4
            buffer.close()
            assert held_open(path) == []
            assert len(handles.POOL) == 0
        buffer = reader(path)
        buffer.sample(30)
        assert held_open(path)
        del buffer, ahead  # regression: a stream and its columns were a reference cycle
        assert held_open(path) == []


@pytest.mark.long
@pytest.mark.skipif(not FD.exists(), reason="this system does not tell which files are open")
def test_close_closes_everything_after_an_error(path: str) -> None:
    filled(path)
    files = FaultyFiles()
    buffer = dr.ReplayBuffer.open(path, files=files, **lives.OPTIONS)
    lives.check_all(buffer)
    lives.add(buffer, 1)
    files.fail_at(3, errno.EIO)
    with pytest.raises(WriteFailedError):
        buffer.commit()
    files.fail_at(0, errno.EIO, names=["pread"])
    with pytest.raises(ReadFailedError):
        buffer.sample(30)
    files.heal()
    lives.check_all(buffer)
    with pytest.raises(WriteFailedError, match="; 1 rows since the last commit are lost") as told:
        buffer.close()
    del told
    gc.collect()
    assert held_open(path) == []


@pytest.mark.long
@pytest.mark.skipif(not FD.exists(), reason="this system does not tell which files are open")
@pytest.mark.parametrize("rows", [20, 500])
def test_a_reader_that_goes_on_gives_back_what_was_evicted(path: str, rows: int) -> None:
    """Regression: the space of evicted shards was not free as long as a reader had them open."""
    filled(path)
    with reader(path) as buffer:
        lives.check_all(buffer)
        with dr.ReplayBuffer.open(path, **lives.OPTIONS) as writer:
            lives.check_all(writer)
            lives.add(writer, rows, commit_every=8)
            assert [name for name in held_open(path) if name.endswith(" (deleted)")]
            buffer.refresh()
            assert not [name for name in held_open(path) if name.endswith(" (deleted)")]
        lives.check_all(buffer)


# Beside writers, with hardly a file


GENERATIONS = 64


def numbered(row: int, generation: int) -> dict[str, Any]:
    """A row whose frames say when it was written, as its column ``value`` does."""
    return lives.step(generation, row, 1) | {"value": np.float32(generation)}


def check_numbered(batch: dr.Batch) -> None:
    """The frames of each row are of the number that its index names, written when the row itself was."""
    row = batch.index & ((1 << lives.ROW_BITS) - 1)
    generation = batch.extra["value"].astype(np.int64)
    np.testing.assert_array_equal(batch.reward, row)
    np.testing.assert_array_equal(batch.action, (row + generation) % 5)
    np.testing.assert_array_equal(batch.obs[:, -1], lives.frames(generation, row, 0))


class Others:
    """What another process may do with a store at any moment: adds and evicts, goes back."""

    def __init__(self, path: str, seed: int) -> None:
        self.path = path
        self.generation = 0
        self.done: list[str] = []
        self._rng = random.Random(seed)
        self._busy = False
        with lives.create(path, num_envs=1, rows=40) as buffer:
            self._write(buffer, 50)
            buffer.checkpoint("back")

    def _write(self, buffer: dr.ReplayBuffer, rows: int) -> None:
        self.generation = (self.generation + 1) % GENERATIONS
        first = buffer.stats()["streams"]["0"]["end"]
        for row in range(first, first + rows):
            buffer.add(**numbered(row, self.generation))
            if row % 3 == 0:
                buffer.commit()

    def turn(self) -> None:
        """The next thing."""
        if self._busy:
            return
        self._busy = True
        try:
            what = ("add", "go back")[len(self.done) % 2]
            self.done.append(what)
            if what == "add":
                with dr.ReplayBuffer.open(self.path, **lives.OPTIONS) as buffer:
                    self._write(buffer, self._rng.randrange(1, 30))
            else:
                with dr.ReplayBuffer.open(self.path, checkpoint="back", **lives.OPTIONS) as buffer:
                    self._write(buffer, self._rng.randrange(5, 20))
        finally:
            self._busy = False


@pytest.mark.long
@pytest.mark.parametrize("files", [1, 2, 5, 100])
@pytest.mark.parametrize("seed", range(examples(2)))
@pytest.mark.parametrize("way", ["Python", "compiled"])
def test_a_reader_beside_everything(path: str, files: int, seed: int, way: str) -> None:
    """Something happens between any two shards that are opened, and between the plan of a batch and its reading."""
    others = Others(path, seed)
    batches = 0
    with (
        mock.patch.object(compiled, "CALLS", compiled.CALLS if way == "compiled" else None),
        pool_of(files) as pool,
        reader(path, cache_bytes=(0, 1 << 14)[seed % 2]) as buffer,
    ):
        opening, running = column.ColumnReader._open, gather.run
        chance = random.Random(seed)
        turns = 0

        def before(call: Callable[..., Any]) -> Callable[..., Any]:
            def called(*arguments: Any, **options: Any) -> Any:
                nonlocal turns
                if turns < 3 and chance.random() < 0.2:
                    turns += 1
                    others.turn()
                return call(*arguments, **options)

            return called

        with (
            mock.patch.object(column.ColumnReader, "_open", before(opening)),
            mock.patch.object(gather, "run", before(running)),
        ):
            for _ in range(25):
                turns = 0  # that follow each other for ever could keep up with any reader
                batch = buffer.sample(24)
                check_numbered(batch)
                batches += 1
                with contextlib.suppress(EvictedError, InputError):  # it went back to before them
                    check_numbered(buffer.get(batch.index))
                assert len(pool) <= files + 1
                if chance.random() < 0.2:
                    turns = 0
                    others.turn()
                    buffer.refresh()
    assert batches == 25
    assert len(others.done) > 6


@pytest.mark.long
@pytest.mark.parametrize(
    ("use", "before"), [("open", 0), ("open", 1), ("open", 2), ("refresh", 0), ("refresh", 2)]
)  # fmt: skip
def test_a_stream_that_changes_while_its_index_is_read(path: str, use: str, before: int) -> None:
    """Regression: shards that were opened a second time, for their rows, were another timeline's, or gone."""
    others = Others(path, 0)
    for _ in range(before):
        others.turn()
    changes = iter([0])

    def catch_up(part: OpenStream) -> None:
        if isinstance(part.disk, StreamReader):
            for _ in changes:
                others.turn()
        caught_up(part)

    caught_up = OpenStream.catch_up
    with pool_of(1):
        if use == "refresh":
            with reader(path) as buffer:
                others.turn()
                with mock.patch.object(OpenStream, "catch_up", catch_up):
                    buffer.refresh()
                check_numbered(buffer.sample(20))
        else:
            with mock.patch.object(OpenStream, "catch_up", catch_up), reader(path) as buffer:
                check_numbered(buffer.sample(20))
    assert next(changes, None) is None
    assert len(others.done) == before + 1 + (use == "refresh")


@pytest.mark.long
@pytest.mark.parametrize("files", [2, 100])
def test_threads_that_share_a_pool_of_two(path: str, files: int) -> None:
    """One adds, commits and evicts, three sample, one reads a second store."""
    less = stride(4, "turns of threads")
    turns = 40 // less
    other = f"{path}.other"
    filled(other)
    buffer = lives.create(path, cache_bytes=0)
    batches = []

    def repeat(work: Callable[[], None], turns: int) -> None:
        for _ in range(turns):
            work()

    rows = iter(range(1 << 40))

    def write() -> None:
        for _ in range(5):
            buffer.add(**lives.step(0, next(rows), 2))
        buffer.commit()

    def sample() -> None:
        with contextlib.suppress(NotEnoughDataError):
            lives.check(buffer.sample(40), {0: 2})
            batches.append(1)

    def elsewhere() -> None:
        with reader(other) as second:
            lives.check_all(second)

    with pool_of(files) as pool:
        for _ in range(10):
            write()
        jobs = (write, 60 // less), (sample, turns), (sample, turns), (sample, turns), (elsewhere, 10 // less)
        together(*(functools.partial(repeat, *job) for job in jobs))
        assert len(batches) == 3 * turns
        lives.check_all(buffer)
        buffer.close()
        assert len(pool) == 0


# Interrupts


class Interrupt:
    """Raises KeyboardInterrupt at a line of the modules that keep files, counted from 0."""

    modules = (handles.__file__, column.__file__, gather.__file__)

    def __init__(self, at: int) -> None:
        self.at = at
        self.lines = 0

    def __call__(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in self.modules:
            return None
        if event == "line":
            self.lines += 1
            if self.lines > self.at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


@pytest.mark.long
def test_an_interrupt_at_any_line(path: str) -> None:
    filled(path)
    step = stride(23, "lines that are interrupted")
    with pool_of(3) as pool, reader(path) as buffer:
        for at in range(0, 1 << 30, step):
            for one in next(iter(buffer.engine.streams)).disk.columns.values():
                one.close_files()
            before = sys.gettrace()
            sys.settrace(Interrupt(at + at // step % step))
            try:
                buffer.sample(20)
            except KeyboardInterrupt:
                pass
            else:
                break
            finally:
                sys.settrace(before)
            assert lives.check_all(buffer) == 40
            assert len(pool) <= 3 + 1
        assert at > 200
        buffer.close()
        assert len(pool) == 0
        assert held_open(path) == []
