"""Where the time of a batch and of an added step goes, part by part.

50,000 Atari steps as in ``kernel.py``, one stack of 4, page cache warm, one thread. All times are processor time of the
thread that calls, so that what else runs on the machine counts little.

1. *Draw*, *plan*, *copy* (from the decoded cache) and the kernel are timed where they are called. The kernel's time is
   split as that of its parts is, done again on the same chunks: reading alone, with the checksum, with LZ4, and all.
2. Where chunks are decoded, the bytes that are, beside those that the batch shows: what the store's compression costs.
3. Adding: what is called in `add`, timed where it is called, less the cost of the timer. Checks are done again, apart.

Parts are means of a batch or of a step, medians of the rounds; the whole is measured without timers, and *around* is
what no part explains.
"""

from __future__ import annotations

import contextlib
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import adding
import contenders
import harness
import numba
import numpy as np
import workload

from diskreplay import workers
from diskreplay.engine.appender import Appender
from diskreplay.engine.arguments import Arguments
from diskreplay.engine.engine import Engine
from diskreplay.engine.row_buffers import RowBuffers
from diskreplay.reading import compiled, kernel, planner
from diskreplay.sampling.uniform import Uniform
from diskreplay.storage.column import ColumnWriter

STEPS = 50_000
BATCHES = {32: 400, 256: 80}
LEVELS = ("read", "checksum", "LZ4", "copy")
PARTS = ("draw", "plan", *LEVELS)
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
    def inside(self, **places: tuple[Any, str]) -> Iterator[None]:
        """Times ``owner.name`` for each ``label=(owner, name)``."""
        with contextlib.ExitStack() as stack:
            for label, (owner, name) in places.items():
                stack.enter_context(mock.patch.object(owner, name, self.around(label, getattr(owner, name))))
            yield


# Sampling


@numba.njit(nogil=True)
def partly(level, symbols, files, pieces, places, chunk_rows, row_bytes, encoded, decoded):
    """What the kernel does with each chunk of some pieces, as far as a level: see `LEVELS`."""
    vector, data = np.empty(2, np.int64), encoded.view(np.uint8)
    source, target, at = np.int64(encoded.ctypes.data), np.int64(decoded.ctypes.data), 0
    while at < pieces.shape[1]:
        wanted, first = 0, at
        while at < pieces.shape[1] and pieces[4, at] == pieces[4, first]:
            wanted, at = max(wanted, pieces[2, at] + pieces[3, at]), at + 1
        file, offset, size = files[places[0, first]], places[1, first], places[2, first]
        vector[0], vector[1] = source, size
        kernel._preadv2(symbols[1], (file, np.int64(vector.ctypes.data), np.int64(1), offset, np.int64(kernel.NOWAIT)))
        if level >= 1:
            kernel.checksum(encoded, size)
        if level >= 2:
            kernel._decode(
                data, size, source, target, chunk_rows * row_bytes, wanted * row_bytes, False, symbols[3], symbols[4],
                symbols[5],
            )  # fmt: skip


def again(calls: list[tuple[Any, ...]]) -> dict[str, float]:
    """Seconds of each of `LEVELS`, for calls of the kernel done again."""
    totals = []
    for number in range(len(LEVELS)):
        start = time.thread_time()
        for files, pieces, places, begin, end, chunk_rows, row_bytes, raw, encoded, decoded, *rows in calls:
            if number < len(LEVELS) - 1:
                partly(number, kernel.SYMBOLS, files, pieces, places, chunk_rows, row_bytes, encoded, decoded)
            else:
                kernel.read(files, pieces, places, begin, end, chunk_rows, row_bytes, raw, encoded, decoded, *rows)
        totals.append(time.thread_time() - start)
    return dict(zip(LEVELS, np.diff(totals, prepend=0.0).tolist(), strict=True))


def decoded_bytes(calls: list[tuple[Any, ...]]) -> tuple[int, int, int]:
    """Bytes that calls of the kernel copy, decode for it, and read."""
    copied = decoded = read = 0
    for _, pieces, places, _, _, _, row_bytes, *_ in calls:
        copied += int(pieces[3].sum()) * row_bytes
        firsts = np.flatnonzero(np.diff(pieces[4], prepend=-1))
        decoded += int(np.maximum.reduceat(pieces[2] + pieces[3], firsts).sum()) * row_bytes
        read += int(places[2, firsts].sum())
    return copied, decoded, read


