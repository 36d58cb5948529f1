"""A sampler given at opening draws as it is told; its state comes from the checkpoint, or a warning says why not."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers.crashes import kill
from helpers.line import LINE, TURN, add, create
from helpers.own_samplers import STATEFUL, Rarest

import diskreplay as dr
from diskreplay.buffers.state import resumption
from diskreplay.errors import CheckpointError, SamplerWarning

MADE: dict[str, Callable[[], Any]] = {**STATEFUL, "Uniform": dr.Uniform}


def readme(path: Any, sampler: Any, **options: Any) -> dr.ReplayBuffer:
    """The line with which a program starts, and starts again."""
    return dr.ReplayBuffer.open_or_create(
        path, LINE, TURN, capacity=200, num_envs=2, sampler=sampler, checkpoint="latest", seed=0, **options
    )


def learn(buffer: Any, updates: int) -> Iterator[tuple[list[int], list[float]]]:
    """Batches, each with priorities given back that single out a few transitions."""
    for _ in range(updates):
        batch = buffer.sample(6)
        if not isinstance(buffer.sampler, dr.Uniform):
            buffer.update_priorities(batch.index, np.where(batch.index % 7 == 0, 90.0, 1e-3))
        yield batch.index.tolist(), batch.weight.tolist()


@pytest.mark.parametrize("ends", ["closed", "killed"])
@pytest.mark.parametrize("kind", MADE)
def test_the_line_of_the_readme_goes_on_bit_for_bit(path: str, kind: str, ends: str) -> None:
    """Regression: with a sampler in it, the priorities of the checkpoint were dropped without a word."""
    buffer = readme(path, MADE[kind]())
    add(buffer, 60)
    list(learn(buffer, 8))
    buffer.checkpoint("here")
    expected = list(learn(buffer, 8))
    add(buffer, 10)
    buffer.commit()
    if ends == "closed":
        buffer.close()
    else:
        kill(buffer)
    with readme(path, MADE[kind]()) as buffer:
        assert list(learn(buffer, 8)) == expected
    with dr.ReplayBuffer.open(path, mode="r", checkpoint="here", sampler=MADE[kind]()) as reader:
        assert list(learn(reader, 8)) == expected


def test_of_several_agents(path: str) -> None:
    def opened() -> dr.MultiAgentReplayBuffer:
        return dr.MultiAgentReplayBuffer.open_or_create(
            path, LINE, TURN, n_agents=2, capacity=100, sampler=dr.Proportional(), checkpoint="latest", seed=0
        )

    with opened() as buffer:
        for row in range(40):
            obs = np.full((2, 1), row, np.float32)
            buffer.add(obs, [0, 1], 1.0, obs + 1, False, False)
        list(learn(buffer, 5))
        buffer.checkpoint("here")
        expected = list(learn(buffer, 5))
    with opened() as again:
        assert list(learn(again, 5)) == expected


def prepared(path: str, sampler: Any) -> tuple[dr.ReplayBuffer, np.ndarray]:
    """A closed buffer with a checkpoint, and the probability of each transition in its next draw."""
    with readme(path, sampler) as buffer:
        add(buffer, 60)
        list(learn(buffer, 8))
        buffer.checkpoint("here")
        return buffer, chances(buffer)


def chances(buffer: dr.ReplayBuffer) -> np.ndarray:
    streams = buffer.engine.streams
    found: np.ndarray = buffer.sampler.probability(
        np.arange(2 * streams.all[0].log.end), streams.windows(), lambda ids: np.ones(len(ids), np.int8)
    )
    return found


@pytest.mark.parametrize(("before", "after"), [(0.6, 1.0), (1.0, 0.3), (0.4, 0.0)])
def test_priorities_of_another_alpha_are_converted(path: str, before: float, after: float) -> None:
    _, was = prepared(path, dr.Proportional(alpha=before))
    with readme(path, dr.Proportional(alpha=after)) as buffer:
        expected = was ** (after / before)
        np.testing.assert_allclose(chances(buffer), expected / expected.sum(), rtol=1e-9)
        assert buffer.sampler.maximum == pytest.approx(90 + 1e-6)  # type: ignore[attr-defined]
        add(buffer, 5)
        buffer.sample(2)
        assert chances(buffer)[120:] == pytest.approx(chances(buffer).max())  # new ones have the largest so far


def test_priorities_of_each_environment_are_put_together(path: str) -> None:
    buffer, was = prepared(path, dr.Proportional(by_env=True))
    totals = [float(np.sum(was[env::2])) for env in range(2)]
    assert totals == pytest.approx([0.5, 0.5])
    masses = buffer.sampler._tree  # type: ignore[attr-defined]
    with readme(path, dr.Proportional()) as again:
        found = chances(again)
        for env in range(2):  # within an environment as before
            np.testing.assert_allclose(found[env::2] / found[env::2].sum(), was[env::2] / 0.5, rtol=1e-9)
        assert found[np.arange(120) % 7 == 0].min() > 50 * found[np.arange(120) % 7 == 1].min()
        assert again.sampler.total == pytest.approx(masses.total)  # type: ignore[attr-defined]


def test_beginning_anew_on_purpose(path: str) -> None:
    prepared(path, dr.Proportional())
    with readme(path, dr.Proportional()) as buffer:
        buffer.sampler.clear()  # type: ignore[attr-defined]
        assert chances(buffer) == pytest.approx(1 / 120)


def test_the_parameters_are_those_that_are_given(path: str) -> None:
    prepared(path, dr.Proportional(beta=0.1))
    with readme(path, dr.Proportional(beta=1.0)) as buffer:
        assert buffer.sampler.beta == 1.0  # type: ignore[attr-defined]
        assert buffer.sample(16).weight.min() < 0.1


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (dr.Uniform, dr.Proportional, "it holds the state of Uniform"),
        (dr.RankBased, dr.Proportional, "it holds the state of RankBased"),
        (dr.Proportional, MADE["by environment"], r"cannot be taken over: they are of all environments together"),
        (lambda: dr.Proportional(alpha=0), dr.Proportional, "they were kept with alpha=0"),
        (MADE["SamplerMixture"], dr.Proportional, "it holds the state of SamplerMixture of Uniform, Proportional"),
        (MADE["SamplerMixture"], lambda: dr.SamplerMixture([dr.Proportional()]), "SamplerMixture of Uniform"),
        (dr.Proportional, Rarest, "it holds the state of Proportional"),
    ],
)  # fmt: skip
def test_what_begins_anew_is_said(path: str, before: Any, after: Any, said: str) -> None:
    prepared(path, before())
    with pytest.warns(SamplerWarning, match=f"begins anew, without the state of checkpoint 'here': .*{said}") as warned:
        buffer = readme(path, after())
    assert [pathlib.Path(one.filename).name for one in warned] == [pathlib.Path(__file__).name]
    with buffer:
        assert buffer.sampler.is_new  # type: ignore[attr-defined]
        assert len(buffer.sample(6)) == 6


@pytest.mark.parametrize(
    "stored",
    [
        {}, {"sampler": 3}, {"sampler": {"kind": "SamplerMixture", "samplers": [1]}},
        {"sampler": {"kind": "Proportional"}, "priorities": {}, "view": 7},
        {"sampler": {"kind": "Proportional"}, "priorities": [], "view": {"kind": "Transition"}},
    ],
    ids=str,
)  # fmt: skip
def test_a_document_that_is_none_is_said(stored: dict[str, Any]) -> None:
    """It may come from elsewhere."""
    with pytest.warns(SamplerWarning, match="begins anew"):
        assert not resumption(dr.Proportional(), dr.Transition(), stored, dict, "here")()


def test_nothing_is_said_where_nothing_is_lost(path: str, tmp_path: pathlib.Path) -> None:
    """Warnings are errors here: a new store, a sampler without a state, a reader without a checkpoint."""
    prepared(path, dr.Proportional())
    readme(path, dr.Uniform()).close()
    readme(path, dr.Recent(newest=9)).close()
    readme(path, None).close()
    readme(tmp_path / "new", dr.Proportional()).close()
    with dr.ReplayBuffer.open(path, mode="r", sampler=dr.Proportional()) as reader:
        reader.sample(4)


def test_a_sampler_that_was_used_keeps_what_it_knows(path: str) -> None:
    """As its buffer was closed, and the same object is given again."""
    with readme(path, sampler := dr.Proportional()) as buffer:
        add(buffer, 60)
        list(learn(buffer, 3))
        buffer.checkpoint("here")
        list(learn(buffer, 3))
        buffer.commit()
        expected = chances(buffer)
    with dr.ReplayBuffer.open(path, mode="r", checkpoint="here", sampler=sampler) as reader:
        np.testing.assert_array_equal(chances(reader), expected)


@pytest.mark.parametrize("kind", [dr.Proportional, lambda: dr.Counting(dr.Uniform())])
def test_a_sampler_that_was_used_goes_back_with_the_rows(path: str, kind: Any) -> None:
    """Else the rows that are added then would have the priorities and counts of those that were taken back."""

    def known(buffer: dr.ReplayBuffer) -> list[Any]:
        counts = isinstance(buffer.sampler, dr.Counting)
        return buffer.times_sampled(buffer.items()).tolist() if counts else chances(buffer).tolist()

    def used(buffer: dr.ReplayBuffer) -> None:
        buffer.sample(len(buffer))
        if not isinstance(buffer.sampler, dr.Counting):
            buffer.update_priorities(buffer.items(), np.arange(1.0, len(buffer) + 1))

    with readme(path, sampler := kind()) as buffer:
        add(buffer, 20)
        used(buffer)
        buffer.checkpoint("here")
        expected = known(buffer)
        add(buffer, 20)
        used(buffer)
    found = []
    for given in (sampler, kind()):
        with dr.ReplayBuffer.open(path, checkpoint="here", sampler=given) as buffer:
            assert known(buffer) == expected
        with dr.ReplayBuffer.open(path, checkpoint="here", sampler=given) as buffer:
            add(buffer, 25)
            found.append(known(buffer))
    assert found[0] == found[1]


def test_a_store_that_cannot_be_opened_leaves_the_sampler_as_it_is(path: str) -> None:
    """Regression: it went back to the checkpoint, and the next ``close`` kept that."""
    with readme(path, sampler := dr.Proportional()) as buffer:
        add(buffer, 20)
        buffer.checkpoint("here")
        add(buffer, 10)
        buffer.checkpoint("later")
        buffer.update_priorities(buffer.items(), np.arange(1.0, len(buffer) + 1))
        expected = chances(buffer)
    with pytest.raises(CheckpointError, match="later"):
        dr.ReplayBuffer.open(path, checkpoint="here", sampler=sampler)
    for given in (sampler, None):
        with dr.ReplayBuffer.open(path, sampler=given) as buffer:
            np.testing.assert_array_equal(chances(buffer), expected)


@pytest.mark.parametrize("vector", [False, True])
def test_recorders(path: str, vector: bool) -> None:
    def opened() -> Any:
        options: Any = {"capacity": 500, "sampler": dr.Proportional(), "checkpoint": "latest", "seed": 0}
        if vector:
            return dr.VectorRecord(gymnasium.make_vec("CartPole-v1", num_envs=2), path, **options)
        return dr.Record(gymnasium.make("CartPole-v1"), path, **options)

    env = opened()
    env.reset(seed=0)
    for _ in range(20):
        _, _, ended, cut, _ = env.step(env.action_space.sample())
        if not vector and (ended or cut):
            env.reset()
    list(learn(env.buffer, 5))
    env.buffer.checkpoint("here")
    expected = list(learn(env.buffer, 5))
    env.close()
    env = opened()
    assert list(learn(env.buffer, 5)) == expected
    env.close()


def test_parts_of_a_mixture(tmp_path: pathlib.Path) -> None:
    """The one that is written, and the one that is only read; that of another class is named."""
    for name in ("offline", "online"):
        with create(tmp_path / name, 200, num_envs=2) as buffer:
            add(buffer, 30)

    def opened(offline: Any) -> Any:
        parts = [
            (tmp_path / "online", {"sampler": dr.Proportional(), "seed": 0}),
            (tmp_path / "offline", {"sampler": offline, "mode": "r", "seed": 1}),
        ]
        return dr.Mixture.open(parts, checkpoint="latest", or_last_commit=True)

    def updates(mixture: Any) -> list[list[int]]:
        found = []
        for _ in range(6):
            batch = mixture.sample(8)
            mixture.update_priorities(batch.index, np.where(batch.index % 7 == 0, 90.0, 1e-3))
            found.append(batch.index.tolist())
        return found

    with opened(dr.Proportional()) as mixture:
        updates(mixture)
        mixture.checkpoint("here")
        expected = updates(mixture)
    with opened(dr.Proportional(beta=0.4)) as mixture:
        assert updates(mixture) == expected
    with pytest.warns(SamplerWarning, match=r"RankBased.* begins anew, .*it holds the state of Proportional"):
        opened(dr.RankBased()).close()
