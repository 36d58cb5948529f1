"""Parquet: what lies on disk, read by pyarrow alone, sources of others, and what is refused."""

from __future__ import annotations

import io
import itertools
import json
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from formats.roundtrip import CASES, read, refused
from gymnasium import spaces
from PIL import Image

import diskreplay as dr
from diskreplay import formats
from diskreplay.errors import InputError
from diskreplay.formats import parquet
from diskreplay.formats.core.choice import Choice
from diskreplay.ops.convert import export, import_dataset

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
            assert [row[key] for key in ("index", "episode_index", "frame_index", "next.done")] == [
                at,
                number,
                step,
                last,
            ]
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


def test_final_observations_are_no_lists_of_a_fixed_size(path: str, tmp_path: pathlib.Path) -> None:
    """pyarrow before 26 neither writes nor reads nulls among those; elsewhere a fixed size says more."""
    CASE["dict"].make(path)
    export(path, tmp_path / "a.parquet", "parquet")
    schema = pq.read_schema(tmp_path / "a.parquet")
    joints = pa.list_(pa.float64(), 2), pa.list_(pa.field("element", pa.float64()))
    assert tuple(schema.field(f"{name}observation.arm.joints").type for name in ("", "final_")) == joints
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
    # The first episode ends in no flag, so it was cut off: its last row has no next observation, and is no transition.
    ({}, [(2, False, True), (3, True, False)]),
    ({"truncated": [False, False, True, False, False, False]}, [(2, False, True), (3, True, False)]),
    ({"terminated": None}, [(2, False, True), (2, False, True)]),
    ({"terminated": None, "done": [False, False, True] * 2}, [(3, True, False), (3, True, False)]),
    ({"terminated": [0, 0, 1, 0, 0, 1], "episode_index": None}, [(3, True, False), (3, True, False)]),
    ({"reward": None}, [(2, False, True), (3, True, False)]),
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


def steps(lengths: tuple[int, ...] = (3, 4), first: int = 0) -> list[dict[str, Any]]:
    """Rows of episodes from ``first`` on, with columns that a table may be sorted by."""
    return [
        {"observation": [float(10 * number + step)], "action": 0, "next.done": step == length - 1,
         "episode_index": number, "frame_index": step}
        for number, length in enumerate(lengths, first) for step in range(length)
    ]  # fmt: skip


def put(target: pathlib.Path, rows: list[dict[str, Any]], **kinds: Any) -> None:
    save(target, {key: pa.array([row[key] for row in rows], kinds.get(key)) for key in rows[0]})


ROWS = steps()
UNSORTED: list[tuple[str, list[dict[str, Any]], str]] = [
    (
        "episodes in turn",
        [ROWS[at] for at in (0, 3, 1, 4, 2, 5, 6)],
        "row 2 has episode_index 0 and frame_index 1, after",
    ),
    ("last steps first", ROWS[::-1], "row 0 has episode_index 1 and frame_index 3, after nothing"),
    ("the other first", [*ROWS[3:], *ROWS[:3]], "row 4 has episode_index 0 and frame_index 0, after"),
    ("steps reversed", [*ROWS[:3], *ROWS[:2:-1]], "row 3 has episode_index 1 and frame_index 3"),
    ("two steps exchanged", [*ROWS[:4], ROWS[5], ROWS[4], ROWS[6]], "row 4 has episode_index 1 and frame_index 2"),
    ("a step twice", [*ROWS[:2], *ROWS[1:]], "row 2 has episode_index 0 and frame_index 1, after"),
    ("a step missing", [*ROWS[:4], *ROWS[5:]], "row 4 has episode_index 1 and frame_index 2, after"),
    ("the first step missing", [*ROWS[:3], *ROWS[4:]], "row 3 has episode_index 1 and frame_index 1, after"),
    ("an episode missing", [*ROWS, *steps((2,), 3)], "row 7 has episode_index 3 and frame_index 0, after"),
    ("episodes again", [*ROWS, *ROWS], "row 7 has episode_index 0 and frame_index 0, after episode_index 1"),
]


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint8(), pa.float32()], ids=str)
@pytest.mark.parametrize(("rows", "said"), [each[1:] for each in UNSORTED], ids=[each[0] for each in UNSORTED])
def test_rows_out_of_order_are_refused(rows: Any, said: str, kind: Any, tmp_path: pathlib.Path) -> None:
    put(tmp_path / "a.parquet", rows, episode_index=kind, frame_index=kind)
    how = r'sort_by\(\[\("episode_index", "ascending"\), \("frame_index", "ascending"\)\]\)'
    refused(tmp_path / "a.parquet", f"{said}.*{how}", "parquet")


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint8(), pa.float64()], ids=str)
def test_a_sorted_table_comes_in(kind: Any, path: str, tmp_path: pathlib.Path) -> None:
    """As the error says it is sorted; numbers of episodes may begin anywhere."""
    rows = steps((3, 4, 1), 7)
    order = np.random.default_rng(0).permutation(len(rows))
    put(tmp_path / "a.parquet", [rows[at] for at in order], episode_index=kind, frame_index=kind)
    refused(tmp_path / "a.parquet", "must ascend without gaps")
    found = pq.read_table(tmp_path / "a.parquet")
    pq.write_table(
        found.sort_by([("episode_index", "ascending"), ("frame_index", "ascending")]), tmp_path / "a.parquet"
    )
    assert import_dataset(tmp_path / "a.parquet", path).episodes == 3
    assert [len(episode) for episode in read(path)] == [3, 4, 1]


