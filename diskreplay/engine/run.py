"""The user's options for an open store, which the store does not keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np

from diskreplay.checks import check_count
from diskreplay.engine import memory
from diskreplay.errors import InputError
from diskreplay.schema.ragged import PADDED, Forms, check_forms
from diskreplay.storage.paths import checked_url


class DefaultBytes(int):
    """The bytes of a cache that nobody asked for: a buffer takes fewer where little memory is left."""


CACHE_BYTES = DefaultBytes(256 << 20)
"""The least default bytes of the cache of a buffer that samples, where memory is left."""
APPENDING_CACHE_BYTES = DefaultBytes(64 << 20)
"""The default bytes of the cache of a buffer that opens no other stream; a machine may have many such buffers."""
MEMORY_SHARE = 16
"""The part of the memory that the cache takes by default if that is more."""
LEFT_SHARE = 4
"""The part that it takes at most by default of what is left when the buffer is opened."""
COMMIT_ROWS = 10_000
COMMIT_SECONDS = 10.0
PUSH_SECONDS = 40.0
"""The seconds between two pushes, each of which uploads the unfinished shard again.

At 1,000 steps a second that adds about a sixth to the bytes uploaded.
"""


class EngineOptions(TypedDict, total=False):
    """The options of an open store.

    Attributes:
        cache_bytes: RAM for frames and other large values that were read, of which frames that are like each other take
            a tenth of their size. If None, what the window needs, at most a sixteenth of the memory of the machine, or
            of the control group, or 256 MB where that is more; 64 MB with ``mode="a"``; never more than a quarter of
            what this process may still take.
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


def cache_budget(options: EngineOptions, only_written: bool) -> int:
    """Return the bytes of the cache; ``only_written`` is True for a buffer that opens no other stream."""
    budget = options["cache_bytes"]
    if budget is None:
        wanted = APPENDING_CACHE_BYTES if only_written else max(CACHE_BYTES, memory.limit() // MEMORY_SHARE)
        budget = DefaultBytes(wanted)
    return min(budget, memory.left() // LEFT_SHARE) if isinstance(budget, DefaultBytes) else budget
