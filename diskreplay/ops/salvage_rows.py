"""Which transitions of a damaged stream are whole: every byte that they show was read, and what leads to these bytes.

1. A transition needs its row in every column, the items of its spans and, where stacks were added, what they reach
   back to: start codes, frames, patches. Where single frames were added, it needs its own.
2. Its next observation is a patch, or else the next row's. Which rows have a patch is known from the places of patches.
   These are in the order of rows: so a lost place is of a row between those of its neighbours. A transition there is
   whole if the next row continues it in a store whose continuity is "observations", or if its patch is known.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Ints, Mask
from diskreplay.index.log import NEXT_PATCH
from diskreplay.reading.open_stream import OpenStream
from diskreplay.schema.columns import CONTINUES, PATCH_TABLE, PLACE, START, VALID, Schema, Start
from diskreplay.storage.spared import SparedStream

BLOCK_ENTRIES = 1 << 18
"""The rows times environments that are looked at in one go."""


class WholeRows:
    """The transitions of a stream that are whole."""

    def __init__(self, schema: Schema, stream: OpenStream, disk: SparedStream) -> None:
        self.schema, self.log, self.disk = schema, stream.log, disk
        self._columns = disk.spared()
        self._reach = [0 if stack.axis is None else stack.frames - 1 for stack in schema.stacks]
        """How many older frames an observation of each leaf was added with."""
        begin, end, _ = disk.commit_record.table(PATCH_TABLE)
        self._first_patch = begin
        places = self.log.patches.span(PLACE, begin, end)
        known = self._columns[f"{PATCH_TABLE}/{PLACE}"].known(begin, end)[:, 0]
        self._placed = np.append(known, True)  # behind the last patch there is none
        self._unsure = self._rows_of_lost(places[:, 0], known)
        self._patches = {
            column.name: _runs(known & self._patched(column.name, places)) for column in schema.obs_columns
        }
        """By leaf, how many consecutive patches from each one on can be read; behind the last there is none."""
        self._older = _listed(self.log.older_patches.items())
        self._next_older = _listed(self.log.next_older_patches.items())

    def _rows_of_lost(self, rows: Ints, known: Mask) -> Mask:
        """Return which rows from the floor on, and row ``end``, may have a patch whose place is lost."""
        floor, end = self.log.floor, self.log.end
        change = np.zeros(end - floor + 2, np.int64)
        edges = np.flatnonzero(np.diff(np.concatenate([[0], ~known, [0]])))
        for first, stop in edges.reshape(-1, 2).tolist():
            low = int(rows[first - 1]) if first else floor
            high = int(rows[stop]) if stop < len(rows) else end
            change[max(low - floor, 0)] += 1
            change[min(max(high, floor), end) - floor + 1] -= 1
        unsure: Mask = np.cumsum(change)[:-1] > 0
        return unsure

    def mask(self) -> Mask:
        """Return which rows and environments of the window are whole transitions, ``(rows, num_envs)``."""
        log = self.log
        found = np.zeros((log.end - log.begin, log.num_envs), bool)
        step = max(1, BLOCK_ENTRIES // log.num_envs)
        for start in range(log.begin, log.end, step):
            stop = min(start + step, log.end)
            found[start - log.begin : stop - log.begin] = self._block(start, stop)
        return found

    def known(self, name: str, start: int, stop: int) -> Mask:
        """Return which values of a column of rows were read, with their items."""
        known = self._columns[name].known(start, stop)
        return known & self._items(name, self.log.span(name, start, stop)) if name in self.schema.ragged else known

    def _patched(self, name: str, places: Ints) -> Mask:
        """Return which values of a leaf's patches were read, with the items of those that are next observations."""
        span = self._first_patch, self._first_patch + len(places)
        known = self._columns[f"{PATCH_TABLE}/{name}"].known(*span)[:, 0]
        if name in self.schema.ragged:
            known &= self._items(name, self.log.patches.span(name, *span)) | (places[:, 2] != 1)
        return known

    def _items(self, name: str, spans: Ints) -> Mask:
        """Return of which spans ``(..., 2)`` of a ragged column all items were read."""
        ragged = self.schema.ragged[name]
        begin, end, _ = self.disk.commit_record.of(ragged.items.name)
        starts, stops = spans[..., 0].ravel(), spans[..., 1].ravel()
        right = (starts >= begin) & (starts <= stops) & (stops <= end) & (stops - starts <= ragged.most)
        found = np.zeros(len(starts), bool)
        found[right] = self._columns[ragged.items.name].hold(starts[right], stops[right])
        return found.reshape(spans.shape[:-1])

    def _block(self, start: int, stop: int) -> Mask:
        """Return which transitions of rows ``[start, stop)`` are whole."""
        schema, log = self.schema, self.log
        whole = log.span(VALID, start, stop)
        observed = {column.name for column in schema.obs_columns}
        for column in schema.columns:
            if column.name not in observed:
                whole &= self.known(column.name, start, stop)
        low = max(log.floor, start - max(self._reach))
        codes = log.span(START, low, stop + 1)  # row ``end`` has none: then it is not known
        told = self.known(START, low, stop + 1)
        patch = np.maximum(log.span(NEXT_PATCH, start, stop) - self._first_patch, -1)
        whole &= self._explained(start, stop, patch, (told & (codes == CONTINUES))[start - low + 1 :])
        for column, reach in zip(schema.obs_columns, self._reach, strict=True):
            frames = self.known(column.name, low, stop + 1)
            runs = self._patches[column.name]
            following = np.where(patch >= 0, runs[patch] > 0, frames[start - low + 1 :])
            whole &= following & self._stacked(reach, low, start, codes[:-1], told[:-1], frames[:-1], runs)
            rows, envs, numbers = self._within(self._next_older, start, stop)
            whole[rows, envs] &= runs[numbers] >= reach
        return whole

    def _explained(self, start: int, stop: int, patch: Ints, continued: Mask) -> Mask:
        """Return of which rows it is known whether they have patches of their next observations."""
        sure: Mask = ~self._unsure[start - self.log.floor : stop - self.log.floor, None]
        if self.schema.continuity == "observations":
            sure = sure | continued
        found = patch >= 0
        return sure | (found & (self._placed[patch + 1] | (max(self._reach) == 0)))

    def _stacked(
        self, reach: int, low: int, start: int, codes: NDArray[np.uint8], told: Mask, frames: Mask, runs: Ints
    ) -> Mask:
        """Return which rows from ``start`` on have their whole stack; the arrays begin with row ``low``."""
        older = np.full(codes.shape, reach)
        older[Start.by_patches(codes)] = 0
        rows, envs, numbers = self._within(self._older, low, low + len(codes))
        older[rows, envs] = runs[numbers]
        lead = np.zeros((max(0, reach - (start - low)), codes.shape[1]), bool)  # rows that are below the floor
        codes, told, frames, older = (
            np.concatenate([lead.astype(one.dtype), one]) for one in (codes, told, frames, older)
        )
        first, count = start - low + len(lead), len(codes) - (start - low) - len(lead)
        whole = frames[first:].copy()
        going = np.ones_like(whole)
        for depth in range(reach):
            at = slice(first - depth, first - depth + count)
            ends = codes[at] != CONTINUES
            whole &= ~going | (told[at] & (~ends | (older[at] >= reach - depth)))
            going &= ~ends
            whole &= ~going | frames[first - depth - 1 : first - depth - 1 + count]
        return whole

    def _within(self, listed: Ints, start: int, stop: int) -> tuple[Ints, Ints, Ints]:
        """Return of the listed patches of rows ``[start, stop)`` row, environment and number, from 0 on."""
        rows, envs, numbers = listed[slice(*np.searchsorted(listed[:, 0], (start, stop)))].T
        return rows - start, envs, numbers - self._first_patch


def _listed(patches: Iterable[tuple[tuple[int, int], int]]) -> Ints:
    """Return row, environment and number of patches, ``(n, 3)``, in the order of rows."""
    found = np.array([(row, env, number) for (row, env), number in patches], np.int64).reshape(-1, 3)
    return found[np.argsort(found[:, 0], kind="stable")]


def _runs(known: Mask) -> Ints:
    """Return how many entries from each one on are True, ``(n + 1,)``, with 0 behind the last."""
    places = np.arange(len(known) + 1)
    ends = np.where(np.append(known, False), len(known), places)
    found: Ints = np.minimum.accumulate(ends[::-1])[::-1] - places
    return found
