"""Drawing with priorities: the samplers by themselves, and what they add to batches of frames and to opening.

Windows are full and two thirds of the priorities differ; every measured step of a sampler alone also moves the window
by a row, untimed, so that one id leaves and one comes, as in training; what the sampler does about that is in its next
draw, and counts. What is compared is timed in the same process, call by call in turn. Samplers alone draw from windows
without rows: so 10 million need no store. Whole buffers stand beside cpprb's in ``core.py``.

For a quick look: ``--steps 10000``.
"""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Callable
from typing import Any

import contenders
import harness
import numpy as np
import workload
from harness import Figure

STEPS = 1 << 20
GROWTH = (10_000, 100_000, 1 << 20, 10_000_000)
FRAMES = 100_000
CALLS = 2000

Step = Callable[[], float]
"""Draws a batch and updates it; the seconds that took."""


def always(ids: np.ndarray) -> np.ndarray:
    return np.ones(len(ids), np.int8)


def errors(count: int) -> np.ndarray:
    """TD errors as float32; a third of them are equal."""
    drawn = np.random.default_rng(0).exponential(size=count).astype(np.float32)
    drawn[::3] = 1.0
    return drawn


def ours(sampler: Any, steps: int, batch: int, envs: int = 1) -> Step:
    """A sampler over one stream whose window is full; every step adds a row."""
    from diskreplay.sampling.window import Window

    rng, begin = np.random.default_rng(0), 0
    windows = [Window(0, steps, steps, envs)]
    sampler.update(np.arange(steps), errors(steps), windows, always)
    new = errors(64 * batch).reshape(64, batch)

    def step() -> float:
        nonlocal windows, begin
        begin += envs
        windows = [Window(begin, begin + steps, steps, envs)]
        start = time.perf_counter()
        ids, _ = sampler.sample(rng, windows, always, batch)
        middle = time.perf_counter()
        priorities = new[begin % 64]
        resumed = time.perf_counter()
        sampler.update(ids, priorities, windows, always)
        return time.perf_counter() - resumed + middle - start

    return step


def observations() -> np.ndarray:
    return np.random.default_rng(0).random((1 << 16, 4), dtype=np.float32)


