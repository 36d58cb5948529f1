"""Returning to a checkpoint gives bit for bit what a run that never stopped would have drawn."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from helpers.configs import CONFIGS, Config
from helpers.effort import examples
from helpers.model import Leaf, arguments
from helpers.recording import Recording, recorded_in, reopen
from helpers.view_model import content

import diskreplay as dr

SAMPLES = examples(1000, "samples")


def run(buffer: dr.ReplayBuffer, recording: Recording, rows: list[Any], rounds: int) -> list[bytes]:
    """Samples, and adds the given rows in between."""
    drawn = []
    for at in range(rounds):
        drawn.append(content(buffer.sample(1 + at % 5)))
        if rows and at % 7 == 0:
            buffer.add(**arguments(recording.config.obs, rows[at % len(rows)]))
        if at % 60 == 59:
            buffer.commit()
    return drawn


@pytest.mark.long
@pytest.mark.parametrize("adds", [False, True], ids=["samples only", "with steps in between"])
@pytest.mark.parametrize("config", [c for c in CONFIGS if c.name in ("dict", "stack of 4, 5 environments")], ids=repr)
def test_a_thousand_samples_are_the_same(path: str, config: Config, adds: bool) -> None:
    with recorded_in(config, path, 40) as (buffer, recording):
        buffer.sample(11)  # the generator has moved on, by an odd number of draws
        buffer.checkpoint("here", {"step": 40})
        rows = [recording.actor.row(["step"], False) for _ in range(20)] if adds else []
        expected = run(buffer, recording, rows, SAMPLES)
    for cache_bytes in (0, 1 << 20):
        with reopen(config, path, checkpoint="here", cache_bytes=cache_bytes, seed=99) as buffer:
            assert run(buffer, recording, rows, SAMPLES) == expected
    with reopen(config, path) as buffer:
        buffer.drop_checkpoint("here")


@pytest.mark.long("test_a_thousand_samples_are_the_same")
@pytest.mark.usefixtures("small_thresholds")
def test_a_thousand_samples_are_the_same_with_small_thresholds(path: str) -> None:
    (config,) = [config for config in CONFIGS if config.name == "dict"]
    test_a_thousand_samples_are_the_same(path, config, adds=True)


def test_a_reader_draws_the_same(path: str) -> None:
    config = CONFIGS[3]
    with recorded_in(config, path, 30) as (buffer, _):
        buffer.checkpoint("here")
        expected = [content(buffer.sample(4)) for _ in range(50)]
        with dr.ReplayBuffer.open(path, mode="r", checkpoint="here") as reader:
            assert [content(reader.sample(4)) for _ in range(50)] == expected


@pytest.mark.usefixtures("both_thresholds")
def test_several_streams_draw_the_same(path: str) -> None:
    config = CONFIGS[4]
    recording = Recording(Config("other", config.obs, frame_stack=4, padding="reset", num_envs=3))
    with (
        recorded_in(config, path, 20) as (buffer, _),
        reopen(config, path, stream="b", num_envs=3, capacity=60) as other,
    ):
        recording.add(other, 15)
        other.commit()
        buffer.refresh()
        buffer.checkpoint("here")
        expected = [content(buffer.sample(4)) for _ in range(100)]
        recording.add(other, 15)
    with reopen(config, path, checkpoint="here") as buffer:
        assert buffer.stats()["streams"]["b"]["end"] == 15
        assert [content(buffer.sample(4)) for _ in range(100)] == expected
        assert buffer.refresh()
        assert buffer.stats()["streams"]["b"]["end"] == 30


@pytest.mark.parametrize("draws", [0, 1, 2, 3])
def test_half_used_words_of_the_generator_are_kept(path: str, draws: int) -> None:
    """PCG64 gives 32-bit numbers in pairs: a checkpoint between the two keeps the second."""
    config = Config("plain", Leaf((2,)), capacity=50)
    with recorded_in(config, path, 30) as (buffer, _):
        for _ in range(draws):
            buffer.sample(1)
        buffer.checkpoint("here")
        expected = buffer.sample(20).index.tolist()
    with reopen(config, path, checkpoint="here") as buffer:
        assert buffer.sample(20).index.tolist() == expected


def test_the_view_comes_back(path: str) -> None:
    config = Config("plain", Leaf((2,)), n_step=3, gamma=0.5)
    with recorded_in(config, path, 10) as (buffer, _):
        buffer.checkpoint("here")
    with dr.ReplayBuffer.open(path) as buffer:
        assert buffer.view == dr.Transition(3, 0.5)
    with dr.ReplayBuffer.open(path, view=dr.Transition(2, 0.9)) as buffer:
        assert buffer.view == dr.Transition(2, 0.9)
        buffer.checkpoint("there")
    with dr.ReplayBuffer.open(path, checkpoint="there", mode="r") as buffer:
        assert buffer.view == dr.Transition(2, 0.9)


def test_the_same_seed_draws_the_same(tmp_path: Any) -> None:
    config = Config("plain", Leaf((2,)), capacity=50)
    drawn = []
    for name in ("a", "b"):
        with recorded_in(config, str(tmp_path / name), 30, seed=5) as (buffer, _):
            drawn.append([content(buffer.sample(3)) for _ in range(20)])
    assert drawn[0] == drawn[1]


def test_a_checkpoint_is_opened_though_the_record_is_lost(path: str) -> None:
    with recorded_in(CONFIGS[0], path, 30) as (buffer, recording):
        buffer.checkpoint("a")
        recording.add(buffer, 7)
        recording.lose(30)
    (pathlib.Path(path) / "streams/0/zarr.json").unlink()
    with pytest.warns(dr.errors.DamageWarning), pytest.raises(dr.errors.InputError, match="num_envs"):
        reopen(CONFIGS[0], path, num_envs=3)
    with pytest.warns(dr.errors.DamageWarning, match="puts it back"):
        buffer = reopen(CONFIGS[0], path, checkpoint="a")
    with buffer:
        recording.check(buffer)
