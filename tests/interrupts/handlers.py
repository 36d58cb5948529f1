"""Real signals whose handlers use the buffer and return, in the middle of calls of it; beside an oracle.

1. A subject is a buffer, or several, and a list of the rows that it must hold. Each row has a serial number, and its
   values follow from that.
2. A trial makes one call of the subject. Meanwhile a signal comes, at a random moment, and its handler makes another
   one. The handler runs before the call, after it, or between two changes of it.
3. Then the subject holds what the two calls give, one after the other, in either order. :meth:`Subject.check` compares.
4. In the end the store is closed, verified and opened again, and holds the same.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import itertools
import os
import pathlib
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from helpers.forking import forked
from helpers.odds import chances_of
from helpers.patience import PATIENCE
from helpers.testing.faulty_objects import SimulatedObjects
from interrupts import others
from interrupts.programs import stacked
from remote import world

import diskreplay as dr
from diskreplay.errors import EvictedError, NotEnoughDataError, StateError
from diskreplay.ops.verify import verify

HANDLERS_SERIALS = 300_000
EPISODE = 7
OPTIONS: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9, "cache_bytes": 1 << 14, "seed": 5}
SIGNALS = (signal.SIGALRM, signal.SIGUSR1, signal.SIGTERM)

LOOKS = "length", "stats", "episodes", "select", "get", "items", "shown", "state"

Change = Callable[[list[int]], list[int]]
"""What a call does to the list of rows."""


def same(rows: list[int]) -> list[int]:
    return rows


def none(rows: list[int]) -> list[int]:
    return []


@contextlib.contextmanager
def sending() -> Iterator[Callable[[int, float], object]]:
    """A function that sends a signal to this process, after so many seconds: SIGALRM by a timer, others by a thread."""
    asked: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()

    def send() -> None:
        while (asking := asked.get())[0]:
            time.sleep(asking[1])
            os.kill(os.getpid(), asking[0])

    def ask(number: int, seconds: float) -> None:
        if number == signal.SIGALRM:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
        else:
            asked.put((number, seconds))

    threading.Thread(target=send, daemon=True).start()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # else the thread waits while a call is over
    try:
        yield ask
    finally:
        sys.setswitchinterval(before)
        asked.put((0, 0.0))


class Subject:
    """What is called; see the module's docstring. ``calls`` names the methods here that :func:`trials` makes.

    Each returns what it did to the rows, None for nothing.
    """

    changing: tuple[str, ...] = ()
    """The calls that a signal comes in."""
    calls: tuple[str, ...] = ()
    """What its handler calls."""
    capacity = 40
    rb: Any
    """The buffer; the methods of ``saved``, or of it, are those calls that the subject has no method for."""

    def __init__(self, folder: pathlib.Path, seed: int = 0) -> None:
        self.path = str(folder / "store")
        self.rng = np.random.default_rng(seed)
        self.rows: list[int] = []
        self.serials = {False: itertools.count(), True: itertools.count(HANDLERS_SERIALS)}
        self.handling = False
        self.names = map("checkpoint-{}".format, itertools.count())  # in C: a generator could not be entered again
        self.kept: list[str] = []
        self.saved: Any = None
        self.make()

    def make(self) -> None:
        raise NotImplementedError

    def read(self) -> list[int]:
        """The serial numbers of the rows, whose values were compared."""
        raise NotImplementedError

    def call(self, name: str) -> Change:
        """Makes a call; one that there is nothing for gives an error that says so."""
        try:
            known = getattr(self, name, None) or (functools.partial(self.looked, name) if name in LOOKS else None)
            change = (known or getattr(self.saved or self.rb, name))()
        except (EvictedError, NotEnoughDataError):
            return same
        return change if callable(change) else same

    def check(self, *changes: Change) -> None:
        """AssertionError where the rows are not those after the changes, in any order."""
        possible = []
        for order in itertools.permutations(changes):
            rows = self.rows
            for change in order:
                rows = change(rows)
            possible.append(rows[-self.capacity :])
        found = self.read()
        assert found in possible, f"{found} is none of {possible}"
        self.rows = found

    def checkpoint(self) -> None:
        name = next(self.names)
        (self.saved or self.rb).checkpoint(name)
        self.kept.append(name)

    def drop_checkpoint(self) -> None:
        if self.kept:
            (self.saved or self.rb).drop_checkpoint(self.kept.pop(0))

    def new(self, count: int = 1) -> list[int]:
        return [next(self.serials[self.handling]) for _ in range(count)]

    def close(self) -> None:
        """Closes, verifies, and opens again."""
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError


class Plain(Subject):
    """A replay buffer of vectors of two environments, with priorities and a column that is written later."""

    envs = 2
    space: gymnasium.Space[Any] = spaces.Box(-np.inf, np.inf, (5,), np.float32)
    changing = (
        "add", "add", "add", "extend", "write", "update_priorities", "commit", "checkpoint", "clear", "sample",
        "begin_episode", "annotate_episode", "cut", "drop_checkpoint", "refresh",
    )  # fmt: skip
    calls = (
        "add", "extend", "write", "update_priorities", "commit", "checkpoint", "clear", "sample", "begin_episode",
        "annotate_episode", "cut", "drop_checkpoint", "refresh", "length", "stats", "episodes", "select", "get",
        "items", "shuffled", "loader", "checkpoints", "shown", "state", "fork",
    )  # fmt: skip

    def make(self) -> None:
        self.rb = self.create()
        self.later: set[int] = set()
        """The ids that were given a value later: half of the id."""
        self.pass_: Iterator[Any] = iter(())
        self.batches: Any = None
        self.last = np.zeros(1, np.int64)

    def options(self) -> dict[str, Any]:
        return {"sampler": dr.Proportional()}

    def create(self) -> Any:
        return dr.ReplayBuffer.create(
            self.path, self.space, spaces.Discrete(9), capacity=self.capacity * self.envs, num_envs=self.envs,
            columns={"serial": np.int64}, later={"value": np.float32}, chunk_rows=4, shard_rows=8,
            **{**OPTIONS, **self.options()},
        )  # fmt: skip

    # The values of a row

    def obs(self, serial: int, env: int, following: bool) -> Any:
        return np.arange(5, dtype=np.float32) + ((serial + following) * 3 + env)

    def step(self, serial: int) -> dict[str, Any]:
        last = serial % EPISODE == EPISODE - 1
        rows = [
            {
                "obs": self.obs(serial, env, False), "action": np.int64((serial + env) % 9),
                "reward": np.float64(serial % 1000), "next_obs": self.obs(serial, env, True),
                "terminated": np.bool_(last), "truncated": np.bool_(False), "serial": np.int64(serial),
            }
            for env in range(self.envs)
        ]  # fmt: skip
        return rows[0] if self.envs == 1 else stacked(rows)

    def read(self) -> list[int]:
        ids = self.rb.items()
        if not len(ids):
            return []
        batch = self.rb.get(ids)
        self.compare(batch, ids)
        known = batch.extra["value_known"]
        assert known.tolist() == [id in self.later for id in ids.tolist()], ids[known]
        return [int(serial) for serial in batch.extra["serial"][:: self.envs]]

    def compare(self, batch: Any, ids: Any) -> None:
        for at, (id, serial) in enumerate(zip(ids.tolist(), batch.extra["serial"].tolist(), strict=True)):
            env = id % self.envs
            for field in ("obs", "next_obs"):
                one, other = self.obs(serial, env, field == "next_obs"), getattr(batch, field)
                for key in one if isinstance(one, dict) else [None]:
                    pair = (one, other[at]) if key is None else (one[key], other[key][at])
                    assert pair[0].tobytes() == pair[1].tobytes(), f"{field} of row {serial}, environment {env}"
            values = (batch.action[at], batch.reward[at], batch.terminated[at])
            assert values == ((serial + env) % 9, serial % 1000, serial % EPISODE == EPISODE - 1)
            assert not batch.extra["value_known"][at] or batch.extra["value"][at] == id / 2

    def some_ids(self, count: int = 6) -> Any:
        items = self.rb.items()
        if not len(items):
            raise NotEnoughDataError("empty")
        return np.unique(self.rng.choice(items, count))

    # The calls

    def add(self) -> Change:
        (serial,) = self.new()
        self.rb.add(**self.step(serial))
        return lambda rows: [*rows, serial]

    def extend(self) -> Change:
        serials = self.new(6)
        steps = [self.step(serial) for serial in serials]
        self.rb.extend(**stacked(steps))
        return lambda rows: [*rows, *serials]

    def write(self) -> None:
        ids = self.some_ids()
        self.rb.write("value", ids, ids / np.float32(2))
        self.later.update(ids.tolist())

    def update_priorities(self) -> None:
        ids = self.some_ids()
        self.rb.update_priorities(ids, self.rng.random(len(ids)) + 0.1)

    def sample(self) -> None:
        batch = self.rb.sample(8)
        self.compare(batch, batch.index)
        self.last = batch.index

    def clear(self) -> Change:
        self.rb.clear()
        return none

    def begin_episode(self) -> None:
        self.rb.begin_episode(tags=["told"])

    def annotate_episode(self) -> None:
        with contextlib.suppress(dr.errors.InputError):  # no episode yet, or none since a handler came before the call
            self.rb.annotate_episode(success=True)

    def shuffled(self) -> None:
        batch = next(self.pass_, None)
        if batch is None:
            self.pass_ = self.rb.shuffled(8)
        else:
            self.compare(batch, batch.index)

    def loader(self) -> None:
        if len(self.rb):
            with self.rb.loader(4, prefetch=1) as loader:
                batch = next(loader)
                self.compare(batch, batch.index)

    def checkpoints(self) -> None:
        assert set(self.kept) <= set(self.rb.checkpoints)
        for name in self.rb.checkpoints[-1:]:
            self.rb.checkpoint_metadata(name)

    def fork(self) -> None:
        """A child that is made in the middle of a call is refused the buffer, and waits for nobody."""
        assert str(forked(lambda: self.rb.sample(1))).startswith("StateError: this process was forked from the one")

    def looked(self, what: str) -> None:
        """What only looks."""
        rb, ids = self.rb, self.rb.items()
        if what == "get":
            self.compare(rb.get(self.last), self.last)
        elif what == "select":
            rb.sample(4, within=rb.select("length >= 1"))
        elif what == "state":
            assert not len(ids) or abs(chances_of(rb, ids).sum() - 1) < 1e-6
        else:
            assert {
                "length": lambda: len(rb) % self.envs == 0,
                "items": lambda: len(ids) % self.envs == 0,
                "stats": lambda: (stats := rb.stats())["transitions"] <= stats["capacity"],
                "episodes": lambda: all(episode.length > 0 for episode in rb.episodes),
                "shown": lambda: "transitions" in repr(rb) and rb._repr_html_(),
            }[what]()

    # The end

    def close(self) -> None:
        rows = self.rows
        self.rb.close()
        assert verify(self.path).problems == ()
        self.rb = dr.ReplayBuffer.open(self.path, **OPTIONS)
        assert self.read() == rows

    def end(self) -> None:
        self.close()
        self.rb.close()


class Frames(Plain):
    """Frames that are read from disk, of one environment, drawn by rank."""

    envs, space = 1, spaces.Box(0, 255, (36, 36), np.uint8)

    def options(self) -> dict[str, Any]:
        return {"sampler": dr.RankBased()}

    def obs(self, serial: int, env: int, following: bool) -> Any:
        return frame(serial + following, 36)


class Stacks(Plain):
    """Stacks of three frames, as an environment's wrapper gives them, drawn uniformly."""

    envs, space = 1, spaces.Box(0, 255, (3, 36, 36), np.uint8)
    changing = tuple(name for name in Plain.changing if name != "update_priorities")
    calls = tuple(name for name in Plain.calls if name not in ("update_priorities", "state"))

    def options(self) -> dict[str, Any]:
        return {"frame_stack": 3, "stack_axis": 0}

    def obs(self, serial: int, env: int, following: bool) -> Any:
        first = serial - serial % EPISODE
        numbers = [serial + following - back for back in (2, 1, 0)]
        return np.stack([frame(at, 36) if at >= first else np.zeros((36, 36), np.uint8) for at in numbers])


