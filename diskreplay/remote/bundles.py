"""Bundles: what a reader needs of many shards before its first batch, in few objects.

A bundle holds whole shards of small columns, and the indexes (the last bytes) of shards of large ones. Only shards
that do not change any more are in it: it is a copy, for speed alone, and a reader that knows nothing of it misses
nothing. It stands in the directory of the array ``start``, where Zarr readers do not look.

A bundle is 4 bytes of length, that much JSON ``{"entries": [[key, tag, offset, at, bytes], ...]}`` (the shard's key
below its stream, the tag of its object, the offset in it from which on its bytes are here, where, and how many), the
bytes, and the CRC-32C of all before it. An entry whose tag is not the object's is of an older one, and not used.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable, Iterable

import google_crc32c

from diskreplay.errors import CorruptionError
from diskreplay.interrupts import Lock
from diskreplay.remote.catalog import Catalog, Listing
from diskreplay.remote.objects import Object, read

PREFIX = "__bundle."
MOST_BYTES = 1 << 30
"""The most bytes of a bundle that is read."""
BUNDLE_SHARDS = 16
"""The number of new shards after which the last bundle is written again."""
BUNDLE_MOST = 128
"""The most shards of a bundle, before the next is begun."""
LENGTH = struct.Struct("<I")


@dataclasses.dataclass(frozen=True)
class ShardTail:
    """The bytes of a shard from ``offset`` to its end."""

    offset: int
    data: memoryview


@dataclasses.dataclass(frozen=True)
class Entry:
    """A part of a bundle: the bytes ``data`` from ``offset`` to the end of the shard ``key`` with a ``tag``."""

    key: str
    tag: str
    offset: int
    data: bytes


def folder(stream: str) -> str:
    """Return the key of the directory of a stream's bundles."""
    return f"streams/{stream}/start"


def name(number: int) -> str:
    return f"{PREFIX}{number:06d}"


def free(keys: Iterable[str]) -> int:
    """Return a number beyond those of all bundles among these keys."""
    names = (key.rpartition("/")[2] for key in keys)
    found = (name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX))
    return 1 + max((int(number) for number in found if number.isdecimal()), default=-1)


def encode(entries: Iterable[Entry]) -> bytes:
    """Return a bundle's bytes."""
    facts, parts, at = [], [], 0
    for entry in entries:
        facts.append([entry.key, entry.tag, entry.offset, at, len(entry.data)])
        parts.append(entry.data)
        at += len(entry.data)
    header = json.dumps({"entries": facts}, separators=(",", ":")).encode()
    data = b"".join([LENGTH.pack(len(header)), header, *parts])
    return data + LENGTH.pack(google_crc32c.value(data))


def decode(data: bytes, file: str) -> dict[str, tuple[str, ShardTail]]:
    """Return the tag and the bytes of each shard in a bundle; raise CorruptionError if it is damaged."""
    try:
        if len(data) < 2 * LENGTH.size or google_crc32c.value(data[: -LENGTH.size]) != LENGTH.unpack(data[-4:])[0]:
            raise ValueError("its checksum does not match")
        header = LENGTH.size + LENGTH.unpack(data[: LENGTH.size])[0]
        body = memoryview(data)[header : -LENGTH.size]
        found = {}
        for key, of, offset, at, count in json.loads(data[LENGTH.size : header])["entries"]:
            if any(type(number) is not int for number in (offset, at, count)) or min(offset, at, count) < 0:
                raise ValueError(f"its entry {key!r:.80} has other numbers than whole ones from 0 on")
            if at + count > len(body):
                raise ValueError(f"its entry {key!r:.80} leads out of it")
            found[str(key)] = str(of), ShardTail(offset, body[at : at + count])
    except (ValueError, TypeError, KeyError, struct.error, RecursionError) as error:
        raise CorruptionError(f"{file!r}: the bundle cannot be read: {error}", file=file) from error
    return found


class BundleWriter:
    """A writer of the bundles of a stream, as its shards come.

    Args:
        stream: its name.
        put: replaces an object by its key.
    """

    def __init__(self, stream: str, put: Callable[[str, bytes], object]) -> None:
        self._folder = folder(stream)
        self._put = put
        self._number = 0
        self._written: list[Entry] = []
        """The entries of the last bundle."""
        self._new: list[Entry] = []

    def restart(self, keys: Iterable[str]) -> None:
        """Go on beside the bundles among these keys, of which nothing is known."""
        self._number, self._written = free(keys), []

    def forget(self) -> None:
        """Put none of the shards so far into a bundle any more."""
        self._written, self._new = [], []

    def add(self, entry: Entry) -> None:
        """Take a shard, and write the last bundle again when enough shards are new."""
        self._new.append(entry)
        if len(self._new) >= BUNDLE_SHARDS:
            entries = [*self._written, *self._new]
            self._put(f"{self._folder}/{name(self._number)}", encode(entries))
            full = len(entries) >= BUNDLE_MOST
            self._written, self._new = [] if full else entries, []
            self._number += full


class StreamBundles:
    """The bundles of one stream, each read once; a damaged or too large one counts as empty: the shards have all."""

    def __init__(self) -> None:
        self._lock = Lock("the shards of a mirror")
        self._read: dict[str, tuple[str, dict[str, tuple[str, ShardTail]]]] = {}
        """The tag and parts of each bundle, by its key."""

    def find(
        self, key: str, known: Object, there: list[Object], get: Callable[[str], tuple[Object, bytes]]
    ) -> ShardTail | None:
        """Return what the bundles have of a shard with a ``key`` below the stream; ``there`` are all bundles now."""
        with self._lock:
            self._read = {one.key: self._read[one.key] for one in there if one.key in self._read}
            for one in there:
                if one.key not in self._read or self._read[one.key][0] != one.tag:
                    self._read[one.key] = one.tag, _parts(one, get)
            parts = [found[key] for _, found in self._read.values() if key in found]
        for tag, part in parts:
            if tag == known.tag and part.offset + len(part.data) == known.size:
                return part
        return None


def _parts(one: Object, get: Callable[[str], tuple[Object, bytes]]) -> dict[str, tuple[str, ShardTail]]:
    if one.size > MOST_BYTES:
        return {}
    try:
        return decode(get(one.key)[1], one.key)
    except (FileNotFoundError, CorruptionError):
        return {}


class Bundles:
    """The bundles of a store; thread-safe."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._streams: dict[str, StreamBundles] = {}
        self._suspect: set[str] = set()
        """The keys of shards whose bytes were found damaged: bundles are not used for them any more."""

    def suspect(self, key: str) -> None:
        """Take no bytes of this shard out of bundles any more."""
        self._suspect.add(key)

    def find(self, known: Object, listing: Listing) -> ShardTail | None:
        """Return what a bundle has of a shard, or None."""
        parts = known.key.split("/")
        if len(parts) < 4 or parts[0] != "streams" or known.key in self._suspect:
            return None
        within = folder(parts[1])
        names = sorted(name for name in listing.children.get(within, ()) if name.startswith(PREFIX))
        there = [listing.there[key] for name in names if (key := f"{within}/{name}") in listing.there]
        if not there:
            return None
        self._catalog.check_process()
        of = self._streams.setdefault(parts[1], StreamBundles())
        return of.find("/".join(parts[2:]), known, there, lambda key: read(self._catalog.objects, key, MOST_BYTES))
