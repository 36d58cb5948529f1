"""Mixtures of stores: shares, transitions, priorities beside the oracle; checkpoints, and crashes in making them."""

from __future__ import annotations

import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers.configs import Config
from helpers.crashes import images_of
from helpers.effort import examples, stride
from helpers.model import Leaf, check_batch
from helpers.odds import chances_of
from helpers.priority_model import chi_square
from helpers.recording import Recording
from helpers.testing import Crash, FaultyFiles, Interrupts, SimulatedDisk

import diskreplay as dr
from diskreplay.errors import (
    CheckpointError,
    ClosedError,
    CorruptionError,
    EvictedError,
    InputError,
    NotEnoughDataError,
    ReadOnlyError,
)

VECTORS = Config("vectors", Leaf((3,), np.float32), capacity=40, columns={"value": "f4"})
STACKS = Config("stacks", Leaf((6, 5)), frame_stack=3, num_envs=2, capacity=40, resident_bytes=8)
DICTS = Config("dicts", {"a": Leaf((2, 5)), "b": Leaf((3,), "f4")}, num_envs=2, capacity=60, several_actions=True)
OPEN: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9}


class Pair:
    """Two stores of one kind, and the oracle's logs of them."""

    def __init__(self, config: Config, folder: pathlib.Path, sampler: Any = dr.Uniform, rows: int = 0) -> None:
        self.paths = [str(folder / name) for name in ("a.replay", "b.replay")]
        self.logs = [Recording(config, seed) for seed in (0, 1)]
        self.buffers = [config.create(path, seed=seed, sampler=sampler()) for seed, path in enumerate(self.paths)]
        for part in (0, 1):
            self.add(part, rows)

    def add(self, part: int, rows: int) -> None:
        self.logs[part].add(self.buffers[part], rows)


def check(mixture: dr.Mixture[Any], batch: Any, logs: list[Recording], counts: list[int]) -> None:
    """A batch is what the logs of the parts say, and each has given its count, in order."""
    numbers, own = mixture.split(batch.index)
    assert numbers.tolist() == [part for part, count in enumerate(counts) for _ in range(count)]
    for part, log in enumerate(logs):
        piece = batch.map(lambda array, here=numbers == part: array[here])
        piece.index = own[numbers == part]
        if len(piece):
            check_batch(piece, [log.log], log.config.n_step, log.config.gamma)


@pytest.mark.long(quick=4)
@pytest.mark.usefixtures("both_thresholds")
@pytest.mark.parametrize("config", [VECTORS, STACKS, DICTS], ids=repr)
def test_batches_beside_the_oracle(config: Config, tmp_path: pathlib.Path) -> None:
    """Random additions, samples and look-ups of two writers; the counts by the definition of a quota."""
    pair, rng = Pair(config, tmp_path, rows=30), np.random.default_rng(4)
    with dr.Mixture(pair.buffers, fractions=(0.3, 0.7)) as mixture:
        given = [0, 0]
        for _ in range(examples(100, least=20)):
            pair.add(int(rng.integers(2)), int(rng.integers(0, 3)))
            size = int(rng.integers(1, 14))
            batch = mixture.sample(size)
            numbers, _ = mixture.split(batch.index)
            given = [before + int((numbers == part).sum()) for part, before in enumerate(given)]
            assert abs(10 * given[0] - 3 * sum(given)) < 10
            check(mixture, batch, pair.logs, np.bincount(numbers, minlength=2).tolist())
            order = rng.permutation(size)
            again = mixture.get(batch.index[order])
            for name in ("index", "reward", "terminated"):
                assert (getattr(again, name) == getattr(batch, name)[order]).all()
            assert not [name for name in ("a", "b") if isinstance(again.obs, dict) and len(again.obs[name]) != size]