class Nested(Plain):
    """Dicts of a picture and a vector, of two environments."""

    changing, calls = Stacks.changing, Stacks.calls
    space = spaces.Dict(picture=spaces.Box(0, 255, (36, 36), np.uint8), vector=spaces.Box(-9e9, 9e9, (3,), np.float64))

    def options(self) -> dict[str, Any]:
        return {"view": dr.Transition()}

    def obs(self, serial: int, env: int, following: bool) -> Any:
        at = serial + following + env * 5
        return {"picture": frame(at, 36), "vector": np.arange(3.0) + at}


class Pushed(Frames):
    """A buffer that pushes, to object storage in RAM."""

    changing = ("push", *Frames.changing)
    calls = ("push", *Frames.calls)

    def make(self) -> None:
        self.objects = SimulatedObjects(world.URL)
        with world.under(self.objects):
            super().make()

    def options(self) -> dict[str, Any]:
        return {"sampler": dr.Proportional(), "remote": world.URL}

    def close(self) -> None:
        self.rb.push()
        rows = self.rows
        with world.reader(self.objects, pathlib.Path(self.path).parent / "mirror") as reader:
            self.rb, writer = reader, self.rb
            assert self.read() == rows
            self.rb = writer
        super().close()


def frame(number: int, side: int) -> Any:
    return ((number * 31 + np.arange(side * side)) % 251).astype(np.uint8).reshape(side, side)


