"""The map from a row of the store to its episode and step: the part of RLlib's buffer that stays in RAM.

RLlib adds an episode in chunks, those of several environments in turn, and evicts whole episodes, the oldest first. An
episode here is a list of pieces, each a run of rows of one environment of the store.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import heapq
from collections.abc import Iterable, Iterator

import numpy as np

from diskreplay.schema.ids import Ids


@dataclasses.dataclass(frozen=True)
class Piece:
    """The steps ``[step, step + count)`` of an episode: rows from ``row`` on of environment ``lane``."""

    lane: int
    row: int
    step: int
    count: int


@dataclasses.dataclass
class Held:
    """An episode that is in the buffer.

    Attributes:
        id: RLlib's.
        number: the episode's number, counted from the first one on, evicted ones included.
        pieces: the pieces, in the order of the steps.
        here: False once it was evicted.
    """

    id: str
    number: int
    pieces: list[Piece] = dataclasses.field(default_factory=list)
    here: bool = True

    def __len__(self) -> int:
        return self.pieces[-1].step + self.pieces[-1].count if self.pieces else 0

    def ids(self, start: int, stop: int, lanes: int) -> list[int]:
        """Return the ids of steps ``[start, stop)``, in a store of ``lanes`` environments."""
        found: list[int] = []
        for piece in self.pieces:
            low, high = max(start, piece.step), min(stop, piece.step + piece.count)
            first = (piece.row - piece.step) * lanes + piece.lane
            found.extend(range(first + low * lanes, first + high * lanes, lanes))
        return found


class Episodes:
    """The episodes of a buffer, oldest first, and where they are.

    Args:
        lanes: environments of the store.
        pieces: the pieces of a store that was opened: ids, numbers and pieces, of which each episode's begin at step 0.
            Those whose number is below ``evicted``, or whose first steps are gone, are left out.
        evicted: episodes that were, before.
    """

    def __init__(self, lanes: int, pieces: Iterable[tuple[str, int, Piece]] = (), evicted: int = 0) -> None:
        self.lanes = lanes
        self.steps = 0
        """The number of steps of all episodes."""
        self.evicted = 0
        """The number of episodes that were evicted."""
        self._held: collections.deque[Held] = collections.deque()
        self._by_id: dict[str, Held] = {}
        self._next = 0
        self._firsts: list[tuple[int, int]] = []
        """A heap of the first row and the number of each episode, also of evicted ones."""
        self._rows: list[list[int]] = [[] for _ in range(lanes)]
        """The first rows of all pieces in a lane, ascending."""
        self._pieces: list[list[tuple[Held, Piece]]] = [[] for _ in range(lanes)]
        self._restore(pieces, evicted)

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held)

    def __getitem__(self, number: int) -> Held:
        return self._held[number]

    def find(self, id: str) -> Held | None:
        """Return the episode that has this id in RLlib, or None."""
        return self._by_id.get(id)

    def new(self, id: str) -> Held:
        """Return an episode that is none of these yet: :meth:`extend` takes it in."""
        self._next += 1
        return Held(id, self._next - 1)

    def extend(self, held: Held, lane: int, row: int, count: int) -> None:
        """Add the next ``count`` steps of an episode: the newest rows, from ``row`` on, of a lane."""
        if not held.pieces:
            self._held.append(held)
            self._by_id[held.id] = held
            self._next = max(self._next, held.number + 1)
            heapq.heappush(self._firsts, (row, held.number))
        self.steps += count
        last = held.pieces[-1] if held.pieces else None
        if last is not None and last.lane == lane and last.row + last.count == row:
            piece = dataclasses.replace(last, count=last.count + count)
            held.pieces[-1] = piece
            self._pieces[lane][-1] = held, piece
            return
        held.pieces.append(Piece(lane, row, len(held), count))
        self._rows[lane].append(row)
        self._pieces[lane].append((held, held.pieces[-1]))

    def at(self, ids: Ids) -> list[tuple[Held, int] | None]:
        """Return the episode and step of each row's id, or None if it was evicted, or belongs to none."""
        rows, lanes = np.divmod(ids, self.lanes)
        return [self._at(row, lane) for row, lane in zip(rows.tolist(), lanes.tolist(), strict=True)]

    def _at(self, row: int, lane: int) -> tuple[Held, int] | None:
        place = bisect.bisect_right(self._rows[lane], row) - 1
        if place < 0:
            return None
        held, piece = self._pieces[lane][place]
        if not held.here or row >= piece.row + piece.count:
            return None
        return held, piece.step + row - piece.row

    def evict(self) -> Held:
        """Forget the oldest episode, and return it."""
        held = self._held.popleft()
        held.here = False
        if self._by_id.get(held.id) is held:
            del self._by_id[held.id]
        self.steps -= len(held)
        self.evicted += 1
        return held

    def first_row(self) -> int | None:
        """Return the first row that an episode needs, or None if there is none."""
        while self._firsts and (not self._held or self._firsts[0][1] < self._held[0].number):
            heapq.heappop(self._firsts)
        self._prune()
        return self._firsts[0][0] if self._firsts else None

    def _prune(self) -> None:
        """Forget the pieces of evicted episodes at the beginning of each lane."""
        for rows, pieces in zip(self._rows, self._pieces, strict=True):
            gone = next((n for n, (held, _) in enumerate(pieces) if held.here), len(pieces))
            if gone:
                del rows[:gone], pieces[:gone]

    def _restore(self, pieces: Iterable[tuple[str, int, Piece]], evicted: int) -> None:
        found: dict[int, tuple[str, list[Piece]]] = {}
        for id, number, piece in pieces:
            found.setdefault(number, (id, []))[1].append(piece)
        kept: list[tuple[int, Piece, Held]] = []
        for number, (id, parts) in sorted(found.items()):
            self._next = max(self._next, number + 1)
            parts.sort(key=lambda piece: piece.step)
            whole = 0
            for piece in parts:
                whole = whole + piece.count if piece.step == whole else -1 << 62
            if number < evicted or whole < 0:
                continue
            held = Held(id, number)
            kept += [(piece.row, piece, held) for piece in parts]
        self.evicted = max(evicted, min((held.number for _, _, held in kept), default=evicted))
        # In the order of numbers first, so that the oldest stands first; then lane by lane in the order of rows.
        for _, piece, held in sorted(kept, key=lambda one: (one[2].number, one[1].step)):
            if not held.pieces:
                self._held.append(held)
                self._by_id[held.id] = held
                heapq.heappush(self._firsts, (piece.row, held.number))
            held.pieces.append(piece)
            self.steps += piece.count
        for row, piece, held in sorted(kept, key=lambda one: one[0]):
            self._rows[piece.lane].append(row)
            self._pieces[piece.lane].append((held, piece))
