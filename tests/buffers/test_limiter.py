"""Samples per insert: beside the definition, in one process and two; what is kept; timeouts, interrupts, kills."""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from helpers.configs import Config
from helpers.crashes import images_of
from helpers.effort import examples, stride
from helpers.model import Leaf
from helpers.patience import PATIENCE
from helpers.recording import Recording, recorded_in, reopen
from helpers.testing import FaultyFiles, SimulatedDisk
from helpers.threads import beside

import diskreplay as dr
from diskreplay.errors import ClosedError, InputError, RateLimitError, ReadOnlyError, StateError
from diskreplay.storage.commit import Commit

CONFIG = Config("limited", Leaf((2,), np.float32), capacity=40)


class Definition:
    """Reverb's SampleToInsertRatio, in plain numbers."""

    def __init__(self, ratio: float, min_size: int, error: float, envs: int = 1) -> None:
        self.ratio, self.min_size, self.error, self.envs = ratio, min_size, error, envs
        self.inserts = self.samples = 0

    def may_add(self) -> bool:
        after = self.inserts + self.envs
        surplus = after * self.ratio - self.samples
        return self.inserts < self.min_size or surplus <= self.min_size * self.ratio + self.error

    def may_sample(self, count: int) -> bool:
        surplus = self.inserts * self.ratio - self.samples - count
        return self.inserts >= self.min_size and surplus >= self.min_size * self.ratio - self.error


