"""The field's own bug reports as tests: each assertion holds here, and fails on a naive buffer that has the bug.

``docs/pitfalls.md`` has a row for each, with the reports.
"""

from __future__ import annotations

import inspect
import math
import pathlib
import pickle
import re
import shutil
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.odds import chances_of
from helpers.testing import FaultyFiles
from pitfalls import naive

import diskreplay as dr
from diskreplay.sampling.ranked import RankedPass

LINE, ARM = spaces.Box(-np.inf, np.inf, (), np.float32), spaces.Discrete(2)
FRAME = spaces.Box(0, 255, (84, 84), np.uint8)
SLOWLY: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9}


def both(check: Callable[..., None], ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> None:
    """The check holds for ours, and fails for the naive one."""
    check(*ours)
    with pytest.raises(AssertionError):
        check(*theirs)


def line(path: str, rows: int, **options: Any) -> dr.ReplayBuffer:
    """A walk along a line, an episode that goes on."""
    rb = dr.ReplayBuffer.create(path, LINE, ARM, **{"capacity": 1_000, "seed": 0, **SLOWLY, **options})
    walk(rb, 0, rows)
    return rb


def walk(rb: dr.ReplayBuffer, start: int, stop: int) -> None:
    for step in range(start, stop):
        rb.add(step, 0, 1.0, step + 1, False, False)


def values(rb: dr.ReplayBuffer) -> list[float]:
    """The observations of all transitions."""
    return [float(value) for value in rb.get(rb.items()).obs.tolist()]


def test_next_observation_at_a_truncation(path: str) -> None:
    def check(next_obs: float) -> None:
        assert next_obs == 5.0  # where the episode was truncated, not 100, where the next one began

    theirs = naive.OneObservationArray()
    with line(path, 4) as rb:
        for step in ((4.0, 1.0, 5.0, False, True), (100.0, 1.0, 101.0, False, False)):
            rb.add(step[0], 0, *step[1:])
        for row in range(4):
            theirs.add(row, 1.0, row + 1, False, False)
        theirs.add(4.0, 1.0, 5.0, False, True)
        theirs.add(100.0, 1.0, 101.0, False, False)
        both(check, (rb.get([4]).next_obs[0],), (theirs.next_obs(4),))


@pytest.mark.parametrize("size", [3, 5, 6, 7, 12])
def test_trees_of_sizes_that_are_no_power_of_two(path: str, size: int) -> None:
    """With equal priorities, each of ``size`` equal slices of the total is one transition, in order."""

    def check(drawn: list[int]) -> None:
        assert drawn == list(range(size))

    tree = naive.HeapTree([1.0] * size)
    with line(path, size, capacity=size, sampler=dr.Proportional()) as rb:
        both(check, (rb.sample(size).index.tolist(),), ([tree.draw(at + 0.5) for at in range(size)],))


def test_alpha_is_applied_once(path: str) -> None:
    """A new transition is as likely as the one whose priority is the largest."""

    def check(found: np.ndarray) -> None:
        np.testing.assert_allclose(found[-1], found[0], rtol=1e-5)

    theirs = naive.AlphaTwice(alpha=0.5)
    with line(path, 3, sampler=dr.Proportional(alpha=0.5)) as rb:
        rb.update_priorities(rb.items(), [16.0, 16.0, 16.0])
        walk(rb, 3, 4)
        for _ in range(3):
            theirs.add()
        for row in range(3):
            theirs.update(row, 16.0)
        theirs.add()
        both(check, (chances_of(rb),), (np.array(theirs.masses),))


def reloaded(path: str) -> tuple[dr.ReplayBuffer, dr.ReplayBuffer, naive.Prioritized]:
    """A buffer with priorities after a reload, a copy that never was closed, and the naive one after its reload."""
    rb, rows = line(path, 4, sampler=dr.Proportional(alpha=1.0)), naive.Prioritized(4)
    rb.update_priorities(rb.items(), [1.0, 2.0, 3.0, 4.0])
    rows.priorities = np.array([1.0, 2.0, 3.0, 4.0])
    rb.checkpoint("here")
    rb.close()
    reader = dr.ReplayBuffer.open(path, checkpoint="here", mode="r")
    return dr.ReplayBuffer.open(path, checkpoint="here"), reader, rows.saved_and_loaded()


def test_priorities_are_saved_and_loaded(path: str) -> None:
    def check(found: np.ndarray) -> None:
        np.testing.assert_allclose(found, [0.1, 0.2, 0.3, 0.4], rtol=1e-5)

    rb, reader, theirs = reloaded(path)
    both(check, (chances_of(rb),), (theirs.chances(),))
    check(chances_of(reader))
    rb.close(), reader.close()


def test_weights_are_there_after_a_reload(path: str) -> None:
    def check(fields: set[str]) -> None:
        assert "weight" in fields

    rb, reader, theirs = reloaded(path)
    batch = rb.sample(4)
    both(check, ({name for name, value in vars(batch).items() if value is not None},), (theirs.fields_of_a_sample(),))
    assert (batch.weight == reader.sample(4).weight).all()
    assert len(set(batch.weight.tolist())) > 1
    rb.update_priorities(batch.index, np.ones(4))
    rb.close(), reader.close()


def test_weights_are_not_inverted(path: str) -> None:
    """What is drawn more often weighs less: ``(N P)^-beta``, at most 1."""

    def check(weights: np.ndarray) -> None:
        np.testing.assert_allclose(weights, [1.0, math.sqrt(1 / 3)], rtol=1e-5)

    with line(path, 2, sampler=dr.Proportional(alpha=1.0, beta=0.5)) as rb:
        rb.update_priorities([0, 1], [1.0, 3.0])
        found: dict[int, float] = {}
        while len(found) < 2:
            batch = rb.sample(2)
            found |= dict(zip(batch.index.tolist(), batch.weight.tolist(), strict=True))
        theirs = naive.InvertedWeights().weights(np.array([0.25, 0.75]), 0.5)
        both(check, (np.array([found[0], found[1]]),), (theirs,))


def test_indices_above_255_are_their_own(path: str) -> None:
    def check(found: np.ndarray) -> None:
        assert int(np.argmax(found)) == 300

    theirs = naive.NarrowIndices(400)
    theirs.update([300], 9.0)
    with line(path, 400, sampler=dr.Proportional()) as rb:
        rb.update_priorities(np.array([300], np.int32), [9.0])
        both(check, (chances_of(rb),), (theirs.priorities,))


def test_a_pickle_does_not_hold_the_rows_again(path: str) -> None:
    def check(pickled: bytes, rows: int) -> None:
        assert len(pickled) < 2 * rows

    with dr.ReplayBuffer.create(path, FRAME, ARM, capacity=100, num_envs=4, **SLOWLY) as rb:
        frames = np.random.default_rng(0).integers(0, 255, (4, 84, 84), np.uint8)
        for _ in range(8):
            rb.add(frames, np.zeros(4, int), np.zeros(4), frames, np.ones(4, bool), np.zeros(4, bool))
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        ours = pickle.dumps(reader)
        both(check, (ours, 32 * 84 * 84), (pickle.dumps(naive.PickledViews(4, 8)), 32 * 84 * 84))
        with pickle.loads(ours) as again:
            assert (again.get(again.items()).obs == reader.get(reader.items()).obs).all()


@pytest.mark.parametrize("said", [True, False])
def test_nothing_continues_over_two_calls_of_learn(path: str, said: bool) -> None:
    """The environment was reset between them, with no flag: neither observation nor return goes on over that."""

    def check(next_obs: float, two_step_return: float) -> None:
        assert (next_obs, two_step_return) == (3.0, 1.0)

    theirs = naive.OneObservationArray()
    with line(path, 3, view=dr.Transition(n_step=2, gamma=1.0)) as rb:
        if said:
            rb.cut()
        walk(rb, 50, 53)
        for row in (0, 1, 2, 50, 51, 52):
            theirs.add(row, 1.0, row + 1, False, False)
        batch = rb.get([2])
        both(check, (batch.next_obs[0], batch.reward[0]), (theirs.next_obs(2), theirs.two_step_return(2)))


def test_a_buffer_that_is_exactly_full_is_kept(path: str) -> None:
    def check(rows: Any) -> None:
        assert list(rows) == [0.0, 1.0, 2.0, 3.0, 4.0]

    theirs = naive.Ring(5)
    for value in range(5):
        theirs.add(value)
    line(path, 5, capacity=5).close()
    with dr.ReplayBuffer.open(path) as rb:
        both(check, (values(rb),), (theirs.written(),))


def test_resuming_shows_the_rows_of_the_checkpoint(path: str, tmp_path: pathlib.Path) -> None:
    """No rows of the policy that came after it, and those that are added now."""

    def check(rows: list[float]) -> None:
        assert rows == [0.0, 1.0, 2.0, 70.0]

    theirs = naive.MappedFile(tmp_path / "rows")
    with line(path, 3) as rb:
        rb.checkpoint("three")
        walk(rb, 3, 9)
    with dr.ReplayBuffer.open(path, checkpoint="three") as rb:
        walk(rb, 70, 71)
    for value in (*range(9), 70):
        theirs.add(value)
    with dr.ReplayBuffer.open(path) as rb:
        both(check, (values(rb),), (theirs.resumed(),))


def test_resuming_does_not_double_the_rows(path: str) -> None:
    def check(rows: int) -> None:
        assert rows == 20

    with line(path, 20) as rb:
        rb.checkpoint("here")
    for _ in range(3):
        with dr.ReplayBuffer.open(path, checkpoint="here") as rb:
            held = len(rb)
    theirs = naive.Chunks(list(range(20)))
    theirs.load({"replay": list(range(20))})
    both(check, (held,), (len(theirs.rows),))


def test_a_restored_buffer_is_not_empty(path: str) -> None:
    def check(rows: int) -> None:
        assert rows == 20

    trainer = naive.Trainer()
    trainer.replay += range(20)
    with line(path, 20) as rb:
        rb.checkpoint("here", {"weights": 0.0})
    with dr.ReplayBuffer.open(path, checkpoint="latest") as rb:
        both(check, (len(rb),), (len(trainer.restored().replay),))


def test_an_interrupted_recording_can_be_read(path: str, tmp_path: pathlib.Path) -> None:
    """The files as they are in the middle of it, nothing closed: as a kill would leave them."""

    def check(read: Callable[[], list[float]]) -> None:
        assert read() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]

    theirs = naive.Footer()
    with line(path, 6) as rb:
        rb.commit()
        walk(rb, 6, 9)
        left = shutil.copytree(path, tmp_path / "left")
    for value in range(6):
        theirs.add(value)

    def ours() -> list[float]:
        with dr.ReplayBuffer.open(left) as again:
            return values(again)

    both(check, (ours,), (lambda: naive.Footer.read(theirs.file.getvalue()),))


