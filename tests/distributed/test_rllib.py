"""RLlib's buffers on disk do what RLlib's own do, and an algorithm's checkpoint brings them back."""

from __future__ import annotations

import copy
import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.algorithms.cql import CQLConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.marwil import MARWILConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer

import diskreplay as dr
from diskreplay.errors import CheckpointError, InputError, LockedError, NotEnoughDataError
from diskreplay.ray import (
    DiskDQN,
    DiskEpisodeReplayBuffer,
    DiskOfflineData,
    DiskPrioritizedEpisodeReplayBuffer,
    DiskSAC,
)


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


def episode(
    length: int, id: str | None = None, *, first: int = 0, end: str | None = "terminated"
) -> SingleAgentEpisode:
    """Steps whose observation is their number, and their action too; the reward is a tenth of what is observed next."""
    made = SingleAgentEpisode(id_=id, observations=[float(first)], infos=[{}], t_started=first, len_lookback_buffer=0)
    for t in range(first, first + length):
        made.add_env_step(observation=float(t + 1), action=t, reward=0.1 * (t + 1), infos={})
    made.is_terminated, made.is_truncated = end == "terminated", end == "truncated"
    return made


def some_end(rng: np.random.Generator) -> str | None:
    return (None, "terminated", "truncated")[rng.integers(3)]


def ids(buffer: Any) -> list[str]:
    return [each.id_ for each in buffer.episodes]


# RLlib's own assertions on its buffer


def test_whole_episodes_are_evicted_the_oldest_first() -> None:
    buffer = DiskEpisodeReplayBuffer(capacity=100)
    for id, length, episodes, steps in [
        ("A", 50, {"A"}, 50), ("B", 25, {"A", "B"}, 75), ("C", 25, {"A", "B", "C"}, 100), ("D", 1, {"B", "C", "D"}, 51),
        ("E", 200, {"E"}, 200), ("F", 2, {"F"}, 2),
    ]:  # fmt: skip
        buffer.add(episode(length, id))
        assert (set(ids(buffer)), buffer.get_num_timesteps()) == (episodes, steps)
    for number in range(10):
        buffer.add(episode(10, str(number)))
    assert (buffer.get_num_episodes(), buffer.get_num_timesteps(), len(buffer)) == (10, 100, 100)
    buffer.add(episode(21, "G"))
    assert buffer.get_num_timesteps() == 91
    assert ids(buffer) == ["3", "4", "5", "6", "7", "8", "9", "G"]


def test_rows_of_time_steps_are_those_of_episodes() -> None:
    rng = np.random.default_rng(0)
    buffer = DiskEpisodeReplayBuffer(capacity=2_000, seed=0)
    for _ in range(40):
        buffer.add(episode(int(rng.integers(1, 100)), end=some_end(rng)))
    for _ in range(10):
        sample = buffer.sample(batch_size_B=16, batch_length_T=64)
        obs, actions, rewards, first, last, terminated, truncated = (
            sample[name]
            for name in ("obs", "actions", "rewards", "is_first", "is_last", "is_terminated", "is_truncated")
        )
        assert all(part.shape == (16, 64) for part in sample.values())
        assert not (terminated & truncated).any()
        assert last[:, -1].all()
        assert first[:, 0].all()
        assert (first[:, 1:] == last[:, :-1]).all()
        assert np.array_equal(obs * 0.1, rewards)
        assert np.where(last, True, obs == actions).all()
        assert np.where(terminated[:, 1:], actions[:, 1:] == actions[:, :-1], True).all()
        assert np.where(terminated[:, :-1], rewards[:, 1:] == 0.0, True).all()
        assert terminated.any()
        assert truncated.any()