@pytest.mark.long
def test_each_part_draws_what_it_would_draw_alone(tmp_path: pathlib.Path) -> None:
    """The distribution over all is that of the parts by their fractions, and the very draws are the same."""
    pair = Pair(VECTORS, tmp_path, rows=40)
    with dr.Mixture(pair.buffers, fractions=(1, 3)) as mixture:
        index = np.concatenate([mixture.sample(8).index for _ in range(examples(1500, "draws", least=500))])
        chances = {
            each | part << 59: share / len(pair.logs[part].log)
            for part, share in enumerate((0.25, 0.75))
            for each in pair.logs[part].log.ids(1)
        }
        assert chi_square(index, chances) <= 1
    with dr.ReplayBuffer.open(pair.paths[0], seed=7) as alone:
        parts = [dr.ReplayBuffer.open(pair.paths[0], mode="r", seed=7), dr.ReplayBuffer.open(pair.paths[1])]
        with dr.Mixture(parts) as both:
            for size in (6, 2, 9, 9):
                batch = both.sample(size)
                numbers, own = both.split(batch.index)
                assert own[numbers == 0].tolist() == alone.sample(int((numbers == 0).sum())).index.tolist()


def test_large_frames_are_joined_without_a_copy(tmp_path: pathlib.Path) -> None:
    """Of the parts' frames one array is made; and what it holds does not change with the next batch."""
    frames, buttons = gymnasium.spaces.Box(0, 255, (84, 84), np.uint8), gymnasium.spaces.Discrete(3)
    rng, buffers = np.random.default_rng(0), []
    for name in ("a", "b"):
        buffer = dr.ReplayBuffer.create(tmp_path / name, frames, buttons, capacity=100, frame_stack=4, seed=0)
        frame = rng.integers(0, 255, (84, 84), np.uint8)
        for step in range(60):
            following = rng.integers(0, 255, (84, 84), np.uint8)
            buffer.add(frame, step % 3, 0.0, following, False, step % 20 == 19)
            frame = following
        buffers.append(buffer)
    with dr.Mixture(buffers) as mixture:
        kept = [mixture.sample(size) for size in (50, 51, 50)]
        assert all(batch.obs.base is not None and not batch.obs.flags.owndata for batch in kept)
        for batch in kept:
            numbers, own = mixture.split(batch.index)
            for part in (0, 1):
                alone = buffers[part].get(own[numbers == part])
                assert (alone.obs == batch.obs[numbers == part]).all()
                assert (alone.next_obs == batch.next_obs[numbers == part]).all()
        first = kept[0].obs.copy()
        kept[0].next_obs[:] = 0
        kept[1].obs[:] = 0
        assert (kept[0].obs == first).all()


@pytest.mark.long
def test_priorities_go_to_the_part_that_they_are_of(tmp_path: pathlib.Path) -> None:
    pair = Pair(VECTORS, tmp_path)
    pair.buffers[0].close()
    told = dr.Proportional(1.0, 1.0)
    pair.buffers[0] = dr.ReplayBuffer.open(pair.paths[0], sampler=told, seed=0, **OPEN)
    for part in (0, 1):
        pair.add(part, 20)
    with dr.Mixture(pair.buffers) as mixture:
        batch = mixture.sample(20)
        numbers, own = mixture.split(batch.index)
        mixture.update_priorities(batch.index, np.arange(1.0, 21.0))
        windows, standing = pair.buffers[0].engine.streams.windows(), pair.buffers[0].draws.standing
        known = {each: 1.0 for each in pair.logs[0].log.ids(1)}
        known |= dict(zip(own[numbers == 0].tolist(), np.arange(1.0, 21.0)[numbers == 0].tolist(), strict=True))
        expected = np.array([*known.values()]) / sum(known.values())
        np.testing.assert_allclose(told.probability([*known], windows, standing), expected, rtol=1e-4)

        before = told.state()[1]["mass"]
        never = int(pair.logs[1].log.end + 5) | 1 << 59
        wrong: list[tuple[Any, Any, str]] = [
            (batch.index, np.full(20, np.nan), "priorities must be finite"),
            (batch.index, np.ones(3), "of the index's shape"),
            ([batch.index[0], 10_000], [5.0, 5.0], "names no transition"),
            ([batch.index[0], 2 << 59], [5.0, 5.0], "is of none of the 2 parts"),
            ([batch.index[0], -1], [5.0, 5.0], "is of none of the 2 parts"),
            ([0.5], [1.0], "must be integers"),
        ]
        for index, priorities, message in wrong:
            with pytest.raises(InputError, match=message):
                mixture.update_priorities(index, priorities)
            assert (told.state()[1]["mass"] == before).all()
        mixture.update_priorities([never], [1.0])  # of a part without priorities
        with pytest.raises(InputError, match="names no transition"):
            mixture.get([never])
        pair.add(0, 80)
        mixture.update_priorities(batch.index, np.ones(20))  # what has left the window is ignored
        with pytest.raises(EvictedError):
            mixture.get(batch.index)
    plain = dr.Mixture([dr.ReplayBuffer.open(path) for path in pair.paths[1:]])
    with plain, pytest.raises(InputError, match="no part of the mixture has priorities"):
        plain.update_priorities([0], [1.0])


