"""The check of one stream's rows against each other: where runs begin, and what the patch table says of them.

1. ``start`` is one of the codes of :class:`diskreplay.schema.columns.Start`.
2. A row continues the one before only where both are transitions and the one before did not end; the first row of all
   continues nothing.
3. Patches are in the order of their rows. Each names an existing row and environment, and an offset from ``-context``
   to ``context + 1`` that is not 0; no two are alike.
4. A patch of offset ``k`` above 1 comes right after the one of ``k - 1``, ``-k`` below -1 right after ``-(k - 1)``.
5. A row whose start is ``PATCHES`` has all offsets from -1 to ``-context``, and no other row has a negative one.
6. A commit's patches belong to rows that it keeps, and those of its last row hold the next observation of every
   environment.
7. The spans of ragged columns are among the items that a commit holds. In video columns the records between are whole,
   and no span ends inside of one; nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay import video
from diskreplay.ops.problems import DAMAGE, Findings
from diskreplay.reading import ragged_reads
from diskreplay.schema.columns import PATCH_TABLE, PLACE, PLACES, START, TERMINATED, TRUNCATED, VALID, Schema, Start
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.commit import Commit
from diskreplay.video import Video

BLOCK_VALUES = 1 << 20
"""The number of values (rows times environments) that are looked at together."""

Array = NDArray[Any]


def check_spans(readers: Mapping[str, ColumnReader], schema: Schema, commit: Commit, found: Findings) -> None:
    """Check that the spans of ragged columns, of rows and patches that a commit needs, are among its items."""
    for name, ragged in schema.ragged.items():
        held = commit.log_span(ragged.items.name)
        for path in (name, f"{PATCH_TABLE}/{name}"):
            if (reader := readers.get(path)) is None:
                continue
            needed = commit.span(path, schema.context)
            step = max(1, BLOCK_VALUES // reader.num_envs)
            try:
                reader.load(needed.begin, needed.end, needed.tail)
                if path != name:
                    readers[PLACES].load(needed.begin, needed.end, commit.span(PLACES, schema.context).tail)
                for low in range(needed.begin, needed.end, step):
                    high = min(low + step, needed.end)
                    spans = reader.read_rows(low, high)
                    if path != name:  # those of offset 1: a ragged leaf, which is not stacked, needs no other
                        spans = spans[readers[PLACES].read_rows(low, high)[..., 2] == 1]
                    wrong = ragged_reads.wrong(ragged, spans, *held)
                    if wrong is None and ragged.video is not None:
                        items = readers[ragged.items.name]
                        items.load(*held, commit.span(ragged.items.name, schema.context).tail)
                        wrong = _wrong_packets(ragged.video, spans.reshape(-1, 2), items)
                    if wrong is not None:
                        found.add(wrong, stream=reader.stream, column=path, rows=(low, high), file=reader.directory)
            except DAMAGE:  # found by the check of the files
                continue


def _wrong_packets(facts: Video, spans: Array, items: ColumnReader) -> str | None:
    """Return what is wrong with the first group of records of a video column that breaks a rule, or None."""
    for group in by_group(spans):
        start, stop = spans[group[-1]].tolist()
        if start == stop:
            continue
        value = items.read_rows(start, stop)[:, 0]
        if (problem := video.wrong(facts, value)) is not None:
            return f"the packets in its items {start} to {stop}: {problem}"
        inside = np.setdiff1d(spans[group, 1] - start, [0, *video.ends(facts, value)])
        if len(inside):
            return f"its span {start} to {start + inside[0]} ends inside of a packet"
    return None


def by_group(spans: Array) -> list[Array]:
    """Return the positions of spans ``(n, 2)`` that begin at one item, as those of a group of packets; longest last."""
    order = np.lexsort((spans[:, 1], spans[:, 0]))
    return np.split(order, np.flatnonzero(np.diff(spans[order, 0])) + 1) if len(order) else []


class RowCheck:
    """A check of the rows and patches of a stream; the check of the files sees damaged chunks."""

    def __init__(self, stream: str, rows: dict[str, ColumnReader], place: ColumnReader, context: int, found: Findings):
        self.stream = stream
        self.rows = rows
        self.place = place
        self.context = context
        self.found = found
        self.num_envs = rows[START].num_envs
        self._explained: list[Array] = []  # (n, 2) rows and environments whose start is PATCHES

    def run(self, commits: Sequence[Commit]) -> None:
        """Check the newest commit, then those of the checkpoints; the readers have their indexes loaded."""
        newest = commits[0]
        first = min(commit.floor(self.context) for commit in commits)
        whole = self._starts(first, newest.end)
        first_patch = min(commit.patch_begin for commit in commits)
        try:
            places = self.place.read_rows(first_patch, newest.patch_end)[:, 0]
        except DAMAGE:
            return
        self._places(places, first_patch, newest.end)
        explained = np.concatenate(self._explained) if self._explained else np.empty((0, 2), np.int64)
        if whole:
            self._explanations(places, first_patch, explained)
        for commit in commits:
            self._commit(places, first_patch, commit)

    def report(self, what: str, column: str, rows: Array | list[int], file: str | None = None) -> None:
        low, high = int(min(rows)), int(max(rows)) + 1
        self.found.add(what, stream=self.stream, column=column, rows=(low, high), file=file)

    def _starts(self, first: int, end: int) -> bool:
        """Check rules 1 and 2, and return True if all rows could be read."""
        step = max(1, BLOCK_VALUES // self.num_envs)
        before: Array | None = np.ones((1, self.num_envs), bool) if first == 0 else None
        whole = True
        for low in range(first, end, step):
            high = min(low + step, end)
            try:
                start, valid, terminated, truncated = (
                    self.rows[name].read_rows(low, high) for name in (START, VALID, TERMINATED, TRUNCATED)
                )
            except DAMAGE:
                before, whole = None, False
                continue
            self._block(low, start, valid, terminated | truncated | ~valid, before)
            before = (terminated | truncated | ~valid)[-1:]
        return whole

    def _block(self, low: int, start: Array, valid: Array, ended: Array, before: Array | None) -> None:
        known = before if before is not None else np.zeros((1, self.num_envs), bool)
        after_end = np.concatenate([known, ended[:-1]])
        continues = start == Start.CONTINUES
        for what, bad in (
            ("its start code is none of 0 to 3", start > max(Start)),
            ("it continues a row that ended or is no transition", continues & after_end),
            ("it is no transition, but continues the row before", continues & ~valid),
        ):
            if bad.any():
                rows, envs = np.nonzero(bad)
                count = f", the first of {len(rows)} such" if len(rows) > 1 else ""
                file = self.rows[START].shard_path((low + int(rows[0])) // self.rows[START].column.shard_rows)
                self.report(f"row {low + rows[0]} of environment {envs[0]}{count}: {what}", START, low + rows, file)
        self._explained.append(np.argwhere(start == Start.PATCHES) + np.array([low, 0]))

    def _places(self, places: Array, first_patch: int, end: int) -> None:
        """Check rules 3 and 4."""
        if not len(places):
            return
        row, env, offset = places.T
        follows = np.zeros(len(places), bool)
        same = (places[1:, :2] == places[:-1, :2]).all(axis=1)
        follows[1:] = same & (offset[:-1] == offset[1:] - np.sign(offset[1:]))
        first = (offset == 1) | (offset == -1)
        _, index = np.unique(places, axis=0, return_index=True)
        again = np.ones(len(places), bool)
        again[index] = False
        for what, bad in (
            ("its row is before that of the patch before it", np.append(False, np.diff(row) < 0)),
            (f"its row is none of 0 to {end}", (row < 0) | (row >= end)),
            (f"its environment is none of the {self.num_envs}", (env < 0) | (env >= self.num_envs)),
            ("its offset is out of range", (offset == 0) | (offset < -self.context) | (offset > self.context + 1)),
            ("it is there twice", again),
            ("the patch before it in its stack is not the one before it in the table", ~first & ~follows),
        ):
            self._report_patches(what, np.flatnonzero(bad), places, first_patch)

    def _explanations(self, places: Array, first_patch: int, explained: Array) -> None:
        """Check rule 5."""
        have = places[places[:, 2] < 0]
        wanted = [(*pair, -back) for pair in map(tuple, explained.tolist()) for back in range(1, self.context + 1)]
        missing = set(wanted) - set(map(tuple, have.tolist()))
        if missing:
            row, env, offset = min(missing)
            self.report(
                f"row {row} of environment {env} says that its older frames are patches, but there is none of offset "
                f"{offset} ({len(missing)} such)",
                START, sorted({place[0] for place in missing}),
            )  # fmt: skip
        rows = set(map(tuple, explained.tolist()))
        orphans = [
            i
            for i, (row, env, offset) in enumerate(places.tolist())
            if offset < 0 and (row, env) not in rows and self._is_valid(row, env)
        ]
        self._report_patches("its row does not say that it has patches", orphans, places, first_patch)

    def _is_valid(self, row: int, env: int) -> bool:
        """Tell whether a row is a transition; a repair leaves patches of those that it gave up."""
        reader = self.rows[VALID]
        if not (0 <= row < reader.end and 0 <= env < self.num_envs):
            return False
        try:
            return bool(reader.read_rows(row, row + 1)[0, env])
        except DAMAGE:
            return False

    def _commit(self, places: Array, first_patch: int, commit: Commit) -> None:
        """Check rule 6."""
        if commit.end == commit.begin:
            return
        low, high = commit.patch_begin - first_patch, commit.patch_end - first_patch
        part = places[low:high]
        floor = commit.floor(self.context)
        bad = np.flatnonzero((part[:, 0] < floor) | (part[:, 0] >= commit.end)) + low
        self._report_patches(f"its row is none of the commit's rows {floor} to {commit.end}", bad, places, first_patch)
        newest = part[(part[:, 0] == commit.end - 1) & (part[:, 2] == 1)]
        missing = sorted(set(range(self.num_envs)) - set(newest[:, 1].tolist()))
        if missing:
            self.report(
                f"the last row {commit.end - 1} of environment {missing[0]} has no next observation in the patch table",
                f"patches/{PLACE}", [commit.end - 1],
            )  # fmt: skip

    def _report_patches(self, what: str, bad: Sequence[int] | Array, places: Array, first_patch: int) -> None:
        if len(bad):
            at = int(bad[0])
            row, env, offset = places[at].tolist()
            count = f", the first of {len(bad)} such" if len(bad) > 1 else ""
            self.report(
                f"patch {first_patch + at} (row {row}, environment {env}, offset {offset}){count}: {what}",
                f"patches/{PLACE}", [first_patch + int(i) for i in bad],
                self.place.shard_path((first_patch + at) // self.place.column.shard_rows),
            )  # fmt: skip
