"""The D4RL file, row by row against the store that it came from."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import h5py
import numpy as np
import pytest
from formats.foreign import files
from formats.roundtrip import refused
from gymnasium import spaces
from helpers.effort import stride
from ops.stores import images

import diskreplay as dr
from diskreplay.errors import InputError, NotEnoughDataError, StoreNotFoundError
from diskreplay.formats.files import hdf5, hdf5_writer
from diskreplay.formats.selection import Selection
from diskreplay.ops.convert import export, import_dataset


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
    result = export(path, tmp_path / "a.hdf5", allow_loss=True, progress=lambda done, total: seen.append((done, total)))
    with check(path, tmp_path / "a.hdf5", lambda stack: stack[:, -1]) as file:
        assert len(file["rewards"]) == result.transitions == seen[-1][0] == seen[-1][1]
        assert (file["observations"].compression, file.attrs["frame_stack"].tolist()) == ("gzip", [3])
        assert json.loads(file["metadata/diskreplay"][()])["action_space"]["n"] == 5
        assert (file["terminals"][:] | file["timeouts"][:]).sum() == result.episodes
    assert result.stored_bytes == (tmp_path / "a.hdf5").stat().st_size


def test_blocks_and_chunks_that_do_not_meet(path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diskreplay.formats.core.log_rows.BLOCK_BYTES", 1)
    monkeypatch.setattr("diskreplay.formats.core.container.CHUNK_BYTES", 7 * 1600)
    images(path, rows=70, num_envs=3)
    export(path, tmp_path / "a.hdf5", compression="lzf", allow_loss=True)
    with check(path, tmp_path / "a.hdf5", lambda stack: stack[:, -1]) as file:
        assert (file["observations"].chunks, file["observations"].compression) == ((7, 40, 40), "lzf")


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
    (tmp_path / "folder").mkdir()
    images(path, rows=5)
    with pytest.raises(NotEnoughDataError):
        export(path, tmp_path / "a.hdf5", selection=Selection(min_return=1e9))
    for out, options, what in (
        (tmp_path / "folder", {}, "is a directory"),
        (tmp_path, {}, "apart"),
        (tmp_path / "no" / "a.hdf5", {}, "no directory"),
        (tmp_path / "a.hdf5", {"compression": "zip"}, "compression"),
        (tmp_path / "a.hdf5", {"format": "xlsx"}, "no format"),
        (tmp_path / "a.replay" / "a.hdf5", {}, "apart"),
    ):
        with pytest.raises(InputError, match=what):
            export(path, out, **options)  # type: ignore[arg-type]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.replay", "folder"]


@pytest.mark.long
def test_formats_are_loaded_when_asked_for() -> None:
    code = "import sys, diskreplay, diskreplay.formats; assert 'h5py' not in sys.modules, 'h5py'"
    subprocess.run([sys.executable, "-c", code], check=True)


WIDTH = 7000 // stride(7, "widths of arrays")


@pytest.mark.long
@pytest.mark.parametrize("compression", ["gzip", "lzf", "none"])
def test_hdf5_reads_what_was_compressed_here(compression: str, tmp_path: pathlib.Path) -> None:
    """Pieces that meet no chunks, each against h5py; the last chunk is not full."""
    rng = np.random.default_rng(0)
    arrays = {
        "bytes": rng.integers(0, 9, (301, 100, 100), np.uint8), "doubles": rng.normal(size=(301, WIDTH)),
        "halves": rng.normal(size=301).astype(np.float16), "flags": rng.random(301) < 0.5,
    }  # fmt: skip
    with hdf5_writer.created(tmp_path / "a.hdf5", compression) as out:
        for start in range(0, 301, 43):
            for name, values in arrays.items():
                out.append(f"group/{name}", values[start : start + 43])
    with h5py.File(tmp_path / "a.hdf5") as file:
        for name, values in arrays.items():
            found = file["group"][name]
            assert found.dtype == values.dtype
            np.testing.assert_array_equal(found[:], values)
            ours = hdf5.Hdf5File(file, "it").array(f"group/{name}")
            for start, stop in ((0, 301), (0, 1), (5, 5), (7, 200), (200, 301), (90, 150)):
                np.testing.assert_array_equal(ours[start:stop], values[start:stop])


def test_hdf5_of_others_is_read(tmp_path: pathlib.Path) -> None:
    values = np.random.default_rng(0).integers(0, 99, (50, 6)).astype(np.float32)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_dataset("plain", data=values)
        file.create_dataset("unshuffled", data=values, chunks=(7, 6), compression="gzip")
        file.create_dataset("tiles", data=values, chunks=(7, 3), compression="gzip", shuffle=True)
        file.create_dataset("summed", data=values, chunks=(7, 6), compression="gzip", shuffle=True, fletcher32=True)
        file.create_dataset("big-endian", data=values.astype(">f4"), chunks=(7, 6), compression="gzip", shuffle=True)
        file.create_dataset("fast", data=values, chunks=(7, 6), compression="gzip", shuffle=True)
        holes = file.create_dataset("holes", (50, 6), np.float32, chunks=(7, 6), compression="gzip", shuffle=True,
                                    fillvalue=3)  # fmt: skip
        holes[20:30] = values[20:30]
    with h5py.File(tmp_path / "a.hdf5") as file:
        for name, data in file.items():
            found = hdf5.Hdf5File(file, "it").array(name)
            np.testing.assert_array_equal(np.concatenate([found[0:11], found[11:50]]), data[:])


def test_a_damaged_chunk_is_named(path: str, tmp_path: pathlib.Path) -> None:
    images(path)
    out = tmp_path / "a.hdf5"
    export(path, out)
    with h5py.File(out) as file:
        place = file["observations"].id.get_chunk_info(0)
    data = bytearray(out.read_bytes())
    data[place.byte_offset + place.size // 2] ^= 0xFF
    out.write_bytes(data)
    with pytest.raises(InputError, match="observations is damaged"):
        import_dataset(out, tmp_path / "b.replay")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.hdf5", "a.replay"]


# In


def qlearning_dataset(file: h5py.File) -> dict[str, np.ndarray]:
    """The rules of D4RL's function of that name, step by step: what a learner gets of a file."""
    observations, count = file["observations"], len(file["rewards"])
    kept: dict[str, list[Any]] = {key: [] for key in ("obs", "action", "reward", "next_obs", "terminated")}
    for step in range(count - 1):
        if file["timeouts"][step]:
            continue  # the next entry is another episode's
        for key, value in (
            ("obs", observations[step]), ("action", file["actions"][step]), ("reward", file["rewards"][step]),
            ("next_obs", observations[step + 1]), ("terminated", bool(file["terminals"][step])),
        ):  # fmt: skip
            kept[key].append(value)
    return {key: np.array(values) for key, values in kept.items()}


