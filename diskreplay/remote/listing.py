"""The listing of a store's objects beside somebody else's, and the choice of those that look like a store's.

`obstore` refuses a whole page of a listing where one key in it has an empty part, a part of dots or a control
character, such as ``//x``. Then the folders that a store has are listed one by one: a key that lies in none of them is
in nobody's way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from diskreplay.storage import metadata
from diskreplay.storage.store import CHECKPOINTS, STREAMS

FOLDERS = CHECKPOINTS, STREAMS
"""The folders that a store has beside its own document, in the order of a listing."""
LIKE_A_DOCUMENT = re.compile(r"\W*zarr\b.*|.*zarr\.json.*", re.IGNORECASE)
LIKE_A_SHARD = re.compile(r"c\.\d.*", re.IGNORECASE)
A_SHARD = re.compile(r"c(\.\d+)+")


def metas(obstore: Any, store: Any, folder: str) -> list[Any]:
    """Return what `obstore` says of all objects in a folder, "" for all of the store; its errors pass through.

    InvalidPathError where a key that it cannot take lies side by side with a store's.
    """
    try:
        return [one for page in obstore.list(store, folder or None) for one in page]
    except obstore.exceptions.InvalidPathError:
        found, below = _level(obstore, store, folder)
        return [*found, *(one for name in below for one in metas(obstore, store, name))]


def _level(obstore: Any, store: Any, folder: str) -> tuple[list[Any], Iterable[str]]:
    """Return the objects in a folder, and the folders in it; for the store's own folder, those that a store has."""
    if not folder:
        return _document(obstore, store, folder), FOLDERS
    try:
        level = obstore.list_with_delimiter(store, folder)
    except obstore.exceptions.InvalidPathError:
        if _document(obstore, store, folder):
            raise
        return [], ()  # it is somebody else's: a folder of a store has a document
    return list(level["objects"]), level["common_prefixes"]


def _document(obstore: Any, store: Any, folder: str) -> list[Any]:
    try:
        return [obstore.head(store, f"{folder}/{metadata.NAME}".lstrip("/"))]
    except (obstore.exceptions.NotFoundError, FileNotFoundError):
        return []


def is_plain(key: str) -> bool:
    """Tell whether a store can have a key; others in the same place are somebody else's."""
    first, *rest = key.split("/")
    if not rest:
        return key == metadata.NAME
    if not key.isprintable() or first not in FOLDERS or any(part in ("", ".", "..") for part in rest):
        return False
    return len(rest) > 1 or rest == [metadata.NAME]


def alike(keys: Iterable[str]) -> list[str]:
    """Return the keys that no store has but that look like one's: copies, renamed and misplaced objects."""
    return [key for key in keys if _is_alike(key)]


def _is_alike(key: str) -> bool:
    parts = [part for part in key.split("/") if part]
    if not parts or key.endswith("/"):
        return False  # a console's mark of a folder
    first, last = parts[0], parts[-1]
    plain = is_plain(key)
    if LIKE_A_DOCUMENT.fullmatch(last):
        return last != metadata.NAME or not plain
    if LIKE_A_SHARD.fullmatch(last):
        return not A_SHARD.fullmatch(last) or not plain
    return not plain and first.lower().startswith(FOLDERS) and first not in FOLDERS
