"""Stores whose every value says where it belongs, for what is shown of them."""

from __future__ import annotations

import base64
import io
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from PIL import Image

import diskreplay as dr

SPACE = spaces.Dict(
    camera=spaces.Box(0, 255, (20, 24, 3), np.uint8),
    depth=spaces.Box(0.0, 4.0, (1, 16, 18), np.float32),
    state=spaces.Box(-np.inf, np.inf, (3,), np.float32),
)
ACTIONS = spaces.Discrete(3)
FINAL = 200
"""Of the picture that only the last transition of an episode shows."""
MEANINGS = ["WAIT", "LEFT", "RIGHT"]


def observation(episode: int, step: int, *, final: bool = False) -> dict[str, Any]:
    """The one of a step: its number is in red, that of its episode in green; a final one is blue, too."""
    camera = np.zeros((20, 24, 3), np.uint8)
    camera[...] = (step, episode, FINAL if final else 0)
    state = np.array([step, -step, episode], np.float32)
    return {"camera": camera, "depth": np.full((1, 16, 18), step % 5, np.float32), "state": state}


def create(path: Any, **options: Any) -> dr.ReplayBuffer:
    options = {
        "chunk_rows": {"obs/camera": 2}, "shard_rows": {"obs/camera": 4}, "capacity": 1000, "seed": 0,
        "columns": {"value": spaces.Box(-np.inf, np.inf, (), np.float32)}, "provenance": {"action_meanings": MEANINGS},
        **options,
    }  # fmt: skip
    return dr.ReplayBuffer.create(path, SPACE, ACTIONS, **options)


def play(buffer: dr.ReplayBuffer, number: int, length: int, end: str = "terminated", reward: float = 1.0) -> None:
    """An episode of so many steps; ``end`` is terminated, truncated, cut or running."""
    for step in range(length):
        last = step == length - 1
        final = last and end in ("terminated", "truncated")
        buffer.add(
            observation(number, step), step % 3, reward, observation(number, step + 1, final=final),
            last and end == "terminated", last and end == "truncated", value=step / 2,
        )  # fmt: skip
    if end == "cut":
        buffer.cut()


def make(path: Any, **options: Any) -> None:
    """Five episodes: returns 4, 12, 1, -2 and, still going on, 3."""
    with create(path, **options) as buffer:
        play(buffer, 0, 4)
        play(buffer, 1, 6, "truncated", 2.0)
        play(buffer, 2, 2, "terminated", 0.5)
        play(buffer, 3, 4, "cut", -0.5)
        play(buffer, 4, 3, "running")


def pixels(strip: Any, at: int, size: Sequence[int]) -> np.ndarray[Any, Any]:
    """The picture at a position of a strip, ``(height, width, ...)``."""
    sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(strip.src.partition(",")[2]))))
    line, column = divmod(at, strip.line)
    height, width = size
    return sheet[line * height : (line + 1) * height, column * width : (column + 1) * width]


def shards(path: str, column: str, stream: str = "*") -> list[pathlib.Path]:
    """The files of a column."""
    (folder,) = pathlib.Path(path, "streams").glob(f"{stream}/{column}")
    return sorted(file for file in folder.rglob("*") if file.is_file() and file.name != "zarr.json")


def damage(path: str, column: str, count: int | None = 1) -> None:
    """Overwrites what the first shards of a column begin with, or all of them do."""
    for shard in shards(path, column)[:count]:
        held = bytearray(shard.read_bytes())
        held[4:16] = bytes(255 - byte for byte in held[4:16])
        shard.write_bytes(held)
