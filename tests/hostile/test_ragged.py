"""Forged spans and items of ragged columns: an error that names them, the store as it was, and a line of ``verify``."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hostile.test_regressions import edit

import diskreplay as dr
from diskreplay.errors import CorruptionError, DamageWarning, OpenError
from diskreplay.ops.verify import verify
from diskreplay.storage import tail

COLUMNS = {"tokens": ((None,), np.int32)}
SIZES = {"chunk_rows": {"tokens": 8, "obs": 8}, "shard_rows": {"tokens": 16, "obs": 16}}
TEXT = spaces.Text(6, min_length=0, charset="abc")


def make(
    path: pathlib.Path, rows: int = 19, forge: Callable[[Any], None] | None = None, jump: bool = False
) -> pathlib.Path:
    """Row ``i`` has four tokens and a text of three; of the first rows the window has left some.

    With ``jump`` the last row does not begin with the next observation of the one before.
    """
    with dr.ReplayBuffer.create(path, TEXT, spaces.Discrete(3), capacity=12, columns=COLUMNS, seed=0, **SIZES) as rb:
        for row in range(rows):
            texts = ["abc"[at % 3] + "abc"[at // 3 % 3] + "c" for at in (row, row + 1)]
            if jump and row == rows - 2:
                texts[1] = "ccc"
            rb.add(texts[0], 0, float(row), texts[1], row % 5 == 4, False, tokens=np.full(4, row))
            if row % 5 == 4 and row < rows - 1:
                rb.commit()
        if forge:
            forge(rb.engine.streams.writer)
    return path


def set_span(column: Any, row: int, start: int, stop: int) -> None:
    """In the chunk that is being filled, which holds the newest row, even if chunks have two rows."""
    column.single[row % len(column.single)] = start, stop


def contents(store: pathlib.Path) -> dict[str, bytes]:
    return {str(file.relative_to(store)): file.read_bytes() for file in store.rglob("*") if file.is_file()}


def refused(store: pathlib.Path, match: str, column: str | None) -> None:
    """Nobody gets a row of it, whoever tries; verify names the column."""
    before = contents(store)
    for options in ({"mode": "r"}, {"mode": "r", "ragged": "lists", "cache_bytes": 0}, {}):
        with pytest.raises((CorruptionError, OpenError), match=match), dr.ReplayBuffer.open(store, **options) as rb:
            rb.get(rb.items())
        assert contents(store) == before
    problems = verify(store).problems
    assert problems
    if column:
        assert column in {problem.column for problem in problems}


@pytest.mark.parametrize(
    "span", [(46, 44), (60, 90), (0, 4), (-4, 4), (-8, -4), (0, 1 << 62), (-(1 << 63), (1 << 63) - 1), (1 << 62, 0)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", ["tokens", "obs"])
def test_forged_spans_of_rows(tmp_path: pathlib.Path, name: str, span: tuple[int, int]) -> None:
    """Backwards, beyond the items, and of items that are evicted."""

    def forge(writer: Any) -> None:
        set_span(writer.rows[name], 18, *span)

    refused(make(tmp_path / "a", forge=forge), f"a span of the ragged column '{name}' is {span[0]} to {span[1]}", name)


def test_a_row_longer_than_the_longest(tmp_path: pathlib.Path) -> None:
    def forge(writer: Any) -> None:
        end = writer.items["obs"].end
        set_span(writer.rows["obs"], 18, end - 7, end)

    refused(make(tmp_path / "a", forge=forge), "at most 6 a row", "obs")


@pytest.mark.parametrize("span", [(9, 7), (60, 9000), (-1, 1)], ids=str)
def test_forged_spans_of_the_newest_observation(tmp_path: pathlib.Path, span: tuple[int, int]) -> None:
    """Which stands behind the last row, in the tail."""

    def forge(writer: Any) -> None:
        set_span(writer.rows["obs"], 19, *span)

    refused(make(tmp_path / "a", forge=forge), f"'obs' is {span[0]} to {span[1]}", "obs")


@pytest.mark.parametrize("span", [(9, 7), (60, 9000), (-1, 1)], ids=str)
def test_forged_spans_of_patches(tmp_path: pathlib.Path, span: tuple[int, int]) -> None:
    """Of a next observation that is not the one of the next row."""

    def forge(writer: Any) -> None:
        set_span(writer.patches["obs"], writer.patches["obs"].end - 1, *span)

    refused(make(tmp_path / "a", forge=forge, jump=True), f"'obs' is {span[0]} to {span[1]}", "patches/obs")


@pytest.mark.parametrize("name", ["tokens", "obs"])
def test_a_damaged_chunk_of_items(tmp_path: pathlib.Path, name: str) -> None:
    store = make(tmp_path / "a")
    newest = sorted((store / "streams/0/ragged" / name).glob("c.*"), key=lambda file: int(file.name.split(".")[1]))[-1]
    data = bytearray(newest.read_bytes())
    data[5] ^= 0x40
    newest.write_bytes(data)
    refused(store, f"ragged/{name}", f"ragged/{name}")


@pytest.mark.parametrize("missing", ["", "/c.4.0"])
def test_missing_items(tmp_path: pathlib.Path, missing: str) -> None:
    store = make(tmp_path / "a")
    place = pathlib.Path(f"{store}/streams/0/ragged/tokens{missing}")
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()
    refused(store, "ragged.tokens", "ragged/tokens" if missing else None)


def test_a_missing_document_of_items(tmp_path: pathlib.Path) -> None:
    """Of which reading needs nothing, as of every array's."""
    store = make(tmp_path / "a")
    (store / "streams/0/ragged/tokens/zarr.json").unlink()
    assert any("ragged/tokens" in f"{problem.column} {problem.file}" for problem in verify(store).problems)