def test_an_interrupted_program_has_its_rows(path: str) -> None:
    """An exception ends the program in the middle of an episode: the file is whole all the same."""

    def check(rows: list[float]) -> None:
        assert rows == [0.0, 1.0, 2.0, 3.0]

    theirs = naive.Footer()

    def program() -> None:
        with line(path, 4):
            for value in range(4):
                theirs.add(value)
            raise OSError("the camera was unplugged")

    with pytest.raises(OSError, match="unplugged"):
        program()
    with dr.ReplayBuffer.open(path) as rb:
        both(lambda read: check(read()), (lambda: values(rb),), (lambda: naive.Footer.read(theirs.file.getvalue()),))


@pytest.mark.long
@pytest.mark.own_thresholds
def test_adding_costs_the_same_after_many_episodes(path: str) -> None:
    """Bytes that are written for a hundred episodes, and for the next hundred."""

    def check(early: int, late: int) -> None:
        assert late < 1.5 * early

    files, theirs = FaultyFiles(), naive.RewrittenTable()
    written: list[tuple[int, int]] = []
    """After each episode, by ours and by the naive one."""
    with dr.ReplayBuffer.create(path, LINE, ARM, capacity=10_000, files=files, **SLOWLY) as rb:
        for _ in range(220):
            for step in range(10):
                rb.add(step, 0, 1.0, step + 1, False, step == 9)
            rb.commit()
            theirs.save_episode(10)
            ours = sum(operation.size for operation in files.operations if operation.name == "pwrite")
            written.append((ours, theirs.written))
    totals = np.array(written)
    early, late = totals[119] - totals[19], totals[219] - totals[119]  # chunks go to shards now and then
    both(check, (early[0], late[0]), (early[1], late[1]))


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_images_of_any_number_of_channels(path: str, channels: int) -> None:
    def check(stored: np.ndarray, given: np.ndarray) -> None:
        assert stored.shape == given.shape
        assert (stored == given).all()

    image = np.random.default_rng(0).integers(0, 255, (6, 5, channels), np.uint8)
    box = spaces.Box(0, 255, image.shape, np.uint8)
    with dr.ReplayBuffer.create(path, box, ARM, capacity=10) as rb:
        rb.add(image, 0, 0.0, image, True, False)
        both(check, (rb.get([0]).obs[0], image), (naive.RgbOnly.stored(image), image))


