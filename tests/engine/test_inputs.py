"""Bad arguments: each a named exception that says what to do, and nothing has changed."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import string
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from helpers.configs import Config
from helpers.damage import flip
from helpers.line import rows_in
from helpers.model import Leaf
from helpers.programs import printed
from helpers.recording import Recording, recorded_store
from hostile.test_regressions import edit as rewrite

import diskreplay as dr
from diskreplay.errors import (
    CheckpointError,
    ClosedError,
    CorruptionError,
    DamageWarning,
    EvictedError,
    FormatVersionError,
    InputError,
    LockedError,
    NotAStoreError,
    NotEnoughDataError,
    OpenError,
    ReadOnlyError,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
)
from diskreplay.ops.combine import merge, split
from diskreplay.ops.convert import export, import_dataset
from diskreplay.ops.demo import demo
from diskreplay.ops.episodes import episodes, head
from diskreplay.ops.inspect import inspect
from diskreplay.ops.record import record
from diskreplay.ops.show import show
from diskreplay.ops.verify import verify

BOX = spaces.Box(0, 255, (3,), np.uint8)
DICT = spaces.Dict({"a": BOX, "b": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(4)])})


def good(num_envs: int = 1) -> dict[str, Any]:
    """Arguments of ``add`` without a fault, for the buffer below."""
    lead = () if num_envs == 1 else (num_envs,)
    obs = {
        "a": np.full((*lead, 3), 7, np.uint8),
        "b": (np.full((*lead, 2), 0.5, np.float32), np.full(lead, 3, np.int64)),
    }
    return {
        "obs": obs, "action": np.ones((*lead, 2), np.float32), "reward": np.zeros(lead), "next_obs": obs,
        "terminated": np.zeros(lead, bool), "truncated": np.zeros(lead, bool), "logp": np.zeros(lead, np.float32),
        "steps": np.zeros(lead, np.int64),
    }  # fmt: skip


def create(path: str, num_envs: int = 1) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.create(
        path, DICT, spaces.Box(-1, 1, (2,), np.float32), capacity=20 * num_envs, num_envs=num_envs, seed=0,
        columns={"logp": np.float32, "steps": np.int64},
    )  # fmt: skip


def change(name: str, value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda given: {**given, name: value}


def obs(**parts: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda given: {**given, "obs": {**given["obs"], **parts}}


NAN, INF = float("nan"), float("inf")
BAD_STEPS: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "obs of a wrong shape": (obs(a=np.zeros(4, np.uint8)), r"obs/a: must have shape \(3,\), got \(4,\)"),
    "obs with an axis too many": (obs(a=np.zeros((2, 3), np.uint8)), r"obs/a: must have shape"),
    "obs of floats": (obs(a=np.array([0.5, 1, 2])), "obs/a: must have dtype uint8"),
    "obs above the dtype": (obs(a=np.array([1, 2, 300])), "obs/a: must have dtype uint8"),
    "obs below the dtype": (obs(a=np.array([1, 2, -1])), "obs/a: must have dtype uint8"),
    "obs that float32 cannot hold": (obs(b=(np.array([0.1, 0.2]), 1)), "obs/b/0: must have dtype float32"),
    "obs of complex numbers": (obs(b=(np.array([1j, 2]), 1)), "obs/b/0: must"),
    "ragged obs": (obs(a=[[1], [2, 3], [4]]), "ragged"),
    "obs of text": (obs(a=["x", "y", "z"]), "obs/a: must be numbers"),
    "obs of objects": (obs(a=np.array([None, 1, 2])), "obs/a: must be numbers"),
    "obs None": (obs(a=None), "obs/a: must be numbers"),
    "obs that is no dict": (change("obs", np.zeros(3, np.uint8)), "must be a dict with the keys"),
    "obs with a key missing": (change("obs", {"a": np.zeros(3, np.uint8)}), "must be a dict with the keys"),
    "obs with a key too many": (obs(c=1), "must be a dict with the keys"),
    "tuple of a wrong length": (obs(b=(np.zeros(2, np.float32),)), "must be a tuple of 2"),
    "next_obs of a wrong shape": (change("next_obs", good()["obs"] | {"a": np.zeros(2, np.uint8)}), "must have shape"),
    "action of a wrong shape": (change("action", np.zeros(3, np.float32)), "action: must have shape"),
    "action that float32 cannot hold": (change("action", np.array([0.1, 1e-50])), "action: must have dtype"),
    "reward NaN": (change("reward", NAN), "reward.*finite"),
    "reward infinite": (change("reward", -INF), "reward.*finite"),
    "reward NaN as an array": (change("reward", np.array(NAN)), "reward.*finite"),
    "reward NaN of float32": (change("reward", np.float32(NAN)), "reward.*finite"),
    "reward too large for float32": (change("reward", 1e300), "reward.*finite"),
    "reward too large, as an array": (change("reward", np.array(1e300)), "reward.*finite"),
    "reward complex": (change("reward", 1j), "reward"),
    "reward of several": (change("reward", np.zeros(2)), "reward: must have shape"),
    "reward of text": (change("reward", "1"), "reward: must be numbers"),
    "terminated 2": (change("terminated", 2), "terminated: must have dtype bool"),
    "terminated None": (change("terminated", None), "terminated: must be numbers"),
    "truncated of several": (change("truncated", [True, False]), "truncated: must have shape"),
    "valid of a wrong shape": (change("valid", [True, False]), "valid: must have shape"),
    "valid 0.5": (change("valid", 0.5), "valid: must have dtype bool"),
    "column missing": (
        lambda given: {k: v for k, v in given.items() if k != "logp"},
        r"columns \['logp'\] are missing",
    ),
    "column unknown": (change("surplus", 1), r"unknown columns \['surplus'\]; .* made with columns \['logp', .* later"),
    "column of a wrong shape": (change("logp", np.zeros(2, np.float32)), "logp: must have shape"),
    "column that loses digits": (change("steps", 0.5), "steps: must have dtype int64"),
    "column above int64": (change("steps", 2**63), "steps: must"),
    "column far above int64": (change("steps", 2**70), "steps: must"),
}


@pytest.mark.long(quick=59)
@pytest.mark.parametrize("case", BAD_STEPS)
@pytest.mark.parametrize("pending", [False, True])
def test_bad_steps_change_nothing(path: str, case: str, pending: bool) -> None:
    spoil, message = BAD_STEPS[case]
    with create(path) as buffer:
        if pending:
            for _ in range(5):
                buffer.add(**good())
        before = buffer.stats()
        with pytest.raises(InputError, match=message):
            buffer.add(**spoil(good()))
        assert buffer.stats() == before
        buffer.add(**good())
        assert len(buffer) == 1 + 5 * pending
        assert len(buffer.episodes) == 1, "the step after the refused one continues the one before"
        batch = buffer.sample(1)
        np.testing.assert_array_equal(batch.obs["a"], [[7, 7, 7]])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (change("reward", np.array([0.0, NAN, 1.0])), "reward of environment 1 must be finite"),
        (change("reward", 0.0), r"reward: must have shape \(3,\), got \(\)"),
        (change("terminated", [True]), "terminated: must have shape"),
        (change("action", np.zeros((2, 2), np.float32)), "action: must have shape"),
        (obs(a=np.zeros((3, 4), np.uint8)), "obs/a: must have shape"),
        (obs(b=(np.zeros((3, 2), np.float32), np.zeros(2, np.int64))), "obs/b/1: must have shape"),
    ],
)
def test_bad_steps_of_several_environments(path: str, spoil: Any, message: str) -> None:
    with create(path, num_envs=3) as buffer:
        buffer.add(**good(3))
        with pytest.raises(InputError, match=message):
            buffer.add(**spoil(good(3)))
        buffer.add(**good(3))
        assert (len(buffer), len(buffer.episodes)) == (6, 3)


@pytest.mark.parametrize(
    ("num_envs", "space", "given", "remedy"),
    [
        (1, (4,), (8, 4), "for 8 environments in lockstep create the store with num_envs=8"),
        (8, (8, 4), (8, 4), "spaces are those of one environment: single_observation_space"),
    ],
)
def test_a_wrong_axis_of_environments_is_explained(
    path: str, num_envs: int, space: Any, given: Any, remedy: str
) -> None:
    box, flags = spaces.Box(-9, 9, space, np.float32), np.zeros(8, bool)
    with dr.ReplayBuffer.create(path, box, spaces.Discrete(2), capacity=100, num_envs=num_envs) as buffer:
        with pytest.raises(InputError, match=remedy):
            buffer.add(np.zeros(given), np.zeros(8, int), np.zeros(8), np.zeros(given), flags, flags)
        assert len(buffer) == 0


@pytest.mark.parametrize("buffer", [dr.ReplayBuffer, dr.RolloutBuffer, dr.MultiAgentReplayBuffer])
def test_a_class_that_is_called_says_how_a_buffer_is_made(buffer: Any) -> None:
    """It spoke of an argument 'stream' of SampledBuffer.__init__."""
    for arguments in ((), (1000,), ("a.replay",)):
        with pytest.raises(TypeError, match=rf"is made by {buffer.__name__}\.create\(path, \.\.\.\), open\(path\)"):
            buffer(*arguments)


def test_a_view_that_was_not_called_is_refused(path: str) -> None:
    """It was a TypeError of ``Transition.check()``."""
    with pytest.raises(InputError, match=r"view must be one such as Transition\(\)"):
        dr.ReplayBuffer.create(path, spaces.Discrete(2), spaces.Discrete(2), capacity=9, view=dr.Transition)  # type: ignore[arg-type]
    assert not pathlib.Path(path).exists()


def test_large_integers_are_not_rounded(path: str) -> None:
    """2**53 + 1 is no float64, though numpy calls the two equal."""
    with dr.ReplayBuffer.create(path, BOX, spaces.Discrete(2), capacity=9, columns={"x": np.float64}) as buffer:
        with pytest.raises(InputError, match="without loss"):
            buffer.add(np.zeros(3, np.uint8), 0, 0, np.zeros(3, np.uint8), False, False, x=np.int64(2**53 + 1))
        buffer.add(np.zeros(3, np.uint8), 0, 0, np.zeros(3, np.uint8), False, False, x=np.int64(2**53))
        assert buffer.sample(1).extra["x"][0] == 2**53


def test_values_that_fit_are_taken(path: str) -> None:
    """Other dtypes, lists, Python numbers, a leading axis of one: whatever loses no bit."""
    given = good()
    with create(path) as buffer:
        buffer.add(**given)
        buffer.add(
            obs={"a": [7, 7, 7], "b": [np.array([0.5, 0.5]), 3]}, action=[1, 1], reward=np.float16(0.5), truncated=0,
            next_obs={"a": np.full((1, 3), 7.0), "b": (np.full((1, 2), 0.5, np.float16), np.uint8(3))},
            terminated=np.bool_(False), logp=0, steps=np.int8(4),
        )  # fmt: skip
        buffer.add(**given, valid=np.array([True]))
        batch = buffer.get([1])
        assert len(buffer.episodes) == 1
    assert (batch.obs["a"].dtype, batch.obs["b"][0].dtype) == (np.uint8, np.float32)
    assert (batch.reward.tolist(), batch.extra["steps"].tolist()) == ([0.5], [4])


@pytest.mark.parametrize("layout", ["fortran", "strided", "reversed", "byte order", "read-only"])
@pytest.mark.parametrize("num_envs", [1, 4])
def test_arrays_in_any_memory_layout(path: str, layout: str, num_envs: int) -> None:
    config = Config("layout", Leaf((6, 8), np.int32), num_envs=num_envs, capacity=100)
    plain = Recording(config)

    def arrange(array: np.ndarray) -> np.ndarray:
        if layout == "fortran":
            return np.asfortranarray(array)
        if layout == "strided":
            wide = np.zeros((*array.shape[:-1], 16), array.dtype)
            wide[..., ::2] = array
            return wide[..., ::2]
        if layout == "reversed":
            return array[..., ::-1].copy()[..., ::-1]
        if layout == "byte order":
            return array.astype(array.dtype.newbyteorder())
        array.flags.writeable = False
        return array

    with config.create(path) as buffer:
        add = buffer.add
        buffer.add = lambda **given: add(  # type: ignore[method-assign]
            **{name: arrange(value) if name.endswith("obs") else value for name, value in given.items()}
        )
        plain.add(buffer, 12)
        plain.check(buffer)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "3", None, 2**60, np.float64(2)])
def test_bad_batch_sizes(path: str, size: Any) -> None:
    with create(path) as buffer:
        buffer.add(**good())
        state = buffer.engine.rng.bit_generator.state
        with pytest.raises(InputError, match="batch_size must be"):
            buffer.sample(size)
        with pytest.raises(InputError, match="batch_size must be"):
            buffer.shuffled(size)
        assert buffer.engine.rng.bit_generator.state == state


def test_too_little_data(path: str) -> None:
    with create(path) as buffer:
        with pytest.raises(NotEnoughDataError, match=r"sample\(1\): the buffer holds 0 transitions"):
            buffer.sample(1)
        assert list(buffer.shuffled(4)) == []
        buffer.add(**good())
        buffer.add(**good(), valid=False)
        with pytest.raises(NotEnoughDataError, match="holds 1 transitions"):
            buffer.sample(2)
        assert len(buffer.sample(np.int64(1))) == 1


def test_transitions_whose_steps_are_not_all_known_yet(path: str) -> None:
    create(path).close()
    with dr.ReplayBuffer.open(path, view=dr.Transition(n_step=3)) as buffer:
        for _ in range(2):
            buffer.add(**good())
            with pytest.raises(NotEnoughDataError, match="add more"):
                buffer.sample(1)
        buffer.add(**good())
        assert buffer.sample(2).index.tolist() == [0, 0]


@pytest.mark.parametrize("index", [[0.5], "x", [[0]], [True], None, [10**6], [-1], [1 << 48], [2**63]])
def test_bad_indexes(path: str, index: Any) -> None:
    with create(path) as buffer:
        buffer.add(**good())
        with pytest.raises(InputError):
            buffer.get(index)
        assert (len(buffer.get(np.array([], np.int64))), len(buffer.get(0))) == (0, 1)


def test_evicted_indexes(path: str) -> None:
    with create(path) as buffer:
        for _ in range(21):
            buffer.add(**good())
        with pytest.raises(EvictedError, match="transition 0 has left the window, which begins at 1"):
            buffer.get([5, 0])


CREATE: dict[str, Any] = {"observation_space": BOX, "action_space": spaces.Discrete(3), "capacity": 10}


@pytest.mark.parametrize(
    "wrong",
    [
        {"capacity": 0}, {"capacity": -5}, {"capacity": 1.0}, {"capacity": True}, {"capacity": None},
        {"num_envs": 0}, {"num_envs": 11}, {"num_envs": 2.0}, {"num_envs": "2"},
        {"frame_stack": 0}, {"frame_stack": 1.5}, {"frame_stack": "4"}, {"frame_stack": {"nothing": 2}},
        {"frame_stack": 2, "stack_axis": 1}, {"frame_stack": 2, "stack_axis": 0}, {"stack_axis": "first"},
        {"stack_padding": "none"}, {"stack_padding": None},
        {"columns": {"reward": float}}, {"columns": {"a/b": float}}, {"columns": {"x": object}},
        {"columns": {"x": "words"}}, {"columns": {"x": ((0,), float)}}, {"columns": {"x": (3,)}},
        {"columns": {"x": ((2,), float, 1)}}, {"columns": {5: float}}, {"columns": {"x": np.longdouble}},
        {"columns": {"x": spaces.OneOf([BOX, BOX])}}, {"columns": {"x": DICT}}, {"columns": {"x": "datetime64[s]"}},
        {"columns": ["x"]}, {"columns": 5}, {"columns": {".x": float}}, {"columns": {"x": "S3"}},
        {"reward_dtype": int}, {"reward_dtype": "words"}, {"reward_dtype": np.longdouble},
        {"codec": "gzip"}, {"codec": "zstd:0"}, {"codec": "zstd:x"}, {"codec": 5}, {"codec": {"nothing": "zstd"}},
        {"chunk_rows": 0}, {"chunk_rows": -1}, {"chunk_rows": 1.5}, {"chunk_rows": "4"}, {"chunk_rows": True},
        {"chunk_rows": {"nothing": 3}}, {"shard_rows": 0}, {"shard_rows": "4"}, {"shard_rows": 2.5},
        {"chunk_rows": 3, "shard_rows": 8}, {"chunk_rows": 1 << 30},
        {"cache_bytes": -1}, {"cache_bytes": 1.5}, {"commit_rows": 0}, {"commit_seconds": 0}, {"commit_seconds": NAN},
        {"commit_seconds": "1"}, {"view": 3}, {"view": "Transition"}, {"sampler": "uniform"}, {"sampler": 0},
        {"seed": -1}, {"seed": "x"}, {"seed": 1.5},
        {"observation_space": 3}, {"action_space": None}, {"observation_space": spaces.OneOf([BOX, BOX])},
        {"observation_space": spaces.Sequence(DICT)}, {"observation_space": spaces.Dict({})},
        {"observation_space": spaces.Box(0, 1, (0,))}, {"action_space": spaces.Tuple([])},
        {"observation_space": spaces.Dict({"a/b": BOX})}, {"observation_space": spaces.Dict({"zarr.json": BOX})},
    ],
    ids=repr,
)  # fmt: skip
def test_bad_options_create_nothing(path: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        dr.ReplayBuffer.create(path, **CREATE | wrong)
    assert len(str(caught.value)) > 20
    assert list(pathlib.Path(path).parent.iterdir()) == []


@pytest.mark.parametrize("text", ["", None, 5, b"bytes"])
def test_bad_paths(text: Any) -> None:
    with pytest.raises(InputError, match="path must be"):
        dr.ReplayBuffer.create(text, **CREATE)
    with pytest.raises(InputError, match="path must be"):
        dr.ReplayBuffer.open(text)


BAD_NAMES = ["a\0b", "\ud800.replay", "caf\ud800/a.replay"]


@pytest.mark.parametrize("text", BAD_NAMES)
def test_paths_that_no_file_can_have(text: str, path: str) -> None:
    """A ValueError of the system's came out."""
    create(path).close()
    calls: list[Callable[[], Any]] = [
        lambda: dr.ReplayBuffer.create(text, **CREATE),
        lambda: dr.ReplayBuffer.create(pathlib.Path(text), **CREATE),
        lambda: dr.ReplayBuffer.open(text),
        lambda: dr.RolloutBuffer.create(text, BOX, spaces.Discrete(3), steps=3),
        lambda: dr.RolloutBuffer.open(text),
        lambda: dr.MultiAgentReplayBuffer.create(text, BOX, spaces.Discrete(3), 2, capacity=3),
        lambda: dr.MultiAgentReplayBuffer.open(text),
        lambda: dr.MultiAgentRolloutBuffer.create(text, BOX, spaces.Discrete(3), 2, steps=3),
        lambda: dr.MultiAgentRolloutBuffer.open(text),
        lambda: verify(text), lambda: inspect(text),
        lambda: episodes(text), lambda: head(text),
        lambda: merge(text, [path]), lambda: merge(f"{path}2", [text]), lambda: split(text, [0.5]),
        lambda: split(path, [0.5, 0.5], [text, f"{path}2"]), lambda: show(text, f"{path}.png"),
        lambda: show(path, f"{text}.png"), lambda: export(text, f"{path}.hdf5", "d4rl"),
        lambda: export(path, text, "d4rl"), lambda: import_dataset(text, f"{path}2"),
        lambda: import_dataset(path, text), lambda: record("CartPole-v1", text, steps=3), lambda: demo(text),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(InputError, match=r"must not have a NUL character|must be text that the system can encode"):
            call()
    assert [one.name for one in pathlib.Path(path).parent.iterdir()] == [pathlib.Path(path).name]


def test_names_that_are_no_text_of_the_systems(path: str) -> None:
    """Bytes of no encoding, as os.listdir gives them, name files all the same."""
    odd = os.fsdecode(os.fsencode(path) + b"\xff")
    create(odd).close()
    dr.ReplayBuffer.open(odd).close()
    assert verify(odd).ok


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "w"}, {"mode": None}, {"stream": "a/b"}, {"stream": ""}, {"stream": ".x"}, {"stream": 5},
        {"stream": "new", "num_envs": 0}, {"stream": "new", "capacity": 0},
        {"stream": "new", "num_envs": 9, "capacity": 3},
        {"cache_bytes": -1}, {"commit_rows": 0}, {"view": 3}, {"sampler": 3}, {"seed": -3},
        {"stream": "new", "view": 3}, {"stream": "new", "seed": -3},
    ],
    ids=repr,
)  # fmt: skip
def test_bad_options_open_nothing(path: str, wrong: dict[str, Any]) -> None:
    create(path).close()
    with pytest.raises(InputError):
        dr.ReplayBuffer.open(path, **wrong)
    assert {one.name for one in pathlib.Path(path, "streams").iterdir()} == {"0", "zarr.json"}
    dr.ReplayBuffer.open(path).close()  # the lock was not taken, or given back