@pytest.mark.parametrize("n_step", [1, 3, (1, 5)])
@pytest.mark.parametrize("kind", [DiskEpisodeReplayBuffer, DiskPrioritizedEpisodeReplayBuffer])
def test_transitions_are_right(kind: type[DiskEpisodeReplayBuffer], n_step: Any) -> None:
    rng = np.random.default_rng(0)
    buffer = kind(capacity=2_000, seed=0)
    ends = {}
    for number in range(60):
        length, end = int(rng.integers(1, 30)), some_end(rng)
        ends[str(number)] = length, end
        buffer.add(episode(length, str(number), end=end))
    found = buffer.sample(num_items=256, n_step=n_step, gamma=0.9, sample_episodes=True)
    assert len(found) == 256
    assert len({one.id_ for one in found}) > 30
    lengths = []
    for one in found:
        t, after = one.get_observations()
        steps = int(after - t)
        length, end = ends[one.id_]
        assert one.get_actions()[0] == t == one.t_started
        assert len(one) == 1
        assert one.get_rewards()[0] == pytest.approx(sum(0.9**i * 0.1 * (t + 1 + i) for i in range(steps)))
        assert (one.is_terminated, one.is_truncated) == (
            after == length and end == "terminated", after == length and end == "truncated",
        )  # fmt: skip
        assert one.get_extra_model_outputs("n_step")[0] == steps
        assert one.get_extra_model_outputs("weights")[0] == 1.0
        lengths.append(steps)
    most = n_step if isinstance(n_step, int) else n_step[1] - 1
    assert max(lengths) == most
    if kind is DiskPrioritizedEpisodeReplayBuffer and isinstance(n_step, int):
        assert min(lengths) == most  # as RLlib's, which draws again where an episode ends before


@pytest.mark.parametrize(
    ("disk", "ram"),
    [(DiskEpisodeReplayBuffer, EpisodeReplayBuffer),
     (DiskPrioritizedEpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer)],
)  # fmt: skip
def test_several_environments_make_rllibs_episodes(disk: Any, ram: Any) -> None:
    rng = np.random.default_rng(0)
    ours, theirs = disk(capacity=400, num_envs=3), ram(capacity=400)
    names, at, count = ["0", "1", "2"], [0, 0, 0], 3
    for step in range(200):
        chunks = []
        for env in range(3):
            length, end = int(rng.integers(1, 4)), "terminated" if rng.random() < 0.1 else None
            chunks.append(episode(length, names[env], first=at[env], end=end))
            at[env] += length
            if end:
                names[env], at[env], count = str(count), 0, count + 1
        ours.add(chunks)
        theirs.add(copy.deepcopy(chunks))
        assert ours.get_num_timesteps() == theirs.get_num_timesteps()
        if step % 20 == 19:
            assert ids(ours) == ids(theirs)
            for mine, its in zip(ours.episodes, theirs.episodes, strict=True):
                assert np.array_equal(mine.get_observations(), its.get_observations())
                assert np.array_equal(mine.get_rewards(), its.get_rewards())
                assert (mine.is_terminated, mine.is_truncated) == (its.is_terminated, its.is_truncated)
    assert ours.get_num_episodes_evicted() == theirs.get_num_episodes_evicted() > 0
    assert ours.get_added_timesteps() == theirs.get_added_timesteps()
    mine, its = ours.get_metrics(), theirs.get_metrics()
    for name in ("num_env_steps_added_lifetime", "num_episodes_added_lifetime", "num_env_steps_evicted_lifetime"):
        assert mine[name].peek() == its[name].peek()


def test_environments_in_step_store_each_observation_once() -> None:
    """Nothing but the ends of episodes goes to the patch table, where what is stored twice would stand."""
    buffer = DiskEpisodeReplayBuffer(capacity=10_000, num_envs=4)
    for t in range(0, 100, 2):
        buffer.add([episode(2, str(env), first=t, end="terminated" if t == 98 else None) for env in range(4)])
    assert buffer.store is not None
    assert (buffer.store.stats()["streams"]["0"]["patches"], len(buffer.store.episodes)) == (0, 4)


def test_more_episodes_than_environments_are_kept_too() -> None:
    buffer = DiskEpisodeReplayBuffer(capacity=1_000, num_envs=2)
    for t in range(0, 30, 3):
        buffer.add([episode(3, str(env), first=t, end=None) for env in range(5)])
    assert ids(buffer) == ["0", "1", "2", "3", "4"]
    for one in buffer.episodes:
        assert np.array_equal(one.get_observations(), np.arange(31.0))


