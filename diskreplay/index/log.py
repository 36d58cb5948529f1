"""One stream in RAM: its small columns, its window, and the numbers of its patches.

The log holds the rows ``[floor, end)``. Of these the window ``[begin, end)`` can be sampled. The rows before it are the
context: the stacks of the window's first rows need their frames. Row ``end`` has not been added yet. But each row is
added with its next observation. The table also holds the small columns of that observation, at the position of row
``end``; then :attr:`StreamLog.pending` is True.

The log has one table of rows, with one position for each row. There stand the values that the log holds of the row, and
the number of the patch that holds the row's next observation. The numbers of patches with older frames stand outside
the table, in two dicts. Only the log makes the table longer. The table does not know which rows and patches exist: the
log has the numbers that say so.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.native import core
from diskreplay.schema.columns import CONTINUES, PLACE, START, TERMINATED, TRUNCATED, VALID, Column, Start
from diskreplay.schema.ids import STREAM_SHIFT, Ids
from diskreplay.schema.ring import Table, put

NEXT_PATCH = "..next_patch"
"""The name of the array with the number of the patch that holds each row's next observation.

The number is -1 if the next row holds that observation. No column's name starts with a point, and no other array's name
starts with two points.
"""


LOOKED_ROWS = 1 << 18
"""The rows whose start codes are looked at in one go."""


def place_of(name: str) -> str:
    """Return the name of the array that says where the values of a later column stand.

    For each row the array holds the byte of the log of bytes ``later/values`` at which the row's value begins, or 0 if
    the row has none.
    """
    return f".{name}"


class Standing(enum.IntEnum):
    """The standing of an id: can it be an item?"""

    NEVER = 0
    """It is not an item, and will never be one."""
    NOW = 1
    """It is an item."""
    LATER = 2
    """It may become an item once more rows have been added."""


NEVER, NOW, LATER = (int(standing) for standing in Standing)
"""The standings as plain integers, to compare arrays with; :data:`diskreplay.schema.columns.CONTINUES` says why."""


class StreamLog(core.Window):
    """What one stream holds in RAM. Callers hold ``engine.lock``.

    Args:
        stream: the stream's number.
        columns, patch_columns: the schema's columns, and those of the patch table.
        num_envs: the number of environments.
        capacity: the most transitions that the window may hold.
        context: the number of rows to hold before the window.
        later: the later columns. For each of them the table also says where a row's value stands.
        held: the names of the columns that the log holds, in rows and patches.
    """

    def __init__(
        self, stream: int, columns: Iterable[Column], patch_columns: Iterable[Column],
        num_envs: int, capacity: int, context: int, later: Iterable[Column] = (), held: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.stream = stream
        self.num_envs = num_envs
        self.capacity = capacity
        """The most transitions that the window may hold; :meth:`resize` changes it together with ``rows``."""
        self.rows = max(1, capacity // num_envs)
        """The most rows that the window may hold."""
        self.context = context
        self.without_tail = False
        """True if the newest rows are lost: values that were written later may be theirs."""
        rows = {c.name: ((num_envs, *c.shape), c.dtype) for c in columns if c.name in held}
        self.resident = tuple(rows)
        """The names of the columns that the log holds, without the later columns."""
        places = {place_of(c.name): ((num_envs,), np.dtype(np.int64)) for c in later}
        written = {**places, **{c.name: ((num_envs, *c.shape), c.dtype) for c in later if c.name in held}}
        self.later = tuple(written)
        """The names of the table's arrays for later columns; a row without a value has zeros there."""
        self.held = frozenset(self.resident + self.later)
        """The names in ``resident`` and ``later``."""
        self._all = len(tuple(columns)) + 2 * len(tuple(later))
        self.table: Table = Table.new({**rows, **written, NEXT_PATCH: ((num_envs,), np.int64)}, self.rows + context + 2)
        """The arrays of the rows, each ``(length, num_envs, *shape)``; a longer table replaces it when it is full."""
        patched = [c for c in patch_columns if c.name == PLACE or c.name in rows]
        self.patches: Table = Table.new({c.name: (c.shape, c.dtype) for c in patched})
        """The small columns of the patches, each ``(length, *shape)``; patch ``n`` stands at ``n % length``."""
        self.older_patches: dict[tuple[int, int], int] = {}
        """For each row and environment whose start code has the rule PATCHES: the number of a patch.

        If the number is ``n``, patch ``n`` holds the frame one step before the row (offset -1), patch ``n + 1`` the
        frame two steps before it, and so on.
        """
        self.next_older_patches: dict[tuple[int, int], int] = {}
        """For each row and environment whose next observation has its whole stack in patches: the number of a patch.

        It is the patch with the frame before the newest one, and has offset 2. The patch with the newest frame
        has offset 1.
        """
        self.invalid = 0
        """How many entries of the window are no transitions; an entry is one row of one environment."""
        self.restart(0, 0, 0)

    def __len__(self) -> int:
        """Return the number of transitions in the window."""
        return (self.end - self.begin) * self.num_envs - self.invalid

    @property
    def window(self) -> int:
        """The capacity in transitions, rounded down to whole rows; at least one row."""
        return self.rows * self.num_envs

    def resize(self, capacity: int) -> None:
        """Set the capacity of the window."""
        rows = max(1, capacity // self.num_envs)
        self.slide(self.end - rows)
        self.capacity, self.rows = capacity, rows
        self.table = self.table._replace(most=self.rows + self.context + 2)

    def let_go(self, large: Collection[str]) -> None:
        """Drop columns of these names from RAM; they return only when the stream is opened again."""
        # From here on large columns are read from disk. If an interrupt comes before their arrays are dropped, new rows
        # are still written to those, too, which does no harm.
        self.held = self.held.difference(large)
        self.resident, self.later = (
            tuple(name for name in names if name not in large) for names in (self.resident, self.later)
        )
        self.table, self.patches = self.table.without(large), self.patches.without(large)

    @property
    def holds_all(self) -> bool:
        """True if the log holds all columns."""
        return len(self.held) == self._all

    @property
    def floor(self) -> int:
        """The first row that the log holds.

        If the window is empty, the log still holds the newest row and that row's context.
        """
        return max(0, min(self.begin, self.end - 1) - self.context)

    @property
    def first_id(self) -> int:
        return (self.stream << STREAM_SHIFT) + self.begin * self.num_envs

    @property
    def stop_id(self) -> int:
        return (self.stream << STREAM_SHIFT) + self.end * self.num_envs

    def locate(self, ids: Ids) -> tuple[Ids, Ids]:
        """Return the rows and the environments of ids of this stream."""
        local = ids & ((1 << STREAM_SHIFT) - 1)
        if self.num_envs == 1:
            return local, np.zeros(len(local), np.int64)
        rows, envs = np.divmod(local, self.num_envs)
        return rows, envs

    def take(self, name: str, rows: Ids, envs: Ids) -> NDArray[Any]:
        """Return the values of a held column at rows and environments, ``(*rows.shape, *shape)``."""
        table = self.table
        return table.arrays[name][rows % table.length, envs]

    def span(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Return a copy of a held column's values in rows ``[start, stop)``, ``(rows, num_envs, *shape)``."""
        return self.table.span(name, start, stop)

    def positions(self, rows: Ids, envs: Ids) -> Ids:
        """Return the positions of rows and environments in the table, for :meth:`at` and :meth:`next_at`.

        Finding the positions once for all columns of a batch is several times faster than :meth:`take` for each column.
        """
        found: Ids = rows % self.table.length
        if self.num_envs > 1:
            found *= self.num_envs
            found += envs
        return found

    def at(self, name: str, positions: Ids) -> NDArray[Any]:
        """Return the values of a held column at positions, ``(*positions.shape, *shape)``."""
        array = self.table.arrays[name]
        return array.reshape(-1, *array.shape[2:]).take(positions, axis=0)

    def next_at(self, name: str, positions: Ids) -> NDArray[Any]:
        """Return the next observations of the rows at positions, for a held column without stacks.

        They come from patches where the rows have one, and else from the next rows.
        """
        following = positions + self.num_envs
        size = self.table.length * self.num_envs
        following[following >= size] -= size
        found = self.at(name, following)
        patch = self.at(NEXT_PATCH, positions)
        patched = patch >= 0
        if patched.any():
            found[patched] = self.patches.arrays[name][patch[patched] % self.patches.length]
        return found

    def first_item(self, name: str) -> int:
        """Return the number of the first item of a ragged column that rows and patches in the log need.

        Spans may overlap. But in each environment their starts never decrease, so the first row has the least.
        """
        floor = self.floor
        if floor == self.end:
            return 0
        return int(self.table.arrays[name][floor % self.table.length, :, 0].min())

    def extend(self, count: int, begin: int, read: Callable[[str, int, NDArray[Any]], None]) -> None:
        """Move the window's first row to ``begin``, and append rows from disk.

        ``read(name, start, out)`` reads the rows of a column from ``start`` on into ``out``, a part of the table.
        """
        self.slide(begin)
        self.reserve(count)
        while count:  # they may go round in the table
            first = self.end % self.table.length
            here = {name: array[first : first + count] for name, array in self.table.arrays.items()}
            for name in self.resident:
                read(name, self.end, here[name])
            here[NEXT_PATCH][:] = -1
            for name in self.later:
                here[name][:] = 0
            counted = here[VALID][max(0, self.begin - self.end) :]
            self.invalid += counted.size - int(np.count_nonzero(counted))
            self.end += len(here[VALID])
            count -= len(here[VALID])

    def restart(self, begin: int, first_row: int, first_patch: int) -> None:
        """Forget everything, and set where the window begins, and the numbers of the next row and the next patch."""
        self.begin, self.end, self.invalid = begin, first_row, 0
        self.pending = self.going = self.noted = False
        self.cut = -1
        self.skip_patches(first_patch)

    def skip_patches(self, first: int) -> None:
        """Forget all patches, and set the number of the next one."""
        self.older_patches.clear()
        self.next_older_patches.clear()
        self.patch_begin = self.patch_end = first

    def reserve(self, rows: int = 1) -> None:
        """Make room for ``rows`` more rows, and for the pending observation after them."""
        length, most = self.table.length, (self.end - self.begin or 1) + self.context + rows + 1
        if most <= length:
            return
        floor = self.floor
        if self.end + rows + 1 - floor > length:
            self.table = self.table.with_room(floor, self.end + 1, self.end + rows + 1)

    def put_pending(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Put the small columns ``(num_envs, *shape)`` of the newest next observation to the place of row ``end``."""
        self.reserve()
        for name, value in values.items():
            self.table.arrays[name][self.end % self.table.length] = value
        self.pending = True

    def slide(self, begin: int) -> None:
        """Move the window's first row forward to ``begin``, and forget the rows before its context."""
        if begin > self.begin:
            if self.invalid:
                valid = self.span(VALID, self.begin, min(begin, self.end))
                self.invalid -= valid.size - int(np.count_nonzero(valid))
            self.begin = begin

    def add_patches(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Append patches, ``(n, *shape)`` for each held column."""
        count = len(values[PLACE])
        self.patches = self.patches.with_room(self.patch_begin, self.patch_end, self.patch_end + count)
        for name, array in self.patches.arrays.items():
            put(array, self.patch_end, values[name])
        rows, envs, offsets = values[PLACE].T
        numbers = np.arange(self.patch_end, self.patch_end + count)
        next_ones = (offsets == 1) & (rows >= self.floor) & (rows < self.end)  # others where the tail is lost
        self.table.arrays[NEXT_PATCH][rows[next_ones] % self.table.length, envs[next_ones]] = numbers[next_ones]
        for at in np.flatnonzero((offsets == 2) | (offsets == -1)).tolist() if not next_ones.all() else ():
            older = self.next_older_patches if offsets[at] == 2 else self.older_patches
            older[int(rows[at]), int(envs[at])] = self.patch_end + at
        self.patch_end += count

    def drop_patches(self) -> int:
        """Forget the patches of rows below the floor, and return the number of the first one left."""
        places = self.patches.arrays[PLACE]
        floor = self.floor
        while self.patch_begin < self.patch_end:
            row, env, offset = places[self.patch_begin % len(places)].tolist()
            if row >= floor:
                break
            if offset == 2:
                self.next_older_patches.pop((row, env), None)
            elif offset == -1:
                self.older_patches.pop((row, env), None)
            self.patch_begin += 1
        return self.patch_begin

    def drop_unexplained(self, following: NDArray[np.uint8]) -> int:
        """Take rows for no transitions whose next observation may have been a patch that is lost; return how many.

        ``following`` are the start codes of row ``end``, ``(num_envs,)``.
        """
        found = 0
        for start in range(self.begin, self.end, LOOKED_ROWS):
            stop = min(start + LOOKED_ROWS, self.end)
            after = np.concatenate([self.span(START, start + 1, min(stop + 1, self.end)), following[None]])
            cut = (after[: stop - start] != CONTINUES) & (self.span(NEXT_PATCH, start, stop) < 0)
            rows, envs = np.nonzero(cut & self.span(VALID, start, stop))
            self.table.arrays[VALID][(start + rows) % self.table.length, envs] = False
            found += len(rows)
        self.invalid += found
        return found

    def with_rows(self, valid: NDArray[np.bool_], starts: NDArray[np.uint8]) -> StreamLog:
        """Return a log of the same values, with other columns ``valid`` and ``start`` in the window's rows.

        Both are ``(rows, num_envs)``. The logs share all other arrays.
        """
        other, rows = copy.copy(self), np.arange(self.begin, self.end) % self.table.length
        arrays = {**self.table.arrays, VALID: self.table.arrays[VALID].copy(), START: self.table.arrays[START].copy()}
        arrays[VALID][rows], arrays[START][rows] = valid, starts
        other.table = self.table._replace(arrays=arrays)
        other.invalid = valid.size - int(np.count_nonzero(valid))
        return other

    def inconsistency(self) -> str | None:
        """Return a message if the rows read from disk cannot be sampled because they break a rule, else None."""
        if self.end == self.floor:
            return None
        if self.floor == 0 and (self.span(START, 0, 1) == CONTINUES).any():
            return "row 0 says that it continues the row before it"
        for start in range(self.floor, self.end, LOOKED_ROWS):
            starts = self.span(START, start, min(start + LOOKED_ROWS, self.end))
            rows, envs = np.nonzero(starts != CONTINUES)
            codes = starts[rows, envs]
            if len(wrong := codes[Start.wrong(codes)]):
                return f"a start code is {wrong[0]}, which is none"
            patched = Start.by_patches(codes)
            places = zip((rows[patched] + start).tolist(), envs[patched].tolist(), strict=True)
            if not all(place in self.older_patches for place in places):
                return "a row lacks the patches that its start code promises"
        return None

    def begins(self, rows: Ids, envs: Ids) -> NDArray[np.bool_]:
        """Tell which rows do not continue the row before; a transition at such a row begins an episode."""
        found: NDArray[np.bool_] = self.take(START, rows, envs) != CONTINUES
        return found

    def is_cut(self, rows: Ids, envs: Ids) -> NDArray[np.bool_]:
        """Tell which rows are the last of their episode; for the newest row only its flags can tell."""
        done = self.take(TERMINATED, rows, envs) | self.take(TRUNCATED, rows, envs)
        following = rows + 1 < self.end
        starts = self.begins(np.where(following, rows + 1, rows), envs)
        cut: NDArray[np.bool_] = done | (following & starts)
        return cut

    def standing(self, rows: Ids, envs: Ids, n_step: int = 1) -> NDArray[np.int8]:
        """Return the :class:`Standing` of rows of the window as transitions of ``n_step`` steps."""
        found = self.take(VALID, rows, envs).astype(np.int8) if self.invalid else np.ones(len(rows), np.int8)
        if n_step > 1:
            for at in np.flatnonzero((found == NOW) & (rows + n_step > self.end)):
                tail = np.arange(rows[at], self.end)
                if not self.is_cut(tail, np.full_like(tail, envs[at])).any():
                    found[at] = LATER
        return found
