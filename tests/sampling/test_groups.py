"""Draws of whole groups of episodes: beside a model in plain lists, driven by random operations."""

from __future__ import annotations

import collections
import pathlib
from typing import Any

import numpy as np
import pytest
from helpers.crashes import kill
from helpers.effort import examples
from helpers.line import create, play
from helpers.priority_model import chi_square

import diskreplay as dr
from diskreplay.errors import InputError, NotEnoughDataError


def wanted(buffer: dr.ReplayBuffer, size: int, within: float | None = None) -> list[list[int]]:
    """The ids of each group that is ready, by the definition: a loop over episodes."""
    envs = {stream.log.stream: stream.log.num_envs for stream in buffer.engine.streams}
    groups: dict[Any, list[Any]] = collections.defaultdict(list)
    newest = max((one.facts.get("version", -1e9) for one in buffer.episodes), default=0)
    for one in buffer.episodes:
        value = one.facts.get("prompt")
        if isinstance(value, str | int | float | bool) and (one.terminated or one.truncated):
            groups[type(value) is bool, value].append(one)
    found = []
    for episodes in groups.values():
        whole = [one for one in episodes if one.complete_start]
        fresh = [one for one in whole if within is None or one.facts.get("version", -1e18) >= newest - within]
        if len(episodes) == len(fresh) == size:
            found.append([
                (one.stream << 48) + row * envs[one.stream] + one.env
                for one in episodes for row in range(one.start, one.stop)
            ])  # fmt: skip
    return found


def drawn(buffer: dr.ReplayBuffer, sampler: dr.Groups, count: int, seed: int = 0) -> list[int]:
    windows, standing = buffer.engine.streams.windows(), buffer.draws.standing
    ids, weights = sampler.sample(np.random.default_rng(seed), windows, standing, count)
    assert (weights == 1).all()
    assert ids.shape == weights.shape
    return ids.tolist()  # type: ignore[no-any-return]


def check(buffer: dr.ReplayBuffer, size: int) -> int:
    """What can be drawn are the groups of the definition, whole and in order; returns how many there are."""
    for sampler, groups in (
        (dr.Groups("prompt", size), wanted(buffer, size)),
        (dr.Groups("prompt", size, version="version", within=1), wanted(buffer, size, 1)),
    ):
        if not any("prompt" in one.facts for one in buffer.episodes):
            return 0
        if sampler.version and not any("version" in one.facts for one in buffer.episodes):
            continue
        if groups:
            ids = drawn(buffer, sampler, len(groups))
            for group in groups:
                at = ids.index(group[0])
                assert ids[at : at + len(group)] == group
            assert sorted(ids) == sorted(each for group in groups for each in group)
            chances = sampler.probability(
                buffer.items(), buffer.engine.streams.windows(), buffer.draws.standing
            )  # fmt: skip
            there = np.isin(buffer.items(), np.concatenate(groups))
            np.testing.assert_allclose(chances, there / len(groups))
        with pytest.raises(NotEnoughDataError, match=f"{len(groups)} groups can be drawn"):
            drawn(buffer, sampler, len(groups) + 1)
    return len(wanted(buffer, size))


