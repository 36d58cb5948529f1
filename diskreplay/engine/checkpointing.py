"""How checkpoints of an open store are made and dropped: in its directory, or under the URL that it reads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from diskreplay.checks import check_count
from diskreplay.engine.engine import Engine
from diskreplay.engine.hooks import State
from diskreplay.errors import CheckpointError, StateError
from diskreplay.storage import attachments as files_beside
from diskreplay.storage.attachments import Given, Staged
from diskreplay.storage.metadata import plain
from diskreplay.storage.paths import is_url
from diskreplay.storage.store import Checkpoint, Store

if TYPE_CHECKING:
    from diskreplay.remote import RemoteCheckpoints

PIN_ATTEMPTS = 50
"""The most attempts at a checkpoint; one fails if another stream's writer evicts rows that the checkpoint pins."""


def nothing() -> State:
    """Return an empty state."""
    return {}, {}


class Wanted(NamedTuple):
    """The checked arguments for a new checkpoint.

    Attributes:
        name: the checkpoint's name.
        metadata: the user's metadata, of JSON values.
        attachments: the files to attach, by name.
        keep: the most checkpoints made with ``keep`` that stay, this one included; None to drop none.
    """

    name: str
    metadata: dict[str, Any]
    attachments: Given
    keep: int | None


def wanted(
    store: Store, name: str, metadata: Mapping[str, Any] | None, attachments: Given | None, keep: int | None
) -> Wanted:
    """Return the checked arguments of a buffer's ``checkpoint``; raise its errors before anything is done."""
    checked = Wanted(
        name, plain("metadata", metadata or {}), {} if attachments is None else files_beside.checked(attachments),
        None if keep is None else check_count("keep", keep),
    )  # fmt: skip
    try:
        store.check_new_checkpoint(name)
    except CheckpointError:
        store.files.refresh()  # another process may have dropped it since
        store.check_new_checkpoint(name)
    return checked


def make(engine: Engine, wanted: Wanted) -> None:
    """Make a checkpoint, and drop those that it replaces."""
    with staging(engine, wanted.attachments) as staged:
        take(engine, wanted, staged)
    drop_outdated(engine, wanted, lambda name: drop(engine, name))


def drop_outdated(
    engine: Engine, wanted: Wanted, drop: Callable[[str], None], counts: Callable[[Checkpoint], bool] | None = None
) -> None:
    """Drop the checkpoints that a new one replaces, as :func:`outdated` tells, where nobody else has just done so."""
    for older in outdated(engine, wanted, counts):
        with contextlib.suppress(CheckpointError):
            drop(older)


def drop(engine: Engine, name: str) -> None:
    """Drop a checkpoint; the next commit gives back the space that only this checkpoint needed."""
    if (there := _there(engine)) is not None:
        there.drop(name)
        return
    with engine.write_lock:
        writer = engine.settled()
        with engine.write_lock.exclusive:
            engine.store.drop_checkpoint(name, writer)


def staging(engine: Engine, given: Given) -> contextlib.AbstractContextManager[Staged | None]:
    """Write the attachments of a checkpoint that is to be made, without a lock."""
    if (there := _there(engine)) is not None:
        return there.staging(given) if given else contextlib.nullcontext()
    with engine.write_lock:  # while another thread commits, the writer is marked as failed
        writer = engine.writable()
        _check_knows_all(engine)  # before gigabytes of attachments are written
        writer.check()
        writer.check_place("making a checkpoint of")
    return files_beside.staged(engine.store.files, writer.scratch, given) if given else contextlib.nullcontext()


def take(engine: Engine, wanted: Wanted, staged: Staged | None, beside: Callable[[], State] = nothing) -> None:
    """Commit, and make a checkpoint of this moment, with the attachments that were staged for it.

    ``beside`` is called with the lock held, and returns further state for the checkpoint.
    """
    if (there := _there(engine)) is not None:
        _take_there(engine, there, wanted, staged, beside)
        return
    with engine.write_lock:
        writer = engine.writable()
        _check_knows_all(engine)
        writer.last_checkpoint = engine.store.next_number(writer)
        with engine.pushes.warned_later():
            engine.commit()
        for _ in range(PIN_ATTEMPTS):
            checkpoint, arrays = _cut(engine, wanted, staged, beside)
            with engine.write_lock.exclusive:
                made = engine.store.write_checkpoint(writer, checkpoint, arrays, staged)
            if made:
                engine.pushes.committed(writer)
                return
            engine.refresh()
        raise CheckpointError(
            f"checkpoint {wanted.name!r}: other writers evict faster than their rows can be kept; try again, or "
            "give their streams a larger capacity"
        )


def _there(engine: Engine) -> RemoteCheckpoints | None:
    """Return the object that makes checkpoints under the URL that this store is read from, or None for other stores."""
    if not is_url(engine.path):
        return None
    from diskreplay.remote import remote_checkpoints  # there since the store was opened

    return remote_checkpoints(engine.store)


def _check_knows_all(engine: Engine) -> None:
    """Raise StateError if the engine has opened only the stream that it writes."""
    if engine.streams.only_written:
        raise StateError(
            f"the buffer {engine.path!r} was opened with mode='a' and knows its own stream alone: make "
            "checkpoints, which are of all streams, in a process that opens the store with mode='r+'"
        )


def outdated(engine: Engine, wanted: Wanted, counts: Callable[[Checkpoint], bool] | None = None) -> list[str]:
    """Return the checkpoints that a new one replaces: the oldest of those that the same maker made with ``keep``.

    Only checkpoints for which ``counts`` returns True are considered.
    """
    if wanted.keep is None:
        return []
    own = engine.store.kept_checkpoint_names(engine.stream)
    if counts is not None:
        own = [one.name for one in engine.store.checkpoints(own) if counts(one)]
    return own[: -wanted.keep]


def _cut(
    engine: Engine, wanted: Wanted, staged: Staged | None, beside: Callable[[], State]
) -> tuple[Checkpoint, dict[str, NDArray[Any]]]:
    with engine.lock:
        engine.check_open()
        (state, arrays), (facts, values), cut = engine.state(), beside(), engine.streams.commits
    files = staged.attachments if staged is not None else {}
    now = time.time()  # noqa: TID251  `checkpoints list` shows it
    checkpoint = Checkpoint(
        wanted.name, cut, {**state, **facts}, wanted.metadata, now, attachments=files, kept=wanted.keep is not None
    )
    return checkpoint, {**arrays, **values}


def _take_there(
    engine: Engine, there: RemoteCheckpoints, wanted: Wanted, staged: Staged | None, beside: Callable[[], State]
) -> None:
    """Make a checkpoint of a remote store, as :func:`take` does, of the commits that the engine has read."""
    with engine.write_lock:
        for _ in range(PIN_ATTEMPTS):
            checkpoint, arrays = _cut(engine, wanted, staged, beside)
            if there.write(checkpoint, arrays, staged):
                return
            engine.refresh()
        raise CheckpointError(
            f"checkpoint {wanted.name!r}: shards that it needs are removed faster than it is made; try again, or "
            "give the streams a larger capacity"
        )