@pytest.mark.own_thresholds
def test_a_frame_does_not_cost_its_whole_trajectory(path: str) -> None:
    """Bytes that are read for one observation of a long episode, with nothing cached."""

    def check(read: int, episode: int) -> None:
        assert read < episode / 10

    frames = np.random.default_rng(0).integers(0, 255, (301, 84, 84), np.uint8)
    files, theirs = FaultyFiles(), naive.TrajectoryChunk(frames)
    with dr.ReplayBuffer.create(path, FRAME, ARM, capacity=1_000, **SLOWLY) as rb:
        rb.extend(frames[:-1], np.zeros(300, int), np.zeros(300), frames[1:], np.zeros(300, bool), np.zeros(300, bool))
    with dr.ReplayBuffer.open(path, mode="r", cache_bytes=0, files=files) as rb:
        files.heal()
        assert (rb.get([150]).obs[0] == frames[150]).all()
        ours = sum(operation.size for operation in files.operations if operation.name == "pread")
    assert (theirs.frame(150) == frames[150]).all()
    both(check, (ours, frames.nbytes), (theirs.decoded_bytes, frames.nbytes))


@pytest.mark.own_thresholds
def test_a_store_larger_than_memory_is_opened_and_sampled(path: str) -> None:
    """What opening reads, and what sampling keeps, is bounded by the cache, not by the frames."""

    def check(read: int, held: int, frames: int) -> None:
        assert read < frames / 10
        assert held <= frames / 4

    frames = np.random.default_rng(0).integers(0, 255, (401, 84, 84), np.uint8)
    files, budget = FaultyFiles(), frames.nbytes // 4
    with dr.ReplayBuffer.create(path, FRAME, ARM, capacity=1_000, cache_bytes=budget, **SLOWLY) as rb:
        rb.extend(frames[:-1], np.zeros(400, int), np.zeros(400), frames[1:], np.zeros(400, bool), np.zeros(400, bool))
    with dr.ReplayBuffer.open(path, cache_bytes=budget, seed=0, files=files) as rb:
        read = sum(operation.size for operation in files.operations if operation.name in ("pread", "read"))
        for _ in range(20):
            batch = rb.sample(64)
            assert (batch.obs == frames[batch.index]).all()
        held = rb.stats()["cache_used_bytes"]
    theirs = naive.AllInMemory(frames.tobytes())
    both(check, (read, held, frames.nbytes), (theirs.read_bytes, theirs.held_bytes, frames.nbytes))


