"""record: what the environments gave is what the store holds, also after a resume."""

from __future__ import annotations

import json
import os
import pathlib
import signal

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from helpers.line import rows_in

import diskreplay as dr
from diskreplay.errors import InputError, StoreExistsError
from diskreplay.ops import envs
from diskreplay.ops.record import Recorded, record
from diskreplay.ops.verify import verify


def test_one_environment(path: str) -> None:
    result = record("CartPole-v1", path, steps=300, seed=3)
    assert (result.steps, result.total_steps, result.new_steps, result.stopped) == (300, 300, 300, False)
    assert result.new_episodes > 3
    assert result.stored_bytes == sum(f.stat().st_size for f in pathlib.Path(path).rglob("*") if f.is_file())
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        assert (len(buffer), buffer.schema.capacity) == (300, 1_000_000)
        found = buffer.get(np.arange(300))
        ended = found.terminated | found.truncated
        assert ended.sum() == result.new_episodes
        np.testing.assert_array_equal(found.obs[1:][~ended[:-1]], found.next_obs[:-1][~ended[:-1]])
        assert not (found.obs[1:][ended[:-1]] == found.next_obs[:-1][ended[:-1]]).all(axis=1).any()
        assert (found.reward == 1).all()
    assert verify(path).ok


@pytest.mark.parametrize("num_envs", [1, 3])
def test_the_store_knows_its_environment(path: str, num_envs: int) -> None:
    record("Pendulum-v1", path, steps=30, num_envs=num_envs)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        told = buffer.provenance
    assert (told["env_id"], told["env_spec"]["id"], told.get("num_envs", 1)) == ("Pendulum-v1", "Pendulum-v1", num_envs)
    assert told["versions"]["gymnasium"] == gymnasium.__version__
    record("Pendulum-v1", path, steps=60, resume=True)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        assert buffer.provenance == told


def test_discrete_observations(path: str) -> None:
    """Gymnasium gives them as Python integers."""
    record("FrozenLake-v1", path, steps=200)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        assert sum(episode.ended for episode in buffer.episodes) > 5
        assert {int(obs) for obs in buffer.sample(100).obs} <= set(range(16))
    assert verify(path).ok


def test_the_same_seed_gives_the_same_store(tmp_path: pathlib.Path) -> None:
    batches = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        record("CartPole-v1", tmp_path / name, steps=60, num_envs=2, seed=seed)
        with dr.ReplayBuffer.open(tmp_path / name, mode="r", seed=0) as buffer:
            batches.append(buffer.sample(48))
    np.testing.assert_array_equal(batches[0].obs, batches[1].obs)
    assert not np.array_equal(batches[0].obs, batches[2].obs)


def test_lockstep_resets_are_no_transitions(path: str) -> None:
    result = record("CartPole-v1", path, steps=400, num_envs=3, seed=0)
    assert (result.steps, result.total_steps) == (402, 402)  # whole rows
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        ended = [episode for episode in buffer.episodes if episode.ended]
        assert result.new_episodes == len(ended) > 3
        assert all(episode.terminated and episode.complete_start for episode in ended)
        assert result.new_episodes - 3 <= 402 - len(buffer) <= result.new_episodes
        assert sum(episode.length for episode in buffer.episodes) == len(buffer)
    assert verify(path).ok


def test_resume_goes_on_to_the_steps_asked_for(path: str) -> None:
    record("CartPole-v1", path, steps=100, num_envs=2, resume=True)  # begins it
    with pytest.raises(StoreExistsError, match="--resume"):
        record("CartPole-v1", path, steps=200)
    again = record("CartPole-v1", path, steps=100, resume=True)
    assert (again.new_steps, again.steps) == (0, 100)
    more = record("CartPole-v1", path, steps=200, resume=True)
    assert (more.new_steps, more.steps) == (100, 200)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        assert not any(episode.start < 50 < episode.stop for episode in buffer.episodes)
        assert buffer.stats()["streams"]["0"]["end"] == 100
    assert verify(path).ok


