"""One stream as a view sees it: rows on disk, index in RAM, chunks in a cache."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import CorruptionError
from diskreplay.index.facts import MAX_LINE, FactLog
from diskreplay.index.later import LaterLog
from diskreplay.index.log import StreamLog
from diskreplay.index.spans import Spans
from diskreplay.reading import observations
from diskreplay.reading.cache import ChunkCache
from diskreplay.reading.observations import ObsSource
from diskreplay.reading.reads import Reads
from diskreplay.reading.resident import Resident
from diskreplay.reading.target import Target
from diskreplay.schema import INFO, LATER, Schema
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.commit import Commit
from diskreplay.storage.stream import StreamReader, StreamWriter

Array = NDArray[Any]

FACTS_BYTES = 1 << 20
"""Of the log of facts that are read at once."""


class OpenStream:
    """One stream of a buffer; the buffer's lock guards every call."""

    def __init__(self, schema: Schema, disk: StreamReader | StreamWriter, cache: ChunkCache) -> None:
        commit = disk.commit_record
        rows = max(1, commit.capacity // commit.num_envs)
        self.schema = schema
        self.disk = disk
        self.cache = cache
        self.log = StreamLog(
            commit.stream, schema.columns, schema.patch_columns, commit.num_envs, rows, schema.context, schema.later
        )
        self.sources = [
            ObsSource(c.name, stack, self.log, disk.rows[c.name], disk.patches[c.name], cache)
            for c, stack in zip(schema.obs_columns, schema.stacks, strict=True)
        ]
        self.resident = Resident(schema, self.log)
        self.facts = FactLog(commit.num_envs)
        """What was said of the episodes."""
        self.later = LaterLog(schema.later, self.log)
        """What was written to rows after they were added."""
        self._spans = Spans(self.log)
        self.log.restart(commit.begin, commit.floor(schema.context), commit.patch_begin)
        self.facts.restart(commit.info_begin)
        self.later.restart(commit.later_begin)
        self.catch_up()

    def catch_up(self) -> None:
        """Takes what is committed and not yet in RAM into the index."""
        commit, log = self.disk.commit_record, self.log
        if commit.floor(log.context) > log.end:
            log.restart(commit.begin, commit.floor(log.context), commit.patch_begin)
        if commit.end > log.end:
            values = {name: self.disk.rows[name].read_rows(log.end, commit.end) for name in log.resident}
            log.extend(values, commit.begin)
        if commit.patch_end > log.patch_end:
            span = log.patch_end, commit.patch_end
            log.add_patches({name: self.disk.patches[name].read_rows(*span)[:, 0] for name in log.patches.arrays})
        log.slide(commit.begin)
        log.drop_patches()
        self._catch_up_facts()
        self._catch_up_later()
        wrong = log.inconsistency()
        if wrong:
            raise CorruptionError(f"stream {self.disk.path!r}: {wrong}; run 'diskreplay verify'", stream=self.disk.name)

    def _catch_up_facts(self) -> None:
        commit, facts = self.disk.commit_record, self.facts
        # The log of a writer that does not know of facts is gone; the one that comes after begins anew.
        if commit.info_begin > facts.end or commit.info_begin < facts.begin or commit.info_end < facts.end:
            facts.restart(commit.info_begin)
        if commit.info_end > facts.end:
            try:
                self._take_over_facts(commit)
            except (ValueError, TypeError, RecursionError) as error:
                raise CorruptionError(
                    f"stream {self.disk.path!r}: the facts of its episodes cannot be read: {error}; run 'diskreplay "
                    "verify'", stream=self.disk.name, column=INFO,
                ) from error  # fmt: skip

    def _take_over_facts(self, commit: Commit) -> None:
        """Reads them piece by piece: how much a record names is no reason to ask for so much memory."""
        at, rest = self.facts.end, b""
        while at < commit.info_end:
            stop = min(at + FACTS_BYTES, commit.info_end)
            data = rest + self.disk.info.read_rows(at, stop).tobytes()
            whole = data.rfind(b"\n") + 1
            self.facts.take_over(data[:whole], commit.begin, commit.end)
            at, rest = stop, data[whole:]
            if len(rest) > MAX_LINE:
                raise ValueError(f"a line has more than {MAX_LINE:,} bytes")
        if rest:
            raise ValueError("the last line has no end")

    def _catch_up_later(self) -> None:
        if self.disk.later is None:
            return
        commit = self.disk.commit_record
        try:
            self.later.catch_up(commit.later_begin, commit.later_end, commit.end, self.read_later)
        except ValueError as error:
            raise CorruptionError(
                f"stream {self.disk.path!r}: what was written later cannot be read: {error}; run 'diskreplay verify'",
                stream=self.disk.name, column=LATER,
            ) from error  # fmt: skip

    def read_later(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Bytes ``[start, stop)`` of the log of what was written later, which a commit holds."""
        assert self.disk.later is not None
        return self.disk.later.read_rows(start, stop)[:, 0]

    def spans(self) -> Spans:
        """The episodes of the window, up to date."""
        self._spans.catch_up()
        return self._spans

    def large_columns(self) -> list[ColumnReader]:
        """The columns that are not mirrored in RAM."""
        return [column for name, column in self.disk.rows.items() if name not in self.log.resident]

    def pending(self) -> list[Array] | None:
        """The newest next stacks, ``(num_envs, frames, *shape)`` a leaf; None when there is no row."""
        log = self.log
        if log.end == log.floor:
            return None
        envs = np.arange(log.num_envs)
        rows = np.full(log.num_envs, log.end - 1)
        found = []
        for source in self.sources:
            frames = source.stack.frames
            out = np.empty((log.num_envs, frames, *source.rows.column.shape), source.rows.column.dtype)
            reads = Reads()
            observations.fill_next(reads, source, Target(out), envs, rows, envs)
            reads.finish()
            found.append(out)
        return found

    def with_cache(self, cache: ChunkCache) -> OpenStream:
        """The same stream, its chunks decoded into another cache."""
        other = copy.copy(self)
        other.cache = cache
        other.sources = [dataclasses.replace(source, cache=cache) for source in self.sources]
        return other

    def window_bytes(self) -> int:
        """Decoded bytes of the large columns in the window."""
        wide = sum(column.column.item_bytes for column in self.large_columns())
        later = 0 if all(column.resident for column in self.schema.later) else self.later.end - self.later.begin
        return wide * (self.log.end - self.log.begin) * self.log.num_envs + later
