"""The checkpoints that need shards which the window has left."""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

from diskreplay.schema.columns import PATCH_TABLE
from diskreplay.storage.commit import Commit, is_patch, spans_itself

Spans = Sequence[tuple[int, int, str]]
"""The rows ``[begin, end)`` that are needed, and the name of the checkpoint that needs them."""
BEGIN: Callable[[tuple[int, int, str]], int] = operator.itemgetter(0)


class Pins:
    """The commits of a stream that checkpoints hold.

    Args:
        cuts: these, by the names of the checkpoints.
        context: the context of the schema, in rows.
    """

    def __init__(self, cuts: Mapping[str, Commit], context: int) -> None:
        self._cuts = cuts
        self._context = context
        self._spans: dict[str, Spans] = {}

    def holders(self, shards: Iterable[int], path: str, shard_rows: int) -> dict[int, str]:
        """Return which of ascending shards of the array at ``path`` are needed, each with a checkpoint that needs it.

        One that needs those that follow, too, where there is one: so that few checkpoints stand for many shards.
        """
        return _reached(shards, shard_rows, self._of(path))

    def _of(self, path: str) -> Spans:
        alike = path if spans_itself(path) else PATCH_TABLE if is_patch(path) else ""  # all of rows have the same spans
        if alike not in self._spans:
            spans = [(name, cut.span(path, self._context)) for name, cut in self._cuts.items()]
            self._spans[alike] = _reaching(sorted((span.begin, span.end, name) for name, span in spans))
        return self._spans[alike]


def holders(shards: Iterable[int], shard_rows: int, spans: Spans) -> dict[int, str]:
    """Return what :meth:`Pins.holders` does, for spans in ascending order."""
    return _reached(shards, shard_rows, _reaching(spans))


def _reaching(spans: Spans) -> Spans:
    """Return ascending spans, each with the end of that which goes on for longest of those that begin no later."""
    longest = itertools.accumulate(((end, name) for _, end, name in spans), max)
    return [(begin, end, name) for (begin, _, _), (end, name) in zip(spans, longest, strict=True)]


def _reached(shards: Iterable[int], shard_rows: int, spans: Spans) -> dict[int, str]:
    found: dict[int, str] = {}
    chosen = (0, "")
    for shard in shards:
        if chosen[0] <= shard * shard_rows:
            at = bisect.bisect_left(spans, (shard + 1) * shard_rows, key=BEGIN)
            chosen = spans[at - 1][1:] if at else chosen
        if chosen[0] > shard * shard_rows:
            found[shard] = chosen[1]
    return found
