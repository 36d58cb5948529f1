"""Mixtures of samplers: shares, probabilities, priorities and state beside the samplers by themselves."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from helpers.configs import Config
from helpers.effort import examples
from helpers.model import Leaf
from helpers.own_samplers import Newest, Rarest
from helpers.priority_model import Oracle, Stream, World, chi_square, distributions, moved_on
from helpers.recording import Recording, recorded_in, reopen

import diskreplay as dr
from diskreplay.errors import CorruptionError, FormatVersionError, InputError, NotEnoughDataError, SamplerWarning
from diskreplay.sampling import registry

CONFIG = Config("mixture", Leaf((3,), np.float32), capacity=60)


def test_the_chances_are_those_of_the_parts_by_their_weights() -> None:
    sampler = dr.SamplerMixture([dr.Proportional(0.8, 0.5), dr.Recent(newest=6), dr.Uniform()], weights=(0.5, 0.3, 0.2))
    world, (prioritized,) = moved_on(sampler, Oracle(1e-6), 0.8)
    every = world.transitions()
    recent = dr.Recent(newest=6).probability(every, world.windows(), world.standing)
    chances = {
        each: 0.5 * prioritized[each] + 0.3 * newest + 0.2 / len(every)
        for each, newest in zip(every, recent.tolist(), strict=True)
    }
    stated = sampler.probability(every, world.windows(), world.standing)
    np.testing.assert_allclose(stated, list(chances.values()), rtol=1e-6)
    rng = np.random.default_rng(2)
    drawn = [sampler.sample(rng, world.windows(), world.standing, 33)[0] for _ in range(900)]
    assert chi_square(np.concatenate(drawn), chances) <= 1


def test_each_part_draws_what_it_would_draw_alone() -> None:
    """Ids, weights and random numbers, in the order of the parts, with updates beside an oracle between the draws."""
    sampler = dr.SamplerMixture([dr.Recent(half_life=9), dr.Proportional(0.7, 1.0)], weights=(1, 2))
    alone, oracle = dr.Proportional(0.7, 1.0), Oracle(1e-6)
    world, ours, theirs = World(), np.random.default_rng(5), np.random.default_rng(5)
    world.streams[0] = Stream(0, 20, 2, longest_wait=2)
    rng, counted = np.random.default_rng(0), [0, 0]
    for turn in range(examples(200)):
        world.streams[0].add(rng.integers(0, 3, 2).tolist())
        if len(world.transitions()) < 2:
            continue
        size = int(rng.integers(1, 12))
        ids, weights = sampler.sample(ours, world.windows(), world.standing, size)
        first = sampler.state()[0]["given"][0] - counted[0]
        assert abs(3 * (counted[0] + first) - sum(counted) - size) < 3
        newest = dr.Recent(half_life=9).sample(theirs, world.windows(), world.standing, first)[0] if first else []
        assert ids[:first].tolist() == list(newest)
        assert (weights[:first] == 1).all()
        if size > first:
            others, told = alone.sample(theirs, world.windows(), world.standing, size - first)
            assert (ids[first:].tolist(), weights[first:].tolist()) == (others.tolist(), told.tolist())
        counted = [counted[0] + first, counted[1] + size - first]
        errors = rng.exponential(size=size)
        for each in (sampler, alone):
            each.update(ids, errors, world.windows(), world.standing)
        oracle.update(world, ids.tolist(), errors.tolist())
        if turn % 20 == 19:
            (chances,) = distributions(oracle, 0.7, False)
            there = list(chances)
            stated = sampler.samplers[1].probability(there, world.windows(), world.standing)
            np.testing.assert_allclose(stated, list(chances.values()), rtol=1e-6)
    assert ours.bit_generator.state == theirs.bit_generator.state


@pytest.mark.parametrize("told", [dr.Proportional, dr.RankBased, None], ids=str)
def test_a_checkpoint_goes_on_bit_for_bit(path: str, told: Any) -> None:
    def made() -> dr.SamplerMixture:
        return dr.SamplerMixture([dr.Recent(fraction=0.25), told() if told else dr.Uniform()], weights=(0.4, 0.6))

    def go_on(buffer: dr.ReplayBuffer) -> list[Any]:
        found = []
        for size in (7, 3, 11, 1, 1, 8):
            batch = buffer.sample(size)
            found.append((batch.index.tolist(), batch.weight.tolist()))
            if told:
                buffer.update_priorities(batch.index, np.sin(batch.index))
        return found

    with recorded_in(CONFIG, path, 40, sampler=made()) as (buffer, recording):
        go_on(buffer)
        recording.add(buffer, 40)
        buffer.sample(9)
        buffer.checkpoint("here")
        expected = go_on(buffer)
    with reopen(CONFIG, path, checkpoint="here") as buffer:
        assert go_on(buffer) == expected
        buffer.clear()
        assert isinstance(buffer.sampler, dr.SamplerMixture)
        assert buffer.sampler.is_new
    with reopen(CONFIG, path, checkpoint="here", sampler=made(), mode="r") as buffer:
        assert go_on(buffer) == expected


def test_a_mixture_with_a_sampler_of_ones_own(path: str) -> None:
    """Has to be given each time, and is then given its state back."""
    with recorded_in(CONFIG, path, 40, sampler=dr.SamplerMixture([Rarest(), dr.Uniform()])) as (buffer, _):
        buffer.update_priorities(buffer.sample(8).index, np.arange(8.0))
        buffer.checkpoint("here")
        expected = [buffer.sample(5).index.tolist() for _ in range(9)]
    with pytest.raises(FormatVersionError, match=r"sampler=\.\.\."):
        reopen(CONFIG, path)
    with reopen(CONFIG, path, checkpoint="here", sampler=dr.SamplerMixture([Rarest(), dr.Uniform()])) as buffer:
        assert [buffer.sample(5).index.tolist() for _ in range(9)] == expected
    with pytest.warns(SamplerWarning, match="it holds the state of SamplerMixture of Rarest, Uniform"):
        buffer = reopen(CONFIG, path, checkpoint="here", sampler=dr.SamplerMixture([dr.Uniform(), Rarest()]))
    with buffer:
        assert isinstance(buffer.sampler, dr.SamplerMixture)
        assert buffer.sampler.is_new


def test_what_a_part_draws_is_checked(path: str) -> None:
    class Wrong(Newest):
        def sample(self, *arguments: Any) -> Any:
            ids, weights = super().sample(*arguments)
            return ids + 10_000, weights

    sampler, said = dr.SamplerMixture([dr.Uniform(), Wrong(3)]), "gave an id that cannot be sampled"
    with recorded_in(CONFIG, path, 40, sampler=sampler) as (buffer, _), pytest.raises(InputError, match=said):
        buffer.sample(4)


def test_a_state_that_is_none_changes_nothing() -> None:
    sampler, plain = dr.SamplerMixture([dr.Proportional()]), dr.SamplerMixture([dr.Uniform()])
    facts, arrays = sampler.state()
    for bad in ({}, {**facts, "given": [-1]}, {**facts, "given": ["1"]}, {**facts, "state": None}, plain.state()[0]):
        with pytest.raises((ValueError, KeyError)):
            sampler.restore(bad, arrays)
        assert sampler.state()[0] == facts
    with pytest.raises(ValueError, match="not both"):
        plain.restore(facts, arrays)


def test_a_damaged_count_is_an_error_with_a_name(path: str) -> None:
    with recorded_in(CONFIG, path, 9, sampler=dr.SamplerMixture([dr.Uniform()])) as (buffer, _):
        buffer.sampler._given = [-3]  # type: ignore[attr-defined]
        buffer.checkpoint("here")
    with pytest.raises(CorruptionError, match="priorities of checkpoint 'here' cannot be read"):
        reopen(CONFIG, path, checkpoint="here")


MISFITS: list[tuple[Any, str]] = [
    (lambda: dr.SamplerMixture([]), "at least one sampler"),
    (lambda: dr.SamplerMixture(dr.Uniform()), "must be a list"),  # type: ignore[arg-type]
    (lambda: dr.SamplerMixture([dr.Uniform]), r"got the class Uniform; write Uniform\("),  # type: ignore[list-item]
    (lambda: dr.SamplerMixture([3]), "lacks sample"),  # type: ignore[list-item]
    (lambda: dr.SamplerMixture([dr.SamplerMixture([dr.Uniform()])]), "takes no mixture"),
    (lambda: dr.SamplerMixture([dr.Proportional(), dr.RankBased()]), "takes one sampler with priorities"),
    (lambda: dr.SamplerMixture([Rarest(), dr.RankBased()]), "takes one sampler with priorities"),
    (lambda: dr.SamplerMixture([dr.Uniform(), dr.Uniform()], (1,)), "weights must be 2 numbers"),
    (lambda: dr.SamplerMixture([dr.Uniform(), dr.Uniform()], (1, 0)), "weights must be a finite number above 0"),
]


@pytest.mark.parametrize(("make", "message"), MISFITS)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_its_parts_belong_to_one_buffer(path: str, tmp_path: pathlib.Path) -> None:
    told = dr.Proportional()
    with CONFIG.create(path, sampler=dr.SamplerMixture([told, dr.Uniform()])) as buffer:
        for sampler in (told, dr.SamplerMixture([dr.Recent(newest=3), told])):
            with pytest.raises(InputError, match="holds the priorities of the open buffer"):
                CONFIG.create(str(tmp_path / "b"), sampler=sampler)
        with pytest.raises(InputError, match="holds the priorities of the open buffer"):
            CONFIG.create(str(tmp_path / "b"), sampler=buffer.sampler)
    assert not (tmp_path / "b").exists()


def test_priorities_and_data_that_are_missing_are_said(path: str) -> None:
    with CONFIG.create(path, sampler=dr.SamplerMixture([dr.Uniform(), dr.Recent(newest=2)])) as buffer:
        with pytest.raises(NotEnoughDataError):
            buffer.sample(1)
        Recording(CONFIG).add(buffer, 20)
        with pytest.raises(InputError, match=r"has no priorities; give it a Proportional\(\)"):
            buffer.update_priorities(buffer.sample(3).index, np.ones(3))


@pytest.mark.parametrize("kind", [dr.Uniform, dr.Recent, dr.Proportional, dr.RankBased])
def test_unknown_fields_of_a_document_are_ignored(kind: Any) -> None:
    """As docs/format.md has it of all documents: a later version may add some."""
    sampler = dr.SamplerMixture([kind(newest=3) if kind is dr.Recent else kind(), dr.Uniform()])
    stored = sampler.to_json() | {"later": 1}
    stored["samplers"] = [one | {"later": 2} for one in stored["samplers"]]
    assert registry.from_json(stored).to_json() == sampler.to_json()
