"""Local stores that belong to a remote one: the first, which makes it; those that join with a stream of their own."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from diskreplay.checks import check_key
from diskreplay.errors import NotAStoreError, RemoteConflictError, StoreExistsError
from diskreplay.remote import conditions, ledger, numbers
from diskreplay.remote.objects import NEW, Objects, TakenError, read
from diskreplay.schema import Schema
from diskreplay.storage import files as fs
from diskreplay.storage import metadata
from diskreplay.storage.store import STREAMS, Part, Store, check_sizes

ATTEMPTS = 100
"""Of numbers, while others join."""


def found(objects: Objects) -> tuple[Schema, dict[str, Any]] | None:
    """Schema and settings of the store under a URL; None where there is none."""
    attributes = _root(objects)
    return None if attributes is None else _described(attributes)


def _described(attributes: dict[str, Any]) -> tuple[Schema, dict[str, Any]]:
    ours = attributes[metadata.KEY]
    settings = ours.get("settings")
    return Schema.from_json(ours.get("schema")), settings if isinstance(settings, dict) else {}


def _root(objects: Objects) -> dict[str, Any] | None:
    """The attributes of the store's own document, ours and others; None where there is none."""
    try:
        data = read(objects, metadata.NAME, metadata.MAX_BYTES)[1]
    except FileNotFoundError:
        return None
    try:
        attributes = json.loads(data)["attributes"]
        ours = attributes[metadata.KEY]
        if not isinstance(ours, dict):
            raise TypeError("its attributes are no mapping")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise NotAStoreError(f"{objects.url!r} is not a diskreplay store: {error!r}") from error
    metadata.check(ours, "", f"{objects.url}/{metadata.NAME}")
    return dict(attributes)


def claim(objects: Objects, document: dict[str, Any], stream: str) -> None:
    """Claims a URL for a new store before there is a local one: so no kill leaves one that another's has overtaken.

    Args:
        document: the store's own.
        stream: its first.

    Raises StoreExistsError where another store is there.
    """
    data = numbers.root(document, stream)
    while (there := found(objects)) is None:
        conditions.check(objects, stream)
        with contextlib.suppress(TakenError):  # for a conflict, too, with a put that was not done either
            objects.put(metadata.NAME, data, NEW)
            return
    if there[0].identity != document["attributes"][metadata.KEY]["schema"]["identity"]:  # else an answer was lost
        raise StoreExistsError(
            f"there is a store at {objects.url!r} already; open_or_create(path, ..., remote=url) joins it with a "
            "stream of its own"
        )


def join(
    objects: Objects, path: str, files: fs.Files, name: str | None, num_envs: int | None, capacity: int | None,
    check: Callable[[Mapping[str, Any], Schema], object],
) -> Store | None:  # fmt: skip
    """Makes a local store at ``path`` that holds one new stream of the store under a URL; None where there is none.

    Args:
        objects: of the remote store.
        path: of the local one, which does not exist.
        files: to make it through.
        name: of the stream; one that nobody has if None.
        num_envs, capacity: of the stream; those of the store if None.
        check: is given the store's settings and schema, before anything is made.

    Raises InputError for sizes that no stream has and what ``check`` raises, with nothing made; RemoteConflictError
    where there is a stream of that name, StoreExistsError where something is at ``path``.
    """
    root = _root(objects)
    if root is None:
        return None
    schema, settings = _described(root)
    check(settings, schema)
    num_envs = schema.num_envs if num_envs is None else num_envs
    capacity = schema.capacity if capacity is None else capacity
    check_sizes(num_envs, capacity)
    beside = numbers.first(root)
    if name is not None:
        check_key(name, "stream")
        if objects.head(f"{STREAMS}/{name}/{metadata.NAME}") is not None:
            raise RemoteConflictError(
                f"there is a stream {name!r} at {objects.url!r}, and who made it writes it: name another, or none"
            )
    conditions.check(objects, beside)
    origin = secrets.token_hex(16)
    for _ in range(ATTEMPTS):
        number = numbers.free(objects, beside)
        called = name or f"{number}-{origin[:8]}"
        with contextlib.suppress(RemoteConflictError):  # another was first
            numbers.claim(objects, beside, called, number, origin)
            break
    else:
        raise RemoteConflictError(f"no number is free at {objects.url!r}: too many join at once; try again")
    note = ledger.NAME, ledger.empty(origin)
    part = Part(schema.identity, number, num_envs, capacity, note)
    return Store.create(path, files, schema, settings, called, part)