@pytest.mark.long(quick=3)
@pytest.mark.parametrize(
    ("envs", "ratio", "min_size", "error"), [(1, 4.0, 10, 20), (1, 0.25, 8, 4), (2, 1.5, 7, 9.5), (3, 8, 1, 30)]
)
def test_leave_is_given_as_by_the_definition(path: str, envs: int, ratio: float, min_size: int, error: float) -> None:
    """Random steps and batches, with checkpoints, going back to them, and reopening in between."""
    config = Config("limited", Leaf((2,), np.float32), num_envs=envs, capacity=12 * envs)
    rng, recording, told = np.random.default_rng(3), Recording(config), Definition(ratio, min_size, error, envs)
    buffer = config.create(path)
    limiter = dr.RateLimiter(buffer, ratio, min_size, error)
    refused = {"add": 0, "sample": 0}
    kept: tuple[int, int] | None = None
    for step in range(examples(2000, least=400)):
        count = int(rng.integers(1, int(2 * error - envs * ratio) + 1))
        assert (limiter.may_add(), limiter.may_sample(count)) == (told.may_add(), told.may_sample(count))
        if rng.random() < (0.97, 0.4)[step // 25 % 2]:  # now the one runs ahead, now the other
            if told.may_add():
                limiter.wait_to_add(timeout=0)
                recording.add(buffer, 1)
                told.inserts += envs
            else:
                refused["add"] += 1
                with pytest.raises(RateLimitError, match="may not add a step yet"):
                    limiter.wait_to_add(timeout=0)
        elif told.may_sample(count):
            limiter.wait_to_sample(count, timeout=0)
            told.samples += count
        else:
            refused["sample"] += 1
            with pytest.raises(RateLimitError, match="may not sample"):
                limiter.wait_to_sample(count, timeout=0)
        assert (limiter.inserts, limiter.samples) == (told.inserts, told.samples)
        if step % 100 == 50:
            buffer.checkpoint(str(step))
            kept = told.inserts, told.samples
        if step % 100 == 99:
            buffer.close()
            back = step % 200 == 199 and kept is not None
            buffer = reopen(config, path, checkpoint=f"{step - 49}" if back else None)
            limiter = dr.RateLimiter(buffer, ratio, min_size, error)
            if back and kept is not None:
                told.inserts, told.samples = kept
                recording.lose(told.inserts // envs)
            for name in buffer.checkpoints:
                buffer.drop_checkpoint(name)
            kept = None
    assert min(refused.values()) > 5
    buffer.close()


def test_steps_and_batches_never_wait_for_each_other(path: str) -> None:
    """At the narrowest band that is taken, one of the two may always go on."""
    with CONFIG.create(path) as buffer:
        limiter, recording, rng = (
            dr.RateLimiter(buffer, 3.0, 5, (7 + 3) / 2),
            Recording(CONFIG),
            np.random.default_rng(0),
        )
        for _ in range(500):
            add, sample = limiter.may_add(), limiter.may_sample(7)
            assert add or sample
            if sample and (not add or rng.random() < 0.5):
                limiter.wait_to_sample(7, timeout=0)
            else:
                recording.add(buffer, 1)
        assert abs(limiter.inserts * 3 - limiter.samples - 15) <= 5
        with pytest.raises(InputError, match=r"error_buffer must be at least 5\.5 for a batch of 8"):
            limiter.wait_to_sample(8)


def test_a_step_of_many_environments_may_pass_the_least_size(path: str) -> None:
    """At 8 of 9 rows the learner may not sample yet, and the actor's next four would pass the bound."""
    config = Config("limited", Leaf((2,), np.float32), num_envs=4, capacity=40)
    with config.create(path) as buffer:
        limiter, recording = dr.RateLimiter(buffer, 1.0, 9, 2.5), Recording(config)
        for _ in range(3):
            limiter.wait_to_add(timeout=0)
            recording.add(buffer, 1)
        assert not limiter.may_add()
        assert limiter.may_sample(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 10, 5), "samples_per_insert must be a finite number above 0"),
        ((np.nan, 10, 5), "samples_per_insert"),
        ((1, 0, 5), "min_size must be 1 to"),
        ((1, 1.5, 5), "min_size must be an integer"),
        ((1, 10, -1), "error_buffer must be a finite number"),
        ((4, 10, 1.5), "error_buffer must be at least 2 for a step of 1"),
    ],
)
def test_bad_arguments(path: str, arguments: Any, message: str) -> None:
    with CONFIG.create(path) as buffer:
        with pytest.raises(InputError, match=message):
            dr.RateLimiter(buffer, *arguments)
        limiter = dr.RateLimiter(buffer, 1, 10, 5)
        for count in (0, -1, 2.0, True, "3"):
            with pytest.raises(InputError, match="count must be"):
                limiter.wait_to_sample(count)  # type: ignore[arg-type]
        with pytest.raises(RateLimitError):
            limiter.wait_to_sample(3, timeout=0)
        with pytest.raises(InputError, match="timeout must be"):
            limiter.wait_to_sample(3, timeout=-1)
        assert limiter.samples == 0
    with pytest.raises(InputError, match="must be an open buffer"):
        dr.RateLimiter(path, 1, 10)  # type: ignore[arg-type]
    with reopen(CONFIG, path, mode="r") as reader, pytest.raises(ReadOnlyError):
        dr.RateLimiter(reader, 1, 10)


def test_two_threads_keep_the_ratio(path: str) -> None:
    """An actor that could run ahead, and a learner that could."""
    with CONFIG.create(path) as buffer:
        limiter, recording, worst = dr.RateLimiter(buffer, 2.0, 10, 12), Recording(CONFIG), []

        def act() -> None:
            for _ in range(190):
                limiter.wait_to_add(timeout=PATIENCE)
                recording.add(buffer, 1)
                worst.append(limiter.inserts * 2 - limiter.samples)

        with beside(act):
            for _ in range(45):
                limiter.wait_to_sample(8, timeout=PATIENCE)
                buffer.sample(8)
        assert max(worst) <= 20 + 12
        assert (limiter.inserts, limiter.samples) == (190, 360)


