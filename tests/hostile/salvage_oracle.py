"""Which transitions of a damaged store can be read, found one by one by the reader that is written from the page.

Slow and plain: each value is looked up by itself, and what is lost is an exception. Nothing of the package is used.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import struct
from typing import Any

import google_crc32c
import numpy as np
from format import specreader
from format.specreader import ENTRY, PATCHES, attributes, is_lost

specreader.crc32c = google_crc32c.value  # the page's own is written in Python, and takes 100 ns a byte

Place = tuple[int, int, int]
"""A transition: the number of its stream, row and environment."""


class LostError(Exception):
    """Something that cannot be read."""


class _Committed:
    """A file of which only the first bytes count."""

    def __init__(self, file: pathlib.Path, size: int) -> None:
        self.file, self.size = file, size

    def read_bytes(self) -> bytes:
        return self.file.read_bytes()[: self.size]


def added(stack: dict[str, Any]) -> int:
    """How many frames an observation of a leaf was added with."""
    return 1 if stack["axis"] is None else stack["frames"]


def root_of(store: pathlib.Path) -> dict[str, Any]:
    """The root, or the copy of it whose identity seals most tails."""
    if not is_lost(store / "zarr.json", ""):
        return attributes(store / "zarr.json", "")
    files = sorted(store.glob("streams/*/start/root.json"))
    copies = [attributes(file, "") for file in files if not is_lost(file, "")]
    if not copies:
        raise LostError("root")

    def sealed(copy: dict[str, Any]) -> int:
        folders = [folder for folder in (store / "streams").iterdir() if folder.is_dir()]
        return sum(tail_record(folder, copy["schema"]["identity"]) is not None for folder in folders)

    return max(copies, key=sealed)


def tail_record(folder: pathlib.Path, identity: str) -> dict[str, Any] | None:
    """The last whole record of the highest tail that has one."""
    tails = specreader.tails_of(folder)
    for number, file in tails.items():
        with contextlib.suppress(OSError, struct.error):
            if found := specreader.blocks_of_any(file, identity, number):
                end, record = found[-1]
                return {**record, "tail": [number, end, min(tails)]}
    return None


def cuts_of(store: pathlib.Path) -> list[dict[str, Any]]:
    """The cuts of checkpoints that can be read, newest first."""
    found = []
    for folder in (store / "checkpoints").glob("*/"):
        if not is_lost(folder / "zarr.json", f"checkpoints/{folder.name}"):
            document = attributes(folder / "zarr.json", f"checkpoints/{folder.name}")
            found.append((document["number"], folder.name, document["cut"]))
    return [cut for _, _, cut in sorted(found, key=lambda one: one[:2], reverse=True)]


class Array:
    """One array, of which some chunks and some blocks of the tail may be lost."""

    def __init__(self, stream: Stream, path: str, shape: list[int], dtype: str, table: str) -> None:
        record = stream.record
        self.tail, self.limit = stream.tail, stream.limit if table == "rows" else None
        self.begin, self.end, self.needed_from = record["tables"].get(table, [0, 0, 0])
        envs = record["num_envs"] if table == "rows" else 1
        entry = dict(zip(ENTRY, record["arrays"].get(path, [0, 0, 0, 1, 1, envs, "none"]), strict=True))
        one = self.shards = object.__new__(specreader.Array)
        one.folder, one.path, one.seal = stream.folder / path, path, f"{stream.seal}/{path}"
        one.envs, one.shape, one.dtype = envs, shape, np.dtype(dtype).newbyteorder("<")
        one.last_shard, one.bytes, one.in_shards = entry["shard"], entry["bytes"], entry["rows"]
        one.chunk_rows, one.shard_rows, one.chunk_envs = entry["chunk_rows"], entry["shard_rows"], entry["chunk_envs"]
        one.codec, one.groups = entry["codec"], envs // entry["chunk_envs"]
        one.chunks_of_shard, one.indexes = entry["shard_rows"] // entry["chunk_rows"], {}
        self.chunks: dict[tuple[int, int], np.ndarray | None] = {}
        self.held: dict[int, np.ndarray] = {}
        """Rows of the tail."""
        for first, rows, data, encoding in self.tail.pieces.get(path, []) if self.tail else ():
            body = specreader.blosc.decompress(data) if encoding == "lz4" else data
            values = np.frombuffer(body, one.dtype).reshape(rows, envs, *shape)
            self.held.update(zip(range(first, first + rows), values, strict=True))

    def value(self, row: int, env: int = 0) -> np.ndarray:
        one = self.shards
        if row >= one.in_shards:
            if row not in self.held or (self.limit is not None and row >= self.limit):
                raise LostError(one.path)
            return self.held[row][env]
        place = row // one.chunk_rows, env // one.chunk_envs
        if place not in self.chunks:
            self.chunks[place] = None
            with contextlib.suppress(AssertionError, OSError, struct.error, RuntimeError, ValueError):
                self.chunks[place] = one.chunk(*place)
        if (found := self.chunks[place]) is None:
            raise LostError(one.path)
        return found[row % one.chunk_rows, env % one.chunk_envs]


class Stream:
    """One stream by its record, which may be one of a checkpoint."""

    def __init__(self, folder: pathlib.Path, schema: dict[str, Any], record: dict[str, Any]) -> None:
        self.folder, self.schema, self.record, self.envs = folder, schema, record, record["num_envs"]
        self.seal = f"{schema['identity']}/{record['stream']}"
        self.begin, self.end, self.floor = record["tables"]["rows"]
        number, size, _ = record["tail"]
        self.tail, self.limit = None, 0
        with contextlib.suppress(OSError, struct.error):
            file = _Committed(folder / "start" / f"tail.{number}", size)
            tail = specreader.Tail(file, f"{self.seal}/tail/{number}", None)
            self.tail = tail
            if tail.records:
                end, said = tail.records[-1]
                self.limit = said["tables"]["rows"][1] + (1 if end == size else 0)
        self.arrays = {c["name"]: Array(self, c["name"], c["shape"], c["dtype"], "rows") for c in schema["columns"]}
        leaves = schema["columns"][: len(schema["stacks"])]
        self.stacks = {c["name"]: added(stack) for c, stack in zip(leaves, schema["stacks"], strict=True)}
        self.context = max(self.stacks.values()) - 1
        self.frames = {
            c["name"]: Array(self, f"patches/{c['name']}", c["shape"], c["dtype"], "patches") for c in leaves
        }
        self.items = {
            one["name"]: Array(self, f"ragged/{one['name']}", one["shape"], one["dtype"], f"ragged/{one['name']}")
            for one in schema.get("ragged", [])
        }
        self.read_places()

    def read_places(self) -> None:
        array = Array(self, "patches/place", [3], "int64", "patches")
        self.places: dict[tuple[int, int, int], int] = {}
        self.placed = {array.end}
        """The numbers of patches whose place can be read, and the one that is none."""
        self.unsure: list[tuple[float, float]] = []
        """Rows that may have a patch whose place is lost, from the first to the last."""
        below: float = -1
        lost = False
        for number in range(array.needed_from, array.end):
            try:
                row, env, offset = array.value(number).tolist()
            except LostError:
                lost = True
                continue
            if lost:
                self.unsure.append((below, row))
                lost = False
            below = row
            self.places[row, env, offset] = number
            self.placed.add(number)
        if lost:
            self.unsure.append((below, float("inf")))

    def column(self, name: str, row: int, env: int) -> Any:
        return self.shown(name, self.arrays[name].value(row, env))

    def shown(self, name: str, value: np.ndarray) -> Any:
        """A value, or the items of a span."""
        if name not in self.items:
            return value
        start, stop = value.tolist()
        items = self.items[name]
        return [items.value(at) for at in range(start, stop)]

    def code(self, row: int, env: int) -> int:
        if row >= self.end:
            raise LostError("start")
        return int(self.arrays["start"].value(row, env))

    def frame(self, name: str, row: int, env: int) -> Any:
        if row < self.floor:
            raise LostError("floor")
        return self.column(name, row, env)

    def patch(self, name: str, place: tuple[int, int, int]) -> Any:
        if place not in self.places:
            raise LostError("place")
        return self.shown(name, self.frames[name].value(self.places[place]))

    def check_stack(self, name: str, row: int, env: int) -> None:
        """Section 7.1."""
        frames, depth = self.stacks[name], 0
        self.frame(name, row, env)
        while depth < frames - 1 and self.code(row - depth, env) == 0:
            depth += 1
            self.frame(name, row - depth, env)
        if depth < frames - 1 and self.code(row - depth, env) & 3 == PATCHES:
            for back in range(1, frames - depth):
                self.patch(name, (row - depth, env, -back))

    def check_patched(self, row: int, env: int) -> None:
        """Whether it is known which patches the next observation has."""
        if not any(first <= row <= last for first, last in self.unsure):
            return
        if self.schema.get("continuity", "observations") == "observations":
            with contextlib.suppress(LostError):
                if self.code(row + 1, env) == 0:
                    return
        number = self.places.get((row, env, 1))
        if number is None or (self.context and number + 1 not in self.placed):
            raise LostError("places")

    def check_next(self, name: str, row: int, env: int) -> None:
        """Section 7.2."""
        if (row, env, 1) in self.places:
            self.patch(name, (row, env, 1))
        else:
            self.frame(name, row + 1, env)
        if (row, env, 2) in self.places:
            for back in range(1, self.stacks[name]):
                self.patch(name, (row, env, 1 + back))

    def is_whole(self, row: int, env: int) -> bool:
        try:
            if not self.column("valid", row, env):
                return False
            for name in self.arrays:
                self.column(name, row, env)
            self.check_patched(row, env)
            for name in self.stacks:
                self.check_stack(name, row, env)
                self.check_next(name, row, env)
        except LostError:
            return False
        return True


def whole(store: pathlib.Path) -> list[tuple[str, Place, bool]]:
    """The transitions that can be read, in the order of streams, environments and rows.

    Of each the stream's directory, its place, and whether it goes on: another stream's tail may stand in a directory
    whose record is lost.
    """
    schema = root_of(store)["schema"]
    found: list[tuple[str, Place, bool]] = []
    for folder in sorted(f for f in (store / "streams").iterdir() if f.is_dir()):
        node = f"streams/{folder.name}"
        if not is_lost(folder / "zarr.json", node):
            record = attributes(folder / "zarr.json", node)
        else:
            cuts = (cut[folder.name] for cut in cuts_of(store) if folder.name in cut)
            record = tail_record(folder, schema["identity"]) or next(cuts, None)
        if record is None:
            continue
        stream = Stream(folder, schema, json.loads(json.dumps(record)))
        for env in range(stream.envs):
            before = -2
            for row in range(stream.begin, stream.end):
                if stream.is_whole(row, env):
                    goes_on = before == row - 1 and stream.code(row, env) == 0
                    found.append((folder.name, (record["stream"], row, env), goes_on))
                    before = row
    return found
