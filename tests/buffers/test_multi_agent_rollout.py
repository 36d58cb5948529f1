"""Rollouts of several agents against the definitions, step by step and agent by agent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import residency
from helpers.multi_agent_steps import KINDS, N_AGENTS, Kind, Step, World
from helpers.view_model import content

import diskreplay as dr
from diskreplay import errors

GAMMA, LAMBDA, STEPS = 0.9, 0.8, 25


def create(path: str, kind: Kind, *, on_disk: bool = False, **options: Any) -> dr.MultiAgentRolloutBuffer:
    if on_disk:
        residency.hold_up_to(1)
    return dr.MultiAgentRolloutBuffer.create(
        path, *kind.spaces(),
        **{"steps": STEPS, "gamma": GAMMA, "gae_lambda": LAMBDA, **kind.options(), **options},
    )  # fmt: skip


class Doubled:
    """A critic that learns half of the true values."""

    def denormalize(self, values: np.ndarray) -> np.ndarray:
        return 2.0 * values


def estimates(
    steps: list[Step], last_value: np.ndarray, td_lambda: float | None, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and returns ``(T, N)`` of one environment's steps, by recursion from the definitions."""
    advantage = np.zeros((len(steps), N_AGENTS))
    target = np.zeros_like(advantage)
    for t in reversed(range(len(steps))):
        step = steps[t]
        newest = t + 1 == len(steps)
        ended = step.terminated or not step.valid
        cut = ended or step.truncated or (not newest and not step.goes_on)
        following = step.final_value if cut else last_value if newest else steps[t + 1].value
        following = np.zeros(N_AGENTS) if ended else scale * following.astype("f8")
        value = scale * step.value.astype("f8")
        later_advantage = np.zeros(N_AGENTS) if cut or newest else advantage[t + 1]
        later_target = following if cut or newest else target[t + 1]
        advantage[t] = step.reward + GAMMA * following - value + GAMMA * LAMBDA * later_advantage
        if td_lambda is not None:
            target[t] = step.reward + GAMMA * ((1 - td_lambda) * following + td_lambda * later_target)
    if td_lambda is None:
        return advantage, advantage + scale * np.array([step.value for step in steps], "f8")
    return target - scale * np.array([step.value for step in steps], "f8"), target


@pytest.mark.long(quick=8)
@pytest.mark.parametrize("normalizer", [None, Doubled()], ids=["true values", "normalised values"])
@pytest.mark.parametrize("td_lambda", [None, 0.0, 0.7])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_advantages_and_returns(path: str, kind: Kind, td_lambda: float | None, normalizer: Any) -> None:
    world = World(kind, 1)
    with create(path, kind, td_lambda=td_lambda, normalize_advantage=False, on_disk=kind.num_envs == 3) as buffer:
        for rollout in range(2):
            rows = [world.step(gaps=kind.num_envs == 3) for _ in range(STEPS)]
            assert not buffer.full
            for row in rows:
                buffer.add(**world.arguments(row, rollout=True))
            assert buffer.full
            last = np.random.default_rng(rollout).normal(size=(kind.num_envs, N_AGENTS))
            buffer.finish(last, value_normalizer=normalizer)
            expected = [
                estimates([row[env] for row in rows], last[env], td_lambda, 1.0 if normalizer is None else 2.0)
                for env in range(kind.num_envs)
            ]
            seen = 0
            for batch in buffer.minibatches(7):
                assert isinstance(batch, dr.MultiAgentRolloutBatch)
                seen += len(batch)
                for item, index in enumerate(batch.index):
                    row, env = world.at(index)
                    step = world.log[row][env]
                    whole = world.expected(row, env)
                    for name in ("obs", "action", "reward", "state", "available_actions", "action_onehot", "agent_mask",
                                 "mean_action", "terminated", "truncated"):  # fmt: skip
                        found = getattr(batch, name)
                        if whole[name] is None:
                            assert found is None
                        else:
                            np.testing.assert_array_equal(found[item], whole[name], err_msg=name)
                    np.testing.assert_array_equal(batch.value[item], step.value)
                    np.testing.assert_array_equal(batch.log_prob[item], step.log_prob)
                    for name, of in (("advantage", 0), ("returns", 1)):
                        np.testing.assert_allclose(
                            getattr(batch, name)[item], expected[env][of][row - rollout * STEPS], rtol=1e-4, atol=1e-5
                        )
            assert seen == sum(step.valid for row in rows for step in row)
            assert buffer.td_lambda == td_lambda
            buffer.clear()
            world.ended = [True] * kind.num_envs


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_episodes_are_padded(path: str, kind: Kind) -> None:
    world = World(kind, 2)
    with create(path, kind) as buffer:
        world.fill(buffer, STEPS, gaps=False, rollout=True)
        buffer.finish(np.zeros((kind.num_envs, N_AGENTS)))
        count = 0
        for batch in buffer.episode_minibatches(3, max_length=9):
            assert batch.mask.shape == (len(batch), 9)
            assert batch.advantage.shape == (len(batch), 9, N_AGENTS)
            counted = batch.mask[..., None] & batch.agent_mask
            assert not batch.advantage[~counted].any()
            assert not batch.agent_mask[~batch.mask].any()
            if batch.action_onehot is not None:
                assert not batch.action_onehot[~batch.mask].any()
            assert abs(batch.advantage[counted].mean()) < 1e-5
            assert abs(batch.advantage[counted].std() - 1) < 1e-3
            for item, index in enumerate(batch.index):
                row, env = world.at(index)
                for t in range(9):
                    if batch.mask[item, t]:
                        count += 1
                        np.testing.assert_array_equal(batch.obs[item, t], world.log[row + t][env].obs)
                        assert t == 0 or world.log[row + t - 1][env].goes_on
        assert 0 < count <= STEPS * kind.num_envs


