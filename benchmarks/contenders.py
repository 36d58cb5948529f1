"""The buffers that are compared: ours and those of other libraries, behind one kind of function.

A contender's function is ``(steps, scratch, **options) -> (sample, unpack)``: it records ``workload.mixture(steps)``
and returns ``sample(n)``, the call a user of that library makes to get a batch with ``obs`` and ``next_obs``, and
``unpack``, which picks the two out of what came back as (n, 4, 84, 84) arrays; `check` looks whether they are what they
should be. Every library keeps its own defaults (threads too) and returns what it returns: torch tensors from SB3 and
torchrl, numpy arrays from the others. A library that is not installed raises ImportError.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import workload

Sample = Callable[[int], Any]
Unpack = Callable[[Any], tuple[Any, Any]]
STACK_BYTES = workload.STACK * workload.FRAME_BYTES


@dataclasses.dataclass(frozen=True, eq=False)
class Contender:
    label: str
    builder: str  # the name of its function below
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    step_bytes: int = 0  # memory (page cache included) that a step takes, to tell which contenders fit side by side
    packages: tuple[str, ...] = ()
    python: str = sys.executable
    in_ram: bool = True
    steps: int | None = None  # where it is another number than that of the race


def peers(reverb_python: str | None = None) -> list[Contender]:
    sb3, rl = ("stable-baselines3", "torch"), ("torchrl", "tensordict", "torch")
    frame, stacks = workload.FRAME_BYTES, 2 * STACK_BYTES
    memmap, in_ram = {"storage": "LazyMemmapStorage"}, {"storage": "LazyTensorStorage"}
    tianshou = "tianshou, `stack_num=4`, `ignore_obs_next`, `save_only_last_obs`"
    reverb = reverb_python or sys.executable
    return [
        Contender("SB3 `ReplayBuffer`", "stable_baselines3", {"optimize": False}, stacks, sb3),
        Contender("SB3, `optimize_memory_usage`", "stable_baselines3", {"optimize": True}, stacks // 2, sb3),
        Contender('cpprb, `stack_compress="obs"`, `next_of="obs"`', "cpprb", {}, frame, ("cpprb",)),
        Contender(tianshou, "tianshou", {}, frame, ("tianshou",)),
        Contender("torchrl `LazyMemmapStorage` (on disk)", "torchrl", memmap, stacks, rl, in_ram=False),
        Contender("torchrl `LazyTensorStorage`", "torchrl", in_ram, stacks, rl),
        # Its own threads sample ahead while others have their turn, so a burst measures a queue: not in the ranking.
        Contender("dm-reverb, sampling ahead", "dm_reverb", {}, 2 * frame, ("dm-reverb",), reverb, in_ram=False),
    ]


# The contenders


def diskreplay(
    steps: int, scratch: str, cache_bytes: int | None = None, path: str | None = None, torch: bool = False
) -> tuple[Sample, Unpack]:
    """With ``path`` the store that stands there; otherwise a new one under ``scratch``."""
    options = {} if cache_bytes is None else {"cache_bytes": cache_bytes}
    if path is not None:
        buffer = open_store(path, **options)
    else:
        buffer = create_store(f"{scratch}/store-{os.getpid()}", steps, **options)
        for episode in workload.mixture(steps):
            for step in episode.singles():
                buffer.add(*step)
        buffer.commit()
    sample = (lambda n: buffer.sample(n).torch("cpu")) if torch else buffer.sample
    return sample, lambda batch: (batch.obs, batch.next_obs)


def create_store(path: str, steps: int, **options: Any) -> Any:
    from gymnasium import spaces

    import diskreplay as dr

    options = {"frame_stack": workload.STACK, "view": dr.Transition(n_step=1, gamma=0.99), "seed": 0, **options}
    obs = options.pop("observation_space", spaces.Box(0, 255, (84, 84), np.uint8))
    return dr.ReplayBuffer.create(
        path, obs, options.pop("action_space", spaces.Discrete(18)), capacity=steps, **options
    )


def open_store(path: str, **options: Any) -> Any:
    import diskreplay as dr

    return dr.ReplayBuffer.open(path, **options)


def stable_baselines3(steps: int, scratch: str, optimize: bool, device: str = "cpu") -> tuple[Sample, Unpack]:
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    buffer = ReplayBuffer(
        steps, spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(18), device=device,
        optimize_memory_usage=optimize, handle_timeout_termination=not optimize,
    )  # fmt: skip
    for episode in workload.mixture(steps):
        for step in episode.stacks():
            buffer.add(*sb3_arguments(step))
    return buffer.sample, lambda batch: (batch.observations, batch.next_observations)


def sb3_arguments(step: workload.Step) -> tuple:
    """A step as SB3's ``add`` takes it: arrays that lead with the environments, and an info each."""
    obs, action, reward, next_obs, terminated, truncated = step
    if np.ndim(reward) == 0:
        obs, action, reward, next_obs = (np.asarray(x)[None] for x in (obs, action, reward, next_obs))
        terminated, truncated = np.array([terminated]), np.array([truncated])
    return (
        obs,
        next_obs,
        action,
        reward,
        terminated | truncated,
        [{"TimeLimit.truncated": bool(cut)} for cut in truncated],
    )


