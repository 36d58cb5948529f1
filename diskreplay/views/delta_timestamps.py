"""The view of values at given times before and after a row, as LeRobot's datasets give them.

Times are given in seconds. Two rows that follow each other are ``1 / fps`` seconds apart, so a time becomes a number of
rows, ``round(seconds * fps)``. If the episode has no row at a time, or that row has left the window, the view takes the
nearest row of the episode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import checked_number
from diskreplay.errors import InputError
from diskreplay.reading.open_stream import OpenStream
from diskreplay.reading.reads import Reads
from diskreplay.reading.samples import Samples
from diskreplay.schema import spaces
from diskreplay.schema.columns import OBS, REWARD, START, TERMINATED, TRUNCATED, VALID, Schema
from diskreplay.schema.ids import Ids
from diskreplay.video import Video, rates
from diskreplay.views.batch import DeltaBatch, in_steps
from diskreplay.views.transition import Transition
from diskreplay.views.view import View, keep

MOST_TIMES = 1 << 16
"""The most points in time that ``deltas`` may list for one name."""
MOST_ROWS = 1 << 20
"""The largest distance of a time from the item's row, in rows."""
HIDDEN = VALID, START
"""The columns that no batch shows."""

Steps = tuple[int, ...]
"""The times of a name, in rows: 0 is the item's row, -1 the row before it."""


