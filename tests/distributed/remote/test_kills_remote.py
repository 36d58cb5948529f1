"""Collectors that push to a server of S3's protocol, and trainers that read it, killed in the middle of requests.

What a process had said by its pipe before it was killed must be under the URL, row by row and bit by bit. Each is killed
when a random number of bytes has passed between it and the server: in the middle of an upload, of a download, or with
an answer on its way.
"""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import random
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
from helpers import pushing
from helpers.effort import examples
from helpers.wire import Wire

import diskreplay as dr
from diskreplay.errors import StoreNotFoundError
from diskreplay.ops.verify import verify
from diskreplay.remote.collect import collect
from diskreplay.remote.place import open_remote
from diskreplay.remote.objects import ObjectStore

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'diskreplay[remote]'")
moto = pytest.importorskip("moto.server", reason="moto[server] is not installed")

SEED = 1
PATIENCE = 300
SMALL, LARGE = 60_000, 60 << 20
"""Bytes on the wire: of the first requests of a life, and of a long one."""
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["diskreplay", "helpers.pushing"])


class Life:
    """A process behind a wire that is cut."""

    def __init__(self, server: int, rng: random.Random, role: Callable[..., None], *arguments: Any) -> None:
        self.most = rng.randrange(SMALL) if rng.random() < 0.3 else rng.randrange(LARGE)
        self.wire = Wire(server, self.most)
        self.pipe: Connection
        self.pipe, there = PROCESSES.Pipe()
        self.process = PROCESSES.Process(
            target=role, args=(self.wire.endpoint, *arguments, rng.randrange(1 << 30), there), daemon=True
        )
        self.process.start()
        there.close()

    def killed(self) -> list[Any]:
        """Kills it when its wire is cut; all that it has said."""
        said: list[Any] = []
        while not self.wire.held.wait(0.05):
            assert self.process.is_alive(), ("it ended by itself", self.process.exitcode, said)
            said += self._said()
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()
        assert self.process.exitcode == -signal.SIGKILL, "it ended by itself"
        self.wire.close()
        return said + self._said()

    def _said(self) -> list[Any]:
        said = []
        try:
            while self.pipe.poll():
                said.append(self.pipe.recv())
        except EOFError:
            pass
        return said


class Told:
    """What collectors have said, and so what must be under the URL."""

    def __init__(self) -> None:
        self.writers: dict[str, int] = {}
        self.pushed: dict[str, int] = {}
        self.checkpoints: dict[int, str] = {}
        self.torn = 0
        """Kills after which more was there than had been said."""

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
                    self.checkpoints[writer] = facts[1]

    def check(self, url: str, mirror: pathlib.Path) -> int:
        """Compares all that is under the URL; how many rows that was."""
        try:
            buffer = dr.ReplayBuffer.open(url, mode="r", mirror=mirror)
        except StoreNotFoundError:
            assert not self.pushed
            return 0
        with buffer:
            streams = buffer.stats()["streams"]
            for name, end in self.pushed.items():
                assert streams[name]["end"] >= end, (name, streams[name], end)
                self.torn += streams[name]["end"] > end
            compared = pushing.check_all(buffer, self.writers)
            there = buffer.checkpoints
        for name in there:
            with dr.ReplayBuffer.open(url, mode="r", mirror=mirror, checkpoint=name) as then:
                compared += pushing.check_all(then, self.writers)
        return compared


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server with a bucket, in a process of its own."""
    import subprocess
    import sys

    code = (
        "import logging; logging.getLogger('werkzeug').setLevel(logging.ERROR)\n"
        "from moto.server import ThreadedMotoServer as S; s = S(port=0, verbose=False); s.start()\n"
        "print(s.get_host_and_port()[1], flush=True); input()"
    )
    with pytest.MonkeyPatch.context() as patch, subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        port = int(process.stdout.readline())
        for name, value in (
            ("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test"), ("AWS_REGION", "us-east-1"),
            ("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}"),
        ):  # fmt: skip
            patch.setenv(name, value)
        import boto3

        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="bucket")
        yield port
        process.kill()


def collectors(url: str, folder: pathlib.Path, server: int, rng: random.Random, kills: int) -> tuple[Told, int]:
    """Two collectors side by side, killed in turn; some go on in their directories, others on another machine."""
    told, compared = Told(), 0
    paths = {writer: folder / f"{writer}-0.replay" for writer in range(2)}
    alive: dict[int, Life] = {}
    made = len(paths)
    for kill in range(kills):
        for writer, path in paths.items():
            if writer not in alive:
                alive[writer] = Life(server, rng, pushing.collect, url, str(path), writer)
        writer = rng.choice(list(paths))
        told.hear(writer, alive.pop(writer).killed())
        compared += told.check(url, folder / "mirror")
        if rng.random() < 0.25 and len(told.writers) < 5:  # its machine is gone
            del paths[writer]
            paths[made] = folder / f"{made}.replay"
            made += 1
        print(f"kill {kill} of {writer}: {told.pushed}", flush=True)
    for writer, life in alive.items():
        told.hear(writer, life.killed())
    compared += told.check(url, folder / "another mirror")
    for writer, path in paths.items():
        if path.exists():
            with dr.ReplayBuffer.open(path, remote=url) as buffer:
                buffer.push(PATIENCE)
                told.writers[str(buffer.stream)] = writer
                told.pushed[str(buffer.stream)] = buffer.stats()["streams"][buffer.stream]["end"]
    return told, compared + told.check(url, folder / "mirror")


def test_collectors_that_are_killed_while_they_push(
    server: int, tmp_path: pathlib.Path, record_property: pytest.RecordProperty
) -> None:
    kills = examples(60, "kills of collectors that push", least=6)
    print("seed", SEED)
    told, compared = collectors("s3://bucket/kills.replay", tmp_path, server, random.Random(SEED), kills)
    assert told.pushed
    assert compared > 100
    assert verify("s3://bucket/kills.replay").ok
    record_property(
        "figures", f"{kills} kills of collectors that push, {told.torn} streams ahead of what was said; "
        f"{compared:,} transitions compared",
    )  # fmt: skip
