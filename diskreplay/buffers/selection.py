"""The choice of episodes to which ``sample`` and ``shuffled`` can keep."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import NotEnoughDataError
from diskreplay.index.episodes import Episode, EpisodeTable, listed
from diskreplay.index.selecting import chosen_rows, refuse_columns
from diskreplay.index.where import Where
from diskreplay.reading.open_stream import OpenStream
from diskreplay.sampling.ranges import Ranges
from diskreplay.sampling.window import Standings
from diskreplay.schema.ids import Ids, pack, stream_of


class Selection:
    """The episodes that :meth:`ReplayBuffer.select` has found, as they were then; ``len`` counts them.

    Steps that were added since are no part of it, and what has left the window since is not drawn.

    Attributes:
        where: the text that chose them.
    """

    def __init__(self, where: Where, streams: Sequence[OpenStream], columns: Collection[str]) -> None:
        """Find the episodes; raise InputError if the condition names one of ``columns``, and no fact."""
        self.where = where.text
        self._parts: list[tuple[EpisodeTable, NDArray[Any]]] = []
        self._timelines = {stream.log.stream: (stream.disk.path, _timeline(stream)) for stream in streams}
        """The path and timeline of each stream, by number: after going back the ids are those of other steps."""
        refuse_columns(where, columns, [stream.episodes for stream in streams])
        for stream in streams:
            wanted = chosen_rows(where, stream.episodes, stream.disk.name)
            self._parts.append((stream.episodes.table().only(wanted), stream.episodes.facts()[wanted]))
        tables = [table for table, _ in self._parts]
        none = [np.empty(0, np.int64)]
        self.ranges = Ranges(
            np.concatenate(none + [pack(t.stream, t.start, t.env, t.num_envs) for t in tables]),
            np.concatenate(none + [np.full(len(t), t.num_envs) for t in tables]),
            np.concatenate(none + [t.stop - t.start for t in tables]),
        )
        """The ranges of the ids of its transitions."""

    def __len__(self) -> int:
        return sum(len(table) for table, _ in self._parts)

    def __repr__(self) -> str:
        return f"<Selection {self.where!r}: {len(self):,} episodes, {self.transitions:,} transitions>"

    @property
    def transitions(self) -> int:
        """The number of transitions in all its episodes."""
        return self.ranges.count

    @property
    def episodes(self) -> list[Episode]:
        """The episodes, in the order of streams, first rows and environments."""
        return [episode for table, facts in self._parts for episode in listed(table, facts.tolist())]

    def is_of(self, streams: Sequence[OpenStream]) -> bool:
        """Tell whether the streams are those whose episodes it has; there may be more streams since."""
        known = self._timelines
        found = sum(known.get(one.log.stream) == (one.disk.path, _timeline(one)) for one in streams)
        return found == len(known)

    def draw(self, rng: np.random.Generator, standing: Standings, size: int) -> Ids:
        """Return ids of its transitions that can be sampled now, each with the same probability."""
        if not self.ranges.count:
            raise NotEnoughDataError("no transition is selected; select with another condition")
        lacking = "what was selected has left the window, or cannot be sampled yet: select anew"
        return self.ranges.sample(rng, standing, size, lacking)

    def holds(self, ids: Ids) -> NDArray[np.bool_]:
        """Tell which ids are those of its transitions."""
        found = np.zeros(len(ids), bool)
        for table, _ in self._parts:
            here = np.flatnonzero(stream_of(ids) == table.stream)
            found[here] = table.hold(ids[here])
        return found


def _timeline(stream: OpenStream) -> int:
    return stream.disk.commit_record.timeline
