"""Schemas: round trip, and what their columns hold."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers import residency
from helpers.configs import CONFIGS, Config
from helpers.model import to_space

import diskreplay as dr
from diskreplay.errors import CorruptionError, SchemaError
from diskreplay.schema.columns import DTYPES, Codec, Schema
from diskreplay.schema.spec import build
from diskreplay.storage.commit import table_of

DISCRETE = spaces.Discrete(6)


def frames(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_json_gives_the_schema_back(config: Config) -> None:
    schema = build(
        to_space(config.obs), config.action_space(), capacity=100, num_envs=config.num_envs, columns=config.columns,
        frame_stack=config.frame_stack, stack_axis=config.stack_axis, stack_padding=config.padding, codec="zstd:3",
    )  # fmt: skip
    schema = dataclasses.replace(schema, identity="b5e1c3d09a7f4e26")
    found = Schema.from_json(json.loads(json.dumps(schema.to_json(), allow_nan=False)))
    assert found == schema
    assert found.identity == schema.identity
    assert found.patch_columns == schema.patch_columns


def spoil(change: Any) -> Any:
    document = build(frames(4, 84, 84), DISCRETE, capacity=100, frame_stack=4).to_json()
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
        lambda d: d["columns"][0].update(codec="gzip"), lambda d: d["columns"][0].update(codec=3),
        lambda d: d["columns"][0].update(shard_rows=True), lambda d: d.update(stacks=[]),
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


def test_small_columns_stay_in_ram_however_many_rows(path: str) -> None:
    """Rewards and flags are looked at for every sample: they are resident even where they are large together."""
    residency.hold_windows_up_to(10)
    with dr.ReplayBuffer.create(path, spaces.Box(0, 1, (2,), np.float32), DISCRETE, capacity=50) as buffer:
        resident = buffer.engine.streams.shown.log.resident
        assert set(resident) == {"reward", "terminated", "truncated", "valid", "start"}
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
        assert (batch.obs.tolist(), batch.extra["x"].tolist()) == ([[0, 1, 2]], [1])
        assert batch.obs.dtype == np.dtype(dtype).newbyteorder("=")


@pytest.mark.parametrize("dtype", sorted(DTYPES))
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
    schema = build(spaces.Dict(a=box, b=box), box, capacity=9, columns={"patches_of_mine": np.int8})
    assert [schema.column(column.name) for column in schema.columns] == list(schema.columns)
    *arrays, cuts = schema.arrays.items()
    assert [column for _, column in arrays] == [*schema.columns, *schema.patch_columns]
    assert (cuts[0], cuts[1].shape) == ("cuts/place", (3,))
    patches = [path for path in schema.arrays if table_of(path) == "patches"]
    assert patches == ["patches/place", "patches/obs/a", "patches/obs/b"]
    with pytest.raises(KeyError, match="obs/c"):
        schema.column("obs/c")
