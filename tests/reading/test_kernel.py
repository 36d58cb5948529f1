"""Compiled reads: what Python would have read, and the same errors, whatever the bytes are."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import pathlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import google_crc32c
import numpy as np
import pytest
from gymnasium import spaces
from helpers.configs import CONFIGS, WIDE, Config
from helpers.effort import examples
from helpers.forking import forked
from helpers.fuzzing import fuzzed
from helpers.model import Leaf
from helpers.recording import recorded_in, recorded_store, reopen
from helpers.testing import FaultyFiles, SimulatedDisk
from helpers.threads import together
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay as dr
from diskreplay.errors import CorruptionError, ReadFailedError
from diskreplay.native import core
from diskreplay.reading import compiled, gather, scratch
from diskreplay.schema.columns import Codec
from diskreplay.storage import chunks
from diskreplay.storage.local_files import LocalFile, LocalFiles

CODECS = [Codec("lz4hc", 4), Codec("lz4", 5), Codec("zstd", 1), Codec("none")]


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    with mock.patch.object(compiled, "reader", return_value=None):
        yield


@contextlib.contextmanager
def in_kernel(wholly: bool = True) -> Iterator[list[int]]:
    """All is read by the kernel; the list yielded grows by the pieces of each of its calls, as far as they went."""
    counts: list[int] = []
    original = compiled.reader

    def reader(*arguments: Any) -> Any:
        read = original(*arguments)
        if read is None:
            assert not wholly, "left to Python"
            return None

        def counted(begin: int, end: int) -> int:
            done = read(begin, end)
            counts.append(done - begin)
            assert done == end or not wholly, f"of {end - begin} pieces {done - begin} were read"
            return done

        return counted

    with mock.patch.object(compiled, "reader", reader):
        yield counts


def drawn(buffer: dr.ReplayBuffer) -> list[bytes]:
    """Batches, as bytes."""
    parts: list[bytes] = []
    for size in (1, 2, min(7, len(buffer)), len(buffer) // 2):
        buffer.sample(size).map(lambda array: parts.append(np.ascontiguousarray(array).tobytes()))
    return parts


def both(config: Config, path: str, **options: Any) -> list[int]:
    """Draws the same both ways, and compares; how many pieces each call of the kernel took."""
    with in_python(), reopen(config, path, mode="r", seed=3, cache_bytes=0, **options) as buffer:
        expected = drawn(buffer)
    with in_kernel() as counts, reopen(config, path, mode="r", seed=3, cache_bytes=0, **options) as buffer:
        assert drawn(buffer) == expected
    return counts


# The same rows


@pytest.mark.long(quick=12)
@pytest.mark.parametrize("config", CONFIGS + WIDE, ids=repr)
def test_as_python(path: str, config: Config) -> None:
    with recorded_in(config, path, 70, special=0.3) as (buffer, _):
        assert len(buffer) > 2
        large = bool(buffer.engine.streams.shown.large_columns())
    assert bool(sum(both(config, path))) == large


@pytest.mark.long(quick=8)
@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("chunk_rows", [1, 4, 16])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_as_python_with_any_codec(path: str, codec: Codec, chunk_rows: int, num_envs: int) -> None:
    config = Config(
        "camera", Leaf((6, 7), np.int16), num_envs, frame_stack=3, capacity=90, chunk_rows=chunk_rows,
        shard_rows=2 * chunk_rows, codec=codec,
    )  # fmt: skip
    recorded_store(config, path, 61)
    assert sum(both(config, path)) > 0
    assert sum(both(config, path, view=dr.Sequence(8))) > 0


@given(
    codec=st.sampled_from(CODECS),
    dtype=st.sampled_from(["uint8", "bool", "int16", "float32", "complex64", "float64"]),
    chunk_rows=st.integers(1, 9),
    width=st.integers(1, 400),
    seed=st.integers(0, 1 << 32),
    told=st.booleans(),
    twice=st.booleans(),
)
@settings(max_examples=examples(150), deadline=None)
def test_any_pieces(
    tmp_path_factory: pytest.TempPathFactory, codec: Codec, dtype: str, chunk_rows: int, width: int, seed: int,
    told: bool, twice: bool,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2 + rng.integers(250), (5, chunk_rows, width)).astype(dtype)
    if rng.random() < 0.7:
        values[:, :, width // 3 :] = 0
    encoded = [chunks.encode(codec, each) for each in values]
    ends = np.cumsum([len(data) for data in encoded])
    count, steps = int(rng.integers(1, 30)), int(rng.integers(1 + twice, 12))
    row, step = rng.integers(chunk_rows, size=count), rng.integers(steps, size=count)
    rows = 1 + rng.integers(np.minimum(chunk_rows - row, steps - step))
    chunk = np.sort(rng.integers(5, size=count))
    sizes = np.array([len(data) for data in encoded])
    places = chunk % 2, (ends - sizes)[chunk], sizes[chunk]
    none = 0 * chunk
    pieces = np.stack(
        [rng.permutation(count), step, row, rows, chunk, none, none, *places, none + 1, none, none], axis=1
    )
    expected = np.full((count, steps, width), 9).astype(dtype)
    frames = steps - twice
    out, following = expected[:, :frames].copy(), expected[:, 1:].copy() if twice else None
    for place, at, first, length, number, *_ in pieces.tolist():
        expected[place, at : at + length] = values[number, first : first + length]
    file = tmp_path_factory.getbasetemp() / "pieces"
    file.write_bytes(b"".join(encoded))
    calls = compiled.calls({**compiled.FOUND, "preadv2": 0} if told else compiled.FOUND)
    room, given = np.empty((2, values[0].nbytes + 64), np.uint8), [out, *([following] if twice else [])]
    with file.open("rb") as one, file.open("rb") as two:
        done = core.read(
            calls, np.array([one.fileno(), two.fileno()]), pieces, 0, count, chunk_rows, width * out.itemsize,
            codec.name == "none", *room, *(array.reshape(count, -1).view(np.uint8) for array in given),
        )  # fmt: skip
    assert (done, out.tobytes()) == (count, expected[:, :frames].tobytes())
    assert not twice or following.tobytes() == expected[:, 1:].tobytes()


def test_a_header_that_blosc_refuses_is_not_read(tmp_path: pathlib.Path) -> None:
    """A frame of one block that says that its values have no bytes; its checksum is right."""
    body = bytearray(chunks.compress(Codec("lz4"), np.zeros((4, 100), np.uint8)))
    body[2:4] = 0x30, 0
    data = chunks.seal(bytes(body))
    (tmp_path / "chunk").write_bytes(data)
    pieces, room = np.array([[0, 0, 0, 4, 0, 0, 0, 0, 0, len(data), 1, 0, 0]]), np.zeros((3, 1, 464), np.uint8)
    with (tmp_path / "chunk").open("rb") as file:
        given = np.array([file.fileno()]), pieces, 0, 1, 4, 100, False, room[0, 0], room[1, 0], room[2]
        assert core.read(compiled.CALLS, *given) == 0
    with pytest.raises(chunks.DamagedError, match="Blosc cannot decode"):
        chunks.decode(Codec("lz4"), data, np.zeros((4, 100), np.uint8))


WRONG = {
    "a place below the batch": (0, -1), "a place past the batch": (0, 3), "a step below": (1, -1),
    "a step past the last": (1, 4), "a row below": (2, -1), "a row past the chunk": (2, 4), "no rows": (3, 0),
    "more rows than the chunk has": (3, 5), "rows past everything": (3, (1 << 63) - 1),
}  # fmt: skip


@pytest.mark.parametrize(("row", "value"), WRONG.values(), ids=WRONG)
def test_pieces_that_do_not_fit_are_not_read(tmp_path: pathlib.Path, row: int, value: int) -> None:
    values = np.arange(40, dtype=np.uint8).reshape(4, 10)
    data = chunks.encode(Codec(), values)
    (tmp_path / "chunk").write_bytes(data)
    pieces = np.array(
        [[0, 0, 1, 1, 0, 0, 0, 0, 0, len(data), 1, 0, 0], [1, 2, 0, 2, 1, 0, 0, 0, 0, len(data), 1, 0, 0]]
    )
    pieces[1, row] = value
    for frames in (4, 3):  # with three, there is a fourth step of the following ones
        out, following = np.zeros((2, 3, 10 * frames), np.uint8)
        given = [out, following] if frames == 3 else [out]
        with (tmp_path / "chunk").open("rb") as file:
            done = core.read(
                compiled.CALLS, np.array([file.fileno()]), pieces, 0, 2, 4, 10, False,
                np.empty(160, np.uint8), np.empty(40, np.uint8), *given,
            )  # fmt: skip
        assert done == 1
        assert out[0].tolist() == [*values[1], *[0] * (10 * frames - 10)]
        assert not out[1:].any()
        assert not following.any()


# Checksums


@pytest.mark.parametrize("by_table", [False, True])
@given(st.binary(max_size=3000))
@settings(max_examples=examples(200), deadline=None)
def test_checksums(by_table: bool, data: bytes) -> None:
    assert core.crc32c(np.frombuffer(data, np.uint8), by_table) == google_crc32c.value(data)


# Hostile bytes


@pytest.mark.long
def test_chunks_with_any_damage(tmp_path: pathlib.Path) -> None:
    ended = fuzzed("reading.chunk_fuzz", tmp_path, 20261122, examples(3000))
    assert sum(ended.values()) == examples(3000)
    assert min(ended["refused"], ended["read"]) > examples(3000) // 10
    assert min(ended["prefix"], ended["left to Python"]) > 0


def damage(path: str, kind: str) -> None:
    """Harms each shard of the observations, in place: they may be open."""
    for number, file in enumerate(sorted(pathlib.Path(path).glob("streams/*/obs/c.*"))):
        data = bytearray(file.read_bytes())
        if kind == "flipped":
            for at in range(5 + number, len(data), 97):
                data[at] ^= 4
        elif kind == "cut":
            del data[len(data) // 3 :]
        elif kind == "empty":
            data.clear()
        else:
            data[:] = b"\xff" * len(data)
        with file.open("r+b") as opened:
            opened.truncate(len(data))
            opened.write(data)


@pytest.mark.parametrize("kind", ["flipped", "cut", "empty", "overwritten"])
@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_damage_is_said_as_in_python(path: str, kind: str, codec: Codec) -> None:
    filled(path, codec=codec)
    with contextlib.ExitStack() as stack:
        said = []
        buffers = [stack.enter_context(dr.ReplayBuffer.open(path, mode="r", seed=2, cache_bytes=0)) for _ in range(2)]
        for buffer in buffers:
            buffer.sample(100)  # all of its files are open
        damage(path, kind)
        for buffer, way in zip(buffers, (in_python(), in_kernel(wholly=False)), strict=True):
            with way, pytest.raises(CorruptionError) as caught:
                buffer.sample(100)
            error = caught.value
            said.append((str(error), error.file, error.offset, error.stream, error.column, error.rows))
    assert (said[0], said[0][4]) == (said[1], "obs")


def filled(path: str, rows: int = 100, **options: Any) -> np.ndarray:
    """A store of frames; what they are."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 3, (rows + 1, 40, 40), np.uint8)
    options = {"capacity": 1000, "seed": 0, "chunk_rows": 4, "shard_rows": 16, "cache_bytes": 0, **options}
    space = spaces.Box(0, 255, (40, 40), np.uint8)
    with dr.ReplayBuffer.create(path, space, spaces.Discrete(2), **options) as buffer:
        for obs, following in itertools.pairwise(frames):
            buffer.add(obs, 0, 0.0, following, False, False)
    return frames


