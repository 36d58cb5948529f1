"""Where a store is: a directory, or a URL with a mirror."""

from __future__ import annotations

import hashlib
import os

from diskreplay.checks import check_count
from diskreplay.errors import InputError, StoreNotFoundError
from diskreplay.paths import PathLike, checked_path, full_path
from diskreplay.remote.files import RemoteFiles
from diskreplay.remote.mirror import Mirror
from diskreplay.remote.objects import Objects, ObjectStore, checked_url, is_url
from diskreplay.storage import files as fs
from diskreplay.storage import metadata

MIRROR_BYTES = 16 << 30
"""That a mirror takes by default."""


def place(
    path: PathLike, files: fs.Files | None = None, mirror: PathLike | None = None, mirror_bytes: int | None = None
) -> tuple[str, fs.Files]:
    """The full path, or the URL, of a store, and what it is read through.

    Args:
        path: of a directory; or a URL, which is read through a mirror.
        files: the user's own.
        mirror: directory for copies of remote shards; one below the user's cache directory if None.
        mirror_bytes: that the copies may take.

    Raises InputError, RemoteError, and StoreNotFoundError where nothing is under a URL.
    """
    if not is_url(path):
        if mirror is not None or mirror_bytes is not None:
            raise InputError(f"mirror and mirror_bytes are for stores under a URL, not for {os.fspath(path)!r}")
        return full_path(path), files or fs.LocalFiles()
    url = checked_url(path)
    if files is not None:
        raise InputError("files= is for local stores; a store under a URL is read through its mirror")
    return url, open_remote(ObjectStore(url), mirror, mirror_bytes)


def open_remote(objects: Objects, mirror: PathLike | None = None, mirror_bytes: int | None = None) -> RemoteFiles:
    """As :func:`place`, of objects that are open already."""
    most = check_count("mirror_bytes", mirror_bytes if mirror_bytes is not None else MIRROR_BYTES)
    directory = os.path.abspath(checked_path(mirror, "mirror")) if mirror is not None else default_mirror(objects.url)
    found = RemoteFiles(objects, Mirror(directory, most, objects.url))
    if found.kind(f"{objects.url}/{metadata.NAME}") is None:
        raise StoreNotFoundError(f"there is no store at {objects.url!r}; create(path, ..., remote=url) makes one")
    if not found.holds_streams:
        raise StoreNotFoundError(f"the store at {objects.url!r} holds no stream yet: its first push has not ended")
    return found


def default_mirror(url: str) -> str:
    """The directory of a URL's mirror below the user's cache directory (``XDG_CACHE_HOME``, ``~/.cache``)."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    digest = hashlib.blake2b(url.encode(), digest_size=8).hexdigest()
    return os.path.join(cache, "diskreplay", f"{url.rstrip('/').rpartition('/')[2]}-{digest}")
