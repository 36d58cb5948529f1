"""Dopamine's logs: what lies on disk, made and read with NumPy alone, and what is refused."""

from __future__ import annotations

import gzip
import os
import pathlib
import pickle
from typing import Any

import numpy as np
import pytest
from formats.roundtrip import CASES, read, refused
from gymnasium import spaces

import diskreplay as dr
from diskreplay.errors import InputError
from diskreplay.formats import dopamine
from diskreplay.formats.files.pickled_set import pickled_set
from diskreplay.ops.convert import export, import_dataset

FRAMES = next(case for case in CASES if case.name == "frames to be stacked")


def load(path: pathlib.Path) -> np.ndarray:
    with gzip.open(path) as file:
        return np.load(file, allow_pickle=False)


def names_in(folder: pathlib.Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def save(path: pathlib.Path, values: Any) -> None:
    with gzip.open(path, "wb") as file:
        np.save(file, values, allow_pickle=True)


def test_the_layout(path: str, tmp_path: pathlib.Path) -> None:
    FRAMES.make(path)
    result = export(path, tmp_path / "a", "dopamine", allow_loss=True)
    episodes = read(path)
    assert result.lost == {"final observations": len(episodes)}
    names = ["$store$_action", "$store$_observation", "$store$_reward", "$store$_terminal", "add_count"]
    names += ["episode_end_indices", "invalid_range"]
    assert set(names_in(tmp_path / "a")) == {*(f"{name}_ckpt.0.gz" for name in names), "diskreplay.json"}
    frames, actions, terminals, ends = [], [], [], set()
    for episode in episodes:
        if ends and not terminals[-1]:
            ends |= set(range(len(frames), len(frames) + 3))
        frames += [np.zeros((40, 40), np.uint8)] * 3 + list(episode.obs["obs"][:, -1])
        actions += [0] * 3 + episode.action["action"].tolist()
        terminals += [0] * 3 + episode.terminated.tolist()
        ends.add(len(frames) - 1)
    found = {name: load(tmp_path / "a" / f"{name}_ckpt.0.gz") for name in names if name != "episode_end_indices"}
    np.testing.assert_array_equal(found["$store$_observation"], np.stack(frames))
    np.testing.assert_array_equal(found["$store$_action"], actions)
    np.testing.assert_array_equal(found["$store$_terminal"], terminals)
    assert found["$store$_terminal"].dtype == np.uint8
    assert found["add_count"] == len(frames)
    assert found["invalid_range"].tolist() == [len(frames) - 1 + place for place in range(5)]
    # Our own pickle, and just this once.
    assert pickle.loads(gzip.decompress((tmp_path / "a" / "episode_end_indices_ckpt.0.gz").read_bytes())) == ends


def test_a_last_terminal_row_is_followed_by_another(path: str, tmp_path: pathlib.Path) -> None:
    """Else Dopamine never samples it."""
    next(case for case in CASES if case.name == "one step").make(path)
    export(path, tmp_path / "a", "dopamine", allow_loss=True)
    assert load(tmp_path / "a" / "$store$_terminal_ckpt.0.gz").tolist() == [1, 0]
    assert load(tmp_path / "a" / "add_count_ckpt.0.gz") == 2


def test_several_checkpoints(path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends with an episode, and begins with padding; together they are the store."""
    monkeypatch.setattr(dopamine, "FILE_ROWS", 12)
    FRAMES.make(path)
    export(path, tmp_path / "a", "dopamine", allow_loss=True)
    counts = [int(load(file)) for file in sorted((tmp_path / "a").glob("add_count*"))]
    assert len(counts) > 2
    for number, count in enumerate(counts):
        frames = load(tmp_path / "a" / f"$store$_observation_ckpt.{number}.gz")
        assert len(frames) == count
        assert not frames[:3].any()
        assert frames[3].any()
    import_dataset(tmp_path / "a", tmp_path / "b.replay")
    episodes = [len(episode) - (not episode.terminated[-1]) for episode in read(path)]
    assert [len(episode) for episode in read(str(tmp_path / "b.replay"))] == [length for length in episodes if length]


def logs(folder: pathlib.Path, rows: int = 20, stack: int = 4, **changes: Any) -> dict[str, np.ndarray]:
    """A ring that is not full, with terminal rows alone, as Dopamine 2 saves it."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "$store$_observation": rng.integers(1, 255, (rows, 4, 5), np.uint8),
        "$store$_action": rng.integers(1, 6, rows).astype(np.int32),
        "$store$_reward": rng.normal(size=rows).astype(np.float32),
        "$store$_terminal": np.zeros(rows, np.uint8), "add_count": np.array(rows - 5),
        "invalid_range": np.arange(stack + 1),
    }  # fmt: skip
    arrays["$store$_terminal"][8] = 1
    for start in (0, 9):
        for name in ("observation", "action", "reward"):
            arrays[f"$store$_{name}"][start : start + stack - 1] = 0
    arrays |= changes
    for name, values in arrays.items():
        if isinstance(values, bytes):
            (folder / f"{name}_ckpt.3.gz").write_bytes(values)
        elif values is not None:
            save(folder / f"{name}_ckpt.3.gz", values)
    return arrays


@pytest.mark.parametrize("stack", [1, 2, 4])
@pytest.mark.parametrize("horizon", [1, 3])
def test_stacks_are_found_from_the_rows_of_zeros(stack: int, horizon: int, path: str, tmp_path: pathlib.Path) -> None:
    arrays = logs(tmp_path / "a", stack=stack, invalid_range=np.arange(stack + horizon))
    result = import_dataset(tmp_path / "a", path)
    assert result.format == "dopamine"
    kept = [*range(stack - 1, 9), *range(9 + stack - 1, 14)]
    assert result.transitions == len(kept)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        assert buffer.schema.stacks[0].frames == stack
        assert buffer.schema.action_space == spaces.Discrete(6, dtype=np.int32)
    one, other = read(path)
    np.testing.assert_array_equal(
        np.concatenate([one.obs["obs"], other.obs["obs"]])[:, -1], arrays["$store$_observation"][kept]
    )
    assert one.terminated.tolist() == [False] * (len(one) - 1) + [True]
    assert not np.concatenate([other.terminated, other.truncated]).any()


@pytest.mark.parametrize("kind", [int, np.int64])
def test_a_pickled_set_of_numbers_is_read_without_loading_it(kind: type, path: str, tmp_path: pathlib.Path) -> None:
    logs(tmp_path / "a", episode_end_indices=gzip.compress(pickle.dumps({kind(8), kind(14)})))
    import_dataset(tmp_path / "a", path)
    # Row 14 ends an episode without being terminal, and is no transition.
    ends_found = [(len(episode), episode.terminated[-1], episode.truncated[-1]) for episode in read(path)]
    assert ends_found == [(6, True, False), (2, False, True)]


@pytest.mark.parametrize("kind", [int, np.int64])
@pytest.mark.parametrize("protocol", [4, 5])
def test_a_large_set_is_within_the_bounds_of_a_small_buffer(kind: type, protocol: int, tmp_path: pathlib.Path) -> None:
    """Each token of a pickle takes time, so that their number is bounded by that of the rows."""
    file = tmp_path / "set.gz"
    file.write_bytes(gzip.compress(pickle.dumps({kind(row) for row in range(3_000)}, protocol)))
    assert sorted(pickled_set(file, 3_000)) == list(range(3_000))
    with pytest.raises(InputError, match="more than a set of numbers"):
        pickled_set(file, 100)


@pytest.mark.parametrize("reward", [np.zeros(20, np.int64), np.ones((20, 1), np.float64)])
def test_rewards_of_other_types(reward: np.ndarray, path: str, tmp_path: pathlib.Path) -> None:
    logs(tmp_path / "a", stack=1, **{"$store$_reward": reward})
    assert import_dataset(tmp_path / "a", path).transitions == 14
    assert read(path)[0].reward.tolist() == reward[:9].ravel().tolist()


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("never-made",)


PICKLE = gzip.compress(pickle.dumps(Evil()))
BAD: list[tuple[str, Any, str]] = [
    ("$store$_observation", PICKLE, "holds a pickle, which is never loaded"),
    ("$store$_action", np.array([Evil()] * 20), "holds pickled objects, which are never loaded"),
    ("add_count", PICKLE, "holds a pickle"),
    ("episode_end_indices", PICKLE, "more than a set of numbers"),
    ("episode_end_indices", gzip.compress(pickle.dumps({b"12345678", Evil()})), "more than a set of numbers"),
    ("episode_end_indices", gzip.compress(b"\x80\x04\x8f" + b"N" * 2_000 + b"."), "more than a set of numbers"),
    ("episode_end_indices", gzip.compress(pickle.dumps({-3})), "below 0"),
    ("episode_end_indices", gzip.compress(b"\x80\x04garbage"), "damaged"),
    ("$store$_reward", None, r"lacks \$store\$_reward_ckpt.3.gz"),
    ("add_count", None, "lacks add_count_ckpt.3.gz"),
    ("add_count", np.arange(2), "one number"),
    ("add_count", np.array(1.5), "one number"),
    ("$store$_action", np.zeros(19, np.int32), "ragged lengths"),
    ("$store$_action", np.array(3), "single value"),
    ("$store$_terminal", np.full(20, 7, np.uint8), "flags, each 0 or 1"),
    ("$store$_reward", np.zeros((20, 2), np.float32), "one a step"),
    ("$store$_observation", gzip.compress(b"nothing of the kind"), "damaged"),
    ("$store$_observation", b"no gzip at all", "damaged"),
    ("$store$_observation", np.asfortranarray(np.ones((20, 4, 5))), "Fortran"),
]


@pytest.mark.parametrize(("name", "values", "said"), BAD, ids=[f"{name} {said}" for name, _, said in BAD])
def test_bad_sources_leave_nothing(
    name: str, values: Any, said: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    logs(tmp_path / "a", **{name: values})
    refused(tmp_path / "a", said, "dopamine")


def test_a_file_that_ends_too_early(tmp_path: pathlib.Path) -> None:
    logs(tmp_path / "a")
    file = tmp_path / "a" / "$store$_observation_ckpt.3.gz"
    file.write_bytes(file.read_bytes()[:100])
    refused(tmp_path / "a", r"damaged|too early")


def test_padding_that_is_none(tmp_path: pathlib.Path) -> None:
    """The first frames say three rows of zeros, later ones less: nothing is guessed."""
    arrays = logs(tmp_path / "a")
    arrays["$store$_observation"][10] = 1
    save(tmp_path / "a" / "$store$_observation_ckpt.3.gz", arrays["$store$_observation"])
    refused(tmp_path / "a", "not all zeros")


def test_a_buffer_that_is_empty(path: str, tmp_path: pathlib.Path) -> None:
    logs(tmp_path / "a", add_count=np.array(0))
    assert import_dataset(tmp_path / "a", path).transitions == 0


def test_a_column_with_a_name_of_dopamines_own(path: str, tmp_path: pathlib.Path) -> None:
    with dr.ReplayBuffer.create(
        path, spaces.Box(-1, 1, (2,)), spaces.Discrete(2), capacity=9, columns={"terminal": bool}
    ):
        pass
    with pytest.raises(InputError, match="'terminal' of its own"):
        export(path, tmp_path / "a", "dopamine", allow_loss=True)
