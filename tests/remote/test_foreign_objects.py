"""What damaged, hostile or shared buckets hold: never wrong rows, never a file outside the mirror."""

from __future__ import annotations

import json
import pathlib
import warnings
from typing import Any

import numpy as np
import pytest
from helpers import effort
from helpers.patience import PATIENCE
from helpers.testing import SimulatedObjects
from remote.world import Life, Rows, lived, pushed, read, under

import diskreplay as dr
from diskreplay.errors import DamageWarning, DiskReplayError, RemoteError
from diskreplay.remote.objects import Object
from diskreplay.storage import metadata

HOSTILE: list[Any] = [
    None, True, 0, -1, 1 << 40, 1 << 63, 10**400, 0.5, "", "..", "../../outside", "a\0b", "x" * 5000, [], {}, [[]],
    [-1, -1], [1 << 62, 1 << 62], {"..": 1}, list(range(3000)),
]  # fmt: skip
RAW = [b"", b"null", b"[]", b"NaN", b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b'{"attributes": 3}', b"9" * 5000]


@pytest.fixture
def served(tmp_path: pathlib.Path) -> tuple[Life, SimulatedObjects]:
    life, objects = pushed(tmp_path / "a", 50, "c")
    life.buffer.close()
    return life, objects


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, part in inside for found in [(*path, key), *_places(part, (*path, key))]]


def _mutate(objects: SimulatedObjects, rng: np.random.Generator) -> str:
    key = str(rng.choice(sorted(objects.data)))
    data = objects.data[key]
    kind = str(rng.choice(["flip", "cut", "longer", "raw", "gone", "swap", "edit", "edit", "edit"]))
    if kind == "flip" and data:
        changed = bytearray(data)
        changed[rng.integers(len(data))] ^= 1 << rng.integers(8)
        objects.data[key] = bytes(changed)
    elif kind == "cut":
        objects.data[key] = data[: rng.integers(len(data) + 1)]
    elif kind == "longer":
        objects.data[key] = data + bytes(int(rng.integers(1, 2000)))
    elif kind == "raw":
        objects.data[key] = RAW[rng.integers(len(RAW))]
    elif kind == "gone":
        del objects.data[key]
    elif kind == "swap":
        other = str(rng.choice(sorted(objects.data)))
        objects.data[key], objects.data[other] = objects.data[other], data
    elif key.endswith("zarr.json") and (document := _document(data)) is not None:
        places = _places(document)
        *way, last = places[rng.integers(len(places))]
        parent = document
        for step in way:
            parent = parent[step]
        parent[last] = HOSTILE[rng.integers(len(HOSTILE))]
        objects.data[key] = json.dumps(document).encode()
    return f"{kind} {key}"


def _document(data: bytes) -> Any:
    """None where a mutation before this one has made it no JSON."""
    try:
        return json.loads(data)
    except ValueError:
        return None


def _read(objects: SimulatedObjects, mirror: pathlib.Path, **options: Any) -> Rows | DiskReplayError | None:
    try:
        return read(objects, mirror, **options)
    except DiskReplayError as error:
        return error