def test_beginning_to_collect_erases_nothing(path: str) -> None:
    """The line that a program begins with, run again over what is there."""

    def check(rows: int) -> None:
        assert rows == 20

    line(path, 20).close()
    with dr.ReplayBuffer.open_or_create(path, LINE, ARM, capacity=1_000) as rb:
        both(check, (len(rb),), (len(naive.Collector(list(range(20))).rows),))


def test_a_resumed_pass_has_each_item_once_and_in_order() -> None:
    def check(before: list[int], after: list[int], whole: list[int]) -> None:
        assert (sorted(before + after), before + after) == (list(range(64)), whole)

    ours, again = RankedPass(64, 4, seed=3), RankedPass(64, 4, seed=3)
    whole = np.concatenate(list(RankedPass(64, 4, seed=3))).tolist()
    batches = iter(ours)
    before = np.concatenate([next(batches) for _ in range(5)]).tolist()
    again.load_state_dict(ours.state_dict(5))
    after = np.concatenate(list(again)).tolist()

    theirs, resumed = naive.SkippingLoader(64, 3), naive.SkippingLoader(64, 3)
    their_whole = list(naive.SkippingLoader(64, 3).epoch())
    epoch = theirs.epoch()
    their_before = [next(epoch) for _ in range(20)]
    resumed.resume(theirs.state())
    both(check, (before, after, whole), (their_before, list(resumed.epoch(skip=20)), their_whole))


def test_chosen_episodes_cost_no_more_than_all(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in rows that are looked at for a batch."""

    def check(few: int, many: int) -> None:
        assert many <= 2 * few

    with dr.ReplayBuffer.create(path, LINE, ARM, capacity=2_000, seed=0, **SLOWLY) as rb:
        for episode in range(400):
            rb.add(0, 0, episode, 1, False, False)
            rb.add(1, 0, 0, 2, True, False)
        looked_at: list[int] = []
        standing = rb.draws.standing
        monkeypatch.setattr(rb.draws, "standing", lambda ids: looked_at.append(len(ids)) or standing(ids))
        ours = []
        for most in (10, 400):
            looked_at.clear()
            assert (rb.sample(64, within=rb.select(f"return < {most}")).reward < most).all()
            ours.append(sum(looked_at))
    assert ours[0] >= 64
    theirs = [naive.FilteredRows(list(range(2 * most))) for most in (10, 400)]
    for buffer in theirs:
        buffer.sample(64, np.random.default_rng(0))
    both(check, tuple(ours), tuple(buffer.looked_at for buffer in theirs))


def test_the_page_has_each_test_and_each_naive_buffer_is_used() -> None:
    page = (pathlib.Path(__file__).parents[2] / "docs/pitfalls.md").read_text()
    module = sys.modules[__name__]
    tests = {name for name in vars(module) if name.startswith("test_")} - {inspect.stack()[0].function}
    assert set(re.findall(r"`(test_\w+)`", page)) == tests
    buffers = {
        name for name, value in vars(naive).items() if inspect.isclass(value) and value.__module__ == naive.__name__
    }
    source = inspect.getsource(module)
    assert {name for name in buffers if f"naive.{name}" not in source} == set()
