"""Whole episodes, padded to one length."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import check_count, check_share
from diskreplay.ids import Ids
from diskreplay.index.log import LATER, NEVER, NOW
from diskreplay.reading.open_stream import OpenStream
from diskreplay.reading.reads import Reads
from diskreplay.reading.unroll import unroll
from diskreplay.schema import VALID, Schema
from diskreplay.views.batch import EpisodeBatch, by_item
from diskreplay.views.transition import transitions
from diskreplay.views.view import View, keep


@dataclasses.dataclass(frozen=True)
class PaddedEpisodes(View[EpisodeBatch]):
    """A view of episodes that have ended and whose first step is in the window, padded to ``max_length`` steps.

    ``index`` names an episode's first step. A batch is an :class:`~diskreplay.EpisodeBatch`.

    Args:
        max_length: steps, ``T``; of a longer episode the first ones are given.
        gamma: discount factor, 0 to 1, of the field ``discount``.
    """

    max_length: int
    gamma: float = 0.99

    def __post_init__(self) -> None:
        max_length = check_count("max_length", self.max_length, most=1 << 20)
        keep(self, max_length=max_length, gamma=check_share("gamma", self.gamma))

    @property
    def reach(self) -> int:
        return self.max_length

    def standing(self, stream: OpenStream, ids: Ids) -> NDArray[np.int8]:
        rows, envs = stream.log.locate(ids)
        begins = stream.log.take(VALID, rows, envs) & stream.log.begins(rows, envs)
        found = np.full(len(ids), NEVER, np.int8)
        here = np.flatnonzero(begins)
        found[here] = np.where(stream.spans().is_cut(rows[here], envs[here]), NOW, LATER)
        return found

    def draft(
        self, schema: Schema, streams: Sequence[OpenStream], ids: Ids, weight: NDArray[Any],
        rng: np.random.Generator | None, reads: Reads,
    ) -> EpisodeBatch:  # fmt: skip
        def held(stream: OpenStream, rows: Ids, envs: Ids) -> Ids:
            return stream.spans().stop(rows, envs) - rows

        samples, mask = unroll(schema, streams, ids, held, self.max_length, reads)
        fields = by_item(transitions(samples, 1, self.gamma, ids, weight), *mask.shape)
        return EpisodeBatch(**fields, mask=mask, length=mask.sum(axis=1))

    def to_json(self) -> dict[str, Any]:
        return {"kind": "PaddedEpisodes", **dataclasses.asdict(self)}
