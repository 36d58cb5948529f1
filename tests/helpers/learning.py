"""A program that learns from a store, and what is left of it when it is killed again and again.

1. The program adds, learns and makes checkpoints with its learner; each begins a new episode, with a seed of the step.
   Its command line says of what :data:`KINDS`, where, and how many steps. Started again, it goes on.
2. Events are its steps and all writes to the file system, of which each reaches it in two halves. The program sends
   itself SIGKILL at the event that the environment names, of those in checkpoints or of the others.
3. :func:`killed` runs it so several times, then to its end. :func:`learned` is what it has learned then: with each
   number of kills the same, to the bit.

The learner here needs NumPy alone; ``interop/learning.py`` has the same program with networks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import random
import signal
import subprocess
import sys
from typing import Any, BinaryIO

import gymnasium
import numpy as np
from helpers.commits import at_once
from helpers.odds import chances_of
from helpers.testing import FaultyFiles

import diskreplay as dr

KILL_IN, KILL_AT = "LEARNING_KILL_IN", "LEARNING_KILL_AT"
"""One of :data:`PLACES`, and the number of the event there at which the program kills itself."""
PLACES = "checkpoints", "steps"
SEED, MEMORY, ACTIONS, BATCH, WARMUP, EVERY = 3, 6, 2, 8, 20, 40
BURN_IN, GAMMA = 2, 0.97
ATTACHMENT = "learner"
ROOT = pathlib.Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Kind:
    """How a program draws.

    Attributes:
        sampler: of its rows.
        view: of them.
        prior: whether it draws from a store beside, too, which it only reads.
    """

    sampler: dr.Proportional | dr.RankBased | dr.SamplerMixture
    view: Any = dataclasses.field(default_factory=lambda: dr.Transition(gamma=GAMMA))
    prior: bool = False


KINDS = {
    "proportional": lambda: Kind(dr.Proportional()),
    "rank-based": lambda: Kind(dr.RankBased()),
    "mixture": lambda: Kind(dr.SamplerMixture([dr.Recent(newest=30), dr.Proportional()], (1, 2)), prior=True),
    "sequences": lambda: Kind(dr.Proportional(), dr.Sequence(6, burn_in=BURN_IN, stride=2, gamma=GAMMA)),
}


class Linear:
    """Values that are linear in features with a memory; as the networks of R2D2, of transitions and of sequences."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(SEED)
        self.seen, self.kept = self.rng.normal(size=(4, MEMORY)), self.rng.normal(size=(MEMORY, MEMORY)) / MEMORY
        self.online, self.target = np.zeros((MEMORY, ACTIONS)), np.zeros((MEMORY, ACTIONS))

    def features(self, obs: Any, state: Any) -> Any:
        """``(..., MEMORY)`` of observations ``(..., 4)`` after states ``(..., MEMORY)``."""
        return np.tanh(obs @ self.seen + state @ self.kept)

    def act(self, obs: Any, state: Any) -> tuple[int, Any]:
        """An action, and the state ``(MEMORY,)`` after an observation."""
        state = self.features(obs, state)
        explore = self.rng.random() < 0.2
        return int(self.rng.integers(ACTIONS) if explore else (state @ self.online).argmax()), state.astype(np.float32)

    def learn(self, batch: Any) -> Any:
        """Learns of a batch; gives priorities ``(B,)``."""
        obs, next_obs, action, reward, discount, mask, state = as_sequences(batch)
        errors, gradient, state = np.zeros(mask.shape), np.zeros_like(self.online), state[:, 0]
        for t in range(mask.shape[1]):
            state = self.features(obs[:, t], state)
            following = (self.features(next_obs[:, t], state) @ self.target).max(-1)
            chosen = np.take_along_axis(state @ self.online, action[:, t, None], -1)[:, 0]
            if t >= BURN_IN or mask.shape[1] == 1:
                errors[:, t] = (reward[:, t] + discount[:, t] * following - chosen) * mask[:, t]
            np.add.at(gradient.T, action[:, t], (batch.weight * errors[:, t])[:, None] * state)
        self.online += 0.05 * gradient / len(errors)
        return 0.9 * abs(errors).max(1) + 0.1 * abs(errors).mean(1)

    def follow(self) -> None:
        """Gives the target the values of the learner."""
        self.target = self.online.copy()

    def save(self, file: BinaryIO) -> None:
        generator: Any = self.rng.bit_generator.state
        state = [generator["state"]["state"], generator["state"]["inc"], generator["has_uint32"], generator["uinteger"]]
        np.savez(file, online=self.online, target=self.target, random=np.array([str(part) for part in state]))

    def load(self, file: BinaryIO) -> None:
        saved = np.load(file)
        self.online, self.target = saved["online"], saved["target"]
        state, inc, has, integer = map(int, saved["random"])
        self.rng.bit_generator.state = {
            "bit_generator": "PCG64", "state": {"state": state, "inc": inc}, "has_uint32": has, "uinteger": integer,
        }  # fmt: skip


def as_sequences(batch: Any) -> list[Any]:
    """Observations, next ones, actions, rewards, discounts, whether a step is there, and states: ``(B, T, ...)``."""
    fields = [batch.obs, batch.next_obs, batch.action, batch.reward, batch.discount]
    if batch.obs.ndim == 3:
        return [*fields, batch.mask, batch["state"]]
    return [field[:, None] for field in (*fields, batch.reward == batch.reward, batch["state"])]


