"""The schema that follows from the spec of a new store: what is chosen for rows of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.errors import SchemaError
from diskreplay.schema import layout
from diskreplay.schema.columns import CHOSEN, Codec, Column, Given
from diskreplay.schema.layout import laid_out
from diskreplay.schema.spec import build

FLOATS = "lz4:9"
DISCRETE = spaces.Discrete(6)


def frames(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


SHAPES = st.sampled_from([(), (3,), (17,), (60,), (84, 84), (376,), (3, 480, 640), (1000, 1000)])
DTYPES = st.sampled_from(["uint8", "bool", "float32", "float64", "int64"])


@given(shape=SHAPES, dtype=DTYPES, rows=st.booleans(), num_envs=st.integers(1, 5000), window=st.integers(1, 1 << 40))
@settings(max_examples=examples(400))
def test_each_limit_of_a_layout_holds_where_no_earlier_one_stands_against_it(
    shape: tuple[int, ...], dtype: str, rows: bool, num_envs: int, window: int
) -> None:
    num_envs = num_envs if rows else 1
    column = laid_out(Column("x", shape, np.dtype(dtype), CHOSEN), rows, num_envs, window)
    row = column.item_bytes * num_envs
    small = column.item_bytes <= layout.SMALL_BYTES
    assert column.chunk_envs == (num_envs if small else 1)
    chunk = column.chunk_rows * column.chunk_envs * column.item_bytes
    assert column.chunk_rows == 1 or chunk <= layout.CHUNK_BYTES
    assert column.chunk_rows <= layout.MAX_CHUNK_ROWS
    assert small or column.chunk_rows <= (layout.FLOAT_ROWS if np.dtype(dtype).kind == "f" else layout.DISK_ROWS)
    assert not rows or column.chunk_rows <= max(1, window // layout.WINDOW_CHUNKS)
    count, size, one = column.shard_rows // column.chunk_rows, column.shard_rows * row, column.chunk_rows * row
    assert column.shard_rows == count * column.chunk_rows
    assert count.bit_count() == 1
    assert size <= layout.MOST_SHARD_BYTES or column.shard_rows == 1
    limits = [2 * size > layout.MOST_SHARD_BYTES]  # that stand against a larger shard
    assert count <= layout.MOST_SHARD_CHUNKS
    limits.append(count == layout.MOST_SHARD_CHUNKS)
    limits.append(2 * column.shard_rows > layout.SHARD_WINDOWS * window)
    assert size >= layout.LEAST_SHARD_BYTES or any(limits)
    assert count == 1 or column.shard_rows <= layout.SHARD_WINDOWS * window
    enough = size // 2 < layout.LEAST_SHARD_BYTES or window > layout.MOST_SHARDS * column.shard_rows // 2
    assert (
        count == 1 or enough or (size <= layout.SHARD_BYTES and layout.WINDOW_SHARDS * column.shard_rows <= window)
    )  # no larger than it needs to be
    assert window <= layout.MOST_SHARDS * column.shard_rows or any(limits)
    larger = 2 * size <= layout.SHARD_BYTES and 2 * layout.WINDOW_SHARDS * column.shard_rows <= window
    assert not larger or any(limits) or one > layout.SHARD_BYTES


@pytest.mark.own_thresholds
@pytest.mark.parametrize(
    ("shape", "dtype", "num_envs", "window", "expected"),
    [
        ((84, 84), "uint8", 1, 1 << 20, (16, 8192, 1, "lz4hc:4")),
        ((84, 84), "uint8", 64, 10_000, (16, 128, 1, "lz4hc:4")),
        ((17,), "float32", 1, 1_000_000, (1024, 32768, 1, "zstd:1")),
        ((17,), "float32", 1, 2_000, (256, 1024, 1, "zstd:1")),
        ((17,), "float32", 64, 10_000, (16, 512, 64, "zstd:1")),
        ((17,), "float32", 1, 100, (16, 1024, 1, "zstd:1")),
        ((), "bool", 1, 100, (16, 1024, 1, "zstd:1")),
        ((17,), "float32", 1, 10_000_000, (128, 131072, 1, FLOATS)),
        ((376,), "float32", 1, 1_000_000, (4, 4096, 1, FLOATS)),
    ],
)  # fmt: skip
def test_layouts_of_usual_rows(shape: Any, dtype: str, num_envs: int, window: int, expected: Any) -> None:
    column = laid_out(Column("x", shape, np.dtype(dtype), CHOSEN), True, num_envs, window)
    assert (column.chunk_rows, column.shard_rows, column.chunk_envs, str(column.codec)) == expected


@pytest.mark.own_thresholds
@pytest.mark.parametrize("given", [Given(8, 24), Given(8), Given(shard_rows=100), Given(codec=Codec("none"))])
def test_what_was_given_stays(given: Given) -> None:
    column = laid_out(Column("x", (84, 84), np.dtype(np.uint8), given), True, 2, 1000)
    assert column.chunk_rows == given.chunk_rows or 16 % column.chunk_rows == 0
    assert column.shard_rows == given.shard_rows or (column.shard_rows // column.chunk_rows).bit_count() == 1
    assert column.shard_rows % column.chunk_rows == 0
    assert column.codec == (given.codec or Codec("lz4hc", 4))


@pytest.mark.parametrize(
    ("shape", "frame_stack", "stack_axis", "frame"),
    [
        ((84, 84), 4, "auto", (84, 84)), ((4, 84, 84), 4, "auto", (84, 84)), ((84, 84, 4), 4, "auto", (84, 84)),
        ((12, 84, 84), 4, 0, (3, 84, 84)), ((84, 84, 12), 4, -1, (84, 84, 3)), ((20, 84, 84), 4, "auto", (20, 84, 84)),
        ((4, 84, 84), 4, None, (4, 84, 84)), ((4, 84, 84), 1, "auto", (4, 84, 84)), ((4,), 4, "auto", (4,)),
        ((4, 7), 4, "auto", (7,)), ((7, 4), 4, "auto", (7, 4)), ((7, 4), 4, -1, (7,)), ((4,), 4, 0, ()),
        ((4, 4, 4), 4, "auto", (4, 4)), ((4, 84, 84), 2, "auto", (4, 84, 84)), ((4, 84, 84), 2, 0, (2, 84, 84)),
    ],
)  # fmt: skip
def test_how_a_stack_is_recognised(shape: Any, frame_stack: int, stack_axis: Any, frame: Any) -> None:
    schema = build(frames(*shape), DISCRETE, capacity=100, frame_stack=frame_stack, stack_axis=stack_axis)
    assert schema.obs_columns[0].shape == frame
    assert schema.stacks[0].frames == frame_stack


def test_settings_by_column() -> None:
    space = spaces.Dict({"a": frames(40, 40), "b": frames(50, 40)})
    schema = build(
        space, DISCRETE, capacity=1000, codec={"obs/a": "zstd:5", "action": "none"}, chunk_rows={"obs/b": 6},
        shard_rows={"obs/b": 18, "reward": 512}, frame_stack={"a": 3, "obs/b": 2},
    )  # fmt: skip
    columns = {column.name: column for column in schema.columns}
    assert columns["obs/a"].given == Given(codec=Codec("zstd", 5))
    assert columns["obs/b"].given == Given(6, 18)
    assert columns["action"].given == Given(codec=Codec.parse("none"))
    assert columns["reward"].given == Given(shard_rows=512)
    assert [stack.frames for stack in schema.stacks] == [3, 2]
    assert schema.context == 2


def test_what_is_no_space_is_named() -> None:
    with pytest.raises(SchemaError, match="must be Gymnasium spaces, got str and Discrete"):
        build("CartPole-v1", spaces.Discrete(2), capacity=9)  # type: ignore[arg-type]
