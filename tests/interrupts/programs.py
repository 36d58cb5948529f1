"""Programs that are interrupted once, and then go on: as in a notebook after a Ctrl-C, or to ``close()`` in a finally.

1. A program sets a buffer up and keeps, beside it, the naive log of what it was given.
2. ``call`` is the operation, which is interrupted somewhere.
3. ``look`` asks which of the states it is in that are allowed, and compares all that can be read with the log. It
   happened, or it did not; from then on this is what counts.
4. ``go_on`` adds, commits, samples, and looks again and again. It may be told by a StateError or ClosedError what to
   do, which is to open the store again.
5. ``close`` commits what can be committed, or raises.
6. ``again`` opens what is there: all that was committed, after a ``close`` without a word all that was shown; and goes
   on with it.

Whatever else comes out of these is wrong.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
from helpers import view_model
from helpers.configs import Config
from helpers.model import Leaf, Log, RaggedLeaf, arguments
from helpers.odds import ALPHA, EPSILON, by_formula, chances_of
from helpers.recording import Recording
from helpers.testing import SimulatedDisk
from interrupts import own

import diskreplay as dr
from diskreplay.errors import ClosedError, StateError, StoreNotFoundError
from diskreplay.ops.verify import verify
from diskreplay.schema import ring

PATH = "/a.replay"
OPTIONS: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9, "cache_bytes": 1 << 12}

VECTORS = Config(
    "vectors", Leaf((3,), np.float32), num_envs=2, n_step=2, capacity=24, resident_bytes=64,
    columns={"logp": np.float32},
)  # fmt: skip
FRAMES = Config("frames", Leaf((3, 3, 4), frames=3, axis=0), frame_stack=3, capacity=14, chunk_rows=3, shard_rows=6)
SINGLE = Config("single frames", Leaf((3, 4)), frame_stack=2, num_envs=2, capacity=20, chunk_rows=2, shard_rows=4)
RAGGED = Config(
    "ragged", {"a": RaggedLeaf(), "b": Leaf((3,), np.float32)}, num_envs=2, n_step=2, capacity=24, chunk_rows=3,
    shard_rows=12, columns={"tokens": ((None,), np.int32)},
)  # fmt: skip
GOALS = view_model.GOAL_CONFIGS[0]

small = mock.patch.multiple(ring, FIRST_LENGTH=4)
"""While this holds, the arrays in RAM grow within a few rows."""


@contextlib.contextmanager
def reopened(files: SimulatedDisk) -> Iterator[dr.ReplayBuffer]:
    """The store at :data:`PATH`, in which nothing is wrong, opened by who comes after the program."""
    assert verify(PATH, files=files).problems == ()
    with dr.ReplayBuffer.open(PATH, files=files, **OPTIONS) as buffer:
        yield buffer


def stacked(parts: list[Any]) -> Any:
    """Values of several steps, nested or not: arrays that lead with the steps, and lists of ragged rows."""
    if isinstance(parts[0], dict):
        return {name: stacked([part[name] for part in parts]) for name in parts[0]}
    if any(isinstance(part, list) for part in parts) or len({np.shape(part) for part in parts}) > 1:
        return parts
    return np.stack(parts)


class Program:
    """What the runner asks of every program."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def call(self) -> object:
        """The operation."""
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """The operation closed the buffer: there is nothing to go on with."""
        return False

    def look(self) -> None:
        """AssertionError where something is neither as before the call nor as after it."""

    def go_on(self) -> None:
        """Works on in the process; StateError or ClosedError where it must not."""

    def close(self) -> None:
        """As in a ``finally``."""

    def again(self, kept: bool) -> None:
        """Works on in a new process; ``kept``: all that was shown must be there, else what was committed."""