def cpprb(steps: int, scratch: str) -> tuple[Sample, Unpack]:
    import cpprb

    fields = {
        "obs": {"shape": (84, 84, 4), "dtype": np.uint8},
        "act": {"dtype": np.int64},
        "rew": {},
        "done": {},
        "truncated": {},
    }
    buffer = cpprb.ReplayBuffer(steps, fields, next_of="obs", stack_compress="obs")
    for episode in workload.mixture(steps):
        for obs, action, reward, next_obs, terminated, truncated in episode.stacks():
            last_axis = {"obs": np.moveaxis(obs, 0, -1), "next_obs": np.moveaxis(next_obs, 0, -1)}
            buffer.add(**last_axis, act=action, rew=reward, done=terminated, truncated=truncated)
        buffer.on_episode_end()
    return buffer.sample, lambda batch: (np.moveaxis(batch["obs"], -1, 1), np.moveaxis(batch["next_obs"], -1, 1))


def tianshou(steps: int, scratch: str) -> tuple[Sample, Unpack]:
    from tianshou.data import Batch, ReplayBuffer

    buffer = ReplayBuffer(steps, stack_num=4, ignore_obs_next=True, save_only_last_obs=True)
    for episode in workload.mixture(steps):
        for obs, action, reward, next_obs, terminated, truncated in episode.stacks():
            buffer.add(
                Batch(
                    obs=obs,
                    act=action,
                    rew=reward,
                    terminated=terminated,
                    truncated=truncated,
                    obs_next=next_obs,
                    info={},
                )
            )
    return buffer.sample, lambda batch: (batch[0].obs, batch[0].obs_next)


def torchrl(steps: int, scratch: str, storage: str) -> tuple[Sample, Unpack]:
    import torch
    import torchrl.data
    from tensordict import TensorDict

    where = {"scratch_dir": f"{scratch}/torchrl-{os.getpid()}"} if storage == "LazyMemmapStorage" else {}
    buffer = torchrl.data.TensorDictReplayBuffer(storage=getattr(torchrl.data, storage)(steps, **where))
    for episode in workload.mixture(steps):
        stacks = np.moveaxis(np.lib.stride_tricks.sliding_window_view(episode.frame, workload.STACK, axis=0), -1, 1)
        columns = {
            "obs": stacks[:-1], "next_obs": stacks[1:],
            "action": episode.action, "reward": episode.reward.astype(np.float32),
            "terminated": episode.terminated, "truncated": episode.truncated,
        }  # fmt: skip
        tensors = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in columns.items()}
        buffer.extend(TensorDict(tensors, batch_size=[len(episode)]))
    return buffer.sample, lambda batch: (batch["obs"], batch["next_obs"])


def dm_reverb(steps: int, scratch: str) -> tuple[Sample, Unpack]:
    """An item is a trajectory of five frames: frames are stored once. Each batch size has a dataset of its own."""
    import reverb

    table = reverb.Table(
        "replay",
        reverb.selectors.Uniform(),
        reverb.selectors.Fifo(),
        max_size=steps,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    server = reverb.Server([table])
    address = f"localhost:{server.port}"
    client = reverb.Client(address)
    for episode in workload.mixture(steps):
        with client.trajectory_writer(num_keep_alive_refs=workload.STACK + 1) as writer:
            for row, frame in enumerate(episode.frame):
                step = min(max(row - workload.STACK, 0), len(episode) - 1)
                reward = np.float32(episode.reward[step])
                writer.append(
                    {
                        "obs": frame,
                        "action": episode.action[step],
                        "reward": reward,
                        "terminated": episode.terminated[step],
                    }
                )
                if row >= workload.STACK:
                    items = {key: writer.history[key][-1] for key in ("action", "reward", "terminated")}
                    writer.flush(block_until_num_items=8)
                    writer.create_item(
                        "replay",
                        1.0,
                        {"obs": writer.history["obs"][-5:-1], "next_obs": writer.history["obs"][-4:], **items},
                    )
            writer.flush()

    batches: dict[int, Any] = {}

    def sample(n: int) -> Any:
        if n not in batches:
            dataset = reverb.TrajectoryDataset(
                address, "replay", *reverb_signature(), max_in_flight_samples_per_worker=n, num_workers_per_iterator=1
            )
            batches[n] = (server, dataset.batch(n).as_numpy_iterator())  # the server lives as long as this function
        return next(batches[n][1])

    return sample, lambda batch: (batch.data["obs"], batch.data["next_obs"])


def reverb_signature() -> tuple[dict, dict]:
    import tensorflow as tf

    stack = (tf.uint8, (workload.STACK, 84, 84))
    fields = {
        "obs": stack,
        "next_obs": stack,
        "action": (tf.int64, ()),
        "reward": (tf.float32, ()),
        "terminated": (tf.bool, ()),
    }
    return {key: dtype for key, (dtype, _) in fields.items()}, {
        key: tf.TensorShape(shape) for key, (_, shape) in fields.items()
    }


def check(obs: Any, next_obs: Any, n: int) -> None:
    """Do these stacks follow each other? 5 % may differ: where an episode ends some peers give another observation."""
    obs, next_obs = np.asarray(obs), np.asarray(next_obs)
    for name, array in (("obs", obs), ("next_obs", next_obs)):
        if array.shape != (n, 4, 84, 84) or array.dtype != np.uint8:
            raise AssertionError(
                f"{name} must be uint8 of shape {(n, 4, 84, 84)}, got {array.dtype} of shape {array.shape}"
            )
    following = (obs[:, 1:] == next_obs[:, :-1]).all(axis=(1, 2, 3)).mean()
    moving = (obs[:, 0] != obs[:, -1]).any(axis=(1, 2)).mean()
    if following < 0.95 or moving < 0.5 or not obs.any(axis=(1, 2, 3)).all():
        raise AssertionError(f"next_obs continues obs in {following:.0%} of the samples, frames move in {moving:.0%}")
