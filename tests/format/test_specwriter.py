"""What docs/format.md says is enough to write a store that the independent reader reads: two programs, one page.

``Tale`` makes rows with every start code, patches of every offset, rows that are not valid, ragged columns, facts and
values written later, and remembers each transition as it was; none of our code takes part.
"""

from __future__ import annotations

import copy
import json
import pathlib
import shutil
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr
from format import specreader, specwriter

ENVS, ROWS, WINDOW = 2, 75, 40
COLUMNS = {
    "obs/frame": ([4], "uint8"), "obs/text": ([2], "int64"), "action": ([], "int64"), "reward": ([], "float32"),
    "terminated": ([], "bool"), "truncated": ([], "bool"), "valid": ([], "bool"), "start": ([], "uint8"),
    "wide": ([70], "float64"),
}  # fmt: skip
LEAVES = ("obs/frame", "obs/text")
SCHEMA: dict[str, Any] = {
    "observation_space": {"kind": "Dict", "spaces": {"frame": {"kind": "Box"}, "text": {"kind": "Text"}}},
    "action_space": {"kind": "Discrete", "n": 9, "start": 0, "dtype": "int64"},
    "columns": [{"name": name, "shape": shape, "dtype": dtype} for name, (shape, dtype) in COLUMNS.items()],
    "stacks": [{"frames": 2, "axis": None, "channels": False}, {"frames": 1, "axis": None, "channels": False}],
    "padding": "zeros", "num_envs": ENVS, "capacity": WINDOW * ENVS, "identity": "tale",
    "later": [{"name": "state", "shape": [2], "dtype": "float32"}],
    "ragged": [{"name": "obs/text", "shape": [], "dtype": "int32", "longest": 9}],
}  # fmt: skip
SMALL, DISK = (8, 16, ENVS, "zstd:1"), (4, 16, 1, "lz4hc:4")
LAYOUTS = {name: DISK if name in ("obs/frame", "wide") else SMALL for name in COLUMNS} | {
    "reward": (8, 32, 2, "none"), "patches/place": (8, 32, 1, "zstd:1"), "patches/obs/frame": (4, 8, 1, "lz4:1"),
    "patches/obs/text": (8, 32, 1, "zstd:1"), "ragged/obs/text": (16, 32, 1, "lz4hc:4"), "info": (64, 512, 1, "zstd:1"),
    "later/values": (64, 512, 1, "zstd:1"),
}  # fmt: skip
Key = tuple[int, int]


