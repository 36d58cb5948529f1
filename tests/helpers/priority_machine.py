"""A prioritised sampler beside its oracle, driven by the same random operations: what both samplers' tests share."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.priority_model import LOCAL, NEVER, Oracle, Stream, World, check_sample, distributions
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.index.log import Standing
from diskreplay.sampling.proportional import Proportional
from diskreplay.sampling.rank_based import RankBased
from diskreplay.sampling.window import Window

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


def check_going_on(make: Callable[[], Any]) -> None:
    """A restored sampler beside the one that went on, for a thousand batches: the same bits.

    With rows added meanwhile, four environments, a second stream that comes later, and a batch that is no multiple of
    twelve.
    """
    sampler, other = make(), None
    rng, draws, twin = np.random.default_rng(0), np.random.default_rng(7), np.random.default_rng(7)

    def standing(ids: np.ndarray) -> np.ndarray:
        local = ids & LOCAL
        late = (local % 3 == 0) & (local >= np.where(ids == local, rows, later) - 8)
        return np.select([local % 11 == 5, late], [Standing.NEVER, Standing.LATER], Standing.NOW).astype(np.int8)

    for step in range(2000):
        rows, later = 4 * step + 40, 0 if step < 500 else step - 400
        windows = [Window(max(0, rows - 404), rows, 404, 4), Window(3 << 48, 3 << 48 | later, 9999)]
        ids, weights = sampler.sample(draws, windows, standing, 40)
        if step == 999:
            other = copied(sampler, make())
            twin.bit_generator.state = draws.bit_generator.state
        elif other is not None:
            other_ids, other_weights = other.sample(twin, windows, standing, 40)
            assert ids.tobytes() == other_ids.tobytes()
            assert weights.tobytes() == other_weights.tobytes()
        errors = np.round(rng.normal(size=40).astype(np.float32) * 3, 1)
        for each in (sampler, other):
            if each is not None:
                each.update(ids, errors, windows, standing)
    assert other is not None
    assert same_state(sampler, other)


class SamplerMachine(RuleBasedStateMachine):
    """Subclasses make the sampler."""

    by_rank = False
    by_env = False

    def make(self) -> Proportional | RankBased:
        raise NotImplementedError

    @initialize(alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]), beta=st.sampled_from([0.0, 0.4, 1.0]))
    def begin(self, alpha: float, beta: float) -> None:
        self.alpha, self.beta = alpha, beta
        self.world = World()
        self.sampler = self.make()
        self.oracle = self.new_oracle()

    def new_oracle(self) -> Oracle:
        return Oracle(0.0 if self.by_rank else 1e-6, self.by_env)

    @rule(
        number=st.integers(0, 3),
        rows=st.sampled_from([1, 2, 7, 8, 9, 30]),
        num_envs=st.sampled_from([1, 1, 2, 3, 8]),
        longest_wait=st.sampled_from([0, 2, 8]),
    )
    def join(self, number: int, rows: int, num_envs: int, longest_wait: int) -> None:
        self.world.streams.setdefault(number * 5, Stream(number * 5, rows, num_envs, longest_wait))

    @rule(pick=SEEDS, delays=DELAYS)
    def add(self, pick: int, delays: list[int]) -> None:
        if stream := self.stream(pick):
            stream.add(delays)

    @rule(pick=SEEDS, count=st.integers(1, 12))
    def evict(self, pick: int, count: int) -> None:
        if stream := self.stream(pick):
            stream.first = min(stream.first + count, stream.stop)

    @rule(pick=SEEDS, rows=st.sampled_from([1, 2, 3, 8, 17, 40]))
    def resize(self, pick: int, rows: int) -> None:
        """What stays in the window keeps its priority, and is not asked for again."""
        if stream := self.stream(pick):
            stream.rows = rows
            stream.first = max(stream.first, stream.stop - stream.capacity)

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
            self.oracle.forget(stream)
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
        found = distributions(self.oracle, self.alpha, self.by_rank)
        if self.by_env and seed % 8:
            size *= max(1, len(found))
        arguments = self.world.windows(), self.world.standing, size
        rng = np.random.default_rng(seed)
        if not any(found):
            with pytest.raises(NotEnoughDataError, match="nothing in the window can be drawn"):
                self.sampler.sample(rng, *arguments)
        elif size % len(found):
            with pytest.raises(InputError, match=f"must be a multiple of the {len(found)} environments, got {size}"):
                self.sampler.sample(rng, *arguments)
        elif not all(found):
            with pytest.raises(NotEnoughDataError, match=f"environment {found.index({})} of {len(found)} has no trans"):
                self.sampler.sample(rng, *arguments)
        else:
            ids, weights = self.sampler.sample(rng, *arguments)
            assert (ids.dtype, weights.dtype) == (np.int64, np.float32)
            each = size // len(found)
            uniforms = np.random.default_rng(seed).random(size).reshape(-1, each)
            parts = ids.reshape(-1, each), weights.reshape(-1, each), (np.arange(each) + uniforms) / each, found
            for part in zip(*parts, strict=True):
                check_sample(*part, self.beta)
            return
        assert rng.random() == np.random.default_rng(seed).random(), "what gives no batch takes no random numbers"

    @rule(beta=st.sampled_from([0.0, 0.3, 1.0]))
    def set_beta(self, beta: float) -> None:
        self.sampler.beta = self.beta = beta

    @rule()
    def clear(self) -> None:
        self.sampler.clear()
        self.oracle = self.new_oracle()
        self.world.asked.clear()

    @rule(errors=st.lists(ERRORS, min_size=1, max_size=20), seed=SEEDS)
    def update(self, errors: list[float], seed: int) -> None:
        rng = np.random.default_rng(seed)
        listed = [stream for stream in self.world.streams.values() if stream.listed]
        evicted = [stream.id(local) for stream in listed for local in range(stream.first)]
        known = self.world.transitions() + evicted[-6:]
        if known:
            ids = rng.choice(known, len(errors)).tolist()
            self.sampler.update(np.array(ids), np.array(errors), self.world.windows(), self.world.standing)
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
            self.sampler.update(ids, [7.0] * (len(ids) - 1) + [error], self.world.windows(), self.world.standing)

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
            np.empty(0, np.int64), np.empty(0), self.world.windows(), self.world.standing
        )  # only catches up
        self.oracle.catch_up(self.world)
        facts, arrays = self.sampler.state()
        assert facts["ignored_updates"] == self.oracle.ignored
        maxima = [self.oracle.maxima[group] for group in self.oracle.groups(self.oracle.order)]
        np.testing.assert_allclose(facts["maxima"], maxima)
        np.testing.assert_allclose(self.sampler.maximum, max(maxima, default=1.0))
        held = {}
        values = iter(arrays["priority" if self.by_rank else "mass"].tolist())
        for run in facts["streams"]:
            for local in range(run["first"], run["stop"]):
                held[run["stream"] << 48 | local] = next(values)
        assert next(values, None) is None
        if not self.by_rank:
            np.testing.assert_allclose(self.sampler.total, sum(max(0.0, value) for value in held.values()))  # type: ignore[union-attr]
        present = {each: value for each, value in held.items() if value > (-1 if self.by_rank else 0)}
        assert present.keys() == self.oracle.priorities.keys()
        for each, value in present.items():
            np.testing.assert_allclose(value, self.kept(self.oracle.priorities[each]), rtol=1e-12)

    @rule(seed=SEEDS)
    def ask_for_probabilities(self, seed: int) -> None:
        """Of all that is and was, of ids that are not yet, and of a stream that is not there."""
        streams = self.world.streams.values()
        asked = [99 << 48, *(stream.id(local) for stream in streams for local in range(stream.stop + 2))]
        asked = np.random.default_rng(seed).permutation(asked)
        found = self.sampler.probability(asked, self.world.windows(), self.world.standing)
        self.oracle.catch_up(self.world)
        groups = [each for each in distributions(self.oracle, self.alpha, self.by_rank) if each]
        chances = {k: p / len(groups) for each in groups for k, p in each.items()}
        np.testing.assert_allclose(found, [chances.get(each, 0.0) for each in asked.tolist()], rtol=1e-9)

    @invariant()
    def asks_a_bounded_number_of_times(self) -> None:
        """No id is asked for again and again: once when it is new, once for each time that its window then grew."""
        for each, count in getattr(self, "world", World()).asked.items():
            assert count <= 2 + self.world.streams[each >> 48].longest_wait


def wrong_waiting(
    facts: dict[str, Any], arrays: dict[str, Any], name: str, nothing: float
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """States in which a row that has a priority waits, one waits twice, and two wait in the wrong order."""
    run, emptied = facts["streams"][0], arrays[name].copy()
    emptied[:2] = nothing
    first = run["first"]
    return [
        (
            facts | {"streams": [run | {"waiting": len(rows)}]},
            arrays | {name: values, "waiting": np.array(rows)},
        )
        for rows, values in (([first], arrays[name]), ([first, first], emptied), ([first + 1, first], emptied))
    ]
