"""Uniform sampling with replacement, over the windows of all streams (:mod:`diskreplay.sampling.ranges`)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import NotEnoughDataError
from diskreplay.sampling.ranges import Ranges
from diskreplay.sampling.window import Standings, Windows
from diskreplay.schema.ids import Ids, checked_ids


@dataclasses.dataclass(frozen=True)
class Uniform:
    """A sampler that draws every transition of the window with the same probability, with replacement."""

    def sample(
        self, rng: np.random.Generator, windows: Windows, standing: Standings, size: int
    ) -> tuple[Ids, NDArray[np.float32]]:
        """Draw ``size`` ids, int64, and their importance weights, float32, which are all one.

        Raises NotEnoughDataError when nothing in the windows is a transition.
        """
        ranges = Ranges.of(windows)
        if not ranges.count:
            raise NotEnoughDataError("the window is empty; add some steps")
        ids = ranges.sample(rng, standing, size, "nothing in the window can be drawn yet; add more steps")
        return ids, np.ones(size, np.float32)

    def probability(self, ids: Any, windows: Windows, standing: Standings) -> NDArray[np.float64]:
        """Return one over the number of transitions for ids ``(B,)`` of transitions, 0 for others, float64 ``(B,)``.

        Looks at all ids of the windows.
        """
        listed = Ranges.of(windows).items(standing)
        return np.isin(checked_ids(ids), listed) / max(1, len(listed))

    def to_json(self) -> dict[str, Any]:
        return {"kind": "Uniform"}