def with_states(folder: pathlib.Path, later: Any = None) -> list[dr.ReplayBuffer]:
    """Two stores of 20 steps, with a column that is written later."""
    line, turn, buffers = gymnasium.spaces.Box(-1000, 1000, (1,)), gymnasium.spaces.Discrete(2), []
    later = later or {"state": ((2,), np.float32)}
    for part in range(2):
        path = folder / f"{part}.replay"
        buffer = dr.ReplayBuffer.create(path, line, turn, capacity=20, later=later, finite=True, seed=part, **OPEN)
        for step in range(20):
            buffer.add([step], 0, float(part), [step + 1], False, False)
        buffer.commit()
        buffers.append(buffer)
    return buffers


def test_values_written_later_go_to_the_part_that_they_are_of(tmp_path: pathlib.Path) -> None:
    with dr.Mixture(with_states(tmp_path)) as mixture:
        batch = mixture.sample(16)
        values = np.arange(32, dtype=np.float32).reshape(16, 2)
        last = dict(zip(batch.index.tolist(), values.tolist(), strict=True))
        order = np.random.default_rng(0).permutation(16)
        mixture.write("state", batch.index, values)
        again = mixture.get(batch.index[order])
        assert again.extra["state"].tolist() == [last[index] for index in again.index.tolist()]
        for number, part in enumerate(mixture.parts):
            known = part.get(part.items()).extra["state_known"]
            numbers, own = mixture.split(np.unique(batch.index))
            assert np.flatnonzero(known).tolist() == own[numbers == number].tolist()
        mixture.write("state", batch.index[:2], [[0.1, 0.2], [0.3, 0.4]])  # lists, as a buffer takes them
        mixture.write("state", [], [])
        mixture.commit()
        wanted = mixture.get(batch.index).extra["state"]
    paths = [str(tmp_path / f"{part}.replay") for part in range(2)]
    with dr.Mixture.open([(path, {"mode": "r"}) for path in paths]) as mixture:
        assert (mixture.get(batch.index).extra["state"] == wanted).all()
        with pytest.raises(ReadOnlyError):
            mixture.write("state", batch.index, values)


def test_a_wrong_value_writes_nothing_to_any_part_of_a_mixture(tmp_path: pathlib.Path) -> None:
    with dr.Mixture(with_states(tmp_path)) as mixture:
        both, ones = np.array([3, 4 | 1 << 59]), np.ones((2, 2), np.float32)
        wrong: list[tuple[str, Any, Any, str]] = [
            ("stat", both, ones, "no column 'stat'"),
            ("state", both, ones[:1], "a value for each of the 2 indices, got 1"),
            ("state", both, 1.0, "a value for each of the 2 indices, got 1"),
            ("state", both, ones[:, :1], "must have shape"),
            ("state", both, [[1, 1], [np.inf, 1]], "must be finite"),
            ("state", [3, 25 | 1 << 59], ones, "index 25 names no transition"),
            ("state", [3, 2 << 59], ones, "is of none of the 2 parts"),
            ("state", [3, -1], ones, "is of none of the 2 parts"),
            ("state", [3.0, 4.0], ones, "index must be integers"),
        ]
        for name, index, values, message in wrong:
            with pytest.raises(InputError, match=message):
                mixture.write(name, index, values)
            assert not any(log.unwritten for part in mixture.parts for log in part.engine.logs.values())


