"""A reader of format version 1, written from docs/format.md alone: small, slow, and without any of our code.

Numbers in comments are sections of that page, ``I...`` its invariants. It stands for the reader that somebody writes in
another language: it needs JSON, little-endian integers, CRC-32C, and a Blosc decoder. What is damaged is an
AssertionError; what is read from a copy, because a document is lost, is a warning.
"""

from __future__ import annotations

import base64
import itertools
import json
import pathlib
import re
import struct
import warnings
from typing import Any

import numpy as np
from numcodecs import blosc

MISSING = (1 << 64) - 1
CONTINUES, ZEROS, REPEAT, PATCHES = range(4)
NOT_VALID = 16
ENTRY = ("shard", "bytes", "rows", "chunk_rows", "shard_rows", "chunk_envs", "codec")


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of the bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def unseal(data: bytes) -> bytes:
    """The bytes before a closing CRC-32C that fits them."""
    (stored,) = struct.unpack("<I", data[-4:])
    assert crc32c(data[:-4]) == stored, "checksum"
    return data[:-4]


def compact(value: Any) -> str:
    """JSON as 2.1 writes it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def attributes(file: pathlib.Path, node: str) -> dict[str, Any]:
    """Our attributes of a group's document, or of a copy of the root's (3.5), with a checksum that fits (2.1)."""
    ours = json.loads(file.read_bytes())
    if file.name != "root.json":
        assert (ours["zarr_format"], ours["node_type"]) == (3, "group")
        ours = ours["attributes"]["diskreplay"]
    stored = ours.pop("checksum")
    assert crc32c(f"{node}\n{compact(ours)}".encode()) == stored, "checksum"
    return ours


def is_lost(file: pathlib.Path, node: str) -> bool:
    """Whether a document is missing, no JSON, or has a wrong checksum (3.5, 8.5)."""
    try:
        attributes(file, node)
    except (FileNotFoundError, ValueError, KeyError, AssertionError):
        return True
    return False


def root_of(store: pathlib.Path) -> dict[str, Any]:
    """The root's attributes, from a copy where its document is lost (3.5)."""
    copies = {path: attributes(path, "") for path in store.glob("streams/*/start/root.json") if not is_lost(path, "")}
    if not is_lost(store / "zarr.json", ""):
        root = attributes(store / "zarr.json", "")
        assert all(copy == root for copy in copies.values())  # I35
        return root
    assert copies, f"{store / 'zarr.json'} is lost, and so is every copy"
    (path, root), *others = copies.items()
    assert all(other == root for _, other in others), "copies of a root that is lost differ"
    warnings.warn(f"{store / 'zarr.json'} is lost: read from {path}", stacklevel=2)
    return root


def index_at(data: bytes, entries: int, seal: str) -> tuple[int, ...]:
    """The index that ends with these bytes, as one flat tuple, its seal checked (4.4, 4.5)."""
    size = 16 * entries + 4
    index = data[-size:]
    assert len(data) >= size + 4, "no index"
    (stored,) = struct.unpack("<I", data[-size - 4 : -size])
    assert stored == crc32c(seal.encode() + index), "seal"  # I25
    found = struct.unpack(f"<{2 * entries}Q", unseal(index))
    assert all(at == MISSING or at + n <= len(data) - size - 4 for at, n in zip(*[iter(found)] * 2, strict=True))  # I10
    return found