class Limited(Plain):
    """A buffer and a limiter over it: what is added and drawn is counted, each once."""

    changing = ("add", "sample", "commit", "checkpoint")
    calls = ("add", "sample", "commit", "checkpoint", "may", "length", "refresh", "state")
    capacity = 4000

    def make(self) -> None:
        super().make()
        self.limiter = dr.RateLimiter(self.rb, 1.0, min_size=2, error_buffer=1e6)
        self.drawn = self.added = 0

    def add(self) -> Change:
        self.limiter.wait_to_add()
        change = super().add()
        self.added += self.envs
        return change

    def sample(self) -> None:
        if len(self.rb) >= 8:
            self.limiter.wait_to_sample(4)
            self.drawn += 4
            self.rb.sample(4)

    def may(self) -> None:
        self.limiter.may_add()
        self.limiter.may_sample(3)

    def read(self) -> list[int]:
        assert (self.limiter.inserts, self.limiter.samples) == (self.added, self.drawn)
        ids = self.rb.items()[-40:]
        return self.rb.get(ids).extra["serial"][:: self.envs].tolist() if len(ids) else []

    def check(self, *changes: Change) -> None:
        self.capacity, kept = 20, self.capacity
        super().check(*changes)
        self.capacity = kept

    def end(self) -> None:
        self.rb.close()
        assert verify(self.path).ok
        with dr.ReplayBuffer.open(self.path, **OPTIONS) as self.rb:
            self.limiter = dr.RateLimiter(self.rb, 1.0, min_size=2, error_buffer=1e6)
            assert self.read() == self.rows


