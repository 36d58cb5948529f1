"""A million real Atari steps out of a store into every format, and in again.

Measures speed beside a bare h5py write and read of the same frames with the same compression, in interleaved rounds,
memory beyond imports, and what each dataset takes on disk. Every part runs in a process of its own, so that memory is
that of the part. The page cache is warm throughout.

For a quick look: ``--steps 20000 --rounds 1``.
"""

from __future__ import annotations

import pathlib
import shutil
import statistics
import time
from typing import Any

import frames
import harness
import million
import numpy as np
import workload
from harness import Figure

STEPS = 1 << 20
VECTORS = 200_000
MEMORY_MB = 300
CHUNK_ROWS = 148
"""Frames in a megabyte: the chunks of the exported file."""


# Parts: each is called in a fresh process


def exported(path: str, out: str, name: str) -> dict[str, float]:
    """Seconds of an export, and bytes beyond imports at its peak."""
    from diskreplay.ops.convert import export

    _warm(name)
    imported = harness.resident_bytes()
    start = time.perf_counter()
    result = export(path, out, name, allow_loss=True)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "bytes": result.stored_bytes, "peak": harness.resident_bytes("VmHWM") - imported}


def imported(source: str, path: str, name: str) -> dict[str, float]:
    """Seconds of an import, and bytes beyond imports at its peak."""
    from diskreplay.ops.convert import import_dataset

    _warm(name)
    before = harness.resident_bytes()
    start = time.perf_counter()
    result = import_dataset(source, path, name)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds, "bytes": result.stored_bytes, "peak": harness.resident_bytes("VmHWM") - before,
        "steps": result.transitions,
    }  # fmt: skip


def differing(path: str, rows: int) -> dict[str, float]:
    """Processor seconds of an import of vectors, once with next observations that all differ, and once with none."""
    import h5py

    from diskreplay.ops.convert import import_dataset

    _warm("d4rl")
    obs = np.random.default_rng(0).normal(size=(rows + 1, 17)).cumsum(axis=0).astype(np.float32)
    after = {"same": obs[1:], "differ": np.nextafter(obs[1:], np.float32(np.inf))}
    seconds: dict[str, list[float]] = {kind: [] for kind in after}
    for kind, following in after.items():
        with h5py.File(f"{path}-{kind}.hdf5", "w") as file:
            file["observations"], file["next_observations"] = obs[:-1], following
            file["actions"], file["rewards"] = np.zeros((rows, 6), np.float32), np.ones(rows, np.float32)
            file["terminals"], file["timeouts"] = np.zeros(rows, bool), np.arange(rows) % 1000 == 999
    for kind in [*after] * 4:
        start = time.process_time()
        import_dataset(f"{path}-{kind}.hdf5", f"{path}-{kind}.replay")
        seconds[kind].append(time.process_time() - start)
        shutil.rmtree(f"{path}-{kind}.replay")
    return {kind: statistics.median(each[1:]) for kind, each in seconds.items()}


def bare_write(out: str, steps: int) -> dict[str, float]:
    """h5py alone: each frame once, in the chunks and with the compression that the D4RL file has."""
    import h5py

    games = [frames.load(name).frame for name in frames.GAMES]
    count = steps // len(games)
    start = time.perf_counter()
    with h5py.File(out, "w") as file:
        data = file.create_dataset(
            "observations", (count * len(games), 84, 84), np.uint8, chunks=(CHUNK_ROWS, 84, 84), compression="gzip"
        )
        block = 8 * CHUNK_ROWS
        waiting = np.empty((0, 84, 84), np.uint8)
        end = 0
        for game in games:
            for at in range(0, count, block):
                waiting = np.concatenate([waiting, game[at : min(at + block, count)]])
                whole = len(waiting) // CHUNK_ROWS * CHUNK_ROWS
                data[end : end + whole] = waiting[:whole]
                end, waiting = end + whole, waiting[whole:]
        data[end:] = waiting
    return {"seconds": time.perf_counter() - start, "bytes": pathlib.Path(out).stat().st_size}


def bare_read(source: str) -> dict[str, float]:
    """h5py alone: every array of a file, some chunks at a time."""
    import h5py

    start = time.perf_counter()
    with h5py.File(source) as file:
        arrays: list[Any] = []
        file.visititems(lambda name, node: arrays.append(node) if getattr(node, "shape", ()) else None)
        for array in arrays:
            step = 8 * array.chunks[0] if array.chunks else len(array)
            for at in range(0, len(array), step):
                array[at : at + step]
    return {"seconds": time.perf_counter() - start}


def _warm(name: str) -> None:
    """Imports everything that the format needs: it does not count."""
    import importlib

    from diskreplay import formats

    format = formats.get(name)
    for module in ("h5py", "zarr", *format.requires):
        importlib.import_module(module)


def usable() -> list[str]:
    """Formats that can be written here."""
    from diskreplay import formats
    from diskreplay.formats.core.format import check_installed

    names = []
    for format in formats.every():
        try:
            check_installed(format)
        except ModuleNotFoundError as error:
            print(f"left out: {error}")
            continue
        if format.write is not None:
            names.append(format.name)
    return names


