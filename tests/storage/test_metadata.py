"""Documents that cannot be read back are not written."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.effort import places
from helpers.line import rows_in

import diskreplay as dr
from diskreplay.errors import InputError, SchemaError
from diskreplay.storage import metadata
from diskreplay.storage.local_files import LocalFiles

BOX = spaces.Box(0, 255, (3,), np.uint8)


def create(path: str, **options: Any) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.create(path, BOX, spaces.Discrete(3), capacity=32, shard_rows=16, chunk_rows=4, **options)


def add(buffer: dr.ReplayBuffer, count: int) -> None:
    for number in range(count):
        obs = np.full(3, number, np.uint8)
        buffer.add(obs, 0, float(number), obs + np.uint8(1), False, False)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("num_envs", [1, 3])
def test_documents_of_one_array_differ_in_their_rows(path: str, num_envs: int) -> None:
    with dr.ReplayBuffer.create(path, BOX, spaces.Discrete(3), capacity=90, num_envs=num_envs) as buffer:
        writer = buffer.engine.streams.writer
        assert writer is not None
        for column in writer.columns.values():
            for rows in (1, 64, 1 << 40):
                metadata.write_array(LocalFiles(), path, column.column, num_envs, rows)
                document = metadata.array_document(column.column, num_envs, rows)
                assert pathlib.Path(path, metadata.NAME).read_bytes() == metadata.dump(document)


@pytest.mark.long
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"blob": "x" * (17 << 20)},
            r"metadata would take 17,825,\d{3} bytes as JSON, .* at most 16,777,216",
        ),
        ({"many": [1] * (9 << 20)}, "metadata would take 18,8"),
        ({"deep": nested(300)}, "metadata must not be nested more than 200 deep"),
        ({"deep": nested(100_000)}, "metadata must not be nested more than 200 deep"),
        ({"large": 10**5000}, "metadata must be JSON"),
        ({"a": {1, 2}}, "metadata must be JSON"),
        ({"a": float("nan")}, "metadata must be JSON"),
        ({"a": np.float32(1)}, "metadata must be JSON .call .item"),
        (5, "metadata must be JSON"),
    ],
    ids=["text", "numbers", "deep", "very deep", "digits", "set", "nan", "numpy", "no mapping"],
)
def test_metadata_that_could_not_be_read_back(path: str, given: Any, message: str) -> None:
    """It was accepted, and then the store could not be opened any more; very deep metadata were a RecursionError."""
    with create(path) as buffer:
        add(buffer, 5)
        before = buffer.stats()
        with pytest.raises(InputError, match=message):
            buffer.checkpoint("one", given)
        assert buffer.stats() == before
        assert buffer.checkpoints == []
        add(buffer, 60)
        buffer.checkpoint("one", {"deep": nested(190), "large": 1 << 13_000, "text": "\ud800"})
    with dr.ReplayBuffer.open(path, checkpoint="one") as buffer:
        assert buffer.checkpoint_metadata("one") == {"deep": nested(190), "large": 1 << 13_000, "text": "\ud800"}


def test_integers_of_more_digits_than_python_reads(path: str) -> None:
    """Python writes them where its limit was lifted."""
    limit = sys.get_int_max_str_digits()
    with create(path) as buffer:
        try:
            sys.set_int_max_str_digits(0)
            with pytest.raises(InputError, match="an integer may have 14280 bits"):
                buffer.checkpoint("one", {"a": [1, {"b": -(10**5000)}]})
        finally:
            sys.set_int_max_str_digits(limit)
        assert buffer.checkpoints == []


def test_a_samplers_state_that_could_not_be_read_back(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written, and the buffer goes on."""
    sampler = dr.Proportional(by_env=True)
    with dr.ReplayBuffer.create(
        path, BOX, spaces.Discrete(3), capacity=4000, num_envs=1000, sampler=sampler, seed=0
    ) as buffer:

        def step() -> None:
            obs, flags = np.zeros((1000, 3), np.uint8), np.zeros(1000, bool)
            buffer.add(obs, np.zeros(1000, np.int64), np.zeros(1000), obs, flags, flags)

        step()
        buffer.sample(1000)
        monkeypatch.setattr(metadata, "MAX_BYTES", 4000)
        with pytest.raises(InputError, match=r"checkpoint 'one', with the sampler's state, would take [\d,]+ bytes"):
            buffer.checkpoint("one")
        assert buffer.checkpoints == []
        step()
        buffer.commit()
    monkeypatch.undo()
    assert rows_in(path, mode="r+") == 2000
    assert not list(pathlib.Path(path).rglob(".tmp*"))


