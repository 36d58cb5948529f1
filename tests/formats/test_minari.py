"""Minari's directories, as h5py and json find them, and datasets that come in."""

from __future__ import annotations

import importlib.util
import io
import json
import pathlib
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import PIL.Image
import pyarrow
import pyarrow.ipc
import pytest
from formats.roundtrip import CASES, NESTED, VECTOR, check, read, refused, store
from gymnasium import spaces

import diskreplay as dr
from diskreplay import formats
from diskreplay.errors import InputError
from diskreplay.formats.files.minari_dataset import dataset_id, space_from_json, space_to_json
from diskreplay.ops.convert import export, import_dataset

COLUMNS = next(case for case in CASES if case.columns)
LENGTHS = [4, 6, 3]


def test_the_layout(path: str, tmp_path: pathlib.Path) -> None:
    COLUMNS.make(path)
    episodes = read(path)
    assert export(path, tmp_path / "a-v1", "minari").lost == {}
    metadata = json.loads((tmp_path / "a-v1/data/metadata.json").read_text())
    assert metadata["dataset_id"] == "a-v1"
    assert (metadata["data_format"], metadata["jpeg_encoding"]) == ("hdf5", False)
    assert (metadata["total_episodes"], metadata["total_steps"]) == (len(episodes), sum(map(len, episodes)))
    with h5py.File(tmp_path / "a-v1/data/main_data.hdf5") as file:
        assert set(file) == {f"episode_{number}" for number in range(len(episodes))}
        for number, episode in enumerate(episodes):
            group = file[f"episode_{number}"]
            assert dict(group.attrs) == {"id": number, "total_steps": len(episode)}
            np.testing.assert_array_equal(group["observations"][:-1], episode.obs["obs"][:, 0])
            np.testing.assert_array_equal(group["observations"][1:], episode.next_obs["obs"][:, 0])
            np.testing.assert_array_equal(group["actions"], episode.action["action"])
            np.testing.assert_array_equal(group["rewards"], episode.reward)
            np.testing.assert_array_equal(group["terminations"], episode.terminated)
            np.testing.assert_array_equal(group["truncations"], episode.truncated)
            for name, values in episode.extra.items():
                np.testing.assert_array_equal(group[f"infos/{name}"][1:], values)
                assert not group[f"infos/{name}"][0].any()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(np.float32([-np.inf, -0.1]), np.float32([3.3, np.inf])), spaces.Box(0, 255, (3, 4), np.uint8),
        spaces.Discrete(7, start=-3), spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [-2, 3]]),
        spaces.MultiBinary(5), spaces.MultiBinary((2, 3)), NESTED, spaces.Tuple((NESTED, VECTOR)),
        spaces.Text(9, min_length=2, charset="xyé"),
    ],
)  # fmt: skip
def test_spaces(space: spaces.Space[Any]) -> None:
    assert space_from_json(json.loads(json.dumps(space_to_json(space)))) == space