def _shown(objects: SimulatedObjects, mirror: pathlib.Path, **options: Any) -> tuple[Any, set[Any]]:
    """What :func:`_read` gives, and its rows where a warning says that a tail is lost, else what is no row."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", DamageWarning)
        seen = _read(objects, mirror, **options)
    lost = isinstance(seen, list) and any("the tail of the stream" in str(one.message) for one in told)
    return seen, set(seen) if lost else {None}


@pytest.mark.long
def test_mutated_objects_give_the_rows_or_an_error(
    served: tuple[Life, SimulatedObjects], tmp_path: pathlib.Path
) -> None:
    life, base = served
    right, tried, refused = sorted(life.window()), effort.examples(600), 0
    every = effort.stride(5, "mutated objects")
    outside = sorted(path.name for path in tmp_path.iterdir())
    for seed in range(0, tried, every):
        objects = base.copy()
        done = [_mutate(objects, np.random.default_rng([seed, number])) for number in range(1 + seed % 2)]
        for options in ({}, {"checkpoint": "c"}):
            seen, fewer = _shown(objects, tmp_path / "m", **options)
            assert seen is None or isinstance(seen, DiskReplayError) or seen == right or fewer <= set(right), done
            if isinstance(seen, DiskReplayError):
                refused += 1
                assert len(str(seen)) < 20_000, done
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*outside, "m"]), done
    assert refused


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::diskreplay.errors.DamageWarning")  # of what is pushed
def test_a_push_to_mutated_objects_ends_with_an_error_or_well(
    served: tuple[Life, SimulatedObjects], tmp_path: pathlib.Path
) -> None:
    life, base = served
    for seed in range(0, effort.examples(300), effort.stride(3, "mutated objects")):
        objects = base.copy()
        done = _mutate(objects, np.random.default_rng([7, seed]))
        try:
            life.push(objects)
        except DiskReplayError:
            continue
        right = sorted(life.window())
        seen, fewer = _shown(objects, tmp_path / "m")
        assert seen is None or isinstance(seen, DiskReplayError) or seen == right or fewer <= set(right), done


@pytest.mark.filterwarnings("ignore:objects at .* have names like a store's:diskreplay.errors.RemoteWarning")
def test_keys_of_somebody_else_are_left_alone(served: tuple[Life, SimulatedObjects], tmp_path: pathlib.Path) -> None:
    life, objects = served
    record = objects.data["streams/0/zarr.json"]
    foreign = {
        "readme.txt": b"hello", "streams/readme.txt": b"x", "streams/other/file": b"x",
        "streams/../x/zarr.json": record,
        "streams//zarr.json": record, "../escaped": b"x", "/etc/passwd": b"x", "checkpoints/x/y": b"x",
        "streams/0/start/__stream.hello": b"x", "streams/0/start/__stream.-0001": b"x",
        "a\nb": b"x", "streams/0/obs/c.-1.0.0": b"x", "streams/0/obs/\u202e": b"x", "x/" * 300: b"x",
        "zarr.json/x": b"",
        "streams/0/start/__bundle.000007": b"\0" * 40,
        "checkpoints/zarr.json/x": b"x",
    }  # fmt: skip
    objects.data |= foreign
    outside = sorted(tmp_path.iterdir())
    assert read(objects, tmp_path / "m") == sorted(life.window())
    assert read(objects, tmp_path / "m", checkpoint="c") == sorted(life.window())
    life.push(objects)
    with under(objects):
        joined = lived(tmp_path / "b", 3, writer=1, remote=objects.url)
        joined.buffer.push(PATIENCE)
        joined.buffer.close()
    assert read(objects, tmp_path / "m") == sorted([*life.window(), *joined.window()])
    assert sorted(tmp_path.iterdir()) == sorted([*outside, tmp_path / "m", tmp_path / "b"])
    assert foreign.items() <= objects.data.items()


class _Lying(SimulatedObjects):
    """Says that objects are huge."""

    def get(self, key: str, span: tuple[int, int] | None = None) -> Any:
        found, pieces = super().get(key, span)
        return Object(key, 1 << 50, found.tag, 0.0), pieces

    def list(self, prefix: str) -> list[Object]:
        return [Object(one.key, 1 << 50, one.tag, 0.0) for one in super().list(prefix)]


def test_huge_objects_are_not_read(served: tuple[Life, SimulatedObjects], tmp_path: pathlib.Path) -> None:
    life, objects = served
    lying = _Lying(objects.url, objects.data)
    assert isinstance(_read(lying, tmp_path / "m"), DiskReplayError)
    with pytest.raises(RemoteError, match="bytes"):
        life.push(lying)


def test_no_rights_are_said_with_the_place(served: tuple[Life, SimulatedObjects], tmp_path: pathlib.Path) -> None:
    class Denying(SimulatedObjects):
        def list(self, prefix: str) -> list[Object]:
            raise RemoteError(f"listing {self.url}/{prefix} failed: 403; look at the credentials")

    _, objects = served
    with pytest.raises(RemoteError, match=r"listing s3://simulated/a\.replay"):
        read(Denying(objects.url, objects.data), tmp_path / "m")


def test_what_is_no_store_is_said(tmp_path: pathlib.Path) -> None:
    for data in (b"", b"[]", b'{"attributes": {}}', json.dumps({"attributes": {metadata.KEY: 3}}).encode()):
        objects = SimulatedObjects(data={"zarr.json": data})
        with under(objects), pytest.raises(DiskReplayError, match="simulated"):
            dr.ReplayBuffer.open(tmp_path / "a", remote=objects.url)
        assert not (tmp_path / "a").exists()
