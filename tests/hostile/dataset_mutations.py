"""What disks, downloads and hostile people do to a dataset's files: one random mutation of one kind."""

from __future__ import annotations

import gzip
import io
import json
import os
import pathlib
import pickle
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hostile.mutations import HOSTILE, HUGE, Rng, alter, extend, flip, of_a_file, overwrite, pick, text_of, truncate
from tfrecord.example_pb2 import Example
from tfrecord.writer import TFRecordWriter

from diskreplay.formats.files.tfrecord import examples

Json = Any
Mutation = Callable[[pathlib.Path, pathlib.Path, Rng], str | None]
"""Changes a dataset or a file of it; what was done, or None where that does not fit. It may use a folder outside."""
CODECS = [
    None, {"id": "pickle"}, {"id": "zlib"}, {"id": "no such codec"}, {"id": 3}, {}, [], "blosc",
    {"id": "blosc", "cname": "x", "clevel": 99, "shuffle": 9, "blocksize": -1}, {"id": "vlen-utf8"}, {"id": "json2"},
    {"id": "delta", "dtype": "O"}, {"id": "astype", "encode_dtype": "O", "decode_dtype": "<f4"}, {"id": "lzma"},
]  # fmt: skip


class Payload:
    """Makes a directory when its pickle is loaded."""

    def __init__(self, outside: pathlib.Path) -> None:
        self.place = str(outside / "loaded")

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.place,)