def test_what_stands_at_the_path(path: str, tmp_path: pathlib.Path) -> None:
    zarr = pytest.importorskip("zarr")
    file = tmp_path / "file"
    file.write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    empty = tmp_path / "empty"
    empty.mkdir()
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    group = tmp_path / "group"
    zarr.create_group(str(group))
    array = tmp_path / "array"
    zarr.create_array(str(array), shape=(3,), dtype="i4")
    pipe = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(tmp_path)
        listener.bind("socket")
    for place in (file, folder, group, array, dangling, pipe):
        with pytest.raises(StoreExistsError):
            dr.ReplayBuffer.create(place, **CREATE)
    for place in (file, folder, group, array, empty, pipe):
        for mode in ("r", "r+"):
            with pytest.raises(NotAStoreError, match="is "):
                dr.ReplayBuffer.open(place, mode=mode)
    for place in (tmp_path / "nothing", tmp_path / "no" / "thing"):
        with pytest.raises(StoreNotFoundError, match="create"):
            dr.ReplayBuffer.open(place)
    assert file.read_text() == (folder / "mine").read_text() == "mine"
    dr.ReplayBuffer.create(empty, **CREATE).close()
    dr.ReplayBuffer.create(tmp_path / "deep" / "er", **CREATE).close()
    with pytest.raises(StoreExistsError, match="open"):
        dr.ReplayBuffer.create(empty, **CREATE)