@dataclasses.dataclass(frozen=True)
class DeltaTimestamps(View[DeltaBatch]):
    """A view of values at given times: for each row it shows values from before the row, at it, and after it.

    It does what ``delta_timestamps`` does in LeRobot's datasets (https://github.com/huggingface/lerobot). Each
    transition is an item. A time may be before the first row of the episode, or after its last row. Then the view takes
    the value of the first or last row, and ``is_pad`` is True. While an episode has not ended, its newest row counts as
    its last row. If an episode's oldest rows were evicted, its first row is its oldest row in the window. A batch is a
    :class:`~diskreplay.DeltaBatch`.

    Args:
        deltas: for each name, times in seconds relative to the row: negative times are before it. A name is a column,
            such as ``action``, ``reward``, ``obs/camera`` (or ``camera`` for short), or a column of your own. A name
            can also be a Dict or Tuple that holds columns, such as ``obs``.
        fps: the number of rows a second. With None it is the ``fps`` of the store's provenance or, if that has
            none, of its video columns, which must have the same.
        tolerance_s: how far a time may be from a multiple of ``1 / fps``, in seconds.

    Raises InputError if an argument has the wrong type, if a name has no times or more than 65,536, or if a time is not
    finite, is more than 2^20 rows away, or is too far from a multiple of ``1 / fps``. If ``fps`` is None, the checks
    that need it are made when a store is opened.

    >>> DeltaTimestamps({"camera": [-0.1, 0.0], "action": [0.0, 0.1, 0.2]}, fps=10).reach
    2
    """

    deltas: Mapping[str, Sequence[float]]
    _: dataclasses.KW_ONLY
    fps: float | None = None
    tolerance_s: float = 1e-4

    def __post_init__(self) -> None:
        if not isinstance(self.deltas, Mapping) or not self.deltas:
            raise InputError(
                f"deltas must be seconds by name, such as {{'action': [0.0, 0.1]}}, got {self.deltas!r:.80}"
            )
        keep(
            self,
            deltas={name: _checked_times(name, times) for name, times in self.deltas.items()},
            fps=None if self.fps is None else checked_number("fps", self.fps, above=True),
            tolerance_s=checked_number("tolerance_s", self.tolerance_s),
        )
        if self.fps is not None:
            self._check_times(self.fps)

    def _check_times(self, fps: float) -> None:
        """Raise InputError if a time is too many rows away, or too far from a multiple of ``1 / fps``."""
        for name, times in self.deltas.items():
            for time in times:
                rows = time * fps
                if abs(rows) > MOST_ROWS:
                    raise InputError(f"deltas of {name!r}: {time} s are {rows:.0f} rows, and {MOST_ROWS} are allowed")
                if not abs(rows - round(rows)) / fps <= self.tolerance_s:
                    raise InputError(
                        f"deltas of {name!r}: {time} s is no multiple of 1/fps = 1/{fps:g} s within "
                        f"tolerance_s={self.tolerance_s:g}; the nearest is {round(rows) / fps:.9g}"
                    )

    @property
    def steps(self) -> dict[str, Steps]:
        """The times of each name, in rows, or an empty dict while ``fps`` is not known."""
        if (fps := self.fps) is None:
            return {}
        return {name: tuple(round(time * fps) for time in times) for name, times in self.deltas.items()}

    @property
    def reach(self) -> int:
        return max(0, *map(max, self.steps.values()), 0)

    def completed(self, provenance: Mapping[str, Any], videos: Mapping[str, Video]) -> DeltaTimestamps:
        """Return the view with its ``fps``: its own, else that of the provenance, else that of all video columns.

        Raises InputError if none has one, or the video columns have different ones.
        """
        if self.fps is not None:
            return self
        told = rates(provenance, videos)
        fps = next(iter(told.values()), None)
        if fps is None or any(other != fps for other in told.values()):
            differ = ", ".join(f"{other:g} of {name!r}" for name, other in told.items())
            why = f"and those of the video columns differ, {differ}" if told else "which the store does not tell"
            raise InputError(f"DeltaTimestamps needs the frames a second, {why}: give fps=...")
        return dataclasses.replace(self, fps=fps)

    def check(self, schema: Schema) -> None:
        """Raise InputError if the store has no such name, or if two names stand for the same column."""
        _steps_of_columns(schema, self.steps)

    def rows_shown(self, schema: Schema) -> dict[str, Steps]:
        """Return, for each column by name, the rows that an item shows: 0 is the item's row, -1 the row before it."""
        steps_of = _steps_of_columns(schema, self.steps)
        return {column.name: steps_of.get(column.name, (0,)) for column in schema.columns}

    def standing(self, stream: OpenStream, ids: Ids) -> NDArray[np.int8]:
        return Transition().standing(stream, ids)

    def draft(
        self, schema: Schema, streams: Sequence[OpenStream], ids: Ids, weight: NDArray[Any],
        rng: np.random.Generator | None, reads: Reads,
    ) -> DeltaBatch:  # fmt: skip
        rows = Samples(schema, streams, ids, reads=reads)
        least, most, num_envs = rows.each(_extent).T[:, :, None]
        samples: dict[Steps | None, Samples] = {None: rows}
        is_pad = {}
        for name, steps in self.steps.items():
            there = np.clip(steps, least, most)
            is_pad[name] = there != steps
            if steps not in samples:
                samples[steps] = Samples(schema, streams, (ids[:, None] + there * num_envs).ravel(), reads=reads)
        steps_of = _steps_of_columns(schema, self.steps)

        def shaped(found: Any, steps: Steps | None) -> Any:
            return found if steps is None else in_steps(found, len(ids), len(steps))

        found: dict[str, Any] = {}
        for number, column in enumerate(schema.columns):  # the leaves of the observations come first
            at = samples[wanted := steps_of.get(column.name)]
            if column.name == REWARD:
                found[REWARD] = shaped(at.rewards(), wanted)
            elif column.name not in HIDDEN:
                values = at.current(number) if number < len(schema.stacks) else at.values(column)
                found[column.name] = shaped(values, wanted)
        extra = shaped(samples[steps_of.get(REWARD)].recorded(), steps_of.get(REWARD))
        extra |= {column.name: found[column.name] for column in schema.extra_columns}
        for wanted, at in samples.items():
            later = [column.name for column in schema.later if steps_of.get(column.name) == wanted]
            extra |= shaped(at.written_later(later), wanted)
        return DeltaBatch(
            obs=spaces.unflatten(schema.obs_tree, [found[column.name] for column in schema.obs_columns]),
            action=spaces.unflatten(schema.action_tree, [found[column.name] for column in schema.action_columns]),
            reward=found[REWARD], terminated=found[TERMINATED], truncated=found[TRUNCATED],
            next_obs=None, discount=None, index=ids, weight=weight, is_pad=is_pad, extra=extra,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        deltas = {name: list(times) for name, times in self.deltas.items()}
        return {"kind": "DeltaTimestamps", "deltas": deltas, "fps": self.fps, "tolerance_s": self.tolerance_s}


def _checked_times(name: Any, given: Any) -> tuple[float, ...]:
    times = given.tolist() if isinstance(given, np.ndarray) else given
    numbers = isinstance(times, list | tuple) and all(
        isinstance(time, int | float | np.integer | np.floating) and not isinstance(time, bool) and np.isfinite(time)
        for time in times
    )
    if not isinstance(name, str) or not numbers or not 1 <= len(times) <= MOST_TIMES:
        raise InputError(
            f"deltas of {name!r} must be a list of 1 to {MOST_TIMES} finite numbers of seconds, got {given!r:.80}"
        )
    return tuple(map(float, times))


def _extent(stream: OpenStream, rows: Ids, envs: Ids) -> NDArray[np.int64]:
    """Return int64 ``(n, 3)``, for each row: the first and the last row of its episode, and ``num_envs``.

    The first and the last row are given relative to the row.
    """
    spans = stream.spans()
    first, stop = spans.first(rows, envs), spans.stop(rows, envs)
    return np.stack([first - rows, stop - 1 - rows, np.full(len(rows), stream.log.num_envs)], axis=1)


def _steps_of_columns(schema: Schema, steps: Mapping[str, Steps]) -> dict[str, Steps]:
    columns = [column.name for column in (*schema.columns, *schema.later) if column.name not in HIDDEN]
    found: dict[str, str] = {}
    for name in steps:
        ways = ([each for each in columns if f"{each}/".startswith(f"{way}/")] for way in (name, f"{OBS}/{name}"))
        meant = next((way for way in ways if way), [])
        if not meant:
            shown = [each.removeprefix(f"{OBS}/") for each in columns]
            raise InputError(f"deltas: there is no {name!r}; the names are {', '.join(shown)}")
        for column in meant:
            if column in found:
                raise InputError(f"deltas: {found[column]!r} and {name!r} both stand for {column!r}; give one of them")
            found[column] = name
    return {column: steps[name] for column, name in found.items()}
