"""One episode as the player shows it: curves of its small values, strips of its frames.

1. An episode of ``length`` steps has ``length + 1`` observations; the last one is the true final observation.
2. Everything that is no picture is a curve: rewards, actions, columns, vectors, up to ``MOST_CURVES`` elements of each;
   where a value is several vectors, those of the last; where it is ragged, its length. Of a very
   long episode every ``every``-th step is given, and rewards are summed in between.
3. Pictures are strips: a grid of frames, 16 a line, as one PNG. A strip holds a limited number of frames, so that a
   long episode has several, each read, and of video decoded, by itself.
4. What is damaged is left out, and listed.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Array
from diskreplay.errors import CorruptionError
from diskreplay.index.selecting import end_of
from diskreplay.ops.result import Result
from diskreplay.reading import decoding
from diskreplay.report.overview import action_labels, length_of, short
from diskreplay.report.source import Damage, Found, Snapshot, read, read_all
from diskreplay.schema import spaces
from diskreplay.schema.columns import REWARD, Column
from diskreplay.views.pictures import CHANNELS, leaves, newest, pictures_of, space_bounds, spread, to_pixels, to_png

MOST_CURVES = 8
"""The most elements of a value that are drawn."""
MOST_STEPS = 20_000
"""The most steps of an episode whose values are all given."""
MOST_WIDE = 1 << 16
"""The most elements of a value that is read to be drawn at all."""
MOST_CAMERAS = 8
LINE = 16
"""The number of frames in a line of a strip."""
STRIP_FRAMES = 1024
STRIP_BYTES = 16 << 20
"""The most bytes of a strip's pixels."""
LONGEST_SIDE = 512
"""The longest side of a frame: of a larger one every second pixel is shown, or every third, and so on."""
DAMAGED_PIXEL = 96

Kind = Literal["reward", "action", "column", "observation"]


@dataclasses.dataclass(frozen=True)
class Curve:
    """A curve of one value a step.

    Attributes:
        label: the label of the element, empty where there is only one.
        values: the values of every step, or of every ``every``-th; None where one is damaged, or no finite number.
            Observations have one more, the final one, where every step is given.
    """

    label: str
    values: tuple[float | None, ...]


@dataclasses.dataclass(frozen=True)
class Series:
    """The curves of one column.

    Attributes:
        elements: the elements of a value; ``curves`` are some of them.
        labels: the meanings of a discrete value, by its text.
    """

    name: str
    kind: Kind
    elements: int
    curves: tuple[Curve, ...]
    labels: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Camera:
    """An observation that is a picture, or a column of video.

    Attributes:
        width, height: the width and height of a frame in a strip, in pixels.
        part_frames: observations that one strip covers.
        note: the words that say what of the strip is not shown; empty where all is.
    """

    name: str
    width: int
    height: int
    part_frames: int
    note: str


@dataclasses.dataclass(frozen=True)
class Strip(Result):
    """The frames of one camera: observation ``first + i * every`` stands at position ``i``, ``line`` to a line.

    Attributes:
        src: a PNG as a ``data:`` address.
        damaged: positions whose frames cannot be read.
    """

    camera: str
    first: int
    every: int
    count: int
    line: int
    src: str
    damaged: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class EpisodeValues(Result):
    """An episode and all of its small values.

    Attributes:
        number, key, stream, env, start, length, total_reward, end, complete: the same as in the table of episodes.
        facts: the facts that a program gave, each as JSON.
        every: steps between two values of a curve.
        cameras: its pictures.
        strips: the strips of the cameras; empty where they are requested one by one.
        not_shown: the words that say what is not shown.
        damaged: the words that say what is damaged.
    """

    number: int
    key: str
    stream: str
    env: int
    start: int
    length: int
    total_reward: float | None
    end: str
    complete: bool
    facts: tuple[tuple[str, str], ...]
    every: int
    series: tuple[Series, ...]
    cameras: tuple[Camera, ...]
    strips: tuple[Strip, ...]
    not_shown: tuple[str, ...]
    damaged: tuple[str, ...]


