"""The schema that follows from the spec of a new store: what is chosen for rows of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from diskreplay.errors import SchemaError
from diskreplay.schema import columns as schemas
from diskreplay.schema import spec as store_spec
from diskreplay.schema.columns import Codec
from diskreplay.schema.spec import build

DISCRETE = spaces.Discrete(6)


def frames(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


@pytest.mark.parametrize("num_envs", [1, 8, 32])
@pytest.mark.parametrize("capacity", [1_000, 100_000, 1 << 20])
@pytest.mark.parametrize(
    ("space", "options"),
    [
        (frames(84, 84), {"frame_stack": 4}), (frames(4, 84, 84), {"frame_stack": 4}),
        (frames(84, 84, 4), {"frame_stack": 4}),
        (frames(480, 640, 3), {}), (frames(210, 160, 3), {}), (spaces.Box(-1, 1, (3,), np.float32), {}),
        (spaces.Box(-1, 1, (376,), np.float64), {}), (frames(1), {}), (frames(64, 64, 3), {"frame_stack": 2}),
        (spaces.Box(-1, 1, (1000, 1000), np.float32), {}),
    ],
    ids=["84x84", "4x84x84", "84x84x4", "480x640x3", "210x160x3", "3 floats", "376 doubles", "byte", "64x64x3", "4 MB"],
)  # fmt: skip
def test_chunks_and_shards_suit_the_row(
    space: spaces.Box, options: dict[str, Any], capacity: int, num_envs: int
) -> None:
    schema = build(space, DISCRETE, capacity=capacity, num_envs=num_envs, **options)
    for column in schema.columns:
        width = column.item_bytes * (num_envs if column.resident else 1)
        chunk_bytes = column.chunk_rows * width
        assert column.chunk_rows == 1 or chunk_bytes <= store_spec.CHUNK_BYTES
        most_rows = store_spec.MAX_CHUNK_ROWS if column.resident else store_spec.DISK_CHUNK_ROWS
        assert chunk_bytes >= min(store_spec.CHUNK_BYTES // 2, width * min(column.shard_rows, most_rows))
        assert column.chunk_rows <= most_rows
        shard_bytes = column.shard_rows * column.item_bytes * num_envs
        assert shard_bytes <= store_spec.SHARD_BYTES or column.shard_rows <= max(
            16, capacity // num_envs // store_spec.MAX_SHARDS
        )
        assert column.shard_rows % column.chunk_rows == 0
        rows = max(1, capacity // num_envs)
        # What is kept beyond the window is a shard of it at most: little of the whole.
        assert column.shard_rows <= max(16, rows // 4)
        assert rows / column.shard_rows <= 2 * store_spec.MAX_SHARDS
    obs = schema.obs_columns[0]
    assert obs.codec == (Codec("zstd", 1) if obs.resident else Codec("lz4hc", 4))
    assert obs.resident == (obs.item_bytes <= 1024 and obs.item_bytes * capacity <= schemas.RESIDENT_COLUMN_BYTES)


@pytest.mark.own_thresholds
def test_the_design_page_is_followed_for_atari() -> None:
    column = build(frames(84, 84), DISCRETE, capacity=1 << 20, frame_stack=4).obs_columns[0]
    assert (column.chunk_rows, column.shard_rows, str(column.codec)) == (16, 8192, "lz4hc:4")


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
    assert str(columns["obs/a"].codec) == "zstd:5"
    assert str(columns["obs/b"].codec) == "lz4hc:4"
    assert str(columns["action"].codec) == "none"
    assert (columns["obs/b"].chunk_rows, columns["obs/b"].shard_rows) == (6, 18)
    assert columns["reward"].shard_rows == 512
    assert [stack.frames for stack in schema.stacks] == [3, 2]
    assert schema.context == 2


def test_what_is_no_space_is_named() -> None:
    with pytest.raises(SchemaError, match="must be Gymnasium spaces, got str and Discrete"):
        build("CartPole-v1", spaces.Discrete(2), capacity=9)  # type: ignore[arg-type]