@pytest.mark.parametrize("without", ["episode_index", "frame_index"])
def test_one_of_the_numbers_is_enough_to_see_the_order(without: str, path: str, tmp_path: pathlib.Path) -> None:
    rows = [{key: value for key, value in row.items() if key != without} for row in ROWS]
    put(tmp_path / "a.parquet", rows)
    assert import_dataset(tmp_path / "a.parquet", path).episodes == 2
    put(tmp_path / "a.parquet", rows[::-1])
    with pytest.raises(InputError, match="must ascend without gaps"):
        import_dataset(tmp_path / "a.parquet", tmp_path / "b.replay")


def test_numbers_of_steps_alone_tell_where_episodes_begin(path: str, tmp_path: pathlib.Path) -> None:
    put(tmp_path / "a.parquet", [{key: row[key] for key in ("observation", "action", "frame_index")} for row in ROWS])
    assert import_dataset(tmp_path / "a.parquet", path).episodes == 2
    assert [(len(episode), episode.truncated[-1]) for episode in read(path)] == [(2, True), (3, True)]


@pytest.mark.parametrize("format", ["npz", "d4rl", "parquet"])
def test_columns_called_as_arrays_that_become_none(format: str, path: str, tmp_path: pathlib.Path) -> None:
    """Or as ours, which are kept beside them."""
    names = ("final_obs", "offsets", "frame_index", "done", "last", "episode_index", "next.reward", "observation",
             "final_observation")  # fmt: skip
    with dr.ReplayBuffer.create(
        path, spaces.Box(-1, 1, (2,)), spaces.Discrete(2), capacity=9, columns=dict.fromkeys(names, np.int64)
    ) as buffer:
        for step in range(3):
            extra = {name: 10 * step + place for place, name in enumerate(names)}
            buffer.add(np.zeros(2), 0, 1.0, np.zeros(2), step == 2, False, **extra)
    export(path, tmp_path / "out", format)
    import_dataset(tmp_path / "out", tmp_path / "b.replay")
    assert {name: values.tolist() for name, values in read(str(tmp_path / "b.replay"))[0].extra.items()} == {
        name: [place, 10 + place, 20 + place] for place, name in enumerate(names)
    }


