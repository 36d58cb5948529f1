"""Parquet: what lies on disk, read by pyarrow alone, sources of others, and what is refused."""

from __future__ import annotations

import io
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from formats.roundtrip import CASES, read, refused
from gymnasium import spaces
from PIL import Image

import diskreplay as dr
from diskreplay import formats
from diskreplay.errors import InputError
from diskreplay.formats import parquet
from diskreplay.ops.convert import export, import_dataset

pa = pytest.importorskip("pyarrow", reason="pyarrow is in the arrow extra")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is in the arrow extra")

CASE = {case.name: case for case in CASES}


def png(value: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(value).save(out, "png")
    return out.getvalue()


def pixels(image: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(image)) as opened:
        assert opened.format == "PNG"
        return np.asarray(opened)


def test_the_layout(path: str, tmp_path: pathlib.Path) -> None:
    CASE["colour images"].make(path)
    export(path, tmp_path / "a.parquet", "parquet")
    file = pq.ParquetFile(tmp_path / "a.parquet")
    names = ["observation", "action", "next.reward", "next.terminated", "next.truncated", "final_observation"]
    names += ["episode_index", "frame_index", "index", "next.done"]
    assert file.schema_arrow.names == names
    features = json.loads(file.schema_arrow.metadata[b"huggingface"])["info"]["features"]
    assert features == {"observation": {"_type": "Image"}, "final_observation": {"_type": "Image"}}
    rows = file.read().to_pylist()
    at = 0
    for number, episode in enumerate(read(path)):
        for step in range(len(episode)):
            row, last = rows[at], step == len(episode) - 1
            assert (row["index"], row["episode_index"], row["frame_index"], row["next.done"]) == (
                at,
                number,
                step,
                last,
            )
            np.testing.assert_array_equal(pixels(row["observation"]["bytes"]), episode.obs["obs"][step, 0])
            assert (row["final_observation"] is None) is not last
            if last:
                np.testing.assert_array_equal(pixels(row["final_observation"]["bytes"]), episode.next_obs["obs"][-1, 0])
            assert row["action"] == episode.action["action"][step]
            at += 1
    assert at == len(rows)


def test_rows_are_written_in_groups(path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no reader has to hold a whole column."""
    monkeypatch.setattr(parquet, "GROUP_BYTES", 1)
    CASE["several environments"].make(path)
    export(path, tmp_path / "a.parquet", "parquet")
    file = pq.ParquetFile(tmp_path / "a.parquet")
    assert file.num_row_groups == 3  # a block for each environment
    steps = [len(episode) for episode in read(path)]
    rows = file.read(["episode_index", "frame_index"]).to_pydict()
    assert rows["episode_index"] == [number for number, length in enumerate(steps) for _ in range(length)]
    assert rows["frame_index"] == [step for length in steps for step in range(length)]


def test_raw_bytes(path: str, tmp_path: pathlib.Path) -> None:
    CASE["frames to be stacked"].make(path)
    export(path, tmp_path / "a.parquet", "parquet", compression="none")
    table = pq.read_table(tmp_path / "a.parquet")
    assert b"huggingface" not in table.schema.metadata
    frames = np.concatenate([episode.obs["obs"][:, -1] for episode in read(path)])
    assert table["observation"].to_pylist() == [frame.tobytes() for frame in frames]


def test_names_that_meet(path: str, tmp_path: pathlib.Path) -> None:
    """Columns of the user that are called as ours are kept beside them."""
    names = ("episode_index", "next.reward", "observation", "final_observation")
    with dr.ReplayBuffer.create(
        path, spaces.Box(-1, 1, (2,)), spaces.Discrete(2), capacity=9, columns=dict.fromkeys(names, np.int64)
    ) as buffer:
        for step in range(3):
            extra = {name: 10 * step + place for place, name in enumerate(names)}
            buffer.add(np.zeros(2), 0, 1.0, np.zeros(2), step == 2, False, **extra)
    export(path, tmp_path / "a.parquet", "parquet")
    import_dataset(tmp_path / "a.parquet", tmp_path / "b.replay")
    for place, name in enumerate(names):
        assert read(str(tmp_path / "b.replay"))[0].extra[name].tolist() == [place, 10 + place, 20 + place]


def test_final_observations_are_no_lists_of_a_fixed_size(path: str, tmp_path: pathlib.Path) -> None:
    """pyarrow before 26 neither writes nor reads nulls among those; elsewhere a fixed size says more."""
    CASE["dict"].make(path)
    export(path, tmp_path / "a.parquet", "parquet")
    schema = pq.read_schema(tmp_path / "a.parquet")
    joints = pa.list_(pa.float64(), 2), pa.list_(pa.field("element", pa.float64()))
    found = tuple(schema.field(f"{name}observation.arm.joints").type for name in ("", "final_"))
    assert found == joints
    rows = pq.read_table(tmp_path / "a.parquet").to_pylist()
    at = 0
    for episode in read(path):
        at += len(episode)
        assert [row["final_observation.arm.joints"] for row in rows[at - len(episode) : at - 1]] == [None] * (
            len(episode) - 1
        )
        final = np.asarray(rows[at - 1]["final_observation.arm.joints"])
        np.testing.assert_array_equal(final, episode.next_obs["obs/arm/joints"][-1, 0])


EARLIER = pathlib.Path(__file__).parent / "earlier" / "lists_of_fixed_size.parquet"
"""Two episodes of three steps as earlier versions wrote them, with pyarrow 26: step ``n`` observed ``n``."""


def test_files_of_earlier_versions_are_read(path: str) -> None:
    """As far as pyarrow reads them; an older one says which does."""
    if int(pa.__version__.split(".")[0]) < 26:
        with pytest.raises(InputError, match=r"pyarrow .* reads no missing values .* pip install 'pyarrow>=26'"):
            import_dataset(EARLIER, path)
        return
    import_dataset(EARLIER, path)
    for number, episode in enumerate(read(path)):
        for leaf in ("obs/grid", "obs/speed"):
            for name, first in (("obs", 0), ("next_obs", 1)):
                values = getattr(episode, name)[leaf][:, 0].reshape(3, -1)[:, 0]
                assert values.tolist() == [10 * number + first + step for step in range(3)]


def table(**changes: Any) -> dict[str, Any]:
    """Six steps of two episodes, as others write them."""
    columns: dict[str, Any] = {
        "observation": [[float(row), 1.0] for row in range(6)], "action": [0, 1, 2, 0, 1, 2],
        "reward": [1.0] * 6, "terminated": [False] * 5 + [True], "episode_index": [0, 0, 0, 1, 1, 1],
    }  # fmt: skip
    return {name: values for name, values in (columns | changes).items() if values is not None}


def save(target: pathlib.Path, columns: dict[str, Any]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), target)


KINDS: list[tuple[dict[str, Any], list[tuple[int, bool, bool]]]] = [
    # The first episode ends in no flag: its last row has no next observation, and is no transition.
    ({}, [(2, False, False), (3, True, False)]),
    ({"truncated": [False, False, True, False, False, False]}, [(2, False, True), (3, True, False)]),
    ({"terminated": None}, [(2, False, True), (2, False, True)]),
    ({"terminated": None, "done": [False, False, True] * 2}, [(3, True, False), (3, True, False)]),
    ({"terminated": [0, 0, 1, 0, 0, 1], "episode_index": None}, [(3, True, False), (3, True, False)]),
    ({"reward": None}, [(2, False, False), (3, True, False)]),
]


@pytest.mark.parametrize(("changes", "episodes"), KINDS, ids=[str(changes) for changes, _ in KINDS])
def test_sources_of_others(
    changes: dict[str, Any], episodes: list[tuple[int, bool, bool]], path: str, tmp_path: pathlib.Path
) -> None:
    save(tmp_path / "a.parquet", table(**changes))
    assert formats.guess(tmp_path / "a.parquet").name == "parquet"
    import_dataset(tmp_path / "a.parquet", path)
    found = read(path)
    assert [(len(episode), episode.terminated[-1], episode.truncated[-1]) for episode in found] == episodes
    assert found[-1].obs["obs"][:, 0, 0].tolist() == list(range(3, 3 + len(found[-1])))
    assert found[0].reward.tolist() == [0.0 if "reward" in changes else 1.0] * len(found[0])


def test_images_without_a_description(path: str, tmp_path: pathlib.Path) -> None:
    """Binary columns and structs that hold images, and a column of text."""
    frames = np.random.default_rng(0).integers(0, 256, (6, 4, 5, 3), np.uint8)
    images = [png(frame) for frame in frames]
    columns = {
        "observation": None,
        "observation.a": images,
        "observation.b": [{"bytes": i, "path": "x"} for i in images],
    }
    save(tmp_path / "a.parquet", table(**columns, task=["push"] * 6, **{"next.success": [True] * 6}))
    assert import_dataset(tmp_path / "a.parquet", path).ignored == ()
    with dr.ReplayBuffer.open(path, mode="r") as rb:
        assert rb.provenance == {"parquet": {"text": ["task"]}}
    found = read(path)
    for leaf in ("obs/a", "obs/b"):
        np.testing.assert_array_equal(found[1].obs[leaf][:, 0], frames[3:])
    assert found[1].extra["next.success"].all()


def test_lerobots_directory(path: str, tmp_path: pathlib.Path) -> None:
    """Files below ``data`` in the order of their names, and nothing else."""
    for number, rows in enumerate((slice(0, 2), slice(2, 6))):
        save(tmp_path / "a" / "data" / f"{number}.parquet", {k: v[rows] for k, v in table().items()})
    save(tmp_path / "a" / "meta" / "tasks.parquet", {"task": ["push"]})
    assert import_dataset(tmp_path / "a", path).format == "parquet"
    assert [len(episode) for episode in read(path)] == [2, 3]


BLACK = png(np.zeros((2, 2), np.uint8))
BAD: list[tuple[dict[str, Any], str]] = [
    ({"observation": None}, "must have the columns observation and action"),
    ({"action": [{"x": 1}] * 6}, "must have the columns observation and action"),
    ({"episode_index": None, "terminated": None}, "nothing tells where episodes end"),
    ({"observation": [[1.0], [1.0, 2.0], *([[1.0]] * 4)]}, "several lengths"),
    ({"observation": [[1.0, None]] * 6}, "values missing"),
    ({"action": [1, 2, None, 1, 2, 3]}, "without a value"),
    ({"terminated": [0, 1, 2, 0, 0, 0]}, "each 0 or 1"),
    ({"observation": [b"no image"] * 6}, "no image"),
    ({"observation": [{"bytes": BLACK, "path": None}] * 5 + [{"bytes": None, "path": "a.png"}]}, "not in the file"),
    ({"observation": [png(np.zeros((2, 2 + row), np.uint8)) for row in range(6)]}, "several sizes"),
    ({"observations": [[1.0, 2.0]] * 6}, "both are its obs"),
    ({"observation.part": [1.0] * 6}, "is a part of"),
    ({"final_observation": [[1.0, 2.0]] * 6}, "where none belongs"),
    ({"final_observation": [None] * 5 + [[1.0, 2.0]]}, "without a value"),
]


@pytest.mark.parametrize(("changes", "said"), BAD, ids=[said for _, said in BAD])
def test_bad_sources_leave_nothing(changes: dict[str, Any], said: str, tmp_path: pathlib.Path) -> None:
    save(tmp_path / "a.parquet", table(**changes))
    refused(tmp_path / "a.parquet", said, "parquet")


@pytest.mark.parametrize("size", [4, 200, 900])
def test_a_file_that_ends_too_early(size: int, tmp_path: pathlib.Path) -> None:
    save(tmp_path / "a.parquet", table())
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:size])
    refused(tmp_path / "a.parquet", "damaged", "parquet")


def test_no_parquet_at_all(path: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"something else")
    assert not parquet.recognise(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="is no Parquet file"):
        import_dataset(tmp_path / "a.parquet", path, "parquet")
