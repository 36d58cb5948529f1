"""Other Zarr readers see every committed row of a closed store, and of one that is being written the whole chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.configs import CONFIGS, Config
from helpers.model import Leaf, flat
from helpers.programs import run
from helpers.recording import Recording, recorded_in, recorded_store, reopen

import diskreplay as dr
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Store

Read = Callable[[str], np.ndarray]


def read_zarr(path: str) -> np.ndarray:
    zarr = pytest.importorskip("zarr")
    return np.asarray(zarr.open_array(path, mode="r")[...])


def read_tensorstore(path: str) -> np.ndarray:
    tensorstore = pytest.importorskip("tensorstore", reason="tensorstore is in the dev extra")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}
    return np.asarray(tensorstore.open(spec, open=True, read=True).result().read().result())


READERS = [read_zarr, read_tensorstore]


def compare(
    recording: Recording, buffer: dr.ReplayBuffer, path: str, read: Read, end: int, closed: bool = False
) -> None:  # fmt: skip
    """Every column holds the window's rows that its shards have, and nothing from there on; all, once ``closed``."""
    record = Store(path, LocalFiles()).newest_commit("0")
    assert record.end == end
    log, config = recording.log, recording.config
    first = max(0, log.upto(end).begin)
    expected: dict[str, list[Any]] = {}
    leaf_names = [column.name for column in buffer.schema.obs_columns]
    for row in log.rows[first:end]:
        for env, step in enumerate(row):
            values: dict[str, Any] = {
                "reward": step.reward, "terminated": step.terminated, "truncated": step.truncated, "valid": step.valid,
                **step.extra,
            }  # fmt: skip
            for name, leaf, obs in zip(leaf_names, log.leaves, step.obs, strict=True):
                values[name] = leaf.split(obs)[-1]
            for column, action in zip(buffer.schema.action_columns, step.action, strict=True):
                values[column.name] = action
            for name, value in values.items():
                expected.setdefault(name, [[] for _ in range(log.num_envs)])[env].append(value)
    assert expected.keys() | {"start"} == {column.name for column in buffer.schema.columns}
    for column in buffer.schema.columns:
        stop = record.stored_rows(column.name)
        assert stop == end if closed else stop <= end
        got = read(f"{path}/streams/0/{column.name}")
        assert got.dtype == column.dtype
        assert got.shape[1:] == (config.num_envs, *column.shape)
        assert len(got) >= stop
        assert len(got) % record.column(column.name, column).shard_rows == 0
        assert not got[stop:].any(), f"{column.name}: rows that nobody added"
        if column.name != "start":
            want = np.stack([np.array(values, column.dtype) for values in expected[column.name]], axis=1)
            np.testing.assert_array_equal(got[first:stop], want[: max(0, stop - first)], err_msg=column.name)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_finished_and_live_stores(path: str, config: Config, read: Read) -> None:
    recording = Recording(config)
    buffer = config.create(path)
    recording.add(buffer, 7, commit=True)
    compare(recording, buffer, path, read, 7)
    recording.add(buffer, 6)
    compare(recording, buffer, path, read, 7)  # what no commit holds is not there
    buffer.commit()
    compare(recording, buffer, path, read, 13)
    recording.add(buffer, 20)
    buffer.close()
    compare(recording, buffer, path, read, 33, closed=True)
    with reopen(config, path) as buffer:
        recording.add(buffer, 9, commit=True)
        compare(recording, buffer, path, read, 42)
    compare(recording, buffer, path, read, 42, closed=True)


DTYPES = [
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("codec", ["lz4hc", "lz4:9", "zstd:3", "none"])
def test_dtypes_and_codecs(path: str, codec: str, read: Read) -> None:
    """On disk as chunks of one environment, and in chunks of all."""
    columns: dict[str, Any] = {f"small_{dtype}": dtype for dtype in DTYPES}
    columns |= {f"large_{dtype}": ((3, 2), dtype) for dtype in DTYPES}
    config = Config("dtypes", Leaf((4,)), num_envs=2, columns=columns, capacity=60)
    with recorded_in(config, path, codec=dict.fromkeys([*columns, "obs", "reward"], codec)) as (buffer, recording):
        assert buffer.schema.extra_columns[-1].name not in buffer.engine.streams.shown.log.resident
        recording.add(buffer, 23, commit=True)
        recording.check(buffer)
        compare(recording, buffer, path, read, 23)
    compare(recording, buffer, path, read, 23, closed=True)


def test_special_values_keep_their_bits(path: str) -> None:
    """NaN, infinities, negative zero and subnormal numbers, as observations and as columns."""
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324, 1.0])
    config = Config("special", Leaf((6,), np.float64), columns={"aux": ((6,), np.float64)})
    with config.create(path) as buffer:
        for shift in range(5):
            given = np.roll(values, shift)
            buffer.add(given, 0, 0.0, np.roll(values, shift + 1), False, False, aux=given)
        buffer.commit()
        batch = buffer.get(np.arange(5))
    for read in READERS:
        for name in ("obs", "aux"):
            got = read(f"{path}/streams/0/{name}")
            for shift in range(5):
                want = np.roll(values, shift).tobytes()
                assert (got[shift, 0].tobytes(), flat(batch.obs)[0][shift].tobytes()) == (want, want)


SCRIPT = """
import sys, warnings
warnings.simplefilter("error")
import numpy, zarr
group = zarr.open_group(sys.argv[1], mode="r")
names = sorted(name for name, _ in group["streams/0"].arrays())
print(*names)
for name in names:
    values = group[f"streams/0/{name}"][:int(sys.argv[2])]
    print(name, values.shape, values.dtype, values.astype("f8").sum())
print(group["streams/0"].attrs["diskreplay"]["tables"]["rows"][1])
"""


def test_another_process_reads_a_live_store_without_a_warning(path: str) -> None:
    config = Config("live", Leaf((3, 4)), num_envs=2, frame_stack=4)
    recording = recorded_store(config, path, 9)
    with reopen(config, path) as buffer:
        recording.add(buffer, 2, commit=True)
        done = run(SCRIPT, path, 9, flags=("-W", "error"))
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0] == "action obs reward start terminated truncated valid"
    total = sum(float(step.obs[0].sum()) for row in recording.log.rows[:9] for step in row)
    assert f"obs (9, 2, 3, 4) uint8 {total}" in lines
    assert lines[-1] == "11"


def test_the_whole_tree_is_zarr(path: str) -> None:
    """Every group and array can be listed from the top, with observations that nest and a checkpoint."""
    zarr = pytest.importorskip("zarr")
    config = next(config for config in CONFIGS if config.name == "dict")
    with recorded_in(config, path, 20) as (buffer, _):
        buffer.checkpoint("one")
    group = zarr.open_group(path, mode="r")
    members = {name for name, _ in group.members(max_depth=None)}
    assert {
        "streams/0/obs/camera",
        "streams/0/obs/joints/0",
        "streams/0/obs/joints/1",
        "streams/0/patches/place",
    } <= members
    assert {"checkpoints/one", "streams/0/value", "streams/0/image"} <= members
    assert group["checkpoints/one"].attrs["diskreplay"]["cut"]["0"]["tables"]["rows"][1] == 20


def test_the_store_as_a_zarr_group(path: str) -> None:
    config = Config("group", Leaf((3,)), capacity=20)
    recorded_store(config, path, 9)
    with reopen(config, path) as buffer:  # closing has moved all rows to shards
        assert buffer.zarr()["streams/0/reward"][:9, 0].tolist() == buffer.get(np.arange(9)).reward.tolist()