def test_what_the_caller_says_goes_before_what_an_export_left(path: str, tmp_path: pathlib.Path) -> None:
    """Also of raw bytes, whose shape only the export knows; the name of a group stands for all below it."""
    CASE["frames to be stacked"].make(path)
    export(path, tmp_path / "a.parquet", "parquet", compression="none")
    given = {"obs/eye": "observation", "final_obs/eye": "final_observation"}
    with formats.get("parquet").read(tmp_path / "a.parquet", Choice(map=given)) as source:
        assert list(source.layout.obs) == ["obs/eye"]
        eyes = np.concatenate([steps.obs["obs/eye"] for steps in source.blocks()])
    np.testing.assert_array_equal(eyes, np.concatenate([episode.obs["obs"][:, -1] for episode in read(path)]))
    CASE["dict"].make(tmp_path / "b.replay")
    export(tmp_path / "b.replay", tmp_path / "b.parquet", "parquet")
    given = {"obs": "observation.arm", "final_obs": "final_observation.arm"}
    with formats.get("parquet").read(tmp_path / "b.parquet", Choice(map=given)) as source:
        assert list(source.layout.obs) == ["obs/joints", "obs/grip"]


def test_numbers_that_are_not_whole_are_refused(tmp_path: pathlib.Path) -> None:
    for wrong in (0.5, float("nan")):
        put(tmp_path / "a" / "a.parquet", [*ROWS[:-1], {**ROWS[-1], "frame_index": wrong}], frame_index=pa.float64())
        refused(tmp_path / "a" / "a.parquet", "frame_index must be one whole number a row", "parquet")


def test_files_in_natural_order(path: str, tmp_path: pathlib.Path) -> None:
    """The numbers in their names count, over which episodes and steps go on; files that are not read are named."""
    rows = steps((3, 4, 5, 2, 6, 1))
    cuts = [0, 2, 3, 7, 9, 10, 14, 15, 16, 17, 19, 21]
    for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
        put(tmp_path / "a" / f"part-{number}" / "x2.parquet", rows[start:stop])
    for name in ("README.md", "part-3/.x.parquet", "part-3/_metadata", "deep/er/x.parquet", "episode_000003.mp4"):
        (tmp_path / "a" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "a" / name).write_text("x")
    (tmp_path / "a/episode_000004.mp4").write_text("x")
    assert import_dataset(tmp_path / "a", path).ignored == (
        "README.md", "deep/er/x.parquet", "episode_*.mp4 (2)", "part-3/.x.parquet", "part-3/_metadata",
    )  # fmt: skip
    assert [len(episode) for episode in read(path)] == [3, 4, 5, 2, 6, 1]
    assert np.concatenate([e.obs["obs"][:, 0, 0] for e in read(path)]).tolist() == [
        row["observation"][0] for row in rows
    ]
    folder = tmp_path / "in" / "b"
    put(folder / "part-2.parquet", rows[7:])
    put(folder / "part-10.parquet", rows[:7])
    refused(folder, r"part-10\.parquet': row 0 has episode_index 0 and frame_index 0, after epi")
    (folder / "part-11.parquet").write_bytes(b"something else")
    refused(folder, r"part-11\.parquet' is damaged")


def test_what_is_not_read_is_named(path: str, tmp_path: pathlib.Path) -> None:
    """Columns of other types, also those that only a later file has, and an index that the order does not tell."""
    more = {"when": pa.array([0] * 6, pa.timestamp("s")), "index": [0] * 6, "who": pa.array([["a"]] * 6)}
    save(tmp_path / "a" / "1.parquet", table(**more))
    save(tmp_path / "a" / "2.parquet", table(**more, episode_index=[2] * 6, odd=pa.array([{"x": 1}] * 6)))
    assert import_dataset(tmp_path / "a", path).ignored == ("index", "odd", "when", "who")
    save(tmp_path / "a" / "2.parquet", table(**more, episode_index=[2] * 6, late=[1.0] * 6))
    with pytest.raises(InputError, match=r"1\.parquet' has no column 'late', as others have; leave it out"):
        import_dataset(tmp_path / "a", tmp_path / "b.replay")
    with formats.get("parquet").read(tmp_path / "a", Choice(columns=("obs",))) as source:
        assert source.names.unread() == ("index", "late", "when", "who")


