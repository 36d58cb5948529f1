"""The problems that ``verify`` finds, and the list that its parts put them into."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from diskreplay.errors import CorruptionError, DiskReplayError, ReadFailedError
from diskreplay.ops.result import Result

DAMAGE = (CorruptionError, ReadFailedError)
"""The errors of reading a damaged store; what is not a file in a file's place cannot be read."""

Read = TypeVar("Read")


@dataclasses.dataclass(frozen=True)
class Problem(Result):
    """One thing that is not as the format says.

    Attributes:
        what: the words for it: the thing, the rule, the value.
        stream, column: the place of the problem; the column is its path below the stream's group. None if the problem
            is about more.
        rows: half-open; rows of the patch table where the column is below ``patches/``. None where unknown.
        file: path of the file; None where it is about no single one.
        offset: byte in it; None where the whole file is meant.
    """

    what: str
    stream: str | None = None
    column: str | None = None
    rows: tuple[int, int] | None = None
    file: str | None = None
    offset: int | None = None

    def __str__(self) -> str:
        parts = [
            f"stream {self.stream!r}" if self.stream is not None else "",
            f"column {self.column!r}" if self.column is not None else "",
            f"rows {self.rows[0]} to {self.rows[1]}" if self.rows else "",
        ]
        place = ", ".join(part for part in parts if part)
        byte = f" at byte {self.offset}" if self.offset is not None else ""
        return f"{self.file or 'store'}{byte}: {self.what}" + (f" ({place})" if place else "")


class Findings:
    """The problems as they are found, and how much was looked at."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.chunks = 0
        self.bytes = 0

    def add(self, what: str, **place: Any) -> None:
        self.problems.append(Problem(what, **place))

    def read(self, what: str, read: Callable[[], Read], **place: Any) -> Read | None:
        """Return what ``read`` returns, or None where there is no such file, or a damaged one, which is a problem."""
        try:
            return read()
        except (FileNotFoundError, NotADirectoryError):
            self.add(f"{what} is missing", **place)
        except DAMAGE as error:
            self.add(str(error), **place)
        return None

    def take(self, error: DiskReplayError, **place: Any) -> None:
        """Add an error of the engine as a problem, and take what it does not name from ``place``."""
        names = ("stream", "column", "rows", "file", "offset")
        named = {name: value for name in names if (value := getattr(error, name, None)) is not None}
        self.add(str(error), **place | named)
