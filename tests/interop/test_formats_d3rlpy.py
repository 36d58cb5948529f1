"""Files that d3rlpy itself reads, learns from, and writes."""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from formats.roundtrip import CASES, FORCE, USUAL, Case, Episode, read, store
from gymnasium import spaces

import diskreplay as dr
from diskreplay.ops.convert import export, import_dataset

torch = pytest.importorskip("torch", reason="torch is in the interop extra")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of gym, which it imports
    d3rlpy = pytest.importorskip("d3rlpy", reason="d3rlpy is installed by make interop")

EXPORTED = [case for case in CASES if not (case.nested_action or case.empty or case.own_next_obs)]


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def load(path: pathlib.Path, **options: Any) -> Any:
    with path.open("rb") as file:
        return d3rlpy.dataset.ReplayBuffer.load(file, d3rlpy.dataset.InfiniteBuffer(), **options)


def given_transitions(episodes: list[Episode]) -> Iterator[tuple[Episode, int]]:
    """The steps that d3rlpy makes transitions of: all, but the last of an episode that was not terminated."""
    for episode in episodes:
        for at in range(len(episode) - (not episode.terminated[-1])):
            yield episode, at


def newest(frames: np.ndarray, like: np.ndarray) -> np.ndarray:
    """The newest frame of one observation, in the shape that d3rlpy has it in."""
    return frames[-1].reshape(like.shape)


@pytest.mark.parametrize("case", EXPORTED, ids=repr)
def test_d3rlpy_loads_every_transition(case: Case, path: str, tmp_path: pathlib.Path) -> None:
    case.make(path)
    out = tmp_path / "a.h5"
    export(path, out, "d3rlpy", allow_loss=True)
    with out.open("rb") as file:
        episodes = d3rlpy.dataset.load(d3rlpy.dataset.Episode, file)
    wanted = read(path)
    for found, episode in zip(episodes, wanted, strict=True):
        np.testing.assert_array_equal(found.actions.reshape(episode.action["action"].shape), episode.action["action"])
        np.testing.assert_array_equal(found.rewards, episode.reward[:, None])
        assert found.terminated == episode.terminated[-1]
    buffer = load(out)
    transitions = list(given_transitions(wanted))
    assert buffer.transition_count == len(transitions)
    for number, (episode, at) in enumerate(transitions):
        found = buffer.transition_picker(*buffer.buffer[number])
        leaves = [found.observation] if isinstance(found.observation, np.ndarray) else found.observation
        for name, value in zip(episode.obs, leaves, strict=True):
            np.testing.assert_array_equal(value, newest(episode.obs[name][at], value))
        np.testing.assert_array_equal(np.ravel(found.action), np.ravel(episode.action["action"][at]))
        assert (found.reward, found.terminal) == (episode.reward[at], episode.terminated[at])
        if not found.terminal:
            following = [found.next_observation] if len(leaves) == 1 else found.next_observation
            for name, value in zip(episode.next_obs, following, strict=True):
                np.testing.assert_array_equal(np.squeeze(value), np.squeeze(episode.next_obs[name][at][-1]))


def test_columns_reach_an_episode_class_that_asks_for_them(path: str, tmp_path: pathlib.Path) -> None:
    next(case for case in CASES if case.columns).make(path)
    export(path, tmp_path / "a.h5", "d3rlpy", allow_loss=True)
    seen: list[dict[str, Any]] = []

    class Watched(d3rlpy.dataset.Episode):  # type: ignore[misc, name-defined]
        @classmethod
        def deserialize(cls, data: dict[str, Any]) -> Any:
            seen.append(data)
            return super().deserialize(data)

    with (tmp_path / "a.h5").open("rb") as file:
        d3rlpy.dataset.load(Watched, file)
    for data, episode in zip(seen, read(path), strict=True):
        assert data["truncated"] == episode.truncated[-1]
        for name, values in episode.extra.items():
            np.testing.assert_array_equal(data[f"extra/{name}"], values)


