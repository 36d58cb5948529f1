"""The check of one commit's rows against each other: where runs begin, and what the patch table says of them.

1. ``start`` is one of the codes of :class:`diskreplay.schema.columns.Start`, of 1 to 3 maybe plus ``CUT_START``.
2. A row continues the one before only where both are transitions and the one before did not end; the first row of all
   continues nothing.
3. Patches are in the order of their rows. Each names an existing row and environment, and an offset from ``-context``
   to ``context + 1`` that is not 0; no two are alike.
4. A patch of offset ``k`` above 1 comes right after the one of ``k - 1``, ``-k`` below -1 right after ``-(k - 1)``.
5. A row whose start is ``PATCHES`` has all offsets from -1 to ``-context``, and no other row has a negative one.
6. A commit's patches belong to rows that it keeps, and those of its last row hold the next observation of every
   environment.
7. A patch of the next observation of a row equals the row that continues it.
8. The spans of ragged columns are among the items that a commit holds. In video columns the records between are whole,
   and no span ends inside of one; nothing is decoded.

What cannot be read is left out: :mod:`diskreplay.ops.verify_chunks` reports it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np

from diskreplay import video
from diskreplay.checks import Array
from diskreplay.errors import CorruptionError, EvictedError, InputError
from diskreplay.index import cuts
from diskreplay.ops.problems import DAMAGE, Findings
from diskreplay.reading import ragged_reads
from diskreplay.schema.columns import (
    CUT_PLACES,
    CUTS,
    PATCH_TABLE,
    PLACES,
    START,
    TERMINATED,
    TRUNCATED,
    VALID,
    Schema,
    Start,
)
from diskreplay.storage import chunks
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.commit import ROWS, Commit, table_of
from diskreplay.storage.tail import Part
from diskreplay.video import Video

BLOCK_VALUES = 1 << 20
"""The number of values (rows times environments) that are looked at together."""
UNREADABLE = (EvictedError, *DAMAGE)


class RowCheck:
    """A check of the rows and patches of a stream that a commit needs.

    Args:
        readers: those of the columns, by path, with nothing loaded.
        parts: what the commit's tail holds.
        seen: the first row and the first patch that a newer commit of the same timeline was checked with.
    """

    def __init__(
        self, readers: Mapping[str, ColumnReader], parts: Sequence[Part], schema: Schema, commit: Commit,
        found: Findings, seen: tuple[int, int],
    ) -> None:  # fmt: skip
        self.readers = readers
        self.parts = parts
        self.patches = commit.table(PATCH_TABLE)
        self.schema = schema
        self._lost: dict[str, CorruptionError] = {}
        """Of columns of which rows are neither in the shards nor in the tail, the error."""
        self.observed = {column.name for column in schema.obs_columns}
        self.commit = commit
        self.found = found
        self.first = commit.table(ROWS).needed_from
        # One more of each: it may not fit the one before.
        self.stop = max(min(seen[0] + 1, commit.end), self.first)
        self.own = max(0, seen[1] + 1 - self.patches.begin)
        self.missing: list[tuple[int, int, int]] = []
        """Places of patches that rows promise, and that are not there."""
        self.orphans: list[int] = []
        """The positions of patches that the start codes of their rows do not tell of."""
        self.continued: list[int] = []
        """The positions of patches of next observations of rows that the next row continues."""

    def run(self) -> None:
        for path in self.readers:
            self._take_held(path)
        places: Array | None = None
        with contextlib.suppress(*UNREADABLE):
            places = self.loaded(PLACES).read_rows(self.patches.begin, self.patches.end)[:, 0]
        with contextlib.suppress(*UNREADABLE):
            self._rows(np.empty((0, 3), np.int64) if places is None else places)
        if places is not None:
            self._places(places[: self.own])
            self._explained(places)
            self._commit(places)
            if self.schema.continuity != "flags":
                what = "the next row continues this one, and has its next observation"
                self._report_patches(what, sorted(self.continued), places)
        for name in self.schema.ragged:
            for path in (name, f"{PATCH_TABLE}/{name}"):
                with contextlib.suppress(*UNREADABLE):
                    if path in self.readers:
                        self._spans(name, path)

    def _spans(self, name: str, path: str) -> None:
        """Check rule 8, of rows or patches."""
        ragged, reader = self.schema.ragged[name], self.loaded(path)
        needed = self.commit.of(path)
        held = self.commit.of(ragged.items.name)[:2]
        step = max(1, BLOCK_VALUES // reader.num_envs)
        newest = path in self.observed and needed.end > 0
        for low in range(needed.needed_from, needed.end + newest, step):
            high = min(low + step, needed.end + newest)
            spans = reader.read_rows(low, high)
            if table_of(path) == PATCH_TABLE:  # those of offset 1: a ragged leaf, which is not stacked, needs no other
                spans = spans[self.loaded(PLACES).read_rows(low, high)[..., 2] == 1]
            wrong = ragged_reads.wrong(ragged, spans, *held)
            if wrong is None and ragged.video is not None:
                wrong = _wrong_packets(ragged.video, spans.reshape(-1, 2), self.loaded(ragged.items.name))
            if wrong is not None:
                self.found.add(wrong, stream=reader.stream, column=path, rows=(low, high), file=reader.directory)

    def _take_held(self, path: str) -> None:
        """Take in what the tail holds of a column, and report rows that neither shards nor the tail hold."""
        reader, table = self.readers[path], self.commit.of(path)
        reader.needed_from, reader.stored_rows = table.needed_from, self.commit.stored_rows(path)
        try:
            for part in self.parts:
                if part.path == path:
                    reader.put(part.first, part.values((reader.num_envs, *reader.column.shape), reader.column.dtype))
            reader.check_held(table.end + (path in self.observed and table.end > 0))
        except (chunks.DamagedError, CorruptionError) as error:
            self._lost[path] = CorruptionError(f"the tail: {error}", file=reader.directory, stream=reader.stream)
            self.found.take(error if isinstance(error, CorruptionError) else self._lost[path], column=path)

    def loaded(self, path: str) -> ColumnReader:
        """Return the reader of a column, with the indexes of its shards; raise CorruptionError if rows are nowhere."""
        if path in self._lost:
            raise self._lost[path]
        reader, table = self.readers[path], self.commit.of(path)
        reader.load(self.commit.arrays.get(path), table.needed_from, table.end)
        return reader

    def _rows(self, places: Array) -> None:
        """Check rules 1 and 2, and collect what concerns both rows and patches."""
        starts, valids = self.loaded(START), self.loaded(VALID)
        num_envs, step = self.commit.num_envs, starts.column.chunk_rows
        have = set(map(tuple, places[places[:, 2] < 0].tolist()))
        table = self.commit.table(CUTS)
        told = self.loaded(CUT_PLACES).read_rows(table.begin, table.end)[:, 0]
        if len(told) and told[0, 0] < self.first:
            self._report(f"the table {CUTS!r} says something of a row before the first one", CUT_PLACES, [table.begin])
        before = np.full((1, num_envs), self.first == 0)
        row, env, offset = places[: self.own].T
        told_by = row + (offset == 1)  # the row whose start code says whether there is such a patch
        order = np.argsort(told_by, kind="stable")
        stop = min(max(self.stop, int(told_by.max(initial=-1)) + 1), self.commit.end)
        for chunk in range(self.first // step, -(-stop // step)):
            low, high = max(chunk * step, self.first), min((chunk + 1) * step, stop)
            try:
                start, valid = starts.read_rows(low, high), valids.read_rows(low, high)
            except UNREADABLE:
                before = np.zeros_like(before)
                continue
            ended = np.concatenate([before, ~valid])
            for flag in (TERMINATED, TRUNCATED):
                with contextlib.suppress(*UNREADABLE):
                    ended[1:] |= self.loaded(flag).read_rows(low, high)
            before = ended[-1:]
            self._starts(low, start, valid, ended[:-1])
            known = cuts.of_rows(start, valid, low)
            if not np.array_equal(known, told[(told[:, 0] >= low) & (told[:, 0] < high)]):
                self._report(f"the table {CUTS!r} does not say which of these rows begin a run", START, (low, high - 1))
            explained = (np.argwhere(Start.by_patches(start)) + np.array([low, 0])).tolist()
            wanted = {(row, env, -back) for row, env in explained for back in range(1, self.schema.context + 1)}
            self.missing += sorted(wanted - have)
            first, last = np.searchsorted(told_by, [low, high], sorter=order)
            here = order[first:last]
            here = here[(env[here] >= 0) & (env[here] < num_envs)]
            at, patch = (told_by[here] - low, env[here]), offset[here]
            self.orphans += here[(patch < 0) & valid[at] & ~Start.by_patches(start[at])].tolist()
            self.continued += here[(patch == 1) & valid[at] & (start[at] == Start.CONTINUES)].tolist()

    def _starts(self, low: int, start: Array, valid: Array, after_end: Array) -> None:
        continues = start == Start.CONTINUES
        for what, bad in (
            ("its start code is none of 0 to 3 and 5 to 7", Start.wrong(start)),
            ("it continues a row that ended or is no transition", continues & after_end),
            ("it is no transition, but continues the row before", continues & ~valid),
        ):
            if bad.any():
                rows, envs = np.nonzero(bad)
                self._report(f"row {low + rows[0]} of environment {envs[0]}{_count(rows)}: {what}", START, low + rows)

    def _places(self, places: Array) -> None:
        """Check rules 3 and 4."""
        row, env, offset = places.T
        end, num_envs, context = self.commit.end, self.commit.num_envs, self.schema.context
        before = np.roll(places, 1, axis=0)
        follows = (row == before[:, 0]) & (env == before[:, 1]) & (before[:, 2] == offset - np.sign(offset))
        follows[:1] = False
        again = np.ones(len(places), bool)
        again[np.unique(places, axis=0, return_index=True)[1]] = False
        for what, bad in (
            ("its row is before that of the patch before it", np.diff(row, prepend=row[:1]) < 0),
            (f"its row is none of 0 to {end}", (row < 0) | (row >= end)),
            (f"its environment is none of the {num_envs}", (env < 0) | (env >= num_envs)),
            ("its offset is out of range", (offset == 0) | (offset < -context) | (offset > context + 1)),
            ("it is there twice", again),
            ("the patch before it in its stack is not the one before it in the table", (abs(offset) != 1) & ~follows),
        ):
            self._report_patches(what, np.flatnonzero(bad), places)

    def _explained(self, places: Array) -> None:
        """Check rule 5."""
        if self.missing:
            (row, env, offset), count = self.missing[0], len(self.missing)
            what = f"its older frames are patches, but there is none of offset {offset} ({count} such)"
            self._report(f"row {row} of environment {env} says that {what}", START, [one[0] for one in self.missing])
        self._report_patches("its row does not say that it has patches", sorted(self.orphans), places)

    def _commit(self, places: Array) -> None:
        """Check rule 6."""
        end, row = self.commit.end, places[:, 0]
        what = f"its row is none of the commit's rows {self.first} to {end}"
        self._report_patches(what, np.flatnonzero((row < self.first) | (row >= end)), places)

    def _report_patches(self, what: str, bad: Sequence[int] | Array, places: Array) -> None:
        if len(bad):
            row, env, offset = places[bad[0]].tolist()
            first = self.patches.begin
            what = f"patch {first + bad[0]} (row {row}, environment {env}, offset {offset}){_count(bad)}: {what}"
            self._report(what, PLACES, first + np.asarray(bad))

    def _report(self, what: str, path: str, rows: Sequence[int] | Array) -> None:
        low, high = int(min(rows)), int(max(rows)) + 1
        reader = self.readers[path]
        file = reader.shard_path(int(rows[0]) // reader.column.shard_rows)
        self.found.add(what, stream=reader.stream, column=path, rows=(low, high), file=file)


def _count(bad: Sequence[int] | Array) -> str:
    return f", the first of {len(bad)} such" if len(bad) > 1 else ""


def _wrong_packets(facts: Video, spans: Array, items: ColumnReader) -> str | None:
    """Return what is wrong with the first group of records of a video column that breaks a rule, or None."""
    for group in _by_group(spans):
        start, stop = spans[group[-1]].tolist()
        if start == stop:
            continue
        value = items.read_rows(start, stop)[:, 0]
        try:
            ends = [packet.end for packet in video.records(value, len(facts.parameters))]
        except InputError as error:
            return f"the packets in its items {start} to {stop}: {error}"
        inside = np.setdiff1d(spans[group, 1] - start, [0, *ends])
        if len(inside):
            return f"its span {start} to {start + inside[0]} ends inside of a packet"
    return None


def _by_group(spans: Array) -> list[Array]:
    """Return the positions of spans ``(n, 2)`` that begin at one item, as those of a group of packets; longest last."""
    order = np.lexsort((spans[:, 1], spans[:, 0]))
    return np.split(order, np.flatnonzero(np.diff(spans[order, 0])) + 1) if len(order) else []
