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
from diskreplay.ops import curves
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
        batch = buffer.get(np.arange(episode.start, episode.stop) * 2 + episode.env)
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
    assert show(path, tmp_path / "b.png", frames=1).frames == 1


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
    assert show(path, tmp_path / "b.png", column="right").column == "obs/right"
    assert show(path, tmp_path / "c.png", column="state").curves == 3
    with pytest.raises(InputError, match="no observation 'up'"):
        show(path, tmp_path / "d.png", column="up")


@pytest.mark.parametrize("shape", [(40, 30, 2), (2, 40, 30)])
def test_two_channels_stand_side_by_side(path: str, tmp_path: pathlib.Path, shape: tuple[int, ...]) -> None:
    """They were refused as no image."""
    space = spaces.Box(0, 255, shape, np.uint8, seed=0)
    with dr.ReplayBuffer.create(path, space, spaces.Discrete(2), capacity=10) as buffer:
        frame = space.sample()
        buffer.add(frame, 0, 0.0, space.sample(), True, False)
    assert (show(path, tmp_path / "a.png", scale=1).frames, show(path, tmp_path / "a.gif", scale=1).width) == (2, 60)
    channels = frame if shape[0] == 2 else np.moveaxis(frame, -1, 0)
    with Image.open(tmp_path / "a.png") as sheet:
        shown = np.asarray(sheet)[GAP_PIXELS : GAP_PIXELS + 40, GAP_PIXELS : GAP_PIXELS + 60, 0]
    np.testing.assert_array_equal(shown, np.hstack(list(channels)))


def test_a_vector_is_shown_as_curves(path: str, tmp_path: pathlib.Path) -> None:
    """Vectors could not be shown at all."""
    with dr.ReplayBuffer.create(path, spaces.Box(-9, 9, (3,)), spaces.Discrete(2), capacity=50) as buffer:
        for step in range(20):
            obs, following = np.array([[at, -at, np.nan if at == 7 else 2] for at in (step, step + 1)], np.float32)
            buffer.add(obs, 0, 1.0, following, step == 19, False)
    shown = show(path, tmp_path / "a.png")
    assert (shown.frames, shown.curves, shown.column) == (21, 3, "obs")
    line = np.array(curves.LINE)
    with Image.open(tmp_path / "a.png") as picture:
        drawn = (np.asarray(picture) == line).all(axis=2)
    assert (shown.width, shown.height) == drawn.shape[::-1]
    panels = [drawn[curves.TOP + at * (curves.PANEL_HEIGHT + curves.GAP) :][: curves.PANEL_HEIGHT] for at in range(3)]
    rising, falling = (np.argmax(panel, axis=0)[panel.any(axis=0)] for panel in panels[:2])
    assert (np.diff(rising) <= 0).all()
    assert rising[0] > rising[-1]
    assert (np.diff(falling) >= 0).all()
    assert falling[0] < falling[-1]
    flat = panels[2].any(axis=0)[curves.LEFT : -curves.GAP]
    assert 0.8 < flat.mean() < 0.99  # but for the step that is not a number
    assert show(path, tmp_path / "a.png", frames=5, overwrite=True).frames == 5
    with pytest.raises(InputError, match=r"no image.*into a \.png"):
        show(path, tmp_path / "a.gif")


def test_a_long_vector_and_a_number(path: str, tmp_path: pathlib.Path) -> None:
    space = spaces.Dict(at=spaces.Discrete(9), far=spaces.Box(-1, 1, (4, 3, 2)))
    with dr.ReplayBuffer.create(path, space, spaces.Discrete(2), capacity=10) as buffer:
        buffer.add(space.sample(), 0, 0.0, space.sample(), True, False)
    assert show(path, tmp_path / "a.png").curves == 1
    assert show(path, tmp_path / "b.png", column="far").curves == curves.MOST


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
