"""HDF5 chunks whose bytes inflate to fewer or more than a chunk has: HDF5 itself reads them without a word."""

from __future__ import annotations

import pathlib
import zlib

import h5py
import numpy as np
import pytest
from formats.roundtrip import refused


@pytest.mark.parametrize("size", [0, 799, 801, 1 << 26])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_chunk_of_another_size(size: int, shuffle: bool, tmp_path: pathlib.Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for key, values in (
            ("actions", np.zeros(100)),
            ("rewards", np.zeros(100)),
            ("terminals", np.arange(100) == 99),
        ):
            file[key] = values
        data = file.create_dataset("observations", (100, 2), "f4", chunks=(100, 2), compression="gzip", shuffle=shuffle)
        data.id.write_direct_chunk((0, 0), zlib.compress(bytes(size)))
    refused(tmp_path / "a.hdf5", "observations is damaged: a chunk has")