def check(batch: Any, frames: np.ndarray) -> None:
    np.testing.assert_array_equal(batch.obs, frames[batch.index])
    np.testing.assert_array_equal(batch.next_obs, frames[batch.index + 1])


def test_what_the_kernel_cannot_read_python_reads(path: str) -> None:
    frames = filled(path)
    with (
        mock.patch.object(LocalFile, "descriptor", return_value=1 << 20),  # of no file
        in_kernel(wholly=False) as counts,
        dr.ReplayBuffer.open(path, mode="r", seed=0, cache_bytes=0) as buffer,
    ):
        check(buffer.sample(50), frames)
    assert counts
    assert not any(counts)


@pytest.mark.own_thresholds
def test_errors_of_the_disk_are_said_as_in_python(path: str) -> None:
    filled(path)
    failing = mock.patch.object(os, "pread", side_effect=OSError(errno.EIO, "no"))
    with (
        dr.ReplayBuffer.open(path, mode="r", seed=0, cache_bytes=0) as buffer,
        mock.patch.object(LocalFile, "descriptor", return_value=1 << 20),
        in_kernel(wholly=False),
    ):
        buffer.sample(100)
        with failing, pytest.raises(ReadFailedError, match=r"reading .*obs.*failed: Input/output error"):
            buffer.sample(50)