@pytest.mark.long(quick=3)
@pytest.mark.parametrize("seed", range(examples(24, least=8)))
def test_groups_are_those_of_the_definition(tmp_path: pathlib.Path, seed: int) -> None:
    """Through eviction, commits, kills, returns to checkpoints, a second stream, and a reader beside them."""
    rng, path, most = np.random.default_rng(seed), tmp_path / "a", 0
    size, envs = (3, 1) if seed % 2 else (4, 2)
    buffer = create(path, int(rng.choice([24, 60])) * envs, num_envs=envs)
    other = dr.ReplayBuffer.open(path, mode="a", stream="b")
    reader = dr.ReplayBuffer.open(path, mode="r")
    counts: collections.Counter[int] = collections.Counter()
    for step in range(40):
        prompt = int(rng.integers(max(0, step // 4 - 2), step // 4 + 1))
        writer = other if rng.random() < 0.2 else buffer
        if counts[prompt] + envs <= size:
            counts[prompt] += envs
            facts = {
                "prompt": prompt % 2 == 0 if prompt < 2 else prompt,
                "version": int(rng.integers(step // 8, step // 8 + 2)),
            }
            if rng.random() < 0.2:
                play(writer, int(rng.integers(1, 5)), ends=rng.random() < 0.7)
            play(writer, int(rng.integers(1, 5)), ends=rng.random() < 0.7, **facts)
        if rng.random() < 0.2:
            buffer.commit()
            other.commit()
            reader.refresh()
            most = max(most, check(reader, size))
        if rng.random() < 0.1:
            buffer.checkpoint(f"c{step}", keep=1)
            if rng.random() < 0.5:
                kill(buffer) if rng.random() < 0.5 else buffer.close()
                buffer = dr.ReplayBuffer.open(path, checkpoint="latest")
        most = max(most, check(buffer, size))
    assert most > 0
    for one in (buffer, other, reader):
        one.close()


@pytest.mark.parametrize("view", [dr.Transition(), dr.PaddedEpisodes(4)], ids=["transitions", "episodes"])
def test_a_batch_has_groups_side_by_side(tmp_path: pathlib.Path, view: Any) -> None:
    sampler = dr.Groups(by="prompt", group_size=3)
    with create(tmp_path / "a", 99, view=view, sampler=sampler) as buffer:
        for number in range(12):
            play(buffer, 2 + number % 3, prompt=f"p{number % 4}")
        facts = {episode.start: episode.facts["prompt"] for episode in buffer.episodes}
        batch = buffer.sample(2)
        starts = [each for each in batch.index.tolist() if each in facts]
        assert len(starts) == 6
        assert len({facts[each] for each in starts[:3]}) == len({facts[each] for each in starts[3:]}) == 1
        assert facts[starts[0]] != facts[starts[3]]
        assert len(batch.reward) == len(batch.index)
        if isinstance(view, dr.PaddedEpisodes):
            assert batch.index.tolist() == starts
        buffer.checkpoint("here")
        expected = [buffer.sample(3).index.tolist() for _ in range(4)]
        with buffer.loader(2) as loader:
            assert len(next(loader).index) >= 6
    with dr.ReplayBuffer.open(tmp_path / "a", checkpoint="here") as buffer:
        assert buffer.sampler == sampler
        assert [buffer.sample(3).index.tolist() for _ in range(4)] == expected


def test_groups_are_drawn_with_the_same_probability(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a", 99, view=dr.PaddedEpisodes(9), sampler=dr.Groups("prompt", 2)) as buffer:
        for number in range(10):
            play(buffer, 1 + number, prompt=number // 2)
        firsts = [buffer.sample(2).index[[0, 2]] for _ in range(400)]
    assert all(one != other for one, other in firsts)
    chances = {each: 0.2 for each in sorted(set(np.concatenate(firsts).tolist()))}
    assert len(chances) == 5
    assert chi_square(np.concatenate(firsts), chances) <= 1


def test_an_episode_without_a_flag_is_of_no_group(tmp_path: pathlib.Path) -> None:
    """It goes on, or was cut by close, or by the begin of the next one: another episode takes its place."""
    with create(tmp_path / "a", 99, sampler=dr.Groups("prompt", 2)) as other:
        play(other, 2, ends=False, prompt="a")  # this writer never comes back
    with dr.ReplayBuffer.open(tmp_path / "a", stream="b") as buffer:
        first = 1 << 48
        play(buffer, 3, ends=False, prompt="a")
        play(buffer, 1)
        with pytest.raises(NotEnoughDataError, match="0 groups can be drawn"):
            buffer.sample(1)
        play(buffer, 2, prompt="a")
        play(buffer, 2, ends=False, prompt="a")
    with dr.ReplayBuffer.open(tmp_path / "a", stream="b") as buffer:
        play(buffer, 4, prompt="b")
        with pytest.raises(NotEnoughDataError, match="0 groups can be drawn"):
            buffer.sample(1)
        play(buffer, 5, prompt="a")
        expected = [first + row for row in (4, 5, *range(12, 17))]
        assert buffer.sample(1).index.tolist() == expected
        play(buffer, 1, ends=False, prompt="a")
        assert buffer.sample(1).index.tolist() == expected
        play(buffer, 1, prompt="a")
        with pytest.raises(InputError, match="3 episodes have 'a' as their fact 'prompt', and a group has 2"):
            buffer.sample(1)


def test_groups_are_used_as_often_as_is_asked(tmp_path: pathlib.Path) -> None:
    sampler = dr.Counting(dr.Groups("prompt", 2), max_times_sampled=2)
    times: collections.Counter[int] = collections.Counter()
    with create(tmp_path / "a", 99, sampler=sampler) as buffer:
        for number in range(10):
            play(buffer, 3, prompt=number // 2)
        for opening in range(2):
            for _ in range(2 + opening):
                times.update(buffer.sample(2).index.tolist())
            assert buffer.times_sampled(buffer.items()).tolist() == [times[each] for each in buffer.items().tolist()]
            buffer.close()
            buffer = dr.ReplayBuffer.open(tmp_path / "a", seed=opening)
        assert sum(times.values()) == 60
        assert max(times.values()) <= 2
        left = sum(2 - times[each] for each in range(30)) // 6
        assert left == 0
        with pytest.raises(NotEnoughDataError):
            buffer.sample(1)
        buffer.close()


@pytest.mark.parametrize("most", [None, 1])
def test_draws_within_a_selection_cannot_split_a_group(tmp_path: pathlib.Path, most: int | None) -> None:
    sampler = dr.Counting(dr.Groups("prompt", 2), max_times_sampled=most)
    with create(tmp_path / "a", 99, sampler=sampler) as buffer:
        for _ in range(2):
            play(buffer, 5, prompt="a")
        with pytest.raises(InputError, match="a draw of single items would split; sample without within"):
            buffer.sample(4, within=buffer.select("prompt == 'a'"))
        assert not buffer.times_sampled(buffer.items()).any()
        assert buffer.sample(1).index.tolist() == list(range(10))


@pytest.mark.parametrize("most", [None, 1])
def test_a_program_may_ask_in_a_loop_until_groups_are_there(tmp_path: pathlib.Path, most: int | None) -> None:
    drawn = []
    for failures in (0, 3):
        sampler = dr.Counting(dr.Groups("prompt", 2), max_times_sampled=most)
        with create(tmp_path / f"{failures}", 100, sampler=sampler) as buffer:
            for prompt in range(10):
                for _ in range(2):
                    play(buffer, 1, prompt=prompt)
                if prompt == 6:
                    for _ in range(failures):
                        with pytest.raises(NotEnoughDataError, match="7 groups can be drawn"):
                            buffer.sample(8)
            drawn.append(buffer.sample(8).index.tolist())
    assert drawn[0] == drawn[1]


def test_bad_arguments_and_facts_are_named(tmp_path: pathlib.Path) -> None:
    for arguments, message in (
        ({"by": "return", "group_size": 2}, "by must be the name of a fact"),
        ({"by": "prompt", "group_size": 0}, "group_size must be 1"),
        ({"by": "prompt", "group_size": 2, "within": 1}, "version and within together"),
        ({"by": "prompt", "group_size": 2, "version": "a b", "within": 1}, "version must be the name of a fact"),
        ({"by": "prompt", "group_size": 2, "version": "v", "within": -1}, "within must be a finite number"),
    ):
        with pytest.raises(InputError, match=message):
            dr.Groups(**arguments)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a mixture counts transitions"):
        dr.SamplerMixture([dr.Uniform(), dr.Groups("prompt", 2)])
    with create(tmp_path / "a", 99, sampler=dr.Groups("promt", 2)) as buffer:
        with pytest.raises(InputError, match=r"mixture takes no part that draws groups"):
            dr.Mixture([buffer])
        with pytest.raises(NotEnoughDataError):
            buffer.sample(1)
        play(buffer, 1, prompt="a")
        with pytest.raises(InputError, match=r"has a text, number or flag as its fact 'promt'.* did you mean 'prompt'"):
            buffer.sample(1)
        for _ in range(3):
            play(buffer, 1, promt="a")
        with pytest.raises(InputError, match="3 episodes have 'a' as their fact 'promt', and a group has 2"):
            buffer.sample(1)
