"""Datasets that Minari itself reads and writes."""

from __future__ import annotations

import json
import pathlib
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from formats.roundtrip import CASES, FORCE, NESTED, VECTOR, Case, leaves, read
from formats.test_ragged import make
from gymnasium import spaces
from gymnasium.wrappers import RescaleAction

import diskreplay as dr
from diskreplay.ops.convert import export, import_dataset

minari = pytest.importorskip("minari", reason="minari is in the interop extra")
pytest.importorskip("pyarrow", reason="pyarrow is in the interop extra")
from minari.data_collector import EpisodeBuffer  # noqa: E402  (after the skip)

FORMATS = ["minari", "minari-arrow"]


@pytest.fixture(autouse=True)
def root(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Where Minari looks for datasets."""
    root = tmp_path / "minari"
    root.mkdir()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    return root


@pytest.mark.parametrize("case", CASES, ids=repr)
@pytest.mark.parametrize("name", FORMATS)
def test_minari_loads_every_episode(name: str, case: Case, path: str, root: pathlib.Path) -> None:
    case.make(path)
    export(path, root / "played-v3", name, allow_loss=True)
    dataset, wanted = minari.load_dataset("played-v3"), read(path)
    assert (dataset.spec.dataset_id, list(minari.list_local_datasets())) == ("played-v3", ["played-v3"])
    assert (dataset.total_episodes, dataset.total_steps) == (len(wanted), sum(map(len, wanted)))
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        schema = buffer.schema
    assert dataset.action_space == schema.action_space
    if not case.stacked:
        assert dataset.observation_space == schema.observation_space
    assert len(list(dataset)) == len(wanted)
    for found, episode in zip(dataset, wanted, strict=True):
        observations = dict(leaves(found.observations, "obs"))
        assert observations.keys() == episode.obs.keys()
        for leaf, values in observations.items():
            both = np.concatenate([episode.obs[leaf], episode.next_obs[leaf][-1:]])[:, -1]  # the newest frame
            np.testing.assert_array_equal(values, both)
            assert values.dtype == both.dtype
        for leaf, values in leaves(found.actions, "action"):
            np.testing.assert_array_equal(values, episode.action[leaf])
        np.testing.assert_array_equal(found.rewards, episode.reward)
        np.testing.assert_array_equal(found.terminations, episode.terminated)
        np.testing.assert_array_equal(found.truncations, episode.truncated)
        infos = found.infos or {}
        assert infos.keys() == episode.extra.keys()
        for column, values in infos.items():
            np.testing.assert_array_equal(values[1:], episode.extra[column])


@pytest.mark.parametrize("name", FORMATS)
def test_minari_recovers_the_environment(name: str, path: str, root: pathlib.Path) -> None:
    """Of what ``record`` made, with its arguments and wrappers; and Minari's own comes in with its environment."""
    env = RescaleAction(gymnasium.make("Pendulum-v1", g=9.0, max_episode_steps=7), -1, 1)
    with dr.ReplayBuffer.create(
        path, env.observation_space, env.action_space, capacity=50, provenance=dr.provenance(env)
    ) as buffer:
        obs, _ = env.reset(seed=0)
        for step in range(7):
            action = np.zeros(1, np.float32)
            following, reward, _, truncated, _ = env.step(action)
            buffer.add(obs, action, reward, following, False, truncated)
            assert truncated == (step == 6)
            obs = following
    export(path, root / "played-v3", name)
    dataset = minari.load_dataset("played-v3")
    made = dataset.recover_environment()
    assert made.spec == env.spec
    assert isinstance(made, RescaleAction)
    assert made.unwrapped.g == 9.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # no author, no permalink
        minari.create_dataset_from_buffers(
            "again-v0", recorded(VECTOR, FORCE), env=env, observation_space=VECTOR, action_space=FORCE
        )
    import_dataset(root / "again-v0", root / "again.replay")
    with dr.ReplayBuffer.open(root / "again.replay", mode="r") as buffer:
        told = buffer.provenance
    assert (told["env_id"], told["env_spec"]) == ("Pendulum-v1", json.loads(env.spec.to_json()))
    assert told["minari"]["dataset_id"] == "again-v0"


def test_minari_finds_a_dataset_in_a_namespace(path: str, root: pathlib.Path) -> None:
    CASES[0].make(path)
    (root / "games" / "atari").mkdir(parents=True)
    export(path, root / "games" / "atari" / "played", "minari")
    assert minari.load_dataset("games/atari/played").id == "games/atari/played-v0"


OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "image": spaces.Box(0, 255, (40, 36, 3), np.uint8),
    "grey image": spaces.Box(0, 255, (40, 36), np.uint8),
    "dict": NESTED,
    "tuple": spaces.Tuple((spaces.Discrete(5), spaces.Box(-1, 1, (2, 2), np.float64))),
}


