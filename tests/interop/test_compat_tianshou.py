"""`compat.tianshou` beside Tianshou's own buffers: the same seed, the same batches, the same parameters."""

from __future__ import annotations

import functools
import itertools
import pathlib
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

torch = pytest.importorskip("torch", reason="torch is in the interop extra")
pytest.importorskip("tianshou", reason="tianshou is in the interop extra")

from helpers.testing import Interrupts  # noqa: E402
from tianshou.algorithm import DQN, SAC  # noqa: E402
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy  # noqa: E402
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy  # noqa: E402
from tianshou.algorithm.optim import AdamOptimizerFactory  # noqa: E402
from tianshou.data import (  # noqa: E402
    Batch,
    Collector,
    PrioritizedVectorReplayBuffer,
    ReplayBuffer,
    ReplayBufferManager,
    VectorReplayBuffer,
)
from tianshou.env import DummyVectorEnv  # noqa: E402
from tianshou.trainer import OffPolicyTrainerParams  # noqa: E402
from tianshou.utils.net.common import Net  # noqa: E402
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic  # noqa: E402
from tianshou.utils.torch_utils import policy_within_training_step  # noqa: E402

from diskreplay.compat.tianshou import DiskPrioritizedVectorReplayBuffer, DiskVectorReplayBuffer  # noqa: E402
from diskreplay.errors import CheckpointError, ClosedError, InputError, LockedError, SamplerWarning  # noqa: E402

FIELDS = ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next")
PRIORITIES = {"alpha": 0.6, "beta": 0.4}


pytestmark = pytest.mark.usefixtures("one_torch_thread")


# Driven by hand


class Steps:
    """Steps of environments, of which only some are ready each time; observations ``(n, 4)``, or another shape."""

    def __init__(self, num_envs: int = 3, observe: Callable[[Any, int], Any] | None = None) -> None:
        self.rng, self.num_envs = np.random.default_rng(0), num_envs
        self.observe = observe or (lambda rng, count: rng.random((count, 4)).astype(np.float32))
        self.obs = self.observe(self.rng, num_envs)

    def next(self) -> tuple[Any, Any]:
        rng = self.rng
        ids = rng.permutation(self.num_envs)[: rng.integers(1, self.num_envs + 1)]
        count = len(ids)
        ends, following, fresh = rng.random((2, count)) < 0.1, self.observe(rng, count), self.observe(rng, count)
        batch = Batch(
            obs=_at(self.obs, ids), act=rng.integers(0, 3, count), rew=rng.random(count), terminated=ends[0],
            truncated=ends[1] & ~ends[0], obs_next=following, info=Batch(env_id=ids),
        )  # fmt: skip
        _write(self.obs, ids, following)
        _write(self.obs, ids[ends.any(0)], _at(fresh, ends.any(0)))
        return batch, ids


def _at(obs: Any, where: Any) -> Any:
    return {key: value[where] for key, value in obs.items()} if isinstance(obs, dict) else obs[where]


def _write(obs: Any, where: Any, values: Any) -> None:
    for array, value in zip(obs.values(), values.values(), strict=True) if isinstance(obs, dict) else [(obs, values)]:
        array[where] = value if len(value) == len(array[where]) else value[: len(array[where])]


def play(buffers: list[Any], steps: int = 200, source: Steps | None = None) -> None:
    source = source or Steps()
    for _ in range(steps):
        batch, ids = source.next()
        results = [buffer.add(batch, ids) for buffer in buffers]
        for given, expected in zip(results[0], results[-1], strict=True):
            np.testing.assert_array_equal(given, expected)


def assert_equal(ours: Any, theirs: Any, what: str) -> None:
    if isinstance(theirs, Batch):
        assert set(ours.keys()) == set(theirs.keys()), what
        for key in theirs.keys():  # noqa: SIM118  # a Batch is no mapping
            assert_equal(ours[key], theirs[key], f"{what}.{key}")
        return
    np.testing.assert_array_equal(ours, theirs, what)
    assert np.asarray(ours).dtype == np.asarray(theirs).dtype, what


def assert_alike(ours: Any, theirs: Any, fields: tuple[str, ...] = FIELDS) -> None:
    assert (len(ours), ours.maxsize) == (len(theirs), theirs.maxsize)
    every = np.arange(ours.maxsize)
    for name in ("prev", "next"):
        np.testing.assert_array_equal(getattr(ours, name)(every), getattr(theirs, name)(every), name)
    np.testing.assert_array_equal(ours.unfinished_index(), theirs.unfinished_index())
    for name in ("rew", "done", "terminated", "truncated", "act"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), name)
    for size in (32, 0):
        np.random.seed(3)
        batch, indices = ours.sample(size)
        np.random.seed(3)
        expected, expected_indices = theirs.sample(size)
        np.testing.assert_array_equal(indices, expected_indices)
        for field in fields:
            assert_equal(batch[field], expected[field], field)
    indices = [slice(2, 7), np.array([3, 1, 3]), 4]
    if ours.stack_num == 1:  # Tianshou's own stacks take no others
        indices.append(np.array([[0, 1], [2, 3]]))
    for index in indices:
        for field in fields:
            assert_equal(ours[index][field], theirs[index][field], field)


