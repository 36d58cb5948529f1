"""The recorded games (`frames`) as steps to add: whole episodes, single frames or stacks.

An episode's frames stand in one array, led by its first frame three times more (the padding that
``gymnasium.wrappers.FrameStackObservation`` uses), so that the frame of step ``i`` is ``frame[i + 3]``, its stack is
``frame[i : i + 4]`` and its next stack ``frame[i + 1 : i + 5]``: views, made without copying while the clock runs.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import frames
import numpy as np

STACK = 4
FRAME_BYTES = 84 * 84
Step = tuple  # obs, action, reward, next_obs, terminated, truncated


@dataclasses.dataclass(frozen=True)
class Episode:
    """``T`` steps, copied into RAM."""

    frame: np.ndarray  # (3 + T + 1, 84, 84) uint8
    action: np.ndarray  # (T,) int64
    reward: np.ndarray  # (T,) float64
    terminated: np.ndarray  # (T,) bool
    truncated: np.ndarray  # (T,) bool

    def __len__(self) -> int:
        return len(self.action)

    def stack(self, step: int) -> np.ndarray:
        return self.frame[step : step + STACK]

    def singles(self) -> Iterator[Step]:
        """Steps as an environment without a frame stack gives them."""
        return self._steps(self.frame[3:])

    def stacks(self) -> Iterator[Step]:
        """Steps as an environment behind a frame stack gives them."""
        return self._steps([self.stack(step) for step in range(len(self) + 1)])

    def _steps(self, obs) -> Iterator[Step]:
        flags = zip(
            self.action.tolist(), self.reward.tolist(), self.terminated.tolist(), self.truncated.tolist(), strict=True
        )
        for step, (action, reward, terminated, truncated) in enumerate(flags):
            yield obs[step], action, reward, obs[step + 1], terminated, truncated


def spans(game: frames.Game) -> list[tuple[int, int]]:
    """Where the episodes of a game begin and end: half-open intervals of steps."""
    stops = (game.final_step + 1).tolist()
    return list(zip([0, *stops[:-1]], stops, strict=True))


def episode(game: frames.Game, start: int, stop: int, limit: int | None = None) -> Episode:
    """The episode ``[start, stop)``, truncated after ``limit`` steps."""
    if limit is not None and limit < stop - start:
        stop, last = start + limit, game.frame[start + limit]
    else:
        last = game.final[np.searchsorted(game.final_step, stop - 1)]
    truncated = np.array(game.truncated[start:stop])
    truncated[-1] |= not game.terminated[stop - 1]
    frame = np.concatenate(
        [np.repeat(game.frame[start : start + 1], STACK - 1, axis=0), game.frame[start:stop], last[None]]
    )
    return Episode(frame, *(np.array(x[start:stop]) for x in (game.action, game.reward, game.terminated)), truncated)


def episodes(game: frames.Game, steps: int, first: int = 0) -> Iterator[Episode]:
    """Episodes from number ``first`` on (going round), ``steps`` steps in all; the last one is truncated to fit."""
    for start, stop in itertools.islice(itertools.cycle(spans(game)), first, None):
        if steps <= 0:
            return
        yield episode(game, start, stop, limit=steps)
        steps -= stop - start


def mixture(steps: int) -> Iterator[Episode]:
    """The four games by turns, an episode each; the same number of steps of every game."""
    counts = [steps // len(frames.GAMES) + (i < steps % len(frames.GAMES)) for i in range(len(frames.GAMES))]
    games = [episodes(frames.load(name), count) for name, count in zip(frames.GAMES, counts, strict=True)]
    for turn in itertools.zip_longest(*games):
        yield from (found for found in turn if found is not None)
