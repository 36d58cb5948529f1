"""What small commits cost: bytes on disk, files written, syncs and time, beside an HDF5 file that is flushed as often.

    python benchmarks/commits.py [--rows 1500]

1. *On disk*: each row is committed, until the window is full, and until it has gone round twice more. Bytes on disk
   less 1 MB, over the bytes of the window's rows as they are given.
2. *A commit*: syncs, kilobytes written, median milliseconds. The peer appends the same rows to datasets of h5py,
   flushes, and syncs the file: it has no window, and a kill in that moment leaves a file that cannot be opened.
3. *After a kill*: opening a store whose tail holds 8 MB.
4. *Files* of 3,000 rows of 17 floats, and calls that open one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import h5py
import harness
import numpy as np
from gymnasium import spaces

import diskreplay as dr
from diskreplay.storage.local_files import LocalFile, LocalFiles

MEGABYTE = 1e6
FLOATS = spaces.Box(-1, 1, (17,), np.float32)
FRAMES = spaces.Box(0, 255, (84, 84), np.uint8)


def floats(rng: np.random.Generator) -> Any:
    return rng.uniform(-1, 1, 17).astype(np.float32)


def frames(rng: np.random.Generator) -> Any:
    return rng.integers(0, 256, (84, 84), np.uint8)


def tokens(least: int, most: int) -> Callable[[np.random.Generator], Any]:
    return lambda rng: rng.integers(0, 50_000, rng.integers(least, most + 1), np.int32)


@contextlib.contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Count what is asked of the file system: files opened, syncs of files and directories, bytes written."""
    counts = {"open": 0, "sync": 0, "bytes": 0}

    def counting(what: str, function: Callable[..., Any], size: Callable[..., int] = lambda *_: 1) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[what] += size(*args)
            return function(*args, **kwargs)

        return call

    with contextlib.ExitStack() as patches:
        for owner, name, what in (
            (LocalFiles, "open", "open"),
            (LocalFiles, "sync_dir", "sync"),
            (LocalFile, "sync", "sync"),
        ):
            patches.enter_context(mock.patch.object(owner, name, counting(what, getattr(owner, name))))
        written = counting("bytes", LocalFile.pwrite, lambda file, parts, offset: sum(map(len, parts)))
        patches.enter_context(mock.patch.object(LocalFile, "pwrite", written))
        yield counts


class Rows:
    """One row after another of a store: observations that continue each other, or tokens in a column of their own."""

    def __init__(self, path: pathlib.Path, kind: str, value: Any, space: Any, num_envs: int, window: int) -> None:
        ragged = space is None
        columns = {"tokens": ((None,), np.int32)} if ragged else None
        self.buffer = dr.ReplayBuffer.create(
            path, spaces.Discrete(2) if ragged else space, spaces.Discrete(4), capacity=window * num_envs,
            num_envs=num_envs, columns=columns, commit_seconds=1e9,
        )  # fmt: skip
        self.kind, self.value, self.ragged, self.num_envs = kind, value, ragged, num_envs
        self.rng = np.random.default_rng(0)
        self.number = self.given = 0
        self.obs = np.zeros(num_envs, int) if ragged else self.some()

    def some(self) -> Any:
        return np.stack([self.value(self.rng) for _ in range(self.num_envs)])

    def add(self) -> None:
        extra: dict[str, Any] = {}
        if self.ragged:
            following = self.obs
            values = [self.value(self.rng) for _ in range(self.num_envs)]
            extra["tokens"] = values if self.num_envs > 1 else values[0]
            self.given += sum(value.nbytes for value in values)
        else:
            following = self.some()
            self.given += following.nbytes
        one = (lambda array: array) if self.num_envs > 1 else (lambda array: array[0])
        zeros = np.zeros(self.num_envs)
        self.buffer.add(
            one(self.obs), one(zeros.astype(int)), one(zeros), one(following), one(zeros > 0), one(zeros > 0), **extra
        )
        if self.kind == "facts":
            self.buffer.annotate_episode(number=self.number)
        self.obs, self.number = following, self.number + 1
        self.given += self.num_envs * (8 + 4 + 3)


CASES: tuple[tuple[str, Any, Any], ...] = (
    ("17 floats", floats, FLOATS), ("frame of 84x84, noise", frames, FRAMES), ("1-3 tokens", tokens(1, 3), None),
    ("10-40 tokens", tokens(10, 40), None), ("200-800 tokens", tokens(200, 800), None), ("facts", floats, FLOATS),
)  # fmt: skip


def on_disk(folder: pathlib.Path, case: tuple[str, Any, Any], num_envs: int, window: int) -> list[float]:
    """Bytes on disk less 1 MB over the bytes of the window: once it is full, and after two more rounds."""
    rows = Rows(folder / "store", *case, num_envs, window)
    found, most = [], 0.0
    for at in range(3):
        before, most = rows.given, 0.0
        for number in range(window):
            rows.add()
            rows.buffer.commit()
            if number >= window - 50:
                most = max(most, harness.stored_bytes(folder / "store"))
        if at != 1:
            found.append((most - MEGABYTE) / (rows.given - before))
    rows.buffer.close()
    shutil.rmtree(folder / "store")
    return found


def commit(folder: pathlib.Path, case: tuple[str, Any, Any], num_envs: int, count: int) -> tuple[float, float, float]:
    """Syncs and kilobytes of a commit of one row, and its median milliseconds."""
    rows, seconds = Rows(folder / "store", *case, num_envs, 1500), []
    rows.add()
    rows.buffer.commit()
    with counted() as counts:
        for _ in range(count):
            rows.add()
            start = time.perf_counter()
            rows.buffer.commit()
            seconds.append(time.perf_counter() - start)
    rows.buffer.close()
    shutil.rmtree(folder / "store")
    return counts["sync"] / count, counts["bytes"] / count / 1e3, 1e3 * statistics.median(seconds)