def edit(file: str, change: Callable[[Any], None]) -> None:
    document = json.loads(pathlib.Path(file).read_text())
    change(document)
    pathlib.Path(file).write_text(json.dumps(document))


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_newer_format_version(path: str, mode: Any) -> None:
    create(path).close()
    edit(f"{path}/zarr.json", lambda document: document["attributes"]["diskreplay"].update(format_version=3, schema=0))
    with pytest.raises(FormatVersionError, match=r"format version 3; this diskreplay reads up to 1: update"):
        dr.ReplayBuffer.open(path, mode=mode)


OTHERS: dict[str, tuple[str, Callable[[dict[str, Any]], Any], str]] = {
    "of version 2": ("", lambda ours: ours.update(format_version=2), r"from before the tag 1\.0: export it"),
    "without needs": ("", lambda ours: ours.pop("needs"), r"from before the tag 1\.0: export it"),
    "needs more": ("", lambda ours: ours.update(needs=["as:text"]), r"needs \['as:text'\]: a newer diskreplay wrote"),
    "needs no list": ("", lambda ours: ours.update(needs=7), "needs 7: a newer diskreplay wrote"),
    "a record needs more": ("streams/0", lambda ours: ours.update(needs=["x", "y"]), r"streams/0.*needs \['x', 'y'\]"),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("what", OTHERS)
def test_stores_of_other_versions(path: str, what: str, mode: Any) -> None:
    create(path).close()
    node, change, match = OTHERS[what]
    rewrite(pathlib.Path(path, node, "zarr.json"), change, node)
    with pytest.raises(FormatVersionError, match=match):
        dr.ReplayBuffer.open(path, mode=mode)
    with pytest.raises(FormatVersionError, match=match):
        import_dataset(path, path + "-copy", "store")


@pytest.mark.parametrize(
    ("node", "change"),
    [
        ("", lambda ours: ours["schema"]["columns"][0].update({"as": "text"})),
        ("", lambda ours: next(c for c in ours["schema"]["columns"] if c["name"] == "reward").update(shape=[3])),
        ("streams/0", lambda ours: ours.pop("needs")),
    ],
)
def test_what_a_root_must_name_and_a_record_must_have(path: str, node: str, change: Callable[[Any], Any]) -> None:
    create(path).close()
    rewrite(pathlib.Path(path, node, "zarr.json"), change, node)
    with pytest.raises(CorruptionError, match="cannot be read"):
        dr.ReplayBuffer.open(path, mode="r")


def test_what_a_cut_needs(path: str) -> None:
    with create(path) as buffer:
        buffer.checkpoint("one")
    file = pathlib.Path(path, "checkpoints/one/zarr.json")
    rewrite(file, lambda ours: ours["cut"]["0"].update(needs=["x"]), "checkpoints/one")
    with pytest.raises(FormatVersionError, match="needs"):
        dr.ReplayBuffer.open(path, mode="r", checkpoint="one")


@pytest.mark.long
def test_a_second_writer(path: str) -> None:
    with create(path) as buffer:
        with pytest.raises(LockedError, match=r"written by this very process.*mode='r'"):
            dr.ReplayBuffer.open(path)
        program = f"""
            import diskreplay as dr
            try: dr.ReplayBuffer.open({path!r})
            except dr.errors.LockedError as error: print(error)
        """
        assert f"process {os.getpid()}" in printed(program)
        buffer.add(**good())
        assert rows_in(path) == 0
    assert rows_in(path, mode="r+") == 1


@pytest.mark.long
def test_the_writer_is_named_in_one_line(path: str) -> None:
    """A program given as ``python -c`` has lines."""
    create(path).close()
    script = (
        "import sys, diskreplay as dr\nwriter = dr.ReplayBuffer.open(sys.argv[1])\nprint('open', flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        with pytest.raises(
            LockedError, match=rf"written by process {writer.pid} \(.*diskreplay as dr writer = "
        ) as told:
            dr.ReplayBuffer.open(path)
        writer.communicate("\n")
    assert "\n" not in str(told.value)


def test_a_reader_and_a_closed_buffer_write_nothing(path: str) -> None:
    with create(path) as buffer:
        buffer.add(**good())
        buffer.checkpoint("one")
        with dr.ReplayBuffer.open(path, mode="r") as reader:
            for call in (lambda: reader.add(**good()), reader.commit, lambda: reader.checkpoint("x")):
                with pytest.raises(ReadOnlyError, match="mode='r'"):
                    call()
            with pytest.raises(ReadOnlyError):
                reader.drop_checkpoint("one")
            assert len(reader.sample(1)) == 1
    buffer.close()
    for call in (
        lambda: buffer.add(**good()), buffer.commit, lambda: buffer.checkpoint("x"), lambda: buffer.sample(1),
        lambda: buffer.get([0]), lambda: buffer.shuffled(1), buffer.refresh, lambda: buffer.drop_checkpoint("one"),
    ):  # fmt: skip
        with pytest.raises(ClosedError, match="closed"):
            call()
    assert "ReplayBuffer" in repr(buffer)
    assert buffer.num_envs == 1


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "zarr.json", 5, None, "x" * 200, "a\nb"])
def test_bad_checkpoint_names(path: str, name: Any) -> None:
    with create(path) as buffer:
        buffer.add(**good())
        with pytest.raises(InputError):
            buffer.checkpoint(name)
        assert buffer.checkpoints == []
        assert buffer.stats()["streams"]["0"]["committed"] == 0, "an argument was looked at too late"


