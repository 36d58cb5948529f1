"""The HTML that a notebook shows of a buffer and of a batch: small tables and thumbnails, without scripts.

Everything that comes from a store or a program is escaped.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.pictures import LEAST_STACKED, newest, pictures_of, space_bounds, spread, to_pixels, to_png

THUMBNAILS = 8
SIDE = 72
"""The pixels of a thumbnail's longer side."""

Array = NDArray[Any]


def batch_html(title: str, fields: Mapping[str, Any], lead: int = 1) -> str:
    """Return a table of a batch's arrays, and its first observations if those are pictures.

    ``lead`` counts the axes before an observation's own: entries, steps of a sequence, agents.
    """
    leaves = [leaf for name, value in fields.items() for leaf in _leaves(name, value)]
    rows = [(name, _shape(value), str(getattr(value, "dtype", "")), _range(value)) for name, value in leaves]
    return heading(title) + table(("", "shape", "dtype", "values"), rows) + pictures("obs", fields.get("obs"), lead)


def pictures(name: str, observations: Any, lead: int = 1) -> str:
    """Return the first of a batch of observations, nested as their space is, empty if none are pictures.

    Of a sequence the last step is drawn, and of several agents the last one.
    """
    return "".join(
        strip(leaf, [frame[(-1,) * (lead - 1)] for frame in value[:THUMBNAILS]])
        for leaf, value in _leaves(name, observations)
        if isinstance(value, np.ndarray) and value.ndim > lead + 1
    )


def heading(text: str) -> str:
    return f"<div><b>{html.escape(text)}</b></div>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts, without a header if that is empty."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    lines = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{lines}</tbody></table>"


def strip(name: str, frames: Sequence[Array]) -> str:
    """Return thumbnails side by side, empty if the frames are not pictures."""
    while frames and frames[0].ndim > 3:  # of a stack the newest
        frames = [frame[-1] for frame in frames]
    if not frames or not pictures_of(frames[0].shape) or _stacked_vectors(frames[0]):
        return ""
    frames = [newest(frame) for frame in frames]
    bounds = space_bounds(None, frames[0].dtype) or spread(frames)
    drawn = [to_pixels(frame, *bounds) for frame in frames]
    height, width = drawn[0].shape[:2]
    step = max(1, -(-max(height, width) // (2 * SIDE)))
    scale = SIDE / max(height, width)
    images = "".join(
        f'<img alt="{html.escape(name)} {at}" width="{max(1, round(width * scale))}" '
        f'height="{max(1, round(height * scale))}" style="display:inline-block;margin:1px;image-rendering:pixelated" '
        f'src="data:image/png;base64,{base64.b64encode(to_png(picture[::step, ::step])).decode()}">'
        for at, picture in enumerate(drawn)
    )
    return f"<div><small>{html.escape(name)}</small><br>{images}</div>"


def _stacked_vectors(frame: Array) -> bool:
    """Tell whether a frame of two axes seems to be a stack of vectors rather than a picture."""
    return frame.ndim == 2 and frame.dtype != np.uint8 and min(frame.shape) < LEAST_STACKED


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a field, nested as its space is."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(f"{name}/{key}", part)
    elif isinstance(value, tuple | list):
        for at, part in enumerate(value):
            yield from _leaves(f"{name}/{at}", part)
    elif value is not None:
        yield name, value


def _shape(value: Any) -> str:
    return str(tuple(getattr(value, "shape", ())))


def _range(value: Any) -> str:
    """Return the least and the largest value, or how many are true, empty for what is not an array of numpy."""
    if not isinstance(value, np.ndarray) or not value.size:
        return ""
    if value.dtype == bool:
        return f"{np.count_nonzero(value):,} of {value.size:,} true"
    if value.dtype.kind not in "iuf":
        return ""
    return f"{value.min():.5g} to {value.max():.5g}"