class Tale:
    """Rows of two environments, as a writer stores them and as they were."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(5)
        self.rows: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}
        self.patches: list[tuple[tuple[int, int, int], np.ndarray, list[int]]] = []
        self.cuts: list[list[int]] = []
        self.items: list[int] = []
        self.logs = {"info": b"", "later/values": b""}
        self.told: dict[Key, dict[str, Any]] = {}
        self.later: dict[Key, np.ndarray] = {}
        self.runs: dict[int, tuple[int, dict[str, Any]]] = {}
        self.now: list[Any] = [(*self.fresh(), None) for _ in range(ENVS)]
        """Of each environment frames, span and code of the row to come, and what row ``end`` holds till then."""

    def frame(self) -> np.ndarray:
        return self.rng.integers(1, 256, 4).astype(np.uint8)

    def span(self) -> list[int]:
        begin = len(self.items)
        self.items += self.rng.integers(-9, 9, self.rng.integers(0, 5)).tolist()
        return [begin, len(self.items)]

    def fresh(self) -> tuple[list[np.ndarray], list[int], int]:
        """Frames of a first observation, newest first, its span, and its code."""
        frame = self.frame()
        code = int(self.rng.choice([1, 2, 3, 5, 6, 7]))
        return [frame, {1: 0 * frame, 2: frame, 3: self.frame()}[code & 3]], self.span(), code

    def patch(self, row: int, env: int, offset: int, frame: np.ndarray, span: list[int]) -> None:
        self.patches.append(((row, env, offset), frame, span))

    def step(self) -> None:
        row, rng = len(self.rows["start"]), self.rng
        made = {name: np.zeros((ENVS, *shape), dtype) for name, (shape, dtype) in COLUMNS.items()}
        made["wide"] = rng.normal(size=(ENVS, 70))
        made["action"], made["reward"] = rng.integers(0, 9, ENVS), rng.normal(size=ENVS).astype(np.float32)
        given, self.now = self.now, []
        for env, (frames, span, code, _) in enumerate(given):
            made["valid"][env] = code == 0 or rng.random() < 0.8
            made["obs/frame"][env], made["obs/text"][env], made["start"][env] = frames[0], span, code
            if code:
                self.cuts.append([row, env, code + 16 * (not made["valid"][env])])
            if code & 3 == 3:
                self.patch(row, env, -1, frames[1], [0, 0])
        for env, (frames, span, code, _) in enumerate(given):
            after, told = [self.frame(), frames[0]], self.span()
            odd = rng.random() < 0.15
            if odd:
                after[1] = self.frame()
                self.patch(row, env, 1, after[0], told)
                self.patch(row, env, 2, after[1], [0, 0])
            ends = rng.random() < 0.1
            made["terminated"][env] = ends and rng.random() < 0.5
            made["truncated"][env] = ends and not made["terminated"][env]
            cut = odd or ends or not made["valid"][env] or rng.random() < 0.05
            coming = self.fresh() if cut else (after, told, 0)
            self.now.append((*coming, (after[0], told) if cut and not odd else None))
            self.told[row, env] = {
                "obs": (frames, span), "next": (after, told), "valid": bool(made["valid"][env]),
                **{name: made[name][env].copy() for name in ("action", "reward", "terminated", "truncated", "wide")},
            }  # fmt: skip
            if code:
                self.runs[env] = row, {"seed": row, "tags": ["\u00e9"]}
                self.logs["info"] += json.dumps([row, None, env, self.runs[env][1]]).encode() + b"\n"
            if cut:
                begun, facts = self.runs[env]
                self.logs["info"] += json.dumps([begun, row + 1, env, facts]).encode() + b"\n"
            if rng.random() < 0.5:
                self.later[row, env] = rng.random(2).astype(np.float32)
                place = struct.pack("<IIq", 0, 1, row * ENVS + env)
                self.logs["later/values"] += place + self.later[row, env].tobytes()
        for name, values in made.items():
            self.rows[name].append(values)

    def settle(self) -> None:
        """Before a row: what row ``end`` no longer will hold becomes a patch of the row before (6)."""
        row = len(self.rows["start"]) - 1
        for env, (*_, kept) in enumerate(self.now):
            if row >= 0 and kept:
                self.patch(row, env, 1, *kept)

    def add(self, count: int) -> None:
        for _ in range(count):
            self.settle()
            self.step()

    def newest(self) -> dict[str, np.ndarray]:
        after = [self.told[len(self.rows["start"]) - 1, env]["next"] for env in range(ENVS)]
        return {
            "obs/frame": np.array([frames[0] for frames, _ in after]),
            "obs/text": np.array([span for _, span in after]),
        }

    def state(self) -> tuple[dict[str, list[int]], dict[str, np.ndarray]]:
        """The tables, and all values of their arrays."""
        end = len(self.rows["start"])
        begin = max(0, end - WINDOW)
        floor = max(0, min(begin, end - 1) - 1)
        values = {
            name: np.array([*rows, *([self.newest()[name]] if name in LEAVES else [])], COLUMNS[name][1])
            for name, rows in self.rows.items()
        }
        values["patches/place"] = np.array([p for p, _, _ in self.patches], "int64").reshape(-1, 1, 3)
        values["patches/obs/frame"] = np.array([f for _, f, _ in self.patches], "uint8").reshape(-1, 1, 4)
        values["patches/obs/text"] = np.array([s for _, _, s in self.patches], "int64").reshape(-1, 1, 2)
        values["cuts/place"] = np.array(self.cuts, "int64").reshape(-1, 1, 3)
        values["ragged/obs/text"] = np.array(self.items, "int32").reshape(-1, 1)
        values |= {path: np.frombuffer(log, np.uint8).reshape(-1, 1) for path, log in self.logs.items()}
        patch = sum(place[0] < floor for place, _, _ in self.patches)
        cut = sum(row < floor for row, _, _ in self.cuts)
        starts = values["obs/text"][floor:, :, 0].ravel().tolist()
        starts += [span[0] for (_, _, offset), _, span in self.patches[patch:] if offset == 1]
        counts = {"patches": patch, "cuts": cut, "ragged/obs/text": min(starts), "info": 0, "later": 0}
        ends = {"patches": len(self.patches), "cuts": len(self.cuts), "ragged/obs/text": len(self.items)}
        ends |= {"info": len(self.logs["info"]), "later": len(self.logs["later/values"])}
        tables = {name: [first, ends[name], first] for name, first in counts.items()}
        return {"rows": [begin, end, floor], **tables}, values


def write(path: pathlib.Path) -> tuple[Tale, Tale]:
    """A store whose tail has several blocks, and whose shards are full; a checkpoint; the tale at it and at the end."""
    tale, writer = Tale(), specwriter.Writer(path, SCHEMA, LAYOUTS)
    everything = (*COLUMNS, "patches/place", "patches/obs/frame", "patches/obs/text", "cuts/place", *LOGS)
    middle = tale
    for number, count in enumerate((1, 0, 4, 14, 1, 17, 3, 20, 1, 12, 2)):
        tale.add(count)
        moved = {3: ("obs/frame", "wide"), 5: everything, 7: everything, 8: everything}.get(number, ())
        writer.commit(*tale.state(), moved, partly=number == 8, new_tail=number in (4, 7))
        if number == 6:
            writer.checkpoint("middle")
            middle = copy.deepcopy(tale)
    assert sum((1, 0, 4, 14, 1, 17, 3, 20, 1, 12, 2)) == ROWS
    return middle, tale


LOGS = ("ragged/obs/text", "info", "later/values")


def assert_told(stream: Any, tale: Tale, ids: list[int] | None = None) -> None:
    """Each transition of the window is what it was."""
    places = [(row, env) for row in range(stream.begin, stream.end) for env in range(ENVS)]
    expected = [row * ENVS + env for row, env in places if tale.told[row, env]["valid"]]
    assert ids is not None or stream.ids() == expected
    for number in expected if ids is None else ids:
        row, env = divmod(number, ENVS)
        found, told = stream.transition(number), tale.told[row, env]
        for what, name in (("obs", "obs"), ("next_obs", "next")):
            frames, span = told[name]
            np.testing.assert_array_equal(found[what]["obs/frame"], np.array(frames[::-1]))
            assert found[what]["obs/text"].tolist() == tale.items[slice(*span)]
        for name in ("action", "reward", "terminated", "truncated", "wide"):
            np.testing.assert_array_equal(found[name], told[name])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, Tale, Tale]:
    path = tmp_path_factory.mktemp("written") / "a.replay"
    return path, *write(path)


@pytest.fixture
def store(written: tuple[pathlib.Path, Tale, Tale], tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy to be damaged."""
    shutil.copytree(written[0], tmp_path / "a.replay")
    return tmp_path / "a.replay"


