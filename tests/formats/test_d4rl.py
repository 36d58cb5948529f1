"""The D4RL file, row by row against the store that it came from."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tracemalloc
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from ops.stores import fill, images

import diskreplay as dr
from diskreplay import formats
from diskreplay.errors import InputError, NotEnoughDataError, StoreNotFoundError
from diskreplay.formats import d4rl
from diskreplay.formats.d4rl import export


def in_order(buffer: dr.ReplayBuffer) -> tuple[dr.Batch, list[int]]:
    """All transitions, stream by stream and environment by environment, and where episodes end."""
    keys = sorted({(episode.stream, episode.env) for episode in buffer.episodes})
    ids, ends = [], []
    for stream, env in keys:
        envs = [s["num_envs"] for s in buffer.stats()["streams"].values()][stream]
        for episode in buffer.episodes:
            if (episode.stream, episode.env) == (stream, env):
                ids += [stream << 48 | row * envs + env for row in range(episode.start, episode.stop)]
                ends.append(len(ids) - 1)
    return buffer.get(np.array(ids)), ends


def check(path: str, out: pathlib.Path, newest: Any = lambda frames: frames) -> h5py.File:
    """Compares every array; ``newest`` takes the newest frame of the buffer's stacks."""
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        batch, ends = in_order(buffer)
    file = h5py.File(out)
    np.testing.assert_array_equal(file["observations"][:], newest(batch.obs))
    np.testing.assert_array_equal(file["next_observations"][:], newest(batch.next_obs))
    for key, expected in (("actions", batch.action), ("rewards", batch.reward), ("terminals", batch.terminated)):
        np.testing.assert_array_equal(file[key][:], expected)
        assert file[key].dtype == expected.dtype
    last = np.isin(np.arange(len(batch)), ends)
    np.testing.assert_array_equal(file["timeouts"][:], batch.truncated | (last & ~batch.terminated))
    # The rule that readers rely on.
    going_on = ~(file["terminals"][:] | file["timeouts"][:])[:-1]
    np.testing.assert_array_equal(file["next_observations"][:-1][going_on], file["observations"][1:][going_on])
    assert file["timeouts"][-1] or file["terminals"][-1]
    return file


def test_frames_of_two_environments(path: str, tmp_path: pathlib.Path) -> None:
    images(path, rows=90, capacity=100)  # a window that moved on; resets that are no transitions
    seen: list[tuple[int, int]] = []
    result = export(path, tmp_path / "a.hdf5", progress=lambda done, total: seen.append((done, total)))
    with check(path, tmp_path / "a.hdf5", lambda stack: stack[:, -1]) as file:
        assert len(file["rewards"]) == result.transitions == seen[-1][0] == seen[-1][1]
        assert file["observations"].compression == "gzip"
        assert file.attrs["frame_stack"].tolist() == [3]
        assert json.loads(file.attrs["action_space"])["n"] == 5
        assert (file["terminals"][:] | file["timeouts"][:]).sum() == result.episodes
    assert result.stored_bytes == (tmp_path / "a.hdf5").stat().st_size


