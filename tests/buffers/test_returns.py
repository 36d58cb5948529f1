"""Advantages and lambda-returns against their definitions as sums over the steps of a path."""

from __future__ import annotations

import numpy as np
import pytest

from diskreplay.buffers import returns

GAMMA = 0.9


def recorded(seed: int, agents: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 40)), int(rng.integers(1, 4)))
    widen = (..., *[None] * len(agents))
    terminated = rng.random(shape) < 0.1
    cut = terminated | (rng.random(shape) < 0.1)
    value = rng.normal(size=(*shape, *agents))
    last = rng.normal(size=(1, *value.shape[1:]))
    following = np.concatenate([value[1:], last])
    final = rng.normal(size=value.shape)
    return {
        "reward": rng.normal(size=(*shape, *agents)),
        "value": value,
        "next_value": np.where(cut[widen], final, following),
        "terminated": terminated[widen],
        "cut": cut[widen],
    }


def path(data: dict[str, np.ndarray], start: int, env: int) -> list[int]:
    """The steps from ``start`` to the next cut."""
    steps = [start]
    while not data["cut"].reshape(*data["cut"].shape[:2], -1)[steps[-1], env, 0] and steps[-1] + 1 < len(data["cut"]):
        steps.append(steps[-1] + 1)
    return steps


def bootstrap(data: dict[str, np.ndarray], step: int, env: int) -> np.ndarray:
    ended = data["terminated"].reshape(*data["terminated"].shape[:2], -1)[step, env, 0]
    return np.zeros_like(data["next_value"][step, env]) if ended else data["next_value"][step, env]


@pytest.mark.parametrize("agents", [(), (3,)])
@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(10))
def test_gae_is_the_weighted_sum_of_errors(seed: int, lambda_: float, agents: tuple[int, ...]) -> None:
    data = recorded(seed, agents)
    found = returns.gae(**data, gamma=GAMMA, gae_lambda=lambda_)
    assert found.shape == data["value"].shape
    for start, env in np.ndindex(*data["reward"].shape[:2]):
        expected = sum(
            (GAMMA * lambda_) ** i
            * (data["reward"][step, env] + GAMMA * bootstrap(data, step, env) - data["value"][step, env])
            for i, step in enumerate(path(data, start, env))
        )
        np.testing.assert_allclose(found[start, env], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("agents", [(), (3,)])
@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(10))
def test_lambda_returns_mix_the_n_step_returns(seed: int, lambda_: float, agents: tuple[int, ...]) -> None:
    """G^lambda = (1 - lambda) sum_n lambda^(n-1) G^(n), the last of the path with what weight is left."""
    data = recorded(seed, agents)
    given = {name: data[name] for name in ("reward", "next_value", "terminated", "cut")}
    found = returns.td_lambda(**given, gamma=GAMMA, lambda_=lambda_)
    for start, env in np.ndindex(*data["reward"].shape[:2]):
        steps = path(data, start, env)
        n_step = []
        for n in range(1, len(steps) + 1):
            discounted = sum(GAMMA**i * data["reward"][step, env] for i, step in enumerate(steps[:n]))
            n_step.append(discounted + GAMMA**n * bootstrap(data, steps[n - 1], env))
        mixed = sum((1 - lambda_) * lambda_**i * target for i, target in enumerate(n_step[:-1]))
        expected = mixed + lambda_ ** (len(steps) - 1) * n_step[-1]
        np.testing.assert_allclose(found[start, env], expected, rtol=1e-9, atol=1e-12)


def test_lambda_one_gives_discounted_returns_less_the_value() -> None:
    data = recorded(3)
    given = {name: data[name] for name in ("reward", "next_value", "terminated", "cut")}
    advantage = returns.gae(**data, gamma=GAMMA, gae_lambda=1.0)
    np.testing.assert_allclose(advantage + data["value"], returns.td_lambda(**given, gamma=GAMMA, lambda_=1.0))
