"""Values written later: beside a dict driven by the same random operations, in every view, and what is refused."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest
from crashes import kill
from effort import examples

import diskreplay as dr
from diskreplay.errors import CheckpointError, InputError, ReadOnlyError, SchemaError
from diskreplay.ids import pack
from diskreplay.ops.compact import compact
from diskreplay.ops.disk import tree_bytes
from diskreplay.ops.inspect import inspect
from diskreplay.ops.verify import verify
from diskreplay.storage.files import LocalFiles
from diskreplay.storage.store import Store
from diskreplay.storage.stream import write_commit
from diskreplay.testing import small_thresholds

LINE, TURN = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32), gymnasium.spaces.Discrete(2)
OPEN: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9}
LATER: dict[str, Any] = {
    "state": ((3,), np.float32), "value": np.float64, "wide": ((300, 2), np.int16), "flag": bool,
}  # fmt: skip
"""Small enough for RAM, but for ``wide``."""
SHAPES: dict[str, tuple[tuple[int, ...], Any]] = {
    "state": ((3,), np.float32), "value": ((), np.float64), "wide": ((300, 2), np.int16), "flag": ((), np.bool_),
}  # fmt: skip

Values = dict[str, dict[tuple[int, int], Any]]


def create(path: pathlib.Path, capacity: int = 1000, num_envs: int = 1, **options: Any) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.create(
        path, LINE, TURN, capacity=capacity, num_envs=num_envs, **{**OPEN, "seed": 0, "later": LATER, **options}
    )


def play(buffer: dr.ReplayBuffer, length: int, start: float = 0.0, ends: bool = True) -> None:
    for step in range(length):
        buffer.add([start + step], 0, 1.0, [start + step + 1], ends and step == length - 1, False)


def drawn(rng: np.random.Generator, name: str, count: int) -> Any:
    """Random values ``(count, *shape)`` of a column."""
    shape, dtype = SHAPES[name]
    return (rng.random((count, *shape)) * 1000 - 500).astype(dtype) if dtype != np.bool_ else rng.random(count) < 0.5


def check(buffer: dr.ReplayBuffer, values: Values, envs: int) -> None:
    """All that the buffer shows is what the dicts hold, bit for bit."""
    items = buffer.items()
    batch = buffer.get(items)
    places = [(int(local) // envs, int(local) % envs) for local in batch.index]
    for name, (shape, dtype) in SHAPES.items():
        known, found = batch.extra[f"{name}_known"], batch.extra[name]
        assert known.dtype == bool
        assert found.dtype == dtype
        assert known.tolist() == [place in values[name] for place in places]
        expected = [values[name].get(place, np.zeros(shape, dtype)) for place in places]
        assert found.tobytes() == np.array(expected, dtype).reshape(len(places), *shape).tobytes()


@dataclasses.dataclass
class Model:
    """The rows that were added, and the values of those in the window."""

    envs: int
    rows: int
    end: int = 0
    valid: set[tuple[int, int]] = dataclasses.field(default_factory=set)
    values: Values = dataclasses.field(default_factory=lambda: {name: {} for name in SHAPES})

    def copy(self) -> Model:
        return Model(self.envs, self.rows, self.end, set(self.valid), {n: dict(of) for n, of in self.values.items()})


class Driver:
    """The same random operations on a store and on the model."""

    def __init__(self, path: pathlib.Path, seed: int) -> None:
        self.path = path
        self.rng = np.random.default_rng(seed)
        self.envs = int(self.rng.choice([1, 1, 3]))
        rows = int(self.rng.choice([7, 40, 300]))
        self.model = Model(self.envs, rows)
        self.buffer = create(path, rows * self.envs, self.envs)
        self.committed = self.model.copy()
        self.checkpoints: dict[str, Model] = {}
        self.at = 0.0
        self.reader: dr.ReplayBuffer | None = None
        self.counts: collections.Counter[str] = collections.Counter()

    def settle(self, before: int) -> None:
        """Where the buffer has committed by itself, the model has."""
        if self.buffer.stats()["streams"]["0"]["sequence"] != before:
            self.committed = self.model.copy()

    def add(self) -> None:
        for _ in range(int(self.rng.integers(1, 12))):
            before = self.buffer.stats()["streams"]["0"]["sequence"]
            invalid = self.rng.random(self.envs) < 0.1
            ended = self.rng.random(self.envs) < 0.2
            obs = np.full((self.envs, 1), self.at, np.float32)
            row = (obs, np.zeros(self.envs, int), np.ones(self.envs), obs + 1, ended, np.zeros(self.envs, bool))
            if self.envs == 1:
                self.buffer.add(*(part[0] for part in row), valid=not invalid[0])
            else:
                self.buffer.add(*row, valid=~invalid)
            self.model.valid |= {(self.model.end, env) for env in range(self.envs) if not invalid[env]}
            self.model.end += 1
            self.at += 1
            self.settle(before)

    def write(self) -> None:
        log = self.buffer.stats()["streams"]["0"]
        begin = max(0, log["begin"] - 5)  # some that have left the window: they are ignored
        rows = self.rng.integers(begin, log["end"], int(self.rng.integers(1, 30))) if log["end"] > begin else []
        places = [(int(row), int(self.rng.integers(self.envs))) for row in rows]
        places = [place for place in places if place in self.model.valid]
        name = str(self.rng.choice(list(SHAPES)))
        values = drawn(self.rng, name, len(places))
        index = np.array([pack(0, row, env, self.envs) for row, env in places], np.int64)
        before = log["sequence"]
        self.buffer.write(name, index, values)
        self.model.values[name].update({
            place: value for place, value in zip(places, values, strict=True) if place[0] >= log["begin"]
        })  # fmt: skip
        self.settle(before)

    def commit(self) -> None:
        self.buffer.commit()
        self.committed = self.model.copy()

    def reopen(self) -> None:
        if self.rng.random() < 0.5:
            self.buffer.close()
            self.committed = self.model.copy()
        else:
            kill(self.buffer)
        self.opened(dr.ReplayBuffer.open(self.path, **OPEN), self.committed)

    def opened(self, buffer: dr.ReplayBuffer, model: Model) -> None:
        self.buffer, self.model, self.committed = buffer, model.copy(), model.copy()
        self.at = float(self.rng.integers(1 << 20)) + 0.5

    def checkpoint(self) -> None:
        name = f"c{len(self.checkpoints)}-{self.counts['checkpoint']}"
        self.buffer.checkpoint(name)
        self.committed = self.model.copy()
        self.checkpoints[name] = self.model.copy()

    def look(self, name: str) -> None:
        with dr.ReplayBuffer.open(self.path, mode="r", checkpoint=name) as looking:
            check(looking, self.checkpoints[name].values, self.envs)

    def go_back(self) -> None:
        if not self.checkpoints:
            return
        self.buffer.close()
        self.committed = self.model.copy()
        name = str(self.rng.choice(list(self.checkpoints)))
        self.look(name)
        try:
            self.opened(dr.ReplayBuffer.open(self.path, checkpoint=name, **OPEN), self.checkpoints[name])
        except CheckpointError:
            self.opened(dr.ReplayBuffer.open(self.path, **OPEN), self.committed)
            doomed = list(self.checkpoints)[-1]
            self.buffer.drop_checkpoint(doomed)
            del self.checkpoints[doomed]

    def read(self) -> None:
        if self.reader is None or self.rng.random() < 0.2:
            if self.reader is not None:
                self.reader.close()
            self.reader = dr.ReplayBuffer.open(self.path, mode="r")
        self.reader.refresh()
        check(self.reader, self.committed.values, self.envs)

    def compact(self) -> None:
        self.buffer.close()
        self.committed = self.model.copy()
        compact(self.path)
        self.opened(dr.ReplayBuffer.open(self.path, **OPEN), self.committed)

    def run(self, steps: int) -> None:
        weights = {
            self.add: 6, self.write: 9, self.commit: 4, self.reopen: 1, self.checkpoint: 1, self.go_back: 1,
            self.read: 2, self.compact: 0.4,
        }  # fmt: skip
        shares = np.array(list(weights.values())) / sum(weights.values())
        for _ in range(steps):
            do = list(weights)[int(self.rng.choice(len(weights), p=shares))]
            self.counts[do.__name__] += 1
            do()
            check(self.buffer, self.model.values, self.envs)
        self.buffer.close()
        result = verify(self.path)
        assert result.ok, result.problems
        for name in self.checkpoints:
            self.look(name)


@pytest.mark.parametrize("seed", range(examples(40, least=6)))
def test_values_are_those_of_the_model(tmp_path: pathlib.Path, seed: int) -> None:
    Driver(tmp_path / "a.replay", seed).run(60)


@pytest.mark.parametrize("seed", range(examples(60, least=8)))
def test_values_are_those_of_the_model_with_small_thresholds(tmp_path: pathlib.Path, seed: int) -> None:
    with small_thresholds():
        Driver(tmp_path / "a.replay", 1000 + seed).run(60)
