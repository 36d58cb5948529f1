"""The patch table of a stream that is repaired: which patches are lost, and what takes the table's place.

Where something is wrong with the table itself (places that cannot be read, or are there twice), what is known of it
is appended once more, and ``patch_begin`` moves to there: the old patches keep their numbers, by which checkpoints name
them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from diskreplay.checks import Array
from diskreplay.ops.repair import spans
from diskreplay.ops.repair.column_repair import ColumnRepair
from diskreplay.schema.columns import PATCH_TABLE, PLACES, RaggedColumn, Start
from diskreplay.storage.commit import Commit, is_patch


class PatchRepair:
    """The repair of a patch table; masks are ``(rows, envs)`` from the floor on.

    Where the next row continues a row, the row's patch must hold that next row's frame: with another it counts as lost.
    Not so in a store whose continuity is that of flags alone: there each row may have a next observation of its own.

    Attributes:
        ends: rows with a patch of offset 1 that can be read: their next observation needs no other row.
        single: rows given up for their next observation alone, on which no later row depends.
        unexplained: rows whose first stack needs patches that cannot be read.
        forgotten: rows whose patches are in no table any more.
        begin, end: the patches that are needed from now on.
        lost: the number of patches that were given up.
        lacks_items: True if a patch of a ragged leaf has lost its items.
    """

    def __init__(
        self, shards: dict[str, ColumnRepair], ragged: Mapping[str, RaggedColumn], commit: Commit, start: Array,
        continues: Array, floor: int, context: int, by_flags: bool,
    ) -> None:  # fmt: skip
        """Take the column ``start``, and in ``continues`` the rows that continue the one before, or did once."""
        self.shards = {path: one for path, one in shards.items() if is_patch(path)}
        self.rows = shards
        self.ragged = ragged
        self.lacks_items = False
        self.commit = commit
        self.continues = continues
        self._by_flags = by_flags
        self.explained = Start.by_patches(start)
        self._continues_now = (start == Start.CONTINUES) & (not by_flags)
        self.floor = floor
        self.context = context
        self.first = self.begin = commit.patch_begin
        self.end = commit.patch_end
        self.ends, self.single, self.unexplained, self.forgotten = np.zeros((4, *continues.shape), bool)
        self.lost = 0
        place = self.shards[PLACES]
        self._places = place.values(self.first, self.end)[:, 0]
        self._known = np.ones(len(self._places), bool)
        for (low, high), _ in place.lost_rows():
            self._known[low - self.first : high - self.first] = False
        self._contradicted = False
        self._source = {path: self._frames(path, one) for path, one in self.shards.items() if path != PLACES}
        self._readable = self._known & np.all([source >= 0 for source in self._source.values()], axis=0)
        self._healed: dict[int, tuple[int, int]] = {}
        self._kept: dict[int, None] = {}
        self._new: list[int] = []

    def _frames(self, path: str, shards: ColumnRepair) -> Array:
        """Return the frame of a leaf at each place, counted from the first that was read, -1 if not known."""
        readable = np.ones(shards.end - shards.first, bool)
        for (low, high), _ in shards.lost_rows():
            readable[low - shards.first : high - shards.first] = False
        rows = self.rows[path.removeprefix(f"{PATCH_TABLE}/")]
        following: list[Array | None] = [None] * len(self._places)
        for number in np.flatnonzero(self._known).tolist():
            row, env, offset = self._places[number].tolist()
            at = row + 1 - self.floor
            holds = (
                offset == 1 and self._inside(row, env) and self._inside(row + 1, env) and self._continues_now[at, env]
            )
            if holds and rows.readable(row + 1, env):
                following[number] = rows.value(row + 1, env).copy()
        frames = shards.values(shards.first, shards.end)[:, 0]
        if (name := path.removeprefix(f"{PATCH_TABLE}/")) in self.ragged:
            lost = spans.lost(frames, self.ragged[name], self._items(name)) & (self._places[:, 2] == 1) & self._known
            self.lacks_items |= bool(lost.any())
            readable &= ~lost
        source = np.where(readable, np.arange(len(readable)), -1)
        for number, expected in enumerate(following):
            if expected is not None and source[number] >= 0 and frames[number].tobytes() != expected.tobytes():
                source[number] = -1
                self._contradicted = True
        return source

    def _items(self, name: str) -> ColumnRepair:
        return self.rows[self.ragged[name].items.name]

    def newest_item(self, name: str) -> int:
        """Return the first item of the newest next observations of a ragged leaf, as far as they can be read."""
        source = self._source.get(f"{PATCH_TABLE}/{name}")
        items = self._items(name)
        if source is None:
            return items.end
        one = self.shards[f"{PATCH_TABLE}/{name}"]
        newest = (source >= 0) & self._known & (self._places[:, 0] == self.commit.end - 1) & (self._places[:, 2] == 1)
        starts = [int(one.value(one.first + number)[0]) for number in source[newest].tolist()]
        return min(starts, default=items.end)

    def _inside(self, row: int, env: int) -> bool:
        return 0 <= row - self.floor < len(self.continues) and 0 <= env < self.continues.shape[1]

    def _follows(self, row: int, env: int) -> bool:
        """Tell whether the next row continues a row, and so holds its next observation."""
        at = row - self.floor + 1
        return not self._by_flags and at < len(self.continues) and bool(self.continues[at, env])

    @property
    def broken(self) -> bool:
        """True if the table cannot stay where it is."""
        places = self._places
        twice = len(np.unique(places, axis=0)) != len(places)
        behind = bool((np.diff(places[:, 0]) < 0).any())
        if self._contradicted:
            return True
        newest = places[(places[:, 0] == self.commit.end - 1) & (places[:, 2] == 1)]
        return not bool(self._known.all()) or twice or behind or len(newest) != self.continues.shape[1]

    def look(self, lost: Array) -> None:
        """Fill the masks; ``lost`` are the rows that cannot be read."""
        again = self.broken
        if again:
            self._unsure()
        best: dict[tuple[int, int, int], int] = {}
        for number in np.flatnonzero(self._known).tolist():
            row, env, offset = self._places[number].tolist()
            place = row, env, offset
            if not self._inside(row, env):
                continue
            if place in best and self._readable[number] and self._readable[best[place]]:
                self._readable[number] = self._are_same(number, best[place])  # else nobody knows which is right
            elif place in best and not self._readable[number]:
                continue
            best[place] = number
        for (row, env, offset), number in best.items():
            at = row - self.floor
            if self._readable[number]:
                self.ends[at, env] |= offset == 1
                continue
            if offset == 1 and self._follows(row, env) and not lost[at + 1, env] and (row, env, 2) not in best:
                self._healed[number] = row + 1, env
                self.ends[at, env] = True
                continue
            self.lost += 1
            (self.single if offset > 0 else self.unexplained)[at, env] = True
        if again:
            self._write_again(best)

    def _are_same(self, number: int, other: int) -> bool:
        return all(
            self.shards[path].value(int(source[number]) + self.shards[path].first, 0).tobytes()
            == self.shards[path].value(int(source[other]) + self.shards[path].first, 0).tobytes()
            for path, source in self._source.items()
        )

    def _unsure(self) -> None:
        """Give up the rows that may have had a patch whose place is unknown."""
        rows, _ = self.continues.shape
        ends = np.ones_like(self.continues)
        if not self._by_flags:
            ends[:-1] = ~self.continues[1:]
        inside, cut = np.zeros((2, *self.continues.shape), bool)
        unknown = np.flatnonzero(~self._known)
        self.lost += len(unknown)
        for run in np.split(unknown, np.flatnonzero(np.diff(unknown) > 1) + 1) if len(unknown) else []:
            low, high, after = 0, rows - 1, int(run[-1]) + 1
            if run[0]:
                row, env, offset = self._places[run[0] - 1].tolist()
                low = max(0, row - self.floor)
                if 1 <= offset <= self.context and self._inside(row, env):
                    cut[row - self.floor, env] = True  # the rest of its stack may be among the unknown
            while after < len(self._places) and abs(int(self._places[after, 2])) > 1:
                row, env, offset = self._places[after].tolist()
                if offset > 0 and self._inside(row, env):
                    cut[row - self.floor, env] = True
                self._known[after] = self._readable[after] = False
                after += 1
            if after < len(self._places):
                high = min(high, int(self._places[after, 0]) - self.floor)
            inside[low : high + 1] = True
        sure = np.zeros_like(inside)
        for row, env, offset in self._places[self._readable].tolist():
            if offset == 1 and self._inside(row, env):
                sure[row - self.floor, env] = True
        self.single |= ((inside & ~sure) | cut) & ends

    def _write_again(self, best: dict[tuple[int, int, int], int]) -> None:
        """Choose what of the table is written behind it."""
        whole = {(row, env): 0 for row, env in (np.argwhere(self.explained) + np.array([self.floor, 0])).tolist()}
        for (row, env, offset), number in best.items():
            if offset < 0 and self._readable[number] and (row, env) in whole:
                whole[row, env] += 1
        for (row, env), count in whole.items():
            if count < self.context:
                self.unexplained[row - self.floor, env] = self.forgotten[row - self.floor, env] = True
        for (row, env, offset), number in sorted(best.items(), key=lambda item: (item[0][0], item[1])):
            at = row - self.floor
            if not (self.single if offset > 0 else self.unexplained)[at, env]:
                self._kept[number] = None
        left = {tuple(self._places[number].tolist()) for number in self._kept}
        last = self.commit.end - 1
        self._new = [env for env in range(self.continues.shape[1]) if (last, env, 1) not in left]
        self.single[-1, self._new] = True
        self.begin = self.commit.patch_end
        self.end = self.begin + len(self._kept) + len(self._new)

    def values(self) -> dict[str, Array]:
        """Return new values of the patch columns ``(patches, 1, *shape)``, each from its shards' first one on."""
        found = {}
        for path, one in self.shards.items():
            name = path.removeprefix(f"{PATCH_TABLE}/")
            if not one.damaged and self.end == self.commit.patch_end and not (name in self.ragged and self.lacks_items):
                continue
            column = one.reader.column
            values = np.zeros((self.end - one.first, 1, *column.shape), column.dtype)
            values[: one.end - one.first] = one.values(one.first, one.end)
            if path == PLACES:
                again = self._places[list(self._kept)].tolist()
                again += [(self.commit.end - 1, env, 1) for env in self._new]
                values[len(values) - len(again) :, 0] = np.reshape(again, (-1, 3))
                found[path] = values
                continue
            rows = self.rows[name]
            for number, (row, env) in self._healed.items():
                if not self._kept:
                    values[self.first - one.first + number, 0] = rows.value(row, env)
            for at, number in enumerate(self._kept, len(values) - len(self._kept) - len(self._new)):
                if number in self._healed:
                    row, env = self._healed[number]
                    values[at, 0] = rows.value(row, env)
                else:
                    values[at] = values[self._source[path][number]]
            if name in self.ragged:  # one that is not known is empty, at the end of the items
                values[spans.unfit(values, self.ragged[name], self._items(name))] = self._items(name).end
            found[path] = values
        return found
