"""The adapters that need no library of their own, and good calls of them; for tests that hold for each."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from helpers.refusals import Call, Case, rows_of

from diskreplay.compat import frames, notebook, pearl, xuance, xuance_marl

BOX = spaces.Box(-1e6, 1e6, (2,), np.float32)
GOALS = spaces.Dict({name: BOX for name in ("observation", "achieved_goal", "desired_goal")})


class Env(gymnasium.Env[Any, Any]):
    def __init__(self, observation_space: Any = BOX) -> None:
        self.observation_space, self.action_space = observation_space, spaces.Discrete(3)

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return (achieved == desired).all(axis=-1).astype(np.float32)


def pair_of_envs() -> Any:
    return gymnasium.vector.SyncVectorEnv([Env, Env])


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 9, shape).astype(np.float32)


# Frames, and the notebook


def frame_steps(rng: np.random.Generator, buffer: Any) -> list[Call]:
    frame = rng.integers(0, 255, (3, 3, 1)).astype(np.uint8)
    effect = [0, int(rng.integers(3)), float(rng.integers(5)), bool(rng.random() < 0.3)]
    return [("store_frame", [frame]), ("store_effect", effect)]


def frame_call(buffer: Any, name: str, arguments: list[Any]) -> Any:
    """A whole number in the place of an index counts from that of the newest frame."""
    if name == "store_effect" and isinstance(arguments[0], int):
        arguments[0] = (buffer.next_idx - 1 + arguments[0]) % buffer.size
    return getattr(buffer, name)(*arguments)


def frames_seen(buffer: Any) -> Any:
    arrays = [] if buffer.store is None else [np.asarray(getattr(buffer, name)) for name in ("obs", "action", "done")]
    recent = None if buffer._newest is None else buffer.encode_recent_observation()
    sample = buffer.sample(2) if buffer.can_sample(2) else ()
    return buffer.next_idx, buffer.num_in_buffer, arrays, recent, sample


def remembered(rng: np.random.Generator, buffer: Any) -> list[Call]:
    step = [numbers(rng, 2), int(rng.integers(3)), float(rng.integers(5)), numbers(rng, 2), bool(rng.random() < 0.3)]
    calls: list[Call] = [("remember", step)]
    if hasattr(buffer, "insert") and len(buffer):
        calls.append(("insert", [float(rng.random()), int(rng.integers(len(buffer)))]))
    return calls


def notebook_seen(buffer: Any) -> Any:
    weights = buffer.weights.vals if hasattr(buffer, "weights") else getattr(buffer, "errors", [])
    return buffer.ind_max, [one or () for one in buffer.memory], weights, rows_of(buffer.store)


# Pearl


def trajectories(rng: np.random.Generator, buffer: Any) -> list[Call]:
    count, envs = 3, buffer.num_envs
    lead = () if envs == 1 else (envs,)

    def observed(*more: int) -> Any:
        values = {name: numbers(rng, *more, *lead, 2) for name in GOALS.spaces}
        return values if isinstance(buffer, pearl.HERBuffer) else values["observation"]

    def step(*more: int) -> list[Any]:
        shape = (*more, *lead)
        return [observed(*more), rng.integers(3, size=shape), numbers(rng, *shape), observed(*more),
                rng.random(shape) < 0.3]  # fmt: skip

    return [("add_trajectory", step()), ("add_batch_trajectories", step(count))]


def pearl_seen(buffer: Any) -> Any:
    arrays = [np.asarray(getattr(buffer, name)) for name in ("observations", "actions", "rewards", "dones")]
    return buffer.pos, buffer.full, arrays, rows_of(buffer.store)


# XuanCe


def off_policy_steps(rng: np.random.Generator, buffer: Any) -> list[Call]:
    step = [numbers(rng, 2, 2), rng.integers(3, size=2), numbers(rng, 2), rng.random(2) < 0.3, numbers(rng, 2, 2)]
    if buffer.auxiliary_shape:
        step.append({"more": numbers(rng, 2, 3)})
    calls: list[Call] = [("store", step)]
    if isinstance(buffer, xuance.PerOffPolicyBuffer):
        calls.append(("update_priorities", [np.zeros((2, 1), np.int64), rng.random((2, 1))]))
    return calls


def off_policy_seen(buffer: Any) -> Any:
    sample = () if not buffer.size else buffer.sample(*[0.5] * isinstance(buffer, xuance.PerOffPolicyBuffer))
    return buffer.ptr, buffer.size, rows_of(buffer.engine), sample


def episodes(rng: np.random.Generator, buffer: Any) -> list[Call]:
    steps = int(rng.integers(1, 4))
    return [("store", [{
        "obs": numbers(rng, steps + 1, 2), "acts": rng.integers(3, size=steps), "rews": numbers(rng, steps),
        "done": rng.random(steps) < 0.3,
    }])]  # fmt: skip


def episodes_seen(buffer: Any) -> Any:
    return buffer.ptr, buffer.size, rows_of(buffer.engine), buffer.sample() if buffer.can_sample() else ()


def on_policy_steps(rng: np.random.Generator, buffer: Any) -> list[Call]:
    step = [numbers(rng, 2, 2), rng.integers(3, size=2), numbers(rng, 2), numbers(rng, 2), rng.random(2) < 0.3,
            {"more": numbers(rng, 2, 3)}]  # fmt: skip
    return [("store", step), ("finish_path", [float(rng.random()), int(rng.integers(2))])]


STEP_ARRAYS = "rewards", "values", "terminals", "returns", "advantages", "actions"


def on_policy_seen(buffer: Any) -> Any:
    arrays = [np.asarray(getattr(buffer, name)) for name in STEP_ARRAYS]
    return buffer.ptr, buffer.size, buffer.start_ids, arrays, buffer.auxiliary_infos, rows_of(buffer.engine)


# XuanCe, several agents


def team_steps(rng: np.random.Generator, buffer: Any) -> list[Call]:
    step = {
        "obs": numbers(rng, 2, 2, 2), "actions": numbers(rng, 2, 2), "obs_next": numbers(rng, 2, 2, 2),
        "rewards": numbers(rng, 2, 2, 1), "terminals": rng.random((2, 2)) < 0.3, "agent_mask": rng.random((2, 2)) < 0.8,
    }  # fmt: skip
    if isinstance(buffer, xuance_marl.MARL_OnPolicyBuffer):
        del step["obs_next"]
        step["values"] = numbers(rng, 2, 2, 1)
        return [("store", [step]), ("finish_path", [numbers(rng, 2), int(rng.integers(2))])]
    return [("store", [step])]


def team_episodes(rng: np.random.Generator, buffer: Any) -> list[Call]:
    calls: list[Call] = []
    on_policy = isinstance(buffer, xuance_marl.MARL_OnPolicyBuffer_RNN)
    for step in range(2):
        actions = {"actions_n": numbers(rng, 2, 2)}
        if on_policy:
            actions.update(values=numbers(rng, 2, 2, 1), log_pi=numbers(rng, 2, 2))
        calls.append(("store_transitions", [
            step, numbers(rng, 2, 2, 2), actions, None, numbers(rng, 2, 2, 1), np.zeros((2, 2), bool),
            rng.random((2, 2, 3)) < 0.7,
        ]))  # fmt: skip
    for env in range(2):
        more = [numbers(rng, 2, 2, 2), None, rng.random((2, 2, 3)) < 0.7, np.ones((2, 3, 1), bool)]
        calls.append(("finish_path", [env, 2, *more, *[numbers(rng, 2)] * on_policy]))
    return [*calls, ("store_episodes", [])]


def team_call(buffer: Any, name: str, arguments: list[Any]) -> Any:
    if name == "finish_path" and len(arguments) == 7:
        return buffer.finish_path(*arguments[:6], value_next=arguments[6])
    return getattr(buffer, name)(*arguments)


def team_seen(buffer: Any) -> Any:
    data = {key: np.asarray(values) for key, values in buffer.data.items()}
    return buffer.ptr, buffer.size, data, getattr(buffer, "episode_data", {}), rows_of(buffer.engine)


AUXILIARY = {"more": (3,)}
SHAPES = 2, None, (2,), (), (2, 1), (2,), 2
RNN = {"max_episode_length": 3, "dim_act": 3}
DISCRETE = spaces.Discrete(3)
STATE = {"store_transitions": {3}, "finish_path": {3}}  # without a global state nobody reads it
CASES = {
    "frames": Case(
        lambda path: frames.ReplayBuffer(7, 2, path=path, seed=0), frame_steps, frames_seen, frame_call, True
    ),
    "notebook": Case(lambda path: notebook.Replay_Buffer(7, path=path, seed=0), remembered, notebook_seen, None, True),
    "notebook, proportional": Case(
        lambda path: notebook.Proportion_Replay_Buffer(7, path=path, seed=0), remembered, notebook_seen, None, True
    ),
    "notebook, ranks": Case(
        lambda path: notebook.Rank_Replay_Buffer(7, 2, path=path, seed=0), remembered, notebook_seen, None, True
    ),
    "Pearl": Case(lambda path: pearl.ReplayBuffer(Env(), 7, "cpu", path=path, seed=0), trajectories, pearl_seen),
    "Pearl, two environments": Case(
        lambda path: pearl.RolloutBuffer(pair_of_envs(), 7, "cpu", path=path, seed=0), trajectories, pearl_seen
    ),
    "Pearl, goals": Case(lambda path: pearl.HERBuffer(Env(GOALS), 7, path=path, seed=0), trajectories, pearl_seen),
    "XuanCe": Case(
        lambda path: xuance.DummyOffPolicyBuffer(BOX, DISCRETE, AUXILIARY, 2, 5, 4, path=path), off_policy_steps,
        off_policy_seen,
    ),
    "XuanCe, images": Case(
        lambda path: xuance.DummyOffPolicyBuffer_Atari(BOX, DISCRETE, None, 2, 5, 4, path=path), off_policy_steps,
        off_policy_seen,
    ),
    "XuanCe, priorities": Case(
        lambda path: xuance.PerOffPolicyBuffer(BOX, DISCRETE, None, 2, 5, 4, path=path), off_policy_steps,
        off_policy_seen,
    ),
    "XuanCe, episodes": Case(
        lambda path: xuance.RecurrentOffPolicyBuffer(BOX, DISCRETE, None, 2, 3, 2, 4, 2, path=path), episodes,
        episodes_seen,
    ),
    "XuanCe, on-policy": Case(
        lambda path: xuance.DummyOnPolicyBuffer(BOX, DISCRETE, AUXILIARY, 2, 5, path=path), on_policy_steps,
        on_policy_seen,
    ),
    "XuanCe, agents": Case(
        lambda path: xuance_marl.MARL_OffPolicyBuffer(*SHAPES, 10, 4, path=path), team_steps, team_seen
    ),
    "XuanCe, agents on-policy": Case(
        lambda path: xuance_marl.MARL_OnPolicyBuffer(*SHAPES, 10, True, True, 0.9, 0.9, path=path), team_steps,
        team_seen,
    ),
    "XuanCe, agents' episodes": Case(
        lambda path: xuance_marl.MARL_OffPolicyBuffer_RNN(2, None, (2,), (), (1,), (2,), 2, 5, 4, path=path, **RNN),
        team_episodes, team_seen, team_call, taken=STATE,
    ),
    "XuanCe, agents' episodes on-policy": Case(
        lambda path: xuance_marl.MARL_OnPolicyBuffer_RNN(
            2, None, (2,), (), (1,), (2,), 2, 5, True, True, 0.9, 0.9, path=path, **RNN
        ),
        team_episodes, team_seen, team_call, taken=STATE,
    ),
}  # fmt: skip
