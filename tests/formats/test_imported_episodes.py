"""Episodes of a dataset are episodes of the store, whatever its next observations are."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from diskreplay_cli.main import main
from formats.roundtrip import read
from gymnasium.spaces import Box, Discrete
from helpers.diff import diff
from helpers.effort import examples
from numpy.typing import NDArray

import diskreplay as dr
from diskreplay.errors import InputError
from diskreplay.formats.arrays import from_arrays
from diskreplay.formats.core import transitions
from diskreplay.ops.combine import merge, split
from diskreplay.ops.convert import Imported, export, import_dataset
from diskreplay.ops.edit import edit
from diskreplay.ops.inspect import inspect
from diskreplay.ops.verify import verify

Array = NDArray[Any]
Write = Callable[[pathlib.Path, Array, Array, list[int]], Any]
F32, F64 = np.float32, np.float64


def walk(steps: int, shape: tuple[int, ...] = (3,)) -> Array:
    """Observations, one more than steps."""
    return np.cumsum(np.random.default_rng(0).normal(size=(steps + 1, *shape)), 0).astype(F32)


def d4rl(path: pathlib.Path, obs: Array, next_obs: Array, lengths: list[int]) -> pathlib.Path:
    """Episodes one after another; every second one is truncated."""
    last, count = np.cumsum(lengths) - 1, len(obs)
    with h5py.File(path, "w") as file:
        file["observations"], file["next_observations"] = obs, next_obs
        file["actions"], file["rewards"] = np.zeros((count, 2), F32), np.ones(count, F32)
        file["terminals"], file["timeouts"] = (np.isin(np.arange(count), last[at::2]) for at in (0, 1))
    return path


def robomimic(path: pathlib.Path, obs: Array, next_obs: Array, lengths: list[int]) -> pathlib.Path:
    """A demonstration for each episode."""
    stops = np.cumsum(lengths)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {}})
        for number, (stop, count) in enumerate(zip(stops, lengths, strict=True)):
            demo, rows = data.create_group(f"demo_{number}"), slice(stop - count, stop)
            demo.attrs["num_samples"] = count
            demo["obs/a"], demo["next_obs/a"] = obs[rows], next_obs[rows]
            demo["actions"], demo["rewards"] = np.zeros((count, 2)), np.ones(count)
            demo["dones"] = np.arange(count) == count - 1
    return path


def taken(path: str, result: Imported, lengths: list[int], differing: int) -> None:
    """The store at a path has these episodes and no other row, and the import says so."""
    assert verify(path).ok
    with dr.ReplayBuffer.open(path, mode="r", view=dr.Transition(n_step=3, gamma=1.0)) as buffer:
        assert [episode.length for episode in buffer.episodes] == lengths
        assert (
            (result.episodes, result.transitions) == (len(buffer.episodes), len(buffer)) == (len(lengths), sum(lengths))
        )
        assert len(buffer) == buffer.schema.capacity == buffer.stats()["streams"]["0"]["end"]
        left, ids = np.concatenate([np.arange(length, 0, -1) for length in lengths]), buffer.items()
        assert len(ids) >= sum(lengths) - 2  # the newest episode may go on
        np.testing.assert_array_equal(buffer.get(ids).reward, np.minimum(left, 3)[ids])
    assert result.differing == differing
    assert inspect(path).continuity == ("flags" if differing else "observations")


@pytest.mark.parametrize("write", [d4rl, robomimic])
@pytest.mark.parametrize(
    ("change", "differing"),
    [
        (lambda following: following, 0),
        (lambda following: following + F32(1e-3), 94),  # noise, or rendered anew
        (lambda following: np.where(np.arange(100)[:, None] == 40, 7, following).astype(F32), 1),
        (lambda following: following.astype(F64), 0),
    ],
    ids=["equal", "noise", "one", "float64"],
)  # fmt: skip
def test_next_observations_do_not_end_episodes(
    path: str, tmp_path: pathlib.Path, write: Write, change: Callable[[Array], Array], differing: int
) -> None:
    obs, lengths = walk(100), [50, 1, 1, 44, 1, 3]
    following = change(obs[1:])
    result = import_dataset(write(tmp_path / "a.hdf5", obs[:-1], following, lengths), path)
    taken(path, result, lengths, differing)
    kept = np.concatenate([next(iter(episode.next_obs.values()))[:, 0] for episode in read(path)])
    np.testing.assert_array_equal(kept, following.astype(F32))


@pytest.mark.parametrize("write", [d4rl, robomimic])
def test_observations_of_more_bits_than_next_observations(path: str, tmp_path: pathlib.Path, write: Write) -> None:
    obs = walk(20).astype(F64) / 3
    result = import_dataset(write(tmp_path / "a.hdf5", obs[:-1], obs[1:].astype(F32), [12, 8]), path)
    taken(path, result, [12, 8], 18)


def test_next_observations_of_more_bits_are_refused(path: str, tmp_path: pathlib.Path) -> None:
    """They would not be kept as they are."""
    obs = walk(20)
    with pytest.raises(InputError, match="next obs: must have dtype float32"):
        import_dataset(d4rl(tmp_path / "a.hdf5", obs[:-1], obs[1:].astype(F64) + 1e-9, [12, 8]), path)
    assert not pathlib.Path(path).exists()


@pytest.mark.parametrize("write", [d4rl, robomimic])
def test_images_that_were_compressed_anew(path: str, tmp_path: pathlib.Path, write: Write) -> None:
    images = np.random.default_rng(0).integers(0, 256, (31, 60, 60, 3), np.uint8)
    following = images[1:].copy()
    following[::3, 5, 5, 1] ^= 1  # of 10 images; 29 is the last of all
    result = import_dataset(write(tmp_path / "a.hdf5", images[:-1], following, [16, 14]), path)
    taken(path, result, [16, 14], 9)
    kept = np.concatenate([next(iter(episode.next_obs.values()))[:, 0] for episode in read(path)])
    np.testing.assert_array_equal(kept, following)


@pytest.mark.parametrize(
    ("here", "after", "differing"),
    [(0.0, -0.0, 9), (-0.0, -0.0, 0), (np.nan, np.nan, 0), (np.nan, -np.nan, 9), (np.inf, np.nan, 9)],
)
def test_bits_are_compared(path: str, tmp_path: pathlib.Path, here: float, after: float, differing: int) -> None:
    obs, following = np.full((10, 1), here, F32), np.full((10, 1), after, F32)
    taken(path, import_dataset(d4rl(tmp_path / "a.hdf5", obs, following, [10]), path), [10], differing)
    assert read(path)[0].next_obs["obs"].tobytes() == following.tobytes()


def test_what_is_printed(path: str, tmp_path: pathlib.Path) -> None:
    obs = walk(100)
    file = d4rl(tmp_path / "a.hdf5", obs[:-1], obs[1:] + F32(1), [50, 50])
    said = CliRunner().invoke(main, ["import", str(file), path])
    assert "100 transitions of 2 episodes" in said.stdout
    line = "next observations that differ from the next step's: 98 (kept: the store's continuity is flags)"
    assert line in said.stdout.splitlines()
    same = d4rl(tmp_path / "b.hdf5", obs[:-1], obs[1:], [50, 50])
    assert "differ" not in CliRunner().invoke(main, ["import", str(same), f"{path}-b"]).stdout


def contents(path: str) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in pathlib.Path(path).rglob("*") if file.is_file()}


@pytest.mark.parametrize("steps", [6, 60], ids=["where there is room", "to a new stream"])
def test_what_a_store_cannot_hold_is_not_added(path: str, tmp_path: pathlib.Path, steps: int) -> None:
    obs = walk(steps)
    with dr.ReplayBuffer.create(path, Box(-np.inf, np.inf, (3,)), Box(-np.inf, np.inf, (2,)), capacity=20) as buffer:
        buffer.add(obs[0], np.zeros(2), 1.0, obs[0], False, False)
    before = contents(path)
    file = d4rl(tmp_path / "a.hdf5", obs[:-1], obs[1:] + F32(1), [steps])
    with pytest.raises(InputError, match=r"step 0 is not .* 'observations'.: import into a new store; .*merge"):
        import_dataset(file, path, append=True)
    assert contents(path) == before
    import_dataset(file, tmp_path / "new.replay")
    merge(tmp_path / "both.replay", [path, tmp_path / "new.replay"])
    assert [len(episode.reward) for episode in read(tmp_path / "both.replay")] == [1, steps]


def test_a_difference_far_in_a_dataset(path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found between two blocks, after others were added, which are taken back."""
    monkeypatch.setattr("diskreplay.formats.core.flat.BLOCK_BYTES", 100)
    obs = walk(40)
    following = obs[1:].copy()
    space = Box(-np.inf, np.inf, (3,)), Box(-np.inf, np.inf, (2,))
    with dr.ReplayBuffer.create(path, *space, capacity=99) as buffer:
        buffer.add(obs[0], np.zeros(2), 1.0, obs[0], False, False)
    before = [episode.obs["obs"].tobytes() for episode in read(path)]
    blocks = [
        len(steps) for steps in from_arrays(obs[:-1], obs[:-1, :2], None, following, lengths=[len(obs) - 1]).blocks()
    ]
    step = sum(blocks[: len(blocks) // 2]) - 1
    following[step] += 1
    with pytest.raises(InputError, match=f"step {step} is not"):
        import_dataset(d4rl(tmp_path / "a.hdf5", obs[:-1], following, [40]), path, append=True)
    assert [episode.obs["obs"].tobytes() for episode in read(path)] == before
    assert verify(path).ok
    following[step] = obs[step + 1]
    following[-1] += 1  # nothing comes after the last one
    assert import_dataset(d4rl(tmp_path / "b.hdf5", obs[:-1], following, [40]), path, append=True).episodes == 1


def test_appending_to_a_store_of_flags(path: str, tmp_path: pathlib.Path) -> None:
    """The first episode does not go on in the newest one of the store, which is open."""
    obs = walk(12)
    space = Box(-np.inf, np.inf, (3,)), Box(-np.inf, np.inf, (2,))
    with dr.ReplayBuffer.create(path, *space, capacity=99, continuity="flags") as buffer:
        for _ in range(3):
            buffer.add(obs[0], np.zeros(2), 1.0, obs[0], False, False)
    file = d4rl(tmp_path / "a.hdf5", obs[:-1], obs[1:] + F32(1), [7, 5])
    result = import_dataset(file, path, append=True)
    assert (result.stream, result.episodes, result.differing) == ("0", 2, 10)
    assert [len(episode.reward) for episode in read(path)] == [3, 7, 5]
    result = import_dataset(d4rl(tmp_path / "b.hdf5", obs[:-1], obs[1:], [12]), path, append=True)
    assert (result.episodes, result.differing) == (1, 0)
    assert [len(episode.reward) for episode in read(path)] == [3, 7, 5, 12]
    assert inspect(path).continuity == "flags"
    assert verify(path).ok


@pytest.mark.parametrize("continuity", ["observations", "flags"])
def test_stores_of_stores_keep_the_continuity(path: str, tmp_path: pathlib.Path, continuity: Any) -> None:
    """Also where no next observation differs: what a store means does not depend on its data."""
    with dr.ReplayBuffer.create(path, Box(-99, 99, (1,)), Discrete(2), capacity=99, continuity=continuity) as buffer:
        for row in range(20):
            buffer.add([row], 0, 0.0, [row + 1], row % 5 == 4, False)
    made = [str(tmp_path / name) for name in ("export", "merge", "one", "two", "edit", "import", "dataset")]
    export(path, made[0], "store")
    merge(made[1], [path])
    split(path, [0.5], made[2:4])
    edit(path, made[4], steps=[slice(1, 2)])
    import_dataset(path, made[5])
    export(path, tmp_path / "a.hdf5", "d4rl")
    import_dataset(tmp_path / "a.hdf5", made[6])
    assert [inspect(each).continuity for each in made] == [continuity] * len(made)
    assert all(diff(path, each) is None for each in (made[0], made[1], made[5], made[6]))


def test_the_newest_of_a_dataset(path: str, tmp_path: pathlib.Path) -> None:
    obs = walk(40)
    file = d4rl(tmp_path / "a.hdf5", obs[:-1], obs[1:] + F32(1), [10] * 4)
    result = import_dataset(file, path, capacity=15)
    assert (result.transitions, result.episodes, result.evicted) == (40, 4, 25)
    assert [len(episode.reward) for episode in read(path)] == [5, 10]
    assert verify(path).ok


@pytest.mark.parametrize("seed", range(examples(20)))
def test_any_episodes(path: str, tmp_path: pathlib.Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any lengths, ends and differences, in blocks and commits of any size."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, rng.choice([2, 5, 90]), rng.integers(1, 30)).tolist()
    count = sum(lengths)
    last = np.isin(np.arange(count), np.cumsum(lengths) - 1)
    kind = rng.integers(0, 3, count) * last
    obs = rng.integers(0, 3, (count + 1, 2)).astype(F32)
    differs = rng.random(count) < rng.choice([0, 0.1, 1])
    following = obs[1:] + differs[:, None].astype(F32)
    for module in ("flat", "transitions"):
        monkeypatch.setattr(f"diskreplay.formats.core.{module}.BLOCK_BYTES", int(rng.integers(1, 4000)))
    assert transitions.BLOCK_BYTES < 4000
    create, rows = dr.ReplayBuffer.create, int(rng.integers(1, 100))
    monkeypatch.setattr(
        dr.ReplayBuffer, "create", lambda *given, **options: create(*given, **options | {"commit_rows": rows})
    )
    source = from_arrays(
        obs[:-1], np.zeros((count, 2), F32), np.ones(count), following, terminated=kind == 1, truncated=kind == 2,
        last=last,
    )  # fmt: skip
    taken(path, import_dataset(source, path), lengths, int((differs & ~last).sum()))
    every = read(path)
    for name, wanted in (("obs", obs[:-1]), ("next_obs", following)):
        np.testing.assert_array_equal(np.concatenate([getattr(one, name)["obs"][:, 0] for one in every]), wanted)
    flags = [np.concatenate([getattr(one, name) for one in every]) for name in ("terminated", "truncated")]
    np.testing.assert_array_equal(flags, [kind == 1, kind == 2])
