"""Out of a damaged store everything that can be read, into a new one.

1. The root is read, or else the copy of it whose identity seals most tails.
2. Of each stream the commit record is read, or else the last one in its tail, or else the newest checkpoint's.
3. Every chunk is read once: so it is known which transitions are whole (:mod:`diskreplay.ops.salvage_rows`). In the log
   by which the stream is then read the others are no transitions, and cut its episodes.
4. ``write_store`` writes what is left, as an export to a store does: episodes one after another.
5. Metadata and attachments of checkpoints are copied to files beside the new store.

The damaged store is only read, and no lock is taken.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import os
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.errors import DiskFullError, InputError
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.output import check_target, replacing
from diskreplay.formats.core.selection import SelectedStore
from diskreplay.formats.core.transitions import Source, Transitions
from diskreplay.formats.store import write_store
from diskreplay.ops.combine import STORE
from diskreplay.ops.convert import PLAIN, bytes_of, counted, new_store
from diskreplay.ops.edit import copy_later
from diskreplay.ops.result import Result
from diskreplay.ops.salvage_streams import SalvagedStream, SparedCheckpoints, SparedRows
from diskreplay.ops.signals import Progress, stoppable
from diskreplay.storage import metadata
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import PathLike, full_path, is_url
from diskreplay.storage.spared import read_root
from diskreplay.storage.store import Store


@dataclasses.dataclass(frozen=True)
class Salvaged(Result):
    """What a salvage wrote, or would.

    Attributes:
        path, out: the damaged store and the new one.
        dry_run: True if nothing was written.
        root: the copy from which the root was read; None if it was whole.
        streams: what can be read of each stream.
        checkpoints, lost_checkpoints: the names of those whose documents can be read, and cannot be.
        files, lost_files: attachments that can be read, and cannot be, as ``NAME/ATTACHMENT``.
        transitions, episodes: of the new store; a damaged episode is one for each run of its steps.
        padded: its transitions whose stacks show padding for frames of steps before their run; only where single frames
            were added.
        stored_bytes: that it takes on disk; 0 after a dry run.
        seconds: that it took.
        lossless: True if all that the store had can be read.
    """

    path: str
    out: str
    dry_run: bool
    root: str | None
    streams: tuple[SalvagedStream, ...]
    checkpoints: tuple[str, ...]
    lost_checkpoints: tuple[str, ...]
    files: tuple[str, ...]
    lost_files: tuple[str, ...]
    transitions: int
    episodes: int
    padded: int
    stored_bytes: int
    seconds: float
    lossless: bool


def salvage(path: PathLike, out: PathLike, *, dry_run: bool = False, progress: Progress | None = None) -> Salvaged:
    """Write all that can be read of the damaged store at ``path`` to a new store ``out``.

    A transition is written bit for bit, or not at all. Each run of steps that are there is an episode of ``out``, which
    has one stream of one environment; so no view spans a gap. Facts of episodes and values written later go along.
    Metadata and attachments of checkpoints go to ``out.checkpoints/NAME/metadata.json`` and
    ``out.checkpoints/NAME/attachments/``. Nothing at ``path`` changes, no lock is taken, and an interrupted salvage
    leaves nothing under the name of ``out``.

    Args:
        path: the directory of the damaged store, which nobody writes meanwhile.
        out: must not exist.
        dry_run: only say what can be read.
        progress: a function, called with bytes done and in all; each is read once to check it, and once to copy it.

    Returns:
        What was written and lost, in numbers: of each stream, and of each damaged episode.

    Raises:
        InputError: when ``out`` exists, or ``path`` is a URL.
        StoreNotFoundError, NotAStoreError, FormatVersionError: when there is no store that this version reads.
        CorruptionError: when the root and all its copies are lost.
        DiskFullError: when the disk of ``out`` is too small; nothing was written then.

    >>> import tempfile, gymnasium, diskreplay
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with diskreplay.ReplayBuffer.create(f"{folder}/a", *[gymnasium.spaces.Discrete(9)] * 2, capacity=9) as rb:
    ...         rb.extend([0, 1, 2], [0, 0, 0], [1.0, 1.0, 1.0], [1, 2, 3], [False, False, True], [False] * 3)
    ...     found = diskreplay.salvage(f"{folder}/a", f"{folder}/b")
    >>> found.transitions, found.lossless
    (3, True)
    """
    started = time.perf_counter()
    if is_url(path):
        raise InputError(f"salvage reads a directory: 'diskreplay pull {os.fspath(path)}' makes one of what is there")
    target = new_store(out, path)
    beside = target.with_name(f"{target.name}.checkpoints")
    for one in (target, beside):
        check_target(one, "directory")
    store = Store(full_path(path), LocalFiles(), read_root)
    checkpoints = SparedCheckpoints(store)
    names = metadata.nodes(store.files, store.stream_path(""))
    streams = [SparedRows(store, name, checkpoints.readable) for name in names]
    size = sum(one.size for one in streams)
    if not dry_run:
        check_room(store, target, size + checkpoints.size)
    with stoppable(progress) as report:
        scan(streams, report, size)
        parts = [one.part for one in streams if one.part is not None]
        facts = [told for one in streams for told in one.facts]
        source = joined(store, parts, facts, lambda done, steps: report(size + size * done // steps, 2 * size))
        with contextlib.nullcontext() if dry_run else replacing(target, "directory") as temporary:
            if temporary is not None:
                write(source, parts, temporary)
            checkpoints.copy(None if dry_run else beside)
    found = tuple(one.found for one in streams)
    lossless = all(one.record and not one.lost and not one.logs for one in found)
    return Salvaged(
        store.path, str(target), dry_run, store.root_copy, found, tuple(one.name for one in checkpoints.readable),
        tuple(checkpoints.lost), tuple(checkpoints.files), tuple(checkpoints.lost_files), source.steps,
        source.episodes or 0, sum(loss.count for part in parts for loss in part.losses(STORE.holds, later=True)),
        0 if dry_run else bytes_of(target), time.perf_counter() - started,
        lossless and not checkpoints.lost and not checkpoints.lost_files,
    )  # fmt: skip


def check_room(store: Store, target: pathlib.Path, needed: int) -> None:
    """Raise DiskFullError if the disk of the new store has no room for what the indexes of the old one name."""
    if (room := store.files.room(str(target.parent))) < needed:
        raise DiskFullError(
            errno.ENOSPC, f"{str(target)!r} may need {needed:,} bytes, and its disk has room for {room:,}; nothing was "
            "written: make room, or name another disk",
        )  # fmt: skip


def scan(streams: Sequence[SparedRows], report: Progress, size: int) -> None:
    """Find what can be read of the streams."""
    done = 0
    for stream in streams:
        for count in stream.scan():
            done += count
            report(done, 2 * size)
        stream.select()


def joined(
    store: Store, parts: Sequence[SelectedStore], facts: Sequence[Mapping[str, Any]], report: Progress
) -> Source:
    """Return what can be read of all streams as one source, with the facts of its episodes."""
    sources = [part.source(stacked=True) for part in parts]
    steps = sum(source.steps for source in sources)

    def blocks() -> Iterator[Transitions]:
        return itertools.chain.from_iterable(source.blocks() for source in sources)

    layout = Layout.of(store.schema, stacked=True, provenance=store.provenance)
    return counted(Source(layout, steps, blocks, len(facts), facts=facts if any(facts) else ()), report)


def write(source: Source, parts: Sequence[SelectedStore], target: pathlib.Path) -> None:
    """Write a source to a new store, with what was written later to the steps of its parts."""
    later = {column.name: (column.shape, column.dtype) for part in parts for column in part.schema.later}
    write_store(source, target, later=later)
    if later and source.steps:
        with ReplayBuffer.open(target, **PLAIN) as buffer:
            for part, first in zip(
                parts, itertools.accumulate((part.steps for part in parts), initial=0), strict=False
            ):
                copy_later(part, part.ids(), buffer, first)
