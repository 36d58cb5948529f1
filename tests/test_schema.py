"""Schemas: round trip, and what is chosen for rows of any size."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.configs import CONFIGS, Config
from helpers.model import to_space

import diskreplay as dr
from diskreplay import schema as schemas
from diskreplay.errors import CorruptionError, SchemaError
from diskreplay.schema import Codec, Schema, StoreSpec, build
from diskreplay.storage.commit import is_patch

DISCRETE = spaces.Discrete(6)


def frames(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_json_gives_the_schema_back(config: Config) -> None:
    schema = build(StoreSpec(
        to_space(config.obs), config.action_space(), capacity=100, num_envs=config.num_envs, columns=config.columns,
        frame_stack=config.frame_stack, stack_axis=config.stack_axis, stack_padding=config.padding, codec="zstd:3",
    ))  # fmt: skip
    schema = dataclasses.replace(schema, identity="b5e1c3d09a7f4e26")
    found = Schema.from_json(json.loads(json.dumps(schema.to_json(), allow_nan=False)))
    assert found == schema
    assert found.identity == schema.identity
    assert found.patch_columns == schema.patch_columns


def spoil(change: Any) -> Any:
    document = build(StoreSpec(frames(4, 84, 84), DISCRETE, capacity=100, frame_stack=4)).to_json()
    change(document)
    return document


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("columns"), lambda d: d.update(columns=[]), lambda d: d.update(columns=3),
        lambda d: d["columns"].reverse(), lambda d: d["columns"].append(d["columns"][0]),
        lambda d: d["columns"][0].update(dtype="object"), lambda d: d["columns"][0].update(shape=[-1, 2]),
        lambda d: d["columns"][0].update(name="../../etc"), lambda d: d["columns"][0].update(name="obs/../x"),
        lambda d: d["columns"][0].update(chunk_rows=0), lambda d: d["columns"][0].update(shard_rows=5, chunk_rows=2),
        lambda d: d["columns"][0].update(codec="gzip"), lambda d: d["columns"][0].update(resident="yes"),
        lambda d: d["columns"][2].update(resident=False), lambda d: d.update(stacks=[]),
        lambda d: d["stacks"][0].update(frames=0), lambda d: d["stacks"][0].update(axis=1),
        lambda d: d["stacks"][0].pop("channels"), lambda d: d.update(padding="patches"),
        lambda d: d.update(padding="x"),
        lambda d: d.update(num_envs=0), lambda d: d.update(capacity="5"), lambda d: d.update(capacity=True),
        lambda d: d.update(observation_space={"kind": "Text"}), lambda d: d.pop("action_space"),
    ],
)  # fmt: skip
def test_documents_that_are_no_schema(change: Any) -> None:
    with pytest.raises((CorruptionError, SchemaError)):
        Schema.from_json(spoil(change))


@pytest.mark.parametrize("stored", [None, [], 5, "x", {}])
def test_documents_of_another_kind(stored: Any) -> None:
    with pytest.raises(CorruptionError):
        Schema.from_json(stored)


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
    schema = build(StoreSpec(space, DISCRETE, capacity=capacity, num_envs=num_envs, **options))
    for column in schema.columns:
        width = column.item_bytes * (num_envs if column.resident else 1)
        chunk_bytes = column.chunk_rows * width
        assert column.chunk_rows == 1 or chunk_bytes <= schemas.CHUNK_BYTES
        most_rows = schemas.MAX_CHUNK_ROWS if column.resident else schemas.DISK_CHUNK_ROWS
        assert chunk_bytes >= min(schemas.CHUNK_BYTES // 2, width * min(column.shard_rows, most_rows))
        assert column.chunk_rows <= most_rows
        shard_bytes = column.shard_rows * column.item_bytes * num_envs
        assert shard_bytes <= schemas.SHARD_BYTES or column.shard_rows <= max(
            16, capacity // num_envs // schemas.MAX_SHARDS
        )
        assert column.shard_rows % column.chunk_rows == 0
        rows = max(1, capacity // num_envs)
        # What is kept beyond the window is a shard of it at most: little of the whole.
        assert column.shard_rows <= max(16, rows // 4)
        assert rows / column.shard_rows <= 2 * schemas.MAX_SHARDS
    obs = schema.obs_columns[0]
    assert obs.codec == (Codec("zstd", 1) if obs.resident else Codec("lz4hc", 4))
    assert obs.resident == (obs.item_bytes <= 1024 and obs.item_bytes * capacity <= schemas.RESIDENT_COLUMN_BYTES)


@pytest.mark.own_thresholds
def test_the_design_page_is_followed_for_atari() -> None:
    column = build(StoreSpec(frames(84, 84), DISCRETE, capacity=1 << 20, frame_stack=4)).obs_columns[0]
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
    schema = build(StoreSpec(frames(*shape), DISCRETE, capacity=100, frame_stack=frame_stack, stack_axis=stack_axis))
    assert schema.obs_columns[0].shape == frame
    assert schema.stacks[0].frames == frame_stack


def test_settings_by_column() -> None:
    space = spaces.Dict({"a": frames(40, 40), "b": frames(50, 40)})
    schema = build(StoreSpec(
        space, DISCRETE, capacity=1000, codec={"obs/a": "zstd:5", "action": "none"}, chunk_rows={"obs/b": 6},
        shard_rows={"obs/b": 18, "reward": 512}, frame_stack={"a": 3, "obs/b": 2},
    ))  # fmt: skip
    columns = {column.name: column for column in schema.columns}
    assert str(columns["obs/a"].codec) == "zstd:5"
    assert str(columns["obs/b"].codec) == "lz4hc:4"
    assert str(columns["action"].codec) == "none"
    assert (columns["obs/b"].chunk_rows, columns["obs/b"].shard_rows) == (6, 18)
    assert columns["reward"].shard_rows == 512
    assert [stack.frames for stack in schema.stacks] == [3, 2]
    assert schema.context == 2


def test_small_columns_stay_in_ram_however_many_rows(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Rewards and flags are looked at for every sample: they are resident even where they are large together."""
    monkeypatch.setattr(schemas, "RESIDENT_COLUMN_BYTES", 10)
    with dr.ReplayBuffer.create(path, spaces.Box(0, 1, (2,), np.float32), DISCRETE, capacity=50) as buffer:
        resident = {column.name: column.resident for column in buffer.schema.columns}
        assert not resident["obs"]
        assert not resident["action"]
        assert all(resident[name] for name in ("reward", "terminated", "truncated", "valid", "start"))
        obs = np.zeros(2, np.float32)
        for step in range(70):
            buffer.add(obs + step, step % 6, step, obs + step + 1, False, False)
        batch = buffer.sample(20)
        np.testing.assert_array_equal(batch.action, batch.index % 6)
        np.testing.assert_array_equal(batch.reward, batch.index)


