"""The taking over of a stream from another buffer of this process, which commits and is closed.

So a cell of a notebook that opens a store can be run again.

A thread that is in the middle of a call of that buffer ends this call first; its next one raises ClosedError.
"""

from __future__ import annotations

from diskreplay.engine import forks
from diskreplay.storage.store import Store


def close_writer(store: Store, stream: str) -> None:
    """Close the buffer of this process that writes a stream of a store, if there is one.

    Raises what ``close`` of that buffer raises; it is closed all the same.
    """
    for engine in forks.opened():
        writer = engine.streams.writer
        if writer is not None and writer.writes(store.stream_path(stream)):
            engine.close()
