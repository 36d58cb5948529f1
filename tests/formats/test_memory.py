"""What libraries keep of a file that is read once does not grow with the file."""

from __future__ import annotations

import pathlib

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diskreplay.formats.files import hdf5
from diskreplay.formats.files.parquet_array import ParquetArray

GROUPS, ROWS, VALUE_BYTES = 16, 64, 1 << 14


def test_arrow_keeps_no_row_group_that_has_been_read(tmp_path: pathlib.Path) -> None:
    path, rng = tmp_path / "some.parquet", np.random.default_rng(0)
    with pq.ParquetWriter(path, pa.schema([("value", pa.binary())])) as out:
        for _ in range(GROUPS):
            out.write_table(pa.table({"value": [rng.bytes(VALUE_BYTES) for _ in range(ROWS)]}))
    before = pa.total_allocated_bytes()
    array = ParquetArray([path], "value", GROUPS * ROWS, ((VALUE_BYTES,), np.dtype(np.uint8)))
    held = []
    for start in range(0, GROUPS * ROWS, ROWS // 2):
        assert array[start : start + ROWS // 2].shape == (ROWS // 2, VALUE_BYTES)
        held.append(pa.total_allocated_bytes() - before)
    assert max(held) < GROUPS // 2 * ROWS * VALUE_BYTES


@pytest.mark.long
def test_hdf5_keeps_little_of_a_file_of_many_episodes(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "some.hdf5"
    with h5py.File(path, "w") as file:
        for number in range(2000):
            file[f"data/demo_{number}/obs/a"] = number
    with hdf5.open_file(path, "r") as file:
        assert sum(int(file[f"data/demo_{number}/obs/a"][()]) for number in range(2000)) == sum(range(2000))
        assert file.id.get_mdc_size()[2] <= 2 << 20