def test_two_writers_see_each_other_by_what_they_commit(path: str) -> None:
    """As two processes: each with its own buffer of the store; the one that waits finds what the other committed."""
    with recorded_in(CONFIG, path) as (actor, recording), reopen(CONFIG, path, stream="learner", capacity=1) as learner:
        adding, sampling = (dr.RateLimiter(buffer, 2.0, 10, 16) for buffer in (actor, learner))
        recording.add(actor, 9)
        assert not sampling.may_sample(4)
        with pytest.raises(RateLimitError, match=r"0 inserts \(at least 10\).*the stream '0' is "):
            sampling.wait_to_sample(4, timeout=0.02)
        recording.add(actor, 3)
        adding._refresh_counts()
        actor.commit()
        sampling.wait_to_sample(4, timeout=0)
        assert len(learner.sample(4)) == 4  # it has gone on to the rows
        assert (sampling.inserts, sampling.samples, adding.samples) == (12, 4, 0)
        assert learner.engine.streams.writer is not None
        assert learner.engine.streams.writer.commit_record.sampled == 4  # an eighth of the band of 32
        learner.commit()
        assert adding.may_add()
        while adding._add_fits():
            recording.add(actor, 1)
        assert adding.inserts == 18  # 2 * 18 = 20 + 16: as if nothing had been sampled
        adding.wait_to_add(timeout=0)  # it has been
        assert adding.samples == 4
        assert learner.engine.streams.writer is not None
        assert learner.engine.streams.writer.commit_record.sampled == 4
    with reopen(CONFIG, path) as actor:
        assert dr.RateLimiter(actor, 2.0, 10, 16).samples == 4


def test_a_learner_sees_the_steps_of_an_actor_that_waits(path: str) -> None:
    with CONFIG.create(path, commit_rows=1 << 20, commit_seconds=1e9) as actor:
        recording, limiter = Recording(CONFIG), dr.RateLimiter(actor, 2.0, 10, 16)
        while limiter.may_add():
            recording.add(actor, 1)
        with (
            reopen(CONFIG, path, stream="learner", capacity=1, commit_seconds=1e9) as learner,
            beside(lambda: limiter.wait_to_add(timeout=PATIENCE)),
        ):
            dr.RateLimiter(learner, 2.0, 10, 16).wait_to_sample(8, timeout=PATIENCE)
            learner.commit()
        assert limiter.samples == 8


LEARNER = """
import sys, time
import diskreplay as dr
buffer = dr.ReplayBuffer.open(sys.argv[1], stream="learner", capacity=1, seed=0)
limiter = dr.RateLimiter(buffer, 4.0, 20, 64)
print("ready", flush=True)
for turn in range(int(sys.argv[2])):
    limiter.wait_to_sample(16)
    buffer.sample(16)
    surplus = limiter.inserts * 4 - limiter.samples
    assert surplus >= 16, surplus
    print(turn, flush=True)
if sys.argv[3] == "wait":
    limiter.wait_to_sample(100)
buffer.close()
"""


@contextlib.contextmanager
def started(path: str, turns: int, end: str) -> Iterator[subprocess.Popen[str]]:
    """A learner in a process of its own, which is ready; killed at the end of the block if it still runs."""
    command = [sys.executable, "-c", textwrap.dedent(LEARNER), path, str(turns), end]
    found = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert found.stdout is not None
    try:
        assert found.stdout.readline() == "ready\n"
        yield found
    finally:
        found.kill()
        found.communicate()


@pytest.mark.long
def test_two_processes_keep_the_ratio(path: str) -> None:
    """Neither runs ahead by more than the bounds, and neither waits for ever, though each commits seldom by itself."""
    slow: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9}
    with recorded_in(CONFIG, path, **slow) as (buffer, recording), started(path, 30, "close") as learner:
        limiter = dr.RateLimiter(buffer, 4.0, 20, 64)
        for _ in range(130):
            limiter.wait_to_add(timeout=PATIENCE)
            recording.add(buffer, 1)
            assert limiter.inserts <= 20 or limiter.inserts * 4 - limiter.samples <= 80 + 64
        buffer.commit()
        output, _ = learner.communicate(timeout=PATIENCE)
        assert (learner.returncode, output.split()) == (0, [str(turn) for turn in range(30)])
        buffer.refresh()
        limiter._read_counts()
        assert limiter.samples == 480


