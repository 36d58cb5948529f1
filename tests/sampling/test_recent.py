"""Recent experience: the probabilities beside the definition in plain Python, and what is drawn beside them."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers.configs import Config
from helpers.model import Leaf
from helpers.priority_model import LOCAL, Stream, World, chi_square
from helpers.recording import recorded_in, reopen

import diskreplay as dr
from diskreplay.errors import InputError, NotEnoughDataError

CONFIG = Config("recent", Leaf((3,), np.float32), num_envs=2, capacity=60, n_step=3)


def expected(sampler: dr.Recent, world: World) -> dict[int, float]:
    """P of each transition, by the definition: a loop over rows."""
    masses: dict[int, float] = {}
    for stream in world.streams.values():
        if not stream.listed:
            continue
        rows = (stream.stop - stream.first) // stream.num_envs
        if sampler.newest is not None:
            kept = math.ceil(sampler.newest / stream.num_envs)
        else:
            kept = rows if sampler.fraction is None else math.ceil(sampler.fraction * rows)
        for each in stream.transitions():
            age = (stream.stop - 1 - (each & LOCAL)) // stream.num_envs
            if age < kept:
                decay = age * stream.num_envs / sampler.half_life if sampler.half_life else 0.0
                masses[each] = 2.0**-decay
    total = math.fsum(masses.values())
    return {each: mass / total for each, mass in masses.items()}


def world_of(seed: int) -> World:
    """Two streams of 3 and 1 environments, and one with nothing in it; not all ids are transitions."""
    world, rng = World(), np.random.default_rng(seed)
    for number, rows, num_envs in ((0, 9, 3), (4, 30, 1), (5, 4, 2)):
        world.streams[number] = Stream(number, rows, num_envs, longest_wait=2)
    for _ in range(25):
        world.streams[0].add(rng.integers(0, 3, 3).tolist())
        world.streams[4].add(rng.integers(0, 3, 1).tolist())
    return world


SAMPLERS = [
    dr.Recent(newest=7), dr.Recent(newest=1000), dr.Recent(fraction=0.3), dr.Recent(fraction=1), dr.Recent(half_life=6),
    dr.Recent(half_life=1e9),
]  # fmt: skip


@pytest.mark.usefixtures("both_thresholds")
@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_what_is_drawn_has_the_probabilities_of_the_definition(sampler: dr.Recent) -> None:
    world, rng = world_of(3), np.random.default_rng(1)
    chances = expected(sampler, world)
    every = world.transitions()
    stated = sampler.probability(every, world.windows(), world.standing)
    np.testing.assert_allclose(stated, [chances.get(each, 0.0) for each in every], rtol=1e-9)
    drawn, weights = zip(*(sampler.sample(rng, world.windows(), world.standing, 64) for _ in range(400)), strict=True)
    assert {each.shape for each in drawn} == {(64,)}
    assert all((each == 1).all() and each.dtype == np.float32 for each in weights)
    assert chi_square(np.concatenate(drawn), chances) <= 1


def test_the_statistic_tells_one_half_life_from_another() -> None:
    world, rng = world_of(3), np.random.default_rng(1)
    drawn = [dr.Recent(half_life=6).sample(rng, world.windows(), world.standing, 64)[0] for _ in range(400)]
    assert chi_square(np.concatenate(drawn), expected(dr.Recent(half_life=8), world)) > 1


def test_windows_that_move_are_followed() -> None:
    """After each row the definition holds: nothing is remembered."""
    world, rng = World(), np.random.default_rng(0)
    world.streams[0] = Stream(0, 8, 2)
    for _ in range(30):
        world.streams[0].add(rng.integers(0, 2, 2).tolist())
        every = world.transitions()
        for sampler in SAMPLERS:
            chances = expected(sampler, world)
            np.testing.assert_allclose(
                sampler.probability(every, world.windows(), world.standing), [chances.get(each, 0) for each in every]
            )
            if chances:
                ids, _ = sampler.sample(rng, world.windows(), world.standing, 5)
                assert set(ids.tolist()) <= set(chances)


@pytest.mark.parametrize("half_life", [1e-280, 1e-3, 2.0, 1e15, 1e280])
def test_half_lives_of_all_sizes(half_life: float) -> None:
    """Where only old rows are transitions, whose mass underflows, and where all masses are nearly the same."""
    world, rng = World(), np.random.default_rng(0)
    world.streams[0] = Stream(0, 5000)
    world.streams[0].add([1, 1, 1, *([0] * 4997)])
    sampler = dr.Recent(half_life=half_life)
    ids, _ = sampler.sample(rng, world.windows(), world.standing, 300)
    halves = {each: 2 ** (each / 2) / (1 + 2**0.5 + 2) for each in range(3)}
    by_hand: dict[float, dict[int, float]] = {1e-280: {2: 1.0}, 1e-3: {2: 1.0}, 2.0: halves}
    chances = by_hand.get(half_life) or expected(sampler, world)
    assert set(ids.tolist()) == set(chances)
    stated = sampler.probability([0, 1, 2], world.windows(), world.standing)
    np.testing.assert_allclose(stated, [chances.get(each, 0) for each in range(3)], atol=1e-200)
    if len(chances) > 1:
        assert chi_square(ids, chances) <= 1


def test_nothing_to_draw_is_said() -> None:
    world, rng = World(), np.random.default_rng(0)
    with pytest.raises(NotEnoughDataError, match="the window is empty"):
        dr.Recent(newest=3).sample(rng, [], world.standing, 4)
    world.streams[0] = Stream(0, 10)
    world.streams[0].add([1, 1, 1, 0, 0, 0])
    for sampler in (dr.Recent(newest=3), dr.Recent(fraction=0.5)):
        with pytest.raises(NotEnoughDataError, match=r"rows that Recent\(.*draw from more"):
            sampler.sample(rng, world.windows(), world.standing, 4)
        assert not sampler.probability([0], world.windows(), world.standing).any()
    assert set(dr.Recent(half_life=0.1).sample(rng, world.windows(), world.standing, 4)[0].tolist()) == {2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "one of newest, fraction and half_life, got none"),
        ({"newest": 3, "half_life": 2}, "got newest and half_life"),
        ({"newest": 0}, "newest must be 1 to"),
        ({"newest": 2.0}, "newest must be an integer"),
        ({"fraction": 0}, "fraction must be above 0"),
        ({"fraction": 1.5}, "fraction must be 0 to 1"),
        ({"half_life": 0}, "half_life must be a finite number above 0"),
        ({"half_life": np.inf}, "half_life must be a finite number above 0"),
        ({"half_life": 5e-324}, "half_life must be from 1e-280 to 1e\\+280, got 5e-324"),
        ({"half_life": 1e-308}, "half_life must be from 1e-280"),
        ({"half_life": np.finfo(float).max}, "half_life must be from 1e-280"),
        ({"half_life": "1"}, "half_life must be a finite number above 0"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dr.Recent(**arguments)


def test_a_buffer_keeps_it_and_goes_on_bit_for_bit(path: str) -> None:
    with recorded_in(CONFIG, path, 50, sampler=dr.Recent(half_life=np.float32(20))) as (buffer, _):
        with pytest.raises(InputError, match="has no priorities"):
            buffer.update_priorities(buffer.sample(3).index, np.ones(3))
        buffer.checkpoint("here")
        expected_index = [buffer.sample(9).index.tolist() for _ in range(9)]
    with reopen(CONFIG, path, checkpoint="here") as buffer:
        assert buffer.sampler == dr.Recent(half_life=20.0)
        assert [buffer.sample(9).index.tolist() for _ in range(9)] == expected_index
    with reopen(CONFIG, path, sampler=dr.Recent(newest=8)) as buffer:
        assert len(set(buffer.sample(40).index.tolist())) <= 8


def test_of_another_kind_is_no_recent(path: str) -> None:
    with pytest.raises(InputError):
        CONFIG.create(path, sampler=dr.Recent)  # type: ignore[arg-type]
    assert not pathlib.Path(path).exists()


@pytest.mark.parametrize(("fraction", "rows"), [(0.07, 7), (0.1, 10), (0.29, 29), (0.001, 1)])
def test_a_fraction_is_the_decimal_number_that_was_written(path: str, fraction: float, rows: int) -> None:
    """Regression: 0.07 of 100 rows were 8."""
    spaces = gymnasium.spaces
    with dr.ReplayBuffer.create(
        path, spaces.Box(0, 1e9, (), np.float32), spaces.Discrete(2), capacity=100, sampler=dr.Recent(fraction=fraction)
    ) as rb:
        for row in range(100):
            rb.add(row, 0, 0.0, row + 1, False, False)
        assert len(np.unique([rb.sample(100).index for _ in range(20)])) == rows
