"""Facts of episodes: beside a model driven by the same random operations, and what is refused."""

from __future__ import annotations

import collections
import dataclasses
import math
import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest
from crashes import kill
from effort import examples

import diskreplay as dr
from diskreplay.errors import CheckpointError, InputError, NotEnoughDataError, ReadOnlyError
from diskreplay.ops.compact import compact
from diskreplay.ops.verify import verify
from diskreplay.testing import small_thresholds

LINE, TURN = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32), gymnasium.spaces.Discrete(2)
OPEN: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9}


def create(path: pathlib.Path, capacity: int = 1000, num_envs: int = 1, **options: Any) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.create(
        path, LINE, TURN, capacity=capacity, num_envs=num_envs, **{**OPEN, "seed": 0, **options}
    )


def play(buffer: dr.ReplayBuffer, length: int, start: float, reward: float = 1.0, ends: bool = True) -> None:
    """An episode in a buffer of one environment, whose observations begin at ``start``."""
    for step in range(length):
        last = ends and step == length - 1
        buffer.add([start + step], 0, reward, [start + step + 1], last, False)


def facts(buffer: dr.ReplayBuffer) -> list[dict[str, Any]]:
    return [episode.facts for episode in buffer.episodes]


# The model


@dataclasses.dataclass
class Run:
    """One episode of the model: its rows, and what was said of it."""

    env: int
    start: int
    stop: int
    facts: dict[str, Any]


@dataclasses.dataclass
class Model:
    """What a naive store of the same steps and facts would hold."""

    envs: int
    rows: int
    runs: list[Run] = dataclasses.field(default_factory=list)
    end: int = 0
    waiting: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)

    def newest(self, env: int) -> Run | None:
        return next((run for run in reversed(self.runs) if run.env == env), None)

    def window(self) -> list[tuple[int, int, int, dict[str, Any]]]:
        begin = max(0, self.end - self.rows)
        held = [(max(run.start, begin), run.env, run.stop, run.facts) for run in self.runs if run.stop > begin]
        return sorted(held, key=lambda one: one[:2])

    def copy(self) -> Model:
        runs = [dataclasses.replace(run, facts=dict(run.facts)) for run in self.runs]
        return Model(self.envs, self.rows, runs, self.end, {})


def seen(buffer: dr.ReplayBuffer) -> list[tuple[int, int, int, dict[str, Any]]]:
    return [(episode.start, episode.env, episode.stop, episode.facts) for episode in buffer.episodes]


