"""What the machines of buffers and of views share: streams with their writers, readers, and what each has seen."""

from __future__ import annotations

import copy
import dataclasses
import pathlib
import shutil
import tempfile
from typing import Any

import numpy as np
from helpers.commits import settled
from helpers.configs import Config
from helpers.effort import examples
from helpers.model import KINDS, Actor, Log, arguments, flat
from helpers.recording import went_on
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

import diskreplay as dr
from diskreplay.errors import EvictedError, NotEnoughDataError
from diskreplay.ops.verify import verify

SEEDS = st.integers(0, 2**32 - 1)
OPEN: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9}


def frozen(log: Log) -> Log:
    """The stream as it is now."""
    return log.upto(log.end)


@dataclasses.dataclass
class Writer:
    """One writing buffer, its stream in the oracle, and what it sees of the other streams."""

    buffer: dr.ReplayBuffer
    log: Log
    actor: Actor
    durable: Log
    """Its stream as of the last commit."""
    others: dict[str, Log] = dataclasses.field(default_factory=dict)
    """The other streams, as they were when it looked last."""
    commit_rows: int = 1 << 20

    def logs(self) -> list[Log]:
        return [self.log, *self.others.values()]

    def settle(self) -> None:
        """All that was added is durable."""
        self.durable = frozen(self.log)

    def close(self) -> None:
        self.buffer.close()
        self.settle()


@dataclasses.dataclass
class Reader:
    """A buffer that writes nothing, and the streams as it saw them last."""

    buffer: dr.ReplayBuffer
    others: dict[str, Log]
    n_step: int = 1
    checkpoint: str | None = None
    """It stays there until it is refreshed."""

    def logs(self) -> list[Log]:
        return list(self.others.values())


