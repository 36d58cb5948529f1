"""The local stores of a remote one: the first, which makes it, and those that join with a stream of their own."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from diskreplay.checks import check_key
from diskreplay.errors import NotAStoreError, RemoteConflictError, RemoteError, StoreExistsError
from diskreplay.remote import conditions, documents, ledger, numbers
from diskreplay.remote.objects import NEW, Objects, TakenError, find
from diskreplay.schema.columns import Schema
from diskreplay.storage import files as fs
from diskreplay.storage import metadata
from diskreplay.storage.store import STREAMS, PartialStore, Store, check_sizes

ATTEMPTS = 100
"""The most tries for a number, while others join."""
PUTS = 10
"""The most tries to put a store's own document, while others put it."""


def find_store(objects: Objects) -> tuple[Schema, dict[str, Any]] | None:
    """Return the schema and settings of the store under a URL, or None if there is none."""
    there = find(objects, metadata.NAME, metadata.MAX_BYTES)
    return None if there is None else _described(there[1], objects.url)


def _described(document: bytes, url: str) -> tuple[Schema, dict[str, Any]]:
    """Return the schema and settings in a store's own document."""
    if not (ours := documents.ours(document)):
        raise NotAStoreError(f"{url!r} is not a diskreplay store: its document has no attributes of one")
    metadata.check(ours, "", f"{url}/{metadata.NAME}")
    settings = ours.get("settings")
    return Schema.from_json(ours.get("schema")), settings if isinstance(settings, dict) else {}


def put_root(objects: Objects, document: dict[str, Any], stream: str) -> bytes:
    """Put a store's own document, for its stream, if there is none; return the one that is there then."""
    data = numbers.root(document, stream)
    for _ in range(PUTS):
        there = find(objects, metadata.NAME)
        if there is not None:
            return there[1]
        conditions.check(objects, stream)
        with contextlib.suppress(TakenError):  # for a conflict, too, with a put that was not done either
            objects.put(metadata.NAME, data, NEW)
            return data
    raise RemoteError(f"{objects.url}/{metadata.NAME}: other processes change it again and again; try again")


def check_root(store: Store, document: bytes, url: str) -> None:
    """Raise RemoteConflictError if the store's own document that is there is another store's."""
    if documents.ours(document).get("schema") != store.schema.to_json():
        raise RemoteConflictError(f"{url!r} holds another store than {store.path!r}; push to another URL")


def claim_url(objects: Objects, document: dict[str, Any], stream: str) -> None:
    """Claim a URL for a new store before there is a local one: no kill leaves one that another's has overtaken.

    Args:
        document: the store's own.
        stream: its first.

    Raises StoreExistsError where another store is there.
    """
    there, _ = _described(put_root(objects, document, stream), objects.url)
    if there.identity != document["attributes"][metadata.KEY]["schema"]["identity"]:  # else an answer was lost
        raise StoreExistsError(
            f"there is a store at {objects.url!r} already; open_or_create(path, ..., remote=url) joins it with a "
            "stream of its own"
        )


def join_store(
    objects: Objects, path: str, files: fs.Files, name: str | None, num_envs: int | None, capacity: int | None,
    check: Callable[[Mapping[str, Any], Schema], object],
) -> Store | None:  # fmt: skip
    """Make a local store at ``path`` with one new stream of the store under a URL; return None if there is none.

    Args:
        objects: the objects of the remote store.
        path: the path of the local store, which does not exist yet.
        files: the files to make it through.
        name: the name of the stream; one that no stream has if None.
        num_envs, capacity: the environments and the capacity of the stream; those of the store if None.
        check: a function that is given the store's settings and schema, before anything is made.

    Raises InputError for sizes that no stream has and what ``check`` raises, with nothing made; RemoteConflictError
    where there is a stream of that name, StoreExistsError where something is at ``path``.
    """
    there = find(objects, metadata.NAME, metadata.MAX_BYTES)
    if there is None:
        return None
    schema, settings = _described(there[1], objects.url)
    check(settings, schema)
    num_envs = schema.num_envs if num_envs is None else num_envs
    capacity = schema.capacity if capacity is None else capacity
    check_sizes(num_envs, capacity)
    beside = numbers.first(documents.attributes(there[1]))
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
    part = PartialStore(schema.identity, number, num_envs, capacity, {ledger.NAME: ledger.empty(origin)})
    return Store.create(path, files, schema, settings, called, part)
