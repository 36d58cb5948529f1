"""What a notebook shows of buffers and batches."""

from __future__ import annotations

import base64
import io
import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from ops.stores import images
from PIL import Image

import diskreplay as dr
from diskreplay.views import notebooks


def pictures(shown: str) -> list[Any]:
    """The thumbnails in some HTML."""
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', shown)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) for data in found]


def plots(shown: str) -> list[str]:
    """The plots in some HTML, as SVG."""
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', shown)
    return [base64.b64decode(data).decode() for data in found]


def test_a_batch_is_a_table_and_its_newest_frames(path: str) -> None:
    images(path, frame_stack=4)
    with dr.ReplayBuffer.open(path, seed=0) as buffer:
        batch = buffer.sample(12)
    shown = batch._repr_html_()
    assert "<b>Batch of 12</b>" in shown
    assert "<td>obs</td><td>(12, 4, 40, 40)</td><td>uint8</td>" in shown
    assert f"<td>terminated</td><td>(12,)</td><td>bool</td><td>{batch.terminated.sum()} of 12 true</td>" in shown
    assert f"{batch.reward.min():.5g} to {batch.reward.max():.5g}" in shown
    found = pictures(shown)
    assert len(found) == notebooks.THUMBNAILS
    for picture, stack in zip(found, batch.obs, strict=False):
        assert (picture == stack[-1]).all()


def test_a_buffer_says_what_it_holds_and_draws_nothing(path: str) -> None:
    images(path)
    with dr.ReplayBuffer.open(path, seed=3) as buffer, dr.ReplayBuffer.open(path, mode="r", seed=3) as other:
        shown = buffer._repr_html_()
        assert f"<td>transitions</td><td>{len(buffer):,} of 200</td>" in shown
        assert len(pictures(shown)) == notebooks.THUMBNAILS
        assert (buffer.sample(16).index == other.sample(16).index).all()
    assert "closed" in buffer._repr_html_()


def test_nothing_becomes_markup(path: str) -> None:
    with dr.ReplayBuffer.create(
        path + "<img src=x>&", spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2), capacity=9,
        columns={"a&b": spaces.Box(-1, 1, (), np.float32)},
    ) as buffer:  # fmt: skip
        buffer.add([0, 0], 0, 0.0, [0, 0], True, False, **{"a&b": 0.5})
        shown = buffer._repr_html_() + buffer.sample(1)._repr_html_()
    assert "<img" not in shown
    assert "&lt;img src=x&gt;&amp;" in shown
    assert "extra/a&amp;b" in shown


@pytest.mark.parametrize("kind", ["empty", "vectors", "nested", "agents", "rollout"])
def test_of_other_buffers(path: str, kind: str) -> None:
    box, camera = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(0, 255, (8, 9, 3), np.uint8)
    buffer: Any
    if kind == "agents":
        buffer = dr.MultiAgentReplayBuffer.create(path, box, spaces.Discrete(5), n_agents=2, capacity=9)
        buffer.add(np.zeros((2, 3)), [0, 1], 1.0, np.zeros((2, 3)), True, False)
    elif kind == "rollout":
        buffer = dr.RolloutBuffer.create(path, camera, spaces.Discrete(5), steps=4, num_envs=1)
        zeros = np.zeros(camera.shape, np.uint8)
        for _ in range(4):
            buffer.add(zeros, 0, 1.0, zeros, True, False, value=0.0, log_prob=0.0)
        buffer.finish(last_value=0.0)
        assert pictures(next(iter(buffer.minibatches(4)))._repr_html_())
    else:
        space = spaces.Dict(a=box, b=spaces.Tuple([camera])) if kind == "nested" else box
        buffer = dr.ReplayBuffer.create(path, space, spaces.Discrete(5), capacity=9)
        if kind != "empty":
            buffer.add(space.sample(), 0, 1.0, space.sample(), True, False)
    with buffer:
        shown = buffer._repr_html_()
        assert "<td>path</td>" in shown
        assert bool(pictures(shown)) == (kind == "nested")
        if kind == "nested":
            assert "obs/b/0" in buffer.sample(1)._repr_html_()


