"""The view of sequences: consecutive steps of one environment, for learners with a recurrent state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence as Several
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import check_count, check_flag, check_share
from diskreplay.index.episodes import episodes
from diskreplay.index.log import LATER, NEVER, NOW
from diskreplay.reading.open_stream import OpenStream
from diskreplay.reading.reads import Reads
from diskreplay.reading.unroll import unroll
from diskreplay.schema.columns import VALID, Schema
from diskreplay.schema.ids import Ids
from diskreplay.views import transition
from diskreplay.views.batch import SequenceBatch, by_item
from diskreplay.views.transition import transitions
from diskreplay.views.view import View, keep


@dataclasses.dataclass(frozen=True)
class Sequence(View[SequenceBatch]):
    """A view of sequences of ``T = burn_in + length`` steps.

    The sequences are those of Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement
    Learning". Sequences begin at the rows that ``stride`` says and, unless ``across`` is True, also at the first step
    of each episode. ``index`` names the first step of a sequence. A batch is a :class:`~diskreplay.SequenceBatch`.

    Args:
        length: the number of steps to learn from, at least 1.
        burn_in: the number of steps before the ``length`` steps. A learner warms up its recurrent state
            with the burn-in.
        stride: the number of rows from the start of one sequence to the start of the next, at least 1. A sequence
            begins at each row whose number is a multiple of ``stride``. Sequences overlap if ``stride`` is less than
            ``T``.
        pad: if True, short sequences are sampled, too. A sequence is short if fewer than ``T`` steps are recorded from
            its first step to the end of its episode (with ``across``, of the window). A short sequence must have at
            least one step after the burn-in.
        across: if True, a sequence goes on into the next episode of its environment, and sequences begin only at
            multiples of ``stride``. ``is_first`` marks the first step of an episode. ``mask`` is False at a row that is
            no transition, such as a reset.
        gamma: the discount factor, 0 to 1, for the field ``discount``.

    >>> Sequence(length=8, burn_in=4).steps
    12
    """

    length: int
    burn_in: int = 0
    stride: int = 1
    pad: bool = True
    across: bool = False
    gamma: float = 0.99

    def __post_init__(self) -> None:
        keep(
            self,
            length=check_count("length", self.length, most=1 << 20),
            burn_in=check_count("burn_in", self.burn_in, least=0, most=1 << 20),
            stride=check_count("stride", self.stride),
            pad=check_flag("pad", self.pad),
            across=check_flag("across", self.across),
            gamma=check_share("gamma", self.gamma),
        )

    @property
    def steps(self) -> int:
        """The number of steps of a sequence, ``T``, the burn-in included."""
        return self.burn_in + self.length

    @property
    def reach(self) -> int:
        return self.steps

    def standing(self, stream: OpenStream, ids: Ids) -> NDArray[np.int8]:
        rows, envs = stream.log.locate(ids)
        found = np.full(len(ids), NEVER, np.int8)
        begins = stream.log.take(VALID, rows, envs) & (rows % self.stride == 0)
        if not self.across:
            begins |= stream.log.take(VALID, rows, envs) & stream.log.begins(rows, envs)
        here = np.flatnonzero(begins)
        stop, cut = self._stop(stream, rows[here], envs[here])
        enough = stop - rows[here] >= (self.burn_in + 1 if self.pad else self.steps)
        found[here] = np.where(enough, NOW, np.where(cut, NEVER, LATER))
        return found

    def _stop(self, stream: OpenStream, rows: Ids, envs: Ids) -> tuple[Ids, NDArray[np.bool_]]:
        """Return where sequences that begin at these rows must stop, and whether that is final.

        The first array has, for each row, one past the last row that its sequence may hold. The second array is True
        where rows that are added later will not change the first array.
        """
        if self.across:
            return np.full(len(rows), stream.log.end), np.zeros(len(rows), bool)
        spans = stream.spans()
        return spans.stop(rows, envs), spans.is_cut(rows, envs)

    def draft(
        self, schema: Schema, streams: Several[OpenStream], ids: Ids, weight: NDArray[Any],
        rng: np.random.Generator | None, reads: Reads,
    ) -> SequenceBatch:  # fmt: skip
        def stop(stream: OpenStream, rows: Ids, envs: Ids) -> Ids:
            return self._stop(stream, rows, envs)[0]

        samples, mask = unroll(schema, streams, ids, stop, self.steps, reads)
        batch = transitions(samples, 1, self.gamma, ids, weight)
        is_first = samples.each(lambda stream, rows, envs: stream.log.begins(rows, envs))
        fields = by_item(batch, *mask.shape)
        return SequenceBatch(**fields, mask=mask, is_first=is_first.reshape(mask.shape))

    def lacking(self, streams: Several[OpenStream]) -> str | None:
        """Return why no sequence can be sampled and what the user can do. Return None if adding steps will help."""
        rows = max(stream.log.rows for stream in streams)
        needed = self.burn_in + 1 if self.pad else self.steps
        if rows < needed:
            return (
                f"{self!r}: no sequence of {needed} steps fits into windows of {rows} rows; make the store with a "
                "larger capacity, or the sequences shorter"
            )
        if self.across:
            return None
        held = [episode for stream in streams for episode in episodes(stream.log)]
        longest = max((episode.length for episode in held if episode.ended), default=0)
        if not longest or longest >= needed:
            return None
        rest = "" if self.pad else ", take padded ones (pad=True)"
        return (
            f"{self!r}: a sequence has {needed} steps, and the longest of the episodes that ended has {longest}; make "
            f"the sequences shorter{rest}, or let them go on into the next episode (across=True)"
        )

    def to_json(self) -> dict[str, Any]:
        return {"kind": "Sequence", **dataclasses.asdict(self)}


def maker(schema: Schema, steps: int) -> Callable[[list[Any]], SequenceBatch]:
    """Return a function that makes a batch of sequences of its arrays, as :func:`.transition.maker` has them."""
    of_transitions = transition.maker(schema)

    def made(arrays: list[Any]) -> SequenceBatch:
        mask, is_first = (array.reshape(-1, steps) for array in arrays[:2])
        return SequenceBatch(**by_item(of_transitions(arrays), *mask.shape), mask=mask, is_first=is_first)

    return made
