"""Libraries that few uses need are imported by those uses: a program that collects and learns never loads them."""

from __future__ import annotations

import pytest
from helpers.programs import printed

LATE = ["zarr", "h5py", "PIL", "pyarrow", "torch", "pandas"]

USE = """
import gymnasium, numpy as np, tempfile, pathlib
import diskreplay as dr
with tempfile.TemporaryDirectory() as folder:
    space = gymnasium.spaces.Box(0, 255, (64, 64), np.uint8)
    path = pathlib.Path(folder, "store")
    rb = dr.ReplayBuffer.create(path, space, gymnasium.spaces.Discrete(3), capacity=200, frame_stack=4, seed=0)
    frame = np.zeros((64, 64), np.uint8)
    for step in range(100):
        rb.add(frame, 1, 0.0, frame, False, step % 10 == 9)
    rb.commit()
    rb.sample(8)
    rb.checkpoint("kept")
    rb.close()
    reader = dr.ReplayBuffer.open(path, mode="r", checkpoint="kept", seed=0)
    reader.sample(8)
    reader.close()
"""


@pytest.mark.long
@pytest.mark.parametrize("code", ["import diskreplay", USE, "import diskreplay_cli.main"], ids=["import", "use", "cli"])
def test_what_is_not_imported(code: str) -> None:
    code += f"\nimport sys\nprint(*(name for name in {LATE} if name in sys.modules))"
    assert printed(code).split() == []


@pytest.mark.long
def test_zarr_comes_with_its_group() -> None:
    code = USE.replace("    rb.commit()\n", "    rb.commit()\n    rb.zarr()\n")
    code += "\nimport sys\nassert 'zarr' in sys.modules"
    printed(code, flags=("-W", "error"))
