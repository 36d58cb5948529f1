"""Numbers of streams in a remote store: who claims one first has it, for ever.

A claim is an object that is put where there is none, beside the array ``start`` of the stream with the number 0. So two
collectors that join at the same time get two numbers, and so ids of their own.
"""

from __future__ import annotations

import json
from typing import Any

from diskreplay.errors import RemoteConflictError
from diskreplay.remote.objects import NEW, Objects, TakenError
from diskreplay.storage.commit import MAX_STREAMS

FOLDER = "streams/0/start"


def key(number: int) -> str:
    return f"{FOLDER}/__stream.{number:05d}"


def claim(requests: Any, name: str, number: int, origin: str) -> None:
    """Claims a number for a stream; RemoteConflictError where another has it. ``requests`` has ``put`` and ``get``."""
    claimed = json.dumps({"stream": name, "origin": origin}).encode()
    try:
        requests.put(key(number), claimed, NEW)
    except TakenError:
        if requests.get(key(number)) != claimed:
            raise RemoteConflictError(
                f"another stream has the number {number} of the stream {name!r} there; join the remote store by "
                "open_or_create(path, ..., remote=url) with a path that does not exist yet"
            ) from None


def free(objects: Objects) -> int:
    """A number that nobody has claimed yet; who claims it first has it."""
    taken = {int(one.key.rpartition(".")[2]) for one in objects.list(f"{FOLDER}/__stream.")}
    number = max(taken, default=-1) + 1
    if number >= MAX_STREAMS:
        raise RemoteConflictError(f"{objects.url} has {MAX_STREAMS} streams, which is the most")
    return number
