"""Makes the sample data of this folder anew: ``python datasets/make.py [FOLDER]``, and its checksums.

Each function makes one store from a real environment, with seeds. Later versions must read the stores of this folder
as they are, so they are made again only to show how they were made.

Needs the ``datasets`` extra.
"""

from __future__ import annotations

import hashlib
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

import diskreplay as dr

HERE = pathlib.Path(__file__).parent
AT_THE_END: dict[str, Any] = {"commit_rows": 10**6, "commit_seconds": 1e9}
"""Commits only where a recipe says so."""


def _play_pong(path: pathlib.Path, steps: int, capacity: int, **options: Any) -> None:
    """ALE/Pong-v5, 84x84 greyscale, frame skip 4, by a random policy; cut off every 150 steps, to have episodes."""
    import ale_py

    gymnasium.register_envs(ale_py)
    raw = gymnasium.make("ALE/Pong-v5", frameskip=1)
    env = gymnasium.wrappers.AtariPreprocessing(raw, frame_skip=4, screen_size=84)
    actions = np.random.default_rng(0).integers(6, size=steps)
    with dr.ReplayBuffer.create(
        path, env.observation_space, env.action_space, capacity=capacity, frame_stack=4, seed=0, **AT_THE_END, **options
    ) as rb:
        obs, _ = env.reset(seed=0)
        for step, action in enumerate(actions.tolist()):
            next_obs, reward, terminated, _, _ = env.step(action)
            truncated = step % 150 == 149
            rb.add(obs, action, reward, next_obs, terminated, truncated)
            obs = env.reset()[0] if terminated or truncated else next_obs
            if step == steps // 2:
                rb.checkpoint("half-way", metadata={"step": step})
            if step == steps * 3 // 4 and capacity < steps:
                rb.drop_checkpoint("half-way")  # what it needs would stay


def pong(folder: pathlib.Path) -> None:
    """400 steps, three episodes, a checkpoint."""
    _play_pong(folder / "pong-v1.replay", 400, 1000)


def pong_window(folder: pathlib.Path) -> None:
    """600 steps of which the window holds the newest 256: the files of the oldest are gone."""
    _play_pong(folder / "pong-window-v1.replay", 600, 256, shard_rows=64)


def cartpole(folder: pathlib.Path) -> None:
    """CartPole-v1, four environments in lockstep and a second stream of one; prioritised, with a checkpoint.

    A controller holds the pole until the environment cuts the episode off at 500 steps, in every other episode; else
    it stumbles at random, and the pole falls. The environments reset themselves in a step of its own.
    """
    path = folder / "cartpole-v1.replay"
    rng = np.random.default_rng(0)
    envs = gymnasium.make_vec("CartPole-v1", num_envs=4, vectorization_mode="sync")
    with dr.ReplayBuffer.create(
        path, envs.single_observation_space, envs.single_action_space, capacity=6000, num_envs=4, seed=0,
        sampler=dr.Proportional(alpha=0.6, beta=0.4), shard_rows=256, **AT_THE_END,
    ) as rb:  # fmt: skip
        for step in _balance(rb, envs, 1050, rng):
            if step == 900:
                batch = rb.sample(256)
                rb.update_priorities(batch.index, rng.exponential(size=256))
                rb.checkpoint("trained", metadata={"updates": 1})
    envs = gymnasium.make_vec("CartPole-v1", num_envs=1, vectorization_mode="sync")
    with dr.ReplayBuffer.open(path, stream="second", num_envs=1, **AT_THE_END) as rb:
        for _ in _balance(rb, envs, 600, rng):
            pass


def _balance(rb: dr.ReplayBuffer, envs: Any, steps: int, rng: np.random.Generator) -> Iterator[int]:
    episode = np.arange(envs.num_envs)
    obs, _ = envs.reset(seed=int(rng.integers(1 << 31)))
    ended = np.zeros(envs.num_envs, bool)
    for step in range(steps):
        controlled = (obs[:, 2] + 0.5 * obs[:, 3] + 0.05 * obs[:, 0] + 0.1 * obs[:, 1] > 0).astype(np.int64)
        action = np.where((episode % 2 == 0) | (rng.random(len(obs)) < 0.2), controlled, rng.integers(2, size=len(obs)))
        next_obs, reward, terminated, truncated, _ = envs.step(action)
        row = (obs, action, reward, next_obs, terminated, truncated)
        if envs.num_envs == 1:
            rb.add(*(part[0] for part in row), valid=not ended[0])
        else:
            rb.add(*row, valid=~ended)
        ended = terminated | truncated
        episode += ended
        obs = next_obs
        yield step


def fetch_reach(folder: pathlib.Path) -> None:
    """FetchReach-v4, 20 episodes of 50 steps: a robot's gripper on its way to a goal, in a noisy straight line."""
    import gymnasium_robotics

    gymnasium.register_envs(gymnasium_robotics)
    env = gymnasium.make("FetchReach-v4")
    rng = np.random.default_rng(0)
    with dr.ReplayBuffer.create(
        folder / "fetch-reach-v1.replay", env.observation_space, env.action_space, capacity=1000, shard_rows=256,
        seed=0, **AT_THE_END,
    ) as rb:  # fmt: skip
        for episode in range(20):
            obs, _ = env.reset(seed=episode)
            ended = False
            while not ended:
                way = 4 * (obs["desired_goal"] - obs["achieved_goal"])
                action = np.clip(np.append(way, 0) + rng.normal(0, 0.6, 4), -1, 1).astype(np.float32)
                next_obs, reward, terminated, truncated, _ = env.step(action)
                rb.add(obs, action, reward, next_obs, terminated, truncated)
                obs, ended = next_obs, terminated or truncated


def simple_spread(folder: pathlib.Path) -> None:
    """simple_spread_v3 of the multi-agent particle environments: three agents, their rewards and the global state.

    Twenty episodes of 25 steps by a random policy.
    """
    from mpe2 import simple_spread_v3

    env = simple_spread_v3.parallel_env(N=3, max_cycles=25)
    agents = env.possible_agents
    rng = np.random.default_rng(0)
    with dr.MultiAgentReplayBuffer.create(
        folder / "simple-spread-v1.replay", env.observation_space(agents[0]), env.action_space(agents[0]), len(agents),
        capacity=500, state_space=env.state_space, rewards="agent", shard_rows=256, seed=0, **AT_THE_END,
    ) as rb:  # fmt: skip

        def together(of: dict[str, Any]) -> np.ndarray:
            return np.array([of[agent] for agent in agents])

        for episode in range(20):
            obs, _ = env.reset(seed=episode)
            state = env.state()
            while env.agents:
                action = dict(zip(agents, rng.integers(5, size=len(agents)).tolist(), strict=True))
                next_obs, reward, terminated, truncated, _ = env.step(action)
                next_state = env.state()
                rb.add(
                    together(obs), together(action), together(reward).astype(np.float32), together(next_obs),
                    all(terminated.values()), all(truncated.values()), state=state, next_state=next_state,
                )  # fmt: skip
                obs, state = next_obs, next_state


RECIPES = (pong, pong_window, cartpole, fetch_reach, simple_spread)


def checksums(folder: pathlib.Path) -> str:
    files = sorted(path for path in folder.glob("*.replay/**/*") if path.is_file())
    lines = (
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}" for path in files
    )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for recipe in RECIPES:
        recipe(target)
    (target / "SHA256SUMS").write_text(checksums(target))
