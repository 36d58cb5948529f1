"""The observations of an episode as a picture: a contact sheet (PNG) or animation (GIF) of images, or curves.

A frame is shown as it is stored, see :mod:`diskreplay.views.pictures`; where only the values say what is black and
white, it is those of the shown frames. The curves are :mod:`diskreplay.ops.curves`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diskreplay.checks import Array
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.formats.core.log_rows import LogRows, open_rows
from diskreplay.formats.core.output import check_target, replacing
from diskreplay.index.episodes import Episode
from diskreplay.ops import curves
from diskreplay.ops.result import Result
from diskreplay.schema.columns import OBS, Column, Schema
from diskreplay.storage.paths import PathLike, checked_path, named
from diskreplay.views.pictures import are_vectors, is_image, leaves, space_bounds, spread, to_pixels

SHEET_FRAMES = 40
GIF_FRAMES = 500
CURVE_STEPS = 2000
SHEET_PIXELS = 1024
"""The width that a contact sheet of few small frames may take."""
SMALL_PIXELS = 128
"""The width below which frames are enlarged by a whole factor."""
GAP_PIXELS = 2
BACKGROUND = (40, 40, 48)


@dataclasses.dataclass(frozen=True)
class Shown(Result):
    """The picture that was drawn, with ``frames`` of an episode's ``length + 1`` observations, or ``curves``."""

    file: str
    column: str
    episode: int
    episodes: int
    length: int
    total_reward: float
    frames: int
    width: int
    height: int
    stored_bytes: int
    curves: int = 0


def show(
    path: PathLike,
    out: PathLike,
    *,
    episode: int = 0,
    column: str | None = None,
    frames: int | None = None,
    fps: float | None = None,
    scale: int | None = None,
    overwrite: bool = False,
) -> Shown:
    """Draw an episode of the store at ``path`` into ``out``, a ``.png`` or ``.gif``.

    Args:
        path: the path of the store.
        out: the file; its suffix says what to draw. A sheet is read row by row.
        episode: number of it, from 0; from the end if negative.
        column: the observation leaf to show, such as ``camera`` of a Dict space, or a video column; the first image, or
            else the first of all, if None.
        frames: the most frames, evenly spaced, the final observation included; 40 for a sheet, 500 for an animation,
            2,000 for curves if None.
        fps: the frames per second of an animation; a GIF can do 100 at most. If None, those of the video, or 15.
        scale: pixels for each of the frame's; chosen so that small frames can be seen if None.
        overwrite: replace a file that is there, or that a link leads to.

    Raises:
        InputError: for a wrong episode, suffix or number, an animation of observations that are no images, or a file
            that is there.
        NotEnoughDataError: when there is no episode.
        OpenError, CorruptionError: when the store cannot be opened or read.
    """
    target = pathlib.Path(checked_path(out, "out"))
    kind = target.suffix.lower()
    if kind not in (".png", ".gif"):
        raise InputError(f"{str(target)!r}: the name must end in .png (a contact sheet) or .gif (an animation)")
    check_target(target, "file", overwrite)
    for what, value, most in (("frames", frames, 100_000), ("scale", scale, 64)):
        if value is not None and not 1 <= value <= most:
            raise InputError(f"{what} must be 1 to {most}, got {value}")
    if fps is not None and not 0.1 <= fps <= 100:
        raise InputError(f"fps must be 0.1 to 100, got {fps}")
    streams = open_rows(named(path))
    leaf, space = shown_leaf(streams[0].schema, column)
    rows, chosen, number, count = _episode(streams, episode)
    if fps is None:
        video = rows.schema.videos.get(leaf.name)
        fps = 15.0 if video is None else min(100.0, float(video.fps))
    if _is_picture(leaf, space):
        limit = frames or (SHEET_FRAMES if kind == ".png" else GIF_FRAMES)
        pictures = _Pictures(rows, chosen, leaf, space, limit, scale)
        draw = _sheet if kind == ".png" else functools.partial(_animation, fps=fps)
        size = draw(pictures, target, overwrite)
        drawn, lines = len(pictures), 0
    else:
        if kind != ".png":
            raise InputError(f"{leaf.name} {leaf.shape} is no image: its elements are drawn as curves, into a .png")
        steps = _evenly(chosen, leaf, frames or CURVE_STEPS)
        values = np.stack([frame.reshape(-1) for frame in _frames(rows, chosen, leaf, steps)])
        picture = curves.draw(leaf.name, steps, values)
        _save(picture, target, overwrite)
        size, drawn, lines = picture.size, len(steps), min(values.shape[1], curves.MOST)
    return Shown(
        str(target), leaf.name, number, count, chosen.length, chosen.total_reward, drawn, *size,
        target.stat().st_size, lines,
    )  # fmt: skip


