"""Views and samplers over buffers that grow, slide, are cleared, reopened, joined and taken back, beside the oracle."""

from __future__ import annotations

import copy
import dataclasses
import pathlib
import shutil
import tempfile
from typing import Any

import numpy as np
import pytest
from configs import CONFIGS, examples
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from model import KINDS, Actor, Log, arguments
from view_model import GOAL_CONFIGS, HINDSIGHT, VIEWS, check, items, name_of, standings

import diskreplay as dr
from diskreplay.errors import NotEnoughDataError
from diskreplay.index.log import Standing

OPEN: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9}
PLANS = [(config, view) for config in CONFIGS for view in VIEWS]
PLANS += [(config, view) for config in GOAL_CONFIGS for view in VIEWS[::3] + HINDSIGHT * 3]
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


def frozen(log: Log) -> Log:
    return dataclasses.replace(log, rows=list(log.rows))


class ViewMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="diskreplay-test-"))
        self.path = str(self.folder / "a.replay")
        self.writers: dict[str, Writer] = {}
        self.cut: dict[str, Log] | None = None
        self.seen: dict[int, Standing] = {}

    @initialize(plan=st.sampled_from(PLANS), sampler=st.sampled_from(SAMPLERS), seed=SEEDS)
    def create(self, plan: tuple[Any, Any], sampler: Any, seed: int) -> None:
        self.config, self.view = plan
        note(f"{self.config} {name_of(self.view)}")
        self.rng = np.random.default_rng(seed)
        self.options = {"view": self.view, "cache_bytes": self.config.cache_bytes, **OPEN}
        self.make_sampler = sampler
        buffer = self.config.create(self.path, view=self.view, sampler=sampler())
        self.join("0", buffer, self.config.log())

    def join(self, name: str, buffer: dr.ReplayBuffer, log: Log) -> None:
        actor = Actor(log, self.rng, self.config.action, self.config.extra)
        others = {other: frozen(writer.durable) for other, writer in self.writers.items()}
        self.writers[name] = Writer(buffer, log, actor, frozen(log), others)

    def teardown(self) -> None:
        for writer in self.writers.values():
            writer.buffer.close()
        shutil.rmtree(self.folder)

    def pick(self, second: bool) -> tuple[str, Writer]:
        name = "b" if second and "b" in self.writers else "0"
        return name, self.writers[name]

    @rule(second=st.booleans(), count=SHORT, ends=st.sampled_from([0.0, 0.1, 0.4]), next_step=st.booleans())
    def add(self, second: bool, count: int, ends: float, next_step: bool) -> None:
        _, writer = self.pick(second)
        for _ in range(count):
            kinds = [str(kind) if self.rng.random() < ends else "step" for kind in self.rng.choice(KINDS[3:], 5)]
            row = writer.actor.row(kinds, next_step)
            writer.buffer.add(**arguments(self.config.obs, row))
            writer.log.rows.append(row)

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
        writer.others = {other: frozen(each.durable) for other, each in self.writers.items() if other != name}

    @rule(second=st.booleans())
    def reopen(self, second: bool) -> None:
        name, writer = self.pick(second)
        writer.buffer.close()
        writer.durable = frozen(writer.log)
        writer.buffer = dr.ReplayBuffer.open(self.path, stream=name, sampler=self.make_sampler(), **self.options)
        writer.others = {other: frozen(each.durable) for other, each in self.writers.items() if other != name}

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

    @rule(second=st.booleans(), size=st.sampled_from([1, 2, 5, 17]), rounds=st.integers(1, 3))
    def sample(self, second: bool, size: int, rounds: int) -> None:
        _, writer = self.pick(second)
        there = items(self.view, writer.logs())
        if not there or size > len(writer.buffer):
            with pytest.raises(NotEnoughDataError):
                writer.buffer.sample(size)
            return
        for _ in range(rounds):
            batch = writer.buffer.sample(size)
            check(batch, self.view, writer.logs())
            if self.make_sampler is not dr.Uniform:
                writer.buffer.update_priorities(batch.index, self.rng.random(size) * 3)

    @rule(second=st.booleans())
    def check_all(self, second: bool) -> None:
        """Through the buffer, and as its sampler sees it."""
        _, writer = self.pick(second)
        buffer, expected = writer.buffer, standings(self.view, writer.logs())
        every = np.array(list(expected), np.int64)
        np.testing.assert_array_equal(buffer._standing(every), list(expected.values()))
        there = items(self.view, writer.logs())
        if there:
            check(buffer.get(there), self.view, writer.logs())
        chances = buffer.sampler.probability(every, buffer._streams.windows(), buffer._standing)
        assert every[chances > 0].tolist() == there
        for each, found in expected.items():
            if not second:
                before = self.seen.setdefault(each, found)
                assert before in (found, Standing.LATER), "what stands at NOW or NEVER stays there"
                self.seen[each] = found

    @rule(second=st.booleans())
    def read_beside(self, second: bool) -> None:
        """What a reader of the last commits sees."""
        logs = [frozen(writer.durable) for writer in self.writers.values()]
        there = items(self.view, logs)
        with dr.ReplayBuffer.open(self.path, mode="r", sampler=self.make_sampler(), **self.options) as reader:
            assert len(reader) == sum(len(log) for log in logs)
            if there:
                check(reader.get(there), self.view, logs)
                check(reader.sample(1), self.view, logs)

    @rule(second=st.booleans(), size=st.sampled_from([1, 3, 50]), pool=st.sampled_from([1, 1 << 12, 1 << 20]))
    def shuffled(self, second: bool, size: int, pool: int) -> None:
        _, writer = self.pick(second)
        batches = [copy.copy(batch) for batch in writer.buffer.shuffled(size, pool_bytes=pool)]
        found = sorted(each for batch in batches for each in batch.index.tolist())
        assert found == sorted(items(self.view, writer.logs()))
        for batch in batches:
            check(batch, self.view, writer.logs())


ViewMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestViews = ViewMachine.TestCase
