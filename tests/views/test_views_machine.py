"""Views and samplers over buffers that grow, slide, are cleared, reopened, joined and taken back, beside the oracle."""

from __future__ import annotations

import copy
import dataclasses
import pathlib
import shutil
import tempfile
import warnings
from typing import Any

import numpy as np
import pytest
from helpers.configs import CONFIGS, DEFAULT_CHUNKS, WIDE, Config
from helpers.effort import examples
from helpers.model import KINDS, Actor, Log, arguments
from helpers.odds import chances_of
from helpers.recording import went_on
from helpers.view_model import GOAL_CONFIGS, HINDSIGHT, VIEWS, check, items, name_of, standings
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import diskreplay as dr
from diskreplay.errors import EvictedError, NotEnoughDataError, SamplerWarning
from diskreplay.index.log import Standing

OPEN: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9}
SAMPLERS: list[Any] = [dr.Uniform, lambda: dr.Proportional(alpha=0.7), dr.RankBased]
SHORT = st.integers(1, 14)
SEEDS = st.integers(0, 2**32 - 1)


@dataclasses.dataclass
class Writer:
    buffer: dr.ReplayBuffer
    log: Log
    actor: Actor
    durable: Log
    others: dict[str, Log] = dataclasses.field(default_factory=dict)
    """The other streams, as they were when it looked last."""

    def logs(self) -> list[Log]:
        return [self.log, *self.others.values()]


@dataclasses.dataclass
class Reader:
    """A buffer that writes nothing, and the streams as it saw them last."""

    buffer: dr.ReplayBuffer
    others: dict[str, Log]
    at_checkpoint: bool

    def logs(self) -> list[Log]:
        return list(self.others.values())


def plans(configs: list[Config]) -> list[tuple[Config, Any]]:
    """What stores of these kinds are looked at with."""
    found = [(config, view) for config in configs for view in VIEWS]
    return found + [(config, view) for config in GOAL_CONFIGS for view in VIEWS[::3] + HINDSIGHT * 3]


def frozen(log: Log) -> Log:
    return dataclasses.replace(log, rows=list(log.rows))