def test_agents_that_are_dead_are_not_normalised(path: str) -> None:
    kind = KINDS[3]
    world = World(kind)
    with create(path, kind) as buffer:
        world.fill(buffer, STEPS, gaps=False, rollout=True)
        buffer.finish(np.zeros((1, N_AGENTS)))
        batch = next(buffer.minibatches(STEPS))
    alive = batch.agent_mask
    assert 0 < alive.sum() < alive.size
    assert abs(batch.advantage[alive].mean()) < 1e-5
    assert abs(batch.advantage[alive].std() - 1) < 1e-3
    assert not batch.advantage[~alive].any()
    assert batch.returns[~alive].any()


def test_final_values_may_come_from_a_function(path: str) -> None:
    kind = KINDS[1]
    world = World(kind, 4)
    asked = []

    def value_fn(obs: dict[str, np.ndarray]) -> np.ndarray:
        assert set(obs) == {"obs", "state", "available_actions"}
        asked.append(obs["obs"])
        return obs["obs"].sum(axis=(2, 3))

    with create(path, kind, normalize_advantage=False) as buffer:
        for _ in range(STEPS):
            row = world.step(gaps=False)
            buffer.add(**{**world.arguments(row, rollout=True), "final_value": None})
        with pytest.raises(errors.InputError, match="value_fn"):
            buffer.finish(np.zeros((3, N_AGENTS)))
        buffer.finish(np.zeros((3, N_AGENTS)), value_fn)
        for row in world.log:
            for step in row:
                step.final_value = step.next_obs.sum(axis=(1, 2))
        expected = [estimates([row[env] for row in world.log], np.zeros(N_AGENTS), None, 1.0)[0] for env in range(3)]
        batch = buffer.get(np.arange(STEPS * 3))
    found = batch.advantage.reshape(STEPS, 3, N_AGENTS)
    np.testing.assert_allclose(found, np.stack(expected, axis=1), rtol=1e-4, atol=1e-4)
    assert len(asked) == 1


@pytest.mark.long
def test_resuming_gives_the_same_minibatches(path: str) -> None:
    kind = KINDS[1]
    world = World(kind)

    def draw(buffer: dr.MultiAgentRolloutBuffer) -> list[bytes]:
        batches = [*buffer.minibatches(8, 60), *buffer.episode_minibatches(2, 30, max_length=6)]
        return [content(batch) for batch in batches]

    with create(path, kind, td_lambda=0.5) as buffer:
        world.fill(buffer, STEPS, rollout=True)
        buffer.finish(np.ones((3, N_AGENTS)))
        buffer.checkpoint("here")
        expected = draw(buffer)
        assert len(expected) > 600
    with dr.MultiAgentRolloutBuffer.open(path, checkpoint="here", seed=5) as buffer:
        assert (draw(buffer), buffer.td_lambda, buffer.n_agents) == (expected, 0.5, N_AGENTS)


def test_bad_arguments(path: str) -> None:
    kind = Kind()
    world = World(kind)
    for td_lambda in (-0.1, 1.5, "much"):
        with pytest.raises(errors.InputError, match="td_lambda"):
            create(path, kind, td_lambda=td_lambda)
    with create(path, kind) as buffer:
        good = world.arguments(world.step(gaps=False), rollout=True)
        for change in ({"value": 1.0}, {"log_prob": np.zeros(2)}, {"state": np.zeros(5)}, {"reward": np.zeros(3)}):
            with pytest.raises(errors.InputError):
                buffer.add(**{**good, **change})
        assert len(buffer) == 0
        buffer.add(**good)
        with pytest.raises(errors.StateError, match="finish"):
            next(buffer.minibatches(1))
        with pytest.raises(errors.InputError):
            buffer.finish(np.zeros(1))
