"""Datasets of 20 steps in two episodes, whose step t has observation, action and reward t: one that is off shows."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from formats.foreign import files

import diskreplay as dr
from diskreplay.errors import InputError
from diskreplay.ops.convert import Imported, import_dataset

N = 20
T = np.arange(N)
OBS = np.repeat(T[:, None], 3, 1).astype(np.float32)
ACT, REW = T[:, None].astype(np.float32), T.astype(np.float32)
ENDS, BEGINS = np.isin(T, [9, 19]), np.isin(T, [0, 10])
STOPS = np.array([10, 20])
FLAT = {"observations": OBS, "actions": ACT, "rewards": REW}
ZARR = {"data/state": OBS, "data/action": ACT, "data/reward": REW}
NOT_LAST = sorted({*range(N)} - {9, 19})


def new_store(path: pathlib.Path) -> pathlib.Path:
    """A path that is not there, outside of the dataset's folder."""
    folder = path.parent if path.is_dir() else path.parent.parent
    return folder / f"{len([*folder.iterdir()])}.replay"


def taken(path: pathlib.Path, **options: Any) -> tuple[Imported, Any]:
    """Import a dataset; return what is said, and all its transitions."""
    target = new_store(path)
    said = import_dataset(path, target, **options)
    with dr.ReplayBuffer.open(target, mode="r", view=dr.Transition()) as buffer:
        assert said.episodes == len(buffer.episodes)
        return said, buffer.get(buffer.items())


def same(batch: Any, rows: Any, led: int = 0, **flags: Any) -> None:
    """The steps are those of ``rows``; entry t of actions and rewards led to row t where ``led`` is 1."""
    obs, following = (
        next(iter(each.values())) if isinstance(each, dict) else each for each in (batch.obs, batch.next_obs)
    )
    rows = np.array(rows)
    assert obs[:, 0].tolist() == rows.tolist()
    assert batch.action.reshape(len(rows)).tolist() == batch.reward.tolist() == (rows + led).tolist()
    inner = ~batch.terminated
    assert following[inner, 0].tolist() == (rows + 1)[inner].tolist()
    for flag in ("terminated", "truncated"):
        assert rows[getattr(batch, flag)].tolist() == flags.get(flag, []), flag


def refused(path: pathlib.Path, *said: str, **options: Any) -> str:
    """An import is refused in one line that says so much, and leaves nothing."""
    target = new_store(path)
    with pytest.raises(InputError) as failure:
        import_dataset(path, target, **options)
    text = str(failure.value)
    assert "\n" not in text
    assert all(part in text for part in said), text
    assert not target.exists()
    return text


def written(folder: pathlib.Path, name: str, arrays: dict[str, Any]) -> pathlib.Path:
    folder.mkdir(exist_ok=True)
    files.write(folder / name, arrays)
    return folder / name


def demos(path: pathlib.Path, each: dict[str, Any], second: dict[str, Any]) -> pathlib.Path:
    """Two demonstrations of 10 steps in robomimic's layout, or Isaac Lab's."""
    arrays = {"data.attrs/env_args": json.dumps({"env_name": "Stack", "type": 2})}
    for number in range(2):
        own = {"actions": ACT[:10], "obs/q": OBS[:10], **each, **(second if number else {})}
        arrays |= {f"data/demo_{number}{'' if '.attrs' in name[:6] else '/'}{name}": own[name] for name in own}
    return written(path, "a.hdf5", arrays)
