"""Texts are texts in every format that has them, whatever format they came from, and LeRobot's tasks."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from formats.roundtrip import refused
from formats.test_minari import episodes, made
from formats.test_ragged import read
from gymnasium import spaces

import diskreplay as dr
from diskreplay import formats
from diskreplay.errors import InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.ops.convert import export, import_dataset

TEXTS = ["pick up the cup", "", "grasp\nfirmly", "é語🙂", "\t", "pick up the cup", "put it down"]
STRINGS = ["parquet", "lerobot", "minari", "minari-arrow", "rlds"]
VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)


def points(text: str) -> Any:
    return np.array([*map(ord, text)], np.int32)


def make(
    path: Any, origin: str = "rlds", columns: tuple[str, ...] = ("language_instruction",), said: str = "said",
    lengths: tuple[int, ...] = (5, 1, 7), **more: Any,
) -> None:  # fmt: skip
    """Episodes with a text in each observation and columns of texts, whose next observation at ends is their own."""
    space = spaces.Dict({"at": VECTOR, said: spaces.Text(20, min_length=0, charset="".join({*"".join(TEXTS)}))})
    told = {origin: {"text": [*columns]}} if origin else {}
    with dr.ReplayBuffer.create(
        path, space, spaces.Box(-1, 1, (2,)), capacity=99, provenance=told,
        columns={**dict.fromkeys(columns, ((None,), np.int32)), "count": np.int64, **more},
    ) as rb:  # fmt: skip
        at = 0
        for number, length in enumerate(lengths):
            rb.begin_episode(tasks=[f"fact {number}"])
            for step in range(length):
                now, after = (
                    {"at": np.full(3, one, np.float32), said: TEXTS[one % 7]}
                    for one in (at, at if step == length - 1 else at + 1)
                )
                texts = {name: points(TEXTS[(at + place) % 7]) for place, name in enumerate(columns)}
                given = {name: points("x") for name in more}
                rb.add(now, [0, 1], 1.0, after, step == length - 1, False, **texts, **given, count=at)
                at += 1


@pytest.mark.parametrize("origin", ["rlds", "lerobot-of-others", "somebody"])
@pytest.mark.parametrize("name", STRINGS)
def test_they_come_back(name: str, origin: str, path: str, tmp_path: pathlib.Path) -> None:
    make(path, origin)
    lost = {"facts of episodes": 3} if name == "parquet" else {}
    assert export(path, tmp_path / "out", name, allow_loss=True).lost == lost
    import_dataset(tmp_path / "out", tmp_path / "back")
    assert read(tmp_path / "back") == read(path)
    with dr.ReplayBuffer.open(tmp_path / "back", mode="r") as rb:
        assert rb.provenance[origin] == {"text": ["language_instruction"]}


@pytest.mark.parametrize("second", STRINGS)
@pytest.mark.parametrize("first", STRINGS)
def test_they_go_from_format_to_format(first: str, second: str, path: str, tmp_path: pathlib.Path) -> None:
    make(path)
    for at, name in enumerate((first, second)):
        export(path if at == 0 else tmp_path / "0", tmp_path / f"out-{at}", name, allow_loss=True)
        import_dataset(tmp_path / f"out-{at}", tmp_path / f"{at}")
    assert read(tmp_path / "1") == read(path)


def strings(dataset: pathlib.Path, name: str) -> tuple[list[str], list[str]]:
    """The column and the observation's texts of all steps as the format's own library shows them."""
    if name in ("parquet", "lerobot"):
        table = pq.read_table(dataset if name == "parquet" else dataset / "data/chunk-000/file-000.parquet")
        assert pa.types.is_string(table.schema.field("language_instruction").type)
        return table["language_instruction"].to_pylist(), table["observation.said"].to_pylist()
    columns, said = [], []
    for number in range(3):
        if name == "minari":
            with h5py.File(dataset / "data/main_data.hdf5") as file:
                group = file[f"episode_{number}"]
                columns += group["infos/language_instruction"].asstr()[1:].tolist()
                said += group["observations/said"].asstr()[:-1].tolist()
        else:
            with pyarrow.ipc.open_file(str(dataset / f"data/{number}/part-0.arrow")) as file:
                batch = file.read_all().to_pydict()
            columns += [each["language_instruction"] for each in batch["infos"][1:]]
            said += [each["said"] for each in batch["observations"][:-1]]
    return columns, said


@pytest.mark.parametrize("name", STRINGS[:-1])
def test_they_are_strings_in_the_files(name: str, path: str, tmp_path: pathlib.Path) -> None:
    make(path)
    export(path, tmp_path / "out", name, allow_loss=True)
    assert strings(tmp_path / "out", name) == ([TEXTS[at % 7] for at in range(13)],) * 2


def test_numbers_that_are_no_text_are_refused(path: str, tmp_path: pathlib.Path) -> None:
    with dr.ReplayBuffer.create(
        path, VECTOR, spaces.Discrete(2), capacity=9, columns={"task": ((None,), np.int32)},
        provenance={"rlds": {"text": ["task"]}},
    ) as rb:  # fmt: skip
        rb.add(np.zeros(3), 0, 0.0, np.zeros(3), True, False, task=[0xD800])
    for name in STRINGS:
        with pytest.raises(InputError, match="numbers that are no text"):
            export(path, tmp_path / "out", name)


@pytest.mark.parametrize("origin", [{"rlds": {"text": "said"}}, {"rlds": ["text"]}, {"text": ["said"]}, {"a": {}}])
def test_what_is_not_told_is_no_text(origin: Any, path: str, tmp_path: pathlib.Path) -> None:
    with dr.ReplayBuffer.create(
        path, VECTOR, spaces.Discrete(2), capacity=9, columns={"said": ((None,), np.int32)}, provenance=origin
    ) as rb:
        rb.add(np.zeros(3), 0, 0.0, np.zeros(3), True, False, said=points("no"))
    export(path, tmp_path / "a.parquet", "parquet")
    assert str(pq.read_schema(tmp_path / "a.parquet").field("said").type).startswith("list<")
    with pytest.raises(InputError, match="values of the ragged column 'said'"):
        export(path, tmp_path / "b", "minari")


# Of others


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())],
    ids=["string", "large", "dictionary"],
)
def test_columns_of_parquet(kind: Any, path: str, tmp_path: pathlib.Path) -> None:
    columns = {
        "observation.state": pa.array([[float(at)] for at in range(7)]), "action": pa.array([0.0] * 7),
        "observation.said": pa.array(TEXTS, pa.string()).cast(kind), "task": pa.array(TEXTS, pa.string()).cast(kind),
        "final_observation.said": pa.array([None] * 6 + ["over"], pa.string()),
        "final_observation.state": pa.array([None] * 6 + [[9.0]]), "terminated": pa.array([False] * 6 + [True]),
        "episode_index": pa.array([3] * 7),
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=3)
    assert import_dataset(tmp_path / "a.parquet", path).ignored == ()
    with dr.ReplayBuffer.open(path, mode="r", view=dr.Transition(), ragged="lists") as rb:
        batch = rb.get(rb.items())
        for rows in (batch.obs["said"], batch.extra["task"]):
            assert [row.tobytes().decode("utf-32-le") for row in rows] == TEXTS
        assert batch.next_obs["said"][6].tobytes().decode("utf-32-le") == "over"
        assert {*"over"} <= {*rb.schema.observation_space["said"].characters}
        assert rb.provenance == {"parquet": {"text": ["task"]}}
    export(path, tmp_path / "b.parquet", "parquet")
    import_dataset(tmp_path / "b.parquet", tmp_path / "b")
    assert read(tmp_path / "b") == read(path)


def test_a_text_that_is_missing_is_refused_and_may_be_left_out(tmp_path: pathlib.Path) -> None:
    columns = {"observation": [1.0, 2.0], "action": [0.0, 0.0], "done": [False, True], "task": ["push", None]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", r"task: has rows without a value.*--columns leaves it out")
    with formats.get("parquet").read(tmp_path / "a.parquet", Choice(columns=("obs",))) as source:
        assert source.names.unread() == ("task",)
        assert sum(map(len, source.blocks())) == 2


@pytest.mark.parametrize("key", ["next.reward", "next.done"])
def test_texts_that_should_be_numbers_are_refused(key: str, tmp_path: pathlib.Path) -> None:
    columns = {"observation": [1.0, 2.0], "action": [0.0, 0.0], "episode_index": [0, 0], key: ["yes", "no"]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", r"must be one (number|flag) a step")
    make(tmp_path / "first")
    export(tmp_path / "first", tmp_path / "set", "lerobot")
    (tmp_path / "set/meta/diskreplay.json").unlink()
    file, rows = tmp_path / "set/meta/info.json", tmp_path / "set/data/chunk-000/file-000.parquet"
    told = json.loads(file.read_text())
    told["features"][key] = {"dtype": "string", "shape": [1], "names": None}
    file.write_text(json.dumps(told))
    table = pq.read_table(rows)
    pq.write_table(table.set_column(table.column_names.index(key), key, pa.array(["no"] * 13)), rows)
    refused(tmp_path / "set", "must be one")


def test_infos_of_minari(path: str, tmp_path: pathlib.Path) -> None:
    arrays = episodes()
    for one in arrays:
        one["infos/said"] = np.array([text.encode() for text in (TEXTS * 3)[: len(one["rewards"]) + 1]], object)
    made(tmp_path / "a", [{key: value for key, value in one.items() if key != "infos/said"} for one in arrays])
    with h5py.File(tmp_path / "a/data/main_data.hdf5", "r+") as file:
        for number, one in enumerate(arrays):
            file.create_dataset(f"episode_{number}/infos/said", data=one["infos/said"], dtype=h5py.string_dtype())
    assert "infos/said" not in import_dataset(tmp_path / "a", path).ignored
    with dr.ReplayBuffer.open(path, mode="r", ragged="lists") as rb:
        rows = rb.get(rb.items()).extra["said"]
        wanted = [text.decode() for one in arrays for text in one["infos/said"][1:]]
        assert [row.tobytes().decode("utf-32-le") for row in rows] == wanted
        assert rb.provenance["minari"]["text"] == ["said"]
        assert rb.provenance["minari"]["author"] == ["somebody"]
    for name in ("minari", "minari-arrow"):
        export(path, tmp_path / name, name)
        import_dataset(tmp_path / name, tmp_path / f"{name}.replay")
        assert read(tmp_path / f"{name}.replay") == read(path)


# Tasks of LeRobot


def tasks(dataset: pathlib.Path) -> tuple[list[str], list[list[str]]]:
    """The task of each row, and those of each episode."""
    table = pq.read_table(dataset / "meta/tasks.parquet")
    texts = dict(zip(table["task_index"].to_pylist(), table["task"].to_pylist(), strict=True))
    rows = pq.read_table(dataset / "data/chunk-000/file-000.parquet")["task_index"].to_pylist()
    each = pq.read_table(dataset / "meta/episodes/chunk-000/file-000.parquet")["tasks"].to_pylist()
    assert json.loads((dataset / "meta/info.json").read_text())["total_tasks"] == len(texts)
    return [texts[number] for number in rows], each


@pytest.mark.parametrize(
    ("columns", "said", "task"),
    [
        (("language_instruction",), "said", None), (("task",), "said", None), (("b", "task"), "said", None),
        ((), "task", None), ((), "language_instruction", None), (("task", "language_instruction"), "said", "task"),
        (("b", "task"), "said", "b"), (("task",), "task", "obs/task"), (("task", "b"), "said", "obs/said"),
    ],
)  # fmt: skip
def test_the_task_is_the_text_of_the_step(
    columns: tuple[str, ...], said: str, task: str | None, path: str, tmp_path: pathlib.Path
) -> None:
    make(path, columns=columns, said=said)
    assert export(path, tmp_path / "out", "lerobot", task=task).lost == {}
    named = task or next((name for name in columns if name != "b"), f"obs/{said}")
    first = 0 if named.startswith("obs/") else columns.index(named)
    wanted = [TEXTS[(at + first) % 7] for at in range(13)]
    rows, each = tasks(tmp_path / "out")
    assert rows == wanted
    assert [{*one} for one in each] == [{*wanted[:5]}, {*wanted[5:6]}, {*wanted[6:]}]
    import_dataset(tmp_path / "out", tmp_path / "back")
    assert read(tmp_path / "back") == read(path)


def test_without_texts_it_is_the_fact(path: str, tmp_path: pathlib.Path) -> None:
    make(path, columns=("b",))
    export(path, tmp_path / "out", "lerobot")
    assert tasks(tmp_path / "out")[1] == [["fact 0"], ["fact 1"], ["fact 2"]]


@pytest.mark.parametrize(
    ("columns", "said"), [(("task", "language_instruction"), "said"), (("task",), "language_instruction")]
)
def test_several_texts_are_refused(columns: tuple[str, ...], said: str, path: str, tmp_path: pathlib.Path) -> None:
    make(path, columns=columns, said=said)
    with pytest.raises(InputError, match=r"both .*language_instruction and .*task can be the tasks.*--task COLUMN"):
        export(path, tmp_path / "out", "lerobot", allow_loss=True)
    assert not (tmp_path / "out").exists()


def test_a_column_that_nothing_else_calls_texts(path: str, tmp_path: pathlib.Path) -> None:
    make(path, origin="", columns=("said",), tokens=((None,), np.int32))
    assert export(path, tmp_path / "out", "lerobot", task="said", allow_loss=True).lost == {
        "values of the ragged column 'tokens'": 13
    }
    assert tasks(tmp_path / "out")[0] == [TEXTS[at % 7] for at in range(13)]


@pytest.mark.parametrize("task", ["count", "obs/at", "nothing"])
def test_a_task_without_texts_is_refused(task: str, path: str, tmp_path: pathlib.Path) -> None:
    make(path)
    with pytest.raises(
        InputError, match=f"task: '{task}' has no texts; those that have are language_instruction, obs/s"
    ):
        export(path, tmp_path / "out", "lerobot", task=task)
    with pytest.raises(InputError, match="parquet datasets have no tasks"):
        export(path, tmp_path / "a.parquet", "parquet", task="language_instruction")


def test_a_dataset_of_lerobots_keeps_its_tasks(path: str, tmp_path: pathlib.Path) -> None:
    """Whatever texts it has, unless they are asked for; its numbers are then a loss."""
    make(tmp_path / "first", columns=("b", "task"))
    export(tmp_path / "first", tmp_path / "set", "lerobot", task="b")
    (tmp_path / "set/meta/diskreplay.json").unlink()  # as others write them
    episodes_of = tmp_path / "set/meta/episodes/chunk-000/file-000.parquet"
    pq.write_table(pq.read_table(episodes_of).drop_columns(["diskreplay/facts"]), episodes_of)
    import_dataset(tmp_path / "set", path)
    assert export(path, tmp_path / "out", "lerobot").lost == {}
    assert tasks(tmp_path / "out") == tasks(tmp_path / "set")
    with pytest.raises(InputError, match=r"numbers 'task_index' of tasks as they came \(13\)"):
        export(path, tmp_path / "other", "lerobot", task="task")
    export(path, tmp_path / "other", "lerobot", task="task", allow_loss=True)
    assert tasks(tmp_path / "other")[0] == [TEXTS[(at + 1) % 7] for at in range(13)]
