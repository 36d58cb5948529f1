"""The numbers of streams in a remote store: who claims one first has it for ever.

A claim is an object that is put where there is none, in the directory of the array ``start`` of the stream that was
first, where Zarr readers do not look. So two collectors that join at the same time get two numbers, and so ids of their
own. Which stream was first stands in the store's own document, beside our attributes.
"""

from __future__ import annotations

import json
from typing import Any

from diskreplay.checks import check_key
from diskreplay.errors import CorruptionError, RemoteConflictError, SchemaError
from diskreplay.remote.documents import KEY
from diskreplay.remote.objects import NEW, Objects, TakenError, put_over
from diskreplay.storage import metadata
from diskreplay.storage.commit import MAX_STREAMS
from diskreplay.storage.store import FIRST_STREAM

MOST_BYTES = 1 << 16
"""The most bytes of a claim."""
PREFIX = "__stream."


def root(document: dict[str, Any], first: str) -> bytes:
    """Return a store's document as it stands under a URL, from the local one; ``first`` is the stream that makes it."""
    attributes = {**document["attributes"], KEY: {"first": first}}
    return metadata.dump({**document, "attributes": attributes})


def first(attributes: dict[str, Any]) -> str:
    """Return the stream beside which numbers are claimed, from the attributes of a store's own document."""
    beside = attributes.get(KEY)
    try:
        return check_key(beside.get("first") if isinstance(beside, dict) else FIRST_STREAM, "stream")
    except SchemaError as error:
        raise CorruptionError(f"the store's own document names no first stream: {error}") from error


def key(beside: str, number: int) -> str:
    """Return the key of the claim of a number; ``beside`` is the first stream."""
    return f"streams/{beside}/start/{PREFIX}{number:05d}"


def claim(objects: Objects, beside: str, name: str, number: int, origin: str) -> None:
    """Claim a number for a stream; raise RemoteConflictError if another has it."""
    claimed = json.dumps({"stream": name, "origin": origin}).encode()
    try:
        put_over(objects, key(beside, number), claimed, NEW, MOST_BYTES)
    except TakenError:
        raise RemoteConflictError(
            f"another stream has the number {number} of the stream {name!r} there; join the remote store by "
            "open_or_create(path, ..., remote=url) with a path that does not exist yet"
        ) from None


def free(objects: Objects, beside: str) -> int:
    """Return a number that nobody has claimed yet, never 0, which is the first stream's, claimed or not."""
    prefix = key(beside, 0)[:-5]
    names = (one.key.removeprefix(prefix) for one in objects.list(prefix))
    number = 1 + max((int(name) for name in names if len(name) == 5 and name.isdecimal()), default=0)
    if number >= MAX_STREAMS:
        raise RemoteConflictError(f"{objects.url} has {MAX_STREAMS} streams, which is the most; push to another URL")
    return number
