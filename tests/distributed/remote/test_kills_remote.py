"""Collectors that push to a server of S3's protocol, and trainers that read it, killed in the middle of requests.

What a process had said by its pipe before it was killed must be under the URL, row by row and bit by bit. Each is
killed when a random number of bytes has passed between it and the server: in the middle of an upload, of a download, or
with an answer on its way.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
from collections.abc import Callable, Collection
from typing import Any

import pytest
from helpers import pushing
from helpers.effort import examples
from helpers.wire import Wire

import diskreplay as dr
from diskreplay.errors import CheckpointError, StoreNotFoundError
from diskreplay.ops.verify import verify
from diskreplay.remote.collect import collect_garbage
from diskreplay.remote.objects import ObjectStore
from diskreplay.remote.place import open_remote

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'diskreplay[remote]'")
pytest.importorskip("moto.server", reason="moto[server] is not installed")

SEED = 1
PATIENCE = 300
LEAST, OPENING_BYTES, COLLECTING_BYTES, TRAINING_BYTES = 500, 2 << 20, 30 << 20, 16 << 20
"""Of what passes on a wire before it is cut."""
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["diskreplay.buffers.replay", "helpers.pushing"])


class Life:
    """A process behind a wire that is cut: while it opens its store, or when it is at work.

    Args:
        server: its port.
        rng: says when.
        most: bytes on the wire when it is at work.
    """

    def __init__(self, server: int, rng: random.Random, most: int, role: Callable[..., None], *arguments: Any) -> None:
        opening = rng.random() < 0.4
        self._bytes = _logarithmic(rng, OPENING_BYTES if opening else most)
        """From its start, or from when it has begun."""
        self.wire = Wire(server)
        if opening:
            self.wire.cut_after(self._bytes)
        self._waiting = not opening
        self._heard: list[Any] = []
        self._pipe, there = PROCESSES.Pipe()
        self._process = PROCESSES.Process(
            target=role, args=(self.wire.endpoint, *arguments, rng.randrange(1 << 30), there), daemon=True
        )
        self._process.start()
        there.close()

    def killed(self) -> list[Any]:
        """Kills it when its wire is cut; all that it has said."""
        while not self.wire.held.wait(0.01):
            assert self._process.is_alive(), ("it ended by itself", self._process.exitcode, self._heard)
            self._listen()
            if self._waiting and self._heard:
                self.wire.cut_after(self._bytes)
                self._waiting = False
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()
        assert self._process.exitcode == -signal.SIGKILL, "it ended by itself"
        self.wire.close()
        self._listen()
        return self._heard

    def _listen(self) -> None:
        with contextlib.suppress(EOFError):
            while self._pipe.poll():
                self._heard.append(self._pipe.recv())


def _logarithmic(rng: random.Random, most: int) -> int:
    """A number up to ``most``, small ones as often as large ones."""
    return int(math.exp(rng.uniform(math.log(LEAST), math.log(most))))


class Told:
    """What collectors have said, and so what must be under the URL."""

    def __init__(self) -> None:
        self.writers: dict[str, int] = {}
        self.pushed: dict[str, int] = {}
        self.checkpointed: set[int] = set()
        """Writers of which a checkpoint is there."""

    def hear(self, writer: int, said: list[Any]) -> None:
        name = None
        for what, *facts in said:
            if what == "begun":
                name, number = facts
                assert self.writers.setdefault(name, writer) == writer
                assert number >= self.pushed.get(name, 0), "rows that were pushed are gone here"
            else:
                assert what == "pushed"
                assert name is not None
                self.pushed[name] = facts[0]
                if facts[1] is not None:
                    self.checkpointed.add(writer)

    def check(self, url: str, mirror: pathlib.Path, alive: Collection[int] = ()) -> int:
        """Compares all that is under the URL; how many rows that was. ``alive`` are writers that go on meanwhile."""
        try:
            buffer = dr.ReplayBuffer.open(url, mode="r", mirror=mirror)
        except StoreNotFoundError:
            assert not self.pushed
            return 0
        with buffer:
            streams = buffer.stats()["streams"]
            for name, end in self.pushed.items():
                assert streams[name]["end"] >= end, (name, streams[name], end)
            compared = self._compare(buffer)
            there = buffer.checkpoints
        for writer in self.checkpointed.difference(alive):  # each drops one when there is another
            assert any(name.startswith(f"collector-{writer}-") for name in there), (writer, there)
        for name in there:
            try:
                with dr.ReplayBuffer.open(url, mode="r", mirror=mirror, checkpoint=name) as then:
                    compared += self._compare(then)
            except CheckpointError:  # dropped by a collector that lives
                with dr.ReplayBuffer.open(url, mode="r", mirror=mirror) as buffer:
                    assert name not in buffer.checkpoints
        return compared

    def _compare(self, buffer: dr.ReplayBuffer) -> int:
        compared, writers = pushing.check_all(buffer)
        for name, writer in writers.items():
            assert self.writers.setdefault(name, writer) == writer, name
        return compared


def collectors(url: str, folder: pathlib.Path, server: int, rng: random.Random, kills: int) -> tuple[Told, int]:
    """Two collectors side by side, killed in turn; most go on in their directories, others on another machine."""
    told, compared = Told(), 0
    paths = {writer: folder / f"{writer}.replay" for writer in range(2)}
    alive: dict[int, Life] = {}
    made = len(paths)
    for _ in range(kills):
        for writer, path in paths.items():
            if writer not in alive:
                alive[writer] = Life(server, rng, COLLECTING_BYTES, pushing.collect, url, str(path), writer, True)
        writer = rng.choice(list(paths))
        told.hear(writer, alive.pop(writer).killed())
        compared += told.check(url, folder / "mirror", alive)
        if rng.random() < 0.2 and made < 6:  # its machine is gone
            del paths[writer]
            paths[made] = folder / f"{made}.replay"
            made += 1
        if rng.random() < 0.2:
            remove_garbage(url, folder)
    for writer, life in alive.items():
        told.hear(writer, life.killed())
    compared += told.check(url, folder / "another mirror")
    for writer, path in paths.items():
        if path.exists():
            with dr.ReplayBuffer.open(path, remote=url) as buffer:
                buffer.push(PATIENCE)
                stream = str(buffer.stream)
                told.hear(writer, [("begun", stream, buffer.stats()["streams"][stream]["end"])])
                told.pushed[stream] = buffer.stats()["streams"][stream]["end"]
    return told, compared + told.check(url, folder / "mirror")


def remove_garbage(url: str, folder: pathlib.Path) -> None:
    with contextlib.suppress(StoreNotFoundError):
        collect_garbage(open_remote(ObjectStore(url), folder / "mirror of gc"), 0)


class Trained:
    """What a trainer has said of its checkpoints, by their numbers."""

    def __init__(self) -> None:
        self.states: dict[int, str] = {}
        self.drawn: dict[int, list[str]] = {}
        self.newest = -1
        self.unsaid = 0
        """Kills after which a checkpoint was there that had not been said to be."""

    def hear(self, said: list[Any]) -> None:
        for what, at, *facts in said:
            if what == "begun":
                assert at == self.newest
                if at >= 0:
                    assert facts == [{"at": at}, self.states[at], self.drawn[at]]
            elif what == "making":
                (self.states[at],) = facts
            else:
                assert what == "made"
                (self.drawn[at],) = facts
                self.newest = at

    def check(self, url: str, mirror: pathlib.Path) -> None:
        """Compares the newest checkpoint."""
        try:
            buffer = dr.ReplayBuffer.open(url, mode="r", mirror=mirror, checkpoint="latest")
        except CheckpointError:
            assert self.newest < 0
            return
        with buffer:
            at = max(int(name.removeprefix("trainer-")) for name in buffer.checkpoints)
            assert at in (self.newest, self.newest + 1)
            self.unsaid += at > self.newest
            assert buffer.checkpoint_metadata(f"trainer-{at}") == {"at": at}
            assert pushing.state(buffer) == self.states[at]
            drawn = pushing.drawn(buffer)
        if at == self.newest:
            assert drawn == self.drawn[at]
        self.newest, self.drawn[at] = at, drawn


def trainers(url: str, folder: pathlib.Path, server: int, rng: random.Random, kills: int) -> tuple[Trained, Told, int]:
    """A trainer that is killed and goes on in another directory each time, beside a collector that is killed too."""
    told, trained, compared = Told(), Trained(), 0
    path = str(folder / "0.replay")
    with dr.ReplayBuffer.open_or_create(
        path, *pushing.SPACES, remote=url, capacity=pushing.CAPACITY, **pushing.LAYOUT
    ) as first:
        for number in range(20):
            first.add(**pushing.row(0, number))
        first.push(PATIENCE)
    told.writers["0"], told.pushed["0"] = 0, 20
    beside: Life | None = None
    for kill in range(kills):
        if beside is None:
            beside = Life(server, rng, COLLECTING_BYTES, pushing.collect, url, path, 0, False)
        trainer = Life(server, rng, TRAINING_BYTES, pushing.train, url, str(folder / f"machine {kill}"), "trainer")
        trained.hear(trainer.killed())
        if rng.random() < 0.2:
            remove_garbage(url, folder)
        trained.check(url, folder / f"mirror {kill}")
        if beside.wire.held.is_set() or not kill % 3:
            told.hear(0, beside.killed())
            compared += told.check(url, folder / f"mirror {kill}")
            beside = None
        for old in folder.glob(f"m* {kill}"):
            shutil.rmtree(old)
    if beside is not None:
        told.hear(0, beside.killed())
    return trained, told, compared + told.check(url, folder / "mirror")


def test_collectors_that_are_killed_while_they_push(
    server: int, tmp_path: pathlib.Path, record_property: pytest.RecordProperty
) -> None:
    kills = examples(60, "kills of collectors that push", least=6)
    url = "s3://bucket/collectors.replay"
    print("seed", SEED)
    told, compared = collectors(url, tmp_path, server, random.Random(SEED), kills)
    assert told.pushed
    assert compared > 100
    assert verify(url).ok
    record_property("figures", f"{kills} kills of collectors that push; {compared:,} transitions compared")


def test_trainers_that_are_killed_go_on_elsewhere(
    server: int, tmp_path: pathlib.Path, record_property: pytest.RecordProperty
) -> None:
    kills = examples(60, "kills of trainers that read a URL", least=6)
    url = "s3://bucket/trainers.replay"
    print("seed", SEED)
    trained, _, compared = trainers(url, tmp_path, server, random.Random(SEED), kills)
    assert trained.newest > 0
    assert compared > 100
    assert verify(url).ok
    record_property(
        "figures", f"{kills} kills of trainers, {trained.newest} checkpoints; {compared:,} transitions compared"
    )
