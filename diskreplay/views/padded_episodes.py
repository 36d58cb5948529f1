"""The view of whole episodes, each padded with zeros to the same length."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import check_count, check_share
from diskreplay.index.episodes import episodes
from diskreplay.index.log import LATER, NEVER, NOW
from diskreplay.reading.open_stream import OpenStream
from diskreplay.reading.reads import Reads
from diskreplay.reading.unroll import episode_stop, unroll
from diskreplay.schema.columns import CONTINUES, CUT_START, START, VALID, Schema
from diskreplay.schema.ids import Ids
from diskreplay.views.batch import EpisodeBatch, by_item
from diskreplay.views.transition import transitions
from diskreplay.views.view import View, keep


@dataclasses.dataclass(frozen=True)
class PaddedEpisodes(View[EpisodeBatch]):
    """A view of whole episodes, padded with zeros to ``max_length`` steps.

    An episode is an item if it has ended and its first step is in the window. ``index`` names its first step. A batch
    is an :class:`~diskreplay.EpisodeBatch`.

    Args:
        max_length: the number of steps of each entry, ``T``. A longer episode loses the steps beyond ``T``.
        gamma: the discount factor, 0 to 1, for the field ``discount``.

    >>> PaddedEpisodes(max_length=200).reach
    200
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
        codes = stream.log.take(START, rows, envs)
        here = np.flatnonzero(stream.log.take(VALID, rows, envs) & (codes != CONTINUES) & (codes < CUT_START))
        found = np.full(len(ids), NEVER, np.int8)
        found[here] = np.where(stream.spans().is_cut(rows[here], envs[here]), NOW, LATER)
        return found

    def draft(
        self, schema: Schema, streams: Sequence[OpenStream], ids: Ids, weight: NDArray[Any],
        rng: np.random.Generator | None, reads: Reads,
    ) -> EpisodeBatch:  # fmt: skip
        samples, mask = unroll(schema, streams, ids, episode_stop, self.max_length, reads)
        fields = by_item(transitions(samples, 1, self.gamma, ids, weight), *mask.shape)
        return EpisodeBatch(**fields, mask=mask, length=mask.sum(axis=1))

    def lacking(self, streams: Sequence[OpenStream]) -> str | None:
        """Return why no episode can be sampled, and what the user can do. Return None if one can."""
        held = [episode for stream in streams for episode in episodes(stream.log)]
        cut = sum(not episode.complete_start for episode in held)
        return None if any(episode.ended and episode.complete_start for episode in held) else (
            f"{self!r}: no episode in the window is whole: of {len(held)}, {cut} have lost their first steps (a larger "
            f"capacity keeps them) and {len(held) - cut} go on; add the end of one"
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {"kind": "PaddedEpisodes", **dataclasses.asdict(self)}