def filled(path: str, steps: int, obs: np.ndarray, sampler: Any) -> Any:
    """Our store of 4-float observations, episodes of 1,000 steps."""
    from gymnasium import spaces

    import diskreplay as dr

    buffer = dr.ReplayBuffer.create(
        path, spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(4), capacity=steps, seed=0, sampler=sampler
    )
    for step in range(steps):
        at = (step + step // 1000) % 65_535  # an episode begins with another observation than the last one ended with
        buffer.add(obs[at], 0, 0.5, obs[at + 1], False, step % 1000 == 999)
    return buffer


def record(path: str, steps: int) -> None:
    """Makes a store of the four games."""
    with contenders.create_store(path, steps) as buffer:
        for episode in workload.mixture(steps):
            for step in episode.singles():
                buffer.add(*step)


def atari(path: str, steps: int) -> dict[str, float]:
    """Milliseconds of batches of 32 from one store of frames, opened with either sampler and the same seed."""
    import diskreplay as dr

    def opened(sampler: Any) -> Any:
        buffer = contenders.open_store(path, mode="r", sampler=sampler, seed=0)
        for _ in range(steps // 256):  # as many draws as the store holds: caches are as warm as they will be
            buffer.sample(256)
        return buffer

    uniform, proportional = opened(dr.Uniform()), opened(dr.Proportional())
    proportional.update_priorities(np.arange(steps), errors(steps))
    new, drawn = errors(32), []

    def timed(call: Callable[[], Any]) -> Step:
        def step() -> float:
            start = time.perf_counter()
            drawn[:] = [call()]
            return time.perf_counter() - start

        return step

    return in_turn(
        {
            "uniform": timed(lambda: uniform.sample(32)),
            "proportional": timed(lambda: proportional.sample(32)),
            "update": timed(lambda: proportional.update_priorities(drawn[0].index, new)),
        }
    )


def with_checkpoint(path: str, kind: str, steps: int) -> None:
    """Makes a store with ``steps`` priorities at a checkpoint."""
    import diskreplay as dr

    with filled(
        path, steps, observations(), {"Proportional": dr.Proportional, "RankBased": dr.RankBased}[kind]()
    ) as made:
        made.update_priorities(np.arange(steps), errors(steps))
        made.checkpoint("here")


def opening(path: str) -> dict[str, float]:
    """Seconds from the call of ``open`` to a first batch, in a fresh process and once more."""
    import diskreplay as dr

    def opened() -> None:
        with dr.ReplayBuffer.open(path, checkpoint="here", mode="r") as buffer:
            buffer.sample(32)

    return {"first": harness.seconds_of(opened, 1)[0], "again": harness.seconds_of(opened, 1)[0]}


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


def by_environment(steps: int, batch: int) -> dict[str, float]:
    """Milliseconds of the sampler alone as the number of environments that it draws from by themselves grows."""
    from diskreplay.sampling.proportional import Proportional

    made = {"all together": ours(Proportional(), steps, batch)}
    for envs in (8, 64):
        made[f"by each of {envs}"] = ours(Proportional(by_env=True), steps, batch, envs=envs)
    return in_turn(made)


def sparse(steps: int, every: int) -> dict[str, float]:
    """Milliseconds of `Uniform` alone where one id in ``every`` is an item."""
    from diskreplay.sampling.uniform import Uniform
    from diskreplay.sampling.window import Window

    items = np.zeros(steps, np.int8)
    items[np.random.default_rng(1).permutation(steps)[: steps // every]] = 1
    rng, windows, sampler = np.random.default_rng(0), [Window(0, steps, steps)], Uniform()
    return {
        str(batch): harness.median_ms(
            harness.seconds_of(lambda batch=batch: sampler.sample(rng, windows, items.__getitem__, batch), 300, 30)
        )
        for batch in (32, 256)
    }


def rank_based(steps: int, batch: int) -> dict[str, float]:
    from diskreplay.sampling.rank_based import RankBased

    contenders = {"ours": ours(RankBased(), steps, batch)}
    with contextlib.suppress(ImportError):
        if steps <= STEPS:
            contenders["sortedcontainers"] = sorted_list(steps, batch)
    return in_turn(contenders, CALLS // 2)


def tree(steps: int, batch: int) -> dict[str, float]:
    """The sum tree alone, milliseconds."""
    from diskreplay.index.sum_tree import WideSumTree

    rng, made = np.random.default_rng(0), WideSumTree(steps)
    made.fill(np.arange(steps), errors(steps).astype(np.float64) + 1e-6)
    ranges, maxima, left_out = np.array([[0, steps, 0]]), np.ones(1), np.zeros(1, np.int64)
    find, update = [], []
    for _ in range(CALLS):
        uniforms, priorities = rng.random(batch), rng.exponential(size=batch)
        start = time.perf_counter()
        slots, _ = made.draw(ranges, uniforms, 0.4)
        middle = time.perf_counter()
        made.update(ranges, maxima, left_out, slots, priorities, 0.6, 1e-6, (1e-280, 1e280))
        update.append(time.perf_counter() - middle)
        find.append(middle - start)
    return {"find": harness.median_ms(find), "update": harness.median_ms(update)}


def figures_of(steps: int, frames: int, folder: pathlib.Path) -> list[Figure]:
    """The rows that have a target."""
    rows = [
        Figure(f"sum tree alone: find {batch} and update {batch}", sum(each.values()), 0.06, "ms", aim=True)
        for batch in (32, 256)
        for each in [harness.fresh(tree, steps, batch)]
    ]
    harness.fresh(record, str(folder / "frames"), frames)
    found = harness.fresh(atari, str(folder / "frames"), frames)
    both = found["proportional"] + found["update"]
    rows.append(
        Figure("Atari, `sample(32)` proportional over uniform", found["proportional"], 1.15, "ms", found["uniform"])
    )
    rows.append(
        Figure("the same with `update_priorities(32)`, over uniform", both, 1.15, "ms", found["uniform"], aim=True)
    )
    for kind in ("Proportional", "RankBased"):
        path = str(folder / kind)
        harness.fresh(with_checkpoint, path, kind, steps)
        seconds = harness.fresh(opening, path)
        label = f"opening a store with {steps:,} priorities at a checkpoint, `{kind}`, and a first batch"
        rows.append(Figure(f"{label}, in a fresh process", seconds["first"], 0.6, "s"))
        rows.append(Figure("the same again", seconds["again"], 0.6, "s"))
    return rows


def main() -> None:
    arguments = harness.parser(__doc__, STEPS).parse_args()
    small = arguments.steps != STEPS
    with harness.scratch() as folder:
        figures = figures_of(arguments.steps, min(FRAMES, arguments.steps), folder)
    growth = []
    for steps in (arguments.steps,) if small else GROWTH:
        by_batch = {batch: harness.fresh(rank_based, steps, batch) for batch in (32, 256)}
        if steps == arguments.steps:
            figures.append(Figure("rank-based `sample(32)` and update of 32", by_batch[32]["ours"], 1.0, "ms"))
        cells = [harness.number(by_batch[batch]["ours"], "ms") for batch in (32, 256)]
        peer = by_batch[32].get("sortedcontainers")
        growth.append((f"{steps:,}", *cells, "" if peer is None else harness.number(peer, "ms")))
    envs = {batch: harness.fresh(by_environment, arguments.steps // 64 * 64, batch) for batch in (64, 256)}
    items = [(f"1 in {every:,}", harness.fresh(sparse, arguments.steps, every)) for every in (1, 40, 1000)]
    body = [
        harness.figures(figures),
        "Rank-based, the sampler alone, `sample` and `update`, as the window grows:",
        harness.table(("transitions", "batch 32", "batch 256", "batch 32 by `sortedcontainers`"), growth),
        "Proportional, the sampler alone, `sample` and `update`:",
        harness.table(
            ("environments", *(f"batch {batch}" for batch in envs)),
            [(how, *(harness.number(envs[batch][how], "ms") for batch in envs)) for how in envs[64]],
        ),
        f"`Uniform` alone, `sample`, by how many of {arguments.steps:,} ids are items:",
        harness.table(
            ("items", "batch 32", "batch 256"),
            [(label, *(harness.number(ms, "ms") for ms in each.values())) for label, each in items],
        ),
    ]
    packages = harness.versions("diskreplay", "numpy", "sortedcontainers")
    keep = not small and "priorities" in harness.SECTIONS
    harness.write_section("priorities", "Drawing with priorities", packages, "\n\n".join(body), keep=keep)


if __name__ == "__main__":
    main()
