"""Where the time of a batch and of an added step goes, part by part.

50,000 Atari steps as in ``kernel.py``, one stack of 4, page cache warm, one thread. All times are processor time of the
thread that calls, so that what else runs on the machine counts little.

1. *At once* is the call of the core that draws a batch and, where all of it is in RAM, makes it. It, *plan*, *copy*
   (from the decoded cache) and the core's reading are timed where they are called. The last is split as that of its
   parts is, done again on the same chunks: reading alone, with the checksum, with LZ4, and all.
2. Where chunks are decoded, the bytes that are, beside those that the batch shows: what the store's compression costs.
3. Adding: what is called in `add`, timed where it is called, less the cost of the timer.

Parts are means of a batch or of a step, medians of the rounds; the whole is measured without timers, and *around* is
what no part explains.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import contenders
import harness
import numpy as np
import rows
import workload
from calls import exhaust, ours, through

from diskreplay.buffers.draws import Draws
from diskreplay.engine.engine import Engine
from diskreplay.native import core
from diskreplay.process import background
from diskreplay.reading import compiled
from diskreplay.storage.column import ColumnWriter

STEPS = 50_000
BATCHES = {32: 400, 256: 80}
LZ4 = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int] * 3)(
    compiled.FOUND["LZ4_decompress_safe_partial"]
)
LEVELS = ("read", "checksum", "LZ4", "copy")
PARTS = ("at once", "plan", *LEVELS)
CALLED = {
    "at once": (Draws, "at_once"),
    "plan": (core, "frames"),
    "take": (compiled, "take"),
    "read": (core, "read"),
}
ROUNDS = 5


class Timers:
    """Processor time spent in functions, each without that of the others which it calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner: list[float] = []
        self._cost = 0.0
        each = [self._cost_of_a_call() for _ in range(5)]
        self._cost = min(each)
        self.seconds.clear()

    def _cost_of_a_call(self) -> float:
        nothing, before = self.around("nothing", lambda: None), self.seconds.get("nothing", 0.0)
        for _ in range(2000):
            nothing()
        return (self.seconds["nothing"] - before) / 2000

    def around(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            self._inner.append(0.0)
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.thread_time() - start
                own = spent - self._inner.pop() - self._cost
                self.seconds[label] = self.seconds.get(label, 0.0) + own
                if self._inner:
                    self._inner[-1] += spent + self._cost

        return timed

    @contextlib.contextmanager
    def inside(self, places: dict[str, tuple[Any, str]]) -> Iterator[None]:
        """Times ``owner.name`` for each ``{label: (owner, name)}``."""
        with contextlib.ExitStack() as stack:
            for label, (owner, name) in places.items():
                stack.enter_context(mock.patch.object(owner, name, self.around(label, getattr(owner, name))))
            yield


# Sampling


def again(calls: list[tuple[Any, ...]]) -> dict[str, float]:
    """Seconds of each of `LEVELS`, for calls of the core done again.

    The first three are done one chunk at a time, from Python, whose own time is taken off: that of the same loop over
    nothing. What the core takes beyond them is the last.
    """
    totals = [sum(partly(call, level) for call in calls) for level in range(3)]
    start = time.thread_time()
    for call in calls:
        core.read(*call)
    return dict(zip(LEVELS, np.diff([*totals, time.thread_time() - start], prepend=0.0).tolist(), strict=True))


def partly(call: tuple[Any, ...], level: int) -> float:
    """Seconds of reading the chunks of a call, as far as a level."""
    _, files, pieces, places, _, _, _, row_bytes, _, encoded, decoded, *_ = call
    firsts = np.flatnonzero(np.diff(pieces[4], prepend=-1))
    rows = np.maximum.reduceat(pieces[2] + pieces[3], firsts)
    file, offset, size = files[places[0, firsts]].tolist(), places[1, firsts].tolist(), places[2, firsts].tolist()
    blocks = [(encoded[:count], encoded[24 : count - 4].ctypes.data, count - 28) for count in size]
    chunks = list(zip(file, offset, blocks, (rows * row_bytes).tolist(), strict=True))
    target, spent = decoded.ctypes.data, []
    for each in (chunks, [(file, offset, (encoded[:0], 0, 0), 0) for file, offset, _, _ in chunks]):
        start = time.thread_time()
        for descriptor, at, (block, data, count), wanted in each:
            os.preadv(descriptor, [block], at)
            if level >= 1:
                core.crc32c(block)
            if level >= 2:
                LZ4(data, target, count, wanted, wanted)
        spent.append(time.thread_time() - start)
    return spent[0] - spent[1]


def decoded_bytes(calls: list[tuple[Any, ...]]) -> tuple[int, int, int]:
    """Bytes that calls of the core copy, decode for it, and read."""
    copied = decoded = read = 0
    for _, _, pieces, places, _, _, _, row_bytes, *_ in calls:
        copied += int(pieces[3].sum()) * row_bytes
        firsts = np.flatnonzero(np.diff(pieces[4], prepend=-1))
        decoded += int(np.maximum.reduceat(pieces[2] + pieces[3], firsts).sum()) * row_bytes
        read += int(places[2, firsts].sum())
    return copied, decoded, read


def sampling(path: pathlib.Path, size: int, cached: bool) -> tuple[dict[str, float], tuple[int, int, int]]:
    """Seconds of a batch, and of its parts; bytes of all batches, as of `decoded_bytes`."""
    cache_bytes = 2 * STEPS * workload.FRAME_BYTES if cached else 0
    count, kept = BATCHES[size], []
    original = core.read

    def keeping(*arguments: Any) -> int:
        kept.append((*arguments[:11], *kept[0][11:]) if kept else arguments)  # one batch's arrays take all again
        return original(*arguments)

    def batches() -> float:
        start = time.thread_time()
        for _ in range(count):
            buffer.sample(size)
        return time.thread_time() - start

    rounds: dict[str, list[float]] = {name: [] for name in ("whole", *PARTS)}
    with (
        contenders.open_store(str(path), mode="r", cache_bytes=cache_bytes, seed=0) as buffer,
        mock.patch.object(background, "THREADS", 1),
    ):
        for _ in range(len(buffer) // 100 if cached else 10):
            buffer.sample(256)
        with mock.patch.object(core, "read", keeping):
            batches()
        timers = Timers()
        for _ in range(ROUNDS):
            rounds["whole"].append(batches())
            timers.seconds = dict.fromkeys(CALLED, 0.0)
            with timers.inside(CALLED):
                batches()
            spent, parts = timers.seconds, again(kept)
            for name in LEVELS:
                rounds[name].append(spent["read"] * parts[name] / sum(parts.values()) if kept else 0.0)
            rounds["copy"][-1] += spent["take"]
            for name in ("at once", "plan"):
                rounds[name].append(spent[name])
    found = {name: statistics.median(each) / count for name, each in rounds.items()}
    return {**found, "around": 2 * found["whole"] - sum(found.values())}, decoded_bytes(kept)


# Adding


ADDING = {"sealing": (ColumnWriter, "advance"), "commit": (Engine, "commit")}


def added(case: rows.Case, folder: pathlib.Path) -> dict[str, float]:
    """Microseconds of a row, and of its parts, into a full buffer."""
    steps = rows.calls(case)
    with ours(folder, case, len(steps) * case.envs) as buffer:
        adding = through(buffer.add, steps)
        exhaust(adding, len(steps))
        buffer.commit()
        timers = Timers()
        rounds: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            start, all_start = time.thread_time(), time.process_time()
            exhaust(adding, len(steps))
            buffer.commit()
            whole = time.thread_time() - start
            others = time.process_time() - all_start - whole
            timers.seconds = {}
            with timers.inside(ADDING):
                exhaust(adding, len(steps))
                buffer.commit()
            for name, spent in {"whole": whole, **timers.seconds, "compress": others}.items():
                rounds.setdefault(name, []).append(1e6 * spent / len(steps))
    found = {name: statistics.median(each) for name, each in rounds.items()}
    parts = {name: found.get(name, 0.0) for name in ADDING}
    return {
        "whole": found["whole"], "row": found["whole"] - sum(parts.values()), **parts, "compress": found["compress"],
    }  # fmt: skip


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    arguments = parser.parse_args()
    batches, floors, adds = [], [], []
    with harness.scratch() as scratch:
        path = scratch / "store"
        with contenders.create_store(str(path), arguments.steps) as buffer:
            for episode in workload.mixture(arguments.steps):
                for step in episode.singles():
                    buffer.add(*step)
        for cached in (False, True):
            for size in BATCHES:
                seconds, moved = sampling(path, size, cached)
                label = f"`sample({size})`, {'cache holds the window' if cached else 'nothing cached decoded'}"
                batches.append([label, *(f"{1e6 * value:,.0f}" for value in seconds.values())])
                if not cached:
                    copied, decoded, read = moved
                    speed = decoded / (seconds["LZ4"] * BATCHES[size])
                    floors.append(
                        [f"`sample({size})`", f"{copied / BATCHES[size] / size:,.0f}", f"{decoded / copied:.2f}",
                         f"1/{decoded / read:.0f}", f"{speed / 1e9:.1f}"]
                    )  # fmt: skip
        for case in rows.CASES:
            if case.length == 1000 and not case.extend:
                (scratch / case.label).mkdir()
                spent = added(case, scratch / case.label)
                adds.append([case.label, *(f"{value:.1f}" for value in spent.values())])
    header = list(spent)
    body = (
        f"Microseconds of processor time of a batch from {arguments.steps:,} steps, one thread, page cache warm. "
        "*Plan* finds out what stands where; *read* copies from the page cache; *copy* writes to `obs` and `next_obs`; "
        "*around* is the other Python, and columns in RAM.\n\n"
        + harness.table(["batch", "whole", *PARTS, "around"], batches)
        + "\n\nWhat the compression costs: bytes of frames that a transition shows; bytes decoded for each of them, as "
        "chunks are decoded from their first row to the last that is wanted; compressed bytes that are read for one "
        "decoded; the speed of LZ4 on these frames, which with the bytes decoded is the floor.\n\n"
        + harness.table(["batch", "bytes a transition", "decoded over shown", "read over decoded", "LZ4, GB/s"], floors)
        + "\n\n`add`, microseconds of processor time a row, of all environments, into a full buffer, commits included: "
        "*sealing* hands full chunks over; *compress* is that of the other threads, not in the whole.\n\n"
        + harness.table(["rows", *header], adds)
    )
    packages = harness.versions("diskreplay", "numpy", "numcodecs")
    harness.write_section("spent", "Where the time goes", packages, body, keep=arguments.steps == STEPS)


if __name__ == "__main__":
    main()
