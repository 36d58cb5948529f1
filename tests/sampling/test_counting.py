"""How often each transition was drawn: beside a dict of counts, driven by the same random operations, and its bound."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import driver, line
from helpers.crashes import kill
from helpers.effort import examples
from helpers.line import add
from helpers.own_samplers import Newest, Rarest
from helpers.priority_model import chi_square
from helpers.programs import run
from helpers.threads import together

import diskreplay as dr
from diskreplay.errors import EvictedError, InputError, NotEnoughDataError, SamplerWarning


def create(path: Any, sampler: Any, capacity: int = 60, num_envs: int = 1, **options: Any) -> dr.ReplayBuffer:
    return line.create(path, capacity, num_envs, sampler=sampler, **options)


@dataclasses.dataclass
class Model:
    """The rows of a store, and how often each was drawn."""

    envs: int
    rows: int
    end: int = 0
    begin: int = 0
    times: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)

    def items(self) -> list[int]:
        self.begin = max(self.begin, self.end - self.rows)
        return list(range(self.begin * self.envs, self.end * self.envs))

    def copy(self) -> Model:
        return dataclasses.replace(self, times=self.times.copy())


class Driver(driver.Driver):
    """Draws, with a bound or without, among all and within selections."""

    def __init__(self, path: pathlib.Path, seed: int) -> None:
        self.most = [None, 1, 2, 3][seed % 4]
        self.at = 0.0
        super().__init__(path, seed, [3, 7, 40])

    def create(self, rows: int) -> tuple[dr.ReplayBuffer, Model]:
        sampler = dr.Counting(dr.Uniform(), self.most)
        return create(self.path, sampler, rows * self.envs, self.envs), Model(self.envs, rows)

    def check(self, buffer: dr.ReplayBuffer, model: Model) -> None:
        items = buffer.items()
        assert items.tolist() == model.items()
        if buffer is not self.reader:
            assert buffer.times_sampled(items).tolist() == [model.times[each] for each in items.tolist()]

    def weights(self) -> dict[Callable[[], None], float]:
        return {
            self.add: 6, self.draw: 8, self.draw_within: 3, self.commit: 2, self.reopen: 2, self.checkpoint: 1,
            self.go_back: 1, self.read: 1, self.resize: 0.5,
        }  # fmt: skip

    def jump(self) -> None:
        self.at += 1000.5

    def add(self) -> None:
        for _ in range(int(self.rng.integers(1, 6))):
            before = self.sequence()
            add(self.buffer, 1, self.at)
            self.at, self.model.end = self.at + 1, self.model.end + 1
            self.settle(before)

    def draw(self, **options: Any) -> None:
        size, items = int(self.rng.integers(1, 9)), self.model.items()
        left = np.inf if self.most is None else sum(self.most - self.model.times[each] for each in items)
        if len(items) < (1 if options else size) or left < size:
            with pytest.raises(NotEnoughDataError):
                self.buffer.sample(size, **options)
        else:
            drawn = self.buffer.sample(size, **options).index.tolist()
            assert len(drawn) == size
            self.model.times.update(drawn)
            assert self.most is None or max(self.model.times.values()) <= self.most

    def draw_within(self) -> None:
        self.draw(within=self.buffer.select("length >= 1"))

    def reopen(self) -> None:
        if self.rng.random() < 0.5:
            self.close()
        else:
            kill(self.buffer)
            self.committed.times.clear()
        self.open()
        self.go_on(self.committed)

    def open(self, **options: Any) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*begins anew, without the counts of draws", SamplerWarning)
            super().open(**options)

    def resize(self) -> None:
        self.model.rows = int(self.rng.integers(1, 30))
        self.buffer.resize(self.model.rows * self.envs)
        self.model.items()
        self.committed = self.model.copy()


@pytest.mark.long(quick=3)
@pytest.mark.parametrize("seed", range(examples(40, least=8)))
def test_counts_are_those_of_the_model(tmp_path: pathlib.Path, seed: int) -> None:
    Driver(tmp_path / "a.replay", seed).run(60)


# The bound


def test_of_draws_that_are_bounded_each_order_is_as_likely(tmp_path: pathlib.Path) -> None:
    """Draws one after another, each of those that are left: six pairs of three, each one time in six."""
    pairs: list[int] = []
    with create(tmp_path / "a", sampler := dr.Counting(dr.Uniform(), 1)) as buffer:
        add(buffer, 3)
        for _ in range(300):
            one, other = buffer.sample(2).index.tolist()
            assert one != other
            pairs.append(3 * one + other)
            with pytest.raises(NotEnoughDataError, match="each transition is drawn at most 1 times; add"):
                buffer.sample(2)
            assert buffer.times_sampled([one, other, 3 - one - other]).tolist() == [1, 1, 0]
            sampler.clear()
    assert chi_square(np.array(pairs), {each: 1 / 6 for each in (1, 2, 3, 5, 6, 7)}) <= 1


@pytest.mark.usefixtures("both_thresholds")
@pytest.mark.parametrize("most", [1, 3])
def test_many_threads_and_a_loader_use_up_all_exactly(tmp_path: pathlib.Path, most: int) -> None:
    drawn: list[int] = []

    def draw() -> None:
        with contextlib.suppress(NotEnoughDataError):
            while True:
                drawn.extend(buffer.sample(3).index.tolist())

    with create(tmp_path / "a", dr.Counting(dr.Recent(half_life=20), most)) as buffer:
        add(buffer, 30)
        with buffer.loader(4, prefetch=3) as loader:
            ahead = next(loader).index.tolist()
        counted = int(buffer.times_sampled(buffer.items()).sum())
        assert counted % 4 == 0
        assert counted >= 4, "what was drawn ahead counts, whether or not somebody took it"
        together(*[draw] * 4)
        times = buffer.times_sampled(buffer.items())
        assert times.sum() == counted + len(drawn)
        assert times.max() <= most
        assert times.sum() > 30 * most - 3, "no draw is lost"
        assert max(collections.Counter(drawn + ahead).values()) <= most


def test_what_counts_and_what_does_not(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a", dr.Counting(dr.SamplerMixture([dr.Uniform(), dr.Recent(newest=2)]), 2)) as buffer:
        add(buffer, 8)
        buffer.get(buffer.items())
        assert sum(len(batch.index) for batch in buffer.shuffled(4)) == 8
        assert not buffer.times_sampled(buffer.items()).any()
        buffer.sample(4)
        assert buffer.times_sampled(buffer.items()).sum() == 4
        buffer.clear()
        add(buffer, 3)
        assert not buffer.times_sampled(buffer.items()).any()
        with pytest.raises(EvictedError):
            buffer.times_sampled(0)
        with pytest.raises(InputError, match="names no transition"):
            buffer.times_sampled([99])


def test_counts_over_several_streams(tmp_path: pathlib.Path) -> None:
    """A trainer with a stream of its own, which has no row, counts what it draws of two actors, over a restart."""
    actors = [create(tmp_path / "a", None, num_envs=2), dr.ReplayBuffer.open(tmp_path / "a", mode="a", stream="b")]
    for actor in actors:
        add(actor, 10)
        actor.commit()
    dr.ReplayBuffer.open(tmp_path / "a", mode="a", stream="trainer").close()
    sampler = dr.Counting(dr.Recent(newest=8), 1)
    with dr.ReplayBuffer.open(tmp_path / "a", stream="trainer", sampler=sampler) as trainer:
        one = trainer.sample(8).index
        trainer.checkpoint("here")
        two = trainer.sample(5).index
    again = dr.Counting(dr.Recent(newest=8), 1)
    with dr.ReplayBuffer.open(tmp_path / "a", stream="trainer", checkpoint="here", sampler=again) as trainer:
        assert trainer.times_sampled(trainer.items()).sum() == 8
        assert trainer.sample(5).index.tolist() == two.tolist(), "bit for bit"
        for actor in actors:
            add(actor, 4, 500.5)
            actor.commit()
        trainer.refresh()
        three = trainer.sample(12).index
        assert len(set(one.tolist() + two.tolist() + three.tolist())) == 25
    for actor in actors:
        actor.close()


@pytest.mark.parametrize("sampler", [dr.Uniform(), dr.Recent(newest=8), dr.Recent(half_life=4)], ids=repr)
def test_a_draw_that_fails_leaves_the_random_state(tmp_path: pathlib.Path, sampler: Any) -> None:
    """So who asks until enough is there draws what another one does, who asks once."""
    drawn = []
    for asks in (0, 3):
        with create(tmp_path / str(asks), dr.Counting(sampler, 1), capacity=8) as buffer:
            add(buffer, 8)
            buffer.sample(6)
            for _ in range(asks):
                with pytest.raises(NotEnoughDataError, match="draws are not left"):
                    buffer.sample(5)
                with pytest.raises(NotEnoughDataError, match="draws are not left"):
                    buffer.sample(5, within=buffer.select("length >= 1"))
            add(buffer, 4, 500.5)
            drawn.append((buffer.sample(5).index.tolist(), buffer.times_sampled(buffer.items()).tolist()))
    assert drawn[0] == drawn[1]


def test_a_draw_of_a_mixture_that_fails_uses_up_nothing(tmp_path: pathlib.Path) -> None:
    """The first part was drawn from before the second is found to lack something; who asks again loses nothing."""
    with create(tmp_path / "one", dr.Counting(dr.Uniform(), 1)) as one, create(tmp_path / "two", None) as two:
        add(one, 4)
        mixture = dr.Mixture([one, two])
        for _ in range(4):
            with pytest.raises(NotEnoughDataError, match="part 1 of the mixture"):
                mixture.sample(4)
        assert not one.times_sampled(one.items()).any()
        add(two, 4)
        for drawn in (2, 4):
            mixture.sample(4)
            assert one.times_sampled(one.items()).sum() == drawn
        with pytest.raises(NotEnoughDataError, match="draws are not left"):
            mixture.sample(4)


def test_counts_stay_where_others_add_rows_meanwhile(tmp_path: pathlib.Path) -> None:
    """New rows were never drawn; but where an actor has taken rows back, other rows have the ids that were counted."""

    def train() -> dr.ReplayBuffer:
        return dr.ReplayBuffer.open(tmp_path / "a", stream="trainer", sampler=dr.Counting(dr.Uniform(), 1), seed=0)

    with create(tmp_path / "a", None, capacity=12) as actor:
        add(actor, 10)
        actor.checkpoint("here")
        add(actor, 1)
        actor.commit()
        with train() as trainer:
            drawn = set(trainer.sample(8).index.tolist())
        add(actor, 4)
        with dr.ReplayBuffer.open(tmp_path / "a", mode="a", stream="late") as late:
            add(late, 5)
        actor.commit()
        for left in (5, 0):
            with train() as trainer:
                items = trainer.items()
                assert set(items[trainer.times_sampled(items) > 0].tolist()) == drawn & set(items.tolist())
                drawn |= set(trainer.sample(len(items) - len(drawn & set(items.tolist())) - left).index.tolist())
    with dr.ReplayBuffer.open(tmp_path / "a", stream="0", checkpoint="here") as actor:
        add(actor, 5)
    with pytest.warns(SamplerWarning, match="without the counts of draws that were there: rows were committed since"):
        train().close()


@pytest.mark.long
def test_a_killed_program_is_told(tmp_path: pathlib.Path) -> None:
    """Since closing, a draw was made that nobody knows of; the checkpoint of its time goes on exactly."""
    with create(tmp_path / "a", dr.Counting(dr.Uniform(), 1)) as buffer:
        add(buffer, 20)
        buffer.sample(5)
        buffer.checkpoint("here")
    with dr.ReplayBuffer.open(tmp_path / "a") as buffer:
        assert buffer.times_sampled(buffer.items()).sum() == 5
    run(f"""
        import os, diskreplay as dr
        rb = dr.ReplayBuffer.open({str(tmp_path / "a")!r})
        rb.sample(4)
        os._exit(1)
    """)
    with pytest.warns(SamplerWarning, match="without the counts of draws that were there: .* ended without close"):
        buffer = dr.ReplayBuffer.open(tmp_path / "a")
    buffer.close()
    with dr.ReplayBuffer.open(tmp_path / "a", checkpoint="here") as buffer:
        assert buffer.times_sampled(buffer.items()).sum() == 5
        buffer.sample(15)
        with pytest.raises(NotEnoughDataError):
            buffer.sample(1)


def test_priorities_are_handed_on(tmp_path: pathlib.Path) -> None:
    plain, counting = dr.Proportional(), dr.Counting(dr.Proportional())
    with create(tmp_path / "a", plain) as one, create(tmp_path / "b", counting) as other:
        for buffer in (one, other):
            add(buffer, 20)
            buffer.update_priorities(buffer.items(), np.arange(20.0))
        drawn = [one.sample(8).index.tolist() for _ in range(9)]
        assert [other.sample(8).index.tolist() for _ in range(9)] == drawn
        times = collections.Counter(each for batch in drawn for each in batch)
        assert other.times_sampled(other.items()).tolist() == [times[each] for each in range(20)]
    with create(tmp_path / "c", dr.Counting(dr.Uniform())) as buffer:
        add(buffer, 3)
        with pytest.raises(InputError, match="has no priorities"):
            buffer.update_priorities(buffer.sample(3).index, np.ones(3))


def test_samplers_of_a_users_own_are_counted_and_held_to_it(tmp_path: pathlib.Path) -> None:
    class Deaf(Newest):
        def sample(self, rng: np.random.Generator, windows: Any, standing: Any, size: int) -> Any:
            return np.arange(size), np.ones(size)

    with create(tmp_path / "a", dr.Counting(Newest(4), 1)) as buffer:
        add(buffer, 9)
        assert len({*buffer.sample(4).index.tolist(), *buffer.sample(4).index.tolist()}) == 8
    with create(tmp_path / "b", dr.Counting(Deaf(4), 1)) as buffer:
        add(buffer, 9)
        buffer.sample(4)
        with pytest.raises(InputError, match="draws what stands at NEVER"):
            buffer.sample(6)
        assert buffer.times_sampled(buffer.items()).sum() == 4, "what is refused counts nothing"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dr.Counting(dr.Uniform), "write Uniform"),  # type: ignore[arg-type]
        (lambda: dr.Counting(dr.Counting(dr.Uniform())), "counts already"),
        (lambda: dr.Counting(dr.Uniform(), 0), "max_times_sampled must be 1 to"),
        (lambda: dr.Counting(dr.Uniform(), 1.5), "max_times_sampled must be an integer"),  # type: ignore[arg-type]
        (lambda: dr.Counting(dr.Proportional(), 3), "needs a sampler without priorities"),
        (lambda: dr.Counting(Rarest(), 3), "needs a sampler without priorities"),
        (lambda: dr.Counting(dr.SamplerMixture([dr.RankBased()]), 3), "needs a sampler without priorities"),
        (lambda: dr.SamplerMixture([dr.Counting(dr.Uniform())]), "count the mixture instead"),
    ],
)
def test_bad_arguments(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_a_sampler_that_does_not_count_is_named(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a", dr.Uniform()) as buffer:
        add(buffer, 3)
        with pytest.raises(InputError, match=r"Uniform\(\) does not count its draws; .* sampler=Counting"):
            buffer.times_sampled([0])


@pytest.mark.parametrize(
    ("runs", "times"),
    [
        ([[0, 0, 2]], np.array([1], np.int32)), ([[0, 0, 1]], np.array([1, 2], np.int32)),
        ([[0, 2, 1]], np.empty(0, np.int32)), ([[0, -1, 0]], np.array([1], np.int32)),
        ([[0, 0, 1], [0, 1, 2]], np.array([1, 2], np.int32)), ([[0, 0, 1]], np.array([-1], np.int32)),
        ([[0, 0, 1]], np.array([1.0])), ([[0, 0]], np.array([1], np.int32)),
        ([[0, 0, 1 << 60]], np.array([1], np.int32)),
    ],
)  # fmt: skip
def test_a_state_that_is_none_is_refused(runs: Any, times: Any) -> None:
    sampler = dr.Counting(dr.Uniform(), 2)
    with pytest.raises((ValueError, TypeError, KeyError)):
        sampler.restore({"streams": runs, "state": None}, {"times_sampled": times})
    assert sampler.is_new
