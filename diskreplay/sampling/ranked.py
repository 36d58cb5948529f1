"""A pass over a fixed set of items, dealt out to several ranks, that can stop after any batch and go on.

1. The order of an epoch is a function of the seed, the epoch and the number of items alone: neither ranks, nor batches,
   nor workers change it. Versions of NumPy do not either: only raw bits of its generator are used, which it keeps.
2. All ranks go through it together, step by step: a step takes the next items, and each rank a part of them. So where a
   pass stands is one number, the items that were taken; the rest can be dealt out to any number of ranks.
3. Every rank gets as many batches as the others, so that none waits for a partner that has ended: the last steps are
   dealt out evenly. With less than one item for each rank that cannot be: some have no batch then.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import check_count, check_flag
from diskreplay.errors import InputError, StateError


class PassPosition(NamedTuple):
    """The point at which a pass stands."""

    epoch: int
    taken: int
    """The number of items of the epoch's order that all ranks together have had."""


def order(seed: int, epoch: int, items: int) -> NDArray[np.int64]:
    """Return the numbers below ``items`` in the order of an epoch, ``(items,)``."""
    keys = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(items)
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)


def step(left: int, batch_size: int, world_size: int, drop_last: bool) -> int:
    """Return how many of the items left all ranks take in the next step, 0 at the end."""
    whole = batch_size * world_size
    if left < whole:
        return 0 if drop_last else left
    if drop_last or left == whole or left >= whole + world_size or batch_size == 1:
        return whole
    return whole - world_size  # so that each rank has an item of the last step, too


