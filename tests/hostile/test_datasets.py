"""Thousands of damaged and hostile datasets: a whole store or one line that names the dataset, never anything else.

``DISKREPLAY_TEST_EFFORT=25`` tries 10,000 of them, in about ten minutes of one core. Those that once gave something
else follow.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import os
import pathlib
import pickle
import resource
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from formats import roundtrip
from formats.roundtrip import FORCE, TERMINATED, TRUNCATED, store
from gymnasium import spaces
from helpers.effort import SAMPLED, examples
from hostile import dataset_bases, pool
from hostile.dataset_mutations import Payload, npy_header

from diskreplay.errors import DiskReplayError
from diskreplay.ops.convert import export, import_dataset
from diskreplay.ops.verify import verify

CASES = 400
KINDS = ["images"] if SAMPLED else list(dataset_bases.STORES)
SEED = 20_261_121


@pytest.mark.long
def test_mutations(tmp_path: pathlib.Path, record_property: pytest.RecordProperty) -> None:
    cases = examples(CASES, "mutations")
    bases = dataset_bases.make(tmp_path, KINDS)
    outcome = pool.run("hostile.dataset_worker", bases, tmp_path / "worker", SEED, cases)
    record_property("ended", outcome.said())
    print(outcome.said())
    shutil.rmtree(tmp_path)
    assert not outcome.violations, "\n\n".join(outcome.violations)
    assert outcome.ended.total() == cases
    for word in ("imported", "refused"):
        assert sum(count for (_, how), count in outcome.ended.items() if how == word) > cases // 10


# Named ones


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """What asks for more than some GB fails."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    status = pathlib.Path("/proc/self/status").read_text().splitlines()
    taken = next(int(line.split()[1]) << 10 for line in status if "VmSize" in line)
    resource.setrlimit(resource.RLIMIT_AS, (taken + (2 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def made(folder: pathlib.Path, format: str) -> pathlib.Path:
    """A dataset of 12 steps."""
    store(spaces.Box(-9, 9, (5,), np.float32), FORCE, [(5, TERMINATED), (7, TRUNCATED)])(str(folder / "source.replay"))
    dataset = folder / "the-dataset"
    export(folder / "source.replay", dataset, format, allow_loss=True)
    shutil.rmtree(folder / "source.replay")
    return dataset


refused = functools.partial(roundtrip.refused, error=DiskReplayError)


def edited(file: pathlib.Path, change: Callable[[Any], Any]) -> None:
    """Changes a JSON document."""
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


# Code that a dataset brings along


@pytest.mark.parametrize("dtype", ["<f4", "|O"])
@pytest.mark.parametrize(
    "codecs",
    [
        {"filters": [{"id": "pickle"}], "compressor": None},
        {"filters": None, "compressor": {"id": "pickle"}},
        {"filters": [{"id": "vlen-utf8"}, {"id": "pickle"}], "compressor": None},
    ],
)
def test_zarr_chunks_that_are_pickles(codecs: dict[str, Any], dtype: str, tmp_path: pathlib.Path) -> None:
    """numcodecs has a codec that loads them; its newest versions do so only when told. Zarr refuses plain cases."""
    dataset = made(tmp_path, "diffusion-policy")
    array = dataset / "data" / "reward"
    edited(array / ".zarray", lambda document: document.update(codecs, dtype=dtype))
    (array / "0").write_bytes(pickle.dumps(Payload(tmp_path)))
    refused(dataset, "holds pickles|damaged", "diffusion-policy")
    assert not (tmp_path / "loaded").exists()


@pytest.mark.parametrize("kind", ["EPS", "GIF", "TIFF"])
def test_images_that_pillow_knows_but_we_do_not_want(kind: str, tmp_path: pathlib.Path) -> None:
    """Pillow runs Ghostscript for the first of them."""
    import PIL.Image

    out = io.BytesIO()
    PIL.Image.new("RGB", (16, 16)).save(out, kind)
    refused(pictures(tmp_path, out.getvalue()), "neither PNG nor JPEG", "parquet")


def pictures(folder: pathlib.Path, image: bytes) -> pathlib.Path:
    """A dataset whose observations are all this image."""
    table = {"observation": [{"bytes": image, "path": None}] * 3, "action": [0, 1, 2], "episode_index": [0, 0, 0]}
    pq.write_table(pa.table(table), folder / "the-dataset")
    return folder / "the-dataset"


# Files of others


@pytest.mark.parametrize("kind", ["link", "soft link to it", "virtual", "external"])
def test_hdf5_that_leads_into_other_files(kind: str, tmp_path: pathlib.Path) -> None:
    """They were followed without a word."""
    dataset = made(tmp_path, "d4rl")
    other = tmp_path / "other.hdf5"
    shutil.copyfile(dataset, other)
    with h5py.File(dataset, "r+") as file:
        shape, dtype = file["rewards"].shape, file["rewards"].dtype
        del file["rewards"]
        if kind == "external":
            file.create_dataset("rewards", shape, dtype, external=[(str(other), 0, h5py.h5f.UNLIMITED)])
        elif kind == "virtual":
            layout = h5py.VirtualLayout(shape, dtype)
            layout[:] = h5py.VirtualSource(str(other), "rewards", shape)
            file.create_virtual_dataset("rewards", layout)
        else:
            file["rewards" if kind == "link" else "away"] = h5py.ExternalLink(str(other), "/rewards")
            if kind != "link":
                file["rewards"] = h5py.SoftLink("/away")
    refused(dataset, "link into another file|lie in other files", "d4rl")


def test_a_link_within_the_file(tmp_path: pathlib.Path) -> None:
    dataset = made(tmp_path, "d4rl")
    with h5py.File(dataset, "r+") as file:
        file.move("rewards", "kept/rewards")
        file["rewards"] = h5py.SoftLink("/kept/rewards")
        file["observations_again"] = h5py.SoftLink("observations_again")
    assert import_dataset(dataset, tmp_path / "a.replay").transitions == 12


DIRECTORIES = ["minari", "minari-arrow", "npz-episodes", "dopamine", "diffusion-policy", "rlds"]


@pytest.mark.parametrize("format", [*DIRECTORIES, "parquet"])
def test_a_pipe_in_a_files_place(format: str, tmp_path: pathlib.Path) -> None:
    """Opening it waited for a writer for ever."""
    dataset = made(tmp_path, format)
    if dataset.is_file():
        dataset.rename(tmp_path / "0.parquet")
        dataset.mkdir()
        (tmp_path / "0.parquet").rename(dataset / "0.parquet")
        os.mkfifo(dataset / "1.parquet")
    for file in sorted(dataset.rglob("*")):
        if file.is_file() and file.suffix in (".json", ".gz", ".arrow", ""):
            file.unlink()
            os.mkfifo(file)
    refused(dataset, "no file that can be read|no HDF5", format)
    refused(dataset, "no file that can be read|of no format|no HDF5", None)


def test_a_directory_in_a_files_place(tmp_path: pathlib.Path) -> None:
    """IsADirectoryError."""
    dataset = made(tmp_path, "dopamine")
    file = dataset / "$store$_reward_ckpt.0.gz"
    file.unlink()
    file.mkdir()
    refused(dataset, "Is a directory", "dopamine")


# Sizes that lie


@pytest.mark.parametrize("rows", [1 << 32, 1 << 40, 1 << 60])
def test_hdf5_of_a_few_kb_that_declares_many_rows(rows: int, tmp_path: pathlib.Path) -> None:
    """MemoryError, or as much memory as that."""
    dataset = tmp_path / "the-dataset"
    with h5py.File(dataset, "w") as file:
        for key in ("observations", "actions", "rewards", "terminals"):
            file.create_dataset(key, (rows, *((3,) if key == "observations" else ())), "u1", chunks=True)
    refused(dataset, "bytes cannot hold", "d4rl")


def test_hdf5_of_a_few_kb_that_declares_many_cuts(tmp_path: pathlib.Path) -> None:
    dataset = made(tmp_path, "d4rl")
    with h5py.File(dataset, "r+") as file:
        file.create_dataset("metadata/cut", (10**9,), "i8", chunks=True)
    refused(dataset, "bytes cannot hold|too much", "d4rl")


@pytest.mark.parametrize("shape", ["(1099511627776,)", "(4294967296, 4294967296)", "(5, 1152921504606846976)"])
def test_npz_that_declares_much(shape: str, tmp_path: pathlib.Path) -> None:
    """Products of sizes overflowed without a word."""
    import zipfile

    dataset = tmp_path / "the-dataset"
    with zipfile.ZipFile(dataset, "w") as archive:
        for key in ("obs", "action"):
            text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
            archive.writestr(f"{key}.npy", npy_header(text))
    refused(dataset, "bytes cannot hold|of .* bytes a step", "npz")


@pytest.mark.parametrize("change", [{"shape": [1 << 40]}, {"shape": [12, 1 << 40]}, {"chunks": [1 << 31]}])
def test_zarr_that_declares_much(change: dict[str, Any], tmp_path: pathlib.Path) -> None:
    dataset = made(tmp_path, "diffusion-policy")
    edited(dataset / "data" / "reward" / ".zarray", lambda document: document.update(change))
    refused(dataset, "cannot hold|bytes a step|read at once|damaged", "diffusion-policy")


@pytest.mark.parametrize("format", DIRECTORIES)
def test_a_document_with_a_hole(format: str, tmp_path: pathlib.Path) -> None:
    """It was read whole: GBs of zeros."""
    dataset = made(tmp_path, format)
    files = [file for file in dataset.rglob("*") if file.suffix == ".json" or file.name == ".zattrs"]
    os.truncate(files[0], 1 << 32)
    refused(dataset, "more than", format)


@pytest.mark.parametrize("sizes", [(1 << 31, 1), (20_000, 20_000), (12_000, 12_000)])
def test_a_png_of_a_few_bytes_and_many_pixels(sizes: tuple[int, int], tmp_path: pathlib.Path) -> None:
    """Pillow warned, or raised an error of its own."""
    import PIL.Image

    out = io.BytesIO()
    PIL.Image.new("RGB", (16, 16)).save(out, "png")
    data = bytearray(out.getvalue())
    data[16:24] = struct.pack(">II", *sizes)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    refused(pictures(tmp_path, bytes(data)), "no image", "parquet")


def test_a_palette_with_transparency(tmp_path: pathlib.Path) -> None:
    """Pillow warned."""
    import PIL.Image

    out = io.BytesIO()
    PIL.Image.new("P", (16, 16)).save(out, "png", transparency=b"\x01\x02")
    import_dataset(pictures(tmp_path, out.getvalue()), tmp_path / "a.replay", "parquet")
    assert verify(tmp_path / "a.replay").ok


def test_a_space_with_a_large_shape(tmp_path: pathlib.Path) -> None:
    """Its bounds took GBs."""
    dataset = made(tmp_path, "npz-episodes")
    edited(dataset / "layout.json", lambda layout: layout["observation_space"].update(shape=[1 << 30], low=0, high=1))
    refused(dataset, "cannot be read", "npz-episodes")


# Errors of other libraries, of several lines, or about nobody knows what


@pytest.mark.parametrize("text", ["{'shape': (3,", "{'shape': (3L, ), 'descr': 3}", "(" * 3000, " " * 20_000, "'\\d'"])
def test_headers_of_arrays(text: str, tmp_path: pathlib.Path) -> None:
    """tokenize.TokenError, MemoryError, a warning about Python 2, several lines."""
    dataset = made(tmp_path, "dopamine")
    (dataset / "$store$_reward_ckpt.0.gz").write_bytes(gzip.compress(npy_header(text)))
    refused(dataset, "damaged", "dopamine")


@pytest.mark.parametrize(
    ("format", "name"),
    [("diffusion-policy", ".zattrs"), ("minari", "data/metadata.json"), ("npz-episodes", "layout.json")],
)
def test_json_that_is_nested_deeply(format: str, name: str, tmp_path: pathlib.Path) -> None:
    """RecursionError."""
    dataset = made(tmp_path, format)
    (dataset / name).write_text('{"diskreplay": ' + "[" * 100_000)
    refused(dataset, "damaged|cannot be read", format)


@pytest.mark.parametrize("value", ["1e999", "-1", "0.5", "null", '"x"', "[1]", "9" * 400])
@pytest.mark.parametrize("format", ["minari", "minari-arrow"])
def test_counts_in_json(format: str, value: str, tmp_path: pathlib.Path) -> None:
    """OverflowError."""
    dataset = made(tmp_path, format)
    files = [dataset / "data" / "metadata.json", *dataset.glob("data/0/metadata.json")]
    document = json.loads(files[-1].read_text())
    key = "total_steps" if len(files) == 2 else "total_episodes"
    files[-1].write_text(json.dumps({**document, key: "HERE"}).replace('"HERE"', value))
    refused(dataset, "one whole number", format)


def test_metadata_that_are_no_text(tmp_path: pathlib.Path) -> None:
    """The error quoted the whole file."""
    dataset = made(tmp_path, "minari")
    file = dataset / "data" / "metadata.json"
    file.write_bytes(file.read_bytes() + b"\xff" * 10_000)
    refused(dataset, "cannot be read", "minari")


@pytest.mark.parametrize(
    ("compressor", "said"),
    [({"id": "zlib"}, "damaged"), ([], "damaged"), ({"id": "lzma"}, "damaged"),
     ({"id": "no such codec"}, "is compressed by a codec that is not installed"), ({"id": 3}, "that is not installed")],
)  # fmt: skip
def test_codecs_of_zarr(compressor: Any, said: str, tmp_path: pathlib.Path) -> None:
    """zlib.error and others."""
    dataset = made(tmp_path, "diffusion-policy")
    edited(dataset / "data" / "terminated" / ".zarray", lambda document: document.update(compressor=compressor))
    refused(dataset, said, "diffusion-policy")


def test_attributes_of_zarr_that_are_none(tmp_path: pathlib.Path) -> None:
    """TypeError."""
    dataset = made(tmp_path, "diffusion-policy")
    (dataset / ".zattrs").write_text("false")
    refused(dataset, "damaged", "diffusion-policy")


def test_zarr_with_something_else_in_it(tmp_path: pathlib.Path) -> None:
    """Zarr warned."""
    dataset = made(tmp_path, "diffusion-policy")
    (dataset / "data" / "notes").mkdir()
    assert import_dataset(dataset, tmp_path / "a.replay").dropped == 1


@pytest.mark.parametrize("key", ["version", "num_episodes", "rewards_0", "terminated_0", "diskreplay"])
def test_hdf5_without_a_value(key: str, tmp_path: pathlib.Path) -> None:
    """TypeError; or, of rewards, one episode less without a word."""
    dataset = made(tmp_path, "d3rlpy")
    with h5py.File(dataset, "r+") as file:
        del file[key]
        file[key] = h5py.Empty("f4")
    refused(dataset, "must be|is of d3rlpy's version|ragged|cannot be read|a single value", "d3rlpy")


def test_arrow_with_a_column_twice(tmp_path: pathlib.Path) -> None:
    """KeyError."""
    dataset = made(tmp_path, "minari-arrow")
    file = dataset / "data" / "0" / "part-0.arrow"
    with pa.ipc.open_file(str(file)) as opened:
        table = opened.read_all()
    table = table.append_column("rewards", pa.array(["text"] * len(table)))
    with pa.ipc.new_file(str(file), table.schema) as out:
        out.write_table(table)
    assert import_dataset(dataset, tmp_path / "a.replay").transitions == 12


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("format", ["d4rl", "robomimic", "d3rlpy"])
def test_rewards_that_are_not_finite(format: str, value: float, tmp_path: pathlib.Path) -> None:
    """The error named no dataset."""
    dataset = made(tmp_path, format)
    key = {"d4rl": "rewards", "robomimic": "data/demo_1/rewards", "d3rlpy": "rewards_1"}[format]
    with h5py.File(dataset, "r+") as file:
        file[key][2] = value
    refused(dataset, "must be finite", format)


def test_next_observations_of_another_dtype(tmp_path: pathlib.Path) -> None:
    """The error named no dataset."""
    dataset = made(tmp_path, "d4rl")
    with h5py.File(dataset, "r+") as file:
        del file["next_observations"]
        file["next_observations"] = np.full((12, 5), 1e-300)
    refused(dataset, "without loss", "d4rl")


@pytest.mark.parametrize("dtype", ["f8", "i1"])
def test_final_observations_of_another_dtype(dtype: str, tmp_path: pathlib.Path) -> None:
    """They were converted, whatever was lost, and numpy warned."""
    dataset = tmp_path / "the-dataset"
    obs, last = np.zeros((6, 3), np.float32), np.arange(6) % 3 == 2
    with dataset.open("wb") as file:
        np.savez(file, obs=obs, action=np.zeros(6), last=last, final_obs=np.full((2, 3), 7, dtype))
    refused(dataset, "final observations", "npz")


@pytest.mark.parametrize("key", ["terminals", "actions"])
def test_booleans_that_are_neither(key: str, tmp_path: pathlib.Path) -> None:
    """They came into the store, which is damaged with them."""
    dataset = tmp_path / "the-dataset"
    flags = {key: np.zeros(6, bool) for key in ("terminals", "actions")}
    flags[key].view(np.uint8)[3] = 2
    with dataset.open("wb") as file:
        np.savez(file, observations=np.zeros((6, 3)), last=np.arange(6) == 5, **flags)
    refused(dataset, "neither 0 nor 1|each 0 or 1", "npz")


def test_rewards_of_several_numbers(tmp_path: pathlib.Path) -> None:
    """ValueError."""
    dataset = made(tmp_path, "dopamine")
    shutil.copyfile(dataset / "$store$_observation_ckpt.0.gz", dataset / "$store$_reward_ckpt.0.gz")
    refused(dataset, "not one a step", "dopamine")


def test_hdf5_with_a_name_that_is_no_text(tmp_path: pathlib.Path) -> None:
    """TypeError."""
    dataset = made(tmp_path, "robomimic")
    with h5py.File(dataset, "r+") as file:
        h5py.h5g.create(file["data"].id, b"demo_\xff")
    assert import_dataset(dataset, tmp_path / "a.replay").transitions == 12


def test_a_blosc_chunk_of_negative_size(tmp_path: pathlib.Path) -> None:
    """SystemError."""
    dataset = made(tmp_path, "diffusion-policy")
    file = dataset / "data" / "obs" / "0.0"
    data = bytearray(file.read_bytes())
    data[4:8] = b"\xff" * 4
    file.write_bytes(data)
    refused(dataset, "damaged", "diffusion-policy")


def test_flags_of_many_numbers_a_step(tmp_path: pathlib.Path) -> None:
    """They were read, and compared, several times over."""
    dataset = made(tmp_path, "d4rl")
    with h5py.File(dataset, "r+") as file:
        del file["timeouts"]
        file.create_dataset("timeouts", (12, 1 << 24), "u1", chunks=(1, 1 << 16))
    refused(dataset, "one flag a step", "d4rl")


def test_hdf5_with_a_text_longer_than_the_file(tmp_path: pathlib.Path) -> None:
    """HDF5 took 4 GB."""
    dataset = made(tmp_path, "d3rlpy")
    with h5py.File(dataset) as file:
        at = file["version"].id.get_offset()
    with dataset.open("r+b") as raw:
        raw.seek(at)
        raw.write(b"\xff" * 4)
    refused(dataset, "more than the file", "d3rlpy")


def test_actions_that_are_too_many(tmp_path: pathlib.Path) -> None:
    """OverflowError."""
    dataset = tmp_path / "the-dataset"
    with dataset.open("wb") as file:
        np.savez(file, obs=np.zeros((3, 2)), last=np.arange(3) == 2, actions=np.full(3, (1 << 64) - 1, np.uint64))
    refused(dataset, "more than a Discrete space has", "npz")


@pytest.mark.parametrize("name", ["episode_end_indices", "$store$_reward", "add_count"])
def test_a_gzip_file_with_a_hole_behind_it(name: str, tmp_path: pathlib.Path) -> None:
    """Its zeros were skipped, one after another."""
    dataset = made(tmp_path, "dopamine")
    os.truncate(dataset / f"{name}_ckpt.0.gz", 1 << 40)
    refused(dataset, "more than", "dopamine")


def test_signalling_nans(tmp_path: pathlib.Path) -> None:
    """numpy warned."""
    dataset = made(tmp_path, "dopamine")
    (dataset / "diskreplay.json").unlink()
    values = np.full((12, 2), 0x7FA00000, np.uint32).view(np.float32)
    with gzip.open(dataset / "$store$_action_ckpt.0.gz") as file:
        values = np.resize(values, np.lib.format.read_array(io.BytesIO(file.read())).shape)
    out = io.BytesIO()
    np.save(out, values)
    (dataset / "$store$_action_ckpt.0.gz").write_bytes(gzip.compress(out.getvalue()))
    import_dataset(dataset, tmp_path / "a.replay", "dopamine")
    assert verify(tmp_path / "a.replay").ok
