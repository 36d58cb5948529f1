"""Chunks that do not shrink: those that follow are stored as copies, of which one now and then is compressed."""

from __future__ import annotations

import pathlib
from unittest import mock

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay as dr
from diskreplay.ops.verify import verify
from diskreplay.schema.columns import Codec
from diskreplay.storage import blosc, chunks
from diskreplay.storage.column import TRIED_CHUNKS, Encoder

RNG = np.random.default_rng(0)


def noise(count: int) -> np.ndarray:
    return RNG.integers(0, 256, (count, 24, 24), np.uint8)


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", "c16", "?"])
@pytest.mark.parametrize("codec", ["lz4hc:4", "lz4:9", "zstd:1"])
def test_a_copy_is_what_blosc_makes_of_noise_and_of_all_at_level_0(codec: str, dtype: str) -> None:
    how = Codec.parse(codec)
    values = [np.frombuffer(RNG.bytes(1 << 12), "u1").view(dtype if dtype != "?" else "u1") for _ in range(2)]
    made = [chunks.encode(how, each) for each in values]
    assert all(chunks.is_copy(how, data) for data in made)
    assert chunks.encode_copy(made[0][: blosc.HEADER_BYTES], values[1]) == made[1]
    zeros = np.zeros_like(values[0])
    copy = chunks.encode_copy(made[0][: blosc.HEADER_BYTES], zeros)
    shuffle = zeros.dtype.kind in "iufc" and zeros.itemsize > 1
    assert copy == chunks.seal(blosc.compress(zeros, how.name, 0, shuffle))
    out = np.ones_like(zeros)
    chunks.decode(how, copy, out)
    assert not out.any()


def test_one_of_many_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, codec, plain = Encoder(), Codec.parse("lz4hc:4"), np.zeros((4, 24, 24), np.uint8)
    with mock.patch.object(chunks, "compress", wraps=chunks.compress) as compressed:
        encoder.encode(codec, [plain] * 3)
        assert compressed.call_count == 3
        encoder.encode(codec, [noise(4)] * (2 * TRIED_CHUNKS))
        assert compressed.call_count == 3 + 2
        encoder.encode(codec, [plain] * (TRIED_CHUNKS + 5))
        assert compressed.call_count == 3 + 2 + 1 + TRIED_CHUNKS + 4  # the first is due, and shrinks


@pytest.mark.parametrize("codec", ["lz4hc:4", "zstd:1", "none"])
def test_a_store_of_noise_with_a_quiet_end(tmp_path: pathlib.Path, codec: str) -> None:
    frames = np.concatenate([noise(700), np.zeros((2000, 24, 24), np.uint8), noise(400)])
    count, path = len(frames) - 1, tmp_path / "s"
    with dr.ReplayBuffer.create(path, Box(0, 255, (24, 24), np.uint8), Discrete(2), capacity=5000, codec=codec) as rb:
        flags = np.zeros(count, bool)
        rb.extend(frames[:-1], np.zeros(count, int), np.zeros(count), frames[1:], flags, flags)
    with dr.ReplayBuffer.open(path, mode="r", cache_bytes=0) as rb:
        np.testing.assert_array_equal(rb.get(np.arange(count)).obs, frames[:-1])
        np.testing.assert_array_equal(rb.zarr()["streams/0/obs"][:count, 0], frames[:-1])
    assert verify(path).ok
    size = sum(file.stat().st_size for file in (path / "streams/0/obs").glob("c.*"))
    if codec != "none":
        assert size < (1100 + 2 * 16 * TRIED_CHUNKS) * 600  # after at most so many copies the quiet ones shrink
