"""Chunks of large columns, kept in RAM under a byte budget.

A chunk is kept in one of two forms:

- *runs*: of each value, only the bytes that differ from a *key*, a value that many chunks share. Frames of a game then
  take a tenth of their size, and are copied as fast as raw ones, or faster. The core makes and reads runs.
- *raw*: the decoded values, if runs would take more than half of their bytes.

Sampling reads chunks at random, so each chunk is worth the same. The cache therefore admits chunks until its budget is
full, and then replaces none. There is room again when rows leave the window. If the budget is below ``MIN_SHARE`` of
the window, no chunk is kept raw: the memory serves better as the system's page cache, which holds compressed chunks.

Decoded frames of video columns are kept beside the chunks, in the same budget, by the items of their packets.

Each column has *slots*, with one chunk each. Threads read and empty slots with ``engine.lock`` held. They fill a slot
without it, before any other thread can find the slot. All changes hold the cache's own lock, so that signals wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Bytes
from diskreplay.process.locks import Lock
from diskreplay.reading import compiled
from diskreplay.reading.budget import Budget
from diskreplay.schema import columns
from diskreplay.schema.ids import Ids
from diskreplay.storage.column import ColumnReader, Location

MIN_SHARE = 0.25
FIRST_SLOTS = 1024
MOST_KEYS = 64
"""The most keys that are offered to the chunks of a column; so many values stay in the processor's cache."""
COMPARED = 256
"""The bytes of a value, or up to twice as many, in which it is compared with keys."""
FIRST_TRIED = 32
"""The chunks of a column that are tried as runs at first; more are tried as long as a fifth of all were worth it."""

_, SIZE, KEY, CHUNK, GROUP = range(5)
"""The numbers of a slot; the first is the address of its block."""


class Key:
    """A value from which the runs of some chunks differ."""

    def __init__(self, value: Bytes) -> None:
        self.value = value
        self.compared = compared(value)
        self.users = 0
        """The number of cached chunks that need it."""