def test_too_many_columns(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "MAX_BYTES", 3000)
    with pytest.raises(SchemaError, match=r"the store's description would take [\d,]+ bytes; at most 3,000"):
        create(path, columns={f"column {number}": float for number in range(99)})
    assert list(pathlib.Path(path).parent.iterdir()) == []


def test_columns_whose_commit_records_would_be_too_large(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nested leaf's path stands once in the description, and twice in a record."""
    space: Any = spaces.Dict({f"leaf {number}": BOX for number in range(10)})
    for number in range(6):
        space = spaces.Dict({f"{number}" * 120: space})
    monkeypatch.setattr(metadata, "MAX_BYTES", 13_000)
    with pytest.raises(SchemaError, match="a commit of so many columns would take"):
        dr.ReplayBuffer.create(path, space, spaces.Discrete(2), capacity=9)
    assert list(pathlib.Path(path).parent.iterdir()) == []


# Bounds


SIDE = [128, 512][: places(2, "sizes of bounds")]
"""Of the square images whose elements have a bound each; what fits is limited in proportion."""


@pytest.fixture(params=SIDE)
def side(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    if request.param < 512:
        monkeypatch.setattr(metadata, "MAX_BYTES", metadata.MAX_BYTES * request.param**2 // 512**2)
    return int(request.param)


@pytest.mark.parametrize("kind", ["integers", "by channel"])
def test_bounds_of_every_element_that_fit(path: str, kind: str, side: int) -> None:
    """create wrote 41 MB, raised, and left a store that could not be opened."""
    low = {
        "integers": np.random.default_rng(0).integers(0, 9, (side, side, 3), np.uint8),
        "by channel": np.broadcast_to(np.array([-2.1179, -2.0357, -1.8044], np.float32), (side, side, 3)),
    }[kind]
    space = spaces.Box(low, low + low.dtype.type(9), low.shape, low.dtype.type)
    dr.ReplayBuffer.create(path, space, spaces.Discrete(2), capacity=9).close()
    assert pathlib.Path(path, "zarr.json").stat().st_size <= metadata.MAX_BYTES
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        assert buffer.schema.observation_space == space


def test_bounds_of_every_element_that_do_not_fit(path: str, side: int) -> None:
    low = np.random.default_rng(0).random((side, side, 3))
    space = spaces.Box(low, low + 1, low.shape, np.float64)
    said = rf"would take [\d,]+ bytes; at most {metadata.MAX_BYTES:,} .* one bound for all elements"
    with pytest.raises(SchemaError, match=said):
        dr.ReplayBuffer.create(path, space, spaces.Discrete(2), capacity=9)
    assert list(pathlib.Path(path).parent.iterdir()) == []


def test_the_checksum_of_documents_is_stable(path: str) -> None:
    """As docs/format.md says; the field itself does not count."""
    create(path).close()
    ours = metadata.read(LocalFiles(), f"{path}/streams/0")["attributes"]["diskreplay"]
    assert metadata.checksum(ours, "streams/0") == ours["checksum"]
    assert metadata.checksum({"b": [1, 0.5, None], "a": "é"}, "n") == 0xBB019E99
