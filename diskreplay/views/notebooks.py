"""The view of a buffer or a batch in a notebook: small tables, thumbnails and plots, as HTML without scripts.

Everything that comes from a store or a program is escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Array
from diskreplay.views.pictures import are_vectors, newest, pictures_of, space_bounds, spread, to_pixels, to_png

THUMBNAILS = 8
SIDE = 72
"""Pixels of a thumbnail's longer side, and of a plot's height."""
WIDTH = 2 * SIDE
COLORS = ("#5b78e0", "#d9662b", "#3f9a58", "#a85cc0", "#2d93a8", "#d0477a", "#96786a", "#7b9f2a")
"""The colors of the elements of a plot; they can be told apart on white and on black."""


def batch_html(title: str, fields: Mapping[str, Any], lead: int = 1) -> str:
    """Return a table of a batch's arrays, and its first observations where those are pictures or sequences of vectors.

    ``lead`` counts the axes before an observation's own: entries, steps of a sequence, agents.
    """
    leaves = [leaf for name, value in fields.items() for leaf in _leaves(name, value)]
    rows = [
        (name, str(tuple(getattr(value, "shape", ()))), str(getattr(value, "dtype", "")), _range(value))
        for name, value in leaves
    ]
    return (
        heading(title)
        + table(("", "shape", "dtype", "values"), rows)
        + pictures("obs", fields.get("obs"), lead, fields.get("mask"))
    )


def pictures(name: str, observations: Any, lead: int = 1, mask: Any = None) -> str:
    """Return the first of a batch of observations, nested as their space is; empty where all are plain vectors.

    Of a sequence of pictures the last step is drawn, of one of vectors the curves of its steps, and of several agents
    the last one. ``mask`` is a batch's: with two axes it says which steps its sequences hold.
    """
    steps = mask if isinstance(mask, np.ndarray) and mask.ndim == 2 else None
    return "".join(
        _drawn(leaf, value, lead, steps)
        for leaf, value in _leaves(name, observations)
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc"
    )


def _drawn(name: str, value: Array, lead: int, steps: NDArray[np.bool_] | None) -> str:
    """Return the first entries of a leaf as a strip or as curves; empty where they are plain vectors."""
    shape = value.shape[lead:]
    if len(shape) == 1 and steps is not None:
        agent = (-1,) * (lead - 2)
        held = zip(value[:THUMBNAILS], steps, strict=False)
        return curves(name, [entry[mask][(slice(None), *agent)] for entry, mask in held])
    newest_step = [entry[(-1,) * (lead - 1)] for entry in value[:THUMBNAILS]]
    return curves(name, newest_step) if are_vectors(shape, value.dtype) else strip(name, newest_step)


def escaped(text: str) -> str:
    import html  # its table of all characters that have names is large, and few programs show anything

    return html.escape(text)


def heading(text: str) -> str:
    return f"<div><b>{escaped(text)}</b></div>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts, without a header if that is empty."""
    head = "".join(f"<th>{escaped(cell)}</th>" for cell in header)
    lines = "".join(f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{lines}</tbody></table>"


def strip(name: str, frames: Sequence[Array]) -> str:
    """Return thumbnails side by side, empty if the frames are not pictures."""
    while frames and frames[0].ndim > 3:  # of a stack the newest
        frames = [frame[-1] for frame in frames]
    if not frames or not pictures_of(frames[0].shape, frames[0].dtype):
        return ""
    frames = [newest(frame) for frame in frames]
    bounds = space_bounds(None, frames[0].dtype) or spread(frames)
    drawn = [to_pixels(frame, *bounds) for frame in frames]
    height, width = drawn[0].shape[:2]
    step = max(1, -(-max(height, width) // (2 * SIDE)))
    scale = SIDE / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return _side_by_side(name, size, "png", [to_png(picture[::step, ::step]) for picture in drawn])


def curves(name: str, sequences: Sequence[Array]) -> str:
    """Return plots side by side: the first elements of each sequence ``(steps, elements)``, all to one scale."""
    every = [one[:: max(1, len(one) // WIDTH), : len(COLORS)] for one in sequences]
    every = [np.abs(one) if one.dtype.kind == "c" else one.astype(np.float64) for one in every]
    low, high = spread(every)
    return _side_by_side(name, (WIDTH, SIDE), "svg+xml", [_plot((one - low) / (high - low)).encode() for one in every])


def _plot(values: Array) -> str:
    """Return the curves of values from 0 to 1 as SVG, with a gap where one is no finite number."""
    x = np.linspace(2, WIDTH - 2, len(values))
    lines = []
    for color, element in zip(COLORS, values.T, strict=False):
        path, pen = [], "M"
        for at, value in zip(x, element, strict=True):
            if np.isfinite(value):
                path.append(f"{pen}{at:.1f} {(1 - value) * (SIDE - 4) + 2:.1f}")
            pen = "L" if np.isfinite(value) else "M"
        if path:
            lines.append(f'<path d="{"".join(path)}h0" fill="none" stroke="{color}" stroke-linecap="round"/>')
    frame = '<rect width="100%" height="100%" fill="none" stroke="#8888"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {SIDE}">{frame}{"".join(lines)}</svg>'


def _side_by_side(name: str, size: tuple[int, int], kind: str, images: Sequence[bytes]) -> str:
    label = escaped(name)
    shown = "".join(
        f'<img alt="{label} {at}" width="{size[0]}" height="{size[1]}" '
        'style="display:inline-block;margin:1px;image-rendering:pixelated" '
        f'src="data:image/{kind};base64,{base64.b64encode(image).decode()}">'
        for at, image in enumerate(images)
    )
    return f"<div><small>{label}</small><br>{shown}</div>"


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(f"{name}/{key}", part)
    elif isinstance(value, tuple | list):
        for at, part in enumerate(value):
            yield from _leaves(f"{name}/{at}", part)
    elif value is not None:
        yield name, value


def _range(value: Any) -> str:
    if not isinstance(value, np.ndarray) or not value.size:
        return ""
    if value.dtype == bool:
        return f"{np.count_nonzero(value):,} of {value.size:,} true"
    if value.dtype.kind not in "iuf":
        return ""
    return f"{value.min():.5g} to {value.max():.5g}"