def test_checkpoints_that_are_not_there_or_already_are(path: str) -> None:
    with create(path) as buffer:
        buffer.add(**good())
        buffer.checkpoint("one", {"step": 3, "list": [1, None, "x"]})
        buffer.add(**good())
        with pytest.raises(CheckpointError, match="already"):
            buffer.checkpoint("one")
        assert buffer.stats()["streams"]["0"]["committed"] == 1, "the name was looked at too late"
        assert buffer.checkpoint_metadata("one") == {"step": 3, "list": [1, None, "x"]}
        for call in (buffer.drop_checkpoint, buffer.checkpoint_metadata):
            with pytest.raises(CheckpointError, match=r"no checkpoint 'two'; there are \['one'\]"):
                call("two")
        for metadata in ({"x": NAN}, {"x": object()}, 5, {"x": {1, 2}}):
            with pytest.raises(InputError, match="JSON"):
                buffer.checkpoint("bad", metadata)
    for mode in ("r", "r+"):
        with pytest.raises(CheckpointError, match="'two'"):
            dr.ReplayBuffer.open(path, checkpoint="two", mode=mode)
    with pytest.raises(CheckpointError, match="has no stream 'new'"):
        dr.ReplayBuffer.open(path, checkpoint="one", stream="new")


def test_a_store_without_checkpoints_says_so_in_words(path: str) -> None:
    create(path).close()
    with pytest.raises(CheckpointError, match="there is no checkpoint 'x'; there are none"):
        dr.ReplayBuffer.open(path, checkpoint="x")