def d4rl_file(path: pathlib.Path, count: int = 40, **changes: Any) -> None:
    """A file as D4RL publishes them: float32, flags, infos, no next observations."""
    rng = np.random.default_rng(1)
    arrays: dict[str, Any] = {
        "observations": rng.normal(size=(count, 4)).astype(np.float32),
        "actions": rng.normal(size=(count, 2)).astype(np.float32),
        "rewards": rng.normal(size=count).astype(np.float32),
        "terminals": np.arange(count) % 13 == 7,
        "timeouts": np.isin(np.arange(count), (3, 19, 20, 30)),
        "infos/qpos": rng.normal(size=(count, 3)),
        "infos/action_log_probs": rng.normal(size=count).astype(np.float32),
        "metadata/algorithm": np.bytes_("SAC"),
        **changes,
    }
    files.write(path, {key: values for key, values in arrays.items() if values is not None})


@pytest.mark.parametrize("exported", [False, True], ids=["published", "exported"])
def test_every_transition_that_learners_get_is_ours(path: str, tmp_path: pathlib.Path, exported: bool) -> None:
    source = tmp_path / "a.hdf5"
    d4rl_file(source)
    if exported:
        import_dataset(source, tmp_path / "first.replay")
        export(tmp_path / "first.replay", tmp_path / "b.hdf5")
        source = tmp_path / "b.hdf5"
    import_dataset(source, path)
    with h5py.File(source) as file:
        wanted = qlearning_dataset(file)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        batch = buffer.get(np.arange(len(buffer)))
    found = {bytes(obs): at for at, obs in enumerate(batch.obs)}
    places = np.array([found[bytes(obs)] for obs in wanted["obs"]])
    for key in ("obs", "action", "reward", "terminated"):
        np.testing.assert_array_equal(getattr(batch, key)[places], wanted[key])
    going_on = ~wanted["terminated"]
    np.testing.assert_array_equal(batch.next_obs[places][going_on], wanted["next_obs"][going_on])