# The report


def measured(path: str, scratch: pathlib.Path, steps: int, rounds: int, names: list[str]) -> dict[str, Any]:
    """All parts, round after round; the dataset of each format is measured once."""
    found: dict[str, Any] = {"bare write": [], "bare read": [], "out": [], "in": []}
    file, bare, store = scratch / "d4rl.hdf5", scratch / "bare.hdf5", scratch / "back.replay"
    for _ in range(rounds):
        found["bare write"].append(harness.fresh(bare_write, str(bare), steps))
        found["out"].append(harness.fresh(exported, path, str(file), "d4rl"))
        found["bare read"].append(harness.fresh(bare_read, str(file)))
        found["in"].append(harness.fresh(imported, str(file), str(store), "d4rl"))
        file.unlink()
        bare.unlink()
        shutil.rmtree(store)
    found["differing"] = harness.fresh(differing, str(scratch / "vectors"), VECTORS)
    found["formats"] = {}
    for name in names:
        out = scratch / "dataset"
        parts = [harness.fresh(exported, path, str(out), name)]
        if name in readable():
            parts.append(harness.fresh(imported, str(out), str(store), name))
            shutil.rmtree(store)
        found["formats"][name] = parts
        (shutil.rmtree if out.is_dir() else pathlib.Path.unlink)(out)
    return found


def readable() -> set[str]:
    from diskreplay import formats

    return {format.name for format in formats.every() if format.read is not None}


def median(parts: list[dict[str, float]], key: str = "seconds") -> float:
    return statistics.median(part[key] for part in parts)


def figures(found: dict[str, Any], steps: int) -> list[Figure]:
    rate = {key: steps / median(found[key]) for key in ("bare write", "bare read", "out", "in")}
    every = [part["peak"] for parts in found["formats"].values() for part in parts]
    d4rl = [part["peak"] for key in ("out", "in") for part in found[key]]
    return [
        Figure("export to D4RL beside a bare h5py write of the frames", rate["out"], 0.5, "steps/s",
               rate["bare write"], at_least=True),
        Figure("import of it beside a bare h5py read of the same file", rate["in"], 0.5, "steps/s",
               rate["bare read"], at_least=True),
        Figure(f"processor time of an import of {VECTORS:,} vectors whose next observations all differ from the next "
               "step's, beside one where none does", found["differing"]["differ"], 3, "s", found["differing"]["same"]),
        Figure("memory beyond imports, D4RL out and in, at its peak", max(d4rl) / 1e6, MEMORY_MB, "MB"),
        Figure("memory beyond imports, all formats, at its peak", max(every) / 1e6, MEMORY_MB, "MB"),
    ]  # fmt: skip


def format_table(found: dict[str, Any], steps: int, stored: int) -> str:
    rows = [("our store, as it was recorded", "", "", "", "", f"{stored / 1e6:,.0f}")]
    for name, (out, *back) in found["formats"].items():
        again = [f"{steps / back[0]['seconds']:,.0f}", f"{back[0]['peak'] / 1e6:.0f}"] if back else ["-", "-"]
        rows.append(
            (f"`{name}`", f"{steps / out['seconds']:,.0f}", f"{out['peak'] / 1e6:.0f}", *again,
             f"{out['bytes'] / 1e6:,.0f}")
        )  # fmt: skip
    rows.append(("bare h5py, frames alone", "", "", "", "", f"{found['bare write'][0]['bytes'] / 1e6:,.0f}"))
    head = ("dataset", "out, steps/s", "memory, MB", "in, steps/s", "memory, MB", "size, MB")
    return harness.table(head, rows)


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--rounds", type=int, default=3, help="rounds beside h5py (default 3)")
    parser.add_argument("--formats", help="only these, with commas between (default: all that are installed)")
    arguments = parser.parse_args()
    frames.ensure(steps=arguments.steps // len(frames.GAMES))
    names = arguments.formats.split(",") if arguments.formats else usable()
    with harness.scratch() as scratch:
        path = str(scratch / "atari.replay")
        harness.fresh(million.record, path, arguments.steps)
        stored = harness.stored_bytes(path)
        found = measured(path, scratch, arguments.steps, arguments.rounds, names)
    raw = arguments.steps * workload.FRAME_BYTES / 1e9
    body = [
        harness.figures(figures(found, arguments.steps)),
        f"The D4RL file holds every frame twice, as `observations` and `next_observations`, and h5py alone writes it "
        f"once; raw frames would take {raw:.1f} GB. Import reads ahead in a thread.",
        format_table(found, arguments.steps, stored),
    ]
    packages = harness.versions("diskreplay", "numpy", "h5py", "zarr", "minari", "pyarrow")
    harness.write_section("formats", "Datasets in and out", packages, "\n\n".join(body), keep=arguments.steps == STEPS)


if __name__ == "__main__":
    main()
