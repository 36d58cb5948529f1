"""A disk that is full while HDF5 writes: HDF5 alone ends the process then, when the file is closed."""

from __future__ import annotations

import itertools
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces
from helpers.patience import PATIENCE

import diskreplay as dr
from diskreplay.formats.files.hdf5_output import Output

SCRIPT = """
import errno, pathlib, resource, signal, sys
from diskreplay.ops.convert import export

source, out, name, compression = sys.argv[1:5]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit in map(int, sys.argv[5:]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1))
    try:
        export(source, out, name, compression=compression, allow_loss=True)
    except OSError as error:
        assert error.errno == errno.EFBIG, error
    else:
        raise AssertionError("no file may be so large")
    assert not list(pathlib.Path(out).parent.iterdir())
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """1.6 MB of noise in 40 episodes."""
    path = tmp_path_factory.mktemp("store") / "a.replay"
    rng = np.random.default_rng(0)
    with dr.ReplayBuffer.create(path, spaces.Box(0, 255, (20, 20), np.uint8), spaces.Discrete(2), capacity=4000) as rb:
        obs = rng.integers(0, 256, (20, 20), np.uint8)
        for step in range(4000):
            following = rng.integers(0, 256, (20, 20), np.uint8)
            rb.add(obs, 0, 0.0, following, step % 100 == 99, False)
            obs = following
    return path


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "compression"),
    [
        *itertools.product(["d4rl", "d3rlpy", "robomimic", "minari"], ["gzip", "lzf", "none"]),
        ("npz", "deflate"), ("npz", "none"), ("dopamine", "gzip"),
    ],
)  # fmt: skip
def test_a_full_disk_is_an_error(name: str, compression: str, source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    limits = ["0", "50", "4096", "100000", "1000000", "1500000"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(source), str(folder / "a"), name, compression, *limits],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_what_could_not_be_written_is_read_back(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Output(tmp_path / "a") as out:
        out.write(b"0123456789")
        monkeypatch.setattr("os.pwrite", _no_room)
        for at, data in ((8, b"abcd"), (3, b"xy"), (20, b"z")):
            out.seek(at)
            assert out.write(data) == len(data)
        found = bytearray(24)
        out.seek(0)
        assert out.readinto(memoryview(found)) == 24
        assert bytes(found) == b"012xy567abcd" + bytes(8) + b"z" + bytes(3)
        with pytest.raises(OSError, match="no room"):
            out.check()


def _no_room(*_: object) -> int:
    raise OSError(28, "no room")
