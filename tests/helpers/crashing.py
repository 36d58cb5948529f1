"""Workloads that may die at any operation, and what the disk must hold then.

A :class:`Story` writes to a simulated disk and keeps, beside it, the naive oracle's account of what was promised: for
each stream the state that was acknowledged last and the one that is on its way, likewise for checkpoints. At every
operation on the disk :meth:`Story.look` takes the disk as a crash would leave it, and a :class:`Survivor` is checked
against that account. The workload runs once; what is checked are the copies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
from format import specreader
from helpers.configs import Config
from helpers.model import KINDS, Actor, Log, Rng, arguments, check_buffer, same
from helpers.testing import WRITES, Crash, FaultyFiles, Operation, SimulatedDisk

import diskreplay as dr
from diskreplay.errors import StoreNotFoundError
from diskreplay.ops import verify as verification
from diskreplay.ops.resize import resize

PATH = "/shelf/a.replay"
OPEN: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9, "cache_bytes": 1 << 16}

DRAW = 9

Cut = dict[str, Log]
"""A state of all streams that a checkpoint names."""


@dataclasses.dataclass
class Account:
    """What was promised up to now.

    Attributes:
        exists: whether there must be a store; None while it is being made.
        streams: the states that each may be in, the last acknowledged first.
        doubtful: streams that are being made.
        checkpoints: those that must be there.
        unsure: those that are being made or dropped.
        draws: what the sampler drew right after making one, as it must whoever opens it.
    """

    exists: bool | None = False
    streams: dict[str, list[Log]] = dataclasses.field(default_factory=dict)
    doubtful: set[str] = dataclasses.field(default_factory=set)
    checkpoints: dict[str, Cut] = dataclasses.field(default_factory=dict)
    unsure: dict[str, Cut] = dataclasses.field(default_factory=dict)
    draws: dict[str, list[int]] = dataclasses.field(default_factory=dict)


def survivors(disk: SimulatedDisk, seed: int, random_losses: int) -> Iterator[tuple[str, SimulatedDisk]]:
    """The disk after each kind of crash, by its name."""
    yield "kill", disk.after_kill()
    yield "power loss", disk.after_power_loss()
    for number in range(random_losses):
        yield f"power loss {seed}.{number}", disk.after_power_loss(random.Random(f"{seed} {number}"))


class Story:
    """A workload on one store, whose every operation is a moment at which all processes may die.

    Attributes:
        points: crash points explored: operations that write, times the kinds of crash.
        states: disks among them that differ in what they hold or must hold; each was checked once, or one of ``every``.
        checked: how many were.
    """

    def __init__(
        self,
        config: Config,
        seed: int = 0,
        random_losses: int | None = 1,
        sampler: Callable[[], Any] | None = None,
        every: int = 1,
    ) -> None:
        """``random_losses`` of power are tried at each operation; None looks at no operation at all.

        Of the disks that differ one of ``every`` is checked, and the first of each kind of crash at each operation, on
        documents and on others.
        """
        self.config = config
        self.rng = np.random.default_rng(seed)
        self.sampler = sampler or dr.Uniform
        self.random_losses = random_losses
        self.account = Account()
        self.start(SimulatedDisk())
        self.disk.mkdir("/shelf")
        self.disk.sync_dir("/")
        self.buffers: dict[str, dr.ReplayBuffer] = {}
        self.actors: dict[str, Actor] = {}
        self.every = every
        self.points = self.checked = 0
        self.states: set[bytes] = set()
        self.situations: set[tuple[str, ...]] = set()

    def start(self, disk: SimulatedDisk) -> None:
        """A machine with this disk."""
        self.disk = disk
        self.files = FaultyFiles(disk)
        if self.random_losses is not None:
            self.files.decide = self.look

    # The moments

    def look(self, operation: Operation) -> None:
        """Before each operation: what would be there if it were the first that did not happen?"""
        if operation.name not in WRITES:
            return
        assert self.random_losses is not None
        for kind, disk in survivors(self.disk, self.points, self.random_losses):
            self.points += 1
            fingerprint = self.fingerprint(disk)
            if fingerprint not in self.states:
                self.states.add(fingerprint)
                if not self.chosen(operation, kind):
                    continue
                self.checked += 1
                try:
                    Survivor(self.config, self.account, disk, self.checked).check()
                except BaseException as error:
                    error.add_note(f"crash point {self.points}: {kind} before {operation}")
                    raise

    def chosen(self, operation: Operation, kind: str) -> bool:
        """Whether the disk that was found last is among those that are checked."""
        kind = "power loss, some of it" if "." in kind else kind
        situation = (operation.name, "document" if operation.path.endswith(".json") else "other", kind)
        first = situation not in self.situations
        self.situations.add(situation)
        return first or len(self.states) % self.every == 0

    def fingerprint(self, disk: SimulatedDisk) -> bytes:
        """Of all that the check of a disk depends on: what is there, what of it is synced, what must be there."""
        digest = hashlib.blake2b(digest_size=16)
        for contents in (disk.contents(), disk.after_power_loss().contents()):
            for path, data in contents.items():
                digest.update(f"{path} {len(data) if data is not None else -1} ".encode() + (data or b""))
        states = {name: [(log.end, log.capacity) for log in logs] for name, logs in self.account.streams.items()}
        facts = (self.account.exists, sorted(states.items()), sorted(self.account.doubtful))
        digest.update(repr((facts, sorted(self.account.checkpoints), sorted(self.account.unsure))).encode())
        return digest.digest()

    # The workload

    def create(self) -> None:
        self.account.exists = None
        log = self.config.log()
        self.account.streams["0"] = [log]
        self.buffers["0"] = self.config.create(PATH, files=self.files, sampler=self.sampler())
        self.account.exists = True
        self.actors["0"] = self.actor(log.upto(0))

    def actor(self, log: Log) -> Actor:
        return Actor(log, self.rng, self.config.action, self.config.extra)

    def open(self, name: str = "0", **options: Any) -> None:
        """Opens a stream to write; a new one is made."""
        fresh = name not in self.account.streams
        if fresh:
            number = len(self.account.streams)
            self.account.streams[name] = [self.config.log(number, options.get("num_envs"), options.get("capacity"))]
            self.account.doubtful.add(name)
        self.buffers[name] = dr.ReplayBuffer.open(PATH, stream=name, files=self.files, seed=1, **OPEN, **options)
        self.account.doubtful.discard(name)
        self.settle(name)
        if fresh:
            self.actors[name] = self.actor(self.account.streams[name][0].upto(0))
        self.resume(name)

    def settle(self, name: str) -> None:
        """What could be so or so after a crash is as the new writer found it, and stays so."""
        state = shape(self.buffers[name].stats()["streams"][name])
        self.account.streams[name] = [log for log in self.account.streams[name] if (log.end, log.capacity) == state][
            -1:
        ]
        assert self.account.streams[name]
        self.settle_checkpoints()

    def settle_checkpoints(self) -> None:
        labels = set(self.disk.list(f"{PATH}/checkpoints"))
        known = self.account.checkpoints | self.account.unsure
        self.account.checkpoints, self.account.unsure = {n: cut for n, cut in known.items() if n in labels}, {}

    def resume(self, name: str) -> None:
        """The environments go on from the durable rows."""
        (log,) = self.account.streams[name]
        actor = self.actors[name]
        actor.log = log.upto(log.end)
        actor.restart()

    def add(self, count: int, name: str = "0", special: float = 0.25) -> None:
        """Adds rows; about this share of their steps is out of the ordinary."""
        actor = self.actors[name]
        for _ in range(count):
            kinds = [kind if self.rng.random() < special else "step" for kind in self.rng.choice(KINDS[3:], 5)]
            row = actor.row(kinds, next_step=bool(self.rng.random() < 0.5))
            actor.log.rows.append(row)
            with self.committing(name):  # it may, by itself
                self.buffers[name].add(**arguments(self.config.obs, row))

    @contextlib.contextmanager
    def committing(self, name: str) -> Iterator[None]:
        """The rows added so far may become durable inside; afterwards, those that the buffer says are."""
        live = self.actors[name].log
        self.account.streams[name].append(live.upto(live.end))
        yield
        committed = self.buffers[name].stats()["streams"][name]["committed"]
        self.account.streams[name] = [live.upto(committed)]

    def commit(self, name: str = "0") -> None:
        with self.committing(name):
            self.buffers[name].commit()
        assert self.account.streams[name][0].end == self.actors[name].log.end

    def checkpoint(self, label: str, name: str = "0") -> None:
        buffer, live = self.buffers[name], self.actors[name].log
        seen = {other: state["end"] for other, state in buffer.stats()["streams"].items() if other != name}
        cut = {other: self.account.streams[other][0].upto(end) for other, end in seen.items()}
        cut[name] = live.upto(live.end)
        self.account.unsure[label] = cut
        if prioritized := isinstance(buffer.sampler, dr.Proportional):
            drawn = buffer.sample(min(DRAW, len(buffer))).index
            buffer.update_priorities(drawn, self.rng.random(len(drawn)) + 0.1)
        with self.committing(name):
            buffer.checkpoint(label, {"rows": live.end})
        self.account.checkpoints[label] = self.account.unsure.pop(label)
        if prioritized:
            self.account.draws[label] = buffer.sample(min(DRAW, len(buffer))).index.tolist()

    def drop(self, label: str, name: str = "0") -> None:
        self.account.unsure[label] = self.account.checkpoints.pop(label)
        self.buffers[name].drop_checkpoint(label)
        del self.account.unsure[label]

    def refresh(self, name: str = "0") -> None:
        self.buffers[name].refresh()

    def back(self, label: str, name: str = "0") -> None:
        """Goes back to a checkpoint, with the stream closed."""
        self.account.streams[name].append(self.account.checkpoints[label][name])
        self.buffers[name] = dr.ReplayBuffer.open(PATH, stream=name, checkpoint=label, files=self.files, **OPEN)
        self.settle(name)
        self.resume(name)

    def resize(self, capacity: int, name: str = "0") -> None:
        self.actors[name].log.resize(capacity)
        with self.committing(name):
            self.buffers[name].resize(capacity)

    def grow(self, capacity: int, label: str | None = None, name: str = "0") -> None:
        """At opening, with the stream closed; also while it goes back to a checkpoint."""
        self.resizing(
            capacity, name, self.account.streams[name][0] if label is None else self.account.checkpoints[label][name]
        )
        self.buffers[name] = dr.ReplayBuffer.open(
            PATH, stream=name, checkpoint=label, capacity=capacity, files=self.files, **OPEN
        )
        self.settle(name)
        self.resume(name)

    def resize_closed(self, capacity: int) -> None:
        """All streams, as the command does, with all of them closed."""
        for name, (log,) in self.account.streams.items():
            self.resizing(capacity, name, log)
        resize(PATH, capacity, files=self.files)
        for name, logs in self.account.streams.items():
            self.account.streams[name] = logs[-1:]

    def resizing(self, capacity: int, name: str, log: Log) -> None:
        """A stream may become that of a log, with another capacity."""
        resized = log.upto(log.end)
        resized.resize(capacity)
        self.account.streams[name].append(resized)

    def close(self, name: str = "0") -> None:
        with self.committing(name):
            self.buffers[name].commit()
        self.buffers.pop(name).close()

    def die(self, work: Callable[[], None], at: int, rng: random.Random | Literal["kill"] | None = "kill") -> bool:
        """Dies at an operation of ``work``, by a kill or a loss of power, and starts again; whether it got that far."""
        self.files.crash_at(at)
        try:
            work()
        except Crash:
            pass
        else:
            self.files.heal()
            if self.random_losses is not None:
                self.files.decide = self.look
            return False
        self.buffers.clear()
        self.start(self.disk.after_kill() if rng == "kill" else self.disk.after_power_loss(rng))
        survivor = Survivor(self.config, self.account, self.disk, 0)
        found = survivor.read()
        survivor.read_checkpoints()
        verify(self.disk)
        if rng != "kill" and found:  # what came through a loss of power is on the medium
            self.account.streams = {name: [log] for name, log in found.items()}
            self.settle_checkpoints()
        return True


class Survivor:
    """A disk after a crash, and what must be on it."""

    def __init__(self, config: Config, account: Account, disk: SimulatedDisk, seed: int) -> None:
        self.config = config
        self.account = account
        self.disk = disk
        self.seed = seed
        self.labels: list[str] = []
        self.rng: Rng = np.random.default_rng(seed)

    def check(self) -> None:
        """Reads the store, goes on with it, cuts the power once more, reads again.

        The invariants are looked at before that, or after it, or not at all, in turns: it is what takes longest.
        """
        found = self.read()
        if found is None:
            self.config.create(PATH, files=self.disk).close()
            assert leftovers(self.disk) == []
            found = {"0": self.config.log()}
        if self.seed % 3 == 0:
            verify(self.disk)
        if self.seed % 50 == 0 and "ragged" not in self.config.name:
            read_by_the_page(self.disk, found)
        self.go_on(found)
        self.read_checkpoints()
        if self.seed % 3 == 1:
            verify(self.disk)

    def read(self) -> Cut | None:
        """The state of each stream, every row of it compared; None where there need not be a store, and is none."""
        try:
            reader = dr.ReplayBuffer.open(PATH, mode="r", files=self.disk, cache_bytes=0)
        except StoreNotFoundError:
            assert not self.account.exists, "the store is gone"
            return None
        assert self.account.exists is not False, "a store that nobody made"
        with reader:
            found = self.match(reader)
            check_buffer(reader, list(found.values()), self.config.n_step, self.config.gamma)
            self.labels = reader.checkpoints
        known = self.account.checkpoints | self.account.unsure
        assert self.account.checkpoints.keys() <= set(self.labels) <= known.keys()
        return found

    def match(self, buffer: dr.ReplayBuffer) -> Cut:
        """Which of its possible states each stream is in."""
        stats = buffer.stats()["streams"]
        assert self.account.streams.keys() - self.account.doubtful <= stats.keys() <= self.account.streams.keys()
        found = {}
        for name, state in stats.items():
            possible = {(log.end, log.capacity): log for log in self.account.streams[name]}
            assert shape(state) in possible, f"stream {name} has {shape(state)} rows and capacity, not {list(possible)}"
            found[name] = possible[shape(state)]
        return found

    def read_checkpoints(self) -> None:
        """Every checkpoint that is there is whole, whatever was evicted since."""
        known = self.account.checkpoints | self.account.unsure
        for label in self.labels:
            with dr.ReplayBuffer.open(
                PATH, mode="r", checkpoint=label, files=self.disk, cache_bytes=0, view=dr.Transition()
            ) as then:
                check_buffer(then, list(known[label].values()), 1, 0.99)
                assert then.checkpoint_metadata(label).keys() == {"rows"}
                draw = self.account.draws.get(label)
                assert draw is None or then.sample(len(draw)).index.tolist() == draw, (
                    "priorities or random state differ"
                )

    def go_on(self, found: Cut) -> None:
        """Every stream can be written again, evicts, and leaves nothing behind that nobody needs."""
        for name, log in found.items():
            actor = Actor(log.upto(log.end), self.rng, self.config.action, self.config.extra)
            actor.restart()
            with dr.ReplayBuffer.open(PATH, stream=name, files=self.disk, **OPEN) as buffer:
                for _ in range(5):
                    row = actor.row(["step"] * 4 + ["truncate"], next_step=False)
                    buffer.add(**arguments(self.config.obs, row))
                    actor.log.rows.append(row)
                buffer.commit()
                found = found | {name: actor.log}
                check_shards(self.disk, buffer, name, actor.log, self.account)
        assert leftovers(self.disk) == []
        self.disk = self.disk.after_power_loss()
        self.account = dataclasses.replace(
            self.account, exists=True, streams={name: [log] for name, log in found.items()}, doubtful=set()
        )
        assert self.read() is not None


def shape(state: Mapping[str, Any]) -> tuple[int, int]:
    """Rows and capacity of a stream, by a buffer's ``stats``."""
    return state["end"], state["capacity"]


