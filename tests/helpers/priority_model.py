"""Streams of ids as a sampler sees them, and the two prioritised samplers in a few lines of plain Python.

The oracles know nothing of trees: they keep a dict of priorities and use the formulas of Schaul et al. (2016).
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from diskreplay.index.log import Standing
from diskreplay.sampling.window import Window

NEVER = 1 << 40
LOCAL = (1 << 48) - 1


@dataclasses.dataclass
class Stream:
    """Ids ``[first, len(ready))`` of one stream; an id is a transition once as many ids exist as ``ready`` says."""

    number: int
    rows: int
    num_envs: int = 1
    longest_wait: int = 0
    """How many ids at most must follow one before it is a transition."""
    first: int = 0
    ready: list[int] = dataclasses.field(default_factory=list)
    listed: bool = True

    @property
    def capacity(self) -> int:
        return self.rows * self.num_envs

    @property
    def stop(self) -> int:
        return len(self.ready)

    def add(self, delays: list[int]) -> None:
        """A delay is the number of ids, itself included, that must exist for the id to be a transition; 0 is never."""
        for delay in delays:
            self.ready.append(len(self.ready) + min(delay, self.longest_wait + 1) if delay else NEVER)
        self.first = max(self.first, self.stop - self.capacity)

    def id(self, local: int) -> int:
        return self.number << 48 | local

    def transitions(self) -> list[int]:
        return [self.id(i) for i in range(self.first, self.stop) if self.ready[i] <= self.stop]


class World:
    """All streams, as the buffer presents them; counts how often each id is asked for."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.asked: dict[int, int] = {}

    def windows(self) -> list[Window]:
        return [
            Window(stream.id(stream.first), stream.id(stream.stop), stream.capacity, stream.num_envs)
            for stream in self.streams.values()
            if stream.listed
        ]

    def standing(self, ids: np.ndarray) -> np.ndarray:
        answers = []
        for each in ids.tolist():
            stream, local = self.streams[each >> 48], each & LOCAL
            assert stream.first <= local < stream.stop, "asked for an id outside of its window"
            self.asked[each] = self.asked.get(each, 0) + 1
            ready = stream.ready[local]
            answers.append(
                Standing.NOW if ready <= stream.stop else Standing.NEVER if ready == NEVER else Standing.LATER
            )
        return np.array(answers, np.int8)

    def transitions(self) -> list[int]:
        return [each for stream in self.streams.values() if stream.listed for each in stream.transitions()]


class Oracle:
    """Priorities by id. ``epsilon`` is 0 for ranks."""

    def __init__(self, epsilon: float, by_env: bool = False) -> None:
        self.epsilon = epsilon
        self.by_env = by_env
        self.maxima: dict[Any, float] = collections.defaultdict(lambda: 1.0)
        self.priorities: dict[int, float] = {}
        self.ignored = 0
        self.order: list[Stream] = []

    def stream(self, each: int) -> Stream:
        return next(stream for stream in self.order if stream.number == each >> 48)

    def group(self, each: int) -> Any:
        """Whose running maximum is that of an id."""
        return (each >> 48, (each & LOCAL) % self.stream(each).num_envs) if self.by_env else None

    def groups(self, streams: Iterable[Stream]) -> list[Any]:
        return [(s.number, env) for s in streams for env in range(s.num_envs)] if self.by_env else [None]

    def catch_up(self, world: World) -> None:
        self.order.extend(s for s in world.streams.values() if s.listed and s not in self.order)
        self.priorities = {
            each: self.priorities.get(each, self.maxima[self.group(each)]) for each in world.transitions()
        }

    def forget(self, stream: Stream) -> None:
        """The stream's rows are others from now on; an environment's largest priority was one of theirs."""
        self.priorities = {k: v for k, v in self.priorities.items() if k >> 48 != stream.number}
        self.maxima.update({group: 1.0 for group in self.groups([stream]) if group is not None})

    def update(self, world: World, ids: list[int], errors: list[float]) -> None:
        self.catch_up(world)
        known = {each: abs(error) + self.epsilon for each, error in zip(ids, errors, strict=True)}  # the last one wins
        self.ignored += sum(each not in self.priorities for each in ids)
        for each, priority in known.items():
            if each in self.priorities:
                self.priorities[each] = priority
                self.maxima[self.group(each)] = max(self.maxima[self.group(each)], priority)

    def place(self, each: int) -> tuple[int, ...]:
        """Where an id stands in a sampler: streams as they came, in each a ring, or a ring for each environment."""
        stream, local = self.stream(each), each & LOCAL
        at = self.order.index(stream)
        if not self.by_env:
            return at, local % stream.capacity
        return at, local % stream.num_envs, local // stream.num_envs % stream.rows


