"""The result of an operation, as an object and as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Result:
    """The base of what operations return; its fields are values that JSON has, or results."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
