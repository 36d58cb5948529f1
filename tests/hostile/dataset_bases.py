"""Small datasets of every format that is read, to be mutated."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable

import h5py
import numpy as np
import pyarrow.parquet as pq
from formats.roundtrip import BOTH, FORCE, NO_END, TERMINATED, TRUNCATED, store
from gymnasium import spaces

from diskreplay import formats
from diskreplay.ops.convert import export

LENGTHS = [(6, TERMINATED), (1, TRUNCATED), (9, TRUNCATED), (4, NO_END), (5, BOTH)]
IMAGE = spaces.Box(0, 255, (16, 16, 3), np.uint8)
VECTOR = spaces.Box(-9, 9, (5,), np.float32)
NESTED = spaces.Dict(camera=IMAGE, arm=spaces.Dict(joints=spaces.Box(-9, 9, (2,), np.float64), grip=spaces.Discrete(4)))
STORES = {
    "vectors": store(
        VECTOR, spaces.Discrete(4), LENGTHS, columns={"log_prob": np.float32, "hidden": ((3,), np.float64)}
    ),
    "images": store(IMAGE, FORCE, LENGTHS),
    "frames": store(spaces.Box(0, 255, (40, 40), np.uint8), spaces.Discrete(3), LENGTHS, frame_stack=3),
    "nested": store(NESTED, FORCE, LENGTHS),
    "texts": store(spaces.Dict(said=spaces.Text(9), at=VECTOR), spaces.Text(4), LENGTHS),
}
SUFFIXES = {"d4rl": ".hdf5", "d3rlpy": ".hdf5", "robomimic": ".hdf5", "npz": ".npz", "parquet": ".parquet"}


def make(folder: pathlib.Path, kinds: Iterable[str] = STORES) -> pathlib.Path:
    """A folder for each dataset, named after its format and kind, that holds it and nothing else."""
    made = folder / "bases"
    for kind in kinds:
        STORES[kind](str(folder / kind))
        for format in [each for each in formats.every() if each.write is not None]:
            holds = format.holds
            if format.read is None or (kind in ("nested", "texts") and not holds.nested_obs):
                continue
            if kind == "texts" and not (holds.ragged or holds.text):
                continue
            place = made / f"{format.name} {kind}"
            place.mkdir(parents=True)
            path = place / f"set-of-{format.name}{SUFFIXES.get(format.name, '')}"
            export(folder / kind, path, format.name, allow_loss=True)
            if format.name != "store":
                foreign = made / f"{format.name} {kind}, of others" / path.name
                foreign.parent.mkdir()
                export(folder / kind, foreign, format.name, allow_loss=True)
                strip(foreign)
    two = made / "parquet of two files" / "set-of-parquet"
    two.mkdir(parents=True)
    for number in range(2):
        export(folder / "images", two / f"{number}.parquet", "parquet")
    return made


def strip(dataset: pathlib.Path) -> None:
    """Takes our description out of a dataset, as if others had written it."""
    for file in [dataset] if dataset.is_file() else sorted(dataset.rglob("*")):
        if file.suffix == ".hdf5":
            with h5py.File(file, "r+") as opened:
                for key in ("metadata/diskreplay", "diskreplay"):
                    if key in opened:
                        del opened[key]
        elif file.suffix == ".parquet":
            pq.write_table(pq.read_table(file).replace_schema_metadata({}), file)
        elif file.suffix == ".npz" and dataset.is_file():
            with np.load(file) as arrays:
                np.savez(file, **{key: arrays[key] for key in arrays if key != "layout"})
        elif file.name in ("layout.json", "diskreplay.json", ".zattrs"):
            file.unlink()
        elif file.name == "metadata.json":
            described = json.loads(file.read_text())
            described.pop("diskreplay", None)
            file.write_text(json.dumps(described))
