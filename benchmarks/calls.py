"""What a call costs, ours and other libraries': contenders by turns in one process, windows full.

Each is an iterator that makes one call for each item. They take turns in bursts, in another order each round. Ours is
on disk, commits included; theirs in RAM. The floor is what the call must do at the least.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import pathlib
import random
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import contenders
import harness
import numpy as np
import rows
from gymnasium import spaces

WIDE = spaces.Box(-np.inf, np.inf, (376,), np.float32)
CASES = {
    "17 floats": rows.Case("17 floats", rows.VECTOR, 1, 10_000, 1000),
    "84x84": rows.Case("84x84", rows.FRAME, 1, 8000, 1000),
    "376 floats": rows.Case("376 floats", WIDE, 1, 10_000, 1000),
    **{
        f"{envs:,} environments": rows.Case(f"17 floats, {envs:,} environments", rows.VECTOR, envs, count, 200, 0, True)
        for envs, count in ((8, 10_000), (64, 2000), (1024, 400))
    },
}
BURST = 10_000
"""Rows that one contender adds in its turn: as many as ours adds between two commits."""

Calls = Iterator[Any]
"""Makes one call for each item."""
Costs = dict[str, dict[str, float]]
"""Microseconds of a call of each contender: "thread", "process" of processor time; "p99", "longest" by the clock."""


# Turns


def by_turns(
    calls: Mapping[str, Calls], count: int, rounds: int, before: Mapping[str, Calls] | None = None, tails: int = 0
) -> Costs:
    """Medians of the rounds, after one that does not count; ``tails`` calls more tell of the slowest."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name in random.Random(turn).sample(list(calls), len(calls)):
            burst = timed(calls[name], count) if before is None else timed_apart(calls[name], before[name], count)
            spent[name] += [burst] if turn else []
    found = {
        name: dict(zip(("thread", "process"), map(statistics.median, zip(*each, strict=True)), strict=True))
        for name, each in spent.items()
    }
    for name in calls if tails else ():
        seconds = harness.seconds_of(functools.partial(next, calls[name]), tails)
        found[name] |= {"p99": 1e6 * float(np.percentile(seconds, 99)), "longest": 1e6 * max(seconds)}
    return found


def timed(calls: Calls, count: int) -> tuple[float, float]:
    """Microseconds of a call, of this thread and of the process."""
    thread, process = time.thread_time(), time.process_time()
    exhaust(calls, count)
    thread, process = time.thread_time() - thread, time.process_time() - process
    return 1e6 * thread / count, 1e6 * process / count


def timed_apart(calls: Calls, before: Calls, count: int) -> tuple[float, float]:
    """The same where something comes before each call that does not count; nor does reading the clocks."""

    def clocked(calls: Calls, before: Calls) -> tuple[float, float]:
        threads = processes = 0.0
        for _ in range(count):
            next(before)
            process, thread = time.process_time(), time.thread_time()
            next(calls)
            threads += time.thread_time() - thread
            processes += time.process_time() - process
        return 1e6 * threads / count, 1e6 * processes / count

    nothing = clocked(itertools.repeat(None), itertools.repeat(None))
    thread, process = clocked(calls, before)
    return thread - nothing[0], process - nothing[1]


def exhaust(calls: Calls, count: int) -> None:
    collections.deque(itertools.islice(calls, count), maxlen=0)


def again(call: Callable[..., Any], *arguments: Any) -> Calls:
    return itertools.starmap(call, itertools.repeat(arguments))


def through(call: Callable[..., Any], steps: list[tuple[Any, ...]]) -> Calls:
    return itertools.starmap(call, itertools.cycle(steps))


# Buffers of a case's steps


def ours(folder: pathlib.Path, case: rows.Case, held: int, **options: Any) -> Any:
    spaces_ = {"observation_space": case.obs, "action_space": case.action}
    options = {"num_envs": case.envs, "frame_stack": 4 if case.obs is rows.FRAME else 1, **spaces_, **options}
    return contenders.create_store(str(folder / "store"), held - held % case.envs, **options)


def sb3(case: rows.Case, held: int) -> Any:
    from stable_baselines3.common.buffers import ReplayBuffer

    return ReplayBuffer(held, case.obs, case.action, device="cpu", n_envs=case.envs)