def shown_leaf(schema: Schema, name: str | None) -> tuple[Column, gymnasium.Space[Any] | None]:
    """Return the observation leaf, or video column, to be shown, and its space; InputError if none has that name."""
    every = leaves(schema)
    if name is None:
        return next((leaf for leaf in every if _is_picture(*leaf)), every[0])
    for column, space in every:
        if name in (column.name, column.name.removeprefix(f"{OBS}/")):
            return column, space
    listed = ", ".join(f"{column.name} {column.shape}" for column, _ in every)
    raise InputError(f"there is no observation {name!r}; there are: {listed}")


def _is_picture(leaf: Column, space: gymnasium.Space[Any] | None) -> bool:
    return is_image(leaf.shape) and not are_vectors(leaf.shape, leaf.dtype, space)


def _episode(streams: Sequence[LogRows], episode: int) -> tuple[LogRows, Episode, int, int]:
    """Return the stream of an episode, the episode, its number and how many there are."""
    every = [(rows, found) for rows in streams for found in rows.episodes]
    if not every:
        raise NotEnoughDataError("the store holds no committed episode to show")
    if not -len(every) <= episode < len(every):
        raise InputError(f"episode must be 0 to {len(every) - 1} (or negative, from the end), got {episode}")
    number = episode % len(every)
    return *every[number], number, len(every)


class _Pictures:
    """The chosen observations of one episode as pictures, decoded one after the other."""

    def __init__(
        self, rows: LogRows, episode: Episode, leaf: Column, space: Any, limit: int, scale: int | None
    ) -> None:
        self._rows, self._episode, self._leaf = rows, episode, leaf
        self.steps = _evenly(episode, leaf, limit)
        self.height, self.width = to_pixels(np.zeros(leaf.shape, np.uint8), 0, 1).shape[:2]
        self.scale = scale or max(1, SMALL_PIXELS // self.width)
        self._bounds = space_bounds(space, leaf.dtype) or spread(self._frames())

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def size(self) -> tuple[int, int]:
        return self.width * self.scale, self.height * self.scale

    def __iter__(self) -> Iterator[Image.Image]:
        for frame in self._frames():
            picture = Image.fromarray(to_pixels(frame, *self._bounds))
            yield picture.resize(self.size, Image.Resampling.NEAREST) if self.scale > 1 else picture

    def _frames(self) -> Iterator[Array]:
        return _frames(self._rows, self._episode, self._leaf, self.steps)


def _evenly(episode: Episode, leaf: Column, limit: int) -> NDArray[np.int64]:
    """Return at most ``limit`` of the ``length + 1`` observations, or ``length`` values, of an episode."""
    count = episode.length + (leaf.name.partition("/")[0] == OBS)
    return np.unique(np.linspace(0, count - 1, min(limit, count)).round().astype(np.int64))


def _frames(rows: LogRows, episode: Episode, leaf: Column, steps: NDArray[np.int64]) -> Iterator[Array]:
    """Yield the observations ``(*shape)`` of some steps of an episode; that of step ``length`` is the final one."""
    yield from rows.frames(leaf, episode.env, episode.start + steps[steps < episode.length])
    if episode.length in steps:
        yield rows.values(leaf, episode.env, np.array([episode.stop - 1]), 1)[0]


def _sheet(pictures: _Pictures, target: pathlib.Path, overwrite: bool) -> tuple[int, int]:
    width, height = pictures.size
    fitting = max(1, (SHEET_PIXELS + GAP_PIXELS) // (width + GAP_PIXELS))
    most = min(len(pictures), max(fitting, math.ceil(math.sqrt(len(pictures) / 2))))
    down = -(-len(pictures) // most)
    across = -(-len(pictures) // down)
    size = across * (width + GAP_PIXELS) + GAP_PIXELS, down * (height + GAP_PIXELS) + GAP_PIXELS
    sheet = Image.new("RGB", size, BACKGROUND)
    for at, picture in enumerate(pictures):
        row, column = divmod(at, across)
        place = GAP_PIXELS + column * (width + GAP_PIXELS), GAP_PIXELS + row * (height + GAP_PIXELS)
        sheet.paste(picture.convert("RGB"), place)
    _save(sheet, target, overwrite)
    return size


def _animation(pictures: _Pictures, target: pathlib.Path, overwrite: bool, fps: float) -> tuple[int, int]:
    each = iter(pictures)
    first = next(each)
    _save(first, target, overwrite, save_all=True, append_images=each, duration=round(1000 / fps), loop=0)
    return pictures.size


def _save(picture: Image.Image, target: pathlib.Path, overwrite: bool, **options: Any) -> None:
    with replacing(target, "file", overwrite=overwrite) as temporary:
        picture.save(temporary, **options)
