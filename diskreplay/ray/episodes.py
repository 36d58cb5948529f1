"""The episodes of RLlib's buffer, oldest first, and the spans of the store's rows that hold their steps.

RLlib adds an episode in chunks, those of several environments in turn, and evicts whole episodes, the oldest first. So
an episode here is a list of spans. To which episode a row belongs says the store's own index: the facts of the row's
span name the episode.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.index.spans import EpisodeSpan
from diskreplay.schema.ids import Ids

ID, NUMBER, STEP = "id", "number", "t"
"""The facts of a span: RLlib's id of its episode, the episode's number, and the number of the span's first step."""


@dataclasses.dataclass
class Held:
    """An episode that is in the buffer.

    Attributes:
        id: RLlib's.
        number: the episode's number, counted from the first one on, evicted ones included.
        spans: the rows, in the order of the steps.
    """

    id: str
    number: int
    spans: list[EpisodeSpan] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return self.spans[-1].step + len(self.spans[-1])

    def ids(self, start: int, stop: int) -> list[int]:
        """Return the ids of steps ``[start, stop)``."""
        found: list[int] = []
        for span in self.spans:
            found.extend(span.ids[max(0, start - span.step) : max(0, stop - span.step)])
        return found

    def step_at(self, row: int, env: int) -> int | None:
        """Return the number of the step in a row of an environment of the store, or None if it is of none."""
        steps = (
            span.step + row - span.start for span in self.spans if span.env == env and span.start <= row < span.stop
        )
        return next(steps, None)


class Episodes:
    """The episodes of a buffer.

    Args:
        store: the store of the steps, whose episodes are found again; None for a new one. Episodes whose number is
            below ``evicted``, or whose first steps are gone, are left out.
        evicted: episodes that were, before.
    """

    def __init__(self, store: ReplayBuffer | None = None, evicted: int = 0) -> None:
        self.steps = 0
        """The number of steps of all episodes."""
        self.evicted = evicted
        """The number of episodes that were evicted."""
        self._held: collections.OrderedDict[int, Held] = collections.OrderedDict()
        """The episodes by number."""
        self._by_id: dict[str, Held] = {}
        self._next = 0
        self._firsts: list[tuple[int, int]] = []
        """A heap of the first row and the number of each episode, also of evicted ones."""
        if store is not None:
            self._restore(store)

    def __len__(self) -> int:
        return len(self._held)

    def __getitem__(self, at: int) -> Held:
        return next(itertools.islice(self._held.values(), at, None))

    def find(self, id: str) -> Held | None:
        """Return the episode that has this id in RLlib, or None."""
        return self._by_id.get(id)

    def new_number(self) -> int:
        """Return the number for an episode that is none of these yet: :meth:`extend` takes it in."""
        self._next += 1
        return self._next - 1

    def extend(self, id: str, span: EpisodeSpan) -> None:
        """Add the next steps of an episode."""
        held = self._held.get(span.episode)
        if held is None:
            held = self._held[span.episode] = self._by_id[id] = Held(id, span.episode)
            heapq.heappush(self._firsts, (span.start, span.episode))
        self.steps += len(span)
        if held.spans and goes_on(held.spans[-1], span):
            held.spans[-1] = dataclasses.replace(held.spans[-1], stop=span.stop)
        else:
            held.spans.append(span)

    def at(self, store: ReplayBuffer, ids: Ids) -> list[tuple[Held, int] | None]:
        """Return the episode and step of each row's id, or None if it was evicted, or belongs to none."""
        with store.engine.lock:
            stream = store.engine.streams.written
            assert stream is not None
            rows, envs = stream.log.locate(ids)
            facts = stream.facts.find(stream.spans().first(rows, envs), envs)
        found: list[tuple[Held, int] | None] = []
        for known, row, env in zip(facts, rows.tolist(), envs.tolist(), strict=True):
            held = self._held.get(known.get(NUMBER, -1))
            step = None if held is None else held.step_at(row, env)
            found.append(None if held is None or step is None else (held, step))
        return found

    def evict(self) -> None:
        """Forget the oldest episode."""
        _, held = self._held.popitem(last=False)
        if self._by_id.get(held.id) is held:
            del self._by_id[held.id]
        self.steps -= len(held)
        self.evicted += 1

    def first_row(self) -> int | None:
        """Return the first row that an episode needs, or None if there is none."""
        while self._firsts and self._firsts[0][1] not in self._held:
            heapq.heappop(self._firsts)
        return self._firsts[0][0] if self._firsts else None

    def _restore(self, store: ReplayBuffer) -> None:
        spans = (
            (e.facts[ID], EpisodeSpan(e.stream, store.num_envs, e.env, e.start, e.stop, e.facts[NUMBER], e.facts[STEP]))
            for e in store.episodes
            if {ID, NUMBER, STEP} <= e.facts.keys() and e.complete_start
        )
        by_number = sorted(spans, key=lambda each: (each[1].episode, each[1].step))
        for number, each in itertools.groupby(by_number, lambda each: each[1].episode):
            parts = list(each)
            begins = itertools.accumulate((len(span) for _, span in parts), initial=0)
            if number >= self.evicted and all(
                span.step == step for (_, span), step in zip(parts, begins, strict=False)
            ):
                for id, span in parts:
                    self.extend(id, span)
            self._next = number + 1
        self.evicted = max(self.evicted, next(iter(self._held), 0))


def goes_on(before: EpisodeSpan, span: EpisodeSpan) -> bool:
    """Tell whether a span of an episode follows the one before it in the rows of the store, too."""
    return (before.env, before.stop) == (span.env, span.start)