@pytest.mark.long("test_two_processes_keep_the_ratio")
def test_the_other_side_is_killed_and_comes_again(path: str) -> None:
    """Its last commit counts; who waits says who is gone; when it is back, both go on."""
    with recorded_in(CONFIG, path, commit_rows=1 << 20, commit_seconds=1e9) as (buffer, recording):
        with started(path, 4, "wait") as learner:
            limiter = dr.RateLimiter(buffer, 4.0, 20, 64)
            for _ in range(22):
                limiter.wait_to_add(timeout=PATIENCE)
                recording.add(buffer, 1)
            buffer.commit()
            assert learner.stdout is not None
            for _ in range(4):
                assert learner.stdout.readline()
        while limiter.may_add():
            recording.add(buffer, 1)
        with pytest.raises(RateLimitError, match="the stream 'learner' is not being written"):
            limiter.wait_to_add(timeout=0.05)
        known = limiter.samples
        assert known in range(0, 65, 16)
        with started(path, 20, "close") as learner:
            for _ in range(60):
                limiter.wait_to_add(timeout=PATIENCE)
                recording.add(buffer, 1)
            buffer.commit()
            learner.communicate(timeout=PATIENCE)
            assert learner.returncode == 0
        buffer.refresh()
        limiter._read_counts()
        assert limiter.samples == known + 20 * 16


def test_ctrl_c_ends_the_waiting_and_counts_nothing(path: str) -> None:
    with CONFIG.create(path) as buffer:
        limiter = dr.RateLimiter(buffer, 1.0, 10, 5)
        waiting = threading.Event()
        look = limiter._refresh_counts

        def looked() -> bool:
            waiting.set()
            return look()

        limiter._refresh_counts = looked  # type: ignore[method-assign]

        def interrupt() -> None:
            waiting.wait(PATIENCE)
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            limiter.wait_to_sample(3)
        assert limiter.samples == 0
        Recording(CONFIG).add(buffer, 10)
        limiter.wait_to_sample(3, timeout=0)
        assert limiter.samples == 3


@pytest.mark.long
def test_a_crash_keeps_rows_and_counts_together() -> None:
    """They stand in one record: it is the one before, or the new one. A commit of the count alone is one, too."""
    config = Config("tiny", Leaf((2,), np.float32), capacity=12, chunk_rows=2, shard_rows=4)
    disk = SimulatedDisk()
    disk.mkdir("/shelf")
    disk.sync_dir("/")
    files = FaultyFiles(disk)
    with config.create("/shelf/a", files=files) as buffer:
        limiter, recording = dr.RateLimiter(buffer, 4, 2, 40), Recording(config)

        recording.add(buffer, 4)
        limiter.wait_to_sample(16)
        buffer.commit()
        images = images_of(disk, files, stride(3, "crash points of a limiter"))
        recording.add(buffer, 3)
        limiter.wait_to_sample(8)
        buffer.commit()
        limiter.wait_to_sample(5)
        buffer.commit()
        images.append(disk.after_power_loss())
        files.heal()
    found = set()
    for image in images:
        with dr.ReplayBuffer.open("/shelf/a", files=image, commit_seconds=1e9) as survivor:
            limiter = dr.RateLimiter(survivor, 4, 2, 40)
            found.add((limiter.inserts, limiter.samples))
    assert found == {(4, 16), (7, 24), (7, 29)}


