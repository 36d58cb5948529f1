"""Stores that older versions wrote are read for ever."""

from __future__ import annotations

import hashlib
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
from helpers import recipes
from helpers.recipes import DATASETS

import diskreplay as dr
from diskreplay.errors import EvictedError
from diskreplay.ops.repair import repair
from diskreplay.ops.verify import verify

FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
AGENT_FIELDS = (*FIELDS, "state", "next_state", "agent_mask")
DIGESTS = {
    "pong-v1": "4fbd217554e18cb61869ad7c43bcc53040f954c460ab36b842e56455d679865c",
    "pong-window-v1": "695a1b0acccee48865d654e62f640abd98bc7e6a26f9eb06a638f2020a305a9e",
    "cartpole-v1": "a917218a8abac3c8cff0b5143a0899ec4e947bb0ea35aab566354b9d6cb6b864",
    "fetch-reach-v1": "62964b14e35824fe96f1bed3e6eccede5bc7b48238e3fdfd0f2aec800d101f16",
    "simple-spread-v1": "30671b300d7a4733701a785dcb4492a1d8ee4d59798a4ecd5c7b551cf311868e",
}
"""SHA-256 of all transitions of the window, as they were added."""


def at(name: str) -> pathlib.Path:
    return DATASETS / f"{name}.replay"


def opened(path: pathlib.Path, **options: Any) -> Any:
    buffer = dr.MultiAgentReplayBuffer if path.name.startswith("simple-spread") else dr.ReplayBuffer
    return buffer.open(path, **{"mode": "r", **options})


def index_of(rb: Any) -> np.ndarray:
    """Of every transition."""
    return np.sort(np.concatenate([batch.index for batch in rb.shuffled(64)]))


def digest(rb: Any) -> str:
    """Field by field, in the order in which the transitions were added, a Dict's entries by their names."""
    batch = rb.get(index_of(rb))
    found = hashlib.sha256()
    for name in AGENT_FIELDS if isinstance(rb, dr.MultiAgentReplayBuffer) else FIELDS:
        value = getattr(batch, name)
        for array in [value] if isinstance(value, np.ndarray) else [value[key] for key in sorted(value)]:
            found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def test_checksums() -> None:
    assert recipes.load().checksums(DATASETS) == (DATASETS / "SHA256SUMS").read_text()


def test_every_store_is_tested() -> None:
    assert {path.stem for path in DATASETS.glob("*.replay")} == set(DIGESTS)


@pytest.mark.parametrize("name", DIGESTS)
def test_all_transitions_are_read(name: str) -> None:
    assert not verify(at(name)).problems
    with opened(at(name)) as rb:
        assert digest(rb) == DIGESTS[name]


@pytest.mark.parametrize("name", DIGESTS)
def test_a_copy_is_written_on(name: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / f"{name}.replay"
    shutil.copytree(at(name), path)
    with opened(path, mode="r+") as rb:
        before, end = digest(rb), len(rb)
        rb.checkpoint("anew")
    with opened(path) as rb:
        assert (digest(rb), len(rb)) == (before, end)
    assert repair(path).quarantine is None
    assert not verify(path).problems


def test_pong() -> None:
    with opened(at("pong-v1")) as rb:
        assert [episode.length for episode in rb.episodes] == [150, 150, 100]
    with opened(at("pong-v1"), checkpoint="half-way") as rb:
        assert len(rb) == rb.checkpoint_metadata("half-way")["step"] + 1 == 201


def test_a_window_that_moved_on() -> None:
    with opened(at("pong-window-v1")) as rb:
        assert index_of(rb).tolist() == list(range(344, 600))
        assert rb.sample(32).obs.shape == (32, 4, 84, 84)
        with pytest.raises(EvictedError):
            rb.get(343)


def test_cartpole_ends_in_both_ways_and_has_its_priorities() -> None:
    with opened(at("cartpole-v1")) as rb:
        batch = rb.get(index_of(rb))
        ended = [episode for episode in rb.episodes if episode.terminated or episode.truncated]
        assert sum(episode.terminated for episode in ended) == batch.terminated.sum() > 0
        assert sum(episode.truncated for episode in ended) == batch.truncated.sum() > 0
        assert {episode.length for episode in ended if episode.truncated} == {500}
        assert all(episode.total_reward == episode.length for episode in ended)
        fallen = np.abs(batch.next_obs[:, 0]) > 2.4
        fallen |= np.abs(batch.next_obs[:, 2]) > 12 * np.pi / 180
        np.testing.assert_array_equal(fallen, batch.terminated)
    with opened(at("cartpole-v1"), checkpoint="trained") as rb:
        assert rb.checkpoint_metadata("trained") == {"updates": 1}
        assert len(np.unique(rb.sample(2000).weight)) > 50, "256 transitions were given priorities of their own"


def test_goals_are_relabelled() -> None:
    def reward(achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        return -(np.linalg.norm(achieved - desired, axis=-1) > 0.05).astype(np.float32)

    with opened(at("fetch-reach-v1")) as rb:
        batch = rb.get(index_of(rb))
        following = batch.next_obs
        np.testing.assert_array_equal(reward(following["achieved_goal"], following["desired_goal"], {}), batch.reward)
        recorded = (batch.reward == 0).mean()
    with opened(at("fetch-reach-v1"), view=dr.Hindsight(reward, ratio=1.0), seed=0) as rb:
        assert (rb.sample(1000).reward == 0).mean() > recorded


def test_agents() -> None:
    with opened(at("simple-spread-v1")) as rb:
        batch = rb.get(index_of(rb))
        assert batch.obs.shape == (500, 3, 18)
        np.testing.assert_array_equal(batch.state, batch.obs.reshape(500, 54))
        assert (batch.truncated.reshape(20, 25) == [False] * 24 + [True]).all()
        assert batch.reward.shape == (500, 3)


@pytest.mark.own_thresholds
@pytest.mark.parametrize("name", ["pong", "pong_window", "cartpole"])
def test_a_recipe_still_runs(name: str, tmp_path: pathlib.Path) -> None:
    """What came of it may differ with the emulator's, OpenCV's and Gymnasium's versions; interop has the others."""
    getattr(recipes.load(), name)(tmp_path)
    (path,) = tmp_path.glob("*.replay")
    with opened(path) as made, opened(DATASETS / path.name) as golden:
        assert len(made) == pytest.approx(len(golden), rel=0.01)
        assert made.checkpoints == golden.checkpoints
        assert made.schema == golden.schema
