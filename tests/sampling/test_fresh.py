"""Draws by a fact of episodes: beside the definition, over several streams, and from where a program went on."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import numpy as np
import pytest
from helpers.line import create
from helpers.priority_model import chi_square

import diskreplay as dr
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.sampling.window import Window


def play(buffer: dr.ReplayBuffer, versions: list[Any], length: int = 3) -> None:
    """An episode of each version in all environments at once; those of an odd number are one step shorter."""
    for version in versions:
        buffer.begin_episode(**({} if version is None else {"version": version}))
        for step in range(length):
            obs = np.full((buffer.num_envs, 1), step, np.float32)
            ended = np.array([step == length - 1 - env % 2 for env in range(buffer.num_envs)])
            valid = np.array([step <= length - 1 - env % 2 for env in range(buffer.num_envs)])
            buffer.add(
                obs, np.zeros(buffer.num_envs, int), np.ones(buffer.num_envs), obs + 1, ended,
                np.zeros(buffer.num_envs, bool), valid=valid,
            )  # fmt: skip


def two_streams(path: pathlib.Path) -> dr.ReplayBuffer:
    """A reader of two streams of two environments and of three, whose windows have moved on."""
    writers = [create(path, 24, num_envs=2), dr.ReplayBuffer.open(path, mode="a", stream="other")]
    play(writers[0], [9, 0, 1, None, 2, 5, 4])
    play(writers[1], [5, 3, "5", 4, 6, 2, True])
    for writer in writers:
        writer.close()
    return dr.ReplayBuffer.open(path, mode="r", seed=3)


def expected(sampler: dr.Recent, buffer: dr.ReplayBuffer) -> dict[int, float]:
    """P of each transition, by the definition: a loop over episodes and rows."""
    streams = {stream.log.stream: stream.log for stream in buffer.engine.streams}
    versions = [one.facts.get("version") for one in buffer.episodes]
    newest = max(version for version in versions if type(version) is int)
    masses: dict[int, float] = {}
    for episode, version in zip(buffer.episodes, versions, strict=True):
        if type(version) is not int or version < newest - (sampler.within or 0):
            continue
        log = streams[episode.stream]
        for row in range(episode.start, episode.stop):
            age = log.end - 1 - row
            kept = math.inf
            if sampler.newest is not None:
                kept = math.ceil(sampler.newest / log.num_envs)
            if sampler.fraction is not None:
                kept = math.ceil(sampler.fraction * (log.end - log.begin))
            if age < kept:
                decay = age * log.num_envs / sampler.half_life if sampler.half_life else 0.0
                masses[(episode.stream << 48) + row * log.num_envs + episode.env] = 2.0**-decay
    total = math.fsum(masses.values())
    return {each: mass / total for each, mass in masses.items()}


SAMPLERS = [
    dr.Recent(by="version", within=0), dr.Recent(by="version", within=2), dr.Recent(by="version", within=1e9),
    dr.Recent(by="version", within=2, newest=11), dr.Recent(by="version", within=3, fraction=0.5),
    dr.Recent(by="version", within=2, half_life=6), dr.Recent(by="version", within=4, half_life=1e12),
]  # fmt: skip


@pytest.mark.usefixtures("both_thresholds")
@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_what_is_drawn_has_the_probabilities_of_the_definition(tmp_path: pathlib.Path, sampler: dr.Recent) -> None:
    with two_streams(tmp_path / "a") as buffer:
        windows, standing = buffer.engine.streams.windows(), buffer.draws.standing
        chances, items = expected(sampler, buffer), buffer.items()
        stated = sampler.probability(items, windows, standing)
        np.testing.assert_allclose(stated, [chances.get(each, 0.0) for each in items.tolist()], rtol=1e-9)
        rng = np.random.default_rng(5)
        drawn = [sampler.sample(rng, windows, standing, 64) for _ in range(300)]
        assert all((weights == 1).all() and weights.dtype == np.float32 for _, weights in drawn)
        assert chi_square(np.concatenate([ids for ids, _ in drawn]), chances) <= 1


@pytest.mark.parametrize("half_life", [1e-280, 1e-3, 1e280])
def test_half_lives_of_all_sizes(tmp_path: pathlib.Path, half_life: float) -> None:
    sampler = dr.Recent(by="version", within=2, half_life=half_life)
    with two_streams(tmp_path / "a") as buffer:
        windows, standing = buffer.engine.streams.windows(), buffer.draws.standing
        drawn = sampler.sample(np.random.default_rng(0), windows, standing, 500)[0]
        chances = sampler.probability(buffer.items(), windows, standing)
        assert set(drawn.tolist()) == set(buffer.items()[chances > 1e-9].tolist())


def test_a_checkpoint_brings_back_the_same_draws(tmp_path: pathlib.Path) -> None:
    sampler = dr.SamplerMixture([dr.Uniform(), dr.Recent(by="version", within=np.int64(1))])
    with create(tmp_path / "a", 30, num_envs=2, sampler=sampler) as buffer:
        play(buffer, [1, 2, 3, 2, 1, 3])
        buffer.sample(8)
        buffer.checkpoint("here")
        wanted = [buffer.sample(8).index.tolist() for _ in range(5)]
        play(buffer, [8])
    for mode in ("r", "r+"):
        with dr.ReplayBuffer.open(tmp_path / "a", mode=mode, checkpoint="here") as buffer:  # type: ignore[arg-type]
            assert repr(buffer.sampler) == repr(sampler)
            assert [buffer.sample(8).index.tolist() for _ in range(5)] == wanted


def test_a_fact_that_is_told_later_counts_from_then_on(tmp_path: pathlib.Path) -> None:
    sampler = dr.Recent(by="version", within=0)
    with create(tmp_path / "a", 30, sampler=sampler) as buffer:
        play(buffer, [1, 2, None])
        assert set(buffer.sample(3).index.tolist()) <= {3, 4, 5}
        buffer.annotate_episode(version=2)
        assert set(np.concatenate([buffer.sample(6).index for _ in range(9)]).tolist()) == set(range(3, 9))
        buffer.annotate_episode(buffer.episodes[0], version=7)
        assert set(buffer.sample(6).index.tolist()) <= {0, 1, 2}
        buffer.annotate_episode(buffer.episodes[0], version="seven")
        assert set(buffer.sample(6).index.tolist()) <= set(range(3, 9))
        buffer.begin_episode(version=9)
        assert set(buffer.sample(6).index.tolist()) <= set(range(3, 9)), "it has no step yet"
        play(buffer, [None] * 10)
        with pytest.raises(InputError, match="no episode of the windows has a number as its fact 'version'"):
            buffer.sample(3)
        buffer.clear()
        with pytest.raises(NotEnoughDataError):
            buffer.sample(1)


@pytest.mark.parametrize(
    ("versions", "within", "drawn"),
    [
        ([1 << 60, (1 << 60) - 1, 5], 0, {0}),
        ([1 << 60, (1 << 60) - 1, 5], 1, {0, 1}),
        ([(1 << 60) + 1, 2.0**60, (1 << 60) - 1, True, None, "9"], 1.5, {0, 1}),
        ([-(1 << 60), 2.5, 1, -(1 << 70)], 1.5, {1, 2}),
        ([10**400, 10**400 - 3, 1e300], 2, {0}),
        ([1e300, 10**400, 10**400 - 3], 3, {1, 2}),
    ],
)
def test_integers_that_no_float_holds_count_exactly(
    tmp_path: pathlib.Path, versions: list[Any], within: float, drawn: set[int]
) -> None:
    recent, groups = dr.Recent(by="version", within=within), dr.Groups("prompt", 1, version="version", within=within)
    with (
        create(tmp_path / "a", 30, sampler=recent) as buffer,
        dr.ReplayBuffer.open(tmp_path / "a", mode="a", stream="empty"),
    ):
        buffer.refresh()
        for number, version in enumerate(versions):
            play(buffer, [version], 1)
            buffer.annotate_episode(prompt=number)
        assert set(np.concatenate([buffer.sample(2).index for _ in range(40)]).tolist()) == drawn
        windows, standing = buffer.engine.streams.windows(), buffer.draws.standing
        ids, _ = groups.sample(np.random.default_rng(0), windows, standing, len(drawn))
        assert set(ids.tolist()) == drawn


def test_unknown_facts_are_refused_by_name(tmp_path: pathlib.Path) -> None:
    sampler = dr.Recent(by="versoin", within=2)
    with create(tmp_path / "a", 30, sampler=sampler) as buffer:
        with pytest.raises(NotEnoughDataError):
            buffer.sample(1)
        play(buffer, [None])
        with pytest.raises(InputError, match=r"its fact 'versoin', which begin_episode\(versoin=\.\.\.\).*have none"):
            buffer.sample(1)
        buffer.annotate_episode(version=1)
        with pytest.raises(InputError, match="did you mean 'version'"):
            buffer.sample(1)
        with buffer.loader(1) as loader, pytest.raises(InputError, match="did you mean 'version'"):
            next(loader)
        buffer.annotate_episode(versoin="three")
        with pytest.raises(InputError, match=r"has a number as its fact 'versoin'.* did you mean 'version'"):
            buffer.sample(1)
        buffer.annotate_episode(versoin=3)
        buffer.sample(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"by": "version"}, "by and within together"),
        ({"within": 2, "newest": 3}, "by and within together"),
        ({"within": 2}, "got none; with by, one or none of them"),
        ({"by": "version", "within": -1}, "within must be a finite number of at least 0"),
        ({"by": "version", "within": "2"}, "within must be a finite number"),
        ({"by": "return", "within": 1}, "by must be the name of a fact"),
        ({"by": "a.b", "within": 1}, "by must be the name of a fact"),
        ({"by": 3, "within": 1}, "by must be the name of a fact"),
        ({"by": "version", "within": 1, "newest": 3, "fraction": 0.5}, "got newest and fraction"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dr.Recent(**arguments)


def test_windows_that_know_no_facts_are_refused() -> None:
    sampler, rng = dr.Recent(by="version", within=1), np.random.default_rng(0)
    with pytest.raises(InputError, match="needs the windows of a store"):
        sampler.sample(rng, [Window(0, 3, 3)], lambda ids: np.ones(len(ids), np.int8), 1)