def test_only_what_is_chosen_is_looked_at(tmp_path: pathlib.Path) -> None:
    columns = {"observation": None, "observation.a": [1.0] * 6, "observation.b": [b"no image"] * 6, "x": [1.0] * 6}
    save(tmp_path / "a.parquet", table(**columns, tools=pa.array([["a"]] * 6)))
    read_chosen = formats.get("parquet").read
    with pytest.raises(InputError, match="no image"), read_chosen(tmp_path / "a.parquet"):
        pass
    for chosen, obs, extra in ((("obs/a",), ["obs/a"], []), (("obs/a", "x"), ["obs/a"], ["x"])):
        with read_chosen(tmp_path / "a.parquet", Choice(columns=chosen)) as source:
            assert (list(source.layout.obs), list(source.layout.columns)) == (obs, extra)
            assert source.names.unread() == ("observation.b", "tools", *([] if extra else ["x"]))
            assert sum(map(len, source.blocks())) == 5
    for chosen, said in (
        (("obs/c",), "no column 'obs/c' to choose; there are obs/a, obs/b, x"),
        (("obs/a", "tools"), "column 'tools' holds list<element: string>, neither numbers, texts nor images"),
    ):
        with pytest.raises(InputError, match=said), read_chosen(tmp_path / "a.parquet", Choice(columns=chosen)):
            pass


def test_only_what_is_chosen_of_our_own(path: str, tmp_path: pathlib.Path) -> None:
    CASE["dict"].make(path)
    export(path, tmp_path / "a.parquet", "parquet")
    with formats.get("parquet").read(tmp_path / "a.parquet", Choice(columns=("obs/arm",))) as source:
        assert list(source.layout.obs) == ["obs/arm/joints", "obs/arm/grip"]
        found = np.concatenate([steps.obs["obs/arm/joints"] for steps in source.blocks()])
    assert np.array_equal(found, np.concatenate([episode.obs["obs/arm/joints"][:, 0] for episode in read(path)]))


def test_our_names_of_their_columns(tmp_path: pathlib.Path) -> None:
    columns = {"observation": None, "state": [[1.0, 2.0]] * 6, "cmd": [0.5] * 6, "observation.b": [2.0] * 6,
               "terminated": None, "next.done": [False, False, True] * 2}  # fmt: skip
    save(tmp_path / "a.parquet", table(**columns))
    given = {"obs/joints": "state", "action": "cmd", "truncated": "next.done"}
    with formats.get("parquet").read(tmp_path / "a.parquet", Choice(map=given)) as source:
        assert [*source.layout.obs, *source.layout.action] == ["obs/joints", "action"]
        assert source.names.unread() == ("action", "observation.b")
        assert source.notes == ()
        blocks = list(source.blocks())
    assert [np.concatenate([each.action["action"] for each in blocks]).tolist()] == [[0.5] * 4]
    assert sum(int(each.terminated.sum()) for each in blocks) == 0
    with formats.get("parquet").read(tmp_path / "a.parquet", Choice(map={"obs": "state"})) as source:
        assert list(source.layout.obs) == ["obs"]
        assert source.names.unread() == ("observation.b",)
    with (
        pytest.raises(
            InputError,
            match=r"there is no array 'stat' for obs; there are action, cmd, .*, reward, state",
        ),
        formats.get("parquet").read(tmp_path / "a.parquet", Choice(map={"obs": "stat"})),
    ):
        pass


def test_done_alone_is_said(tmp_path: pathlib.Path) -> None:
    done = {"terminated": None, "next.done": [False, False, True] * 2}
    for given, notes in (
        (done, ("'next.done' alone ends episodes: as terminated; --map truncated=next.done says otherwise",)),
        ({**done, "truncated": [False, False, True] * 2}, ()),
        ({}, ()),
    ):
        save(tmp_path / "a.parquet", table(**given))
        with formats.get("parquet").read(tmp_path / "a.parquet") as source:
            assert source.notes == notes


BLACK = png(np.zeros((2, 2), np.uint8))
BAD: list[tuple[dict[str, Any], str]] = [
    ({"observation": None}, r"'observation' is missing \(--map obs=NAME.*there are action \(6,\) int64.*from_arrays\("),
    ({"action": None}, r"'action' is missing \(--map action=NAME.*there are episode_index"),
    ({"action": [{"x": 1}] * 6}, "column 'action' holds struct<x: int64>, neither numbers, texts nor images"),
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


def test_no_parquet_at_all(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"something else")
    assert not parquet.FORMATS[0].recognise(tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", "is no Parquet file", "parquet")