def test_names(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    for path, name in (
        ("elsewhere/pong-v3", "pong-v3"), ("root/pong-v3", "pong-v3"), ("root/pong", "pong-v0"),
        ("root/atari/pong-v3", "atari/pong-v3"), ("root/atari/.pong-v3.tmp-0123456789abcdef/pong-v3", "atari/pong-v3"),
        ("root/my.games/pong-v3", "pong-v3"), ("root/a b", "a_b-v0"),
    ):  # fmt: skip
        assert dataset_id(tmp_path / path) == name


# In


def jpeg(frames: np.ndarray) -> list[np.ndarray]:
    """Frames as Minari encodes them."""
    found = []
    for frame in frames:
        file = io.BytesIO()
        PIL.Image.fromarray(frame).save(file, format="JPEG")
        found.append(np.frombuffer(file.getvalue(), np.uint8))
    return found


def decoded(data: np.ndarray) -> np.ndarray:
    return np.asarray(PIL.Image.open(io.BytesIO(data.tobytes())))


def episodes(lengths: list[int] = LENGTHS) -> list[dict[str, Any]]:
    """Arrays of episodes by path, the last of each truncated."""
    rng = np.random.default_rng(0)
    found = []
    for count in lengths:
        found.append(
            {
                "observations": rng.normal(size=(count + 1, 3)), "actions": rng.integers(0, 4, count),
                "rewards": rng.normal(size=count), "terminations": np.zeros(count, bool),
                "truncations": np.arange(count) == count - 1, "infos/speed": rng.normal(size=count + 1),
                "infos/body/force": rng.normal(size=(count + 1, 2)).astype(np.float32),
            }
        )  # fmt: skip
    return found


def made(
    path: pathlib.Path, arrays: list[dict[str, Any]], observation_space: Any = None, demo: int = 1,
    metadata: dict[str, Any] | None = None, **changes: Any,
) -> None:  # fmt: skip
    """A dataset of the storage "hdf5", with ``changes`` in one episode."""
    space = observation_space or spaces.Box(-np.inf, np.inf, (3,), np.float64)
    described = {
        "total_episodes": len(arrays), "total_steps": sum(len(one["rewards"]) for one in arrays), "data_format": "hdf5",
        "observation_space": json.dumps(space_to_json(space)), "author": ["somebody"],
        "action_space": json.dumps(space_to_json(spaces.Discrete(4))), "dataset_id": "made-v0",
        "minari_version": "0.5.0",
        **(metadata or {}),
    }  # fmt: skip
    (path / "data").mkdir(parents=True)
    described = {key: value for key, value in described.items() if value is not None}
    (path / "data/metadata.json").write_text(json.dumps(described))
    with h5py.File(path / "data/main_data.hdf5", "w") as file:
        for number, one in enumerate(arrays):
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "total_steps": len(one["rewards"])})
            for key, values in {**one, **(changes if number == demo else {})}.items():
                if isinstance(values, list):  # encoded images
                    group.create_dataset(key, data=values, dtype=h5py.vlen_dtype(np.uint8))
                elif values is not None:
                    group.create_dataset(key, data=values)


def as_arrow(path: pathlib.Path, arrays: list[dict[str, Any]]) -> None:
    """The same dataset in the storage "arrow", its images as bytes."""

    def column(values: Any, count: int) -> Any:
        if isinstance(values, list):
            return pyarrow.array([one.tobytes() for one in values])
        values = np.concatenate([values, values[: count + 1 - len(values)]])
        items = pyarrow.array(values.reshape(-1))
        return items if values.ndim == 1 else pyarrow.FixedSizeListArray.from_arrays(items, values[0].size)

    described = json.loads((path / "data/metadata.json").read_text())
    (path / "data/metadata.json").write_text(json.dumps({**described, "data_format": "arrow"}))
    (path / "data/main_data.hdf5").unlink()
    for number, one in enumerate(arrays):
        count = len(one["rewards"])
        columns = {key: column(values, count) for key, values in one.items() if "/" not in key}
        body = pyarrow.StructArray.from_arrays([column(one["infos/body/force"], count)], names=["force"])
        columns["infos"] = pyarrow.StructArray.from_arrays([column(one["infos/speed"], count), body], ["speed", "body"])
        batch = pyarrow.RecordBatch.from_pydict(columns)
        (path / "data" / str(number)).mkdir()
        with pyarrow.ipc.new_file(str(path / "data" / str(number) / "part-0.arrow"), batch.schema) as file:
            file.write_batch(batch)
        (path / "data" / str(number) / "metadata.json").write_text(json.dumps({"id": number, "total_steps": count}))


STORAGES = [lambda path, arrays: None, as_arrow]


