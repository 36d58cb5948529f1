"""NPZ archives: what numpy finds in them, and what is refused."""

from __future__ import annotations

import pathlib
import zipfile
from typing import Any

import numpy as np
import pytest
from formats.roundtrip import CASES, read, refused

from diskreplay.ops.convert import export, import_dataset

COLUMNS = next(case for case in CASES if case.name == "columns")


@pytest.mark.parametrize("compression", ["deflate", "none"])
def test_numpy_reads_a_flat_file(compression: str, path: str, tmp_path: pathlib.Path) -> None:
    COLUMNS.make(path)
    export(path, tmp_path / "a.npz", "npz", compression=compression)
    episodes = read(path)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        for key, name in (("obs", "obs"), ("action", "action"), ("extra", "hidden")):
            wanted = np.concatenate([getattr(episode, key)[name] for episode in episodes])
            found = file[name if key != "extra" else f"extra/{name}"]
            np.testing.assert_array_equal(found, wanted[:, 0] if key == "obs" else wanted)
            assert found.dtype == wanted.dtype
        ends = np.flatnonzero(file["last"])
        assert ends.tolist() == (np.cumsum([len(episode) for episode in episodes]) - 1).tolist()
        finals = np.stack([episode.next_obs["obs"][-1, -1] for episode in episodes])
        np.testing.assert_array_equal(file["final_obs"], finals)


def test_numpy_reads_an_episode(path: str, tmp_path: pathlib.Path) -> None:
    COLUMNS.make(path)
    export(path, tmp_path / "out", "npz-episodes")
    episodes = read(path)
    names = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert names == [*(f"episode-{number:06d}.npz" for number in range(len(episodes))), "layout.json"]
    for name, episode in zip(names, episodes, strict=False):
        with np.load(tmp_path / "out" / name, allow_pickle=False) as file:
            np.testing.assert_array_equal(file["obs"][:-1], episode.obs["obs"][:, 0])
            np.testing.assert_array_equal(file["obs"][1:], episode.next_obs["obs"][:, 0])
            np.testing.assert_array_equal(file["reward"], episode.reward)
            np.testing.assert_array_equal(file["extra/log_prob"], episode.extra["log_prob"])


def arrays(count: int = 12, **changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    given = {
        "observations": rng.normal(size=(count, 3)), "actions": rng.integers(0, 4, count),
        "rewards": np.ones(count, np.float32), "terminals": np.arange(count) % 6 == 5, "comment": np.array("mine"),
        **changes,
    }  # fmt: skip
    return {name: values for name, values in given.items() if values is not None}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"actions": None}, "'action' is missing"),
    ({"observations": None}, "'obs' is missing"),
    ({"observations": np.zeros((5, 3))}, "ragged lengths"),
    ({"rewards": np.zeros(3)}, "ragged lengths"),
    ({"observations": np.array([{"a": 1}] * 12, object)}, "pickled objects"),
    ({"observations": np.asfortranarray(np.zeros((12, 3)))}, "Fortran"),
    ({"terminals": np.full(12, 0.5)}, "each 0 or 1"),
    ({"observations": np.array(["x"] * 12)}, "no values of dtype"),
]


@pytest.mark.parametrize(("changes", "said"), BAD, ids=[said for _, said in BAD])
def test_bad_archives_leave_nothing(changes: dict[str, Any], said: str, tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays(**changes))
    refused(tmp_path / "a.npz", said, "npz")


def test_damage(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "a.npz"
    source.write_text("no archive")
    refused(source, "no NPZ archive", "npz")
    np.savez_compressed(source, **arrays(5000))
    data = bytearray(source.read_bytes())
    data[len(data) // 3] ^= 0xFF
    source.write_bytes(data)
    refused(source, r"damaged|cannot be read", "npz")
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("obs.npy", b"\x93NUMPY\x01\x00\x05\x00oops ")
        archive.writestr("action.npy", b"")
    refused(source, "is damaged", "npz")


def test_a_member_without_a_name(path: str, tmp_path: pathlib.Path) -> None:
    """It is named like any other that nobody asked for."""
    np.savez(tmp_path / "a.npz", **arrays())
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr(".npy", b"")
    assert import_dataset(tmp_path / "a.npz", path).ignored == ("", "comment")