class ViewMachine(RuleBasedStateMachine):
    plans = plans([*CONFIGS, *WIDE])
    early_commits = False
    """Whether a few waiting bytes are enough for a commit."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="diskreplay-test-"))
        self.path = str(self.folder / "a.replay")
        self.writers: dict[str, Writer] = {}
        self.cut: dict[str, Log] | None = None
        self.seen: dict[int, Standing] = {}
        self.readers: list[Reader] = []

    @initialize(data=st.data(), sampler=st.sampled_from(SAMPLERS), seed=SEEDS)
    def create(self, data: st.DataObject, sampler: Any, seed: int) -> None:
        self.config, self.view = data.draw(st.sampled_from(self.plans))
        note(f"{self.config} {name_of(self.view)}")
        self.rng = np.random.default_rng(seed)
        self.options = {"view": self.view, "cache_bytes": self.config.cache_bytes, **OPEN}
        self.make_sampler = sampler
        buffer = self.config.create(self.path, view=self.view, sampler=sampler())
        self.join("0", buffer, self.config.log())

    def join(self, name: str, buffer: dr.ReplayBuffer, log: Log) -> None:
        actor = Actor(log, self.rng, self.config.action, self.config.extra)
        self.writers[name] = Writer(buffer, log, actor, frozen(log), self.durable(name))

    def durable(self, but: str = "") -> dict[str, Log]:
        """All streams, or all but one, as of their last commits."""
        return {name: frozen(writer.durable) for name, writer in self.writers.items() if name != but}

    def went_on(self, holder: Writer | Reader) -> bool:
        """Whether the buffer went on to the newest commits by itself, as it must where it was outrun."""
        newest = {name: frozen(each.durable) for name, each in self.writers.items() if each is not holder}
        return went_on(holder, newest)

    def look(self, holder: Writer | Reader) -> None:
        """Every item that a buffer says it holds shows what was added, whatever others did since."""
        for _ in range(2):
            there = items(self.view, holder.logs())
            try:
                assert len(holder.buffer) == sum(len(log) for log in holder.logs())
                if there:
                    check(holder.buffer.get(there), self.view, holder.logs())
                return
            except (AssertionError, EvictedError):
                if not self.went_on(holder):
                    raise
        raise AssertionError("nobody wrote meanwhile, and yet it went on twice")

    def teardown(self) -> None:
        for reader in self.readers:
            reader.buffer.close()
        for writer in self.writers.values():
            writer.buffer.close()
        shutil.rmtree(self.folder)

    def pick(self, second: bool) -> tuple[str, Writer]:
        name = "b" if second and "b" in self.writers else "0"
        return name, self.writers[name]

    @rule(second=st.booleans(), count=SHORT, ends=st.sampled_from([0.0, 0.1, 0.4]), next_step=st.booleans())
    def add(self, second: bool, count: int, ends: float, next_step: bool) -> None:
        name, writer = self.pick(second)
        for _ in range(count):
            kinds = [str(kind) if self.rng.random() < ends else "step" for kind in self.rng.choice(KINDS[3:], 5)]
            row = writer.actor.row(kinds, next_step)
            writer.buffer.add(**arguments(self.config.obs, row))
            writer.log.rows.append(row)
            if self.early_commits and writer.buffer.stats()["streams"][name]["committed"] == writer.log.end:
                writer.durable = frozen(writer.log)

    @rule(second=st.booleans())
    def commit(self, second: bool) -> None:
        _, writer = self.pick(second)
        writer.buffer.commit()
        writer.durable = frozen(writer.log)

    @rule(second=st.booleans())
    def clear(self, second: bool) -> None:
        _, writer = self.pick(second)
        writer.buffer.clear()
        writer.log.cleared = writer.log.end

    @precondition(lambda self: "b" not in self.writers)
    @rule(num_envs=st.sampled_from([1, 3]))
    def second_stream(self, num_envs: int) -> None:
        buffer = dr.ReplayBuffer.open(
            self.path, stream="b", num_envs=num_envs, capacity=21, sampler=self.make_sampler(), **self.options
        )
        self.join("b", buffer, self.config.log(1, num_envs, 21))

    @rule(second=st.booleans())
    def refresh(self, second: bool) -> None:
        name, writer = self.pick(second)
        writer.buffer.refresh()
        writer.others = self.durable(name)

    @rule(second=st.booleans())
    def reopen(self, second: bool) -> None:
        name, writer = self.pick(second)
        writer.buffer.close()
        writer.durable = frozen(writer.log)
        others = self.durable(name)
        seen = {other: (log.begin, log.end) for other, log in writer.others.items() if log.end}
        with warnings.catch_warnings():
            if seen != {other: (log.begin, log.end) for other, log in others.items() if log.end}:
                warnings.simplefilter("ignore", SamplerWarning)  # what closing kept is of other rows (note 0029)
            writer.buffer = dr.ReplayBuffer.open(self.path, stream=name, sampler=self.make_sampler(), **self.options)
        writer.others = others

    @precondition(lambda self: self.cut is None)
    @rule()
    def checkpoint(self) -> None:
        writer = self.writers["0"]
        self.refresh(second=False)
        writer.buffer.checkpoint("here")
        writer.durable = frozen(writer.log)
        self.cut = {"0": frozen(writer.log), **{name: frozen(log) for name, log in writer.others.items()}}

    @precondition(lambda self: self.cut is not None)
    @rule(drop=st.booleans())
    def return_to_checkpoint(self, drop: bool) -> None:
        writer = self.writers["0"]
        assert self.cut is not None
        for reader in [each for each in self.readers if each.at_checkpoint]:
            self.readers.remove(reader)
            reader.buffer.close()
        if drop:
            writer.buffer.drop_checkpoint("here")
            self.cut = None
            return
        writer.buffer.close()
        writer.buffer = dr.ReplayBuffer.open(self.path, checkpoint="here", **self.options)
        writer.log.rows, writer.log.cleared = list(self.cut["0"].rows), self.cut["0"].cleared
        writer.durable = frozen(writer.log)
        writer.others = {name: frozen(log) for name, log in self.cut.items() if name != "0"}
        writer.actor.restart()
        self.seen = {}
        if "b" in self.writers:
            self.refresh(second=True)
        for at in range(len(self.readers)):  # rows that they have seen may be gone
            self.refresh_reader(at)

    @rule(second=st.booleans(), size=st.sampled_from([1, 2, 5, 17]), rounds=st.integers(1, 3))
    def sample(self, second: bool, size: int, rounds: int) -> None:
        _, writer = self.pick(second)
        for _ in range(rounds):
            batch = self.drawn(writer, size)
            if batch is not None and self.make_sampler is not dr.Uniform:
                writer.buffer.update_priorities(batch.index, self.rng.random(size) * 3)

    def drawn(self, holder: Writer | Reader, size: int) -> Any:
        """A batch that was checked, None where there is none."""
        try:
            batch = holder.buffer.sample(size)
        except NotEnoughDataError:
            batch = None
        self.went_on(holder)
        if not items(self.view, holder.logs()) or size > sum(len(log) for log in holder.logs()):
            assert batch is None
        else:
            assert batch is not None
            check(batch, self.view, holder.logs())
        return batch

    @rule(second=st.booleans())
    def check_all(self, second: bool) -> None:
        """Through the buffer, and as its sampler sees it."""
        _, writer = self.pick(second)
        self.look(writer)
        buffer, expected = writer.buffer, standings(self.view, writer.logs())
        every = np.array(list(expected), np.int64)
        np.testing.assert_array_equal(buffer.draws.standing(every), list(expected.values()))
        there = items(self.view, writer.logs())
        chances = chances_of(buffer, every)
        assert every[chances > 0].tolist() == there
        for each, found in expected.items():
            if not second:
                before = self.seen.setdefault(each, found)
                assert before in (found, Standing.LATER), "what stands at NOW or NEVER stays there"
                self.seen[each] = found

    @precondition(lambda self: len(self.readers) < 3)
    @rule(at_checkpoint=st.booleans(), look=st.booleans())
    def open_reader(self, at_checkpoint: bool, look: bool) -> None:
        """A reader of the last commits, or of the checkpoint; it stays open while the writers go on."""
        if at_checkpoint and self.cut is not None:
            cut = {name: frozen(log) for name, log in self.cut.items()}
            buffer = dr.ReplayBuffer.open(self.path, mode="r", checkpoint="here", **self.options)
            self.readers.append(Reader(buffer, cut, at_checkpoint=True))
        else:
            buffer = dr.ReplayBuffer.open(self.path, mode="r", sampler=self.make_sampler(), **self.options)
            self.readers.append(Reader(buffer, self.durable(), at_checkpoint=False))
        if look:
            self.look(self.readers[-1])

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 2), size=st.sampled_from([1, 5]), close=st.booleans())
    def read(self, which: int, size: int, close: bool) -> None:
        """A reader that was opened long ago still shows what it showed then, or is at the newest commits."""
        reader = self.readers[which % len(self.readers)]
        self.drawn(reader, size)
        self.look(reader)
        if close:
            self.readers.remove(reader)
            reader.buffer.close()

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 2))
    def refresh_reader(self, which: int) -> None:
        reader = self.readers[which % len(self.readers)]
        reader.buffer.refresh()
        reader.others, reader.at_checkpoint = self.durable(), False
        self.look(reader)

    @rule(second=st.booleans(), size=st.sampled_from([1, 3, 50]), pool=st.sampled_from([1, 1 << 12, 1 << 20]))
    def shuffled(self, second: bool, size: int, pool: int) -> None:
        _, writer = self.pick(second)
        before, batches, outrun = set(items(self.view, writer.logs())), [], False
        for batch in writer.buffer.shuffled(size, pool_bytes=pool):
            outrun |= self.went_on(writer)
            batches.append(copy.copy(batch))
            if outrun:
                check(batch, self.view, writer.logs())
        found = [each for batch in batches for each in batch.index.tolist()]
        assert len(set(found)) == len(found)
        assert before & set(items(self.view, writer.logs())) <= set(found) <= before
        for batch in batches if not outrun else []:
            check(batch, self.view, writer.logs())


class SmallThresholdsMachine(ViewMachine):
    plans = plans([*CONFIGS, *WIDE, *WIDE, *WIDE, *DEFAULT_CHUNKS])
    early_commits = True


for machine in (ViewMachine, SmallThresholdsMachine):
    machine.TestCase.settings = settings(
        max_examples=examples(30, least=5),
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
TestViews = pytest.mark.long(ViewMachine.TestCase)


@pytest.mark.long("TestViews")
@pytest.mark.usefixtures("small_thresholds")
class TestViewsWithSmallThresholds(SmallThresholdsMachine.TestCase):
    pass
