"""The repair of one stream: find what is lost, give it up, fill the holes."""

# ruff: noqa: PTH118, PTH120  # plain strings behind the seam to the file system, as in storage

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from diskreplay.checks import Array
from diskreplay.ops.problems import DAMAGE
from diskreplay.ops.quarantine import Quarantine
from diskreplay.ops.repair import spans
from diskreplay.ops.repair.column_repair import ColumnRepair
from diskreplay.ops.repair.patches import PatchRepair
from diskreplay.schema.columns import PLACES, REWARD, START, VALID, Start
from diskreplay.storage import metadata, stream
from diskreplay.storage.commit import Commit, Tail, is_patch, spans_itself
from diskreplay.storage.store import Store


@dataclasses.dataclass(frozen=True)
class StreamLoss:
    """The rows of a stream that were given up.

    Attributes:
        transitions, episodes: the transitions and episodes that can no longer be sampled, or not from beginning to end.
        rows: the ranges ``(start, stop)`` of the rows that they belong to.
        columns: the columns with chunks that could not be read.
        chunks, bytes: the number of chunks that were given up, and their encoded bytes as far as an index still says.
        patches: frames of the patch table that could not be read and not be found elsewhere.
        went_back_to: the row that the stream ends at, where its record could not be read.
        whole: the stream was moved aside.
        facts: bytes of the facts of its episodes, all of which were given up where some were damaged.
        later: bytes of the values that were written later, likewise.
    """

    stream: str
    transitions: int = 0
    episodes: int = 0
    rows: tuple[tuple[int, int], ...] = ()
    columns: tuple[str, ...] = ()
    chunks: int = 0
    bytes: int = 0
    patches: int = 0
    went_back_to: int | None = None
    whole: bool = False
    facts: int = 0
    later: int = 0


