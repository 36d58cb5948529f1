"""What documents of a remote store say: in their attributes, ours, and what a remote store adds beside those."""

from __future__ import annotations

import json
from typing import Any

from diskreplay.storage import metadata

KEY = "diskreplay_remote"
"""Beside ``attributes["diskreplay"]``: what a remote store adds to its own document, to records and checkpoints."""


def attributes(data: bytes) -> dict[str, Any]:
    """The attributes of a document, empty where it has none."""
    try:
        return _mapping(_mapping(json.loads(data)).get("attributes"))
    except (ValueError, RecursionError):
        return {}


def ours(data: bytes) -> dict[str, Any]:
    """Those of this package; empty where there are none."""
    return _mapping(attributes(data).get(metadata.KEY))


def beside(data: bytes) -> dict[str, Any]:
    """Those that a remote store adds; empty where there are none."""
    return _mapping(attributes(data).get(KEY))


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