class Tail:
    """The whole blocks of a tail's first bytes (4.8)."""

    def __init__(self, file: pathlib.Path, seal: str, committed: int | None) -> None:
        """``committed`` is None to read as far as blocks are whole."""
        data = file.read_bytes()
        assert committed is None or len(data) >= committed  # I30
        self.pieces: dict[str, list[tuple[int, int, bytes, str]]] = {}
        self.records: list[tuple[int, dict[str, Any]]] = []
        """The end of each block, and its record."""
        at = 0
        while at < (len(data) if committed is None else committed):
            try:
                at = self.block(data[:committed], at, f"{seal}/{at}")
            except (AssertionError, ValueError, struct.error):
                if committed is None:
                    break
                raise
        assert committed in (None, at)  # I30

    def block(self, data: bytes, at: int, seal: str) -> int:
        """Reads the block that begins there; its end."""
        contents, record, size = struct.unpack_from("<IIQ", data, at)
        assert 20 + contents + record <= size <= len(data) - at, "no whole block"
        body = data[at : at + size - 4]
        (stored,) = struct.unpack_from("<I", data, at + size - 4)
        assert stored == crc32c(seal.encode() + body), "seal"  # I30
        entries = json.loads(body[16 : 16 + contents])
        self.records.append((at + size, json.loads(body[16 + contents : 16 + contents + record])))
        begin = 16 + contents + record
        for path, first, rows, length, encoding in entries:
            assert rows > 0
            self.pieces.setdefault(path, []).append((first, rows, body[begin : begin + length], encoding))
            begin += length
        assert begin == len(body)
        return at + size

    def rows(self, path: str, start: int, stop: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Rows ``[start, stop)`` of an array, ``(stop - start, *shape)``; the last block that has a row counts."""
        out, known = np.empty((stop - start, *shape), dtype), np.zeros(stop - start, bool)
        for first, rows, data, encoding in self.pieces.get(path, []):
            low, high = max(start, first), min(stop, first + rows)
            if low >= high:
                continue
            assert encoding in ("lz4", "raw")
            body = blosc.decompress(data) if encoding == "lz4" else data
            values = np.frombuffer(body, dtype).reshape(rows, *shape)
            out[low - start : high - start] = values[low - first : high - first]
            known[low - start : high - start] = True
        assert known.all(), f"{path}: rows that are nowhere"  # I31
        return out


class Array:
    """One array of a stream as of a record: rows below ``in_shards`` stand in its shards, others in the tail."""

    def __init__(self, stream: Stream, path: str, shape: list[int], dtype: str, table: str) -> None:
        record = stream.record
        self.folder, self.path, self.tail = stream.folder / path, path, stream.tail
        self.seal = f"{stream.seal}/{path}"
        self.envs, self.shape = record["num_envs"] if table == "rows" else 1, shape
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.begin, self.end, self.needed_from = record["tables"].get(table, [0, 0, 0])
        entry = record["arrays"].get(path, [0, 0, 0, 1, 1, self.envs, "none"])
        self.last_shard, self.bytes, self.in_shards, self.chunk_rows, self.shard_rows, self.chunk_envs, self.codec = (
            entry
        )
        assert self.in_shards <= self.end or stream.without_tail  # I15
        assert (self.shard_rows % self.chunk_rows, self.envs % self.chunk_envs) == (0, 0)  # I4
        self.groups = self.envs // self.chunk_envs
        self.chunks_of_shard = self.shard_rows // self.chunk_rows
        self.indexes: dict[int, tuple[bytes, tuple[int, ...]]] = {}
        if path in record["arrays"]:
            assert self.last_shard == (self.in_shards - 1) // self.shard_rows  # I12
            self.check_document(json.loads((self.folder / "zarr.json").read_bytes()))
            self.shard(self.last_shard)

    def check_document(self, document: dict[str, Any]) -> None:
        """4.1, 4.2."""
        rows = document["shape"][0]
        assert rows % self.shard_rows == 0  # I7
        assert rows >= self.in_shards  # I7
        size = self.dtype.itemsize
        little = {} if self.dtype.itemsize == 1 else {"configuration": {"endian": "little"}}
        name, _, level = self.codec.partition(":")
        codecs: list[dict[str, Any]] = [{"name": "bytes", **little}, {"name": "crc32c"}]
        if name != "none":
            options = {"cname": name, "clevel": int(level), "shuffle": "shuffle" if size > 1 else "noshuffle"}
            codecs.insert(1, {"name": "blosc", "configuration": {**options, "typesize": size, "blocksize": 0}})
        index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
        chunk = [self.chunk_rows, self.chunk_envs, *self.shape]
        inner = {"chunk_shape": chunk, "codecs": codecs, "index_codecs": index, "index_location": "end"}
        grid = {"chunk_shape": [self.shard_rows, self.envs, *self.shape]}
        fill: Any = {"b": False, "c": [0.0, 0.0], "f": 0.0}.get(self.dtype.kind, 0)
        assert document == {  # I5
            "zarr_format": 3,
            "node_type": "array",
            "shape": [rows, self.envs, *self.shape],
            "data_type": self.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": grid},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "fill_value": fill,
            "codecs": [{"name": "sharding_indexed", "configuration": inner}],
            "dimension_names": ["row", "env", *(None for _ in self.shape)],
            "attributes": document["attributes"],
        }

    def shard_file(self, shard: int) -> pathlib.Path:
        return self.folder / ".".join(["c", str(shard), "0", *("0" for _ in self.shape)])  # 4.3

    def shard(self, shard: int) -> tuple[bytes, tuple[int, ...]]:
        """The committed bytes of a shard and its index as one flat tuple (4.4)."""
        if shard not in self.indexes:
            data = self.shard_file(shard).read_bytes()
            if shard == self.last_shard:
                assert len(data) >= self.bytes  # I13
                data = data[: self.bytes]
            rows = min(self.in_shards, (shard + 1) * self.shard_rows)
            index = index_at(data, self.chunks_of_shard * self.groups, f"{self.seal}/{shard}/{rows}")
            self.indexes[shard] = data, index
        return self.indexes[shard]

    def chunk(self, chunk: int, group: int) -> np.ndarray:
        """One decoded chunk, ``(chunk_rows, chunk_envs, *shape)`` (4.2, 4.3)."""
        shard, place = divmod(chunk, self.chunks_of_shard)
        data, index = self.shard(shard)
        at = 2 * (place * self.groups + group)
        offset, size = index[at : at + 2]
        assert MISSING not in (offset, size)  # I9
        body = unseal(data[offset : offset + size])
        body = body if self.codec == "none" else blosc.decompress(body)
        found = np.frombuffer(body, self.dtype).reshape(self.chunk_rows, self.chunk_envs, *self.shape)  # I8
        assert not found[max(0, self.in_shards - chunk * self.chunk_rows) :].any()  # I11
        return found

    def row(self, row: int) -> np.ndarray:
        """One row, ``(envs, *shape)``."""
        return self.rows(row, row + 1)[0]

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows ``[start, stop)``, ``(stop - start, envs, *shape)``."""
        assert self.needed_from <= start <= stop
        out = np.empty((stop - start, self.envs, *self.shape), self.dtype)
        within = min(stop, self.in_shards)
        for chunk in range(start // self.chunk_rows, -(-within // self.chunk_rows)) if start < within else ():
            first = chunk * self.chunk_rows
            low, high = max(start, first), min(within, first + self.chunk_rows)
            for group in range(self.groups):
                envs = slice(group * self.chunk_envs, (group + 1) * self.chunk_envs)
                out[low - start : high - start, envs] = self.chunk(chunk, group)[low - first : high - first]
        behind = max(start, self.in_shards)
        if behind < stop:
            assert self.tail is not None, f"{self.path}: rows that are nowhere"
            out[behind - start :] = self.tail.rows(self.path, behind, stop, (self.envs, *self.shape), self.dtype)
        return out

    def dead_bytes(self) -> int:
        """Committed bytes of the last shard that neither a chunk nor the newest index and seal take (4.6)."""
        if not self.in_shards:
            return 0
        data, index = self.shard(self.last_shard)
        return len(data) - sum(size for size in index[1::2] if size != MISSING) - 8 * len(index) - 8


def tails_of(stream: pathlib.Path) -> dict[int, pathlib.Path]:
    """The files of tails by their numbers, the highest first."""
    found = {
        int(p.name[5:]): p for p in (stream / "start").glob("tail.*") if re.fullmatch(r"tail\.[1-9][0-9]*", p.name)
    }
    return dict(sorted(found.items(), reverse=True))


def record_of(stream: pathlib.Path, identity: str) -> dict[str, Any]:
    """The commit record, from the tail where its document is lost (8.5)."""
    file, node = stream / "zarr.json", f"streams/{stream.name}"
    if not is_lost(file, node):
        return attributes(file, node)
    tails = tails_of(stream)
    for n, path in tails.items():
        for end, record in reversed(blocks_of_any(path, identity, n)):
            if all(shard_is_there(stream, record, array, identity) for array in record["arrays"]):
                warnings.warn(f"{file} is lost: read from {path}", stacklevel=2)
                return {**record, "tail": [n, end, min(tails)]}
    raise AssertionError(f"{file} is lost, and no tail has a record")


def blocks_of_any(path: pathlib.Path, identity: str, n: int) -> list[tuple[int, dict[str, Any]]]:
    """The blocks of a tail whose stream's number is not known: it stands in the record."""
    data = path.read_bytes()
    contents, record = struct.unpack_from("<II", data) if len(data) >= 16 else (0, 0)
    try:
        number = json.loads(data[16 + contents : 16 + contents + record])["stream"]
    except (ValueError, KeyError, TypeError):
        return []
    return Tail(path, f"{identity}/{number}/tail/{n}", None).records


def shard_is_there(stream: pathlib.Path, record: dict[str, Any], path: str, identity: str) -> bool:
    """Whether an array's last shard has the index that a record names."""
    entry = dict(zip(ENTRY, record["arrays"][path], strict=True))
    is_column = not path.startswith(("patches/", "cuts/", "later/", "ragged/")) and path != "info"
    envs = record["num_envs"] if is_column else 1
    files = list((stream / path).glob(f"c.{entry['shard']}.*"))
    if len(files) != 1:
        return False
    data = files[0].read_bytes()
    rows = min(entry["rows"], (entry["shard"] + 1) * entry["shard_rows"])
    entries = entry["shard_rows"] // entry["chunk_rows"] * (envs // entry["chunk_envs"])
    try:
        assert len(data) >= entry["bytes"]
        index_at(data[: entry["bytes"]], entries, f"{identity}/{record['stream']}/{path}/{entry['shard']}/{rows}")
    except AssertionError:
        return False
    return True


def without_tail(record: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The record as if all were in shards, and the rows below the last that they hold (8.5)."""

    def held(table: str) -> int:
        arrays = {"patches": ["patches/place", *(f"patches/{name}" for name in columns[: len(schema["stacks"])])]}
        arrays |= {"rows": columns, "cuts": ["cuts/place"], "later": ["later/values"]}
        return min(record["arrays"].get(path, [0, 0, 0])[2] for path in arrays.get(table, [table]))

    columns = [column["name"] for column in schema["columns"]]
    tables = {name: [first, max(first, held(name)), first] for name, (first, _, _) in record["tables"].items()}
    begin, _, floor = record["tables"]["rows"]
    end = held("rows") - 1
    tables["rows"] = [min(begin, end), end, floor] if end > floor else [0, 0, 0]
    return {**record, "tables": tables, "tail": [0, 0, 0]}


class Stream:
    """One stream as of its commit record, or as of one given (a checkpoint's)."""

    def __init__(
        self, folder: pathlib.Path, schema: dict[str, Any], record: dict[str, Any] | None = None, lost: bool = False
    ) -> None:
        whole = record or record_of(folder, schema["identity"])
        self.without_tail, self.all_patches = lost, whole["tables"].get("patches", [0, 0, 0])[1]
        self.record = record = without_tail(whole, schema) if lost else whole
        assert record["needs"] == [], "what this reader does not know"  # 12
        self.folder, self.schema, self.envs = folder, schema, record["num_envs"]
        self.begin, self.end, self.floor = record["tables"]["rows"]
        self.context = max(stack["frames"] for stack in schema["stacks"]) - 1
        if not lost:
            self.check_tables()
        self.seal = f"{schema['identity']}/{record['stream']}"
        self.tail = self.read_tail(*record["tail"])
        self.arrays = {c["name"]: self.array(c["name"], c["shape"], c["dtype"], "rows") for c in schema["columns"]}
        leaves = schema["columns"][: len(schema["stacks"])]
        self.obs_names = [column["name"] for column in leaves]
        self.stacks = dict(zip(self.obs_names, schema["stacks"], strict=True))
        self.patch_arrays = {
            c["name"]: self.array(f"patches/{c['name']}", c["shape"], c["dtype"], "patches") for c in leaves
        }
        self.patches = self.read_places()
        self.items = self.read_items()
        read = {name: array.rows(self.floor, self.end) for name, array in self.arrays.items()} if self.end else {}
        self.columns = {name: read.get(name) for name in self.arrays}
        self.newest = {name: self.arrays[name].row(self.end) for name in self.obs_names} if self.end else {}  # I31
        if not lost:
            self.check_spans()
            self.check_cuts()
        self.facts = self.read_facts()
        self.later = self.read_later()

    def array(self, path: str, shape: list[int], dtype: str, table: str) -> Array:
        return Array(self, path, shape, dtype, table)

    def check_tables(self) -> None:
        """I15."""
        for name, (begin, end, needed_from) in self.record["tables"].items():
            assert 0 <= needed_from <= begin <= end
            assert name == "rows" or needed_from == begin
        assert self.end - self.begin <= self.record["capacity"] // self.envs
        assert self.floor == max(0, min(self.begin, self.end - 1) - self.context)

    def read_tail(self, n: int, committed: int, oldest: int) -> Tail | None:
        """4.8: None of a new stream."""
        if self.without_tail:
            warnings.warn(f"{self.folder} is read without its tail", stacklevel=2)
            return None
        if n == 0:
            assert (committed, oldest, self.end) == (0, 0, 0)
            return None
        assert 1 <= oldest <= n
        tail = Tail(self.folder / "start" / f"tail.{n}", f"{self.seal}/tail/{n}", committed)
        assert tail.records[-1][1] == {key: value for key, value in self.record.items() if key != "tail"}  # I30
        return tail

    def read_places(self) -> dict[tuple[int, int, int], int]:
        """6: (row, environment, offset) -> number of the patch."""
        array = self.array("patches/place", [3], "int64", "patches")
        places = array.rows(array.needed_from, array.end)[:, 0].tolist()
        assert [row for row, _, _ in places] == sorted(row for row, _, _ in places)  # I20
        found = {(row, env, offset): number for number, (row, env, offset) in enumerate(places, array.needed_from)}
        assert len(found) == len(places)  # I19
        assert all(row >= self.floor for row, _, _ in found)  # I23
        return found

    def read_items(self) -> dict[str, tuple[Array, dict[str, Any]]]:
        """5.8: the arrays of items, and what the schema says of each, by the names of the columns of spans."""
        found = {}
        for ragged in self.schema.get("ragged", []):
            name = ragged["name"]
            (spans,) = (column for column in self.schema["columns"] if column["name"] == name)
            assert (spans["shape"], spans["dtype"]) == ([2], "int64")
            array = self.array(f"ragged/{name}", ragged["shape"], ragged["dtype"], f"ragged/{name}")
            found[name] = array, ragged
        return found

    def check_spans(self) -> None:
        """I29, of rows from the floor on, of row ``end``, and of patches of offset 1."""
        for name, (array, ragged) in self.items.items():
            spans = [] if self.columns[name] is None else self.columns[name].reshape(-1, 2).tolist()
            if name in self.obs_names and self.end:
                spans += self.newest[name].tolist()
                spans += [self.patch(name, at).tolist() for (_, _, offset), at in self.patches.items() if offset == 1]
            for start, stop in spans:
                assert array.needed_from <= start <= stop <= array.end
                assert ragged["longest"] is None or stop - start <= ragged["longest"]

    def check_cuts(self) -> None:
        """I32: the table says of the rows from the floor on what their columns say."""
        array = self.array("cuts/place", [3], "int64", "cuts")
        told = array.rows(array.needed_from, array.end)[:, 0].tolist()
        start, valid = self.columns["start"], self.columns["valid"]
        shown = [] if start is None else np.argwhere(start != 0).tolist()
        assert told == [
            [self.floor + row, env, int(start[row, env]) + NOT_VALID * (not valid[row, env])] for row, env in shown
        ], "cuts"

    def packets(self, name: str, value: bytes) -> list[bytes]:
        """5.9: the packets of a value of a video column."""
        video = self.items[name][1]["video"]
        assert video["codec"] in ("av1", "h264", "hevc", "vp9")
        assert self.record["num_envs"] == 1
        found, entries = [], set()
        while value:
            size, flags, zero, entry = struct.unpack("<IBBH", value[:8])
            assert size >= 1
            assert (flags, zero) == (0 if found else 1, 0)
            assert 8 + size <= len(value)
            found.append(value[8 : 8 + size])
            entries.add(entry)
            value = value[8 + size :]
        assert len(entries) == 1
        assert max(entries) < len([base64.b64decode(one) for one in video["parameters"]])
        assert len(found) <= 4096
        return found

    def shown(self, name: str, value: np.ndarray) -> np.ndarray:
        """5.8: the items of a span, or what stands in a row of another column."""
        if name not in self.items:
            return value
        (start, stop), (array, _) = value.tolist(), self.items[name]
        assert stop <= array.end  # I29
        return array.rows(start, stop)[:, 0] if start < stop else np.empty((0, *array.shape), array.dtype)

    def log(self, path: str, table: str) -> bytes:
        """The bytes of a table of bytes that are needed."""
        array = self.array(path, [], "uint8", table)
        return array.rows(array.begin, array.end).tobytes()

    def read_facts(self) -> dict[tuple[int, int], tuple[float, dict[str, Any]]]:
        """5.6: row and environment -> stop and facts, of the lines that count and are not dead."""
        found = {}
        for line in self.log("info", "info").splitlines(keepends=True):
            if self.without_tail and not line.endswith(b"\n"):
                break
            assert line.endswith(b"\n")  # I26
            row, stop, env, facts = json.loads(line)
            found[row, env] = float("inf") if stop is None else stop, facts
            assert row < found[row, env][0]  # I26
        runs = sorted((env, row, stop) for (row, env), (stop, _) in found.items())
        for (one, _, stop), (other, row, _) in itertools.pairwise(runs):
            assert one != other or stop <= row  # I27
        for _, facts in found.values():
            assert all(re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,63}", name) for name in facts)  # I27
            assert type(facts.get("success")) in (bool, type(None))  # I27
            assert all(type(tag) is str for tag in facts.get("tags") or [])  # I27
            assert facts.get("seed") is None or 0 <= facts["seed"] < 1 << 64  # I27
        return {place: told for place, told in found.items() if told[0] > self.begin}

    def read_later(self) -> dict[str, dict[tuple[int, int], np.ndarray]]:
        """5.7: of each column that is written later, row and environment -> the value that counts and is not dead."""
        columns = self.schema.get("later", [])
        found: dict[str, dict[tuple[int, int], np.ndarray]] = {column["name"]: {} for column in columns}
        data, at = self.log("later/values", "later"), 0
        while at < len(data):  # I28
            number, count = struct.unpack("<II", data[at : at + 8].ljust(8, b"\0"))
            column = columns[number]
            dtype = np.dtype(column["dtype"]).newbyteorder("<")
            size = dtype.itemsize * int(np.prod(column["shape"], dtype=int))
            if self.without_tail and (count == 0 or len(data) < at + 8 + count * (8 + size)):
                return found
            places = struct.unpack_from(f"<{count}q", data, at + 8)
            at += 8 + 8 * count
            for place in places:
                assert 0 <= place < self.end * self.envs or self.without_tail  # I28
                row, env = divmod(place, self.envs)
                if self.begin <= row < self.end:
                    value = np.frombuffer(data, dtype, size // dtype.itemsize, at)
                    found[column["name"]][row, env] = value.reshape(column["shape"])
                at += size
        assert at == len(data)  # I28
        return found

    def facts_of(self, row: int, env: int) -> dict[str, Any]:
        """The facts of the episode whose rows in the window begin with this one."""
        told = [facts for (first, of), (stop, facts) in self.facts.items() if of == env and first <= row < stop]
        return told[0] if told else {}

    def value(self, name: str, row: int, env: int) -> np.ndarray:
        """What a row holds; of row ``end`` the newest next observation (4.8)."""
        return self.newest[name][env] if row == self.end else self.columns[name][row - self.floor, env]

    def patch(self, name: str, number: int) -> np.ndarray:
        return self.patch_arrays[name].row(number)[0]

    def ids(self) -> list[int]:
        """Ids of the transitions of the window, in order (5.3)."""
        return [
            self.record["stream"] << 48 | row * self.envs + env
            for row in range(self.begin, self.end)
            for env in range(self.envs)
            if self.value("valid", row, env) and not (self.without_tail and self.lacks(row, env))
        ]

    def lacks(self, row: int, env: int) -> bool:
        """Whether a transition may have had patches or items in a tail that is lost (8.5)."""
        end = self.patch_arrays[self.obs_names[0]].end
        last = max((of for of, _, _ in self.patches), default=0)
        code = self.value("start", row + 1, env) if row + 1 < self.end else self.arrays["start"].row(self.end)[env]
        if end < self.all_patches and row >= last and (code != 0 or self.schema.get("continuity") == "flags"):
            return True
        try:
            self.transition((row * self.envs) + env)
        except (KeyError, AssertionError):
            return True
        return False

    def locate(self, number: int) -> tuple[int, int]:
        return divmod(number & (1 << 48) - 1, self.envs)

    def stack(self, name: str, row: int, env: int) -> list[np.ndarray]:
        """Frames of the observation, newest first (7.1)."""
        frames = self.stacks[name]["frames"]
        depth = 0
        while depth < frames - 1 and self.value("start", row - depth, env) == CONTINUES:
            depth += 1
        found = [self.value(name, row - back, env) for back in range(depth + 1)]
        code = self.value("start", row - depth, env) & 3  # 5, 6 and 7 as 1, 2 and 3
        for back in range(1, frames - depth):
            if code == ZEROS:
                found.append(np.zeros_like(found[0]))
            elif code == REPEAT:
                found.append(found[depth])
            else:
                assert code == PATCHES
                found.append(self.patch(name, self.patches[row - depth, env, -back]))
        return found

    def next_stack(self, name: str, row: int, env: int) -> list[np.ndarray]:
        """Frames of the next observation, newest first (7.2)."""
        frames = self.stacks[name]["frames"]
        if (row, env, 1) in self.patches:
            newest = self.patch(name, self.patches[row, env, 1])
        else:
            newest = self.value(name, row + 1, env)
        if (row, env, 2) in self.patches:
            older = [self.patch(name, self.patches[row, env, 1 + back]) for back in range(1, frames)]
        else:
            older = self.stack(name, row, env)[: frames - 1]
        return [newest, *older]

    def layout(self, name: str, newest_first: list[np.ndarray]) -> np.ndarray:
        """Frames as the observation space has them (7.3)."""
        stack = self.stacks[name]
        frames = newest_first[::-1]
        if stack["frames"] == 1:
            return frames[0]
        if stack["axis"] is None or not stack["channels"]:
            return np.stack(frames, stack["axis"] or 0)
        return np.concatenate(frames, stack["axis"])

    def transition(self, number: int) -> dict[str, Any]:
        """One transition of one step, its observations by the leaves' names."""
        row, env = self.locate(number)
        one = {name: self.value(name, row, env) for name in self.arrays if name not in self.obs_names}
        one = {name: self.shown(name, value) for name, value in one.items()}
        for what, stack in (("obs", self.stack), ("next_obs", self.next_stack)):
            frames = {name: self.layout(name, stack(name, row, env)) for name in self.obs_names}
            one[what] = {name: self.shown(name, value) for name, value in frames.items()}
        return one


class Store:
    """A store's root and its streams, by name; ``without_tails`` shows what is left where these are lost."""

    def __init__(self, path: str | pathlib.Path, checkpoint: str | None = None, *, without_tails: bool = False) -> None:
        root = pathlib.Path(path)
        ours = root_of(root)
        self.schema = ours["schema"]
        assert (ours["format_version"], ours["needs"]) == (1, []), "what this reader does not know"  # 12
        cut = None
        if checkpoint is not None:
            document = attributes(root / "checkpoints" / checkpoint / "zarr.json", f"checkpoints/{checkpoint}")
            assert not document.get("pending"), "a checkpoint that does not count yet"  # 9.1
            cut = document["cut"]
            assert not any(record.get("back") for record in cut.values())  # I34
        folders = [f for f in (root / "streams").iterdir() if (f / "zarr.json").is_file() or tails_of(f)]
        self.streams = {
            folder.name: Stream(folder, self.schema, cut and cut[folder.name], without_tails)
            for folder in folders
            if cut is None or folder.name in cut
        }
        numbers = [stream.record["stream"] for stream in self.streams.values()]
        assert len(set(numbers)) == len(numbers)  # I6