def test_priorities_decide_what_is_drawn() -> None:
    buffer = DiskPrioritizedEpisodeReplayBuffer(capacity=100, alpha=1.0, seed=0)
    buffer.add(episode(20, "A"))
    drawn = buffer.sample(num_items=400, n_step=1, beta=0.5)
    assert {one.t_started for one in drawn} == set(range(20))
    buffer.update_priorities(np.where([one.t_started == 7 for one in drawn], 3.0, 1e-9))
    drawn = buffer.sample(num_items=50, n_step=1, beta=0.5)
    assert [one.t_started for one in drawn].count(7) >= 49
    buffer.add(episode(3, "B"), weight=9.0)  # three times nine, beside three
    share = np.mean([one.id_ == "B" for one in buffer.sample(num_items=3_000, n_step=1, beta=1.0)])
    assert share == pytest.approx(0.9, abs=0.02)
    heavy, light = (
        next(one for one in buffer.sample(num_items=200, n_step=1, beta=1.0) if one.id_ == id) for id in ("B", "A")
    )
    ratio = heavy.get_extra_model_outputs("weights")[0] / light.get_extra_model_outputs("weights")[0]
    assert ratio == pytest.approx(3.0 / 9.0, rel=1e-3)
    with pytest.raises(InputError, match=r"must have shape \(200,\)"):
        buffer.update_priorities(np.ones(3))


# States


def drawn(buffer: DiskEpisodeReplayBuffer) -> list[tuple[str, int]]:
    return [
        (one.id_, one.t_started) for one in buffer.sample(num_items=32, n_step=1, sample_episodes=True, beta=0.4)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [DiskEpisodeReplayBuffer, DiskPrioritizedEpisodeReplayBuffer])
def test_a_state_is_a_name_and_goes_back(kind: Any, path: str) -> None:
    buffer = kind(capacity=60, path=path, num_envs=2, seed=1)
    for number in range(8):
        buffer.add([episode(7, f"{number}-{env}") for env in range(2)])
    if kind is DiskPrioritizedEpisodeReplayBuffer:
        buffer.sample(num_items=16, n_step=1)
        buffer.update_priorities(np.arange(16.0))
    state = buffer.get_state()
    assert state == {"path": path, "checkpoint": "rllib-1"}
    before = ids(buffer), buffer.get_num_timesteps(), buffer.get_num_episodes_evicted(), buffer.get_added_timesteps()
    expected = drawn(buffer)
    buffer.add([episode(20, "later"), episode(5, "still later")])
    buffer.set_state(state)
    assert before == (
        ids(buffer), buffer.get_num_timesteps(), buffer.get_num_episodes_evicted(), buffer.get_added_timesteps(),
    )  # fmt: skip
    assert drawn(buffer) == expected
    buffer.add(episode(3, "goes on"))
    assert ids(buffer)[-1] == "goes on"
    buffer.close()
    other = kind(capacity=60, path=path, num_envs=2, seed=9)
    other.set_state(state)
    assert drawn(other) == expected
    other.close()


def states_of(buffer: DiskEpisodeReplayBuffer, count: int) -> list[dict[str, Any]]:
    """Its state after each of so many episodes."""
    states = []
    for number in range(count):
        buffer.add(episode(5, str(number)))
        states.append(buffer.get_state())
    return states


def test_going_back_gives_up_the_later_of_the_newest_checkpoints(path: str) -> None:
    buffer = DiskEpisodeReplayBuffer(capacity=100, path=path, keep_checkpoints=2)
    states = states_of(buffer, 4)
    assert buffer.store is not None
    assert buffer.store.checkpoints == ["rllib-3", "rllib-4"]
    with pytest.raises(CheckpointError, match="keep_checkpoints=2"):
        buffer.set_state(states[0])
    assert ids(buffer) == ["0", "1", "2", "3"]
    buffer.set_state(states[2])
    assert ids(buffer) == ["0", "1", "2"]
    assert buffer.store.checkpoints == ["rllib-3"]
    buffer.close()


def test_a_buffer_before_its_first_step_takes_more(path: str) -> None:
    """Regression: it made a second store at its path, since the first one was empty."""
    buffer = DiskEpisodeReplayBuffer(capacity=100, path=path)
    state = buffer.get_state()
    buffer.add(episode(5))
    buffer.set_state(state)
    assert buffer.get_num_timesteps() == 0
    buffer.add(episode(3))
    assert buffer.get_num_timesteps() == 3
    buffer.close()