def test_returning_further_than_another_checkpoint(path: str) -> None:
    with create(path) as buffer:
        for name in ("one", "two"):
            buffer.add(**good())
            buffer.checkpoint(name)
    with pytest.raises(CheckpointError, match=r"\['two'\] still need"):
        dr.ReplayBuffer.open(path, checkpoint="one")
    with dr.ReplayBuffer.open(path) as buffer:
        assert len(buffer) == 2
        buffer.drop_checkpoint("two")
    assert rows_in(path, mode="r+", checkpoint="one") == 1


DAMAGES: dict[str, Callable[[str], None]] = {
    "root: no JSON": lambda path: _write(f"{path}/zarr.json", b"{"),
    "root: empty": lambda path: _write(f"{path}/zarr.json", b""),
    "root: binary": lambda path: _write(f"{path}/zarr.json", b"\xff\xfe\x00"),
    "root: a list": lambda path: _write(f"{path}/zarr.json", b"[]"),
    "root: no schema": lambda path: edit(f"{path}/zarr.json", lambda d: d["attributes"]["diskreplay"].pop("schema")),
    "root: version text": lambda path: edit(
        f"{path}/zarr.json", lambda d: d["attributes"]["diskreplay"].update(format_version="1")
    ),
    "root: a column less": lambda path: edit(
        f"{path}/zarr.json", lambda d: d["attributes"]["diskreplay"]["schema"]["columns"].pop(0)
    ),
    "root: settings": lambda path: edit(
        f"{path}/zarr.json", lambda d: d["attributes"]["diskreplay"]["settings"].update(view={"kind": "x"})
    ),
    "commit: no JSON": lambda path: _write(f"{path}/streams/0/zarr.json", b"{}{"),
    "commit: gone": lambda path: pathlib.Path(path, "streams/0/zarr.json").unlink(),
    "commit: no attributes": lambda path: edit(f"{path}/streams/0/zarr.json", lambda d: d.pop("attributes")),
    "commit: end below begin": lambda path: _table(path, "rows", 9, 3, 0),
    "commit: end text": lambda path: _table(path, "rows", 0, "9", 0),
    "commit: end negative": lambda path: _table(path, "rows", 0, -1, 0),
    "commit: end far away": lambda path: _table(path, "rows", 0, 10**9, 0),
    "commit: end a bit further": lambda path: _table(path, "rows", 0, 13, 0),
    "commit: patches far away": lambda path: _table(path, "patches", 0, 10**9, 0),
    "commit: no arrays": lambda path: _commit(path, arrays={}),
    "commit: no tail": lambda path: _commit(path, tail=[0, 0, 0]),
    "commit: shard too long": lambda path: _stored(path, "obs", 1, 10**6),
    "commit: shard too short": lambda path: _stored(path, "obs", 1, 3),
    "commit: shard elsewhere": lambda path: _stored(path, "reward", 0, 7),
    "commit: NaN": lambda path: _write(
        f"{path}/streams/0/zarr.json", b'{"zarr_format":3,"node_type":"group","attributes":{"diskreplay":{"time":NaN}}}'
    ),
    "shard missing": lambda path: _shard(path, "obs", -1).unlink(),
    "first shard missing": lambda path: _shard(path, "obs", 0).unlink(),
    "shard empty": lambda path: _write(_shard(path, "obs", -1), b""),
    "shard truncated": lambda path: os.truncate(_shard(path, "obs", -1), 30),
    "first shard truncated": lambda path: os.truncate(_shard(path, "obs", 0), 30),
    "reward shard missing": lambda path: _shard(path, "reward", -1).unlink(),
    "patch shard missing": lambda path: _shard(path, "patches/place", -1).unlink(),
    "index flipped": lambda path: flip(_shard(path, "obs", -1), -9),
    "chunk flipped": lambda path: flip(_shard(path, "obs", 0), 3),
    "checksum flipped": lambda path: flip(_shard(path, "obs", -1), -1),
    "reward flipped": lambda path: flip(_shard(path, "reward", -1), 3),
    "start flipped": lambda path: flip(_shard(path, "start", -1), 3),
    "patch flipped": lambda path: flip(_shard(path, "patches/place", -1), 3),
}  # fmt: skip


