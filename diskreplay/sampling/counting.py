"""A sampler over another one, which counts how often each transition was drawn, and can bound it.

1. A draw counts when the other sampler has chosen the transition, one count for each time that it stands in a batch.
2. With a bound, transitions that have reached it stand at NEVER for the other sampler. It draws with replacement, so
   that a batch may hold one more often than is left of it: what is too much is drawn again, with the counts of what was
   taken before. The batch is then what so many single draws would have given.
3. A batch that cannot be filled counts nothing, and leaves the random state as it was: what is drawn later does not
   depend on how often a program asked before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import check_count
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.index.log import NEVER
from diskreplay.sampling.composed import Composed, has_priorities
from diskreplay.sampling.conforming import check
from diskreplay.sampling.groups import Groups
from diskreplay.sampling.window import Prioritized, Sampler, Standings, Window, Windows, checked_draw
from diskreplay.schema.ids import STREAM_SHIFT, Ids, stream_of
from diskreplay.schema.ring import Ring

LOCAL = (1 << STREAM_SHIFT) - 1
TIMES, RUNS, STATE = "times_sampled", "streams", "state"
MOST_TIMES = (1 << 31) - 1

Drawn = tuple[Ids, NDArray[np.float32]]


class Counting(Composed):
    """A sampler that counts how often each transition was drawn by another one, 4 bytes of RAM for each.

    The counts are those of the one buffer that it is given to: :meth:`ReplayBuffer.times_sampled` returns them. A
    checkpoint holds them, and ``close`` keeps them, as priorities; ``docs/samplers.md`` says what counts.

    Args:
        sampler: chooses the transitions.
        max_times_sampled: a transition that was drawn so many times is never drawn again (Reverb's word; its tables
            remove such an item, Cassirer et al. 2021); None for no bound. A sampler with priorities takes no bound.

    Raises InputError where an argument is none of that.

    >>> import diskreplay as dr
    >>> dr.Counting(dr.Recent(by="version", within=2), max_times_sampled=1)
    Counting(Recent(by='version', within=2), max_times_sampled=1)
    """

    def __init__(self, sampler: Sampler, max_times_sampled: int | None = None) -> None:
        check(sampler)
        if isinstance(sampler, Counting):
            raise InputError(f"{sampler!r} counts already; give it the bound, too")
        if max_times_sampled is not None:
            max_times_sampled = check_count("max_times_sampled", max_times_sampled, most=MOST_TIMES)
            if has_priorities(sampler):
                raise InputError(
                    f"max_times_sampled needs a sampler without priorities, such as Uniform(), got {sampler!r}"
                )
        self._sampler = sampler
        self._state = sampler if isinstance(sampler, Prioritized) else None
        self._most = max_times_sampled
        self._times: dict[int, Ring] = {}
        """The counts by stream, of its ids without the stream's number."""

    def __repr__(self) -> str:
        return f"Counting({self._sampler!r}, max_times_sampled={self._most})"

    @property
    def samplers(self) -> tuple[Sampler, ...]:
        """The sampler that chooses."""
        return (self._sampler,)

    @property
    def max_times_sampled(self) -> int | None:
        """The most times that a transition is drawn, as it was given."""
        return self._most

    # Counts

    def times_sampled(self, ids: Ids) -> NDArray[np.int64]:
        """Return how often ids ``(B,)`` were drawn, int64 ``(B,)``; 0 for those outside of the windows."""
        found = np.zeros(len(ids), np.int64)
        for ring, here, local in self._places(ids):
            found[here] = ring.take(local)
        return found

    def _count(self, ids: Ids) -> None:
        for ring, _, local in self._places(ids):
            np.add.at(ring.array, local % ring.length, 1)

    def take_back(self, ids: Ids) -> None:
        """Subtract draws of ids ``(B,)`` from their counts, which never fall below 0."""
        for ring, _, local in self._places(ids):
            at = local % ring.length
            np.subtract.at(ring.array, at, 1)
            ring.array[at] = np.maximum(ring.array[at], 0)

    def _places(self, ids: Ids) -> list[tuple[Ring, Ids, Ids]]:
        """Return, for each stream, its counts, the positions of its ids in ``ids``, and these without its number."""
        streams, found = stream_of(ids), []
        for stream in set(streams.tolist()) & self._times.keys():
            ring, local = self._times[stream], ids & LOCAL
            here = np.flatnonzero((streams == stream) & (local >= ring.begin) & (local < ring.end))
            found.append((ring, here, local[here]))
        return found

    def follow(self, windows: Windows) -> None:
        """Have a count for each id of the windows, 0 for new ones, and forget all others."""
        listed = {int(stream_of(window.first)): window for window in windows}
        for stream in self._times.keys() - listed.keys():
            del self._times[stream]
        for stream, window in listed.items():
            self._follow(stream, window)

    def _follow(self, stream: int, window: Window) -> None:
        first, stop = window.first & LOCAL, window.stop - window.first + (window.first & LOCAL)
        ring = self._times.get(stream)
        if ring is None or first < ring.begin or stop < ring.end:  # it is new, or rows of it were taken back
            ring = Ring((), np.int32, window.capacity)
            ring.restart(first)
        ring.most = window.capacity
        ring.trim(first)
        if stop > ring.end:
            ring.extend(np.zeros(stop - ring.end, np.int32))
        self._times[stream] = ring

    # Draws

    def sample(self, rng: np.random.Generator, windows: Windows, standing: Standings, size: int) -> Drawn:
        """Draw ``size`` ids, int64, and the weights that the other sampler gives them, float32.

        Raises NotEnoughDataError where too few draws are left, and what the other sampler raises.
        """
        if isinstance(self._sampler, Groups):  # a batch of it has each id once, and is drawn whole
            self.follow(windows)
            ids, weights = self._sampler.sample(rng, windows, self._left(standing), size)
            self._count(ids)
            return ids, weights

        def draw(standing: Standings, count: int) -> Drawn:
            return checked_draw(self._sampler, self._sampler.sample(rng, windows, standing, count), count)

        return self.counted(draw, rng, windows, standing, size)

    def counted(
        self, draw: Callable[[Standings, int], Drawn], rng: np.random.Generator, windows: Windows,
        standing: Standings, size: int,
    ) -> Drawn:  # fmt: skip
        """Return and count ``size`` ids and weights that ``draw(standing, count)`` gives, as far as they are left.

        If it raises, the state of ``rng``, by which ``draw`` draws, is as it was. It raises InputError if the other
        sampler draws groups, which these draws would use up in part.
        """
        if isinstance(self._sampler, Groups):
            raise InputError(
                f"{self!r} counts draws of whole groups, which a draw of single items would split; sample without "
                "within, or open the store with another sampler"
            )
        self.follow(windows)
        parts: list[Drawn] = []
        missing, before = size, rng.bit_generator.state
        try:
            while missing or not parts:
                ids, weights = draw(self._left(standing), missing)
                taken = self._fitting(ids)
                if missing and not len(taken):
                    raise InputError(f"{self._sampler!r} draws what stands at NEVER: it was drawn {self._most} times")
                parts.append((ids[taken], weights[taken]))
                self._count(ids[taken])
                missing -= len(taken)
        except BaseException as error:
            rng.bit_generator.state = before
            for ids, _ in parts:
                self.take_back(ids)
            if isinstance(error, NotEnoughDataError) and self._most is not None:
                raise NotEnoughDataError(
                    f"{size} draws are not left: each transition is drawn at most {self._most} times; add more steps"
                ) from error
            raise
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([weights for _, weights in parts])

    def _left(self, standing: Standings) -> Standings:
        most = self._most
        if most is None:
            return standing

        def left(ids: Ids) -> NDArray[np.int8]:
            found = standing(ids).copy()
            found[self.times_sampled(ids) >= most] = NEVER
            return found

        return left

    def _fitting(self, ids: Ids) -> Ids:
        """Return the positions of drawn ids that may be taken, one after another: each as often as is left of it."""
        if self._most is None:
            return np.arange(len(ids))
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        again = np.empty(len(ids), np.int64)
        again[order] = np.arange(len(ids)) - np.searchsorted(ordered, ordered)
        return np.flatnonzero(self.times_sampled(ids) + again < self._most)

    def probability(self, ids: Any, windows: Windows, standing: Standings) -> NDArray[np.float64]:
        """Return the probability of ids ``(B,)`` in the next draw, float64 ``(B,)``."""
        self.follow(windows)
        return self._sampler.probability(ids, windows, self._left(standing))

    # Another state

    def update(self, ids: Any, priorities: Any, windows: Windows, standing: Standings) -> None:
        """Hand TD errors ``(B,)`` of ids ``(B,)`` to the other sampler; raise InputError if it has no priorities."""
        if self._state is None:
            raise InputError(f"{self!r} has no priorities; give it a Proportional() or RankBased()")
        self._state.update(ids, priorities, windows, standing)

    def forget(self, stream: int) -> None:
        """Forget the counts of a stream whose rows were taken back."""
        self._times.pop(stream, None)
        if self._state is not None:
            self._state.forget(stream)

    def clear(self) -> None:
        """Forget all counts, and what the other sampler knows; keep the arguments."""
        self._times = {}
        if self._state is not None:
            self._state.clear()

    @property
    def is_new(self) -> bool:
        """True if it knows nothing of any buffer yet, or was cleared."""
        return not self._times and (self._state is None or self._state.is_new)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the counts of all ids that it knows, stream by stream, and the state of the other sampler."""
        facts, arrays = self._state.state() if self._state is not None else (None, {})
        if TIMES in arrays:
            raise InputError(f"{self._sampler!r} may not have a state named {TIMES!r}: its counts have that name")
        runs = [[stream, ring.begin, ring.end] for stream, ring in self._times.items()]
        times = [ring.span(ring.begin, ring.end) for ring in self._times.values()]
        return {RUNS: runs, STATE: facts}, {**arrays, TIMES: np.concatenate([np.empty(0, np.int32), *times])}

    def restore(self, facts: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Go on from what :meth:`state` gave; raise ValueError, KeyError or TypeError for anything else."""
        found: dict[int, Ring] = {}
        given = np.asarray(arrays[TIMES])
        if (
            given.dtype.kind not in "iu"
            or given.ndim != 1
            or (given.size and not 0 <= given.min() <= given.max() <= MOST_TIMES)
        ):
            raise ValueError("stored counts must be integers of at least 0")
        used = 0
        for stream, first, stop in facts[RUNS]:
            if not 0 <= first <= stop <= min(LOCAL, first + len(given) - used) or stream in found:
                raise ValueError(f"no counts for ids {first} to {stop} of stream {stream}")
            ring = Ring((), np.int32)
            ring.restart(int(first))
            ring.extend(given[used : used + stop - first])
            found[int(stream)], used = ring, used + stop - first
        if used != len(given):
            raise ValueError(f"stored counts are of {used} ids, got {len(given)}")
        if (facts[STATE] is None) != (self._state is None):
            raise ValueError("the stored sampler and this one have not both a state")
        if self._state is not None:
            self._state.restore(facts[STATE], {name: values for name, values in arrays.items() if name != TIMES})
        self._times = found

    def to_json(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"kind": "Counting", "sampler": self._sampler.to_json(), "max_times_sampled": self._most}