def cpprb(case: rows.Case, held: int, kind: str = "ReplayBuffer", **options: Any) -> Any:
    import cpprb as package

    obs, action = {"shape": case.obs.shape, "dtype": case.obs.dtype}, {"shape": case.action.shape or 1}
    fields = {"obs": obs, "next_obs": obs, "act": action, "rew": {}, "done": {}, "truncated": {}}
    return getattr(package, kind)(held, fields, **options)


def named(*step: Any) -> dict[str, Any]:
    return dict(zip(("obs", "act", "rew", "next_obs", "done", "truncated"), step, strict=True))


def through_cpprb(buffer: Any, steps: list[tuple[Any, ...]]) -> Calls:
    return (buffer.add(**each) for each in itertools.cycle([named(*step) for step in steps]))


def filled(peer: Any, case: rows.Case, steps: list[tuple[Any, ...]], held: int) -> Any:
    """cpprb's buffer with ``held`` transitions, a pass over the steps in a call."""
    columns = [np.concatenate(column) if case.envs > 1 else np.array(column) for column in zip(*steps, strict=True)]
    for first in range(0, held, len(columns[0])):
        peer.add(**named(*(column[: held - first] for column in columns)))
    return peer


# What is measured, each in a process of its own


def adding(name: str, held: int, rounds: int) -> Costs:
    warnings.simplefilter("ignore")
    case = CASES[name]
    steps = rows.calls(case)
    ring = np.empty((min(held, 100_000) // case.envs, *np.shape(steps[0][0])), case.obs.dtype)
    with harness.scratch() as folder, ours(folder, case, held) as buffer:
        calls = {"ours": through(buffer.add, steps)}
        with contextlib.suppress(ImportError):
            calls["SB3"] = through(sb3(case, held).add, [contenders.sb3_arguments(step) for step in steps])
        for each in calls.values():
            exhaust(each, held // case.envs)
        observed = itertools.cycle([step[0] for step in steps])
        calls["np.copyto"] = map(np.copyto, itertools.cycle(ring), observed)
        return by_turns(calls, BURST if case.envs < 100 else BURST // 5, rounds, tails=2 * BURST)


def proportional(batch: int, held: int, rounds: int) -> Costs:
    import priorities

    import diskreplay as dr

    case = CASES["17 floats"]
    steps, errors = rows.calls(case), priorities.errors(held)
    new = itertools.cycle(priorities.errors(64 * batch).reshape(64, batch))
    with harness.scratch() as folder, ours(folder, case, held, sampler=dr.Proportional()) as buffer:
        before = {"ours": through(buffer.add, steps)}
        exhaust(before["ours"], held)
        buffer.update_priorities(np.arange(held), errors)
        calls = {"ours": (buffer.update_priorities(buffer.sample(batch).index, each) for each in new)}
        with contextlib.suppress(ImportError):
            peer = filled(cpprb(case, held, "PrioritizedReplayBuffer", alpha=0.6), case, steps, held)
            peer.update_priorities(np.arange(held), errors)
            before["cpprb"] = through_cpprb(peer, steps)
            calls["cpprb"] = (peer.update_priorities(peer.sample(batch, beta=0.4)["indexes"], each) for each in new)
        return by_turns(calls, max(100, 10_000 // batch), rounds, before)


def frames(batch: int, held: int, rounds: int) -> Costs:
    """Of recorded frames in stacks of 4, all of which ours has read; NumPy takes them out of an array of all frames."""
    with harness.scratch() as folder:
        sample, _ = contenders.diskreplay(held, str(folder), cache_bytes=1 << 33)
        exhaust(again(sample, 256), 3 * held // 256)
        shown = sample(batch)
        block = np.concatenate([shown.obs.ravel(), shown.next_obs.ravel()])
        every, out = np.resize(shown.obs[0], (held, 84, 84)), np.empty((2, batch, 4, 84, 84), np.uint8)
        newest = np.random.default_rng(0).integers(3, held - 1, size=(1000, 1, batch, 1))
        places = itertools.cycle(newest + np.arange(2)[:, None, None] + np.arange(-3, 1))
        calls = {
            "ours": again(sample, batch),
            "memset": again(block.fill, 0),
            "np.copyto": again(np.copyto, np.empty_like(block), block.copy()),
            "np.take": (every.take(each, axis=0, out=out, mode="clip") for each in places),
        }
        with contextlib.suppress(ImportError):
            calls["cpprb"] = again(contenders.cpprb(held, str(folder))[0], batch)
        return by_turns(calls, 6400 // batch, rounds, tails=12_800 // batch)


def vectors(batch: int, held: int, rounds: int) -> Costs:
    case = CASES["17 floats"]
    steps, rng = rows.calls(case), np.random.default_rng(0)
    with harness.scratch() as folder, ours(folder, case, held) as buffer:
        exhaust(through(buffer.add, steps), held)
        calls = {"ours": again(buffer.sample, batch)}
        whole = [np.resize(np.array(column), (held, *np.shape(column[0]))) for column in zip(*steps, strict=True)]
        places = itertools.cycle(rng.integers(held, size=(1000, batch)))
        calls["np.take"] = ([column.take(each, axis=0) for column in whole] for each in places)
        with contextlib.suppress(ImportError):
            calls["cpprb"] = again(filled(cpprb(case, held), case, steps, held).sample, batch)
        return by_turns(calls, 1000, rounds, tails=5000)


def torch(name: str, held: int, rounds: int) -> Costs:
    """A row and a batch of 256 as tensors."""
    import torch

    warnings.simplefilter("ignore")
    case = CASES[name]
    steps = rows.calls(case)
    with harness.scratch() as folder, ours(folder, case, held) as buffer:
        adding = {"ours": through(buffer.add, steps)}
        drawing: dict[str, Calls] = {"ours": (buffer.sample(256).torch("cpu") for _ in itertools.count())}
        with contextlib.suppress(ImportError):
            peer = sb3(case, held)
            adding["SB3"] = through(peer.add, [contenders.sb3_arguments(step) for step in steps])
            drawing["SB3"] = again(peer.sample, 256)
        for each in adding.values():
            exhaust(each, held // case.envs)
        with contextlib.suppress(ImportError):
            other = filled(cpprb(case, held), case, steps, held)
            adding["cpprb"] = through_cpprb(other, steps)
            drawing["cpprb"] = (
                {key: torch.from_numpy(array) for key, array in other.sample(256).items()} for _ in itertools.count()
            )
        both = {name: zip(adding[name], drawing[name], strict=True) for name in adding}
        return by_turns(both, 1000, rounds, tails=5000)


def first_rows(name: str, count: int) -> dict[str, float]:
    """Milliseconds of `add` of the first rows, with all commits that are due: p99.9, and the longest.

    And the longest time between two counts of a thread that only counts, for as long: what the machine does to it.
    """
    case = CASES[name]
    steps = rows.calls(case)
    with harness.scratch() as folder, ours(folder, case, count) as buffer:
        calls = through(buffer.add, steps)
        seconds = harness.seconds_of(functools.partial(next, calls), count)
    until, now, gap = time.perf_counter() + sum(seconds), time.perf_counter(), 0.0
    while now < until:
        before, now = now, time.perf_counter()
        gap = max(gap, now - before)
    return {"p99.9": 1e3 * float(np.percentile(seconds, 99.9)), "longest": 1e3 * max(seconds), "counting": 1e3 * gap}


def beside_writer(held: int, seconds: float, rounds: int) -> dict[str, float]:
    """p99 of `sample(256)` in milliseconds, alone and while another thread adds 1,000 rows a second and commits."""
    case = CASES["17 floats"]
    found: dict[str, list[float]] = {"alone": [], "beside": []}
    with harness.scratch() as folder, ours(folder, case, held, commit_seconds=1.0) as buffer:
        calls = through(buffer.add, rows.calls(case))
        exhaust(calls, held)
        buffer.commit()
        for turn in range(2 * rounds):
            stop, kind = threading.Event(), ("alone", "beside")[turn % 2]
            writer = threading.Thread(target=paced, args=(calls, stop))
            if kind == "beside":
                writer.start()
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                found[kind] += harness.seconds_of(functools.partial(buffer.sample, 256), 100)
            stop.set()
            if kind == "beside":
                writer.join()
    return {kind: 1e3 * float(np.percentile(each, 99)) for kind, each in found.items()}


def paced(calls: Calls, stop: threading.Event) -> None:
    """Makes 1,000 calls a second."""
    begun, made = time.perf_counter(), 0
    while not stop.wait(0.001):
        due = int(1000 * (time.perf_counter() - begun))
        exhaust(calls, due - made)
        made = due
