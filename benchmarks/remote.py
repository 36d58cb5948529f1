"""Stores past one machine: what a push sends, what opening asks for, and what the mirror costs.

Requests and bytes are counted at the seam to object storage, over objects in RAM: they are the same whatever storage is
behind. Where a rate depends on the network, every request takes 20 ms there. `--path` names a store of 2**20 steps,
such as `million.py --path` leaves one; for a quick look: `--steps 16384`.
"""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import statistics
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import contenders
import frames
import gymnasium
import harness
import numpy as np
import workload
from harness import Figure
from helpers.testing import FaultyFiles

import diskreplay as dr
from diskreplay.engine.run import engine_options
from diskreplay.remote.background import BackgroundPush
from diskreplay.remote.objects import Object, TakenError
from diskreplay.remote.place import open_remote
from diskreplay.remote.push import Push
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Store

STEPS = 1 << 20
LATENCY = 0.02
BANDWIDTH = 100e6
"""Bytes a second that all downloads have together, where the network is limited."""
PIECE_BYTES = 128 << 10
"""Downloads that go on at the same time take turns with so much."""
BATCH = 256
STREAMS, FLOATS = 50, 400
"""Small streams, and numbers of an observation in them."""
ROUNDS = 15
COMMIT_SECONDS = 10
COMMITS_A_PUSH = 4
"""As commits and pushes come by default: every 10 and every 40 seconds."""
PUT_PRICE, GET_PRICE = 5e-6, 0.4e-6
"""Dollars, by the list prices of S3 Standard."""


