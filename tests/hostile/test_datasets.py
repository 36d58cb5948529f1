"""Thousands of damaged and hostile datasets: a whole store or one line that names the dataset, never anything else.

``DISKREPLAY_TEST_EFFORT=25`` tries 10,000 of them, in about ten minutes of one core. Those that once gave something
else follow.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import operator
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


Damage = Callable[[pathlib.Path], object]
"""What is done to a dataset."""


def rewritten(name: str, change: Callable[[bytes], bytes]) -> Damage:
    """The bytes of a file below it are others."""
    return lambda dataset: (dataset / name).write_bytes(change((dataset / name).read_bytes()))


def edited(name: str, change: Callable[[Any], Any]) -> Damage:
    """A JSON document below it is another."""

    def text(data: bytes) -> bytes:
        document = json.loads(data)
        change(document)
        return json.dumps(document).encode()

    return rewritten(name, text)


def replaced(key: str, *shape: Any, **more: Any) -> Damage:
    """In an HDF5 file an array is another."""

    def change(dataset: pathlib.Path) -> None:
        with h5py.File(dataset, "r+") as file:
            file.pop(key, None)
            file.create_dataset(key, *shape, **more)

    return change


def holed(dataset: pathlib.Path) -> None:
    """Its first document has a hole behind it, of GBs of zeros."""
    os.truncate(next(each for each in dataset.rglob("*") if each.suffix == ".json" or each.name == ".zattrs"), 1 << 32)


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
    edited("data/reward/.zarray", lambda document: document.update(codecs, dtype=dtype))(dataset)
    (dataset / "data/reward/0").write_bytes(pickle.dumps(Payload(tmp_path)))
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


# Errors of other libraries, of several lines, or about nobody knows what

HEADERS = "{'shape': (3,", "{'shape': (3L, ), 'descr': 3}", "(" * 3000, " " * 20_000, "'\\d'"
ZARR, REWARD = "data/reward/.zarray", "$store$_reward_ckpt.0.gz"
CODECS = [
    ({"id": "zlib"}, "damaged"), ([], "damaged"), ({"id": "lzma"}, "damaged"), ({"id": 3}, "that is not installed"),
    ({"id": "no such codec"}, "is compressed by a codec that is not installed"),
]  # fmt: skip
VALUES = "version", "num_episodes", "rewards_0", "terminated_0", "diskreplay"
DAMAGED: list[tuple[str, str, Damage, str]] = [
    # MemoryError, or as much memory as that
    ("many cuts", "d4rl", replaced("metadata/cut", (10**9,), "i8", chunks=True), "bytes cannot hold|too much"),
    *[(f"Zarr declares {change}", "diffusion-policy", edited(ZARR, operator.methodcaller("update", change)),
       "cannot hold|bytes a step|read at once|damaged")
      for change in ({"shape": [1 << 40]}, {"shape": [12, 1 << 40]}, {"chunks": [1 << 31]})],
    *[(f"a hole in {format}", format, holed, "more than") for format in DIRECTORIES],
    ("bounds of GBs", "npz-episodes",
     edited("layout.json", lambda layout: layout["observation_space"].update(shape=[1 << 30], low=0, high=1)),
     "cannot be read"),
    # tokenize.TokenError, MemoryError, a warning about Python 2, several lines
    *[(f"a header {at}", "dopamine", rewritten(REWARD, lambda _, text=text: gzip.compress(npy_header(text))), "damaged")
      for at, text in enumerate(HEADERS)],
    # RecursionError
    *[(f"deep {name}", format, rewritten(name, lambda _: b'{"diskreplay": ' + b"[" * 100_000), "damaged|cannot be read")
      for format, name in (("diffusion-policy", ".zattrs"), ("minari", "data/metadata.json"),
                           ("npz-episodes", "layout.json"))],
    # The error quoted the whole file.
    ("no text", "minari", rewritten("data/metadata.json", lambda data: data + b"\xff" * 10_000), "cannot be read"),
    # zlib.error and others
    *[(f"compressor {codec}", "diffusion-policy",
       edited("data/terminated/.zarray", operator.methodcaller("update", compressor=codec)), said)
      for codec, said in CODECS],
    # TypeError; of rewards, one episode less without a word
    ("false attributes", "diffusion-policy", rewritten(".zattrs", lambda _: b"false"), "damaged"),
    *[(f"no value of {key}", "d3rlpy", replaced(key, data=h5py.Empty("f4")),
       "must be|is of d3rlpy's version|ragged|cannot be read|a single value") for key in VALUES],
    # The error named no dataset.
    ("next observations of float64", "d4rl", replaced("next_observations", data=np.full((12, 5), 1e-300)),
     "without loss"),
    # ValueError
    ("rewards of several numbers", "dopamine",
     lambda dataset: shutil.copyfile(dataset / "$store$_observation_ckpt.0.gz", dataset / REWARD), "not one a step"),
    # SystemError
    ("a blosc chunk of negative size", "diffusion-policy",
     rewritten("data/obs/0.0", lambda data: data[:4] + b"\xff" * 4 + data[8:]), "damaged"),
    # They were read, and compared, several times over.
    ("flags of many numbers a step", "d4rl", replaced("timeouts", (12, 1 << 24), "u1", chunks=(1, 1 << 16)),
     "one flag a step"),
    # Its zeros were skipped, one after another.
    *[(f"a hole behind {name}", "dopamine",
       lambda dataset, name=name: os.truncate(dataset / f"{name}_ckpt.0.gz", 1 << 40), "more than")
      for name in ("episode_end_indices", "$store$_reward", "add_count")],
]  # fmt: skip


@pytest.mark.parametrize(("format", "damage", "said"), [row[1:] for row in DAMAGED], ids=[row[0] for row in DAMAGED])
def test_damage_is_refused(format: str, damage: Damage, said: str, tmp_path: pathlib.Path) -> None:
    dataset = made(tmp_path, format)
    damage(dataset)
    refused(dataset, said, format)


NEITHER = np.array([0, 0, 0, 2, 0, 0], np.uint8).view(bool)
ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    # They were converted, whatever was lost, and numpy warned.
    **{f"final observations of {dtype}": (
        {"obs": np.zeros((6, 3), np.float32), "action": np.zeros(6), "last": np.arange(6) % 3 == 2,
         "final_obs": np.full((2, 3), 7, dtype)}, "final observations") for dtype in ("f8", "i1")},
    # They came into the store, which is damaged with them.
    **{f"{key} that are neither": (
        {"observations": np.zeros((6, 3)), "last": np.arange(6) == 5, "terminals": np.zeros(6, bool),
         "actions": np.zeros(6, bool), key: NEITHER}, "neither 0 nor 1|each 0 or 1")
        for key in ("terminals", "actions")},
    # OverflowError
    "actions that are too many": (
        {"obs": np.zeros((3, 2)), "last": np.arange(3) == 2, "actions": np.full(3, (1 << 64) - 1, np.uint64)},
        "more than a Discrete space has"),
}  # fmt: skip


@pytest.mark.parametrize(("arrays", "said"), ARRAYS.values(), ids=ARRAYS)
def test_arrays_that_cannot_be(arrays: dict[str, Any], said: str, tmp_path: pathlib.Path) -> None:
    with (tmp_path / "the-dataset").open("wb") as file:
        np.savez(file, **arrays)
    refused(tmp_path / "the-dataset", said, "npz")


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


def test_zarr_with_something_else_in_it(tmp_path: pathlib.Path) -> None:
    """Zarr warned."""
    dataset = made(tmp_path, "diffusion-policy")
    (dataset / "data" / "notes").mkdir()
    assert import_dataset(dataset, tmp_path / "a.replay").dropped == 1


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


def test_hdf5_with_a_name_that_is_no_text(tmp_path: pathlib.Path) -> None:
    """TypeError."""
    dataset = made(tmp_path, "robomimic")
    with h5py.File(dataset, "r+") as file:
        h5py.h5g.create(file["data"].id, b"demo_\xff")
    assert import_dataset(dataset, tmp_path / "a.replay").transitions == 12


def test_hdf5_with_a_text_longer_than_the_file(tmp_path: pathlib.Path) -> None:
    """HDF5 took 4 GB."""
    dataset = made(tmp_path, "d3rlpy")
    with h5py.File(dataset) as file:
        at = file["version"].id.get_offset()
    with dataset.open("r+b") as raw:
        raw.seek(at)
        raw.write(b"\xff" * 4)
    refused(dataset, "more than the file", "d3rlpy")


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
