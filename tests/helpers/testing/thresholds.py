"""The engine's thresholds made small, so that a test of a few rows goes past every one of them.

A threshold is a constant at which the engine takes another path: something grows, splits, spills to disk, is looked at
again or given up. Stores of ordinary size are below some and above others, and a defect on the other side of one is
seen by nobody until a store is large, or small, enough.

>>> from helpers.testing import small_thresholds
>>> from diskreplay.schema import spec as store_spec
>>> with small_thresholds():
...     store_spec.MAX_CHUNK_ROWS
4
>>> store_spec.MAX_CHUNK_ROWS
4096
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import NamedTuple


class Threshold(NamedTuple):
    """A constant of a module below ``diskreplay``, a small value for it, and what happens there."""

    module: str
    name: str
    small: float
    what: str
    in_format: bool = False
    """True if the format fixes it: what is written while it is small can be read only while it is small."""


THRESHOLDS = (
    Threshold("schema.ring", "FIRST_LENGTH", 16, "a ring with more ids grows"),
    Threshold("schema.ring", "FIRST_VALUES", 32, "a ring of wide rows begins shorter"),
    Threshold("schema.ring", "WHOLE_FROM", 32, "a ring becomes as long as it will ever be"),
    Threshold("schema.ring", "WHOLE_BYTES", 1 << 12, "a large ring grows by and by"),
    Threshold("schema.layout", "SMALL_BYTES", 64, "a chunk of larger values has one environment"),
    Threshold("schema.layout", "CHUNK_BYTES", 64, "a wide row's chunk has fewer rows"),
    Threshold("schema.layout", "MAX_CHUNK_ROWS", 4, "a narrow row's chunk has no more rows"),
    Threshold("schema.layout", "LONG_CHUNK_BYTES", 32, "so has one of a narrow row that is reached on disk"),
    Threshold("schema.layout", "LOG_CHUNK_BYTES", 64, "more bytes of facts, or of later values, are a new chunk"),
    Threshold("schema.layout", "ITEMS_CHUNK_BYTES", 32, "more items of ragged rows are a new chunk"),
    Threshold("schema.layout", "FLOAT_ROWS", 2, "a chunk of large floats has no more rows"),
    Threshold("schema.layout", "DISK_ROWS", 4, "a chunk of other large values has no more rows"),
    Threshold("schema.layout", "WINDOW_CHUNKS", 2, "a chunk is at most that part of the window"),
    Threshold("schema.layout", "MOST_SHARD_BYTES", 4096, "no shard has more bytes"),
    Threshold("schema.layout", "MOST_SHARD_CHUNKS", 8, "no shard has more chunks"),
    Threshold("schema.layout", "LEAST_SHARD_BYTES", 16, "a short window's shards have no fewer bytes"),
    Threshold("schema.layout", "SHARD_BYTES", 512, "a wide row's shard has fewer rows"),
    Threshold("schema.layout", "WINDOW_SHARDS", 2, "a shard is at most that part of the window"),
    Threshold("schema.layout", "MOST_SHARDS", 8, "a long window's shards have more rows"),
    Threshold("schema.layout", "SHARD_WINDOWS", 4, "a short window's shards have no more rows"),
    Threshold("schema.columns", "RESIDENT_ROW_BYTES", 64, "a column with larger rows is reached on disk"),
    Threshold("schema.columns", "RESIDENT_COLUMN_BYTES", 2000, "a column with a larger window is reached on disk"),
    Threshold("schema.columns", "PACKED_BYTES", 8, "larger values are kept as runs"),
    Threshold("reading.budget", "HELD_SHARE", 0.0, "a column with a large window is reached on disk"),
    Threshold("storage.handles", "MOST_FILES", 2, "the file that was used least recently is closed"),
    Threshold("storage.local_files", "WRITE_BYTES", 30, "parts are written without being joined to more"),
    Threshold("storage.local_files", "SMALL_BYTES", 600, "a larger record is not read with those of other streams"),
    Threshold("storage.stream", "MAX_UNSYNCED", 1, "a commit syncs files before it opens others"),
    Threshold("storage.stream", "PUSHED_BYTES", 1, "of a pushed stream full chunks do not wait in the tail"),
    Threshold("storage.metadata", "INDENTED_BYTES", 64, "a larger document is one line"),
    Threshold("storage.column", "TASK_BYTES", 64, "a write buffer is compressed by several tasks"),
    Threshold("storage.column", "HANDED_ROWS", 6, "a write buffer has more than one chunk"),
    Threshold("storage.column", "HANDED_BYTES", 256, "a write buffer has fewer chunks"),
    Threshold("storage.column", "MOST_HANDED_ROWS", 48, "a write buffer has fewer chunks of few bytes"),
    Threshold("storage.column", "MAX_BACKLOG_BYTES", 100, "adding waits for the compression of older chunks"),
    Threshold("storage.column", "TRIED_CHUNKS", 2, "after a chunk that did not shrink others are copies"),
    Threshold("storage.column", "HURRY_BYTES", -1, "what is added is compressed lightly"),
    Threshold(
        "storage.column", "MOST_DEAD_BYTES", 64, "closing leaves the rows of a chunk that is not full in the tail"
    ),
    Threshold("storage.tail", "RAW_BYTES", 4, "larger values are compressed"),
    Threshold("storage.tail", "DEAD_BYTES", 100, "a commit begins a tail"),
    Threshold("storage.tail", "LEFT_SECONDS", -1.0, "of the tails that were left only the last one stays"),
    Threshold("storage.tail", "LEFT_BYTES", 100, "so it is where they take more bytes"),
    Threshold("reading.open_stream", "TAKEN_ROWS", 5, "the index takes rows from disk block by block"),
    Threshold("reading.open_stream", "TAKEN_BYTES", 100, "so it does where the rows are large"),
    Threshold("reading.cache", "MIN_SHARE", 0.01, "a cache below this share of the window keeps nothing raw"),
    Threshold("reading.cache", "FIRST_SLOTS", 2, "the lists of a column's slots grow"),
    Threshold("reading.cache", "MOST_KEYS", 2, "more keys are not offered"),
    Threshold("reading.cache", "COMPARED", 16, "more bytes of a value tell which key is nearest"),
    Threshold("reading.cache", "FIRST_TRIED", 2, "values that are no shorter as runs are not tried any more"),
    Threshold("reading.gather", "MOST_AT_ONCE", 3, "an interrupt is noticed between the pieces of a batch"),
    Threshold("reading.compiled", "LEAST_PIECES", 1, "the chunks of a batch are read by several threads"),
    Threshold("reading.compiled", "LEAST_HITS", 1, "decoded chunks are copied by several threads"),
    Threshold("reading.in_core", "MOST_BYTES", 64, "columns in RAM are copied by numpy"),
    Threshold("storage.checkpoint_arrays", "CHUNK_ROWS", 8, "a checkpoint's array has another chunk", in_format=True),
    Threshold("storage.checkpoint_arrays", "SHARD_CHUNKS", 2, "a checkpoint's array has another shard", in_format=True),
    Threshold("engine.commits", "COMMIT_BYTES", 2048, "adding commits, however few the rows"),
    Threshold("engine.commits", "WAITING_ROWS", 3, "the waiting bytes are counted"),
    Threshold("engine.commits", "WAITING_BYTES", 64, "the waiting bytes are counted, however few they are"),
    Threshold("engine.appender", "PLACED_STEPS", 2, "the items of many steps are appended slice by slice"),
    Threshold("engine.steps", "COMPARED_BYTES", 16, "steps are compared piece by piece"),
    Threshold("buffers.shuffle", "POOL_SLACK", 1, "a round's chunks do not all fit into the pool"),
    Threshold("buffers.shuffle", "POOL_SPARE_BYTES", 100, "the context's chunks do not fit into the pool"),
    Threshold("buffers.shuffle", "SMALL_CHUNK_ROWS", 4, "a pass without large columns has several rounds"),
    Threshold("reading.blocks", "LEAST_BYTES", 64, "an output array is one that was used before"),
    Threshold("reading.blocks", "KEPT", 2, "a used output array is forgotten"),
    Threshold("reading.blocks", "MOST", 3, "an output array in use is forgotten"),
    Threshold("index.facts", "SLACK_BYTES", 60, "dead facts are looked for, and those that live written again"),
    Threshold("index.later_values", "SLACK_BYTES", 60, "dead values are looked for, and those that live written again"),
    Threshold("reading.bytelog", "READ_BYTES", 100, "a log is read piece by piece"),
    Threshold("storage.spared", "LOOKED_BYTES", 7, "what is lost of a log is looked for piece by piece"),
    Threshold("index.later_values", "BLOCK_BYTES", 100, "the values of one call are several blocks"),
    Threshold("index.log", "LOOKED_ROWS", 3, "start codes are looked at block by block"),
    Threshold("index.episodes", "LOOKED_ROWS", 3, "an episode's first row is looked for in several steps"),
    Threshold("sampling.rank_based", "MASS_BLOCK", 4, "the table of masses grows"),
    Threshold("sampling.places", "LEAST_ROWS", 8, "a sampler's tree grows with what the windows hold"),
    Threshold("sampling.ranges", "MAX_DRAWN_SHARE", 0.0, "the transitions are listed instead of drawn again"),
)
"""All of the engine's thresholds, with values in the units of their names, counts without one."""


@contextlib.contextmanager
def small_thresholds(*, in_format: bool = True) -> Iterator[None]:
    """Make all thresholds small for this process while it is entered; for tests of a few rows.

    Make and read stores inside of one such block: ``in_format`` says whether those are made small too that the format
    fixes, and a store that is written then cannot be read outside of it. With False every store stays readable.
    """
    with contextlib.ExitStack() as stack:
        for threshold in THRESHOLDS:
            if in_format or not threshold.in_format:
                module = importlib.import_module(f"diskreplay.{threshold.module}")
                stack.callback(setattr, module, threshold.name, getattr(module, threshold.name))
                setattr(module, threshold.name, threshold.small)
        yield
