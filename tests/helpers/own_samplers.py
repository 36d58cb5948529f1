"""Samplers as a user writes them: plain classes, with no base of this package."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import diskreplay as dr
from diskreplay.errors import NotEnoughDataError
from diskreplay.index.log import NOW


class Newest:
    """Any of the newest ``count`` transitions of all streams."""

    def __init__(self, count: int) -> None:
        self.count = count

    def _newest(self, windows: Any, standing: Any) -> np.ndarray:
        held = np.concatenate([np.arange(window.first, window.stop) for window in windows])
        found: np.ndarray = held[standing(held) == NOW][-self.count :]
        return found

    def sample(self, rng: np.random.Generator, windows: Any, standing: Any, size: int) -> Any:
        newest = self._newest(windows, standing)
        if not len(newest):
            raise NotEnoughDataError("no transition yet")
        return rng.choice(newest, size), np.ones(size, np.float32)

    def probability(self, ids: Any, windows: Any, standing: Any) -> np.ndarray:
        newest = self._newest(windows, standing)
        return np.isin(ids, newest) / len(newest)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "Newest", "count": self.count}


@dataclasses.dataclass
class Rarest(Newest):
    """Those that were drawn least often; of them, whose error was largest. Equal ones are equal: it has no hash."""

    count: int = 1 << 30
    drawn: dict[int, int] = dataclasses.field(default_factory=dict)
    errors: dict[int, float] = dataclasses.field(default_factory=dict)

    def sample(self, rng: np.random.Generator, windows: Any, standing: Any, size: int) -> Any:
        order = sorted(self._newest(windows, standing).tolist(), key=self._rank)[:size]
        for each in order:
            self.drawn[each] = self.drawn.get(each, 0) + 1
        return np.array(order), np.ones(size)

    def _rank(self, each: int) -> tuple[int, float, int]:
        return self.drawn.get(each, 0), -self.errors.get(each, 1.0), each

    def to_json(self) -> dict[str, Any]:
        return {"kind": "Rarest"}

    def update(self, ids: Any, priorities: Any, windows: Any, standing: Any) -> None:
        self.errors.update(zip(ids.tolist(), np.abs(priorities).tolist(), strict=True))

    def forget(self, stream: int) -> None:
        self.drawn = {each: count for each, count in self.drawn.items() if each >> 48 != stream}
        self.errors = {each: error for each, error in self.errors.items() if each >> 48 != stream}

    def clear(self) -> None:
        self.drawn, self.errors = {}, {}

    @property
    def is_new(self) -> bool:
        return not self.drawn and not self.errors

    def state(self) -> Any:
        arrays = {
            "ids": np.array([*self.drawn], np.int64),
            "drawn": np.array([*self.drawn.values()], np.int64),
            "told": np.array([*self.errors], np.int64),
            "errors": np.array([*self.errors.values()], np.float64),
        }
        return {"draws": sum(self.drawn.values())}, arrays

    def restore(self, facts: Any, arrays: Any) -> None:
        if facts["draws"] != arrays["drawn"].sum():
            raise ValueError("not the draws that were counted")
        self.drawn = dict(zip(arrays["ids"].tolist(), arrays["drawn"].tolist(), strict=True))
        self.errors = dict(zip(arrays["told"].tolist(), arrays["errors"].tolist(), strict=True))


STATEFUL: dict[str, Callable[[], Any]] = {
    "Proportional": lambda: dr.Proportional(beta_schedule=(1.0, 50)),
    "by environment": lambda: dr.Proportional(by_env=True),
    "RankBased": dr.RankBased,
    "SamplerMixture": lambda: dr.SamplerMixture([dr.Uniform(), dr.Proportional()], weights=(1, 3)),
    "Counting": lambda: dr.Counting(dr.Proportional()),
    "own": Rarest,
}
"""Makes samplers that keep a state, ours and one of a user's own, by name."""
