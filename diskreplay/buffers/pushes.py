"""A buffer whose stream is pushed to a remote store: from when on, what of it, and until when."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from diskreplay.errors import DiskReplayError, RemoteWarning
from diskreplay.remote.objects import ObjectStore
from diskreplay.remote.push import Push
from diskreplay.remote.pushing import Pushing
from diskreplay.storage.store import Checkpoint, Store
from diskreplay.storage.stream import lock as locked

if TYPE_CHECKING:
    from diskreplay.buffers.stored import StoredBuffer

CLOSE_SECONDS = 60.0
"""How long `close` waits for what is not pushed yet."""


def prepare(store: Store, stream: str | None, url: str | None, seconds: float) -> Pushing | None:
    """What will push the stream that is written, where it is to be pushed."""
    if url is None or stream is None:
        return None
    return Pushing(Push(store, stream, ObjectStore(url)), seconds)


def check_going_back(store: Store, stream: str, checkpoint: Checkpoint, url: str | None) -> None:
    """Raises what stands against opening a stream at a checkpoint, to be pushed to a URL; gives up nothing."""
    lock = locked(store.files, store.stream_path(stream))
    try:
        newest = store.newest_commit(stream)
        if checkpoint.cut.get(stream, newest) != newest:
            store.check_going_back(stream, checkpoint)
            if (pushing := prepare(store, stream, url, 0.0)) is not None:
                pushing.check_going_back(newest.timeline + 1)
    finally:
        lock.release()


def committed(buffer: StoredBuffer) -> None:
    """Has what is durable here pushed."""
    if buffer._pushing is not None and buffer._streams.writer is not None:
        buffer._pushing.committed(buffer._streams.writer.commit_record)


@contextlib.contextmanager
def warned_later(buffer: StoredBuffer) -> Iterator[None]:
    """What :func:`warn` would say inside waits: a warning may be an error, and would end what must be done whole."""
    buffer._warned_later += 1
    try:
        yield
    finally:
        buffer._warned_later -= 1


def warn(buffer: StoredBuffer) -> None:
    """Says what keeps rows or checkpoints from being pushed, once each; when all that was asked for is done."""
    if buffer._pushing is None or buffer._warned_later:
        return
    if (conflict := buffer._pushing.new_conflict()) is not None:
        warnings.warn(f"nothing of {buffer.path!r} is pushed: {conflict}", RemoteWarning, stacklevel=4)
    warn_of_names(buffer, buffer._pushing, 5)


def warn_of_names(buffer: StoredBuffer, pushing: Pushing, level: int) -> None:
    """Says which checkpoints are not pushed since another's has their name, once each."""
    for name in pushing.newly_taken():
        warnings.warn(
            f"the checkpoint {name!r} is here alone: at {pushing.url!r} another's has that name; make it under "
            "another name", RemoteWarning, stacklevel=level,
        )  # fmt: skip


def end(buffer: StoredBuffer) -> Exception | None:
    """Commits and pushes what is left; what kept that from being done. From the commit on the buffer takes nothing."""
    if buffer._pushing is None or buffer._closed:
        return None
    try:
        with buffer._write_lock:
            if buffer._streams.writer is not None and not buffer._ending:
                with warned_later(buffer):
                    buffer._commit_last(buffer._streams.writer)
            buffer._ending = True
        return buffer._pushing.end(CLOSE_SECONDS)
    except DiskReplayError:
        return None  # which closing will say
    except BaseException:
        buffer._ending = False  # it stays open, to be closed again
        raise
