"""A prioritised sampler beside its oracle, driven by the same random operations: what both samplers' tests share."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from priority_model import NEVER, Oracle, Stream, World, check_sample, probabilities

from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.sampling.proportional import Proportional
from diskreplay.sampling.rank_based import RankBased

ERRORS = st.sampled_from([0.0, 0.5, -0.5, 1.0, 1.0000001, 3.0, -40.0, 1e-12])
DELAYS = st.lists(st.sampled_from([1, 1, 1, 2, 3, 5, 9, 0]), min_size=1, max_size=13)
SEEDS = st.integers(0, 2**32 - 1)


def copied(sampler: Any, into: Any) -> Any:
    """A sampler restored from the other's state, which went through JSON and through bytes."""
    facts, arrays = sampler.state()
    stored = {key: np.frombuffer(array.tobytes(), array.dtype) for key, array in arrays.items()}
    into.restore(json.loads(json.dumps(facts)), stored)
    return into


def same_state(one: Any, other: Any) -> bool:
    (facts, arrays), (other_facts, other_arrays) = one.state(), other.state()
    return facts == other_facts and all(array.tobytes() == other_arrays[key].tobytes() for key, array in arrays.items())


class SamplerMachine(RuleBasedStateMachine):
    """Subclasses make the sampler."""

    by_rank = False

    def make(self) -> Proportional | RankBased:
        raise NotImplementedError

    @initialize(alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]), beta=st.sampled_from([0.0, 0.4, 1.0]))
    def begin(self, alpha: float, beta: float) -> None:
        self.alpha, self.beta = alpha, beta
        self.world = World()
        self.sampler = self.make()
        self.oracle = Oracle(0.0 if self.by_rank else 1e-6)

    @rule(number=st.integers(0, 3), capacity=st.sampled_from([1, 2, 7, 8, 9, 30]), horizon=st.sampled_from([0, 2, 8]))
    def join(self, number: int, capacity: int, horizon: int) -> None:
        self.world.streams.setdefault(number * 5, Stream(number * 5, capacity, horizon))

    @rule(pick=SEEDS, delays=DELAYS)
    def add(self, pick: int, delays: list[int]) -> None:
        if stream := self.stream(pick):
            stream.add(delays)

    @rule(pick=SEEDS, count=st.integers(1, 12))
    def evict(self, pick: int, count: int) -> None:
        if stream := self.stream(pick):
            stream.first = min(stream.first + count, stream.stop)

    @rule(pick=SEEDS)
    def hide(self, pick: int) -> None:
        if stream := self.stream(pick):
            stream.listed = not stream.listed
            self.forget_questions(stream)

    @rule(pick=SEEDS, count=st.integers(1, 5), delays=DELAYS)
    def take_rows_back(self, pick: int, count: int, delays: list[int]) -> None:
        """Another writer returned to a checkpoint: the last rows are others from now on."""
        if stream := self.stream(pick):
            del stream.ready[max(stream.first, stream.stop - count) :]
            self.sampler.forget(stream.number)
            self.oracle.priorities = {k: v for k, v in self.oracle.priorities.items() if k >> 48 != stream.number}
            stream.add(delays)
            self.forget_questions(stream)

    def forget_questions(self, stream: Stream) -> None:
        self.world.asked = {k: v for k, v in self.world.asked.items() if k >> 48 != stream.number}

    def stream(self, pick: int) -> Stream | None:
        streams = list(self.world.streams.values())
        return streams[pick % len(streams)] if streams else None

    @rule(size=st.sampled_from([1, 2, 5, 32]), seed=SEEDS)
    def sample(self, size: int, seed: int) -> None:
        self.oracle.catch_up(self.world)
        chances = probabilities(self.oracle, self.alpha, self.by_rank)
        arguments = self.world.windows(), self.world.is_transition, size
        if not chances:
            with pytest.raises(NotEnoughDataError, match="no row in the window is a transition"):
                self.sampler.sample(np.random.default_rng(seed), *arguments)
            return
        ids, weights = self.sampler.sample(np.random.default_rng(seed), *arguments)
        assert (ids.dtype, weights.dtype) == (np.int64, np.float32)
        shares = ((np.arange(size) + np.random.default_rng(seed).random(size)) / size).tolist()
        check_sample(ids, weights, shares, chances, self.beta)

    @rule(errors=st.lists(ERRORS, min_size=1, max_size=20), seed=SEEDS)
    def update(self, errors: list[float], seed: int) -> None:
        rng = np.random.default_rng(seed)
        listed = [stream for stream in self.world.streams.values() if stream.listed]
        evicted = [stream.id(local) for stream in listed for local in range(stream.first)]
        known = self.world.transitions() + evicted[-6:]
        if known:
            ids = rng.choice(known, len(errors)).tolist()
            self.sampler.update(np.array(ids), np.array(errors), self.world.windows(), self.world.is_transition)
            self.oracle.update(self.world, ids, errors)

    @rule(error=st.sampled_from([np.nan, np.inf, -np.inf, 1.0]), seed=SEEDS)
    def update_wrongly(self, error: float, seed: int) -> None:
        """A bad priority, or the id of no transition, at the end of good ones: nothing may change."""
        good = self.world.transitions()
        never = [99 << 48, -1]
        for stream in self.world.streams.values():
            if stream.listed:
                never.append(stream.id(stream.stop))
                never.extend(
                    stream.id(local) for local in range(stream.first, stream.stop) if stream.ready[local] == NEVER
                )
        if error == 1.0:
            ids = [*good, never[seed % len(never)]]
        elif good:
            ids = [*good, good[0]]
        else:
            return
        self.oracle.catch_up(self.world)
        with pytest.raises(InputError, match="names no transition" if error == 1.0 else "must be finite"):
            self.sampler.update(ids, [7.0] * (len(ids) - 1) + [error], self.world.windows(), self.world.is_transition)

    @rule()
    def go_on_from_state(self) -> None:
        restored = copied(self.sampler, self.make())
        assert same_state(restored, self.sampler)
        self.sampler = restored

    def kept(self, each: float) -> float:
        """What the sampler's arrays hold for a priority."""
        return each if self.by_rank else each**self.alpha

    @rule()
    def compare(self) -> None:
        self.sampler.update(
            np.empty(0, np.int64), np.empty(0), self.world.windows(), self.world.is_transition
        )  # only catches up
        self.oracle.catch_up(self.world)
        facts, arrays = self.sampler.state()
        assert facts["ignored_updates"] == self.oracle.ignored
        np.testing.assert_allclose(facts["maximum"], self.oracle.maximum)
        held = {}
        values = iter(arrays["priority" if self.by_rank else "mass"].tolist())
        for run in facts["streams"]:
            for local in range(run["first"], run["stop"]):
                held[run["stream"] << 48 | local] = next(values)
        assert next(values, None) is None
        present = {each: value for each, value in held.items() if value > (-1 if self.by_rank else 0)}
        assert present.keys() == self.oracle.priorities.keys()
        for each, value in present.items():
            np.testing.assert_allclose(value, self.kept(self.oracle.priorities[each]), rtol=1e-12)

    @invariant()
    def asks_a_bounded_number_of_times(self) -> None:
        """No id is asked for again and again: once when it is new, once for each time that its window then grew."""
        for each, count in getattr(self, "world", World()).asked.items():
            assert count <= 2 + self.world.streams[each >> 48].horizon
