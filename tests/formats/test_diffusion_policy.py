"""The Zarr layout of diffusion_policy, read and written by zarr-python."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import zarr
from formats.foreign import files
from formats.roundtrip import CASES, read, refused

from diskreplay.ops.convert import export

COLUMNS = next(case for case in CASES if case.name == "columns")


def test_the_layout(path: str, tmp_path: pathlib.Path) -> None:
    COLUMNS.make(path)
    result = export(path, tmp_path / "a.zarr", "diffusion-policy", allow_loss=True)
    episodes = read(path)
    assert result.lost == {"final observations": len(episodes)}
    root = zarr.open_group(tmp_path / "a.zarr", mode="r", zarr_format=2)
    ends = np.cumsum([len(episode) for episode in episodes])
    np.testing.assert_array_equal(root["meta/episode_ends"][:], ends)
    assert all(array.shape[0] == ends[-1] for _, array in root["data"].arrays())
    for name, key, what in (("obs", "obs", "obs"), ("action", "action", "action"), ("extra", "hidden", "hidden")):
        wanted = np.concatenate([getattr(episode, name)[key] for episode in episodes])
        np.testing.assert_array_equal(root[f"data/{what}"][:], wanted[:, 0] if name == "obs" else wanted)
    np.testing.assert_array_equal(root["data/reward"][:], np.concatenate([e.reward for e in episodes]))


def demonstrations(path: pathlib.Path, ends: Any = (4, 9), **changes: Any) -> None:
    """As published: pictures and states, no rewards, no flags."""
    rng = np.random.default_rng(0)
    arrays = {
        "img": rng.integers(0, 255, (9, 8, 8, 3), np.uint8), "state": rng.normal(size=(9, 5)).astype(np.float32),
        "action": rng.normal(size=(9, 2)).astype(np.float32), **changes,
    }  # fmt: skip
    given = {f"data/{key}": values for key, values in arrays.items()} | {"meta/episode_ends": ends}
    files.write(path, {key: values for key, values in given.items() if values is not None})


BAD: list[tuple[dict[str, Any], str]] = [
    ({"ends": None}, "meta"),
    ({"ends": (4, 4, 9)}, "must grow"),
    ({"ends": (4, 8)}, "ragged lengths"),
    ({"action": None}, "'data/action' is missing.* there are data/img"),
    ({"state": np.zeros((3, 2))}, "ragged lengths"),
]


@pytest.mark.parametrize(("changes", "said"), BAD, ids=[str(change) for change, _ in BAD])
def test_bad_sources_leave_nothing(changes: dict[str, Any], said: str, tmp_path: pathlib.Path) -> None:
    demonstrations(tmp_path / "a.zarr", **changes)
    refused(tmp_path / "a.zarr", said, "diffusion-policy")


def test_what_is_no_hierarchy(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.zarr").mkdir()
    refused(tmp_path / "a.zarr", "holds no Zarr hierarchy", "diffusion-policy")
    refused(tmp_path / "a.zarr", "no format known")
