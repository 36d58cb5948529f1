"""The choice of episodes to which ``sample`` and ``shuffled`` can keep."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from diskreplay.ids import Ids, pack, stream_of
from diskreplay.index.episodes import Episode, EpisodeTable, listed
from diskreplay.index.episodes import table as table_of
from diskreplay.index.facts import Facts
from diskreplay.index.selecting import chosen_rows
from diskreplay.index.where import Where
from diskreplay.reading.open_stream import OpenStream
from diskreplay.sampling.selected import Ranges


class Selection:
    """The episodes that :meth:`ReplayBuffer.select` has found, as they were then; ``len`` counts them.

    Steps that were added since are no part of it, and what has left the window since is not drawn.

    Attributes:
        where: the text that chose them.
    """

    def __init__(self, where: Where, streams: Sequence[OpenStream]) -> None:
        self.where = where.text
        self._parts: list[tuple[EpisodeTable, list[Facts]]] = []
        self._timelines = {stream.log.stream: (stream.disk.path, _timeline(stream)) for stream in streams}
        """The path and timeline of each stream, by number: after going back the ids are those of other steps."""
        for stream in streams:
            table = table_of(stream.log)
            wanted, known = chosen_rows(where, table, stream.facts, stream.disk.name)
            part = table.only(wanted)
            if known is None:
                self._parts.append((part, stream.facts.find(part.start, part.env)))
            else:
                self._parts.append((part, list(itertools.compress(known, wanted.tolist()))))
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
        return [episode for table, facts in self._parts for episode in listed(table, facts)]

    def is_of(self, streams: Sequence[OpenStream]) -> bool:
        """Tell whether the streams are those whose episodes it has; there may be more streams since."""
        known = self._timelines
        found = sum(known.get(one.log.stream) == (one.disk.path, _timeline(one)) for one in streams)
        return found == len(known)

    def holds(self, ids: Ids) -> NDArray[np.bool_]:
        """Tell which ids are those of its transitions."""
        found = np.zeros(len(ids), bool)
        for table, _ in self._parts:
            here = np.flatnonzero(stream_of(ids) == table.stream)
            found[here] = table.hold(ids[here])
        return found


def _timeline(stream: OpenStream) -> int:
    return stream.disk.commit_record.timeline