def share(items: int, rank: int, world_size: int) -> slice:
    """Return a rank's part of the items of a step."""
    return slice(items * rank // world_size, items * (rank + 1) // world_size)


class RankedPass:
    """The batches of one rank, epoch after epoch: arrays of positions, int64 ``(B,)``.

    ``iter`` gives what is left of the epoch. When that has ended, the next ``iter`` gives the next epoch; one that is
    left early is begun again where it began, unless :meth:`load_state_dict` says otherwise.

    Args:
        items: the number of items.
        batch_size: the most items of each rank.
        rank, world_size: the part of each step that is given out here.
        seed: the seed of the order, the same for all ranks.
        drop_last: end an epoch where there is no whole batch for each rank.
        fingerprint: a number that stands for the items; a state is only taken by a pass over the same ones.

    Raises InputError for arguments that break a rule.
    """

    def __init__(
        self, items: int, batch_size: int, rank: int = 0, world_size: int = 1, seed: int = 0, drop_last: bool = False,
        fingerprint: int = 0,
    ) -> None:  # fmt: skip
        self.items = check_count("items", items)
        self.batch_size = check_count("batch_size", batch_size)
        self.world_size = check_count("world_size", world_size)
        self.rank = check_count("rank", rank, least=0, most=self.world_size - 1)
        self.seed = check_count("seed", seed, least=0)
        self.drop_last = check_flag("drop_last", drop_last)
        if self.drop_last and self.items < self.batch_size * self.world_size:
            raise InputError(
                f"drop_last leaves no batch: {self.items} items for {self.world_size} ranks with batches of "
                f"{self.batch_size}; take smaller batches"
            )
        self.fingerprint = int(fingerprint)
        self._at: tuple[PassPosition, _Iteration | None] = PassPosition(0, 0), None
        """The point where the next iteration begins, and the newest iteration."""

    @property
    def epoch(self) -> int:
        """The epoch whose batches an iteration gives."""
        return self._at[0].epoch

    def set_epoch(self, epoch: int) -> None:
        """Have the next iteration give this epoch, from its beginning, or what is left of it if it was begun."""
        epoch = check_count("epoch", epoch, least=0)
        if not epoch == self.epoch == self._began.epoch:
            self._at = PassPosition(epoch, 0), None

    def __len__(self) -> int:
        """Return the number of batches that an iteration gives here."""
        return sum(1 for _ in self._batches(self._at[0]))

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        start = self._at[0]
        self._at = start, _Iteration(self, start)
        return self._at[1]

    def state_dict(self, batches: int | None = None) -> dict[str, int]:
        """Return where the pass stands, for any number of ranks to go on: the same on all ranks.

        Args:
            batches: the number of batches that the program has used since the last ``iter``, also where that has
                ended. A ``DataLoader`` with workers asks for more than it has given out, so count there; if None, as
                many as were asked for.

        Raises InputError when an iteration has no so many batches.
        """
        start, newest = self._at
        place = start if newest is None else newest.place
        if batches is not None:
            place = self._after(self._began, check_count("batches", batches, least=0))
        return {
            "version": 1, "seed": self.seed, "items": self.items, "fingerprint": self.fingerprint,
            "epoch": place.epoch, "taken": place.taken,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken, in whatever rank and with however many of them.

        Raises InputError for what is no such state, or one of another seed; StateError where it is one of other items,
        in the middle of an epoch. Nothing is changed then.
        """
        if not isinstance(state, Mapping):
            raise InputError(f"a state must be a mapping as state_dict gives it, got {type(state).__name__}")
        names = ("version", "seed", "items", "fingerprint", "epoch", "taken")
        missing = [name for name in names if name not in state]
        if missing:
            raise InputError(f"a state must be as state_dict gives it; this one lacks {', '.join(missing)}")
        version, seed, items, fingerprint, epoch, taken = (check_count(name, state[name], least=0) for name in names)
        if version != 1:
            raise InputError(f"this is a state of version {version}; this release knows version 1")
        if seed != self.seed:
            raise InputError(f"the state is of seed {seed}, this pass of seed {self.seed}: give it that seed")
        if taken > items:
            raise InputError(f"a state cannot have taken {taken} of {items} items")
        if taken and (items, fingerprint) != (self.items, self.fingerprint):
            raise StateError(
                f"the state stands in the middle of a pass over other items ({items:,} then, {self.items:,} now): open "
                "the store with the view and the checkpoint that it had, or begin a new epoch by set_epoch"
            )
        ended = taken and not step(self.items - taken, *self._sizes)
        self._at = PassPosition(epoch + 1, 0) if ended else PassPosition(epoch, taken), None

    @property
    def _began(self) -> PassPosition:
        start, newest = self._at
        return start if newest is None else newest.start

    @property
    def _sizes(self) -> tuple[int, int, bool]:
        return self.batch_size, self.world_size, self.drop_last

    def _batches(self, place: PassPosition) -> Iterator[tuple[slice, PassPosition]]:
        """Yield this rank's parts of the order from a place on, and where the pass stands after each."""
        taken = place.taken
        while count := step(self.items - taken, *self._sizes):
            part = share(count, self.rank, self.world_size)
            here = slice(taken + part.start, taken + part.stop)
            taken += count
            ended = not step(self.items - taken, *self._sizes)
            if here.start < here.stop:
                yield here, PassPosition(place.epoch + 1, 0) if ended else PassPosition(place.epoch, taken)

    def _after(self, start: PassPosition, batches: int) -> PassPosition:
        places = [start, *(place for _, place in itertools.islice(self._batches(start), batches))]
        if (most := len(places) - 1) < batches:
            raise InputError(f"batches must be at most {most}, which is what this iteration has, got {batches}")
        return places[-1]


class _Iteration(Iterator[NDArray[np.int64]]):
    """The rest of an epoch, which goes on after an interrupt: giving a batch ends with one assignment."""

    def __init__(self, ranked: RankedPass, start: PassPosition) -> None:
        self._ranked = ranked
        self.start = start
        """The point where it began."""
        self._order: NDArray[np.int64] | None = None
        self.place = start
        """The point after the batches that were given."""

    def __next__(self) -> NDArray[np.int64]:
        ranked, start = self._ranked, self.start
        newest = ranked._at[0] == start
        found = next(ranked._batches(self.place), None) if self.place.epoch == start.epoch else None
        if found is None:
            if newest:
                ranked._at = PassPosition(start.epoch + 1, 0), self
            raise StopIteration
        if self._order is None:
            self._order = order(ranked.seed, start.epoch, ranked.items)
        here, following = found
        batch = self._order[here].copy()
        if newest:
            ranked._at = start, self
        self.place = following
        return batch
