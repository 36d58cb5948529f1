"""What commands take beside the least that they could take, on a million Atari frames and a million vectors.

In turns, each in one process; the page cache is warm. The floor of `verify` reads, checks and decodes each chunk, in as
many threads as there are cores. Peers of imports and exports are h5py alone, with the same arrays. Processor time counts
where other programs would have a say in wall time.

    python benchmarks/commands.py [--steps 1048576] [--rounds 5] [--only verify] [--path STORE]
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import contenders
import frames
import harness
import numpy as np
import workload
from harness import Figure

STEPS = 1 << 20
RECORDED = 1 << 14
"""Frames of each game, which go round."""
EXPORTED = 1 << 15
ROUNDS = 5
Clocks = tuple[float, float]
"""Seconds of wall time and of processor time."""


def fill(path: str, steps: int) -> None:
    with contenders.create_store(path, steps) as buffer:
        for one in workload.mixture(steps):
            obs = one.frame[workload.STACK - 1 :]
            buffer.extend(obs[:-1], one.action, one.reward, obs[1:], one.terminated, one.truncated)


def clocked(work: Callable[[], Any]) -> Clocks:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def by_turns(rounds: int, ours: Callable[[], Any], peer: Callable[[], Any]) -> tuple[Clocks, Clocks, Clocks]:
    """Median seconds of both, and median ratios, after a round that does not count."""
    pairs = [(clocked(ours), clocked(peer)) for _ in range(rounds + 1)][1:]
    wall, cpu = ([(one[clock], other[clock]) for one, other in pairs] for clock in (0, 1))
    each = [[statistics.median(values) for values in zip(*clock, strict=True)] for clock in (wall, cpu)]
    ratios = tuple(statistics.median(one / other for one, other in clock) for clock in (wall, cpu))
    return (each[0][0], each[1][0]), (each[0][1], each[1][1]), ratios  # type: ignore[return-value]


# verify


def chunks_of(path: str) -> list[list[tuple[Any, Any, int, int]]]:
    """For each shard the column, the file, and the place and bytes of its chunks."""
    from diskreplay.remote import open_store

    store, found = open_store(path), []
    for name, commit in store.newest_commits().items():
        for reader in store.read_stream(name, commit, commit.timeline).columns.values():
            for shard, _ in reader.shards_on_disk():
                index = reader.read_index(shard, None, reader.end).reshape(-1, 2)
                file = reader.handle(shard)
                found.append([(reader, file, *place) for place in index.tolist() if place[0] >= 0])
    return found


def floor(shards: list[list[tuple[Any, Any, int, int]]]) -> None:
    from diskreplay.process.background import processors
    from diskreplay.storage import chunks

    def look(places: list[tuple[Any, Any, int, int]]) -> None:
        reader = places[0][0]
        out = np.empty(reader.chunk_shape, reader.column.dtype)
        for _, file, offset, size in places:
            chunks.decode(reader.column.codec, file.pread(size, offset), out)

    with ThreadPoolExecutor(processors()) as pool:
        list(pool.map(look, shards))


def verify(path: str, rounds: int) -> list[Figure]:
    from diskreplay.ops.verify import verify as run

    shards = [places for places in chunks_of(path) if places]
    ours, least, ratios = by_turns(rounds, lambda: run(path), lambda: floor(shards))
    print("verify, wall and processor time:", ours, least, ratios)
    return [Figure("`verify` beside read, CRC-32C and decode of all chunks, wall", ours[0], 2, "s", least[0])]


# inspect, episodes


def listed(path: str, rounds: int) -> list[Figure]:
    figures = []
    for name in ("inspect", "episodes"):
        program = f"import sys; sys.argv = ['diskreplay', '{name}', {path!r}]; from diskreplay_cli.start import main; main()"

        def run(program: str = program) -> None:
            subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)

        bare = "import numpy, gymnasium"
        wall = [(clocked(run)[0], clocked(lambda: run(bare))[0]) for _ in range(rounds + 1)][1:]
        ours, least = (statistics.median(each) for each in zip(*wall, strict=True))
        figures.append(Figure(f"`diskreplay {name}`, the whole process", ours, 0.5, "s"))
        print(name, "import numpy, gymnasium alone:", least)
    return figures


# HDF5


def vectors(path: pathlib.Path, rows: int) -> None:
    """17 floats a step, as D4RL has them; compressed in the chunks that h5py chooses."""
    import h5py

    rng = np.random.default_rng(0)
    obs = rng.normal(size=(rows + 1, 17)).astype(np.float32)
    ends = np.arange(rows) % 1000 == 999
    arrays = {
        "observations": obs[:-1], "next_observations": obs[1:] + ends[:, None],
        "actions": rng.normal(size=(rows, 6)).astype(np.float32), "rewards": np.ones(rows, np.float32),
        "terminals": np.zeros(rows, bool), "timeouts": ends,
    }  # fmt: skip
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, compression="gzip")


def imported(scratch: pathlib.Path, steps: int, rounds: int) -> list[Figure]:
    import h5py

    from diskreplay.ops.convert import import_dataset

    source, out = scratch / "vectors.hdf5", scratch / "vectors.replay"
    vectors(source, steps)

    def bare() -> None:
        with h5py.File(source) as file:
            for name, data in file.items():
                np.save(scratch / f"{name}.npy", data[()])

    def ours() -> None:
        shutil.rmtree(out, ignore_errors=True)
        import_dataset(source, out)

    mine, peer, ratios = by_turns(rounds, ours, bare)
    print("import, wall and processor time:", mine, peer, ratios)
    return [Figure("import of HDF5 beside h5py and `np.save`, processor time", mine[1], 1.5, "s", peer[1])]


def exported(path: str, scratch: pathlib.Path, rounds: int) -> list[Figure]:
    import h5py

    from diskreplay.ops.convert import export

    ours, bare = scratch / "ours.hdf5", scratch / "bare.hdf5"
    export(path, ours, allow_loss=True)
    with h5py.File(ours) as file:
        arrays = {name: (node[()], node.chunks) for name, node in file.items() if isinstance(node, h5py.Dataset)}

    def peer() -> None:
        with h5py.File(bare, "w") as file:
            for name, (values, rows) in arrays.items():
                file.create_dataset(
                    name, data=values, chunks=rows, compression="gzip", shuffle=values.dtype.itemsize > 1
                )

    mine, least, ratios = by_turns(rounds, lambda: export(path, ours, allow_loss=True, overwrite=True), peer)
    print("export, wall and processor time:", mine, least, ratios)
    rate = [EXPORTED / seconds for seconds in (mine[1], least[1], mine[0], least[0])]
    return [
        Figure("export to D4RL beside h5py, processor time", rate[0], 0.9, "steps/s", rate[1], at_least=True),
        Figure("export to D4RL beside h5py, wall", rate[2], 0.9, "steps/s", rate[3], at_least=True),
    ]


@contextlib.contextmanager
def stored(path: str | None, steps: int) -> Iterator[tuple[pathlib.Path, Callable[[int], str]]]:
    with harness.scratch() as scratch:
        def made(count: int) -> str:
            where = str(scratch / f"{count}.replay") if path is None else f"{path}-{count}"
            if not pathlib.Path(where).exists():
                harness.fresh(fill, where, count)
            return where

        yield scratch, made


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    parser.add_argument("--only", choices=("verify", "listed", "imported", "exported"), help="of all parts this one")
    parser.add_argument("--path", help="where stores are kept, to be used again")
    asked = parser.parse_args()
    frames.ensure(steps=RECORDED)
    with stored(asked.path, asked.steps) as (scratch, made):
        parts = {
            "verify": lambda: verify(made(asked.steps), asked.rounds),
            "listed": lambda: listed(made(asked.steps), asked.rounds),
            "imported": lambda: imported(scratch, asked.steps, asked.rounds),
            "exported": lambda: exported(made(EXPORTED), scratch, asked.rounds),
        }
        rows = [row for name, part in parts.items() if asked.only in (None, name) for row in part()]
    print(harness.figures(rows))


if __name__ == "__main__":
    main()
