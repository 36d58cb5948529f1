"""Making checkpoints of a buffer: here, or of a remote store that it reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from diskreplay.buffers import pushes
from diskreplay.buffers.state import rng_to_json
from diskreplay.errors import CheckpointError, StateError
from diskreplay.remote import checkpoints
from diskreplay.remote.files import RemoteFiles
from diskreplay.storage.metadata import plain
from diskreplay.storage.store import Checkpoint

if TYPE_CHECKING:
    from diskreplay.buffers.stored import StoredBuffer

PIN_ATTEMPTS = 50
"""How often a checkpoint is written anew because another stream's writer evicted meanwhile what it pins."""

State = tuple[dict[str, Any], dict[str, NDArray[Any]]]
"""Of a checkpoint: facts for JSON, and arrays ``(n,)`` by name."""


def nothing() -> State:
    """Of a checkpoint that holds nothing more."""
    return {}, {}


def make(
    buffer: StoredBuffer, name: str, metadata: Mapping[str, Any] | None, beside: Callable[[], State] = nothing
) -> None:
    """As ``checkpoint`` of a buffer; ``beside`` gives more that it is to hold, and is called with the lock held."""
    files = buffer._store.files
    if isinstance(files, RemoteFiles):
        _make_there(buffer, files, name, plain("metadata", metadata or {}), beside)
        return
    with buffer._write_lock:
        writer = buffer._writable()
        if buffer._streams.only_written:
            raise StateError(
                f"the buffer {buffer.path!r} was opened with mode='a' and knows its own stream alone: make "
                "checkpoints, which are of all streams, in a process that opens the store with mode='r+'"
            )
        given = plain("metadata", metadata or {})
        buffer._store.check_new_checkpoint(name)
        writer.last_checkpoint = buffer._store.next_number()
        with pushes.warned_later(buffer):
            buffer.commit()
        for _ in range(PIN_ATTEMPTS):
            checkpoint, arrays = _cut(buffer, name, given, beside)
            if buffer._store.write_checkpoint(writer, checkpoint, arrays):
                pushes.committed(buffer)
                return
            buffer.refresh()
        raise CheckpointError(f"checkpoint {name!r}: other writers evict faster than their rows can be pinned")


def _cut(
    buffer: StoredBuffer, name: str, given: dict[str, Any], beside: Callable[[], State]
) -> tuple[Checkpoint, dict[str, NDArray[Any]]]:
    """A checkpoint of this moment, and its arrays."""
    with buffer._lock:
        buffer._check_open()
        state, arrays = buffer._state()
        cut = buffer._streams.commits
        state["rng"] = rng_to_json(buffer._rng)
        for more in (beside, buffer._companion.state if buffer._companion is not None else None):
            facts, values = more() if more is not None else ({}, {})
            state, arrays = {**state, **facts}, {**arrays, **values}
    return Checkpoint(name, cut, state, given, time.time()), arrays


def _make_there(
    buffer: StoredBuffer, files: RemoteFiles, name: str, given: dict[str, Any], beside: Callable[[], State]
) -> None:
    """As :func:`make`, of a remote store: over the commits that the buffer stands at."""
    with buffer._write_lock:
        for _ in range(PIN_ATTEMPTS):
            if checkpoints.write(buffer._store, files, *_cut(buffer, name, given, beside)):
                return
            buffer.refresh()
        raise CheckpointError(f"checkpoint {name!r}: shards that it needs are removed faster than it is made")
