"""What :mod:`diskreplay.ops.repair` does to one stream: find what is lost, give it up, fill the holes."""

# ruff: noqa: PTH118, PTH120  # plain strings behind the seam to the file system, as in storage

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.ops.problems import DAMAGE
from diskreplay.ops.quarantine import Quarantine
from diskreplay.ops.shard_repair import Shards
from diskreplay.schema import PLACE, REWARD, START, VALID, Start
from diskreplay.storage import metadata, stream
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.commit import Commit, Tail
from diskreplay.storage.store import Store
from diskreplay.storage.stream import PATCHES

Array = NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Loss:
    """What was given up of a stream.

    Attributes:
        transitions, episodes: that can no longer be sampled, or not from beginning to end.
        rows: half-open ranges of the rows that they belong to.
        columns: with chunks that could not be read.
        chunks, bytes: of those, how many, and encoded bytes as far as an index still says.
        patches: frames of the patch table that could not be read and not be found elsewhere.
        went_back_to: the row that the stream ends at, where its record could not be read.
        whole: the stream was moved aside.
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
        self.shards: dict[str, Shards] = {}
        for path, column in stream.column_paths(self.schema):
            below = stream.is_patch(path)
            reader = ColumnReader(
                store.files, os.path.join(self.path, path), name, column, 1 if below else commit.num_envs
            )
            reader.identity = stream.identity(self.schema, commit, path)
            span = (commit.patch_begin, commit.patch_end) if below else (self.floor, commit.end)
            tail = commit.tails.get(path, Tail(0, 0))
            self.shards[path] = Shards(reader, *span, tail, quarantine, lengths.get(path, {}), PREDICATES.get(path))

    def run(self, release: Callable[[int, int], None]) -> Loss | None:
        """What was given up; None where nothing had to be.

        ``release`` is called with rows, half-open, before they change: no checkpoint may rely on them.
        """
        for path, shards in self.shards.items():
            self.quarantine.keep_directory(os.path.dirname(shards.reader.directory))
            self.quarantine.keep_directory(shards.reader.directory)
            self._document(path)
            shards.clear_names()
            shards.scan()
        if not any(shards.damaged for shards in self.shards.values()):
            return None
        if not self.commit.end:
            return None
        return self._give_up(release)

    def _document(self, path: str) -> None:
        shards = self.shards[path]
        directory, column = shards.reader.directory, shards.reader.column
        least = max(1, -(-shards.end // column.shard_rows)) * column.shard_rows
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
        self.quarantine.take(os.path.join(directory, metadata.NAME))
        metadata.write(self.store.files, directory, metadata.array_document(column, shards.reader.num_envs, rows))

    def _give_up(self, release: Callable[[int, int], None]) -> Loss:
        begin, end = self.floor, self.commit.end
        lost = np.zeros((end - begin, self.commit.num_envs), bool)
        for path, shards in self.shards.items():
            if not stream.is_patch(path):
                for rows, group in shards.lost_rows():
                    lost[rows[0] - begin : rows[1] - begin, slice(None) if group is None else group] = True
        start, valid = self.shards[START].values(begin, end), self.shards[VALID].values(begin, end)
        old = start.copy()
        # An earlier repair, or this one before a crash, has left REPEAT where rows continued that it gave up.
        continues = (start == Start.CONTINUES) | ((start == Start.REPEAT) & ~valid)
        patches = _Patches(self.shards, self.commit, continues, start == Start.PATCHES, begin)
        patches.look(lost)
        before = np.zeros_like(lost)
        before[:-1] = lost[1:] & ~lost[:-1] & ~patches.ends[:-1]
        # The rest of a run has stacks that reach back to a lost row, or to the patches that its first stack needs.
        rest = lost | patches.unexplained
        if self.context:
            for row in range(1, len(rest)):
                rest[row] |= rest[row - 1] & continues[row]
        given_up = rest | before | patches.single
        start[given_up & (continues | self._unreadable(START, begin))] = Start.REPEAT
        start[given_up & (old == Start.PATCHES) & patches.forgotten] = Start.ZEROS
        if not self.context:
            start[1:][given_up[:-1] & ~given_up[1:] & continues[1:]] = Start.ZEROS
        for changed in _ranges(np.flatnonzero((given_up | (start != old)).any(axis=1)) + begin):
            release(*changed)
        window = slice(self.commit.begin - begin, None)
        gone = (given_up & (valid | self._unreadable(VALID, begin)))[window]
        loss = self._loss(gone, ~continues[window], patches)
        new = {VALID: valid & ~given_up, START: start, **patches.values()}
        # What stands in for damage looks whole to a repair that goes on from a crash: so what says that rows are given
        # up is committed before it. And before the codes, which tell where they were given up only beside it.
        first = [START, f"{PATCHES}/{PLACE}"]
        if patches.end > self.commit.patch_end:  # the new patches are of rows that are given up
            first += [path for path in self.shards if stream.is_patch(path) and path not in first]
        commit = dataclasses.replace(self.commit, timeline=self.commit.timeline + 1)
        commit = self._write(commit, {VALID: new[VALID]})
        commit = dataclasses.replace(commit, patch_begin=patches.begin, patch_end=patches.end)
        commit = self._write(commit, {path: new.get(path) for path in first})
        self._write(commit, {path: new.get(path) for path in self.shards if path not in (VALID, *first)})
        return loss

    def _unreadable(self, path: str, begin: int) -> Array:
        mask = np.zeros((self.commit.end - begin, self.commit.num_envs), bool)
        for rows, group in self.shards[path].lost_rows():
            mask[rows[0] - begin : rows[1] - begin, slice(None) if group is None else group] = True
        return mask

    def _write(self, commit: Commit, values: dict[str, Any]) -> Commit:
        """Gives columns new values where they differ or were damaged, and commits; values None: zeros for damage."""
        tails = dict(commit.tails)
        for path, new in values.items():
            shards = self.shards[path]
            end = commit.patch_end if stream.is_patch(path) else commit.end
            tails[path] = shards.write(new, end)
        record = dataclasses.replace(
            commit, sequence=commit.sequence + 1, tails={k: t for k, t in tails.items() if t.size}, time=time.time()
        )
        stream.write_commit(self.store.files, self.path, record)
        for path in values:
            self.shards[path].tail = record.tails.get(path, Tail(0, 0))
        return record

    def _loss(self, gone: Array, begins: Array, patches: _Patches) -> Loss:
        runs = np.cumsum(begins, axis=0)
        episodes = sum(len(np.unique(runs[gone[:, env], env])) for env in range(gone.shape[1]))
        rows = np.flatnonzero(gone.any(axis=1)) + self.commit.begin
        damaged = {path: shards for path, shards in self.shards.items() if shards.damaged}
        return Loss(
            self.name, int(gone.sum()), episodes,
            tuple(_ranges(rows)),
            tuple(damaged), sum(len(s.bad) for s in damaged.values()), sum(s.bad_bytes for s in damaged.values()),
            patches.lost,
        )  # fmt: skip


def _ranges(rows: Array) -> list[tuple[int, int]]:
    """Runs of consecutive numbers, half-open."""
    parts = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1) if len(rows) else []
    return [(int(part[0]), int(part[-1]) + 1) for part in parts]


class _Patches:
    """The patch table of a stream that is repaired: which patches are lost, and what can stand in for them.

    Masks are ``(rows, envs)`` from the floor on.

    Attributes:
        ends: rows with a patch of offset 1 that can be read: their next observation needs no other row.
        single: rows given up for their next observation alone, on which no later row depends.
        unexplained: rows whose first stack needs patches that cannot be read.
        forgotten: rows of which the table says nothing any more.
        begin, end: the patches that are needed from now on.
        lost: how many patches were given up.
    """

    def __init__(
        self, shards: dict[str, Shards], commit: Commit, continues: Array, explained: Array, floor: int
    ) -> None:
        """``continues``: rows that continue the one before; ``explained``: those that begin with patches."""
        self.shards = {path: one for path, one in shards.items() if stream.is_patch(path)}
        self.rows = shards
        self.commit = commit
        self.continues = continues
        self.explained = explained
        self.floor = floor
        self.first = self.begin = commit.patch_begin
        self.end = commit.patch_end
        self.ends, self.single, self.unexplained, self.forgotten = np.zeros((4, *continues.shape), bool)
        self.lost = 0
        self._healed: dict[int, tuple[int, int]] = {}
        self._new: list[int] = []
        place = self.shards[f"{PATCHES}/{PLACE}"]
        self._places = place.values(self.first, self.end)[:, 0]
        self._known, self._readable = np.ones((2, len(self._places)), bool)
        for path, one in self.shards.items():
            for (low, high), _ in one.lost_rows():
                self._readable[low - self.first : high - self.first] = False
                if path == f"{PATCHES}/{PLACE}":
                    self._known[low - self.first : high - self.first] = False

    def look(self, lost: Array) -> None:
        """Fills the masks; ``lost`` are the rows that cannot be read."""
        if not self._known.all():
            self._forget()
        kept = self._places[self.begin - self.first :]
        stacked = {(row, env) for row, env, offset in kept.tolist() if offset == 2}
        for number, (row, env, offset) in enumerate(kept.tolist(), self.begin):
            at = row - self.floor
            if not (0 <= at < len(lost) and 0 <= env < lost.shape[1]):
                continue
            if self._readable[number - self.first]:
                self.ends[at, env] |= offset == 1
                continue
            follows = at + 1 < len(lost) and self.continues[at + 1, env] and not lost[at + 1, env]
            if offset == 1 and follows and (row, env) not in stacked:
                self._healed[number] = row + 1, env
                self.ends[at, env] = True
                continue
            self.lost += 1
            (self.single if offset > 0 else self.unexplained)[at, env] = True

    def _forget(self) -> None:
        """Gives up the patches up to the last one whose place is unknown: the rows tell which of them may have one."""
        unknown = np.flatnonzero(~self._known)
        stop = int(unknown[-1]) + 1
        while stop < len(self._places) and abs(int(self._places[stop, 2])) != 1:
            stop += 1  # no stack is cut in two
        rows, envs = self.continues.shape
        known = self._places[: unknown[0]]
        low = int(known[-1, 0]) - self.floor if len(known) else 0
        high = int(self._places[stop, 0]) - self.floor if stop < len(self._places) else rows - 1
        inside = np.zeros((rows, envs), bool)
        inside[max(low, 0) : min(high, rows - 1) + 1] = True
        for row, env, _ in known.tolist():
            if 0 <= row - self.floor < rows and 0 <= env < envs:
                inside[row - self.floor, env] = True
        ends = np.ones((rows, envs), bool)
        ends[:-1] = ~self.continues[1:]
        self.forgotten = inside
        self.single = inside & ends
        self.unexplained = inside & self.explained
        self.lost += stop
        self.begin = self.first + stop
        left = {tuple(place) for place in self._places[stop:].tolist()}
        self._new = [env for env in range(envs) if (self.commit.end - 1, env, 1) not in left]
        self.end = self.commit.patch_end + len(self._new)
        self.single[-1, self._new] = True

    def values(self) -> dict[str, Array]:
        """New values of the patch columns ``(patches, 1, *shape)``, from the old ``patch_begin`` on."""
        found = {}
        count = self.end - self.first
        for path, one in self.shards.items():
            if not one.damaged and not self._new:
                continue
            column = one.reader.column
            values = np.zeros((count, 1, *column.shape), column.dtype)
            values[: self.commit.patch_end - self.first] = one.values(self.first, self.commit.patch_end)
            if path == f"{PATCHES}/{PLACE}":
                for at, env in enumerate(self._new):
                    values[self.commit.patch_end - self.first + at, 0] = self.commit.end - 1, env, 1
            else:
                rows = self.rows[path.removeprefix(f"{PATCHES}/")]
                for number, (row, env) in self._healed.items():
                    values[number - self.first, 0] = rows.values(row, row + 1)[0, env]
            found[path] = values
        return found


PREDICATES: dict[str, Callable[[Array], Array]] = {
    VALID: lambda values: values.view(np.uint8) <= 1,
    "terminated": lambda values: values.view(np.uint8) <= 1,
    "truncated": lambda values: values.view(np.uint8) <= 1,
    START: lambda values: values <= max(Start),
    REWARD: np.isfinite,
}
"""What values of a column must be."""
