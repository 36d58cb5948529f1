"""The place of a store: a directory, or a URL with a mirror."""

from __future__ import annotations

import hashlib
import os
import warnings

from diskreplay.checks import check_count
from diskreplay.errors import InputError, RemoteWarning, StoreNotFoundError
from diskreplay.remote.mirror import Mirror
from diskreplay.remote.objects import Objects, ObjectStore
from diskreplay.remote.remote_files import RemoteFiles
from diskreplay.storage import files as fs
from diskreplay.storage import metadata
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import PathLike, checked_path, checked_url, full_path, is_url
from diskreplay.storage.store import Store

MIRROR_BYTES = 16 << 30
"""The bytes that a mirror takes by default."""
MIRROR_VARIABLE, BYTES_VARIABLE = "DISKREPLAY_MIRROR", "DISKREPLAY_MIRROR_BYTES"
"""The variables of the environment for the directory of mirrors, and bytes of each, if a program names none."""


def locate_store(
    path: PathLike, files: fs.Files | None = None, mirror: PathLike | None = None, mirror_bytes: int | None = None
) -> tuple[str, fs.Files]:
    """Return the full path, or the URL, of a store, and the files through which it is read.

    Args:
        path: the path of a directory, or a URL, which is read through a mirror.
        files: the user's own.
        mirror: directory for copies of remote shards; one of its own below the user's cache directory if None, or below
            that of the variable ``DISKREPLAY_MIRROR``.
        mirror_bytes: the most bytes that the copies may take; 16 GiB if None, or as ``DISKREPLAY_MIRROR_BYTES`` says.

    Raises InputError, RemoteError, and StoreNotFoundError where nothing is under a URL.
    """
    if not is_url(path):
        if mirror is not None or mirror_bytes is not None:
            raise InputError(f"mirror and mirror_bytes are for stores under a URL, not for {os.fspath(path)!r}")
        return full_path(path), files or LocalFiles()
    url = checked_url(path)
    if files is not None:
        raise InputError("files= is for local stores; a store under a URL is read through its mirror")
    return url, open_remote(ObjectStore(url), mirror, mirror_bytes)


def open_remote(objects: Objects, mirror: PathLike | None = None, mirror_bytes: int | None = None) -> RemoteFiles:
    """Return the files of a remote store whose objects are open already, as :func:`locate_store` does."""
    most = check_count("mirror_bytes", mirror_bytes if mirror_bytes is not None else _default_bytes())
    directory = os.path.abspath(checked_path(mirror, "mirror")) if mirror is not None else default_mirror(objects.url)
    found = RemoteFiles(objects, Mirror(directory, most, objects.url))
    if alike := found.catalog.alike:
        said = ", ".join(map(repr, alike[:3])) + (f" and {len(alike) - 3} more" if alike[3:] else "")
        warnings.warn(
            f"objects at {objects.url!r} have names like a store's, and are none of its: {said}; they are ignored: "
            "remove them, or give them back their names", RemoteWarning, stacklevel=4,
        )  # fmt: skip
    if found.kind(f"{objects.url}/{metadata.NAME}") is None:
        lost = " any more: its root document is missing, and the next push ('diskreplay push') puts it back"
        why = lost if found.catalog.listing.records else " yet"
        raise StoreNotFoundError(
            f"there is no store at {objects.url!r}{why}; who writes makes one, by create(path, ..., remote=url)"
        )
    if not found.catalog.listing.records:
        raise StoreNotFoundError(f"the store at {objects.url!r} holds no stream yet: its first push has not ended")
    return found


def open_store(path: PathLike) -> Store:
    """Return the store at a path or under a URL, to be read, with errors as :func:`locate_store` and Store."""
    return Store(*locate_store(path))


def local(path: PathLike, doing: str) -> str:
    """Return the full path of a store that is to be changed; raise InputError for a URL."""
    if is_url(path):
        raise InputError(
            f"{doing} changes a store, and {checked_url(path)!r} is read only: 'diskreplay pull' makes a local copy"
        )
    return full_path(path)


def default_mirror(url: str) -> str:
    """Return the directory of a URL's mirror below the user's cache directory (``XDG_CACHE_HOME``, ``~/.cache``)."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = checked_path(os.environ.get(MIRROR_VARIABLE) or os.path.join(cache, "diskreplay"), MIRROR_VARIABLE)
    digest = hashlib.blake2b(url.encode(), digest_size=8).hexdigest()
    return os.path.abspath(os.path.join(folder, f"{url.rstrip('/').rpartition('/')[2]}-{digest}"))


def _default_bytes() -> int:
    said = os.environ.get(BYTES_VARIABLE) or str(MIRROR_BYTES)
    if not said.isdecimal():
        raise InputError(f"{BYTES_VARIABLE} must be a whole number of bytes, got {said!r}")
    return int(said)
