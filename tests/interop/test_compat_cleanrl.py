"""`compat.cleanrl` in loops like those of CleanRL's scripts, beside a buffer in memory: same seeds, same losses."""

from __future__ import annotations

import functools
import pathlib
import signal
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from helpers.crashes import die

torch = pytest.importorskip("torch", reason="torch is in the interop extra")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import diskreplay as dr  # noqa: E402
from diskreplay.compat.cleanrl import PrioritizedReplayBuffer, ReplayBuffer  # noqa: E402
from diskreplay.errors import InputError, LockedError, NotEnoughDataError, SamplerWarning  # noqa: E402

FIELDS = ("observations", "actions", "next_observations", "dones", "rewards")
ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
STEPS = 260


pytestmark = pytest.mark.usefixtures("one_torch_thread")


class InMemory:
    """The interface of ``cleanrl_utils.buffers.ReplayBuffer`` over arrays in memory."""

    def __init__(
        self, buffer_size: int, observation_space: Any, action_space: Any, device: Any, n_envs: int = 1,
        optimize_memory_usage: bool = False, handle_timeout_termination: bool = True,
    ) -> None:  # fmt: skip
        self.rows, self.n_envs, self.added = buffer_size // n_envs, n_envs, 0
        self.without_oldest, self.handles = optimize_memory_usage, handle_timeout_termination
        lead = (self.rows, n_envs)
        obs = (1,) if isinstance(observation_space, spaces.Discrete) else observation_space.shape
        acting = np.float32 if action_space.dtype == np.float64 else action_space.dtype
        self.observations = np.zeros((*lead, *obs), observation_space.dtype)
        self.next_observations = np.zeros((*lead, *obs), observation_space.dtype)
        self.actions = np.zeros((*lead, int(np.prod(action_space.shape))), acting)
        self.rewards, self.dones, self.timeouts = (np.zeros(lead, np.float32) for _ in range(3))

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        at, self.added = self.added % self.rows, self.added + 1
        self.observations[at] = np.reshape(obs, self.observations[at].shape)
        self.next_observations[at] = np.reshape(next_obs, self.observations[at].shape)
        self.actions[at] = np.reshape(action, self.actions[at].shape)
        self.rewards[at], self.dones[at] = reward, done
        if self.handles:
            self.timeouts[at] = [info.get("TimeLimit.truncated", False) for info in infos]

    def sample(self, batch_size: int) -> Any:
        if self.without_oldest and self.added >= self.rows:
            rows = (np.random.randint(1, self.rows, batch_size) + self.added) % self.rows
        else:
            rows = np.random.randint(0, min(self.rows, self.added), batch_size)
        at = rows, np.random.randint(0, self.n_envs, batch_size)
        dones = self.dones[at] * (1 - self.timeouts[at])
        arrays = self.observations[at], self.actions[at], self.next_observations[at], dones[:, None]
        batch = map(torch.tensor, (*arrays, self.rewards[at][:, None]))
        return types.SimpleNamespace(**dict(zip(FIELDS, batch, strict=True)))


class Toy(gym.Env):
    """Random vectors; an episode ends after 9 steps, terminated or, each third time, truncated."""

    def __init__(self, action_space: spaces.Space, pixels: bool = False) -> None:
        self.action_space = action_space
        self.observation_space = spaces.Box(0, 255, (36, 36), np.uint8) if pixels else spaces.Box(-9, 9, (5,))
        self.episode = 0

    def _observe(self) -> Any:
        values = self.np_random.random(self.observation_space.shape) * 9
        return values.astype(self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.episode = 0, self.episode + 1
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        over, cut = self.steps == 9, self.episode % 3 == 0
        return self._observe(), float(np.sum(action)) + self.steps, over and not cut, over and cut, {}


def make_envs(action_space: spaces.Space, pixels: bool = False, num_envs: int = 1) -> gym.vector.VectorEnv:
    def one() -> gym.Env:
        env: gym.Env = Toy(action_space, pixels)
        return gym.wrappers.FrameStackObservation(env, 4) if pixels else env

    # As Gymnasium 0.29, which CleanRL pins, resets.
    return gym.vector.SyncVectorEnv([one] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def breakout() -> gym.vector.VectorEnv:
    """Frames of a game as CleanRL's Atari scripts prepare them; a lost life ends an episode, and so do 30 steps."""
    gym.register_envs(pytest.importorskip("ale_py", reason="ale-py is in the atari extra"))

    def one() -> gym.Env:
        env: gym.Env = gym.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0)
        env = gym.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, terminal_on_life_loss=True)
        env = gym.wrappers.TimeLimit(gym.wrappers.TransformReward(env, np.sign), 30)
        return gym.wrappers.FrameStackObservation(env, 4)

    return gym.vector.SyncVectorEnv([one], autoreset_mode=AutoresetMode.SAME_STEP)