def test_going_back_is_refused_before_a_checkpoint_is_dropped(path: str) -> None:
    buffer = DiskEpisodeReplayBuffer(capacity=100, path=path)
    states = states_of(buffer, 2)
    assert buffer.store is not None
    buffer.store.checkpoint("mine")
    with pytest.raises(CheckpointError, match=r"rows that \['mine'\] still need"):
        buffer.set_state(states[0])
    assert buffer.store.checkpoints == ["rllib-1", "rllib-2", "mine"]
    buffer.add(episode(5, "goes on"))
    assert ids(buffer) == ["0", "1", "goes on"]
    buffer.store.drop_checkpoint("mine")
    buffer.set_state(states[0])
    assert ids(buffer) == ["0"]
    buffer.close()


def test_a_buffer_that_draws_in_another_way_drops_no_checkpoint(path: str) -> None:
    buffer = DiskEpisodeReplayBuffer(capacity=100, path=path)
    states = states_of(buffer, 2)
    buffer.close()
    other = DiskPrioritizedEpisodeReplayBuffer(capacity=100, path=path)
    with pytest.raises(InputError, match="is of a buffer with Uniform"):
        other.set_state(states[0])
    assert other.store is not None
    assert other.store.checkpoints == ["rllib-1", "rllib-2"]
    assert ids(other) == ["0", "1"]
    other.close()


def test_a_reopened_buffer_goes_on_where_it_was_closed(path: str) -> None:
    buffer = DiskEpisodeReplayBuffer(capacity=50, path=path)
    for number in range(9):
        buffer.add(episode(8, str(number), end=None if number == 8 else "terminated"))
    before = ids(buffer)
    with pytest.raises(LockedError):
        DiskEpisodeReplayBuffer(capacity=50, path=path)
    buffer.close()
    buffer = DiskEpisodeReplayBuffer(capacity=50, path=path)
    assert ids(buffer) == before
    assert buffer.get_num_timesteps() == 48
    buffer.add(episode(4, "8", first=8))
    assert np.array_equal(buffer.episodes[-1].get_observations(), np.arange(13.0))
    buffer.close()
    with pytest.raises(InputError, match="choose the capacity and num_envs that it was made with"):
        DiskEpisodeReplayBuffer(capacity=60, path=path)


def test_what_is_not_there_says_so(path: str) -> None:
    buffer = DiskEpisodeReplayBuffer(capacity=50)
    with pytest.raises(NotEnoughDataError, match="empty"):
        buffer.sample(num_items=1, n_step=1, sample_episodes=True)
    buffer.add(episode(5, "A"))
    with pytest.raises(InputError, match="stateful"):
        buffer.sample(num_items=1, n_step=1, batch_length_T=4, sample_episodes=True)
    with pytest.raises(InputError, match="infos and extra model outputs"):
        buffer.sample(num_items=1, n_step=1, include_infos=True, sample_episodes=True)
    with pytest.raises(InputError, match="no path"):
        buffer.get_state()
    with pytest.raises(InputError, match="names no checkpoint"):
        buffer.set_state({"episodes": []})
    with pytest.raises(InputError, match=r"unknown options \['pathh'\]"):
        DiskEpisodeReplayBuffer(capacity=50, pathh=path)
    with pytest.raises(InputError, match="writes to a directory"):
        DiskEpisodeReplayBuffer(capacity=50, path="s3://bucket/a.replay")
    nested = SingleAgentEpisode(
        observations=[np.zeros(3), np.zeros(3)], actions=[0], rewards=[0.0], len_lookback_buffer=0
    )
    with pytest.raises(InputError, match=r"must be float64 \(\), got float64 \(3,\)"):
        buffer.add(nested)
    few = DiskPrioritizedEpisodeReplayBuffer(capacity=50)
    few.add(episode(2, "A"))
    with pytest.raises(NotEnoughDataError, match="n_step"):
        few.sample(num_items=1, n_step=3)


