"""Drawing with priorities: the trees and samplers by themselves, ids in and ids out, no rows read.

Windows are full and two thirds of the priorities differ; every measured step also adds a row, so that one id leaves
and one comes, as in training, unless a row of the table says otherwise. cpprb is timed in the same process, call by
call in turn; its `sample` also gathers the rows, ours does not: compare whole buffers to judge by.

For a quick look: ``--steps 10000``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
from harness import Figure

STEPS = 1 << 20
GROWTH = (10_000, 100_000, 1 << 20, 10_000_000)
CALLS = 2000

Step = Callable[[], float]
"""Draws a batch and updates it; the seconds that took."""


def always(ids: np.ndarray) -> np.ndarray:
    return np.ones(len(ids), bool)


def errors(count: int) -> np.ndarray:
    """TD errors as float32; a third of them are equal."""
    drawn = np.random.default_rng(0).exponential(size=count).astype(np.float32)
    drawn[::3] = 1.0
    return drawn


def ours(sampler: Any, steps: int, batch: int, adds: bool = True) -> Step:
    """A sampler over one stream whose window is full."""
    from diskreplay.sampling.window import Window

    rng, begin = np.random.default_rng(0), 0
    windows = [Window(0, steps, steps)]
    sampler.update(np.arange(steps), errors(steps), windows, always)
    new = errors(64 * batch).reshape(64, batch)

    def step() -> float:
        nonlocal windows, begin
        if adds:
            begin += 1
            windows = [Window(begin, begin + steps, steps)]
        start = time.perf_counter()
        ids, _ = sampler.sample(rng, windows, always, batch)
        middle = time.perf_counter()
        priorities = new[begin % 64]
        resumed = time.perf_counter()
        sampler.update(ids, priorities, windows, always)
        return time.perf_counter() - resumed + middle - start

    return step


def cpprb(steps: int, batch: int) -> Step:
    import cpprb as package

    fields = {"obs": {"shape": 4}, "next_obs": {"shape": 4}, "act": {}, "rew": {}, "done": {}}
    buffer = package.PrioritizedReplayBuffer(steps, fields, alpha=0.6)
    row = np.zeros((steps, 4), np.float32)
    column = np.zeros(steps, np.float32)
    buffer.add(obs=row, next_obs=row, act=column, rew=column, done=column, priorities=errors(steps))
    new = errors(64 * batch).reshape(64, batch)
    count = 0

    def step() -> float:
        nonlocal count
        count += 1
        buffer.add(obs=row[0], next_obs=row[0], act=0.0, rew=0.0, done=0.0)
        start = time.perf_counter()
        drawn = buffer.sample(batch, beta=0.4)
        buffer.update_priorities(drawn["indexes"], new[count % 64])
        return time.perf_counter() - start

    return step


def sorted_list(steps: int, batch: int) -> Step:
    """Exact ranks by ``sortedcontainers``, the well-kept library that could have been used."""
    from sortedcontainers import SortedList

    held = [(-float(error), -each) for each, error in enumerate(errors(steps))]
    ranked = SortedList(held)
    masses = np.cumsum(np.arange(1.0, steps + 1) ** -0.7)
    rng = np.random.default_rng(0)
    new = errors(64 * batch).reshape(64, batch)
    count = 0

    def step() -> float:
        nonlocal count
        count += 1
        start = time.perf_counter()
        shares = (np.arange(batch) + rng.random(batch)) / batch
        drawn = [ranked[rank] for rank in np.searchsorted(masses, shares * masses[-1]).tolist()]
        for (_, minus_id), error in zip(drawn, new[count % 64].tolist(), strict=True):
            ranked.remove(held[-minus_id])
            held[-minus_id] = (-error, minus_id)
            ranked.add(held[-minus_id])
        return time.perf_counter() - start

    return step


def in_turn(steps: dict[str, Step], calls: int = CALLS) -> dict[str, float]:
    """Median milliseconds of each, called in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for call in range(calls + calls // 10):
        for name, step in steps.items():
            took = step()
            if call >= calls // 10:
                seconds[name].append(took)
    return {name: harness.median_ms(each) for name, each in seconds.items()}


def proportional(steps: int, batch: int) -> dict[str, float]:
    from diskreplay.sampling.proportional import Proportional

    contenders = {
        "ours": ours(Proportional(), steps, batch),
        "ours, no rows added": ours(Proportional(), steps, batch, adds=False),
    }
    with contextlib.suppress(ImportError):
        contenders["cpprb"] = cpprb(steps, batch)
    return in_turn(contenders)


def rank_based(steps: int, batch: int) -> dict[str, float]:
    from diskreplay.sampling.rank_based import RankBased

    contenders = {"ours": ours(RankBased(), steps, batch)}
    with contextlib.suppress(ImportError):
        if steps <= STEPS:
            contenders["sortedcontainers"] = sorted_list(steps, batch)
    return in_turn(contenders, CALLS // 2)


def tree(steps: int, batch: int) -> dict[str, float]:
    """The sum tree alone, milliseconds."""
    from diskreplay.index.sum_tree import SumTree

    rng, made = np.random.default_rng(0), SumTree(steps)
    made.fill(np.arange(steps), errors(steps).astype(np.float64) + 1e-6)
    find, update = [], []
    for _ in range(CALLS):
        uniforms, priorities = rng.random(batch), rng.exponential(size=batch)
        start = time.perf_counter()
        slots, _ = made.draw(uniforms, 0.4)
        middle = time.perf_counter()
        made.update(slots, priorities, 0.6, 1e-6, (1e-280, 1e280))
        update.append(time.perf_counter() - middle)
        find.append(middle - start)
    return {"find": harness.median_ms(find), "update": harness.median_ms(update)}


def restoring(kind: str, steps: int) -> dict[str, float]:
    """Seconds, in a fresh process, from a state's arrays, and from nothing but a window, to a first batch."""
    from diskreplay.sampling import proportional, rank_based
    from diskreplay.sampling.window import Window

    make = {"Proportional": proportional.Proportional, "RankBased": rank_based.RankBased}[kind]
    key = {"Proportional": "mass", "RankBased": "priority"}[kind]
    run = {"stream": 0, "base": 0, "capacity": steps, "first": 0, "stop": steps, "waiting": 0}
    facts = {"alpha": 0.6, "maximum": 9.0, "samples": 0, "ignored_updates": 0, "streams": [run]}
    arrays = {key: errors(steps).astype(np.float64) + 1e-6, "waiting": np.empty(0, np.int64)}
    windows, rng = [Window(0, steps, steps)], np.random.default_rng(0)

    def restored() -> None:
        sampler = make(alpha=0.6)
        sampler.restore(facts, arrays)
        sampler.sample(rng, windows, always, 32)

    return {
        "restore": harness.seconds_of(restored, 1)[0],
        "again": harness.seconds_of(restored, 1)[0],
        "all new": harness.seconds_of(lambda: make().sample(rng, windows, always, 32), 1)[0],
    }


def figures_of(steps: int) -> list[Figure]:
    trees = {batch: harness.fresh(tree, steps, batch) for batch in (32, 256)}
    found = {batch: harness.fresh(proportional, steps, batch) for batch in (32, 256)}
    states = {kind: harness.fresh(restoring, kind, steps) for kind in ("Proportional", "RankBased")}
    rows = [
        Figure(f"sum tree alone: find {batch} and update {batch}", sum(each.values()), 0.06, "ms", aim=True)
        for batch, each in trees.items()
    ]
    for batch, each in found.items():
        label = f"proportional `sample({batch})` and `update` of {batch}"
        if "cpprb" in each:
            rows.append(Figure(f"{label}, beside cpprb", each["ours"], 1.0, "ms", peer=each["cpprb"]))
        rows.append(Figure(f"{label}, no rows added", each["ours, no rows added"], 0.1, "ms", aim=True))
    labels = {
        "restore": "restored from arrays and a first batch, in a fresh process",
        "again": "the same again",
        "all new": "all ids new and a first batch",
    }
    rows += [Figure(f"`{kind}` {labels[what]}", states[kind][what], 0.6, "s") for kind in states for what in labels]
    return rows


def main() -> None:
    arguments = harness.parser(__doc__, STEPS).parse_args()
    harness.fresh(tree, 1000, 32)  # compiles what is not compiled yet
    for kind in ("Proportional", "RankBased"):
        harness.fresh(restoring, kind, 1000)
    for batch in (32, 256):
        harness.fresh(proportional, 1000, batch)
        harness.fresh(rank_based, 1000, batch)
    figures = figures_of(arguments.steps)
    growth = []
    for steps in GROWTH if arguments.steps == STEPS else (arguments.steps,):
        by_batch = {batch: harness.fresh(rank_based, steps, batch) for batch in (32, 256)}
        if steps == arguments.steps:
            figures.append(Figure("rank-based `sample(32)` and update of 32", by_batch[32]["ours"], 1.0, "ms"))
        cells = [harness.number(by_batch[batch]["ours"], "ms") for batch in (32, 256)]
        peer = by_batch[32].get("sortedcontainers")
        growth.append((f"{steps:,}", *cells, "" if peer is None else harness.number(peer, "ms")))
    body = [
        harness.figures(figures),
        "Rank-based, `sample` and `update`, as the window grows:",
        harness.table(("transitions", "batch 32", "batch 256", "batch 32 by `sortedcontainers`"), growth),
    ]
    packages = harness.versions("diskreplay", "numpy", "numba", "cpprb", "sortedcontainers")
    keep = arguments.steps == STEPS and "priorities" in harness.SECTIONS
    harness.write_section("priorities", "Drawing with priorities", packages, "\n\n".join(body), keep=keep)


if __name__ == "__main__":
    main()
