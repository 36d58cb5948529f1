"""Chunks of large columns, kept in RAM under a byte budget.

A chunk is kept in one of two forms:

- *runs*: of each value, only the bytes that differ from a *key*, a value that some neighbouring chunks share. Frames of
  a game then take a tenth of their size, and are copied nearly as fast as raw ones. Compiled code makes and reads runs.
- *raw*: the decoded values, if runs would take more than half of their bytes, or if no code can be compiled here.

Sampling reads chunks at random, so each chunk is worth the same. The cache therefore admits chunks until its budget is
full, and then replaces none. There is room again when rows leave the window. If the budget is below ``MIN_SHARE`` of
the window, no chunk is kept raw: the memory serves better as the system's page cache, which holds compressed chunks.

Decoded frames of video columns are kept beside the chunks, in the same budget, by the items of their packets.

Each column has *slots*, with one chunk each. Threads read and empty slots with ``engine.lock`` held. They fill a slot
without it, before any other thread can find the slot. All changes hold the cache's own lock, so that signals wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.interrupts import Lock
from diskreplay.reading import compiled
from diskreplay.schema.ids import Ids
from diskreplay.storage.column import ColumnReader

MIN_SHARE = 0.25
FIRST_SLOTS = 1024
KEY_ROWS = 64
"""The number of rows that share a key."""
LEAST_ITEM_BYTES = 256
"""The least bytes of a value that is kept as runs; runs of smaller values, such as vectors, would be no shorter."""
FIRST_TRIED = 32
"""The chunks of a column that are tried as runs at first; more are tried as long as a fifth of all were worth it."""

Bytes = NDArray[np.uint8]


class Key:
    """A value from which the runs of some chunks differ."""

    def __init__(self, value: Bytes) -> None:
        self.value = value
        self.users = 0
        """The number of cached chunks that need it."""


class CachedColumn:
    """The chunks of one column that are kept, each in a slot."""

    def __init__(self, column: ColumnReader) -> None:
        self.column = column
        self.blocks = np.zeros((FIRST_SLOTS, 3), np.int64)
        """The address and size of the block in each slot, and the address of its key, 0 for a raw chunk."""
        self.chunk = np.full(FIRST_SLOTS, -1, np.int64)
        """The chunk in each slot, -1 for an empty one; like ``group``, no longer than ``blocks``."""
        self.group = self.chunk.copy()
        self.table = np.full((1, column.groups), -1, np.int64)
        """The slot in which to look for a chunk of a group; a longer table replaces it when it grows."""
        self.tried = 0
        """The number of chunks that were tried as runs; ``shrunk`` of them were worth it."""
        self.shrunk = 0
        self._free: list[int] = []
        self._kept: list[tuple[NDArray[Any], Key | None] | None] = []
        """The arrays and keys whose addresses ``blocks`` has."""
        self._keys: dict[tuple[int, int], Key] = {}
        """The newest key of each run of neighbouring chunks of a group; older keys may still have users."""
        self._key_bytes = 0
        self._key_chunks = max(1, KEY_ROWS // column.column.chunk_rows)

    def find(self, chunk: Ids, group: Ids) -> Ids:
        """Return the slot of each chunk, -1 for one that is not cached."""
        table = self.table  # a thread that enters slots may replace it
        slot = table[chunk % len(table), group]
        # Both are compared: a slot that was given up may hold the same chunk of another group by now.
        return np.where((self.chunk.take(slot) == chunk) & (self.group.take(slot) == group), slot, -1)

    def has(self, chunk: int, group: int) -> bool:
        """Tell whether a chunk is cached."""
        return bool(self.find(np.array([chunk]), np.array([group]))[0] >= 0)

    def values(self, slot: int) -> NDArray[Any]:
        """Return the values ``(chunk_items, *shape)`` of the chunk in a slot."""
        kept = self._kept[slot]
        assert kept is not None
        block, key = kept
        column = self.column
        if key is not None:
            found = np.empty((column.chunk_items, column.column.item_bytes), np.uint8)
            compiled.unpack(self.blocks, slot, found)
            block = found.reshape(-1).view(column.column.dtype)
        return block.reshape(column.chunk_items, *column.column.shape)

    def packed(self, chunk: int, group: int, values: NDArray[Any]) -> tuple[Bytes, Key] | None:
        """Return the runs of a chunk, and their key, or None if runs are not worth it."""
        rows = values.reshape(-1).view(np.uint8).reshape(self.column.chunk_items, self.column.column.item_bytes)
        shared, room = self._keys.get((chunk // self._key_chunks, group)), rows.nbytes // 2
        self.tried += 1
        if shared is not None:
            if (block := compiled.pack(rows, shared.value, room)) is not None:
                self.shrunk += 1
                return block, shared
            room -= rows.shape[1]  # as at a new level of a game: a new key must be worth it for this chunk alone
        own = Key(compiled.majority(rows))
        if (block := compiled.pack(rows, own.value, room)) is None:
            return None
        self.shrunk += 1
        return block, own

    @property
    def packs(self) -> bool:
        """True if it is worth trying to make runs of more chunks."""
        if self.column.column.item_bytes < LEAST_ITEM_BYTES:
            return False
        return self.tried < FIRST_TRIED + 5 * self.shrunk

    def enter(self, chunk: int, group: int, block: NDArray[Any], key: Key | None) -> int:
        """Keep a chunk that is not cached yet, and return the bytes that it takes."""
        self._reach(max(self.column.entries.length, 1))  # first: it may lack memory
        slot = self._take_slot()
        self._kept[slot] = block, key
        self.blocks[slot] = block.ctypes.data, block.nbytes, 0 if key is None else key.value.ctypes.data
        self.group[slot] = group
        self.chunk[slot] = chunk
        self.table[chunk % len(self.table), group] = slot
        if key is None:
            return block.nbytes
        key.users += 1
        if key.users > 1:
            return block.nbytes
        self._keys[chunk // self._key_chunks, group] = key
        self._key_bytes += key.value.nbytes
        return block.nbytes + key.value.nbytes

    def _take_slot(self) -> int:
        if self._free:
            return self._free.pop()
        slot = len(self._kept)
        if slot == len(self.chunk):  # grown in this order, `chunk` is never longer than `blocks`
            more = np.full(slot, -1, np.int64)
            self.blocks = np.append(self.blocks, np.zeros((slot, 3), np.int64), axis=0)
            self.group, self.chunk = np.append(self.group, more), np.append(self.chunk, more)
        self._kept.append(None)
        return slot

    def _reach(self, span: int) -> None:
        if len(self.table) < span:
            longer = np.full((2 * span, self.table.shape[1]), -1, np.int64)
            held = np.flatnonzero(self.chunk >= 0)
            longer[self.chunk[held] % len(longer), self.group[held]] = held
            self.table = longer

    def drop(self, doomed: NDArray[np.bool_]) -> int:
        """Empty the slots of a mask over all, and return the bytes that they took."""
        freed = 0
        for slot in np.flatnonzero(doomed & (self.chunk >= 0)).tolist():
            chunk, group = int(self.chunk[slot]), int(self.group[slot])
            self.chunk[slot] = -1
            kept, self._kept[slot] = self._kept[slot], None
            self._free.append(slot)
            assert kept is not None
            block, key = kept
            freed += block.nbytes
            if key is not None:
                key.users -= 1
                if not key.users:
                    freed += key.value.nbytes
                    self._key_bytes -= key.value.nbytes
                    place = chunk // self._key_chunks, group
                    if self._keys.get(place) is key:
                        del self._keys[place]
        return freed

    def held(self, raw: bool) -> tuple[int, int]:
        """Return the rows and bytes that are kept raw, or as runs."""
        here = (self.chunk >= 0) & ((self.blocks[: len(self.chunk), 2] == 0) == raw)
        size = int(self.blocks[: len(here), 1][here].sum()) + (0 if raw else self._key_bytes)
        return int(np.count_nonzero(here)) * self.column.chunk_items, size


class ChunkCache:
    """A cache over all large columns of a store.

    Args:
        budget_bytes: the most bytes that it may hold.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.copied = {"runs": 0, "raw": 0, "disk": 0}
        """The pieces that were copied, counted by where their chunks were; threads that count at once may miss some."""
        self._keeps_raw = True
        self._full = budget_bytes == 0
        """True if the last chunk had no room, and none was made since."""
        self._columns: dict[ColumnReader, CachedColumn] = {}
        self._frames: dict[ColumnReader, dict[tuple[int, int], NDArray[np.uint8]]] = {}
        """The decoded frames of video columns, by the span of their packets."""
        self.lock = Lock("the cache of decoded chunks")

    def column(self, column: ColumnReader) -> CachedColumn | None:
        """Return the cached chunks of a column, or None if there never were any."""
        return self._columns.get(column)

    def resize_window(self, window_bytes: int) -> None:
        """Note the decoded bytes of all that can be sampled; keep nothing raw if the budget is too small for them.

        The caller holds ``engine.lock``.
        """
        self._keeps_raw = self.budget_bytes >= MIN_SHARE * window_bytes
        if not self._keeps_raw:
            for cached in list(self._columns.values()):
                self._give_up(cached, lambda cached: cached.blocks[: len(cached.chunk), 2] == 0)

    def admits(self, column: ColumnReader) -> bool:
        """Tell whether a newly decoded chunk of the column should be offered to :meth:`put`."""
        if self._full:
            return False
        cached = self._columns.get(column)
        if cached is None:
            cached = self._columns.setdefault(column, CachedColumn(column))
        if cached.packs and not compiled.KERNEL.missing:
            return compiled.KERNEL.code is not None
        return self._keeps_raw

    def put(self, column: ColumnReader, chunk: int, group: int, values: NDArray[Any]) -> None:
        """Keep a copy of the values ``(chunk_items, *shape)`` of a complete chunk, if they are admitted."""
        cached = self._columns.get(column) if self.admits(column) else None
        if cached is None:  # the cache is full, or the column was just forgotten
            return
        try:
            if (
                cached.packs
                and compiled.KERNEL.code is not None
                and (packed := cached.packed(chunk, group, values)) is not None
            ):
                self._keep(cached, chunk, group, *packed)
            elif self._keeps_raw and not self._lacks(values.nbytes):
                self._keep(cached, chunk, group, values.copy(), None)
        except MemoryError:  # whoever samples does without
            self._full = True

    def fill(self, column: ColumnReader, chunk: Ids, group: Ids, decode: Callable[[int, NDArray[Any]], None]) -> None:
        """Keep complete chunks (n,) raw, as far as there is room; ``decode(i, values)`` decodes the i-th."""
        cached = self._columns.setdefault(column, CachedColumn(column))
        try:
            for which in np.flatnonzero(cached.find(chunk, group) < 0).tolist():
                if self._lacks(column.decoded_bytes):
                    break
                values = np.empty((column.chunk_items, *column.column.shape), column.column.dtype)
                decode(which, values)
                self._keep(cached, int(chunk[which]), int(group[which]), values, None)
        except MemoryError:
            self._full = True

    def frame(self, column: ColumnReader, start: int, stop: int) -> NDArray[np.uint8] | None:
        """Return the frame of a span of a video column's items, if it is kept; the caller holds ``engine.lock``."""
        return self._frames.setdefault(column, {}).get((start, stop))

    def has_room(self, size: int) -> bool:
        """Tell whether so many bytes may still be kept; this takes no lock."""
        return not self._full and self.used_bytes + size <= self.budget_bytes

    def keep_frame(self, column: ColumnReader, start: int, stop: int, frame: NDArray[np.uint8]) -> None:
        """Keep the frame of a span, if there is room; nobody may change it from now on."""
        if self._full or self.lock.owned:
            return
        with self.lock:
            kept = self._frames.get(column)
            needed = start >= column.entries.begin * column.column.chunk_rows
            if kept is not None and needed and (start, stop) not in kept and not self._lacks(frame.nbytes):
                kept[start, stop] = frame
                self.used_bytes += frame.nbytes

    def _drop_frames(self, column: ColumnReader, below: int) -> None:
        with self.lock:
            kept = self._frames.get(column, {})
            for span in [span for span in kept if span[0] < below]:
                self.used_bytes -= kept.pop(span).nbytes
                self._full = False

    def _lacks(self, size: int) -> bool:
        if self.used_bytes + size > self.budget_bytes:
            self._full = True
        return self._full

    def _keep(self, cached: CachedColumn, chunk: int, group: int, block: NDArray[Any], key: Key | None) -> None:
        if self.lock.owned:  # a finalizer called this in the middle of a change
            return
        with self.lock:
            size = block.nbytes + (key.value.nbytes if key is not None and not key.users else 0)
            known = self._columns.get(cached.column) is cached and chunk >= cached.column.entries.begin
            if known and not self._lacks(size) and not cached.has(chunk, group):
                self.used_bytes += cached.enter(chunk, group, block, key)

    def _give_up(self, cached: CachedColumn, which: Callable[[CachedColumn], NDArray[np.bool_]]) -> None:
        with self.lock:
            if freed := cached.drop(which(cached)):
                self.used_bytes -= freed
                self._full = False

    def drop(self, column: ColumnReader, below: int = 1 << 62) -> None:
        """Forget the column's chunks below ``below``, by default all; the caller holds ``engine.lock``."""
        if (cached := self._columns.get(column)) is not None:
            self._give_up(cached, lambda cached: cached.chunk < below)
        if column in self._frames:
            self._drop_frames(column, below * column.column.chunk_rows)

    def forget(self, column: ColumnReader) -> None:
        """Forget the column; the caller holds ``engine.lock``."""
        self.drop(column)
        with self.lock:
            self._columns.pop(column, None)
            self._frames.pop(column, None)

    def drop_but(self, column: ColumnReader, chunk: Ids, group: Ids) -> None:
        """Forget the column's chunks but for these; the caller holds ``engine.lock``."""

        def others(cached: CachedColumn) -> NDArray[np.bool_]:
            slots = cached.find(chunk, group)
            doomed = np.ones(len(cached.chunk), bool)
            doomed[slots[slots >= 0]] = False
            return doomed

        if (cached := self._columns.get(column)) is not None:
            self._give_up(cached, others)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return the shares of pieces from runs, raw chunks and disk, and the rows and bytes that both forms hold.

        In a buffer that read video, ``frames`` has the rows and bytes of its frames.
        """
        pieces = max(1, sum(self.copied.values()))
        found: dict[str, dict[str, Any]] = {
            name: {"hit_rate": count / pieces} for name, count in self.copied.items()
        }  # fmt: skip
        with self.lock:
            columns = list(self._columns.values())  # a thread that decodes may add one meanwhile, without the lock
            for name in ("runs", "raw"):
                held = [cached.held(name == "raw") for cached in columns]
                found[name] |= {"rows": sum(rows for rows, _ in held), "bytes": sum(size for _, size in held)}
            if self._frames:
                frames = [frame.nbytes for kept in self._frames.values() for frame in kept.values()]
                found["frames"] = {"rows": len(frames), "bytes": sum(frames)}
        return found
