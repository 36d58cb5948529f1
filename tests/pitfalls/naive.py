"""Buffers with the bugs that ``docs/pitfalls.md`` lists, each in the fewest lines that have it.

They are written from the reports, not from anybody's code, and only the tests beside them use them: an assertion that
holds for the package must fail for these.
"""

from __future__ import annotations

import io
import json
import pathlib
import pickle
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np


class OneObservationArray:
    """The next observation is the one in the next row: at a truncation, the reset's; after a break, another run's."""

    def __init__(self) -> None:
        self.obs: list[float] = []
        self.rewards: list[float] = []
        self.ended: list[bool] = []

    def add(self, obs: float, reward: float, next_obs: float, terminated: bool, truncated: bool) -> None:
        self.obs.append(obs)
        self.rewards.append(reward)
        self.ended.append(terminated)

    def next_obs(self, row: int) -> float:
        return self.obs[row + 1]

    def two_step_return(self, row: int) -> float:
        return self.rewards[row] if self.ended[row] else self.rewards[row] + self.rewards[row + 1]


class HeapTree:
    """A sum tree of ``2 n - 1`` nodes, whose leaves are in order only where ``n`` is a power of two."""

    def __init__(self, priorities: Sequence[float]) -> None:
        self.size = len(priorities)
        self.tree = np.zeros(2 * self.size - 1)
        self.tree[self.size - 1 :] = priorities
        for node in range(self.size - 2, -1, -1):
            self.tree[node] = self.tree[2 * node + 1] + self.tree[2 * node + 2]

    def draw(self, mass: float) -> int:
        node = 0
        while node < self.size - 1:
            left = 2 * node + 1
            if mass < self.tree[left]:
                node = left
            else:
                mass, node = mass - self.tree[left], left + 1
        return node - (self.size - 1)


class AlphaTwice:
    """The largest mass, alpha applied, is what a new transition is given as a priority: alpha is applied again."""

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha
        self.masses: list[float] = []

    def add(self) -> None:
        self.masses.append(max(self.masses, default=1.0) ** self.alpha)

    def update(self, row: int, priority: float) -> None:
        self.masses[row] = priority**self.alpha


class Prioritized:
    """Saves its rows; its priorities, and all that weights are made of, are in none of the files."""

    def __init__(self, rows: int) -> None:
        self.priorities: np.ndarray | None = np.ones(rows)

    def saved_and_loaded(self) -> Prioritized:
        loaded = Prioritized(len(self.priorities)) if self.priorities is not None else Prioritized(0)
        loaded.priorities = None
        return loaded

    def chances(self) -> np.ndarray:
        priorities = np.ones(4) if self.priorities is None else self.priorities
        return priorities / priorities.sum()

    def fields_of_a_sample(self) -> set[str]:
        return {"obs", "action"} | ({"weight"} if self.priorities is not None else set())


class InvertedWeights:
    def weights(self, chances: np.ndarray, beta: float) -> np.ndarray:
        found = chances * len(chances) ** -beta
        return found / found.max()


class NarrowIndices:
    """Rows' numbers are kept as uint8."""

    def __init__(self, rows: int) -> None:
        self.priorities = np.ones(rows)

    def update(self, rows: Sequence[int], priority: float) -> None:
        self.priorities[np.array(rows).astype(np.uint8)] = priority


class PickledViews:
    """Each of several environments has a view of one array; pickled, each takes the bytes of its view along again."""

    def __init__(self, envs: int, rows: int) -> None:
        self.frames = np.zeros((envs, rows, 84, 84), np.uint8)
        self.buffers = [{"frames": self.frames[env], "all": self.frames} for env in range(envs)]

    def __reduce__(self) -> Any:
        return dict, ([(str(env), [part.copy() for part in b.values()]) for env, b in enumerate(self.buffers)],)


class Ring:
    """Written to disk up to its position, which is 0 again when it is just full."""

    def __init__(self, capacity: int) -> None:
        self.rows, self.position = np.zeros(capacity), 0

    def add(self, value: float) -> None:
        self.rows[self.position] = value
        self.position = (self.position + 1) % len(self.rows)

    def written(self) -> np.ndarray:
        return self.rows[: self.position]


