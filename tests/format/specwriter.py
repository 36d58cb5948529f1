"""A writer of format version 1, written from docs/format.md alone: one stream, enough to try ``specreader.py`` on.

It syncs nothing, locks nothing and recovers nothing; what moves to shards, and when a tail begins, the caller says.
Numbers in comments are sections of that page.
"""

from __future__ import annotations

import json
import pathlib
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from format.specreader import MISSING, compact, crc32c
from numcodecs import blosc

CUT_LAYOUT = (4096, 1 << 16, 1, "zstd:1")  # 5.10


def put_group(
    folder: pathlib.Path, node: str = "", ours: dict[str, Any] | None = None, name: str = "zarr.json"
) -> None:
    """2.1: the document of a group, with our attributes if any; of a copy of the root these alone (3.5)."""
    found = {} if ours is None else {**ours, "checksum": crc32c(f"{node}\n{compact(ours)}".encode())}
    document = {"zarr_format": 3, "node_type": "group", "attributes": {"diskreplay": found} if found else {}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(found if name == "root.json" else document))


def packed(values: np.ndarray, codec: str) -> bytes:
    """4.2: a Blosc buffer of the elements, or the elements themselves."""
    raw = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()
    if codec == "none":
        return raw
    name, level = codec.split(":")
    shuffle = blosc.SHUFFLE if values.itemsize > 1 else blosc.NOSHUFFLE
    return bytes(blosc.compress(raw, name.encode(), int(level), shuffle, typesize=values.itemsize))


def sealed(data: bytes) -> bytes:
    return data + struct.pack("<I", crc32c(data))


def document(
    values: np.ndarray, rows: int, chunk_rows: int, shard_rows: int, chunk_envs: int, codec: str
) -> dict[str, Any]:
    """4.1: the document of an array whose values are ``(rows, envs, *shape)``."""
    envs, *shape = values.shape[1:]
    little = {"configuration": {"endian": "little"}}
    codecs: list[dict[str, Any]] = [{"name": "bytes", **(little if values.itemsize > 1 else {})}, {"name": "crc32c"}]
    if codec != "none":
        name, level = codec.split(":")
        shuffle = "shuffle" if values.itemsize > 1 else "noshuffle"
        options = {"cname": name, "clevel": int(level), "shuffle": shuffle, "typesize": values.itemsize, "blocksize": 0}
        codecs.insert(1, {"name": "blosc", "configuration": options})
    inner = {"chunk_shape": [chunk_rows, chunk_envs, *shape], "codecs": codecs, "index_location": "end"}
    inner["index_codecs"] = [{"name": "bytes", **little}, {"name": "crc32c"}]
    return {
        "zarr_format": 3, "node_type": "array", "shape": [rows, envs, *shape], "data_type": values.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [shard_rows, envs, *shape]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": {"b": False, "f": 0.0, "c": [0.0, 0.0]}.get(values.dtype.kind, 0),
        "codecs": [{"name": "sharding_indexed", "configuration": inner}],
        "dimension_names": ["row", "env", *(None for _ in shape)], "attributes": {},
    }  # fmt: skip


