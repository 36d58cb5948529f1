"""How the background upload of the written stream is started, fed and stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from diskreplay.errors import RemoteWarning, warn_outside
from diskreplay.process.locks import Lock
from diskreplay.storage.store import Checkpoint, Store
from diskreplay.storage.stream import StreamWriter
from diskreplay.storage.stream import lock as locked

if TYPE_CHECKING:
    from diskreplay.remote import BackgroundPush

CLOSE_SECONDS = 60.0
"""The most seconds for which `close` waits until everything is pushed."""


def prepare(store: Store, stream: str, url: str, seconds: float) -> BackgroundPush:
    """Return an object that pushes a stream to a URL in the background."""
    from diskreplay.remote import BackgroundPush, ObjectStore, Push

    return BackgroundPush(Push(store, stream, ObjectStore(url)), seconds)


def check_going_back(store: Store, stream: str, checkpoint: Checkpoint, url: str | None) -> None:
    """Raise the errors of opening a stream at a checkpoint, and pushing it to a URL, but discard no rows."""
    lock = locked(store.files, store.stream_path(stream))
    try:
        newest = store.newest_commit(stream)
        if not newest.says_the_same(checkpoint.cut.get(stream, newest)):
            store.check_going_back(stream, checkpoint)
            if url is not None:
                prepare(store, stream, url, 0.0).check_going_back(newest.timeline + 1)
    finally:
        lock.release()


class Pushes:
    """The pushes of an open store. Callers hold ``engine.write_lock``, but for :meth:`committed`.

    Args:
        path: the path of the store, for warnings.
        pushing: the object that pushes the written stream; None if the store is not pushed.
    """

    def __init__(self, path: str, pushing: BackgroundPush | None) -> None:
        self.path = path
        self.pushing = pushing
        self._quiet = 0
        """The number of blocks of :meth:`warned_later` that have begun and not ended."""

    @property
    def locks(self) -> tuple[Lock, ...]:
        """The locks that :meth:`committed` takes."""
        return () if self.pushing is None else (self.pushing.lock,)

    def committed(self, writer: StreamWriter | None) -> None:
        """Have the newest commit pushed."""
        if self.pushing is not None and writer is not None:
            self.pushing.committed(writer.commit_record)

    @contextlib.contextmanager
    def warned_later(self) -> Iterator[None]:
        """Keep :meth:`warn` silent in a block: a warning may be an error, which would cut the block's work short."""
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1

    def warn(self) -> None:
        """Warn, once for each, of what keeps rows or checkpoints from being pushed; call it when all else is done."""
        if self.pushing is None or self._quiet:
            return
        if (conflict := self.pushing.new_conflict()) is not None:
            warn_outside(f"nothing of {self.path!r} is pushed: {conflict}", RemoteWarning)
        self.warn_of_names()

    def warn_of_names(self) -> None:
        """Warn, once for each, of checkpoints that are not pushed because another checkpoint has their name."""
        for name in self.pushing.newly_taken() if self.pushing is not None else ():
            assert self.pushing is not None
            warn_outside(
                f"the checkpoint {name!r} is here alone: at {self.pushing.url!r} another's has that name; make it "
                "under another name", RemoteWarning,
            )  # fmt: skip

    def end(self) -> Exception | None:
        """Push what is left, for at most CLOSE_SECONDS; return the error that prevented it, or None."""
        return None if self.pushing is None else self.pushing.end(CLOSE_SECONDS)
