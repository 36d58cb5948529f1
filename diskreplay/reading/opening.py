"""Opening a stream to read it, beside whoever writes it."""

from __future__ import annotations

import time

from diskreplay.errors import CorruptionError, EvictedError
from diskreplay.reading.cache import ChunkCache
from diskreplay.reading.stream import OpenStream
from diskreplay.storage.commit import Commit
from diskreplay.storage.store import Store

OUTRUN_SECONDS = 60.0
"""How long a reader tries to open a stream whose writer replaces the window faster than it is read."""


def open_stream(store: Store, name: str, cache: ChunkCache, cut: Commit | None = None) -> OpenStream:
    """The stream as of its newest commit, or of a checkpoint's, with its index in RAM.

    Shards are opened one after another, so its writer may evict one, or go back, before it was read. Then a newer
    commit needs that shard no more, and the stream is read anew.

    Raises CorruptionError where no newer commit explains what cannot be read, or two of them need it; EvictedError
    where the writer went on replacing what was being read for a minute.
    """
    began, before = time.monotonic(), None
    while True:
        tried = store.newest_commit(name)
        try:
            return OpenStream(store.schema, store.read_stream(name, cut or tried, tried.timeline), cache)
        except CorruptionError as error:
            newest = store.newest_commit(name)
            place = error.file, tried.timeline
            if newest.sequence == tried.sequence or place == before:
                raise
            if time.monotonic() - began > OUTRUN_SECONDS:
                raise EvictedError(
                    f"the writer of the stream {name!r} of {store.path!r} replaces its window, rows {newest.begin} to "
                    f"{newest.end}, faster than it can be read: open a checkpoint, or give the stream a larger capacity"
                ) from error
            before = place
