"""The elements of a vector over the steps of an episode, drawn as one panel each with its own scale."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

MOST = 16
"""The most elements that are drawn."""
WIDTH, PANEL_HEIGHT, LEFT, TOP, GAP = 960, 72, 150, 24, 8
"""The sizes of the picture, in pixels."""
PAPER, PANEL, INK, LINE = (255, 255, 255), (244, 246, 248), (60, 66, 74), (31, 119, 180)


def draw(name: str, steps: NDArray[np.int64], values: NDArray[Any]) -> Image.Image:
    """Return the picture.

    Args:
        name: the name of the vector.
        steps: ``(n,)``, where the values were read.
        values: ``(n, elements)``; the first 16 elements are drawn. What is not finite leaves a gap.
    """
    shown = values[:, :MOST].astype(np.float64)
    elements = shown.shape[1]
    picture = Image.new("RGB", (WIDTH, TOP + elements * (PANEL_HEIGHT + GAP) + TOP), PAPER)
    pen = ImageDraw.Draw(picture)
    more = f", the first {MOST} of {values.shape[1]:,} elements" if values.shape[1] > MOST else ""
    pen.text((GAP, 6), _plain(f"{name}{more}"), INK)
    for element in range(elements):
        top = TOP + element * (PANEL_HEIGHT + GAP)
        pen.rectangle((LEFT, top, WIDTH - GAP, top + PANEL_HEIGHT - 1), PANEL)
        known = np.isfinite(shown[:, element])
        values = shown[known, element]
        low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
        label = f"{name}[{element}]"
        for line, text in enumerate((label if len(label) <= 22 else f"[{element}]", f"{high:.4g}", f"{low:.4g}")):
            pen.text((GAP, top + line * (PANEL_HEIGHT // 3)), _plain(text), INK)
        x = LEFT + (steps - steps[0]) * (WIDTH - GAP - LEFT - 1) / max(1, steps[-1] - steps[0])
        y = top + 2 + (high - np.where(known, shown[:, element], low)) * ((PANEL_HEIGHT - 5) / ((high - low) or 1.0))
        for run in np.split(np.arange(len(steps)), np.flatnonzero(np.diff(known)) + 1):
            if known[run[0]]:
                points = list(zip(x[run].tolist(), y[run].tolist(), strict=True))
                pen.line(points, LINE, 1) if len(points) > 1 else pen.point(points, LINE)
    bottom = TOP + elements * (PANEL_HEIGHT + GAP)
    pen.text((LEFT, bottom), f"step {steps[0]}", INK)
    pen.text((WIDTH - 90, bottom), f"step {steps[-1]}", INK)
    return picture


def _plain(text: str) -> str:
    """Return text with "?" for what not every font can draw."""
    return text.encode("latin-1", "replace").decode("latin-1")
