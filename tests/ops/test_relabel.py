"""Values that a function makes of each episode, beside plain lists; all that is refused before anything is written."""

from __future__ import annotations

import errno
import pathlib
import signal
import tempfile
from typing import Any

import numpy as np
import pytest
from formats.roundtrip import store
from gymnasium import spaces
from helpers.effort import examples
from helpers.odds import chances_of
from helpers.programs import run
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.played import play

import diskreplay as dr
from diskreplay.errors import DiskFullError, InputError, LockedError
from diskreplay.ops import relabel as module
from diskreplay.ops.relabel import relabel
from diskreplay.ops.verify import verify


def marks(path: str) -> dict[int, tuple[Any, bool]]:
    """The values of the column that is written later, and which are known, by id."""
    with dr.ReplayBuffer.open(path, mode="r", view=dr.Transition()) as buffer:
        (column,) = buffer.schema.later
        batch = buffer.get(buffer.items())
        known = batch.extra[f"{column.name}_known"].tolist()
        return dict(zip(batch.index.tolist(), zip(batch.extra[column.name].tolist(), known, strict=True), strict=True))


@given(
    seed=st.integers(0, 999),
    streams=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    block=st.sampled_from([1, 60]),
)
@settings(max_examples=examples(20), deadline=None)
def test_each_step_gets_what_the_function_says(seed: int, streams: list[int], block: int) -> None:
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", block)
        path = f"{folder}/a"
        every = play(path, rng, streams, int(rng.integers(1, 25)))
        seen = []

        def function(episode: dr.Batch) -> Any:
            seen.append(episode.index.tolist())
            return np.stack([episode.reward.cumsum(), episode.next_obs], axis=1)

        found = relabel(path, function)
        assert seen == [[step.id for step in one.steps] for one in every]
        wanted = {}
        for one in every:
            total = 0.0
            for step in one.steps:
                total += step.reward
                wanted[step.id] = ([total, float(step.next_obs)], True)
        assert marks(path) == wanted
        assert (found.column, found.steps, found.episodes) == ("mark", len(wanted), len(every))
        assert verify(path).ok


@pytest.fixture
def shaped(path: str) -> str:
    store(later={"shaped": np.float32})(path)
    return path


def but_the_sixth(value: Any) -> Any:
    """A function that returns something else for the sixth episode."""
    calls = []

    def function(episode: dr.Batch) -> Any:
        calls.append(episode)
        return value(episode) if len(calls) == 6 else episode.reward

    return function


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (lambda e: e.reward[1:], r"episode 5: shaped must be float32 \(3,\), got float32 \(2,\)"),
        (lambda e: 1.0, r"episode 5: .* got \w+ \(\)"),
        (lambda e: None, r"episode 5: .* got \w+ \(\)"),
        (lambda e: ["a"] * len(e), r"episode 5: shaped must be float32 \(3,\), got <U1 \(3,\)"),
        (lambda e: e.reward + 0j, "must be float32 .*, got complex64"),
        (lambda e: np.where(e.reward == e.reward[1], np.nan, 0), "episode 5, step 1: .* finite .*got nan"),
        (lambda e: np.full(len(e), 1e300), "episode 5, step 0: .* finite .*got 1e[+]300"),
        (lambda e: e.nothing, r"episode 5: the function raised AttributeError: .*nothing.*test_relabel.py, line \d+\)"),
        (lambda e: [e.reward, 1, 2], "episode 5: shaped: must be an array, got a ragged value"),
    ],
    ids=["short", "number", "None", "text", "complex", "nan", "overflow", "raises", "ragged"],
)  # fmt: skip
def test_what_is_no_value_is_refused_before_any_is_written(value: Any, said: str, shaped: str) -> None:
    with pytest.raises(InputError, match=f"{said}.*; nothing was written"):
        relabel(shaped, but_the_sixth(value))
    assert not any(known for _, known in marks(shaped).values())
    assert relabel(shaped, lambda episode: episode.reward > 0).episodes == 7


