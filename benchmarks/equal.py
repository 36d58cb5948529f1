"""Whether this checkout and another one draw the same batches, bit for bit, from the same seeds.

Each runs in a process of its own: every space, view and sampler, with the cache at 0, 4 MB and its default; beside rows
that no commit holds, beside eviction, beside another stream, after going back, and in a reader. A checkout from before
the core was in C compiles at once what it would compile later.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import importlib.util
import itertools
import os
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import harness
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

FRAME, STACKS = (spaces.Box(0, 255, shape, np.uint8) for shape in ((36, 36), (4, 36, 36)))
FEW, SOME, MANY = (spaces.Box(-1, 1, (size,), np.float32) for size in (2, 7, 300))
SPACES: dict[str, tuple[spaces.Space[Any], dict[str, Any]]] = {
    "floats": (SOME, {}), "floats on disk": (MANY, {}),
    "frames": (FRAME, {"frame_stack": 4}), "given stacks": (STACKS, {"frame_stack": 4, "stack_axis": 0}),
    "nested": (spaces.Dict(camera=FRAME, joints=spaces.Tuple([FEW, SOME])), {}),
    "goals": (spaces.Dict(observation=SOME, achieved_goal=FEW, desired_goal=FEW), {}),
}  # fmt: skip
VIEWS = ("Transition()", "Transition(3)", "Sequence(5)", "PaddedEpisodes(30)", "Hindsight(near)")
UPDATED, SELECTED = ("Proportional()", "RankBased()"), "Uniform()  # in a selection"
SAMPLERS = ("Uniform()", "Recent(half_life=50)", *UPDATED, "SamplerMixture([Uniform(), Recent(half_life=9)])", SELECTED)
CACHES: tuple[dict[str, int], ...] = ({"cache_bytes": 0}, {"cache_bytes": 4 << 20}, {})
CASES = [c for c in itertools.product(SPACES, (1, 3), VIEWS, SAMPLERS, CACHES) if "near" not in c[2] or c[0] == "goals"]
near = lambda achieved, desired, info: -np.abs(achieved - desired).sum(axis=1)  # noqa: E731


def feeder(name: str, envs: int, seed: int) -> Callable[[Any, int], None]:
    rng, lead = np.random.default_rng(seed), (envs,) * (envs > 1)
    space = batch_space(SPACES[name][0], envs) if lead else SPACES[name][0]
    space.seed(seed)
    now, *values = (space.sample() for _ in range(40))

    def feed(buffer: Any, count: int) -> None:
        nonlocal now
        for _ in range(count):  # some end, and some do not go on where the one before was
            new = values[rng.integers(39)]
            if name == "given stacks":
                new = np.concatenate([now[..., 1:, :, :], new[..., :1, :, :]], -3)
            over, cut, left = (np.asarray(rng.random(lead) < share) for share in (0.04, 0.03, 0.01))
            buffer.add(now, rng.integers(0, 3, lead), rng.random(lead), new, over, cut)
            now = values[rng.integers(39)] if (over | cut | left).any() else new

    return feed


def hashes(buffer: Any, count: int, sampler: str) -> Iterator[str]:
    within = {"within": buffer.select("length > 5")} if sampler == SELECTED else {}
    for number in range(count):
        try:
            batch = buffer.sample((1, 8, 32)[(len(buffer) + number) % 3], **within)
        except Exception as error:  # where no item is whole
            yield type(error).__name__
            continue
        found = hashlib.blake2b(digest_size=8)
        batch.map(lambda array, found=found: found.update(f"{array.dtype}{array.shape}".encode() + array.tobytes()))
        yield found.hexdigest()
        if sampler in UPDATED:
            buffer.update_priorities(batch.index, np.arange(1.0, len(batch.index) + 1))


def drawn(dr: Any, path: str, number: int, count: int) -> Iterator[str]:
    name, envs, view, sampler, cache = CASES[number]
    feed, names = feeder(name, envs, number), {each: getattr(dr, each) for each in dr.__all__} | {"near": near}
    shown = {"view": eval(view, names), "sampler": eval(sampler, names), "seed": number, **cache}
    made = {"capacity": 90 * envs, "num_envs": envs, "commit_rows": 1 << 30, "commit_seconds": 1e9}
    with dr.ReplayBuffer.create(path, SPACES[name][0], spaces.Discrete(3), **SPACES[name][1], **made, **shown) as rb:
        for part in range(4):  # from the second on rows leave the window
            feed(rb, 50)
            yield from (f"before commit {part} {found}" for found in hashes(rb, count, sampler))
            rb.commit()
        rb.checkpoint("a")
        feed(rb, 30)
    with dr.ReplayBuffer.open(path, stream="b", num_envs=1, capacity=40, **shown) as rb:
        feeder(name, 1, number + 1)(rb, 60)
        yield from (f"beside another stream {found}" for found in hashes(rb, count, sampler))
    for options in ({"checkpoint": "a"}, {"mode": "r"}):
        with dr.ReplayBuffer.open(path, **options, **shown) as rb:
            yield from (f"opened with {options} {found}" for found in hashes(rb, count, sampler))


def every(checkout: str, count: int) -> list[str]:
    sys.path.insert(0, checkout)
    dr, os.fsync = importlib.import_module("diskreplay"), lambda fd: None
    assert pathlib.Path(dr.__file__).is_relative_to(checkout)
    for name in filter(importlib.util.find_spec, ("diskreplay.reading.compiled", "diskreplay.engine.compiled_row")):
        importlib.import_module(name).LOAD_AFTER = 0  # of a checkout that compiles
    warnings.simplefilter("ignore")  # of steps that do not go on
    with harness.scratch("/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        cases = ((case, drawn(dr, f"{folder}/{at}.replay", at, count)) for at, case in enumerate(CASES))
        return [f"{case} {found}" for case, all_found in cases for found in all_found]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("other", type=pathlib.Path)
    asked.add_argument("--batches", type=int, default=100_000)
    given = asked.parse_args()
    checkouts, count = (harness.HERE.parent, given.other.resolve()), -(-given.batches // (7 * len(CASES)))
    with futures.ThreadPoolExecutor(2) as both:
        ours, theirs = both.map(lambda of: harness.fresh(every, str(of), count), checkouts)
    differ = collections.Counter(a.rpartition(" ")[0] for a, b in zip(ours, theirs, strict=True) if a != b)
    lacking = str(ours).count("Error")
    print(f"{len(ours):,} batches, {lacking:,} errors: {differ.total():,} differ", *differ.items(), sep="\n")


if __name__ == "__main__":
    main()