def _shard(path: str, column: str, which: int) -> pathlib.Path:
    return sorted(pathlib.Path(path, "streams/0", column).glob("c.*"))[which]


def _write(file: str | pathlib.Path, data: bytes) -> None:
    pathlib.Path(file).write_bytes(data)


def _commit(path: str, **values: Any) -> None:
    edit(f"{path}/streams/0/zarr.json", lambda document: document["attributes"]["diskreplay"].update(values))


def _table(path: str, name: str, *values: object) -> None:
    edit(
        f"{path}/streams/0/zarr.json",
        lambda document: document["attributes"]["diskreplay"]["tables"].update({name: list(values)}),
    )


def _stored(path: str, column: str, shard: int, size: int) -> None:
    def change(document: Any) -> None:
        document["attributes"]["diskreplay"]["arrays"][column][:2] = shard, size

    edit(f"{path}/streams/0/zarr.json", change)


@pytest.mark.long(quick=39)
@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named(path: str, damage: str, mode: Any) -> None:
    """On opening or on reading what is damaged; never a wrong sample, never a foreign exception.

    A record that is lost, or contradicts itself, stands in the tail, too: then all rows are there, with a warning.
    """
    config = Config("damaged", Leaf((5, 4)), frame_stack=2, capacity=40, cache_bytes=0)
    recording = recorded_store(config, path, 11)
    pathlib.Path(path, "streams/0/start/root.json").unlink()  # else a root that is damaged is read from it
    DAMAGES[damage](path)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            with dr.ReplayBuffer.open(path, mode=mode) as buffer:
                recording.check(buffer)
            said = None
        except (CorruptionError, OpenError) as error:
            said = str(error)
    if said is None:
        assert damage.startswith("commit: ")
        assert {one.category for one in told} == {DamageWarning}
        assert all(f"the commit record of '{path}/streams/0' is missing or damaged" in str(one.message) for one in told)
    else:
        assert path in said or "schema" in said or "view" in said