@pytest.mark.parametrize("dtype", [">f4", ">i8", "<u2", "=f8"])
def test_byte_order_is_the_machines(path: str, dtype: str) -> None:
    """Another byte order would be stored under a name that says little-endian."""
    space = spaces.Box(0, 100, (3,), np.dtype(dtype))
    with dr.ReplayBuffer.create(path, space, DISCRETE, capacity=50, columns={"x": np.dtype(dtype)}) as buffer:
        obs = np.arange(3).astype(dtype)
        buffer.add(obs, 0, 0, obs, False, False, x=obs[1])
    with dr.ReplayBuffer.open(path) as buffer:
        batch = buffer.sample(1)
        assert batch.obs.tolist() == [[0, 1, 2]]
        assert batch.extra["x"].tolist() == [1]
        assert batch.obs.dtype == np.dtype(dtype).newbyteorder("=")


@pytest.mark.parametrize("dtype", sorted(schemas.DTYPES))
def test_every_dtype(path: str, dtype: str) -> None:
    with dr.ReplayBuffer.create(
        path, frames(2), DISCRETE, capacity=50, columns={"one": dtype, "many": ((5, 3), dtype)}
    ) as buffer:
        rng = np.random.default_rng(0)
        given = [rng.integers(0, 2, (5, 3)).astype(dtype) for _ in range(30)]
        for values in given:
            buffer.add(np.zeros(2, np.uint8), 0, 0, np.zeros(2, np.uint8), False, False, one=values[0, 0], many=values)
    with dr.ReplayBuffer.open(path) as buffer:
        batch = buffer.get(np.arange(30))
    assert batch.extra["many"].dtype == dtype
    np.testing.assert_array_equal(batch.extra["many"], given)
    np.testing.assert_array_equal(batch.extra["one"], [values[0, 0] for values in given])


@pytest.mark.parametrize(
    ("text", "codec"), [("zstd", Codec("zstd", 1)), ("lz4", Codec("lz4", 5)), ("lz4hc:9", Codec("lz4hc", 9))]
)
def test_codecs_as_text(text: str, codec: Codec) -> None:
    assert Codec.parse(text) == codec == Codec.parse(str(codec))


@pytest.mark.parametrize("text", ["", "zip", "zstd:0", "zstd:10", "zstd:-1", "zstd:1.5", ":3", 4, None])
def test_texts_that_are_no_codec(text: Any) -> None:
    with pytest.raises(SchemaError, match="codec"):
        Codec.parse(text)


def test_columns_and_arrays_by_name() -> None:
    box = spaces.Box(0, 1, (2,), np.float32)
    schema = schemas.build(
        schemas.StoreSpec(spaces.Dict(a=box, b=box), box, capacity=9, columns={"patches_of_mine": np.int8})
    )
    assert [schema.column(column.name) for column in schema.columns] == list(schema.columns)
    assert list(schema.arrays.values()) == [*schema.columns, *schema.patch_columns]
    patches = [path for path in schema.arrays if is_patch(path)]
    assert patches == ["patches/place", "patches/obs/a", "patches/obs/b"]
    with pytest.raises(KeyError, match="obs/c"):
        schema.column("obs/c")
