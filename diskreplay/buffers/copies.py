"""Copies of open buffers, as pickle, deepcopy and processes that are spawned make them: by path, and opened there.

A copy of a buffer with ``mode="r"`` stands at its checkpoint, or at the last commit; its view, and its sampler with its
priorities, are copies too. It draws batches of its own, as the child of a fork does: see
:mod:`diskreplay.buffers.forks`. A buffer that writes has no copy: a stream has one writer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from diskreplay.buffers import forks
from diskreplay.remote.files import RemoteFiles
from diskreplay.storage.files import LocalFiles

if TYPE_CHECKING:
    from diskreplay.buffers.stored import StoredBuffer


def reduce(buffer: StoredBuffer, options: dict[str, Any]) -> tuple[Callable[..., StoredBuffer], tuple[Any, ...]]:
    """What pickle keeps of a buffer; ``options`` are those of its class's ``open`` beside the ones of all.

    Raises ClosedError for a closed buffer, TypeError for one that cannot be opened a second time.
    """
    with buffer._lock:
        buffer._check_open()
        kind = type(buffer)
        if buffer._streams.writer is not None:
            raise TypeError(
                f"a {kind.__name__} that writes cannot be copied or pickled: the stream has one writer. Open "
                f"{buffer.path!r} there: with mode='r', or with stream='...' to write beside this one"
            )
        files = buffer._store.files
        if isinstance(files, RemoteFiles):
            options = {"mirror": files.mirror.directory, "mirror_bytes": files.mirror.most_bytes, **options}
        elif not isinstance(files, LocalFiles):
            raise TypeError(f"a {kind.__name__} over files of one's own cannot be copied or pickled")
        checkpoint = None if buffer._checkpoint is None else buffer._checkpoint.name
        options = {"mode": "r", "checkpoint": checkpoint, "cache_bytes": buffer._streams.cache.budget_bytes, **options}
        return _open, (kind, buffer.path, options, forks.next_generator(buffer))


def _open(kind: Any, path: str, options: dict[str, Any], rng: np.random.Generator) -> StoredBuffer:
    buffer: StoredBuffer = kind.open(path, **options)
    buffer._rng.bit_generator.state = rng.bit_generator.state
    return buffer
