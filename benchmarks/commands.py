"""What commands take beside the least that they could take: a million Atari frames, a million vectors.

1. `verify` beside threads, as many as there are cores, that read, check and decode each chunk: page cache warm,
   and cold.
2. `inspect` and `episodes`, whole processes, beside one that imports NumPy and Gymnasium. Bytecode is there.
3. An import of D4RL's HDF5, compressed in the chunks that h5py chooses, beside h5py and `np.save` of each array.
4. An export to D4RL beside h5py, which writes the same arrays in the same chunks.

By turns in one process, medians. Processor time says more than wall time where other programs run, but not what several
threads gain.

    python benchmarks/commands.py [--steps 1048576] [--rounds 5] [--only verify] [--stores FOLDER]
"""

from __future__ import annotations

import os
import pathlib
import shutil
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import contenders
import frames
import harness
import jobs
import numpy as np
import workload
from harness import Figure

STEPS = 1 << 20
RECORDED = 1 << 14
"""Frames of each game, which go round."""
EXPORTED = 1 << 15
ROUNDS = 5

Work = Callable[[], Any]
Place = tuple[Any, Any, int, int]
"""A chunk: its column and file, its offset and size there."""


def fill(path: str, steps: int) -> None:
    with contenders.create_store(path, steps) as buffer:
        for one in workload.mixture(steps):
            obs = one.frame[workload.STACK - 1 :]
            buffer.extend(obs[:-1], one.action, one.reward, obs[1:], one.terminated, one.truncated)


def by_turns(rounds: int, *contestants: Work, before: Work = lambda: None) -> list[tuple[float, float]]:
    """Median seconds of wall and of processor time of each, after a round that does not count."""
    found: list[list[tuple[float, float]]] = [[] for _ in contestants]
    for _ in range(rounds + 1):
        for each, work in zip(found, contestants, strict=True):
            before()
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            each.append((time.perf_counter() - wall, time.process_time() - cpu))
    return [
        (statistics.median(wall), statistics.median(cpu))
        for wall, cpu in (zip(*each[1:], strict=True) for each in found)
    ]


# verify


def chunks_of(path: str) -> list[list[Place]]:
    """The chunks of each shard."""
    from diskreplay.remote import open_store

    store, found = open_store(path), []
    for name, commit in store.newest_commits().items():
        for column in store.read_stream(name, commit, commit.timeline).columns.values():
            for shard, _ in column.shards_on_disk():
                index, file = column.read_index(shard, None, column.end).reshape(-1, 2), column.handle(shard)
                found.append([(column, file, *place) for place in index.tolist() if place[0] >= 0])
    return found


def floor(shards: list[list[Place]]) -> None:
    from diskreplay.process.background import processors
    from diskreplay.storage import chunks

    def look(places: list[Place]) -> None:
        column = places[0][0]
        out = np.empty(column.chunk_shape, column.column.dtype)
        for _, file, offset, size in places:
            chunks.decode(column.column.codec, file.pread(size, offset), out)

    with ThreadPoolExecutor(processors()) as pool:
        list(pool.map(look, shards))


def forget(path: str) -> None:
    """Have the system read a store's files from the disk again."""
    os.sync()
    for file in filter(pathlib.Path.is_file, pathlib.Path(path).rglob("*")):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def verified(path: str, rounds: int) -> list[Figure]:
    from diskreplay.ops.verify import verify

    shards = chunks_of(path)
    found = []
    for cache, before in (("warm", lambda: None), ("cold", lambda: forget(path))):
        ours, least = by_turns(rounds, lambda: verify(path), lambda: floor(shards), before=before)
        found += [
            Figure(f"`verify` beside read, CRC-32C and decode, {clock} time, {cache}", one, 2, "s", other)
            for clock, one, other in zip(("wall", "processor"), ours, least, strict=True)
        ]
    return found


# inspect, episodes


