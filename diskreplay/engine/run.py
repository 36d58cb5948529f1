"""The user's options for an open store, which the store does not keep."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

import numpy as np

from diskreplay.checks import check_count
from diskreplay.engine import memory
from diskreplay.errors import InputError
from diskreplay.process import lifecycle
from diskreplay.reading.budget import Budget
from diskreplay.schema.ragged import PADDED, Forms, check_forms
from diskreplay.storage.paths import checked_url

BUDGET_SHARE = 4
"""The part of the memory that is left which buffers take by default."""
WORKER_BYTES = 256 << 20
"""The most default bytes of a process that another one started by :mod:`multiprocessing`, as a DataLoader its workers,
and of the chunks that a child of a fork keeps: each would take a quarter."""
APPENDING_BYTES = 64 << 20
"""The most default bytes of a buffer that opens no other stream; a machine may have many such buffers."""
COMMIT_ROWS = 10_000
COMMIT_SECONDS = 10.0
PUSH_SECONDS = 40.0
"""The seconds between two pushes, each of which uploads the unfinished shard again.

At 1,000 steps a second that adds about a sixth to the bytes uploaded.
"""


class EngineOptions(TypedDict, total=False):
    """The options of an open store.

    Attributes:
        cache_bytes: RAM for the values of the window. Columns of vectors that fit are held whole, those of the smallest
            values first; the rest caches what was read, of which frames that are like each other take a tenth of their
            size. Rewards, flags, and small values whose window has at most 128 MB are held besides. If None, a quarter
            of what this process may still take, for all its buffers together; at most 64 MB with ``mode="a"``, and
            256 MB in a process that :mod:`multiprocessing` started.
        commit_rows, commit_seconds: ``add`` begins a commit after so many rows, or so many seconds, which a thread
            writes. A process that is killed loses what it added after the last one that was written.
        seed: the seed of the sampler's random generator; from the system's entropy if None. It is not used with a
            checkpoint, which has its own random state.
        remote: URL that the store is pushed to in the background (``s3://bucket/name``); see ``docs/remote.md``. Where
            ``create`` makes the store, nothing may be there; ``open_or_create`` joins a store that is, with a stream of
            its own.
        push_seconds: between the beginnings of two pushes; ``push`` and ``close`` do not wait for it.
        ragged: how batches show ragged values, all, or by column: ``Pad(...)``, to the longest if nothing else is said,
            as :class:`~diskreplay.Padded`, or "lists" as :class:`~diskreplay.Lists`. None refuses a store that has
            some.
    """

    cache_bytes: int | None
    commit_rows: int
    commit_seconds: float
    seed: int | None
    remote: str | None
    push_seconds: float
    ragged: Forms | None


DEFAULTS: EngineOptions = {
    **EngineOptions(cache_bytes=None, commit_rows=COMMIT_ROWS, commit_seconds=COMMIT_SECONDS, seed=None),
    **EngineOptions(remote=None, push_seconds=PUSH_SECONDS, ragged=PADDED),
}


def engine_options(options: Mapping[str, Any]) -> EngineOptions:
    """Return those of a call's options that are an engine's, defaults too; raise InputError for a wrong one."""
    found: Any = {name: options.get(name, default) for name, default in DEFAULTS.items()}
    if found["cache_bytes"] is not None:
        check_count("cache_bytes", found["cache_bytes"], least=0)
    check_count("commit_rows", found["commit_rows"])
    for name, least in (("commit_seconds", "above 0"), ("push_seconds", "from 0 on")):
        seconds = found[name]
        number = isinstance(seconds, int | float | np.integer | np.floating)
        if not number or not (seconds > 0 or (seconds == 0 and name == "push_seconds")):
            raise InputError(f"{name} must be a number {least}, got {seconds!r}")
    if found["ragged"] is not None:
        check_forms(found["ragged"])
    if found["remote"] is not None:
        checked_url(found["remote"])
    if found["seed"] is not None:
        check_count("seed", found["seed"], least=0, most=1 << 128)
    return found  # type: ignore[no-any-return]


_shared: tuple[int, Callable[[], Budget | None]] = 0, lambda: None
"""The process that made the budget of its buffers, and a reference to it, which returns None once no buffer has it."""


def budget_of(options: EngineOptions, only_written: bool) -> Budget:
    """Return the budget of a buffer; ``only_written`` is True for one that opens no other stream.

    By default it is that of all buffers that the process has open, made when the first of them is opened.
    """
    global _shared
    if (given := options["cache_bytes"]) is not None:
        return Budget(given)
    quarter = memory.left() // BUDGET_SHARE
    if only_written:
        return Budget(min(quarter, APPENDING_BYTES))
    process, shared = _shared[0], _shared[1]()
    if shared is None or process != lifecycle.process:
        shared = Budget(min(quarter, WORKER_BYTES) if lifecycle.is_worker() else quarter, WORKER_BYTES)
        _shared = lifecycle.process, weakref.ref(shared)
    return shared
