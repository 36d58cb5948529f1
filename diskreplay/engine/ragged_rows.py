"""Ragged rows on their way into a stream: items are appended to the column's array; a span takes their place.

After that, a row has columns of one shape only. Three rules hold:

1. An observation that equals the pending one gets its span. So observations are equal if their spans are.
2. A value that equals the one before it, in its column and environment, gets the same span, if that is not far behind
   the newest item. So a value that stays the same is stored once, and no old span keeps a shard from being deleted.
3. Where the value before it ends with the newest item, a value that begins with it gets a span that begins where that
   one does, and only its rest is appended. So a value that grows is stored once, and pins no more than itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from diskreplay.checks import Array
from diskreplay.engine.arguments import Row
from diskreplay.errors import StateError
from diskreplay.schema.columns import Schema
from diskreplay.storage.column import ColumnWriter
from diskreplay.storage.commit import MAX_ITEMS

Span = tuple[int, int]

NEAR_SHARE = 8
"""1 over this is how far, in shards, a span may be behind the newest item if it is to be used again."""


class NewItems:
    """The items of one ragged column on their way into its array.

    Attributes:
        newest: the span of each environment's newest value, and this value's bytes; None before the first.
    """

    def __init__(self, column: ColumnWriter, num_envs: int) -> None:
        self.column = column
        self.newest: list[tuple[Span, bytes] | None] = [None] * num_envs

    def put(self, env: int, value: Array, pending: bool = False) -> Span:
        """Return the span of a value; append those of its items that the newest value of its environment lacks.

        ``pending`` tells that this newest value is the pending observation.
        """
        end, data = self.column.end, value.tobytes()
        start = end
        if (newest := self.newest[env]) is not None:
            (first, stop), before = newest
            if data == before and (pending or end - first <= self.column.column.shard_rows // NEAR_SHARE):
                return first, stop
            if stop == end and data.startswith(before):
                start, value = first, value[stop - first :]
        self.column.append(value)
        span = start, end + len(value)
        self.newest[env] = span, data
        return span


class RaggedRows:
    """The ragged columns of one stream's rows; callers hold ``engine.write_lock``.

    Args:
        schema, columns, num_envs: the stream's schema, its arrays of items by the names of their columns, and how many
            environments it has.
        read: a function that returns the items of a span of a column; it takes ``engine.lock`` itself.
    """

    def __init__(
        self, schema: Schema, columns: dict[str, ColumnWriter], num_envs: int, read: Callable[[str, Span], Array]
    ) -> None:
        self._num_envs = num_envs
        self._shape = (-1, 2) if num_envs == 1 else (-1, num_envs, 2)
        self._read = read
        new = {name: NewItems(column, num_envs) for name, column in columns.items()}
        self._obs, self._actions, self._extras = (
            [(at, column.name, new[column.name]) for at, column in enumerate(group) if column.name in new]
            for group in (schema.obs_columns, schema.action_columns, schema.extra_columns)
        )
        self._new = new

    def check(self) -> None:
        """Raise StateError if a column can have no more items."""
        for name, new in self._new.items():
            if new.column.end >= MAX_ITEMS:
                raise StateError(f"the ragged column {name!r} of this stream can have no more items; go on in another")

    def seed_newest(self, pending: Sequence[Any]) -> None:
        """Make the pending observations, given by leaf, the newest values, as they are not yet after opening.

        This may read the disk: call it before the change in which rows are placed, which a failed read would cut short.
        """
        for leaf, name, new in self._obs:
            for env, (start, stop) in enumerate(np.reshape(pending[leaf], (-1, 2)).tolist()):
                newest = new.newest[env]
                if newest is None or newest[0] != (start, stop):
                    new.newest[env] = (start, stop), self._read(name, (start, stop)).tobytes()

    def place(self, row: Row, pending: bool) -> Row:
        """Append the items of a checked row, and return the row with their spans.

        ``pending`` tells that there are pending observations, which are the newest values.
        """
        obs, following, actions, extras = list(row.obs), list(row.next_obs), list(row.actions), list(row.extras)
        for leaf, _, new in self._obs:
            obs[leaf] = self._spans(new, obs[leaf], pending)
            following[leaf] = self._spans(new, following[leaf])
        for at, _, new in self._actions:
            actions[at] = self._spans(new, actions[at])
        for at, _, new in self._extras:
            extras[at] = self._spans(new, extras[at])
        return row._replace(obs=obs, next_obs=following, actions=actions, extras=extras)

    def _spans(self, new: NewItems, given: Any, pending: bool = False) -> Array:
        """Return the spans of one row, ``([num_envs,] 2)``."""
        if self._num_envs == 1:
            return np.array(new.put(0, given, pending), np.int64)
        return np.array([new.put(env, value, pending) for env, value in enumerate(given)], np.int64)

    def with_spans(self, values: Row, placed: Sequence[Row]) -> Row:
        """Return many steps with the spans of their placed rows; the first axis of each array is the steps."""
        found = values
        for what, group in (
            ("obs", self._obs), ("next_obs", self._obs), ("actions", self._actions), ("extras", self._extras),
        ):  # fmt: skip
            column = list(getattr(values, what))
            for at, _, _ in group:
                column[at] = np.array([getattr(row, what)[at] for row in placed], np.int64).reshape(self._shape)
            found = found._replace(**{what: column})
        return found