def test_autoreset_info_without_a_mask() -> None:
    with pytest.raises((InputError, KeyError)):
        dr.final_observations(np.zeros((2, 3)), {"final_obs": np.array([None, np.zeros(3)], dtype=object)})


def test_stacked_and_single_leaves_do_not_mix(path: str) -> None:
    space = spaces.Dict({"a": spaces.Box(0, 9, (4, 5), np.uint8), "b": spaces.Box(0, 9, (3,), np.uint8)})
    with pytest.raises(SchemaError, match="stack"):
        dr.ReplayBuffer.create(path, space, spaces.Discrete(2), capacity=5, frame_stack=4)


def test_unsupported_spaces_say_what_to_do(path: str) -> None:
    box = spaces.Box(0, 1, (2,))
    for space, advice in [
        (spaces.Sequence(spaces.Text(5)), "a Sequence of Text"),
        (spaces.Sequence(spaces.Sequence(box)), "make it a Dict or Tuple"),
        (spaces.Graph(spaces.Dict(a=box), None), "obs/nodes: a Sequence of Dict"),
        (spaces.OneOf([box, box]), "Discrete"),
        (spaces.Dict({"a": spaces.Tuple([box, spaces.OneOf([box])])}), "obs/a/1: a OneOf space"),
    ]:
        with pytest.raises(SchemaError, match=advice):
            dr.ReplayBuffer.create(path, space, spaces.Discrete(2), capacity=5)


