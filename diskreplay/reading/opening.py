"""Opening a stream to read it, beside whoever writes it."""

from __future__ import annotations

from diskreplay.errors import CorruptionError
from diskreplay.reading.cache import ChunkCache
from diskreplay.reading.stream import OpenStream
from diskreplay.storage.commit import Commit
from diskreplay.storage.store import Store

ATTEMPTS = 10


def open_stream(store: Store, name: str, cache: ChunkCache, cut: Commit | None = None) -> OpenStream:
    """The stream as of its newest commit, or of a checkpoint's, with its index in RAM.

    Shards are opened one after another, so its writer may evict one, or go back, before it was read: then there is a
    newer commit, and the stream is read anew. CorruptionError where there is none.
    """
    for left in reversed(range(ATTEMPTS)):
        newest = store.newest_commit(name)
        try:
            return OpenStream(store.schema, store.read_stream(name, cut or newest, newest.timeline), cache)
        except CorruptionError:
            if not left or store.newest_commit(name).sequence == newest.sequence:
                raise
    raise AssertionError("unreachable")
