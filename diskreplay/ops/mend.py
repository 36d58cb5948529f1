"""The mending of documents with one flipped bit, which the checksum finds."""

from __future__ import annotations

import json
from typing import Any

from diskreplay.errors import CorruptionError
from diskreplay.ops.problems import DAMAGE
from diskreplay.storage import files as fs
from diskreplay.storage import metadata

MAX_BYTES = 64 << 10
"""The largest document that is mended, which takes a minute."""


def mended(files: fs.Files, directory: str, node: str) -> bytes | None:
    """Return the document of the group at ``directory`` with one bit turned back, or None if that does not help.

    Args:
        node: path of the group below the store.
    """
    path = f"{directory}/{metadata.NAME}"
    try:
        size = files.size(path) if files.kind(path) == "file" else None
        if size is None or size > MAX_BYTES or _fits(data := files.read(path), node):
            return None
    except (OSError, *DAMAGE):
        return None
    attempt = bytearray(data)
    for at in range(len(attempt)):
        for bit in range(8):
            attempt[at] ^= 1 << bit
            if _fits(attempt, node):
                return bytes(attempt)
            attempt[at] ^= 1 << bit
    return None


def _fits(data: bytes | bytearray, node: str) -> bool:
    """Tell whether a document can be read and has the checksum that it states."""
    try:
        document: Any = json.loads(data)
        ours = document["attributes"][metadata.KEY]
        if document["zarr_format"] != 3 or document["node_type"] != "group" or metadata.CHECKSUM not in ours:
            return False
        metadata.check(ours, node, "")
    except (ValueError, KeyError, TypeError, RecursionError, CorruptionError):
        return False
    return True