def test_blocks_and_chunks_that_do_not_meet(path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diskreplay.formats.rows.BLOCK_BYTES", 1)
    monkeypatch.setattr(d4rl, "CHUNK_BYTES", 7 * 1600)
    images(path, rows=70, num_envs=3)
    export(path, tmp_path / "a.hdf5", compression="lzf")
    with check(path, tmp_path / "a.hdf5", lambda stack: stack[:, -1]) as file:
        assert file["observations"].chunks == (7, 40, 40)
        assert file["observations"].compression == "lzf"


def test_unflagged_cuts_and_running_episodes_are_timeouts(path: str, tmp_path: pathlib.Path) -> None:
    with dr.ReplayBuffer.create(path, spaces.Box(-9, 9, (2,)), spaces.Box(-1, 1, (3,)), capacity=50) as buffer:
        rng = np.random.default_rng(0)
        for start in range(4):
            obs = np.full(2, start, np.float32)
            for _ in range(5):
                following = rng.normal(size=2).astype(np.float32)
                buffer.add(obs, rng.normal(size=3).astype(np.float32), 0.5, following, False, False)
                obs = following
    result = export(path, tmp_path / "a.hdf5", compression="none")
    assert result.episodes == 4
    with check(path, tmp_path / "a.hdf5") as file:
        assert np.flatnonzero(file["timeouts"][:]).tolist() == [4, 9, 14, 19]
        assert not file["terminals"][:].any()


def test_nested_spaces_and_columns_of_the_user(path: str, tmp_path: pathlib.Path) -> None:
    space = spaces.Dict(camera=spaces.Box(0, 255, (40, 40, 3), np.uint8), state=spaces.Box(-1, 1, (2,)))
    action = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,))))
    columns = {"log_prob": np.float32, "hidden": ((300,), np.float64)}
    with dr.ReplayBuffer.create(path, space, action, capacity=50, columns=columns) as buffer:
        for step in range(20):
            buffer.add(
                space.sample(), action.sample(), 1.0, space.sample(), step % 4 == 3, False,
                log_prob=np.float32(step), hidden=np.full(300, step, np.float64),
            )  # fmt: skip
    export(path, tmp_path / "a.hdf5")
    with dr.ReplayBuffer.open(path, mode="r") as buffer, h5py.File(tmp_path / "a.hdf5") as file:
        batch = buffer.get(np.arange(20))
        for name in ("camera", "state"):
            np.testing.assert_array_equal(file[f"observations/{name}"][:], batch.obs[name])
            np.testing.assert_array_equal(file[f"next_observations/{name}"][:], batch.next_obs[name])
        for place in (0, 1):
            np.testing.assert_array_equal(file[f"actions/{place}"][:], batch.action[place])
        for name in columns:
            np.testing.assert_array_equal(file[f"infos/{name}"][:], batch.extra[name])


def test_several_streams(path: str, tmp_path: pathlib.Path) -> None:
    images(path, rows=20)
    with dr.ReplayBuffer.open(path, stream="second", num_envs=1) as buffer:
        fill(buffer, 30, seed=1)
    export(path, tmp_path / "a.hdf5")
    with check(path, tmp_path / "a.hdf5", lambda stack: stack[:, -1]) as file:
        assert len(file["rewards"]) > 60


def test_an_existing_file_stays(path: str, tmp_path: pathlib.Path) -> None:
    images(path, rows=10)
    out = tmp_path / "a.hdf5"
    out.write_text("mine")
    with pytest.raises(InputError, match="exists"):
        export(path, out)
    assert out.read_text() == "mine"
    export(path, out, overwrite=True)
    check(path, out, lambda stack: stack[:, -1]).close()


def test_a_failed_export_leaves_nothing(path: str, tmp_path: pathlib.Path) -> None:
    images(path)
    file = pathlib.Path(path, "streams/0/obs/c.0.0.0.0")
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data)
    with pytest.raises(dr.errors.CorruptionError, match=r"c\.0\.0\.0\.0"):
        export(path, tmp_path / "a.hdf5")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.replay"]


def test_bad_arguments(path: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(StoreNotFoundError):
        export(path, tmp_path / "a.hdf5")
    images(path, rows=0)
    with pytest.raises(NotEnoughDataError):
        export(path, tmp_path / "a.hdf5")
    for out, options, what in (
        (tmp_path, {}, "directory"),
        (tmp_path / "no" / "a.hdf5", {}, "no directory"),
        (tmp_path / "a.hdf5", {"compression": "zip"}, "compression"),
    ):
        with pytest.raises(InputError, match=what):
            export(path, out, **options)  # type: ignore[arg-type]
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.replay"]


def test_formats_are_loaded_when_asked_for() -> None:
    assert formats.exporter("d4rl") is export
    with pytest.raises(InputError, match="d4rl"):
        formats.exporter("xlsx")
    code = "import sys, diskreplay, diskreplay.formats; assert 'h5py' not in sys.modules, 'h5py'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_memory_does_not_grow_with_the_store(path: str, tmp_path: pathlib.Path) -> None:
    """80 MB of frames pass through; what Python and NumPy hold at most is a few blocks."""
    frame = np.zeros((200, 200), np.uint8)
    with dr.ReplayBuffer.create(
        path, spaces.Box(0, 255, (200, 200), np.uint8), spaces.Discrete(2), capacity=2000
    ) as buffer:
        for _ in range(2000):
            buffer.add(frame, 0, 0.0, frame, False, False)
    tracemalloc.start()
    export(path, tmp_path / "a.hdf5", compression="none")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 << 20
