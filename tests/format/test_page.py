"""The page docs/format.md itself: its examples are what the package writes, its invariants have no gaps."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import gymnasium
import numpy as np
import pytest

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
    assert all(column["resident"] for column in written[2:])
    for document in (root, ours):
        facts = document["attributes"]["diskreplay"]
        assert (type(facts.pop("checksum")), len(facts["schema"].pop("identity"))) == (int, 16)
    assert root == ours
    fields(record, read(path / "streams" / "0"))
    fields(checkpoint, read(path / "checkpoints" / "c")["attributes"]["diskreplay"])


def test_the_example_of_a_ragged_column_is_what_is_written(tmp_path: pathlib.Path) -> None:
    spaces = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2)
    columns = {"tokens": ((None,), np.int32)}
    dr.ReplayBuffer.create(tmp_path / "a", *spaces, capacity=9, columns=columns).close()
    ours = read(tmp_path / "a")["attributes"]["diskreplay"]
    assert (ours["format_version"], ours["needs"]) == (1, [])
    assert {"ragged": ours["schema"]["ragged"]} == EXAMPLES[3]
    spans = ours["schema"]["columns"][-1]
    assert (spans["name"], spans["shape"], spans["dtype"], spans["resident"]) == ("tokens", [2], "int64", True)


def test_the_array_document_is_the_one_of_section_4(tmp_path: pathlib.Path) -> None:
    folder = store(tmp_path) / "streams" / "0"
    columns = read(folder.parents[1])["attributes"]["diskreplay"]["schema"]["columns"]
    leaf = columns[0] | {"chunk_rows": 1, "shard_rows": 256}
    place = {"name": "place", "shape": [3], "dtype": "int64", "chunk_rows": 1024, "shard_rows": 16384}
    place |= {"codec": "zstd:1", "resident": True}
    for column, path in [
        *((column, folder / column["name"]) for column in columns),
        (leaf, folder / "patches" / "obs"),
        (place, folder / "patches" / "place"),
    ]:
        assert document(column, num_envs=1) == read(path)


def document(column: dict[str, Any], num_envs: int) -> dict[str, Any]:
    """Sections 4.1 and 4.2, filled in by hand."""
    template = json.dumps(EXAMPLES[1])
    shape, size = column["shape"], np.dtype(column["dtype"]).itemsize
    cname, _, level = column["codec"].partition(":")
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
        '"rows"': column["shard_rows"],
        '"num_envs"': num_envs,
        '"shard_rows"': column["shard_rows"],
        '"chunk_rows"': column["chunk_rows"],
        '"E"': num_envs if column["resident"] else 1,
        '"dtype"': column["dtype"],
        '"blosc, section 4.2"': blosc,
    }
    for name, value in values.items():
        template = template.replace(f": {name}", f": {json.dumps(value)}").replace(f"[{name}", f"[{json.dumps(value)}")
        template = template.replace(f", {name}", f", {json.dumps(value)}")
    made = json.loads(template.replace(', "*shape"', "".join(f", {n}" for n in shape)))
    made["dimension_names"] = ["row", "env", *(None for _ in shape)]
    made["fill_value"] = {"b": False, "f": 0.0}.get(np.dtype(column["dtype"]).kind, 0)
    if size == 1:
        del made["codecs"][0]["configuration"]["codecs"][0]["configuration"]
    return made


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
