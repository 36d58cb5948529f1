"""The root's document: the format version, the schema and the settings of a store, and copies of these.

One small file that is lost must not end a store. So the scratch directories of the first streams have a copy of our
attributes, checksum and all. It is read where the root's document is missing, is no JSON or has a wrong checksum; who
writes then puts the document back. Errors of the disk and newer versions are no reason to read a copy.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from diskreplay.errors import (
    CorruptionError,
    DamageWarning,
    FormatVersionError,
    NotAStoreError,
    ReadFailedError,
    StoreNotFoundError,
    warn_outside,
)
from diskreplay.schema.columns import FORMAT_VERSION, Schema
from diskreplay.storage import files as fs
from diskreplay.storage import metadata
from diskreplay.storage.commit import needs_more
from diskreplay.storage.stream import CHECKPOINTS, SCRATCH, STREAMS

COPY = "root.json"
COPIES = 16
"""The streams that have a copy: those with the lowest numbers."""
Attributes = dict[str, Any]
Reading = Callable[[fs.Files, str], tuple[Attributes, str | None]]
"""The reading of the store at a path: our attributes, and the copy that they are from, None if from the root."""


def document(schema: Schema, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the root's document of a store."""
    attributes = {"format_version": FORMAT_VERSION, "needs": [], "schema": schema.to_json(), "settings": settings}
    return metadata.group_document(attributes)


def copy(document: dict[str, Any]) -> dict[str, bytes]:
    """Return the file, by its name in a stream's scratch directory, that is a copy of the root's document."""
    return {COPY: metadata.dump(document["attributes"][metadata.KEY])}


def read(files: fs.Files, path: str) -> tuple[Attributes, str | None]:
    """Return our attributes of the store at ``path``, and the copy that they are from, None if the root's document is.

    Raises as :func:`read_document` does where there is no copy either, and CorruptionError where copies differ.
    """
    root = os.path.join(path, metadata.NAME)
    try:
        return read_document(files, path), None
    except (NotAStoreError, CorruptionError) as error:
        found = {file: ours for file, ours in copies(files, path).items() if ours is not None}
        if not found:
            raise
        taken, attributes = next(iter(found.items()))
        if any(ours != attributes for ours in found.values()):
            raise CorruptionError(
                f"the root document {root!r} cannot be read, and its copies differ: {', '.join(found)}; remove those "
                "that are another store's, and open it again", file=root,
            ) from error  # fmt: skip
    warn_outside(
        f"the root document {root!r} of a store is missing or damaged: its copy {taken!r} is read in its place; "
        "opening the store to write puts the document back", DamageWarning,
    )  # fmt: skip
    return attributes, taken


def copies(files: fs.Files, path: str) -> dict[str, Attributes | None]:
    """Return our attributes in each copy that is there, by its file, None for those of a damaged one."""
    found: dict[str, Attributes | None] = {}
    streams = os.path.join(path, STREAMS)
    for name in metadata.nodes(files, streams):
        scratch = os.path.join(streams, name, SCRATCH)
        file = os.path.join(scratch, COPY)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            try:
                metadata.check_no_link(files, os.path.dirname(scratch), scratch)
                found[file] = _checked(metadata.parsed(metadata.read_bytes(files, scratch, COPY), file), path, file)
            except (CorruptionError, FormatVersionError, ReadFailedError):
                found[file] = None
    return found


def read_document(files: fs.Files, path: str) -> Attributes:
    """Return our attributes in the root's document of the store at ``path``.

    Raises StoreNotFoundError, NotAStoreError, FormatVersionError, ReadFailedError or CorruptionError.
    """
    try:
        document = metadata.read(files, path)
    except (FileNotFoundError, NotADirectoryError) as error:
        if files.kind(path) is None:
            raise StoreNotFoundError(f"there is no store at {path!r}; ReplayBuffer.create makes one") from error
        raise _rootless(files, path, f"is not a diskreplay store: it has no {metadata.NAME}") from error
    except ReadFailedError as error:
        if error.errno not in fs.NO_NAMES:
            raise
        reason = os.strerror(error.errno)
        raise StoreNotFoundError(f"there is no store at {path!r}: {reason}; name another path") from error
    except CorruptionError as error:
        raise _rootless(files, path, f"is not a diskreplay store: {error}") from error
    attributes = document.get("attributes")
    ours = attributes.get(metadata.KEY) if isinstance(attributes, dict) else None
    if document.get("node_type") != "group" or not isinstance(ours, dict) or "format_version" not in ours:
        raise _rootless(files, path, "is a Zarr hierarchy but not a diskreplay store")
    return _checked(ours, path, os.path.join(path, metadata.NAME))


def _checked(ours: Attributes, path: str, file: str) -> Attributes:
    """Return our attributes, as they stand in a file of the store at ``path``, if version and checksum are right."""
    version, needs = ours.get("format_version"), ours.get("needs")
    if type(version) is int and version == FORMAT_VERSION and needs == []:
        metadata.check(ours, "", file)
        return ours
    if type(version) is not int or version < 1:
        raise CorruptionError(f"{path!r}: format_version must be a whole number above 0, got {version!r}", file=file)
    if version > 2:  # which there was for a while, too
        raise FormatVersionError(
            f"{path!r} has format version {version}; this diskreplay reads up to {FORMAT_VERSION}: update it"
        )
    metadata.check(ours, "", file)
    if version == 2 or needs is None:
        raise FormatVersionError(
            f"{path!r} was made by a diskreplay from before the tag 1.0: export it with that one and import the "
            "dataset, or make it anew"
        )
    raise needs_more(needs, path)


def _rootless(files: fs.Files, path: str, otherwise: str) -> NotAStoreError | CorruptionError:
    """Return the error for a directory without a root document: a store has lost it if its groups are there."""
    if all(files.size(os.path.join(path, name, metadata.NAME)) is not None for name in (STREAMS, CHECKPOINTS)):
        root = os.path.join(path, metadata.NAME)
        return CorruptionError(
            f"the root document {root!r} of a store is missing or damaged, and its rows are there: put that file back "
            "from a backup, or copy the store from where it was pushed to ('diskreplay pull')", file=root,
        )  # fmt: skip
    return NotAStoreError(f"{path!r} {otherwise}")
