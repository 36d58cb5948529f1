"""Datasets in and out: one module a format, imported when it is asked for, so that no format's library is needed
before.

Each module has a function ``export(path, out, *, overwrite, compression, progress)`` that returns :class:`Exported`.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

from diskreplay.errors import InputError

MODULES = {"d4rl": "diskreplay.formats.d4rl"}
"""Where each format lives."""

Progress = Callable[[int, int], None]
"""Called now and then with transitions done and transitions in all."""


@dataclasses.dataclass(frozen=True)
class Exported:
    """What an export wrote.

    Attributes:
        file: path of the file.
        transitions, episodes: in it.
        raw_bytes: of its arrays, before compression.
        stored_bytes: size of the file.
        seconds: that it took.
    """

    file: str
    transitions: int
    episodes: int
    raw_bytes: int
    stored_bytes: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def exporter(name: str) -> Callable[..., Exported]:
    """The ``export`` function of a format; InputError when there is none of that name."""
    if name not in MODULES:
        raise InputError(f"there is no format {name!r}; the formats are {', '.join(sorted(MODULES))}")
    export: Callable[..., Exported] = importlib.import_module(MODULES[name]).export
    return export