@pytest.mark.parametrize("store_as", STORAGES, ids=["hdf5", "arrow"])
def test_what_somebody_recorded(store_as: Callable[..., None], path: str, tmp_path: pathlib.Path) -> None:
    arrays = episodes()
    made(tmp_path / "a", arrays)
    store_as(tmp_path / "a", arrays)
    result = import_dataset(tmp_path / "a", path)
    assert (result.transitions, result.episodes, result.dropped, result.ignored) == (13, 3, 0, ("infos of resets",))
    for episode, one in zip(read(path), arrays, strict=True):
        np.testing.assert_array_equal(episode.obs["obs"][:, 0], one["observations"][:-1])
        np.testing.assert_array_equal(episode.next_obs["obs"][:, 0], one["observations"][1:])
        np.testing.assert_array_equal(episode.action["action"], one["actions"])
        np.testing.assert_array_equal(episode.reward, one["rewards"])
        np.testing.assert_array_equal(episode.truncated, one["truncations"])
        np.testing.assert_array_equal(episode.extra["speed"], one["infos/speed"][1:])
        np.testing.assert_array_equal(episode.extra["body.force"], one["infos/body/force"][1:])
    import_dataset(tmp_path / "a/data", f"{path}2")  # the directory inside is taken, too
    with dr.ReplayBuffer.open(f"{path}2", mode="r") as buffer:
        assert buffer.schema.observation_space == spaces.Box(-np.inf, np.inf, (3,), np.float64)
        assert buffer.schema.action_space == spaces.Discrete(4)


@pytest.mark.parametrize("store_as", STORAGES, ids=["hdf5", "arrow"])
@pytest.mark.parametrize("shape", [(36, 40, 3), (36, 40)])
@pytest.mark.parametrize("flat", [False, True], ids=["frames that differ", "frames of one size"])
def test_jpeg_is_decoded(
    flat: bool, shape: tuple[int, ...], store_as: Callable[..., None], path: str, tmp_path: pathlib.Path
) -> None:
    rng = np.random.default_rng(1)
    arrays = episodes()
    for one in arrays:
        frames = rng.integers(0, 256, (len(one["rewards"]) + 1, *shape), np.uint8)
        if flat:
            frames[:] = frames[:1]
        one["observations"] = jpeg(frames)
    in_hdf5 = [{**one, "observations": np.stack(one["observations"])} if flat else one for one in arrays]
    made(tmp_path / "a", in_hdf5, spaces.Box(0, 255, shape, np.uint8))
    store_as(tmp_path / "a", arrays)
    import_dataset(tmp_path / "a", path)
    for episode, one in zip(read(path), arrays, strict=True):
        frames = np.stack([decoded(data) for data in one["observations"]])
        np.testing.assert_array_equal(episode.obs["obs"][:, 0], frames[:-1])
        np.testing.assert_array_equal(episode.next_obs["obs"][:, 0], frames[1:])


def test_a_flag_before_the_end_ends_an_episode(path: str, tmp_path: pathlib.Path) -> None:
    arrays = episodes()
    made(tmp_path / "a", arrays, terminations=np.arange(6) == 2)
    assert import_dataset(tmp_path / "a", path).dropped == 0
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        ends = [(e.length, e.terminated, e.truncated) for e in buffer.episodes]
        assert ends == [(4, False, True), (3, True, False), (3, False, True), (3, False, True)]
        np.testing.assert_array_equal(buffer.get(np.arange(13)).next_obs[4:10], arrays[1]["observations"][1:])


def test_arrays_of_another_dtype_than_their_space(path: str, tmp_path: pathlib.Path) -> None:
    """Nothing is rounded: the space is taken in the dtype of the arrays."""
    arrays = episodes()
    for one in arrays:
        one["actions"] = one["actions"].astype(np.int32)
    made(tmp_path / "a", arrays, spaces.Box(-2, 2, (3,), np.float32))
    import_dataset(tmp_path / "a", path)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        assert buffer.schema.observation_space == spaces.Box(-2, 2, (3,), np.float64)
        assert buffer.schema.action_space.dtype == np.int32
    np.testing.assert_array_equal(read(path)[0].obs["obs"][:, 0], arrays[0]["observations"][:-1])


