"""What a store knows of where its steps come from."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import RescaleAction, TransformReward

import diskreplay as dr
from diskreplay.errors import InputError
from diskreplay.ops.inspect import inspect
from diskreplay.ops.verify import verify

OBS, ACTION = Box(-1, 1, (3,), np.float32), Discrete(2)
TOLD = {"env_id": "mine", "trials": [1, 2.5, None, {"nested": True}], "versions": {"python": "3"}}

Make = Callable[..., Any]
MAKERS: dict[str, Make] = {
    "ReplayBuffer": lambda path, **more: dr.ReplayBuffer.create(path, OBS, ACTION, capacity=9, **more),
    "RolloutBuffer": lambda path, **more: dr.RolloutBuffer.create(path, OBS, ACTION, steps=9, **more),
    "MultiAgentReplayBuffer": lambda path, **more: dr.MultiAgentReplayBuffer.create(
        path, OBS, ACTION, 2, capacity=9, **more
    ),
    "MultiAgentRolloutBuffer": lambda path, **more: dr.MultiAgentRolloutBuffer.create(
        path, OBS, ACTION, 2, steps=9, **more
    ),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_store_keeps_it(kind: str, path: str) -> None:
    with MAKERS[kind](path, provenance=TOLD) as buffer:
        assert buffer.provenance == TOLD
        buffer.provenance["trials"].clear()
        assert buffer.provenance == TOLD, "it is a copy"
    with getattr(dr, kind).open(path, mode="r") as buffer:
        assert buffer.provenance == TOLD
        schema = json.dumps(buffer.schema.to_json())
    assert "trials" not in schema
    assert inspect(path).provenance == TOLD
    assert verify(path).ok


@pytest.mark.parametrize("kind", MAKERS)
def test_without_one_the_document_is_as_before(kind: str, path: str) -> None:
    with MAKERS[kind](path) as buffer:
        assert buffer.provenance == {}
    document = json.loads(pathlib.Path(path, "zarr.json").read_bytes())
    assert "provenance" not in document["attributes"]["diskreplay"]["settings"]


BAD = [
    (["CartPole-v1"], "must be a mapping of JSON values, got list"),
    (gymnasium.make("CartPole-v1"), r"diskreplay\.provenance\(env\) makes one"),
    ({"env": object()}, "provenance must be JSON"),
    ({"low": float("inf")}, "provenance must be JSON"),
    ({"count": np.int64(3)}, "call .item"),
    ({"text": "x" * (17 << 20)}, "would take"),
]


@pytest.mark.parametrize(("given", "said"), BAD, ids=[said for _, said in BAD])
@pytest.mark.parametrize("kind", MAKERS)
def test_what_is_no_json_is_refused_and_nothing_made(kind: str, given: Any, said: str, path: str) -> None:
    with pytest.raises(InputError, match=said):
        MAKERS[kind](path, provenance=given)
    assert not pathlib.Path(path).exists()


def test_it_is_not_compared(path: str) -> None:
    """A program that is started again with another version of a library goes on."""
    for version in ("1", "2"):
        with dr.ReplayBuffer.open_or_create(
            path, OBS, ACTION, capacity=9, provenance={"versions": {"python": version}}
        ) as buffer:
            assert buffer.provenance == {"versions": {"python": "1"}}


# Of an environment


def test_an_environment_with_arguments_and_wrappers() -> None:
    env = RescaleAction(gymnasium.make("Pendulum-v1", g=9.0, max_episode_steps=7), -1, 1)
    told = dr.provenance(env)
    assert (json.loads(json.dumps(told)), told["env_id"]) == (told, "Pendulum-v1")
    assert told["env_spec"]["kwargs"] == {"g": 9.0}
    assert EnvSpec.from_json(json.dumps(told["env_spec"])) == env.spec
    assert told["versions"].keys() == {"python", "gymnasium", "diskreplay"}
    assert told["versions"]["gymnasium"] == gymnasium.__version__
    made = gymnasium.make(EnvSpec.from_json(json.dumps(told["env_spec"])))
    assert isinstance(made, RescaleAction)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_vector_environment_is_that_of_its_parts(mode: str) -> None:
    envs = gymnasium.make_vec("Pendulum-v1", 2, mode, g=9.0)
    try:
        told = dr.provenance(envs)
        assert (told["env_id"], told["num_envs"]) == ("Pendulum-v1", 2)
        made = gymnasium.make(EnvSpec.from_json(json.dumps(told["env_spec"])))
        assert getattr(made.unwrapped, "g", None) == 9.0
    finally:
        envs.close()


def test_vectors_of_functions_and_vector_wrappers() -> None:
    envs: Any = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3)
    told = dr.provenance(gymnasium.wrappers.vector.RecordEpisodeStatistics(envs))
    assert (told["env_id"], told["env_spec"]["id"], told["num_envs"]) == ("CartPole-v1", "CartPole-v1", 3)


def test_what_no_json_describes_is_named_all_the_same(path: str) -> None:
    env = TransformReward(gymnasium.make("CartPole-v1"), lambda reward: reward / 2)
    told = dr.provenance(env)
    assert told["env_id"] == "CartPole-v1"
    assert "env_spec" not in told
    with dr.ReplayBuffer.create(path, OBS, ACTION, capacity=9, provenance=told) as buffer:
        assert buffer.provenance == told


class Own(gymnasium.Env[Any, Any]):
    """Made by nobody's registry."""

    observation_space, action_space = OBS, ACTION


def test_an_environment_without_a_name_is_its_class() -> None:
    told = dr.provenance(Own())
    assert told["env_id"].endswith(":Own")
    assert "env_spec" not in told
    assert dr.provenance(object())["env_id"] == "builtins:object"
