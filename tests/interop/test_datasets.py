"""The recipes of ``datasets/`` that need an environment's own library, and hindsight with that environment's reward."""

from __future__ import annotations

import pathlib

import gymnasium
import numpy as np
import pytest
from helpers import recipes
from helpers.recipes import DATASETS

import diskreplay as dr


@pytest.mark.filterwarnings("default")
def test_fetch_reach(tmp_path: pathlib.Path) -> None:
    recipes.load().fetch_reach(tmp_path)
    env = gymnasium.make("FetchReach-v4").unwrapped
    with (
        dr.ReplayBuffer.open(tmp_path / "fetch-reach-v1.replay", mode="r") as made,
        dr.ReplayBuffer.open(
            DATASETS / "fetch-reach-v1.replay", mode="r", view=dr.Hindsight(env.compute_reward), seed=0
        ) as golden,
    ):
        assert made.schema == golden.schema
        assert len(made) == len(golden) == 1000
        batch = golden.sample(1000)
        achieved, desired = batch.next_obs["achieved_goal"], batch.next_obs["desired_goal"]
        np.testing.assert_array_equal(batch.reward, env.compute_reward(achieved, desired, {}))
        assert (batch.reward == 0).mean() > (made.sample(1000).reward == 0).mean()


@pytest.mark.filterwarnings("default")
def test_simple_spread(tmp_path: pathlib.Path) -> None:
    recipes.load().simple_spread(tmp_path)
    with (
        dr.MultiAgentReplayBuffer.open(tmp_path / "simple-spread-v1.replay", mode="r") as made,
        dr.MultiAgentReplayBuffer.open(DATASETS / "simple-spread-v1.replay", mode="r") as golden,
    ):
        assert made.schema == golden.schema
        assert [episode.length for episode in made.episodes] == [episode.length for episode in golden.episodes]