@pytest.mark.parametrize("store_as", STORAGES, ids=["hdf5", "arrow"])
def test_what_is_not_read_is_named(store_as: Callable[..., None], path: str, tmp_path: pathlib.Path) -> None:
    arrays = episodes()
    told = {"eval_env_spec": "{}", "ref_min_score": 0.5, "ref_max_score": None}
    made(tmp_path / "a", arrays, metadata=told)
    with h5py.File(tmp_path / "a/data/main_data.hdf5", "r+") as file:
        file["episode_1"].attrs["options/low"] = 0.5
    store_as(tmp_path / "a", arrays)
    of_episode = tmp_path / "a/data/1/metadata.json"
    if of_episode.exists():
        of_episode.write_text(json.dumps({**json.loads(of_episode.read_text()), "options": {"low": 0.5}}))
    options = "data/*/metadata.json/options (1)" if of_episode.exists() else "episode_*.attrs/options/low (1)"
    named = ["data/metadata.json/eval_env_spec", "data/metadata.json/ref_min_score", "infos of resets", options]
    assert import_dataset(tmp_path / "a", path).ignored == tuple(sorted(named))


def test_the_origin_goes_on(path: str, tmp_path: pathlib.Path) -> None:
    """Who made a dataset, and how, stands in the metadata of one that is exported from its store."""
    told = {"algorithm_name": "DQN", "requirements": ["numpy"], "description": "as it was"}
    made(tmp_path / "a", episodes(), metadata=told)
    import_dataset(tmp_path / "a", path)
    export(path, tmp_path / "b-v3", "minari")
    found = json.loads((tmp_path / "b-v3/data/metadata.json").read_text())
    assert {**told, "author": ["somebody"], "dataset_id": "b-v3"}.items() <= found.items()


def test_infos_that_are_no_columns(path: str, tmp_path: pathlib.Path) -> None:
    arrays = episodes()
    for one in arrays:
        one |= {"infos/of_steps": np.arange(len(one["rewards"])), "infos/odd": np.zeros(2), "infos/name": b"text"}
    made(tmp_path / "a", arrays)
    assert import_dataset(tmp_path / "a", path).ignored == (
        "episode_*/infos/name (3)", "episode_*/infos/odd (3)", "infos of resets",
    )  # fmt: skip
    np.testing.assert_array_equal(read(path)[2].extra["of_steps"], [0, 1, 2])


def test_infos_of_steps_alone_leave_nothing_unread(path: str, tmp_path: pathlib.Path) -> None:
    arrays = episodes()
    for one in arrays:
        for name in [name for name in one if name.startswith("infos/")]:
            one[name] = one[name][1:]
    made(tmp_path / "a", arrays)
    assert import_dataset(tmp_path / "a", path).ignored == ()


def test_an_empty_dataset(path: str, tmp_path: pathlib.Path) -> None:
    made(tmp_path / "a", [])
    (tmp_path / "a/data/main_data.hdf5").write_bytes(b"")  # as Minari leaves it
    assert import_dataset(tmp_path / "a", path).transitions == 0
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        assert buffer.schema.observation_space == spaces.Box(-np.inf, np.inf, (3,), np.float64)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"rewards": None}, "the array 'rewards' is missing"),
    ({"observations": None}, "the array 'observations' is missing"),
    ({"actions": None}, "the array 'actions' is missing"),
    ({"infos/speed": None}, "the array 'infos/speed' is missing"),
    ({"observations": np.zeros((6, 3))}, "ragged lengths: obs has 6 entries for 7 steps and the end"),
    ({"observations": np.zeros((7, 4))}, "obs holds float64"),
    ({"actions": np.zeros(5, np.int64)}, "ragged lengths: action has 5"),
    ({"rewards": np.zeros(5)}, "ragged lengths"),
    ({"truncations": np.full(6, 3)}, "truncations must be 6 flags"),
    ({"infos/speed": np.zeros(3)}, "ragged lengths: speed"),
    ({"metadata": {"total_episodes": 4}}, "the group 'episode_3' is missing"),
    ({"metadata": {"total_episodes": "many"}}, "is no description of a dataset"),
    ({"metadata": {"data_format": "parquet"}}, "storage 'parquet', not 'hdf5'; save it as"),
    ({"metadata": {"data_format": "arrow"}}, r"storage 'arrow', not 'hdf5'; name the format minari-arrow"),
    ({"metadata": {"observation_space": None}}, "has no observation_space"),
    ({"metadata": {"observation_space": "{"}}, "observation_space cannot be read"),
    ({"metadata": {"action_space": '{"type": "Sequence"}'}}, "no values of a Sequence space"),
    ({"metadata": {"action_space": '{"type": "Text"}'}}, "action_space cannot be read"),
]