# What it asks the system and the decoders for


@contextlib.contextmanager
def instead(name: str, function: Any) -> Iterator[None]:
    """A function of Python's is called where the core calls one of C's, with int64s."""
    arguments = {"pread": 4, "preadv2": 5, "posix_fadvise": 4, "blosc_decompress_ctx": 4}[name]
    made = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * arguments)(function)
    found = {**compiled.FOUND, name: ctypes.cast(made, ctypes.c_void_p).value or 0}
    with mock.patch.object(compiled, "FOUND", found), mock.patch.object(compiled, "CALLS", compiled.calls(found)):
        yield


@pytest.mark.own_thresholds
@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_lz4_is_decoded_without_blosc(path: str, codec: Codec) -> None:
    frames = filled(path, codec=codec)
    calls: list[int] = []
    with (
        instead("blosc_decompress_ctx", lambda *arguments: calls.append(1) or -1),
        in_kernel(wholly=False) as counts,
        dr.ReplayBuffer.open(path, mode="r", seed=0, cache_bytes=0) as buffer,
    ):
        check(buffer.sample(50), frames)
    assert (bool(calls), any(counts)) == (codec.name == "zstd", codec.name != "zstd")


@pytest.mark.own_thresholds
def test_a_cold_disk_is_told_of_all_that_follows(path: str) -> None:
    frames = filled(path)
    told: list[tuple[int, int, int]] = []
    asked: list[int] = []
    refuse_from = 0

    def fadvise(file: int, offset: int, size: int, advice: int) -> int:
        told.append((file, offset, size))
        return 0

    def preadv2(file: int, vectors: int, count: int, offset: int, flags: int) -> int:
        asked.append(offset)
        to, size = (ctypes.c_int64 * 2).from_address(vectors)
        data = os.pread(file & 0xFFFFFFFF, size, offset)
        ctypes.memmove(to, data, len(data))
        return -1 if len(asked) >= refuse_from else len(data)

    def read(refusing: int) -> None:
        nonlocal refuse_from
        refuse_from = refusing
        told.clear()
        asked.clear()
        with dr.ReplayBuffer.open(path, mode="r", seed=0, cache_bytes=0) as buffer:
            check(buffer.sample(60), frames)

    one_thread = mock.patch.object(compiled, "LEAST_PIECES", 1 << 20)
    with one_thread, instead("posix_fadvise", fadvise), instead("preadv2", preadv2), in_kernel() as counts:
        read(refusing=1000)
        chunks_read, calls = len(asked), len(counts)
        assert chunks_read > 15
        assert told == []
        for warm in (4, 0):  # of the first call's chunks; each later call finds out for itself
            read(refusing=warm + 1)
            assert len(asked) == warm + calls
            assert len(told) == len(set(told)) == chunks_read - warm