def stacked(values: list[Any]) -> Any:
    """A list of nested values as nested arrays."""
    if isinstance(values[0], dict):
        return {key: stacked([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(stacked([value[at] for value in values]) for at in range(len(values[0])))
    return np.array(values)


def recorded(space: spaces.Space[Any], action: spaces.Space[Any]) -> list[EpisodeBuffer]:
    """Episodes as an environment gives them, with infos of the reset and of every step."""
    space.seed(0)
    action.seed(0)
    rng = np.random.default_rng(0)
    buffers = []
    for number, (length, end) in enumerate([(5, "terminated"), (1, "truncated"), (8, "truncated"), (2, "terminated")]):
        last = np.arange(length) == length - 1
        infos = {
            "x_position": rng.normal(size=length + 1).tolist(),
            "contact": {"force": rng.normal(size=(length + 1, 3))},
        }
        buffers.append(
            EpisodeBuffer(
                number, seed=number, observations=stacked([space.sample() for _ in range(length + 1)]),
                actions=stacked([action.sample() for _ in range(length)]), rewards=rng.normal(size=length).tolist(),
                terminations=(last & (end == "terminated")).tolist(),
                truncations=(last & (end == "truncated")).tolist(), infos=infos,
            )
        )  # fmt: skip
    return buffers


@pytest.mark.parametrize("jpeg", [False, True], ids=["as they are", "jpeg"])
@pytest.mark.parametrize("kind", OBSERVATIONS)
@pytest.mark.parametrize("storage", ["hdf5", "arrow"])
def test_what_minari_made_comes_in(storage: str, kind: str, jpeg: bool, path: str, root: pathlib.Path) -> None:
    space, action = OBSERVATIONS[kind], spaces.Discrete(4) if kind == "image" else spaces.Box(-1, 1, (2,))
    buffers = recorded(space, action)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # no author, no permalink
        made = minari.create_dataset_from_buffers(
            "made/of-buffers-v1", buffers, observation_space=space, action_space=action,
            data_format=storage, jpeg_encoding=jpeg,
        )  # fmt: skip
    result = import_dataset(root / "made/of-buffers-v1", path)
    assert (result.format, result.episodes, result.transitions, result.dropped) == (
        "minari" if storage == "hdf5" else "minari-arrow", 4, 16, 0,
    )  # fmt: skip
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        assert (buffer.schema.observation_space, buffer.schema.action_space) == (space, action)
    for found, episode, given in zip(read(path), made, buffers, strict=True):
        for leaf, values in leaves(episode.observations, "obs"):
            np.testing.assert_array_equal(np.concatenate([found.obs[leaf], found.next_obs[leaf][-1:]])[:, 0], values)
        np.testing.assert_array_equal(found.action["action"], episode.actions)
        np.testing.assert_array_equal(found.reward, episode.rewards)
        np.testing.assert_array_equal(found.terminated, episode.terminations)
        np.testing.assert_array_equal(found.truncated, episode.truncations)
        np.testing.assert_array_equal(found.extra["x_position"], given.infos["x_position"][1:])
        np.testing.assert_array_equal(found.extra["contact.force"], given.infos["contact"]["force"][1:])


TEXTS = spaces.Dict(said=spaces.Text(9, min_length=0, charset="aé語"), at=spaces.Box(-1, 1, (2,), np.float32))


@pytest.mark.parametrize("name", FORMATS)
def test_minari_loads_texts(name: str, path: str, root: pathlib.Path) -> None:
    make(path, TEXTS, spaces.Text(5), {}, steps=22)
    export(path, root / "said-v0", name)
    dataset = minari.load_dataset("said-v0")
    assert (dataset.observation_space, dataset.action_space) == (TEXTS, spaces.Text(5))
    with dr.ReplayBuffer.open(path, mode="r", ragged="lists") as rb:
        for found, e in zip(dataset, sorted(rb.episodes, key=lambda e: (e.env, e.start)), strict=True):
            batch = rb.get(np.arange(e.start, e.stop) * rb.num_envs + e.env)
            observations = [*batch.obs["said"], batch.next_obs["said"][len(batch.reward) - 1]]
            assert found.observations["said"] == ["".join(map(chr, row)) for row in observations]
            assert found.actions == ["".join(map(chr, row)) for row in batch.action]


@pytest.mark.parametrize("storage", ["hdf5", "arrow"])
def test_texts_that_minari_wrote_come_in(storage: str, path: str, root: pathlib.Path) -> None:
    observations = {"said": ["", "aé", "語", "a"], "at": np.zeros((4, 2), np.float32)}
    buffer = EpisodeBuffer(
        0, observations=observations, actions=["xy", "z", "abc"], rewards=[1.0, 2.0, 3.0], terminations=[False] * 3,
        truncations=[False, False, True],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # no author, no permalink
        minari.create_dataset_from_buffers(
            "made-v1", [buffer], observation_space=TEXTS, action_space=spaces.Text(5), data_format=storage
        )
    assert import_dataset(root / "made-v1", path).transitions == 3
    with dr.ReplayBuffer.open(path, mode="r", ragged="lists") as rb:
        assert (rb.schema.observation_space, rb.schema.action_space) == (TEXTS, spaces.Text(5))
        batch = rb.get(rb.items())
        rows = [*batch.obs["said"], batch.next_obs["said"][2], *batch.action]
        assert ["".join(map(chr, row)) for row in rows] == ["", "aé", "語", "a", "xy", "z", "abc"]
