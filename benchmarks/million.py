"""A million real Atari frames in one store: 2**20 steps of four games, recorded through ``add``.

Measures what goes in (rate, bytes), what comes out (batches of 32 and 256, beside the same at 10**5 steps and beside
peers that hold 10**5 steps, in interleaved rounds), what it costs in memory, and the durable points: commit,
checkpoint, open, and one shuffled pass. Every part runs in a process of its own, so that memory is that of the part.
The page cache is warm throughout.

For a quick look: ``--steps 8192 --rounds 2``. ``--path`` keeps the store, for ``memory_limit.py --store`` to use again.
"""

from __future__ import annotations

import pathlib
import statistics
import time
from typing import Any

import contenders
import frames
import harness
import racing
import workload
from harness import Figure

STEPS = 1 << 20
PEER_STEPS = 100_000
PEERS = (
    "torchrl `LazyMemmapStorage` (on disk)",
    'cpprb, `stack_compress="obs"`, `next_of="obs"`',
    "SB3 `ReplayBuffer`",
)


# Parts: each is called in a fresh process


def record(path: str, steps: int) -> dict[str, dict[str, float]]:
    """Adds the games one after another; the clock runs for adding and committing, not while frames are read."""
    games = {}
    with contenders.create_store(path, steps) as buffer:
        before = 0
        for name in frames.GAMES:
            seconds, count = 0.0, steps // len(frames.GAMES)
            for episode in workload.episodes(frames.load(name), count):
                ready = list(episode.singles())
                start = time.perf_counter()
                for step in ready:
                    buffer.add(*step)
                seconds += time.perf_counter() - start
            start = time.perf_counter()
            buffer.commit()
            seconds += time.perf_counter() - start
            stored = harness.stored_bytes(path)
            games[name] = {"steps": count, "seconds": seconds, "bytes": stored - before}
            before = stored
    return games