def test_what_tianshous_own_test_of_a_manager_asserts() -> None:
    buffer = DiskVectorReplayBuffer(20, 4)
    assert isinstance(buffer, ReplayBufferManager)

    def add(values: Any, ends: Any, ids: Any) -> Any:
        given = np.asarray(values)
        zeros = np.zeros(len(given), int)
        return buffer.add(
            Batch(obs=given, act=given, rew=given, terminated=np.asarray(ends), truncated=zeros, obs_next=given + 1),
            ids,
        )

    ptr, returns, lengths, starts = add([1, 2, 3], [0, 0, 1], [0, 1, 2])
    assert (ptr.tolist(), starts.tolist()) == ([0, 5, 10], [0, 5, 10])
    assert (returns.tolist(), lengths.tolist()) == ([0, 0, 3], [0, 0, 1])
    with pytest.raises(NotImplementedError):
        buffer.update(buffer)
    assert np.bincount(buffer.sample_indices(11_000))[[0, 5, 10]].min() >= 3000
    _, indices = buffer.sample(0)
    assert indices.tolist() == buffer.prev(indices).tolist() == buffer.next(indices).tolist() == [0, 5, 10]
    assert buffer.unfinished_index().tolist() == [0, 5]
    add([4], [1], [3])
    assert buffer.unfinished_index().tolist() == [0, 5]
    for ends in (0, 1, 0):
        add([0] * 4, [ends] * 4, None)
    assert len(buffer) == 16
    add([0] * 4, [0, 1, 0, 1], [0, 1, 2, 3])
    assert len(buffer) == 20
    assert np.bincount(buffer.sample_indices(120_000)).min() >= 5000
    assert buffer.sample_indices(0).tolist() == list(range(20))
    assert np.flatnonzero(buffer.done).tolist() == [2, 7, 9, 10, 12, 15, 17, 19]
    assert buffer.prev(np.arange(20)).tolist() == [0, 0, 1, 3, 3, 5, 5, 6, 8, 8, 10, 11, 11, 13, 13, 15, 16, 16, 18, 18]
    assert buffer.next(np.arange(20)).tolist() == [1, 2, 2, 4, 4, 6, 7, 7, 9, 9, 10, 12, 12, 14, 14, 15, 17, 17, 19, 19]
    assert buffer.unfinished_index().tolist() == [4, 14]
    ptr, returns, lengths, starts = add([1], [1], [2])
    assert (ptr.tolist(), starts.tolist(), lengths.tolist(), returns.tolist()) == ([10], [13], [3], [1])
    assert buffer.unfinished_index().tolist() == [4]
    assert (buffer.prev(-1), buffer.next(-1)) == (buffer.prev(19), buffer.next(19))
    assert buffer.get_buffer_indices(13, 11).tolist() == [13, 14, 10]
    assert (buffer.sample_indices(-1).tolist(), buffer[[10, 14, 0]].obs.tolist()) == ([], [1, 0, 1])
    assert buffer.obs_next.tolist() == [2, *[1] * 4, 3, *[1] * 4, 2, *[1] * 4, 5, *[1] * 4]


def nested(rng: Any, count: int) -> Any:
    return {"picture": rng.integers(0, 255, (count, 5, 5), np.uint8), "mask": rng.random((count, 2)) < 0.5}


KINDS: dict[str, tuple[dict[str, Any], Any]] = {
    "vectors": ({}, None),
    "Dict": ({}, nested),
    "numbers": ({}, lambda rng, count: rng.integers(0, 99, count)),
    "only where a stack is whole": ({"stack_num": 3, "sample_avail": True}, None),
    "stacks": ({"stack_num": 4, "ignore_obs_next": True}, None),
    "stacks of a Dict": ({"stack_num": 2, "ignore_obs_next": True}, nested),
}


@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_environments_that_are_ready(kind: str) -> None:
    options, observe = KINDS[kind]
    ours, theirs, source = DiskVectorReplayBuffer(100, 3, **options), VectorReplayBuffer(100, 3, **options), None
    source = Steps(3, observe)
    # Of stacks Tianshou's obs_next is another one where an episode begins, or where it leaves out the final one.
    fields = tuple(field for field in FIELDS if field != "obs_next" or "stack_num" not in options)
    for _ in range(5):
        play([ours, theirs], 40, source)
        assert_alike(ours, theirs, fields)
        np.testing.assert_array_equal(ours[:].info.env_id, theirs[:].info.env_id)
    assert [len(store) for store in ours.stores] == theirs._lengths.tolist(), "no rows of those that were not ready"
    if options.get("ignore_obs_next"):
        inner = np.flatnonzero(theirs.next(np.arange(102)) != np.arange(102))
        assert len(inner) > 50
        assert_equal(ours[inner].obs_next, theirs[inner].obs_next, "obs_next")


