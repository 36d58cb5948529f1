"""The attributes of a remote store's documents: those of every store, and those that a remote one adds."""

from __future__ import annotations

import json
from typing import Any

from diskreplay.storage import metadata

KEY = "diskreplay_remote"
"""The key of what a remote store adds to its document, records and checkpoints, beside ``diskreplay``."""


def attributes(data: bytes) -> dict[str, Any]:
    """Return the attributes of a document, empty if it has none."""
    try:
        return _mapping(_mapping(json.loads(data)).get("attributes"))
    except (ValueError, RecursionError):
        return {}


def ours(data: bytes) -> dict[str, Any]:
    """Return the attributes of this package, empty if there are none."""
    return _mapping(attributes(data).get(metadata.KEY))


def beside(data: bytes) -> dict[str, Any]:
    """Return the attributes that a remote store adds, empty if there are none."""
    return _mapping(attributes(data).get(KEY))


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
