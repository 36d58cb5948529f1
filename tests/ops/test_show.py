"""show: pictures whose pixels are those of the episode."""

from __future__ import annotations

import itertools
import pathlib
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from ops.stores import images
from PIL import Image, ImageSequence

import diskreplay as dr
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.ops.show import GAP_PIXELS, show, to_pixels


def tile(sheet: Image.Image, at: int, across: int, size: int) -> np.ndarray:
    row, column = divmod(at, across)
    x, y = GAP_PIXELS + column * (size + GAP_PIXELS), GAP_PIXELS + row * (size + GAP_PIXELS)
    return np.asarray(sheet.crop((x, y, x + size, y + size)))


def test_a_contact_sheet_holds_every_frame_and_the_final_one(path: str, tmp_path: pathlib.Path) -> None:
    images(path)
    out = tmp_path / "a.png"
    shown = show(path, out, episode=1, scale=1)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        episode = buffer.episodes[1]
        ids = np.arange(episode.start, episode.stop) * 2 + episode.env
        batch = buffer.get(ids)
    frames = [*batch.obs[:, -1], batch.next_obs[-1, -1]]
    assert (shown.frames, shown.length, shown.episode) == (len(frames), episode.length, 1)
    with Image.open(out) as sheet:
        across = (sheet.width - GAP_PIXELS) // (40 + GAP_PIXELS)
        assert (sheet.width, sheet.height) == (shown.width, shown.height)
        for at, frame in enumerate(frames):
            np.testing.assert_array_equal(tile(sheet, at, across, 40), np.repeat(frame[:, :, None], 3, axis=2))
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_an_animation(path: str, tmp_path: pathlib.Path) -> None:
    images(path)
    shown = show(path, tmp_path / "a.gif", episode=-1, fps=10, scale=2)
    with Image.open(tmp_path / "a.gif") as picture:
        frames = list(ImageSequence.Iterator(picture))
        assert picture.info["duration"] == 100
        assert picture.size == (80, 80) == (shown.width, shown.height)
    assert len(frames) == shown.frames == shown.length + 1


def test_frames_are_thinned_out_evenly(path: str, tmp_path: pathlib.Path) -> None:
    images(path)
    assert show(path, tmp_path / "a.png", frames=3).frames == 3
    assert show(path, tmp_path / "a.png", frames=1).frames == 1


LAYOUTS = {
    "colour": spaces.Box(0, 255, (24, 20, 3), np.uint8),
    "channel first": spaces.Box(0, 255, (3, 24, 20), np.uint8),
    "one channel": spaces.Box(0, 255, (1, 24, 20), np.uint8),
    "alpha": spaces.Box(0, 255, (24, 20, 4), np.uint8),
    "float": spaces.Box(-1, 1, (24, 20), np.float32),
    "unbounded": spaces.Box(-np.inf, np.inf, (24, 20, 1), np.float64),
}


@pytest.mark.parametrize("space", LAYOUTS.values(), ids=LAYOUTS)
def test_layouts(path: str, tmp_path: pathlib.Path, space: spaces.Box) -> None:
    space.seed(0)
    with dr.ReplayBuffer.create(path, space, spaces.Discrete(2), capacity=10) as buffer:
        frames = [space.sample() for _ in range(4)]
        for one, following in itertools.pairwise(frames):
            buffer.add(one, 0, 0.0, following, False, False)
    show(path, tmp_path / "a.png", scale=1)
    low, high = (-1, 1) if space.bounded_above.all() else (np.min(frames), np.max(frames))
    with Image.open(tmp_path / "a.png") as sheet:
        corner = np.asarray(sheet)[GAP_PIXELS : GAP_PIXELS + 24, GAP_PIXELS : GAP_PIXELS + 20]
    expected = to_pixels(frames[0], low, high)
    assert expected.dtype == np.uint8
    np.testing.assert_array_equal(corner, np.asarray(Image.fromarray(expected).convert("RGB")))


def test_floats_are_scaled_from_the_bounds() -> None:
    np.testing.assert_array_equal(to_pixels(np.array([[-1.0, 0.0, 1.0, 5.0]]), -1, 1), [[0, 128, 255, 255]])


def test_a_dict_shows_its_image(path: str, tmp_path: pathlib.Path) -> None:
    space = spaces.Dict(state=spaces.Box(-1, 1, (3,)), left=LAYOUTS["colour"], right=LAYOUTS["float"])
    with dr.ReplayBuffer.create(path, space, spaces.Discrete(2), capacity=10) as buffer:
        buffer.add(space.sample(), 0, 0.0, space.sample(), True, False)
    assert show(path, tmp_path / "a.png").column == "obs/left"
    assert show(path, tmp_path / "a.png", column="right").column == "obs/right"
    with pytest.raises(InputError, match="obs/state"):
        show(path, tmp_path / "a.png", column="state")
    with pytest.raises(InputError, match="no observation 'up'"):
        show(path, tmp_path / "a.png", column="up")


def test_vectors_cannot_be_shown(path: str, tmp_path: pathlib.Path) -> None:
    with dr.ReplayBuffer.create(path, spaces.Box(-1, 1, (3,)), spaces.Discrete(2), capacity=10) as buffer:
        buffer.add(np.zeros(3, np.float32), 0, 0.0, np.zeros(3, np.float32), True, False)
    with pytest.raises(InputError, match="only images"):
        show(path, tmp_path / "a.png")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"out": "a.jpg"}, r"\.png"),
        ({"episode": 99}, "episode must be 0 to"),
        ({"frames": 0}, "frames must be"),
        ({"scale": 65}, "scale must be"),
        ({"fps": 0.0}, "fps must be"),
        ({"out": "nowhere/a.png"}, "no directory"),
    ],
)
def test_bad_arguments(path: str, tmp_path: pathlib.Path, options: dict[str, Any], what: str) -> None:
    images(path)
    out = tmp_path / options.pop("out", "a.png")
    with pytest.raises(InputError, match=what):
        show(path, out, **options)
    assert not out.exists()


def test_no_episode(path: str, tmp_path: pathlib.Path) -> None:
    images(path, rows=0)
    with pytest.raises(NotEnoughDataError):
        show(path, tmp_path / "a.png")
