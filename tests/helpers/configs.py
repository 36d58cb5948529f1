"""Kinds of buffers that the tests drive: observations, stacking, environments, chunking."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from helpers import residency
from helpers.model import Leaf, Log, RaggedLeaf, Rng, Structure, to_space

import diskreplay as dr
from diskreplay.schema.spec import build


@dataclasses.dataclass(frozen=True, repr=False)
class Config:
    """How a buffer is made; small chunks, shards and windows, so that everything rolls over within a few rows."""

    name: str
    obs: Structure
    num_envs: int = 1
    frame_stack: int | Mapping[str, int] = 1
    stack_axis: Any = "auto"
    padding: Literal["zero", "reset"] = "zero"
    n_step: int = 1
    gamma: float = 0.9
    capacity: int = 24
    chunk_rows: int = 3
    shard_rows: int = 6
    """Of observations and extra columns; 0 leaves those of all columns to the engine."""
    small_chunk_rows: int = 4
    small_shard_rows: int = 8
    resident_bytes: int = 0
    """Observations above this size are reached on disk."""
    cache_bytes: int = 1 << 20
    several_actions: bool = False
    columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    codec: Any = None

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def log(self, number: int = 0, num_envs: int | None = None, capacity: int | None = None) -> Log:
        """An empty log for the oracle."""
        return Log(
            self.obs, self.padding, self.frame_stack, number, num_envs or self.num_envs, capacity or self.capacity
        )

    def action_space(self) -> spaces.Space[Any]:
        force = spaces.Box(-5, 5, (2,), np.float32)
        return spaces.Tuple([spaces.Discrete(9), force]) if self.several_actions else spaces.Discrete(9)

    def action(self, rng: Rng) -> tuple[np.ndarray, ...]:
        choice = np.int64(rng.integers(9))
        if not self.several_actions:
            return (choice,)
        return choice, rng.integers(-5, 6, 2).astype(np.float32)

    def extra(self, rng: Rng) -> dict[str, Any]:
        layouts = [(name, value if isinstance(value, tuple) else ((), value)) for name, value in self.columns.items()]
        return {
            name: RaggedLeaf(shape[1:], dtype).fresh(rng)
            if None in shape
            else np.asarray(rng.integers(0, 2 if np.dtype(dtype) == bool else 50, shape)).astype(dtype)[()]
            for name, (shape, dtype) in layouts
        }

    def rows_of_files(self, names: list[str], wide: list[str]) -> dict[str, Any]:
        """The rows of chunks and shards as arguments of ``create``."""
        if not self.chunk_rows:
            return {}
        return {
            "chunk_rows": {n: self.chunk_rows if n in wide else self.small_chunk_rows for n in names},
            "shard_rows": {n: self.shard_rows if n in wide else self.small_shard_rows for n in names},
        }

    def create(self, path: str, **options: Any) -> dr.ReplayBuffer:
        """A new buffer of this kind; observations of more than ``resident_bytes`` are on disk until the test ends."""
        space, action = to_space(self.obs), self.action_space()
        residency.hold_up_to(max(self.resident_bytes, 8))
        names = [c.name for c in build(space, action, capacity=8, columns=self.columns).columns]
        wide = [name for name in names if name.startswith("obs") or name in self.columns]
        options = {
            "capacity": self.capacity,
            "num_envs": self.num_envs,
            "frame_stack": self.frame_stack,
            "stack_axis": self.stack_axis,
            "stack_padding": self.padding,
            "columns": self.columns,
            "codec": self.codec,
            **self.rows_of_files(names, wide),
            "view": dr.Transition(self.n_step, self.gamma),
            "cache_bytes": self.cache_bytes,
            "commit_rows": 1 << 20,
            "commit_seconds": 1e9,
            "seed": 7,
            **options,
        }
        return dr.ReplayBuffer.create(path, space, action, **options)


FRAME = (3, 4)

# fmt: off
CONFIGS = [
    Config("vector", Leaf((3,), np.float32), resident_bytes=64),
    Config("vector, on disk", Leaf((3,), np.float32), num_envs=2, n_step=3, chunk_rows=2, shard_rows=4),
    Config("scalar", Leaf((), np.float32), num_envs=2, resident_bytes=64, columns={"logp": np.float32}),
    Config("frames, zero padding", Leaf(FRAME), frame_stack=4, capacity=20, several_actions=True),
    Config("frames, reset padding", Leaf(FRAME), frame_stack=4, padding="reset", num_envs=2, capacity=31, n_step=3),
    Config("resident frames", Leaf((5,)), frame_stack=3, padding="reset", num_envs=2, resident_bytes=64, n_step=2),
    Config("one row a chunk", Leaf(FRAME), frame_stack=4, chunk_rows=1, shard_rows=2, cache_bytes=0, capacity=9),
    Config("stack of 4", Leaf((4, *FRAME), frames=4, axis=0), frame_stack=4, capacity=20),
    Config("stack of 4, 5 environments", Leaf((4, *FRAME), frames=4, axis=0), frame_stack=4, num_envs=5, capacity=60),
    Config("stack of 2", Leaf((2, 5), frames=2, axis=0), frame_stack=2, num_envs=2, n_step=3, resident_bytes=64),
    Config("stack of 4, last axis", Leaf((*FRAME, 4), frames=4, axis=-1), frame_stack=4, n_step=2, cache_bytes=40),
    Config("stack of 2, last axis", Leaf((4, 4, 2), frames=2, axis=-1), frame_stack=2, num_envs=2, cache_bytes=0),
    Config("stacked channels", Leaf((6, *FRAME), frames=2, axis=0), frame_stack=2, stack_axis=0, num_envs=2),
    Config("stacked channels, last axis", Leaf((3, 3, 9), frames=3, axis=-1), frame_stack=3, stack_axis=-1, num_envs=2),
    Config(
        "dict", {"camera": Leaf((4, 2)), "joints": (Leaf((2,), np.float64), Leaf((3,), np.int16))},
        frame_stack={"camera": 3, "joints/0": 1, "joints/1": 2}, num_envs=2, n_step=2, resident_bytes=8,
        columns={"value": np.float32, "image": ((3, 3), np.int16)},
    ),
    Config(
        "dict of stacks", {"a": Leaf((4, *FRAME), frames=4, axis=0), "b": Leaf((2, 6), frames=2, axis=0)},
        frame_stack={"a": 4, "b": 2}, num_envs=2, capacity=41,
    ),
    Config(
        "stacks beside frames, zero padding", {"a": Leaf((3, *FRAME), frames=3, axis=0), "b": Leaf((5,))},
        frame_stack={"a": 3, "b": 1}, num_envs=2, capacity=40,
    ),
    Config(
        "stacks beside frames, reset padding", {"a": Leaf((3, *FRAME), frames=3, axis=0), "b": Leaf((5,))},
        frame_stack={"a": 3, "b": 1}, padding="reset", capacity=20, n_step=3, resident_bytes=8,
    ),
    Config("large window", Leaf(FRAME), frame_stack=4, num_envs=2, capacity=400, chunk_rows=4, shard_rows=16),
    Config("cache of half a window", Leaf((40,)), num_envs=2, capacity=48, cache_bytes=24 * 40),
]
WIDE = [
    Config("wide vectors", Leaf((7,), np.float32), num_envs=3, capacity=60, resident_bytes=64, several_actions=True),
    Config("wide vector", Leaf((9,), np.float32), capacity=20, resident_bytes=64, n_step=2),
    Config("wide beside narrow", {"a": Leaf((9,)), "b": Leaf((2,))}, num_envs=2, capacity=44, resident_bytes=64),
]
"""Their rows have more numbers than others of a new ring where the engine's thresholds are small."""
DEFAULT_CHUNKS = [
    Config("vectors, chunks of the engine's", Leaf((6,), np.float32), chunk_rows=0, num_envs=3, resident_bytes=64),
    Config("frames, chunks of the engine's", Leaf(FRAME), chunk_rows=0, num_envs=2, capacity=80, frame_stack=4),
    Config("long window, chunks of the engine's", Leaf((50,)), chunk_rows=0, capacity=150, cache_bytes=2000, n_step=2),
]
"""Their chunks and shards end within a few rows where the engine's thresholds are small."""
RAGGED = [
    Config("ragged column", Leaf((3,), np.float32), columns={"tokens": ((None,), np.int32), "value": np.float32}),
    Config(
        "ragged columns, 3 environments", Leaf((4, 2)), frame_stack=2, num_envs=3, capacity=30, n_step=2, cache_bytes=0,
        columns={"tokens": ((None,), np.int32), "cloud": ((None, 3), np.float16)}, padding="reset",
    ),
    Config("ragged observation", RaggedLeaf(), n_step=2, capacity=11),
    Config(
        "ragged observations beside frames", {"a": RaggedLeaf((2,), np.float32), "b": Leaf((4, 2)), "c": RaggedLeaf()},
        frame_stack={"b": 3}, num_envs=2, capacity=30, chunk_rows=5, shard_rows=20,
        columns={"tokens": ((None,), np.uint8)},
    ),
    Config(
        "ragged observations beside stacks", {"a": Leaf((3, 5), frames=3, axis=0), "b": RaggedLeaf()},
        frame_stack={"a": 3}, num_envs=2, capacity=24, cache_bytes=300,
    ),
]
# fmt: on