class StreamRepair:
    """One stream, locked, with a record that can be read.

    Args:
        lengths: committed bytes of shards that checkpoints rely on, by column and shard: they are kept.
    """

    def __init__(
        self, store: Store, name: str, commit: Commit, quarantine: Quarantine, lengths: dict[str, dict[int, int]]
    ) -> None:
        self.store = store
        self.name = name
        self.path = store.stream_path(name)
        self.commit = commit
        self.schema = store.schema
        self.context = self.schema.context
        self.floor = commit.floor(self.context)
        self.quarantine = quarantine
        self.shards: dict[str, ColumnRepair] = {}
        for path, reader in store.readers(name, commit).items():
            span = commit.span(path, self.context)
            self.shards[path] = ColumnRepair(
                reader, span.begin, span.end, span.tail, quarantine, lengths.get(path, {}), PREDICATES.get(path),
                newer=not is_patch(path),
            )  # fmt: skip

    def run(self, release: Callable[[int, int], None]) -> StreamLoss | None:
        """Repair the stream; return what was given up, or None if nothing had to be.

        ``release`` is called with rows, half-open, before they change: no checkpoint may rely on them.
        """
        for path, shards in self.shards.items():
            self.quarantine.keep_directory(os.path.dirname(shards.reader.directory))
            self.quarantine.keep_directory(shards.reader.directory)
            self._document(path)
            shards.clear_names()
            shards.scan()
        found = self._look()
        return None if found is None else self._give_up(*found, release)

    def foresee(self) -> tuple[StreamLoss | None, list[tuple[int, int]]]:
        """Return what :meth:`run` would give up, and the rows that would change, without a change."""
        for shards in self.shards.values():
            shards.scan()
        found = self._look()
        if found is None:
            return None, []
        *_, changed, loss = self._choice(*found)
        return loss, changed

    def _look(self) -> tuple[Array, Array, Array, PatchRepair] | None:
        """Return ``start``, ``valid``, which rows continued, and the patches, or None if all is well."""
        if not self.commit.end:
            return None
        start, valid = (self.shards[name].values(self.floor, self.commit.end) for name in (START, VALID))
        # A repair, this one before a crash or another, gives rows that continued and were given up the code REPEAT.
        continues = (start == Start.CONTINUES) | ((start == Start.REPEAT) & ~valid)
        by_flags = self.schema.continuity == "flags"
        patches = PatchRepair(
            self.shards, self.schema.ragged, self.commit, start, continues, self.floor, self.context, by_flags
        )
        damaged = any(shards.damaged for shards in self.shards.values())
        if not (
            damaged or patches.broken or patches.lacks_items or any(self._lost(n).any() for n in self.schema.ragged)
        ):
            return None
        return start, valid, continues, patches

    def _document(self, path: str, end: int | None = None) -> None:
        """Write an array's document, unless it is right for rows up to ``end``, by default those that there are."""
        shards = self.shards[path]
        directory, column = shards.reader.directory, shards.reader.column
        least = max(1, -(-(shards.end if end is None else end) // column.shard_rows)) * column.shard_rows
        rows = least
        try:
            stored = metadata.read(self.store.files, directory)
            rows = stored["shape"][0]
            if type(rows) is not int or rows < least or rows % column.shard_rows or rows > least + (1 << 40):
                rows = least
            if stored == metadata.array_document(column, shards.reader.num_envs, rows):
                return
        except (FileNotFoundError, KeyError, TypeError, IndexError, *DAMAGE):
            rows = least
        if end is None:
            self.quarantine.take(os.path.join(directory, metadata.NAME))
        metadata.write(self.store.files, directory, metadata.array_document(column, shards.reader.num_envs, rows))

    def _give_up(
        self, start: Array, valid: Array, continues: Array, patches: PatchRepair, release: Callable[[int, int], None]
    ) -> StreamLoss:  # fmt: skip
        """Choose the rows to give up, release the checkpoints that show them, and commit the stream without them."""
        given_up, codes, changed, loss = self._choice(start, valid, continues, patches)
        for rows in changed:
            release(*rows)
        new = {VALID: valid & ~given_up, START: codes, **self._emptied(patches), **patches.values()}
        self._replace(new, patches)
        return loss

    def _choice(
        self, start: Array, valid: Array, continues: Array, patches: PatchRepair
    ) -> tuple[Array, Array, list[tuple[int, int]], StreamLoss]:
        """Return the rows to give up, the start codes then, the ranges of rows that change, and what is lost by it."""
        given_up = self._given_up(continues, patches)
        codes = self._codes(start, given_up, continues, patches)
        changed = _ranges(np.flatnonzero((given_up | (codes != start)).any(axis=1)) + self.floor)
        window = slice(self.commit.begin - self.floor, None)
        gone = (given_up & (valid | self._lost(VALID)))[window]
        return given_up, codes, changed, self._loss(gone, ~continues[window], patches)

    def _given_up(self, continues: Array, patches: PatchRepair) -> Array:
        rows = [path for path in self.shards if not is_patch(path) and not spans_itself(path)]
        lost = np.any([self._lost(path) for path in rows], axis=0)
        patches.look(lost)
        before = np.zeros_like(lost)  # rows without a next observation
        before[:-1] = lost[1:] & ~lost[:-1] & ~patches.ends[:-1]
        # The rest of a run has stacks that reach back to a lost row, or to the patches that its first stack needs.
        rest = lost | patches.unexplained
        if self.context:
            for row in range(1, len(rest)):
                rest[row] |= rest[row - 1] & continues[row]
        found: Array = rest | before | patches.single
        return found

    def _codes(self, start: Array, given_up: Array, continues: Array, patches: PatchRepair) -> Array:
        codes = start.copy()
        codes[given_up & (continues | self._lost(START))] = Start.REPEAT
        codes[given_up & Start.by_patches(start) & patches.forgotten] = Start.ZEROS
        if not self.context:
            codes[1:][given_up[:-1] & ~given_up[1:] & continues[1:]] = Start.ZEROS
        return codes

    def _replace(self, new: dict[str, Array], patches: PatchRepair) -> None:
        """Commit new values of columns, and zeros for what is damaged of the others.

        Three commits, in an order that a repair after a crash can go on from. First the rows that are no transitions:
        once zeros stand in the place of damage, nothing else says that these rows are given up. Then the start codes:
        a REPEAT stands for "continued, and was given up" only at a row that is no transition. Then all else.
        """
        first = [START, PLACES]
        if patches.end > self.commit.patch_end:  # the table is written again, and is whole or not there
            first += [path for path in self.shards if is_patch(path) and path not in first]
            for path in first[1:]:
                self._document(path, patches.end)
        commit = dataclasses.replace(self.commit, timeline=self.commit.timeline + 1)
        commit = self._write(commit, {VALID: new[VALID]})
        commit = dataclasses.replace(commit, patch_begin=patches.begin, patch_end=patches.end)
        commit = self._write(commit, {path: new.get(path) for path in first})
        self._write(commit, {path: new.get(path) for path in self.shards if path not in (VALID, *first)})

    def _lost(self, path: str) -> Array:
        """Return the rows ``(rows, num_envs)`` that cannot be read in a column, with their items if it is ragged."""
        mask = self._unread(path)
        if (ragged := self.schema.ragged.get(path)) is not None:
            values = self.shards[path].values(self.floor, self.commit.end)
            mask |= spans.lost(values, ragged, self.shards[ragged.items.name])
        return mask

    def _unread(self, path: str) -> Array:
        mask = np.zeros((self.commit.end - self.floor, self.commit.num_envs), bool)
        for rows, group in self.shards[path].lost_rows():
            mask[rows[0] - self.floor : rows[1] - self.floor, slice(None) if group is None else group] = True
        return mask

    def _emptied(self, patches: PatchRepair) -> dict[str, Array]:
        """Return the spans of the ragged columns, empty where they are not known."""
        found = {}
        for name, ragged in self.schema.ragged.items():
            values, items = self.shards[name].values(self.floor, self.commit.end), self.shards[ragged.items.name]
            unknown = self._unread(name) | spans.unfit(values, ragged, items)
            found[name] = spans.emptied(values, unknown, min(items.end, patches.newest_item(name)))
        return found

    def _write(self, commit: Commit, values: dict[str, Any]) -> Commit:
        """Commit new values where they differ or are damaged, or for None zeros where they are damaged."""
        tails = dict(commit.tails)
        for path, new in values.items():
            shards = self.shards[path]
            tails[path] = shards.write(new, commit.span(path, self.context).end)
        record = commit.next(tails={k: t for k, t in tails.items() if t.size})
        stream.write_commit(self.store.files, self.path, record)
        for path in values:
            self.shards[path].tail = record.tails.get(path, Tail(0, 0))
        return record

    def _loss(self, gone: Array, begins: Array, patches: PatchRepair) -> StreamLoss:
        runs = np.cumsum(begins, axis=0)
        episodes = sum(len(np.unique(runs[gone[:, env], env])) for env in range(gone.shape[1]))
        rows = np.flatnonzero(gone.any(axis=1)) + self.commit.begin
        damaged = {path: shards for path, shards in self.shards.items() if shards.damaged}
        return StreamLoss(
            self.name, int(gone.sum()), episodes,
            tuple(_ranges(rows)),
            tuple(damaged), sum(len(s.bad) for s in damaged.values()), sum(s.bad_bytes for s in damaged.values()),
            patches.lost,
        )  # fmt: skip


def _ranges(rows: Array) -> list[tuple[int, int]]:
    """Return runs of consecutive numbers, half-open."""
    parts = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1) if len(rows) else []
    return [(int(part[0]), int(part[-1]) + 1) for part in parts]


PREDICATES: dict[str, Callable[[Array], Array]] = {
    VALID: lambda values: values.view(np.uint8) <= 1,
    "terminated": lambda values: values.view(np.uint8) <= 1,
    "truncated": lambda values: values.view(np.uint8) <= 1,
    START: lambda values: ~Start.wrong(values),
    REWARD: np.isfinite,
}
"""The test that values of a column must pass."""
