"""What is not read of a dataset, by name, and what is chosen, where datasets say themselves what their arrays are."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.ipc
import pytest
from formats import test_rlds_in as rlds
from formats.roundtrip import CASES, TERMINATED, store
from formats.test_dopamine import logs, save
from formats.test_minari import as_arrow, episodes, jpeg, made
from gymnasium import spaces

import diskreplay as dr
from diskreplay import formats
from diskreplay.errors import InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.format import Format, check_choice
from diskreplay.formats.core.names import Names
from diskreplay.formats.core.transitions import whole_episodes
from diskreplay.formats.files import npz_archive
from diskreplay.ops.convert import export, import_dataset

TOLD_BY_THEMSELVES = ("minari", "minari-arrow", "rlds", "dopamine", "store", "lerobot")
PICKLED = np.frombuffer(pickle.dumps({"a": 1}), np.uint8)


def taken(path: pathlib.Path, format: str, *columns: str) -> tuple[Any, tuple[str, ...]]:
    """The steps of a dataset with the chosen columns, or all, as one batch; and the names that were not read."""
    with formats.get(format).read(path, Choice(columns=columns or None)) as source:
        (steps,) = whole_episodes(dataclasses.replace(one, last=one.last & False) for one in source.blocks())
        return steps, source.names.unread()


def test_names_are_read_or_not_in_any_order() -> None:
    names = Names(["a", "b"], lambda name: name.replace("1", "*").replace("2", "*"))
    names.take("b", "c", "x1")
    names.add("b", "c", "d", "x1", "x2", "y1", "y2")
    assert names.unread() == ("a", "d", "x* (1)", "y* (2)")


# Not read


@pytest.fixture(params=["hdf5", "arrow"])
def dataset(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> pathlib.Path:
    made(tmp_path / "a", episodes())
    if request.param == "arrow":
        as_arrow(tmp_path / "a", episodes())
    return tmp_path / "a"


def test_files_of_a_minari_folder(dataset: pathlib.Path) -> None:
    for name in ("README.md", "data/more.npz", "data/1/notes.txt", "data/2/notes.txt", "media/a.mp4"):
        (dataset / name).parent.mkdir(exist_ok=True)
        (dataset / name).write_text("x")
    arrow = (dataset / "data/1/part-0.arrow").exists()
    notes = ("data/*/notes.txt (2)",) if arrow else ("data/1/notes.txt", "data/2/notes.txt")
    _, unread = taken(dataset, "minari-arrow" if arrow else "minari")
    assert unread == ("README.md", *notes, "data/more.npz", "infos of resets", "media/a.mp4")


def test_names_of_minaris_hdf5(tmp_path: pathlib.Path) -> None:
    """Also those that only a later episode has, or one that the metadata do not count."""
    arrays = episodes()
    arrays[2]["infos/late"] = np.zeros(len(arrays[2]["rewards"]))
    arrays[1]["more/deep/er"] = np.zeros(3)
    made(tmp_path / "a", arrays, metadata={"total_episodes": 2})
    with h5py.File(tmp_path / "a/data/main_data.hdf5", "r+") as file:
        file.attrs["made_by"] = "x"
        file["episode_0/observations"].attrs["unit"] = "m"
        file["episode_1/observations"].attrs["unit"] = "m"
        file["episode_1/infos"].attrs["note"] = "x"
        file["mask/train"] = np.arange(2)
        file["episode_1/gone"] = h5py.ExternalLink("none.hdf5", "/x")
        file["episode_0/nothing"] = h5py.SoftLink("/nowhere")
        file["episode_0"].attrs["seed"] = -3
        file["episode_1"].attrs["seed"] = 3
    steps, unread = taken(tmp_path / "a", "minari")
    assert len(steps) == 10
    assert [name for name in unread if "infos/" not in name] == [
        ".attrs/made_by", *(f"episode_*.attrs/{name} (1)" for name in ("id", "seed", "total_steps")),
        "episode_*/actions (1)", "episode_*/gone (1)", "episode_*/infos.attrs/note (1)",
        "episode_*/more/deep/er (1)", "episode_*/nothing (1)", "episode_*/observations (1)",
        "episode_*/observations.attrs/unit (2)", "episode_*/rewards (1)", "episode_*/terminations (1)",
        "episode_*/truncations (1)", "infos of resets", "mask/train",
    ]  # fmt: skip
    assert "episode_*/infos/late (1)" in unread


def test_names_of_minaris_arrow(tmp_path: pathlib.Path) -> None:
    made(tmp_path / "a", episodes())
    as_arrow(tmp_path / "a", episodes())
    for number in (1, 2):
        file = tmp_path / f"a/data/{number}/part-0.arrow"
        table = pyarrow.ipc.open_file(file.read_bytes()).read_all()
        count = table.num_rows
        infos = table["infos"].combine_chunks()
        late = pyarrow.StructArray.from_arrays(
            [*infos.flatten(), pyarrow.array([[1]] * count), pyarrow.array([None] * count, pyarrow.float32())],
            names=["speed", "body", "lists", "missing"],
        )
        table = table.set_column(table.schema.get_field_index("infos"), "infos", late)
        table = table.append_column("words", pyarrow.array(["x"] * count))
        table = table.append_column("rewards", pyarrow.array([1.0] * count))
        with pyarrow.ipc.new_file(str(file), table.schema) as out:
            out.write_table(table)
    described = tmp_path / "a/data/2/metadata.json"
    described.write_text(json.dumps({**json.loads(described.read_text()), "seed": 7, "more": [1], "none": None}))
    _, unread = taken(tmp_path / "a", "minari-arrow")
    assert unread == (
        "data/*/infos/lists (2)", "data/*/infos/missing (2)", "data/*/metadata.json/more (1)",
        "data/*/rewards again (2)", "data/*/words (2)", "infos of resets",
    )  # fmt: skip


def test_parts_of_an_arrow_episode_in_their_order(tmp_path: pathlib.Path) -> None:
    arrays = episodes([30])
    made(tmp_path / "a", arrays)
    as_arrow(tmp_path / "a", arrays)
    whole = tmp_path / "a/data/0/part-0.arrow"
    table = pyarrow.ipc.open_file(whole.read_bytes()).read_all()
    for number in range(12):
        part = table.slice(number * 3, 3 if number < 11 else None)
        with pyarrow.ipc.new_file(str(whole.with_name(f"part-{number}.arrow")), part.schema) as out:
            out.write_table(part)
    steps, unread = taken(tmp_path / "a", "minari-arrow")
    np.testing.assert_array_equal(steps.reward, arrays[0]["rewards"])
    np.testing.assert_array_equal(steps.obs["obs"], arrays[0]["observations"][:-1])
    assert unread == ("infos of resets",)


def test_an_origin_that_provenance_cannot_hold_is_named(tmp_path: pathlib.Path) -> None:
    made(tmp_path / "a", episodes(), metadata={"env_spec": "{", "description": float("nan"), "author": []})
    assert [name for name in taken(tmp_path / "a", "minari")[1] if "json" in name] == [
        f"data/metadata.json/{key}" for key in ("dataset_id", "description", "env_spec")
    ]


def test_names_of_rlds(tmp_path: pathlib.Path) -> None:
    """Also keys of examples that nothing describes, and those of one episode only."""
    dataset = rlds.made(tmp_path, ours=False)
    each = rlds.stored(dataset)
    each[1].features.feature["steps/late"].float_list.value.extend([0.0] * 4)
    each[1].features.feature["steps/reward/deep"].float_list.value.extend([0.0] * 4)
    for one in each:
        one.features.feature["secret"].bytes_list.value.append(b"x")
        one.features.feature["steps/cloud/shape"].int64_list.value.append(1)
        one.features.feature["photo"].bytes_list.value.append(b"no image")
    (dataset / rlds.RECORDS).write_bytes(b"".join(rlds.record(one.SerializeToString()) for one in each))
    document = json.loads((dataset / "features.json").read_text())
    inner = document["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    inner["cloud"] = {"tensor": {"shape": {"dimensions": ["-1", "3", "-1"]}, "dtype": "float32", "encoding": "zlib"}}
    document["featuresDict"]["features"]["photo"] = {"image": {"shape": {"dimensions": []}, "dtype": "uint8"}}
    (dataset / "features.json").write_text(json.dumps(document))
    (dataset / "README.md").write_text("x")
    (dataset / "more").mkdir()
    (dataset / "more/a.txt").write_text("x")
    for name in ("other-train.array_record-00000-of-00002", "other-train.array_record-00001-of-00002"):
        (dataset / name).write_text("x")
    steps, unread = taken(dataset, "rlds")
    assert len(steps) == 7
    assert unread == (
        "README.md", "more/a.txt", "other-train.array_record-*-of-00002 (2)", "photo", "secret", "steps/cloud",
        "steps/late", "steps/reward/deep",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("discounts", "named"), [([1, 1, 1, 0], []), ([1, 0.99, 1, 0], ["steps/discount"]), ([0.9] * 4, ["steps/discount"])]
)
def test_discounts_that_say_more_than_an_end_are_named(
    discounts: list[float], named: list[str], tmp_path: pathlib.Path
) -> None:
    dataset = rlds.made(tmp_path, lengths=[(3, TERMINATED)] * 2)
    rlds.changed(dataset, rlds.values("steps/discount", "float_list", discounts))
    assert list(taken(dataset, "rlds")[1]) == named


def test_a_second_dataset_in_a_folder_of_rlds_is_named(tmp_path: pathlib.Path) -> None:
    dataset = rlds.made(tmp_path)
    (dataset / ("another" + rlds.RECORDS.removeprefix("diskreplay"))).write_bytes((dataset / rlds.RECORDS).read_bytes())
    assert len(taken(dataset, "rlds")[1]) == 1


def test_names_of_dopamine(tmp_path: pathlib.Path) -> None:
    logs(tmp_path / "a", **{"$store$_extra": np.zeros(20), "$store$_later/x".replace("/", "_"): np.ones((20, 2))})
    for name in ("README.md", "online_ckpt.3.gz", "online_ckpt.12.gz", "$store$_action_ckpt.4.gz", "run/events"):
        (tmp_path / "a" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "a" / name).write_bytes(b"x")
    steps, unread = taken(tmp_path / "a", "dopamine")
    assert steps.extra.keys() == {"extra", "later_x"}
    assert unread == ("$store$_action_ckpt.*.gz (1)", "README.md", "online_ckpt.*.gz (2)", "run/events")
    one = tmp_path / "a" / "$store$_observation_ckpt.3.gz"
    assert taken(one, "dopamine")[1] == ()  # a checkpoint: what lies beside it is not of it


def test_names_of_a_store(tmp_path: pathlib.Path) -> None:
    store(columns={"a": np.float32, "b": np.int64})(str(tmp_path / "a.replay"))
    (tmp_path / "a.replay" / "README.md").write_text("x")
    with dr.ReplayBuffer.open(tmp_path / "a.replay") as rb:
        rb.checkpoint("one")
    assert taken(tmp_path / "a.replay", "store")[1] == ("README.md",)
    steps, unread = taken(tmp_path / "a.replay", "store", "obs", "b")
    assert (steps.extra.keys(), unread) == ({"b"}, ("README.md", "a"))


@pytest.mark.parametrize("case", [case for case in CASES if case.columns or case.empty or case.nested_obs], ids=repr)
@pytest.mark.parametrize("format", ["minari", "minari-arrow", "rlds", "dopamine", "store"])
def test_nothing_of_ours_is_unread(format: str, case: Any, path: str, tmp_path: pathlib.Path) -> None:
    if format == "dopamine" and case.nested_obs:
        pytest.skip("dopamine holds no Dict")
    case.make(path)
    with dr.ReplayBuffer.open(path, seed=0) as rb:
        if len(rb.episodes):
            rb.annotate_episode(rb.episodes[0], seed=3, task="x")
    export(path, tmp_path / "out", format, allow_loss=True)
    assert import_dataset(tmp_path / "out", tmp_path / "b.replay").ignored == ()
    (tmp_path / "out" / "README.md").write_text("x")
    assert import_dataset(tmp_path / "out", tmp_path / "c.replay").ignored == ("README.md",)


# Chosen


NESTED_SPACE = spaces.Dict(a=spaces.Box(-9, 9, (2,), np.float64), b=spaces.Box(-9, 9, (1,), np.float64))


def nested(path: pathlib.Path) -> None:
    """A dataset of Minari with two observations."""
    arrays = episodes()
    for one in arrays:
        count = len(one.pop("observations")) - 1
        one |= {"observations/a": np.ones((count + 1, 2)), "observations/b": np.ones((count + 1, 1))}
    made(path, arrays, NESTED_SPACE)


COMPOUND = np.dtype([("x", np.float32), ("y", np.int32)])
ODD: dict[str, Callable[[h5py.Group], object]] = {
    "compound": lambda group: group.create_dataset("odd", data=np.zeros(5, COMPOUND)),
    "over-long": lambda group: group.create_dataset("odd", (1 << 40, 1 << 20), np.float64, chunks=(1, 1 << 10)),
    "of another file": lambda group: group.__setitem__("odd", h5py.ExternalLink("none.hdf5", "/x")),
    "of huge chunks": lambda group: group.create_dataset("odd", (5, 1 << 23), np.float64, chunks=(5, 1 << 23)),
    "texts": lambda group: group.create_dataset("odd", data=["x"] * 5),
    "a pickle": lambda group: group.create_dataset("odd", data=np.void(PICKLED.tobytes())),
    "pickles": lambda group: group.create_dataset(
        "odd", data=[PICKLED[:at] for at in range(5)], dtype=h5py.vlen_dtype(np.uint8)
    ),
    "nothing": lambda group: group.create_dataset("odd", data=h5py.Empty("f")),
}


@pytest.mark.parametrize("place", ["infos", "observations", "more"])
@pytest.mark.parametrize("kind", ODD)
def test_what_of_minari_is_left_out_is_not_looked_at(kind: str, place: str, tmp_path: pathlib.Path) -> None:
    nested(tmp_path / "a")
    with h5py.File(tmp_path / "a/data/main_data.hdf5", "r+") as file:
        for number in range(3):
            ODD[kind](file.require_group(f"episode_{number}/{place}"))
    steps, unread = taken(tmp_path / "a", "minari", "obs/b", "speed")
    assert (steps.obs.keys(), steps.extra.keys(), len(steps)) == ({"obs/b"}, {"speed"}, 13)
    names = ["infos/body/force", f"{place}/odd", "observations/a"]
    assert unread == tuple(sorted([*(f"episode_*/{name} (3)" for name in names), "infos of resets"]))
    if place == "infos":
        with pytest.raises(InputError, match=r"odd"):
            taken(tmp_path / "a", "minari", "obs", "odd")


@pytest.mark.parametrize("kind", [kind for kind in ODD if kind != "texts"])
def test_an_info_that_cannot_be_a_column_is_named(kind: str, tmp_path: pathlib.Path) -> None:
    """It keeps no dataset out, whether it can be opened or not."""
    made(tmp_path / "a", episodes())
    with h5py.File(tmp_path / "a/data/main_data.hdf5", "r+") as file:
        for number in range(3):
            ODD[kind](file[f"episode_{number}/infos"])
    steps, unread = taken(tmp_path / "a", "minari")
    assert (steps.extra.keys(), len(steps)) == ({"speed", "body.force"}, 13)
    assert unread == ("episode_*/infos/odd (3)", "infos of resets")


def test_an_episode_is_known_by_its_number_as_minari_writes_it(tmp_path: pathlib.Path) -> None:
    made(tmp_path / "a", episodes())
    with h5py.File(tmp_path / "a/data/main_data.hdf5", "r+") as file:
        file["episode_01/rewards"] = np.full(6, 9.0)
    steps, unread = taken(tmp_path / "a", "minari")
    np.testing.assert_array_equal(steps.reward, np.concatenate([one["rewards"] for one in episodes()]))
    assert unread == ("episode_01/rewards", "infos of resets")


def test_what_of_minaris_observations_is_left_out_is_not_looked_at(tmp_path: pathlib.Path) -> None:
    nested(tmp_path / "a")
    with h5py.File(tmp_path / "a/data/main_data.hdf5", "r+") as file:
        del file["episode_1/observations/a"]
        file["episode_2/observations/a"][0] = np.nan
        del file["episode_0/observations/a"]
        file["episode_0/observations/a"] = np.zeros(3, COMPOUND)
    steps, unread = taken(tmp_path / "a", "minari", "obs/b", "body.force")
    assert (len(steps), steps.extra.keys()) == (13, {"body.force"})
    assert unread == ("episode_*/infos/speed (3)", "episode_*/observations/a (2)", "infos of resets")


def test_what_of_arrow_is_left_out_is_not_looked_at(tmp_path: pathlib.Path) -> None:
    made(tmp_path / "a", episodes())
    as_arrow(tmp_path / "a", episodes())
    for number in range(3):
        file = tmp_path / f"a/data/{number}/part-0.arrow"
        table = pyarrow.ipc.open_file(file.read_bytes()).read_all()
        count = table.num_rows
        buffers = [None, pyarrow.py_buffer(np.arange(count + 1, dtype="i4")), pyarrow.py_buffer(b"\xff" * count)]
        bad = pyarrow.Array.from_buffers(pyarrow.string(), count, buffers)
        infos = pyarrow.StructArray.from_arrays(
            [*table["infos"].combine_chunks().flatten(), pyarrow.array([PICKLED.tobytes()] * count), bad],
            names=["speed", "body", "blob", "bad"],
        )
        table = table.set_column(table.schema.get_field_index("infos"), "infos", infos)
        with pyarrow.ipc.new_file(str(file), table.schema) as out:
            out.write_table(table)
    steps, unread = taken(tmp_path / "a", "minari-arrow", "obs", "speed")
    assert (len(steps), steps.extra.keys()) == (13, {"speed"})
    assert unread == (
        "data/*/infos/bad (3)", "data/*/infos/blob (3)", "data/*/infos/body/force (3)", "infos of resets",
    )  # fmt: skip
    for odd in ("blob", "bad"):
        with pytest.raises(InputError, match=r"no image|is damaged"):
            taken(tmp_path / "a", "minari-arrow", "obs", odd)


def test_what_of_rlds_is_left_out_is_not_looked_at(tmp_path: pathlib.Path) -> None:
    for ours in (True, False):
        folder = tmp_path / str(ours)
        folder.mkdir()
        dataset = rlds.made(folder, ours=ours, columns={"tokens": ((), np.uint8), "kept": np.float32})
        rlds.changed(dataset, rlds.values("steps/observation/camera", "bytes_list", [b"no image"] * 2))
        rlds.changed(dataset, rlds.values("steps/tokens", "bytes_list", [b"x"]))
        steps, unread = taken(dataset, "rlds", "obs/at", "kept")
        assert (steps.obs.keys(), steps.extra.keys(), len(steps)) == ({"obs/at"}, {"kept"}, 7)
        assert unread == ("steps/observation/camera", "steps/tokens")
        for odd in ("obs/camera", "tokens"):
            with pytest.raises(InputError, match=r"camera|tokens"):
                taken(dataset, "rlds", "obs/at", odd)


def test_features_that_meet_are_apart_where_one_is_chosen(tmp_path: pathlib.Path) -> None:
    dataset = rlds.made(tmp_path, ours=False)
    document = json.loads((dataset / "features.json").read_text())
    inner = document["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    number = {"tensor": {"shape": {}, "dtype": "float32", "encoding": "none"}}
    inner |= {"a.b": number, "a": {"featuresDict": {"features": {"b": number}}}}
    (dataset / "features.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"would be one column of a store, 'a\.b'"):
        taken(dataset, "rlds")
    assert taken(dataset, "rlds", "obs")[0].extra == {}


def test_what_of_dopamine_is_left_out_is_not_looked_at(tmp_path: pathlib.Path) -> None:
    rows = np.where(np.isin(np.arange(20), [0, 1, 2, 9, 10, 11]), 0, np.arange(20))  # but for padding
    logs(tmp_path / "a", **{"$store$_kept": rows})
    odd = {"pickled": np.array([{}] * 20), "short": np.zeros(3), "single": np.array(1), "none": b"no gzip"}
    for name, values in odd.items():
        file = tmp_path / "a" / f"$store$_{name}_ckpt.3.gz"
        file.write_bytes(values) if isinstance(values, bytes) else save(file, values)
    steps, unread = taken(tmp_path / "a", "dopamine", "obs", "kept")
    assert steps.extra["kept"].tolist() == [*range(3, 9), *range(12, 14)]
    assert unread == tuple(f"$store$_{name}_ckpt.*.gz (1)" for name in sorted(odd))
    for name in odd:
        with pytest.raises(InputError, match=name):
            taken(tmp_path / "a", "dopamine", "obs", name)


def test_chosen_columns_of_our_own(path: str, tmp_path: pathlib.Path) -> None:
    """The layout that an export left is that of the chosen columns, too, and the store has just these."""
    store(NESTED_SPACE, columns={"x": np.float32, "y": ((3,), np.float64)})(path)
    for format in ("minari", "minari-arrow", "rlds", "store"):
        export(path, tmp_path / format, format)
        steps, unread = taken(tmp_path / format, format, "obs/a", "y")
        assert (steps.obs.keys(), steps.next_obs.keys(), steps.extra.keys()) == ({"obs/a"}, {"obs/a"}, {"y"})
        assert len(unread) == 2
        assert all(name.partition(" ")[0].endswith(("/b", "x")) for name in unread)


@pytest.mark.parametrize("format", ["minari", "minari-arrow", "rlds", "dopamine", "store"])
@pytest.mark.parametrize("ours", [True, False])
def test_a_name_that_is_not_there_is_refused(format: str, ours: bool, path: str, tmp_path: pathlib.Path) -> None:
    store(columns={"speed": np.float32})(path)
    export(path, tmp_path / "out", format, allow_loss=True)
    if not ours:
        for file in (tmp_path / "out").rglob("diskreplay.json"):
            file.unlink()
        if (described := tmp_path / "out/data/metadata.json").exists():
            known = json.loads(described.read_text())
            described.write_text(json.dumps({key: known[key] for key in known if key != "diskreplay"}))
    for wrong in ("sped", "speed/x", "action", "reward"):
        with pytest.raises(InputError, match=rf"no column '{wrong}' to choose; there are obs, speed$"):
            taken(tmp_path / "out", format, "obs", wrong)
    with pytest.raises(InputError, match="no observation is left; name one of obs, or obs for all of them"):
        taken(tmp_path / "out", format, "speed")


# Said by a caller


@pytest.mark.parametrize("name", TOLD_BY_THEMSELVES)
@pytest.mark.parametrize(
    ("said", "option"),
    [
        ({"map": {"obs": "x"}}, "--map"), ({"ends": "whole"}, "--ends"), ({"align": "next"}, "--align"),
        ({"max_episode_steps": 9}, "--max-episode-steps"),
    ],
)  # fmt: skip
def test_what_datasets_say_themselves_is_not_said_by_a_caller(name: str, said: dict[str, Any], option: str) -> None:
    every = [
        Format(one, one, "file", formats.get(name).holds, lambda path: False, container=container)
        for one, container in (("flat", npz_archive.KIND), ("other", npz_archive.KIND), ("n", None))
    ]
    with pytest.raises(InputError, match=f"^{name} datasets say themselves .*; {option} is for flat, other$"):
        check_choice(formats.get(name), Choice(**said), lambda: every)
    check_choice(every[0], Choice(**said), lambda: every)
    check_choice(formats.get(name), Choice(columns=("obs",), allow_loss=True, decoded=True), lambda: every)


# Folders


def test_a_dataset_in_a_folder_is_named(tmp_path: pathlib.Path) -> None:
    for name in ("9.0.0", "10.0.0", "notes"):
        (tmp_path / "my_robot" / name).mkdir(parents=True)
    (tmp_path / "my_robot/10.0.0/features.json").write_text("{}")
    with pytest.raises(InputError, match=r"my_robot' is of no format known here, but '10.0.0' in it is one, of rlds:"):
        formats.guess(tmp_path / "my_robot")
    (tmp_path / "my_robot/9.0.0/features.json").write_text("{}")
    with pytest.raises(InputError, match=r"but '9.0.0' in it is one, of rlds"):
        formats.guess(tmp_path / "my_robot")
    with pytest.raises(InputError, match=r"no format known here; name one"):
        formats.guess(tmp_path)


@pytest.mark.parametrize("format", ["minari", "dopamine", "store", "npz-episodes"])
def test_datasets_of_all_kinds_are_named_in_a_folder(format: str, path: str, tmp_path: pathlib.Path) -> None:
    store()(path)
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "README.md").write_text("x")
    export(path, tmp_path / "some" / "data-v1", format, allow_loss=True)
    with pytest.raises(InputError, match=rf"but 'data-v1' in it is one, of {format}"):
        formats.guess(tmp_path / "some")


def test_jpeg_stays_readable_beside_what_is_left_out(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    arrays = episodes()
    for one in arrays:
        one["observations"] = jpeg(rng.integers(0, 256, (len(one["rewards"]) + 1, 12, 14, 3), np.uint8))
    made(tmp_path / "a", arrays, spaces.Box(0, 255, (12, 14, 3), np.uint8))
    steps, unread = taken(tmp_path / "a", "minari", "obs")
    assert steps.obs["obs"].shape == (13, 12, 14, 3)
    assert unread == ("episode_*/infos/body/force (3)", "episode_*/infos/speed (3)")
