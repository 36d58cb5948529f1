"""Columns and caches as the core looks at them, over arrays that a test makes."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import numpy as np

from diskreplay.native import core


@dataclasses.dataclass(eq=False)
class Column:
    """A column whose chunks ``[begin, end)`` are in shards."""

    chunk_rows: int = 4
    group_envs: int = 1
    groups: int = 1
    shard_chunks: int = 2
    begin: int = 0
    end: int = 0
    in_ram: int = 1 << 62
    array: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((1, 1, 2), np.int64))
    """``(length, groups, 2)``: offset and bytes of each chunk."""

    def __post_init__(self) -> None:
        self.column = types.SimpleNamespace(chunk_rows=self.chunk_rows, name="obs", codec=None, item_bytes=0)
        self.entries = types.SimpleNamespace(array=self.array, begin=self.begin, end=self.end)


@dataclasses.dataclass
class Cached:
    """The slots ``table`` of chunks, and what each slot ``(n, 5)`` holds."""

    table: np.ndarray
    slots: np.ndarray


def chunks_of(columns: list[Column], cached: list[Cached]) -> core.Chunks:
    return core.Chunks(types.SimpleNamespace(_columns=dict(zip(columns, cached, strict=True))), columns)


def blocks_of(each: list[np.ndarray], chunk_rows: int) -> core.Chunks:
    """The chunks of a stream for each array of slots ``(n, 5)``, looked at."""
    columns = [Column(chunk_rows) for _ in each]
    found = chunks_of(columns, [Cached(np.full((1, 1), -1), slots) for slots in each])
    for at in range(len(each)):
        found.rows(at, np.zeros((5, 0), np.int64))
    return found


class Log(core.Window):
    """As much of a log as a batch needs."""

    stream: int
    num_envs: int
    next_older_patches: dict[Any, Any]
    table: Any
    patches: Any


def log_of(starts: np.ndarray, next_patches: np.ndarray, floor: int, end: int, stream: int = 0) -> Log:
    """A log with rows ``[floor, end)``, of arrays ``(length, envs)``, and patches 0 to 5."""
    log = Log()
    log.stream, log.num_envs, log.next_older_patches = stream, starts.shape[1], {}
    log.begin, log.end, log.rows, log.context = floor, end, len(starts), 0
    log.patch_begin, log.patch_end = 0, 6
    log.table = types.SimpleNamespace(length=len(starts), arrays={"start": starts, "next": next_patches})
    log.patches = types.SimpleNamespace(length=4, arrays={})
    return log
