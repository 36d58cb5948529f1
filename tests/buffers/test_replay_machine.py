"""A replay buffer beside the naive oracle, driven by the same random operations."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers.configs import CONFIGS, DEFAULT_CHUNKS, RAGGED, WIDE, Config
from helpers.crashes import kill
from helpers.effort import examples
from helpers.model import KINDS, Actor, Log, arguments, check_batch, check_buffer, flat
from helpers.recording import went_on
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import diskreplay as dr
from diskreplay.errors import CheckpointError, EvictedError, InputError, NotEnoughDataError
from diskreplay.ops.verify import verify

SHORT = st.integers(1, 14) | st.just(30)
SEEDS = st.integers(0, 2**32 - 1)
OPEN: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9}


class Writer:
    """One writing buffer, its stream in the oracle, and what it sees of the other streams."""

    def __init__(self, buffer: dr.ReplayBuffer, log: Log, actor: Actor) -> None:
        self.buffer = buffer
        self.log = log
        self.actor = actor
        self.others: dict[str, Log] = {}
        self.committed = 0
        self.commit_rows = 1 << 20

    def logs(self) -> list[Log]:
        return [self.log, *self.others.values()]


@dataclasses.dataclass
class Reader:
    """A buffer that writes nothing, and the streams as it saw them last."""

    buffer: dr.ReplayBuffer
    others: dict[str, Log]
    n_step: int
    checkpoint: str | None = None
    """It stays there until it is refreshed."""

    def logs(self) -> list[Log]:
        return list(self.others.values())


class BufferMachine(RuleBasedStateMachine):
    configs: Sequence[Config] = (*CONFIGS, *WIDE)
    early_commits = False
    """Whether a few waiting bytes are enough for a commit."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="diskreplay-test-"))
        self.path = str(self.folder / "a.replay")
        self.writers: dict[str, Writer] = {}
        self.readers: list[Reader] = []
        self.checkpoints: dict[str, dict[str, Log]] = {}
        self.draws: dict[str, Any] = {}
        self.rng = np.random.default_rng(0)

    @initialize(data=st.data(), seed=SEEDS, commit_rows=st.sampled_from([3, 10, 1 << 20]))
    def create(self, data: st.DataObject, seed: int, commit_rows: int) -> None:
        self.config = config = data.draw(st.sampled_from(self.configs))
        note(config.name)
        self.rng = np.random.default_rng(seed)
        buffer = config.create(self.path, commit_rows=commit_rows)
        self.writers["0"] = self.writer(buffer, config.log())
        self.writers["0"].commit_rows = commit_rows

    def writer(self, buffer: dr.ReplayBuffer, log: Log) -> Writer:
        return Writer(buffer, log, Actor(log, self.rng, self.config.action, self.config.extra))

    def teardown(self) -> None:
        for writer in self.writers.values():
            writer.buffer.close()
        for reader in self.readers:
            reader.buffer.close()
        if self.writers:
            self.verify()
        shutil.rmtree(self.folder)

    # Oracle

    def pick(self, second: bool) -> tuple[str, Writer]:
        name = "b" if second and "b" in self.writers else "0"
        return name, self.writers[name]

    def durable(self) -> dict[str, Log]:
        """All streams as of their last commits."""
        return {name: writer.log.upto(writer.committed) for name, writer in self.writers.items()}

    def check(self, holder: Writer | Reader) -> None:
        """Every transition that a buffer says it holds is the one that was added, whatever others did since."""
        n_step = holder.n_step if isinstance(holder, Reader) else self.config.n_step
        try:
            check_buffer(holder.buffer, holder.logs(), n_step, self.config.gamma)
        except (AssertionError, EvictedError):
            if not self.went_on(holder):
                raise
            check_buffer(holder.buffer, holder.logs(), n_step, self.config.gamma)

    def went_on(self, holder: Writer | Reader) -> bool:
        """Whether the buffer went on to the newest commits by itself, as it must where it was outrun."""
        newest = {name: log for name, log in self.durable().items() if self.writers[name] is not holder}
        return went_on(holder, newest)

    # Operations

    @rule(second=st.booleans(), kinds=st.lists(st.sampled_from(KINDS), min_size=5, max_size=5), next_step=st.booleans())
    def add(self, second: bool, kinds: list[str], next_step: bool) -> None:
        self.add_row(self.pick(second)[1], kinds, next_step)

    @rule(second=st.booleans(), count=SHORT, ends=st.sampled_from([0.05, 0.4]), next_step=st.booleans())
    def add_rows(self, second: bool, count: int, ends: float, next_step: bool) -> None:
        _, writer = self.pick(second)
        for _ in range(count):
            special = self.rng.choice(KINDS[3:], 5).tolist()
            kinds = [kind if self.rng.random() < ends else "step" for kind in special]
            self.add_row(writer, kinds, next_step)

    def add_row(self, writer: Writer, kinds: list[str], next_step: bool) -> None:
        row = writer.actor.row(kinds, next_step)
        given = arguments(self.config.obs, row, always_valid=bool(self.rng.random() < 0.5))
        writer.buffer.add(**given)
        for part in (given["obs"], given["next_obs"], given["action"]):  # nothing of the arguments may be kept
            for array in flat(part):
                for one in array if isinstance(array, list) else [array]:
                    if one.ndim:
                        one[...] = 99
        writer.log.rows.append(row)
        committed = writer.buffer.stats()["streams"][self.name_of(writer)]["committed"]
        if writer.log.end - writer.committed >= writer.commit_rows or (
            self.early_commits and committed == writer.log.end
        ):
            writer.committed = writer.log.end

    def name_of(self, writer: Writer) -> str:
        return next(name for name, each in self.writers.items() if each is writer)

    @rule(second=st.booleans())
    def commit(self, second: bool) -> None:
        _, writer = self.pick(second)
        writer.buffer.commit()
        writer.committed = writer.log.end
        self.check_shards(self.pick(second)[0])

    def check_shards(self, name: str) -> None:
        """Right after a commit, a stream has the shards that its window and the checkpoints need, and no other.

        How many rows the shards hold says each record; all others must be in the tail.
        """
        log = self.writers[name].log
        schema, store = self.writers[name].buffer.schema, self.writers[name].buffer.engine.store
        spans = [(cut[name].begin, cut[name].end, store.checkpoint(one).cut[name])
                 for one, cut in self.checkpoints.items() if name in cut]  # fmt: skip
        for column in schema.columns:
            rows = self.writers[name].buffer.engine.streams.written.disk.rows[column.name].column.shard_rows
            needed = set()
            for begin, end, record in [(log.begin, log.end, store.newest_commit(name)), *spans]:
                assert (record.begin, record.end) == (begin, end)
                if (stored := record.arrays.get(column.name)) is not None:
                    assert end - rows <= stored.rows <= end, "a full shard is written"
                    floor = max(0, min(begin, stored.rows - 1) - schema.context)
                    needed |= set(range(floor // rows, stored.shard + 1))
            found = (self.folder / "a.replay/streams" / name / column.name).glob("c.*")
            assert {int(file.name.split(".")[1]) for file in found} == needed, column.name

    @rule()
    def verify(self) -> None:
        """The store on disk is whole at any time, beside its live writers too."""
        assert verify(self.path).problems == ()

    @rule(second=st.booleans())
    def check_all(self, second: bool) -> None:
        self.check(self.pick(second)[1])

    @rule(second=st.booleans(), size=st.integers(1, 20))
    def sample(self, second: bool, size: int) -> None:
        self.check_sample(self.pick(second)[1], size, self.config.n_step)

    def check_sample(self, holder: Writer | Reader, size: int, n_step: int) -> None:
        try:
            batch = holder.buffer.sample(size)
        except NotEnoughDataError:
            batch = None
        self.went_on(holder)
        held = sum(len(log) for log in holder.logs())
        if size > held or not any(log.ids(n_step) for log in holder.logs()):
            assert batch is None
            return
        assert batch is not None
        check_batch(batch, holder.logs(), n_step, self.config.gamma)

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

    @rule(second=st.booleans(), batch_size=st.integers(1, 9), pool_bytes=st.sampled_from([1, 500, 1 << 20]))
    def shuffled(self, second: bool, batch_size: int, pool_bytes: int) -> None:
        _, writer = self.pick(second)
        seen: list[int] = []
        before = {i for log in writer.logs() for i in log.ids(self.config.n_step)}
        for batch in writer.buffer.shuffled(batch_size, pool_bytes=pool_bytes):
            self.went_on(writer)
            check_batch(batch, writer.logs(), self.config.n_step, self.config.gamma)
            assert len(batch) <= batch_size
            seen += batch.index.tolist()
        self.went_on(writer)  # also where there was no batch: all that it had seen of another stream may be gone
        after = {i for log in writer.logs() for i in log.ids(self.config.n_step)}
        assert len(set(seen)) == len(seen)
        assert before & after <= set(seen) <= before, "what was evicted meanwhile may be missing, and nothing else"

    @rule(second=st.booleans(), rows=st.sampled_from([1, 2, 5, 12, 40]), over=st.sampled_from([0, 0, 1]))
    def resize(self, second: bool, rows: int, over: int) -> None:
        """Beside readers and another writer, in the middle of episodes; ``over`` is less than a row."""
        name, writer = self.pick(second)
        capacity = rows * writer.log.num_envs + over * (writer.log.num_envs > 1)
        writer.buffer.resize(capacity)
        writer.log.resize(capacity)
        writer.committed = writer.log.end
        self.check_shards(name)
        self.check(writer)

    @rule(second=st.booleans(), rows=st.integers(0, 9))
    def grow(self, second: bool, rows: int) -> None:
        """At opening."""
        name, writer = self.pick(second)
        writer.buffer.close()
        writer.committed = writer.log.end
        writer.log.resize(writer.log.capacity + rows * writer.log.num_envs)
        self.open(name, writer, capacity=writer.log.capacity)

    @rule(second=st.booleans())
    def reopen(self, second: bool) -> None:
        name, writer = self.pick(second)
        writer.buffer.close()
        writer.committed = writer.log.end
        self.open(name, writer)

    @rule(second=st.booleans())
    def kill(self, second: bool) -> None:
        """The writer dies without a word: what no commit holds is lost."""
        name, writer = self.pick(second)
        kill(writer.buffer)
        writer.log.rows = writer.log.rows[: writer.committed]
        writer.actor.restart()
        self.open(name, writer)

    def open(self, name: str, writer: Writer, **options: Any) -> None:
        cache = self.config.cache_bytes
        writer.buffer = dr.ReplayBuffer.open(self.path, stream=name, cache_bytes=cache, seed=3, **OPEN, **options)
        writer.commit_rows = 1 << 20
        writer.others = {other: log for other, log in self.durable().items() if other != name}
        self.check(writer)

    @precondition(lambda self: "b" not in self.writers)
    @rule(num_envs=st.sampled_from([None, 1, 3]))
    def second_stream(self, num_envs: int | None) -> None:
        options = {} if num_envs is None else {"num_envs": num_envs, "capacity": 15}
        log = self.config.log(1, num_envs, self.writers["0"].log.capacity if num_envs is None else 15)
        buffer = dr.ReplayBuffer.open(self.path, stream="b", cache_bytes=self.config.cache_bytes, **OPEN, **options)
        self.writers["b"] = self.writer(buffer, log)
        self.writers["b"].others = {"0": self.durable()["0"]}
        self.check(self.writers["b"])

    @rule(second=st.booleans())
    def refresh(self, second: bool) -> None:
        name, writer = self.pick(second)
        others = {other: log for other, log in self.durable().items() if other != name}
        before = {other: log.end for other, log in writer.others.items()}
        assert writer.buffer.refresh() or before == {other: log.end for other, log in others.items()}
        writer.others = others
        self.check(writer)

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
        """A reader that was opened long ago still says what it said then, or is at the newest commits."""
        reader = self.readers[which % len(self.readers)]
        self.check_sample(reader, size, reader.n_step)
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

    @precondition(lambda self: len(self.checkpoints) < 3)
    @rule(second=st.booleans(), size=st.integers(1, 6))
    def checkpoint(self, second: bool, size: int) -> None:
        made_by, writer = self.pick(second)
        name = f"{made_by}-{int(self.rng.integers(1 << 30))}"
        writer.buffer.checkpoint(name, {"rows": writer.log.end})
        writer.committed = writer.log.end
        others = {other: log for other, log in self.durable().items() if other != made_by}
        if any(others[o].begin > log.begin or others[o].timeline != log.timeline for o, log in writer.others.items()):
            writer.others = others  # what it had seen of another stream is gone: it looked again
        cut = {made_by: writer.log.upto(writer.log.end), **writer.others}
        self.checkpoints[name] = cut
        if size <= sum(len(log) for log in cut.values()) and any(log.ids(self.config.n_step) for log in cut.values()):
            batch = writer.buffer.sample(size)
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
        writer.buffer.close()
        writer.committed = writer.log.end
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
        writer.committed = writer.log.end
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
        self.pick(second)[1].buffer.drop_checkpoint(name)
        del self.checkpoints[name]
        self.draws.pop(name, None)

    @invariant()
    def facts(self) -> None:
        for name, writer in self.writers.items():
            assert len(writer.buffer) == sum(len(log) for log in writer.logs())
            stream = writer.buffer.stats()["streams"][name]
            assert (stream["begin"], stream["end"]) == (writer.log.begin, writer.log.end)
            assert stream["capacity"] == writer.buffer.capacity == writer.log.capacity
            assert stream["committed"] == writer.committed
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
    machine.TestCase.settings = settings(
        max_examples=examples(20, least=4),
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
TestBuffer = pytest.mark.long(BufferMachine.TestCase)
TestRagged = pytest.mark.long(RaggedMachine.TestCase)


@pytest.mark.long("TestBuffer")
@pytest.mark.usefixtures("small_thresholds")
class TestBufferWithSmallThresholds(SmallThresholdsMachine.TestCase):
    pass
