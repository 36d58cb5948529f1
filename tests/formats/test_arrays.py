"""Arrays in RAM into a store: plain ones, and those of a replay buffer that looks like Stable-Baselines3's."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import diskreplay as dr
from diskreplay.errors import InputError
from diskreplay.formats.arrays import from_arrays, from_sb3
from diskreplay.ops.convert import import_dataset


def test_plain_arrays(path: str) -> None:
    rng = np.random.default_rng(0)
    obs, following = rng.normal(size=(2, 20, 3)).astype(np.float32)
    action, reward = rng.integers(2, 6, 20), rng.normal(size=20).astype(np.float32)
    ends, cuts = np.arange(20) % 7 == 6, np.arange(20) % 5 == 4
    source = from_arrays(obs, action, reward, following, ends, cuts, columns={"value": reward * 2})
    result = import_dataset(source, path)
    assert (result.format, result.transitions, result.dropped) == ("arrays", 20, 0)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        batch = buffer.get(np.arange(20))
        for mine, given in (
            (batch.obs, obs), (batch.next_obs, following), (batch.action, action), (batch.reward, reward),
            (batch.terminated, ends), (batch.truncated, cuts), (batch.extra["value"], reward * 2),
        ):  # fmt: skip
            np.testing.assert_array_equal(mine, given)
        assert buffer.schema.action_space == spaces.Discrete(6)


def test_nested_arrays_and_given_spaces(path: str) -> None:
    space = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 9, (1,)))))
    obs = {"a": np.zeros((4, 2), np.float32), "b": (np.arange(4) % 3, np.ones((4, 1), np.float32))}
    source = from_arrays(
        obs, np.zeros(4, np.int64), last=np.arange(4) == 1, observation_space=space, action_space=spaces.Discrete(2)
    )
    assert import_dataset(source, path).dropped == 2
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        assert buffer.schema.observation_space == space
        assert buffer.get(np.arange(2)).obs["b"][0].tolist() == [0, 2]
        assert [episode.length for episode in buffer.episodes] == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"action": np.zeros(3)}, "ragged lengths"),
        ({"terminated": np.full(4, 2)}, "each 0 or 1"),
        ({"terminated": np.zeros(9)}, "ragged lengths"),
        ({"next_obs": {"x": np.zeros((4, 2))}}, "next observations"),
        ({"obs": 3.0}, "single value|ragged"),
        ({"observation_space": spaces.Discrete(3)}, "both spaces"),
        ({"observation_space": spaces.Discrete(3), "action_space": spaces.Discrete(3)}, "was described"),
        ({"reward": np.array([0, np.nan, 0, 0])}, "finite"),
    ],
)
def test_bad_arrays(path: str, arguments: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"obs": np.zeros((4, 2)), "action": np.zeros(4), "last": np.arange(4) == 3, **arguments}
    with pytest.raises(InputError, match=said):
        import_dataset(from_arrays(**given), path)


class Stand(types.SimpleNamespace):
    """What Stable-Baselines3's buffer has; the real one stands in tests/interop."""


def sb3(rows: int, size: int = 8, envs: int = 2, shared: bool = False) -> tuple[Stand, list[list[dict[str, Any]]]]:
    """A buffer of ``size`` rows after ``rows`` steps, and all steps of each environment."""
    rng = np.random.default_rng(rows)
    buffer = Stand(
        observations=np.zeros((size, envs, 3), np.float32), next_observations=np.zeros((size, envs, 3), np.float32),
        actions=np.zeros((size, envs, 1), np.int64), rewards=np.zeros((size, envs), np.float32),
        dones=np.zeros((size, envs), np.float32), timeouts=np.zeros((size, envs), np.float32), pos=0, full=False,
        observation_space=spaces.Box(-9, 9, (3,)), action_space=spaces.Discrete(5), optimize_memory_usage=shared,
    )  # fmt: skip
    steps: list[list[dict[str, Any]]] = [[] for _ in range(envs)]
    obs = rng.normal(size=(envs, 3)).astype(np.float32)
    for _ in range(rows):
        following = rng.normal(size=(envs, 3)).astype(np.float32)
        action, reward = rng.integers(5, size=envs), rng.normal(size=envs).astype(np.float32)
        done = rng.random(envs) < 0.3
        late = done & (rng.random(envs) < 0.5) & (not shared)
        at = buffer.pos
        buffer.observations[at], buffer.actions[at, :, 0], buffer.rewards[at] = obs, action, reward
        buffer.dones[at], buffer.timeouts[at] = done, late
        if shared:
            buffer.observations[(at + 1) % size] = following
        else:
            buffer.next_observations[at] = following
        for env in range(envs):
            steps[env].append(
                {"obs": obs[env], "next_obs": following[env], "action": action[env], "reward": reward[env],
                 "terminated": done[env] and not late[env], "truncated": late[env]}
            )  # fmt: skip
        buffer.pos = (at + 1) % size
        buffer.full = buffer.full or buffer.pos == 0
        obs = np.where(done[:, None], rng.normal(size=(envs, 3)).astype(np.float32), following)
    return buffer, steps


@pytest.mark.parametrize("rows", [0, 1, 5, 8, 13, 16])
def test_a_buffer_of_sb3(path: str, rows: int) -> None:
    stand, steps = sb3(rows)
    wanted = [step for each in steps for step in each[-8:]]
    result = import_dataset(from_sb3(stand), path)
    assert (result.transitions, result.dropped) == (len(wanted), 0)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        if wanted:
            batch = buffer.get(np.arange(len(wanted)))
            for key in wanted[0]:
                np.testing.assert_array_equal(getattr(batch, key), np.array([step[key] for step in wanted]))
        assert buffer.schema.action_space == spaces.Discrete(5)


def test_a_buffer_of_sb3_that_shares_observations(path: str) -> None:
    """No final observations: the newest step of each environment is left out unless it was terminated."""
    stand, steps = sb3(13, shared=True)
    wanted = [step for each in steps for step in each[-7:] if step is not each[-1] or step["terminated"]]
    assert import_dataset(from_sb3(stand), path).transitions == len(wanted)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        batch = buffer.get(np.arange(len(wanted)))
        for key in ("obs", "action", "reward", "terminated"):
            np.testing.assert_array_equal(getattr(batch, key), np.array([step[key] for step in wanted]))
        going_on = ~batch.terminated
        following = np.array([step["next_obs"] for step in wanted])
        np.testing.assert_array_equal(batch.next_obs[going_on], following[going_on])


def test_what_is_no_buffer() -> None:
    with pytest.raises(InputError, match="no replay buffer of Stable-Baselines3: it has no 'observations'"):
        from_sb3([])