def hdf5(folder: pathlib.Path, value: Callable[[np.random.Generator], Any], num_envs: int, count: int) -> float:
    """Median milliseconds of a row that is appended to an HDF5 file, flushed and synced."""
    rng, seconds = np.random.default_rng(0), []
    with h5py.File(folder / "rows.h5", "w") as file:
        first = value(rng)
        shapes = {"obs": (first.shape, first.dtype), "action": ((), "i8"), "reward": ((), "f4"), "done": ((), "?")}
        sets = {
            name: file.create_dataset(
                name, (0, num_envs, *shape), dtype, maxshape=(None, num_envs, *shape), chunks=True
            )
            for name, (shape, dtype) in shapes.items()
        }
        for row in range(count):
            obs = np.stack([value(rng) for _ in range(num_envs)])
            start = time.perf_counter()
            for name, data in sets.items():
                data.resize(row + 1, 0)
                data[row] = obs if name == "obs" else 0
            file.flush()
            os.fsync(file.id.get_vfd_handle())
            seconds.append(time.perf_counter() - start)
    (folder / "rows.h5").unlink()
    return 1e3 * statistics.median(seconds)


KILLED = """
import os, sys, numpy as np, diskreplay as dr
from gymnasium import spaces
pictures = spaces.Box(0, 255, (64, 64, 3), np.uint8)
buffer = dr.ReplayBuffer.create(sys.argv[1], pictures, spaces.Discrete(4), capacity=64 * 20000, num_envs=64)
rng = np.random.default_rng(0)
obs = rng.integers(0, 256, (64, 64, 64, 3), np.uint8)
zeros = np.zeros(64)
for row in range(int(sys.argv[2])):
    following = rng.integers(0, 256, (64, 64, 64, 3), np.uint8)
    buffer.add(obs, zeros.astype(int), zeros, following, zeros > 0, zeros > 0)
    obs = following
    buffer.commit()
os._exit(1)
"""


def after_a_kill(folder: pathlib.Path, repeats: int = 9) -> tuple[float, float]:
    """Megabytes of the tail of a writer that was killed, and median milliseconds until it is open again."""
    found, seconds = 0.0, []
    for _ in range(repeats):
        subprocess.run([sys.executable, "-c", KILLED, str(folder / "store"), "9"], check=False)
        scratch = folder / "store" / "streams" / "0" / "start"
        found = max(file.stat().st_size for file in scratch.glob("tail.*")) / MEGABYTE
        start = time.perf_counter()
        buffer = dr.ReplayBuffer.open(folder / "store")
        seconds.append(time.perf_counter() - start)
        buffer.close()
        shutil.rmtree(folder / "store")
    return found, 1e3 * statistics.median(seconds)


def files(folder: pathlib.Path) -> tuple[int, int, int]:
    """Shards, all files, and calls that opened one, of 3,000 rows of 17 floats."""
    with counted() as counts:
        rows = Rows(folder / "store", "17 floats", floats, FLOATS, 1, 3000)
        for _ in range(3000):
            rows.add()
        rows.buffer.close()
    there = [path for path in (folder / "store").rglob("*") if path.is_file()]
    shards = sum(path.name.startswith("c.") for path in there)
    shutil.rmtree(folder / "store")
    return shards, len(there), counts["open"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1500)
    arguments = parser.parse_args()
    with harness.scratch() as folder:
        disk = []
        for case in CASES:
            for num_envs in (1, 64):
                full, round_ = on_disk(folder, case, num_envs, arguments.rows)
                disk.append((case[0], str(num_envs), f"{full:.2f}", f"{round_:.2f}", "2"))
                print(*disk[-1], flush=True)
        commits = []
        for case, num_envs, most in ((CASES[0], 1, 4), (CASES[1], 64, 1000), (CASES[0], 1024, 170)):
            syncs, kilobytes, ours = commit(folder, case, num_envs, 300)
            peer = hdf5(folder, case[1], num_envs, 100)
            commits.append((
                case[0], str(num_envs), f"{syncs:.2f}", f"{kilobytes:.1f}", str(most), f"{ours:.1f}", f"{peer:.1f}",
                f"{ours / peer:.2f}",
            ))  # fmt: skip
            print(*commits[-1], flush=True)
        megabytes, milliseconds = after_a_kill(folder)
        shards, all_files, opened = files(folder)
    harness.write_section(
        "commits", "Small commits", harness.versions("h5py", "numpy"),
        "Each row is committed. Bytes on disk less 1 MB, over the bytes of the rows in the window, the most of the "
        "last 50 commits: when the window is full, and after two more rounds.\n\n"
        + harness.table(("rows", "environments", "full", "gone round twice", "target"), disk)
        + "\n\nA commit of one row, on the disk of this checkout; the peer is an HDF5 file, flushed and synced.\n\n"
        + harness.table(("rows", "environments", "syncs", "kB", "target", "ms", "h5py, ms", "ratio"), commits)
        + f"\n\nOpening after a kill with {megabytes:.1f} MB in the tail takes {milliseconds:.0f} ms (target 50). "
        f"3,000 rows of 17 floats are {shards} shards (12) and {all_files} files (28), written with {opened:,} calls "
        "that open one (1,800).",
    )  # fmt: skip


if __name__ == "__main__":
    main()
