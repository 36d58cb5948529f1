"""Passes over a fixed set, dealt out to ranks: every item once an epoch, wherever it is stopped and gone on with."""

from __future__ import annotations

import collections
import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.effort import examples
from helpers.testing import Interrupts
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.errors import InputError, StateError
from diskreplay.sampling.ranked import RankedPass, order

AHEAD = (0, 2, 4, 16)
"""The batches that a loader with 0, 1, 2 and 8 workers asks for before it gives out the first one."""
SIZES = st.tuples(st.integers(1, 60), st.integers(1, 8), st.integers(1, 4))


def ranks(items: int, batch_size: int, world_size: int, **options: Any) -> list[RankedPass]:
    return [RankedPass(items, batch_size, rank, world_size, **options) for rank in range(world_size)]


def taken(batches: list[list[np.ndarray]]) -> list[int]:
    """All items of all ranks, step by step."""
    steps = itertools.zip_longest(*batches, fillvalue=np.empty(0, np.int64))
    return [int(item) for step in steps for batch in step for item in batch]


@settings(max_examples=examples(100), deadline=None)
@given(SIZES, st.integers(0, 3))
def test_each_item_once_an_epoch_in_the_order_of_the_seed(sizes: tuple[int, int, int], seed: int) -> None:
    items, batch_size, world_size = sizes
    passes = ranks(*sizes, seed=seed)
    for epoch in range(3):
        assert {one.epoch for one in passes} == {epoch}
        lengths = [len(one) for one in passes]
        batches = [list(one) for one in passes]
        assert [len(of) for of in batches] == lengths
        assert taken(batches) == order(seed, epoch, items).tolist()
        assert sorted(taken(batches)) == list(range(items))
        assert all(1 <= len(batch) <= batch_size for of in batches for batch in of)
        if items >= world_size and batch_size > 1:
            assert len(set(lengths)) == 1, "no rank waits for another"


@settings(max_examples=examples(100), deadline=None)
@given(SIZES, st.data())
def test_stopped_anywhere_and_gone_on_with_other_ranks(sizes: tuple[int, int, int], data: st.DataObject) -> None:
    items = sizes[0]
    before = ranks(*sizes, seed=1)
    stop = data.draw(st.integers(0, min(len(one) for one in before)), "batches")
    had = [list(itertools.islice(one, stop)) for one in before]
    states = [one.state_dict() for one in before]
    assert all(state == states[0] for state in states)
    assert [one.state_dict(batches=stop) for one in before] == states
    state = json.loads(json.dumps(states[0]))
    for others in (1, 2, 3):
        after = ranks(items, data.draw(st.integers(1, 8), "batch_size"), others, seed=1)
        for one in after:
            one.load_state_dict(state)
            assert one.state_dict() == state
        left = taken([list(one) for one in after])
        if len(taken(had)) == items:
            assert left == order(1, 1, items).tolist(), "the next epoch"
        else:
            assert taken(had) + left == order(1, 0, items).tolist()
        assert all(one.epoch == state["epoch"] + 1 for one in after)


