"""Ragged columns on their way out and in again: the same to the bit, or named as a loss, or refused."""

from __future__ import annotations

import json
import pathlib
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from formats.roundtrip import leaves, refused
from gymnasium import spaces

import diskreplay as dr
from diskreplay import formats
from diskreplay.errors import InputError
from diskreplay.formats.core import transitions
from diskreplay.ops.convert import export, import_dataset
from diskreplay.ops.verify import verify
from diskreplay.schema.ragged import Lists

CHOICE, VECTOR = spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)
NESTED = spaces.Dict({
    "text": spaces.Text(30, min_length=0), "at": VECTOR,
    "cloud": spaces.Sequence(spaces.Box(-9, 9, (2, 3)), stack=True),
    "graph": spaces.Graph(spaces.Box(0, 1, (3,)), spaces.Discrete(5)),
})  # fmt: skip
ACTION = spaces.Tuple((spaces.Sequence(spaces.Discrete(9)), CHOICE))
COLUMNS: dict[str, Any] = {
    "tokens": ((None,), np.int32), "points": ((None, 3), np.float64), "plain": np.float32, "flags": ((None,), bool),
}  # fmt: skip
HOLD = [each.name for each in formats.every() if each.holds.ragged]
HOLD_TEXT = [each.name for each in formats.every() if each.holds.text and not each.holds.ragged]
HOLD_NOT = [each.name for each in formats.every() if not each.holds.ragged and each.write]


def make(path: Any, obs: Any = NESTED, action: Any = ACTION, columns: Any = COLUMNS, steps: int = 60) -> None:
    """Episodes that end in every way, rows without items, values that are seen again, two environments."""
    rng = np.random.default_rng(5)
    obs.seed(1)
    action.seed(2)
    with dr.ReplayBuffer.create(
        path, obs, action, num_envs=2, capacity=500, columns=columns, chunk_rows=4, shard_rows=16
    ) as rb:
        now = [obs.sample() for _ in range(2)]
        for step in range(steps):
            after = [obs.sample() for _ in range(2)]
            size = int(rng.integers(0, 9)) if step % 7 else 700
            given = {
                "tokens": [rng.integers(-9, 9, size), []], "flags": [rng.random(size) < 0.5] * 2,
                "points": [rng.random((size, 3)), np.zeros((0, 3))], "plain": rng.random(2).astype(np.float32),
            }  # fmt: skip
            ended = rng.random((2, 2)) < 0.15
            rb.add(
                together(obs, now), together(action, [action.sample() for _ in range(2)]), rng.normal(size=2),
                together(obs, after), *ended, **{name: given[name] for name in columns},
            )  # fmt: skip
            now = [obs.sample() if end else kept for end, kept in zip(ended.any(axis=0), after, strict=True)]


