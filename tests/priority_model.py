"""Streams of ids as a sampler sees them, and the two prioritised samplers in a few lines of plain Python.

The oracles know nothing of trees: they keep a dict of priorities and use the formulas of Schaul et al. (2016).
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from diskreplay.sampling.window import Window

NEVER = 1 << 40


@dataclasses.dataclass
class Stream:
    """Ids ``[first, len(ready))`` of one stream; an id is a transition once as many ids exist as ``ready`` says."""

    number: int
    capacity: int
    horizon: int
    first: int = 0
    ready: list[int] = dataclasses.field(default_factory=list)
    listed: bool = True

    @property
    def stop(self) -> int:
        return len(self.ready)

    def add(self, delays: list[int]) -> None:
        """A delay is the number of ids, itself included, that must exist for the id to be a transition; 0 is never."""
        for delay in delays:
            self.ready.append(len(self.ready) + min(delay, self.horizon + 1) if delay else NEVER)
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
            Window(stream.id(stream.first), stream.id(stream.stop), stream.capacity, stream.horizon)
            for stream in self.streams.values()
            if stream.listed
        ]

    def is_transition(self, ids: np.ndarray) -> np.ndarray:
        answers = []
        for each in ids.tolist():
            stream, local = self.streams[each >> 48], each & (1 << 48) - 1
            assert stream.first <= local < stream.stop, "asked for an id outside of its window"
            self.asked[each] = self.asked.get(each, 0) + 1
            answers.append(stream.ready[local] <= stream.stop)
        return np.array(answers, bool)

    def transitions(self) -> list[int]:
        return [each for stream in self.streams.values() if stream.listed for each in stream.transitions()]


class Oracle:
    """Priorities by id. ``epsilon`` is 0 for ranks."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon
        self.maximum = 1.0
        self.priorities: dict[int, float] = {}
        self.ignored = 0
        self.order: list[Stream] = []

    def catch_up(self, world: World) -> None:
        present = set(world.transitions())
        self.priorities = {each: self.priorities.get(each, self.maximum) for each in present}
        self.order.extend(s for s in world.streams.values() if s.listed and s not in self.order)

    def update(self, world: World, ids: list[int], errors: list[float]) -> None:
        self.catch_up(world)
        known = {each: abs(error) + self.epsilon for each, error in zip(ids, errors, strict=True)}  # the last one wins
        self.ignored += sum(each not in self.priorities for each in ids)
        known = {each: priority for each, priority in known.items() if each in self.priorities}
        self.priorities.update(known)
        self.maximum = max([self.maximum, *known.values()])

    def place(self, each: int) -> tuple[int, int]:
        """Where an id stands in a sampler: streams as they came, in each a ring."""
        at = next(k for k, stream in enumerate(self.order) if stream.number == each >> 48)
        return at, (each & (1 << 48) - 1) % self.order[at].capacity


def probabilities(oracle: Oracle, alpha: float, by_rank: bool) -> dict[int, float]:
    """P of every transition, in the order in which a sampler's slices pass over them."""
    known = oracle.priorities
    if by_rank:
        ranked = sorted(known, key=lambda each: (-known[each], -each))
        masses = {each: rank**-alpha for rank, each in enumerate(ranked, 1)}
    else:
        masses = {each: known[each] ** alpha for each in sorted(known, key=oracle.place)}
    total = math.fsum(masses.values())
    return {each: mass / total for each, mass in masses.items()}


def check_sample(drawn: Any, weights: Any, shares: list[float], chances: dict[int, float], beta: float) -> None:
    """Whether draw k is the id in which ``shares[k]`` of the total falls, and has its weight."""
    ids, ends = list(chances), list(itertools.accumulate(chances.values()))
    largest = max((len(ids) * p) ** -beta for p in chances.values())
    for each, weight, share in zip(drawn.tolist(), weights.tolist(), shares, strict=True):
        low, high = (min(bisect.bisect_right(ends, share + nudge), len(ids) - 1) for nudge in (-1e-9, 1e-9))
        assert each in ids[low : high + 1]
        np.testing.assert_allclose(weight, (len(ids) * chances[each]) ** -beta / largest, rtol=1e-6)


def critical(degrees: int, sigmas: float = 4.0) -> float:
    """What chi-square stays below in all but one of 30,000 cases (Wilson and Hilferty)."""
    spread = 2 / (9 * degrees)
    return float(degrees * (1 - spread + sigmas * spread**0.5) ** 3)


def chi_square(drawn: Any, chances: dict[int, float]) -> float:
    """Over the degrees of freedom's critical value: the draws have these chances if it is at most 1."""
    counts = dict(zip(*(part.tolist() for part in np.unique(drawn, return_counts=True)), strict=True))
    assert counts.keys() <= chances.keys()
    total = len(drawn)
    assert min(chances.values()) * total >= 5, "too few draws"
    value = sum((counts.get(each, 0) - total * p) ** 2 / (total * p) for each, p in chances.items())
    return value / critical(len(chances) - 1)
