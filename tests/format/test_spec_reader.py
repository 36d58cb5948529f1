"""What docs/format.md says is enough to read a store: an independent reader agrees with ``rb.get``, bit for bit.

Each case drives a buffer through resets, unflagged cuts, evictions and several commits, then compares every
transition of the committed window, beside the open writer and after it was closed.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pathlib
import shutil
import struct
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import zarr
from golden import recipes

import diskreplay as dr
from diskreplay import video
from diskreplay.storage.commit import NO_START, Commit

_spec = importlib.util.spec_from_file_location("specreader", pathlib.Path(__file__).with_name("specreader.py"))
assert _spec is not None
assert _spec.loader is not None
specreader = sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(specreader)

Box = gymnasium.spaces.Box
FRAME = Box(0, 255, (6, 5), np.uint8)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "s.replay"


@dataclasses.dataclass(frozen=True)
class Case:
    """A configuration, and how its steps look."""

    name: str
    space: gymnasium.Space[Any]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    rows: int = 150
    capacity_rows: int = 1000
    envs: int = 1
    odd: bool = False  # stacks that no padding rule explains, and next stacks that do not follow


def stacked(*shape: int, dtype: type = np.uint8) -> gymnasium.Space[Any]:
    return Box(0, 255, shape, dtype)


CASES = [
    Case("frame", Box(-9, 9, (3,), np.float32)),
    Case("zero-padding", FRAME, {"frame_stack": 4, "chunk_rows": 8, "shard_rows": 32}),
    Case("reset-padding", FRAME, {"frame_stack": 4, "stack_padding": "reset", "chunk_rows": 8, "shard_rows": 64}),
    Case("evicted", FRAME, {"frame_stack": 4, "chunk_rows": 4, "shard_rows": 16}, rows=220, capacity_rows=50),
    Case("three-envs", FRAME, {"frame_stack": 3, "chunk_rows": 8}, envs=3, rows=90, capacity_rows=40),
    Case("resident-stack", Box(-9, 9, (2,), np.float32), {"frame_stack": 5}, envs=2, rows=90, capacity_rows=40),
    Case("stacked-first", stacked(4, 6, 5), {"frame_stack": 4, "chunk_rows": 8}, odd=True),
    Case("stacked-last", stacked(6, 5, 4), {"frame_stack": 4}, odd=True, envs=3, rows=60, capacity_rows=30),
    Case("channels-first", stacked(6, 5, 4), {"frame_stack": 2, "stack_axis": 0}, odd=True),
    Case("channels-last", stacked(5, 4, 6), {"frame_stack": 3, "stack_axis": -1}, odd=True, envs=2, rows=60),
    Case(
        "nested",
        gymnasium.spaces.Dict(
            camera=Box(0, 255, (40, 40), np.uint8),
            arms=gymnasium.spaces.Tuple((Box(-9, 9, (2,), np.float64), gymnasium.spaces.MultiBinary(3))),
            mode=gymnasium.spaces.Discrete(5, start=2),
        ),
        {"frame_stack": {"camera": 3}, "chunk_rows": {"obs/camera": 4}, "shard_rows": {"obs/camera": 16}},
        envs=2,
        rows=110,
        capacity_rows=60,
    ),
    Case("no-codec", Box(0, 255, (40, 40), np.uint8), {"codec": "none", "chunk_rows": 4, "frame_stack": 2}),
    Case("lz4", Box(0, 255, (40, 40), np.uint8), {"codec": "lz4", "chunk_rows": 8}),
    Case("zstd", Box(0, 65535, (30, 30), np.uint16), {"codec": "zstd:3", "chunk_rows": 4}, envs=2, rows=70),
]


class Walk:
    """Steps of ``envs`` environments at once, with ends, unflagged cuts, invalid steps and, if wanted, odd stacks."""

    def __init__(self, case: Case, buffer: dr.ReplayBuffer) -> None:
        self.case = case
        self.buffer = buffer
        self.rng = np.random.default_rng(7)
        self.stack = next((s for s in buffer.schema.stacks if s.axis is not None), None)
        self.now = [self.fresh() for _ in range(case.envs)]

    def go(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def draw(self, space: gymnasium.Space[Any]) -> Any:
        if isinstance(space, gymnasium.spaces.Dict):
            return {key: self.draw(part) for key, part in space.spaces.items()}
        if isinstance(space, gymnasium.spaces.Tuple):
            return tuple(self.draw(part) for part in space.spaces)
        if isinstance(space, Box) and space.dtype.kind == "f":
            return self.rng.uniform(-9, 9, space.shape).astype(space.dtype)
        if isinstance(space, gymnasium.spaces.Discrete):
            return self.rng.integers(space.start, space.start + space.n)
        if isinstance(space, gymnasium.spaces.MultiBinary):
            return self.rng.integers(2, size=space.shape, dtype=np.int8)
        return self.rng.integers(1, 256, space.shape).astype(space.dtype)

    def fresh(self) -> Any:
        """A first observation: stacks are padded by zeros, by repetition, or oddly."""
        given = self.draw(self.case.space)
        if self.stack is None:
            return given
        frames = self.split(given)
        rule = self.rng.integers(3)
        frames[:-1] = 0 if rule == 0 else frames[-1] if rule == 1 else frames[:-1]
        return self.join(frames)

    def split(self, given: np.ndarray) -> np.ndarray:
        return np.array(np.split(given, self.stack.frames, self.stack.axis))

    def join(self, frames: np.ndarray) -> np.ndarray:
        return np.concatenate(list(frames), self.stack.axis)

    def following(self, obs: Any) -> Any:
        given = self.draw(self.case.space)
        if self.stack is None or (self.case.odd and self.rng.random() < 0.1):
            return given
        return self.join(np.concatenate([self.split(obs)[1:], self.split(given)[-1:]]))

    def lead(self, values: list[Any]) -> Any:
        """Values of all environments as one; the only one as it is."""
        if self.case.envs == 1:
            return values[0]
        if isinstance(values[0], dict):
            return {key: self.lead([value[key] for value in values]) for key in values[0]}
        if isinstance(values[0], tuple):
            return tuple(self.lead(list(parts)) for parts in zip(*values, strict=True))
        return np.array(values)

    def step(self) -> None:
        envs = self.case.envs
        following = [self.following(obs) for obs in self.now]
        ends = self.rng.random((3, envs)) < [[0.06], [0.04], [0.05]]
        terminated, truncated, _ = ends  # the third: an episode that stops without a flag
        valid = self.rng.random(envs) > 0.04
        self.buffer.add(
            self.lead(self.now),
            self.lead([self.rng.integers(6) for _ in range(envs)]),
            self.lead([np.float32(self.rng.normal()) for _ in range(envs)]),
            self.lead(following),
            self.lead(list(terminated)),
            self.lead(list(truncated)),
            self.lead(list(valid)),
        )
        self.now = [self.fresh() if ends[:, env].any() else following[env] for env in range(envs)]


def create(case: Case, path: pathlib.Path) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.create(
        path, case.space, gymnasium.spaces.Discrete(6), capacity=case.capacity_rows * case.envs, num_envs=case.envs,
        commit_seconds=1e9, seed=0, **case.options,
    )  # fmt: skip


def leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The arrays of a nested value, with the names of their columns."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{name}/{key}")
    elif isinstance(value, tuple):
        for position, part in enumerate(value):
            yield from leaves(part, f"{name}/{position}")
    else:
        yield name, value


def assert_same_bits(ours: Any, theirs: Any, what: str) -> None:
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), what
    assert ours.tobytes() == theirs.tobytes(), what


def compare(stream: Any, batch: dr.Batch) -> None:
    """Every transition of the batch, against the independent reader."""
    for place, number in enumerate(batch.index.tolist()):
        found = stream.transition(number)
        for key in ("obs", "next_obs"):
            expected = {name: array[place] for name, array in leaves(getattr(batch, key), "obs")}
            assert found[key].keys() == expected.keys()
            for name, value in expected.items():
                assert_same_bits(found[key][name], value, f"{key} {name} of {number}")
        for name in ("action", "reward", "terminated", "truncated"):
            assert_same_bits(found[name], getattr(batch, name)[place], f"{name} of {number}")


@pytest.mark.long
@pytest.mark.own_thresholds
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_independent_reader_agrees(case: Case, path: pathlib.Path) -> None:
    buffer = create(case, path)
    walk = Walk(case, buffer)
    for row in range(case.rows):
        walk.step()
        if row % 37 in (5, 6, 20):
            buffer.commit()
    buffer.commit()
    stream = specreader.Store(path).streams["0"]
    ids = stream.ids()
    assert len(ids) == len(buffer) > 0
    assert stream.end == case.rows
    assert bool(stream.begin) == (case.rows > case.capacity_rows)
    batch = buffer.get(ids)
    compare(stream, batch)

    # Rows that no commit holds do not show, and change nothing of what does.
    walk.go(3)
    beside = specreader.Store(path).streams["0"]
    assert beside.record == stream.record
    compare(beside, batch)

    buffer.close()
    closed = specreader.Store(path).streams["0"]
    assert closed.end == case.rows + 3
    with dr.ReplayBuffer.open(path, mode="r") as reopened:
        compare(closed, reopened.get(closed.ids()))


EVICTED = next(case for case in CASES if case.name == "evicted")
RESIZED = [
    case for case in CASES if case.name in ("evicted", "three-envs", "resident-stack", "stacked-first", "nested")
]


@pytest.mark.long(quick=2)
@pytest.mark.own_thresholds
@pytest.mark.parametrize("case", RESIZED, ids=lambda case: case.name)
def test_an_independent_reader_agrees_about_a_resized_stream(case: Case, path: pathlib.Path) -> None:
    with create(case, path) as buffer:
        walk = Walk(case, buffer)
        for number, capacity in enumerate((9, 70, 23, 24, 300)):
            walk.go(40)
            buffer.checkpoint(f"before-{number}")
            buffer.resize(capacity * case.envs)
            stream = specreader.Store(path).streams["0"]
            assert stream.record["capacity"] == capacity * case.envs
            assert (stream.begin, stream.end) == (buffer.episodes[0].start, 40 * (number + 1))
            compare(stream, buffer.get(stream.ids()))
            assert_invariants_of_rows(stream)
    assert json.loads((path / "zarr.json").read_text())["attributes"]["diskreplay"]["schema"]["capacity"] == (
        case.capacity_rows * case.envs
    )


def test_the_start_of_a_limiter_is_in_the_record_and_may_be_ignored(path: pathlib.Path) -> None:
    with create(CASES[0], path) as buffer:
        Walk(CASES[0], buffer).go(50)
        dr.RateLimiter(buffer, 0.5, 10, 8).wait_to_sample(3)
        buffer.commit()
        stream = specreader.Store(path).streams["0"]
        assert (stream.record["limiter"], stream.record["sampled"]) == ([1, 50, 0, 10, 0.5], 3)
        compare(stream, buffer.get(stream.ids()))
        assert_invariants_of_rows(stream)
    record = json.loads((path / "streams/0/zarr.json").read_text())["attributes"]["diskreplay"]
    del record["limiter"]  # as a writer does that does not know it
    assert Commit.from_json(record, "zarr.json").limiter == NO_START


@pytest.mark.long
def test_the_cases_reach_every_start_code_and_patch_offset(tmp_path: pathlib.Path) -> None:
    codes, offsets, dead, evicted = set(), set(), 0, 0
    for case in CASES:
        path = tmp_path / case.name
        with create(case, path) as buffer:
            walk = Walk(case, buffer)
            for row in range(case.rows):
                walk.step()
                if row % 37 in (5, 6, 20):
                    buffer.commit()
        stream = specreader.Store(path).streams["0"]
        codes |= set(np.unique(stream.columns["start"]).tolist())
        offsets |= {offset for _, _, offset in stream.patches}
        dead += sum(array.dead_bytes() for array in stream.arrays.values())
        evicted += sum(not array.shard_file(0).exists() for array in stream.arrays.values())
        assert_invariants_of_rows(stream)
    assert codes == {0, 1, 2, 3}
    assert offsets == {-3, -2, -1, 1, 2, 3, 4}
    assert dead > 0
    assert evicted > 0


def assert_invariants_of_rows(stream: Any) -> None:
    """I17, I18, I22 and I23 of docs/format.md."""
    start, valid = stream.columns["start"], stream.columns["valid"]
    ended = stream.columns["terminated"] | stream.columns["truncated"] | ~valid
    assert not ((start[1:] == 0) & ended[:-1]).any()
    assert not ((start == 0) & ~valid).any()
    assert stream.floor > 0 or (start[0] != 0).all()
    assert set(np.unique(start).tolist()) <= {0, 1, 2, 3, 5, 6, 7}
    for row, env in np.argwhere(start == 3).tolist():
        numbers = [stream.patches[stream.floor + row, env, -back] for back in range(1, stream.context + 1)]
        assert numbers == list(range(numbers[0], numbers[0] + stream.context))
    for row, env, offset in stream.patches:
        assert row >= stream.floor
        if offset == 2:
            numbers = [stream.patches[row, env, 1 + back] for back in range(stream.context + 1)]
            assert numbers == list(range(numbers[0], numbers[0] + stream.context + 1))


def test_bytes_after_the_committed_length_mean_nothing(path: pathlib.Path) -> None:
    """What a crash in the middle of a commit leaves (I13): readers look at the record, never at the file's end."""
    with create(CASES[1], path) as buffer:
        Walk(CASES[1], buffer).go(CASES[1].rows)
        buffer.commit()
        ids = specreader.Store(path).streams["0"].ids()
        batch = buffer.get(ids)
    record = specreader.Store(path).streams["0"].record
    arrays = {name: entry[:2] for name, entry in record["arrays"].items()}
    n, committed, _ = record["tail"]
    with (path / f"streams/0/start/tail.{n}").open("ab") as tail:
        tail.write(b"half a block")
    for name, (shard, _) in arrays.items():
        folder = path / "streams/0" / name
        file = next(folder.glob(f"c.{shard}.*"))
        file.write_bytes(file.read_bytes() + b"torn")
        (folder / file.name.replace(f"c.{shard}.", f"c.{shard + 1}.")).write_bytes(b"half a shard")
    compare(specreader.Store(path).streams["0"], batch)
    with dr.ReplayBuffer.open(path) as recovered:
        compare(specreader.Store(path).streams["0"], recovered.get(ids))
    assert (path / f"streams/0/start/tail.{n}").stat().st_size == committed
    for name, (shard, size) in arrays.items():
        folder = path / "streams/0" / name
        assert next(folder.glob(f"c.{shard}.*")).stat().st_size == size
        assert not list(folder.glob(f"c.{shard + 1}.*"))


