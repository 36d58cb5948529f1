"""A reader of format version 1, written from docs/format.md alone: small, slow, and without any of our code.

Numbers in comments are sections of that page, ``I...`` its invariants. It stands for the reader that somebody writes in
another language: it needs JSON, little-endian integers, CRC-32C, and a Blosc decoder.
"""

from __future__ import annotations

import base64
import itertools
import json
import pathlib
import re
import struct
from typing import Any

import numpy as np
from numcodecs import blosc

MISSING = (1 << 64) - 1
CONTINUES, ZEROS, REPEAT, PATCHES, CUT = range(5)


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


def group_attributes(folder: pathlib.Path, node: str = "") -> dict[str, Any]:
    document = json.loads((folder / "zarr.json").read_bytes())
    assert document["zarr_format"] == 3
    assert document["node_type"] == "group"
    ours = document["attributes"].get("diskreplay", {})
    stored = ours.pop("checksum", None)
    if stored is not None:  # 2.1
        text = json.dumps(ours, sort_keys=True, separators=(",", ":"))
        assert crc32c(f"{node}\n{text}".encode()) == stored, "checksum"
    return ours


class Array:
    """One Zarr array of a stream as of a commit; reads rows ``[floor, end)``."""

    def __init__(
        self, folder: pathlib.Path, shape: list[int], envs: int, tail: list[int] | None, end: int, dtype: str, seal: str
    ) -> None:
        document = json.loads((folder / "zarr.json").read_bytes())
        rows, self.envs, *self.shape = document["shape"]
        assert document["node_type"] == "array"
        assert (self.envs, self.shape, document["data_type"]) == (envs, shape, dtype)  # I5
        assert document["chunk_key_encoding"] == {"name": "default", "configuration": {"separator": "."}}
        (sharding,) = document["codecs"]
        inner = sharding["configuration"]
        self.folder, self.end, self.dtype = folder, end, np.dtype(dtype).newbyteorder("<")
        self.seal = seal
        self.shard_rows = document["chunk_grid"]["configuration"]["chunk_shape"][0]
        self.chunk_rows, self.chunk_envs = inner["chunk_shape"][:2]
        self.codecs = [codec["name"] for codec in inner["codecs"]]
        assert inner["index_location"] == "end"
        assert rows % self.shard_rows == 0
        assert rows >= end  # I7
        self.tail_shard, self.tail_bytes = tail if tail else (0, 0)
        if end:
            assert self.tail_shard == (end - 1) // self.shard_rows  # I12
        self.chunks_of_shard = self.shard_rows // self.chunk_rows
        self.groups = self.envs // self.chunk_envs
        self.indexes: dict[int, tuple[bytes, tuple[int, ...]]] = {}

    def shard_file(self, shard: int) -> pathlib.Path:
        return self.folder / ".".join(["c", str(shard), "0", *("0" for _ in self.shape)])  # 4.3

    def shard(self, shard: int) -> tuple[bytes, tuple[int, ...]]:
        """The committed bytes of a shard and its index as one flat tuple (4.4)."""
        if shard not in self.indexes:
            data = self.shard_file(shard).read_bytes()
            if shard == self.tail_shard:
                assert len(data) >= self.tail_bytes  # I13
                data = data[: self.tail_bytes]
            entries = self.chunks_of_shard * self.groups * 2
            index = data[-8 * entries - 4 :]
            if self.seal:  # I27
                rows = min(self.end, (shard + 1) * self.shard_rows)
                (stored,) = struct.unpack("<I", data[-len(index) - 4 : -len(index)])
                assert stored == crc32c(f"{self.seal}/{shard}/{rows}".encode() + index), "seal"
            self.indexes[shard] = data, struct.unpack(f"<{entries}Q", unseal(index))
        return self.indexes[shard]

    def chunk(self, chunk: int, group: int) -> np.ndarray:
        """One decoded chunk, ``(chunk_rows, chunk_envs, *shape)`` (4.5)."""
        shard, place = divmod(chunk, self.chunks_of_shard)
        data, index = self.shard(shard)
        at = 2 * (place * self.groups + group)
        offset, size = index[at : at + 2]
        assert MISSING not in (offset, size)  # I9
        body = unseal(data[offset : offset + size])
        if "blosc" in self.codecs:
            body = blosc.decompress(body)
        return np.frombuffer(body, self.dtype).reshape(self.chunk_rows, self.chunk_envs, *self.shape)

    def row(self, row: int) -> np.ndarray:
        """One row, ``(envs, *shape)``."""
        assert row < self.end
        chunk, at = divmod(row, self.chunk_rows)
        return np.concatenate([self.chunk(chunk, group)[at] for group in range(self.groups)])

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows ``[start, stop)``, each chunk decoded once."""
        out = np.empty((stop - start, self.envs, *self.shape), self.dtype)
        for chunk in range(start // self.chunk_rows, -(-stop // self.chunk_rows)):
            first = chunk * self.chunk_rows
            low, high = max(start, first), min(stop, first + self.chunk_rows)
            for group in range(self.groups):
                envs = slice(group * self.chunk_envs, (group + 1) * self.chunk_envs)
                out[low - start : high - start, envs] = self.chunk(chunk, group)[low - first : high - first]
        return out

    def dead_bytes(self) -> int:
        """Committed bytes of the tail shard that neither a chunk nor the newest index takes (4.6)."""
        data, index = self.shard(self.tail_shard)
        used = sum(size for size in index[1::2] if size != MISSING)
        return len(data) - used - 8 * len(index) - 4


class Stream:
    """One stream as of its commit record, or as of one given (a checkpoint's)."""

    def __init__(self, folder: pathlib.Path, schema: dict[str, Any], record: dict[str, Any] | None = None) -> None:
        self.record = record = record or group_attributes(folder, f"streams/{folder.name}")
        self.schema = schema
        assert record["needs"] == []  # 12
        self.envs, self.begin, self.end = record["num_envs"], record["begin"], record["end"]
        assert self.begin <= self.end  # I15
        assert self.end - self.begin <= record["capacity"] // self.envs  # I15
        self.context = max(stack["frames"] for stack in schema["stacks"]) - 1
        self.floor = max(0, min(self.begin, self.end - 1) - self.context)
        tails = record["tails"]
        seal = f"{schema['identity']}/{record['stream']}"
        self.arrays = {
            c["name"]: Array(
                folder / c["name"],
                c["shape"],
                self.envs,
                tails.get(c["name"]),
                self.end,
                c["dtype"],
                f"{seal}/{c['name']}",
            )
            for c in schema["columns"]
        }
        self.obs_names = [column["name"] for column in schema["columns"][: len(schema["stacks"])]]
        self.stacks = dict(zip(self.obs_names, schema["stacks"], strict=True))
        first_patch, end_patch = record["patch_begin"], record["patch_end"]
        self.patch_arrays = {
            name: Array(
                folder / "patches" / name,
                shape,
                1,
                tails.get(f"patches/{name}"),
                end_patch,
                dtype,
                f"{seal}/patches/{name}",
            )
            for name, shape, dtype in [
                ("place", [3], "int64"),
                *((c["name"], c["shape"], c["dtype"]) for c in schema["columns"][: len(schema["stacks"])]),
            ]
        }
        self.items = self.items_of(folder / "ragged", seal)
        # 6.1: (row, environment, offset) -> patch id
        self.patches: dict[tuple[int, int, int], int] = {}
        if end_patch > first_patch:
            places = self.patch_arrays["place"].rows(first_patch, end_patch)[:, 0].tolist()
            assert [row for row, _, _ in places] == sorted(row for row, _, _ in places)  # I20
            for number, (row, env, offset) in enumerate(places, first_patch):
                assert (row, env, offset) not in self.patches  # I19
                self.patches[row, env, offset] = number
        if self.end:
            assert all((self.end - 1, env, 1) in self.patches for env in range(self.envs))  # I21
        self.columns = {
            name: array.rows(self.floor, self.end) if self.end else None for name, array in self.arrays.items()
        }

        assert self.end == 0 or {0, 1, 2, 3, 5, 6, 7}.issuperset(self.columns["start"].ravel().tolist())  # I18
        self.check_spans()
        self.facts = self.read_facts(folder / "info", seal and f"{seal}/info")
        self.later = self.read_later(folder / "later" / "values", seal and f"{seal}/later/values")

    def items_of(self, folder: pathlib.Path, seal: str) -> dict[str, tuple[Array, dict[str, Any]]]:
        """5.8: the arrays of items, and what the schema says of each, by the names of the columns of spans."""
        found = {}
        for ragged in self.schema.get("ragged", []):
            name = ragged["name"]
            (spans,) = (column for column in self.schema["columns"] if column["name"] == name)
            assert (spans["shape"], spans["dtype"], spans["resident"]) == ([2], "int64", True)
            end, tail = (
                self.record.get("ragged", {}).get(name, {"end": 0})["end"],
                self.record["tails"].get(f"ragged/{name}"),
            )
            array = Array(folder / name, ragged["shape"], 1, tail, end, ragged["dtype"], f"{seal}/ragged/{name}")
            assert (array.chunk_rows, array.shard_rows) == (ragged["chunk_rows"], ragged["shard_rows"])
            found[name] = array, ragged
        return found

    def check_spans(self) -> None:
        """I31, of rows from the floor on and of patches of offset 1."""
        for name, (array, ragged) in self.items.items():
            begin = self.record.get("ragged", {}).get(name, {"begin": 0})["begin"]
            spans = [] if self.columns[name] is None else self.columns[name].reshape(-1, 2).tolist()
            if name in self.obs_names:
                spans += [self.patch(name, at).tolist() for (_, _, offset), at in self.patches.items() if offset == 1]
            for start, stop in spans:
                assert begin <= start <= stop <= array.end
                assert ragged["longest"] is None or stop - start <= ragged["longest"]

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
        return array.rows(start, stop)[:, 0] if start < stop else np.empty((0, *array.shape), array.dtype)

    def read_facts(self, folder: pathlib.Path, seal: str) -> dict[tuple[int, int], tuple[float, dict[str, Any]]]:
        """5.6: row and environment -> stop and facts, of the lines that count and are not dead."""
        info = self.record.get("info")
        if info is None:
            return {}
        array = Array(folder, [], 1, info["tail"], info["end"], "uint8", seal)
        text = array.rows(info["begin"], info["end"]).tobytes()
        found = {}
        for line in text.splitlines(keepends=True):
            assert line.endswith(b"\n")  # I28
            row, stop, env, facts = json.loads(line)
            found[row, env] = float("inf") if stop is None else stop, facts
            assert row < found[row, env][0]  # I28
        runs = sorted((env, row, stop) for (row, env), (stop, _) in found.items())
        for (one, _, stop), (other, row, _) in itertools.pairwise(runs):
            assert one != other or stop <= row  # I29
        for _, facts in found.values():
            assert all(re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,63}", name) for name in facts)  # I29
            assert type(facts.get("success")) in (bool, type(None))  # I29
            assert all(type(tag) is str for tag in facts.get("tags") or [])  # I29
            assert facts.get("seed") is None or 0 <= facts["seed"] < 1 << 64  # I29
        return {place: told for place, told in found.items() if told[0] > self.begin}

    def read_later(self, folder: pathlib.Path, seal: str) -> dict[str, dict[tuple[int, int], np.ndarray]]:
        """5.7: of each column that is written later, row and environment -> the value that counts and is not dead."""
        columns = self.schema.get("later", [])
        found: dict[str, dict[tuple[int, int], np.ndarray]] = {column["name"]: {} for column in columns}
        log = self.record.get("later")
        if log is None:
            return found
        array = Array(folder, [], 1, log["tail"], log["end"], "uint8", seal)
        data, at = array.rows(log["begin"], log["end"]).tobytes(), 0
        while at < len(data):  # I30
            number, count = struct.unpack_from("<II", data, at)
            column, places = columns[number], struct.unpack_from(f"<{count}q", data, at + 8)
            dtype = np.dtype(column["dtype"]).newbyteorder("<")
            size = dtype.itemsize * int(np.prod(column["shape"], dtype=int))
            at += 8 + 8 * count
            for place in places:
                assert 0 <= place < self.end * self.envs  # I30
                row, env = divmod(place, self.envs)
                if row >= self.begin:
                    value = np.frombuffer(data, dtype, size // dtype.itemsize, at)
                    found[column["name"]][row, env] = value.reshape(column["shape"])
                at += size
        assert at == len(data)  # I30
        return found

    def facts_of(self, row: int, env: int) -> dict[str, Any]:
        """The facts of the episode whose rows in the window begin with this one."""
        told = [facts for (first, of), (stop, facts) in self.facts.items() if of == env and first <= row < stop]
        return told[0] if told else {}

    def value(self, name: str, row: int, env: int) -> np.ndarray:
        return self.columns[name][row - self.floor, env]

    def patch(self, name: str, number: int) -> np.ndarray:
        return self.patch_arrays[name].row(number)[0]

    def ids(self) -> list[int]:
        """Ids of the transitions of the window, in order (5.3)."""
        return [
            self.record["stream"] << 48 | row * self.envs + env
            for row in range(self.begin, self.end)
            for env in range(self.envs)
            if self.value("valid", row, env)
        ]

    def locate(self, number: int) -> tuple[int, int]:
        return divmod(number & (1 << 48) - 1, self.envs)

    def stack(self, name: str, row: int, env: int) -> list[np.ndarray]:
        """Frames of the observation, newest first (7.1)."""
        frames = self.stacks[name]["frames"]
        depth = 0
        while depth < frames - 1 and self.value("start", row - depth, env) == CONTINUES:
            depth += 1
        found = [self.value(name, row - back, env) for back in range(depth + 1)]
        code = self.value("start", row - depth, env) % CUT
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
    """A store's root and its streams, by name."""

    def __init__(self, path: str | pathlib.Path, checkpoint: str | None = None) -> None:
        root = pathlib.Path(path)
        ours = group_attributes(root)
        self.schema = ours["schema"]
        assert (ours["format_version"], ours["needs"]) == (1, [])  # 12
        assert self.schema.get("ragged", ["..."])
        cut = None
        if checkpoint is not None:
            cut = group_attributes(root / "checkpoints" / checkpoint, f"checkpoints/{checkpoint}")["cut"]
        folders = [folder for folder in (root / "streams").iterdir() if (folder / "zarr.json").is_file()]
        self.streams = {
            folder.name: Stream(folder, self.schema, cut and cut[folder.name])
            for folder in folders
            if cut is None or folder.name in cut
        }