def test_nested_observations_come_back_nested() -> None:
    space = gymnasium.spaces.Dict(
        camera=gymnasium.spaces.Box(0, 255, (40, 40), np.uint8), speed=gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    )
    buffer = DiskEpisodeReplayBuffer(capacity=50, seed=0)
    made = SingleAgentEpisode(observation_space=space, action_space=gymnasium.spaces.Discrete(3))
    made.add_env_reset({"camera": np.zeros((40, 40), np.uint8), "speed": np.zeros(2, np.float32)})
    for t in range(1, 11):
        obs = {"camera": np.full((40, 40), t, np.uint8), "speed": np.full(2, t / 10, np.float32)}
        made.add_env_step(obs, t % 3, float(t), {}, terminated=t == 10)
    buffer.add(made.to_numpy())
    for one in buffer.sample(num_items=16, n_step=1, sample_episodes=True):
        for t, obs in enumerate(one.get_observations(), int(one.t_started)):
            assert (obs["camera"] == t).all()
            assert obs["speed"] == pytest.approx(t / 10)
    rows = buffer.sample(batch_size_B=2, batch_length_T=4)
    assert (rows["obs"]["camera"].shape, rows["actions"].shape) == ((2, 4, 40, 40), (2, 4))


# Algorithms


def dqn(path: str, kind: str) -> DQNConfig:
    """RLlib's ``cartpole_dqn.py`` but for the buffer, and for fewer steps an iteration."""
    config = (
        DQNConfig(algo_class=DiskDQN)
        .environment("CartPole-v1")
        .training(
            lr=0.0005, train_batch_size_per_learner=32, n_step=(2, 5), double_q=True, dueling=True,
            epsilon=[(0, 1.0), (25_000, 0.02)], num_steps_sampled_before_learning_starts=50,
            replay_buffer_config={"type": kind, "capacity": 50_000, "alpha": 0.6, "beta": 0.4, "path": path},
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[256], fcnet_activation="tanh", fcnet_bias_initializer="zeros_",
                head_fcnet_hiddens=[256], head_fcnet_bias_initializer="zeros_",
            )
        )
    )  # fmt: skip
    return short(config)


def sac(path: str, kind: str) -> SACConfig:
    config = SACConfig(algo_class=DiskSAC).environment("Pendulum-v1")
    return short(
        config.training(
            train_batch_size_per_learner=16, num_steps_sampled_before_learning_starts=50,
            replay_buffer_config={"type": kind, "capacity": 50_000, "alpha": 0.6, "beta": 0.4, "path": path},
        )
    )  # fmt: skip


def short(config: Any) -> Any:
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=2)
    config.reporting(
        min_time_s_per_iteration=0, min_train_timesteps_per_iteration=0, min_sample_timesteps_per_iteration=80
    )
    return config.debugging(seed=0)


@pytest.mark.parametrize(
    ("config", "kind"),
    [(dqn, "PrioritizedEpisodeReplayBuffer"), (dqn, "EpisodeReplayBuffer"), (sac, "EpisodeReplayBuffer"),
     (sac, "PrioritizedEpisodeReplayBuffer")],
)  # fmt: skip
def test_restoring_an_algorithm_brings_its_buffer_back(
    config: Any, kind: str, path: str, tmp_path: pathlib.Path, cluster: None
) -> None:
    algo = config(path, kind).build_algo()
    result = algo.train()
    buffer = algo.local_replay_buffer
    assert type(buffer).__name__ == f"Disk{kind}"
    assert isinstance(buffer, EpisodeReplayBuffer)
    assert result["learners"]["default_policy"]["num_module_steps_trained_lifetime"] > 0
    bytes_before = sum(file.stat().st_size for file in pathlib.Path(path).rglob("*") if file.is_file())
    algo.save(str(tmp_path / "saved"))
    state = sum(file.stat().st_size for file in (tmp_path / "saved").glob("*.pkl"))
    assert bytes_before > 0
    assert state < 100_000
    held, steps = ids(buffer), len(buffer)
    expected = drawn(buffer)
    algo.train()
    assert len(algo.local_replay_buffer) > steps
    algo.restore(str(tmp_path / "saved"))
    assert ids(algo.local_replay_buffer) == held
    assert len(algo.local_replay_buffer) == steps
    assert drawn(algo.local_replay_buffer) == expected
    algo.stop()

    algo = Algorithm.from_checkpoint(str(tmp_path / "saved"))
    assert type(algo).__name__ == ("DiskDQN" if config is dqn else "DiskSAC")
    assert ids(algo.local_replay_buffer) == held
    assert drawn(algo.local_replay_buffer) == expected
    algo.train()
    assert len(algo.local_replay_buffer) > steps
    algo.stop()