class Mixed(Plain):
    """A mixture of a buffer that is written and one that is read; of all that was drawn each gives its share."""

    changing = ("add", "mix", "mix", "tell", "write_mixed", "checkpoint", "commit", "clear")
    calls = (
        "add", "mix", "tell", "write_mixed", "checkpoint", "commit", "drop_checkpoint", "sample", "length", "refresh",
        "give", "checkpoints", "state",
    )  # fmt: skip

    def make(self) -> None:
        super().make()
        other = dr.ReplayBuffer.create(
            f"{self.path}-other", self.space, spaces.Discrete(9), capacity=200, num_envs=self.envs,
            columns={"serial": np.int64}, later={"value": np.float32}, **OPTIONS,
        )  # fmt: skip
        for serial in range(30):
            other.add(**self.step(serial))
        other.close()
        self.other = dr.ReplayBuffer.open(f"{self.path}-other", mode="r", sampler=dr.RankBased(), cache_bytes=1 << 14)
        self.saved = self.mixture = dr.Mixture([self.rb, self.other], [2, 1])
        self.drawn = 0
        self.index = np.zeros(0, np.int64)

    def mix(self) -> None:
        if len(self.rb) >= 8:
            batch = self.mixture.sample(7)
            self.drawn += 7
            self.index = batch.index

    def tell(self) -> None:
        self.mixture.update_priorities(self.index, self.rng.random(len(self.index)) + 0.1)

    def write_mixed(self) -> None:
        numbers, own = self.mixture.split(self.index)
        self.mixture.write("value", self.index, own / np.float32(2))
        self.later.update(own[numbers == 0].tolist())

    def give(self) -> None:
        self.mixture.get(self.index)

    def read(self) -> list[int]:
        given = self.mixture._given
        assert sum(given) == self.drawn, f"{given} of {self.drawn}"
        assert abs(given[0] - 2 * self.drawn / 3) < 1
        return super().read()

    def end(self) -> None:
        self.close()
        self.other.close()
        self.rb.close()