@pytest.mark.parametrize(("changes", "said"), BAD, ids=[said for _, said in BAD])
def test_bad_sources_leave_nothing(changes: dict[str, Any], said: str, tmp_path: pathlib.Path) -> None:
    made(tmp_path / "a", episodes(), **changes)
    refused(tmp_path / "a", said, "minari")


def test_images_that_are_none(tmp_path: pathlib.Path) -> None:
    arrays = episodes()
    for one in arrays:
        one["observations"] = [
            np.frombuffer(b"no image" * number, np.uint8) for number in range(len(one["rewards"]) + 1)
        ]
    made(tmp_path / "a", arrays, spaces.Box(0, 255, (36, 40), np.uint8))
    refused(tmp_path / "a", "something that is no image")


def test_what_is_no_dataset(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a/data").mkdir(parents=True)
    refused(tmp_path / "a", r"no dataset of Minari 0\.5", "minari")
    (tmp_path / "a/data/metadata.json").write_text("[]")
    refused(tmp_path / "a", "no description of a dataset", "minari")
    made(tmp_path / "b", episodes())
    (tmp_path / "b/data/main_data.hdf5").write_bytes(b"nothing")
    refused(tmp_path / "b", "no HDF5 file")


@pytest.mark.parametrize("below", ["", "data", "data/0", "data/0/part-0.parquet"])
@pytest.mark.parametrize("name", [None, "parquet"])
def test_its_parquet_storage_is_named(below: str, name: str | None, path: str, tmp_path: pathlib.Path) -> None:
    """Its rows look like those of the format ``parquet``, which would lose the last step of each episode."""
    CASES[0].make(path)
    made(tmp_path / "a", episodes())
    metadata = tmp_path / "a/data/metadata.json"
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "data_format": "parquet"}))
    (tmp_path / "a/data/0").mkdir()
    export(path, tmp_path / "a/data/0/part-0.parquet", "parquet")
    with pytest.raises(InputError, match=r"is of Minari's storage 'parquet'.*save it as hdf5 or arrow"):
        import_dataset(tmp_path / "a" / below, tmp_path / "b.replay", name)
    metadata.unlink()
    import_dataset(tmp_path / "a/data/0", tmp_path / "b.replay", name)


# Arrow


def test_episodes_that_minari_would_not_read_whole(
    path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CASES[0].make(path)
    monkeypatch.setattr("diskreplay.formats.minari_arrow.BATCH_ROWS", 7)
    with pytest.raises(InputError, match="at most 6 steps, episode 2 has 7"):
        export(path, tmp_path / "out", "minari-arrow")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.replay"]


@pytest.mark.parametrize("compression", ["zstd", "lz4", "none"])
def test_compressions_of_arrow(compression: str, path: str, tmp_path: pathlib.Path) -> None:
    store(NESTED, columns={"log_prob": np.float32, "hidden": ((3,), np.float64)})(path)
    export(path, tmp_path / "out", "minari-arrow", compression=compression)
    import_dataset(tmp_path / "out", tmp_path / "b.replay")
    check(read(tmp_path / "b.replay"), read(path), formats.get("minari-arrow").holds)


def test_damaged_arrow(path: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "in").mkdir()
    CASES[0].make(path)
    export(path, tmp_path / "in/out", "minari-arrow")
    file = tmp_path / "in/out/data/1/part-0.arrow"
    file.write_bytes(file.read_bytes()[:100])
    refused(tmp_path / "in/out", "is damaged")
    file.unlink()
    refused(tmp_path / "in/out", "holds no Arrow file")
    (tmp_path / "in/out/data/1/metadata.json").write_text("{}")
    refused(tmp_path / "in/out", "does not say how many steps")


def test_pyarrow_is_asked_for(path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CASES[0].make(path)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "pyarrow" else found(name, *rest)
    )
    with pytest.raises(
        ModuleNotFoundError, match=r"minari-arrow datasets need pyarrow: pip install 'diskreplay\[arrow\]'"
    ):
        export(path, tmp_path / "out", "minari-arrow")