def sampling(path: pathlib.Path, size: int, cached: bool) -> tuple[dict[str, float], tuple[int, int, int]]:
    """Seconds of a batch, and of its parts; bytes of all batches, as of `decoded_bytes`."""
    cache_bytes = 2 * STEPS * workload.FRAME_BYTES if cached else 0
    count, kept = BATCHES[size], []
    original = kernel.read

    def keeping(*arguments: Any) -> int:
        kept.append((*arguments[:10], *kept[0][10:]) if kept else arguments)  # one batch's arrays take all again
        return original(*arguments)

    def batches() -> float:
        start = time.thread_time()
        for _ in range(count):
            buffer.sample(size)
        return time.thread_time() - start

    rounds: dict[str, list[float]] = {name: [] for name in ("whole", *PARTS)}
    with (
        contenders.open_store(str(path), mode="r", cache_bytes=cache_bytes, seed=0) as buffer,
        mock.patch.object(workers, "_helpers", 0),
    ):
        for _ in range(len(buffer) // 100 if cached else 10):
            buffer.sample(256)
        with mock.patch.object(kernel, "read", keeping):
            batches()
        again(kept[:1])  # compiles
        timers = Timers()
        for _ in range(ROUNDS):
            rounds["whole"].append(batches())
            timers.seconds = {"taken": 0.0, "kernel": 0.0}
            with timers.inside(
                draw=(Uniform, "sample"), plan=(planner, "frames"), taken=(kernel, "take"), kernel=(kernel, "read")
            ):
                batches()
            spent, parts = timers.seconds, again(kept)
            for name in LEVELS:
                rounds[name].append(spent["kernel"] * parts[name] / sum(parts.values()) if kept else 0.0)
            rounds["copy"][-1] += spent["taken"]
            for name in ("draw", "plan"):
                rounds[name].append(spent[name])
    found = {name: statistics.median(each) / count for name, each in rounds.items()}
    return {**found, "around": 2 * found["whole"] - sum(found.values())}, decoded_bytes(kept)


# Adding


ADDING = {
    "checks": (Arguments, "row"), "continuity": (Appender, "_find_break"),
    "written": (RowBuffers, "write"), "compiled": (RowBuffers, "add"), "pending": (RowBuffers, "put_pending"),
    "sealing": (ColumnWriter, "advance"), "commit": (Engine, "commit"),
}  # fmt: skip


def added(case: adding.Case, path: pathlib.Path) -> dict[str, float]:
    """Microseconds of a row, and of its parts, into a full buffer."""
    steps = case.steps(case.rows // 2)
    options = {"num_envs": case.envs, "frame_stack": case.frame_stack}
    spaces = {"observation_space": case.obs, "action_space": case.action}
    with contenders.create_store(str(path), len(steps) * case.envs, **options, **spaces) as buffer:
        adding.pass_through(buffer.add, steps)
        buffer.commit()
        timers = Timers()
        rounds: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            start, all_start = time.thread_time(), time.process_time()
            adding.pass_through(buffer.add, steps)
            buffer.commit()
            whole = time.thread_time() - start
            others = time.process_time() - all_start - whole
            timers.seconds = {}
            with timers.inside(**ADDING):
                adding.pass_through(buffer.add, steps)
                buffer.commit()
            for name, spent in {"whole": whole, **timers.seconds, "compress": others}.items():
                rounds.setdefault(name, []).append(1e6 * spent / len(steps))
    found = {name: statistics.median(each) for name, each in rounds.items()}
    parts = {name: found.get(name, 0.0) for name in ("checks", "continuity", "sealing", "commit")}
    parts["write buffers and log"] = sum(found.get(name, 0.0) for name in ("written", "compiled", "pending"))
    return {
        "whole": found["whole"], **parts, "around": found["whole"] - sum(parts.values()), "compress": found["compress"],
    }  # fmt: skip


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    arguments = parser.parse_args()
    assert compiled.KERNEL.now() is not None, "there is no kernel here"
    rows, floors, adds = [], [], []
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
                rows.append([label, *(f"{1e6 * value:,.0f}" for value in seconds.values())])
                if not cached:
                    copied, decoded, read = moved
                    speed = decoded / (seconds["LZ4"] * BATCHES[size])
                    floors.append(
                        [f"`sample({size})`", f"{copied / BATCHES[size] / size:,.0f}", f"{decoded / copied:.2f}",
                         f"1/{decoded / read:.0f}", f"{speed / 1e9:.1f}"]
                    )  # fmt: skip
        for number, case in enumerate(adding.CASES):
            if "stacked" not in case.label:
                spent = added(case, scratch / f"add-{number}")
                adds.append([case.label, *(f"{value:.1f}" for value in spent.values())])
    header = list(spent)
    body = (
        f"Microseconds of processor time of a batch from {arguments.steps:,} steps, one thread, page cache warm. "
        "*Plan* finds out what stands where; *read* copies from the page cache; *copy* writes to `obs` and `next_obs`; "
        "*around* is the other Python, and columns in RAM.\n\n"
        + harness.table(["batch", "whole", *PARTS, "around"], rows)
        + "\n\nWhat the compression costs: bytes of frames that a transition shows; bytes decoded for each of them, as "
        "chunks are decoded from their first row to the last that is wanted; compressed bytes that are read for one "
        "decoded; the speed of LZ4 on these frames, which with the bytes decoded is the floor.\n\n"
        + harness.table(["batch", "bytes a transition", "decoded over shown", "read over decoded", "LZ4, GB/s"], floors)
        + "\n\n`add`, microseconds of processor time a row, of all environments, into a full buffer, commits included: "
        "*continuity* compares with the `next_obs` before; *sealing* hands full chunks over; *compress* is that of the "
        "other threads, not in the whole.\n\n" + harness.table(["rows", *header], adds)
    )
    packages = harness.versions("diskreplay", "numpy", "numcodecs", "numba")
    harness.write_section("spent", "Where the time goes", packages, body, keep=arguments.steps == STEPS)


if __name__ == "__main__":
    main()