def test_next_observations_are_true_where_an_episode_ends() -> None:
    buffer = DiskVectorReplayBuffer(20, 1, stack_num=3, ignore_obs_next=True)
    for step in range(8):
        buffer.add(
            Batch(
                obs=np.array([[step]]), act=np.zeros(1), rew=np.zeros(1), terminated=np.array([False]),
                truncated=np.array([step == 3]), obs_next=np.array([[99 if step == 3 else step + 1]]),
            )
        )  # fmt: skip
    assert (buffer[3].obs[:, 0].tolist(), buffer[3].obs_next[:, 0].tolist()) == ([1, 2, 3], [2, 3, 99])
    assert (buffer[4].obs[:, 0].tolist(), buffer[4].obs_next[:, 0].tolist()) == ([4, 4, 4], [4, 4, 5])


def test_only_the_last_frame_of_a_stack_is_stored() -> None:
    options = {"stack_num": 2, "save_only_last_obs": True, "ignore_obs_next": True}
    ours, theirs = DiskVectorReplayBuffer(30, 2, **options), VectorReplayBuffer(30, 2, **options)
    play([ours, theirs], 60, Steps(2, lambda rng, count: rng.integers(0, 255, (count, 2, 6, 6), np.uint8)))
    batch = ours[:]
    assert batch.obs.shape == (30, 2, 6, 6)
    np.testing.assert_array_equal(batch.obs, theirs[:].obs)
    assert ours.stores[0].schema.obs_columns[0].shape == (6, 6)


def test_priorities_draw_the_same() -> None:
    ours = DiskPrioritizedVectorReplayBuffer(100, 3, **PRIORITIES)
    theirs = PrioritizedVectorReplayBuffer(100, 3, **PRIORITIES)
    source, rng = Steps(), np.random.default_rng(1)
    for _ in range(8):
        play([ours, theirs], 30, source)
        assert_alike(ours, theirs, (*FIELDS, "weight"))
        indices, errors = ours.sample_indices(16), rng.random(16) * 5
        ours.update_weight(indices, errors)
        theirs.update_weight(indices, errors)
    ours.set_beta(1.0)
    theirs.set_beta(1.0)
    assert_alike(ours, theirs, (*FIELDS, "weight"))


# Training


class Toy(gym.Env):
    """Random vectors; an episode ends after 7 steps, or is truncated after 9 if the action said so."""

    def __init__(self, action_space: spaces.Space, delay: int = 0) -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1, (5,), np.float32), action_space
        self.delay = delay

    def _observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 5).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {"steps": 0}

    def step(self, action: Any) -> Any:
        self.steps += 1
        reward = float(np.sum(action))
        last = 7 + self.delay
        return (
            self._observe(),
            reward,
            self.steps == last and reward <= 0.5,
            self.steps == last + 2,
            {"steps": self.steps},
        )


def envs_of(action_space: spaces.Space, num_envs: int = 3) -> DummyVectorEnv:
    envs = DummyVectorEnv([lambda n=number: Toy(action_space, n) for number in range(num_envs)])
    envs.seed(1)
    return envs


def q_learning() -> Any:
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=(5,), action_shape=3, hidden_sizes=[16]),
        action_space=spaces.Discrete(3),
        eps_training=0.3,
    )
    optim = AdamOptimizerFactory(lr=1e-3)
    return DQN(policy=policy, optim=optim, gamma=0.9, n_step_return_horizon=3, target_update_freq=20)


def soft_actor_critic() -> Any:
    def net(**options: Any) -> Any:
        return Net(state_shape=(5,), hidden_sizes=[16], **options)

    actor = ContinuousActorProbabilistic(preprocess_net=net(), action_shape=(2,), unbounded=True)
    critics = [ContinuousCritic(preprocess_net=net(action_shape=(2,), concat=True)) for _ in range(2)]
    optim = AdamOptimizerFactory(lr=1e-3)
    return SAC(
        policy=SACPolicy(actor=actor, action_space=CONTINUOUS), policy_optim=optim, critic=critics[0],
        critic_optim=optim, critic2=critics[1], critic2_optim=optim, alpha=AutoAlpha(-2.0, 0.0, optim),
        n_step_return_horizon=3,
    )  # fmt: skip


CONTINUOUS = spaces.Box(-1, 1, (2,), np.float32)


def train(make: Callable[[], Any], action_space: spaces.Space, buffer: Any) -> Any:
    np.random.seed(1)
    torch.manual_seed(1)
    envs, tests = envs_of(action_space), envs_of(action_space, 1)
    algorithm = make()
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)
    with policy_within_training_step(algorithm.policy):
        collector.reset()
        collector.collect(n_step=60)
    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector, test_collector=Collector(algorithm, tests), max_epochs=2, epoch_num_steps=90,
            collection_step_num_env_steps=9, test_step_num_episodes=1, batch_size=16, verbose=False,
            update_step_num_gradient_steps_per_sample=0.3, show_progress=False,
        )
    )  # fmt: skip
    return algorithm