def test_every_transition_is_what_it_was(written: tuple[pathlib.Path, Tale, Tale]) -> None:
    path, middle, tale = written
    for name, of in ((None, tale), ("middle", middle)):
        stream = specreader.Store(path, checkpoint=name).streams["0"]
        assert stream.end == len(of.rows["start"])
        assert_told(stream, of)
        later = {place: value for place, value in of.later.items() if place[0] >= stream.begin}
        assert stream.later["state"].keys() == later.keys()
        assert all(np.array_equal(stream.later["state"][place], value) for place, value in later.items())
        for env, (row, facts) in of.runs.items():
            assert stream.facts_of(max(row, stream.begin), env) == facts
    assert {code & 15 for _, _, code in tale.cuts} == {1, 2, 3, 5, 6, 7}
    assert any(code & specreader.NOT_VALID for _, _, code in tale.cuts)
    assert {offset for (_, _, offset), _, _ in tale.patches} == {-1, 1, 2}


def test_the_store_has_what_is_to_be_read(written: tuple[pathlib.Path, Tale, Tale]) -> None:
    """Several blocks, a tail that was left, shards that are full, partly filled and gone on with."""
    stream = specreader.Store(written[0]).streams["0"]
    assert len(stream.tail.records) > 2
    assert stream.record["tail"][0] == 3
    assert {len(pieces) for pieces in stream.tail.pieces.values()} == {2, 3, 4}
    assert {encoding for pieces in stream.tail.pieces.values() for *_, encoding in pieces} == {"lz4", "raw"}
    assert all(array.in_shards > 0 for array in stream.arrays.values())
    assert stream.arrays["obs/frame"].last_shard > 2
    assert stream.arrays["obs/frame"].in_shards % 4
    assert stream.floor > 16
    assert stream.arrays["obs/frame"].dead_bytes() > 0