class Shown(Program):
    """A buffer and a reader, of which ``seen`` tells what they show."""

    buffer: Any
    reader: Any
    files: Any
    seen: Callable[[Any], Any]

    def add_again(self) -> None:
        """Works on with the buffer that was opened again."""

    def close(self) -> None:
        with contextlib.suppress(ClosedError, StateError):  # it was closed, with an error, before, or has lost rows
            self.expected = self.seen(self.buffer)
        self.buffer.close()

    def again(self, kept: bool) -> None:
        self.reader.close()
        with reopened(self.files) as self.buffer:
            if kept:
                assert self.seen(self.buffer) == self.expected
            self.add_again()


class Replay(Program):
    """A replay buffer beside its log, on a disk in RAM.

    Args:
        config: what its rows are.
        rows: that are added before the first commit, before the second, and after it.
        call: the operation, given the program.
        sampler: makes one.
        view: of its samples; transitions of ``config.n_step`` steps if None.
        checkpoints: made with the first commit.
    """

    def __init__(
        self, folder: pathlib.Path, config: Config, rows: Sequence[int], call: Callable[[Any], object],
        sampler: Callable[[], Any] = dr.Uniform, view: Any = None, checkpoints: Sequence[str] = (), **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(folder)
        self.config, self.operation, self.sampler, self.options = config, call, sampler, options
        self.view = view or dr.Transition(config.n_step, config.gamma)
        self.files: Any = own.Files(SimulatedDisk())
        self.path = PATH
        self.recording = Recording(config, seed=sum(rows))
        self.log: Log = self.recording.log
        self.priorities: list[dict[int, float]] = [{}]
        """What may have been told; 1 where nothing was."""
        self.cuts: dict[str, Log] = {}
        """Checkpoints that may be there."""
        self.sure: set[str] = set()
        """Those that must be."""
        self.committed = 0
        self.buffer: Any = None
        self.set_up(rows, checkpoints)
        self.prepare()

    def set_up(self, rows: Sequence[int], checkpoints: Sequence[str]) -> None:
        self.buffer = self.config.create(
            self.path, files=self.files, sampler=self.sampler(), view=self.view, seed=3, **self.options
        )
        for at, count in enumerate(rows):
            if at:
                for name in checkpoints if at == 1 else ():
                    self.buffer.checkpoint(name)
                    self.cuts[name] = self.log.upto(self.log.end)
                    self.sure.add(name)
                self.buffer.commit()
            if at and at == len(rows) - 1 and self.items():  # what is sampled from lags behind, as it does in training
                self.buffer.sample(1)
                if self.prioritized:
                    self.update(self.pick(5))
            self.recording.add(self.buffer, count)
        self.note_commit()

    def note_commit(self) -> None:
        self.committed = self.buffer.stats()["streams"]["0"]["committed"]

    def prepare(self) -> None:
        """What the operation adds is known before it begins."""
        self.before = self.log.end
        self.steps = [self.recording.actor.row(kinds, False) for kinds in (["terminate", "step"], ["step"], ["step"])]
        self.index = self.pick(4)

    # The operations

    def call(self) -> object:
        return self.operation(self)

    def add(self) -> None:
        """The next row, which ends an episode."""
        self.log.rows.append(self.steps[0])
        self.buffer.add(**arguments(self.config.obs, self.steps[0], always_valid=False))

    def extend(self) -> None:
        self.log.rows.extend(self.steps)
        each = [arguments(self.config.obs, step, always_valid=False) for step in self.steps]
        self.buffer.extend(**stacked(each))

    def commit(self) -> None:
        self.buffer.commit()
        self.committed = self.log.end

    def checkpoint(self) -> None:
        self.cuts["here"] = self.log.upto(self.log.end)
        self.buffer.checkpoint("here", {"rows": self.log.end})
        self.sure.add("here")
        self.committed = self.log.end

    def drop(self) -> None:
        self.sure.discard("first")
        self.buffer.drop_checkpoint("first")

    def clear(self) -> None:
        self.cleared = self.log.end
        self.buffer.clear()

    def grow(self) -> None:
        """Twice the window, whose first row stays."""
        self.cleared, self.wanted = self.log.begin, 2 * self.config.capacity
        self.buffer.resize(self.wanted)
        self.committed = self.log.end

    def shrink(self) -> None:
        """A window of four rows."""
        self.cleared, self.wanted = self.log.end - 4, 4 * self.config.num_envs
        self.buffer.resize(self.wanted)
        self.committed = self.log.end

    def sample(self) -> None:
        view_model.check(self.buffer.sample(6), self.view, [self.log])

    def get(self) -> None:
        self.buffer.get(self.index)

    def update(self, index: np.ndarray | None = None) -> None:
        """No priority is above 1, which is what new ones get."""
        chosen = self.index if index is None else index
        errors = np.linspace(0.1, 0.9, len(chosen))
        self.priorities.append({**self.priorities[-1], **dict(zip(chosen.tolist(), errors.tolist(), strict=True))})
        self.buffer.update_priorities(chosen, errors)
        self.priorities = self.priorities[-1:]

    def close_(self) -> None:
        self.buffer.close()

    def next_batch(self) -> None:
        """Of a walk over everything."""
        for batch in self.buffer.shuffled(3, pool_bytes=1):
            view_model.check(batch, self.view, [self.log])

    def next_loaded(self) -> None:
        with self.buffer.loader(3) as loader:
            for _ in range(3):
                view_model.check(next(loader), self.view, [self.log])

    def open(self) -> None:
        self.buffer = dr.ReplayBuffer.open(
            self.path, files=self.files, seed=1, view=self.view, sampler=self.sampler(), **OPTIONS
        )

    def reopen(self) -> None:
        """Opening, of a store whose writer is gone."""
        self.open()

    def go_back(self) -> None:
        """Opening at a checkpoint, which discards what came after it."""
        self.back = True
        self.buffer = dr.ReplayBuffer.open(
            self.path, files=self.files, checkpoint="first", view=self.view, sampler=self.sampler(), **OPTIONS
        )

    # The checks

    cleared = wanted = 0
    back = False

    @property
    def prioritized(self) -> bool:
        return isinstance(self.buffer.sampler, dr.Proportional | dr.RankBased)

    def items(self) -> list[int]:
        return view_model.items(self.view, [self.log])

    def pick(self, count: int) -> np.ndarray:
        """Some items."""
        found = self.items()
        return np.array([found[at * len(found) // count] for at in range(count)] if found else [], np.int64)

    def settle(self, buffer: Any, least: int) -> None:
        """Takes over which of the allowed states the stream is in, of at least so many rows."""
        state = buffer.stats()["streams"]["0"]
        if self.back and state["end"] == self.cuts["first"].end:
            least = self.committed = state["end"]
        assert least <= state["end"] <= self.log.end, f"{state['end']} rows instead of {least} to {self.log.end}"
        if state["end"] < self.log.end:
            self.recording.lose(state["end"])
        self.before = self.log.end
        capacities = self.config.capacity, self.wanted or self.config.capacity
        for cleared, capacity in itertools.product((0, self.cleared), capacities):
            self.log.cleared, self.log.capacity = cleared, capacity
            if (state["begin"], state["capacity"]) == (self.log.begin, capacity):
                return
        raise AssertionError(f"the window begins at {state['begin']}, not {self.log.begin}, or has another capacity")

    def compare(self, buffer: Any) -> None:
        """All that can be read is just what the log says."""
        logs = [self.log]
        assert len(buffer) == len(self.log), f"{len(buffer)} transitions, not {len(self.log)}"
        ids = self.items()
        if ids:
            view_model.check(buffer.get(np.array(ids)), self.view, logs)
            view_model.check(buffer.sample(min(4, len(buffer))), self.view, logs)
        found = [(e.stream, e.env, e.start, e.stop) for e in buffer.episodes]
        assert found == [(self.log.number, *run) for run in self.log.runs()], "episodes"
        there = set(buffer.checkpoints)
        assert self.sure <= there <= self.cuts.keys(), f"checkpoints {there} instead of {self.sure}"
        self.check_chances(buffer, ids)

    def check_chances(self, buffer: Any, ids: list[int]) -> None:
        """Every item can be drawn, and with the probability that its priority gives it."""
        if not ids:
            return
        found = chances_of(buffer, np.array(ids))
        if not self.prioritized:
            np.testing.assert_allclose(found, 1 / len(ids), rtol=1e-9)
            return
        states = self.priorities if buffer is self.buffer else [*self.priorities, {}]
        wanted = [self.chances(buffer.sampler, ids, state) for state in states]
        lacking = [each for each, chance in zip(ids, found.tolist(), strict=True) if not chance]
        assert not lacking, f"{lacking} are never drawn"
        fits = [np.allclose(found, want, rtol=1e-6, atol=1e-12) for want in wanted]
        assert any(fits), f"probabilities {found.tolist()} instead of {[want.tolist() for want in wanted]}"
        if buffer is self.buffer:
            self.priorities = [states[fits.index(True)]]

    def chances(self, sampler: Any, ids: list[int], state: dict[int, float]) -> np.ndarray:
        told = [state.get(each, np.nan) for each in ids]
        return by_formula(
            sampler, ids, told, np.array(ids) % self.log.num_envs if sampler.to_json().get("by_env") else None
        )

    def check_reader(self, checkpoint: str | None = None) -> None:
        """Somebody who opens the store now sees what was committed."""
        log = self.log if checkpoint is None else self.cuts[checkpoint]
        live, self.log = self.log, log
        try:
            with dr.ReplayBuffer.open(
                self.path, mode="r", files=self.files, seed=2, checkpoint=checkpoint, view=self.view,
                sampler=None if checkpoint else dr.Uniform(), cache_bytes=0,
            ) as reader:  # fmt: skip
                assert reader.stats()["streams"]["0"]["end"] == log.end
                ids = self.items()
                assert len(reader) == len(log)
                if ids:
                    view_model.check(reader.get(np.array(ids)), self.view, [log])
                    view_model.check(reader.sample(1), self.view, [log])
        finally:
            self.log = live

    @property
    def closed(self) -> bool:
        return self.buffer is not None and self.buffer.engine.gate.closed

    def look(self) -> None:
        if self.buffer is None:
            return
        self.settle(self.buffer, min(self.before, self.log.end))
        self.compare(self.buffer)

    def more(self, count: int) -> None:
        """Adds rows, which are there from then on."""
        self.recording.add(self.buffer, count)
        self.before = self.log.end
        self.compare(self.buffer)

    def work(self, count: int) -> None:
        """Adds rows, uses them, commits them."""
        self.more(count)
        if self.prioritized:
            self.update(self.pick(3))
            self.compare(self.buffer)
        self.buffer.commit()
        self.committed = self.log.end
        self.check_reader()

    def go_on(self) -> None:
        if self.buffer is None:
            self.opened()
            self.look()
        self.more(1)
        self.work(9)
        self.buffer.checkpoint("later")
        self.cuts["later"] = self.log.upto(self.log.end)
        self.sure.add("later")
        self.more(2)

    def opened(self) -> None:
        """Opens what is there, or makes it, where no buffer came back."""
        if self.buffer is None:
            gc.collect()
            try:
                self.open()
            except StoreNotFoundError:
                self.buffer = self.config.create(
                    self.path, files=self.files, sampler=self.sampler(), view=self.view, seed=3
                )

    def close(self) -> None:
        self.opened()
        self.buffer.close()

    def again(self, kept: bool) -> None:
        assert verify(self.path, files=self.files).problems == ()
        self.open()
        end = self.buffer.stats()["streams"]["0"]["end"]
        assert not kept or end >= self.before, f"close() said nothing, {self.before - end} rows are lost"
        self.priorities.append({})
        self.settle(self.buffer, self.committed)
        self.compare(self.buffer)
        for name in self.buffer.checkpoints:
            self.check_reader(name)
        self.more(7)
        self.buffer.close()
        self.check_reader()


proportional = functools.partial(dr.Proportional, alpha=ALPHA, beta=0.4, epsilon=EPSILON)
by_environment = functools.partial(proportional, by_env=True)
rank_based = functools.partial(dr.RankBased, alpha=ALPHA, beta=0.4)


class Opening(Replay):
    """A store whose writer is gone; the operation opens it."""

    def prepare(self) -> None:
        self.buffer.engine.streams.writer.release()
        self.recording.lose(self.committed)
        self.before = self.committed
        self.priorities = [{}]
        self.buffer = None


class Creating(Replay):
    """No store yet."""

    def set_up(self, rows: Sequence[int], checkpoints: Sequence[str]) -> None:
        pass

    def prepare(self) -> None:
        self.before = 0

    def create(self) -> None:
        self.buffer = self.config.create(self.path, files=self.files, sampler=self.sampler(), view=self.view, seed=3)


class Reading(Replay):
    """A reader beside a writer that committed and evicted since; with a stream that is new."""

    def prepare(self) -> None:
        super().prepare()
        self.other = Recording(self.config, seed=9)
        self.other.log.number = 1
        self.reader = dr.ReplayBuffer.open(
            self.path, mode="r", files=self.files, seed=4, view=self.view, sampler=self.sampler(), **OPTIONS
        )
        self.seen = {"0": self.committed}
        self.chosen: dict[int, float] = {}
        if self.prioritized and len(self.reader):
            self.reader.sample(3)
        self.recording.add(self.buffer, 8)
        self.commit()
        with dr.ReplayBuffer.open(self.path, stream="1", files=self.files, **OPTIONS) as second:
            self.other.add(second, 5)
        self.before = self.log.end

    def refresh(self) -> None:
        self.reader.refresh()

    def look(self) -> None:
        """Where the reader stands, it shows what was committed there."""
        ends = {name: state["end"] for name, state in self.reader.stats()["streams"].items()}
        assert ends["0"] in (self.seen["0"], self.committed)
        logs = [self.log.upto(ends["0"])] + ([self.other.log.upto(ends["1"])] if "1" in ends else [])
        with mock.patch.object(self.reader, "refresh", return_value=False):
            assert len(self.reader) == sum(len(log) for log in logs)
            found = [(e.stream, e.env, e.start, e.stop) for e in self.reader.episodes]
            assert found == [(log.number, *run) for log in logs for run in log.runs()], "episodes"

    def go_on(self) -> None:
        for count in (0, 1, 7):
            if count:
                self.recording.add(self.buffer, count)
                self.commit()
            behind = self.reader.stats()["streams"].get("0", {}).get("end") != self.log.end
            assert self.reader.refresh() or not behind, "refresh() said False, and did not go on"
            self.check_refreshed(self.reader)

    def check_refreshed(self, reader: Any) -> None:
        logs = [self.log, self.other.log]
        ends = [state["end"] for state in reader.stats()["streams"].values()]
        assert ends == [log.end for log in logs], f"the reader stands at {ends} of {[log.end for log in logs]}"
        assert len(reader) == sum(len(log) for log in logs)
        ids = view_model.items(self.view, logs)
        view_model.check(reader.get(np.array(ids)), self.view, logs)
        view_model.check(reader.sample(9), self.view, logs)
        found = [(e.stream, e.env, e.start, e.stop) for e in reader.episodes]
        assert found == [(log.number, *run) for log in logs for run in log.runs()], "episodes"
        chances = chances_of(reader, np.array(ids))
        np.testing.assert_allclose(chances.sum(), 1)
        assert (chances > 0).all(), "some are never drawn"

    def close(self) -> None:
        self.reader.close()
        self.buffer.close()

    def again(self, kept: bool) -> None:
        with dr.ReplayBuffer.open(
            self.path, mode="r", files=self.files, seed=4, view=self.view, sampler=self.sampler(), **OPTIONS
        ) as reader:
            self.check_refreshed(reader)
        assert verify(self.path, files=self.files).ok