def test_a_checkpoint_is_read_beside_newer_rows(path: pathlib.Path) -> None:
    with create(EVICTED, path) as buffer:
        walk = Walk(EVICTED, buffer)
        walk.go(70)
        buffer.checkpoint("kept")
        batch = buffer.get(specreader.Store(path, checkpoint="kept").streams["0"].ids())
        walk.go(70)
    later = specreader.Store(path, checkpoint="kept").streams["0"]
    assert (later.begin, later.end) == (20, 70)
    compare(later, batch)
    assert specreader.Store(path).streams["0"].begin == 90


def test_missing_rows_of_the_hierarchy_are_the_fill_value(path: pathlib.Path) -> None:
    """4.7: rows past ``end``, and rows of evicted shards."""
    with create(EVICTED, path) as buffer:
        Walk(EVICTED, buffer).go(EVICTED.rows + 1)  # the last chunk is partly filled
    stream = specreader.Store(path).streams["0"]
    for name, array in stream.arrays.items():
        seen = zarr.open_array(path / "streams/0" / name, mode="r")[:]
        assert array.in_shards == stream.end
        assert_same_bits(seen[stream.floor : stream.end], stream.columns[name], name)
        assert len(seen) % array.shard_rows == 0
        assert not seen[stream.end :].any()
        gone = stream.floor // array.shard_rows * array.shard_rows
        assert not seen[:gone].any()
    assert stream.end % stream.arrays["obs"].chunk_rows
    assert stream.floor // stream.arrays["obs"].shard_rows > 0