def test_values_for_parts_that_are_only_read_are_ignored(tmp_path: pathlib.Path) -> None:
    for buffer in with_states(tmp_path):
        buffer.close()
    parts = [str(tmp_path / "0.replay"), (str(tmp_path / "1.replay"), {"mode": "r"})]
    with dr.Mixture.open(parts) as mixture:
        batch = mixture.sample(8)
        mixture.write("state", batch.index, np.ones((8, 2), np.float32))
        assert mixture.get(batch.index).extra["state_known"].tolist() == [True] * 4 + [False] * 4


def test_a_mixtures_interrupted_write_is_all_or_nothing(tmp_path: pathlib.Path) -> None:
    with dr.Mixture(with_states(tmp_path)) as mixture:
        index, values, seen = np.array([3, 4 | 1 << 59]), np.zeros((2, 2), np.float32), set()
        interrupts = Interrupts(KeyboardInterrupt, by="signal")

        def write() -> None:
            mixture.write("state", index, values)

        for number in range(0, interrupts.count(write), stride(7, "interrupts of a write to a mixture")):
            values = values + 1
            interrupts.interrupt(number, write)
            written = mixture.get(index).extra["state"] == values
            assert written.all() or not written.any()
            seen.add(bool(written.all()))
        assert seen == {True, False}


def other(**changes: Any) -> Config:
    options = {"name": "other", "obs": Leaf((3,), np.float32), "capacity": 40, "columns": {"value": "f4"}}
    return Config(**{**options, **changes})


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (other(obs=Leaf((4,), np.float32)), {}, r"next_obs is float32 \(4,\) here, and float32 \(3,\) there"),
        (other(obs=Leaf((3,), "u1")), {}, r"next_obs is uint8 \(3,\) here, and float32 \(3,\) there"),
        (other(obs={"a": Leaf((3,), np.float32)}), {}, r"next_obs is missing here|next_obs/a is"),
        (other(columns={}), {}, r"extra/value is missing here, and float32 \(\) there"),
        (other(columns={"value": "f8"}), {}, r"extra/value is float64 \(\) here"),
        (other(several_actions=True), {}, "action"),
        (other(), {"view": dr.Sequence(3)}, "they are SequenceBatch and Batch; give one view"),
    ],
)
def test_stores_that_do_not_fit_are_refused(
    config: Config, options: dict[str, Any], message: str, tmp_path: pathlib.Path
) -> None:
    first, second = VECTORS.create(str(tmp_path / "a")), config.create(str(tmp_path / "b"), **options)
    before = first.engine.rng.bit_generator.state
    with pytest.raises(InputError, match=message):
        dr.Mixture([first, second])
    assert first.engine.rng.bit_generator.state == before
    first.close(), second.close()


def test_lengths_of_sequences_must_be_the_same(tmp_path: pathlib.Path) -> None:
    buffers = [VECTORS.create(str(tmp_path / str(n)), view=dr.Sequence(n)) for n in (3, 4)]
    with pytest.raises(InputError, match=r"action is int64 \(4,\) here, and int64 \(3,\) there"):
        dr.Mixture(buffers)
    for buffer in buffers:
        buffer.close()


def test_bad_arguments(tmp_path: pathlib.Path) -> None:
    buffer = VECTORS.create(str(tmp_path / "a"))
    wrong: list[tuple[Any, str]] = [
        (([],), "1 to 16 buffers"),
        ((buffer,), "1 to 16 buffers"),
        (([buffer, "b"],), "must be an open buffer"),
        (([buffer, buffer],), "one part alone"),
        (([buffer], (0.5, 0.5)), "fractions must be 1 numbers"),
        (([buffer], (0,)), "fractions must be a finite number above 0"),
    ]
    for arguments, message in wrong:
        with pytest.raises(InputError, match=message):
            dr.Mixture(*arguments)
    with dr.Mixture([buffer]) as mixture:
        for size in (0, -1, 2.0):
            with pytest.raises(InputError, match="batch_size"):
                mixture.sample(size)  # type: ignore[arg-type]
        with pytest.raises(NotEnoughDataError, match=r"part 0 of the mixture, .*a.*holds 0 transitions"):
            mixture.sample(3)
        assert mixture._given == [0]
    with pytest.raises(ClosedError):
        mixture.sample(1)
    with pytest.raises(ClosedError):
        dr.Mixture([buffer])


