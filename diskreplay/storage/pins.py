"""The checkpoints that need shards which the window has left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from diskreplay.schema import PATCH_TABLE
from diskreplay.storage.commit import Commit, is_patch, spans_itself

Spans = Sequence[tuple[int, int, str]]
"""The rows ``[begin, end)`` that are needed, and the name of the checkpoint that needs them."""


class Pins:
    """The commits of a stream that checkpoints hold.

    Args:
        cuts: these, by the names of the checkpoints.
        context: of the schema.
    """

    def __init__(self, cuts: Mapping[str, Commit], context: int) -> None:
        self._cuts = cuts
        self._context = context
        self._spans: dict[str, Spans] = {}

    def holders(self, shards: Iterable[int], path: str, shard_rows: int) -> dict[int, str]:
        """Return which of ascending shards of the array at ``path`` are needed, each with a checkpoint that needs it.

        One that needs those that follow, too, where there is one: so that few checkpoints stand for many shards.
        """
        return holders(shards, shard_rows, self._of(path))

    def _of(self, path: str) -> Spans:
        alike = path if spans_itself(path) else PATCH_TABLE if is_patch(path) else ""  # all of rows have the same spans
        if alike not in self._spans:
            spans = [(name, cut.span(path, self._context)) for name, cut in self._cuts.items()]
            self._spans[alike] = sorted((span.begin, span.end, name) for name, span in spans)
        return self._spans[alike]


def holders(shards: Iterable[int], shard_rows: int, spans: Spans) -> dict[int, str]:
    """Return what :meth:`Pins.holders` does, for spans in ascending order."""
    found: dict[int, str] = {}
    at, longest, chosen = 0, (0, ""), (0, "")
    for shard in shards:
        while at < len(spans) and spans[at][0] < (shard + 1) * shard_rows:
            longest, at = max(longest, spans[at][1:]), at + 1
        if chosen[0] <= shard * shard_rows:
            chosen = longest
        if chosen[0] > shard * shard_rows:
            found[shard] = chosen[1]
    return found