class Driver:
    """The same random operations on a store and on the model."""

    def __init__(self, path: pathlib.Path, seed: int) -> None:
        self.path = path
        self.rng = np.random.default_rng(seed)
        self.envs = int(self.rng.choice([1, 1, 3]))
        rows = int(self.rng.choice([7, 40, 1000]))
        self.model = Model(self.envs, rows)
        self.buffer = create(path, rows * self.envs, self.envs)
        self.committed = self.model.copy()
        self.checkpoints: dict[str, Model] = {}
        self.at = [0.0] * self.envs
        self.fresh = [True] * self.envs
        self.sequence = 0
        self.reader: dr.ReplayBuffer | None = None
        self.counts: collections.Counter[str] = collections.Counter()

    def draw(self) -> dict[str, Any]:
        every = {
            "seed": int(self.rng.integers(1 << 40)),
            "tags": list(self.rng.choice(["expert", "human", "x"], self.rng.integers(3), replace=False)),
            "success": bool(self.rng.integers(2)),
            "scene": {"name": "k\n\u00e9" * int(self.rng.integers(4)), "floor": float(self.rng.random())},
        }
        names = [name for name in every if self.rng.random() < 0.6]
        return {name: [str(tag) for tag in every[name]] if name == "tags" else every[name] for name in names}

    def add(self) -> None:
        for _ in range(int(self.rng.integers(1, 12))):
            now = np.array(self.at, np.float32)
            invalid = self.rng.random(self.envs) < 0.05 if self.envs > 1 else np.zeros(1, bool)
            ended = self.rng.random(self.envs) < 0.2
            for env in range(self.envs):
                run = self.model.newest(env)
                if invalid[env]:
                    self.fresh[env] = True
                    continue
                if self.fresh[env] or run is None:
                    self.model.runs.append(Run(env, self.model.end, self.model.end + 1, self.model.waiting.pop(env, {})))
                else:
                    run.stop = self.model.end + 1
                self.fresh[env] = bool(ended[env])
            shaped = (lambda a: a) if self.envs > 1 else (lambda a: a[0])
            self.buffer.add(
                shaped(now[:, None]), shaped(np.zeros(self.envs, int)), shaped(np.ones(self.envs)),
                shaped(now[:, None] + 1), shaped(ended & ~invalid), shaped(np.zeros(self.envs, bool)),
                valid=shaped(~invalid),
            )  # fmt: skip
            self.at = (now + 1 + 100 * (ended | invalid)).tolist()
            self.model.end += 1
            if self.sequence != self.buffer.stats()["streams"]["0"]["sequence"]:  # it has committed by itself
                self.committed = self.model.copy()
                self.sequence = self.buffer.stats()["streams"]["0"]["sequence"]

    def begin(self) -> None:
        env = int(self.rng.integers(self.envs)) if self.rng.random() < 0.7 else None
        told = self.draw()
        self.buffer.begin_episode(env, **told)
        for each in range(self.envs) if env is None else [env]:
            self.model.waiting.pop(each, None)
            if told:
                self.model.waiting[each] = dict(told)
            self.fresh[each] = True

    def annotate(self) -> None:
        env, told = int(self.rng.integers(self.envs)), self.draw()
        waiting, run = self.model.waiting.get(env), self.model.newest(env)
        if waiting is None and (run is None or run.stop <= max(0, self.model.end - self.model.rows)):
            with pytest.raises(InputError, match="has no episode yet"):
                self.buffer.annotate_episode(env=env, **told)
            return
        self.buffer.annotate_episode(env=env, **told)
        (waiting if waiting is not None else run.facts).update(told)  # type: ignore[union-attr]

    def annotate_old(self) -> None:
        every = self.buffer.episodes
        if every:
            episode = every[int(self.rng.integers(len(every)))]
            told = self.draw()
            self.buffer.annotate_episode(episode, **told)
            begin = max(0, self.model.end - self.model.rows)
            (run,) = [
                run for run in self.model.runs
                if run.env == episode.env and max(run.start, begin) == episode.start and run.stop > begin
            ]  # fmt: skip
            run.facts.update(told)

    def commit(self) -> None:
        self.buffer.commit()
        self.committed = self.model.copy()

    def reopen(self) -> None:
        if self.rng.random() < 0.5:
            self.buffer.close()
            self.committed = self.model.copy()
        else:
            kill(self.buffer)
        self.buffer = dr.ReplayBuffer.open(self.path, **OPEN)
        self.model = self.committed.copy()
        self.jump()

    def jump(self) -> None:
        """Goes on with another observation than any before: the next steps begin episodes."""
        self.at = [float(self.rng.integers(1 << 20)) + 0.5 for _ in range(self.envs)]
        self.fresh = [True] * self.envs

    def checkpoint(self) -> None:
        name = f"c{len(self.checkpoints)}-{self.counts['checkpoint']}"
        self.buffer.checkpoint(name)
        self.committed = self.model.copy()
        self.checkpoints[name] = self.model.copy()

    def go_back(self) -> None:
        if not self.checkpoints:
            return
        self.buffer.close()
        self.committed = self.model.copy()
        name = str(self.rng.choice(list(self.checkpoints)))
        with dr.ReplayBuffer.open(self.path, mode="r", checkpoint=name) as looking:
            assert seen(looking) == self.checkpoints[name].window()
        try:
            self.buffer = dr.ReplayBuffer.open(self.path, checkpoint=name, **OPEN)
            self.model = self.checkpoints[name].copy()
            self.committed = self.model.copy()
        except CheckpointError:
            self.buffer = dr.ReplayBuffer.open(self.path, **OPEN)
            self.model = self.committed.copy()
            doomed = list(self.checkpoints)[-1]
            self.buffer.drop_checkpoint(doomed)
            del self.checkpoints[doomed]
        self.jump()

    def read(self) -> None:
        if self.reader is None or self.rng.random() < 0.2:
            if self.reader is not None:
                self.reader.close()
            self.reader = dr.ReplayBuffer.open(self.path, mode="r")
        self.reader.refresh()
        assert seen(self.reader) == self.committed.window()

    def compact(self) -> None:
        self.buffer.close()
        self.committed = self.model.copy()
        compact(self.path)
        self.buffer = dr.ReplayBuffer.open(self.path, **OPEN)
        self.model = self.committed.copy()
        self.jump()

    def run(self, steps: int) -> None:
        weights = {
            self.add: 8, self.begin: 4, self.annotate: 3, self.annotate_old: 2, self.commit: 3, self.reopen: 1,
            self.checkpoint: 1, self.go_back: 1, self.read: 2, self.compact: 0.4,
        }  # fmt: skip
        shares = np.array(list(weights.values())) / sum(weights.values())
        for _ in range(steps):
            do = list(weights)[int(self.rng.choice(len(weights), p=shares))]
            self.counts[do.__name__] += 1
            self.sequence = self.buffer.stats()["streams"]["0"]["sequence"]
            do()
            assert seen(self.buffer) == self.model.window(), do.__name__
        self.buffer.close()
        result = verify(self.path)
        assert result.ok, result.problems
        for name, model in self.checkpoints.items():
            with dr.ReplayBuffer.open(self.path, mode="r", checkpoint=name) as looking:
                assert seen(looking) == model.window()


@pytest.mark.parametrize("seed", range(examples(40, least=6)))
def test_facts_are_those_of_the_model(tmp_path: pathlib.Path, seed: int) -> None:
    Driver(tmp_path / "a.replay", seed).run(60)


@pytest.mark.parametrize("seed", range(examples(40, least=6)))
def test_facts_are_those_of_the_model_with_small_thresholds(tmp_path: pathlib.Path, seed: int) -> None:
    with small_thresholds():
        Driver(tmp_path / "a.replay", 1000 + seed).run(60)