def test_an_algorithm_is_saved_in_a_checkpoint_of_its_store(path: str, tmp_path: pathlib.Path, cluster: None) -> None:
    algo = dqn(path, "PrioritizedEpisodeReplayBuffer").build_algo()
    assert not algo.restore_from_store()
    with pytest.raises(InputError, match="train for an iteration first"):
        algo.save_to_store()
    for number in range(3):
        algo.train()
        assert algo.save_to_store() == f"rllib-{number + 1}"
    held, expected, trained = ids(algo.local_replay_buffer), drawn(algo.local_replay_buffer), weights(algo)
    assert algo.local_replay_buffer.store.checkpoints == ["rllib-2", "rllib-3"]
    algo.train()
    assert not same(weights(algo), trained)
    algo.stop()

    algo = dqn(path, "PrioritizedEpisodeReplayBuffer").build_algo()
    assert algo.restore_from_store()
    assert same(weights(algo), trained)
    assert (ids(algo.local_replay_buffer), drawn(algo.local_replay_buffer)) == (held, expected)
    assert algo.iteration == 3
    algo.save(str(tmp_path / "saved"))
    with pytest.raises(CheckpointError, match=r"algorithm\.tar"):
        algo.restore_from_store("rllib-4")
    algo.train()
    assert algo.restore_from_store("rllib-3")
    assert same(weights(algo), trained)
    algo.stop()


def weights(algo: Any) -> dict[str, Any]:
    """Of the learner: that of the environments follows when it has learned again."""
    return {
        name: np.asarray(value)
        for name, value in algo.learner_group._learner.module["default_policy"].get_state().items()
    }


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def test_other_buffers_and_places_are_refused(path: str, tmp_path: pathlib.Path, cluster: None) -> None:
    config = dqn(path, "EpisodeReplayBuffer")
    config.replay_buffer_config["type"] = "MultiAgentEpisodeReplayBuffer"
    with pytest.raises(InputError, match="no buffer on disk takes the place of 'MultiAgentEpisodeReplayBuffer'"):
        config.build_algo()
    config = dqn(path, "EpisodeReplayBuffer")
    del config.replay_buffer_config["path"]
    algo = config.build_algo()
    algo.train()
    with pytest.raises(InputError, match="give replay_buffer_config a 'path'"):
        algo.save(str(tmp_path / "saved"))
    algo.stop()


def test_dqn_takes_the_buffer_by_its_dotted_name(path: str, cluster: None) -> None:
    """RLlib's own class, which does not bring the buffer back: a store is filled all the same."""
    config = dqn(path, "EpisodeReplayBuffer")
    config.algo_class = DQNConfig().algo_class
    config.replay_buffer_config["type"] = "diskreplay.ray.rllib.DiskPrioritizedEpisodeReplayBuffer"
    algo = config.build_algo()
    algo.train()
    buffer = algo.local_replay_buffer
    assert isinstance(buffer, DiskPrioritizedEpisodeReplayBuffer)
    assert len(buffer) >= 80
    buffer.close()
    algo.stop()


# Offline


def record(path: str, env: str, policy: Any, steps: int) -> None:
    played = gymnasium.make(env)
    with dr.ReplayBuffer.create(path, played.observation_space, played.action_space, capacity=10_000, seed=0) as rb:
        obs, _ = played.reset(seed=0)
        for _ in range(steps):
            action = policy(obs)
            following, reward, terminated, truncated, _ = played.step(action)
            rb.add(obs, action, reward, following, terminated, truncated)
            obs = following if not (terminated or truncated) else played.reset()[0]


def offline(config: Any, path: Any, env: str, **options: Any) -> Any:
    played = gymnasium.make(env)
    spaces = {"observation_space": played.observation_space, "action_space": played.action_space}
    config.environment(env, **spaces).offline_data(
        offline_data_class=DiskOfflineData, input_=path, input_read_method_kwargs={"override_num_blocks": 1, **options},
        map_batches_kwargs={"concurrency": 1, "num_cpus": 0.5}, iter_batches_kwargs={"prefetch_batches": 1},
        dataset_num_iters_per_learner=5,
    )  # fmt: skip
    return config.debugging(seed=0)


