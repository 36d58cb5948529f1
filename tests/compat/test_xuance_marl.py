"""XuanCe's multi-agent buffers against plain arrays in memory that do what its authors meant."""

from __future__ import annotations

import doctest
import gc
from typing import Any

import numpy as np
import pytest
from helpers.crashes import die
from helpers.keys import check_keys

from diskreplay import errors
from diskreplay.compat import xuance_marl as marl

N, OBS, ACT, STATE, PROB, DIM = 3, (4,), (), (5,), (3, 6), 6
GAMMA, LAMBDA, TD = 0.9, 0.8, 0.7
Rng = np.random.Generator


class Doubled:
    """A critic that learns half of the true values."""

    def denormalize(self, values: np.ndarray) -> np.ndarray:
        return 2.0 * np.asarray(values)


def estimates(
    rewards: np.ndarray,
    values: np.ndarray,
    after: np.ndarray,
    dones: np.ndarray,
    lambda_: float,
    td: bool,
    scale: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns and advantages ``(T, N)`` of a path, from the definitions; ``dones`` and ``rewards`` ``(T, N)``."""
    values, after = scale * values.astype("f8"), scale * after.astype("f8")
    returns, running = np.zeros_like(values), np.zeros(N)
    for t in reversed(range(len(values))):
        last = t + 1 == len(values)
        following = (after if last else values[t + 1]) * ~dones[t]
        if td:
            later = following if last else returns[t + 1] * ~dones[t]
            returns[t] = rewards[t] + GAMMA * ((1 - lambda_) * following + lambda_ * later)
        else:
            delta = rewards[t] + GAMMA * following - values[t]
            running = delta + (0 if last else GAMMA * lambda_ * ~dones[t] * running)
            returns[t] = running + values[t]
    return returns, returns - values


def same(found: Any, expected: Any, what: str = "") -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, (what, found.shape, expected.shape)
    assert found.dtype == expected.dtype, (what, found.dtype, expected.dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=what)


def normal(advantages: np.ndarray) -> np.ndarray:
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


SHAPES = {"agent": ((N, 1), (N,)), "agents, flat": ((N,), (N,)), "team": ((1,), (1,)), "team, scalar": ((), ())}


# Off-policy, single steps


class OffModel:
    """The ring, as arrays in memory, and which step follows which."""

    def __init__(self, n_envs: int, n_size: int, state: bool, rewards: str, prob: bool) -> None:
        rew, done = SHAPES[rewards]
        self.n_envs, self.n_size = n_envs, n_size
        self.shapes: dict[str, Any] = {
            "obs": ((N, *OBS), "f4"), "actions": ((N, *ACT), "f4"), "obs_next": ((N, *OBS), "f4"),
            "rewards": (rew, "f4"), "terminals": (done, "?"), "agent_mask": ((N,), "?"),
        }  # fmt: skip
        if state:
            self.shapes |= {"state": (STATE, "f4"), "state_next": (STATE, "f4")}
        if prob:
            self.shapes["act_mean"] = (PROB, "f4")
        self.clear()

    def clear(self) -> None:
        self.data = {k: np.zeros((self.n_envs, self.n_size, *s), d) for k, (s, d) in self.shapes.items()}
        self.data["agent_mask"][:] = True
        self.goes_on = np.zeros((self.n_envs, self.n_size), bool)
        self.ptr = self.size = 0

    def store(self, step: dict[str, Any], goes_on: np.ndarray) -> None:
        """``goes_on``: whether the step continues the one before it."""
        if self.size:
            self.goes_on[:, self.ptr - 1] = goes_on
        for key in self.data:
            self.data[key][:, self.ptr] = step.get(key, True)
        self.goes_on[:, self.ptr] = False
        self.ptr = (self.ptr + 1) % self.n_size
        self.size = min(self.size + 1, self.n_size)

    def expected(self, env: int, slot: int) -> dict[str, np.ndarray]:
        found = {key: values[env, slot] for key, values in self.data.items()}
        if "act_mean" in found:
            after = (slot + 1) % self.n_size if self.goes_on[env, slot] else slot
            found["act_mean_next"] = self.data["act_mean"][env, after]
        return found


class Play:
    """Random steps of several environments."""

    def __init__(self, shapes: dict[str, Any], n_envs: int, seed: int = 0) -> None:
        self.shapes, self.n_envs, self.rng = shapes, n_envs, np.random.default_rng(seed)
        self.now: dict[str, np.ndarray] = {}
        self.over = np.ones(n_envs, bool)

    def step(self) -> tuple[dict[str, Any], np.ndarray]:
        rng, goes_on = self.rng, ~self.over
        step: dict[str, Any] = {}
        for key, (shape, dtype) in self.shapes.items():
            step[key] = rng.normal(size=(self.n_envs, *shape)).astype(dtype)
        ended, cut = rng.random(self.n_envs) < 0.1, rng.random(self.n_envs) < 0.1
        step["terminals"] = rng.random((self.n_envs, *self.shapes["terminals"][0])) < 0.1
        step["terminals"][ended] = True
        all_over = step["terminals"].reshape(self.n_envs, -1).all(axis=1)
        step["agent_mask"] = rng.random((self.n_envs, N)) < 0.8
        step["actions"] = rng.integers(DIM, size=(self.n_envs, N))
        for key in ("obs", "state"):
            if key in step and self.now:
                step[key][goes_on] = self.now[key][goes_on]
        self.over = all_over | cut
        self.now = {key: step[f"{key}_next"] for key in ("obs", "state") if f"{key}_next" in step}
        return step, goes_on


def off_policy(model: OffModel, rewards: str, batch_size: int = 16, **options: Any) -> Any:
    rew, done = SHAPES[rewards]
    state = STATE if "state" in model.shapes else None
    prob = (PROB,) if "act_mean" in model.shapes else ()
    kind = marl.MeanField_OffPolicyBuffer if prob else marl.MARL_OffPolicyBuffer
    return kind(N, state, OBS, ACT, *prob, rew, done, model.n_envs, model.n_envs * model.n_size, batch_size, **options)


@pytest.mark.long(quick=5)
@pytest.mark.parametrize("prob", [False, True], ids=["plain", "mean field"])
@pytest.mark.parametrize("state", [False, True], ids=["no state", "state"])
@pytest.mark.parametrize("rewards", SHAPES)
@pytest.mark.parametrize("n_envs", [1, 3])
def test_off_policy(path: str, n_envs: int, rewards: str, state: bool, prob: bool) -> None:
    model = OffModel(n_envs, 7, state, rewards, prob)
    play = Play(model.shapes, n_envs)
    buffer = off_policy(model, rewards, path=path)

    def check() -> None:
        assert (buffer.ptr, buffer.size, buffer.full) == (model.ptr, model.size, model.size == 7)
        if not model.size:
            with pytest.raises(errors.NotEnoughDataError):
                buffer.sample()
            return
        np.random.seed(3)
        found = buffer.sample()
        np.random.seed(3)
        places = zip(np.random.choice(n_envs, 16), np.random.choice(model.size, 16), strict=True)
        expected = [model.expected(env, slot) for env, slot in places]
        assert found.keys() == expected[0].keys()
        for key in found:
            same(found[key], np.stack([item[key] for item in expected]), key)

    for at in range(40):
        if at in (5, 30):
            buffer.clear()
            model.clear()
            check()
        if at in (3, 12, 31):
            buffer.close()
            buffer = off_policy(model, rewards, path=path)
            check()
        step, goes_on = play.step()
        if at % 4 == 0:
            del step["agent_mask"]
        buffer.store(step)
        model.store(step, goes_on & bool(model.size))
        check()
    for key, values in model.data.items():
        assert (buffer.data[key].shape, buffer.data[key].dtype) == (values.shape, values.dtype)
        same(buffer.data[key], values, key)
        same(buffer.data[key][0], values[0])
        same(buffer.data[key][n_envs - 1, 2:4], values[n_envs - 1, 2:4])
        check_keys(buffer.data[key], values, 10)
    assert buffer.keys == model.data.keys()
    assert buffer.data_shapes == {key: values.shape for key, values in model.data.items()}
    assert buffer.store_global_state == state
    assert (buffer.n_size, buffer.buffer_size, buffer.n_envs, buffer.n_agents) == (7, 7 * n_envs, n_envs, N)
    assert (buffer.obs_space, buffer.act_space, buffer.state_space) == (OBS, ACT, STATE if state else None)
    assert (buffer.rew_space, buffer.done_space) == SHAPES[rewards]
    buffer.close()


def test_rows_survive_a_buffer_that_was_not_closed(path: str) -> None:
    model = OffModel(3, 7, True, "agent", True)
    play = Play(model.shapes, 3)
    buffer = off_policy(model, "agent", path=path)
    for at in range(16):
        step, goes_on = play.step()
        buffer.store(step)
        model.store(step, goes_on & bool(model.size))
        if at == 4:
            buffer.close()
            buffer = off_policy(model, "agent", path=path)
    buffer.engine.commit()
    die(buffer.engine)
    again = off_policy(model, "agent", path=path)
    assert (again.ptr, again.size) == (16 % 7, 7)
    for key, values in model.data.items():
        same(again.data[key], values, key)
    again.close()


# On-policy, single steps


class OnModel:
    """Arrays in memory, filled by the definitions."""

    def __init__(self, kind: str, n_envs: int, n_size: int, state: bool, rewards: str, gae: bool, norm: bool) -> None:
        rew, done = SHAPES[rewards]
        self.kind, self.n_envs, self.n_size, self.gae, self.norm = kind, n_envs, n_size, gae, norm
        self.rew = rew
        each = rew if np.prod(rew, dtype=int) == N else (N, 1)
        self.shapes: dict[str, Any] = {
            "obs": ((N, *OBS), "f4"), "actions": ((N, *ACT), "f4"), "rewards": (rew, "f4"), "returns": (each, "f4"),
            "values": ((N, 1), "f4"), "log_pi_old": ((N,), "f4"), "advantages": (each, "f4"), "terminals": (done, "?"),
            "agent_mask": ((N,), "?"),
        }  # fmt: skip
        if kind == "coma":
            del self.shapes["advantages"]
            self.shapes["actions_onehot"] = ((N, DIM), "f4")
        if kind == "mean field":
            self.shapes["act_mean"] = (PROB, "f4")
        if state:
            self.shapes["state"] = (STATE, "f4")
        self.clear()

    def clear(self) -> None:
        self.data = {k: np.zeros((self.n_envs, self.n_size, *s), d) for k, (s, d) in self.shapes.items()}
        self.data["agent_mask"][:] = True
        self.ptr = self.size = 0
        self.open: list[list[int]] = [[] for _ in range(self.n_envs)]

    def store(self, step: dict[str, Any]) -> None:
        for key in self.data:
            self.data[key][:, self.ptr] = step.get(key, key == "agent_mask")
        if self.kind == "coma":
            self.data["actions_onehot"][:, self.ptr] = np.eye(DIM)[step["actions"]]
        for path in self.open:
            path.append(self.ptr)
            del path[: -self.n_size]
        self.ptr = (self.ptr + 1) % self.n_size
        self.size = min(self.size + 1, self.n_size)

    def finish(self, value: np.ndarray, env: int, scale: float) -> None:
        slots, self.open[env] = self.open[env], []
        if slots:
            lambda_ = TD if self.kind == "coma" else LAMBDA if self.gae else 1.0
            whole = {key: self.data[key][env, slots].reshape(len(slots), -1) for key in ("rewards", "terminals")}
            returns, advantages = estimates(
                np.broadcast_to(whole["rewards"], (len(slots), N)), self.data["values"][env, slots, :, 0],
                np.asarray(value).reshape(-1), np.broadcast_to(whole["terminals"], (len(slots), N)), lambda_,
                self.kind == "coma", scale,
            )  # fmt: skip
            self.data["returns"][env, slots] = returns.reshape(len(slots), *self.shapes["returns"][0])
            if "advantages" in self.data:
                self.data["advantages"][env, slots] = advantages.reshape(len(slots), *self.shapes["returns"][0])

    def make(self, path: str | None) -> Any:
        done = self.shapes["terminals"][0]
        kind = {
            "plain": marl.MARL_OnPolicyBuffer,
            "mean field": marl.MeanField_OnPolicyBuffer,
            "coma": marl.COMA_Buffer,
        }
        more = {"plain": {}, "mean field": {"prob_space": PROB}, "coma": {"dim_act": DIM, "td_lambda": TD}}
        return kind[self.kind](
            N, STATE if "state" in self.data else None, OBS, ACT, self.rew, done, self.n_envs,
            self.n_envs * self.n_size, self.gae, self.norm, GAMMA, LAMBDA, path=path, **more[self.kind],
        )  # fmt: skip


@pytest.mark.long(quick=8)
@pytest.mark.parametrize("kind", ["plain", "mean field", "coma"])
@pytest.mark.parametrize("normalizer", [None, Doubled()], ids=["true values", "normalised values"])
@pytest.mark.parametrize(
    ("n_envs", "rewards", "state", "gae", "norm"),
    [(1, "agent", False, True, True), (3, "team", True, True, False), (3, "agents, flat", True, False, True),
     (1, "team, scalar", False, False, False), (3, "agent", False, True, True)],
)  # fmt: skip
def test_on_policy(
    path: str, kind: str, n_envs: int, rewards: str, state: bool, gae: bool, norm: bool, normalizer: Any
) -> None:
    model = OnModel(kind, n_envs, 9, state, rewards, gae, norm)
    play = Play(model.shapes, n_envs, 5)
    rng, scale = np.random.default_rng(1), 1.0 if normalizer is None else 2.0
    buffer = model.make(path)

    def finish(env: int) -> None:
        value = rng.normal(size=(N, 1)).astype("f4")
        if kind == "mean field" and normalizer is None:
            buffer.finish_ac_path(value, env)
        else:
            buffer.finish_path(value, env, normalizer)
        model.finish(value, env, scale)

    def check() -> None:
        assert (buffer.ptr, buffer.size, buffer.full) == (model.ptr, model.size, model.size == 9)
        assert buffer.start_ids.dtype == np.int64
        assert buffer.start_ids.tolist() == [path[0] if path else model.ptr for path in model.open]
        for key, values in model.data.items():
            same(buffer.data[key], values, key)

    for rollout in range(3):
        count = (9, 14, 9)[rollout]  # the second goes over the ring's end
        for at in range(count):
            step, _ = play.step()
            if kind == "coma":
                del step["actions_onehot"]
            if at % 3 == 0:
                del step["agent_mask"]
            step.pop("advantages", None)
            del step["returns"]
            buffer.store(step)
            model.store(step)
            for env in range(n_envs):
                if play.over[env]:
                    finish(env)
            if at == 4:
                check()
                buffer.close()
                buffer = model.make(path)
                check()
        for env in range(n_envs):
            finish(env)
            finish(env)  # a path that is empty changes nothing
        check()
        indexes = rng.permutation(9 * n_envs)[:12]
        found = buffer.sample(indexes)
        assert found.keys() == model.data.keys() == buffer.keys
        for key, values in model.data.items():
            expected = values.reshape(-1, *values.shape[2:])[indexes]
            same(found[key], normal(expected) if norm and key == "advantages" else expected, key)
        buffer.data["returns"][:] = 7.0  # as callers do
        assert (buffer.sample([0, 1])["returns"] == 7).all()
        buffer.clear()
        model.clear()
        check()
        with pytest.raises(errors.NotEnoughDataError):
            buffer.sample(np.arange(3))
    assert buffer.data_shapes == {key: values.shape for key, values in model.data.items()}
    buffer.close()


def test_a_rollout_that_was_not_closed_is_given_up(path: str) -> None:
    model = OnModel("plain", 2, 9, True, "agent", True, False)
    buffer = model.make(path)
    play = Play(model.shapes, 2)
    for _ in range(6):
        buffer.store(play.step()[0])
    buffer.close()
    buffer = model.make(path)
    assert buffer.size == 6
    for _ in range(2):
        buffer.store(play.step()[0])
    buffer.engine.commit()
    die(buffer.engine)
    buffer = model.make(path)
    assert (buffer.size, buffer.ptr, len(buffer.engine)) == (0, 0, 0)
    buffer.close()


# Episodes


class EpisodeModel:
    """Episodes as arrays in memory; those that are finished go into the ring."""

    def __init__(self, kind: str, n_envs: int, state: bool, norm: bool, gae: bool = True, length: int = 5) -> None:
        self.kind, self.n_envs, self.norm, self.gae, self.length = kind, n_envs, norm, gae, length
        self.slots = 4
        t, f = length, "f8" if kind == "off" else "f4"
        self.rew, self.done = ((1,), (N,)) if state else ((), ())
        self.shapes: dict[str, Any] = {
            "obs": ((N, t + 1, *OBS), f), "actions": ((N, t, *ACT), f), "rewards": ((N, t, *self.rew), f),
            "terminals": ((t, *self.done), "?"), "avail_actions": ((N, t + 1, DIM), "?"), "filled": ((t, 1), "?"),
        }  # fmt: skip
        if kind != "off":
            each = (N, t, *self.rew), "f4"
            self.shapes |= {"returns": each, "values": each, "advantages": each, "log_pi_old": ((N, t), "f4")}
        if kind == "coma":
            self.shapes["actions_onehot"] = ((N, t, DIM), "f4")
        if state:
            self.shapes["state"] = ((t + 1, *STATE), "f4")
        self.clear()
        self.clear_episodes()

    def empty(self, count: int) -> dict[str, np.ndarray]:
        return {k: np.full((count, *s), k == "avail_actions", d) for k, (s, d) in self.shapes.items()}

    def clear(self) -> None:
        self.data, self.ptr, self.size = self.empty(self.slots), 0, 0

    def clear_episodes(self) -> None:
        self.now = self.empty(self.n_envs)
        self.steps: list[int | None] = [None] * self.n_envs

    def store_episodes(self) -> None:
        for env, steps in enumerate(self.steps):
            if steps is not None:
                for key in self.data:
                    self.data[key][self.ptr] = self.now[key][env]
                self.ptr = (self.ptr + 1) % self.slots
                self.size = min(self.size + 1, self.slots)
        self.clear_episodes()

    def make(self, path: str | None) -> Any:
        state = STATE if "state" in self.shapes else None
        first = (N, state, OBS, ACT, self.rew, self.done, self.n_envs, self.slots)
        more = {"max_episode_length": self.length, "dim_act": DIM, "path": path}
        if self.kind == "off":
            return marl.MARL_OffPolicyBuffer_RNN(*first, 6, **more)
        if self.kind == "on":
            return marl.MARL_OnPolicyBuffer_RNN(*first, self.gae, self.norm, GAMMA, LAMBDA, **more)
        return marl.COMA_Buffer_RNN(*first, self.gae, self.norm, GAMMA, LAMBDA, td_lambda=TD, **more)


class Episode:
    """Random episodes in lockstep; those that are over go on being stored, as runners do."""

    def __init__(self, model: EpisodeModel, seed: int) -> None:
        self.model, self.rng = model, np.random.default_rng(seed)

    def step(self, each: bool, buffer: Any, at: int) -> None:
        model, rng, n = self.model, self.rng, self.model.n_envs
        obs, state = rng.normal(size=(n, N, *OBS)), rng.normal(size=(n, *STATE))
        actions = {"actions_n": rng.integers(DIM, size=(n, N)), "values": rng.normal(size=(n, N, *model.rew))}
        actions["log_pi"] = rng.normal(size=(n, N))
        actions["act_n_onehot"] = np.eye(DIM)[actions["actions_n"]]
        rewards, dones = rng.normal(size=(n, N, *model.rew)), rng.random((n, *model.done)) < 0.1
        available = rng.random((n, N, DIM)) < 0.7
        t_envs = [at] * n if each else at
        given = {"on": ["act_n_onehot"], "off": ["act_n_onehot", "values", "log_pi"], "coma": []}[model.kind]
        kept = {key: value for key, value in actions.items() if key not in given}
        buffer.store_transitions(
            t_envs, obs, kept, state if "state" in model.shapes else None, rewards, dones, available
        )
        values = {"obs": obs, "actions": actions["actions_n"], "rewards": rewards, "avail_actions": available,
                  "values": actions["values"], "log_pi_old": actions["log_pi"],
                  "actions_onehot": actions["act_n_onehot"]}  # fmt: skip
        for env in range(n):
            if model.steps[env] is None:
                for key, value in values.items():
                    if key in model.now:
                        model.now[key][env, :, at] = value[env]
                model.now["terminals"][env, at] = dones[env]
                if "state" in model.now:
                    model.now["state"][env, at] = state[env]

    def finish(self, env: int, next_t: int, buffer: Any, normalizer: Any) -> None:
        model, rng, n, t = self.model, self.rng, self.model.n_envs, min(next_t, self.model.length)
        obs, state = rng.normal(size=(n, N, *OBS)), rng.normal(size=(n, *STATE))
        available = rng.random((n, N, DIM)) < 0.7
        filled = np.broadcast_to((np.arange(model.length) < t)[None, :, None], (n, model.length, 1))
        given = (obs, state if "state" in model.now else None, available, filled)
        model.now["obs"][env, :, t], model.now["avail_actions"][env, :, t] = obs[env], available[env]
        model.now["filled"][env, :t] = True
        if "state" in model.now:
            model.now["state"][env, t] = state[env]
        model.steps[env] = t
        if model.kind == "off":
            buffer.finish_path(env, next_t, *given)
            return
        value = rng.normal(size=(N, 1))
        buffer.finish_path(env, next_t, *given, value_next=value, value_normalizer=normalizer)
        now = {key: model.now[key][env, :, :t].reshape(N, t).T for key in ("rewards", "values")}
        dones = np.broadcast_to(model.now["terminals"][env, :t].reshape(t, -1), (t, N))
        lambda_ = TD if model.kind == "coma" else LAMBDA if model.gae else 1.0
        found = estimates(now["rewards"], now["values"], value[:, 0], dones, lambda_, model.kind == "coma",
                          1.0 if normalizer is None else 2.0)  # fmt: skip
        for key, values in zip(("returns", "advantages")[: 1 if model.kind == "coma" else 2], found, strict=False):
            model.now[key][env, :, :t] = values.T.reshape(N, t, *model.rew)


@pytest.mark.long(quick=3)
@pytest.mark.parametrize("kind", ["off", "on", "coma"])
@pytest.mark.parametrize("normalizer", [None, Doubled()], ids=["true values", "normalised values"])
@pytest.mark.parametrize(
    ("n_envs", "state", "norm", "gae"), [(1, False, True, True), (3, True, True, False), (3, False, False, True)]
)
def test_episodes(path: str, kind: str, n_envs: int, state: bool, norm: bool, gae: bool, normalizer: Any) -> None:
    model = EpisodeModel(kind, n_envs, state, norm, gae)
    episode, buffer = Episode(model, 2), model.make(path)
    rng = np.random.default_rng(8)

    def reopen() -> Any:
        buffer.close()
        return model.make(path)

    def check() -> None:
        assert (buffer.ptr, buffer.size, buffer.full) == (model.ptr, model.size, model.size == 4)
        assert buffer.data.keys() == buffer.episode_data.keys() == model.data.keys()
        for key, values in model.data.items():
            same(buffer.data[key], values, key)
            same(buffer.episode_data[key], model.now[key], key)

    def sample() -> None:
        if kind == "off":
            np.random.seed(4)
            found = buffer.sample()
            np.random.seed(4)
            chosen = np.random.choice(model.size, 6)
        elif model.size < 4:
            with pytest.raises(errors.NotEnoughDataError):
                buffer.sample([0])
            return
        else:
            chosen = [2, 0, 1, 2]
            found = buffer.sample(chosen)
        for key, values in model.data.items():
            expected = values[chosen]
            if key == "advantages" and norm:
                there = np.broadcast_to(model.data["filled"][chosen].reshape(len(chosen), 1, -1, *[1] * len(model.rew)),
                                        expected.shape)  # fmt: skip
                expected = np.where(there, normal_over(expected, there), np.float32(0))
            same(found[key], expected, key)

    for round_ in range(7):
        lengths = rng.integers(1, 6, n_envs)
        if round_ == 3:
            lengths[-1] = 9  # the runner's counter went on
        unfinished = round_ == 5
        for at in range(min(5, lengths.max())):
            episode.step(round_ % 2 == 0, buffer, at)
            for env in range(n_envs):
                last = at + 1 == min(5, lengths[env])
                if last and not (unfinished and env == 0):
                    episode.finish(env, int(lengths[env]), buffer, normalizer)
            if at == 1:
                check()
                if round_ in (2, 5):
                    buffer = reopen()
                    check()
        buffer.store_episodes()
        model.store_episodes()
        check()
        if model.size:
            sample()
        if round_ in (1, 6):
            buffer = reopen()
            check()
        if round_ == 3:
            buffer.clear()
            model.clear()
            check()
    episode.step(False, buffer, 0)
    buffer.clear_episodes()
    model.clear_episodes()
    check()
    with pytest.raises(errors.InputError, match="store_transitions"):
        buffer.store({})
    assert (buffer.max_eps_len, buffer.dim_act, buffer.n_size) == (5, DIM, 4 // n_envs)
    assert buffer.data_shapes == {key: values.shape for key, values in model.data.items()}
    buffer.close()


@pytest.mark.parametrize("kind", ["off", "on", "coma", "plain"])
def test_a_buffer_that_was_cleared_comes_back_empty(path: str, kind: str) -> None:
    if kind == "plain":
        steps = OnModel("plain", 2, 9, True, "agent", True, False)
        buffer = steps.make(path)
        buffer.store(Play(steps.shapes, 2).step()[0])
    else:
        steps = EpisodeModel(kind, 2, True, False)
        buffer = steps.make(path)
        episode = Episode(steps, 2)
        episode.step(False, buffer, 0)
        episode.finish(1, 1, buffer, None)
        buffer.store_episodes()
        assert buffer.size == 1
    buffer.clear()
    buffer.close()
    again = steps.make(path)
    assert (again.size, again.ptr, len(again.engine)) == (0, 0, 0)
    again.close()


def normal_over(values: np.ndarray, there: np.ndarray) -> np.ndarray:
    held = values[there]
    return (values - held.mean()) / (held.std() + 1e-8)


@pytest.mark.parametrize("kind", ["off", "on"])
def test_episodes_of_a_buffer_that_was_not_closed(path: str, kind: str) -> None:
    model = EpisodeModel(kind, 2, True, False)
    episode, buffer = Episode(model, 2), model.make(path)
    for _ in range(3):
        for at in range(3):
            episode.step(False, buffer, at)
        for env in range(2):
            episode.finish(env, 3, buffer, None)
        buffer.store_episodes()
        model.store_episodes()
    buffer.engine.add(**half_a_row(model))  # a part of an episode: the process died in store_episodes
    buffer.engine.commit()
    die(buffer.engine)
    buffer = model.make(path)
    if kind == "on":
        assert (buffer.ptr, buffer.size) == (0, 0)
    else:
        assert (buffer.ptr, buffer.size) == (2, 4)
        for key, values in model.data.items():
            same(buffer.data[key], values, key)
        for at in range(2):
            episode.step(False, buffer, at)
        episode.finish(1, 2, buffer, None)
        buffer.store_episodes()
        model.store_episodes()
        for key, values in model.data.items():
            same(buffer.data[key], values, key)
    buffer.close()


def half_a_row(model: EpisodeModel) -> dict[str, Any]:
    dtype = "f8" if model.kind == "off" else "f4"
    obs = {"obs": np.zeros((N, *OBS), dtype), "avail_actions": np.ones((N, DIM), "i1")}
    return {
        "obs": obs, "next_obs": {**obs, "obs": obs["obs"] + 1}, "action": np.zeros((N, *ACT), dtype), "reward": 0.0,
        "terminated": False, "truncated": False, "rewards": np.zeros((N, *model.rew), dtype),
        "terminals": np.zeros(model.done, bool), "filled": True, "step": 0,
        "state": np.zeros(STATE, "f4"), "next_state": np.zeros(STATE, "f4"),
    }  # fmt: skip


def test_the_last_step_may_need_no_value(path: str) -> None:
    model = EpisodeModel("on", 1, True, False)
    buffer = model.make(path)
    for at, done in enumerate((False, True)):
        zeros = {"actions_n": np.zeros((1, N)), "values": np.zeros((1, N, 1)), "log_pi": np.zeros((1, N))}
        buffer.store_transitions(at, np.zeros((1, N, 4)), zeros, np.zeros((1, 5)), np.ones((1, N, 1)),
                                 np.full((1, N), done), None)  # fmt: skip
    after = np.zeros((1, N, 4)), np.zeros((1, 5)), None, np.ones((1, 5, 1))
    with pytest.raises(errors.InputError, match="value_next"):
        buffer.finish_path(0, 1, *after)
    buffer.finish_path(0, 2, *after)
    np.testing.assert_allclose(buffer.episode_data["returns"][0, :, :2, 0], [[1 + GAMMA * LAMBDA, 1]] * N, rtol=1e-6)
    assert buffer.episode_data["filled"][0, :, 0].tolist() == [True, True, False, False, False]
    buffer.close()


# What all have in common


def test_base_buffer() -> None:
    class Mine(marl.BaseBuffer):
        def store(self, *args: Any, **kwargs: Any) -> None:
            self.size += 1

        def clear(self, *args: Any) -> None:
            self.size = 0

        def sample(self, *args: Any) -> int:
            return self.size

    buffer = Mine(2, None, [4], (), [2, 1], (2,), 2, 6)
    assert (buffer.obs_space, buffer.rew_space, buffer.ptr, buffer.n_size) == ((4,), (2, 1), 0, 3)
    assert not buffer.full
    for _ in range(3):
        buffer.store()
    assert buffer.full
    assert buffer.finish_path(1, 2) is None
    with pytest.raises(TypeError, match="abstract"):
        marl.BaseBuffer(2, None, (4,), (), (2, 1), (2,), 2, 6)  # type: ignore[abstract]
    for arguments in ((2, None), (0, None, (4,), (), (), (), 1, 6), (2, None, 4, (), (), (), 1, 6)):
        with pytest.raises(errors.InputError):
            Mine(*arguments)
    with pytest.raises(errors.InputError, match="buffer_size"):
        Mine(2, None, (4,), (), (), (), 7, 6)


def test_bad_steps_change_nothing(path: str) -> None:
    model = OffModel(2, 7, True, "agent", False)
    step, _ = Play(model.shapes, 2).step()
    for make, keys in (
        (lambda: off_policy(model, "agent", path=path), ("obs", "obs_next", "rewards", "state_next")),
        (lambda: OnModel("plain", 2, 7, True, "agent", True, True).make(f"{path}2"), ("obs", "actions", "state")),
    ):
        buffer = make()
        for key in keys:
            for bad in ({k: v for k, v in step.items() if k != key}, {**step, key: np.zeros((2, 9))}):
                with pytest.raises(errors.InputError, match=key):
                    buffer.store(bad)
        with pytest.raises(errors.InputError, match="finite"):
            buffer.store({**step, "rewards": np.full((2, N, 1), np.nan)})
        assert (buffer.size, buffer.ptr) == (0, 0)
        buffer.store(step)
        assert buffer.size == 1
        buffer.close()


def test_bad_transitions_change_nothing(path: str) -> None:
    model = EpisodeModel("on", 2, True, True)
    buffer = model.make(path)
    actions = {"actions_n": np.zeros((2, N)), "values": np.zeros((2, N, 1)), "log_pi": np.zeros((2, N))}
    good = [0, np.ones((2, N, 4)), actions, np.zeros((2, 5)), np.ones((2, N, 1)), np.zeros((2, N)), None]
    for place, bad in ((0, 5), (0, -1), (0, [0, 7]), (1, np.ones((2, N, 3))), (2, {"actions_n": np.zeros((2, N))}),
                       (3, np.ones(4)), (4, np.full((2, N, 1), np.inf)), (4, "much")):  # fmt: skip
        with pytest.raises(errors.InputError):
            buffer.store_transitions(*[bad if at == place else value for at, value in enumerate(good)])
        assert not buffer.episode_data["obs"].any()
    with pytest.raises(errors.InputError):
        buffer.store_transitions(*good[:5])
    with pytest.raises(errors.InputError, match="next_t"):
        buffer.finish_path(0, 0, np.zeros((2, N, 4)), np.zeros((2, 5)), None, np.zeros((2, 5, 1)), value_next=0)
    buffer.store_transitions(*good)
    assert buffer.episode_data["obs"].any()
    buffer.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [({"gamma": 1.5}, "gamma"), ({"gae_lam": -1}, "gae_lam"), ({"rew_space": (2,)}, "rew_space"),
     ({"done_space": (7,)}, "done_space"), ({"prob_space": None}, "prob_space")],
)  # fmt: skip
def test_bad_settings(change: dict[str, Any], words: str) -> None:
    good = {"n_agents": N, "state_space": None, "obs_space": OBS, "act_space": ACT, "rew_space": (N, 1),
            "done_space": (N,), "n_envs": 1, "n_size": 5, "use_gae": True, "use_advnorm": True, "gamma": 0.9,
            "gae_lam": 0.9, "prob_space": PROB}  # fmt: skip
    marl.MeanField_OnPolicyBuffer(**good).close()
    bad = {key: value for key, value in {**good, **change}.items() if value is not None or key == "state_space"}
    with pytest.raises(errors.InputError, match=words):
        marl.MeanField_OnPolicyBuffer(**bad)


def test_another_buffers_store_is_refused(path: str) -> None:
    OnModel("plain", 2, 7, True, "agent", True, True).make(path).close()
    for other in (OnModel("plain", 2, 8, True, "agent", True, True), OnModel("plain", 2, 7, False, "agent", True, True),
                  OnModel("plain", 1, 14, True, "agent", True, True), OnModel("plain", 2, 7, True, "team", True, True),
                  EpisodeModel("on", 2, True, True)):  # fmt: skip
        with pytest.raises(errors.InputError, match="made"):
            other.make(path)
    OnModel("plain", 2, 7, True, "agent", True, True).make(path).close()


@pytest.mark.long
def test_a_forgotten_buffers_rows_come_back(path: str) -> None:
    model = OnModel("plain", 1, 7, True, "agent", True, True)
    buffer = model.make(path)
    step = Play(model.shapes, 1).step()[0]
    buffer.store(step)
    del buffer
    gc.collect()
    again = model.make(path)
    assert again.size == 1
    same(again.data["obs"][0, 0], step["obs"][0])
    again.close()


def test_the_example_runs() -> None:
    outcome = doctest.testmod(marl, raise_on_error=True)
    assert outcome.attempted > 3
    assert outcome.failed == 0


def test_a_commit_holds_the_rollout_until_newer_rows_are_durable(path: str) -> None:
    """The steps after a commit once took what it had saved with them, before they were durable themselves."""

    def make() -> marl.MARL_OnPolicyBuffer:
        return marl.MARL_OnPolicyBuffer(2, (3,), (4,), (), (2, 1), (2,), 2, 12, True, False, 0.9, 0.8, path=path)

    def fill(buffer: marl.MARL_OnPolicyBuffer, count: int) -> None:
        for _ in range(count):
            buffer.store({
                "obs": rng.random((2, 2, 4)), "state": rng.random((2, 3)), "actions": rng.integers(0, 3, (2, 2)),
                "rewards": rng.random((2, 2, 1)), "values": rng.random((2, 2, 1)), "log_pi_old": rng.random((2, 2)),
                "terminals": np.zeros((2, 2), bool),
            })  # fmt: skip

    rng = np.random.default_rng(0)
    buffer = make()
    fill(buffer, 3)
    buffer.finish_path(rng.random((2, 1)), 0)
    buffer.commit()
    wanted = {key: np.array(values) for key, values in buffer.data.items()}
    fill(buffer, 1)
    die(buffer.engine)
    again = make()
    assert (again.size, again.ptr) == (3, 3)
    assert wanted["returns"].any()
    for key, values in wanted.items():
        np.testing.assert_array_equal(np.asarray(again.data[key]), values, err_msg=key)
    again.close()


def test_a_path_of_an_environment_that_is_none() -> None:
    on_policy = marl.MARL_OnPolicyBuffer(2, None, (2,), (), (2, 1), (2,), 2, 10, True, True, 0.9, 0.9)
    obs, flags = np.zeros((2, 2, 2)), np.zeros((2, 2))
    on_policy.store({"obs": obs, "actions": flags, "rewards": np.ones((2, 2, 1)), "terminals": flags})
    rnn = {"max_episode_length": 3, "dim_act": 3}
    episodes = marl.MARL_OffPolicyBuffer_RNN(2, None, (2,), (), (1,), (2,), 2, 5, 4, **rnn)
    episodes.store_transitions(0, obs, {"actions_n": flags}, None, np.ones((2, 2, 1)), flags, None)
    for env in (-1, 2, 0.5, None, "a"):
        with pytest.raises(errors.InputError, match="i_env"):
            on_policy.finish_path(np.zeros(2), env)
        with pytest.raises(errors.InputError, match="i_env"):
            episodes.finish_path(env, 1, obs, None, None, np.ones((2, 3, 1)))
    with pytest.raises(errors.InputError, match="finite"):
        on_policy.finish_path(np.array([np.nan, 0]), 0)
    assert not on_policy.data["returns"].any()
    episodes.store_episodes()
    assert episodes.size == 0
