"""Views and samplers over buffers that grow, slide, are cleared, reopened, joined and taken back, beside the oracle."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import numpy as np
import pytest
from helpers.configs import CONFIGS, DEFAULT_CHUNKS, WIDE, Config
from helpers.model import Log
from helpers.odds import chances_of
from helpers.streams_machine import OPEN, SEEDS, Reader, StreamsMachine, Writer, frozen, set_effort
from helpers.view_model import GOAL_CONFIGS, HINDSIGHT, VIEWS, check, check_out, items, name_of, outs, standings
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

import diskreplay as dr
from diskreplay.errors import NotEnoughDataError, SamplerWarning
from diskreplay.index.log import Standing

SAMPLERS: list[Any] = [dr.Uniform, lambda: dr.Proportional(alpha=0.7), dr.RankBased]


def plans(configs: list[Config]) -> list[tuple[Config, Any]]:
    """What stores of these kinds are looked at with."""
    found = [(config, view) for config in configs for view in VIEWS]
    return found + [(config, view) for config in GOAL_CONFIGS for view in VIEWS[::3] + HINDSIGHT * 3]


class ViewMachine(StreamsMachine):
    plans = plans([*CONFIGS, *WIDE])

    def __init__(self) -> None:
        super().__init__()
        self.cut: dict[str, Log] | None = None
        self.seen: dict[int, Standing] = {}

    @initialize(data=st.data(), sampler=st.sampled_from(SAMPLERS), seed=SEEDS)
    def create(self, data: st.DataObject, sampler: Any, seed: int) -> None:
        self.config, self.view = data.draw(st.sampled_from(self.plans))
        note(f"{self.config} {name_of(self.view)}")
        self.rng = np.random.default_rng(seed)
        self.options = {"view": self.view, "cache_bytes": self.config.cache_bytes, **OPEN}
        self.make_sampler = sampler
        buffer = self.config.create(self.path, view=self.view, sampler=sampler())
        self.join("0", buffer, self.config.log())

    def items(self, holder: Writer | Reader) -> list[int]:
        return items(self.view, holder.logs())

    def compare(self, holder: Writer | Reader) -> None:
        assert len(holder.buffer) == sum(len(log) for log in holder.logs())
        if there := self.items(holder):
            self.compare_batch(holder.buffer.get(there), holder)

    def compare_batch(self, batch: Any, holder: Writer | Reader) -> None:
        check(batch, self.view, holder.logs())

    def drawn(self, holder: Writer | Reader, size: int) -> Any:
        """Also into arrays that are given, by the same draw if nothing was evicted meanwhile."""
        generator = holder.buffer.engine.rng.bit_generator
        before = generator.state
        batch = super().drawn(holder, size)
        after = generator.state
        for out in () if batch is None or holder.buffer.engine.schema.ragged else outs(batch, self.view):
            generator.state = before
            with contextlib.suppress(NotEnoughDataError):
                assert holder.buffer.sample(size, out=out) is out
            if self.went_on(holder):
                break
            assert generator.state == after
            check_out(out, batch)
        return batch

    @rule(second=st.booleans())
    def commit(self, second: bool) -> None:
        _, writer = self.pick(second)
        writer.buffer.commit()
        writer.settle()

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
    def reopen(self, second: bool) -> None:
        name, writer = self.pick(second)
        writer.close()
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
        writer.settle()
        self.cut = {"0": frozen(writer.log), **{name: frozen(log) for name, log in writer.others.items()}}

    @precondition(lambda self: self.cut is not None)
    @rule(drop=st.booleans())
    def return_to_checkpoint(self, drop: bool) -> None:
        writer = self.writers["0"]
        assert self.cut is not None
        self.close_readers_of()
        if drop:
            writer.buffer.drop_checkpoint("here")
            self.cut = None
            return
        writer.buffer.close()
        writer.buffer = dr.ReplayBuffer.open(self.path, checkpoint="here", **self.options)
        writer.log.rows, writer.log.cleared = list(self.cut["0"].rows), self.cut["0"].cleared
        writer.settle()
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

    @rule(second=st.booleans())
    def check_all(self, second: bool) -> None:
        """Through the buffer, and as its sampler sees it."""
        _, writer = self.pick(second)
        self.check(writer)
        buffer, expected = writer.buffer, standings(self.view, writer.logs())
        every = np.array(list(expected), np.int64)
        np.testing.assert_array_equal(buffer.draws.standing(every), list(expected.values()))
        assert every[chances_of(buffer, every) > 0].tolist() == self.items(writer)
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
            self.readers.append(Reader(buffer, cut, checkpoint="here"))
        else:
            buffer = dr.ReplayBuffer.open(self.path, mode="r", sampler=self.make_sampler(), **self.options)
            self.readers.append(Reader(buffer, self.durable()))
        if look:
            self.check(self.readers[-1])


class SmallThresholdsMachine(ViewMachine):
    plans = plans([*CONFIGS, *WIDE, *WIDE, *WIDE, *DEFAULT_CHUNKS])
    early_commits = True


for machine in (ViewMachine, SmallThresholdsMachine):
    set_effort(machine, 30, least=5, steps=30)
TestViews = pytest.mark.long(ViewMachine.TestCase)


@pytest.mark.long("TestViews")
@pytest.mark.usefixtures("small_thresholds")
class TestViewsWithSmallThresholds(SmallThresholdsMachine.TestCase):
    pass
