"""Making checkpoints of a buffer: here, or of a remote store that it reads."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from diskreplay.buffers import pushes
from diskreplay.buffers.state import rng_to_json
from diskreplay.checks import check_count
from diskreplay.errors import CheckpointError, StateError
from diskreplay.remote import checkpoints
from diskreplay.remote.files import RemoteFiles
from diskreplay.storage import attachments as files_beside
from diskreplay.storage.attachments import Given, Staged
from diskreplay.storage.files import LocalFiles
from diskreplay.storage.metadata import plain
from diskreplay.storage.store import Checkpoint, Store

if TYPE_CHECKING:
    from diskreplay.buffers.stored import StoredBuffer

PIN_ATTEMPTS = 50
"""How often a checkpoint is written anew because another stream's writer evicted meanwhile what it pins."""

State = tuple[dict[str, Any], dict[str, NDArray[Any]]]
"""Of a checkpoint: facts for JSON, and arrays ``(n,)`` by name."""


def nothing() -> State:
    """Of a checkpoint that holds nothing more."""
    return {}, {}


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A checkpoint that is to be made; all of it was looked at.

    Attributes:
        name: of it.
        metadata: the user's own; JSON.
        attachments: files that it takes along, by name.
        keep: how many of those that were made so are to stay, this one counted; None where it drops none.
    """

    name: str
    metadata: dict[str, Any]
    attachments: Given
    keep: int | None


def wanted(
    store: Store, name: str, metadata: Mapping[str, Any] | None, attachments: Given | None, keep: int | None
) -> Wanted:
    """Looks at what ``checkpoint`` of a buffer was given; raises what that raises, before anything is done."""
    checked = Wanted(
        name, plain("metadata", metadata or {}), files_beside.checked(attachments),
        None if keep is None else check_count("keep", keep),
    )  # fmt: skip
    try:
        store.check_new_checkpoint(name)
    except CheckpointError:
        if not isinstance(store.files, RemoteFiles):
            raise
        store.files.refresh()  # another may have dropped it since
        store.check_new_checkpoint(name)
    return checked


def make(buffer: StoredBuffer, wanted: Wanted) -> None:
    """Makes a checkpoint of a buffer, as its ``checkpoint`` does."""
    with staging(buffer, wanted.attachments) as staged:
        take(buffer, wanted, staged)
    for older in outdated(buffer, wanted):
        buffer.drop_checkpoint(older)


@contextlib.contextmanager
def staging(buffer: StoredBuffer, given: Given) -> Iterator[Staged | None]:
    """Writes the files of a checkpoint that is to be made; holds no lock meanwhile."""
    files = buffer._store.files
    if isinstance(files, RemoteFiles):
        with files.mirror.scratch() as scratch, files_beside.staged(LocalFiles(), scratch, given) as staged:
            yield staged
        return
    with buffer._write_lock:  # a commit of another thread marks the writer until it is done
        writer = buffer._writable()
        _check_knows_all(buffer)  # before gigabytes are written
        writer.check()
        writer.check_place("making a checkpoint of")
    with files_beside.staged(files, writer.scratch, given) as staged:
        yield staged


def take(buffer: StoredBuffer, wanted: Wanted, staged: Staged | None, beside: Callable[[], State] = nothing) -> None:
    """Commits, takes the cut and makes it a checkpoint, with the files that were staged for it.

    ``beside`` gives more that the checkpoint is to hold, and is called with the lock held.
    """
    files = buffer._store.files
    if isinstance(files, RemoteFiles):
        _take_there(buffer, files, wanted, staged, beside)
        return
    with buffer._write_lock:
        writer = buffer._writable()
        _check_knows_all(buffer)
        buffer._store.check_new_checkpoint(wanted.name)
        writer.last_checkpoint = buffer._store.next_number()
        with pushes.warned_later(buffer):
            buffer.commit()
        for _ in range(PIN_ATTEMPTS):
            checkpoint, arrays = _cut(buffer, wanted, staged, beside)
            with buffer._write_lock.exclusive:
                made = buffer._store.write_checkpoint(writer, checkpoint, arrays, staged)
            if made:
                pushes.committed(buffer)
                return
            buffer.refresh()
        raise CheckpointError(f"checkpoint {wanted.name!r}: other writers evict faster than their rows can be pinned")


def _check_knows_all(buffer: StoredBuffer) -> None:
    """Raises StateError where a buffer knows its own stream alone."""
    if buffer._streams.only_written:
        raise StateError(
            f"the buffer {buffer.path!r} was opened with mode='a' and knows its own stream alone: make "
            "checkpoints, which are of all streams, in a process that opens the store with mode='r+'"
        )


def outdated(
    buffer: StoredBuffer, wanted: Wanted, counts: Callable[[Checkpoint], bool] = lambda checkpoint: True
) -> list[str]:
    """Names the checkpoints that a new one is to drop: of its own maker, made with ``keep`` too, and that count."""
    if wanted.keep is None:
        return []
    every = buffer._store.checkpoints()
    own = [one.name for one in every if one.kept and one.maker == buffer.stream and counts(one)]
    return own[: -wanted.keep]


def _cut(
    buffer: StoredBuffer, wanted: Wanted, staged: Staged | None, beside: Callable[[], State]
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
    files = staged.attachments if staged is not None else {}
    now = time.time()  # noqa: TID251  `checkpoints list` shows it
    checkpoint = Checkpoint(
        wanted.name, cut, state, wanted.metadata, now, attachments=files, kept=wanted.keep is not None
    )
    return checkpoint, arrays


def _take_there(
    buffer: StoredBuffer, files: RemoteFiles, wanted: Wanted, staged: Staged | None, beside: Callable[[], State]
) -> None:
    """As :func:`take`, of a remote store: over the commits that the buffer stands at."""
    with buffer._write_lock, files.mirror.scratch() as scratch:
        for _ in range(PIN_ATTEMPTS):
            checkpoint, arrays = _cut(buffer, wanted, staged, beside)
            if checkpoints.write(buffer._store, files, checkpoint, arrays, staged, scratch):
                return
            buffer.refresh()
        raise CheckpointError(f"checkpoint {wanted.name!r}: shards that it needs are removed faster than it is made")