def listed(path: str, rounds: int) -> list[Figure]:
    programs = {
        f"`diskreplay {name}`": (
            f"import sys; sys.argv = ['diskreplay', '{name}', {path!r}]; from diskreplay_cli.start import main; main()"
        )
        for name in ("inspect", "episodes")
    }
    spent: dict[str, list[float]] = {name: [] for name in (*programs, "bare")}

    def run(name: str) -> None:
        spent[name].append(jobs.run(programs.get(name, "import numpy, gymnasium"))[0])

    walls = by_turns(rounds, *(lambda name=name: run(name) for name in spent))
    cpu = [statistics.median(each[1:]) for each in spent.values()]
    return [
        Figure(f"{name}, {clock} time; NumPy and Gymnasium alone {bare:.2f} s", one, 0.5, "s")
        for clock, (*each, bare) in (("wall", [wall for wall, _ in walls]), ("processor", cpu))
        for name, one in zip(programs, each, strict=True)
    ]


# HDF5


def vectors(path: pathlib.Path, rows: int) -> None:
    import h5py

    rng = np.random.default_rng(0)
    obs, ends = rng.normal(size=(rows + 1, 17)).astype(np.float32), np.arange(rows) % 1000 == 999
    with h5py.File(path, "w") as file:
        for name, values in {
            "observations": obs[:-1], "next_observations": obs[1:] + ends[:, None],
            "actions": rng.normal(size=(rows, 6)).astype(np.float32), "rewards": np.ones(rows, np.float32),
            "terminals": np.zeros(rows, bool), "timeouts": ends,
        }.items():  # fmt: skip
            file.create_dataset(name, data=values, compression="gzip")


def imported(folder: pathlib.Path, steps: int, rounds: int) -> list[Figure]:
    import h5py

    from diskreplay.ops.convert import import_dataset

    source, out = folder / "vectors.hdf5", folder / "vectors.replay"
    vectors(source, steps)

    def bare() -> None:
        with h5py.File(source) as file:
            for name, data in file.items():
                np.save(folder / f"{name}.npy", data[()])

    def ours() -> None:
        shutil.rmtree(out, ignore_errors=True)
        import_dataset(source, out)

    (_, one), (_, other) = by_turns(rounds, ours, bare)
    return [Figure("import of HDF5 beside h5py and `np.save`, processor time", one, 1.5, "s", other)]


def exported(path: str, folder: pathlib.Path, rounds: int) -> list[Figure]:
    import h5py

    from diskreplay.ops.convert import export

    out = folder / "ours.hdf5"
    export(path, out, allow_loss=True)
    with h5py.File(out) as file:
        arrays = {name: (node[()], node.chunks) for name, node in file.items() if isinstance(node, h5py.Dataset)}

    def bare() -> None:
        with h5py.File(folder / "bare.hdf5", "w") as file:
            for name, (values, rows) in arrays.items():
                shuffle = values.itemsize > 1
                file.create_dataset(name, data=values, chunks=rows, compression="gzip", shuffle=shuffle)

    found = by_turns(rounds, lambda: export(path, out, allow_loss=True, overwrite=True), bare)
    rates = [[EXPORTED / seconds for seconds in each] for each in found]
    return [
        Figure(f"export to D4RL beside h5py, {clock} time", one, 0.9, "steps/s", other, at_least=True)
        for clock, one, other in zip(("wall", "processor"), *rates, strict=True)
    ]


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    parser.add_argument("--only", choices=("verified", "listed", "imported", "exported"), help="this part alone")
    parser.add_argument("--stores", type=pathlib.Path, help="an existing folder, in which the stores stay")
    asked = parser.parse_args()
    frames.ensure(steps=RECORDED)
    with harness.scratch() as scratch:

        def store(steps: int) -> str:
            path = (asked.stores or scratch) / f"{steps}.replay"
            if not path.exists():
                harness.fresh(fill, str(path), steps)
            return str(path)

        parts = {
            "verified": lambda: verified(store(asked.steps), asked.rounds),
            "listed": lambda: listed(store(asked.steps), asked.rounds),
            "imported": lambda: imported(scratch, asked.steps, asked.rounds),
            "exported": lambda: exported(store(EXPORTED), scratch, asked.rounds),
        }
        rows = [row for name, part in parts.items() if asked.only in (None, name) for row in part()]
    packages = harness.versions("diskreplay", "numpy", "h5py", "numcodecs", "google-crc32c")
    keep = asked.only is None and (asked.steps, asked.rounds) == (STEPS, ROUNDS)
    load = f"The load of the machine was {os.getloadavg()[1]:.1f}, for {len(os.sched_getaffinity(0))} cores."
    harness.write_section("commands", "Commands", packages, f"{load}\n\n{harness.figures(rows)}", keep=keep)


if __name__ == "__main__":
    main()