def compared(value: Bytes) -> Bytes:
    """Return the bytes of a value by which the key nearest to it is found."""
    return value[:: max(1, len(value) // COMPARED)]


class CachedColumn:
    """The chunks of one column that are kept, each in a slot."""

    def __init__(self, column: ColumnReader) -> None:
        self.column = column
        self.slots = np.full((FIRST_SLOTS, 5), -1, np.int64)
        """What is in each slot: block, size, key, chunk, group; a longer array replaces it when it grows.

        They are the address and bytes of the block, the address of its key, 0 for a raw chunk, and the chunk, -1 for an
        empty slot, and its group.
        """
        self.table = np.full((1, column.groups), -1, np.int64)
        """The slot in which to look for a chunk of a group; a longer table replaces it when it grows."""
        self.tried = 0
        """The number of chunks that were tried as runs; ``shrunk`` of them were worth it."""
        self.shrunk = 0
        self._free: list[int] = []
        self._kept: list[tuple[NDArray[Any], Key | None] | None] = []
        """The arrays and keys whose addresses ``slots`` has."""
        self._offered: tuple[list[Key], Bytes] = [], np.empty((0, 0), np.uint8)
        """The keys for new chunks, and what is compared of each; other keys may still have users."""
        self._key_bytes = 0

    def find(self, chunk: Ids, group: Ids) -> Ids:
        """Return the slot of each chunk, -1 for one that is not cached."""
        table = self.table  # a thread that enters slots may replace it
        slot = table[chunk % len(table), group]
        # Both are compared: a slot that was given up may hold the same chunk of another group by now.
        return np.where((self.slots[slot, CHUNK] == chunk) & (self.slots[slot, GROUP] == group), slot, -1)

    def has(self, chunk: int, group: int) -> bool:
        """Tell whether a chunk is cached."""
        return bool(self.find(np.array([chunk]), np.array([group]))[0] >= 0)

    def packed(self, values: NDArray[Any]) -> tuple[Bytes, Key] | None:
        """Return the runs of a chunk, and their key, or None if runs are not worth it."""
        rows = values.reshape(-1).view(np.uint8).reshape(self.column.chunk_items, self.column.column.item_bytes)
        keys, samples = self._offered
        found, room, width = None, rows.nbytes // 2, rows.shape[1]
        self.tried += 1
        if keys:
            different = (samples != compared(rows[len(rows) // 2])).view(np.uint8)
            nearest = keys[int(np.add.reduce(different, axis=1, dtype=np.uint16).argmin())]
            if (block := compiled.pack(rows, nearest.value, room)) is not None:
                found, room = (block, nearest), block.nbytes
        few = sum(key.users > 0 for key in keys) < MOST_KEYS
        # As at a new level of a game. Where no key fits, the chunks after this one may share a new one; else it must be
        # worth its bytes for this chunk alone.
        if found is None or (room > 2 * width and few):
            own = Key(compiled.majority(rows))
            if (block := compiled.pack(rows, own.value, room if found is None and few else room - width)) is not None:
                found = block, own
        self.shrunk += found is not None
        return found

    @property
    def packs(self) -> bool:
        """True if it is worth trying to make runs of more chunks."""
        if self.column.column.item_bytes < columns.PACKED_BYTES:
            return False
        return self.tried < FIRST_TRIED + 5 * self.shrunk

    def enter(self, chunk: int, group: int, block: NDArray[Any], key: Key | None) -> int:
        """Keep a chunk that is not cached yet, and return the bytes that it takes."""
        # First, as it may lack memory.
        self._reach(max(self.column.entries.length, 1))
        if key is not None and not key.users:
            self._offer(key)
        slot = self._take_slot()
        self._kept[slot] = block, key
        key_at = 0 if key is None else key.value.ctypes.data
        self.slots[slot] = block.ctypes.data, block.nbytes, key_at, chunk, group
        self.table[chunk % len(self.table), group] = slot
        if key is None:
            return block.nbytes
        key.users += 1
        if key.users > 1:
            return block.nbytes
        self._key_bytes += key.value.nbytes
        return block.nbytes + key.value.nbytes

    def _offer(self, key: Key) -> None:
        keys = [key, *(other for other in self._offered[0] if other.users and other is not key)]
        if len(keys) > MOST_KEYS:
            keys.remove(min(keys[1:], key=lambda key: key.users))
        self._offered = keys, np.array([key.compared for key in keys], np.uint8)

    def _take_slot(self) -> int:
        if self._free:
            return self._free.pop()
        slot = len(self._kept)
        if slot == len(self.slots):
            self.slots = np.append(self.slots, np.full_like(self.slots, -1), axis=0)
        self._kept.append(None)
        return slot

    def _reach(self, span: int) -> None:
        if len(self.table) < span:
            longer = np.full((2 * span, self.table.shape[1]), -1, np.int64)
            held = np.flatnonzero(self.slots[:, CHUNK] >= 0)
            longer[self.slots[held, CHUNK] % len(longer), self.slots[held, GROUP]] = held
            self.table = longer

    def drop(self, doomed: NDArray[np.bool_]) -> int:
        """Empty the slots of a mask over all, and return the bytes that they took."""
        freed = 0
        for slot in np.flatnonzero(doomed & (self.slots[:, CHUNK] >= 0)).tolist():
            self.slots[slot, CHUNK] = -1
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
        return freed

    def held(self, raw: bool) -> tuple[int, int]:
        """Return the rows and bytes that are kept raw, or as runs."""
        here = (self.slots[:, CHUNK] >= 0) & ((self.slots[:, KEY] == 0) == raw)
        size = int(self.slots[here, SIZE].sum()) + (0 if raw else self._key_bytes)
        return int(np.count_nonzero(here)) * self.column.chunk_items, size


class ChunkCache:
    """A cache over all large columns of a store.

    Args:
        budget: the budget that its chunks are taken from, or the bytes of one of its own.

    Attributes:
        held_bytes: the bytes of the budget that columns held in RAM take.
        used_bytes: the bytes that chunks take.
    """

    def __init__(self, budget: Budget | int) -> None:
        self.budget = Budget(budget) if isinstance(budget, int) else budget
        self.held_bytes = self.used_bytes = 0
        self.budget.join(self)
        self.copied = {"runs": 0, "raw": 0, "disk": 0}
        """The pieces that were copied, counted by where their chunks were; threads that count at once may miss some."""
        self._keeps_raw = True
        self._full = self.budget.size == 0
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
        self._keeps_raw = self.budget.besides(self) - self.held_bytes >= MIN_SHARE * window_bytes
        self._full = self._full and self.budget.left() <= 0  # another buffer may have given its bytes back
        if not self._keeps_raw:
            for cached in list(self._columns.values()):
                self._give_up(cached, lambda cached: cached.slots[:, KEY] == 0)

    def admits(self, column: ColumnReader) -> bool:
        """Tell whether a newly decoded chunk of the column should be offered to :meth:`put`."""
        if self._full:
            return False
        cached = self._columns.get(column)
        if cached is None:
            cached = self._columns.setdefault(column, CachedColumn(column))
        return cached.packs or self._keeps_raw

    def put(self, column: ColumnReader, chunk: int, group: int, values: NDArray[Any]) -> None:
        """Keep a copy of the values ``(chunk_items, *shape)`` of a complete chunk, if they are admitted."""
        cached = self._columns.get(column) if self.admits(column) else None
        if cached is None:  # the cache is full, or the column was just forgotten
            return
        try:
            if cached.packs and (packed := cached.packed(values)) is not None:
                self._keep(cached, chunk, group, *packed)
            elif self._keeps_raw and not self._lacks(values.nbytes):
                self._keep(cached, chunk, group, values.copy(), None)
        except MemoryError:  # whoever samples does without
            self._full = True

    def fill(self, column: ColumnReader, chunk: Ids, group: Ids, places: Sequence[Location]) -> None:
        """Keep complete chunks (n,) raw, as far as there is room; ``places`` is where they are."""
        cached = self._columns.setdefault(column, CachedColumn(column))
        try:
            for which in np.flatnonzero(cached.find(chunk, group) < 0).tolist():
                if self._lacks(column.decoded_bytes):
                    break
                values = np.empty((column.chunk_items, *column.column.shape), column.column.dtype)
                column.decode(places[which], values, int(chunk[which]))
                self._keep(cached, int(chunk[which]), int(group[which]), values, None)
        except MemoryError:
            self._full = True

    def frame(self, column: ColumnReader, start: int, stop: int) -> NDArray[np.uint8] | None:
        """Return the frame of a span of a video column's items, if it is kept; the caller holds ``engine.lock``."""
        return self._frames.setdefault(column, {}).get((start, stop))

    def has_room(self, size: int) -> bool:
        """Tell whether so many bytes may still be kept; this takes no lock."""
        return not self._full and size <= self.budget.left()

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
        if size > self.budget.left():
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
            self._give_up(cached, lambda cached: cached.slots[:, CHUNK] < below)
        if column in self._frames:
            self._drop_frames(column, below * column.column.chunk_rows)

    def forget(self, column: ColumnReader) -> None:
        """Forget the column; the caller holds ``engine.lock``."""
        self.drop(column)
        with self.lock:
            self._columns.pop(column, None)
            self._frames.pop(column, None)

    def close(self) -> None:
        """Forget all columns, and keep nothing more; the caller holds ``engine.lock``."""
        self.budget, self.held_bytes = Budget(0), 0
        for column in [*self._columns, *self._frames]:
            self.forget(column)

    def drop_but(self, column: ColumnReader, chunk: Ids, group: Ids) -> None:
        """Forget the column's chunks but for these; the caller holds ``engine.lock``."""

        def others(cached: CachedColumn) -> NDArray[np.bool_]:
            slots = cached.find(chunk, group)
            doomed = np.ones(len(cached.slots), bool)
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
