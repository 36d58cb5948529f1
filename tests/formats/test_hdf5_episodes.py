"""Arrays of episodes, written in pieces of any size, against h5py."""

from __future__ import annotations

import pathlib
import tracemalloc
from typing import Any

import h5py
import numpy as np
import pytest
from formats.roundtrip import check, expected, read
from gymnasium import spaces
from helpers.effort import stride

import diskreplay as dr
from diskreplay import formats
from diskreplay.formats.files import hdf5, hdf5_writer
from diskreplay.formats.files.hdf5_writer import SMALL_BYTES, created
from diskreplay.ops.convert import export, import_dataset

FORMATS = ["minari", "d3rlpy", "robomimic"]


@pytest.mark.parametrize("compression", hdf5_writer.COMPRESSIONS)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "bool"])
def test_pieces_of_any_size(
    dtype: str, compression: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diskreplay.formats.core.container.CHUNK_BYTES", 9000)
    monkeypatch.setattr("diskreplay.formats.files.hdf5_writer.SMALL_BYTES", 2000)
    rng = np.random.default_rng(0)
    wanted: dict[str, np.ndarray] = {}
    with created(tmp_path / "a.hdf5", compression) as out:
        for number, count in enumerate([1, 7, 30, 31, 60, 100, 1000, 2]):
            for key, shape in (("images", (10, 30)), ("numbers", ())):
                values = rng.integers(0, 2, (count, *shape)).astype(dtype)
                start = 0
                while start < count:
                    size = int(rng.integers(1, 80))
                    out.append(f"{number}/{key}", values[start : start + size])
                    start += size
                wanted[f"{number}/{key}"] = values
            out.end()
    with h5py.File(tmp_path / "a.hdf5") as file:
        for key, values in wanted.items():
            np.testing.assert_array_equal(file[key][:], values)
            assert file[key].dtype == values.dtype
            assert (file[key].chunks is None) == (
                values.nbytes <= 2000 or (compression == "none" and values.nbytes <= 9000 and len(values) <= 9000)
            )
            assert file[key].compression == (None if file[key].chunks is None or compression == "none" else compression)
            if file[key].chunks:
                assert np.prod(file[key].chunks) * values.itemsize <= 9000
            np.testing.assert_array_equal(hdf5.Hdf5File(file, "it").array(key)[: len(values)], values)


def test_many_short_episodes_take_little_room(tmp_path: pathlib.Path) -> None:
    values = np.zeros((20, 4), np.float32)
    assert values.nbytes < SMALL_BYTES
    with created(tmp_path / "a.hdf5", "gzip") as out:
        for number in range(200):
            out.append(f"episode_{number}/observations", values)
            out.end()
    assert (tmp_path / "a.hdf5").stat().st_size < 200 * (values.nbytes + 2000)


def test_an_error_closes_the_file(tmp_path: pathlib.Path) -> None:
    def write(file: hdf5_writer.Hdf5Writer) -> None:
        file.append("a", np.zeros((5, 100, 100)))
        file.append("a", np.zeros((50000, 100)))

    with pytest.raises(ValueError, match="dimensions"), created(tmp_path / "a.hdf5", "gzip") as out:
        write(out)
    assert not out.file


@pytest.mark.long
@pytest.mark.parametrize("name", [*FORMATS, "npz", "d4rl"])
def test_memory_does_not_grow_with_an_episode(name: str, path: str, tmp_path: pathlib.Path) -> None:
    """80 MB of frames, or 40, all of one episode, pass out and in again; what Python and NumPy hold is a few blocks."""
    rows = 2000 // stride(2, "rows of a large store")
    frame = np.random.default_rng(0).integers(0, 256, (200, 200), np.uint8)
    with dr.ReplayBuffer.create(
        path, spaces.Box(0, 255, (200, 200), np.uint8), spaces.Discrete(2), capacity=rows, seed=0
    ) as buffer:
        for step in range(rows):
            buffer.add(np.roll(frame, step), 0, 0.0, np.roll(frame, step + 1), False, False)
    tracemalloc.start()
    export(path, tmp_path / "a.out", name, compression="none", allow_loss=True)
    with formats.get(name).read(tmp_path / "a.out") as source:
        steps = sum(map(len, source.blocks()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert steps == rows - (not formats.get(name).holds.final_obs)
    assert peak < 32 << 20


@pytest.mark.parametrize("name", FORMATS)
def test_blocks_that_cut_episodes_anywhere(
    name: str, path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diskreplay.formats.core.log_rows.BLOCK_BYTES", 1)
    monkeypatch.setattr("diskreplay.formats.core.flat.BLOCK_BYTES", 3000)
    monkeypatch.setattr("diskreplay.formats.core.container.CHUNK_BYTES", 5000)
    rng: Any = np.random.default_rng(4)
    with dr.ReplayBuffer.create(
        path, spaces.Box(0, 255, (36, 36), np.uint8), spaces.Discrete(2), capacity=300, seed=0
    ) as buffer:
        obs = rng.integers(0, 256, (36, 36), np.uint8)
        for step in range(250):
            following = rng.integers(0, 256, (36, 36), np.uint8)
            buffer.add(obs, step % 2, float(step), following, step in (3, 4, 120), step in (90, 249))
            obs = following
    export(path, tmp_path / "a.out", name, allow_loss=True)
    import_dataset(tmp_path / "a.out", tmp_path / "b.replay", name)
    holds = formats.get(name).holds
    check(read(tmp_path / "b.replay"), expected(read(path), holds), holds)
