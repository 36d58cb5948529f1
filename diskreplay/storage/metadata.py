"""The ``zarr.json`` documents of a store: Zarr v3 groups and arrays, written and read.

Arrays are ``(rows, num_envs, *shape)``, sharded by rows (codec ``sharding_indexed``, index at the end), chunks
compressed by Blosc and closed by ``crc32c``. Chunk keys join their parts with ``"."``, so that all shards of an
array are files of one directory: ``c.<shard>.0.0``. Our own facts stand under ``attributes["diskreplay"]``, with a
checksum, which binds them to their group, too.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii
from typing import Any

import google_crc32c

from diskreplay.errors import CorruptionError, InputError
from diskreplay.schema.columns import Codec, Column, StoredColumn
from diskreplay.storage import files as fs

NAME = "zarr.json"
KEY = "diskreplay"
CHECKSUM = "checksum"
MAX_BYTES = 16 << 20
"""The most bytes of a document."""
INDENTED_BYTES = 1 << 13
"""The size above which documents have no white space: they are not for people, and Python indents 8 kB in 2 ms."""
MAX_DEPTH = 200
"""The deepest nesting of metadata, which every reader's stack holds."""
MAX_INTEGER_BITS = 14_280
"""The most bits of an integer in metadata: Python reads no more than 4300 digits."""
CHECKPOINTS = "checkpoints"
SHUFFLED_KINDS = "iufc"


def group_document(attributes: dict[str, Any] | None = None, node: str = "") -> dict[str, Any]:
    """Return a group; ``attributes`` go under our key, with a checksum over them and the path ``node`` in the store."""
    ours = {KEY: {**attributes, CHECKSUM: checksum(attributes, node)}} if attributes else {}
    return {"zarr_format": 3, "node_type": "group", "attributes": ours}


def checksum(attributes: dict[str, Any], node: str) -> int:
    """Return the CRC-32C of the node's path below the store, a line feed, and the attributes as canonical JSON."""
    return _checksum(canonical({name: value for name, value in attributes.items() if name != CHECKSUM}), node)


def _checksum(text: str, node: str) -> int:
    return int(google_crc32c.value(f"{node}\n{text}".encode()))


canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
"""Returns the canonical JSON of a value: names in order, no white space, ASCII."""


def joined(parts: Mapping[str, str]) -> str:
    """Return the canonical JSON of an object of which the values are canonical JSON already."""
    return f"{{{','.join([f'{encode_basestring_ascii(name)}:{parts[name]}' for name in sorted(parts)])}}}"


def group_bytes(parts: Mapping[str, str], node: str, what: str) -> bytes:
    """Return the bytes of :func:`group_document` as :func:`dump`, for attributes whose values are canonical JSON."""
    text = joined(parts)
    ours = f'{text[:-1]},"{CHECKSUM}":{_checksum(text, node)}}}'
    data = _checked(f'{{"zarr_format":3,"node_type":"group","attributes":{{"{KEY}":{ours}}}}}'.encode(), what)
    return data if len(data) > INDENTED_BYTES else dump(json.loads(data), what)


def check(attributes: dict[str, Any], node: str, path: str) -> None:
    """Raise CorruptionError if the attributes do not match their checksum, or have none."""
    try:
        fits = attributes.get(CHECKSUM) == checksum(attributes, node)
    except (ValueError, RecursionError):
        fits = False
    if not fits:
        raise CorruptionError(
            f"{path!r}: the checksum of attributes[{KEY!r}] does not match; the document was changed, or moved",
            file=path,
        )


def blosc_configuration(codec: Codec, column: Column) -> dict[str, Any]:
    """Return the configuration of Zarr's ``blosc`` codec, which shuffles bytes if an element has several."""
    several = column.dtype.kind in SHUFFLED_KINDS and column.dtype.itemsize > 1
    return {
        "cname": codec.name,
        "clevel": codec.level,
        "shuffle": "shuffle" if several else "noshuffle",
        "typesize": column.dtype.itemsize,
        "blocksize": 0,
    }


def array_document(column: StoredColumn, num_envs: int, rows: int) -> dict[str, Any]:
    """Return the array of a column with ``rows`` rows, a whole number of shards."""
    endian = {"configuration": {"endian": "little"}} if column.dtype.itemsize > 1 else {}
    chunk_codecs: list[dict[str, Any]] = [{"name": "bytes", **endian}]
    if column.codec.name != "none":
        chunk_codecs.append({"name": "blosc", "configuration": blosc_configuration(column.codec, column)})
    chunk_codecs.append({"name": "crc32c"})
    sharding = {
        "chunk_shape": [column.chunk_rows, column.chunk_envs, *column.shape],
        "codecs": chunk_codecs,
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        "index_location": "end",
    }
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [rows, num_envs, *column.shape],
        "data_type": column.dtype.name,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [column.shard_rows, num_envs, *column.shape]},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": {"b": False, "f": 0.0, "c": [0.0, 0.0]}.get(column.dtype.kind, 0),
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "dimension_names": ["row", "env", *([None] * len(column.shape))],
        "attributes": {},
    }


@functools.lru_cache(1024)
def _array_parts(column: StoredColumn, num_envs: int) -> list[bytes]:
    """Return what stands before and behind the number of rows in an array's document."""
    return dump(array_document(column, num_envs, -1)).split(b"-1", 1)


def write_array(files: fs.Files, directory: str, column: StoredColumn, num_envs: int, rows: int) -> None:
    """Write an array's document, as :func:`write` does; in those of one array only the rows differ."""
    before, behind = _array_parts(column, num_envs)
    fs.replace(files, os.path.join(directory, NAME), b"%b%d%b" % (before, rows, behind))