def test_temporary_names_of_a_crash_are_not_seen(path: pathlib.Path) -> None:
    """10.2: readers list groups, never the inside of an array. A warning of zarr-python would fail the test."""
    with create(CASES[1], path) as buffer:
        Walk(CASES[1], buffer).step()
    start = path / "streams/0/start"
    (start / ".tmp-commit").write_text("{")
    (start / ".tmp-checkpoint-x").mkdir()
    (start / ".tmp-checkpoint-x/zarr.json").write_text("{")
    names = {name for name, _ in zarr.open_group(path, mode="r").members(max_depth=None)}
    columns = {f"streams/0/{name}" for name in ("obs", "action", "reward", "terminated", "truncated", "valid", "start")}
    cuts = {"streams/0/cuts", "streams/0/cuts/place"}
    assert names == {"streams", "streams/0", "checkpoints", *columns, *cuts}, "there are no patches"
    dr.ReplayBuffer.open(path).close()
    ours = {"lock", "store-lock", "root.json"}
    left = {file.name for file in start.iterdir() if not file.name.startswith("tail.")}
    assert left == {"c.0.0", "zarr.json", *ours}


def test_the_reader_notices_damage(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The comparison above could not fail if the reader checked nothing."""
    with create(CASES[1], path) as buffer:
        Walk(CASES[1], buffer).go(20)
    whole = tmp_path / "whole"
    shutil.copytree(path, whole)
    shard = next((path / "streams/0/obs").glob("c.0.*"))
    data = bytearray(shard.read_bytes())
    data[30] ^= 1
    shard.write_bytes(data)
    with pytest.raises(AssertionError, match="checksum"):
        specreader.Store(path)
    record = json.loads((whole / "streams/0/zarr.json").read_bytes())
    record["attributes"]["diskreplay"]["arrays"]["obs"][1] -= 1
    (whole / "streams/0/zarr.json").write_text(json.dumps(record))
    with pytest.warns(UserWarning, match=r"zarr\.json is lost: read from"):
        specreader.Store(whole)


def test_crc32c_is_castagnolis() -> None:
    """RFC 3720, appendix B.4."""
    assert specreader.crc32c(b"123456789") == 0xE3069283
    assert specreader.crc32c(bytes(32)) == 0x8A9136AA
    assert specreader.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert specreader.unseal(b"abc" + struct.pack("<I", specreader.crc32c(b"abc"))) == b"abc"


@pytest.mark.parametrize("capacity", [1000, 30])
def test_facts_of_episodes_are_read_from_the_page(path: pathlib.Path, capacity: int) -> None:
    """Given at the start, at the end and again; episodes without any, of two environments; evicted, and at a cut."""
    line, turn = Box(-np.inf, np.inf, (1,), np.float32), gymnasium.spaces.Discrete(2)
    cut = None
    with dr.ReplayBuffer.create(path, line, turn, capacity=2 * capacity, num_envs=2) as buffer:
        rng = np.random.default_rng(0)
        at = np.zeros(2, np.float32)
        for row in range(120):
            ended = rng.random(2) < 0.15
            obs = at[:, None]
            buffer.add(obs, np.zeros(2, int), np.ones(2), obs + 1, ended, np.zeros(2, bool))
            for env in np.flatnonzero(ended).tolist():
                if rng.random() < 0.5:
                    buffer.annotate_episode(env=env, success=bool(row % 2), note="caf\u00e9\n")
                if rng.random() < 0.5:
                    buffer.begin_episode(env=env, seed=row)
            at = at + 1 + 100 * ended
            if row in (20, 50, 90):
                buffer.commit()
            if row == 60:
                buffer.checkpoint("middle")
                cut = [(episode.start, episode.env, episode.facts) for episode in buffer.episodes]
        buffer.commit()
        for checkpoint, wanted in ((None, [(e.start, e.env, e.facts) for e in buffer.episodes]), ("middle", cut)):
            stream = specreader.Store(path, checkpoint=checkpoint).streams["0"]
            assert [(row, env, stream.facts_of(row, env)) for row, env, _ in wanted] == wanted
            assert any(facts for _, _, facts in wanted)
            assert not all(facts for _, _, facts in wanted)


@pytest.mark.parametrize("capacity", [200, 40])
def test_values_written_later_are_read_from_the_page(path: pathlib.Path, capacity: int) -> None:
    """Of several dtypes, in RAM and not, given again and again; evicted, and at a cut."""
    line, turn = Box(-np.inf, np.inf, (1,), np.float32), gymnasium.spaces.Discrete(2)
    later = {"state": ((3,), np.float32), "wide": ((300, 2), np.int16), "sure": bool, "value": np.complex64}
    rng = np.random.default_rng(0)

    def shown(buffer: dr.ReplayBuffer) -> dict[str, dict[tuple[int, int], bytes]]:
        batch = buffer.get(buffer.items())
        places = [divmod(int(number), 2) for number in batch.index]
        known = {name: batch.extra[f"{name}_known"] for name in later}
        return {
            name: {p: batch.extra[name][at].tobytes() for at, p in enumerate(places) if known[name][at]}
            for name in later
        }

    with dr.ReplayBuffer.create(path, line, turn, capacity=2 * capacity, num_envs=2, later=later) as buffer:
        for row in range(120):
            obs = np.full((2, 1), row, np.float32)
            buffer.add(obs, [0, 0], [1.0, 1.0], obs + 1, [False, False], [False, False])
            index = rng.choice(buffer.items(), 5)
            buffer.write("state", index, rng.random((5, 3), np.float32))
            buffer.write("wide", index[:2], rng.integers(-999, 999, (2, 300, 2), np.int16))
            if row % 3:
                buffer.write("sure", index, rng.random(5) < 0.5)
                buffer.write("value", index[1:], (rng.random(4) + 1j * rng.random(4)).astype(np.complex64))
            if row in (20, 50, 90):
                buffer.commit()
            if row == 60:
                buffer.checkpoint("middle")
                cut = shown(buffer)
        buffer.commit()
        for checkpoint, wanted in ((None, shown(buffer)), ("middle", cut)):
            stream = specreader.Store(path, checkpoint=checkpoint).streams["0"]
            found = {name: {p: v.tobytes() for p, v in of.items()} for name, of in stream.later.items()}
            assert found == wanted
            assert all(wanted.values())


@pytest.mark.parametrize("checkpoint", [None, "early"])
def test_ragged_columns_are_read_from_the_page(path: pathlib.Path, checkpoint: str | None) -> None:
    """Texts, graphs, sequences, actions and columns of two environments; evicted, and at a cut."""
    recipes.ragged(path)
    stream = specreader.Store(path, checkpoint=checkpoint).streams["0"]
    assert len(stream.items) == 7
    assert checkpoint or all(stream.record["tables"][f"ragged/{name}"][0] for name in ("obs/text", "tokens"))
    with dr.ReplayBuffer.open(path, mode="r", ragged="lists", checkpoint=checkpoint) as buffer:
        ids = stream.ids()
        assert ids == np.sort(buffer.items()).tolist()
        batch = buffer.get(ids)
        parts = {"": dict(leaves(batch.action, "action")) | dict(batch.extra)}
        parts |= {what: dict(leaves(getattr(batch, what), "obs")) for what in ("obs", "next_obs")}
        for at, number in enumerate(ids):
            found = stream.transition(number)
            for what, columns in parts.items():
                for name, values in columns.items():
                    assert_same_bits((found[what] if what else found)[name], values[at], f"{what} {name} of {number}")


def test_video_columns_are_read_from_the_page(tmp_path: pathlib.Path) -> None:
    path, facts = tmp_path / "a.replay", dr.Video("vp9", 8, 4, parameters=(b"", b"told first"))
    packets = [[bytes([10 * group + at]) * (5 + at) for at in range(4)] for group in range(9)]
    rows = [
        (group[: at + 1], b"".join(video.record(one, not n, 1) for n, one in enumerate(group[: at + 1])))
        for group in packets
        for at in range(4)
    ]
    box = gymnasium.spaces.Box(0, 255, facts.shape, np.uint8)
    with dr.ReplayBuffer.create(
        path, box, gymnasium.spaces.Discrete(2), capacity=20, video={"obs": facts}, chunk_rows=16, shard_rows=64
    ) as buffer:
        for at in range(35):
            buffer.add(rows[at][1], 0, 0.0, rows[at + 1][1], False, False)
            if at % 9 == 8:
                buffer.commit()
    (stream,) = specreader.Store(path).streams.values()
    assert stream.record["tables"]["ragged/obs"] == [3 * 58, 9 * 58, 3 * 58]
    for row in range(stream.begin, stream.end):
        value = stream.shown("obs", stream.columns["obs"][row - stream.floor, 0]).tobytes()
        assert stream.packets("obs", value) == rows[row][0]


def test_zarr_python_reads_spans_and_items(path: pathlib.Path) -> None:
    recipes.ragged(path)
    with dr.ReplayBuffer.open(path, mode="r", ragged="lists") as buffer:
        ids = np.sort(buffer.items())
        batch = buffer.get(ids)
    group = zarr.open_group(path, mode="r")
    for name, lists in (("tokens", batch.extra["tokens"]), ("obs/graph/nodes", batch.obs["graph"]["nodes"])):
        spans, items = (group[f"streams/0/{kind}{name}"][:] for kind in ("", "ragged/"))
        rows, envs = ids // 2, ids % 2
        for (start, stop), row in zip(spans[rows, envs].tolist(), lists, strict=True):
            assert_same_bits(items[start:stop, 0], row, name)
