"""What disks, copies and hostile people do to the files of a store: one random mutation of one kind."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
from hostile.bases import Base

from diskreplay.schema.columns import Schema
from diskreplay.storage import chunks, metadata, stream, tail
from diskreplay.storage.column import shard_number
from diskreplay.storage.commit import Commit

Rng = np.random.Generator

NAMES = "c.9.0.0.0", "c.3.0", "c.0.0", "c.01.0", "zarr.json.tmp", ".tmp-commit", "tail.9", "tail.01", "tail.0", "tail."

HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 255, 1 << 31, 1 << 47, (1 << 48) + 1, 1 << 63, 1 << 64, -(1 << 63), 10**400,
    0.5, -0.0, 1e308, "", "0", "-1", "1e9", "..", "../..", "../outside/target", "/etc/passwd", "a\0b", "\ud800",
    "é" * 99, "x" * 5000, [], {}, [[]], [0], [1 << 40], [-1, -1], [1 << 62, 1 << 62], {"..": 1}, {"kind": "Box"},
    {"name": "blosc"}, "none", "zstd:9", "lz4hc:0", "pickle", "object", "O", "int64", "uint8", "float16", "bool", "|S8",
    [1 << 20] * 8, [2, 3], list(range(3000)),
]  # fmt: skip
HUGE = [1 << 24, 1 << 31, 1 << 32, 1 << 40, 1 << 60, (1 << 63) - 1]
RAW = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "9" * 5000,
    "[" * 100_000,
    '{"a":' * 50_000,
    "[" * 900 + "]" * 900,
    "00",
]


def mutate(base: Base, store: pathlib.Path, outside: pathlib.Path, rng: Rng) -> tuple[str, bool]:
    """Mutates the copy of ``base`` at ``store``; what was done, and whether it is damage, which must be noticed.

    What is no damage was made to look whole, with checksums: anything but harm may come of that.
    """
    names = list(KINDS)
    name = names[rng.choice(len(names), p=WEIGHTS)]
    done = KINDS[name](base, store, outside, rng)
    if done is None:
        return mutate(base, store, outside, rng)
    return f"{name}: {done}", not name.startswith("forged")


def _files(store: pathlib.Path) -> list[pathlib.Path]:
    return sorted(file for file in store.rglob("*") if file.is_file())


def _directories(store: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder for folder in store.rglob("*") if folder.is_dir())


def pick(items: Any, rng: Rng) -> Any:
    items = list(items)
    return items[rng.integers(len(items))]


def _file(store: pathlib.Path, rng: Rng) -> pathlib.Path:
    """Documents, tails, and shards alike, though there are more shards."""
    pattern = pick(["zarr.json"] * 6 + ["c.*"] * 9 + ["tail.*"] * 4 + ["root.json"], rng)
    return pick(sorted(store.rglob(pattern)), rng)


def of_a_file(change: Callable[[pathlib.Path, Rng], str | None], choose: Any) -> Any:
    """Returns a mutation of the files that ``choose(store, rng)`` gives."""

    def mutation(*arguments: Any) -> str | None:
        store, rng = arguments[-3], arguments[-1]
        file = choose(store, rng)
        done = change(file, rng)
        return None if done is None else f"{file} {done}"

    return mutation


def flip(file: pathlib.Path, rng: Rng) -> str | None:
    data = bytearray(file.read_bytes())
    if not data:
        return None
    # Headers and footers are where a flip does most.
    low, high = pick([(0, len(data)), (0, min(2048, len(data))), (max(0, len(data) - 2048), len(data))], rng)
    at = rng.integers(low, high, size=pick([1, 1, 2, 8], rng))
    for byte in at:
        data[byte] ^= 1 << rng.integers(8)
    file.write_bytes(data)
    return f"at {at.tolist()}"


def overwrite(file: pathlib.Path, rng: Rng) -> str:
    data = bytearray(file.read_bytes())
    at, length = int(rng.integers(len(data) + 1)), int(rng.integers(1, 200))
    data[at : at + length] = pick([bytes(length), bytes(length), rng.bytes(length), b"\xff" * length], rng)
    file.write_bytes(data)
    return f"at {at}"


def truncate(file: pathlib.Path, rng: Rng) -> str:
    size = file.stat().st_size
    keep = pick([0, max(0, size - 1), int(rng.integers(size + 1)), int(rng.integers(size + 1))], rng)
    os.truncate(file, keep)
    return f"to {keep} of {size}"


def extend(file: pathlib.Path, rng: Rng) -> str:
    if rng.random() < 0.25:
        os.truncate(file, size := pick([1 << 20, 1 << 32, 1 << 40], rng))
        return f"to {size}, a hole"
    more = pick([b"\0", bytes(4096), rng.bytes(int(rng.integers(1, 300))), file.read_bytes()], rng)
    file.write_bytes(file.read_bytes() + more)
    return f"by {len(more)}"


def _stale(base: Base, store: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    """A shard as it was at an older commit: whole, and too old."""
    name = pick([name for name, sizes in base.lengths.items() if len(sizes) > 1], rng)
    file = store / name
    if not file.exists():
        return None
    sizes = [size for size in base.lengths[name] if size < file.stat().st_size]
    if not sizes:
        return None
    os.truncate(file, keep := pick(sizes, rng))
    return f"{file} to {keep}"


def _delete(base: Base, store: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    if rng.random() < 0.2:
        shutil.rmtree(folder := pick(_directories(store), rng))
        return str(folder)
    file = _file(store, rng)
    file.unlink()
    return str(file)


def _alike(store: pathlib.Path, rng: Rng) -> tuple[pathlib.Path, pathlib.Path]:
    """Two files, mostly of one kind: shards of one column, documents, shards of two streams."""
    one = _file(store, rng)
    others = [file for file in _files(store) if file != one and (file.name == "zarr.json") == (one.name == "zarr.json")]
    near = [file for file in others if file.parent == one.parent or file.name == one.name]
    return one, pick(near if near and rng.random() < 0.7 else others, rng)


def _swap(base: Base, store: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    if rng.random() < 0.15:
        one, other = (pick(_directories(store), rng) for _ in range(2))
        if one == other or one in other.parents or other in one.parents:
            return None
    else:
        one, other = _alike(store, rng)
    aside = store.parent / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    return f"{one} and {other}"


def _duplicate(base: Base, store: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    if rng.random() < 0.2:
        folder = pick([f for f in _directories(store) if f.parent.name in ("streams", "checkpoints")], rng)
        shutil.copytree(folder, folder.with_name(name := pick(["copy", "9", "..x", "é"], rng)))
        return f"{folder} to {name}"
    one, other = _alike(store, rng)
    if rng.random() < 0.3:
        other = one.with_name(pick(NAMES, rng))
    if one == other:
        return None
    shutil.copyfile(one, other)
    return f"{one} to {other}"


def _link(base: Base, store: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    """Links out of the store: to copies of what they replace, to other things, to themselves."""
    one = pick(_directories(store), rng) if rng.random() < 0.3 else _file(store, rng)
    target = pick(["copy", "copy", "copy", "text", "self", "missing", "device", "inside"], rng)
    place = outside / "copied"
    if target == "copy":
        shutil.move(one, place)
    elif one.is_dir():
        shutil.rmtree(one)
    else:
        one.unlink()
    others = {"text": outside / "text", "self": one, "missing": outside / "nothing", "device": "/dev/zero"}
    one.symlink_to(others.get(target, place if target == "copy" else pick(_files(store), rng)))
    return f"{one} to {target}"


def _strange(base: Base, store: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    """Something that is no file where a file should be, and the other way round."""
    kind = pick(["directory", "fifo", "file", "link beside", "fifo beside", "directory beside"], rng)
    one = pick(_directories(store), rng) if kind == "file" else _file(store, rng)
    if "beside" in kind:
        one = one.with_name(pick(["zarr.json.tmp", ".tmp-commit", "c.99.0.0.0", "c.99.0", ".tmp-shard", "x"], rng))
        if "commit" in one.name or "shard" in one.name:
            one = store / "streams" / "0" / "start" / one.name
        if not one.parent.is_dir() or one.exists():
            return None
    elif one.is_dir():
        shutil.rmtree(one)
    else:
        one.unlink()
    if "directory" in kind:
        one.mkdir()
    elif "fifo" in kind:
        os.mkfifo(one)
    elif kind == "file":
        one.write_bytes(b"{}")
    else:
        one.symlink_to(outside / "text")
    return f"{one}, a {kind}"


def places(value: Any, path: tuple[Any, ...] = (), *, at_most: int | None = None) -> list[tuple[Any, ...]]:
    """Every place in a document, of the first ``at_most`` parts of each."""
    found = [path] if path else []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in list(pairs)[:at_most]:
        found += places(part, (*path, key), at_most=at_most)
    return found


def alter(document: Any, rng: Rng, at_most: int | None = None) -> str:
    """Changes one or two places of a document, in the JSON that its strings hold too; what was done."""
    done = ""
    for _ in range(pick([1, 1, 2], rng)):
        every = places(document, at_most=at_most)
        if not every:
            break
        where = pick(every, rng)
        parent = document
        for key in where[:-1]:
            parent = parent[key]
        value = parent[where[-1]]
        inner = json.loads(value) if isinstance(value, str) and value.startswith(("{", "[")) else None
        if inner and rng.random() < 0.9:
            done = alter(inner, rng, at_most)
            parent[where[-1]] = text_of(inner, rng)
        else:
            done = _change(parent, where[-1], rng)
        done = f"{where}: {done}"
    return done


def text_of(document: Any, rng: Rng) -> str:
    """The JSON text of an altered document."""
    text = json.dumps(document)
    return text.replace('"RAW"', pick(RAW, rng)) if '"RAW"' in text else text


def _edit(store: pathlib.Path, rng: Rng, reseal: bool) -> str | None:
    documents = sorted(store.rglob("zarr.json"))
    ours = [file for file in documents if b'"diskreplay"' in file.read_bytes()]
    file = pick(ours if reseal or rng.random() < 0.8 else documents, rng)
    document = json.loads(file.read_bytes())
    done = alter(document, rng)
    if reseal:
        attributes = document.get("attributes") if isinstance(document, dict) else None
        facts = attributes.get("diskreplay") if isinstance(attributes, dict) else None
        if isinstance(facts, dict):
            node = "" if file.parent == store else f"{file.parent.parent.name}/{file.parent.name}"
            facts["checksum"] = metadata.checksum(facts, node)
    file.write_text(text_of(document, rng), encoding="utf-8", errors="surrogatepass")
    return f"{file} {done}"


def _change(parent: Any, key: Any, rng: Rng) -> str:
    choice, value = rng.random(), parent[key]
    if choice < 0.25 and type(value) is int:
        parent[key] = value + int(pick([1, -1, value, 2, 8, 1 << 16, 1 << 28], rng))
    elif choice < 0.3 and isinstance(value, list) and value:
        parent[key] = pick([value[1:], value * 2, [pick(HUGE, rng)], [*value, 1]], rng)
    elif choice < 0.38:
        del parent[key]
        return "deleted"
    elif choice < 0.44 and isinstance(parent, dict):
        parent[pick(["", "..", "x\ny", "obs", "checksum", "diskreplay", key * 2], rng)] = parent.pop(key)
        return "renamed"
    elif choice < 0.52:
        parent[key] = "RAW"
    else:
        parent[key] = pick([*HOSTILE, *HUGE], rng)
    return repr(parent[key])[:60]


def _edited(base: Base, store: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    return _edit(store, rng, reseal=False)


def _forged_document(base: Base, store: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    return _edit(store, rng, reseal=True)


def _forged_index(base: Base, store: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    """An index with the right checksum and seal whose entries lie."""
    schema = Schema.from_json(json.loads((store / "zarr.json").read_bytes())["attributes"]["diskreplay"]["schema"])
    folder = pick((store / "streams").glob("*/"), rng)
    record = Commit.from_json(json.loads((folder / "zarr.json").read_bytes())["attributes"]["diskreplay"], "")
    path, stored = pick(record.arrays.items(), rng)
    column = stored.column({**schema.arrays, **schema.logs}[path])
    file = pick(sorted(file for file in (folder / path).iterdir() if shard_number(file.name, column) is not None), rng)
    shard = shard_number(file.name, column)
    count, groups = column.shard_rows // column.chunk_rows, record.envs(path) // column.chunk_envs
    seal = stream.identity(schema, record, path)
    seal = f"{seal}/{shard}/{min(stored.rows, (shard + 1) * column.shard_rows)}"
    data = file.read_bytes()
    size = chunks.index_bytes(count * groups)
    index = np.frombuffer(data[-size:-4], "<u8").reshape(count, groups, 2).copy()
    place = rng.integers(count), rng.integers(groups), rng.integers(2)
    near = (int(index[place]) + 1) % (1 << 64)
    index[place] = pick([0, 1, len(data), 1 << 30, 1 << 62, (1 << 64) - 1, (1 << 64) - 2, near], rng)
    if rng.random() < 0.2:
        index[:] = index[rng.integers(count), rng.integers(groups)]
    forged = chunks.seal(index.astype("<u8").tobytes())
    before = chunks._seal_of(seal, forged)
    file.write_bytes(data[: -size - len(before)] + before + forged)
    if rng.random() < 0.3:
        hole = pick([1 << 30, 1 << 36], rng)
        with file.open("r+b") as handle:
            handle.truncate(hole)
            handle.seek(hole)
            handle.write(before + forged)
    return f"{file} {place}"


def _forged_chunk(base: Base, store: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    """A chunk with the right checksum whose Blosc buffer lies."""
    file = pick(sorted(store.glob("streams/*/**/c.*")), rng)
    data = bytearray(file.read_bytes())
    size = int.from_bytes(data[12:16], "little") + 4  # the first chunk of a file begins at its first byte
    if not 20 < size <= len(data):
        return None
    body = data[: size - 4]
    for _ in range(int(rng.integers(1, 6))):
        at = int(rng.integers(min(40, len(body)))) if rng.random() < 0.7 else int(rng.integers(len(body)))
        body[at] = int(rng.integers(256))
    data[:size] = chunks.seal(bytes(body))
    file.write_bytes(data)
    return f"{file}: {bytes(body[:16]).hex()}"


def _forged_tail(base: Base, store: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    """A tail whose last block lies, with the right seal, and a record that names it, or none but the one in it."""
    schema = Schema.from_json(json.loads((store / "zarr.json").read_bytes())["attributes"]["diskreplay"]["schema"])
    folder = pick((store / "streams").glob("*/"), rng)
    document = json.loads((folder / "zarr.json").read_bytes())
    ours = document["attributes"]["diskreplay"]
    record = Commit.from_json(ours, "")
    file = folder / "start" / tail.name(record.tail.number)
    data, seal = file.read_bytes(), f"{stream.identity(schema, record, 'tail')}/{record.tail.number}"
    begin = [0, *(end for end, _, _ in tail.blocks(seal, 0, data))][-2]
    said = begin + tail.HEAD.size
    values = said + sum(tail.HEAD.unpack_from(data, begin)[:2])
    listed = said + tail.HEAD.unpack_from(data, begin)[0]
    parts = [json.loads(data[said:listed]), json.loads(data[listed:values])]
    done = alter(pick(parts, rng), rng)
    texts = [text_of(part, rng).encode("utf-8", "surrogatepass") for part in parts]
    size = tail.HEAD.size + sum(map(len, texts)) + len(data) - values
    head = [len(texts[0]), len(texts[1]), size]
    if rng.random() < 0.2:
        head[rng.integers(3)] = pick([0, 1, size - 1, size + 1, (1 << 32) - 1], rng)
    forged = tail.HEAD.pack(*head) + b"".join(texts) + data[values : -chunks.CRC_BYTES]
    forged += tail._sealed(seal, begin, forged)
    file.write_bytes(data[:begin] + forged)
    ours["tail"][1] = begin + len(forged)
    ours["checksum"] = metadata.checksum(ours, f"streams/{folder.name}")
    (folder / "zarr.json").write_text(json.dumps(document))
    if rng.random() < 0.3:
        (folder / "zarr.json").unlink()
    return f"{file} {done}"


KINDS = {
    "flipped": of_a_file(flip, _file), "overwritten": of_a_file(overwrite, _file),
    "truncated": of_a_file(truncate, _file), "stale": _stale, "extended": of_a_file(extend, _file),
    "deleted": _delete, "swapped": _swap, "duplicated": _duplicate, "linked": _link, "strange": _strange,
    "edited": _edited, "forged document": _forged_document, "forged index": _forged_index,
    "forged chunk": _forged_chunk, "forged tail": _forged_tail,
}  # fmt: skip
_SHARES = [20, 6, 8, 3, 5, 6, 10, 6, 8, 5, 14, 10, 4, 4, 6]
WEIGHTS = np.array(_SHARES) / sum(_SHARES)
