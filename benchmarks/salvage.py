"""Salvage of a million frames of which one shard is lost, beside an export of the whole store to a new store.

In turns, each in a process of its own. The page cache is warm.

    python benchmarks/salvage.py [--steps 1048576] [--rounds 3]
"""

from __future__ import annotations

import shutil
import statistics
import time
from typing import Any

import frames
import harness
import million
from harness import Figure

STEPS = 1 << 20
ROUNDS = 3


# Parts: each is called in a fresh process


def exported(path: str, out: str) -> dict[str, float]:
    from diskreplay.ops.convert import export

    return _measured(lambda: export(path, out, "store", allow_loss=True))


def salvaged(path: str, out: str) -> dict[str, float]:
    from diskreplay.ops.salvage import salvage

    return _measured(lambda: salvage(path, out))


def _measured(work: Any) -> dict[str, float]:
    """Steps a second, and bytes beyond imports at the peak."""
    imported = harness.resident_bytes()
    start = time.perf_counter()
    found = work()
    seconds = time.perf_counter() - start
    return {"rate": found.transitions / seconds, "peak": harness.resident_bytes("VmHWM") - imported}


def columns_in_ram(path: str) -> int:
    """Bytes of the columns that a reader of the store holds in RAM."""
    from diskreplay.formats.core.log_rows import open_rows

    return sum(array.nbytes for rows in open_rows(path) for array in rows.log.table.arrays.values())


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds of both (default {ROUNDS})")
    asked = parser.parse_args()
    frames.ensure(steps=asked.steps // len(frames.GAMES))
    took: dict[str, list[dict[str, float]]] = {"export": [], "salvage": []}
    with harness.scratch() as folder:
        whole, damaged, out = (folder / name for name in ("whole.replay", "damaged.replay", "out.replay"))
        harness.fresh(million.record, str(whole), asked.steps)
        shutil.copytree(whole, damaged)
        shards = sorted((damaged / "streams/0/obs").glob("c.*"), key=lambda file: int(file.name.split(".")[1]))
        shards[len(shards) // 2].unlink()
        held = harness.fresh(columns_in_ram, str(whole))
        for _ in range(asked.rounds):
            for name, part, path in (("export", exported, whole), ("salvage", salvaged, damaged)):
                took[name].append(harness.fresh(part, str(path), str(out)))
                shutil.rmtree(out)
    rate = {name: statistics.median(one["rate"] for one in each) for name, each in took.items()}
    peak, usual = (max(one["peak"] for one in took[name]) for name in ("salvage", "export"))
    rows = [
        Figure("salvage without one shard beside `export --format store`", rate["salvage"], 0.5, "steps/s",
               rate["export"], at_least=True),
        Figure("its peak of memory, beside imports and columns in RAM", (peak - held) / 1e6, 200, "MB"),
    ]  # fmt: skip
    body = (
        f"{asked.steps:,} frames of four games, of which one of {len(shards)} shards of frames is lost; the columns in "
        f"RAM take {held / 1e6:.0f} MB. The export takes {(usual - held) / 1e6:.0f} MB beside them.\n\n"
        f"{harness.figures(rows)}"
    )
    keep = asked.steps == STEPS and asked.rounds == ROUNDS
    harness.write_section("salvage", "Salvage", harness.versions("diskreplay", "numpy"), body, keep=keep)


if __name__ == "__main__":
    main()
