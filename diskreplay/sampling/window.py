"""The interface of a sampler to the rows: the ids of each stream, and what is asked of a sampler with them.

A sampler sees ids and priorities, never rows. Before each sample and each update it is given one :class:`Window` for
every open stream, and a function that says which ids of them are transitions. The buffer keeps these promises:

1. An id names one row and environment for ever. Ids of a stream ascend in the order of its rows.
2. A window moves forward: neither of its ends goes back. Where rows are taken back (another writer returned to a
   checkpoint) the buffer says so by ``forget``; an end that went back is taken for the same.
3. An id whose :class:`~diskreplay.index.log.Standing` is NOW or NEVER keeps it; one that stands at LATER (an n-step
   window that still lacks rows) may come to stand at either while rows are added after it.
4. A stream that is not listed has nothing to sample. A sampler may forget it, priorities and all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import check_array
from diskreplay.errors import InputError
from diskreplay.index.episodes import KeptEpisodes
from diskreplay.index.selecting import instead
from diskreplay.schema.ids import Ids, checked_ids

Standings = Callable[[Ids], NDArray[np.int8]]
"""The :class:`~diskreplay.index.log.Standing` of each id of the windows."""


class Window(NamedTuple):
    """One stream's ids that can be sampled now, ``[first, stop)``."""

    first: int
    """The first id."""
    stop: int
    """One past the last id."""
    capacity: int
    """The most ids that the window holds; it changes if the stream is resized, which changes no id."""
    num_envs: int = 1
    """The number of environments of the stream: id ``i`` is of the environment ``i % num_envs``."""


Windows = Sequence[Window]


class WindowsWithFacts(tuple[Window, ...]):
    """The windows of a store, which also know its episodes and their facts; for samplers that draw by these.

    Attributes:
        episodes: those of the stream of each window.
    """

    episodes: Sequence[KeptEpisodes]

    def __new__(cls, windows: Iterable[Window], episodes: Sequence[KeptEpisodes]) -> Self:
        made = super().__new__(cls, windows)
        made.episodes = episodes
        return made

    def unknown(self, name: str, what: str, sampler: object) -> InputError:
        """Return the error for a fact that no episode has, or not as ``what``."""
        known = {fact for episodes in self.episodes for facts in episodes.facts() for fact in facts}
        return InputError(
            f"{sampler}: no episode of the windows has {what} as its fact {name!r}, which begin_episode({name}=...) "
            f"tells; {instead(name, known)}"
        )


def windows_with_facts(windows: Windows, sampler: object) -> WindowsWithFacts:
    """Return the windows if they know facts; raise InputError if somebody else's code handed over plain ones."""
    if not isinstance(windows, WindowsWithFacts):
        raise InputError(f"{sampler!r} needs the windows of a store, which know the facts of its episodes")
    return windows


@runtime_checkable
class Sampler(Protocol):
    """A distribution over the ids of the windows: any object with these methods; see ``docs/samplers.md``."""

    def sample(
        self, rng: np.random.Generator, windows: Windows, standing: Standings, size: int
    ) -> tuple[Ids, NDArray[np.float32]]:
        """Return ``size`` ids of the windows that stand at NOW, int64, and their importance weights, float32.

        NotEnoughDataError where there is none. All randomness comes from ``rng``, whose state a checkpoint keeps.
        """
        raise NotImplementedError

    def probability(self, ids: Any, windows: Windows, standing: Standings) -> NDArray[np.float64]:
        """Return the probability of ids ``(B,)`` in the next draw, ``(B,)``, 0 for what cannot be drawn."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return ``kind``, the name that the store knows the sampler by, and the constructor's arguments."""
        raise NotImplementedError


@runtime_checkable
class Prioritized(Sampler, Protocol):
    """A sampler that is told priorities, or has another state of its own; it belongs to one buffer."""

    def update(self, ids: Any, priorities: Any, windows: Windows, standing: Standings) -> None:
        """Set the TD errors ``(B,)`` of ids ``(B,)``."""

    def forget(self, stream: int) -> None:
        """Forget the priorities of a stream whose rows were taken back."""

    def clear(self) -> None:
        """Forget all priorities and counts; keep the arguments."""

    @property
    def is_new(self) -> bool:
        """True if it knows nothing of any buffer yet, or was cleared."""
        raise NotImplementedError

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return all that the next draws depend on: facts for JSON, and arrays ``(n,)`` by name."""
        raise NotImplementedError

    def restore(self, facts: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Go on from a state; raise ValueError, KeyError or TypeError, with nothing changed, for anything else."""


def checked_draw(sampler: Sampler, drawn: Any, size: int) -> tuple[Ids, NDArray[np.float32]]:
    """Return what a sampler has drawn as arrays ``(size,)``; raise InputError if it is something else."""
    try:
        ids, weights = (check_array("ids and weights", part) for part in drawn)
    except (TypeError, ValueError):
        raise InputError(f"{sampler!r}.sample must give ids and weights, got {drawn!r:.80}") from None
    if ids.dtype.kind not in "iu" or ids.shape != (size,):
        raise InputError(f"{sampler!r}.sample must give {size} integers as ids, got {ids.dtype} {ids.shape}")
    if weights.dtype.kind not in "fiu" or weights.shape != (size,):
        raise InputError(f"{sampler!r}.sample must give {size} numbers as weights, got {weights.dtype} {weights.shape}")
    return ids.astype(np.int64), weights.astype(np.float32)


def checked_updates(ids: Any, priorities: Any) -> tuple[Ids, NDArray[np.float64]]:
    """Return ids and magnitudes of priorities as arrays ``(B,)`` of our own; raise InputError if they are none."""
    given, errors = checked_ids(ids), check_array("priorities", priorities)
    if errors.dtype.kind not in "fiu" or errors.shape != given.shape:
        raise InputError(
            f"priorities must be real numbers of the index's shape {given.shape}, got {errors.dtype} {errors.shape}"
        )
    return given, np.abs(errors, dtype=np.float64)


def refused_update(index: Any, priority: Any, most: float) -> InputError:
    """Return the error for a priority that a tree refused, which takes those from 0 to ``most``."""
    if not priority <= most:
        return InputError(f"priorities must be finite and at most {most:.0e}, got {priority} for index {index}")
    return InputError(f"index {index} names no transition that can be sampled")
