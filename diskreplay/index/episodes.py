"""Episodes of a window, found from the resident columns.

An episode is a run of valid rows of one environment from a row that does not continue the one before, or from the
window's first row, to a cut. The newest run of an environment that is not cut yet is an episode still going on.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from diskreplay.index.log import StreamLog
from diskreplay.schema import CONTINUES, REWARD, START, TERMINATED, TRUNCATED, VALID

CUT_OFF = "cut off"


@dataclasses.dataclass(frozen=True)
class Episode:
    """One episode, or what of it is in the window.

    Attributes:
        stream, env: where it was recorded.
        start, stop: its rows, half-open.
        total_reward: undiscounted sum of its rewards.
        terminated, truncated: of its last step.
        complete_start: its first step is in the window.
        ended: it was terminated, truncated or cut off by a step that does not continue it.
    """

    stream: int
    env: int
    start: int
    stop: int
    total_reward: float
    terminated: bool
    truncated: bool
    complete_start: bool
    ended: bool

    @property
    def length(self) -> int:
        """Steps of it in the window."""
        return self.stop - self.start


def ends(log: StreamLog) -> dict[str, int]:
    """How many episodes of a stream's window ended by each cause: "terminated", "truncated", or "cut off" by none."""
    rows = np.arange(log.begin, log.end)
    if not len(rows):
        return {TERMINATED: 0, TRUNCATED: 0, CUT_OFF: 0}
    terminated, truncated, valid = (log.table.take(name, rows) for name in (TERMINATED, TRUNCATED, VALID))
    begins = log.table.take(START, rows[1:]) != CONTINUES
    flagged = terminated | truncated
    return {
        TERMINATED: int(np.count_nonzero(terminated & valid)),
        TRUNCATED: int(np.count_nonzero(truncated & ~terminated & valid)),
        CUT_OFF: int(np.count_nonzero(begins & ~flagged[:-1] & valid[:-1])),
    }


def episodes(log: StreamLog) -> list[Episode]:
    """All episodes of a stream's window, by first row, then environment."""
    rows = np.arange(log.begin, log.end)
    if not len(rows):
        return []

    def column(name: str) -> NDArray[np.generic]:
        return log.table.take(name, rows)

    valid, starts = column(VALID), column(START) != CONTINUES
    terminated, truncated, reward = column(TERMINATED), column(TRUNCATED), column(REWARD)
    found = []
    for env in range(log.num_envs):
        first = starts[:, env].copy()
        complete = first[0]
        first[0] = True
        edges = np.append(np.flatnonzero(first), len(rows))
        totals = np.add.reduceat(reward[:, env].astype(np.float64), edges[:-1])
        for low, high, total in zip(edges[:-1].tolist(), edges[1:].tolist(), totals.tolist(), strict=True):
            if not valid[low, env]:
                continue
            done = bool(terminated[high - 1, env]), bool(truncated[high - 1, env])
            found.append(
                Episode(
                    log.stream, env, log.begin + low, log.begin + high, total, *done,
                    complete_start=bool(low or complete), ended=any(done) or high < len(rows),
                )
            )  # fmt: skip
    return sorted(found, key=lambda episode: (episode.start, episode.env))
