"""The page docs/format.md itself: its examples are what the package writes, its invariants have no gaps."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from format import specwriter

import diskreplay as dr

HERE = pathlib.Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "format.md").read_text()
EXAMPLES = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]


def store(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "s.replay"
    space = gymnasium.spaces.Box(0, 255, (84, 84), np.uint8)
    with dr.ReplayBuffer.create(
        path, space, gymnasium.spaces.Discrete(6), capacity=1_000_000, frame_stack=4, seed=0
    ) as buffer:
        frame = np.zeros((84, 84), np.uint8)
        for step in range(9):
            buffer.add(frame, 2, 0.0, frame, False, step == 8)
        buffer.checkpoint("c", {"step": 9})
    return path


def read(path: pathlib.Path) -> dict[str, Any]:
    return json.loads((path / "zarr.json").read_bytes())


def fields(example: Any, ours: Any) -> None:
    """An example names the fields that are written, and gives their values the right types."""
    if isinstance(example, dict) and "..." not in example:
        assert example.keys() == ours.keys()
        for key in example:
            fields(example[key], ours[key])
    elif isinstance(example, bool | str | None):
        assert type(example) is type(ours)


@pytest.mark.own_thresholds
def test_the_example_documents_are_what_is_written(tmp_path: pathlib.Path) -> None:
    root, _, record, _, checkpoint = EXAMPLES
    path = store(tmp_path)
    ours = read(path)
    fields(root, ours)
    columns = root["attributes"]["diskreplay"]["schema"].pop("columns")
    written = ours["attributes"]["diskreplay"]["schema"].pop("columns")
    assert columns[:2] == written[:2]
    assert [column["name"] for column in written[2:]] == ["reward", "terminated", "truncated", "valid", "start"]
    for document in (root, ours):
        facts = document["attributes"]["diskreplay"]
        assert (type(facts.pop("checksum")), len(facts["schema"].pop("identity"))) == (int, 16)
    assert root == ours
    stream = read(path / "streams" / "0")
    tables = stream["attributes"]["diskreplay"].pop("tables")
    assert tables.keys() <= {*record["attributes"]["diskreplay"].pop("tables"), "info", "later"}
    fields(record, stream)
    fields(checkpoint, read(path / "checkpoints" / "c")["attributes"]["diskreplay"])


def test_the_example_of_a_ragged_column_is_what_is_written(tmp_path: pathlib.Path) -> None:
    spaces = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2)
    columns = {"tokens": ((None,), np.int32)}
    dr.ReplayBuffer.create(tmp_path / "a", *spaces, capacity=9, columns=columns).close()
    ours = read(tmp_path / "a")["attributes"]["diskreplay"]
    assert {"ragged": ours["schema"]["ragged"]} == EXAMPLES[3]
    assert ours["schema"]["columns"][-1] == {"name": "tokens", "shape": [2], "dtype": "int64"}


def test_the_array_document_is_the_one_of_section_4(tmp_path: pathlib.Path) -> None:
    folder = store(tmp_path) / "streams" / "0"
    columns = read(folder.parents[1])["attributes"]["diskreplay"]["schema"]["columns"]
    record = read(folder)["attributes"]["diskreplay"]
    shapes = {column["name"]: (column["shape"], column["dtype"]) for column in columns}
    shapes |= {"patches/obs": shapes["obs"], "patches/place": ([3], "int64"), "cuts/place": ([3], "int64")}
    assert shapes.keys() >= record["arrays"].keys() >= {column["name"] for column in columns}
    for path, entry in record["arrays"].items():
        assert document(*shapes[path], entry) == read(folder / path)


def document(shape: list[int], dtype: str, entry: list[Any]) -> dict[str, Any]:
    """Sections 4.1 and 4.2, filled in by hand, for one environment and no shard but the record's and those before."""
    shard, _, _, chunk_rows, shard_rows, chunk_envs, codec = entry
    template = json.dumps(EXAMPLES[1])
    size = np.dtype(dtype).itemsize
    cname, _, level = codec.partition(":")
    blosc = {
        "name": "blosc",
        "configuration": {
            "cname": cname,
            "clevel": int(level),
            "shuffle": "shuffle" if size > 1 else "noshuffle",
            "typesize": size,
            "blocksize": 0,
        },
    }
    values = {
        '"rows"': (shard + 1) * shard_rows,
        '"envs"': 1,
        '"shard_rows"': shard_rows,
        '"chunk_rows"': chunk_rows,
        '"chunk_envs"': chunk_envs,
        '"dtype"': dtype,
        '"blosc, section 4.2"': blosc,
    }
    for name, value in values.items():
        template = template.replace(f": {name}", f": {json.dumps(value)}").replace(f"[{name}", f"[{json.dumps(value)}")
        template = template.replace(f", {name}", f", {json.dumps(value)}")
    made = json.loads(template.replace(', "*shape"', "".join(f", {n}" for n in shape)))
    made["dimension_names"] = ["row", "env", *(None for _ in shape)]
    made["fill_value"] = {"b": False, "f": 0.0}.get(np.dtype(dtype).kind, 0)
    if size == 1:
        del made["codecs"][0]["configuration"]["codecs"][0]["configuration"]
    return made


def test_the_example_document_of_an_array_is_what_the_writer_of_the_page_writes() -> None:
    for dtype, shape in (("uint8", [4, 4]), ("float32", []), ("bool", [2])):
        made = specwriter.document(np.empty((0, 1, *shape), dtype), 96, 8, 32, 1, "lz4hc:4")
        assert document(shape, dtype, [2, 0, 0, 8, 32, 1, "lz4hc:4"]) == made


def test_the_invariants_are_numbered_and_cited_rightly() -> None:
    listed = [int(number) for number in re.findall(r"^\| I(\d+) \|", PAGE, re.MULTILINE)]
    assert listed == list(range(1, len(listed) + 1))
    for text in (PAGE, *(path.read_text() for path in HERE.glob("*.py"))):
        assert {int(number) for number in re.findall(r"\bI(\d+)\b", text)} <= set(listed)


def test_sections_that_are_cited_exist() -> None:
    sections = set(re.findall(r"^#+ (\d+(?:\.\d+)?)\.? ", PAGE, re.MULTILINE))
    cited = set(re.findall(r"[Ss]ections? (\d+(?:\.\d+)?)", PAGE))
    cited |= set(re.findall(r"\((\d+\.\d+)[,):]", PAGE + (HERE / "specreader.py").read_text()))
    assert cited <= sections
    assert len(sections) > 30