# Checkpoints


def drawn(mixture: dr.Mixture[Any], tell: bool) -> list[Any]:
    """What is drawn next, with priorities told in between."""
    found = []
    for size in (5, 3, 8, 1):
        batch = mixture.sample(size)
        found.append((batch.index.tolist(), batch.weight.tolist(), batch.reward.tolist()))
        if tell:
            mixture.update_priorities(batch.index, np.sin(batch.reward) + 1.5)
    return found


@pytest.mark.long
@pytest.mark.parametrize("second", ["r", "r+"])
@pytest.mark.parametrize("sampler", [dr.Uniform, dr.Proportional, lambda: dr.SamplerMixture([dr.RankBased()])])
def test_a_checkpoint_goes_on_bit_for_bit(second: str, sampler: Any, tmp_path: pathlib.Path) -> None:
    """Parts that are written and parts that are only read; with a count that is not at the beginning of a turn."""
    tell, options = sampler is not dr.Uniform, {"mode": second, **OPEN}
    pair = Pair(VECTORS, tmp_path, sampler)
    pair.add(0, 30), pair.add(1, 35)
    pair.buffers[1].close()
    pair.buffers[1] = dr.ReplayBuffer.open(pair.paths[1], seed=3, **options)
    with dr.Mixture(pair.buffers, fractions=(0.3, 0.7)) as mixture:
        drawn(mixture, tell)
        mixture.checkpoint("one", {"step": 1})
        drawn(mixture, tell)
        pair.add(0, 9)
        mixture.sample(2)
        mixture.checkpoint("two", {"step": 2})
        assert (mixture.checkpoints, mixture.checkpoint_metadata("two")) == (["one", "two"], {"step": 2})
        expected = drawn(mixture, tell)
        with pytest.raises(CheckpointError, match="there is a checkpoint 'two' already"):
            mixture.checkpoint("two")
        with pytest.raises(InputError, match="metadata must be JSON"):
            mixture.checkpoint("three", {"a": np.float32(1)})
    parts = [(pair.paths[0], OPEN), (pair.paths[1], options)]
    for name in ("latest", "two"):
        with dr.Mixture.open(parts, checkpoint=name) as mixture:
            assert mixture.fractions == (0.3, 0.7)
            assert drawn(mixture, tell) == expected
    with dr.Mixture.open(parts, checkpoint="two") as mixture:
        mixture.drop_checkpoint("two")
        assert all("two" not in part.checkpoints for part in mixture.parts)
        with pytest.raises(CheckpointError, match="no checkpoint 'two' of the mixture"):
            mixture.drop_checkpoint("two")
    with dr.Mixture.open(parts, fractions=(1, 1), checkpoint="one") as mixture:
        assert mixture.split(mixture.sample(4).index)[0].tolist() == [0, 0, 1, 1]
        assert mixture.checkpoint_metadata("one") == {"step": 1}