def episode_values(source: Snapshot, found: Found) -> EpisodeValues:
    """Return the values of an episode, without pictures; raise StateError when a live writer evicted them."""
    episode = found.episode
    every = -(-episode.length // MOST_STEPS)
    damaged: list[Damage] = []
    series: list[Series] = []
    not_shown: list[str] = []
    views = cameras(source)
    for column, kind, space in _columns(source):
        if any(camera.name == column.name for camera in views):
            continue
        if column.name in source.schema.videos:
            why = decoding.lacking(source.schema.videos[column.name]) or "its pictures are too small"
            not_shown.append(f"{column.name} is not shown: {why}")
            continue
        shape = source.shape(column)
        elements = math.prod(shape)
        if elements > MOST_WIDE:
            not_shown.append(f"{column.name}: {elements:,} numbers a step are too many to draw")
            continue
        if elements > MOST_CURVES:
            not_shown.append(f"{column.name}: {len(_drawn(shape))} of {elements:,} numbers are drawn")
        series.append(_series(source, found, column, kind, space, every, damaged))
    not_shown += [
        f"{column.name} is not shown: there are more than {MOST_CAMERAS} cameras"
        for column in _pictured(source)[MOST_CAMERAS:]
    ]
    facts = tuple((name, json.dumps(value, ensure_ascii=False)) for name, value in episode.facts.items())
    return EpisodeValues(
        found.number, found.key, found.rows.name, episode.env, episode.start, episode.length,
        short(episode.total_reward), end_of(episode), episode.complete_start, facts, every, tuple(series),
        views, (),
        tuple(not_shown), tuple(f"steps {d.start - episode.start} to {d.stop - episode.start - 1}: {d.what}"
        for d in damaged),
    )  # fmt: skip


def _columns(source: Snapshot) -> Iterator[tuple[Column, Kind, Any]]:
    """Yield the columns that may be drawn as curves, in the order of the page, with their kinds and spaces or None."""
    schema = source.schema
    yield schema.column(REWARD), "reward", None
    for column, space in zip(schema.action_columns, spaces.leaf_spaces(schema.action_space), strict=True):
        yield column, "action", space
    for column in schema.extra_columns:
        yield column, "column", None
    for column, space in zip(schema.obs_columns, spaces.leaf_spaces(schema.observation_space), strict=True):
        yield column, "observation", space


def _series(
    source: Snapshot, found: Found, column: Column, kind: Kind, space: Any, every: int, damaged: list[Damage]
) -> Series:
    episode = found.episode
    shape = source.shape(column)
    elements = math.prod(shape)
    drawn = _drawn(shape)
    count = -(-episode.length // every)
    values = np.full((count, len(drawn)), np.nan)
    if kind == "reward":
        whole = read_all(found.rows, column, episode.env, episode.start, episode.stop, damaged)[:, drawn]
        values = np.add.reduceat(whole, np.arange(0, episode.length, every), axis=0)
    else:
        for at, block in read(found.rows, column, episode.env, episode.start, episode.stop, damaged, every):
            first = (at - episode.start) // every
            values[first : first + len(block)] = source.shown(column, block).reshape(len(block), -1)[:, drawn]
    if kind == "observation" and every == 1:
        values = np.concatenate([values, _final(source, found, column)[:, drawn]])
    labels = action_labels(source, space) if kind == "action" else {}
    names = [""] if elements == 1 else [", ".join(map(str, map(int, np.unravel_index(at, shape)))) for at in drawn]
    curves = tuple(
        Curve(name, tuple(short(value) for value in values[:, at].tolist())) for at, name in enumerate(names)
    )
    title = length_of(column.name) if column.name in source.schema.ragged else column.name
    return Series(title, kind, elements, curves, {str(value): said for value, said in labels.items()})


def _final(source: Snapshot, found: Found, column: Column) -> Array:
    """Return the true final observation as numbers, ``(1, elements)``, NaN if it is damaged."""
    try:
        frame = found.rows.values(column, found.episode.env, np.array([found.episode.stop - 1]), 1)
        return source.shown(column, frame).reshape(1, -1)
    except CorruptionError:
        return np.full((1, math.prod(source.shape(column))), np.nan)


def _drawn(shape: tuple[int, ...]) -> range:
    """Return the positions of the elements that are drawn: the first ones; of several vectors those of the last."""
    elements = math.prod(shape)
    start = elements - shape[1] if len(shape) == 2 and elements > MOST_CURVES else 0
    return range(start, min(elements, start + MOST_CURVES))


# Pictures


def cameras(source: Snapshot) -> tuple[Camera, ...]:
    """Return the observations that are shown as pictures."""
    found: list[Camera] = []
    for column in _pictured(source)[:MOST_CAMERAS]:
        pixels = _blank(column)
        height, width = pixels.shape[:2]
        most = max(1, min(STRIP_FRAMES, STRIP_BYTES // pixels.nbytes))
        found.append(Camera(column.name, width, height, most, _note(column)))
    return tuple(found)


def _pictured(source: Snapshot) -> list[Column]:
    """Return the observations that are pictures, and the video columns, as far as these can be decoded here."""
    ragged = source.schema.ragged.items()
    hidden = [name for name, one in ragged if one.video is None or decoding.lacking(one.video)]
    shown = ((column, space) for column, space in leaves(source.schema) if column.name not in hidden)
    return [column for column, space in shown if pictures_of(column.shape, column.dtype, space)]


def _note(column: Column) -> str:
    empty = np.zeros(column.shape, np.bool_)
    kept = newest(empty)
    stacked = f"the newest of {empty.size // kept.size} stacked frames" if kept.size < empty.size else ""
    step = max(1, -(-max(kept.shape) // max(_shown(empty).shape)))
    return ", ".join(
        part for part in (stacked, f"1 of {step} pixels of each line and column" if step > 1 else "") if part
    )


def _step(shape: Sequence[int]) -> int:
    return max(1, -(-max(shape[:2]) // LONGEST_SIDE))


def _shown(frame: Array) -> Array:
    """Return what of a frame is shown: a picture as :func:`to_pixels` takes it, not too large."""
    frame = newest(frame)
    if frame.ndim == 3 and frame.shape[2] not in CHANNELS:
        step = _step(frame.shape[1:])
        return frame[:, ::step, ::step]
    step = _step(frame.shape)
    return frame[::step, ::step]


def _blank(column: Column) -> NDArray[np.uint8]:
    return to_pixels(_shown(np.zeros(column.shape, column.dtype)), 0, 1)


def strip(source: Snapshot, found: Found, camera: str, first: int, every: int, count: int) -> Strip:
    """Return frames ``first``, ``first + every`` and so on of a camera, at most ``count`` of them, as one picture.

    Raises StateError when a live writer evicted them, KeyError when there is no such camera.
    """
    episode = found.episode
    column, space = {leaf[0].name: leaf for leaf in leaves(source.schema)}[camera]
    wanted = np.arange(first, episode.length + 1, every)[:count]
    frames: dict[int, Array] = {}
    damaged: list[Damage] = []
    stop = min(episode.length, int(wanted[-1]) + 1) if len(wanted) else first
    for at, block in read(found.rows, column, episode.env, episode.start + first, episode.start + stop, damaged, every):
        frames |= {at - episode.start + n * every: _shown(frame).copy() for n, frame in enumerate(block)}
    if len(wanted) and wanted[-1] == episode.length:
        with contextlib.suppress(CorruptionError):  # listed below, as every frame that is missing
            final = np.zeros(column.shape, column.dtype)  # a column has no value after the last step
            if space is not None:
                final = found.rows.values(column, episode.env, np.array([episode.stop - 1]), 1)[0]
            frames[episode.length] = _shown(final)
    bounds = space_bounds(space, column.dtype) or spread(frames.values())
    blank = _blank(column)
    sheet = np.zeros((max(1, -(-len(wanted) // LINE)) * len(blank), LINE * blank.shape[1], *blank.shape[2:]), np.uint8)
    lost = tuple(place for place, step in enumerate(wanted.tolist()) if step not in frames)
    for place, step in enumerate(wanted.tolist()):
        line, at = divmod(place, LINE)
        pixels = to_pixels(frames.pop(step), *bounds) if step in frames else np.full_like(blank, DAMAGED_PIXEL)
        sheet[line * len(blank) : (line + 1) * len(blank), at * blank.shape[1] : (at + 1) * blank.shape[1]] = pixels
    data = base64.b64encode(to_png(sheet)).decode()
    return Strip(camera, first, every, len(wanted), LINE, f"data:image/png;base64,{data}", lost)
