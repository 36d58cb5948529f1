"""A stream that is resized: its rows, ids, priorities and episodes go on; or nothing has changed."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from helpers import line, residency
from helpers.commands import command
from helpers.configs import CONFIGS, WIDE, Config
from helpers.line import LINE, OPEN, TURN, add
from helpers.odds import chances_of
from helpers.recording import Recording, reopen
from helpers.testing import FaultyFiles, SimulatedDisk
from helpers.view_model import VIEWS, content

import diskreplay as dr
from diskreplay.errors import (
    ClosedError,
    InputError,
    LockedError,
    NotEnoughDataError,
    ReadOnlyError,
    StateError,
    WriteFailedError,
)
from diskreplay.ops.resize import resize
from diskreplay.ops.verify import verify
from diskreplay.sampling.window import Prioritized
from diskreplay.schema import columns as schema


def create(path: Any, capacity: int = 20, **options: Any) -> dr.ReplayBuffer:
    return line.create(path, capacity, **options)


def rows(buffer: dr.ReplayBuffer) -> list[float]:
    return buffer.get(buffer.items()).reward.tolist() if len(buffer) else []


def records(path: str | pathlib.Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(pathlib.Path(path).glob("streams/*/zarr.json"))]


def test_a_larger_capacity_at_opening_keeps_all_rows_and_goes_on(path: str) -> None:
    with create(path) as buffer:
        add(buffer, 33)
    with dr.ReplayBuffer.open(path, capacity=30, **OPEN) as buffer:
        assert (buffer.capacity, rows(buffer)) == (30, list(range(13, 33)))
        add(buffer, 5)
        assert rows(buffer) == list(range(13, 38))
    with dr.ReplayBuffer.open_or_create(path, LINE, TURN, capacity=40, checkpoint="latest", **OPEN) as buffer:
        assert (buffer.capacity, buffer.stats()["capacity"]) == (40, 40)
        add(buffer, 40)
        assert rows(buffer) == list(range(38, 78))
    before = records(path)
    dr.ReplayBuffer.open(path, capacity=40).close()
    assert records(path) == before, "what has that capacity already makes no commit"
    assert verify(path).ok


def test_a_refused_capacity_comes_with_the_line_that_shrinks(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a b.replay"
    with create(path) as buffer:
        add(buffer, 20)
    before = records(path)
    with pytest.raises(InputError, match=r"has the capacity 20, and 7 would keep fewer rows.* call resize\(7\)") as e:
        dr.ReplayBuffer.open(path, capacity=7)
    assert records(path) == before
    program, *line = shlex.split(str(e.value).split("run '")[1].rstrip("'").replace("'\\''", "'"))
    assert program == "diskreplay"
    subprocess.run([sys.executable, "-m", "diskreplay", *line], check=True, capture_output=True)
    with dr.ReplayBuffer.open(path, capacity=7) as buffer:
        assert rows(buffer) == list(range(13, 20))


@pytest.mark.parametrize("num_envs", [1, 3])
def test_an_open_buffer_is_resized_in_the_midst_of_episodes(path: str, num_envs: int) -> None:
    """Where flags alone say that an episode goes on, opening again would cut it."""
    with create(path, 30 * num_envs, num_envs=num_envs, continuity="flags") as buffer:
        add(buffer, 40)
        for count, capacity in ((40, 50), (3, 20), (7, 21), (9, 90)):
            buffer.resize(capacity * num_envs)
            assert buffer.stats()["streams"]["0"]["committed"] == buffer.stats()["streams"]["0"]["end"]
            add(buffer, count)
            assert len(buffer) <= buffer.capacity == capacity * num_envs
            assert len(buffer.episodes) == num_envs
        assert len(buffer) == 30 * num_envs
        held = rows(buffer)
    with dr.open(path) as buffer:
        assert (buffer.capacity, rows(buffer)) == (90 * num_envs, held)


WRONG = [0, -1, True, 2.5, "10", None, (1 << 48) + 1, 2]


@pytest.mark.parametrize("capacity", WRONG, ids=repr)
def test_what_is_no_capacity_changes_nothing(path: str, capacity: Any) -> None:
    """Two is below one row of three environments."""
    with create(path, 30, num_envs=3) as buffer:
        add(buffer, 12)
        buffer.commit()
        before = records(path)
        add(buffer, 1)
        with pytest.raises(InputError, match=r"capacity must (be|hold one row of 3 environments)"):
            buffer.resize(capacity)
        assert (records(path), buffer.capacity, len(buffer)) == (before, 30, 30)
    before = records(path)
    doors = [lambda: resize(path, capacity)]
    if capacity is not None:
        doors += [lambda: dr.ReplayBuffer.open(path, capacity=capacity)]
        doors += [lambda: dr.ReplayBuffer.open(path, stream="new", capacity=capacity)]
    for door in doors:
        with pytest.raises(InputError, match=r"capacity must (be|hold one row of 3 environments)"):
            door()
        assert records(path) == before


def test_one_row_is_enough(path: str) -> None:
    with create(path, 30, num_envs=3) as buffer:
        add(buffer, 12)
        buffer.resize(5)  # a part of a row does not count
        assert (buffer.capacity, rows(buffer)) == (5, [11.0] * 3)
        add(buffer, 2)
        assert rows(buffer) == [13.0] * 3
    with dr.ReplayBuffer.open(path) as buffer:
        assert (buffer.capacity, rows(buffer)) == (5, [13.0] * 3)


def test_who_may_not_write_may_not_resize(path: str) -> None:
    with create(path) as buffer, dr.open(path) as reader:
        add(buffer, 3)
        buffer.commit()
        before = records(path)
        with pytest.raises(ReadOnlyError):
            reader.resize(50)
        with pytest.raises(InputError, match="a buffer with mode='r' takes no capacity"):
            dr.ReplayBuffer.open(path, mode="r", capacity=50)
        for door in (lambda: resize(path, 50), lambda: dr.ReplayBuffer.open(path, capacity=50)):
            with pytest.raises(LockedError):
                door()
        assert records(path) == before
        assert buffer.capacity == reader.capacity == 20
    with pytest.raises(ClosedError):
        buffer.resize(50)
    assert (buffer.capacity, reader.capacity) == (20, 20)


class Meddling(dr.Uniform):
    """A sampler that resizes the buffer while it draws."""

    def sample(self, rng: Any, windows: Any, standing: Any, size: int) -> Any:
        self.buffer.resize(50)  # type: ignore[attr-defined]

    def to_json(self) -> dict[str, Any]:
        return {"kind": "Meddling"}


def test_not_while_it_is_sampled(path: str) -> None:
    sampler = Meddling()
    with create(path, sampler=sampler) as buffer:
        object.__setattr__(sampler, "buffer", buffer)
        add(buffer, 3)
        with pytest.raises(StateError):
            buffer.sample(1)
        assert (buffer.capacity, rows(buffer)) == (20, [0.0, 1.0, 2.0])
        add(buffer, 1)


def test_a_commit_that_fails_leaves_the_capacity_of_before() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/shelf")
    files = FaultyFiles(disk)
    buffer = create("/shelf/a.replay", files=files)
    add(buffer, 20)
    buffer.commit()
    files.fail_at(0)
    with pytest.raises(WriteFailedError):
        buffer.resize(5)
    with pytest.raises(StateError, match="must be reopened"):
        buffer.resize(50)
    with pytest.raises(WriteFailedError, match="changes since the last commit are lost"):
        buffer.close()
    with dr.ReplayBuffer.open("/shelf/a.replay", files=disk) as again:
        assert (again.capacity, len(again)) == (20, 20)


# Checkpoints


def test_a_checkpoint_is_opened_with_the_capacity_it_had(path: str) -> None:
    with create(path, chunk_rows=2, shard_rows=4) as buffer:
        add(buffer, 25)
        buffer.checkpoint("of 20")
        buffer.resize(50)
        add(buffer, 30)
        buffer.checkpoint("of 50")
        buffer.resize(3)
        assert rows(buffer) == [52.0, 53.0, 54.0]
    for name, capacity, held in (("of 20", 20, range(5, 25)), ("of 50", 50, range(5, 55))):
        with dr.open(path, checkpoint=name) as reader:
            assert (reader.capacity, rows(reader)) == (capacity, list(held)), "what it pins is not evicted"
    with dr.ReplayBuffer.open(path, checkpoint="of 50", **OPEN) as buffer:
        assert (buffer.capacity, rows(buffer)) == (50, list(range(5, 55)))
        buffer.drop_checkpoint("of 50")
    with pytest.raises(InputError, match="has the capacity 20, and 19 would keep fewer"):
        dr.ReplayBuffer.open(path, checkpoint="of 20", capacity=19)
    with dr.ReplayBuffer.open(path, checkpoint="of 20", capacity=30, **OPEN) as buffer:
        assert (buffer.capacity, rows(buffer)) == (30, list(range(5, 25)))
        add(buffer, 9)
        assert rows(buffer) == list(range(5, 34))[-30:]
    assert verify(path).ok


def test_dropping_a_checkpoint_gives_back_what_it_pinned(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.replay"

    def shards() -> int:
        return len(list(path.glob("streams/0/obs/c.*")))

    with create(path, 40, chunk_rows=2, shard_rows=4) as buffer:
        add(buffer, 40)
        buffer.checkpoint("here")
        buffer.resize(4)
        assert shards() == 10
        buffer.drop_checkpoint("here")
        buffer.commit()
        assert shards() == 1


# Priorities


def priorities(buffer: dr.ReplayBuffer) -> dict[int, float]:
    """As the sampler keeps them, of each transition; after it has followed the windows."""
    ids = buffer.items()
    chances = chances_of(buffer, ids)
    arrays = buffer.sampler.state()[1] if isinstance(buffer.sampler, Prioritized) else {"": chances / chances.max()}
    (values,) = [array for name, array in arrays.items() if not name.endswith("waiting")]
    assert (chances > 0).all()
    return dict(zip(ids.tolist(), values.tolist(), strict=True))


SAMPLERS: dict[str, Callable[[], Any]] = {
    "proportional": lambda: dr.Proportional(alpha=1.0),
    "by environment": lambda: dr.Proportional(alpha=1.0, by_env=True),
    "ranks": lambda: dr.RankBased(alpha=1.0),
    "mixture": lambda: dr.SamplerMixture([dr.Recent(half_life=9), dr.Proportional()]),
    "recent": lambda: dr.Recent(half_life=9),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_priorities_stay_with_their_rows(path: str, name: str) -> None:
    with create(path, 30, num_envs=2, sampler=SAMPLERS[name]()) as buffer:
        add(buffer, 21)
        ids = buffer.items()
        with contextlib.suppress(InputError):  # Recent has none
            buffer.update_priorities(ids, np.random.default_rng(0).random(len(ids)) * 9 + 2)
        before = priorities(buffer)
        buffer.checkpoint("here")
        for capacity, kept in ((31, 30), (100, 30), (12, 12), (60, 12)):
            buffer.resize(capacity)
            assert priorities(buffer) == dict(list(before.items())[-kept:])
            buffer.sample(4)
        add(buffer, 1)
        after = priorities(buffer)
        assert len(after) == 14
        largest = [max(list(before.values())[env :: 2 if name == "by environment" else 1]) for env in (0, 1)]
        assert name == "recent" or list(after.values())[-2:] == largest, "a new one has the largest so far"
    for given in (SAMPLERS[name](), None):
        with dr.ReplayBuffer.open(path, checkpoint="here", capacity=64, sampler=given) as again:
            assert priorities(again) == before


def test_a_readers_priorities_survive_a_resize(path: str) -> None:
    with create(path, 10, num_envs=2) as writer:
        add(writer, 9)
        writer.commit()
        with dr.ReplayBuffer.open(path, mode="r", sampler=dr.Proportional(alpha=1.0)) as reader:
            reader.update_priorities(reader.items(), np.arange(10) + 1.0)
            before = priorities(reader)
            for capacity in (40, 4):
                writer.resize(capacity)
                assert reader.refresh()
                assert reader.capacity == capacity
                assert priorities(reader) == dict(list(before.items())[-capacity:])


def test_the_parts_of_a_mixture_are_resized_by_themselves(tmp_path: pathlib.Path) -> None:
    parts = [create(tmp_path / name, sampler=dr.Proportional()) for name in "ab"]
    for part in parts:
        add(part, 30)
    with dr.Mixture(parts) as mixture:
        batch = mixture.sample(8)
        mixture.update_priorities(batch.index, np.arange(8.0))
        before = [priorities(part) for part in parts]
        parts[0].resize(90)
        assert (mixture.capacity, len(mixture.sample(8))) == (110, 8)
        assert [priorities(part) for part in parts] == before


# What is in RAM


@pytest.mark.long
@pytest.mark.parametrize("config", [*CONFIGS, *WIDE], ids=repr)
def test_a_column_that_outgrows_RAM_gives_the_same_batches(config: Config, tmp_path: pathlib.Path) -> None:
    """Beside another stream, whose columns stay there; then opened anew, and shrunk."""
    path, twin = str(tmp_path / "a"), str(tmp_path / "b")
    capacity, same_but = config.capacity, ("frame_stack", "several_actions", "columns")
    second = Config("b", config.obs, **{name: getattr(config, name) for name in same_but})
    for place in (path, twin):
        config.create(place).close()
        with reopen(config, place, stream="b", num_envs=1, capacity=17) as other:
            Recording(second, 1).add(other, 30, 0.3)
    with reopen(config, path, stream="0") as buffer, reopen(config, twin, stream="0") as same:
        for of in (buffer, same):
            Recording(config).add(of, 20, 0.3)
        buffer.resize(20 * capacity)
        same.resize(20 * capacity)
        recordings = [Recording(config, 5), Recording(config, 5)]
        with residency.restored():
            residency.hold_windows_up_to(20 * 17)
            buffer.resize(20 * capacity + 1)
            held = next(iter(buffer.engine.streams)).log
            assert "obs" not in held.resident
            assert set(schema.ALWAYS_RESIDENT) <= {*held.resident}
            for of, recording in zip((buffer, same), recordings, strict=True):
                recording.add(of, 25, 0.3)
            assert_same(buffer, same)
            buffer.commit()
            same.commit()
            assert_same(buffer, same)
            with dr.open(path) as reader:
                assert_same(reader, same)
                buffer.resize(9 * config.num_envs)
                same.resize(9 * config.num_envs)
                for of, recording in zip((buffer, same), recordings, strict=True):
                    recording.add(of, 3, 0.3)
                assert_same(buffer, same)
                buffer.commit()
                reader.refresh()
                assert_same(reader, same)
    assert verify(path).ok


def assert_same(buffer: dr.ReplayBuffer, same: dr.ReplayBuffer) -> None:
    for view in VIEWS:
        for of in (buffer, same):
            of.draws.view = of.draws.shown = view
            of.engine.rng.bit_generator.state = np.random.default_rng(3).bit_generator.state
        assert buffer.items().tolist() == same.items().tolist()
        found = []
        for of in (buffer, same):
            with contextlib.suppress(NotEnoughDataError):
                found.append(content(of.sample(7)))
        assert found[1:] == found[:-1]
        for batch in buffer.shuffled(9):
            assert content(batch) == content(same.get(batch.index))


def test_values_that_are_written_later_leave_RAM_too(path: str) -> None:
    with create(path, 20, later={"value": np.float32, "wide": ((3,), np.float32)}) as buffer:
        add(buffer, 20)
        ids = buffer.items()
        buffer.write("wide", ids[:9], np.arange(27.0).reshape(9, 3))
        buffer.commit()
        buffer.write("wide", ids[9:12], np.arange(27.0, 36.0).reshape(3, 3))
        residency.hold_windows_up_to(400)
        buffer.resize(100)
        assert "wide" not in next(iter(buffer.engine.streams)).log.later
        buffer.write("wide", ids[12:13], np.arange(36.0, 39.0).reshape(1, 3))
        for _ in range(2):
            batch = buffer.get(ids)
            np.testing.assert_array_equal(batch.extra["wide"][:13], np.arange(39.0).reshape(13, 3))
            assert batch.extra["wide_known"].tolist() == [True] * 13 + [False] * 7
            buffer.commit()
    with dr.open(path) as reader:
        np.testing.assert_array_equal(reader.get(ids).extra["wide"][:13], np.arange(39.0).reshape(13, 3))


def test_a_column_that_fits_no_more_leaves_RAM_and_costs_none(path: str) -> None:
    vectors = Box(-np.inf, np.inf, (17,), np.float32)
    for opened in range(2):
        options = {"capacity": (1000, 10**8)[opened], "cache_bytes": 0, **OPEN}
        with dr.ReplayBuffer.open_or_create(path, vectors, TURN, **options) as buffer:
            for step in range(300):
                buffer.add(np.full(17, step, np.float32), 0, 0.0, np.full(17, step + 1, np.float32), False, False)
            log = next(iter(buffer.engine.streams)).log
            assert ("obs" in log.table.arrays) == ("obs" in log.patches.arrays) == (not opened)
            if not opened:
                buffer.resize(10**8)
            assert "obs" not in log.table.arrays
            assert log.table.length < 2000
            assert (buffer.get(buffer.items()).obs[:, 16] == np.tile(np.arange(300), opened + 1)).all()


# Several streams, others beside


def test_a_new_stream_is_as_large_as_the_first_is_now(path: str) -> None:
    create(path).close()
    with dr.ReplayBuffer.open(path, capacity=50):
        pass
    with dr.ReplayBuffer.open(path, stream="b") as other:
        assert other.capacity == 50
    with dr.open(path) as reader:
        assert (reader.capacity, reader.stats()["capacity"], reader.schema.capacity) == (50, 100, 20)


def test_who_takes_over_a_stream_grows_it_too(path: str) -> None:
    with create(path) as first:
        add(first, 5)
        with dr.ReplayBuffer.open(path, mode="a", stream="b", capacity=30) as second:
            add(second, 40)
        with dr.ReplayBuffer.open(path, mode="a", stream="b", capacity=60) as second:
            add(second, 40)
            assert (second.capacity, rows(second)) == (60, list(range(20, 80)))
            second.resize(10)
            assert rows(second) == list(range(70, 80))
        with dr.ReplayBuffer.open(path, stream="0", capacity=70, take_over=True) as again:
            assert (again.capacity, again.stats()["streams"]["0"]["end"]) == (70, 5)


def test_the_command_resizes_one_stream_or_all(path: str) -> None:
    with create(path) as buffer:
        for _ in range(5):
            add(buffer, 3)
            buffer.add([-1], 0, 0.0, [-2], True, False)  # whose next observation is a patch
        dr.ReplayBuffer.open(path, stream="b", num_envs=2, capacity=40).close()
        before = records(path)
        with pytest.raises(LockedError):
            resize(path, 60)
        assert records(path) == before
        (one,) = resize(path, 60, "b")
        assert (one.stream, one.before, one.capacity, one.evicted) == ("b", 40, 60, 0)
    assert [(one.before, one.capacity, one.evicted) for one in resize(path, 5)] == [(20, 5, 15), (60, 5, 0)]
    before = records(path)
    resize(path, 5)
    assert records(path) == before
    with pytest.raises(InputError, match="there is no stream 'c'; there are 0, b"):
        resize(path, 60, "c")
    assert verify(path).ok


resized = functools.partial(command, "resize")


def test_the_command_gives_up_rows_only_when_told(path: str) -> None:
    with create(path) as buffer:
        add(buffer, 20)
        buffer.commit()
        dr.ReplayBuffer.open(path, stream="b", capacity=40).close()
        before = records(path)
        foreseen = command(
            "resize", path, "--capacity", 7, "--dry-run"
        )  # beside the writer, which does not matter to it
        assert foreseen.output.splitlines() == [
            "stream 0 would keep 7 transitions (before: 20), 13 evicted",
            "stream b would keep 7 transitions (before: 40), 0 evicted",
        ]
        assert "is being written" in resized(path, "--capacity", 7, "--evict").output
        assert records(path) == before
    before = records(path)
    for refused in (("--capacity", 7), ("--capacity", 19, "--stream", "0"), ("--capacity", 1, "--json")):
        done = resized(path, *refused)
        assert done.exit_code == 2
        assert "are given up for good: say so (--evict)" in done.output
        assert records(path) == before
    with pytest.raises(InputError, match=r"the oldest 13 transitions of .* are given up for good"):
        resize(path, 7, evict=False)
    assert [one.evicted for one in resize(path, 7, dry_run=True, evict=False)] == [13, 0]
    assert records(path) == before
    assert resized(path, "--capacity", 7, "--stream", "b").exit_code == 0  # it is empty
    assert resized(path, "--capacity", 30).exit_code == 0
    assert resized(path, "--capacity", 7, "--evict").output.splitlines()[0].endswith("(before: 30), 13 evicted")
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        assert rows(buffer) == list(range(13, 20))


def test_a_rollout_is_not_resized(path: str) -> None:
    dr.RolloutBuffer.create(path, LINE, TURN, steps=4, num_envs=2).close()
    with pytest.raises(InputError, match="which has steps and no capacity"):
        resize(path, 60)


def test_a_given_layout_does_not_hinder_growth(path: str) -> None:
    """That of the other columns follows from the capacity."""
    for capacity in (100, 1_000_000):
        with dr.ReplayBuffer.open_or_create(path, LINE, TURN, capacity=capacity, chunk_rows=8, codec="zstd") as rb:
            assert rb.capacity == capacity


@pytest.mark.long
def test_a_reader_of_another_process_goes_on_over_a_resize(path: str) -> None:
    program = (
        "import sys, diskreplay as dr\n"
        "with dr.open(sys.argv[1], sampler=dr.Proportional()) as rb:\n"
        "    for line in sys.stdin:\n"
        "        rb.refresh()\n"
        "        batch = rb.sample(8)\n"
        "        assert (batch.obs[:, 0] == batch.reward).all()\n"
        "        rewards = rb.get(rb.items()).reward\n"
        "        print(rb.capacity, int(rewards[0]), int(rewards[-1]), flush=True)\n"
    )
    with create(path) as writer:
        add(writer, 30)
        writer.commit()
        with subprocess.Popen(
            [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            for capacity, first in ((20, 10), (45, 10), (12, 18), (14, 18)):
                writer.resize(capacity)
                print(file=reader.stdin, flush=True)
                assert reader.stdout.readline().split() == [str(capacity), str(first), "29"]
            reader.stdin.close()
            assert reader.wait() == 0