def compact(document: dict[str, Any], what: str) -> bytes:
    """Return a document's bytes, without spaces; raise InputError if they are more than is read back."""
    return _checked(json.dumps(document, separators=(",", ":"), allow_nan=False).encode(), what)


def _checked(data: bytes, what: str) -> bytes:
    if len(data) > MAX_BYTES:
        raise InputError(f"{what} would take {len(data):,} bytes; at most {MAX_BYTES:,} are read back")
    return data


def dump(document: dict[str, Any], what: str = "the document") -> bytes:
    """Return a document's bytes, indented if it is small, with errors as :func:`compact`."""
    data = compact(document, what)
    if len(data) > INDENTED_BYTES:
        return data
    indented = json.dumps(document, indent=1, allow_nan=False).encode()
    return indented if len(indented) <= MAX_BYTES else data


def plain(what: str, given: Any) -> dict[str, Any]:
    """Return a mapping as it will be read back; raise InputError if it is not JSON, or too large for a document."""
    try:
        text = json.dumps(dict(given), separators=(",", ":"), allow_nan=False)
        if len(text) > MAX_BYTES:
            raise InputError(
                f"{what} would take {len(text):,} bytes as JSON, and a document at most {MAX_BYTES:,}: keep it in a "
                "file of your own, and the file's name here"
            )
        found: dict[str, Any] = json.loads(text)
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} must be JSON (call .item() on numpy scalars): {error}") from error
    except RecursionError as error:
        raise _nested(what) from error
    level: list[Any] = [found]
    for _ in range(MAX_DEPTH):
        parts = [part for group in level for part in (group.values() if isinstance(group, dict) else group)]
        if any(type(part) is int and part.bit_length() > MAX_INTEGER_BITS for part in parts):
            raise InputError(f"{what}: an integer may have {MAX_INTEGER_BITS} bits; give larger ones as text")
        level = [part for part in parts if isinstance(part, dict | list)]
        if not level:
            return found
    raise _nested(what)


def _nested(what: str) -> InputError:
    return InputError(f"{what} must not be nested more than {MAX_DEPTH} deep; give it as text")


def write(files: fs.Files, directory: str, document: dict[str, Any]) -> None:
    """Write the document of the node at ``directory``, atomically and durably."""
    fs.replace(files, os.path.join(directory, NAME), dump(document))


def make(files: fs.Files, directory: str, document: dict[str, Any]) -> None:
    """Make the directory of a node and its document, whose names are the caller's to sync."""
    files.mkdir(directory)
    fs.write(files, os.path.join(directory, NAME), dump(document))


def read(files: fs.Files, directory: str) -> dict[str, Any]:
    """Return the document of the node at ``directory``.

    Raises FileNotFoundError or NotADirectoryError when there is none, ReadFailedError when it cannot be read,
    CorruptionError when it is no JSON object.
    """
    return parsed(read_bytes(files, directory), os.path.join(directory, NAME))


def read_bytes(files: fs.Files, directory: str, name: str = NAME) -> bytes:
    """Return the bytes of the document of the node at ``directory``, or of another one there, with errors as read."""
    path = os.path.join(directory, name)
    with fs.translate_reads(path):
        size = files.size(path)
        if size is not None and size > MAX_BYTES:
            raise CorruptionError(f"{path!r} has {size} bytes; a {name} has at most {MAX_BYTES}", file=path)
        return files.read(path)


def parsed(data: bytes, path: str) -> dict[str, Any]:
    """Return the document in these bytes; raise CorruptionError if they are not a JSON object."""
    try:
        document = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"{path!r} is not valid JSON: {error}", file=path) from error
    if not isinstance(document, dict):
        raise CorruptionError(f"{path!r} must hold a JSON object, got {type(document).__name__}", file=path)
    return document


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def nodes(files: fs.Files, directory: str) -> list[str]:
    """Return the names in a group's directory, but for its document and :data:`~.files.HIDDEN` ones."""
    with fs.translate_reads(directory):
        names = files.list(directory)
    return [name for name in names if name != NAME and not name.startswith(fs.HIDDEN)]


def other_nodes(files: fs.Files, directory: str, names: list[str]) -> bool:
    """Tell whether other names are there by now: what replaces a group that was dropped was not listed, maybe."""
    files.refresh()
    return nodes(files, directory) != names


def check_no_link(files: fs.Files, *directories: str) -> None:
    """Raise CorruptionError if a directory of the store is a link, which could lead out of it."""
    for directory in directories:
        with fs.translate_reads(directory):
            kind = files.kind(directory)
        if kind == "link":
            raise CorruptionError(f"{directory!r} is a link; a store has none", file=directory)


def read_attributes(files: fs.Files, directory: str) -> dict[str, Any]:
    """Return our attributes of a stream's or checkpoint's group; raise CorruptionError for none or damaged ones."""
    check_no_link(files, os.path.dirname(directory), directory)
    return attributes(directory, read_bytes(files, directory))


def attributes(directory: str, data: bytes) -> dict[str, Any]:
    """Return attributes as :func:`read_attributes`, from a document whose bytes were read."""
    parent, name = os.path.split(directory)
    path = os.path.join(directory, NAME)
    document = parsed(data, path)
    found = document.get("attributes")
    ours = found.get(KEY) if isinstance(found, dict) else None
    if document.get("zarr_format") != 3 or document.get("node_type") != "group" or not isinstance(ours, dict):
        raise CorruptionError(f"{path!r} is no Zarr v3 group with attributes[{KEY!r}]", file=path)
    check(ours, f"{os.path.basename(parent)}/{name}", path)
    return ours
