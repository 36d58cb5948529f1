"""The state that closing keeps beside the rows of a stream: a checkpoint without a name, which pins nothing.

It stands in ``streams/<stream>/start/kept`` and counts as long as the streams of its cut have just the rows that it
names. One without a cut is a mark: a program has the state, and has not been closed. The document is replaced
atomically; its arrays stand beside it, in a group that has its id.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from diskreplay.checks import check_key
from diskreplay.errors import CorruptionError, InputError
from diskreplay.storage import checkpoint_arrays, metadata
from diskreplay.storage import files as fs
from diskreplay.storage.commit import Commit
from diskreplay.storage.store import Checkpoint, checkpoint_document, read_checkpoint
from diskreplay.storage.stream import SCRATCH, StreamWriter

NAME = "kept"

Rows = dict[str, tuple[int, ...]]
"""The facts of a cut on the rows of each stream, by name: equal facts are those of the same rows."""


def folder(stream: str) -> str:
    """Return its place in the stream at a path."""
    return os.path.join(stream, SCRATCH, NAME)


def rows(cut: Mapping[str, Commit]) -> Rows:
    """Return the facts of a cut on the rows of each stream that ever had some."""
    return {name: (one.stream, one.timeline, one.begin, one.end) for name, one in cut.items() if one.end}


def went_on(before: Rows, now: Rows) -> bool:
    """Tell whether each stream has gone on from its rows of before: some may be evicted or new, none is another."""
    return all(
        name in now and now[name][:2] == one[:2] and now[name][2] >= one[2] and now[name][3] >= one[3]
        for name, one in before.items()
    )


def read(files: fs.Files, stream: str) -> Checkpoint | None:
    """Return what is kept in the stream at a path, or None; raise CorruptionError if it cannot be read."""
    try:
        return read_checkpoint(files, folder(stream))
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_arrays(files: fs.Files, stream: str, kept: Checkpoint) -> dict[str, NDArray[Any]]:
    """Return the arrays ``(n,)`` of what is kept, by name; raise CorruptionError if they are damaged."""
    try:
        group = os.path.join(folder(stream), check_key(kept.id, "id"))
    except InputError as error:
        raise CorruptionError(f"what is kept in {folder(stream)!r} cannot be read: {error}") from error
    metadata.check_no_link(files, group)
    with fs.translate_reads(group):
        return checkpoint_arrays.read(files, group, kept.arrays)


def new(
    writer: StreamWriter, state: dict[str, Any], values: dict[str, NDArray[Any]], cut: dict[str, Commit]
) -> Checkpoint:
    """Return a state with arrays ``(n,)`` by name, a mark without a cut; raise InputError if it is too large."""
    made = Checkpoint(NAME, cut, state, {}, 0.0).numbered(0, writer.name, values)
    checkpoint_document(made, SCRATCH)
    return made


def replace(writer: StreamWriter, state: Checkpoint, values: dict[str, NDArray[Any]]) -> None:
    """Make a state the saved one of a stream, durably; ``values`` are its arrays if they are not there already."""
    data = checkpoint_document(state, SCRATCH)
    files, place = writer.files, folder(writer.path)
    with writer.fail_stop("keeping the sampler's state of"):
        temporary = fs.unused(files, os.path.join(writer.scratch, f".tmp-{NAME}"))
        if files.kind(place) != "directory":
            fs.clear(files, place)  # a link would lead out of the store
            files.mkdir(place)
        if metadata.NAME not in files.list(place):
            files.sync_dir(writer.scratch)  # the directory is new; a program that was killed may have made it
        if values:
            metadata.make(files, temporary, metadata.group_document())
            checkpoint_arrays.write(files, temporary, values)
            files.sync_dir(temporary)
            files.rename(temporary, os.path.join(place, state.id))
        fs.replace(files, os.path.join(place, metadata.NAME), data, temporary)
        for name in files.list(place):
            if name not in (metadata.NAME, state.id):
                fs.clear(files, os.path.join(place, name))


def remove(writer: StreamWriter) -> None:
    """Remove what is kept, durably, if there ever was something."""
    place = folder(writer.path)
    with fs.translate_reads(place):
        kind = writer.files.kind(place)
    if kind is None:
        return
    with writer.fail_stop("removing the sampler's state of"):
        if kind == "directory":
            with contextlib.suppress(FileNotFoundError):
                writer.files.unlink(os.path.join(place, metadata.NAME))
            writer.files.sync_dir(place)
        fs.clear(writer.files, place)
