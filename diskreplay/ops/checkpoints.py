"""The checkpoints of a store: to list them, drop them, and go back to them.

1. Dropping needs the lock of one stream, and gives back at once what only the checkpoint needed of the streams that
   nobody writes; the writers of the others give it back with their next commit.
2. Going back takes a stream to where it was at the checkpoint, as opening it there to write does: what was added to the
   stream since is discarded. Other streams stay as they are.
3. ``import --append`` makes a checkpoint before the first step, and drops it after the last. One that is there without
   its importer is the mark of an import that was killed: going back takes that back, and drops the mark.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator
from typing import Any

from diskreplay.errors import CheckpointError, InputError, LockedError
from diskreplay.ops.result import Result
from diskreplay.remote import local, open_store, remote_checkpoints
from diskreplay.storage import stream
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import PathLike
from diskreplay.storage.store import Checkpoint, Store
from diskreplay.storage.stream import StreamWriter

IMPORT_MARK = "import"
"""The key of the metadata of a checkpoint that an import goes back to: the stream that takes its steps."""


@dataclasses.dataclass(frozen=True)
class CheckpointLine(Result):
    """The facts of a checkpoint.

    Attributes:
        name: the name of the checkpoint.
        number: its place in the order of all.
        maker: the stream whose writer made it; None where a reader of a remote store did.
        time: the time at which it was made, by its maker's clock, seconds since the epoch.
        rows: the rows ``(start, stop)`` of each stream's window, by stream.
        metadata: the user's.
        attachments: bytes of the files that it took along, by name.
        import_into: the stream of an import that goes on or was killed; None for a checkpoint of another kind.
    """

    name: str
    number: int
    maker: str | None
    time: float
    rows: dict[str, tuple[int, int]]
    metadata: dict[str, Any]
    attachments: dict[str, int]
    import_into: str | None

    @classmethod
    def of(cls, found: Checkpoint) -> CheckpointLine:
        mark = found.metadata.get(IMPORT_MARK)
        into = mark if isinstance(mark, str) and mark in found.cut and found.name.startswith("before-import-") else None
        rows = {name: (cut.begin, cut.end) for name, cut in found.cut.items()}
        sizes = {name: one.length for name, one in found.attachments.items()}
        return CheckpointLine(found.name, found.number, found.maker, found.time, rows, found.metadata, sizes, into)


@dataclasses.dataclass(frozen=True)
class Restoration(Result):
    """The rows and checkpoints that going back discarded.

    Attributes:
        checkpoint: the checkpoint to which the stream went back.
        stream: the stream that went back.
        row: the row at which the stream ends now.
        discarded: rows after that.
        dropped: True if the checkpoint went, too: it was the mark of an import.
    """

    checkpoint: str
    stream: str
    row: int
    discarded: int
    dropped: bool


def checkpoints(path: PathLike) -> list[CheckpointLine]:
    """Return the checkpoints of the store at ``path``, oldest first, with errors as when the store is opened."""
    return [CheckpointLine.of(found) for found in open_store(path).checkpoints()]


def unfinished_imports(path: PathLike) -> list[str]:
    """Return the checkpoints of killed imports into the store at ``path``: nobody writes their streams."""
    store = open_store(path)
    marks = [line for line in map(CheckpointLine.of, store.checkpoints()) if line.import_into is not None]
    return [mark.name for mark in marks if _is_free(store, str(mark.import_into))]


def drop(path: PathLike, names: Collection[str]) -> None:
    """Drop checkpoints of the store at ``path``.

    Raises CheckpointError when there is none of that name, and then drops none; LockedError when all streams are being
    written: their writers can drop it. Of a remote store the documents are removed, and `gc` gives the space back; one
    that a local store still has comes back with its next push.
    """
    store = open_store(path)
    for name in names:
        store.checkpoint(name)
    if (there := remote_checkpoints(store)) is not None:
        for name in dict.fromkeys(names):
            there.drop(name)
        return
    with _free_writers(store) as writers:
        for name in dict.fromkeys(names):
            store.drop_checkpoint(name, writers[0])
        cuts = store.cuts_of(writer.name for writer in writers)
        for writer in writers:
            writer.reclaim(contextlib.nullcontext(), cuts[writer.name])


def restore(path: PathLike, name: str, stream_name: str | None = None) -> Restoration:
    """Take a stream of the store at ``path`` back to a checkpoint.

    Args:
        path: the path of the store.
        name: the name of the checkpoint.
        stream_name: the name of the stream that goes back; if None, that of an import, or of the only stream that went
            on since.

    Raises:
        CheckpointError: when there is no such checkpoint, or later ones need what would be discarded.
        InputError: when it does not go without saying which stream is meant.
        LockedError: when that is being written.
    """
    store = Store(local(path, "going back to a checkpoint"), LocalFiles())
    checkpoint = store.checkpoint(name)
    mark = CheckpointLine.of(checkpoint).import_into
    chosen = stream_name if stream_name is not None else mark if mark is not None else _moved(store, checkpoint)
    if chosen not in checkpoint.cut:
        raise CheckpointError(f"checkpoint {name!r} has no stream {chosen!r}; it has {', '.join(checkpoint.cut)}")
    before = stream.read_commit(store.files, store.stream_path(chosen)).end
    with store.write_stream(chosen, checkpoint) as writer:
        if mark == chosen:
            store.drop_checkpoint(name, writer)
        writer.reclaim(contextlib.nullcontext())
        row = writer.commit_record.end
    return Restoration(name, chosen, row, max(0, before - row), mark == chosen)


def _is_free(store: Store, name: str) -> bool:
    lock = store.files.lock(stream.lock_file(store.stream_path(name)))
    if lock is not None:
        lock.release()
    return lock is not None


def _moved(store: Store, checkpoint: Checkpoint) -> str:
    """Return the only stream that has another commit than the checkpoint, or the first if none has."""
    moved = [name for name, cut in checkpoint.cut.items() if store.newest_commit(name) != cut]
    if len(moved) > 1:
        raise InputError(f"the streams {', '.join(moved)} went on since {checkpoint.name!r}; name one (--stream)")
    return (moved or list(checkpoint.cut))[0]


@contextlib.contextmanager
def _free_writers(store: Store) -> Iterator[list[StreamWriter]]:
    """Yield writers of the streams that nobody writes; raise LockedError if there is none."""
    with contextlib.ExitStack() as opened:
        writers: list[StreamWriter] = []
        locked: LockedError | None = None
        for name in store.stream_names():
            try:
                writers.append(opened.enter_context(store.write_stream(name)))
            except LockedError as error:
                locked = error
        if not writers and locked is not None:
            raise locked
        yield writers
