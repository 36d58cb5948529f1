"""The check that storage keeps conditions on puts.

Some ignores them, and then two writers would replace each other's rows. Some may refuse puts whose condition holds, and
then a store could be made and not be written.

It is looked once, by who makes a remote store or joins it, before anything else is put: an object beside the claims of
numbers, where Zarr readers do not look, is put where there is none, then on a condition that holds and on two that do
not. It stays, always with the same bytes, so that nobody who looks at the same time is told wrong.
"""

from __future__ import annotations

import contextlib

from diskreplay.errors import RemoteError
from diskreplay.remote.objects import NEW, Objects, TakenError

NAME = "__conditions"
DATA = b"{}"
OTHER = '"00000000000000000000000000000000"'
"""A tag that no object has."""
ATTEMPTS = 10
CURE = (
    "nothing was made there. Use storage that keeps conditions on puts: S3, GCS, Azure, perhaps a newer version of "
    "your server"
)


def check(objects: Objects, beside: str) -> None:
    """Raise RemoteError if a put is done though its condition does not hold, or refused though it does.

    Args:
        objects: the objects of the remote store.
        beside: its first stream.
    """
    key = f"streams/{beside}/start/{NAME}"
    found = None
    for _ in range(ATTEMPTS):
        with contextlib.suppress(TakenError):
            objects.put(key, DATA, NEW)
        found = objects.head(key)
        if found is not None:
            with contextlib.suppress(TakenError):  # on some storage the tag changes when another looks, too
                objects.put(key, DATA, found.tag)
                break
    else:
        said = f"puts on a condition that holds ({'If-Match' if found else 'If-None-Match'}) are refused"
        _remove(objects, key)
        raise RemoteError(f"the storage of {objects.url!r} cannot hold a store that is written: {said}; {CURE}")
    for tag, header in ((NEW, "If-None-Match"), (OTHER, "If-Match")):
        try:
            objects.put(key, DATA, tag)
        except TakenError:
            continue
        _remove(objects, key)
        raise RemoteError(
            f"the storage of {objects.url!r} puts objects though the condition of the put ({header}) does not hold, so "
            f"that two writers could replace each other's rows; {CURE}"
        )


def _remove(objects: Objects, key: str) -> None:
    with contextlib.suppress(RemoteError):  # it is in nobody's way
        objects.delete([key])
