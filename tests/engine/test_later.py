"""Values written later: beside a dict driven by the same random operations, in every view, and what is refused."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers import driver, line
from helpers.damage import flip
from helpers.effort import examples
from helpers.line import LINE, OPEN, TURN, play
from helpers.testing import small_thresholds

import diskreplay as dr
from diskreplay.errors import CorruptionError, InputError, ReadOnlyError, SchemaError
from diskreplay.index import later_values
from diskreplay.ops.combine import merge, split
from diskreplay.ops.convert import Selection, export
from diskreplay.ops.inspect import inspect
from diskreplay.ops.verify import verify
from diskreplay.reading import bytelog
from diskreplay.schema import layout
from diskreplay.schema.ids import pack
from diskreplay.storage import tail
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Store

LATER: dict[str, Any] = {
    "state": ((3,), np.float32), "value": np.float64, "wide": ((300, 2), np.int16), "flag": bool,
}  # fmt: skip
"""Small enough for RAM, but for ``wide``."""
SHAPES: dict[str, tuple[tuple[int, ...], Any]] = {
    "state": ((3,), np.float32), "value": ((), np.float64), "wide": ((300, 2), np.int16), "flag": ((), np.bool_),
}  # fmt: skip

Values = dict[str, dict[tuple[int, int], Any]]


def create(path: str | pathlib.Path, capacity: int = 1000, num_envs: int = 1, **options: Any) -> dr.ReplayBuffer:
    return line.create(path, capacity, num_envs, **{"later": LATER, **options})


def logged(buffer: dr.ReplayBuffer) -> bytelog.ByteLog:
    """The log of the values, of the stream that is written."""
    stream = buffer.engine.streams.written
    assert stream is not None
    return stream.logs["later/values"]


def drawn(rng: np.random.Generator, name: str, count: int) -> Any:
    """Random values ``(count, *shape)`` of a column."""
    shape, dtype = SHAPES[name]
    return (rng.random((count, *shape)) * 1000 - 500).astype(dtype) if dtype != np.bool_ else rng.random(count) < 0.5


def check(buffer: dr.ReplayBuffer, values: Values, envs: int) -> None:
    """All that the buffer shows is what the dicts hold, bit for bit."""
    items = buffer.items()
    batch = buffer.get(items)
    places = [(int(local) // envs, int(local) % envs) for local in batch.index]
    for name, (shape, dtype) in SHAPES.items():
        known, found = batch.extra[f"{name}_known"], batch.extra[name]
        assert (known.dtype, found.dtype) == (bool, dtype)
        assert known.tolist() == [place in values[name] for place in places]
        expected = [values[name].get(place, np.zeros(shape, dtype)) for place in places]
        assert found.tobytes() == np.array(expected, dtype).reshape(len(places), *shape).tobytes()


@dataclasses.dataclass
class Model:
    """The rows that were added, and the values of those in the window."""

    envs: int
    rows: int
    end: int = 0
    valid: set[tuple[int, int]] = dataclasses.field(default_factory=set)
    values: Values = dataclasses.field(default_factory=lambda: {name: {} for name in SHAPES})

    def copy(self) -> Model:
        return Model(self.envs, self.rows, self.end, set(self.valid), {n: dict(of) for n, of in self.values.items()})


class Driver(driver.Driver):
    """Values of columns that are written later."""

    def __init__(self, path: pathlib.Path, seed: int) -> None:
        super().__init__(path, seed, [7, 40, 300])
        self.at = 0.0

    def create(self, rows: int) -> tuple[dr.ReplayBuffer, Model]:
        return create(self.path, rows * self.envs, self.envs), Model(self.envs, rows)

    def check(self, buffer: dr.ReplayBuffer, model: Model) -> None:
        check(buffer, model.values, self.envs)

    def weights(self) -> dict[Callable[[], None], float]:
        return {
            self.add: 6, self.write: 9, self.commit: 4, self.reopen: 1, self.checkpoint: 1, self.go_back: 1,
            self.read: 2,
        }  # fmt: skip

    def jump(self) -> None:
        self.at = float(self.rng.integers(1 << 20)) + 0.5

    def add(self) -> None:
        for _ in range(int(self.rng.integers(1, 12))):
            before = self.sequence()
            invalid = self.rng.random(self.envs) < 0.1
            ended = self.rng.random(self.envs) < 0.2
            obs = np.full((self.envs, 1), self.at, np.float32)
            row = (obs, np.zeros(self.envs, int), np.ones(self.envs), obs + 1, ended, np.zeros(self.envs, bool))
            if self.envs == 1:
                self.buffer.add(*(part[0] for part in row), valid=not invalid[0])
            else:
                self.buffer.add(*row, valid=~invalid)
            self.model.valid |= {(self.model.end, env) for env in range(self.envs) if not invalid[env]}
            self.model.end += 1
            self.at += 100 if ended.any() or invalid.any() else 1
            self.settle(before)

    def write(self) -> None:
        log = self.buffer.stats()["streams"]["0"]
        begin = max(0, log["begin"] - 5)  # some that have left the window: they are ignored
        rows = self.rng.integers(begin, log["end"], int(self.rng.integers(1, 30))) if log["end"] > begin else []
        places = [(int(row), int(self.rng.integers(self.envs))) for row in rows]
        places = [place for place in places if place in self.model.valid]
        name = str(self.rng.choice(list(SHAPES)))
        values = drawn(self.rng, name, len(places))
        index = np.array([pack(0, row, env, self.envs) for row, env in places], np.int64)
        before = log["sequence"]
        self.buffer.write(name, index, values)
        self.model.values[name].update({
            place: value for place, value in zip(places, values, strict=True) if place[0] >= log["begin"]
        })  # fmt: skip
        self.settle(before)


def values_in(path: Any, **options: Any) -> list[float]:
    """The values of a column ``v`` that a reader sees."""
    with dr.ReplayBuffer.open(path, mode="r", **options) as reader:
        return list(reader.get(reader.items()).extra["v"].tolist())


@pytest.mark.long(quick=2)
@pytest.mark.usefixtures("both_thresholds")
@pytest.mark.parametrize("seed", range(examples(50, least=7)))
def test_values_are_those_of_the_model(tmp_path: pathlib.Path, seed: int) -> None:
    Driver(tmp_path / "a.replay", seed).run(60)


# One thing at a time


def ids(*places: tuple[int, int], envs: int = 1) -> Any:
    """The index of rows and environments of the first stream."""
    return np.array([pack(0, row, env, envs) for row, env in places], np.int64)


def test_an_empty_log_goes_on_behind_what_checkpoints_need(path: str) -> None:
    """Seed 19 of the facts: nothing lived, the log ended with a chunk, and the next one wrote over the shard."""
    with small_thresholds():
        with create(path, capacity=12, later={"v": np.int16}) as buffer:
            play(buffer, 12)
            buffer.write("v", buffer.items(), np.arange(12, dtype=np.int16))
            buffer.checkpoint("full")
            play(buffer, 13, 100)
        record = Store(str(path), LocalFiles()).newest_commit("0")
        assert record.of("later/values")[:2] == (128, 128), "two chunks of a shard of four"
        with dr.ReplayBuffer.open(path, **OPEN) as buffer:
            buffer.write("v", buffer.items(), np.arange(50, 62, dtype=np.int16))
        assert values_in(path, checkpoint="full") == list(range(12))
        assert values_in(path) == list(range(50, 62))
        assert verify(path).problems == ()


@pytest.mark.parametrize("wide", [4, 600], ids=["in RAM", "on disk"])
def test_every_view_and_way_of_reading_shows_the_same(path: str, wide: int) -> None:
    with create(path, later={"state": ((wide,), np.float32)}, num_envs=2) as buffer:
        for step in range(30):
            obs = np.array([[step], [1000 + step]], np.float32)
            ends = np.array([step % 10 == 9, step % 15 == 14])
            buffer.add(obs, [0, 0], [1.0, 1.0], obs + 1, ends, [False, False])
        rng = np.random.default_rng(0)
        index = rng.permutation(buffer.items())[:40]
        states = rng.random((40, wide)).astype(np.float32)
        buffer.write("state", index, states)
    of = dict(zip(index.tolist(), states, strict=True))

    def check_steps(batch: Any, steps: Any, mask: Any) -> None:
        for at in np.ndindex(steps.shape):
            expected = of.get(int(steps[at])) if mask[at] else None
            assert batch.extra["state_known"][at] == (expected is not None)
            assert np.array_equal(batch.extra["state"][at], np.zeros(wide) if expected is None else expected)

    views = [
        dr.Transition(), dr.Transition(n_step=3), dr.Sequence(6, burn_in=2), dr.Sequence(7, stride=3, across=True),
        dr.PaddedEpisodes(20),
    ]  # fmt: skip
    for view in views:
        with dr.ReplayBuffer.open(path, mode="r", view=view, seed=0) as reader:
            batches = [reader.sample(20), *reader.shuffled(7), reader.get(reader.items())]
            seen = 0
            for batch in batches:
                mask = getattr(batch, "mask", np.ones(len(batch), bool))
                following = 2 * np.arange(mask.shape[-1]) if mask.ndim > 1 else 0
                steps = batch.index.reshape(-1, *[1] * (mask.ndim - 1)) + following
                check_steps(batch, np.broadcast_to(steps, mask.shape), mask)
                seen += int(batch.extra["state_known"].sum())
            assert seen > 40


def test_a_selection_a_loader_and_a_mixture_show_values(tmp_path: pathlib.Path) -> None:
    for name in "ab":
        with create(tmp_path / name, later={"v": np.float32}) as buffer:
            for episode in range(5):
                buffer.begin_episode(seed=episode)
                play(buffer, 6, 100 * episode)
            buffer.write("v", buffer.items(), np.arange(30, dtype=np.float32))
    with dr.ReplayBuffer.open(tmp_path / "a", mode="r", seed=0) as reader:
        batch = reader.sample(20, within=reader.select("seed == 2"))
        assert (batch.extra["v"] == batch.index).all()
        assert set(batch.index.tolist()) <= set(range(12, 18))
        with reader.loader(8) as loader:
            batch = next(loader)
            assert (batch.extra["v"] == batch.index).all()
    with dr.Mixture.open([(tmp_path / name, {"mode": "r"}) for name in "ab"]) as mixture:
        batch = mixture.sample(20)
        assert batch.extra["v_known"].all()


def test_hindsight_gives_values_to_its_functions(tmp_path: pathlib.Path) -> None:
    goal = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    space = gymnasium.spaces.Dict({"observation": goal, "achieved_goal": goal, "desired_goal": goal})
    seen: list[Any] = []

    def reward(achieved: Any, desired: Any, info: Any) -> Any:
        seen.append(info["latent"])
        return np.zeros(len(achieved))

    view = dr.Hindsight(reward, ratio=1.0)
    with dr.ReplayBuffer.create(
        tmp_path / "a", space, TURN, capacity=50, later={"latent": np.float32}, view=view, **OPEN
    ) as buffer:
        zero = {name: np.zeros(2, np.float32) for name in space.spaces}
        for _ in range(10):
            buffer.add(zero, 0, 0.0, zero, False, False)
        buffer.write("latent", buffer.items(), np.arange(10, dtype=np.float32))
        batch = buffer.sample(6)
    assert (batch.extra["latent"] == batch.index).all()
    assert (seen[0] == batch.index).all()


def test_a_rollout_shows_values(tmp_path: pathlib.Path) -> None:
    with dr.RolloutBuffer.create(tmp_path / "a", LINE, TURN, steps=8, later={"latent": ((2,), np.float32)}) as buffer:
        for step in range(8):
            buffer.add([step], 0, 1.0, [step + 1], False, False, value=0.0, log_prob=0.0)
        buffer.write("latent", ids((3, 0)), [[1.0, 2.0]])
        buffer.finish(last_value=0.0)
        (batch,) = buffer.minibatches(8)
        known = batch.extra["latent_known"]
        assert batch.index[known].tolist() == [3]
        assert batch.extra["latent"][known].tolist() == [[1.0, 2.0]]


def test_buffers_of_several_agents_show_values(tmp_path: pathlib.Path) -> None:
    options: dict[str, Any] = {"later": {"hidden": ((2, 4), np.float32)}}
    with dr.MultiAgentReplayBuffer.create(tmp_path / "a", LINE, TURN, 2, capacity=20, **options) as buffer:
        for step in range(10):
            obs = np.full((2, 1), step, np.float32)
            buffer.add(obs, [0, 0], 1.0, obs + 1, False, False)
        buffer.write("hidden", [4], np.ones((1, 2, 4), np.float32))
        batch = buffer.get(buffer.items())
    assert batch.extra["hidden_known"].tolist() == [number == 4 for number in range(10)]
    assert batch.extra["hidden"].sum() == 8


def test_the_last_value_of_a_repeated_index_counts(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a", later={"v": np.float32}) as buffer:
        play(buffer, 5)
        buffer.write("v", [3, 1, 3, 3], np.array([1, 2, 3, 4], np.float32))
        assert buffer.get([1, 3]).extra["v"].tolist() == [2, 4]


HOSTILE: list[tuple[str, Any, Any, str]] = [
    ("other", [0], [[0.0] * 3], "there is no column 'other' that is written later; there are 'state'"),
    ("obs", [0], [[0.0]], "there is no column 'obs'"),
    ("state", [0], [0.0], r"must have shape \(1, 3\)"),
    ("state", [0, 1], np.zeros((2, 4), np.float32), r"must have shape \(2, 3\)"),
    ("state", [0], np.zeros((1, 3)) + 0.1, "do not fit without loss"),
    ("state", [0], [["a", "b", "c"]], "must be numbers"),
    ("state", [0], [[1e300, 0.0, 0.0]], "too large"),
    ("state", [0.5], np.zeros((1, 3), np.float32), "index must be integers"),
    ("state", [[0]], np.zeros((1, 3), np.float32), "index must be integers"),
    ("state", [0, 20], np.zeros((2, 3), np.float32), "index 20 names no transition"),
    ("state", [0, -1], np.zeros((2, 3), np.float32), "index -1 names no transition"),
    ("state", [0, 1 << 48], np.zeros((2, 3), np.float32), "can write values for rows of that alone"),
    ("state", [0, 7], np.zeros((2, 3), np.float32), "its row is none"),
    ("state", [0, 1], [[0.0, 1.0, 2.0], [0.0, np.nan, 0.0]], r"must be finite.*at \[1, 1\]"),
]


@pytest.mark.parametrize(("name", "index", "values", "match"), HOSTILE)
def test_a_refused_write_changes_nothing(
    tmp_path: pathlib.Path, name: str, index: Any, values: Any, match: str
) -> None:
    with create(tmp_path / "a", finite=True, later={"state": ((3,), np.float32)}) as buffer:
        for step in range(20):
            buffer.add([step], 0, 1.0, [step + 1], False, False, valid=step != 7)
        buffer.write("state", [0], [[1.0, 2.0, 3.0]])
        before = buffer.get(buffer.items()).extra
        with pytest.raises(InputError, match=match):
            buffer.write(name, index, values)
        after = buffer.get(buffer.items()).extra
        assert all(np.array_equal(before[key], after[key]) for key in before)
        assert after["state_known"].sum() == 1


def test_rows_of_another_writers_stream_are_refused_by_its_name(tmp_path: pathlib.Path) -> None:
    with (
        create(tmp_path / "a", later={"v": np.float32}) as actor,
        dr.ReplayBuffer.open(tmp_path / "a", stream="learner", **OPEN) as learner,
    ):
        play(actor, 5)
        actor.commit()
        learner.refresh()
        index = learner.sample(3).index
        with pytest.raises(InputError, match="stream number 0; this buffer writes the stream 'learner', number 1"):
            learner.write("v", index, np.zeros(3, np.float32))
        play(learner, 5)
        learner.write("v", learner.items()[-5:], np.ones(5, np.float32))
        assert learner.get(learner.items()).extra["v_known"].tolist() == [False] * 5 + [True] * 5
        actor.write("v", index, np.full(3, 2, np.float32))
        actor.commit()
        learner.refresh()
        assert (learner.get(index).extra["v"] == 2).all()


def test_a_reader_cannot_write(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a") as buffer:
        play(buffer, 5)
    with dr.ReplayBuffer.open(tmp_path / "a", mode="r") as reader, pytest.raises(ReadOnlyError):
        reader.write("value", [0], [1.0])


@pytest.mark.parametrize(
    ("columns", "given", "match"),
    [
        ({}, {"reward": np.float32}, "is a name of the store's own"),
        ({}, {"later": np.float32}, "is a name of the store's own"),
        ({"v": np.float32}, {"v": np.float32}, "'v' is there twice"),
        ({"v_known": np.float32}, {"v": np.float32}, "'v_known' is there twice"),
        ({}, {"v": np.float32, "v_known": np.float32}, "'v_known' is there twice"),
        ({}, {"a/b": np.float32}, "cannot name"),
        ({}, {"v": "text"}, "must be a dtype"),
        ({}, {"v": ((0,), np.float32)}, "shape of 'v'"),
        ({}, {"v": np.dtype(object)}, "Zarr has no portable data type"),
    ],
)
def test_columns_that_cannot_be_declared(tmp_path: pathlib.Path, columns: Any, given: Any, match: str) -> None:
    with pytest.raises((SchemaError, InputError), match=match):
        create(tmp_path / "a", columns=columns, later=given)
    assert not (tmp_path / "a").exists()


def test_open_or_create_names_other_columns(tmp_path: pathlib.Path) -> None:
    create(tmp_path / "a", later={"v": np.float32}).close()
    with pytest.raises(InputError, match=r"later is \{'v'"):
        dr.ReplayBuffer.open_or_create(tmp_path / "a", LINE, TURN, capacity=1000, later={"w": np.float32})
    dr.ReplayBuffer.open_or_create(tmp_path / "a", LINE, TURN, capacity=1000, later={"v": np.float32}).close()


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("none", [[], (), np.empty(0, np.int64), np.empty(0, np.uint64)], ids=repr)
def test_to_write_nothing_does_nothing(tmp_path: pathlib.Path, shape: tuple[int, ...], none: Any) -> None:
    """As where a mask leaves none of a batch: lists have no dtype and no shape then."""
    with create(tmp_path / "a", later={"v": (shape, np.float32)}) as buffer:
        play(buffer, 5)
        buffer.commit()
        buffer.write("v", none, [])
        buffer.write("v", none, np.empty((0, *shape), np.float32))
        assert not logged(buffer).unwritten
        assert len(buffer.get(none)) == 0
        with pytest.raises(InputError, match="must have shape"):
            buffer.write("v", none, np.empty((0, 2, 2), np.float32))
        with pytest.raises(InputError, match="no column 'w'"):
            buffer.write("w", none, [])
        with pytest.raises(InputError, match="must have shape"):
            buffer.write("v", [1], [])


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (np.array([1, 2**63], np.uint64), "index 9223372036854775808 names no transition: every index is below"),
        ([2**64 - 1], "index 18446744073709551615 names no transition: every index is below"),
        ([-1], "index -1 names no transition"),
        ([5], "index 5 names no transition: it was never given"),
        ([1 << 48], "of the stream number 1; this buffer writes the stream '0'"),
        ([0.5], r"index must be integers of shape \(B,\), got float64 \(1,\)"),
        ([[1]], r"index must be integers of shape \(B,\), got int64 \(1, 1\)"),
        ([True], r"index must be integers of shape \(B,\), got bool"),
    ],
    ids=str,
)
def test_an_index_that_is_none_is_named(tmp_path: pathlib.Path, index: Any, message: str) -> None:
    with create(tmp_path / "a", later={"v": np.float32}) as buffer:
        play(buffer, 5)
        buffer.commit()
        with pytest.raises(InputError, match=message):
            buffer.write("v", index, np.ones(np.shape(index)[:1], np.float32))
        assert not logged(buffer).unwritten
        with pytest.raises(InputError):
            buffer.get(index)
        buffer.write("v", np.array([1], np.uint64), [1.0])
        assert buffer.get(np.array([1], np.uint64)).extra["v"].tolist() == [1]


def test_a_store_without_such_columns_has_no_trace_of_them(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a", later=None) as buffer:
        play(buffer, 5)
        with pytest.raises(InputError, match=r"there are none: create\(..., later="):
            buffer.write("v", [0], [0.0])
    assert "later" not in (tmp_path / "a" / "zarr.json").read_text()
    assert "later" not in (tmp_path / "a/streams/0/zarr.json").read_text()
    assert not (tmp_path / "a/streams/0/later").exists()


@pytest.mark.long
def test_the_log_stays_bounded(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for name, value in (("LOG_CHUNK_BYTES", 1 << 12), ("SHARD_BYTES", 1 << 16)):
        monkeypatch.setattr(layout, name, value)
    for name in ("SLACK_BYTES", "BLOCK_BYTES"):
        monkeypatch.setattr(later_values, name, 1 << 12)
    for name, value in (("LEFT_BYTES", 0), ("DEAD_BYTES", 1 << 12)):
        monkeypatch.setattr(tail, name, value)
    living = 300 * (64 * 4 + 8)
    with create(path, capacity=300, later={"state": ((64,), np.float32)}) as buffer:
        play(buffer, 300, ends=False)
        for _ in range(300):
            buffer.write("state", buffer.sample(32).index, rng.random((32, 64), np.float32))
            buffer.commit()
        log = logged(buffer)
        assert log.end > 30 * living, "so much was written"
        assert log.end - log.begin < 4 * living
        expected = buffer.get(buffer.items()).extra["state"]
    assert LocalFiles().stored_bytes(str(path)) < 4 * living
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert np.array_equal(reader.get(reader.items()).extra["state"], expected)


def test_inspect_counts_values(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a", later={"v": np.float32, "w": bool}) as buffer:
        play(buffer, 5)
        buffer.write("v", [1, 2, 1], np.ones(3, np.float32))
    facts = inspect(tmp_path / "a")
    assert facts.later == {"v": 2, "w": 0}
    assert any(column.name == "later/values" for column in facts.columns)
    assert not facts.health


def test_exports_count_what_no_format_holds(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a", later={"v": np.float32}) as buffer:
        for episode in range(4):
            play(buffer, 5, 100 * episode)
        buffer.write("v", buffer.items()[3:12], np.ones(9, np.float32))
    with pytest.raises(InputError, match=r"values of 'v' that were written later \(9\).*--allow-loss"):
        export(tmp_path / "a", tmp_path / "a.npz", "npz")
    with pytest.raises(InputError, match=r"written later \(5\)"):
        export(tmp_path / "a", tmp_path / "b.npz", "npz", selection=Selection(episodes=(1,)))
    assert not export(tmp_path / "a", tmp_path / "c.npz", "npz", selection=Selection(episodes=(3,))).lost
    with pytest.raises(InputError, match=r"store cannot hold values of 'v' that were written later \(9\)"):
        merge(tmp_path / "b", [tmp_path / "a"])
    with pytest.raises(InputError, match=r"store cannot hold values of 'v' that were written later"):
        split(tmp_path / "a", [0.5])
    done = export(tmp_path / "a", tmp_path / "d", "store", allow_loss=True)
    assert done.lost == {"values of 'v' that were written later": 9}
    with dr.ReplayBuffer.open(tmp_path / "d", mode="r") as copied:
        assert copied.sample(4).extra == {}


@pytest.mark.parametrize("pinned", [False, True])
def test_damage_is_found(tmp_path: pathlib.Path, pinned: bool) -> None:
    path = tmp_path / "a"
    with create(path, later={"v": np.float32}) as buffer:
        play(buffer, 20)
        if pinned:
            buffer.write("v", buffer.items()[:3], np.ones(3, np.float32))
            buffer.checkpoint("one")
        buffer.write("v", buffer.items(), np.arange(20, dtype=np.float32))
    record = Store(str(path), LocalFiles()).newest_commit("0")
    flip(path / "streams/0/later/values/c.0.0", record.arrays["later/values"].size // 2 if pinned else 20)
    assert not verify(path).ok
    with pytest.raises(CorruptionError, match="verify"):
        dr.ReplayBuffer.open(path, mode="r")


@pytest.mark.parametrize(
    "block",
    [
        np.array([9, 1, 0, 0, 0], "<u4"), np.array([0, 0], "<u4"), np.array([0, 5, 0, 0, 0], "<u4"),
        np.array([0, 1, 20, 0, 0], "<u4"), np.array([0, 1, 0, 1 << 31, 0], "<u4"), np.array([0], "<u4"),
    ],
    ids=["another column", "no value", "cut off", "a row that is not there", "a negative row", "no header"],
)  # fmt: skip
def test_forged_blocks_are_damage(path: str, block: Any) -> None:
    with create(path, later={"v": np.float32}) as buffer:
        play(buffer, 20)
        buffer.write("v", [1], np.ones(1, np.float32))
        log = logged(buffer)
        log.waiting.append((log.end, block.view(np.uint8)))
        log.end += block.nbytes
    with pytest.raises(CorruptionError, match="written later"):
        dr.ReplayBuffer.open(path, mode="r")
    assert any("written later" in problem.what for problem in verify(path).problems)


def test_a_checkpoint_pins_the_values_of_another_writers_stream(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That writer gives up shards of its log, and no rows, while the checkpoint is made: it is made anew."""
    path, write = tmp_path / "a", Store.write_checkpoint
    calls = []

    with small_thresholds(), create(path, capacity=12, later={"v": np.int16}) as actor:
        play(actor, 12)
        actor.write("v", actor.items(), np.arange(12, dtype=np.int16))
        actor.commit()

        def late(store: Store, *arguments: Any) -> bool:
            calls.append(actor.stats()["streams"]["0"]["sequence"])
            for number in range(20 if len(calls) == 1 else 0):
                actor.write("v", actor.items(), np.arange(12, dtype=np.int16) + number)
                actor.commit()
            return write(store, *arguments)

        with dr.ReplayBuffer.open(path, stream="learner", **OPEN) as learner:
            monkeypatch.setattr(Store, "write_checkpoint", late)
            learner.checkpoint("both")
        record = Store(str(path), LocalFiles()).newest_commit("0")
        assert record.of("later/values").begin > 256, "a shard was given up"
        assert (len(calls), values_in(path, checkpoint="both")) == (2, list(range(19, 31)))
        assert verify(path).problems == ()


def test_a_later_column_may_be_named_as_an_array_of_the_log(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a.replay", later={"next_patch": np.float32}) as buffer:
        play(buffer, 20)
        index = buffer.items()
        before = buffer.get(index)
        np.testing.assert_array_equal(before.next_obs, before.obs + 1)
        buffer.write("next_patch", index, np.arange(len(index), dtype=np.float32))
        after = buffer.get(index)
        np.testing.assert_array_equal(after.next_obs, before.next_obs)
        np.testing.assert_array_equal(after.extra["next_patch"], np.arange(len(index)))