def create(path: pathlib.Path, **options: Any) -> dr.ReplayBuffer:
    env = gymnasium.make("CartPole-v1")
    return dr.ReplayBuffer.create(
        path, env.observation_space, env.action_space, columns={"state": ((MEMORY,), np.float32)}, chunk_rows=8,
        shard_rows=32, seed=SEED, **{"capacity": 120, **options},
    )  # fmt: skip


def make_prior(path: pathlib.Path) -> None:
    """The store that a mixture reads."""
    rng = np.random.default_rng(1)
    with create(path) as rb:
        for step in range(50):
            obs, state = rng.normal(size=(2, 4)).astype(np.float32), np.zeros(MEMORY, np.float32)
            rb.add(obs[0], step % 2, 1.0, obs[1], step % 10 == 9, False, state=state)
            rb.cut()


def run(learner: Any, name: str, folder: str, steps: str) -> None:
    """The program."""
    os.fsync = lambda fd: None  # type: ignore[assignment]  # nothing cuts the power here
    kind, path, files = KINDS[name](), pathlib.Path(folder, "replay"), FaultyFiles()
    events, place, last = dict.fromkeys(PLACES, 0), "steps", (os.environ[KILL_IN], int(os.environ[KILL_AT]))

    def event(operation: Any = None) -> None:
        events[place] += 1
        if (place, events[place]) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def save(step: int) -> None:
        nonlocal place
        place = "checkpoints"
        drawn.checkpoint(f"step-{step}", {"step": step}, attachments={ATTACHMENT: learner.save}, keep=1)
        place = "steps"

    files.decide = event
    stack = contextlib.ExitStack()  # closed at the end
    stack.enter_context(at_once())  # events have the same numbers on any machine
    commits = {"commit_rows": 13, "commit_seconds": 1e9}
    opening = {"sampler": kind.sampler, "view": kind.view, "files": files, "seed": SEED, **commits}
    drawn: Any
    if not (path / "zarr.json").exists():
        create(path, files=files).close()
    if kind.prior:
        parts = [(path, opening), (pathlib.Path(folder, "prior"), {"mode": "r", "view": kind.view, "seed": SEED})]
        drawn = dr.Mixture.open(parts, (2, 1), checkpoint="latest", or_last_commit=True)
        rb = drawn.parts[0]
    else:
        rb = drawn = dr.ReplayBuffer.open(path, checkpoint="latest", or_last_commit=True, **opening)
    first, ended, env = 0, True, gymnasium.make("CartPole-v1")
    if drawn.restored:
        first = drawn.restored.metadata["step"]
        with drawn.attachment(ATTACHMENT) as file:
            learner.load(file)
    else:
        save(first)
    for step in range(first, int(steps)):
        if ended or step % EVERY == 0:
            rb.cut()
            obs, _ = env.reset(seed=SEED + step)
            state = np.zeros(MEMORY, np.float32)
        before, (action, state) = state, learner.act(obs, state)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        rb.add(obs, action, reward, next_obs, terminated, truncated, state=before)
        obs, ended = next_obs, terminated or truncated
        if step >= WARMUP:
            batch = drawn.sample(BATCH)
            drawn.update_priorities(batch.index, learner.learn(batch))
        if step % 10 == 0:
            learner.follow()
        event()
        if (step + 1) % EVERY == 0:
            save(step + 1)
    for part in getattr(drawn, "parts", [drawn]):
        part.close()
    print(*events.values())


def start(
    program: pathlib.Path, name: str, folder: pathlib.Path, steps: int, place: str = "steps", number: int = 0
) -> dict[str, int]:
    """Runs the program until it ends, and gives how many events there were at each place; {} where it was killed."""
    command = [sys.executable, str(program), name, str(folder), str(steps)]
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    environment = {**os.environ, **one_thread, KILL_IN: place, KILL_AT: str(number)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return dict(zip(PLACES, map(int, done.stdout.split()), strict=False))


def killed(program: pathlib.Path, name: str, folder: pathlib.Path, kills: int) -> None:
    """Runs the program with so many kills, and without one; AssertionError where it has not learned the same."""
    rng, steps = random.Random(name), EVERY * (kills + 1)
    for run in ("whole", "killed"):
        (folder / run).mkdir(parents=True)
        if KINDS[name]().prior:
            make_prior(folder / run / "prior")
    events = start(program, name, folder / "whole", steps)
    for kill in range(kills):
        place = rng.choice(PLACES)
        number = rng.randrange(1, 2 * events[place] // (kills + 1))
        assert not start(program, name, folder / "killed", steps, place, number), f"it ended after {kill} kills"
    assert start(program, name, folder / "killed", steps)
    one, other = (learned(folder / run / "replay", steps) for run in ("whole", "killed"))
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[key], other[key]) for key in one)


def learned(path: pathlib.Path, steps: int) -> dict[str, Any]:
    """All that the checkpoint of the end holds: the learner's bytes, rows, and the priorities of each."""
    with dr.ReplayBuffer.open(path, mode="r", checkpoint=f"step-{steps}") as rb:
        with rb.attachment(ATTACHMENT) as file:
            found = {"learner": np.frombuffer(file.read(), np.uint8)}
        batch = rb.get(rb.items())
        found.update({"obs": batch.obs, "action": batch.action, "reward": batch.reward, "state": batch["state"]})
        found["probability"] = chances_of(rb)
        return found


if __name__ == "__main__":
    run(Linear(), *sys.argv[1:])