class Rollout(Subject):
    """A rollout: collected, finished, learned from, cleared."""

    changing = ("add", "add", "add", "finish", "minibatches", "clear", "commit", "checkpoint")
    calls = ("add", "finish", "minibatches", "clear", "commit", "checkpoint", "length", "facts")
    capacity = 24

    def make(self) -> None:
        self.rb = dr.RolloutBuffer.create(
            self.path, spaces.Box(0, 255, (36, 36), np.uint8), spaces.Discrete(9), steps=self.capacity,
            columns={"serial": np.int64}, chunk_rows=4, shard_rows=8, **OPTIONS,
        )  # fmt: skip

    def call(self, name: str) -> Change:
        try:
            return super().call(name)
        except StateError as error:
            if "rollout" not in str(error):
                raise
            return same

    def add(self) -> Change:
        if self.rb.full:
            return same
        (serial,) = self.new()
        ends = serial % EPISODE == EPISODE - 1
        following = frame(serial + 1, 36)
        values = {"value": 0.5, "log_prob": -1.0, "serial": serial, "final_value": 0.25}
        self.rb.add(frame(serial, 36), serial % 9, serial % 1000, following, ends, False, **values)
        return lambda rows: [*rows, serial]

    def finish(self) -> None:
        self.rb.finish(np.zeros(1), lambda obs: np.zeros(len(obs)))

    def minibatches(self) -> None:
        if self.rb.finished:
            for batch in self.rb.minibatches(8):
                self.compare(batch)

    def compare(self, batch: Any) -> None:
        for at, serial in enumerate(batch.extra["serial"].tolist()):
            assert batch.obs[at].tobytes() == frame(serial, 36).tobytes()
            assert (batch.action[at], batch.reward[at]) == (serial % 9, serial % 1000)

    def clear(self) -> Change:
        self.rb.clear()
        return none

    def length(self) -> None:
        assert len(self.rb) <= self.capacity

    def facts(self) -> None:
        assert self.rb.stats()["transitions"] <= self.capacity
        assert (self.rb.full, self.rb.finished, self.rb.episodes) is not None

    def read(self) -> list[int]:
        if not len(self.rb):
            return []
        if not self.rb.finished:
            self.finish()
        log = self.rb._stream.log
        batch = self.rb.get(np.arange(log.first_id, log.stop_id))
        self.compare(batch)
        return [int(serial) for serial in batch.extra["serial"]]

    def end(self) -> None:
        self.rb.close()
        assert verify(self.path).problems == ()
        with dr.RolloutBuffer.open(self.path, **OPTIONS) as self.rb:
            assert self.read() == self.rows