class StreamsMachine(RuleBasedStateMachine):
    """Subclasses make the buffers, and say which items one must show, and how."""

    config: Config
    early_commits = False
    """Whether a few waiting bytes are enough for a commit."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="diskreplay-test-"))
        self.path = str(self.folder / "a.replay")
        self.writers: dict[str, Writer] = {}
        self.readers: list[Reader] = []
        self.rng = np.random.default_rng(0)

    def teardown(self) -> None:
        for holder in (*self.writers.values(), *self.readers):
            holder.buffer.close()
        if self.writers:
            assert verify(self.path).problems == ()
        shutil.rmtree(self.folder)

    # What a buffer must show

    def items(self, holder: Writer | Reader) -> list[int]:
        raise NotImplementedError

    def compare(self, holder: Writer | Reader) -> None:
        """Compares all items of a buffer."""
        raise NotImplementedError

    def compare_batch(self, batch: Any, holder: Writer | Reader) -> None:
        raise NotImplementedError

    def check(self, holder: Writer | Reader) -> None:
        """Every item that a buffer says it holds shows what was added, whatever others did since."""
        try:
            self.compare(holder)
        except (AssertionError, EvictedError):
            if not self.went_on(holder):
                raise
            self.compare(holder)

    def drawn(self, holder: Writer | Reader, size: int) -> Any:
        """A batch that was checked, None where there is none."""
        try:
            batch = holder.buffer.sample(size)
        except NotEnoughDataError:
            batch = None
        self.went_on(holder)
        assert (batch is None) == (not self.items(holder) or size > sum(len(log) for log in holder.logs()))
        if batch is not None:
            self.compare_batch(batch, holder)
        return batch

    # Streams

    def join(self, name: str, buffer: dr.ReplayBuffer, log: Log) -> Writer:
        actor = Actor(log, self.rng, self.config.action, self.config.extra)
        self.writers[name] = Writer(buffer, log, actor, frozen(log), self.durable(name))
        return self.writers[name]

    def pick(self, second: bool) -> tuple[str, Writer]:
        name = "b" if second and "b" in self.writers else "0"
        return name, self.writers[name]

    def durable(self, but: str = "") -> dict[str, Log]:
        """All streams, or all but one, as of their last commits."""
        logs = {name: frozen(writer.durable) for name, writer in self.writers.items() if name != but}
        for name, log in logs.items():
            tail = self.writers[name].buffer.engine.store.newest_commit(name).tail
            log.tail = tail.number, tail.oldest
        return logs

    def went_on(self, holder: Writer | Reader) -> bool:
        """Whether the buffer went on to the newest commits by itself, as it must where it was outrun."""
        newest = {name: log for name, log in self.durable().items() if self.writers[name] is not holder}
        return went_on(holder, newest)

    def add_row(self, name: str, kinds: list[str], next_step: bool) -> None:
        writer = self.writers[name]
        row = writer.actor.row(kinds, next_step)
        given = arguments(self.config.obs, row, always_valid=bool(self.rng.random() < 0.5))
        writer.buffer.add(**given)
        for part in (given["obs"], given["next_obs"], given["action"]):  # nothing of the arguments may be kept
            for array in flat(part):
                for one in array if isinstance(array, list) else [array]:
                    if one.ndim:
                        one[...] = 99
        writer.log.rows.append(row)
        settled(writer.buffer)
        committed = writer.buffer.stats()["streams"][name]["committed"]
        if writer.log.end - writer.durable.end >= writer.commit_rows or (
            self.early_commits and committed == writer.log.end
        ):
            writer.settle()

    # Operations

    @rule(
        second=st.booleans(), count=st.integers(1, 14) | st.just(30), ends=st.sampled_from([0.0, 0.05, 0.1, 0.4]),
        next_step=st.booleans(),
    )  # fmt: skip
    def add_rows(self, second: bool, count: int, ends: float, next_step: bool) -> None:
        name, _ = self.pick(second)
        for _ in range(count):
            special = self.rng.choice(KINDS[3:], 5).tolist()
            self.add_row(name, [kind if self.rng.random() < ends else "step" for kind in special], next_step)

    @rule(second=st.booleans(), size=st.sampled_from([1, 3, 9, 50]), pool=st.sampled_from([1, 500, 1 << 12, 1 << 20]))
    def shuffled(self, second: bool, size: int, pool: int) -> None:
        _, writer = self.pick(second)
        before, batches, outrun = set(self.items(writer)), [], False
        for batch in writer.buffer.shuffled(size, pool_bytes=pool):
            outrun |= self.went_on(writer)
            self.compare_batch(batch, writer)
            assert len(batch) <= size
            batches.append(copy.copy(batch))
        outrun |= self.went_on(writer)  # also without a batch: all that it had seen of another stream may be gone
        found = [each for batch in batches for each in batch.index.tolist()]
        assert len(set(found)) == len(found)
        after = set(self.items(writer))
        assert before & after <= set(found) <= before, "what was evicted meanwhile may be missing, and nothing else"
        for batch in batches if not outrun else []:  # what was given out is not written over
            self.compare_batch(batch, writer)

    @rule(second=st.booleans())
    def refresh(self, second: bool) -> None:
        name, writer = self.pick(second)
        others = self.durable(name)
        before = {other: log.end for other, log in writer.others.items()}
        assert writer.buffer.refresh() or before == {other: log.end for other, log in others.items()}
        writer.others = others
        self.check(writer)

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 2))
    def refresh_reader(self, which: int) -> None:
        reader = self.readers[which % len(self.readers)]
        newest = self.durable()
        changed = reader.buffer.refresh()
        assert changed or all(newest[name].end == log.end for name, log in reader.others.items())
        reader.others, reader.checkpoint = newest, None
        self.check(reader)

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 2), size=st.integers(1, 20))
    def read(self, which: int, size: int) -> None:
        """A reader that was opened long ago still shows what it showed then, or is at the newest commits."""
        reader = self.readers[which % len(self.readers)]
        self.drawn(reader, size)
        self.check(reader)

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 2))
    def close_reader(self, which: int) -> None:
        self.readers.pop(which % len(self.readers)).buffer.close()

    def close_readers_of(self, checkpoint: str | None = None) -> None:
        """Closes the readers that stand at a checkpoint, by default at any."""
        for reader in [each for each in self.readers if each.checkpoint is not None]:
            if checkpoint in (None, reader.checkpoint):
                self.readers.remove(reader)
                reader.buffer.close()


def set_effort(machine: type[RuleBasedStateMachine], count: int, least: int, steps: int) -> None:
    """How many programs of a machine are tried, and how long they are."""
    machine.TestCase.settings = settings(
        max_examples=examples(count, least=least), stateful_step_count=steps, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