class MappedFile:
    """Rows go to a file at once; a checkpoint notes nothing of it, and resuming takes the file as it is."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def add(self, value: float) -> None:
        with self.path.open("ab") as file:
            file.write(struct.pack("d", value))

    def resumed(self) -> list[float]:
        return np.frombuffer(self.path.read_bytes()).tolist()


class Chunks:
    """The folder of chunks is read when the buffer is made, and the checkpoint holds the same rows once more."""

    def __init__(self, folder: list[float]) -> None:
        self.rows = list(folder)

    def load(self, checkpoint: dict[str, list[float]]) -> None:
        self.rows += checkpoint["replay"]


class Trainer:
    """Its checkpoint is that of the policy."""

    def __init__(self) -> None:
        self.weights, self.replay = 0.0, list[float]()

    def restored(self) -> Trainer:
        other = Trainer()
        other.weights = self.weights
        return other


class Footer:
    """A file that can be read once its last bytes are written, by ``close``."""

    def __init__(self) -> None:
        self.file = io.BytesIO()

    def add(self, value: float) -> None:
        self.file.write(struct.pack("d", value))

    def close(self) -> None:
        self.file.write(b"END")

    @staticmethod
    def read(data: bytes) -> list[float]:
        assert data.endswith(b"END"), "no footer"
        return np.frombuffer(data[:-3]).tolist()


class RewrittenTable:
    """After each episode the table of all episodes is written anew."""

    def __init__(self) -> None:
        self.episodes: list[dict[str, int]] = []
        self.written = 0

    def save_episode(self, length: int) -> None:
        self.episodes.append({"index": len(self.episodes), "length": length})
        self.written += len(json.dumps(self.episodes))


class RgbOnly:
    """Whatever has three axes and bytes is an image of three channels."""

    @staticmethod
    def stored(image: np.ndarray) -> np.ndarray:
        channels = [image[..., min(channel, image.shape[-1] - 1)] for channel in range(3)]
        return np.stack(channels, axis=-1)


class TrajectoryChunk:
    """One compressed chunk for each trajectory: a frame costs all of it."""

    def __init__(self, frames: np.ndarray) -> None:
        self.shape, self.chunk, self.decoded_bytes = frames.shape, zlib.compress(frames.tobytes(), 1), 0

    def frame(self, row: int) -> np.ndarray:
        data = zlib.decompress(self.chunk)
        self.decoded_bytes += len(data)
        return np.frombuffer(data, np.uint8).reshape(self.shape)[row]


class AllInMemory:
    """Opening reads everything, and everything stays."""

    def __init__(self, data: bytes) -> None:
        self.frames = np.frombuffer(data, np.uint8).copy()
        self.read_bytes = self.held_bytes = self.frames.nbytes


class Collector:
    """Made over a buffer that was loaded, it begins by clearing it."""

    def __init__(self, rows: list[float]) -> None:
        self.rows = rows
        self.reset()

    def reset(self) -> None:
        self.rows.clear()


class SkippingLoader:
    """Resumed, it shuffles by the random state of the middle, and skips as many as were had."""

    def __init__(self, items: int, seed: int) -> None:
        self.items, self.rng = items, np.random.default_rng(seed)

    def epoch(self, skip: int = 0) -> Iterator[int]:
        for item in self.rng.permutation(self.items)[skip:].tolist():
            self.rng.random()  # the augmentation of an item
            yield item

    def state(self) -> bytes:
        return pickle.dumps(self.rng.bit_generator.state)

    def resume(self, state: bytes) -> None:
        self.rng.bit_generator.state = pickle.loads(state)


class FilteredRows:
    """Each row that is drawn from the chosen episodes is looked for among all that were chosen."""

    def __init__(self, chosen: list[int]) -> None:
        self.chosen = chosen
        self.looked_at = 0

    def sample(self, size: int, rng: np.random.Generator) -> list[int]:
        found = []
        for number in rng.integers(len(self.chosen), size=size).tolist():
            for at, row in enumerate(self.chosen):
                self.looked_at += 1
                if at == number:
                    found.append(row)
                    break
        return found
