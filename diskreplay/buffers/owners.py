"""Whose sampler is whose: one with priorities belongs to one buffer, since the ids of two stores are the same numbers.

It is free again when its buffer is closed: for the same store, whose priorities it goes on with, or, after
``sampler.clear()``, for any other.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from diskreplay.errors import InputError
from diskreplay.sampling.window import Prioritized, Sampler
from diskreplay.schema import Schema

if TYPE_CHECKING:
    from diskreplay.buffers.stored import StoredBuffer

_owners: weakref.WeakKeyDictionary[Prioritized, tuple[weakref.ref[StoredBuffer], str]] = weakref.WeakKeyDictionary()
"""The newest buffer of each sampler, and its store."""


def store_key(schema: Schema, path: str) -> str:
    """What tells a store from others; those that were made before stores had identities have only their path."""
    return schema.identity or path


def check_free(sampler: Sampler | None, store: str | None) -> None:
    """InputError where a sampler with priorities is another buffer's.

    Args:
        sampler: as it was given.
        store: the key of the store that is opened; None for a new one.
    """
    if not isinstance(sampler, Prioritized) or sampler not in _owners:
        return
    owner, theirs = _owners[sampler]
    buffer = owner()
    if buffer is not None and not buffer._closed:
        raise InputError(
            f"{sampler!r} holds the priorities of the open buffer {buffer.path!r}; give each buffer one of its own"
        )
    if theirs != store and not sampler.is_new:
        raise InputError(
            f"{sampler!r} still holds the priorities of another store, whose buffer was closed; give a new one, or "
            "call its clear() before"
        )


def take(sampler: Sampler, buffer: StoredBuffer) -> None:
    """Makes a buffer the one that a sampler belongs to."""
    if isinstance(sampler, Prioritized):
        _owners[sampler] = weakref.ref(buffer), store_key(buffer.schema, buffer.path)