class Counted:
    """Objects in RAM; every request is counted, and takes `latency` seconds, and what is downloaded its time, too."""

    url = "s3://bucket/store.replay"

    def __init__(self, latency: float = 0.0, bandwidth: float = float("inf")) -> None:
        self.latency = latency
        self.bandwidth = bandwidth
        self._free = 0.0
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.requests: collections.Counter[str] = collections.Counter()
        self.bytes: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()
        self._tag = 0

    def _count(self, kind: str, size: int = 0, times: int = 1) -> None:
        with self._lock:
            self.requests[kind] += times
            self.bytes[kind] += size
        time.sleep(self.latency * times)

    def get(self, key: str, span: tuple[int, int] | None = None) -> tuple[Object, Iterable[bytes]]:
        found = self.objects.get(key)
        data = b"" if found is None else found[0] if span is None else found[0][slice(*span)]
        self._count("get", len(data))
        if found is None:
            raise FileNotFoundError(2, "there is no such object", key)
        return Object(key, len(found[0]), found[1], 0.0), self._pieces(data)

    def _pieces(self, data: bytes) -> Iterable[bytes]:
        for at in range(0, len(data), PIECE_BYTES if self.bandwidth < float("inf") else len(data)):
            piece = data[at : at + PIECE_BYTES] if self.bandwidth < float("inf") else data
            with self._lock:
                self._free = max(self._free, time.monotonic()) + len(piece) / self.bandwidth
                wait = self._free - time.monotonic()
            time.sleep(max(0.0, wait))
            yield piece

    def head(self, key: str) -> Object | None:
        self._count("head")
        found = self.objects.get(key)
        return Object(key, len(found[0]), found[1], 0.0) if found else None

    def put(self, key: str, data: bytes, tag: str | None = None) -> str:
        self._count("put", len(data))
        with self._lock:
            there = self.objects.get(key, (b"", ""))[1]
            if tag is not None and tag != there:
                raise TakenError(key)
            self._tag += 1
            self.objects[key] = bytes(data), str(self._tag)
            return str(self._tag)

    def list(self, prefix: str) -> list[Object]:
        with self._lock:
            found = [Object(key, len(data), tag, 0.0) for key, (data, tag) in self.objects.items()]
        found = sorted((one for one in found if one.key.startswith(prefix)), key=lambda one: one.key)
        self._count("list", times=max(1, -(-len(found) // 1000)))
        return found

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._count("delete")
            self.objects.pop(key, None)

    @property
    def stored(self) -> int:
        return sum(len(data) for data, _ in self.objects.values())


def reader(objects: Counted, mirror: pathlib.Path, **options: Any) -> dr.ReplayBuffer:
    """The buffer that `ReplayBuffer.open(url, mode="r", mirror=mirror)` gives."""
    files = open_remote(objects, mirror)
    return dr.ReplayBuffer(Store(objects.url, files), stream=None, run=engine_options(options))


# Parts


def pushed_while_adding(scratch: pathlib.Path, steps: int, rate: int) -> tuple[Counted, int]:
    """What is sent for so many steps at `rate` a second, with commits and pushes as they come by default."""
    objects = Counted()
    path = scratch / f"at-{rate}.replay"
    with contenders.create_store(str(path), steps, commit_rows=1 << 40, commit_seconds=1e9) as buffer:
        push = pushing(buffer, objects)
        since = commits = 0
        for game in frames.GAMES:
            for episode in workload.episodes(frames.load(game), steps // len(frames.GAMES)):
                for step in episode.singles():
                    buffer.add(*step)
                    since += 1
                    if since == rate * COMMIT_SECONDS:
                        buffer.commit()
                        since, commits = 0, commits + 1
                        if not commits % COMMITS_A_PUSH:
                            push.run()
        buffer.commit()
        push.run()
    return objects, harness.stored_bytes(path)


def pushing(buffer: dr.ReplayBuffer, objects: Counted) -> Push:
    """A push of a stream that is written as one with ``remote=`` is."""
    assert buffer.engine.streams.writer is not None
    buffer.engine.streams.writer.pushed = True
    return Push(Store(buffer.path, LocalFiles()), str(buffer.stream), objects)


def small_rows(scratch: pathlib.Path, rows: int, commit_rows: int, push_rows: int) -> tuple[Counted, Push, Any]:
    """What is sent for so many rows of 17 floats; the push that sent it, and what adds and commits some more."""
    path, objects, rng = str(scratch / f"small-{push_rows}.replay"), Counted(), np.random.default_rng(0)
    spaces = gymnasium.spaces.Box(-9, 9, (17,), np.float32), gymnasium.spaces.Box(-1, 1, (6,), np.float32)
    buffer = dr.ReplayBuffer.create(path, *spaces, capacity=STEPS, commit_rows=1 << 40, commit_seconds=1e9)
    push, obs = pushing(buffer, objects), rng.normal(size=17).astype(np.float32)

    def add(count: int) -> None:
        nonlocal obs
        for _ in range(count):
            after = (obs + rng.normal(scale=0.1, size=17)).astype(np.float32)
            buffer.add(obs, rng.uniform(-1, 1, 6).astype(np.float32), rng.normal(), after, False, False)
            obs = after
        buffer.commit()

    for row in range(commit_rows, rows + 1, commit_rows):
        add(commit_rows)
        if not row % push_rows:
            push.run()
    return objects, push, add


def synced(scratch: pathlib.Path) -> tuple[int, int, int]:
    """Syncs of one push: a process's first, a later one of rows, a later one of rows and a checkpoint."""
    path, objects = str(scratch / "synced.replay"), Counted()
    spaces = gymnasium.spaces.Box(0, 255, (FLOATS,), np.float32), gymnasium.spaces.Discrete(3)
    obs = np.zeros(FLOATS, np.float32)
    found = []
    with dr.ReplayBuffer.create(path, *spaces, capacity=STEPS) as buffer:
        Push(Store(path, LocalFiles()), buffer.stream, objects).run()
        files = FaultyFiles()
        push = Push(Store(path, files), buffer.stream, objects)
        for name in (None, None, "c"):
            buffer.add(obs, 0, 0.0, obs, False, False)
            buffer.commit()
            if name is not None:
                buffer.checkpoint(name)
            files.heal()
            push.run()
            found.append(files.count(("sync", "sync_dir")))
    return found[0], found[1], found[2]


def pushed(path: str, latency: float = 0.0) -> Counted:
    """A store that is there, pushed in one go."""
    objects = Counted()
    store = Store(path, LocalFiles())
    for name in store.stream_names():
        Push(store, name, objects).run()
    objects.latency = latency
    objects.requests.clear()
    objects.bytes.clear()
    return objects


def opened(objects: Counted, mirror: pathlib.Path) -> tuple[int, int, int, int]:
    """Requests and bytes until a remote store is open, and those of its first batch."""
    with reader(objects, mirror, seed=0) as buffer:
        requests, received = objects.requests.total(), objects.bytes["get"]
        buffer.sample(BATCH)
    return requests, received, objects.requests.total() - requests, objects.bytes["get"] - received


def sampled(path: str, objects: Counted, mirror: pathlib.Path, rounds: int) -> dict[str, float]:
    """Seconds of `sample(256)` from the local store and from a mirror that has all of it, in alternating rounds."""
    found: dict[str, list[float]] = {"local": [], "mirror": []}
    with dr.ReplayBuffer.open(path, mode="r", seed=0) as local, reader(objects, mirror, seed=0) as remote:
        collections.deque(remote.shuffled(BATCH), 0)  # downloads every shard
        buffers = {"local": local, "mirror": remote}
        for buffer in buffers.values():
            harness.seconds_of(lambda buffer=buffer: buffer.sample(BATCH), 20)
        for _ in range(rounds):
            for kind, buffer in buffers.items():
                found[kind] += harness.seconds_of(lambda buffer=buffer: buffer.sample(BATCH), 20)
    return {kind: statistics.median(seconds) for kind, seconds in found.items()}


def sampled_cold(objects: Counted, mirror: pathlib.Path, most: int = 1000, seconds: float = 60.0) -> list[list[float]]:
    """Of each `sample(256)` from a cold mirror: when it was there, requests and bytes so far."""
    found = []
    with reader(objects, mirror, seed=0) as buffer:
        objects.requests.clear()
        objects.bytes.clear()
        start = time.perf_counter()
        while len(found) < most and time.perf_counter() - start < seconds:
            buffer.sample(BATCH)
            found.append([time.perf_counter() - start, objects.requests["get"], objects.bytes["get"]])
    return found


def added(scratch: pathlib.Path, steps: int, rounds: int) -> dict[str, float]:
    """Steps a second of `add`, commits included, without pushes and with them in the background; medians of rounds."""
    ready = [step for episode in workload.mixture(steps) for step in episode.singles()]
    found: dict[str, list[float]] = {"without": [], "with": []}
    for turn in range(rounds):
        for kind in found:
            path = scratch / f"add-{kind}-{turn}.replay"
            with contenders.create_store(str(path), steps, commit_rows=5_000) as buffer:
                if kind == "with":
                    objects = Counted(LATENCY)
                    buffer.engine.pushes.pushing = BackgroundPush(pushing(buffer, objects))
                start = time.perf_counter()
                for step in ready:
                    buffer.add(*step)
                buffer.commit()
                found[kind].append(len(ready) / (time.perf_counter() - start))
    return {kind: statistics.median(rates) for kind, rates in found.items()}


def many_streams(scratch: pathlib.Path, count: int) -> tuple[tuple[int, float], tuple[int, float]]:
    """Requests and seconds, of 20 ms a request: of opening so many small streams, of a refresh once all have pushed."""
    objects, path = Counted(), str(scratch / "streams.replay")
    spaces = gymnasium.spaces.Box(0, 255, (FLOATS,), np.float32), gymnasium.spaces.Discrete(3)
    obs = np.zeros(FLOATS, np.float32)
    found = []
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(dr.ReplayBuffer.create(path, *spaces, capacity=STEPS))
        more = (dr.ReplayBuffer.open(path, mode="a", stream=f"c{number}", capacity=STEPS) for number in range(1, count))
        writers = [first, *(stack.enter_context(one) for one in more)]
        pushes = [Push(Store(path, LocalFiles()), str(writer.stream), objects) for writer in writers]
        remote: dr.ReplayBuffer | None = None
        for _ in range(2):
            objects.latency = 0.0
            for writer, push in zip(writers, pushes, strict=True):
                for _ in range(100):
                    writer.add(obs, 0, 0.0, obs, False, False)
                writer.commit()
                push.run()
            objects.latency = LATENCY
            objects.requests.clear()
            start = time.perf_counter()
            if remote is None:
                remote = stack.enter_context(reader(objects, scratch / "mirror-streams"))
            else:
                remote.refresh()
            found.append((objects.requests.total(), time.perf_counter() - start))
    return found[0], found[1]


def passed(buffer: dr.ReplayBuffer) -> float:
    """Transitions a second of one `shuffled` pass."""
    start = time.perf_counter()
    count = sum(len(batch.reward) for batch in buffer.shuffled(BATCH))
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--path", help="of a store of so many steps; recorded anew if not given")
    asked = parser.parse_args()
    steps, small = asked.steps, asked.steps // 16
    with harness.scratch() as scratch:
        rows, lines = [], []
        path = asked.path
        for rate, most_puts, most_bytes in ((1000, 1500, 1.2), (50, 22_000, 10)):
            objects, stored = pushed_while_adding(scratch, steps, rate)
            path = path or str(scratch / f"at-{rate}.replay")
            puts, sent = objects.requests["put"], objects.bytes["put"]
            dollars = puts * PUT_PRICE + (objects.requests["get"] + objects.requests["list"]) * GET_PRICE
            rows += [
                Figure(f"puts for {steps:,} steps at {rate:,} a second", puts, most_puts),
                Figure("bytes sent, over the store's size", sent / 1e6, most_bytes, "MB", stored / 1e6),
            ]
            lines.append(f"At {rate:,} steps a second the requests cost ${dollars:.3f}.")
        objects, _, _ = small_rows(scratch, 50_000, 1000, 1000)
        sent, stored = objects.bytes["put"], harness.stored_bytes(scratch / "small-1000.replay")
        rows.append(
            Figure("bytes sent, a push every 1,000 rows of 17 floats, over the store's size", sent / 1e6, 16, "MB",
                   stored / 1e6)
        )  # fmt: skip
        objects, push, add = small_rows(scratch, 2000, 1, 2000)
        sent = objects.bytes["put"]
        add(5)
        push.run()
        rows.append(
            Figure("sent by a push of five rows after 2,000 commits of one", (objects.bytes["put"] - sent) / 1e6, 0.5,
                   "MB")
        )  # fmt: skip
        kinds = "the first of a process", "a later one", "one with a checkpoint"
        rows += [
            Figure(f"syncs of a push: {kind}", syncs, 2) for kind, syncs in zip(kinds, synced(scratch), strict=True)
        ]
        objects = pushed(path)
        requests, received, first, more = opened(objects, scratch / "mirror-cold")
        rows.append(Figure("requests before the first batch, cold mirror", requests, 240))
        lines.append(
            f"Opening receives {received / 1e6:.1f} MB; the first batch of {BATCH} takes {first} requests and "
            f"{more / 1e6:.0f} MB; the whole store is {len(objects.objects)} objects of {objects.stored / 1e6:.0f} MB."
        )
        limited = pushed(path, LATENCY)
        limited.bandwidth = BANDWIDTH
        batches = sampled_cold(limited, scratch / "mirror-filling")
        told = ", ".join(
            f"{count:,} after {batches[count - 1][0]:.2f} s and {batches[count - 1][2] / 1e6:,.0f} MB"
            for count in (1, 10, 100, 1000)
            if count <= len(batches)
        )
        lines.append(
            f"`sample({BATCH})` from a cold mirror, {1e3 * LATENCY:.0f} ms a request and {BANDWIDTH / 1e6:.0f} MB/s: "
            f"{told}."
        )
        opening, refreshing = many_streams(scratch, STREAMS)
        lines.append(
            f"Of {STREAMS} small streams, {1e3 * LATENCY:.0f} ms a request: opening takes {opening[0]} requests and "
            f"{opening[1]:.1f} s, a refresh after a push of each {refreshing[0]} and {refreshing[1]:.1f} s."
        )
        times = sampled(path, objects, scratch / "mirror-warm", ROUNDS)
        rows.append(
            Figure(
                "`sample(256)` from a warm mirror, over the local store",
                1e3 * times["mirror"],
                1.05,
                "ms",
                1e3 * times["local"],
            )
        )
        rates = added(scratch, small, 5)
        rows.append(
            Figure(
                "`add` with pushes in the background, over without", rates["with"], 0.9, "steps/s", rates["without"],
                at_least=True,
            )
        )  # fmt: skip
        found: dict[str, list[float]] = {"local": [], "remote": []}
        slow = pushed(path, LATENCY)
        for turn in range(3):
            with dr.ReplayBuffer.open(path, mode="r", seed=turn) as local:
                found["local"].append(passed(local))
            with reader(slow, scratch / f"mirror-{turn}", seed=turn) as remote:
                found["remote"].append(passed(remote))
        rows.append(
            Figure(
                "one `shuffled` pass, cold, 20 ms a request, over local disk", statistics.median(found["remote"]), 0.7,
                "transitions/s", statistics.median(found["local"]), at_least=True,
            )
        )  # fmt: skip
    body = [
        f"{steps:,} steps of {', '.join(frames.GAMES)}; commits every {COMMIT_SECONDS} seconds, pushes every "
        f"{COMMIT_SECONDS * COMMITS_A_PUSH}.",
        harness.figures(rows),
        " ".join(lines)
        + f" Prices: ${PUT_PRICE * 1e6:g} a million puts and lists, ${GET_PRICE * 1e6:g} a million gets.",
    ]
    harness.write_section(
        "remote", "Past one machine: object storage", harness.versions("diskreplay", "numpy", "obstore"),
        "\n\n".join(body), keep=steps == STEPS,
    )  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    np.random.seed(0)
    main()
