"""The user's options for an open store, which the store does not keep."""

from __future__ import annotations

import dataclasses

import numpy as np

from diskreplay.checks import check_count
from diskreplay.engine import memory
from diskreplay.errors import InputError
from diskreplay.remote import checked_url
from diskreplay.schema.ragged import PADDED, Forms, check_forms


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


@dataclasses.dataclass(frozen=True)
class Run:
    """The options of an open store, as ``ReplayBuffer.create`` has them; InputError is raised for a wrong one."""

    cache_bytes: int | None = None
    commit_rows: int = COMMIT_ROWS
    commit_seconds: float = COMMIT_SECONDS
    seed: int | None = None
    remote: str | None = None
    push_seconds: float = PUSH_SECONDS
    ragged: Forms | None = PADDED
    reward_column: str | None = None

    def __post_init__(self) -> None:
        if self.cache_bytes is not None:
            check_count("cache_bytes", self.cache_bytes, least=0)
        check_count("commit_rows", self.commit_rows)
        for name, least in (("commit_seconds", "above 0"), ("push_seconds", "from 0 on")):
            seconds = getattr(self, name)
            number = isinstance(seconds, int | float | np.integer | np.floating)
            if not number or not (seconds > 0 or (seconds == 0 and name == "push_seconds")):
                raise InputError(f"{name} must be a number {least}, got {seconds!r}")
        if self.ragged is not None:
            check_forms(self.ragged)
        if self.remote is not None:
            checked_url(self.remote)
        if self.seed is not None:
            check_count("seed", self.seed, least=0, most=1 << 128)

    def cache_budget(self, only_written: bool) -> int:
        """Return the bytes of the cache; ``only_written`` is True for a buffer that opens no other stream."""
        budget = self.cache_bytes
        if budget is None:
            wanted = APPENDING_CACHE_BYTES if only_written else max(CACHE_BYTES, memory.limit() // MEMORY_SHARE)
            budget = DefaultBytes(wanted)
        return min(budget, memory.left() // LEFT_SHARE) if isinstance(budget, DefaultBytes) else budget