Chances = dict[int, float]
"""P of ids."""


def distributions(oracle: Oracle, alpha: float, by_rank: bool) -> list[Chances]:
    """Those that a batch is drawn from, in order; each in the order in which a sampler's slices pass over it.

    By environment: of the environments of all streams that hold rows, whether or not one is a transition.
    """
    known = oracle.priorities
    held = [stream for stream in oracle.order if stream.listed and stream.stop > stream.first]
    found = []
    for group in oracle.groups(held):
        ids = [each for each in known if oracle.group(each) == group]
        if by_rank:
            ranked = sorted(ids, key=lambda each: (-known[each], -each))
            masses = {each: rank**-alpha for rank, each in enumerate(ranked, 1)}
        else:
            masses = {each: known[each] ** alpha for each in sorted(ids, key=oracle.place)}
        total = math.fsum(masses.values())
        found.append({each: mass / total for each, mass in masses.items()})
    return found


def check_sample(drawn: Any, weights: Any, shares: Any, chances: Chances, beta: float) -> None:
    """Whether draw k is the id in which ``shares[k]`` of the total falls, and has its weight."""
    ids, ends = list(chances), list(itertools.accumulate(chances.values()))
    largest = max((len(ids) * p) ** -beta for p in chances.values())
    for each, weight, share in zip(drawn.tolist(), weights.tolist(), shares.tolist(), strict=True):
        low, high = (min(bisect.bisect_right(ends, share + nudge), len(ids) - 1) for nudge in (-1e-9, 1e-9))
        assert each in ids[low : high + 1]
        np.testing.assert_allclose(weight, (len(ids) * chances[each]) ** -beta / largest, rtol=1e-6)


def critical(degrees: int, sigmas: float = 4.0) -> float:
    """What chi-square stays below in all but one of 30,000 cases (Wilson and Hilferty)."""
    spread = 2 / (9 * degrees)
    return float(degrees * (1 - spread + sigmas * spread**0.5) ** 3)


def chi_square(drawn: Any, chances: Chances) -> float:
    """Over the degrees of freedom's critical value: the draws have these chances if it is at most 1."""
    counts = dict(zip(*(part.tolist() for part in np.unique(drawn, return_counts=True)), strict=True))
    assert counts.keys() <= chances.keys()
    total = len(drawn)
    assert min(chances.values()) * total >= 5, "too few draws"
    value = sum((counts.get(each, 0) - total * p) ** 2 / (total * p) for each, p in chances.items())
    return value / critical(len(chances) - 1)


def moved_on(sampler: Any, oracle: Oracle, alpha: float, by_rank: bool = False) -> tuple[World, list[Chances]]:
    """Three environments and one, whose windows moved on with updates on the way, and the exact probabilities."""
    world, rng = World(), np.random.default_rng(8)
    for number, rows, num_envs in ((0, 9, 3), (4, 7, 1)):
        world.streams[number] = Stream(number, rows, num_envs, longest_wait=2)
    for _ in range(40):
        for stream in world.streams.values():
            stream.add([1, 1, 2, 1, 0, 1][: 3 * stream.num_envs])
        ids = rng.choice(world.transitions(), 12).tolist()
        errors = rng.exponential(size=12) * 3 + 0.5
        sampler.update(ids, errors, world.windows(), world.standing)
        oracle.update(world, ids, errors.tolist())
    return world, distributions(oracle, alpha, by_rank)
