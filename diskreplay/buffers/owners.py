"""The owners of samplers: one with priorities belongs to one buffer, as the ids of two stores are the same numbers.

It is free again when its buffer is closed: for the same store, whose priorities it goes on with, or, after
``sampler.clear()``, for any other.
"""

from __future__ import annotations

import functools
import weakref
from typing import NamedTuple

from diskreplay.engine.engine import Engine
from diskreplay.errors import InputError
from diskreplay.sampling.composed import with_parts
from diskreplay.sampling.window import Prioritized, Sampler
from diskreplay.schema.columns import Schema


class Owned(NamedTuple):
    """A sampler, the newest open store that it draws from, and that one's key."""

    sampler: weakref.ref[Prioritized]
    engine: weakref.ref[Engine]
    store: str


_owned: dict[int, Owned] = {}
"""The owners by ``id`` of the sampler: a user's own may be equal to another, or not hashable."""


def store_key(schema: Schema, path: str) -> str:
    """Return what tells a store from others: its identity, or its path while it is not made yet."""
    return schema.identity or path


def check_free(sampler: Sampler | None, store: str | None, take_over: bool = False) -> None:
    """Raise InputError if a sampler with priorities is another buffer's.

    Args:
        sampler: the sampler that was given.
        store: the key of the store that is opened; None for a new one.
        take_over: pass a sampler of an open buffer of the same store, which may be closed before it is taken.
    """
    for part in with_parts(sampler) if sampler is not None else ():
        owned = _owned.get(id(part))
        if not isinstance(part, Prioritized) or owned is None or owned.sampler() is not part:
            continue
        engine = owned.engine()
        if engine is not None and not engine.gate.closed and not (take_over and owned.store == store):
            raise InputError(
                f"{part!r} holds the priorities of the open buffer {engine.path!r}; give each buffer one of its own"
            )
        if owned.store != store and not part.is_new:
            raise InputError(
                f"{part!r} still holds the priorities of another store, whose buffer was closed; give a new one, or "
                "call its clear() before"
            )


def take(sampler: Sampler, engine: Engine) -> None:
    """Make an open store the one that a sampler belongs to."""
    for part in with_parts(sampler):
        if isinstance(part, Prioritized):
            gone = weakref.ref(part, functools.partial(_forget, id(part)))
            _owned[id(part)] = Owned(gone, weakref.ref(engine), store_key(engine.schema, engine.path))


def _forget(key: int, gone: object) -> None:
    _owned.pop(key, None)