def test_resume_is_deterministic(tmp_path: pathlib.Path) -> None:
    batches = []
    for name in ("a", "b"):
        record("CartPole-v1", tmp_path / name, steps=50, seed=5)
        record("CartPole-v1", tmp_path / name, steps=90, seed=5, resume=True)
        with dr.ReplayBuffer.open(tmp_path / name, mode="r") as buffer:
            batches.append(buffer.get(np.arange(90)))
    np.testing.assert_array_equal(batches[0].next_obs, batches[1].next_obs)
    assert not np.array_equal(batches[0].action[:40], batches[0].action[50:])


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"env_id": "MountainCar-v0"}, "observation space"),
        ({"num_envs": 3}, "number of environments"),
        ({"frame_stack": 2}, "frame stack"),
        ({"capacity": 7}, "capacity"),
    ],
)
def test_resume_refuses_what_does_not_fit(path: str, options: dict[str, object], what: str) -> None:
    record("CartPole-v1", path, steps=20)
    with pytest.raises(InputError, match=what):
        record(**{"env_id": "CartPole-v1", "path": path, "steps": 40, "resume": True, **options})  # type: ignore[arg-type]
    assert record("CartPole-v1", path, steps=40, resume=True).steps == 40  # the lock was given back


@pytest.mark.parametrize("options", [{"steps": 0}, {"seed": -1}, {"num_envs": 0}, {"env_id": "NoSuchEnv-v0"}])
def test_bad_arguments_leave_nothing_behind(path: str, options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        record(**{"env_id": "CartPole-v1", "path": path, "steps": 10, **options})  # type: ignore[arg-type]
    assert not pathlib.Path(path).exists()


def test_capacity_is_a_window(path: str) -> None:
    record("CartPole-v1", path, steps=200, capacity=64)
    assert rows_in(path) == 64


def test_a_signal_ends_it_between_two_steps(path: str) -> None:
    """In this very process: the handler only takes a note, and is gone afterwards."""
    before = signal.getsignal(signal.SIGINT)

    def interrupt(state: Recorded) -> None:
        if not state.stopped:
            os.kill(os.getpid(), signal.SIGINT)

    result = record("CartPole-v1", path, steps=10_000_000, progress=interrupt)
    assert result.stopped
    assert 0 < result.steps < 10_000_000
    assert signal.getsignal(signal.SIGINT) is before
    assert rows_in(path, mode="r+") == result.steps
    assert verify(path).ok


@pytest.mark.long
def test_atari_is_recorded_frame_by_frame(path: str) -> None:
    """The store against the emulator, played again with the same seeds."""
    record("ALE/Pong-v5", path, steps=60, atari=True, seed=7)
    seed = int(np.random.SeedSequence([7, 0]).generate_state(1)[0] >> 1)
    env = gymnasium.wrappers.AtariPreprocessing(
        gymnasium.make("ALE/Pong-v5", frameskip=1), frame_skip=4, screen_size=84
    )
    env.action_space.seed(seed)
    obs, _ = env.reset(seed=seed)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        found = buffer.get(np.arange(60))
        assert found.obs.shape == (60, 4, 84, 84)
        frames: list[np.ndarray] = []
        for step in range(60):
            action = env.action_space.sample()
            next_obs, reward, *_ = env.step(action)
            frames.append(obs.copy())
            stack = [np.zeros_like(obs)] * 3 + frames
            np.testing.assert_array_equal(found.obs[step], np.stack(stack[-4:]))
            np.testing.assert_array_equal(found.next_obs[step], np.stack([*stack[-3:], next_obs]))
            assert found.action[step] == action
            assert found.reward[step] == reward
            obs = next_obs
    env.close()
    with gymnasium.make("ALE/Pong-v5") as plain:
        assert plain.action_space == buffer.schema.action_space
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        spec = EnvSpec.from_json(json.dumps(buffer.provenance["env_spec"]))
        assert "ale-py" in buffer.provenance["versions"]
    with gymnasium.make(spec) as made:
        assert isinstance(made, gymnasium.wrappers.AtariPreprocessing)
        assert made.observation_space.shape == (84, 84)


def test_atari_preprocessing_of_another_environment() -> None:
    with pytest.raises(InputError, match="frameskip"):
        envs.make("CartPole-v1", 1, atari=True)