def test_what_is_not_a_checkpoint_of_the_mixture_is_said(tmp_path: pathlib.Path) -> None:
    pair = Pair(VECTORS, tmp_path, rows=20)
    pair.buffers[0].checkpoint("alone")
    for buffer in pair.buffers:
        buffer.close()
    one, two = pair.paths
    with pytest.raises(CheckpointError, match=r"no checkpoint yet; .*or_last_commit"):
        dr.Mixture.open([one, two], checkpoint="latest")
    with pytest.raises(CheckpointError, match="'alone' was not made by a Mixture"):
        dr.Mixture.open([one, (two, {"mode": "r"})], checkpoint="alone")
    with dr.Mixture.open([one, (two, {"mode": "r"})], checkpoint="latest", or_last_commit=True) as mixture:
        mixture.sample(3)
        mixture.checkpoint("both")
        assert mixture.checkpoints == ["both"]
    with pytest.raises(CheckpointError, match="of a mixture of 2 parts, not 1"):
        dr.Mixture.open([one], checkpoint="both")
    VECTORS.create(str(other := tmp_path / "c")).close()
    with pytest.raises(InputError, match="is not part 1 of the checkpoint"):
        dr.Mixture.open([one, (str(other), {"mode": "r"})], checkpoint="both")
    with pytest.raises(InputError, match="opened at the mixture's checkpoint"):
        dr.Mixture.open([(one, {"checkpoint": "both"})])
    with pytest.raises(InputError, match="a mixture of parts with mode='r' has no checkpoints"):
        dr.Mixture.open([(one, {"mode": "r"})], checkpoint="both")
    with dr.Mixture.open([(one, {"mode": "r"})]) as mixture, pytest.raises(ReadOnlyError, match="no part"):
        mixture.checkpoint("c")
    dr.ReplayBuffer.open(one).close()  # every lock was given back


def test_what_does_not_fit_a_checkpoint_costs_no_rows(tmp_path: pathlib.Path) -> None:
    """Opening at a checkpoint goes back to it: before that, all is looked at."""
    pair = Pair(VECTORS, tmp_path, rows=20)
    with dr.Mixture(pair.buffers) as mixture:
        mixture.checkpoint("here")
        pair.add(0, 7), pair.add(1, 7)
    one, two = pair.paths
    for parts, error in (([two, one], CheckpointError), ([one, (two, {"mode": "r"})], InputError)):
        with pytest.raises(error, match=r"was not made by a Mixture|was written; open it so"):
            dr.Mixture.open(parts, checkpoint="here")
        for path in pair.paths:
            with dr.ReplayBuffer.open(path) as buffer:
                assert buffer.stats()["streams"]["0"]["end"] == 27
    with dr.Mixture.open([one, two], checkpoint="here") as mixture:
        assert [part.stats()["streams"]["0"]["end"] for part in mixture.parts] == [20, 20]


def test_a_damaged_count_is_an_error_with_a_name(tmp_path: pathlib.Path) -> None:
    pair = Pair(VECTORS, tmp_path, rows=20)
    with dr.Mixture(pair.buffers) as mixture:
        mixture._given = [50, 2]
        mixture.checkpoint("here")
    with pytest.raises(CorruptionError, match="mixture of checkpoint 'here' cannot be read"):
        dr.Mixture.open(pair.paths, checkpoint="here")
    dr.ReplayBuffer.open(pair.paths[0]).close()


def test_a_part_that_is_read_may_have_moved_on(tmp_path: pathlib.Path) -> None:
    """It draws from what is there now, priorities of rows that were taken back forgotten."""
    pair = Pair(VECTORS, tmp_path, dr.Proportional, rows=20)
    pair.buffers[1].checkpoint("before")
    pair.add(1, 10)
    pair.buffers[1].commit()
    parts = [pair.buffers[0], dr.ReplayBuffer.open(pair.paths[1], mode="r", seed=0)]
    with dr.Mixture(parts) as mixture:
        batch = mixture.sample(20)
        mixture.update_priorities(batch.index, np.full(20, 50.0))
        mixture.checkpoint("here")
    pair.buffers[1].close()
    dr.ReplayBuffer.open(pair.paths[1], checkpoint="before").close()
    with dr.Mixture.open([pair.paths[0], (pair.paths[1], {"mode": "r"})], checkpoint="here") as mixture:
        assert len(mixture.parts[1]) <= 20
        reader = mixture.parts[1]
        np.testing.assert_allclose(chances_of(reader), 1 / len(reader.items()))
        mixture.sample(8)


