"""Samplers of a user's own: create, sample, checkpoint, reopen; and what is said where one does not fit."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from helpers.configs import Config
from helpers.model import Leaf
from helpers.odds import chances_of
from helpers.own_samplers import Newest, Rarest
from helpers.recording import Recording, reopen

import diskreplay as dr
from diskreplay.errors import CheckpointError, FormatVersionError, InputError, SamplerWarning
from diskreplay.ops.verify import verify

CONFIG = Config("own sampler", Leaf((3,), np.float32), capacity=30)


def created(path: str, sampler: Any, rows: int = 50) -> dr.ReplayBuffer:
    buffer = CONFIG.create(path, sampler=sampler)
    Recording(CONFIG).add(buffer, rows)
    return buffer


def test_a_plain_class_draws_and_goes_on_from_a_checkpoint(path: str) -> None:
    with created(path, Newest(5)) as buffer:
        newest = buffer.sampler._newest(buffer.engine.streams.windows(), buffer.draws.standing)  # type: ignore[attr-defined]
        assert set(np.concatenate([buffer.sample(9).index for _ in range(9)]).tolist()) == set(newest.tolist())
        assert buffer.sample(3).weight.dtype == np.float32
        np.testing.assert_allclose(chances_of(buffer, newest), 1 / 5)
        with pytest.raises(InputError, match="has no priorities"):
            buffer.update_priorities(newest, np.ones(5))
        buffer.checkpoint("here")
        expected = [buffer.sample(4).index.tolist() for _ in range(9)]
    with reopen(CONFIG, path, checkpoint="here", sampler=Newest(5)) as buffer:
        assert [buffer.sample(4).index.tolist() for _ in range(9)] == expected
    with reopen(CONFIG, path, mode="r", sampler=Newest(1), seed=0) as buffer:
        assert set(buffer.sample(9).index.tolist()) == {newest[-1]}
    with reopen(CONFIG, path, sampler=dr.Proportional(), seed=0) as buffer:
        assert len(set(buffer.sample(20).index.tolist())) > 5


def test_a_store_of_another_kind_of_sampler_is_opened_with_one(path: str) -> None:
    created(path, Newest(5)).close()
    with pytest.raises(FormatVersionError, match=r"'Newest'.*sampler=\.\.\."):
        reopen(CONFIG, path)
    assert verify(path).ok
    with reopen(CONFIG, path, sampler=Newest(5)) as buffer:
        assert len(buffer.sample(3)) == 3


def test_a_state_of_ones_own_comes_back_with_a_checkpoint(path: str) -> None:
    """Of an object without a hash, in a second stream too."""
    with created(path, Rarest()) as buffer:
        for size in (3, 8, 3):
            index = buffer.sample(size).index
            buffer.update_priorities(index, np.arange(len(index), dtype=np.float32))
        buffer.checkpoint("here")
        expected = [buffer.sample(7).index.tolist() for _ in range(9)]
    assert verify(path).ok
    with reopen(CONFIG, path, checkpoint="here", sampler=Rarest()) as buffer:
        assert not buffer.sampler.is_new  # type: ignore[attr-defined]
        assert [buffer.sample(7).index.tolist() for _ in range(9)] == expected
        buffer.clear()
        assert buffer.sampler.is_new  # type: ignore[attr-defined]
    with pytest.warns(SamplerWarning, match=r"begins anew, .* items of .* not of Sequence"):
        reopen(CONFIG, path, checkpoint="here", sampler=Rarest(), view=dr.Sequence(3), mode="r").close()
    with pytest.warns(SamplerWarning, match="it holds the state of Rarest"):
        buffer = reopen(CONFIG, path, checkpoint="here", sampler=dr.Proportional())
    with buffer:
        assert buffer.sampler.maximum == 1  # type: ignore[attr-defined]


def test_a_state_that_it_does_not_take_back_is_said(path: str) -> None:
    with created(path, Rarest()) as buffer:
        buffer.sample(3)
        buffer.sampler.state = lambda: ({"draws": 2}, Rarest().state()[1])  # type: ignore[attr-defined]
        buffer.checkpoint("here")
    with pytest.warns(SamplerWarning, match="without the state of checkpoint 'here': its priorities cannot"):
        buffer = reopen(CONFIG, path, checkpoint="here", sampler=Rarest())
    with buffer:
        assert buffer.sampler.is_new  # type: ignore[attr-defined]


def test_it_belongs_to_one_buffer(path: str, tmp_path: pathlib.Path) -> None:
    """Though it is equal to another."""
    sampler = Rarest()
    with created(path, sampler) as buffer, CONFIG.create(str(tmp_path / "b"), sampler=Rarest()) as other:
        assert buffer.sampler == other.sampler
        buffer.sample(3)
        with pytest.raises(InputError, match="open buffer"):
            CONFIG.create(str(tmp_path / "c"), sampler=sampler)
    with pytest.raises(InputError, match="still holds the priorities of another store"):
        CONFIG.create(str(tmp_path / "c"), sampler=sampler)
    assert not (tmp_path / "c").exists()
    with reopen(CONFIG, path, sampler=sampler) as buffer:
        assert not buffer.sampler.is_new  # type: ignore[attr-defined]


def without(*names: str, base: Any = Rarest) -> Any:
    """An object of a class like the base, without some of its methods."""
    kept: dict[str, Any] = {}
    for each in reversed(base.__mro__[:-1]):
        kept |= {name: value for name, value in vars(each).items() if name not in ("__dict__", "__weakref__")}
    return type("Own", (), {name: value for name, value in kept.items() if name not in names})()


class Facts(Newest):
    def __init__(self, facts: Any) -> None:
        super().__init__(3)
        self.facts = facts

    def to_json(self) -> Any:
        return self.facts


MISFITS: list[Any] = [
    (Rarest, r"must be an object, got the class Rarest; write Rarest\(\.\.\.\)"),
    (3, "object with sample, probability and to_json, got 3, which lacks sample, probability, to_json"),
    (np.random.default_rng(0), "lacks sample, probability, to_json"),
    (without("sample"), "which lacks sample"),
    (without("to_json", "probability"), "which lacks probability, to_json"),
    (without("forget", "state"), "has update, so it must have all of .*; it lacks forget, state"),
    (without("update", "is_new"), "has forget, so it must have all of .*; it lacks update, is_new"),
    (Facts(None), "must give a dict with its name as 'kind', got None"),
    (Facts({}), "must give a dict with its name as 'kind'"),
    (Facts({"kind": 3}), "must give a dict with its name as 'kind'"),
    (Facts({"kind": "a", "count": np.int64(3)}), r"must be JSON \(call .item\(\)"),
]


@pytest.mark.parametrize(("sampler", "message"), MISFITS)
def test_what_is_no_sampler_is_said_before_anything_is_made(path: str, sampler: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        CONFIG.create(path, sampler=sampler)
    assert not pathlib.Path(path).exists()
    CONFIG.create(path).close()
    with pytest.raises(InputError, match=message):
        reopen(CONFIG, path, sampler=sampler, stream="new")
    assert not pathlib.Path(path, "streams", "new").exists()


def test_a_class_with_slots_is_told_what_to_add(path: str) -> None:
    methods = {name: getattr(Rarest, name) for name in ("sample", "probability", "to_json", "update", "forget", "clear",
                                                        "state", "restore")}  # fmt: skip
    slotted = type("Slotted", (), {"__slots__": ("drawn",), "is_new": True, **methods})
    with pytest.raises(InputError, match=r"take weak references, .* add '__weakref__' to its __slots__"):
        CONFIG.create(path, sampler=slotted())
    assert not pathlib.Path(path).exists()


class Answers(Newest):
    """Draws what it is told to."""

    def __init__(self, answer: Any) -> None:
        super().__init__(5)
        self.answer = answer

    def sample(self, *arguments: Any) -> Any:
        ids, weights = super().sample(*arguments)
        return self.answer(ids, weights)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda ids, weights: ids, "must give ids and weights"),
        (lambda ids, weights: None, "must give ids and weights, got None"),
        (lambda ids, weights: (ids[:-1], weights), r"must give 4 integers as ids, got int64 \(3,\)"),
        (lambda ids, weights: (ids.astype(float), weights), "must give 4 integers as ids, got float64"),
        (lambda ids, weights: (ids, weights[:, None]), r"must give 4 numbers as weights, got float32 \(4, 1\)"),
        (lambda ids, weights: (ids, [None] * 4), "must give 4 numbers as weights, got object"),
        (
            lambda ids, weights: (ids * 0, weights),
            "gave an id that cannot be sampled: transition 0 has left the window",
        ),
        (lambda ids, weights: (ids + 100, weights), "gave an id that cannot be sampled: index .* names no transition"),
        (lambda ids, weights: (-ids, weights), "gave an id that cannot be sampled"),
        (lambda ids, weights: (ids + (7 << 48), weights), "gave an id that cannot be sampled: index .* names no"),
    ],
)
def test_what_it_draws_is_checked(path: str, answer: Any, message: str) -> None:
    with created(path, Answers(answer)) as buffer:
        with pytest.raises(InputError, match=message):
            buffer.sample(4)
        buffer.sampler.answer = lambda ids, weights: (ids.tolist(), weights.tolist())  # type: ignore[attr-defined]
        assert buffer.sample(4).index.dtype == np.int64


def test_items_that_a_view_does_not_show_are_refused(path: str) -> None:
    with CONFIG.create(path, sampler=Answers(lambda ids, weights: (ids * 0 + 4, weights)), view=dr.Transition(3)) as rb:
        for _ in range(5):
            rb.add(np.zeros(3, np.float32), 0, 0.0, np.zeros(3, np.float32), False, False)
        with pytest.raises(InputError, match="gave an id that cannot be sampled: index 4 names no transition"):
            rb.sample(2)


@pytest.mark.parametrize(
    "state",
    [
        lambda: None,
        lambda: ({}, {"a": np.zeros((2, 2))}),
        lambda: ({}, {"a": [1, 2]}),
        lambda: ({}, {"a/b": np.zeros(2)}),
        lambda: ({}, {"a": np.array(["x"])}),
        lambda: ({"a": np.float32(2)}, {}),
        lambda: (3, {}),
    ],
)
def test_a_state_that_cannot_be_kept_makes_no_checkpoint(path: str, state: Any) -> None:
    with created(path, Rarest()) as buffer:
        buffer.sampler.state = state  # type: ignore[attr-defined]
        with pytest.raises(InputError, match=r"state of Rarest\("):
            buffer.checkpoint("here")
        assert buffer.checkpoints == []
        with pytest.raises(CheckpointError):
            buffer.checkpoint_metadata("here")
        del buffer.sampler.state  # type: ignore[attr-defined]
        buffer.checkpoint("here")
