"""What a commit record says of tables, arrays and the tail."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

import diskreplay as dr
from diskreplay.errors import CorruptionError, FormatVersionError
from diskreplay.storage import metadata
from diskreplay.storage.commit import NO_TABLE, ROWS, Commit, LimiterStart, Stored, Table, Tail, rows_table

LINE = gymnasium.spaces.Box(-9, 9, (3,), np.float32)
RECORD = Commit(
    stream=0, num_envs=3, capacity=300,
    tables={ROWS: Table(20, 70, 17), "patches": Table(4, 9, 4), "ragged/words": Table(100, 900, 100)},
    arrays={
        "obs": Stored(2, 500, 64, 8, 24, 1, "lz4hc:9"), "patches/obs": Stored(1, 60, 8, 2, 4, 1, "none"),
        "ragged/words": Stored(0, 900, 512, 256, 1024, 1, "zstd:1"),
    },
    tail=Tail(7, 1234, 5), time=1.5,
)  # fmt: skip


@pytest.mark.parametrize(
    ("path", "table", "envs", "stored"),
    [
        ("obs", Table(20, 70, 17), 3, 64),
        ("obs/camera", Table(20, 70, 17), 3, 0),  # no shard holds rows of it
        ("patches/obs", Table(4, 9, 4), 1, 8),
        ("patches/place", Table(4, 9, 4), 1, 0),
        ("patches_of_mine", Table(20, 70, 17), 3, 0),
        ("ragged/words", Table(100, 900, 100), 1, 512),
        ("ragged/points", NO_TABLE, 1, 0),
        ("later/values", NO_TABLE, 1, 0),
        ("info", NO_TABLE, 1, 0),
        ("cuts/place", NO_TABLE, 1, 0),
    ],
)
def test_the_table_of_an_array(path: str, table: Table, envs: int, stored: int) -> None:
    assert (RECORD.of(path), RECORD.envs(path), RECORD.stored_rows(path)) == (table, envs, stored)


def test_an_empty_window_keeps_the_context_of_its_newest_row() -> None:
    assert rows_table(20, 70, context=3) == Table(20, 70, 17)
    assert rows_table(70, 70, context=3) == Table(70, 70, 66)
    assert rows_table(2, 70, context=3) == Table(2, 70, 0)
    assert rows_table(0, 0, context=3) == NO_TABLE


def test_a_record_is_what_its_json_says() -> None:
    whole = dataclasses.replace(RECORD, sampled=4, last_checkpoint=2, limiter=LimiterStart(1, 2, 3, 4, 0.5), back=True)
    for record in (RECORD, whole, Commit.first(3, 2, 10)):
        stored = json.loads(json.dumps(record.to_json(), allow_nan=False))
        assert stored["needs"] == []
        assert Commit.from_json(stored, "here") == record
    assert not RECORD.to_json().keys() & {"sampled", "last_checkpoint", "limiter", "back"}, (
        "absent where they say nothing"
    )
    assert Commit.first(3, 2, 10).to_json()["tables"] == {ROWS: NO_TABLE}
    assert whole.next().back is False, "the next record goes back no more"


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """What sets a place in a record; its names stand between dots."""

    def spoil(stored: dict[str, Any]) -> None:
        *above, last = path.split(".")
        for name in above:
            stored = stored[name]
        stored[last] = value

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        change("tables.rows", [20, 70]), change("tables.rows", [20, 70, 21]), change("tables.rows", [71, 70, 17]),
        change("tables.rows", [20, 170, 17]), change("tables.rows", [20, -1, -1]), change("tables.patches", [9, 4, 4]),
        change("tables.patches", None), change("tables", {}), change("tables", []), change("tail", [1, 2]),
        change("tail", [1, 2, 3, 4]), change("tail", [1, -2, 1]), change("tail", [True, 2, 1]), change("arrays", None),
        change("arrays.obs", [2, 500, 64, 8, 24, 1]), change("arrays.obs", [2, 500, 71, 8, 24, 1, "none"]),
        change("arrays.obs", [2, 500, 48, 8, 24, 1, "none"]), change("arrays.obs", [1, 500, 64, 8, 24, 1, "none"]),
        change("arrays.obs", [2, 500, 64, 7, 24, 1, "none"]), change("arrays.obs", [2, 0, 64, 8, 24, 1, "none"]),
        change("arrays.obs", [2, 500, 64, 8, 24, 0, "none"]), change("arrays.obs", [2, 500, 64, 8, 24, 1, "gzip:1"]),
        change("time", float("inf")), change("back", 1), change("num_envs", 0), change("stream", 1 << 15),
        change("capacity", 0), change("sequence", 1.5),
    ],
)  # fmt: skip
def test_a_record_that_contradicts_itself_is_refused(spoil: Callable[[dict[str, Any]], None]) -> None:
    stored = json.loads(json.dumps(RECORD.to_json()))
    spoil(stored)
    with pytest.raises(CorruptionError, match="the commit record of 'here' cannot be read") as error:
        Commit.from_json(stored, "here")
    assert error.value.file == "here"


def test_a_record_that_needs_more_is_refused() -> None:
    with pytest.raises(FormatVersionError, match=r"needs \['quantum'\].*update diskreplay"):
        Commit.from_json({**RECORD.to_json(), "needs": ["quantum"]}, "here")


@pytest.mark.parametrize(
    ("changes", "evicted"),
    [
        ({}, False),
        ({"tail": Tail(9, 5, 7)}, False),
        ({"tail": Tail(9, 5, 8)}, True),
        ({"tables": {**RECORD.tables, ROWS: Table(30, 80, 17)}}, False),  # rows below begin are still there
        ({"tables": {**RECORD.tables, ROWS: Table(30, 80, 27)}}, True),
        ({"tables": {**RECORD.tables, "patches": Table(5, 9, 5)}}, True),
    ],
)
def test_what_an_older_commit_needs_may_be_gone(changes: dict[str, Any], evicted: bool) -> None:
    assert dataclasses.replace(RECORD, **changes).evicted_since(RECORD) is evicted
    never = dataclasses.replace(RECORD, tail=Tail(0, 0, 0))  # it had no tail, which so cannot be gone
    assert dataclasses.replace(RECORD, tail=Tail(9, 5, 8)).evicted_since(never) is False


@pytest.mark.parametrize(
    ("changes", "outlasts"),
    [
        ({}, False),
        ({"tables": {**RECORD.tables, "info": Table(0, 1, 0)}}, True),
        ({"tables": {**RECORD.tables, ROWS: Table(20, 71, 17)}}, True),
        ({"tables": {**RECORD.tables, ROWS: Table(20, 69, 17)}}, False),
        ({"arrays": {**RECORD.arrays, "obs": Stored(2, 700, 70, 8, 24, 1, "none")}}, False),  # it takes that over
        (
            {
                "arrays": {**RECORD.arrays, "obs": Stored(2, 700, 70, 8, 24, 1, "none")},
                "tables": {**RECORD.tables, ROWS: Table(30, 70, 27)},
            },
            True,
        ),
    ],
)
def test_a_commit_that_outlasts_another(changes: dict[str, Any], outlasts: bool) -> None:
    assert dataclasses.replace(RECORD, **changes).outlasts(RECORD) is outlasts


def test_a_record_is_parsed_again_only_if_its_bytes_changed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(stream: str) -> dr.ReplayBuffer:
        return dr.ReplayBuffer.open_or_create(tmp_path / "a", LINE, LINE, capacity=9, stream=stream)

    def parsing(directory: str, data: bytes) -> Any:
        parsed.append(os.path.relpath(directory, tmp_path / "a"))
        return attributes(directory, data)

    parsed: list[str] = []
    attributes = metadata.attributes
    monkeypatch.setattr(metadata, "attributes", parsing)
    with opened("theirs") as theirs, opened("ours") as ours:
        parsed.clear()
        ours.checkpoint("a")
        ours.checkpoint("b")
        assert parsed == []
        theirs.add(*[np.zeros(3, np.float32)] * 2, 0.0, np.zeros(3, np.float32), False, False)
        theirs.commit()
        ours.checkpoint("c")
        assert parsed == ["streams/theirs"]
        assert ours.refresh()
