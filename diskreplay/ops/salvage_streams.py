"""The streams and checkpoints of a damaged store, as far as they can be read."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import google_crc32c
import numpy as np

from diskreplay.checks import Mask
from diskreplay.errors import CorruptionError
from diskreplay.formats.core.log_rows import LogRows
from diskreplay.formats.core.output import replacing
from diskreplay.formats.core.selection import SelectedStore
from diskreplay.formats.core.transitions import NO_START
from diskreplay.index.episodes import table
from diskreplay.ops.result import Result
from diskreplay.ops.salvage_rows import WholeRows
from diskreplay.reading.cache import ChunkCache
from diskreplay.reading.open_stream import OpenStream
from diskreplay.schema.columns import CONTINUES, CUT_START, PATCHES, START, VALID
from diskreplay.storage import attachments, metadata
from diskreplay.storage.spared import GONE, SparedStream, read_record
from diskreplay.storage.store import CHECKPOINTS, Checkpoint, Store, read_checkpoint


@dataclasses.dataclass(frozen=True)
class DamagedEpisode(Result):
    """An episode of which not all transitions can be read.

    Attributes:
        env: the number of its environment.
        start, stop: its rows ``[start, stop)``, as far as its start codes can be read.
        kept: how many of its transitions can be read.
    """

    env: int
    start: int
    stop: int
    kept: int


@dataclasses.dataclass(frozen=True)
class SalvagedStream(Result):
    """What can be read of one stream.

    Attributes:
        name: the name of the stream.
        record: where its commit record was read: "stream", "tail" or "checkpoint"; None where nothing can be read.
        kept, lost: transitions of its window that can be read, and that cannot be.
        whole: episodes without a lost transition.
        damaged: the other ones.
        logs: what else was lost, in part or whole: ``info`` (facts of episodes), ``later/values``.
    """

    name: str
    record: str | None
    kept: int = 0
    lost: int = 0
    whole: int = 0
    damaged: tuple[DamagedEpisode, ...] = ()
    logs: tuple[str, ...] = ()


class SparedRows:
    """One stream: first its indexes are read, then by :meth:`scan` its chunks, then by :meth:`select` its rows."""

    def __init__(self, store: Store, name: str, checkpoints: Sequence[Checkpoint]) -> None:
        self.store, self.found, self.size = store, SalvagedStream(name, None), 0
        self._disk: SparedStream | None = None
        with contextlib.suppress(*GONE):
            path, cuts = store.stream_path(name), (one.cut[name] for one in checkpoints if name in one.cut)
            commit, record = read_record(store.files, path, store.schema, cuts)
            if commit is not None:
                self._disk = SparedStream(store.files, path, store.schema, commit)
                self.size = commit.tail.size + sum(column.size for column in self._disk.spared().values())
                self.found = SalvagedStream(name, record)
        self.part: SelectedStore | None = None
        self.facts: list[dict[str, Any]] = []

    def scan(self) -> Iterator[int]:
        """Read all chunks, and yield the bytes of each."""
        for column in self._disk.spared().values() if self._disk else ():
            yield from column.scan()

    def select(self) -> None:
        """Find the transitions that can be read; ``part`` has them, and ``facts`` those of their episodes."""
        if self._disk is None:
            return
        try:
            stream = self._open(self._disk)
        except CorruptionError:
            self.found = SalvagedStream(self.found.name, None)
            return
        rows = WholeRows(self.store.schema, stream, self._disk)
        whole = rows.mask()
        self._count(stream, whole, rows.known(VALID, stream.log.begin, stream.log.end), self._disk.lost_logs)
        starts = stream.log.span(START, stream.log.begin, stream.log.end)
        gap = np.zeros_like(whole)
        gap[1:] = ~whole[:-1] & (starts[1:] == CONTINUES)
        starts[~whole | gap] = CUT_START + PATCHES
        log = stream.log.with_rows(whole, starts)
        self.part = SelectedStore(self.store.path, [LogRows(self.store, self.found.name, opened=(stream, log))])
        for episode in self.part.episodes:
            noted = stream.facts.noted(episode.start, episode.env, episode.complete_start)
            lacks = {} if episode.complete_start else {NO_START: True}
            self.facts.append({**(noted.facts if noted else {}), **lacks})

    def _open(self, disk: SparedStream) -> OpenStream:
        disk.shorten_logs()
        while True:
            try:
                return OpenStream(self.store.schema, disk, ChunkCache(0), spared=True)
            except CorruptionError as error:
                if error.column not in disk.logs or error.column in disk.lost_logs:
                    raise
                disk.drop_log(error.column, disk.commit_record.of(error.column).end)

    def _count(self, stream: OpenStream, whole: Mask, known: Mask, logs: Sequence[str]) -> None:
        """Count what is kept and lost; what may be a transition counts as one, and goes on as long as it may."""
        log = stream.log
        seen = log.span(VALID, log.begin, log.end) | ~known
        every = table(log.with_rows(seen, log.span(START, log.begin, log.end)))
        sums = np.append(0, np.cumsum(whole.T))
        first, last = (every.env * len(whole) + ends - log.begin for ends in (every.start, every.stop))
        kept = sums[last] - sums[first]
        short = np.flatnonzero(kept < every.stop - every.start)
        columns = (every.env, every.start, every.stop, kept)
        damaged = tuple(DamagedEpisode(*(int(column[at]) for column in columns)) for at in short.tolist())
        self.found = SalvagedStream(
            self.found.name, self.found.record, int(whole.sum()), int((seen & ~whole).sum()), len(every) - len(short),
            damaged, tuple(logs),
        )  # fmt: skip


class SparedCheckpoints:
    """The checkpoints whose documents can be read, newest first, and the names of those that cannot be.

    Attributes:
        files, lost_files: attachments that :meth:`copy` could read, and that it could not, as ``NAME/ATTACHMENT``.
    """

    def __init__(self, store: Store) -> None:
        self.store, self.readable, self.lost = store, list[Checkpoint](), list[str]()
        self.files, self.lost_files = list[str](), list[str]()
        self._folder = f"{store.path}/{CHECKPOINTS}"
        for name in metadata.nodes(store.files, self._folder):
            try:
                self.readable.append(read_checkpoint(store.files, f"{self._folder}/{name}"))
            except GONE:
                self.lost.append(name)
        self.readable = sorted((one for one in self.readable if not one.pending), key=lambda one: one.order)[::-1]
        self.size = sum(file.length for one in self.readable for file in one.attachments.values())

    def copy(self, target: pathlib.Path | None) -> None:
        """Write metadata and attachments to folders below ``target``; only read them if that is None."""
        with replacing(target, "directory") if target and self.readable else contextlib.nullcontext() as folder:
            for one in self.readable:
                place = None if folder is None else folder / one.name
                if place is not None:
                    (place / attachments.GROUP).mkdir(parents=True)
                    (place / "metadata.json").write_text(json.dumps(one.metadata, indent=2), encoding="utf-8")
                for name, file in one.attachments.items():
                    copied = self._copy(one, file, None if place is None else place / attachments.GROUP / name)
                    (self.files if copied else self.lost_files).append(f"{one.name}/{name}")

    def _copy(self, checkpoint: Checkpoint, file: attachments.Attachment, target: pathlib.Path | None) -> bool:
        """Copy an attachment; tell whether all of it was read."""
        folder, found = f"{self._folder}/{checkpoint.name}", 0
        with contextlib.suppress(*GONE), target.open("wb") if target else contextlib.nullcontext() as out:
            with attachments.open_attachment(self.store.files, folder, file) as data:
                while part := data.read(attachments.READ_BYTES):
                    found = google_crc32c.extend(found, part)
                    if out is not None:
                        out.write(part)
            if found == file.crc32c:
                return True
        if target is not None:
            target.unlink()
        return False
