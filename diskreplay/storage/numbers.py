"""The note of the numbers of a store's streams, so that who adds a stream reads no record of another.

A stream keeps its number, so that what the note says of a stream that is there is true. Of those that it does not
name, which older versions added, the records are read. A note that names a stream which is gone is not believed: its
name may be taken anew. Nothing else needs it, so that it is not synced; its checksum finds what a crash left of it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection

from diskreplay.errors import CorruptionError
from diskreplay.storage import files as fs
from diskreplay.storage import metadata
from diskreplay.storage.commit import MAX_STREAMS

NAME = "numbers"


def read(files: fs.Files, places: Collection[str], streams: Collection[str]) -> dict[str, int]:
    """Return the number of each stream that a note names, none if there is no note, or it is not believed.

    Args:
        files: the files by which the array is read.
        places: directories where it may stand, the likeliest first.
        streams: the names of all that are there.
    """
    for place in places:
        path = os.path.join(place, NAME)
        with fs.translate_reads(path):
            there = files.size(path)
        if there is not None and there <= metadata.MAX_BYTES:
            with contextlib.suppress(CorruptionError, OSError):
                return _checked(metadata.parsed(files.read(path), path), path, streams)
    return {}


def _checked(stored: dict[str, object], path: str, streams: Collection[str]) -> dict[str, int]:
    metadata.check(stored, NAME, path)
    numbers = stored[NAME]
    if not isinstance(numbers, dict) or not numbers.keys() <= set(streams):
        return {}
    found = {name: number for name, number in numbers.items() if type(number) is int and 0 <= number < MAX_STREAMS}
    return found if len(found) == len(numbers) == len(set(found.values())) else {}


def write(files: fs.Files, place: str, temporary: str, numbers: dict[str, int]) -> None:
    """Note the numbers of all streams; a note that cannot be written is left out."""
    path = os.path.join(place, NAME)
    facts = {NAME: numbers}
    data = json.dumps({**facts, metadata.CHECKSUM: metadata.checksum(facts, NAME)}, separators=(",", ":")).encode()
    try:
        file = files.open(temporary, write=True)
        file.truncate(0)
        file.pwrite([data], 0)
        files.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            files.unlink(path)