def together(space: Any, values: list[Any]) -> Any:
    """Values of environments as ``add`` takes them."""
    if isinstance(space, spaces.Graph):
        nodes = [np.asarray(value.nodes, np.float32) for value in values]
        edges = [() if value.edges is None else value.edges for value in values]
        links = [np.empty((0, 2), np.int32) if v.edge_links is None else v.edge_links.astype(np.int32) for v in values]
        return {"nodes": nodes, "edges": edges, "edge_links": links}
    if isinstance(space, spaces.Dict):
        return {key: together(part, [value[key] for value in values]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(together(part, [value[at] for value in values]) for at, part in enumerate(space.spaces))
    return values if isinstance(space, spaces.Sequence | spaces.Text) else np.stack(values)


def read(path: Any) -> list[dict[str, Any]]:
    """All transitions, episode by episode: of every leaf dtype, shape and bytes."""
    found = []
    with dr.ReplayBuffer.open(path, mode="r", ragged="lists") as rb:
        envs = rb.num_envs
        for e in sorted(rb.episodes, key=lambda e: (e.env, e.start)):
            batch = rb.get(np.arange(e.start, e.stop) * envs + e.env)
            parts = dict(obs=batch.obs, action=batch.action, extra=batch.extra, next_obs=batch.next_obs)
            flat = dict(leaves(parts, ""), reward=batch.reward, ended=np.stack([batch.terminated, batch.truncated], 1))
            for at in range(len(batch.reward)):
                rows = {name: np.asarray(values[at]) for name, values in flat.items()}
                found.append({name: (row.dtype, row.shape, row.tobytes()) for name, row in rows.items()})
    return found


@pytest.mark.long(quick=3)
@pytest.mark.parametrize("block", [1, 1 << 22])
@pytest.mark.parametrize("name", HOLD)
def test_rows_come_back(
    name: str, block: int, path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the size of blocks is, at whose borders next observations are found."""
    for module in ("core.transitions", "core.log_rows", "core.flat", "files.parquet_array"):
        monkeypatch.setattr(f"diskreplay.formats.{module}.BLOCK_BYTES", block)
    make(path, steps=22)
    export(path, tmp_path / "out", name)
    import_dataset(tmp_path / "out", tmp_path / "back", name)
    assert read(tmp_path / "back") == read(path)
    assert verify(tmp_path / "back").ok
    with dr.ReplayBuffer.open(path, mode="r") as one, dr.ReplayBuffer.open(tmp_path / "back", mode="r") as other:
        assert one.schema.observation_space == other.schema.observation_space
        assert one.schema.action_space == other.schema.action_space
        for ragged, again in zip(one.schema.ragged.values(), other.schema.ragged.values(), strict=True):
            assert (ragged.name, ragged.items.dtype, ragged.longest) == (again.name, again.items.dtype, again.longest)
            assert ragged.items.shape == again.items.shape


@pytest.mark.parametrize("name", HOLD)
def test_stores_without_items_come_back(name: str, path: str, tmp_path: pathlib.Path) -> None:
    make(path, VECTOR, CHOICE, {"tokens": ((None,), np.int32)}, steps=0)
    export(path, tmp_path / "out", name)
    import_dataset(tmp_path / "out", tmp_path / "back", name)
    with dr.ReplayBuffer.open(tmp_path / "back", mode="r") as rb:
        assert list(rb.schema.ragged) == ["tokens"]


@pytest.mark.long(quick=3)
@pytest.mark.parametrize("name", HOLD_NOT)
def test_other_formats_name_what_is_lost(name: str, path: str, tmp_path: pathlib.Path) -> None:
    make(path, VECTOR, CHOICE, {"tokens": ((None,), np.int32), "plain": np.float32})
    count = len(read(path))
    with pytest.raises(InputError, match=r"column 'tokens' \(120\)"):
        export(path, tmp_path / "out", name)
    export(path, tmp_path / "out", name, allow_loss=True)
    if formats.get(name).read:
        import_dataset(tmp_path / "out", tmp_path / "back", name)
        with dr.ReplayBuffer.open(tmp_path / "back", mode="r") as rb:
            assert 0 < len(rb) <= count
            assert [column.name for column in rb.schema.extra_columns] == ["plain"] * formats.get(name).holds.columns
    texts = [] if formats.get(name).holds.text else [spaces.Text(9)]
    for number, space in enumerate([spaces.Sequence(VECTOR), *texts]):
        make(tmp_path / str(number), space, CHOICE, {}, steps=5)
        with pytest.raises(InputError, match=r"cannot hold the ragged columns obs; .* npz, npz-episodes, parquet"):
            export(tmp_path / str(number), tmp_path / "other", name, allow_loss=True)
        assert not (tmp_path / "other").exists()


@pytest.mark.long(quick=2)
@pytest.mark.parametrize("block", [1, 1 << 22])
@pytest.mark.parametrize("name", [name for name in HOLD_TEXT if formats.get(name).holds.final_obs])
def test_texts_come_back(
    name: str, block: int, path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of formats that hold texts, and no other ragged values."""
    for module in ("core.transitions", "core.log_rows", "core.flat"):
        monkeypatch.setattr(f"diskreplay.formats.{module}.BLOCK_BYTES", block)
    said = spaces.Text(9, min_length=0, charset="aé\n語🙂")
    observation = spaces.Dict({"said": said, "at": VECTOR, "parts": spaces.Tuple((said, CHOICE))})
    make(path, observation, spaces.Dict({"answer": said, "move": CHOICE}), {"plain": np.float32}, steps=22)
    export(path, tmp_path / "out", name)
    import_dataset(tmp_path / "out", tmp_path / "back", name)
    assert read(tmp_path / "back") == read(path)
    with dr.ReplayBuffer.open(path, mode="r") as one, dr.ReplayBuffer.open(tmp_path / "back", mode="r") as other:
        assert one.schema.observation_space == other.schema.observation_space
        assert one.schema.action_space == other.schema.action_space
        lengths = [[(each.name, each.longest) for each in rb.schema.ragged.values()] for rb in (one, other)]
        assert lengths[0] == lengths[1]


@pytest.mark.parametrize("name", [*HOLD_TEXT, "rlds"])
def test_numbers_that_are_no_text_are_refused(name: str, path: str, tmp_path: pathlib.Path) -> None:
    with dr.ReplayBuffer.create(path, spaces.Text(9), CHOICE, capacity=9) as rb:
        rb.add(np.array([5, 0xD800]), 0, 1.0, "x", True, False)
    with pytest.raises(InputError, match="no text"):
        export(path, tmp_path / "out", name, allow_loss=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_numpy_reads_items_and_offsets(path: str, tmp_path: pathlib.Path) -> None:
    make(path)
    export(path, tmp_path / "a.npz", "npz")
    with dr.ReplayBuffer.open(path, mode="r", ragged="lists") as rb, np.load(tmp_path / "a.npz") as file:
        items = rb.items()
        batch = rb.get(items[np.argsort(items % 2, kind="stable")])
        for key, lists in (("extra/tokens", batch.extra["tokens"]), ("obs/text", batch.obs["text"])):
            np.testing.assert_array_equal(file[key], lists.values)
            np.testing.assert_array_equal(file[f"offsets/{key}"], lists.offsets)
        ends = batch.next_obs["text"][np.flatnonzero(file["last"])]
        np.testing.assert_array_equal(file["final_obs/text"], ends.values)
        np.testing.assert_array_equal(file["offsets/final_obs/text"], ends.offsets)


@pytest.mark.long
def test_others_read_parquet_lists(path: str, tmp_path: pathlib.Path) -> None:
    make(path)
    export(path, tmp_path / "a.parquet", "parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    with dr.ReplayBuffer.open(path, mode="r", ragged="lists") as rb:
        items = rb.items()
        batch = rb.get(items[np.argsort(items % 2, kind="stable")])
    assert table["tokens"].to_pylist() == [row.tolist() for row in batch.extra["tokens"]]
    assert table["observation.cloud"].to_pylist() == [row.tolist() for row in batch.obs["cloud"]]
    assert [row is None for row in table["final_observation.text"].to_pylist()] == [
        not end for end in table["next.done"].to_pylist()
    ]


def arrays(**changes: Any) -> dict[str, Any]:
    given = {
        "obs": np.arange(10.0), "offsets/obs": np.array([0, 3, 3, 10]), "action": np.arange(3),
        "terminated": np.array([False, False, True]), **changes,
    }  # fmt: skip
    return {name: values for name, values in given.items() if values is not None}


def test_archives_of_others_come_in(path: str, tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays(), **{"extra/x": np.arange(4), "offsets/extra/x": np.array([0, 0, 4, 4])})
    import_dataset(tmp_path / "a.npz", path)
    with dr.ReplayBuffer.open(path, mode="r", ragged="lists") as rb:
        batch = rb.get(rb.items())
        assert [row.tolist() for row in batch.obs] == [[0, 1, 2], [], [3, 4, 5, 6, 7, 8, 9]]
        assert [row.tolist() for row in batch.next_obs[:2]] == [[], [3, 4, 5, 6, 7, 8, 9]]
        assert [row.tolist() for row in batch.extra["x"]] == [[], [0, 1, 2, 3], []]
        assert isinstance(rb.schema.observation_space, spaces.Sequence)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"offsets/obs": np.array([0, 4, 3, 10])}, "never back"),
        ({"offsets/obs": np.array([0, 3, 3, 11])}, "from 0 to 10"),
        ({"offsets/obs": np.array([0, 3, 3, 9])}, "from 0 to 10"),
        ({"offsets/obs": np.array([1, 3, 3, 10])}, "from 0 to 10"),
        ({"offsets/obs": np.array([0, -1, 3, 10])}, "never back"),
        ({"offsets/obs": np.array([0, 1 << 63, 3, 10], np.uint64)}, "never back"),
        ({"offsets/obs": np.array([0.0, 3, 3, 10])}, "whole numbers"),
        ({"offsets/obs": np.array([[0, 3, 3, 10]])}, "whole numbers"),
        ({"offsets/obs": np.empty(0, int)}, "whole numbers"),
        ({"offsets/obs": np.int64(3)}, "single value"),
        ({"offsets/obs": np.array([0, 3, 10])}, "ragged lengths"),
        ({"obs": np.float64(3)}, "single value"),
        ({"final_obs": np.zeros(1)}, "not those of obs"),
        ({"next_obs": np.zeros(3)}, "do not fit"),
    ],
)
def test_bad_offsets_leave_nothing(changes: dict[str, Any], said: str, tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays(**changes))
    refused(tmp_path / "a.npz", said, "npz")


def test_a_description_must_fit(path: str, tmp_path: pathlib.Path) -> None:
    """Fixed arrays under a description of ragged ones, and the other way round."""
    make(path, VECTOR, CHOICE, {"tokens": ((None,), np.int32)}, steps=3)
    export(path, tmp_path / "whole.npz", "npz")
    with np.load(tmp_path / "whole.npz") as file:
        whole = dict(file)
    without = {name: values for name, values in whole.items() if name != "offsets/extra/tokens"}
    folder = tmp_path / "in"
    folder.mkdir()
    np.savez(folder / "a.npz", **{**without, "extra/tokens": np.zeros(6, np.int32)})
    refused(folder / "a.npz", "tokens is not ragged", "npz")
    layout = json.loads(str(whole["layout"]))
    del layout["ragged"]
    np.savez(folder / "a.npz", **{**whole, "layout": np.array(json.dumps(layout))})
    refused(folder / "a.npz", "tokens is ragged", "npz")


def test_forged_parquet_lists_leave_nothing(path: str, tmp_path: pathlib.Path) -> None:
    make(path, VECTOR, CHOICE, {"points": ((None, 3), np.float64)}, steps=9)
    export(path, tmp_path / "a.parquet", "parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    at, folder = table.schema.get_field_index("points"), tmp_path / "in"
    folder.mkdir()
    for wrong, said in (
        (pa.array([1.0] * 18), "not lists"),
        (pa.array([[1.0]] * 18), "not of float64"),
        (pa.array([[[1.0] * 3, [1.0] * 2]] * 18), "several lengths"),
        (pa.array([[[1.0, None, 2.0]]] * 18), "values missing"),
        (pa.array([[[1.0] * 3, None]] * 18), "several lengths"),
        (pa.array([None] * 18, pa.list_(pa.list_(pa.float64(), 3))), "without a value"),
        (pa.array([[[1] * 3]] * 18, pa.list_(pa.list_(pa.int32(), 3))), "not of float64"),
    ):
        forged = table.set_column(at, pa.field("points", wrong.type), wrong)
        pq.write_table(forged.replace_schema_metadata(table.schema.metadata), folder / "b.parquet")
        refused(folder / "b.parquet", said, "parquet")


def test_next_observations_of_lists_are_linked() -> None:
    """Its own observation stands in where an episode was terminated; one that goes on loses its last step."""
    lists = Lists(np.arange(6), np.array([0, 1, 1, 3, 6]))
    flags = np.array([False, True, False, False])
    block = transitions.Transitions({"obs": lists}, {}, {}, {}, np.zeros(4), flags, flags & False, flags)
    found = [
        (row.tolist(), bool(last))
        for steps in transitions.with_next_obs([(block, None)])
        for row, last in zip(steps.next_obs["obs"], steps.last, strict=True)
    ]
    assert found == [([], False), ([], True), ([3, 4, 5], True)]


def test_long_rows_are_linked_without_an_index_of_items() -> None:
    """An index of whole numbers would take eight times the bytes of packets, and far longer to follow."""
    lists = Lists(np.zeros(32 << 16, np.uint8), np.arange(33) << 16)
    last = np.arange(32) % 8 == 7
    block = transitions.Transitions({"obs": lists}, {}, {}, {}, np.zeros(32), last, last & False, last)
    tracemalloc.start()
    try:
        found = [len(steps) for steps in transitions.with_next_obs([(block, None)])]
        assert tracemalloc.get_traced_memory()[1] < 3 * lists.values.nbytes
    finally:
        tracemalloc.stop()
    assert sum(found) == 32