def resident(path: str, cache_bytes: int | None) -> dict[str, int]:
    """Bytes that a process takes beyond its imports for opening a store and as many draws as its window holds."""
    import gymnasium  # noqa: F401

    from diskreplay import ReplayBuffer  # noqa: F401 -- what importing the package alone leaves until it is asked for

    imported = harness.resident_bytes()
    buffer = contenders.open_store(path, **({} if cache_bytes is None else {"cache_bytes": cache_bytes}))
    for _ in range(len(buffer) // 256):
        buffer.sample(256)
    return {
        "imports": imported,
        "now": harness.resident_bytes() - imported,
        "peak": harness.resident_bytes("VmHWM") - imported,
        "cached": buffer.stats()["cache_used_bytes"],
    }


def opened(path: str) -> dict[str, float]:
    start = time.perf_counter()
    from diskreplay import ReplayBuffer  # noqa: F401

    imported = time.perf_counter()
    contenders.open_store(path).sample(32)
    first = time.perf_counter() - imported
    seconds = harness.seconds_of(lambda: contenders.open_store(path).close(), 5, warmup=1)
    return {"import": imported - start, "open and sample(32)": first, "again": statistics.median(seconds)}


def shuffled(path: str, batch: int) -> dict[str, float]:
    buffer = contenders.open_store(path)
    start = time.perf_counter()
    count = sum(len(drawn.reward) for drawn in buffer.shuffled(batch, epochs=1))
    return {"transitions": count, "seconds": time.perf_counter() - start}


def durable(path: str, repetitions: int) -> dict[str, dict[str, float]]:
    """Seconds of a commit with 1,000 new steps and of a checkpoint, and how much of it was fsync."""
    import diskreplay.storage.files

    taken: dict[str, list[tuple[float, float]]] = {"commit": [], "checkpoint": []}
    steps = [step for episode in workload.mixture(1000 * repetitions) for step in episode.singles()]
    with contenders.open_store(path) as buffer:
        for turn in range(repetitions):
            for step in steps[1000 * turn : 1000 * (turn + 1)]:
                buffer.add(*step)
            for name, call in (
                ("commit", buffer.commit),
                ("checkpoint", lambda turn=turn: buffer.checkpoint(f"bench-{turn}")),
            ):
                with harness.time_spent_in(diskreplay.storage.files.os, "fsync") as fsyncs:
                    (seconds,) = harness.seconds_of(call, 1)
                taken[name].append((seconds, sum(fsyncs)))
    return {
        name: {
            "all": statistics.median(s for s, _ in pairs),
            "without fsync": statistics.median(s - f for s, f in pairs),
        }
        for name, pairs in taken.items()
    }


# The report


def raced(path: str, steps: int, scratch: pathlib.Path, rounds: int) -> tuple[list[racing.Raced], dict[str, str]]:
    small = max(1000, steps * PEER_STEPS // STEPS)
    ours = [
        contenders.Contender(
            f"**diskreplay**, {steps:,} steps", "diskreplay", {"path": path}, 0, in_ram=False, steps=steps
        ),
        contenders.Contender(f"**diskreplay**, {small:,} steps", "diskreplay", in_ram=False, steps=small),
    ]
    peers = [peer for label in PEERS for peer in contenders.peers() if peer.label == label]
    return racing.race(ours, peers, small, scratch, rounds)


MOST_OF_PEERS = {32: (0.5, 2.5, 1.3), 256: (0.8, 1.7, 1.0)}
"""By batch size, in the order of `PEERS`."""
MOST_OF_SMALL = {32: 1.3, 256: 1.15}


def sampling_figures(found: list[racing.Raced]) -> list[Figure]:
    by_label = {one.contender.label: one for one in found}
    ours, small = found[0], found[1]
    rows = []
    for batch in racing.BURSTS:
        for label, target in zip(PEERS, MOST_OF_PEERS[batch], strict=True):
            if label in by_label:
                peer = by_label[label]
                rows.append(Figure(f"`sample({batch})` beside {label}", peer.ours[batch], target, "ms", peer.ms[batch]))
        rows.append(
            Figure(
                f"`sample({batch})` beside itself at {small.contender.steps:,} steps",
                ours.ms[batch],
                MOST_OF_SMALL[batch],
                "ms",
                small.ms[batch],
            )
        )
    return rows


def recorded_text(games: dict[str, dict[str, float]]) -> tuple[str, list[Figure]]:
    rows = [
        (
            name,
            f"{game['steps'] / game['seconds']:,.0f}",
            f"{game['bytes'] / game['steps']:.1f}",
            f"1/{workload.FRAME_BYTES * game['steps'] / game['bytes']:.1f}",
        )
        for name, game in games.items()
    ]
    steps, seconds, stored = (sum(game[key] for game in games.values()) for key in ("steps", "seconds", "bytes"))
    mean = statistics.mean(game["bytes"] / game["steps"] for game in games.values())
    text = (
        f"{steps:,} steps take {stored / 1e6:,.0f} MB on disk (the whole store, as `du` counts it); raw frames would "
        f"take {steps * workload.FRAME_BYTES / 1e9:.1f} GB.\n\n"
        + harness.table(("game", "`add`, steps/s", "bytes a step", "of raw"), rows)
    )
    figures = [
        Figure("`add`, commits included", steps / seconds, 50_000, "steps/s", at_least=True),
        Figure("raw bytes over stored bytes, mean step of the games", workload.FRAME_BYTES / mean, 40, at_least=True),
    ]
    return text, figures


def memory_figures(default: dict[str, int], bare: dict[str, int]) -> list[Figure]:
    beyond = max(default["now"] - default["cached"], bare["now"])
    peak = max(default["peak"] - default["cached"], bare["peak"])
    return [
        Figure("resident memory beyond imports and the cache", beyond / 1e6, 150, "MB"),
        Figure("the same at its peak", peak / 1e6, 150, "MB"),
    ]


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of sampling (default 20)")
    parser.add_argument(
        "--path", help="where the store goes, to be kept (default: a temporary folder beside the recorded frames)"
    )
    arguments = parser.parse_args()
    frames.ensure(steps=arguments.steps // len(frames.GAMES))
    with harness.scratch() as scratch:
        path = arguments.path or str(scratch / "million.replay")
        text, rows = recorded_text(harness.fresh(record, path, arguments.steps))
        found, skipped = raced(path, arguments.steps, scratch, arguments.rounds)
        rows += sampling_figures(found)
        default, bare = harness.fresh(resident, path, None), harness.fresh(resident, path, 0)
        rows += memory_figures(default, bare)
        opening, passed, points = (
            harness.fresh(opened, path),
            harness.fresh(shuffled, path, 256),
            harness.fresh(durable, path, 10),
        )
    rows += [
        Figure("`commit` with 1,000 new steps, without fsync", 1e3 * points["commit"]["without fsync"], 50, "ms"),
        Figure("`checkpoint`, fsync included", 1e3 * points["checkpoint"]["all"], 250, "ms"),
        Figure(
            "`open` and a first `sample(32)` in a fresh process, after imports",
            opening["open and sample(32)"],
            0.5,
            "s",
        ),
        Figure(
            "one `shuffled` pass", passed["transitions"] / passed["seconds"], 150_000, "transitions/s", at_least=True
        ),
    ]
    body = [
        text,
        harness.figures(rows),
        notes(default, bare, opening, points),
        *(f"Skipped: {name}: {why}." for name, why in skipped.items()),
    ]
    packages = harness.versions("diskreplay", "numpy", "numcodecs") + [
        version for one in found for version in one.versions
    ]
    harness.write_section("million", "A million frames", packages, "\n\n".join(body), keep=arguments.steps == STEPS)


def notes(default: dict[str, int], bare: dict[str, int], opening: dict[str, float], points: dict[str, Any]) -> str:
    commit, checkpoint = points["commit"], points["checkpoint"]
    return (
        f"Peers hold {PEER_STEPS:,} steps (torchrl's 2**20 would be 59 GB). "
        f"Imports take {default['imports'] / 1e6:.0f} MB and {opening['import']:.2f} s; opening and sampling add "
        f"{default['now'] / 1e6:.0f} MB with the default cache, {bare['now'] / 1e6:.0f} MB without one. "
        f"`commit` takes {1e3 * commit['all']:.0f} ms with fsync, `checkpoint` "
        f"{1e3 * checkpoint['without fsync']:.0f} ms without. "
        f"Opening again in the same process takes {1e3 * opening['again']:.0f} ms."
    )


if __name__ == "__main__":
    main()