TRAININGS: dict[str, tuple[Any, Any, Any, Any, dict[str, Any]]] = {
    "DQN": (q_learning, spaces.Discrete(3), DiskVectorReplayBuffer, VectorReplayBuffer, {}),
    "DQN with priorities": (
        q_learning, spaces.Discrete(3), DiskPrioritizedVectorReplayBuffer, PrioritizedVectorReplayBuffer, PRIORITIES,
    ),
    "SAC": (soft_actor_critic, CONTINUOUS, DiskVectorReplayBuffer, VectorReplayBuffer, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", TRAININGS)
def test_training_gives_the_same_parameters_to_the_last_bit(case: str) -> None:
    make, action_space, disk, memory, options = TRAININGS[case]
    ours, theirs = disk(120, 3, **options), memory(120, 3, **options)
    found, expected = (list(train(make, action_space, buffer).parameters()) for buffer in (ours, theirs))
    torch.manual_seed(1)
    assert any(not torch.equal(*pair) for pair in zip(expected, make().parameters(), strict=True)), "it has learnt"
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    assert len(ours) == 120
    assert_alike(ours, theirs, (*FIELDS, *(["weight"] if options else [])))


# A store that is opened again


def collector_of(buffer: Any, num_envs: int = 3) -> Any:
    collector = Collector(q_learning(), envs_of(spaces.Discrete(3), num_envs), buffer)
    collector.reset()
    return collector


def test_reset_keeps_what_was_opened_and_empties_what_is_new(tmp_path: pathlib.Path) -> None:
    buffer = DiskVectorReplayBuffer(60, 3, path=tmp_path / "store")
    collector = collector_of(buffer)
    collector.collect(n_step=30, random=True)
    collector.reset()
    assert len(buffer) == 0
    collector.collect(n_step=60, random=True)
    held = buffer[:]
    with pytest.raises(LockedError):
        DiskVectorReplayBuffer(60, 3, path=tmp_path / "store")
    buffer.close()
    with pytest.raises(ClosedError):
        buffer.sample(4)

    again = DiskVectorReplayBuffer(60, 3, path=tmp_path / "store")
    collector = collector_of(again)
    assert len(again) == 60
    for field in ("obs", "act", "rew", "terminated", "truncated", "obs_next"):
        assert_equal(again[:][field], held[field], field)
    assert again.unfinished_index().tolist() == [], "nobody goes on with those episodes"
    left = np.array([19, 39, 59])
    assert again.next(left).tolist() == left.tolist()
    assert again.done[left].all()
    collector.collect(n_step=9, random=True)
    assert again.next(left).tolist() == left.tolist(), "not on into the episode that came after"
    assert again.unfinished_index().tolist() == [2, 22, 42]
    again.reset(keep_statistics=True)  # as on-policy trainers empty it after an update
    assert len(again) == 0
    again.clear()
    collector.collect(n_step=3, random=True)
    again.close()
    assert len(DiskVectorReplayBuffer(60, 3, path=tmp_path / "store")) == 3


def test_cut_ends_episodes_of_a_new_buffer_and_keeps_its_rows(tmp_path: pathlib.Path) -> None:
    buffer = DiskVectorReplayBuffer(60, 3, path=tmp_path / "store")
    collector = collector_of(buffer)
    collector.collect(n_step=12, random=True)
    assert buffer.unfinished_index().tolist() == [3, 23, 43]
    buffer.cut()
    collector.reset(reset_buffer=False)  # as a trainer's reset and run do
    held = buffer[:]
    assert (len(buffer), buffer.unfinished_index().tolist()) == (12, [])
    assert not held.terminated.any()
    assert not held.truncated.any()
    collector.collect(n_step=9, random=True)
    left = np.array([3, 23, 43])
    assert buffer.next(left).tolist() == left.tolist(), "not on into the episode that came after"
    assert buffer.unfinished_index().tolist() == [6, 26, 46]
    for store in buffer.stores:
        assert [(episode.length, episode.ended) for episode in store.episodes] == [(4, True), (3, False)]
    assert_equal(buffer[left].obs_next, held[np.array([3, 7, 11])].obs_next, "the true next one, not that of the reset")


@pytest.mark.parametrize("prioritized", [False, True])
def test_draws_go_on_where_a_buffer_is_opened_again(tmp_path: pathlib.Path, prioritized: bool) -> None:
    """At a checkpoint, and as it was closed, with rings that are full: as those of one that was never closed."""
    disk, memory, options = DiskVectorReplayBuffer, VectorReplayBuffer, {"random_seed": 7}
    if prioritized:
        disk, memory, options = DiskPrioritizedVectorReplayBuffer, PrioritizedVectorReplayBuffer, {**PRIORITIES}
    buffer, twin = disk(60, 3, path=tmp_path / "store", **options), memory(60, 3, **options)
    play([buffer, twin], 73)
    for one in (buffer, twin):
        np.random.seed(1)
        one.sample(16)
    assert len(buffer) == 60
    assert buffer.buffers[0]._insertion_idx > 0, "its oldest row is not at position 0"
    buffer.checkpoint("here")
    play([buffer], 5)
    buffer.sample(16)
    buffer.close()

    for checkpoint in ("here", None):
        buffer = disk(60, 3, path=tmp_path / "store", checkpoint=checkpoint, **options)
        for seed in range(3):  # a prioritized one draws from numpy's global generator
            np.random.seed(seed)
            batch, indices = buffer.sample(16)
            np.random.seed(seed)
            expected, expected_indices = twin.sample(16)
            np.testing.assert_array_equal(indices, expected_indices)
            assert_equal(batch.obs, expected.obs, "obs")
        buffer.close()


def test_episodes_of_a_collector_are_whole_in_the_stores(tmp_path: pathlib.Path) -> None:
    buffer = DiskVectorReplayBuffer(300, 3, path=tmp_path / "store")
    stats = collector_of(buffer).collect(n_episode=7, random=True)  # towards the end not all are ready
    lengths = [episode.stop - episode.start for store in buffer.stores for episode in store.episodes if episode.ended]
    assert sorted(lengths) == sorted(stats.lens.tolist())
    assert sum(len(store) for store in buffer.stores) == stats.n_collected_steps == len(buffer)
    assert len({len(store) for store in buffer.stores}) > 1


def test_a_checkpoint_brings_rows_and_weights_back(tmp_path: pathlib.Path) -> None:
    def opened(**options: Any) -> Any:
        return DiskPrioritizedVectorReplayBuffer(60, 3, path=tmp_path / "store", **PRIORITIES, **options)

    def weights(buffer: Any) -> dict[float, float]:
        at = buffer.sample_indices(0)
        return dict(zip(buffer.rew[at].tolist(), buffer.weight[at].tolist(), strict=True))

    buffer = opened()
    with pytest.raises(InputError, match="add a step"):
        buffer.checkpoint("here")
    play([buffer, buffer_in_memory := PrioritizedVectorReplayBuffer(60, 3, **PRIORITIES)], 73)
    assert len(buffer_in_memory) == 60
    buffer.update_weight(np.arange(40), np.linspace(0.1, 7, 40))
    at_checkpoint = weights(buffer)
    buffer.checkpoint("here", {"step": 73})
    buffer.stores[0].checkpoint("half")  # killed before the others had it
    assert buffer.checkpoints == ["here"]
    buffer.checkpoint("half")
    with pytest.raises(CheckpointError, match="exists"):
        buffer.checkpoint("half")
    buffer.drop_checkpoint("half")
    buffer.update_weight(np.arange(60), np.full(60, 9.0))
    play([buffer], 5)
    at_close = weights(buffer)
    buffer.close()

    buffer = opened()
    assert weights(buffer) == at_close
    assert (buffer._max_prio, buffer.checkpoints) == (pytest.approx(9), ["here"])
    play([buffer], 1)
    buffer.commit()
    newer = weights(buffer)
    assert newer != at_close
    buffer.close()
    buffer = opened(checkpoint="here")
    assert (weights(buffer), buffer._max_prio) == (at_checkpoint, pytest.approx(7))
    buffer.close()
    for wrong in (PRIORITIES | {"checkpoint": "half"},):
        with pytest.raises(CheckpointError):
            DiskPrioritizedVectorReplayBuffer(60, 3, path=tmp_path / "store", **wrong)
    for total, number in ((61, 3), (40, 2), (60, 4)):
        with pytest.raises(InputError, match=r"this buffer for|environments"):
            DiskVectorReplayBuffer(total, number, path=tmp_path / "store")
    with pytest.raises(InputError, match="no checkpoint"):
        DiskVectorReplayBuffer(60, 3, path=tmp_path / "other", checkpoint="here")


def test_it_goes_back_past_a_checkpoint_of_some_environments(tmp_path: pathlib.Path) -> None:
    def opened(**options: Any) -> Any:
        return DiskVectorReplayBuffer(60, 3, path=tmp_path / "store", **options)

    buffer = opened()
    play([buffer], 10)
    buffer.checkpoint("one")
    held = len(buffer)
    play([buffer], 5)
    buffer.stores[0].checkpoint("two")  # killed before the others had it
    buffer.close()
    assert opened().checkpoints == ["one"]
    buffer = opened(checkpoint="one")
    assert len(buffer) == held
    play([buffer], 5)
    buffer.checkpoint("two")
    buffer.close()
    with pytest.raises(CheckpointError, match="two"):
        opened(checkpoint="one")
    assert len(opened(checkpoint="two")) > held


def test_a_checkpoint_takes_files_along_and_drops_older_ones(tmp_path: pathlib.Path) -> None:
    def opened(checkpoint: str | None = "latest") -> Any:
        return DiskVectorReplayBuffer(60, 3, path=tmp_path / "store", checkpoint=checkpoint)

    def read(buffer: Any, *arguments: Any) -> bytes:
        with buffer.attachment("learner.pt", *arguments) as file:
            return file.read()

    buffer = opened()
    assert buffer.restored is None
    with pytest.raises(CheckpointError, match="before the first step"):
        buffer.attachment("learner.pt")
    play([buffer], 4)
    buffer.checkpoint("mine")
    for number in range(3):
        play([buffer], 5)
        buffer.checkpoint(
            f"step-{number}", {"step": number}, attachments={"learner.pt": b"%d" % number}, keep=2
        )  # fmt: skip
    assert (buffer.checkpoints, read(buffer, "step-1")) == (["mine", "step-1", "step-2"], b"1")
    with pytest.raises(InputError, match="keep"):
        buffer.checkpoint("step-3", keep=0)
    with pytest.raises(ZeroDivisionError):
        buffer.checkpoint("step-3", attachments={"learner.pt": lambda file: file.write(1 // 0)})
    assert [store.checkpoints for store in buffer.stores] == [["mine", "step-1", "step-2"]] * 3
    held = len(buffer)
    play([buffer], 5)
    buffer.stores[1].checkpoint("step-3")  # killed before the others had it
    buffer.close()

    buffer = opened()
    assert (buffer.restored.name, buffer.restored.metadata, len(buffer)) == ("step-2", {"step": 2}, held)
    assert read(buffer) == b"2"
    play([buffer], 5)
    buffer.checkpoint("step-3", attachments={"learner.pt": b"3"}, keep=1)
    assert buffer.checkpoints == ["mine", "step-3"]
    buffer.close()
    buffer = opened(None)
    assert buffer.restored is None
    buffer.close()


def test_weights_are_new_where_a_buffer_without_any_was_closed(tmp_path: pathlib.Path) -> None:
    buffer = DiskVectorReplayBuffer(60, 3, path=tmp_path / "store")
    play([buffer], 30)
    held = len(buffer)
    buffer.close()
    again = DiskPrioritizedVectorReplayBuffer(60, 3, path=tmp_path / "store", **PRIORITIES)
    assert len(again) == held
    assert (again.weight[again.sample_indices(0)] == 1).all()


KILLED = """
import sys, numpy as np
from tianshou.data import Batch
from diskreplay.compat.tianshou import DiskPrioritizedVectorReplayBuffer
buffer = DiskPrioritizedVectorReplayBuffer(200, 2, alpha=0.6, beta=0.4, path=sys.argv[1], commit_rows=10)
for step in range(75):
    ids = np.array([0, 1] if step % 2 else [1])
    obs, zeros = np.full((len(ids), 3), step, np.float32), np.zeros(len(ids), bool)
    buffer.add(Batch(obs=obs, act=ids, rew=obs[:, 0], terminated=zeros, truncated=zeros, obs_next=obs + 1), ids)
    buffer.update_weight(np.array([0]), np.array([50.0]))
    if step == 71:
        buffer.commit()
print("added", flush=True)
sys.stdin.read()
"""


def test_sigkill_and_open_again(tmp_path: pathlib.Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "store")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert run.stdout is not None
    assert run.stdout.readline() == b"added\n"
    run.send_signal(signal.SIGKILL)
    run.communicate()
    with pytest.warns(SamplerWarning, match=r"weights of the environments \[0, 1\] begin anew"):
        buffer = DiskPrioritizedVectorReplayBuffer(200, 2, path=tmp_path / "store", **PRIORITIES)
    assert 30 <= buffer._lengths[0] <= 37
    assert 70 <= buffer._lengths[1] <= 75
    batch, _ = buffer.sample(128)
    np.testing.assert_array_equal(batch.obs, np.repeat(batch.rew[:, None], 3, 1))
    np.testing.assert_array_equal(batch.obs_next, batch.obs + 1)
    assert (batch.weight == 1).all(), "all are new"
    collector_free = Batch(
        obs=np.zeros((1, 3), np.float32), act=np.zeros(1, int), rew=np.zeros(1), terminated=np.zeros(1, bool),
        truncated=np.zeros(1, bool), obs_next=np.ones((1, 3), np.float32),
    )  # fmt: skip
    ptr, _, _, start = buffer.add(collector_free, [1])
    assert ptr.tolist() == start.tolist() == [100 + buffer._lengths[1] - 1]
    buffer.close()


def test_an_interrupted_add_is_whole_in_each_environment() -> None:
    def add(buffer: Any, stamp: int) -> None:
        obs = np.full((2, 3), stamp, np.float32)
        flags = np.zeros(2, bool)
        buffer.add(Batch(obs=obs, act=np.zeros(2), rew=obs[:, 0], terminated=flags, truncated=flags, obs_next=obs + 1))

    tool = Interrupts(at="check", by="signal", within=["diskreplay.compat", "tianshou.data.buffer"])
    buffer = DiskPrioritizedVectorReplayBuffer(12, 2, **PRIORITIES)
    for stamp in range(7):
        add(buffer, stamp)
    for number in itertools.count(0, 3):
        stamp = 10 * (number + 1)
        buffer.weight[np.arange(12)] = np.full(12, 0.5)
        place = tool.interrupt(number, functools.partial(add, buffer, stamp))
        with_it = [newest(buffer, env) for env in (0, 1)]
        add(buffer, stamp + 1)
        for env in (0, 1):
            at = np.arange(6 * env, 6 * env + 6)
            batch, last = buffer[at], 6 * env + int(buffer.rew[at].argmax())
            np.testing.assert_array_equal(batch.obs[:, 0], batch.rew)
            np.testing.assert_array_equal(buffer.weight[at], np.where(batch.rew >= stamp, 1, 0.5))
            assert (batch.rew == stamp).sum() == (with_it[env] == stamp)
            assert (buffer.rew[last], buffer.next(last), buffer.unfinished_index()[env]) == (stamp + 1, last, last)
        if place is None:
            break
    assert number > 60


def newest(buffer: Any, env: int) -> float:
    """The reward of the newest row in an environment's store."""
    store = buffer.stores[env]
    found: float = store.get(store.items()[-1:]).reward[0]
    return found


def test_what_is_refused_changes_nothing() -> None:
    buffer = DiskVectorReplayBuffer(12, 2)
    good = {
        "obs": np.zeros((2, 3), np.float32), "act": np.zeros(2, int), "rew": np.zeros(2),
        "terminated": np.zeros(2, bool), "truncated": np.zeros(2, bool), "obs_next": np.zeros((2, 3), np.float32),
    }  # fmt: skip
    buffer.add(Batch(**good))
    wrong: list[tuple[dict[str, Any], Any]] = [
        ({"obs": np.zeros((2, 4), np.float32)}, None), ({"obs": Batch(a=np.zeros((2, 3)))}, None),
        ({"act": np.array([0.5, 1])}, None), ({"rew": np.array([0, np.nan])}, None), ({"rew": np.zeros((2, 2))}, None),
        ({"obs_next": np.array([[1e300] * 3] * 2)}, None), ({"terminated": np.zeros(3, bool)}, None), ({}, [0, 2]),
        ({}, [0]),
    ]  # fmt: skip
    for changed, ids in wrong:
        with pytest.raises(InputError):
            buffer.add(Batch(**good | changed), ids)
    with pytest.raises(InputError, match="obs_next missing"):
        buffer.add(Batch(**{key: value for key, value in good.items() if key != "obs_next"}))
    assert (len(buffer), [len(store) for store in buffer.stores]) == (2, [1, 1])
    with pytest.raises(IndexError):
        buffer[[12]]
    for refused in (lambda: buffer.save_hdf5("x"), buffer.dropnull, lambda: buffer.set_batch(Batch())):
        with pytest.raises(NotImplementedError):
            refused()
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(buffer)
    with pytest.raises(InputError, match="numbers"):
        DiskVectorReplayBuffer(12, 2).add(Batch(**good | {"obs": np.array(["a", "b"])}))


@pytest.mark.parametrize("kind", ["vectors", "Dict", "stacks"])
@pytest.mark.parametrize("prioritized", [False, True])
def test_the_ring_of_one_environment_shows_its_observations(
    kind: str, prioritized: bool, tmp_path: pathlib.Path
) -> None:
    options, observe = KINDS[kind]
    options = {**options, **(PRIORITIES if prioritized else {})}
    make = DiskPrioritizedVectorReplayBuffer if prioritized else DiskVectorReplayBuffer
    ours, theirs = make(30, 3, path=tmp_path / "s", **options), VectorReplayBuffer(30, 3, **options)
    play([ours, theirs], 40, Steps(3, observe))
    fields = [field for field in FIELDS if field != "obs_next" or "stack_num" not in options]
    for number in range(2):
        for ring, peer in zip(ours.buffers, theirs.buffers, strict=True):
            held = np.arange(len(peer))
            for index in (held, 3, slice(None), slice(1, 4), -1, np.array([0, 2])):
                found, expected = ring[index], peer[index]
                for field in fields:
                    assert_equal(found[field], expected[field], field)
            assert_equal(ring.obs[held] if kind != "Dict" else ring.obs.picture[held], _first(peer.obs)[held], "obs")
            if not prioritized:  # Tianshou takes the weights of a ring away
                batch, indices = ring.sample(5)
                assert_equal(batch.obs, ring[indices].obs, "obs")
            for refused in (lambda ring=ring: ring.add(Batch()), lambda ring=ring: ring.update(theirs)):
                with pytest.raises(NotImplementedError):
                    refused()
            with pytest.raises(IndexError):
                ring[[10]]
        if number == 0 and not prioritized:
            ours.close()
            ours = make(30, 3, path=tmp_path / "s", **options)
            ours_done, theirs_done = ours.done, theirs.done
            theirs_done[...] = ours_done  # an episode that was left is done


def _first(obs: Any) -> Any:
    return obs.picture if isinstance(obs, Batch) else obs


@pytest.mark.parametrize("kind", ["vectors", "Dict", "numbers"])
def test_a_buffer_of_tianshous_takes_the_rows_over(kind: str) -> None:
    ours, theirs = DiskVectorReplayBuffer(30, 3), VectorReplayBuffer(30, 3)
    play([ours, theirs], 40, Steps(3, KINDS[kind][1]))
    for source, peer in [(ours, theirs), (ours.buffers[1], theirs.buffers[1])]:
        copies = ReplayBuffer(40), ReplayBuffer(40)
        np.testing.assert_array_equal(copies[0].update(source), copies[1].update(peer))
        for field in FIELDS:
            assert_equal(copies[0][:][field], copies[1][:][field], field)


class Noting:
    """A hook that adds keys to each step."""

    def __call__(self, action_batch: Any, rollout_batch: Any) -> None:
        rollout_batch["noise"] = np.asarray(rollout_batch.obs, np.float32) * 2
        rollout_batch["of"] = Batch(step=np.asarray(rollout_batch.act) + 1)


def test_keys_that_a_hook_adds_to_each_step_are_kept(tmp_path: pathlib.Path) -> None:
    buffer = DiskVectorReplayBuffer(24, 2, path=tmp_path / "s")
    source = Steps(2)
    for number in range(20):
        batch, ids = source.next()
        if number >= 3:
            Noting()(None, batch)
        ptr = buffer.add(batch, ids)[0]
        if number >= 3:
            np.testing.assert_array_equal(buffer[ptr].noise, batch.noise)
            np.testing.assert_array_equal(buffer[ptr]["of"].step, batch["of"].step)
    batch, _ = buffer.sample(0)
    np.testing.assert_array_equal(batch.noise[-1], batch.obs[-1] * 2)
    before = len(buffer), [len(store) for store in buffer.stores]
    for bad in (np.zeros((2, 5), np.float32), np.zeros((1, 4), np.float32), "x", Batch(a=np.zeros(2))):
        batch, _ = Steps(2).next()
        batch = Batch(obs=np.zeros((2, 4), np.float32), act=np.zeros(2, int), rew=np.zeros(2), terminated=np.zeros(2),
                      truncated=np.zeros(2), obs_next=np.zeros((2, 4), np.float32))  # fmt: skip
        batch.__dict__["noise"] = bad
        with pytest.raises(InputError, match="noise"):
            buffer.add(batch)
    assert (len(buffer), [len(store) for store in buffer.stores]) == before


def test_a_step_with_a_refused_part_is_in_no_store() -> None:
    good = {
        "obs": np.zeros((2, 3), np.float32), "act": np.zeros(2, int), "rew": np.ones(2),
        "terminated": np.zeros(2, bool), "truncated": np.zeros(2, bool), "obs_next": np.zeros((2, 3), np.float32),
        "info": Batch(env_id=np.arange(2)), "policy": Batch(q=np.zeros((2, 4))),
    }  # fmt: skip
    for first in (True, False):
        buffer = DiskVectorReplayBuffer(12, 2)
        if not first:
            buffer.add(Batch(**good))
        for changed in (
            {"info": Batch(env_id=np.arange(3))}, {"policy": Batch(q=np.zeros((1, 4)))},
            {key: value[:1] for key, value in good.items()},
        ):  # fmt: skip
            with pytest.raises(InputError):
                buffer.add(Batch(**good | changed))
        assert (len(buffer), [len(store) for store in buffer.stores]) == ((0, []) if first else (2, [1, 1]))
        buffer.add(Batch(**good))
        assert buffer[:].rew.tolist() == [1.0] * len(buffer)


def test_a_first_step_that_is_refused_fixes_nothing(tmp_path: pathlib.Path) -> None:
    good = {
        "obs": np.zeros((2, 3), np.float32), "act": np.zeros(2, int), "rew": np.zeros(2),
        "terminated": np.zeros(2, bool), "truncated": np.zeros(2, bool), "obs_next": np.zeros((2, 3), np.float32),
    }  # fmt: skip
    for changed in (
        {"obs": np.zeros((2, 9), np.float32)},
        {"obs": np.zeros((2, 9)), "obs_next": np.zeros((2, 9)), "rew": np.array([0, np.nan])},
        {"act": np.zeros((3, 7))}, {"truncated": np.zeros(3, bool), "act": np.zeros((2, 7))},
    ):  # fmt: skip
        buffer = DiskVectorReplayBuffer(12, 2, path=tmp_path / "s")
        with pytest.raises(InputError):
            buffer.add(Batch(**good | changed))
        assert not (tmp_path / "s" / "env-0").exists()
    DiskVectorReplayBuffer(12, 2, path=tmp_path / "s").add(Batch(**good))


def test_priorities_are_checked_before_one_changes() -> None:
    buffer = DiskPrioritizedVectorReplayBuffer(12, 2, **PRIORITIES)
    play([buffer], 5, Steps(2))
    before = buffer.weight[np.arange(12)].tolist()
    for index, weight in [([0, 12], [1, 1]), ([0], [np.nan]), ([0, 1], [1]), ([0.5], [1]), ([-1], [1])]:
        with pytest.raises(InputError):
            buffer.update_weight(np.array(index), np.array(weight))
    assert buffer.weight[np.arange(12)].tolist() == before
    buffer.update_weight(np.array([0, 0]), torch.tensor([3.0, 2.0]))
    assert buffer.weight[np.arange(12)].tolist() != before
