"""Blosc's functions give what numcodecs gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numcodecs import blosc as numcodecs_blosc

from diskreplay.schema.columns import DTYPES
from diskreplay.storage import blosc


@pytest.mark.parametrize("found", [True, False], ids=["found", "not found"])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize(("compressor", "level"), [("lz4", 5), ("lz4hc", 4), ("zstd", 1)])
def test_buffers_are_those_of_numcodecs(
    dtype: str, compressor: str, level: int, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not found:
        monkeypatch.setattr(blosc, "_module", blosc._imported())
    values = (np.arange(3000) % 70).astype(dtype).reshape(30, 100)
    flat: Any = values.reshape(-1).view(f"V{values.itemsize}")
    for shuffle in (False, True):
        made = blosc.compress(values, compressor, level, shuffle)
        assert made == numcodecs_blosc.compress(flat, compressor.encode(), level, int(shuffle), values.nbytes)
        out = np.empty_like(values)
        blosc.decompress(made, out)
        assert out.tobytes() == values.tobytes()
    for wrong in (b"\2\1\x21\4" + bytes(12), made[:16] + b"\xff" * (len(made) - 16)):
        with pytest.raises(RuntimeError, match="decompression"):
            blosc.decompress(wrong, out)