def test_zarr_reads_the_rows_in_shards(written: tuple[pathlib.Path, Tale, Tale]) -> None:
    stream = specreader.Store(written[0]).streams["0"]
    for name, array in stream.arrays.items():
        seen = zarr.open_array(written[0] / "streams/0" / name, mode="r")[stream.floor : array.in_shards]
        np.testing.assert_array_equal(seen, array.rows(stream.floor, array.in_shards))


def test_bytes_behind_the_committed_ones_mean_nothing(store: pathlib.Path, written: tuple[Any, Tale, Tale]) -> None:
    frames = specreader.Store(store).streams["0"].arrays["obs/frame"]
    for file in (store / "streams/0/start/tail.3", frames.shard_file(frames.last_shard)):
        file.write_bytes(file.read_bytes() + b"torn")
    assert_told(specreader.Store(store).streams["0"], written[2])


def flip(file: pathlib.Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def test_each_damaged_byte_is_noticed(store: pathlib.Path) -> None:
    """Of the tail, of the last shard of an array and of its first one that is needed, and of the documents."""
    stream = specreader.Store(store).streams["0"]
    array = stream.arrays["wide"]
    n, size, _ = stream.record["tail"]
    for file, places in (
        (store / f"streams/0/start/tail.{n}", range(0, size, max(1, size // 60))),
        (array.shard_file(array.last_shard), range(array.bytes - 40, array.bytes, 7)),
        (array.shard_file(stream.floor // 16), [-1, -9, -100]),
        (store / "streams/0/obs/frame/zarr.json", [40]),
    ):
        for at in places:
            flip(file, at)
            with pytest.raises((AssertionError, ValueError)):
                specreader.Store(store)
            flip(file, at)
    specreader.Store(store)


def edit(file: pathlib.Path, node: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes our attributes and seals them again: nothing but what they say is wrong."""
    ours = specreader.attributes(file, node)
    change(ours)
    specwriter.put_group(file.parent, node, ours, file.name)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["needs"].append("news"),
        lambda record: record["tables"]["rows"].__setitem__(2, 30),
        lambda record: record["tables"]["cuts"].__setitem__(1, 1),
        lambda record: record["tail"].__setitem__(1, record["tail"][1] - 1),
        lambda record: record["tail"].__setitem__(0, 2),
        lambda record: record["arrays"].pop("obs/frame"),
        lambda record: record["arrays"]["action"].__setitem__(2, record["arrays"]["action"][2] - 1),
        lambda record: record["arrays"]["action"].__setitem__(1, record["arrays"]["action"][1] - 4),
    ],
)
def test_a_record_that_does_not_fit_is_refused(store: pathlib.Path, change: Callable[[dict[str, Any]], Any]) -> None:
    edit(store / "streams/0/zarr.json", "streams/0", change)
    with pytest.raises((AssertionError, ValueError)):
        specreader.Store(store)


@pytest.mark.parametrize(
    "damage", [pathlib.Path.unlink, lambda file: file.write_text("{"), lambda file: flip(file, 60)]
)
def test_a_lost_document_is_read_elsewhere(
    store: pathlib.Path, written: tuple[Any, Tale, Tale], damage: Callable[[pathlib.Path], Any]
) -> None:
    """3.5 and 8.5: the root from its copy, the record from the tail."""
    whole = specreader.Store(store).streams["0"].record
    for document in (store / "zarr.json", store / "streams/0/zarr.json"):
        kept = document.read_bytes()
        damage(document)
        with pytest.warns(UserWarning, match="is lost"):
            stream = specreader.Store(store).streams["0"]
        assert stream.record == {**whole, "tail": [*whole["tail"][:2], 1]}
        assert_told(stream, written[2])
        document.write_bytes(kept)


def test_copies_that_differ_are_refused(store: pathlib.Path) -> None:
    other = store / "streams/1/start"
    other.mkdir(parents=True)
    shutil.copy(store / "streams/0/start/root.json", other)
    edit(other / "root.json", "", lambda root: root.update(settings={"view": {"kind": "Frames"}}))
    with pytest.raises(AssertionError):
        specreader.Store(store)
    (store / "zarr.json").unlink()
    with pytest.raises(AssertionError, match="differ"):
        specreader.Store(store)


def test_a_record_whose_shards_lack_their_index_is_not_taken(store: pathlib.Path) -> None:
    """8.5: the last blocks of the tail name a length that a shard does not have, so that an older one counts."""
    (store / "streams/0/zarr.json").unlink()
    with pytest.warns(UserWarning, match="is lost"):
        newest = specreader.Store(store).streams["0"]
    array = newest.arrays["action"]
    shard = array.shard_file(array.last_shard)
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="is lost"):
        older = specreader.record_of(store / "streams/0", SCHEMA["identity"])
    assert (newest.record["sequence"], older["sequence"]) == (11, 8)
    assert older["tail"][1] < newest.record["tail"][1]


@pytest.mark.parametrize("moved", [("partly",), ("whole",), ()])
def test_a_store_without_its_tail_shows_what_the_shards_hold(tmp_path: pathlib.Path, moved: tuple[str, ...]) -> None:
    """8.5: never another row, and as many as there are; patches and items may lag behind the columns."""
    everything = (*COLUMNS, "patches/place", "patches/obs/frame", "patches/obs/text", "cuts/place", *LOGS)
    tale, writer = Tale(), specwriter.Writer(tmp_path / "a", SCHEMA, LAYOUTS)
    for count in (30, 22):
        tale.add(count)
        writer.commit(
            *tale.state(),
            (everything if moved else tuple(COLUMNS))[: None if count < 30 else 3],
            partly=moved == ("partly",),
        )
    (tmp_path / "a/streams/0/start/tail.1").unlink()
    with pytest.raises(FileNotFoundError):
        specreader.Store(tmp_path / "a")
    with pytest.warns(UserWarning, match="without its tail"):
        stream = specreader.Store(tmp_path / "a", without_tails=True).streams["0"]
    assert stream.end == {("partly",): 51, ("whole",): 47, (): 47}[moved]
    ids = stream.ids()
    assert_told(stream, tale, ids)
    assert len(ids) > (40 if moved else -1)


def test_a_pending_checkpoint_is_none(store: pathlib.Path) -> None:
    edit(store / "checkpoints/middle/zarr.json", "checkpoints/middle", lambda document: document.update(pending=True))
    with pytest.raises(AssertionError, match="does not count yet"):
        specreader.Store(store, checkpoint="middle")