@pytest.mark.own_thresholds
@pytest.mark.parametrize("end", [False, True])
def test_a_read_that_gives_less_is_gone_on_with(path: str, end: bool) -> None:
    """As on FUSE with direct_io; where a file ends, Python says so."""
    frames = filled(path)
    asked: list[int] = []

    def preadv2(file: int, vectors: int, count: int, offset: int, flags: int) -> int:
        return -1

    def pread(file: int, to: int, size: int, offset: int) -> int:
        asked.append(size)
        data = b"" if end and len(asked) > 1 else os.pread(file & 0xFFFFFFFF, min(size, 50), offset)
        ctypes.memmove(to, data, len(data))
        return len(data)

    with (
        instead("preadv2", preadv2),
        instead("pread", pread),
        in_kernel(wholly=not end) as counts,
        dr.ReplayBuffer.open(path, mode="r", seed=0, cache_bytes=0) as buffer,
    ):
        check(buffer.sample(60), frames)
    assert any(counts) != end
    assert end or len(asked) > 60


# Where it applies


def test_other_disks_are_left_to_python() -> None:
    disk = SimulatedDisk()
    frames = filled("/a", files=disk)
    with in_kernel(wholly=False) as counts, dr.ReplayBuffer.open("/a", mode="r", files=disk, cache_bytes=0) as buffer:
        check(buffer.sample(50), frames)
    assert counts == []


def test_files_that_somebody_watches_are_left_to_python(path: str) -> None:
    files = FaultyFiles(LocalFiles())
    frames = filled(path, files=files)
    with in_kernel(wholly=False) as counts, dr.ReplayBuffer.open(path, mode="r", files=files, cache_bytes=0) as buffer:
        check(buffer.sample(50), frames)
    assert counts == []

    class Watched(LocalFile):
        __slots__ = ()

    assert Watched(path + "/zarr.json", write=False).descriptor() is None
    assert isinstance(LocalFile(path + "/zarr.json", write=False).descriptor(), int)