def mutate(dataset: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str:
    """Mutates the dataset, a file or a directory; what was done. ``outside`` is a folder that is not of it."""
    for _ in range(50):
        kind = pick([*PLAIN] * 2 + [kind for kind in STRUCTURED if _targets(dataset, kind)] * 8, rng)
        try:
            if kind in STRUCTURED:
                file = pick(_targets(dataset, kind), rng)
                done = STRUCTURED[kind][1](file, outside, rng)
                done = None if done is None else f"{file.name}: {done}"
            else:
                done = PLAIN[kind](dataset, outside, rng)
        except (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
            done = f"failed half-way: {type(error).__name__}"  # the library would not write that
        if done is not None:
            return f"{kind}: {done}"
    raise AssertionError("no mutation fits")


def _files(dataset: pathlib.Path) -> list[pathlib.Path]:
    return [dataset] if dataset.is_file() else sorted(file for file in dataset.rglob("*") if file.is_file())


def _targets(dataset: pathlib.Path, kind: str) -> list[pathlib.Path]:
    return [file for file in _files(dataset) if STRUCTURED[kind][0](file)]


# Any files


def _file(dataset: pathlib.Path, rng: Rng) -> pathlib.Path:
    return pick(_files(dataset), rng)


def _delete(dataset: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    if dataset.is_file():
        return None
    folders = [folder for folder in dataset.rglob("*") if folder.is_dir()]
    if folders and rng.random() < 0.2:
        shutil.rmtree(folder := pick(sorted(folders), rng))
        return folder.name
    file = _file(dataset, rng)
    file.unlink()
    return file.name


def _swap(dataset: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    files = _files(dataset)
    one, other = pick(files, rng), pick(files, rng)
    if one == other:
        return None
    if rng.random() < 0.3:
        shutil.copyfile(one, other)
        return f"{one.name} copied to {other.name}"
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    return f"{one.name} and {other.name}"


def _strange(dataset: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    """Something else in a file's place: what is no file, links that lead somewhere or nowhere."""
    kind = pick(["directory", "fifo", "empty", "text", "copy", "self", "missing", "device", "full directory"], rng)
    file = _file(dataset, rng)
    if kind == "copy":
        shutil.copyfile(file, outside / "copied")
    file.unlink()
    if kind.endswith("directory"):
        file.mkdir()
        if kind.startswith("full"):
            (file / "text").write_text("text")
    elif kind == "fifo":
        os.mkfifo(file)
    elif kind == "empty":
        file.write_bytes(b"")
    else:
        ways = {
            "text": outside / "text",
            "copy": outside / "copied",
            "self": file,
            "device": pathlib.Path("/dev/zero"),
        }
        file.symlink_to(ways.get(kind, outside / "nothing"))
    return f"{file.name}, {kind}"


# JSON


def edit(document: Json, rng: Rng) -> str:
    """JSON text of the document with one or two changes."""
    return text_of(document if alter(document, rng, at_most=40) else pick(HOSTILE, rng), rng)


def _json(file: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    text = edit(json.loads(file.read_text()), rng)
    file.write_text(text, errors="surrogatepass")
    return text[:60]


def _is_json(file: pathlib.Path) -> bool:
    return file.suffix == ".json" or file.name in (".zarray", ".zgroup", ".zattrs", ".zmetadata")


def _zarray(file: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    document = json.loads(file.read_text())
    key, value = pick(
        [
            ("shape", [pick(HUGE, rng), *document["shape"][1:]]), ("shape", document["shape"][:-1]),
            ("shape", [*document["shape"], pick(HUGE, rng)]), ("chunks", [pick([*HUGE, 0, -1], rng)]),
            ("chunks", [pick([*HUGE, 1], rng), *document["chunks"][1:]]), ("shape", []), ("chunks", []),
            ("compressor", pick(CODECS, rng)), ("filters", [pick(CODECS, rng)]), ("order", pick("FXC", rng)),
            ("dtype", pick(["|O", "<f4", ">f8", "<U4", "|S3", "<M8[s]", "<c8", "|V4", "<f2", [["a", "<i4"]]], rng)),
            ("fill_value", pick([None, "x", 10**30, [], "NaN", "Infinity"], rng)), ("zarr_format", pick([1, 3], rng)),
            ("dimension_separator", "/"),
        ],
        rng,
    )  # fmt: skip
    if "pickle" in str(value) and (file.parent / "0").exists():
        (file.parent / "0").write_bytes(pickle.dumps(Payload(outside)))
    document[key] = value
    file.write_text(json.dumps(document))
    return f"{file.parent.name} {key} {str(value)[:40]}"


# Arrays in general


def _changed(values: np.ndarray, outside: pathlib.Path, rng: Rng) -> np.ndarray:
    """Another array in place of one."""
    size = min(len(values), 40) if values.ndim else 1
    choices: list[Callable[[], np.ndarray]] = [
        lambda: values[:-1], lambda: values[1:], lambda: values[:0], lambda: np.repeat(values, 2, 0),
        lambda: values[:, None], lambda: values.reshape(len(values), -1), lambda: values[..., :-1], lambda: values[0],
        lambda: values.astype("S8"), lambda: values.astype("U8"), lambda: values.astype(complex),
        lambda: values.astype(">f8"), lambda: values.astype(np.float16), lambda: values.astype(np.longdouble),
        lambda: values.astype(bool), lambda: values.astype("i1"), lambda: values.astype("u8"), lambda: values * 0,
        lambda: np.full(values.shape, np.nan), lambda: np.where(values == values[0], np.nan, values),
        lambda: np.full(values.shape, np.inf), lambda: np.full(values.shape, -(1 << 63)),
        lambda: np.full(values.shape, (1 << 64) - 1, np.uint64), lambda: np.zeros(size, [("a", "i4"), ("b", "f8")]),
        lambda: np.zeros(values.shape, "M8[s]"), lambda: np.array(0), lambda: np.array("text"),
        lambda: np.array([Payload(outside)] * size, object), lambda: np.zeros((size, 0)), lambda: values[::-1],
        lambda: np.asfortranarray(values), lambda: np.full(values.shape, 2), lambda: np.full(values.shape, -1),
        lambda: np.full(values.shape, 3e38, np.float64) * 1e200, lambda: values.T,
    ]  # fmt: skip
    with np.errstate(all="ignore"):
        return pick(choices, rng)()


# HDF5


def _is_hdf5(file: pathlib.Path) -> bool:
    return file.suffix == ".hdf5" or (file.suffix == ".data" and h5py.is_hdf5(file))


def _hdf5(path: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    with h5py.File(path, "r+") as file:
        nodes: list[str] = []
        file.visit(nodes.append)
        key = pick(nodes, rng)
        node, parent = file[key], file[key].parent
        name = key.rpartition("/")[2]
        change = pick([*HDF5_CHANGES, *HDF5_CHANGES, _hdf5_values, _hdf5_values, _hdf5_values, _hdf5_text], rng)
        done = change(file, parent, name, node, outside, rng)
        return None if done is None else f"{key} {done}"


def _hdf5_remove(file: Any, parent: Any, name: str, node: Any, outside: pathlib.Path, rng: Rng) -> str:
    del parent[name]
    return "deleted"


def _hdf5_rename(file: Any, parent: Any, name: str, node: Any, outside: pathlib.Path, rng: Rng) -> str:
    new = pick(
        ["x", "x\ny", "é" * 300, "infos/" + name, "..", ".", "reward", "demo_9", "episode_9", name + "_0", "obs"], rng
    )
    parent.move(name, new)
    return f"renamed {new[:9]!r}"


def _hdf5_values(file: Any, parent: Any, name: str, node: Any, outside: pathlib.Path, rng: Rng) -> str | None:
    if not isinstance(node, h5py.Dataset):
        return None
    values = node[()]
    values = _changed(np.asarray(values), outside, rng) if isinstance(values, np.generic | np.ndarray) else np.zeros(3)
    options = pick([{}, {}, {"compression": "gzip", "chunks": True}, {"compression": "lzf"}, {"fletcher32": True},
                     {"chunks": True, "scaleoffset": 2}], rng)  # fmt: skip
    del parent[name]
    if values.dtype.kind in "OUM":
        values = np.array(["text"] * len(np.atleast_1d(values)), h5py.string_dtype())
    parent.create_dataset(name, data=values, **options)
    return f"values {values.dtype} {values.shape} {options}"


def _hdf5_text(file: Any, parent: Any, name: str, node: Any, outside: pathlib.Path, rng: Rng) -> str | None:
    if not isinstance(node, h5py.Dataset) or node.shape != () or not h5py.check_string_dtype(node.dtype):
        return None
    text = node[()].decode()
    text = edit(json.loads(text), rng) if text[:1] == "{" else pick(["", "9.9", "x\ny", "\udcff", "x" * 100_000], rng)
    del parent[name]
    parent[name] = text.encode(errors="surrogatepass")
    return f"text {text[:40]!r}"


def _hdf5_huge(file: Any, parent: Any, name: str, node: Any, outside: pathlib.Path, rng: Rng) -> str | None:
    if not isinstance(node, h5py.Dataset):
        return None
    shape = (pick(HUGE, rng), *node.shape[1:]) if rng.random() < 0.7 else (*node.shape[:1], pick(HUGE, rng))
    dtype = node.dtype if node.dtype.kind in "biuf" else np.dtype("f4")
    del parent[name]
    options = pick([{}, {"chunks": tuple(min(n, 64) for n in shape), "compression": "gzip"},
                     {"chunks": tuple(min(n, 1 << 16) for n in shape)}, {"chunks": (1 << 28, *shape[1:])},
                     {"chunks": tuple(min(n, 64) for n in shape), "fillvalue": 1}], rng)  # fmt: skip
    parent.create_dataset(name, shape, dtype, **options)
    return f"huge {shape}"


def _hdf5_long(file: Any, parent: Any, name: str, node: Any, outside: pathlib.Path, rng: Rng) -> str | None:
    """All arrays of a file as long, so that nothing is ragged."""
    count = pick(HUGE, rng)
    arrays: dict[str, Any] = {}
    file.visititems(lambda key, found: arrays.update({key: found}) if isinstance(found, h5py.Dataset) else None)
    for key, found in arrays.items():
        if found.shape and found.dtype.kind in "biuf":
            dtype, rest, chunks = found.dtype, found.shape[1:], (pick([64, 4096], rng), *found.shape[1:])
            del file[key]
            file.create_dataset(key, (count, *rest), dtype, chunks=chunks, compression="gzip")
    return f"all {count} long"


def _hdf5_link(file: Any, parent: Any, name: str, node: Any, outside: pathlib.Path, rng: Rng) -> str:
    shutil.copyfile(file.filename, outside / "copy.hdf5")
    path = node.name
    where = pick([outside / "copy.hdf5", "/etc/passwd", outside / "nothing", outside / "fifo", file.filename], rng)
    link = pick(
        [h5py.ExternalLink(str(where), path), h5py.ExternalLink(str(where), "/"), h5py.SoftLink("/nothing"),
         h5py.SoftLink(path), h5py.SoftLink("/"), file, node.parent], rng,
    )  # fmt: skip
    del parent[name]
    parent[name] = link
    return f"link {link} {where}"


def _hdf5_external(file: Any, parent: Any, name: str, node: Any, outside: pathlib.Path, rng: Rng) -> str | None:
    """Values that lie in other files."""
    if not isinstance(node, h5py.Dataset) or not node.shape:
        return None
    shape, dtype, path = node.shape, node.dtype, node.name
    shutil.copyfile(file.filename, outside / "copy.hdf5")
    del parent[name]
    if rng.random() < 0.5:
        where = pick([outside / "copy.hdf5", "/etc/passwd", outside / "nothing", outside / "fifo"], rng)
        parent.create_dataset(name, shape, dtype, external=[(str(where), 0, h5py.h5f.UNLIMITED)])
        return f"external {where}"
    layout = h5py.VirtualLayout(shape, dtype)
    where = pick([str(outside / "copy.hdf5"), ".", str(outside / "nothing"), str(outside / "fifo")], rng)
    layout[:] = h5py.VirtualSource(where, path, shape)
    parent.create_virtual_dataset(name, layout)
    return f"virtual {where}"


def _hdf5_kind(file: Any, parent: Any, name: str, node: Any, outside: pathlib.Path, rng: Rng) -> str:
    del parent[name]
    made = pick(
        [lambda: parent.create_group(name), lambda: parent.create_dataset(name, data=h5py.Empty("f4")),
         lambda: parent.create_dataset(name, (9,), h5py.vlen_dtype("u1")),
         lambda: parent.create_dataset(name, data=[0] * 9, dtype=h5py.enum_dtype({"a": 0})),
         lambda: parent.create_dataset(name, data=[file.ref] * 9, dtype=h5py.ref_dtype),
         lambda: parent.create_dataset(name, (9,), h5py.opaque_dtype(np.dtype("M8[s]"))),
         lambda: parent.__setitem__(name, np.dtype("f4")), lambda: parent.create_dataset(name, data=5.5),
         lambda: parent.create_dataset(name, (9, 2), np.dtype(("f4", (3,))))], rng,
    )  # fmt: skip
    made()
    return "another kind"


def _hdf5_attribute(file: Any, parent: Any, name: str, node: Any, outside: pathlib.Path, rng: Rng) -> str | None:
    owners = [owner for owner in (node, parent, file) if owner.attrs]
    if not owners:
        return None
    owner = pick(owners, rng)
    key = pick(owner.attrs, rng)
    value = pick(
        ["text", -1, 1 << 62, 0.5, np.nan, np.arange(3), h5py.Empty("f4"), b"\xff", [1 << 40], np.zeros((0,)), True],
        rng,
    )
    del owner.attrs[key]
    if rng.random() < 0.8:
        owner.attrs[key] = value
    return f"attribute {key} {str(value)[:20]}"


HDF5_CHANGES = [
    _hdf5_remove, _hdf5_rename, _hdf5_huge, _hdf5_long, _hdf5_link, _hdf5_external, _hdf5_kind, _hdf5_attribute,
]  # fmt: skip


# NumPy arrays in archives and gzip files


def npy(values: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asanyarray(values), allow_pickle=True)
    return out.getvalue()


def npy_header(text: str, version: tuple[int, int] = (1, 0), data: bytes = b"") -> bytes:
    """An array's bytes with any header."""
    body = text.encode("latin1", "replace") + b"\n"
    size = struct.pack("<H" if version[0] == 1 else "<I", len(body))
    return b"\x93NUMPY" + bytes(version) + size + body + data


def _npy(data: bytes, outside: pathlib.Path, rng: Rng) -> bytes:
    """Other bytes in place of an array's."""
    choice = rng.random()
    if choice < 0.45:
        return npy(_changed(np.lib.format.read_array(io.BytesIO(data)), outside, rng))
    if choice < 0.55:
        return data[: int(rng.integers(len(data)))]
    if choice < 0.62:
        return pickle.dumps(Payload(outside))
    if choice < 0.72:
        flipped = bytearray(data)
        for at in rng.integers(0, min(140, len(data)), pick([1, 2, 4], rng)):
            flipped[at] ^= 1 << rng.integers(8)
        return bytes(flipped)
    values = np.lib.format.read_array(io.BytesIO(data))
    shape = tuple(values.shape)
    shapes = [(pick(HUGE, rng), *shape[1:]), (*shape[:1], pick(HUGE, rng)), (-1, *shape[1:]), (True, 2), shape * 20,
              (0, 1 << 40), (len(data), 0), (1 << 32, 1 << 32), (), (10**400,)]  # fmt: skip
    descr = pick([values.dtype.str, values.dtype.str, values.dtype.str, "|O", "|S0", "<U0", "|V0", ("<f4", (3,)),
                   [("a", "<f4"), ("b", "|O")], "x", 3, None, "<M8[ns]", "<f16"], rng)  # fmt: skip
    facts: Any = {"descr": descr, "fortran_order": pick([False, False, True, 0], rng), "shape": pick(shapes, rng)}
    text = pick(
        [str(facts), str(facts), str(facts), str(facts), "{'shape': (3L,), 'descr': '<f4', 'fortran_order': False}",
         "(" * 3000, "{" * 90, "[" * 90 + "]" * 90, "{'descr': '<f4'}", "'''", "{'a': 1", " " * 20_000],
        rng,
    )  # fmt: skip
    return npy_header(text, pick([(1, 0), (1, 0), (2, 0), (3, 0), (9, 9)], rng), values.tobytes())


def _gz(file: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    data = gzip.decompress(file.read_bytes())
    if file.name.startswith("episode_end"):
        numbers = pick(
            [{-1}, {1 << 70}, {10**400}, {0.5}, {"x"}, [1, 2], {1: 2}, {None}, {Payload(outside)}, set(), {np.int64(3)},
             {np.int32(3)}, {(1, 2)}, 3, {1 << 40}, {10**9}], rng,
        )  # fmt: skip
        data = pickle.dumps(numbers, protocol=int(rng.integers(0, 6)))
        if rng.random() < 0.3:
            data = pick([b"", b"\x80", b"\x80\x04.", b"(" * 99999 + b".", data[:-1],
                          b"\x80\x04\x8f\x8b\xff\xff\xff\x7f", b"L" + b"9" * 5000 + b"L\n.",
                          b"cos\nsystem\n(S'true'\ntR."], rng)  # fmt: skip
    else:
        data = _npy(data, outside, rng)
    packed = gzip.compress(data, 1)
    packed = pick([packed, packed, packed, packed, packed[:-4], packed + packed, packed + b"rest", data,
                    gzip.compress(data + bytes(1 << 24), 9)], rng)  # fmt: skip
    file.write_bytes(packed)
    return f"{len(data)} bytes"


def _zip(file: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = pick(members, rng)
    choice = rng.random()
    done = "member"
    if choice < 0.1:
        del members[name]
        done = "deleted"
    elif choice < 0.18:
        new = pick(
            ["x.npy", "../../outside/x.npy", "/etc/x.npy", "a\nb.npy", "obs/a.npy", "extra/obs.npy", ".npy"], rng
        )
        members[new] = members.pop(name)
        done = f"renamed {new!r}"
    elif name == "layout.npy" and choice < 0.8:
        text = edit(json.loads(str(np.lib.format.read_array(io.BytesIO(members[name])))), rng)
        members[name] = npy(np.array(text.encode("utf-8", "replace").decode().replace("\0", "")))
        done = f"layout {text[:40]}"
    elif choice < 0.8:
        members[name] = _npy(members[name], outside, rng)
    method = pick([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], rng)
    with zipfile.ZipFile(file, "w", method) as archive:
        for key, data in members.items():
            archive.writestr(key, data)
    if choice > 0.8:
        data = bytearray(file.read_bytes())
        which = data.index(b"PK\x01\x02")
        for _ in range(int(rng.integers(len(members)))):
            which = data.index(b"PK\x01\x02", which + 4)
        at, size = pick([(8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (42, 4), (6, 2)], rng)
        value = pick([0, 1, 0x0801, 99, 14, (1 << 8 * size) - 1, (1 << 8 * size) - 2, int(rng.integers(1 << 16))], rng)
        data[which + at : which + at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
        file.write_bytes(data)
        done = f"directory {at}: {value}"
    return f"{name} {done}"


# Arrow


def _is_arrow(file: pathlib.Path) -> bool:
    return file.suffix == ".arrow"


def _is_parquet(file: pathlib.Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(4) == b"PAR1"


def _column(table: Any, at: int, rng: Rng) -> Any:
    """Other values for a column."""
    column = table.column(at).combine_chunks()
    count = len(column)
    kind = column.type
    choices: list[Callable[[], Any]] = [
        lambda: pa.nulls(count, kind), lambda: pa.nulls(count), lambda: pa.array(["text"] * count),
        lambda: pa.array([b"bytes"] * count), lambda: pa.array([None, *column[1:].to_pylist()], kind),
        lambda: pa.array([[1.0] * (i % 3) for i in range(count)]), lambda: pa.array([float("nan")] * count),
        lambda: pa.array([[[1, 2], [3]]] * count), lambda: pa.array([[]] * count, pa.list_(pa.float32())),
        lambda: pa.array([{"bytes": b"\x89PNG", "path": "x"}] * count), lambda: pa.array(range(count)),
        lambda: pa.array([{"bytes": None, "path": "/etc/passwd"}] * count), lambda: pa.array([2] * count, pa.int8()),
        lambda: pa.array(range(count), pa.timestamp("s")), lambda: pa.array([1 << 63] * count, pa.uint64()),
        lambda: pa.array([True] * count), lambda: pa.array(["a"] * count).dictionary_encode(),
        lambda: column.dictionary_encode(), lambda: pa.array([0.5] * count, pa.float16()),
        lambda: column.take([0] * count),
        lambda: pa.array([{"a": {"b": 1}}] * count), lambda: pa.array([[]] * count, pa.list_(pa.float32(), 0)),
        lambda: pa.array([float("inf")] * count, pa.float32()), lambda: pa.array([-(1 << 63)] * count),
    ]  # fmt: skip
    if pa.types.is_struct(kind) or pa.types.is_binary(kind):
        choices += [lambda: _pictures(column, rng)] * 12
    return pick(choices, rng)()


def _pictures(column: Any, rng: Rng) -> Any:
    """Images that are damaged, of another kind, size or mode."""
    import PIL.Image

    values = column.to_pylist()
    at = int(rng.integers(len(values)))
    image = values[at]["bytes"] if isinstance(values[at], dict) else values[at]
    data = bytearray(image or b"\x89PNG\r\n\x1a\n")
    choice = rng.random()
    if choice < 0.4:
        for byte in rng.integers(0, min(len(data), pick([40, 1000], rng)), 2):
            data[byte] ^= 1 << rng.integers(8)
    elif choice < 0.5:
        data = data[: int(rng.integers(len(data)))]
    elif choice < 0.7:
        data[16:24] = struct.pack(">II", *(int(pick([0, 1, 9000, 20_000, 1 << 31, 70_000], rng)) for _ in range(2)))
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    else:
        made = io.BytesIO()
        mode, kind = pick([("P", "PNG"), ("I;16", "PNG"), ("1", "PNG"), ("LA", "PNG"), ("L", "JPEG"), ("CMYK", "JPEG"),
                            ("RGB", "GIF"), ("RGB", "TIFF"), ("RGB", "EPS"), ("RGBA", "PNG"),
                            ("RGB", "PPM")], rng)  # fmt: skip
        picture = PIL.Image.new(mode, (16, 16))
        picture.save(made, kind, **({"transparency": b"\x01\x02"} if mode == "P" else {}))
        data = bytearray(made.getvalue())
    for place in range(len(values)) if choice > 0.9 else [at]:
        values[place] = {**values[place], "bytes": bytes(data)} if isinstance(values[place], dict) else bytes(data)
    return pa.array(values, column.type)


def _table(table: Any, outside: pathlib.Path, rng: Rng) -> tuple[Any, str]:
    """A table with a change in it."""
    at = int(rng.integers(table.num_columns))
    name, choice = table.column_names[at], rng.random()
    metadata = dict(table.schema.metadata or {})
    if b"diskreplay" in metadata and choice < 0.25:
        metadata[b"diskreplay"] = edit(json.loads(metadata[b"diskreplay"]), rng).encode("utf-8", "replace")
        return table.replace_schema_metadata(metadata), "description"
    if choice < 0.35:
        return table.drop_columns([name]), f"without {name}"
    if choice < 0.42:
        new = pick(["x\ny", "", "observation.a", "obs", "é", "next.reward", "action"], rng)
        return table.rename_columns([new if one == name else one for one in table.column_names]), f"{name} as {new!r}"
    if choice < 0.47:
        return table.slice(0, pick([0, 1, table.num_rows - 1], rng)), "fewer rows"
    if choice < 0.5:
        return table.append_column(name, table.column(at)), f"{name} twice"
    values = _column(table, at, rng)
    return table.set_column(at, pa.field(name, values.type), values), f"{name} {str(values.type)[:30]}"


def _parquet(file: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    table, done = _table(pq.read_table(file), outside, rng)
    pq.write_table(table, file, compression=pick(["none", "zstd", "gzip", "snappy", "lz4", "brotli"], rng))
    return done


def _arrow(file: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    with pa.ipc.open_file(str(file)) as opened:
        table = opened.read_all()
    table, done = _table(table, outside, rng)
    with pa.ipc.new_file(str(file), table.schema) as out:
        for _ in range(pick([1, 1, 2, 0], rng)):
            out.write_table(table)
    return done


def _records(file: pathlib.Path, outside: pathlib.Path, rng: Rng) -> str | None:
    """TFRecord with right checksums, around examples that are damaged or hold something else."""
    each = [file.read_bytes()[one.start : one.start + one.length] for one in examples(file)]
    at, choice = int(rng.integers(len(each))), rng.random()
    done = "records"
    if choice < 0.15:
        each = pick([each[1:], each * 2, each[::-1], [*each, b""]], rng)
    elif choice < 0.4:
        data = bytearray(each[at])
        for place in rng.integers(0, min(len(data), pick([64, 4096, len(data)], rng)), pick([1, 1, 4], rng)):
            data[place] ^= 1 << rng.integers(8)
        each[at], done = bytes(data), "a flipped bit"
    else:
        example = Example.FromString(each[at])
        feature = example.features.feature
        key = pick(sorted(feature), rng)
        kind = feature[key].WhichOneof("kind") or "bytes_list"
        held, done = list(getattr(feature[key], kind).value), key
        odd = {
            "bytes_list": [b"", b"x", b"\xff" * 9],
            "float_list": [np.nan, 1e30, -1.0],
            "int64_list": [-1, 2, 1 << 62],
        }
        change = rng.random()
        if change < 0.15:
            del feature[key]
        elif change < 0.35:
            other = pick(sorted(odd), rng)
            getattr(feature[key], other).value.extend(pick(odd[other], rng) for _ in held)
        elif held:
            held = pick(
                [held[1:], held * 2, [*held[:-1], pick(odd[kind], rng)], [pick(odd[kind], rng)] * len(held)], rng
            )
            getattr(feature[key], kind).ClearField("value")
            getattr(feature[key], kind).value.extend(held)
        each[at] = example.SerializeToString()
    head = pick([None] * 9 + HUGE, rng)
    file.write_bytes(b"".join(_framed(data, head) for data in each))
    return f"{done} {head or ''}"


def _framed(data: bytes, length: int | None) -> bytes:
    head = struct.pack("<Q", len(data) if length is None else length)
    return head + TFRecordWriter.masked_crc(head) + data + TFRecordWriter.masked_crc(data)


PLAIN: dict[str, Mutation] = {
    "flipped": of_a_file(flip, _file), "flipped more": of_a_file(flip, _file),
    "overwritten": of_a_file(overwrite, _file), "truncated": of_a_file(truncate, _file),
    "extended": of_a_file(extend, _file), "deleted": _delete, "swapped": _swap, "strange": _strange,
}  # fmt: skip
STRUCTURED: dict[str, tuple[Callable[[pathlib.Path], bool], Mutation]] = {
    "json": (_is_json, _json), "hdf5": (_is_hdf5, _hdf5), "npz": (zipfile.is_zipfile, _zip),
    "gzip": (lambda file: file.suffix == ".gz", _gz), "arrow": (_is_arrow, _arrow), "parquet": (_is_parquet, _parquet),
    "zarray": (lambda file: file.name == ".zarray", _zarray),
    "tfrecord": (lambda file: ".tfrecord-" in file.name, _records),
}  # fmt: skip