def test_what_is_no_array_is_listed_without_values() -> None:
    shown = notebooks.batch_html("a batch", {"obs": object(), "mask": None, "index": np.arange(3)})
    assert not plots(notebooks.batch_html("a batch", {"obs": np.full((2, 3, 4), "text", object)}))
    assert "<td>obs</td><td>()</td><td></td><td></td>" in shown
    assert "mask" not in shown
    assert "<td>index</td><td>(3,)</td><td>int64</td><td>0 to 2</td>" in shown


@pytest.mark.parametrize("kind", ["sequences", "episodes", "stacks", "agents", "agents' sequences"])
def test_vectors_are_numbers_and_no_pictures(path: str, kind: str) -> None:
    """Regression: a sequence of vectors has two axes, as a picture has."""
    box = spaces.Box(-1, 1, (17,), np.float32)
    views = {"sequences": dr.Sequence(8), "episodes": dr.PaddedEpisodes(20), "agents' sequences": dr.Sequence(8)}
    options: Any = {"capacity": 90, "view": views.get(kind)}
    buffer: Any
    if kind.startswith("agents"):
        buffer = dr.MultiAgentReplayBuffer.create(path, box, spaces.Discrete(2), 20, **options)
    else:
        buffer = dr.ReplayBuffer.create(
            path, box, spaces.Discrete(2), frame_stack=4 if kind == "stacks" else 1, **options
        )
    with buffer:
        agents = (20,) if kind.startswith("agents") else ()
        for step in range(40):
            obs = np.full((*agents, 17), step / 64, np.float32)
            buffer.add(obs, np.zeros(agents, int), 0.0, obs + np.float32(1 / 64), False, step % 20 == 19)
        batch = buffer.sample(2)
        assert (
            f"<td>obs</td><td>{batch.obs.shape}</td><td>float32</td><td>{batch.obs.min():.5g} to" in batch._repr_html_()
        )
        for shown in (batch, buffer):
            assert not pictures(shown._repr_html_())
        assert len(plots(batch._repr_html_())) == (0 if kind == "agents" else 2)


def test_a_plot_shows_the_steps_that_a_sequence_holds() -> None:
    obs = np.zeros((2, 4, 3), np.float32)
    obs[0, :, 0] = [0, 1, np.nan, 2]
    mask = np.array([[True] * 4, [True, True, False, False]])
    (whole, part) = plots(notebooks.batch_html("a batch", {"obs": obs, "mask": mask}, 2))
    first, *others = re.findall(r' d="([^"]*)"', whole)
    assert re.findall("[ML]", first) == ["M", "L", "M"]
    heights = [float(y) for y in re.findall(r" ([0-9.]+)", first)]
    assert heights == [70.0, 36.0, 2.0]  # low values below
    assert [path.count("L") for path in others] == [3, 3]
    assert [path.count("L") for path in re.findall(r' d="([^"]*)"', part)] == [1, 1, 1]


@pytest.mark.parametrize("agents", [0, 3])
def test_of_sequences_and_agents_the_last_picture_is_drawn(path: str, agents: int) -> None:
    camera = spaces.Box(0, 255, (20, 24), np.uint8)
    buffer: Any
    if agents:
        buffer = dr.MultiAgentReplayBuffer.create(
            path, camera, spaces.Discrete(2), agents, capacity=50, view=dr.Sequence(4)
        )
    else:
        buffer = dr.ReplayBuffer.create(path, camera, spaces.Discrete(2), capacity=50, view=dr.Sequence(4))
    with buffer:
        rng = np.random.default_rng(0)
        frames = rng.integers(0, 256, (9, *([agents] if agents else []), 20, 24), np.uint8)
        for step in range(8):
            buffer.add(frames[step], np.zeros(agents or (), int), 0.0, frames[step + 1], step == 7, False)
        batch = buffer.get(buffer.items())
        found = pictures(batch._repr_html_())
        assert len(found) == min(len(batch), notebooks.THUMBNAILS)
        for picture, sequence in zip(found, batch.obs, strict=False):
            assert (picture == (sequence[-1][-1] if agents else sequence[-1])).all()