def test_the_column_is_the_only_one_or_named(path: str, tmp_path: pathlib.Path) -> None:
    store()(path)
    with pytest.raises(InputError, match=r"name a column .* has none.*diskreplay edit STORE COPY --later shaped"):
        relabel(path, lambda episode: episode.reward)
    two = str(tmp_path / "two")
    store(later={"a": np.float32, "b": np.int64})(two)
    for name, said in ((None, "name a column"), ("reward", "there is no column 'reward'")):
        with pytest.raises(InputError, match=f"{said} that is written later: .* has 'a', 'b'"):
            relabel(two, lambda episode: episode.reward, name)
    with pytest.raises(InputError, match=r"b must be int64 .*, got float32"):
        relabel(two, lambda episode: episode.reward, "b")
    with pytest.raises(InputError, match="step 1: b must be a finite value of int64, got 18446744073709551615"):
        relabel(two, lambda episode: np.arange(len(episode), dtype=np.uint64) * np.uint64(2**64 - 1), "b")
    assert relabel(two, lambda episode: np.arange(len(episode)), "b").column == "b"
    with pytest.raises(InputError, match="read only"):
        relabel("s3://bucket/a", lambda episode: episode.reward)


def test_a_store_that_is_written_is_refused(path: str) -> None:
    play(path, np.random.default_rng(0), [1, 1], 5)
    for stream in ("0", "s1"):
        with dr.ReplayBuffer.open(path, stream=stream), pytest.raises(LockedError, match="being written"):
            relabel(path, lambda episode: pytest.fail("called"))
    assert relabel(path, lambda episode: np.zeros((len(episode), 2))).steps == 10


def test_priorities_that_were_kept_stay(path: str) -> None:
    line, turn = spaces.Box(0, 99, (), np.float32), spaces.Discrete(2)
    options = {"sampler": dr.Proportional(), "later": {"shaped": np.float32}}
    with dr.ReplayBuffer.create(path, line, turn, capacity=9, seed=0, **options) as buffer:
        for step in range(5):
            buffer.add(step, 0, 1.0, step + 1, step == 4, False)
        buffer.update_priorities(buffer.items(), np.arange(1, 6))
        before = chances_of(buffer).tolist()
    relabel(path, lambda episode: episode.reward * 2)
    with dr.ReplayBuffer.open(path) as buffer:
        assert chances_of(buffer).tolist() == before
        assert buffer.get(buffer.items()).extra["shaped"].tolist() == [2] * 5


def test_an_interrupt_writes_nothing(shaped: str) -> None:
    def function(episode: dr.Batch) -> Any:
        signal.raise_signal(signal.SIGINT)
        return episode.reward

    with pytest.raises(KeyboardInterrupt):
        relabel(shaped, function)
    assert not any(known for _, known in marks(shaped).values())


def test_a_full_disk_says_how_far_it_came(shaped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, calls = dr.ReplayBuffer.commit, []

    def full(buffer: dr.ReplayBuffer) -> None:
        calls.append(buffer)
        if len(calls) == 3:
            raise DiskFullError(errno.ENOSPC, "committing failed: No space left on device")
        commit(buffer)

    monkeypatch.setattr(module, "BLOCK_BYTES", 1)
    monkeypatch.setattr(dr.ReplayBuffer, "commit", full)
    with pytest.raises(DiskFullError, match=r"No space left.*; 2 episodes have their new values; relabel again"):
        relabel(shaped, lambda episode: episode.reward)


KILLED = """
import os, signal, sys
from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.ops import relabel

relabel.BLOCK_BYTES, calls = 1, []

class Dying(ReplayBuffer):
    def commit(self):
        super().commit()
        calls.append(self)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

relabel.ReplayBuffer = Dying
relabel.relabel(sys.argv[1], lambda episode: episode.reward + 1)
"""


@pytest.mark.long
def test_a_killed_relabel_wrote_the_first_episodes(shaped: str) -> None:
    assert run(KILLED, shaped).returncode == -signal.SIGKILL
    with dr.ReplayBuffer.open(shaped, mode="r") as buffer:
        first = sum(episode.length for episode in buffer.episodes[:3])
    known = [known for _, known in marks(shaped).values()]
    assert known == [True] * first + [False] * (len(known) - first)
    assert verify(shaped).ok
    relabel(shaped, lambda episode: episode.reward + 1)
    assert all(known for _, known in marks(shaped).values())
