"""The background upload of the stream that is written: how it is started, fed and stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from diskreplay.errors import RemoteWarning, warn_outside
from diskreplay.remote.background import BackgroundPush
from diskreplay.remote.objects import ObjectStore
from diskreplay.remote.push import Push
from diskreplay.storage.store import Checkpoint, Store
from diskreplay.storage.stream import StreamWriter
from diskreplay.storage.stream import lock as locked

CLOSE_SECONDS = 60.0
"""The seconds for which `close` waits for what is not pushed yet."""


def prepare(store: Store, stream: str, url: str, seconds: float) -> BackgroundPush:
    """Return the object that pushes a stream to a URL."""
    return BackgroundPush(Push(store, stream, ObjectStore(url)), seconds)


def check_going_back(store: Store, stream: str, checkpoint: Checkpoint, url: str | None) -> None:
    """Raise what stands against opening a stream at a checkpoint to be pushed to a URL; give up nothing."""
    lock = locked(store.files, store.stream_path(stream))
    try:
        newest = store.newest_commit(stream)
        if checkpoint.cut.get(stream, newest) != newest:
            store.check_going_back(stream, checkpoint)
            if url is not None:
                prepare(store, stream, url, 0.0).check_going_back(newest.timeline + 1)
    finally:
        lock.release()


class Pushes:
    """The pushes of an open store, none if ``pushing`` is None; the lock of writers guards every call.

    Args:
        path: of the store, for warnings.
        pushing: pushes the stream that is written.
    """

    def __init__(self, path: str, pushing: BackgroundPush | None) -> None:
        self.path = path
        self.pushing = pushing
        self._quiet = 0
        """The number of blocks of :meth:`warned_later` that are under way."""

    def committed(self, writer: StreamWriter | None) -> None:
        """Have what is durable here pushed."""
        if self.pushing is not None and writer is not None:
            self.pushing.committed(writer.commit_record)

    @contextlib.contextmanager
    def warned_later(self) -> Iterator[None]:
        """Keep :meth:`warn` silent inside: a warning may be an error, and would end what must be done whole."""
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1

    def warn(self) -> None:
        """Warn once each of what keeps rows or checkpoints from being pushed, when all that was asked for is done."""
        if self.pushing is None or self._quiet:
            return
        if (conflict := self.pushing.new_conflict()) is not None:
            warn_outside(f"nothing of {self.path!r} is pushed: {conflict}", RemoteWarning)
        self.warn_of_names()

    def warn_of_names(self) -> None:
        """Warn once each of checkpoints that are not pushed since another's has their name."""
        for name in self.pushing.newly_taken() if self.pushing is not None else ():
            assert self.pushing is not None
            warn_outside(
                f"the checkpoint {name!r} is here alone: at {self.pushing.url!r} another's has that name; make it "
                "under another name", RemoteWarning,
            )  # fmt: skip

    def end(self) -> Exception | None:
        """Push what is left, for at most CLOSE_SECONDS, and return what kept that from being done, or None."""
        return None if self.pushing is None else self.pushing.end(CLOSE_SECONDS)
