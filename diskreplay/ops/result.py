"""The result of an operation, as an object and as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Result:
    """The base of what operations return; its fields are values that JSON has, or results."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class Compressed:
    """The base of what has bytes that are compressed."""

    raw_bytes: int
    stored_bytes: int

    @property
    def ratio(self) -> float:
        """Raw bytes for each byte on disk, 0 when there is nothing."""
        return self.raw_bytes / self.stored_bytes if self.stored_bytes else 0.0


@dataclasses.dataclass(frozen=True)
class Written(Result):
    """A store or dataset that was written.

    Attributes:
        path: the path of it.
        transitions, episodes: the numbers of both in it.
        stored_bytes: the bytes that it takes on disk.
    """

    path: str
    transitions: int
    episodes: int
    stored_bytes: int