def test_a_record_that_names_no_shard_of_spans(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """verify raised EvictedError."""
    monkeypatch.setattr(tail, "DEAD_BYTES", 0)  # else the first tail holds all rows
    store = make(tmp_path / "a", 60)
    edit(store / "streams/0/zarr.json", lambda ours: ours["arrays"].pop("tokens"), "streams/0")
    refused(store, "neither in the shards, which end at row 0, nor in the tail", "tokens")


ROOTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "dtype": lambda schema: schema["ragged"][1].update(dtype="int64"),
    "no dtype": lambda schema: schema["ragged"][1].update(dtype="object"),
    "shape": lambda schema: schema["ragged"][1].update(shape=[2]),
    "huge shape": lambda schema: schema["ragged"][1].update(shape=[1 << 40]),
    "chunk_rows": lambda schema: schema["ragged"][1].update(chunk_rows=0),
    "longest": lambda schema: schema["ragged"][1].update(longest=-1),
    "longest of numbers": lambda schema: schema["ragged"][1].update(longest=2.5),
    "another name": lambda schema: schema["ragged"][1].update(name="reward"),
    "no such name": lambda schema: schema["ragged"][1].update(name="../tokens"),
    "one is missing": lambda schema: schema["ragged"].pop(0),
    "none": lambda schema: schema.update(ragged=[]),
    "absent": lambda schema: schema.pop("ragged"),
    "no list": lambda schema: schema.update(ragged={"tokens": 1}),
    "spans of another shape": lambda schema: next(
        column for column in schema["columns"] if column["name"] == "tokens"
    ).update(shape=[3]),
}  # fmt: skip


@pytest.mark.parametrize("what", ROOTS)
def test_forged_schemas(tmp_path: pathlib.Path, what: str) -> None:
    store = make(tmp_path / "a")
    edit(store / "zarr.json", lambda ours: ROOTS[what](ours["schema"]), "")
    refused(store, ".", None)


RECORDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "absent": lambda record: record.pop("tables"),
    "one is missing": lambda record: record["tables"].pop("ragged/tokens"),
    "no rows": lambda record: record["tables"].pop("rows"),
    "no list": lambda record: record["tables"].update({"ragged/tokens": 3}),
    "begin after end": lambda record: change(record, begin=77),
    "needed beyond": lambda record: change(record, needed_from=29),
    "negative": lambda record: change(record, begin=-1),
    "huge": lambda record: change(record, end=1 << 70),
    "text": lambda record: change(record, end="80"),
    "end before": lambda record: change(record, end=70),
}  # fmt: skip
LIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "end beyond": lambda record: change(record, end=200),
    "begin beyond": lambda record: change(record, begin=75, needed_from=75),
}  # fmt: skip


def change(record: dict[str, Any], **numbers: Any) -> None:
    """Changes the table of the tokens, which are 28 to 76."""
    table = dict(zip(("begin", "end", "needed_from"), record["tables"]["ragged/tokens"], strict=True))
    record["tables"]["ragged/tokens"] = list({**table, **numbers}.values())


@pytest.mark.parametrize("what", RECORDS)
def test_forged_records_that_cannot_be_read(tmp_path: pathlib.Path, what: str) -> None:
    """The one in the tail is read in its place; where there is none, nothing is."""
    store = make(tmp_path / "a")
    edit(store / "streams/0/zarr.json", RECORDS[what], "streams/0")
    assert "streams/0/zarr.json" in str(verify(store).problems[0].file)
    with pytest.warns(DamageWarning, match="the one in the stream's tail"):
        reader = dr.ReplayBuffer.open(store, mode="r", ragged="lists")
    with reader:
        batch = reader.get(reader.items())
        assert [row.tolist() for row in batch.extra["tokens"]] == [[int(at)] * 4 for at in batch.reward]
        assert batch.reward.tolist() == list(range(7, 19))
    (store / "streams/0/start/tail.1").unlink()
    refused(store, ".", None)


@pytest.mark.parametrize("what", LIES)
def test_forged_records(tmp_path: pathlib.Path, what: str) -> None:
    store = make(tmp_path / "a")
    edit(store / "streams/0/zarr.json", LIES[what], "streams/0")
    refused(store, ".", None)


def leave_out(record: dict[str, Any]) -> None:
    record["tables"].pop("ragged/tokens")
    record["arrays"].pop("ragged/tokens")


def name_another(record: dict[str, Any]) -> None:
    record["arrays"]["ragged/toks"] = record["arrays"].pop("ragged/tokens")
    record["tables"]["ragged/toks"] = record["tables"].pop("ragged/tokens")


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("forge", [leave_out, name_another])
def test_nothing_is_removed_that_a_wrong_record_leaves_out(
    tmp_path: pathlib.Path, forge: Callable[[dict[str, Any]], Any], whole: bool
) -> None:
    """Opening to write removed all shards of the column; if it is ``whole``, the record in the tail is wrong, too."""
    store = make(tmp_path / "a")
    record, file = store / "streams/0/zarr.json", store / "streams/0/start/tail.1"
    edit(record, forge, "streams/0")
    if whole:
        identity = json.loads((store / "zarr.json").read_bytes())["attributes"]["diskreplay"]["schema"]["identity"]
        seal = f"{identity}/0/tail/1"
        blocks = list(tail.blocks(seal, 0, file.read_bytes()))
        parts = [part for _, found, _ in blocks for part in found if part.path != "ragged/tokens"]
        file.write_bytes(tail.block(seal, 0, json.loads(record.read_bytes())["attributes"]["diskreplay"], parts))
        edit(record, lambda ours: ours["tail"].__setitem__(1, file.stat().st_size), "streams/0")
    refused(store, ".", None)
    with pytest.raises(CorruptionError, match=r"does not fit the schema|other rows than the one in") as error:
        dr.ReplayBuffer.open(store)
    assert (error.value.file, any((store / "streams/0/ragged/tokens").glob("c.*"))) == (str(record), True)
