"""Stores that older versions wrote are read for ever."""

from __future__ import annotations

import hashlib
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
from golden import recipes as recipes_of_features
from helpers import recipes
from helpers.recipes import DATASETS

import diskreplay as dr
from diskreplay.errors import EvictedError
from diskreplay.ops.verify import verify
from diskreplay.schema.ragged import Lists

FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
AGENT_FIELDS = (*FIELDS, "state", "next_state", "agent_mask")
DIGESTS = {
    "pong-v1": "4fbd217554e18cb61869ad7c43bcc53040f954c460ab36b842e56455d679865c",
    "pong-window-v1": "695a1b0acccee48865d654e62f640abd98bc7e6a26f9eb06a638f2020a305a9e",
    "cartpole-v1": "a917218a8abac3c8cff0b5143a0899ec4e947bb0ea35aab566354b9d6cb6b864",
    "fetch-reach-v1": "38667934e0408ef625c769da9c0feb92dfaa582a89191a98dab8fb4e4807a502",
    "simple-spread-v1": "30671b300d7a4733701a785dcb4492a1d8ee4d59798a4ecd5c7b551cf311868e",
}
"""SHA-256 of all transitions of the window, as they were added."""


FEATURES = {
    "facts": "3baa2a1cb031e72ddf1b5c59aedb5be4123816408f7991fe13f6d22712bb9866",
    "flags": "804e248363104ca93adf657a579751dde0a08ac13b2b814bc57d88e898ff1a43",
    "nested": "b3cce9dfbd2c394a86d316a8ca696347040f4dc61a01d4409b1bb88142f09f2e",
    "ragged": "855d6f8b3096fc629ec7b3cfd458842b01dcbed4ae266e7fc2d2038f211a97f5",
    "stacks": "cd2ff57885e6175c36223e4100e2df81439809d8220a4e2508ee498f892a60bc",
    "streams": "a65f9d3ab8db4ca4b4c0a55a6dd5191d2fbea2322d92a02947d553f0d909993a",
    "video": "7544faa427345c328d4ad1464663a045cf0c2c5420fbd08dc783dd8e8226cef3",
}
"""Likewise of this folder's stores, which ``recipes.py`` made."""
HERE = pathlib.Path(__file__).parent
ALL = {**DIGESTS, **FEATURES}


def at(name: str) -> pathlib.Path:
    return (HERE if name in FEATURES else DATASETS) / f"{name}.replay"


def opened(path: pathlib.Path, **options: Any) -> Any:
    buffer = dr.MultiAgentReplayBuffer if path.name.startswith("simple-spread") else dr.ReplayBuffer
    form = {"ragged": "lists"} if path.name.startswith("video") else {}  # packets: to decode them needs PyAV
    return buffer.open(path, **{"mode": "r", **form, **options})


def index_of(rb: Any) -> np.ndarray:
    """Of every transition."""
    return np.sort(np.concatenate([batch.index for batch in rb.shuffled(64)]))


def digest(rb: Any) -> str:
    """Field by field, in the order in which the transitions were added, a Dict's entries by their names."""
    batch = rb.get(index_of(rb))
    found = hashlib.sha256()
    for name in AGENT_FIELDS if isinstance(rb, dr.MultiAgentReplayBuffer) else FIELDS:
        for array in leaves(getattr(batch, name)):
            found.update(np.ascontiguousarray(array).tobytes())
    for name in sorted(batch.extra if rb.schema.extra_columns or rb.schema.later else ()):
        found.update(
            name.encode() + b"".join(np.ascontiguousarray(each).tobytes() for each in leaves(batch.extra[name]))
        )
    return found.hexdigest()


def leaves(value: Any) -> list[np.ndarray]:
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, Lists):
        return list(value.parts)
    parts = [value[key] for key in sorted(value)] if isinstance(value, dict) else value
    return [leaf for part in parts for leaf in leaves(part)]


def test_checksums() -> None:
    assert recipes.load().checksums(DATASETS) == (DATASETS / "SHA256SUMS").read_text()


def test_every_store_is_tested() -> None:
    assert {path.stem for path in DATASETS.glob("*.replay")} == set(DIGESTS)
    assert {path.stem for path in HERE.glob("*.replay")} == set(FEATURES) == set(recipes_of_features.RECIPES)


@pytest.mark.parametrize("name", ALL)
def test_all_transitions_are_read(name: str) -> None:
    assert not verify(at(name)).problems
    with opened(at(name)) as rb:
        assert digest(rb) == ALL[name]


