"""Parquet files that Hugging Face's ``datasets`` reads and writes, and that pandas and polars read."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from formats.roundtrip import CASES, Case, read

import diskreplay as dr
from diskreplay.ops.convert import export, import_dataset

NAMES = (
    "vectors, continuous actions", "vectors, discrete actions", "colour images", "frames to be stacked", "dict",
    "columns", "several environments",
)  # fmt: skip


@pytest.fixture(scope="module")
def datasets() -> Iterator[Any]:
    """Hugging Face's library, which is not to ask the network for anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
        found = pytest.importorskip("datasets", reason="datasets is in the interop extra")
        yield found


def numbers(value: Any) -> np.ndarray:
    """A value as datasets gives it: a number, a list, or an image of Pillow's."""
    return np.asarray(value)


@pytest.mark.parametrize("compression", ["png", "zstd"])
@pytest.mark.parametrize("case", [case for case in CASES if case.name in NAMES], ids=repr)
def test_datasets_reads_it(case: Case, compression: str, datasets: Any, path: str, tmp_path: pathlib.Path) -> None:
    """Every row is a step, and images decode to the same pixels."""
    case.make(path)
    export(path, tmp_path / "a.parquet", "parquet", compression=compression)
    found = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "a.parquet"), split="train", cache_dir=str(tmp_path / "cache")
    )
    episodes = read(path)
    assert found.num_rows == sum(map(len, episodes))
    row = 0
    for number, episode in enumerate(episodes):
        for step in range(len(episode)):
            values = found[row]
            assert (values["episode_index"], values["frame_index"], values["index"]) == (number, step, row)
            for flag in ("terminated", "truncated"):
                assert values[f"next.{flag}"] == getattr(episode, flag)[step]
            assert np.float32(values["next.reward"]) == episode.reward[step]
            last = step == len(episode) - 1
            assert values["next.done"] == last
            for leaf in episode.obs:
                key = leaf.removeprefix("obs").replace("/", ".")
                for name, wanted in (
                    (f"observation{key}", episode.obs[leaf][step, -1]),
                    (f"final_observation{key}", episode.next_obs[leaf][step, -1] if last else None),
                ):
                    if wanted is None:
                        assert values[name] is None
                    elif isinstance(values[name], bytes):
                        assert values[name] == wanted.tobytes()
                    else:
                        np.testing.assert_array_equal(numbers(values[name]).astype(wanted.dtype), wanted)
            for leaf, wanted in episode.action.items():
                np.testing.assert_array_equal(numbers(values[leaf.replace("/", ".")]), wanted[step])
            for name, wanted in episode.extra.items():
                np.testing.assert_array_equal(numbers(values[name]), wanted[step])
            row += 1


def with_pandas(file: pathlib.Path) -> list[dict[str, Any]]:
    pandas = pytest.importorskip("pandas", reason="pandas is in the interop extra")
    found: list[dict[str, Any]] = pandas.read_parquet(file).to_dict("records")
    return found


def with_polars(file: pathlib.Path) -> list[dict[str, Any]]:
    polars = pytest.importorskip("polars", reason="polars is in the interop extra")
    found: list[dict[str, Any]] = polars.read_parquet(file).to_dicts()
    return found


def nested(value: Any) -> np.ndarray:
    """A value of several axes, which pandas gives as arrays of arrays."""
    return np.stack([nested(part) for part in value]) if np.ndim(value) and len(value) else np.asarray(value)


@pytest.mark.parametrize("rows_of", [with_pandas, with_polars])
@pytest.mark.parametrize("case", [case for case in CASES if case.name in (*NAMES[:2], "matrices")], ids=repr)
def test_tables_read_it(case: Case, rows_of: Any, path: str, tmp_path: pathlib.Path) -> None:
    case.make(path)
    export(path, tmp_path / "a.parquet", "parquet")
    rows, at = rows_of(tmp_path / "a.parquet"), 0
    for episode in read(path):
        for step in range(len(episode)):
            values, last = rows[at], step == len(episode) - 1
            np.testing.assert_array_equal(nested(values["observation"]), episode.obs["obs"][step, 0])
            np.testing.assert_array_equal(nested(values["action"]), episode.action["action"][step])
            assert np.float32(values["next.reward"]) == episode.reward[step]
            assert (values["final_observation"] is not None) == values["next.done"] == last
            if last:
                np.testing.assert_array_equal(nested(values["final_observation"]), episode.next_obs["obs"][step, 0])
            at += 1
    assert at == len(rows)


@pytest.mark.parametrize("shards", [1, 3])
def test_what_datasets_writes(shards: int, datasets: Any, path: str, tmp_path: pathlib.Path) -> None:
    """A dataset with the features of LeRobot's, made and written by the library, in several files."""
    rng = np.random.default_rng(0)
    lengths = (4, 1, 6)
    rows = [
        {
            "observation.state": rng.normal(size=3).astype(np.float32),
            "observation.image": rng.integers(0, 256, (5, 6, 3), np.uint8),
            "observation.grid": rng.integers(0, 9, (2, 3)).astype(np.int32),
            "action": rng.normal(size=2).astype(np.float32), "episode_index": number, "frame_index": step,
            "timestamp": np.float32(step / 10), "next.reward": np.float32(rng.normal()),
            "next.done": step == length - 1, "index": 0, "task": f"push {number}",
        }
        for number, length in enumerate(lengths)
        for step in range(length)
    ]  # fmt: skip
    features = datasets.Features(
        {
            "observation.state": datasets.List(datasets.Value("float32"), length=3),
            "observation.image": datasets.Image(), "observation.grid": datasets.Array2D((2, 3), "int32"),
            "action": datasets.List(datasets.Value("float32")), "episode_index": datasets.Value("int64"),
            "frame_index": datasets.Value("int64"), "timestamp": datasets.Value("float32"),
            "next.reward": datasets.Value("float32"), "next.done": datasets.Value("bool"),
            "index": datasets.Value("int64"), "task": datasets.Value("string"),
        }
    )  # fmt: skip
    made = datasets.Dataset.from_list(rows, features=features)
    for number in range(shards):
        (tmp_path / "data").mkdir(exist_ok=True)
        made.shard(shards, number, contiguous=True).to_parquet(tmp_path / "data" / f"train-{number}.parquet")
    imported = import_dataset(tmp_path / "data", path)
    assert (imported.format, imported.transitions, imported.ignored) == ("parquet", len(rows), ("index",))
    episodes = read(path)
    assert [len(episode) for episode in episodes] == list(lengths)
    for what, leaf, key in (
        ("obs", "obs/state", "observation.state"), ("obs", "obs/image", "observation.image"),
        ("obs", "obs/grid", "observation.grid"), ("action", "action", "action"), ("extra", "timestamp", "timestamp"),
    ):  # fmt: skip
        values = np.concatenate([getattr(episode, what)[leaf] for episode in episodes])
        wanted = np.stack([row[key] for row in rows])
        np.testing.assert_array_equal(values[:, -1] if what == "obs" else values, wanted)
    with dr.ReplayBuffer.open(path, mode="r", ragged="lists") as rb:
        texts = rb.get(rb.items()).extra["task"]
        assert [text.tobytes().decode("utf-32-le") for text in texts] == [row["task"] for row in rows]
    for what, key in (("reward", "next.reward"), ("terminated", "next.done")):
        values = np.concatenate([getattr(episode, what) for episode in episodes])
        np.testing.assert_array_equal(values, [row[key] for row in rows])