def test_a_store_without_a_limiter_has_no_count(path: str) -> None:
    with recorded_in(CONFIG, path, 5) as (buffer, _):
        buffer.commit()
        record = pathlib.Path(path, "streams/0/zarr.json")
        assert "sampled" not in record.read_text()
        sequence = buffer.stats()["streams"]["0"]["sequence"]
        buffer.commit()
        assert buffer.stats()["streams"]["0"]["sequence"] == sequence
        dr.RateLimiter(buffer, 2, 1, 9).wait_to_sample(3)
        buffer.commit()
        assert '"sampled": 3' in record.read_text()
        assert buffer.stats()["streams"]["0"]["sequence"] == sequence + 1


@pytest.mark.parametrize("value", [-1, 1.5, "3", None, 1 << 63])
def test_a_forged_count_is_damage(value: Any) -> None:
    stored = {**Commit(0, 1, 10).to_json(), "sampled": value}
    with pytest.raises(dr.errors.CorruptionError, match="sampled must be"):
        Commit.from_json(stored, "zarr.json")


def test_a_full_disk_counts_what_was_counted(path: str) -> None:
    files = FaultyFiles()
    buffer = CONFIG.create(path, files=files)
    Recording(CONFIG).add(buffer, 5)
    buffer.commit()
    limiter = dr.RateLimiter(buffer, 2, 1, 9)
    limiter.wait_to_sample(3)
    files.fail_at(0)
    with pytest.raises(dr.errors.DiskFullError):
        buffer.commit()
    files.heal()
    with contextlib.suppress(dr.errors.StateError):
        buffer.close()
    with reopen(CONFIG, path) as buffer:
        assert dr.RateLimiter(buffer, 2, 1, 9).samples == 0


@pytest.mark.parametrize(
    ("ratio", "envs", "count"), [(0.2, 1, 1), (0.1, 3, 1), (0.3, 2, 7), (1 / 3, 1, 2), (7.7, 3, 11)]
)
def test_the_narrowest_band_never_holds_both_sides_back(path: str, ratio: float, envs: int, count: int) -> None:
    """Regression: by rounding it did, after 162 steps."""
    config = Config("limited", Leaf((2,), np.float32), num_envs=envs, capacity=12 * envs)
    least = float((Fraction(repr(ratio)) * envs + count) / 2)
    with recorded_in(config, path) as (buffer, recording):
        limiter = dr.RateLimiter(buffer, ratio, 10, math.nextafter(least, math.inf))
        for _ in range(600):
            if limiter.may_sample(count):
                limiter.wait_to_sample(count)
            else:
                assert limiter.may_add(), (limiter.inserts, limiter.samples)
                recording.add(buffer, 1)


def test_the_other_stream_may_have_more_environments(path: str) -> None:
    """Regression: the learner's side took the band for wide enough, and both waited for ever."""
    config = Config("limited", Leaf((2,), np.float32), num_envs=32, capacity=320)
    with config.create(path), dr.ReplayBuffer.open(path, stream="learner", capacity=1, num_envs=1) as learner:
        limiter = dr.RateLimiter(learner, 1, 64, 20)
        with pytest.raises(InputError, match="at least 32 for a batch of 32, with 32 environments"):
            limiter.wait_to_sample(32)
        assert limiter.samples == 0
        with pytest.raises(InputError, match="at least 16 for a step of 32"):
            dr.RateLimiter(learner, 1, 64, 15)


def test_nothing_is_counted_over_a_closed_buffer(path: str) -> None:
    with CONFIG.create(path) as buffer:
        Recording(CONFIG).add(buffer, 20)
        limiter = dr.RateLimiter(buffer, 1, 10, 8)
    with pytest.raises(ClosedError):
        limiter.wait_to_sample(2)
    assert limiter.samples == 0


def test_a_count_that_no_record_can_hold(path: str) -> None:
    with recorded_in(CONFIG, path, 20) as (buffer, _):
        limiter = dr.RateLimiter(buffer, 1e19, 1, 1e21)
        limiter.wait_to_sample(1 << 62)
        with pytest.raises(StateError, match="can be counted"):
            limiter.wait_to_sample(1)
    reopen(CONFIG, path).close()
