"""One stream in RAM: its small columns, its window, and where patches stand.

Rows ``[floor, end)`` are held: the window ``[begin, end)`` that can be sampled, and before it the context rows that
frame stacks reach back to. Row ``end`` is no row yet, but its observation is already known where a transition's next
observation was given with it (:attr:`StreamLog.pending`); it stands in the table, one place past the last.

All that is held of a row, the number of its patch included, stands at one position of one table, and the log alone
makes the table longer. Which rows and patches there are is counted here and nowhere else.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.ids import STREAM_SHIFT, Ids
from diskreplay.ring import Table
from diskreplay.schema import CONTINUES, PATCHES, PLACE, REWARD, START, TERMINATED, TRUNCATED, VALID, Column, Start

NEXT_PATCH = ".next_patch"
"""The name of the table's array of patch numbers: -1 where the next row has the true next observation.

No column has a name that starts with a point.
"""


def place_of(name: str) -> str:
    """Return the name of the array with, for each row, the byte of the log at which its later value begins, or 0."""
    return f".{name}"


class Standing(enum.IntEnum):
    """The answer whether a row of one environment can be sampled."""

    NEVER = 0
    """The row is no transition and will not become one."""
    NOW = 1
    LATER = 2
    """The row may become a transition when more rows are there."""


NEVER, NOW, LATER = (int(standing) for standing in Standing)
"""The numbers to compare arrays with; see :data:`diskreplay.schema.CONTINUES`."""


class StreamLog:
    """The RAM side of one stream; the lock of the buffer that owns it guards every call.

    Args:
        stream: its number.
        columns, patch_columns: of the schema; the resident ones are mirrored.
        num_envs, capacity, context: environments, transitions of the window, rows kept before it.
        later: columns that are written later; for each of them the table also holds where in the log a row's value is.
        spans: the names of ragged columns, which are mirrored however long the window is.
    """

    def __init__(
        self, stream: int, columns: Iterable[Column], patch_columns: Iterable[Column],
        num_envs: int, capacity: int, context: int, later: Iterable[Column] = (), spans: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.stream = stream
        self.num_envs = num_envs
        self.capacity = capacity
        """The capacity, which :meth:`resize` changes together with ``rows``."""
        self.rows = max(1, capacity // num_envs)
        """The most rows that the window holds."""
        self.context = context
        self._small = [c for c in (*columns, *later) if c.resident and c.name not in spans]
        small = [c for c in columns if c.name in spans or c.is_held(self.window)]
        held = {c.name: ((num_envs, *c.shape), c.dtype) for c in small}
        self.resident = tuple(held)
        """The names of the columns that are mirrored here."""
        written: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        written |= {place_of(c.name): ((num_envs,), np.dtype(np.int64)) for c in later}
        written |= {c.name: ((num_envs, *c.shape), c.dtype) for c in later if c.is_held(self.window)}
        self.later = tuple(written)
        """The names of the arrays of the table for values written later: zeros as long as a row has none."""
        self.held = frozenset(self.resident + self.later)
        """The names of both."""
        self._all = len(tuple(columns)) + 2 * len(tuple(later))
        self.table = Table.new({**held, **written, NEXT_PATCH: ((num_envs,), np.int64)}, self.rows + context + 2)
        """The resident columns, each ``(length, num_envs, *shape)``; replaced by a longer table when it grows."""
        patched = [c for c in patch_columns if c.name == PLACE or c.name in held]
        self.patches = Table.new({c.name: (c.shape, c.dtype) for c in patched})
        """The resident columns of the patch table, each ``(length, *shape)``, addressed by patch numbers."""
        self.older_patches: dict[tuple[int, int], int] = {}
        """The row and environment with ``Start.PATCHES`` -> the id of the patch with the frame one step before."""
        self.next_older_patches: dict[tuple[int, int], int] = {}
        """The row and environment whose next stack is not its own moved on by one frame -> its patch of offset 2."""
        self.begin = 0
        self.end = 0
        self.patch_begin = 0
        self.patch_end = 0
        self.pending = False
        self.invalid = 0
        """The number of rows of environments in the window that are no transition."""

    def __len__(self) -> int:
        """Return the number of transitions in the window."""
        return (self.end - self.begin) * self.num_envs - self.invalid

    @property
    def window(self) -> int:
        """The most transitions that the window holds: those of whole rows."""
        return self.rows * self.num_envs

    def resize(self, capacity: int) -> None:
        """Let the window hold more or fewer transitions; columns that are now too large for RAM leave it.

        They return to RAM only when the stream is opened again.
        """
        rows = max(1, capacity // self.num_envs)
        self.slide(self.end - rows)
        self.capacity, self.rows = capacity, rows
        large = {c.name for c in self._small if not c.is_held(self.window)}
        # An interrupt here does no harm: what leaves RAM is read from disk before it is no longer written here.
        self.held -= large
        self.resident, self.later = (
            tuple(name for name in names if name not in large) for names in (self.resident, self.later)
        )
        self.table = self.table.without(large, self.rows + self.context + 2)
        self.patches = self.patches.without(large, self.patches.most)

    @property
    def whole(self) -> bool:
        """True if all columns are mirrored here."""
        return len(self.held) == self._all

    @property
    def floor(self) -> int:
        """The first row held; an empty window keeps the newest row, with its context."""
        return max(0, min(self.begin, self.end - 1) - self.context)

    @property
    def first_id(self) -> int:
        return (self.stream << STREAM_SHIFT) + self.begin * self.num_envs

    @property
    def stop_id(self) -> int:
        return (self.stream << STREAM_SHIFT) + self.end * self.num_envs

    def locate(self, ids: Ids) -> tuple[Ids, Ids]:
        """Return rows and environments of ids of this stream."""
        local = ids & ((1 << STREAM_SHIFT) - 1)
        if self.num_envs == 1:
            return local, np.zeros(len(local), np.int64)
        rows, envs = np.divmod(local, self.num_envs)
        return rows, envs

    def take(self, name: str, rows: Ids, envs: Ids) -> NDArray[Any]:
        """Return values of a resident column, ``(*rows.shape, *shape)``."""
        table = self.table
        found: NDArray[Any] = table.arrays[name][rows % table.length, envs]
        return found

    def span(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Return a copy of a resident column's values in rows ``[start, stop)``, ``(rows, num_envs, *shape)``."""
        return self.table.span(name, start, stop)

    def patch_numbers(self, rows: Ids, envs: Ids) -> Ids:
        """Return the patch of each row's true next observation, -1 where that is the next row's observation."""
        return self.at(NEXT_PATCH, self.positions(rows, envs))

    def positions(self, rows: Ids, envs: Ids) -> Ids:
        """Return where rows and environments stand in the table, for :meth:`at` and its like.

        To find these once for all columns of a batch is several times faster than :meth:`take` for each.
        """
        found: Ids = rows % self.table.length
        if self.num_envs > 1:
            found *= self.num_envs
            found += envs
        return found

    def at(self, name: str, positions: Ids) -> NDArray[Any]:
        """Return values of a resident column, ``(*positions.shape, *shape)``."""
        array = self.table.arrays[name]
        return array.reshape(-1, *array.shape[2:]).take(positions, axis=0)

    def next_at(self, name: str, positions: Ids) -> NDArray[Any]:
        """Return the true next values of a resident observation column of single frames, from patches too."""
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
        """Return the first item of a ragged column that a row or a patch needs: later rows name none before it."""
        floor = self.floor
        if floor == self.end:
            return 0
        return int(self.table.arrays[name][floor % self.table.length, :, 0].min())

    def extend(self, values: Mapping[str, NDArray[Any]], begin: int) -> None:
        """Enter rows read from disk, ``(n, num_envs, *shape)`` a column, from row ``end`` on."""
        self.slide(begin)
        count = len(values[START])
        self.reserve(count)
        rows = np.arange(self.end, self.end + count) % self.table.length
        for name in self.resident:
            self.table.arrays[name][rows] = values[name]
        self.table.arrays[NEXT_PATCH][rows] = -1
        for name in self.later:
            self.table.arrays[name][rows] = 0
        counted = values[VALID][max(0, self.begin - self.end) :]
        self.invalid += counted.size - int(counted.sum())
        self.end += count

    def restart(self, begin: int, first_row: int, first_patch: int) -> None:
        """Forget everything; the window begins at ``begin``, and rows are entered from ``first_row`` on."""
        self.older_patches.clear()
        self.next_older_patches.clear()
        self.begin, self.end, self.invalid = begin, first_row, 0
        self.patch_begin = self.patch_end = first_patch
        self.pending = False

    def reserve(self, rows: int = 1) -> None:
        """Make room for ``rows`` rows from row ``end`` on, and the pending observation after them."""
        length, most = self.table.length, (self.end - self.begin or 1) + self.context + rows + 1
        if most <= length:
            return
        floor = self.floor
        if self.end + rows + 1 - floor > length:
            self.table = self.table.with_room(floor, self.end + 1, self.end + rows + 1)

    def slide(self, begin: int) -> None:
        """Move the window's first row; rows below the context are forgotten."""
        if begin > self.begin:
            if self.invalid:
                self.invalid -= self._count_invalid(self.begin, min(begin, self.end))
            self.begin = begin

    def _count_invalid(self, start: int, stop: int) -> int:
        valid = self.span(VALID, start, stop)
        return valid.size - int(np.count_nonzero(valid))

    def add_patches(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Enter patches, ``(n, ...)`` a resident column, from ``patch_end`` on."""
        count = len(values[PLACE])
        self.patches = self.patches.with_room(self.patch_begin, self.patch_end, self.patch_end + count)
        numbers = np.arange(self.patch_end, self.patch_end + count) % self.patches.length
        for name, array in self.patches.arrays.items():
            array[numbers] = values[name]
        for row, env, offset in values[PLACE].tolist():
            self._place_patch(row, env, offset)

    def add_patch(self, row: int, env: int, offset: int, values: Mapping[str, Any]) -> None:
        """Enter one patch, as :meth:`add_patches`."""
        self.patches = self.patches.with_room(self.patch_begin, self.patch_end, self.patch_end + 1)
        number = self.patch_end % self.patches.length
        for name, array in self.patches.arrays.items():
            array[number] = values[name]
        self._place_patch(row, env, offset)

    def _place_patch(self, row: int, env: int, offset: int) -> None:
        if offset == 1 and row >= self.floor:
            self.table.arrays[NEXT_PATCH][row % self.table.length, env] = self.patch_end
        elif offset == 2:
            self.next_older_patches[row, env] = self.patch_end
        elif offset == -1:
            self.older_patches[row, env] = self.patch_end
        self.patch_end += 1

    def drop_patches(self) -> int:
        """Forget the patches of rows below the floor, and return the first patch that is left."""
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

    def inconsistency(self) -> str | None:
        """Return the rule, needed for sampling, that the rows read from disk break, or None."""
        if self.end == self.floor:
            return None
        starts = self.span(START, self.floor, self.end)
        if starts.max() > max(Start):
            return f"a start code is {starts.max()}, above {max(Start)}"
        if self.floor == 0 and (starts[0] == CONTINUES).any():
            return "row 0 says that it continues the row before it"
        rows, envs = np.nonzero(starts == PATCHES)
        if not all(
            place in self.older_patches for place in zip((rows + self.floor).tolist(), envs.tolist(), strict=True)
        ):
            return "a row lacks the patches that its start code promises"
        if (self.span(NEXT_PATCH, self.end - 1, self.end) < 0).any():
            return f"the newest row, {self.end - 1}, lacks the patch with its next observation"
        return None

    def begins(self, rows: Ids, envs: Ids) -> NDArray[np.bool_]:
        """Tell which rows do not continue the one before: a step there begins an episode."""
        found: NDArray[np.bool_] = self.take(START, rows, envs) != CONTINUES
        return found

    def is_cut(self, rows: Ids, envs: Ids) -> NDArray[np.bool_]:
        """Tell which rows' environments do not go on in the next row, as far as is known."""
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

    def history(self, rows: Ids, envs: Ids, frames: int) -> Ids:
        """Return how many of the ``frames`` rows before each row belong to its history: 0 to ``frames``."""
        if not frames:
            return np.zeros(len(rows), np.int64)
        # Before row 0 this takes anything; but row 0 continues nothing.
        steps = self.positions(rows, envs)[:, None] - np.arange(frames) * self.num_envs
        continues = self.at(START, steps % (self.table.length * self.num_envs)) == CONTINUES
        if continues.all():
            return np.full(len(rows), frames)
        depth: Ids = np.logical_and.accumulate(continues, axis=1).sum(axis=1)
        return depth

    def returns(self, rows: Ids, envs: Ids, n_step: int, gamma: float) -> tuple[NDArray[Any], Ids, NDArray[Any]]:
        """Return discounted rewards of up to ``n_step`` steps, the last row of each, and ``gamma ** steps``."""
        reward = self.take(REWARD, rows, envs)
        scale = np.full(len(rows), gamma, np.float64)
        if n_step == 1:
            return reward, rows, scale
        last = rows.copy()
        total = reward.astype(np.float64)
        alive = ~self.is_cut(rows, envs)
        for _ in range(n_step - 1):
            if not alive.any():
                break
            at = last[alive] + 1
            total[alive] += scale[alive] * self.take(REWARD, at, envs[alive])
            scale[alive] *= gamma
            last[alive] = at
            alive[alive] = ~self.is_cut(at, envs[alive])
        return total.astype(reward.dtype), last, scale
