"""The rollout buffer against plain lists, through fulls, clears, restarts and bad input."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest

import diskreplay as dr
from diskreplay.errors import InputError, NotAStoreError, NotEnoughDataError, ReadOnlyError, StateError

GAMMA, LAMBDA = 0.9, 0.8
VECTOR = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
IMAGE = gymnasium.spaces.Box(0, 255, (40, 40), np.uint8)
ACTIONS = gymnasium.spaces.Discrete(4)


@dataclasses.dataclass
class Step:
    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    value: np.ndarray
    log_prob: np.ndarray
    final_value: np.ndarray
    valid: np.ndarray
    note: np.ndarray


class Collector:
    """Makes random steps, adds them, and remembers them."""

    def __init__(self, space: gymnasium.spaces.Box, num_envs: int, seed: int, invalid: bool = False) -> None:
        self.space, self.num_envs, self.invalid = space, num_envs, invalid
        self.rng = np.random.default_rng(seed)
        self.steps: list[Step] = []
        self.obs = self.observe()
        self.ended = np.zeros(num_envs, bool)

    def observe(self) -> np.ndarray:
        values = self.rng.integers(0, 100, (self.num_envs, *self.space.shape))
        return values.astype(self.space.dtype) if self.space.dtype == np.uint8 else (values / 100).astype(np.float32)

    def value_of(self, obs: np.ndarray) -> np.ndarray:
        return obs.reshape(len(obs), -1).mean(axis=1, dtype=np.float64)

    def collect(self, rollout: dr.RolloutBuffer, count: int, final_values: bool = True) -> None:
        lead = (lambda array: array) if self.num_envs > 1 else (lambda array: array[0])
        for _ in range(count):
            following, count_ = self.observe(), self.num_envs
            terminated, truncated = self.rng.random(count_) < 0.1, self.rng.random(count_) < 0.1
            valid = ~self.ended if self.invalid else np.ones(count_, bool)
            step = Step(
                self.obs, self.rng.integers(0, 4, count_), self.rng.normal(size=count_).astype(np.float32), following,
                terminated & valid, truncated & valid, self.rng.normal(size=count_).astype(np.float32),
                self.rng.normal(size=count_).astype(np.float32), self.value_of(following).astype(np.float32), valid,
                self.rng.integers(0, 99, count_),
            )  # fmt: skip
            given = {name: lead(value) for name, value in vars(step).items()}
            if not final_values:
                given["final_value"] = None
            rollout.add(**given)
            self.steps.append(step)
            done = step.terminated | step.truncated
            self.ended = done
            fresh = self.observe()
            self.obs = np.where(done.reshape(-1, *[1] * len(self.space.shape)) & (not self.invalid), fresh, following)

    def advantages(self, last_value: np.ndarray) -> np.ndarray:
        """By the definition, one environment at a time."""
        found = np.zeros((len(self.steps), self.num_envs))
        for env in range(self.num_envs):
            carried, following = 0.0, last_value[env]
            for at in range(len(self.steps) - 1, -1, -1):
                step = self.steps[at]
                if not step.valid[env]:
                    carried = 0.0
                    continue
                ended = step.terminated[env] or step.truncated[env]
                bootstrap = 0.0 if step.terminated[env] else step.final_value[env] if ended else following
                error = step.reward[env] + GAMMA * bootstrap - step.value[env]
                carried = error + (0.0 if ended else GAMMA * LAMBDA * carried)
                found[at, env] = carried
                following = step.value[env]
        return found


def create(path: Any, space: gymnasium.Space[Any] = VECTOR, **options: Any) -> dr.RolloutBuffer:
    options = {
        "steps": 16, "gamma": GAMMA, "gae_lambda": LAMBDA, "normalize_advantage": False, "seed": 0,
        "columns": {"note": np.int64}, **options,
    }  # fmt: skip
    return dr.RolloutBuffer.create(path, space, ACTIONS, **options)


@pytest.mark.long(quick=6)
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("space", [VECTOR, IMAGE], ids=["vector", "image"])
@pytest.mark.parametrize("invalid", [False, True], ids=["all valid", "next-step autoreset"])
@pytest.mark.parametrize("final_values", [True, False], ids=["final values", "value_fn"])
def test_rollouts_are_those_of_a_list(
    path: str, num_envs: int, space: gymnasium.spaces.Box, invalid: bool, final_values: bool
) -> None:
    collector = Collector(space, num_envs, seed=num_envs, invalid=invalid)
    with create(path, space, num_envs=num_envs) as rollout:
        for _ in range(4):
            first = rollout.stats()["streams"]["0"]["end"] * num_envs
            collector.steps.clear()
            collector.collect(rollout, 16, final_values)
            assert rollout.full
            last_value = collector.rng.normal(size=num_envs)
            rollout.finish(last_value, value_fn=None if final_values else collector.value_of)
            expected = collector.advantages(last_value)
            seen = []
            for batch in rollout.minibatches(5, epochs=2):
                assert len(batch) <= 5
                for position, index in enumerate(batch.index.tolist()):
                    at, env = divmod(index - first, num_envs)
                    step = collector.steps[at]
                    seen.append(index)
                    for name in ("obs", "action", "reward", "value", "log_prob", "terminated", "truncated"):
                        np.testing.assert_array_equal(getattr(batch, name)[position], getattr(step, name)[env])
                    assert batch.extra["note"][position] == step.note[env]
                    np.testing.assert_allclose(batch.advantage[position], expected[at, env], rtol=1e-5, atol=1e-6)
                    returns = expected[at, env] + step.value[env]
                    np.testing.assert_allclose(batch.returns[position], returns, rtol=1e-5, atol=1e-6)
            valid = np.flatnonzero(np.array([step.valid for step in collector.steps]).ravel()) + first
            assert sorted(seen) == sorted([*valid, *valid])
            rollout.clear()
            assert not rollout.full
            assert len(rollout) == 0


@pytest.mark.parametrize("num_envs", [1, 3])
def test_episodes_of_a_rollout_are_padded(path: str, num_envs: int) -> None:
    collector = Collector(VECTOR, num_envs, seed=5)
    with create(path, num_envs=num_envs, normalize_advantage=True) as rollout:
        collector.collect(rollout, 16)
        rollout.finish(np.zeros(num_envs))
        held = 0
        for batch in rollout.episode_minibatches(4, max_length=10):
            assert batch.obs.shape == (len(batch), 10, 3)
            for position, index in enumerate(batch.index.tolist()):
                at, env = divmod(index, num_envs)
                length = int(batch.mask[position].sum())
                assert batch.mask[position, :length].all()
                for step in range(10):
                    if step < length:
                        np.testing.assert_array_equal(batch.obs[position, step], collector.steps[at + step].obs[env])
                    else:
                        assert not batch.obs[position, step].any()
                        assert batch.advantage[position, step] == 0
                held += length
            filled = batch.advantage[batch.mask]
            if len(filled) > 1:
                assert abs(filled.mean()) < 1e-5
                assert abs(filled.std() - 1) < 1e-3
        lengths = [min(10, episode.length) for episode in rollout.episodes]
        assert held == sum(lengths)


def test_advantages_are_normalised_in_each_minibatch(path: str) -> None:
    collector = Collector(VECTOR, 2, seed=1)
    with create(path, num_envs=2, normalize_advantage=True) as rollout:
        collector.collect(rollout, 16)
        rollout.finish(np.zeros(2))
        for batch in rollout.minibatches(8):
            assert abs(batch.advantage.mean()) < 1e-6
            assert abs(batch.advantage.std() - 1) < 1e-4


@pytest.mark.parametrize("done", [False, True], ids=["half collected", "finished"])
def test_a_checkpoint_goes_on_bit_for_bit(path: str, done: bool) -> None:
    def go_on(rollout: dr.RolloutBuffer, collector: Collector) -> list[np.ndarray]:
        if not rollout.finished:
            collector.collect(rollout, 6)
            rollout.finish(np.ones(2))
        found: list[np.ndarray] = []
        for batch in rollout.minibatches(5, epochs=3):
            batch.map(lambda array: found.append(np.array(array)))
        return found

    collectors = [Collector(VECTOR, 2, seed=1) for _ in range(2)]
    with create(path, num_envs=2) as rollout:
        collectors[0].collect(rollout, 16)
        collectors[0].steps.clear()
        rollout.clear()
        collectors[0].collect(rollout, 16 if done else 10)
        if done:
            rollout.finish(np.ones(2))
        rollout.checkpoint("here")
        state = dict(rng=collectors[0].rng.bit_generator.state, obs=collectors[0].obs)
        expected = go_on(rollout, collectors[0])
    collectors[1].rng.bit_generator.state, collectors[1].obs = state["rng"], state["obs"]
    with dr.RolloutBuffer.open(path, checkpoint="here") as rollout:
        assert rollout.finished is done
        assert (rollout.steps, rollout.gamma, rollout.gae_lambda) == (16, GAMMA, LAMBDA)
        found = go_on(rollout, collectors[1])
    assert len(found) == len(expected) > 0
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_half_collected_rollout_survives_a_restart(path: str) -> None:
    collector = Collector(VECTOR, 2, seed=1)
    with create(path, num_envs=2) as rollout:
        collector.collect(rollout, 9)
    with dr.RolloutBuffer.open(path) as rollout:
        assert not rollout.full
        collector.collect(rollout, 7)
        assert rollout.full
        rollout.finish(np.zeros(2))
        batch = rollout.get(np.arange(32))
        np.testing.assert_allclose(
            batch.advantage.reshape(16, 2), collector.advantages(np.zeros(2)), rtol=1e-5, atol=1e-6
        )


def test_stacks_reach_back_over_a_clear(path: str) -> None:
    with create(path, IMAGE, frame_stack=3, columns=None) as rollout:
        frames = [np.full((40, 40), number, np.uint8) for number in range(40)]
        for at in range(20):
            if rollout.full:
                rollout.clear()
            rollout.add(frames[at], 0, 0.0, frames[at + 1], False, False, value=0.0, log_prob=0.0)
        rollout.finish(0.0)
        batch = rollout.get([16])
        assert batch.obs[0, :, 0, 0].tolist() == [14, 15, 16]


def test_wrong_calls_change_nothing(path: str, tmp_path: pathlib.Path) -> None:
    good: dict[str, Any] = dict(
        obs=np.zeros(3, np.float32), action=1, reward=0.0, next_obs=np.zeros(3, np.float32), terminated=False,
        truncated=False, value=0.0, log_prob=0.0, note=1,
    )  # fmt: skip
    with create(path, steps=4) as rollout:
        with pytest.raises(NotEnoughDataError, match="empty"):
            rollout.finish(0.0)
        for wrong in ({"value": np.zeros(2)}, {"log_prob": "a"}, {"final_value": np.zeros((1, 2))}, {"reward": np.nan}):
            with pytest.raises(InputError):
                rollout.add(**{**good, **wrong})
        with pytest.raises(InputError, match="missing"):
            rollout.add(**{name: value for name, value in good.items() if name != "note"})
        assert len(rollout) == 0
        with pytest.raises(StateError, match="finish"):
            next(iter(rollout.minibatches(2)))
        rollout.add(**good)
        rollout.add(**{**good, "truncated": True})
        with pytest.raises(InputError, match=r"step 1 of environment 0 .* final_value"):
            rollout.finish(0.0)
        with pytest.raises(InputError, match="shape"):
            rollout.finish(0.0, value_fn=lambda obs: np.zeros(7))
        with pytest.raises(InputError, match="finite"):
            rollout.finish(0.0, value_fn=lambda obs: np.full(len(obs), np.nan))
        rollout.add(**good)
        with pytest.raises(InputError, match="last_value must be finite"):
            rollout.finish(np.nan, value_fn=lambda obs: np.zeros(len(obs)))
        with pytest.raises(InputError, match="last_value must have the shape"):
            rollout.finish(np.zeros(3), value_fn=lambda obs: np.zeros(len(obs)))
        assert not rollout.finished
        rollout.add(**good)
        with pytest.raises(StateError, match="full"):
            rollout.add(**good)
        rollout.finish(0.0, value_fn=lambda obs: np.zeros(len(obs)))
        for wrong_index in ([-1], [4], [0.5], [[1]]):
            with pytest.raises(InputError, match="index"):
                rollout.get(wrong_index)
        batches = rollout.minibatches(2)
        next(batches)
        rollout.clear()
        with pytest.raises(StateError, match="finish"):
            next(batches)
    with pytest.raises(InputError, match="value"):
        create(tmp_path / "b", columns={"value": np.float32})
    for options in ({"steps": 0}, {"gamma": 2.0}, {"gae_lambda": -1}, {"normalize_advantage": 1}):
        with pytest.raises(InputError):
            create(tmp_path / "c", **options)
    assert not (tmp_path / "b").exists()
    assert not (tmp_path / "c").exists()


def test_the_wrong_class_says_so(path: str, tmp_path: pathlib.Path) -> None:
    dr.ReplayBuffer.create(tmp_path / "replay", VECTOR, ACTIONS, capacity=10).close()
    with pytest.raises(NotAStoreError, match="RolloutBuffer"):
        dr.RolloutBuffer.open(tmp_path / "replay")
    create(path).close()
    with dr.RolloutBuffer.open(path, mode="r") as rollout, pytest.raises(ReadOnlyError):
        rollout.clear()
