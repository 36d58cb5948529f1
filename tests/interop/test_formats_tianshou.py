"""Buffers that Tianshou itself saves come in: in the order of time, wherever the ring stands."""

from __future__ import annotations

import pathlib
from typing import Any

import h5py
import numpy as np
import pytest
from formats.foreign.flat import tianshou
from formats.foreign.known import Known, Steps, Written, check, steps
from formats.foreign.plan import Plan

pytest.importorskip("torch", reason="torch is in the interop extra")
pytest.importorskip("tianshou", reason="tianshou is in the interop extra")

from tianshou.data import Batch, ReplayBuffer, VectorReplayBuffer

MAY = (r".*attrs/.*", "_indices", "last_index", "_random_state", "_meta/done", "_offset", "_extend_offset",
       "_lengths", "buffers")  # fmt: skip


def ramp(count: int, start: int, terminated: bool, truncated: bool) -> Known:
    """An episode whose step t has observation, action and reward t."""
    rows = np.arange(start, start + count + 1)
    obs = {"a": np.repeat(rows[:, None], 2, 1).astype(np.float32), "n/q": rows[:, None].astype(np.float64)}
    return Known(obs, rows[:-1] % 4, rows[:-1].astype(np.float64), terminated, truncated, {"x": rows[:-1]})


EPISODES = (ramp(4, 0, True, False), ramp(4, 10, False, True), ramp(3, 20, False, False))


def batches(known: Known, following: bool) -> list[Batch]:
    """The steps of an episode as they are added."""
    found = []
    for t in range(len(known)):
        last = t == len(known) - 1
        more: dict[str, Any] = {"obs_next": observed(known, t + 1)} if following else {}
        found.append(
            Batch(obs=observed(known, t), act=known.action[t], rew=known.reward[t],
                  terminated=last and known.terminated, truncated=last and known.truncated,
                  info={"x": known.extra["x"][t]}, **more)
        )  # fmt: skip
    return found


def observed(known: Known, t: int) -> dict[str, Any]:
    return {"a": known.obs["a"][t], "n": {"q": known.obs["n/q"][t]}}


def wanted(known: Known, following: bool) -> Steps:
    return steps(known, final=following, terminated=known.terminated, truncated=known.truncated)


@pytest.mark.parametrize("following", [True, False], ids=["obs_next", "obs alone"])
@pytest.mark.parametrize("size", [30, 11, 7])
def test_a_buffer(size: int, following: bool, tmp_path: pathlib.Path) -> None:
    """Of a full ring the oldest steps are gone: its first episode begins where the oldest one is that is left."""
    buffer = ReplayBuffer(size, ignore_obs_next=not following)
    for known in EPISODES:
        for batch in batches(known, following):
            buffer.add(batch)
    buffer.save_hdf5(str(tmp_path / "a.hdf5"))
    left = EPISODES if size > 10 else (ramp(4, 10, False, True), EPISODES[2])
    written = Written(
        tmp_path / "a.hdf5", [wanted(known, following) for known in left], {"x": {"_meta/info/x"}}, may=MAY
    )  # fmt: skip
    check(written, tmp_path / "a.replay")


def test_a_vector_buffer(tmp_path: pathlib.Path) -> None:
    """Each environment's part is a ring of its own."""
    buffer = VectorReplayBuffer(14, 2)
    each = [[batch for known in order for batch in batches(known, True)] for order in (EPISODES, EPISODES[::-1])]
    for both in zip(*each, strict=True):
        buffer.add(Batch.stack(both), buffer_ids=[0, 1])
    buffer.save_hdf5(str(tmp_path / "a.hdf5"))
    left = [EPISODES[1], EPISODES[2], ramp(3, 11, False, True), EPISODES[0]]
    merged = ramp(3, 11, False, True)
    assert len(merged) + len(EPISODES[0]) == 7
    check(
        Written(tmp_path / "a.hdf5", [wanted(known, True) for known in left], {"x": {"_meta/info/x"}}, may=MAY),
        tmp_path / "a.replay",
    )  # fmt: skip


def test_our_generator_has_its_names(tmp_path: pathlib.Path) -> None:
    buffer = ReplayBuffer(20)
    for batch in batches(EPISODES[0], True):
        buffer.add(batch)
    buffer.save_hdf5(str(tmp_path / "a.hdf5"))
    names = {name for name in tianshou([EPISODES[0]], Plan(following=True, variant=1)).arrays if "attrs/" not in name}
    found: set[str] = set()
    with h5py.File(tmp_path / "a.hdf5") as file:
        file.visititems(lambda name, item: found.add(name) if isinstance(item, h5py.Dataset) else None)
    assert found == names
