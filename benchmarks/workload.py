"""The recorded games (`frames`) as steps to add: whole episodes, single frames or stacks, one environment or many.

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


def lockstep(envs: int, rows: int) -> list[Step]:
    """``rows`` steps of ``envs`` environments side by side, as a vector environment gives them.

    ``next_obs`` is the very array that comes next as ``obs``, except in a row where an episode ends: there it is
    a copy that holds the true final frames.
    """
    obs = np.empty((rows + 1, envs, 84, 84), np.uint8)
    columns = [np.empty((rows, envs), dtype) for dtype in (np.int64, np.float64, np.bool_, np.bool_)]
    finals: dict[int, dict[int, np.ndarray]] = {}
    for env in range(envs):
        game, row = frames.load(frames.GAMES[env % len(frames.GAMES)]), 0
        for played in episodes(game, rows + 1, first=5 * env):
            until = min(row + len(played), rows)
            obs[row : row + len(played), env] = played.frame[3:-1]
            for column, values in zip(
                columns, (played.action, played.reward, played.terminated, played.truncated), strict=True
            ):
                column[row:until, env] = values[: until - row]
            if row + len(played) <= rows:
                finals.setdefault(until - 1, {})[env] = played.frame[-1]
            row += len(played)
    return [
        (
            obs[row],
            columns[0][row],
            columns[1][row],
            with_finals(obs[row + 1], finals.get(row, {})),
            columns[2][row],
            columns[3][row],
        )
        for row in range(rows)
    ]


def with_finals(next_obs: np.ndarray, finals: dict[int, np.ndarray]) -> np.ndarray:
    if finals:
        next_obs = next_obs.copy()
        for env, final in finals.items():
            next_obs[env] = final
    return next_obs


def vectors(envs: int, rows: int, width: int = 17, length: int = 1000) -> list[Step]:
    """``rows`` steps of environments that observe ``width`` float32 numbers; episodes are truncated at ``length``."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((rows + 1, envs, width), dtype=np.float32)
    final = rng.standard_normal((rows + 1, envs, width), dtype=np.float32)
    action = rng.uniform(-1, 1, (rows, envs, 6)).astype(np.float32)
    reward, no = rng.standard_normal((rows, envs)), np.zeros((rows, envs), bool)
    ends = np.repeat((np.arange(rows) % length == length - 1)[:, None], envs, axis=1)
    lead = 0 if envs == 1 else slice(None)  # one environment comes without a leading axis
    steps = []
    for row in range(rows):
        following = final[row] if ends[row, 0] else obs[row + 1]
        step = (obs[row], action[row], reward[row], following, no[row], ends[row])
        steps.append(tuple(value[lead] for value in step))
    return steps
