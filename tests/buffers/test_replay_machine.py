"""A replay buffer beside the naive oracle, driven by the same random operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers.configs import CONFIGS, DEFAULT_CHUNKS, RAGGED, WIDE, Config
from helpers.crashes import kill
from helpers.model import KINDS, Log, check_batch, check_buffer
from helpers.streams_machine import OPEN, SEEDS, Reader, StreamsMachine, Writer, frozen, set_effort
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

import diskreplay as dr
from diskreplay.errors import CheckpointError, InputError, NotEnoughDataError
from diskreplay.ops.verify import verify
from diskreplay.storage.commit import Commit

Span = tuple[int, int, Commit]
"""The first row of a stream, the row behind the last one, and the record that has them."""


def shards(span: Span, column: str, rows: int, context: int) -> range:
    """The shards, of so many rows, that hold what a span needs of a column; the record has its rows."""
    begin, end, record = span
    assert (record.begin, record.end) == (begin, end)
    if (stored := record.arrays.get(column)) is None:
        return range(0)
    floor = max(0, min(begin, end - 1) - context)
    assert end - rows <= max(stored.rows, floor) <= end, "a full shard is written, but for rows that nobody needs"
    return range(min(floor, stored.rows - 1) // rows, stored.shard + 1)


class BufferMachine(StreamsMachine):
    configs: Sequence[Config] = (*CONFIGS, *WIDE)

    def __init__(self) -> None:
        super().__init__()
        self.checkpoints: dict[str, dict[str, Log]] = {}
        self.draws: dict[str, Any] = {}
        self.left: dict[str, list[Span]] = {"0": [], "b": []}
        """What checkpoints needed of each stream that the writer of the other one dropped."""

    @initialize(data=st.data(), seed=SEEDS, commit_rows=st.sampled_from([3, 10, 1 << 20]))
    def create(self, data: st.DataObject, seed: int, commit_rows: int) -> None:
        self.config = config = data.draw(st.sampled_from(self.configs))
        note(config.name)
        self.rng = np.random.default_rng(seed)
        writer = self.join("0", config.create(self.path, commit_rows=commit_rows), config.log())
        writer.commit_rows = commit_rows

    # Oracle

    def n_step(self, holder: Writer | Reader) -> int:
        return holder.n_step if isinstance(holder, Reader) else self.config.n_step

    def items(self, holder: Writer | Reader) -> list[int]:
        return [each for log in holder.logs() for each in log.ids(self.n_step(holder))]

    def compare(self, holder: Writer | Reader) -> None:
        check_buffer(holder.buffer, holder.logs(), self.n_step(holder), self.config.gamma)

    def compare_batch(self, batch: dr.Batch, holder: Writer | Reader) -> None:
        check_batch(batch, holder.logs(), self.n_step(holder), self.config.gamma)

    # Operations

    @rule(second=st.booleans(), kinds=st.lists(st.sampled_from(KINDS), min_size=5, max_size=5), next_step=st.booleans())
    def add(self, second: bool, kinds: list[str], next_step: bool) -> None:
        self.add_row(self.pick(second)[0], kinds, next_step)

    @rule(second=st.booleans())
    def commit(self, second: bool) -> None:
        name, writer = self.pick(second)
        writer.buffer.commit()
        writer.settle()
        self.check_shards(name)

    def check_shards(self, name: str) -> None:
        """Right after a commit, a stream has the shards that its window and the checkpoints need, and no other.

        How many rows the shards hold says each record; all others must be in the tail. Of a checkpoint that another
        writer dropped there may be shards until one leaves the window.
        """
        log, buffer = self.writers[name].log, self.writers[name].buffer
        spans = [self.span(name, one) for one, cut in self.checkpoints.items() if name in cut]
        spans.append((log.begin, log.end, buffer.engine.store.newest_commit(name)))
        for column in buffer.schema.columns:
            rows = buffer.engine.streams.written.disk.rows[column.name].column.shard_rows
            needed, left = (
                {shard for span in every for shard in shards(span, column.name, rows, buffer.schema.context)}
                for every in (spans, self.left[name])
            )
            files = (self.folder / "a.replay/streams" / name / column.name).glob("c.*")
            found = {int(file.name.split(".")[1]) for file in files}
            assert needed <= found <= needed | left, column.name

    def span(self, name: str, checkpoint: str) -> Span:
        """What a checkpoint needs of a stream."""
        cut = self.checkpoints[checkpoint][name]
        return cut.begin, cut.end, self.writers[name].buffer.engine.store.checkpoint(checkpoint).cut[name]

    @rule()
    def verify(self) -> None:
        """The store on disk is whole at any time, beside its live writers too."""
        assert verify(self.path).problems == ()

    @rule(second=st.booleans())
    def check_all(self, second: bool) -> None:
        self.check(self.pick(second)[1])

    @rule(second=st.booleans(), size=st.integers(1, 20))
    def sample(self, second: bool, size: int) -> None:
        self.drawn(self.pick(second)[1], size)

    @rule(second=st.booleans())
    def get_what_is_no_transition(self, second: bool) -> None:
        _, writer = self.pick(second)
        log = writer.log
        good = set(log.ids(self.config.n_step))
        first = log.number << 48
        for index in range(first, first + (log.end + 2) * log.num_envs):
            if index not in good:
                with pytest.raises((InputError, dr.errors.EvictedError)):
                    writer.buffer.get([index])

    @rule(second=st.booleans(), rows=st.sampled_from([1, 2, 5, 12, 40]), over=st.sampled_from([0, 0, 1]))
    def resize(self, second: bool, rows: int, over: int) -> None:
        """Beside readers and another writer, in the middle of episodes; ``over`` is less than a row."""
        name, writer = self.pick(second)
        capacity = rows * writer.log.num_envs + over * (writer.log.num_envs > 1)
        writer.buffer.resize(capacity)
        writer.log.resize(capacity)
        writer.settle()
        self.check_shards(name)
        self.check(writer)

    @rule(second=st.booleans(), rows=st.integers(0, 9))
    def grow(self, second: bool, rows: int) -> None:
        """At opening."""
        name, writer = self.pick(second)
        writer.close()
        writer.log.resize(writer.log.capacity + rows * writer.log.num_envs)
        writer.settle()
        self.open(name, writer, capacity=writer.log.capacity)

    @rule(second=st.booleans())
    def reopen(self, second: bool) -> None:
        name, writer = self.pick(second)
        writer.close()
        self.open(name, writer)

    @rule(second=st.booleans())
    def kill(self, second: bool) -> None:
        """The writer dies without a word: what no commit holds is lost."""
        name, writer = self.pick(second)
        kill(writer.buffer)
        writer.log.rows = writer.log.rows[: writer.durable.end]
        writer.actor.restart()
        self.open(name, writer)

    def open(self, name: str, writer: Writer, **options: Any) -> None:
        cache = self.config.cache_bytes
        writer.buffer = dr.ReplayBuffer.open(self.path, stream=name, cache_bytes=cache, seed=3, **OPEN, **options)
        writer.commit_rows = 1 << 20
        writer.others = self.durable(name)
        self.check(writer)

    @precondition(lambda self: "b" not in self.writers)
    @rule(num_envs=st.sampled_from([None, 1, 3]))
    def second_stream(self, num_envs: int | None) -> None:
        options = {} if num_envs is None else {"num_envs": num_envs, "capacity": 15}
        log = self.config.log(1, num_envs, self.writers["0"].log.capacity if num_envs is None else 15)
        buffer = dr.ReplayBuffer.open(self.path, stream="b", cache_bytes=self.config.cache_bytes, **OPEN, **options)
        self.check(self.join("b", buffer, log))

    @precondition(lambda self: len(self.readers) < 3)
    @rule(n_step=st.sampled_from([1, 3]), cached=st.booleans(), which=st.integers(-9, 9), look=st.booleans())
    def open_reader(self, n_step: int, cached: bool, which: int, look: bool) -> None:
        """At the newest commits or at a checkpoint; it stays open while the writers go on."""
        name = sorted(self.checkpoints)[which % len(self.checkpoints)] if self.checkpoints and which > 0 else None
        buffer = dr.ReplayBuffer.open(
            self.path, mode="r", checkpoint=name, view=dr.Transition(n_step, self.config.gamma),
            cache_bytes=self.config.cache_bytes if cached else 0, seed=1,
        )  # fmt: skip
        logs = self.durable() if name is None else dict(self.checkpoints[name])
        self.readers.append(Reader(buffer, logs, n_step, name))
        if look:
            self.check(self.readers[-1])

    @precondition(lambda self: len(self.checkpoints) < 3)
    @rule(second=st.booleans(), size=st.integers(1, 6))
    def checkpoint(self, second: bool, size: int) -> None:
        made_by, writer = self.pick(second)
        name = f"{made_by}-{int(self.rng.integers(1 << 30))}"
        writer.buffer.checkpoint(name, {"rows": writer.log.end})
        writer.settle()
        others = self.durable(made_by)
        if any(others[other].outran(log) for other, log in writer.others.items()):
            writer.others = others  # what it had seen of another stream is gone: it looked again
        cut = {made_by: frozen(writer.log), **writer.others}
        self.checkpoints[name] = cut
        if size <= sum(len(log) for log in cut.values()) and any(log.ids(self.config.n_step) for log in cut.values()):
            try:
                batch = writer.buffer.sample(size)
            except NotEnoughDataError:  # what it had seen of another stream was evicted, and was all that it had
                assert self.went_on(writer)
                assert size > len(self.items(writer))
                return
            if not self.went_on(writer):
                self.draws[name] = batch

    @precondition(lambda self: self.checkpoints)
    @rule(which=st.integers(0, 9))
    def open_checkpoint_to_read(self, which: int) -> None:
        name = sorted(self.checkpoints)[which % len(self.checkpoints)]
        with dr.ReplayBuffer.open(self.path, mode="r", checkpoint=name) as buffer:
            check_buffer(buffer, list(self.checkpoints[name].values()), self.config.n_step, self.config.gamma)
            self.check_draw(buffer, name)

    @precondition(lambda self: self.checkpoints)
    @rule(which=st.integers(0, 9))
    def return_to_checkpoint(self, which: int) -> None:
        name = sorted(self.checkpoints)[which % len(self.checkpoints)]
        made_by, cut = name.partition("-")[0], self.checkpoints[name]
        writer = self.writers[made_by]
        writer.close()
        if any(made_by in other and other[made_by].end > cut[made_by].end for other in self.checkpoints.values()):
            with pytest.raises(CheckpointError, match="still need"):
                dr.ReplayBuffer.open(self.path, stream=made_by, checkpoint=name)
            self.open(made_by, writer)
            return
        writer.buffer = dr.ReplayBuffer.open(
            self.path, stream=made_by, checkpoint=name, cache_bytes=self.config.cache_bytes, **OPEN
        )
        assert writer.buffer.checkpoint_metadata(name) == {"rows": cut[made_by].end}
        writer.log.rows, writer.log.capacity = list(cut[made_by].rows), cut[made_by].capacity
        writer.log.cleared = cut[made_by].cleared
        writer.log.timeline = writer.buffer.engine.streams.commits[made_by].timeline
        writer.settle()
        writer.commit_rows = 1 << 20
        writer.others = {other: log for other, log in cut.items() if other != made_by}
        writer.actor.restart()
        self.check_draw(writer.buffer, name)
        self.check(writer)
        # Rows that others have seen may be gone now; they look again before they go on.
        self.close_readers_of()
        for other in self.writers:
            if other != made_by:
                self.refresh(other == "b")
        for at in range(len(self.readers)):
            self.refresh_reader(at)

    def check_draw(self, buffer: dr.ReplayBuffer, name: str) -> None:
        """The first batch is the one that was drawn right after the checkpoint."""
        if name in self.draws:
            assert_same(buffer.sample(len(self.draws[name])), self.draws[name])

    @precondition(lambda self: self.checkpoints)
    @rule(which=st.integers(0, 9), second=st.booleans())
    def drop_checkpoint(self, which: int, second: bool) -> None:
        name = sorted(self.checkpoints)[which % len(self.checkpoints)]
        self.close_readers_of(name)
        dropped_by, writer = self.pick(second)
        for other in self.checkpoints[name].keys() - {dropped_by}:
            self.left[other].append(self.span(other, name))
        writer.buffer.drop_checkpoint(name)
        del self.checkpoints[name]
        self.draws.pop(name, None)

    @invariant()
    def facts(self) -> None:
        for name, writer in self.writers.items():
            assert len(writer.buffer) == sum(len(log) for log in writer.logs())
            stream = writer.buffer.stats()["streams"][name]
            assert (stream["begin"], stream["end"]) == (writer.log.begin, writer.log.end)
            assert stream["capacity"] == writer.buffer.capacity == writer.log.capacity
            assert stream["committed"] == writer.durable.end
            assert sorted(writer.buffer.checkpoints) == sorted(self.checkpoints)


def assert_same(a: dr.Batch, b: dr.Batch) -> None:
    """Two batches are the same bit for bit."""
    left: list[bytes] = []
    right: list[bytes] = []
    a.map(lambda array: left.append(array.tobytes()))
    b.map(lambda array: right.append(array.tobytes()))
    assert left == right


class SmallThresholdsMachine(BufferMachine):
    configs = (*CONFIGS, *WIDE, *WIDE, *WIDE, *DEFAULT_CHUNKS, *RAGGED, *RAGGED)
    early_commits = True


class RaggedMachine(BufferMachine):
    configs = RAGGED


for machine in (BufferMachine, SmallThresholdsMachine, RaggedMachine):
    set_effort(machine, 20, least=4, steps=40)
TestBuffer = pytest.mark.long(BufferMachine.TestCase)
TestRagged = pytest.mark.long(RaggedMachine.TestCase)


@pytest.mark.long("TestBuffer")
@pytest.mark.usefixtures("small_thresholds")
class TestBufferWithSmallThresholds(SmallThresholdsMachine.TestCase):
    pass