@pytest.mark.long
def test_a_crash_at_every_operation_of_a_checkpoint(tmp_path: pathlib.Path) -> None:
    """The mixture is at the checkpoint before, or at the new one, in all parts; and the next checkpoint can be made."""
    config = Config("tiny", Leaf((2,), np.float32), capacity=12, chunk_rows=2, shard_rows=4)
    disk = SimulatedDisk()
    disk.mkdir("/shelf")
    disk.sync_dir("/")
    files, paths = FaultyFiles(disk), ["/shelf/a", "/shelf/b"]
    logs = [Recording(config, seed) for seed in (0, 1)]
    buffers = [config.create(path, seed=seed, files=files) for seed, path in enumerate(paths)]

    def opened(on: Any, name: str) -> dr.Mixture[Any]:
        return dr.Mixture.open([(path, {"files": on, **OPEN}) for path in paths], checkpoint=name)

    with dr.Mixture(buffers) as mixture:
        for log, buffer in zip(logs, buffers, strict=True):
            log.add(buffer, 8)
        mixture.checkpoint("one")
        expected = {"one": [mixture.sample(3).index.tolist() for _ in range(3)]}
        for log, buffer in zip(logs, buffers, strict=True):
            log.add(buffer, 3)
        images = images_of(disk, files, stride(11, "crash points of a mixture"))
        mixture.checkpoint("two")
        expected["two"] = [mixture.sample(3).index.tolist() for _ in range(3)]
        mixture.drop_checkpoint("one")
        images.append(disk.after_power_loss())
        files.heal()
    assert len(images) > 10
    found = set()
    for image in images:
        with opened(image, "latest") as survivor:
            name = survivor.checkpoints[-1]
            found.add(name)
            assert [survivor.sample(3).index.tolist() for _ in range(3)] == expected[name]
            for part in survivor.parts:
                assert set(part.checkpoints) == set(survivor.checkpoints)
            for again in ("two", "three"):
                if again not in survivor.checkpoints:
                    survivor.checkpoint(again)
        with opened(image, "three") as survivor:
            assert survivor.checkpoints[-1] == "three"
    assert found == {"one", "two"}


def test_a_crash_is_no_error_that_leaves_a_lock(tmp_path: pathlib.Path) -> None:
    """And a checkpoint that a part alone has, under the name that is asked for next, is in nobody's way."""
    pair, files = Pair(VECTORS, tmp_path, rows=20), FaultyFiles()
    for buffer in pair.buffers:
        buffer.close()
    with dr.Mixture.open([(pair.paths[0], {"files": files}), pair.paths[1]]) as mixture:
        files.crash_at(0)
        with pytest.raises(Crash):
            mixture.checkpoint("here")
        assert mixture.parts[1].checkpoints == ["here"]
        files.crashed = False
        files.heal()
        with pytest.raises(dr.errors.StateError):
            mixture.checkpoint("here")
    with dr.Mixture.open(pair.paths) as mixture:
        assert [part.checkpoints for part in mixture.parts] == [[], []]
        mixture.checkpoint("here")
        assert [part.checkpoints for part in mixture.parts] == [["here"], ["here"]]


def test_an_interrupted_sample_leaves_the_shares(tmp_path: pathlib.Path) -> None:
    pair = Pair(VECTORS, tmp_path, rows=20)
    with dr.Mixture(pair.buffers, fractions=(1, 2)) as mixture:
        interrupts, tried = Interrupts(KeyboardInterrupt), 0
        for at in range(5, 300, stride(23, "interrupts of a mixture")):
            if interrupts.interrupt(at, lambda: mixture.sample(4)) is not None:
                tried += 1
            mixture._shares.checked(mixture._given)
            mixture.sample(3)
            mixture._shares.checked(mixture._given)
        assert tried


def test_batches_of_a_loader_are_those_of_sample(tmp_path: pathlib.Path) -> None:
    pair = Pair(VECTORS, tmp_path, rows=20)
    with dr.Mixture(pair.buffers) as mixture, mixture.loader(6, prefetch=1) as loader:
        for _ in range(4):
            batch = next(loader)
            check(mixture, batch, pair.logs, [3, 3])
        assert mixture.refresh() is False
        assert len(mixture) == len(pair.buffers[0]) + len(pair.buffers[1])
        assert "a.replay" in repr(mixture)
        mixture.commit()
