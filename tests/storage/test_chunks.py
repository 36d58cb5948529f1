"""Chunks and indexes: what went in comes out, and every flipped bit is noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from diskreplay.schema.columns import DTYPES, Codec
from diskreplay.storage import chunks

CODECS = [Codec("lz4hc", 4), Codec("lz4", 5), Codec("zstd", 1), Codec("zstd", 9), Codec("none")]


@given(
    arrays.arrays(st.sampled_from(sorted(DTYPES)), arrays.array_shapes(min_dims=2, max_dims=4, max_side=6)),
    st.sampled_from(CODECS),
)
@settings(max_examples=examples(100), deadline=None)
def test_a_chunk_comes_out_as_it_went_in(values: Any, codec: Codec) -> None:
    out = np.empty_like(values)
    chunks.decode(codec, chunks.encode(codec, values), out)
    assert out.tobytes() == values.tobytes()


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_every_flipped_bit_is_noticed(codec: Codec) -> None:
    values = np.arange(60, dtype=np.int32).reshape(4, 15)
    data = chunks.encode(codec, values)
    out = np.empty_like(values)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(chunks.DamagedError):
            chunks.decode(codec, bytes(damaged), out)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_chunks_that_are_cut_or_another_size(codec: Codec) -> None:
    values = np.arange(60, dtype=np.int32)
    data = chunks.encode(codec, values)
    for size in range(len(data)):
        with pytest.raises(chunks.DamagedError):
            chunks.decode(codec, data[:size], np.empty_like(values))
    for other in (np.empty(59, np.int32), np.empty(61, np.int32), np.empty(60, np.int64)):
        with pytest.raises(chunks.DamagedError):
            chunks.decode(codec, data, other)
    for lie in (b"", b"\0" * 16, b"\2\1\x21\4" + (240).to_bytes(4, "little") * 3):
        with pytest.raises(chunks.DamagedError):
            chunks.decode(codec, chunks.seal(lie), np.empty_like(values))


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 10)) | st.just((-1, -1)), min_size=6, max_size=6))
def test_an_index_comes_out_as_it_went_in(entries: list[tuple[int, int]]) -> None:
    given_entries = np.array(entries, np.int64).reshape(3, 2, 2)
    data = chunks.encode_index(given_entries)
    assert len(data) == chunks.index_bytes(6)
    np.testing.assert_array_equal(chunks.decode_index(data, 3, 2, 100), given_entries)


def test_indexes_that_point_outside_or_are_damaged() -> None:
    data = chunks.encode_index(np.array([[[0, 40]], [[40, 60]]], np.int64))
    chunks.decode_index(data, 2, 1, 100)
    with pytest.raises(chunks.DamagedError, match="outside"):
        chunks.decode_index(data, 2, 1, 99)
    huge = chunks.seal(np.array([[2**63, 8], [0, 2**64 - 8]], "<u8").tobytes())
    for bad in (huge, chunks.seal(np.array([[2**64 - 1, 8], [0, 8]], "<u8").tobytes())):
        with pytest.raises(chunks.DamagedError, match="outside"):
            chunks.decode_index(bad, 2, 1, 100)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(chunks.DamagedError, match="checksum"):
            chunks.decode_index(bytes(damaged), 2, 1, 100)
    with pytest.raises(chunks.DamagedError):
        chunks.decode_index(data, 3, 1, 100)
