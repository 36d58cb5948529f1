"""The consecutive steps of an item, which sequences and episodes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from diskreplay.reading.open_stream import OpenStream
from diskreplay.reading.reads import Reads
from diskreplay.reading.samples import Samples
from diskreplay.schema.columns import VALID, Schema
from diskreplay.schema.ids import Ids


def unroll(
    schema: Schema, streams: Sequence[OpenStream], ids: Ids, stop: Callable[[OpenStream, Ids, Ids], Ids], steps: int,
    reads: Reads | None = None,
) -> tuple[Samples, NDArray[np.bool_]]:  # fmt: skip
    """Return the steps of items that begin at ``ids``, and a mask ``(B, steps)`` of the steps that exist.

    ``stop`` returns, for rows and environments, one past the last row that their items may hold. Steps that are not a
    transition are left out.
    """
    begins = Samples(schema, streams, ids)
    counts = begins.each(lambda stream, rows, envs: stop(stream, rows, envs) - rows)
    num_envs = begins.each(lambda stream, rows, envs: np.full(len(rows), stream.log.num_envs))
    at = np.arange(steps)
    every = ids[:, None] + at * num_envs[:, None]
    mask: NDArray[np.bool_] = at < counts[:, None]
    if any(stream.log.invalid for stream in streams):
        there = Samples(schema, streams, every[mask])
        mask[mask] = there.each(lambda stream, rows, envs: stream.log.take(VALID, rows, envs))
    return Samples(schema, streams, every[mask], np.flatnonzero(mask), mask.size, reads=reads), mask


def episode_stop(stream: OpenStream, rows: Ids, envs: Ids) -> Ids:
    """Return one past the last row of each row's episode, as far as the episode has come."""
    return stream.spans().stop(rows, envs)
