"""Whether storage keeps conditions on puts; some ignores them, and then two writers would replace each other's rows.

It is looked once, by who makes a remote store or joins it, before anything else is put: an object beside the claims of
numbers, where Zarr readers do not look, is put where there is none, and then on two conditions that do not hold. It
stays, always with the same bytes, so that nobody who looks at the same time is told wrong.
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


def check(objects: Objects, beside: str) -> None:
    """RemoteError where a put is done though its condition does not hold; ``beside`` is the store's first stream."""
    key = f"streams/{beside}/start/{NAME}"
    for _ in range(ATTEMPTS):
        with contextlib.suppress(TakenError):
            objects.put(key, DATA, NEW)
        if objects.head(key) is not None:
            break
    else:
        raise RemoteError(f"{objects.url}/{key}: the put is refused again and again; try again")
    for tag, header in ((NEW, "If-None-Match"), (OTHER, "If-Match")):
        try:
            objects.put(key, DATA, tag)
        except TakenError:
            continue
        with contextlib.suppress(RemoteError):
            objects.delete([key])
        raise RemoteError(
            f"the storage of {objects.url!r} puts objects though the condition of the put ({header}) does not hold, so "
            "that two writers could replace each other's rows; nothing was made there. Use storage that keeps "
            "conditions: S3, GCS, Azure, a newer version of your server"
        )
