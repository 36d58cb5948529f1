"""Where steps come from goes along: out, in, and from store to store."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import gymnasium
import h5py
import pytest
from formats.roundtrip import NO_END, store

import diskreplay as dr
from diskreplay import formats
from diskreplay.errors import InputError
from diskreplay.formats.core.format import Holds
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.selection import Selection, open_selected
from diskreplay.ops.combine import merge, split
from diskreplay.ops.convert import export, import_dataset

TERMINATED = (True, False)
LENGTHS = [(4, TERMINATED), (3, TERMINATED), (2, TERMINATED)]


def told(**more: Any) -> dict[str, Any]:
    return {**dr.provenance(gymnasium.make("Pendulum-v1", g=9.0)), **more}


def provenance(path: Any) -> dict[str, Any]:
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        return buffer.provenance


@pytest.mark.parametrize("name", [each.name for each in formats.every() if each.read and each.write])
def test_every_format_carries_it(name: str, path: str, tmp_path: pathlib.Path) -> None:
    store(lengths=LENGTHS, provenance=told(note="é [bold]"))(path)
    export(path, tmp_path / "out", name, allow_loss=True, selection=Selection(episodes=slice(0, 2)))
    import_dataset(tmp_path / "out", tmp_path / "back.replay", name)
    assert provenance(tmp_path / "back.replay") == told(note="é [bold]")


def test_rlds_has_it_beside(path: str, tmp_path: pathlib.Path) -> None:
    store(lengths=LENGTHS, provenance=told())(path)
    assert export(path, tmp_path / "out", "rlds").lost == {}
    assert json.loads((tmp_path / "out" / "provenance.json").read_text()) == told()


def test_a_format_without_a_place_loses_it(path: str) -> None:
    store(lengths=LENGTHS, provenance=told())(path)
    (loss,) = open_selected(path).losses(Holds(provenance=False))
    assert str(loss) == f"facts about where the steps come from ({len(told())})"


def test_copies_keep_it(path: str, tmp_path: pathlib.Path) -> None:
    store(lengths=LENGTHS, provenance=told())(path)
    parts = [tmp_path / "one.replay", tmp_path / "two.replay"]
    split(path, [0.5], parts)
    merge(tmp_path / "both.replay", parts)
    for copy in (*parts, tmp_path / "both.replay"):
        assert provenance(copy) == told()


def test_what_is_merged_has_what_is_common(tmp_path: pathlib.Path) -> None:
    each = [told(versions={"python": "3.11"}), told(versions={"python": "3.12"}), told(versions={"python": "3.11"})]
    paths = [tmp_path / f"{number}.replay" for number in range(4)]
    for path, one in zip(paths, [*each, {}], strict=True):
        store(lengths=LENGTHS, provenance=one)(str(path))
    merge(tmp_path / "three.replay", paths[:3])
    common = {key: value for key, value in told().items() if key != "versions"}
    assert provenance(tmp_path / "three.replay") == {**common, "sources": each[:2]}
    merge(tmp_path / "four.replay", paths)
    assert provenance(tmp_path / "four.replay") == {"sources": [*each[:2], {}]}


def test_minari_and_robomimic_name_the_environment(path: str, tmp_path: pathlib.Path) -> None:
    store(lengths=LENGTHS, provenance=told())(path)
    export(path, tmp_path / "a-v0", "minari")
    metadata = json.loads((tmp_path / "a-v0/data/metadata.json").read_text())
    assert json.loads(metadata["env_spec"]) == told()["env_spec"]
    export(path, tmp_path / "a.hdf5", "robomimic")
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert json.loads(file["data"].attrs["env_args"]) == {
            "env_name": "Pendulum-v1", "type": 2, "env_kwargs": {"g": 9.0}
        }  # fmt: skip


@pytest.mark.parametrize("odd", [{"env_spec": "text", "env_id": 3}, {"env_spec": {"kwargs": [1]}}, {"any": "thing"}])
def test_what_is_no_environment_does_no_harm(odd: dict[str, Any], path: str, tmp_path: pathlib.Path) -> None:
    store(lengths=LENGTHS, provenance=odd)(path)
    for name in ("minari", "robomimic"):
        export(path, tmp_path / name, name)
        import_dataset(tmp_path / name, tmp_path / f"{name}.replay")
        assert provenance(tmp_path / f"{name}.replay") == odd


def without_ours(path: pathlib.Path, **changes: Any) -> None:
    """Takes our description out of a dataset of Minari's, as others write it."""
    file = path / "data" / "metadata.json"
    metadata = json.loads(file.read_text())
    del metadata["diskreplay"]
    file.write_text(json.dumps({**metadata, **changes}))


def test_minari_of_others(path: str, tmp_path: pathlib.Path) -> None:
    store(lengths=LENGTHS, provenance=told())(path)
    export(path, tmp_path / "a-v0", "minari")
    without_ours(tmp_path / "a-v0", author=["somebody"])
    import_dataset(tmp_path / "a-v0", tmp_path / "b.replay")
    assert provenance(tmp_path / "b.replay") == {
        "env_id": "Pendulum-v1", "env_spec": told()["env_spec"],
        "minari": {"dataset_id": "a-v0", "author": ["somebody"]},
    }  # fmt: skip


@pytest.mark.parametrize("odd", ["no JSON", 7, '["a", "list"]', '{"no": "id"}', '{"id": 1e400}', "NaN", None])
def test_an_environment_that_cannot_be_read_is_left_out(odd: Any, path: str, tmp_path: pathlib.Path) -> None:
    store(lengths=LENGTHS)(path)
    export(path, tmp_path / "a-v0", "minari")
    without_ours(tmp_path / "a-v0", env_spec=odd)
    import_dataset(tmp_path / "a-v0", tmp_path / "b.replay")
    assert provenance(tmp_path / "b.replay") == {"minari": {"dataset_id": "a-v0"}}


LIFT = {"env_name": "Lift", "type": 1, "env_kwargs": {"robots": "Panda"}}
NAMELESS = {"env_name": "", "type": 2, "env_kwargs": {}}


@pytest.mark.parametrize(
    ("env_args", "known"),
    [
        (json.dumps(LIFT), {"env_id": "Lift", "env_args": LIFT}), (json.dumps(NAMELESS), {"env_args": NAMELESS}),
        *((odd, {}) for odd in ("no JSON", "[1]", 3, "NaN", '{"a": NaN}')),  # what cannot be read is left out
    ],
)  # fmt: skip
def test_robomimic_of_others(env_args: Any, known: dict[str, Any], path: str, tmp_path: pathlib.Path) -> None:
    store(lengths=LENGTHS)(path)
    export(path, tmp_path / "a.hdf5", "robomimic")
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        del file["diskreplay"]
        file["data"].attrs["env_args"] = env_args
    import_dataset(tmp_path / "a.hdf5", tmp_path / "b.replay")
    assert provenance(tmp_path / "b.replay") == known


@pytest.mark.parametrize("odd", ["text", [1], {"a": float("nan")}])
def test_a_forged_description_is_refused(odd: Any, path: str) -> None:
    store(lengths=[(1, NO_END)])(path)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        document = Layout.of(buffer.schema).to_json()
    assert "provenance" not in document
    with pytest.raises(InputError, match="provenance must be"):
        Layout.from_json({**document, "provenance": odd}, "the dataset")