def losses(algorithm: Any, buffer: Any, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What 100 steps of training report."""
    found = []
    update = algorithm.update

    def watched(batch: Any) -> Any:
        metrics = update(batch)
        found.append(metrics["loss" if "loss" in metrics else "critic_loss"])
        return metrics

    monkeypatch.setattr(algorithm, "update", watched)
    quiet = d3rlpy.logging.NoopAdapterFactory()
    algorithm.fit(buffer, n_steps=100, n_steps_per_epoch=50, show_progress=False, logger_adapter=quiet)
    return found


SMALL = {"batch_size": 8}


@pytest.mark.parametrize("pixels", [False, True], ids=["vectors", "four frames"])
def test_dqn_learns(pixels: bool, path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    d3rlpy.seed(1)
    space = spaces.Box(0, 255, (42, 42), np.uint8) if pixels else spaces.Box(-9, 9, (5,), np.float32)
    store(space, spaces.Discrete(3), USUAL, **({"frame_stack": 4} if pixels else {}))(path)
    export(path, tmp_path / "a.h5", "d3rlpy", allow_loss=True)
    picker = d3rlpy.dataset.FrameStackTransitionPicker(4) if pixels else None
    buffer = load(tmp_path / "a.h5", transition_picker=picker)
    encoder = d3rlpy.models.PixelEncoderFactory([[4, 8, 4]], 16) if pixels else d3rlpy.models.VectorEncoderFactory([16])
    algorithm = d3rlpy.algos.DQNConfig(encoder_factory=encoder, **SMALL).create(device="cpu:0")
    found = losses(algorithm, buffer, monkeypatch)
    assert len(found) == 100
    assert np.isfinite(found).all()
    if pixels:  # the stacks that d3rlpy makes of single frames are those that the store gives
        with dr.ReplayBuffer.open(path, mode="r") as ours:
            for number, (episode, at) in enumerate(given_transitions(read(path))):
                stack = buffer.transition_picker(*buffer.buffer[number]).observation
                np.testing.assert_array_equal(stack, episode.obs["obs"][at])
            assert ours.sample(1).obs.shape[1:] == stack.shape


def test_cql_learns(path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    d3rlpy.seed(1)
    store(action=FORCE)(path)
    export(path, tmp_path / "a.h5", "d3rlpy", allow_loss=True)
    encoder = d3rlpy.models.VectorEncoderFactory([16])
    algorithm = d3rlpy.algos.CQLConfig(
        actor_encoder_factory=encoder, critic_encoder_factory=encoder, n_action_samples=2, **SMALL
    ).create(device="cpu:0")
    found = losses(algorithm, load(tmp_path / "a.h5"), monkeypatch)
    assert len(found) == 100
    assert np.isfinite(found).all()


@pytest.mark.parametrize("kind", ["vectors", "discrete", "images", "tuple"])
def test_what_d3rlpy_dumped_comes_in(kind: str, path: str, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    episodes = []
    for number, length in enumerate([4, 1, 6, 2]):
        parts = [rng.normal(size=(length, 3)).astype(np.float32), rng.integers(0, 256, (length, 1, 36, 36), np.uint8)]
        obs = {"vectors": parts[0], "discrete": parts[0], "images": parts[1], "tuple": parts}[kind]
        force = rng.normal(size=(length, 2)).astype(np.float32)
        action = rng.integers(0, 5, (length, 1)) if kind in ("discrete", "images") else force
        reward = rng.normal(size=(length, 1)).astype(np.float32)
        episodes.append(d3rlpy.dataset.Episode(obs, action, reward, terminated=number % 2 == 0))
    with (tmp_path / "a.h5").open("w+b") as file:
        d3rlpy.dataset.dump(episodes, file)
    result = import_dataset(tmp_path / "a.h5", path)
    counts = [episode.transition_count for episode in episodes]
    assert (result.format, result.transitions, result.dropped) == ("d3rlpy", sum(counts), 2)
    found = read(path)
    assert list(map(len, found)) == [count for count in counts if count]
    rest = [episode for episode in episodes if episode.transition_count]
    for ours, theirs in zip(found, rest, strict=True):
        count = theirs.transition_count
        leaves = theirs.observations if kind == "tuple" else [theirs.observations]
        for mine, values in zip(ours.obs.values(), leaves, strict=True):
            np.testing.assert_array_equal(mine[:, 0], values[:count])
        np.testing.assert_array_equal(ours.action["action"].reshape(count, -1), theirs.actions[:count])
        np.testing.assert_array_equal(ours.reward, theirs.rewards[:count, 0])
        assert (ours.terminated[-1], ours.truncated[-1]) == (theirs.terminated, not theirs.terminated)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        if kind in ("discrete", "images"):
            assert isinstance(buffer.schema.action_space, spaces.Discrete)
        if kind == "tuple":
            assert isinstance(buffer.schema.observation_space, spaces.Tuple)