def test_chunks_that_the_cache_takes_in_are_decoded_whole(path: str) -> None:
    frames = filled(path)
    with in_kernel(wholly=False) as counts, dr.ReplayBuffer.open(path, mode="r", seed=0, cache_bytes=90_000) as buffer:
        for _ in range(9):
            check(buffer.sample(50), frames)
        assert 80_000 < buffer.stats()["cache_used_bytes"] <= 90_000
    assert sum(counts) > 0  # from when on it is full


def test_rows_that_no_commit_holds(path: str) -> None:
    frames = np.random.default_rng(1).integers(0, 3, (91, 40, 40), np.uint8)
    space = spaces.Box(0, 255, (40, 40), np.uint8)
    with (
        in_kernel() as counts,
        dr.ReplayBuffer.create(
            path, space, spaces.Discrete(2), capacity=80, chunk_rows=4, shard_rows=8, cache_bytes=0, seed=0,
            commit_rows=1 << 20, commit_seconds=1e9,
        ) as buffer,
    ):  # fmt: skip
        for number, (obs, following) in enumerate(itertools.pairwise(frames)):
            buffer.add(obs, 0, 0.0, following, False, False)
            if number == 50:
                buffer.commit()
            check(buffer.sample(min(20, len(buffer))), frames)
    assert sum(counts) > 100


def test_several_threads(path: str) -> None:
    frames = filled(path)
    with in_kernel() as counts, dr.ReplayBuffer.open(path, mode="r", seed=0, cache_bytes=0) as buffer:

        def work() -> None:
            for size in (1, 30, 100) * 20:
                check(buffer.sample(size), frames)

        together(*[work] * 4)
    assert len(counts) >= 240


@pytest.mark.parametrize("way", [in_python, in_kernel])
def test_a_batch_within_a_batch(path: str, way: Any) -> None:
    """As a signal's handler takes one: between any two steps of another, in the same thread."""
    frames = filled(path)
    with dr.ReplayBuffer.open(path, mode="r", seed=0, cache_bytes=0) as buffer:
        decode, within = chunks.decode, False
        read = core.read

        def interrupted(call: Any) -> Any:
            def called(*arguments: Any) -> Any:
                nonlocal within
                given = call(*arguments)
                if not within:
                    within = True
                    check(buffer.sample(7), frames)
                    within = False
                return given

            return called

        with (
            way(),
            mock.patch.object(chunks, "decode", interrupted(decode)),
            mock.patch.object(core, "read", interrupted(read)),
        ):
            check(buffer.sample(60), frames)


def test_room_is_used_again_and_never_shared() -> None:
    with scratch.scratch(1000) as one, scratch.scratch(10) as two:
        assert one.nbytes >= 1000
        assert two.nbytes >= 10
        assert not np.shares_memory(one, two)
        with scratch.scratch(10) as three:
            assert not np.shares_memory(one, three)
            assert not np.shares_memory(two, three)
    with scratch.scratch(1 << 20) as large:
        assert large.nbytes >= 1 << 20


def test_without_blosc_all_is_left_to_python(path: str) -> None:
    frames = filled(path)
    assert compiled.calls({**compiled.FOUND, "blosc_decompress_ctx": 0}) is None
    with (
        mock.patch.object(compiled, "CALLS", None),
        in_kernel(wholly=False) as counts,
        dr.ReplayBuffer.open(path, mode="r", seed=0, cache_bytes=0) as buffer,
    ):
        check(buffer.sample(50), frames)
    assert counts == []


def test_forked_children(path: str) -> None:
    frames = filled(path)
    with in_kernel() as counts, dr.ReplayBuffer.open(path, mode="r", seed=0, cache_bytes=0) as buffer:
        check(buffer.sample(50), frames)

        def is_compiled() -> bool:
            counts.clear()
            check(buffer.sample(50), frames)
            return sum(counts) > 0

        assert forked(is_compiled)


def test_an_interrupt_is_noticed_within_a_batch(path: str) -> None:
    filled(path)
    with (
        mock.patch.object(gather, "MOST_AT_ONCE", 7),
        in_kernel() as counts,
        dr.ReplayBuffer.open(path, mode="r", seed=0, cache_bytes=0) as buffer,
    ):
        buffer.sample(100)
    assert max(counts) == 7
    assert len(counts) > 10
