"""A robot with two cameras of different sizes, whose pictures tell where it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict
from helpers.crashing import survivors
from helpers.effort import examples
from helpers.testing import WRITES, FaultyFiles, Operation, SimulatedDisk

import diskreplay as dr
from diskreplay.errors import StateError, StoreNotFoundError

Places = Callable[[dr.ReplayBuffer], list[tuple[int, int]]]
"""Returns the episode and step of each row of a buffer."""

ACTION = np.zeros(2, np.float32)
BAD = np.array([13, 0], np.float32)
"""An action whose step the thread fails to add, where :func:`fails` says so."""
SIZES = {"front": (48, 64, 3), "wrist": (32, 32, 3)}


class Robot(gymnasium.Env[Any, Any]):
    """Shows its episode and step in each part of its observations, which it uses again.

    The first number of an action is the reward, so that a program can have a step that is refused.
    """

    metadata = {"render_modes": [], "render_fps": 30}  # noqa: RUF012

    def __init__(self, length: int = 5) -> None:
        cameras = {name: Box(0, 255, size, np.uint8) for name, size in SIZES.items()}
        self.observation_space = Dict({**cameras, "state": Box(-np.inf, np.inf, (2,), np.float32)})
        self.action_space = Box(-1, 1, (2,), np.float32)
        self.length, self.episode, self.at = length, 0, 0
        self.obs = {name: np.zeros(space.shape, space.dtype) for name, space in self.observation_space.items()}

    def shown(self) -> dict[str, Any]:
        for name in SIZES:
            self.obs[name][:] = (20 * self.episode + self.at) % 251
        self.obs["state"][:] = self.episode, self.at
        return self.obs

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.at = self.episode + 1, 0
        return self.shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        last = self.at == self.length
        return self.shown(), float(action[0]), last and self.episode % 2 == 0, last, {"at": np.full(2, self.at)}


def walk(env: Any, steps: int, *, reset: bool = True) -> None:
    """A part of an episode, or its beginning."""
    if reset:
        env.reset()
    for _ in range(steps):
        env.step(ACTION)


def drive(env: Any, steps: int, seed: int = 0) -> None:
    """Steps through episodes, of which some are left in the middle; facts are told of some."""
    rng = np.random.default_rng(seed)
    going = False
    for step in range(steps):
        if not going:
            env.reset(seed=step)
            if rng.random() < 0.6:
                env.begin_episode(seed=step, tags=["driven"])
        *_, terminated, truncated, _ = env.step(rng.uniform(-1, 1, 2).astype(np.float32))
        going = not (terminated or truncated) and rng.random() < 0.9
        if not going and rng.random() < 0.6:
            env.annotate_episode(success=bool(terminated))


def places(buffer: dr.ReplayBuffer) -> list[tuple[int, int]]:
    """Episode and step of each row, which its pictures and its next observation must agree with."""
    batch = buffer.get(np.arange(len(buffer)))
    for obs, more in ((batch.obs, 0), (batch.next_obs, 1)):
        np.testing.assert_array_equal(obs["state"], batch.obs["state"] + np.array([0, more], np.float32))
        shown = (20 * obs["state"][:, 0] + obs["state"][:, 1]) % 251
        for name in SIZES:
            np.testing.assert_array_equal(obs[name], np.broadcast_to(shown[:, None, None, None], obs[name].shape))
    return [(int(episode), int(at)) for episode, at in batch.obs["state"]]


def fails(env: dr.Record) -> dr.Record:
    """Have the thread fail at steps whose reward is that of BAD."""
    engine, add = env.buffer.engine, env.buffer.engine.add

    def add_or_fail(obs: Any, action: Any, reward: float, *rest: Any) -> None:
        with engine.write_lock:
            if reward == BAD[0]:
                raise StateError("the thread could not add it")
            add(obs, action, reward, *rest)

    engine.add = add_or_fail  # type: ignore[method-assign]
    return env


def record_on_a_disk_that_crashes(
    record: Callable[..., dr.Record], places: Places, episodes: int, flushes: Callable[[int, int], bool], known: int,
    every: int,
) -> tuple[int, int]:  # fmt: skip
    """Record episodes of four steps, and look at what is left of the disk by a crash at each operation that writes.

    What is there begins like what was recorded, and has all that was flushed. ``flushes`` tells after which episode and
    step one flushes. Once so many disks are ``known``, one point of ``every`` so many is looked at.

    Returns the number of points, and of different disks that were looked at.
    """
    disk = SimulatedDisk()
    disk.mkdir("/shelf")
    disk.sync_dir("/")
    files = FaultyFiles(disk)
    told: list[tuple[int, int]] = []
    flushed, points = -1, 0
    seen: set[int] = set()

    def look(operation: Operation) -> None:
        nonlocal points
        if operation.name not in WRITES:
            return
        for kind, left in survivors(disk, points, examples(1)):
            points += 1
            print_of = hash((repr(left.contents()), flushed))
            if print_of in seen or (len(seen) > known and points % every):
                continue
            seen.add(print_of)
            try:
                with dr.ReplayBuffer.open("/shelf/store", mode="r", files=left) as reader:
                    found = places(reader) if len(reader) else []
            except StoreNotFoundError:
                assert flushed < 0, kind
                continue
            assert found == told[: len(found)], kind
            assert len(found) >= flushed, kind

    files.decide = look
    env = record("/shelf/store", 4, files=files, commit_rows=5, commit_seconds=1e9)
    flushed = 0
    for episode in range(1, episodes + 1):
        env.reset()
        for at in range(4):
            told.append((episode, at))
            env.step(ACTION)
            if flushes(episode, at):
                env.flush()
                flushed = len(told)
    env.close()
    return points, len(seen)