def network(inputs: int, outputs: int, *last: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs), *last)


class Pixels(nn.Module):
    """Some of an image's, as numbers from 0 to 1."""

    def forward(self, observations: Any) -> Any:
        return observations.flatten(1)[:, ::97] / 255.0


class Scaled(nn.Module):
    def forward(self, observations: Any) -> Any:
        return observations / 255.0


def convolutions() -> nn.Sequential:
    """A small one of the networks that ``dqn_atari.py`` has."""
    return nn.Sequential(
        Scaled(), nn.Conv2d(4, 8, 8, stride=4), nn.ReLU(), nn.Conv2d(8, 8, 4, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(8 * 9 * 9, 4),
    )  # fmt: skip


def collect(
    envs: Any, rb: Any, act: Callable[[Any, int], Any], learn: Callable[[Any], Any], marks_timeouts: bool = False
) -> list[float]:
    """The part that CleanRL's scripts have in common: act, step, find the final observation, add, learn.

    With ``marks_timeouts`` as they were written for Gym: an episode that is truncated is done, and its info says so.
    """
    losses = []
    obs, _ = envs.reset(seed=1)
    for global_step in range(STEPS):
        actions = act(obs, global_step)
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        dones = terminations | truncations if marks_timeouts else terminations
        real_next_obs = next_obs.copy()
        for idx, ended in enumerate(dones if marks_timeouts else truncations):
            if ended:
                real_next_obs[idx] = infos["final_obs"][idx]
        if marks_timeouts:
            infos = [{"TimeLimit.truncated": bool(truncated)} for truncated in truncations]
        rb.add(obs, real_next_obs, actions, rewards, dones, infos)
        obs = next_obs
        if global_step > 20 and global_step % 4 == 0:
            losses.append(learn(rb.sample(16)))
    return losses


def q_learning(
    buffer: Callable[..., Any], envs: Any, make: Callable[[], nn.Module], handle_timeout_termination: bool = False,
    **options: Any,
) -> tuple[Any, list[float]]:  # fmt: skip
    q_network, target_network = make(), make()
    optimizer = torch.optim.Adam(q_network.parameters(), lr=1e-3)
    rb = buffer(
        100, envs.single_observation_space, envs.single_action_space, torch.device("cpu"),
        handle_timeout_termination=handle_timeout_termination, **options,
    )  # fmt: skip

    def act(obs: Any, step: int) -> Any:
        if step % 3:
            return np.random.randint(0, envs.single_action_space.n, 1)
        return q_network(torch.as_tensor(obs)).argmax(dim=1).numpy()

    def learn(data: Any) -> float:
        with torch.no_grad():
            target_max, _ = target_network(data.next_observations).max(dim=1)
            td_target = data.rewards.flatten() + 0.99 * target_max * (1 - data.dones.flatten())
        loss = F.mse_loss(q_network(data.observations).gather(1, data.actions).squeeze(), td_target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return rb, collect(envs, rb, act, learn, marks_timeouts=handle_timeout_termination)


def dqn(buffer: Callable[..., Any]) -> tuple[Any, list[float]]:
    return q_learning(buffer, make_envs(spaces.Discrete(3)), lambda: network(5, 3))


def dqn_pixels(buffer: Callable[..., Any]) -> tuple[Any, list[float]]:
    inputs = len(range(0, 4 * 36 * 36, 97))
    return q_learning(
        buffer,
        make_envs(spaces.Discrete(3), pixels=True),
        lambda: nn.Sequential(Pixels(), network(inputs, 3)),
        optimize_memory_usage=True,
    )


def dqn_atari(buffer: Callable[..., Any], **options: Any) -> tuple[Any, list[float]]:
    return q_learning(buffer, breakout(), convolutions, **options)


def actor_critic(buffer: Callable[..., Any], noise: float, entropy: float, **options: Any) -> tuple[Any, list[float]]:
    num_envs = options.get("n_envs", 1)
    envs = make_envs(spaces.Box(-1, 1, (2,), np.float32), num_envs=num_envs)
    envs.single_observation_space.dtype = np.dtype(np.float32)
    actor, critics = network(5, 2, nn.Tanh()), [network(7, 1), network(7, 1)]
    optimizer = torch.optim.Adam([p for net in (actor, *critics) for p in net.parameters()], lr=1e-3)
    rb = buffer(
        100, envs.single_observation_space, envs.single_action_space, torch.device("cpu"),
        handle_timeout_termination=False, **options,
    )  # fmt: skip

    def act(obs: Any, step: int) -> Any:
        if step < 20:
            return np.random.uniform(-1, 1, (num_envs, 2)).astype(np.float32)
        with torch.no_grad():
            actions = actor(torch.Tensor(obs))
            return (actions + noise * torch.randn_like(actions)).clamp(-1, 1).numpy()

    def learn(data: Any) -> float:
        with torch.no_grad():
            following = actor(data.next_observations)
            following = following + noise * torch.randn_like(following)
            pairs = torch.cat([data.next_observations, following], 1)
            value = torch.min(critics[0](pairs), critics[1](pairs)) + entropy
            target = data.rewards.flatten() + (1 - data.dones.flatten()) * 0.99 * value.view(-1)
        pairs = torch.cat([data.observations, data.actions], 1)
        loss = sum(F.mse_loss(critic(pairs).view(-1), target) for critic in critics)
        loss = loss - critics[0](torch.cat([data.observations, actor(data.observations)], 1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return rb, collect(envs, rb, act, learn)


LOOPS: dict[str, Callable[[Any], tuple[Any, list[float]]]] = {
    "dqn": dqn,
    "td3_continuous_action": lambda buffer: actor_critic(buffer, 0.2, 0.0),
    "sac_continuous_action": lambda buffer: actor_critic(buffer, 0.5, 0.1, n_envs=2),
    "dqn of pixels": dqn_pixels,
    "dqn_atari": functools.partial(dqn_atari, optimize_memory_usage=True),
    "dqn_atari, next observations kept": functools.partial(dqn_atari, optimize_memory_usage=False),
    "dqn_atari, for Gym": functools.partial(dqn_atari, handle_timeout_termination=True),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_has_the_same_losses_as_with_a_buffer_in_memory(loop: str) -> None:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is said of what these loops mean to do
        for buffer in (ReplayBuffer, InMemory):
            np.random.seed(1)
            torch.manual_seed(1)
            found.append(LOOPS[loop](buffer))
    (ours, losses), (theirs, expected) = found
    assert (len(expected), losses) == (59, expected)
    for name in ARRAYS:
        np.testing.assert_array_equal(np.asarray(getattr(ours, name)), getattr(theirs, name), name)
    if "atari" in loop:
        ends = [bool(theirs.dones.any()), bool(theirs.timeouts.any())]
        assert ends == [True, loop == "dqn_atari, for Gym"]
    if "atari" in loop or "pixels" in loop:
        assert [stack.frames for stack in ours.store.schema.stacks] == [4]


def test_the_store_knows_where_a_truncated_episode_ended() -> None:
    rb, _ = dqn(ReplayBuffer)
    lengths = [episode.length for episode in rb.store.episodes]
    assert set(lengths[1:-1]) == {9}, "terminated ones and truncated ones"


def filled(n_envs: int = 1, **options: Any) -> ReplayBuffer:
    rb = ReplayBuffer(8, spaces.Discrete(50), spaces.MultiDiscrete([3, 4]), "cpu", n_envs, **options)
    for step in range(10):
        rb.add(
            np.full(n_envs, step), np.full(n_envs, step + 1), np.full((n_envs, 2), step % 3), np.full(n_envs, step),
            np.full(n_envs, step % 3 == 2), [{"TimeLimit.truncated": step == 5}] * n_envs,
        )  # fmt: skip
    return rb


def test_dones_of_time_limits_and_other_spaces() -> None:
    for handles in (True, False):
        batch = filled(handle_timeout_termination=handles).sample(200)
        rewards = batch.rewards.flatten().tolist()
        assert set(rewards) == set(range(2, 10)), "the newest eight"
        ends = (2, 8) if handles else (2, 5, 8)
        assert batch.dones.flatten().tolist() == [float(reward in ends) for reward in rewards]
        assert batch.observations.tolist() == [[int(reward)] for reward in rewards]
        assert batch.actions.tolist() == [[int(reward % 3)] * 2 for reward in rewards]
    assert (batch.dones.dtype, batch.rewards.dtype) == (torch.float32, torch.float32)


def test_what_is_refused_changes_nothing() -> None:
    rb = filled(2)
    good = [np.zeros(2, int), np.zeros(2, int), np.zeros((2, 2), int), np.zeros(2), np.zeros(2, bool), [{}, {}]]
    for number, wrong in enumerate((np.zeros(3, int), np.full(2, 50), np.full((2, 2), 3), np.full(2, np.nan))):
        with pytest.raises(InputError):
            rb.add(*good[:number], wrong, *good[number + 1 :])
    assert rb.store is not None
    assert rb.store.stats()["streams"]["0"]["end"] == 10
    with pytest.raises(InputError, match="must be Box"):
        ReplayBuffer(8, spaces.Dict(a=spaces.Discrete(2)), spaces.Discrete(2))
    with pytest.raises(NotEnoughDataError):
        ReplayBuffer(8, spaces.Discrete(2), spaces.Discrete(2)).sample(1)
    with pytest.raises(InputError, match="no checkpoint"):
        ReplayBuffer(8, spaces.Discrete(2), spaces.Discrete(2), checkpoint="here")


def test_latest_is_the_newest_checkpoint_of_the_users_own(tmp_path: pathlib.Path) -> None:
    def opened() -> ReplayBuffer:
        return ReplayBuffer(
            8, spaces.Discrete(50), spaces.MultiDiscrete([3, 4]), "cpu", path=tmp_path / "store", checkpoint="latest"
        )

    def add(rb: ReplayBuffer) -> None:
        rb.add(0, 1, np.zeros(2, int), 0.0, False, {})

    rb = opened()
    add(rb)
    rb.close()
    rb = opened()
    assert rb.size() == 1
    for number in range(3):
        rb.store.checkpoint(f"step-{number}", {"step": number}, attachments={"learner.pt": b"weights"}, keep=2)
        add(rb)
    rb.close()
    rb = opened()
    assert (rb.size(), rb.store.restored.metadata) == (3, {"step": 2})
    with rb.store.attachment("learner.pt") as file:
        assert file.read() == b"weights"
    rb.close()


def test_a_path_is_taken_up_again(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "store"
    first = filled(path=path)
    with pytest.raises(LockedError):
        filled(path=path)
    assert first.store is not None
    first.store.checkpoint("here")
    first.add(0, 0, np.zeros(2, int), 0.0, False, {})
    first.close()
    for checkpoint, newest, pos in ((None, 0.0, 3), ("here", 9.0, 2)):
        again = ReplayBuffer(
            8, spaces.Discrete(50), spaces.MultiDiscrete([3, 4]), "cpu", path=path, checkpoint=checkpoint
        )
        assert (again.size(), again.pos, again.full) == (8, pos, True)
        assert np.asarray(again.rewards)[pos - 1, 0] == newest
        again.close()
    with pytest.raises(InputError, match="this buffer for"):
        ReplayBuffer(8, spaces.Discrete(51), spaces.MultiDiscrete([3, 4]), path=path)
    with pytest.raises(InputError, match="has the capacity 8, and 7 would keep fewer"):
        ReplayBuffer(7, spaces.Discrete(50), spaces.MultiDiscrete([3, 4]), path=path)
    grown = ReplayBuffer(9, spaces.Discrete(50), spaces.MultiDiscrete([3, 4]), path=path)
    assert (grown.size(), grown.pos, grown.full) == (8, 8, False)
    grown.close()
    assert again.store is not None


KILLED = """
import sys, numpy as np
from gymnasium import spaces
from diskreplay.compat.cleanrl import PrioritizedReplayBuffer
rb = PrioritizedReplayBuffer(100, (3,), "cpu", 1, 0.9, path=sys.argv[1], commit_rows=10)
for step in range(95):
    rb.add(np.full((1, 3), step, np.uint8), [1], [step], np.full((1, 3), step + 1, np.uint8), [False])
    if step == 90:
        rb.commit()
print("added", flush=True)
sys.stdin.read()
"""


def test_sigkill_loses_what_came_after_the_last_commit(tmp_path: pathlib.Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "store")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert run.stdout is not None
    assert run.stdout.readline() == b"added\n"
    run.send_signal(signal.SIGKILL)
    run.communicate()
    with pytest.warns(SamplerWarning, match="ended without close"):
        rb = PrioritizedReplayBuffer(100, (3,), "cpu", 1, 0.9, path=tmp_path / "store")
    assert 90 <= rb.size <= 95
    data = rb.sample(64)
    assert torch.equal(data.observations[:, 0].float(), data.rewards.flatten())
    rb.close()


# Rainbow's buffer


class Rainbow:
    """The interface of ``rainbow_atari.py``'s buffer over lists: n-step returns stay within an episode."""

    def __init__(self, capacity: int, n_step: int, gamma: float, alpha: float, beta: float, eps: float) -> None:
        self.capacity, self.n_step, self.gamma, self.alpha = capacity, n_step, gamma, alpha
        self.beta, self.eps, self.largest = beta, eps, 1.0
        self.steps: list[tuple[Any, ...]] = []
        self.priorities: dict[int, float] = {}

    def add(self, *step: Any) -> None:
        self.steps.append(step)
        for number in range(max(0, len(self.steps) - self.n_step), len(self.steps)):
            if number not in self.priorities and self.window(number) is not None:
                self.priorities[number] = self.largest
        self.priorities.pop(len(self.steps) - self.capacity - 1, None)

    def window(self, number: int) -> list[tuple[Any, ...]] | None:
        """The steps of a transition; None where some are to come yet."""
        found = []
        for step in self.steps[number : number + self.n_step]:
            if found and not np.array_equal(found[-1][3], step[0]):
                return found
            found.append(step)
            if step[4]:
                return found
        return found if len(found) == self.n_step else None

    def sample(self, batch_size: int) -> tuple[Any, ...]:
        slots = sorted(self.priorities, key=lambda number: number % self.capacity)
        masses = np.array([self.priorities[number] ** self.alpha for number in slots])
        drawn = (np.arange(batch_size) + np.random.random(batch_size)) / batch_size * masses.sum()
        at = np.searchsorted(np.cumsum(masses), drawn, side="right")
        weights = (masses[at] * len(masses) / masses.sum()) ** -self.beta
        windows: list[Any] = [self.window(slots[number]) for number in at]
        rewards = [sum(self.gamma**i * step[2] for i, step in enumerate(steps)) for steps in windows]
        discounts = [0 if steps[-1][4] else self.gamma ** len(steps) for steps in windows]
        return (
            np.stack([steps[0][0] for steps in windows]), np.array([steps[0][1] for steps in windows]),
            np.array(rewards), np.stack([steps[-1][3] for steps in windows]),
            np.array([steps[-1][4] for steps in windows]), np.array(slots)[at], weights / weights.max(),
            np.array(discounts),
        )  # fmt: skip

    def update_priorities(self, indices: Any, priorities: Any) -> None:
        last = dict(zip(indices.tolist(), np.abs(priorities) + self.eps, strict=True))
        for number, priority in last.items():
            self.largest = max(self.largest, priority)
            self.priorities[number] = priority


@pytest.mark.parametrize("n_step", [1, 3])
def test_rainbows_loop(n_step: int) -> None:
    """Actions, batches and losses of a loop with priorities are those of a plain list that keeps episodes apart."""
    envs = make_envs(spaces.Discrete(3), pixels=True)
    ours = PrioritizedReplayBuffer(60, envs.single_observation_space.shape, "cpu", n_step, 0.9, 0.5, 0.4, 1e-6)
    theirs = Rainbow(60, n_step, 0.9, 0.5, 0.4, 1e-6)
    rng = np.random.default_rng(0)
    obs, _ = envs.reset(seed=1)
    truncated = []
    for step in range(150):
        ours.beta = theirs.beta = min(1.0, 0.4 + step * 0.6 / 150)
        actions = rng.integers(0, 3, 1)
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        real_next_obs = infos["final_obs"][0][None] if truncations[0] else next_obs.copy()
        ours.add(obs, actions, rewards, real_next_obs, terminations)
        theirs.add(obs[0], actions[0], rewards[0], real_next_obs[0], terminations[0])
        obs = next_obs
        if step > 10 and step % 4 == 0:
            np.random.seed(step)
            data = ours.sample(12)
            np.random.seed(step)
            expected = theirs.sample(12)
            for name, values in zip(data._fields, expected, strict=True):
                found = np.asarray(getattr(data, name))
                found = found if name in ("indices", "observations", "next_observations") else found[:, 0]
                np.testing.assert_allclose(found, values, rtol=1e-5, err_msg=name)
            windows = [steps for steps in map(theirs.window, data.indices) if steps]
            truncated += [1 for steps in windows if len(steps) < n_step and not steps[-1][4]]
            errors = rng.normal(size=12)
            ours.update_priorities(data.indices, errors)
            theirs.update_priorities(data.indices, errors)
    assert bool(truncated) == (n_step > 1), "windows that a truncated episode has cut short were drawn"
    assert (ours.max_priority, ours.size, ours.pos) == (pytest.approx(theirs.largest), 60, 150 % 60)
    assert (data.actions.dtype, data.dones.dtype) == (torch.int64, torch.bool)
    assert ours.store is not None
    assert [stack.frames for stack in ours.store.schema.stacks] == [4]


def test_priorities_that_a_kill_took_are_said(tmp_path: pathlib.Path) -> None:
    options: dict[str, Any] = {"path": tmp_path / "store"}
    rb = PrioritizedReplayBuffer(30, (3,), "cpu", 1, 0.9, **options)
    for step in range(5):
        rb.add(np.full(3, step, np.uint8), step, 1.0, np.full(3, step + 1, np.uint8), False)
    rb.close()
    rb = PrioritizedReplayBuffer(30, (3,), "cpu", 1, 0.9, **options)
    assert rb.store is not None
    rb.update_priorities([2], [1e6])
    die(rb.store)
    with pytest.warns(SamplerWarning, match="ended without close"):
        rb = PrioritizedReplayBuffer(30, (3,), "cpu", 1, 0.9, **options)
    assert rb.max_priority == 1.0
    rb.close()


def test_priorities_come_back_with_a_closed_buffer(tmp_path: pathlib.Path) -> None:
    def opened(n_step: int = 2, **options: Any) -> PrioritizedReplayBuffer:
        return PrioritizedReplayBuffer(30, (3,), "cpu", n_step, 0.9, path=tmp_path / "store", **options)

    def indices(rb: PrioritizedReplayBuffer) -> list[int]:
        np.random.seed(0)
        return rb.sample(64).indices.tolist()

    rb = opened()
    for step in range(40):
        rb.add(np.full(3, step, np.uint8), step, 1.0, np.full(3, step + 1, np.uint8), False)
    rb.update_priorities([20], [1e6])
    drawn = indices(rb)
    assert drawn.count(20) > 60
    assert rb.store is not None
    rb.store.checkpoint("here")
    rb.update_priorities([25], [1e12])
    rb.close()
    with pytest.raises(dr.errors.ClosedError):
        rb.sample(1)

    rb = opened()
    assert indices(rb).count(25) > 60
    assert rb.max_priority > 1e11
    rb.close()
    with pytest.warns(SamplerWarning, match="its priorities are those of items of"):
        rb = opened(n_step=3)
    assert rb.max_priority == 1.0, "priorities of other transitions"
    assert len(set(indices(rb))) > 20
    rb.close()
    with pytest.raises(InputError, match="sampler"):
        opened(alpha=0.7)
    rb = opened(checkpoint="here")
    assert indices(rb) == drawn
    rb.close()


def test_rainbows_buffer_refuses_what_is_no_image() -> None:
    rb = PrioritizedReplayBuffer(30, (3,), "cpu", 1, 0.9)
    obs = np.zeros(3, np.uint8)
    with pytest.raises(InputError, match="obs"):
        rb.add(obs / 2 + 0.25, 1, 0.0, obs, False)
    with pytest.raises(InputError, match="shape"):
        rb.add(obs, 1, 0.0, np.zeros(4, np.uint8), False)
    with pytest.raises(NotEnoughDataError):
        rb.sample(1)
    assert rb.size == 0