# In two stores priorities were kept before another stream was begun, by a program that kept none.
@pytest.mark.filterwarnings("ignore:(RankBased|Proportional).* begins anew:diskreplay.errors.SamplerWarning")
@pytest.mark.long(quick=6)
@pytest.mark.parametrize("name", ALL)
def test_a_copy_is_written_on(name: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / f"{name}.replay"
    shutil.copytree(at(name), path)
    with opened(path, mode="r+") as rb:
        before, end = digest(rb), len(rb)
        rb.checkpoint("anew")
    with opened(path) as rb:
        assert (digest(rb), len(rb)) == (before, end)
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


@pytest.mark.long
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


def test_facts_and_values_written_later() -> None:
    with opened(at("facts"), checkpoint="written") as rb:
        assert rb.checkpoint_metadata("written") == {"note": "naïve"}
        assert [(episode.facts["seed"], episode.facts["floor"]) for episode in rb.episodes] == [
            (n, [n]) for n in range(2, 7)
        ]
        assert len(rb.select("success == true and tag == 'even'").episodes) == 3
        batch = rb.get(rb.items())
        assert batch.extra["latent_known"].tolist() == [at % 3 == 0 for at in range(40)]
        assert np.flatnonzero(batch.extra["error_known"]).tolist() == list(range(5, 20))


def test_columns_of_a_users_own() -> None:
    with opened(at("nested")) as rb:
        assert {column.name: column.dtype.name for column in rb.schema.extra_columns} == {
            "half": "float16", "wave": "complex64", "big": "uint64", "flag": "bool",
        }  # fmt: skip
        assert (rb.schema.finite, rb.provenance, rb.view) == (
            True,
            {"env_id": "None-v0", "note": [1, None]},
            dr.Transition(3, 0.9),
        )
        assert rb.sample(5).obs["camera"].shape == (5, 2, 8, 8)


def test_stacks_as_they_were_given() -> None:
    with opened(at("stacks")) as rb:
        assert rb.sample(5).obs.shape == (5, 6, 6, 9)


def test_continuity_by_flags() -> None:
    with opened(at("flags")) as rb:
        assert rb.schema.continuity == "flags"
        assert rb.sample(6).obs.shape == (6, 4, 8, 8)


def test_a_stream_that_went_back() -> None:
    with opened(at("streams")) as rb:
        assert len(rb) == 40 + 17
        assert {episode.stream for episode in rb.episodes} == {0, 1}
    with opened(at("streams"), checkpoint="ranked", seed=0) as rb:
        assert rb.checkpoint_metadata("ranked") == {"step": 30}
        assert len(np.unique(rb.sample(30).weight)) > 10


def test_ragged_columns() -> None:
    with opened(at("ragged"), ragged="lists") as rb:
        assert [*rb.schema.ragged] == [
            "obs/graph/nodes", "obs/graph/edges", "obs/graph/edge_links", "obs/text", "action", "tokens", "half",
        ]  # fmt: skip
        batch = rb.get(rb.items())
        assert len(rb) == 60
        assert (batch.extra["tokens"].length[::2] == 20).all()
        assert batch.extra["half"].values.shape[1:] == (2,)
        assert set(map(chr, batch.obs["text"].values)) == set("abcé")
    with opened(at("ragged"), checkpoint="early") as rb:
        assert index_of(rb).max() == 61


def test_video_columns() -> None:
    pytest.importorskip("av", reason="showing frames needs PyAV")
    with dr.ReplayBuffer.open(at("video"), mode="r") as rb:
        videos = rb.schema.videos
        assert {name: (each.codec, each.shape, len(each.parameters)) for name, each in videos.items()} == {
            "obs/front": ("av1", (48, 64, 3), 1), "obs/wrist": ("h264", (16, 32, 3), 2),
        }  # fmt: skip
        assert [episode.facts for episode in rb.episodes] == [{"tasks": ["push"]}] * 2
        batch = rb.get(rb.items())
        for obs, first in ((batch.obs, 12), (batch.next_obs, 13)):
            grey = 10 + 20 * ((first + np.arange(24)) % 8)
            for frames in obs.values():
                assert np.abs(frames - grey[:, None, None, None]).max() <= 3


@pytest.mark.own_thresholds
@pytest.mark.parametrize("name", FEATURES)
def test_a_recipe_of_a_feature_still_makes_the_same(name: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / f"{name}.replay"
    recipes_of_features.RECIPES[name](path)
    with opened(path) as made, opened(at(name)) as golden:
        assert made.schema == golden.schema
        assert made.checkpoints == golden.checkpoints
        assert digest(made) == digest(golden)