class Adapted(Subject):
    """Another library's buffer, whose rows are stamps."""

    changing = ("add", "insert", "commit", "read_all")
    calls = ("add", "insert", "commit", "read_all")
    capacity = 8
    kind: type[others.Stamped] = others.Notebook

    def make(self) -> None:
        self.orders: list[list[int]] = []
        """The orders that the rows may have; what can be read of them is their numbers alone."""
        self.inner = self.kind(pathlib.Path(self.path).parent)
        self.rows = self.read()

    def new(self, count: int = 1) -> list[int]:
        return [100 + serial for serial in super().new(count)]

    def add(self) -> Change:
        (serial,) = self.new()
        self.inner.store(serial)
        return lambda rows: [*rows, serial]

    def insert(self) -> None:
        self.inner.buffer.insert(0.5, 3)

    def commit(self) -> None:
        self.inner.buffer.commit()

    def read_all(self) -> None:
        self.inner.read()

    def read(self) -> list[int]:
        return sorted(self.inner.read())

    def check(self, *changes: Change) -> None:
        found, possible = self.read(), []
        for order, rows in itertools.product(itertools.permutations(changes), self.orders or [self.rows]):
            for change in order:
                rows = change(rows)[-self.capacity :]
            possible.append(rows)
        self.orders = [rows for rows in possible if sorted(rows) == found]
        assert self.orders, f"{found} is none of {possible}"
        self.orders = [list(rows) for rows in dict.fromkeys(map(tuple, self.orders))]

    def end(self) -> None:
        self.inner.buffer.close()
        assert verify(self.inner.path).problems == ()
        self.inner.reopen()
        self.check(same)
        self.inner.buffer.close()


class AdaptedByRank(Adapted):
    kind = others.RankNotebook


SUBJECTS: dict[str, type[Subject]] = {
    "lockstep": Plain, "frames": Frames, "stacks": Stacks, "nested": Nested, "pushed": Pushed, "limiter": Limited,
    "mixture": Mixed, "rollout": Rollout, "adapter": Adapted,
    "adapter by rank": AdaptedByRank,
}  # fmt: skip


def pairs(kind: type[Subject], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Every call that changes with every one that a handler makes, in random order, again and again."""
    while True:
        every = list(itertools.product(dict.fromkeys(kind.changing), kind.calls))
        rng.shuffle(every)
        yield from every


@contextlib.contextmanager
def handled(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """The handler of all :data:`SIGNALS`, for a while."""
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, kept in before.items():
            signal.signal(number, kept)


def run(subject: Subject, count: int, seed: int = 0) -> int:
    """Makes so many trials, and ends the subject; how many signals came within the calls."""
    rng = random.Random(seed)
    inside = 0
    every = pairs(type(subject), rng)
    seconds: dict[str, float] = {}
    names = ["", ""]
    changes: list[Change] = []
    raised: list[BaseException] = []
    busy = False

    def handler(number: int, frame: Any) -> None:
        nonlocal inside
        inside += busy
        subject.handling = True
        try:
            changes.append(subject.call(names[1]))
        except BaseException as error:
            raised.append(error)
        finally:
            subject.handling = False

    with handled(handler), sending() as send:
        for _ in range(12):
            subject.rows = subject.call(subject.changing[0])(subject.rows)[-subject.capacity :]
        try:
            for number in range(count):
                faulthandler.dump_traceback_later(PATIENCE, exit=True)
                names[:] = next(every)
                changes.clear()
                send(SIGNALS[number % len(SIGNALS)], rng.random() * seconds.get(names[0], 1e-3))
                began, busy = time.perf_counter(), True
                change = subject.call(names[0])
                busy = False
                spent = time.perf_counter() - began
                if not changes:
                    seconds[names[0]] = spent
                while not changes and not raised:
                    time.sleep(0)
                if raised:
                    raise AssertionError(f"{names[1]} in the handler, in {names[0]}: {raised[0]!r}") from raised[0]
                try:
                    subject.check(change, *changes)
                except BaseException as error:
                    error.add_note(f"{names[1]} in the handler, in {names[0]}, trial {number}")
                    raise
        finally:
            faulthandler.cancel_dump_traceback_later()
    subject.end()
    return inside
