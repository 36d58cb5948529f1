"""Local stores that belong to a remote one: the first, which makes it, and those that join with a stream of their own."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from typing import Any

from diskreplay.checks import check_key
from diskreplay.errors import CorruptionError, NotAStoreError, RemoteConflictError, StoreExistsError
from diskreplay.remote import numbers
from diskreplay.remote.objects import NEW, Objects, TakenError
from diskreplay.remote.push import ORIGIN_FILE
from diskreplay.schema import Schema
from diskreplay.storage import files as fs
from diskreplay.storage import metadata, stream
from diskreplay.storage.store import STREAMS, Part, Store

ATTEMPTS = 100
"""Of numbers, while others join."""


def found(objects: Objects) -> tuple[Schema, dict[str, Any]] | None:
    """Schema and settings of the store under a URL; None where there is none."""
    try:
        data = b"".join(objects.get(metadata.NAME)[1])
    except FileNotFoundError:
        return None
    file = f"{objects.url}/{metadata.NAME}"
    try:
        ours = json.loads(data)["attributes"][metadata.KEY]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise NotAStoreError(f"{objects.url!r} is not a diskreplay store: {error!r}") from error
    metadata.check(ours, "", file)
    settings = ours.get("settings")
    return Schema.from_json(ours.get("schema")), settings if isinstance(settings, dict) else {}


def claim(objects: Objects, store: Store) -> None:
    """Makes a new local store the one under a URL; StoreExistsError, with the local one removed, where one is there."""
    try:
        objects.put(metadata.NAME, store.files.read(os.path.join(store.path, metadata.NAME)), NEW)
    except BaseException as error:
        if isinstance(error, TakenError) and _is_ours(objects, store):
            return  # the answer of a first try was lost
        fs.remove(store.files, store.path)
        if isinstance(error, TakenError):
            raise StoreExistsError(
                f"there is a store at {objects.url!r} already; open_or_create(path, ..., remote=url) joins it with a "
                "stream of its own"
            ) from None
        raise


def _is_ours(objects: Objects, store: Store) -> bool:
    there = found(objects)
    return there is not None and there[0].identity == store.schema.identity


def join(
    objects: Objects, path: str, files: fs.Files, name: str | None, num_envs: int | None, capacity: int | None
) -> Store:
    """Makes a local store at ``path`` that holds one new stream of the store under a URL.

    Args:
        objects: of the remote store.
        path: of the local one, which does not exist.
        files: to make it through.
        name: of the stream; one that nobody has if None.
        num_envs, capacity: of the stream; those of the store if None.

    Raises RemoteConflictError where there is a stream of that name, StoreExistsError where something is at ``path``.
    """
    there = found(objects)
    if there is None:
        raise CorruptionError(f"the store under {objects.url!r} went away", file=objects.url)
    schema, settings = there
    if name is not None:
        check_key(name, "stream")
        if objects.head(f"{STREAMS}/{name}/{metadata.NAME}") is not None:
            raise RemoteConflictError(
                f"there is a stream {name!r} at {objects.url!r}, and who made it writes it: name another, or none"
            )
    origin = secrets.token_hex(16)
    for _ in range(ATTEMPTS):
        number = numbers.free(objects)
        called = name or f"{number}-{origin[:8]}"
        with contextlib.suppress(RemoteConflictError):
            numbers.claim(_Requests(objects), called, number, origin)
            break
    else:
        raise RemoteConflictError(f"no number is free at {objects.url!r}: too many join at once; try again")
    part = Part(schema.identity, number, num_envs or schema.num_envs, capacity or schema.capacity)
    store = Store.create(path, files, schema, settings, called, part)
    note = os.path.join(store.stream_path(called), stream.SCRATCH, ORIGIN_FILE)
    with fs.translate("noting the origin of", note):
        fs.replace(files, note, json.dumps({"origin": origin}).encode())
    return store


class _Requests:
    """What a claim needs."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.put = objects.put

    def get(self, key: str) -> bytes:
        return b"".join(self._objects.get(key)[1])
