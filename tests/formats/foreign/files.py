"""Arrays on disk: HDF5, NPZ, Zarr and Parquet, from names to arrays.

``a/b`` is an array in a group; ``a.attrs/x`` an attribute of ``a``, ``attrs/x`` of the file.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np
import zarr

Named = Mapping[str, Any]


def write(path: pathlib.Path, arrays: Named) -> None:
    """Write a file of the kind that its name says."""
    kinds = {".npz": write_npz, ".zarr": write_zarr, ".zip": write_zarr, ".parquet": write_parquet}
    kinds.get(path.suffix, write_hdf5)(path, arrays)


def write_hdf5(path: pathlib.Path, arrays: Named) -> None:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            place, attribute, key = name.rpartition("attrs/")
            if attribute:
                place = place.rstrip(".") or "/"
                (file[place] if place in file else file.create_group(place)).attrs[key] = values
            elif values is None:
                file.require_group(name)
            else:
                file[name] = values


def write_npz(path: pathlib.Path, arrays: Named) -> None:
    np.savez(path, **arrays)


def write_zarr(path: pathlib.Path, arrays: Named) -> None:
    store = zarr.storage.ZipStore(path, mode="w") if path.suffix == ".zip" else str(path)
    root = zarr.create_group(store, zarr_format=2)
    for name, values in arrays.items():
        root.create_array(name, data=np.asarray(values))
    if not isinstance(store, str):
        store.close()


def write_parquet(path: pathlib.Path, arrays: Named) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = {name: pa.array(values.tolist(), type_of(values)) for name, values in arrays.items()}
    pq.write_table(pa.table(table), path)


def type_of(values: np.ndarray) -> Any:
    import pyarrow as pa

    found = pa.from_numpy_dtype(values.dtype)
    for size in reversed(values.shape[1:]):
        found = pa.list_(found, size)
    return found