def verify(disk: SimulatedDisk) -> None:
    """The invariants of docs/format.md hold."""
    assert verification.verify(PATH, files=disk).problems == ()


def read_by_the_page(disk: SimulatedDisk, found: Cut) -> None:
    """The reader that was written from docs/format.md alone finds the same rows, on a real file system."""
    with tempfile.TemporaryDirectory() as folder:
        disk.dump(folder)
        store = specreader.Store(folder + PATH)
        for name, log in found.items():
            stream = store.streams[name]
            assert stream.ids() == log.ids(1)
            for number in stream.ids():
                got, want = stream.transition(number), log.transition(*stream.locate(number), 1, 1.0)
                assert all(map(same, got["obs"].values(), want.obs))
                assert all(map(same, got["next_obs"].values(), want.next_obs))
                assert got["reward"] == want.reward


def leftovers(disk: SimulatedDisk) -> list[str]:
    """Files and directories that belong to no finished operation."""
    return [path for path in disk.contents() if "tmp" in path]


def check_shards(disk: SimulatedDisk, buffer: dr.ReplayBuffer, name: str, log: Log, account: Account) -> None:
    """After a commit, a stream has the shards that its record and the checkpoints need, and no other."""
    known = account.checkpoints | account.unsure
    cuts = {label: buffer.engine.store.checkpoint(label).cut for label in buffer.checkpoints}
    pairs = [((log.begin, log.end), buffer.engine.streams.commits[name])]
    pairs += [
        ((known[label][name].begin, known[label][name].end), cut[name]) for label, cut in cuts.items() if name in cut
    ]
    for (begin, end), commit in pairs:
        assert commit.table("rows") == (begin, end, max(0, min(begin, end - 1) - buffer.schema.context))
    for path in {**buffer.schema.arrays, **buffer.schema.logs}:
        needed = set()
        for _, commit in pairs:
            if (stored := commit.arrays.get(path)) is not None:
                first = min(commit.of(path).needed_from, stored.rows - 1)
                needed |= set(range(first // stored.shard_rows, stored.shard + 1))
        found = {int(one.split(".")[1]) for one in disk.list(f"{PATH}/streams/{name}/{path}") if one.startswith("c.")}
        assert found == needed, f"{path}: shards {found} instead of {needed}"