class Mission(gymnasium.Space[str]):
    """A space of texts of a library's own, as MiniGrid has for ``mission``."""

    def __init__(self) -> None:
        super().__init__(dtype=str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "go to the red ball"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)


def test_a_space_of_texts_that_is_no_text_names_text(path: str) -> None:
    image = spaces.Box(0, 9, (3,), np.uint8)
    for space, leaf in (
        (Mission(), "obs"), (spaces.Dict(image=image, mission=Mission()), "obs/mission"),
        (spaces.Tuple([image, spaces.Dict(mission=Mission())]), "obs/1/mission"),
    ):  # fmt: skip
        with pytest.raises(
            SchemaError, match=rf"^{leaf}: a Mission space .*gymnasium.spaces.Text\(1000, charset="
        ) as told:
            dr.ReplayBuffer.create(path, space, spaces.Discrete(2), capacity=5)
    said = str(told.value).split("declare a ")[1].split(" in its place")[0]
    text = eval(said, {"gymnasium": gymnasium, "string": string})
    with dr.ReplayBuffer.create(path, spaces.Dict(mission=text), spaces.Discrete(2), capacity=5) as buffer:
        obs = {"mission": Mission().sample()}
        buffer.add(obs, 0, 0.0, obs, True, False)
    with pytest.raises(SchemaError, match=r"action: a Mission space .*Text"):
        dr.ReplayBuffer.create(f"{path}2", image, Mission(), capacity=5)


def test_gymnasium_is_what_this_was_written_for() -> None:
    assert int(gymnasium.__version__.split(".")[0]) >= 1