class Writer:
    """A new store with one stream.

    ``layouts`` has for each array ``(chunk_rows, shard_rows, chunk_envs, codec)``. ``commit`` takes of each array all
    values so far, ``(rows, envs, *shape)``; of an observation column one row more, the newest next observation.
    """

    def __init__(
        self, path: pathlib.Path, schema: dict[str, Any], layouts: Mapping[str, tuple[int, int, int, str]]
    ) -> None:
        self.path, self.schema, self.layouts = path, schema, {"cuts/place": CUT_LAYOUT, **layouts}
        self.folder = path / "streams" / "0"
        self.seal = f"{schema['identity']}/0"
        self.observed = {column["name"] for column in schema["columns"][: len(schema["stacks"])]}
        self.columns = {column["name"] for column in schema["columns"]}
        root = {"format_version": 1, "needs": [], "schema": schema, "settings": {}}
        put_group(path, "", root)
        for group in ("streams", "checkpoints", "streams/0/patches", "streams/0/cuts"):
            put_group(path / group)
        (self.folder / "start").mkdir(parents=True)
        put_group(self.folder / "start", "", root, "root.json")
        self.held: dict[str, int] = {}
        self.entries: dict[str, list[int]] = {}
        self.record: dict[str, Any] = {
            "stream": 0, "num_envs": schema["num_envs"], "capacity": schema["capacity"], "sequence": 0, "timeline": 0,
            "tables": {"rows": [0, 0, 0]}, "arrays": {}, "tail": [0, 0, 0], "needs": [], "time": 0.5,
        }  # fmt: skip
        put_group(self.folder, "streams/0", self.record)

    def table(self, path: str) -> str:
        """The table that an array is one of (5.2)."""
        return "rows" if path in self.columns else path if path.startswith("ragged/") else path.split("/")[0]

    def commit(
        self, tables: dict[str, list[int]], values: Mapping[str, np.ndarray], move: tuple[str, ...] = (), *,
        partly: bool = False, new_tail: bool = False, oldest: int | None = None, **more: Any,
    ) -> None:  # fmt: skip
        """8.1: moves full chunks of the arrays ``move``, with ``partly`` others too; a block; the record."""
        record = {**self.record, "tables": tables, "arrays": dict(self.record["arrays"]), **more}
        record["sequence"] += 1
        for path in move:
            end, chunk_rows = tables[self.table(path)][1], self.layouts[path][0]
            self.move(record, path, values[path], end if partly else end // chunk_rows * chunk_rows)
        n, size, first = record["tail"]
        if new_tail or not n:
            n, size, self.held = n + 1, 0, {}
        body = {key: value for key, value in record.items() if key != "tail"}
        block = self.block(n, size, body, values)
        with (self.folder / "start" / f"tail.{n}").open("r+b" if size else "wb") as file:
            file.seek(size)
            file.write(block)
        record["tail"] = [n, size + len(block), oldest or first or n]
        put_group(self.folder, "streams/0", record)
        self.record = record

    def block(self, n: int, offset: int, record: dict[str, Any], values: Mapping[str, np.ndarray]) -> bytes:
        """4.8."""
        contents: list[list[Any]] = []
        data = b""
        for path, all_rows in values.items():
            _, end, needed_from = record["tables"].get(self.table(path), [0, 0, 0])
            entry = record["arrays"].get(path)
            first = max(needed_from, self.held.get(path, 0), entry[2] if entry else 0)
            rows = all_rows[first : end + (path in self.observed and end > 0)]
            self.held[path] = end
            if len(rows):
                raw, small = packed(rows, "none"), packed(rows, "lz4:1")
                encoding, best = ("lz4", small) if len(small) < len(raw) else ("raw", raw)
                contents.append([path, first, len(rows), len(best), encoding])
                data += best
        table, text = compact(contents).encode(), compact(record).encode()
        size = 20 + len(table) + len(text) + len(data)
        whole = struct.pack("<IIQ", len(table), len(text), size) + table + text + data
        return whole + struct.pack("<I", crc32c(f"{self.seal}/tail/{n}/{offset}".encode() + whole))

    def move(self, record: dict[str, Any], path: str, values: np.ndarray, upto: int) -> None:
        """4.3 to 4.6: chunks with rows up to this one go to the shards."""
        chunk_rows, shard_rows, chunk_envs, codec = self.layouts[path]
        needed_from = record["tables"][self.table(path)][2]
        entry = record["arrays"].get(path)
        at = max(entry[2] if entry else 0, needed_from)
        while at < upto:
            shard = at // shard_rows
            rows = min(upto, (shard + 1) * shard_rows)
            if not entry or entry[0] != shard:
                self.entries[path] = [MISSING, MISSING] * (shard_rows // chunk_rows * (values.shape[1] // chunk_envs))
            made = document(values, (shard + 1) * shard_rows, *self.layouts[path])
            folder = self.folder / path
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "zarr.json").write_text(json.dumps(made))
            file = folder / ".".join(["c", str(shard), "0", *("0" for _ in values.shape[2:])])
            data = file.read_bytes() if file.exists() else b""
            for chunk in range(at // chunk_rows, -(-rows // chunk_rows)):
                padded = np.zeros((chunk_rows, *values.shape[1:]), values.dtype)
                low, high = max(needed_from, chunk * chunk_rows), min(rows, (chunk + 1) * chunk_rows)
                padded[low - chunk * chunk_rows : high - chunk * chunk_rows] = values[low:high]
                groups = values.shape[1] // chunk_envs
                for group in range(groups):
                    body = sealed(packed(padded[:, group * chunk_envs : (group + 1) * chunk_envs], codec))
                    place = 2 * (chunk % (shard_rows // chunk_rows) * groups + group)
                    self.entries[path][place : place + 2] = [len(data), len(body)]
                    data += body
            index = sealed(struct.pack(f"<{len(self.entries[path])}Q", *self.entries[path]))
            data += struct.pack("<I", crc32c(f"{self.seal}/{path}/{shard}/{rows}".encode() + index)) + index
            file.write_bytes(data)
            entry = record["arrays"][path] = [shard, len(data), rows, chunk_rows, shard_rows, chunk_envs, codec]
            at = rows

    def checkpoint(self, name: str, **more: Any) -> None:
        """9.1: of the newest record."""
        document = {"cut": {"0": self.record}, "state": {}, "metadata": {}, "time": 0.5, "number": 1, "id": "a"}
        put_group(
            self.path / "checkpoints" / name, f"checkpoints/{name}", {**document, "maker": "0", "arrays": {}, **more}
        )