@pytest.mark.parametrize("kind", [BCConfig, MARWILConfig])
def test_what_was_recorded_is_imitated(kind: Any, path: str, cluster: None) -> None:
    record(path, "CartPole-v1", expert, 1_500)
    config = offline(kind(), [path], "CartPole-v1").training(train_batch_size_per_learner=256, lr=0.005)
    config.offline_data(dataset_num_iters_per_learner=20)
    algo = config.build_algo()
    assert algo.offline_data.data.count() == 1_500
    for _ in range(2):
        algo.train()
    loss = surprise(algo, path)
    algo.stop()
    assert loss < 0.6  # guessing has ln 2, 0.69


def expert(obs: Any) -> int:
    """Of CartPole: pushes where the pole falls to."""
    return int(obs[2] + 0.5 * obs[3] > 0)


def surprise(algo: Algorithm, path: str) -> float:
    """The mean cross entropy of a store's actions under what an algorithm has learnt."""
    with dr.ReplayBuffer.open(path, mode="r") as rb:
        batch = rb.get(rb.items())
    module = algo.learner_group._learner.module["default_policy"]
    with torch.no_grad():
        logits = module.forward_inference({"obs": torch.from_numpy(batch.obs)})["action_dist_inputs"]
    return float(torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.action)))


def test_rllibs_cartpole_bc_example_runs_on_our_data(path: str, cluster: None) -> None:
    """``cartpole_bc.py`` of RLlib's examples; its actors claim less than whole processors, of which there are two."""
    record(path, "CartPole-v1", expert, 6_000)
    config = (
        BCConfig()
        .environment("CartPole-v1")
        .offline_data(
            offline_data_class=DiskOfflineData, input_=[path],
            map_batches_kwargs={"concurrency": 2, "num_cpus": 0.25}, iter_batches_kwargs={"prefetch_batches": 1},
            dataset_num_iters_per_learner=5,
        )
        .training(train_batch_size_per_learner=1024, lr=0.0008)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[256, 256]))
        .evaluation(
            evaluation_interval=3, evaluation_num_env_runners=1, evaluation_duration=5,
            evaluation_parallel_to_training=True,
        )
        .env_runners(num_cpus_per_env_runner=0.25)
        .debugging(seed=0)
    )  # fmt: skip
    algo = config.build_algo()
    try:
        before = surprise(algo, path)
        results = [algo.train() for _ in range(3)]
        after = surprise(algo, path)
    finally:
        algo.stop()
    steps = [each["learners"]["default_policy"]["num_module_steps_trained_lifetime"] for each in results]
    assert steps[0] == 5 * 1024
    assert 14 * 1024 < steps[-1] <= 15 * 1024  # the last batch of an epoch has what is left of it
    assert results[-1]["evaluation"]["env_runners"]["episode_return_mean"] > 0
    assert after < before - 0.05


def test_cql_reads_a_store(path: str, cluster: None) -> None:
    rng = np.random.default_rng(0)
    record(path, "Pendulum-v1", lambda obs: rng.uniform(-2, 2, 1).astype(np.float32), 600)
    config = offline(CQLConfig(), path, "Pendulum-v1", episodes=slice(2))
    config.training(train_batch_size_per_learner=32, bc_iters=1, actor_lr=3e-4, critic_lr=3e-4, alpha_lr=3e-4, lr=None)
    config.offline_data(dataset_num_iters_per_learner=2)
    algo = config.build_algo()
    assert algo.offline_data.data.count() == 400  # of two episodes
    assert np.isfinite(algo.train()["learners"]["default_policy"]["cql_loss"])
    algo.stop()


def test_offline_data_refuses_what_rllib_could_not_use(path: str, cluster: None) -> None:
    space = gymnasium.spaces.Dict(a=gymnasium.spaces.Box(-1, 1, (2,), np.float32))
    dr.ReplayBuffer.create(path, space, gymnasium.spaces.Discrete(2), capacity=10).close()
    with pytest.raises(InputError, match=r"has no columns \['obs', 'next_obs'\]"):
        DiskOfflineData(offline(BCConfig(), [path], "CartPole-v1"))
    with pytest.raises(InputError, match="step by step"):
        DiskOfflineData(offline(BCConfig(), [path], "CartPole-v1").offline_data(input_read_episodes=True))


def test_names_come_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import diskreplay.ray as room

    monkeypatch.setattr(
        "importlib.import_module", lambda name: (_ for _ in ()).throw(ModuleNotFoundError("no ray", name="ray"))
    )
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'diskreplay\[ray\]'"):
        room.__getattr__("DiskDQN")