@settings(max_examples=examples(100), deadline=None)
@given(SIZES, st.data())
def test_the_same_ranks_go_on_with_the_same_batches(sizes: tuple[int, int, int], data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, sizes[2] - 1), "rank")
    whole = list(RankedPass(*sizes[:2], rank, sizes[2]))
    stop = data.draw(st.integers(0, len(whole)), "batches")
    one, other = (RankedPass(*sizes[:2], rank, sizes[2]) for _ in range(2))
    first = list(itertools.islice(one, stop))
    other.load_state_dict(one.state_dict())
    if other.epoch == 0:
        found = [batch.tolist() for batch in (*first, *other)]
        assert found == [batch.tolist() for batch in whole]


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 4))
def test_drop_last_gives_whole_batches(items: int, batch_size: int, world_size: int) -> None:
    if items < batch_size * world_size:
        with pytest.raises(InputError, match="leaves no batch"):
            RankedPass(items, batch_size, 0, world_size, drop_last=True)
        return
    batches = [list(one) for one in ranks(items, batch_size, world_size, drop_last=True)]
    assert {len(of) for of in batches} == {items // (batch_size * world_size)}
    assert {len(batch) for of in batches for batch in of} == {batch_size}
    assert len(set(taken(batches))) == len(taken(batches))


def test_the_order_is_the_same_for_ever() -> None:
    assert order(0, 0, 10).tolist() == [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]
    assert len({tuple(order(seed, epoch, 10)) for seed in range(3) for epoch in range(3)}) == 9


def test_an_iteration_that_is_left_begins_again() -> None:
    one = RankedPass(10, 3)
    first = next(iter(one))
    again = iter(one)
    assert (next(again).tolist(), one.state_dict()["taken"]) == (first.tolist(), 3)
    one.load_state_dict(one.state_dict(batches=2))
    assert ([len(batch) for batch in one], one.epoch) == ([3, 1], 1)
    assert list(again)
    assert one.epoch == 1, "an older iteration's end is not the newer one's"


def prefetched(one: RankedPass, ahead: int) -> Iterator[np.ndarray]:
    """The batches of an iteration as torch's ``DataLoader`` gives them: it begins twice, and asks ahead."""
    iter(one)
    asked = iter(one)
    waiting = collections.deque(itertools.islice(asked, ahead))
    for batch in asked:
        waiting.append(batch)
        yield waiting.popleft()
    yield from waiting


@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_state_names_the_batch_that_was_used_wherever_the_prefetch_stands(ahead: int, drop_last: bool) -> None:
    items, options = 20, {"seed": 1, "drop_last": drop_last}
    orders = [order(1, epoch, items)[: 18 if drop_last else items].tolist() for epoch in range(3)]
    one = RankedPass(items, 3, **options)
    seen: list[list[int]] = [[], [], []]
    for epoch in range(3):
        for used, batch in enumerate(prefetched(one, ahead), start=1):
            seen[epoch] += batch.tolist()
            state = one.state_dict(batches=used)
            for others in AHEAD:
                resumed = RankedPass(items, 3, **options)
                resumed.load_state_dict(json.loads(json.dumps(state)))
                found = [list(each) for each in seen]
                for later in range(resumed.epoch, 3):
                    rest = list(prefetched(resumed, others))
                    found[later] += np.concatenate(rest).tolist()
                    assert resumed.state_dict(batches=len(rest))["epoch"] == later + 1
                assert found == orders
        assert one.state_dict(batches=used) == one.state_dict(), "the epoch has ended"
        assert one.state_dict(batches=1) == {**state, "epoch": epoch, "taken": 3}, "counted from the last iter"


def test_batches_are_counted_anew_from_where_the_next_iteration_will_begin() -> None:
    one = RankedPass(10, 3)
    assert len(list(one)) == 4
    one.set_epoch(1)  # what it stands at already
    assert (one.state_dict(batches=0)["epoch"], len(list(prefetched(one, 2)))) == (1, 4)
    one.set_epoch(1)
    assert one.epoch == 1, "an epoch that has ended is given again if it is asked for"
    iter(one)
    assert one.state_dict(batches=1) == {**one.state_dict(), "epoch": 1, "taken": 3}
    one.load_state_dict(one.state_dict(batches=2))
    assert (one.state_dict(batches=1)["taken"], [len(batch) for batch in one]) == (9, [3, 1])
    with pytest.raises(InputError, match="at most 2, which is what this iteration has, got 3"):
        one.state_dict(batches=3)


def test_set_epoch_keeps_what_is_left_of_this_one() -> None:
    one = RankedPass(10, 3)
    one.load_state_dict(one.state_dict(batches=2))
    one.set_epoch(0)
    assert len(one) == 2
    one.set_epoch(5)
    assert (len(one), np.concatenate(list(one)).tolist()) == (4, order(0, 5, 10).tolist())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"items": 0}, "items must be 1"),
        ({"batch_size": 0}, "batch_size must be 1"),
        ({"rank": 2, "world_size": 2}, "rank must be 0 to 1, got 2"),
        ({"world_size": 0}, "world_size"),
        ({"seed": -1}, "seed must be 0"),
        ({"seed": None}, "seed must be an integer"),
        ({"drop_last": 1}, "drop_last must be True or False"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RankedPass(**{"items": 10, "batch_size": 2, **arguments})


def test_states_that_do_not_fit_change_nothing() -> None:
    one = RankedPass(10, 3, fingerprint=5)
    state = one.state_dict(batches=1)
    bad: list[tuple[Any, type[Exception], str]] = [
        ([], InputError, "mapping"),
        ({}, InputError, "lacks version"),
        (state | {"version": 2}, InputError, "version 2"),
        (state | {"seed": 1}, InputError, "of seed 1, this pass of seed 0"),
        (state | {"taken": 11}, InputError, "11 of 10"),
        (state | {"taken": "3"}, InputError, "taken must be an integer"),
        (state | {"items": 11}, StateError, "other items"),
        (state | {"fingerprint": 6}, StateError, "other items"),
    ]
    for given_state, error, message in bad:
        with pytest.raises(error, match=message):
            one.load_state_dict(given_state)
        assert one.state_dict()["taken"] == 0
    one.load_state_dict({**one.state_dict(batches=4), "items": 3, "fingerprint": 1})
    assert one.epoch == 1, "between two epochs the items may change"
    with pytest.raises(InputError, match="at most 4"):
        one.state_dict(batches=5)


def test_interrupted_at_any_line_it_goes_on_where_its_state_says() -> None:
    interrupts = Interrupts(KeyboardInterrupt)
    taken = []
    for number in itertools.count():
        one = RankedPass(7, 3)
        it = iter(one)
        next(it)
        if interrupts.interrupt(number, it.__next__) is None:
            break
        taken.append(one.state_dict()["taken"])
        rest = [int(item) for batch in it for item in batch]
        assert (rest, one.epoch) == (order(0, 0, 7)[taken[-1] :].tolist(), 1)
    assert len(taken) > 10
    assert taken.count(6) == 1, "at its last line the batch was given"