def test_the_order_of_bytes_does_not_matter(path: str, tmp_path: pathlib.Path) -> None:
    obs = np.random.default_rng(0).normal(size=(40, 4)).astype(">f4")
    d4rl_file(tmp_path / "a.hdf5", observations=obs, next_observations=obs[::-1], rewards=np.ones(40, ">f8"))
    import_dataset(tmp_path / "a.hdf5", path)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        np.testing.assert_array_equal(buffer.get(np.arange(40)).obs, obs)
        assert buffer.schema.obs_columns[0].dtype == np.float32


def test_next_observations_are_taken_as_they_are(path: str, tmp_path: pathlib.Path) -> None:
    """They need not be the next entry's: a subsampled file."""
    following = np.random.default_rng(5).normal(size=(40, 4)).astype(np.float32)
    d4rl_file(tmp_path / "a.hdf5", next_observations=following, rewards=np.ones((40, 1)), terminals=np.zeros((40, 1)))
    result = import_dataset(tmp_path / "a.hdf5", path)
    assert (result.transitions, result.dropped) == (40, 0)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        batch = buffer.get(np.arange(40))
        assert batch.reward.dtype == np.float64
        np.testing.assert_array_equal(batch.next_obs, following)


def test_discrete_actions_and_given_spaces(path: str, tmp_path: pathlib.Path) -> None:
    d4rl_file(tmp_path / "a.hdf5", actions=np.arange(40) % 5)
    import_dataset(tmp_path / "a.hdf5", path)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        assert buffer.schema.action_space == spaces.Discrete(5)
    given = spaces.Box(-100, 100, (4,), np.float32), spaces.Discrete(9)
    options: dict[str, Any] = {"observation_space": given[0], "action_space": given[1], "frame_stack": 2}
    import_dataset(tmp_path / "a.hdf5", f"{path}2", **options)
    with dr.ReplayBuffer.open(f"{path}2", mode="r") as buffer:
        assert (buffer.schema.observation_space, buffer.schema.action_space) == given
        assert buffer.sample(3).obs.shape == (3, 2, 4)
    with pytest.raises(InputError, match="space given"):
        import_dataset(tmp_path / "a.hdf5", f"{path}3", observation_space=spaces.Box(-1, 1, (3,)))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"rewards": None}, "'rewards' is missing"),
    ({"observations": None}, "'observations' is missing"),
    ({"actions": None}, "'actions' is missing"),
    ({"terminals": None}, "'terminals' is missing"),
    ({"observations": np.zeros((39, 4), np.float32)}, "ragged lengths: obs has 39 entries for 40 steps"),
    ({"timeouts": np.zeros(41, bool)}, "ragged lengths"),
    ({"infos/qpos": np.zeros((7, 3))}, "ragged lengths: qpos"),
    ({"next_observations": np.zeros((40, 5), np.float32)}, "do not fit"),
    ({"next_observations": np.zeros((12, 4), np.float32)}, "ragged lengths"),
    ({"terminals": np.full(40, 7)}, "each 0 or 1"),
    ({"rewards": np.full(40, np.nan)}, "must be finite"),
    ({"observations": np.array(3.0)}, "single value"),
    ({"observations": np.full((40,), b"text")}, "no values of dtype"),
    ({"metadata/diskreplay": "{"}, "cannot be read"),
    ({"metadata/cut": np.array([99])}, "end no episode"),
]


@pytest.mark.parametrize(("changes", "said"), BAD, ids=[said for _, said in BAD])
def test_bad_sources_leave_nothing(changes: dict[str, Any], said: str, tmp_path: pathlib.Path) -> None:
    d4rl_file(tmp_path / "a.hdf5", **changes)
    refused(tmp_path / "a.hdf5", said, "d4rl")


def test_what_is_no_hdf5(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "a.hdf5"
    refused(source, "no dataset at")
    source.write_text("observations, actions, rewards, terminals")
    refused(source, "no format known")
    refused(source, "no HDF5 file", "d4rl")
    d4rl_file(source, 4000)
    data = source.read_bytes()
    source.write_bytes(data[: len(data) // 2])
    refused(source, "damaged", "d4rl")
