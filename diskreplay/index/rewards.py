"""The rewards of a stream's rows: those that were recorded, or the values of another column in their place.

Callers hold ``engine.lock``. The log holds the column in RAM, however large it is. A value that a transition lacks, as
it was never written or is not finite, is no reward: whoever asks for it gets an error, never a zero or NaN.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.index.log import StreamLog, place_of
from diskreplay.schema.columns import REWARD, VALID, Schema
from diskreplay.schema.ids import Ids


def check_column(schema: Schema, name: str) -> None:
    """Raise InputError unless ``name`` is a column of the user's own, or a later one, with a real number a step."""
    would = [c.name for c in (*schema.extra_columns, *schema.later) if c.shape == () and c.dtype.kind in "biuf"]
    if name not in would:
        those = ", ".join(map(repr, would)) or (
            "none; 'diskreplay edit STORE COPY --later shaped' makes a copy that has one, and relabel writes it"
        )
        raise InputError(f"reward_column must name a column of one real number a step, got {name!r}; there are {those}")


def check(name: str, places: Iterable[tuple[StreamLog, Ids, Ids]]) -> None:
    """Raise InputError, with their number, if transitions among rows of streams lack their value of a held column."""
    count = total = 0
    for log, rows, envs in places:
        with np.errstate(over="ignore"):
            known = np.isfinite(log.take(name, rows, envs).astype(log.table.arrays[REWARD].dtype))
        if place_of(name) in log.held:
            known &= log.take(place_of(name), rows, envs) > 0
        valid = log.take(VALID, rows, envs)
        count += int((valid & ~known).sum())
        total += int(valid.sum())
    if count:
        raise InputError(
            f"reward_column: {count:,} of {total:,} transitions have no finite value of {name!r}; write these first, "
            f"by rb.write({name!r}, index, values) or 'diskreplay relabel'"
        )


def rewards(log: StreamLog, name: str, rows: Ids, envs: Ids) -> NDArray[Any]:
    """Return the rewards of rows, with the dtype of recorded ones; raise InputError if a transition lacks its value."""
    found = log.take(name, rows, envs)
    if name == REWARD:
        return found
    check(name, [(log, rows, envs)])
    return found.astype(log.table.arrays[REWARD].dtype)


def returns(
    log: StreamLog, rows: Ids, envs: Ids, n_step: int, gamma: float, name: str = REWARD
) -> tuple[NDArray[Any], Ids, NDArray[Any]]:
    """Return for each row the discounted sum of its next rewards, the last row in the sum, and ``gamma ** steps``.

    ``steps`` is the number of rewards in the sum: ``n_step``, or fewer if the episode ends before. InputError is raised
    as by :func:`rewards`.
    """
    reward = rewards(log, name, rows, envs)
    scale = np.full(len(rows), gamma, np.float64)
    if n_step == 1:
        return reward, rows, scale
    last = rows.copy()
    total = reward.astype(np.float64)
    alive = ~log.is_cut(rows, envs)
    for _ in range(n_step - 1):
        if not alive.any():
            break
        at = last[alive] + 1
        total[alive] += scale[alive] * rewards(log, name, at, envs[alive])
        scale[alive] *= gamma
        last[alive] = at
        alive[alive] = ~log.is_cut(at, envs[alive])
    return total.astype(reward.dtype), last, scale
