"""`compat.d3rlpy` beside d3rlpy's own buffer: the same seed, the same batches, the same parameters."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import pathlib
import subprocess
import sys
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

torch = pytest.importorskip("torch", reason="torch is in the interop extra")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of gym, which d3rlpy imports
    pytest.importorskip("d3rlpy", reason="d3rlpy is installed by make interop")

import d3rlpy  # noqa: E402
from d3rlpy.dataset import (  # noqa: E402
    BasicTransitionPicker,
    Episode,
    FrameStackTrajectorySlicer,
    FrameStackTransitionPicker,
    InfiniteBuffer,
    LastFrameWriterPreprocess,
    MixedReplayBuffer,
    MultiStepTransitionPicker,
    ReplayBuffer,
    SparseRewardTransitionPicker,
    create_fifo_replay_buffer,
)
from d3rlpy.logging import NoopAdapterFactory  # noqa: E402
from helpers.testing import Interrupts  # noqa: E402

import diskreplay as dr  # noqa: E402
from diskreplay.compat.d3rlpy import DiskDataset  # noqa: E402
from diskreplay.errors import (  # noqa: E402
    CheckpointError,
    ClosedError,
    EvictedError,
    InputError,
    NotEnoughDataError,
    ReadOnlyError,
    StoreNotFoundError,
)

Space = spaces.Space[Any]
VECTOR = spaces.Box(-9, 9, (3,), np.float32)
FRAME = spaces.Box(0, 255, (1, 6, 6), np.uint8)
TORQUE, BUTTONS = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)
FIELDS = (
    "observation", "action", "reward", "next_observation", "next_action", "terminal", "interval", "rewards_to_go",
)  # fmt: skip
TRAJECTORY = "observations", "actions", "rewards", "returns_to_go", "terminals", "timesteps", "masks"
QUIET: dict[str, Any] = {"show_progress": False, "logger_adapter": NoopAdapterFactory(), "save_interval": 1_000}


pytestmark = pytest.mark.usefixtures("one_torch_thread")


# Episodes, in a store and in d3rlpy's own memory


def draw(space: Any, rng: np.random.Generator, count: int) -> Any:
    if isinstance(space, spaces.Discrete):
        return rng.integers(0, space.n, count)
    if space.dtype == np.uint8:
        return rng.integers(0, 255, (count, *space.shape), np.uint8)
    return rng.uniform(-1, 1, (count, *space.shape)).astype(space.dtype)


def record(
    path: Any, obs_space: Any = VECTOR, action_space: Any = TORQUE, ends: str = "both", count: int = 8, **options: Any
) -> list[Episode]:
    """Records episodes into a store, and gives them as d3rlpy has those whose last steps it keeps."""
    rng, episodes = np.random.default_rng(0), []
    with dr.ReplayBuffer.create(path, obs_space, action_space, capacity=10_000, **options) as rb:
        for number in range(count):
            length = int(rng.integers(2, 20))
            obs, action = draw(obs_space, rng, length + 1), draw(action_space, rng, length)
            reward = rng.normal(size=length).astype(np.float32)
            terminated = ends == "terminated" or (ends == "both" and number % 3 != 1)
            flags = np.zeros((2, length), bool)
            flags[0 if terminated else 1, -1] = True
            rb.extend(obs[:-1], action, reward, obs[1:], *flags)
            episodes.append(as_d3rlpy(obs, action, reward, terminated))
    return episodes


def as_d3rlpy(obs: Any, action: Any, reward: Any, terminated: bool) -> Episode:
    action = action.reshape(len(action), -1)
    if terminated:
        return Episode(obs[:-1], action, reward[:, None], True)
    last = np.concatenate([reward, np.zeros(1, np.float32)])[:, None]
    return Episode(obs, np.concatenate([action, action[-1:]]), last, False)


def own_buffer(episodes: list[Episode], action_size: int = 3, **options: Any) -> ReplayBuffer:
    kind = d3rlpy.ActionSpace.DISCRETE if episodes[0].actions.dtype == np.int64 else d3rlpy.ActionSpace.CONTINUOUS
    size = action_size if kind is d3rlpy.ActionSpace.DISCRETE else episodes[0].actions.shape[1]
    return ReplayBuffer(InfiniteBuffer(), episodes=episodes, action_space=kind, action_size=size, **options)


def assert_equal(ours: Any, theirs: Any, fields: tuple[str, ...]) -> None:
    for name in fields:
        given, expected = getattr(ours, name), getattr(theirs, name)
        if not isinstance(expected, list):
            given, expected = [given], [expected]
        for one, other in zip(given, expected, strict=True):
            np.testing.assert_array_equal(one, other, name)
            assert np.asarray(one).dtype == np.asarray(other).dtype, name


def assert_same_draws(ours: Any, theirs: Any, fields: tuple[str, ...] = FIELDS, trajectories: bool = True) -> None:
    assert (ours.transition_count, ours.size()) == (theirs.transition_count, theirs.size())
    draws = []
    for dataset in (ours, theirs):
        np.random.seed(3)
        found: list[Any] = [dataset.sample_transition(), dataset.sample_transition_batch(64)]
        if trajectories:
            found += [dataset.sample_trajectory(5), dataset.sample_trajectory_batch(32, 6)]
        draws.append((found, np.random.random()))
    (given, after), (expected, expected_after) = draws
    assert after == expected_after
    assert_equal(given[0], taken(expected[0], given[0]), fields)
    assert_equal(given[1], expected[1], ("observations", "actions", "rewards", "next_observations", "terminals"))
    for one, other in zip(given[1].transitions, expected[1].transitions, strict=True):
        assert_equal(one, taken(other, one), fields)
    for one, other in zip(given[2:], expected[2:], strict=True):
        assert_equal(one, other, TRAJECTORY)


def taken(transition: Any, ours: Any) -> Any:
    """A transition without the reward of the step that nobody took, where ours is without it."""
    rest = transition.rewards_to_go
    rest = rest[:-1] if len(rest) == len(ours.rewards_to_go) + 1 and rest[-1] == 0 else rest
    return dataclasses.replace(transition, rewards_to_go=rest)


PICKERS: list[Any] = [
    BasicTransitionPicker(), SparseRewardTransitionPicker(-1.0), MultiStepTransitionPicker(3, 0.9),
    MultiStepTransitionPicker(12, 0.97),
]  # fmt: skip


@pytest.mark.parametrize("picker", PICKERS, ids=lambda picker: type(picker).__name__)
@pytest.mark.parametrize("action_space", [TORQUE, BUTTONS], ids=["torque", "buttons"])
def test_batches_are_those_of_its_own_buffer(picker: Any, action_space: Any, tmp_path: pathlib.Path) -> None:
    own = own_buffer(record(tmp_path / "store", action_space=action_space), transition_picker=picker)
    dataset = DiskDataset(tmp_path / "store", transition_picker=picker)
    assert_same_draws(dataset, own)
    assert (dataset.transition_picker, dataset.buffer.transition_count) == (picker, own.transition_count)
    for name in ("action_space", "action_size", "observation_signature", "action_signature", "reward_signature"):
        assert getattr(dataset.dataset_info, name) == getattr(own.dataset_info, name), name
    for given, expected in zip(dataset.episodes, own.episodes, strict=True):
        assert_equal(given, expected, ("observations", "actions", "rewards", "terminated", "observation_signature"))
        assert (len(given), given.compute_return()) == (len(expected), expected.compute_return())
    dataset.close()


def test_frame_stacks_are_the_stores(tmp_path: pathlib.Path) -> None:
    """d3rlpy stacks single frames of an episode; a store shows its own stacks, and its single frames are stacked."""
    record(tmp_path / "stacks", spaces.Box(0, 255, (6, 6), np.uint8), BUTTONS, frame_stack=4)
    record(tmp_path / "channels", FRAME, BUTTONS, frame_stack=4, stack_axis=None)
    episodes = record(tmp_path / "single", FRAME, BUTTONS)
    own = own_buffer(
        episodes, transition_picker=FrameStackTransitionPicker(4), trajectory_slicer=FrameStackTrajectorySlicer(4)
    )
    for name in ("stacks", "channels"):
        dataset = DiskDataset(tmp_path / name)
        assert dataset.dataset_info.observation_signature.shape == [(4, 6, 6)]
        assert_same_draws(dataset, own, trajectories=False)
        for stacked in ({"transition_picker": FrameStackTransitionPicker(4)},
                        {"trajectory_slicer": FrameStackTrajectorySlicer(4)}):  # fmt: skip
            with pytest.raises(InputError, match="stacks of 4 frames already"):
                DiskDataset(tmp_path / name, **stacked)
    picker, slicer = FrameStackTransitionPicker(4), FrameStackTrajectorySlicer(4)
    assert_same_draws(DiskDataset(tmp_path / "single", transition_picker=picker, trajectory_slicer=slicer), own)


def test_observations_of_several_arrays(tmp_path: pathlib.Path) -> None:
    space = spaces.Dict(camera=spaces.Box(0, 255, (6, 6), np.uint8), joints=VECTOR)
    rng, episodes = np.random.default_rng(0), []
    with dr.ReplayBuffer.create(tmp_path / "store", space, TORQUE, capacity=100) as rb:
        for terminated in (True, False):
            camera, joints = (draw(part, rng, 9) for part in space.spaces.values())
            action, reward = draw(TORQUE, rng, 8), rng.normal(size=8).astype(np.float32)
            for step in range(8):
                obs, after = ({"camera": camera[at], "joints": joints[at]} for at in (step, step + 1))
                ends = step == 7
                rb.add(obs, action[step], reward[step], after, terminated and ends, not terminated and ends)
            held = 8 if terminated else 9
            one = as_d3rlpy(joints, action, reward, terminated)
            episodes.append(Episode([camera[:held, None], joints[:held]], one.actions, one.rewards, terminated))
    assert_same_draws(DiskDataset(tmp_path / "store"), own_buffer(episodes))


def test_vector_environments_streams_and_invalid_steps(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    for stream in ("a", "b"):
        options: dict[str, Any] = {"capacity": 100, "num_envs": 3}
        rb = (
            dr.ReplayBuffer.create(tmp_path / "store", VECTOR, BUTTONS, stream=stream, **options)
            if stream == "a"
            else dr.ReplayBuffer.open(tmp_path / "store", stream=stream)
        )
        obs = draw(VECTOR, rng, 3)
        for step in range(20):
            after = draw(VECTOR, rng, 3)
            ended = rng.random((2, 3)) < 0.1
            valid = rng.random(3) < 0.9
            rb.add(obs, rng.integers(0, 3, 3), np.full(3, step), after, ended[0] & valid, ended[1] & valid, valid)
            obs = after
        rb.close()
    dataset = DiskDataset(tmp_path / "store")
    with dr.ReplayBuffer.open(tmp_path / "store", mode="r") as rb:
        items = rb.items()
        assert dataset.transition_count == len(items) == sum(one.transition_count for one in dataset.episodes)
        expected = rb.get(dataset._ids(np.arange(len(items))))
    found = dataset._transitions(dataset._ids(np.arange(len(items))))
    for name, values in (("observation", expected.obs), ("action", expected.action[:, None])):
        np.testing.assert_array_equal([getattr(one, name) for one in found], values)
    alive = ~expected.terminated
    np.testing.assert_array_equal(np.array([one.next_observation for one in found])[alive], expected.next_obs[alive])
    np.testing.assert_array_equal([one.terminal for one in found], expected.terminated)
    for number, one in enumerate(found):
        episode, step = dataset.buffer[number]
        assert_equal(one, taken(BasicTransitionPicker()(episode, step), one), FIELDS)


def test_the_last_step_of_a_truncated_episode_is_kept(tmp_path: pathlib.Path) -> None:
    """d3rlpy drops it: it has no observation that follows."""
    record(tmp_path / "store", ends="truncated", count=1)
    with dr.ReplayBuffer.open(tmp_path / "store", mode="r") as rb:
        batch = rb.get(rb.items())
    length = len(batch)
    plain = Episode(batch.obs, batch.action, batch.reward[:, None], False)
    assert own_buffer([plain]).transition_count == length - 1
    dataset = DiskDataset(tmp_path / "store")
    assert dataset.transition_count == length
    episode, step = dataset.buffer[length - 1]
    last = dataset.transition_picker(episode, step)
    np.testing.assert_array_equal(last.next_observation, batch.next_obs[-1])
    assert (last.terminal, last.reward) == (0.0, batch.reward[-1])
    with pytest.raises(IndexError):
        dataset.buffer[length]


def test_the_return_of_a_failure_is_seen_in_truncated_episodes(tmp_path: pathlib.Path) -> None:
    flags = np.zeros((2, 5), bool)
    flags[1, -1] = True
    with dr.ReplayBuffer.create(tmp_path / "store", VECTOR, BUTTONS, capacity=10) as rb:
        obs = draw(VECTOR, np.random.default_rng(0), 6)
        rb.extend(obs[:-1], np.zeros(5, int), np.full(5, -1.0), obs[1:], *flags)
    dataset = DiskDataset(tmp_path / "store", transition_picker=SparseRewardTransitionPicker(-100.0, step_reward=-1.0))
    assert dataset.sample_transition().rewards_to_go.tolist() == [[-100.0]]


def test_what_else_d3rlpy_does_with_a_dataset(tmp_path: pathlib.Path) -> None:
    """A picker of one's own, mixing, evaluators, and files."""
    episodes = record(tmp_path / "store", action_space=BUTTONS)

    class Mirrored(BasicTransitionPicker):  # type: ignore[misc]
        def __call__(self, episode: Any, index: int) -> Any:
            return super().__call__(episode, episode.transition_count - 1 - index)

    own = own_buffer(episodes, transition_picker=Mirrored())
    assert_same_draws(DiskDataset(tmp_path / "store", transition_picker=Mirrored()), own)
    dataset, own = DiskDataset(tmp_path / "store"), own_buffer(episodes)
    for pair, expected in (((dataset, own), (own, own)), ((own, dataset), (own, own))):
        batches = []
        for primary, secondary in (pair, expected):
            np.random.seed(0)
            batches.append(MixedReplayBuffer(primary, secondary, 0.5).sample_transition_batch(16))
        assert_equal(batches[0], batches[1], ("observations", "rewards"))
    algo = d3rlpy.algos.DQNConfig().create()
    algo.create_impl((3,), 3)
    for evaluator in (d3rlpy.metrics.TDErrorEvaluator(), d3rlpy.metrics.DiscreteActionMatchEvaluator()):
        assert evaluator(algo, dataset) == evaluator(algo, own)
    file = io.BytesIO()
    dataset.dump(file)
    loaded = ReplayBuffer.load(file, InfiniteBuffer())
    assert_same_draws(dataset, loaded)


# Training


def parameters(algo: Any) -> list[Any]:
    modules = [module for module in vars(algo.impl.modules).values() if isinstance(module, torch.nn.Module)]
    return [value.clone() for module in modules for value in module.state_dict().values()]


def trained(config: Any, dataset: Any, **options: Any) -> list[Any]:
    d3rlpy.seed(1)
    algo = config.create()
    algo.fit(dataset, n_steps=6, n_steps_per_epoch=3, **QUIET, **options)
    found = parameters(algo)
    assert len(found) > 4
    return found


def assert_same_parameters(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


CONFIGS: dict[str, Any] = {
    "TD3PlusBC": lambda: (d3rlpy.algos.TD3PlusBCConfig(
        batch_size=16, observation_scaler=d3rlpy.preprocessing.StandardObservationScaler(),
        action_scaler=d3rlpy.preprocessing.MinMaxActionScaler(),
        reward_scaler=d3rlpy.preprocessing.StandardRewardScaler(),
    ), TORQUE),
    "CQL": lambda: (d3rlpy.algos.CQLConfig(batch_size=16), TORQUE),
    "CalQL": lambda: (d3rlpy.algos.CalQLConfig(batch_size=16), TORQUE),
    "ReBRAC": lambda: (d3rlpy.algos.ReBRACConfig(batch_size=16), TORQUE),
    "DQN": lambda: (d3rlpy.algos.DQNConfig(batch_size=16), BUTTONS),
    "DiscreteCQL": lambda: (d3rlpy.algos.DiscreteCQLConfig(batch_size=16), BUTTONS),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_fit_gives_the_parameters_of_its_own_buffer(name: str, tmp_path: pathlib.Path) -> None:
    config, action_space = CONFIGS[name]()
    own = own_buffer(record(tmp_path / "store", action_space=action_space))
    ours = trained(config, DiskDataset(tmp_path / "store"))
    assert_same_parameters(ours, trained(CONFIGS[name]()[0], own))


def test_a_decision_transformer_fits_alike(tmp_path: pathlib.Path) -> None:
    own = own_buffer(record(tmp_path / "store"))
    config = functools.partial(d3rlpy.algos.DecisionTransformerConfig, batch_size=8, context_size=5, num_layers=1)
    assert_same_parameters(trained(config(), DiskDataset(tmp_path / "store")), trained(config(), own))


SCALERS = [
    "MinMaxObservationScaler", "StandardObservationScaler", "MinMaxActionScaler", "MinMaxRewardScaler",
    "StandardRewardScaler", "ReturnBasedRewardScaler",
]  # fmt: skip


@pytest.mark.parametrize("name", SCALERS)
def test_scalers_are_fitted_an_episode_at_a_time(name: str, tmp_path: pathlib.Path) -> None:
    episodes = record(tmp_path / "store")
    dataset, own = DiskDataset(tmp_path / "store"), own_buffer(episodes)
    held = []
    read = dataset.store.get

    def get(index: Any) -> Any:
        held.append(len(index))
        return read(index)

    dataset.store.get = get
    fitted = []
    for source in (dataset, own):
        scaler = getattr(d3rlpy.preprocessing, name)()
        scaler.fit_with_transition_picker(source.episodes, source.transition_picker)
        fitted.append({key: value for key, value in vars(scaler).items() if not key.startswith("_torch")})
    for key, value in fitted[1].items():
        np.testing.assert_array_equal(fitted[0][key], value)
    passes = 2 if name == "StandardObservationScaler" else 1
    assert held == [episode.transition_count for episode in episodes] * passes


LIMITED = """
import sys, warnings
warnings.simplefilter("ignore")
import resource
import d3rlpy, numpy as np, torch
from d3rlpy.dataset import Episode, FrameStackTransitionPicker, InfiniteBuffer, ReplayBuffer
from d3rlpy.logging import NoopAdapterFactory
from diskreplay.compat.d3rlpy import DiskDataset

torch.set_num_threads(1)
def fit(dataset, config):
    scaler = d3rlpy.preprocessing.PixelObservationScaler()
    algo = config(batch_size=8, observation_scaler=scaler).create()
    algo.fit(
        dataset, n_steps=4, n_steps_per_epoch=2, show_progress=False, save_interval=9,
        logger_adapter=NoopAdapterFactory(),
    )

picker = FrameStackTransitionPicker(4)
dataset = DiskDataset(sys.argv[1], transition_picker=picker, cache_bytes=8 << 20)
fit(dataset, d3rlpy.algos.DQNConfig)  # everything is loaded, and threads have begun
frames = dataset.transition_count * 84 * 84
used = 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1])
resource.setrlimit(resource.RLIMIT_DATA, (used + frames // 2, -1))
fit(dataset, d3rlpy.algos.DQNConfig)
fit(dataset, d3rlpy.algos.DiscreteCQLConfig)
d3rlpy.preprocessing.MinMaxRewardScaler().fit_with_transition_picker(dataset.episodes, dataset.transition_picker)
print("fitted", flush=True)
try:
    own = ReplayBuffer(InfiniteBuffer(), transition_picker=picker, episodes=[
        Episode(one.observations, one.actions, one.rewards, one.terminated) for one in dataset.episodes
    ])
    fit(own, d3rlpy.algos.DQNConfig)
except MemoryError:
    print("too large", flush=True)
"""


def test_images_fit_where_the_librarys_own_buffer_does_not(tmp_path: pathlib.Path) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("RLIMIT_DATA counts memory on Linux only")
    frames = spaces.Box(0, 255, (1, 84, 84), np.uint8)
    with dr.ReplayBuffer.create(tmp_path / "store", frames, BUTTONS, capacity=60_000, codec="lz4") as rb:
        steps = np.arange(501)
        flags = np.zeros((2, 500), bool)
        flags[0, -1] = True
        for number in range(100):
            obs = np.broadcast_to(((steps + number) % 256).astype(np.uint8)[:, None, None, None], (501, 1, 84, 84))
            rb.extend(obs[:-1], steps[:-1] % 3, np.ones(500), obs[1:], *flags)
    run = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "store")], capture_output=True, text=True, timeout=600
    )
    assert run.stdout.splitlines()[-2:] == ["fitted", "too large"], run.stdout[-2000:] + run.stderr[-3000:]


# Online


class Counter(gym.Env[Any, Any]):
    """Counts the steps of its episodes, which are terminated and truncated in turn; observations (episode, step)."""

    def __init__(self, first: int = 0) -> None:
        self.observation_space = spaces.Box(0, 1e6, (2,), np.float32)
        self.action_space = BUTTONS
        self.episode, self.at = first - 1, 0

    def reset(self, **options: Any) -> Any:
        self.episode, self.at = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.at += 1
        return self._obs(), float(self.at), self.episode % 2 == 0 and self.at == 6, self.at == 8, {}

    def _obs(self) -> Any:
        return np.array([self.episode, self.at], np.float32)


def dqn() -> Any:
    return d3rlpy.algos.DQNConfig(batch_size=8).create()


def online(algo: Any, env: Any, buffer: Any, n_steps: int, **options: Any) -> None:
    algo.fit_online(env, buffer, n_steps=n_steps, n_steps_per_epoch=1_000, **QUIET, **options)


def test_fit_online_gives_the_parameters_of_its_own_buffer(tmp_path: pathlib.Path) -> None:
    """While the ring is filled, and after the oldest transitions have left it."""
    found = []
    for buffer in (
        DiskDataset(tmp_path / "store", limit=30, env=Counter()), create_fifo_replay_buffer(30, env=Counter()),
    ):  # fmt: skip
        d3rlpy.seed(1)
        algo = dqn()
        online(algo, Counter(), buffer, 75)
        found.append((parameters(algo), buffer))
    (ours, dataset), (theirs, own) = found
    assert_same_parameters(ours, theirs)
    assert dataset.transition_count == own.transition_count == 30
    known = ("observation", "action", "reward", "next_observation", "terminal", "interval")
    for number in range(30):
        one, other = (picked(buffer, number) for buffer in (dataset, own))
        assert_equal(one, other, known)


def picked(dataset: Any, number: int) -> Any:
    return dataset.transition_picker(*dataset.buffer[number])


def test_a_running_episode_is_d3rlpys() -> None:
    """Its newest step is no transition yet, and the action and reward that follow the last one."""
    dataset, own = DiskDataset(limit=50, env=Counter()), create_fifo_replay_buffer(50, env=Counter())
    rng = np.random.default_rng(0)
    for step in range(30):
        obs, action, reward = rng.random(2).astype(np.float32), int(rng.integers(3)), float(rng.normal())
        for buffer in (dataset, own):
            buffer.append(obs, action, reward)
            if step in (10, 22):
                buffer.clip_episode(True)
        if own.transition_count:
            assert_same_draws(dataset, own)
    assert len(dataset.episodes[-1]) == 7


def test_clipped_episodes_keep_what_is_known() -> None:
    dataset = DiskDataset(limit=50, env=Counter())
    for last in (None, np.array([5, 5])):
        for step in range(3):
            dataset.append(np.array([0, step]), 1, 1.0)
        dataset.clip_episode(False, last)
    dataset.append(np.zeros(2), 2, 7.0)  # an episode of one step
    dataset.clip_episode(True)
    dataset.append(np.zeros(2), 2, 7.0)  # nobody knows what followed
    dataset.clip_episode(False)
    dataset.clip_episode(False)
    assert [one.transition_count for one in dataset.episodes] == [2, 3, 1]
    followed = [picked(dataset, number).next_observation[1] for number in range(6)]
    assert followed == [1, 2, 1, 2, 5, 0]
    assert [picked(dataset, number).terminal for number in range(6)] == [0, 0, 0, 0, 0, 1]
    assert picked(dataset, 1).rewards_to_go.ravel().tolist() == [1, 1], "the last step's own is known"


def test_stacks_and_preprocessors_online(tmp_path: pathlib.Path) -> None:
    class Pixels(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Box(0, 255, (1, 6, 6), np.uint8)

        def _obs(self) -> Any:
            return np.full((1, 6, 6), 10 * self.episode + self.at, np.uint8)

    class Stacked(gym.ObservationWrapper[Any, Any, Any]):
        def __init__(self) -> None:
            super().__init__(Pixels())
            self.observation_space = spaces.Box(0, 255, (4, 6, 6), np.uint8)
            self.frames: list[Any] = []

        def reset(self, **options: Any) -> Any:
            self.frames = [np.zeros((1, 6, 6), np.uint8)] * 4
            return super().reset(**options)

        def observation(self, observation: Any) -> Any:
            self.frames = [*self.frames[1:], observation]
            return np.concatenate(self.frames)

    last = {"transition_picker": FrameStackTransitionPicker(4), "writer_preprocessor": LastFrameWriterPreprocess()}
    buffers = [
        DiskDataset(tmp_path / "stacks", limit=100, env=Stacked(), frame_stack=4),
        DiskDataset(tmp_path / "frames", limit=100, env=Stacked(), **last),
        create_fifo_replay_buffer(100, env=Stacked(), **last),
    ]
    for buffer in buffers:
        env, rng = Stacked(), np.random.default_rng(0)
        obs, _ = env.reset()
        for _ in range(60):
            action = int(rng.integers(3))
            after, reward, terminated, truncated, _ = env.step(action)
            buffer.append(obs, action, reward)
            if terminated or truncated:
                buffer.clip_episode(terminated)
                after, _ = env.reset()
            obs = after
    known = ("observation", "action", "reward", "next_observation", "terminal")
    assert len({buffer.transition_count for buffer in buffers}) == 1
    for number in range(buffers[2].transition_count):
        for buffer in buffers[:2]:
            assert_equal(picked(buffer, number), picked(buffers[2], number), known)
    assert buffers[0].store.zarr()["streams/0/obs"].shape[2:] == (6, 6), "single frames are stored"


KILLED = """
import sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = sys.argv[2:]
import d3rlpy
from d3rlpy.logging import NoopAdapterFactory
from test_compat_d3rlpy import Counter
from diskreplay.compat.d3rlpy import DiskDataset

def tell(algo, epoch, step):
    if step == 50:
        buffer.commit()
        print("at 50", flush=True)
        sys.stdin.read()

buffer = DiskDataset(sys.argv[1], limit=40, env=Counter(), commit_rows=10)
algo = d3rlpy.algos.DQNConfig(batch_size=8).create()
algo.fit_online(
    Counter(), buffer, n_steps=100, show_progress=False, logger_adapter=NoopAdapterFactory(), callback=tell
)
"""


def test_fit_online_killed_and_opened_again(tmp_path: pathlib.Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "store"), *map(str, pathlib.Path(__file__).parents[:2])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        said = [line for line in iter(run.stdout.readline, b"") if line == b"at 50\n" and not run.kill()]
    assert said, "the training came to its 50th step, and was killed there"
    dataset = DiskDataset(tmp_path / "store", limit=40, env=Counter())
    before = dataset.transition_count
    assert 30 <= before <= 40
    check_counted(dataset)
    online(dqn(), Counter(first=100), dataset, 25)
    assert dataset.transition_count == 40
    check_counted(dataset)
    assert picked(dataset, 39).observation[0] >= 100
    dataset.close()
    again = DiskDataset(tmp_path / "store", limit=40)  # the store knows its spaces
    assert again.transition_count == 40
    again.close()
    with pytest.raises(ClosedError):
        again.sample_transition()


def check_counted(dataset: Any) -> None:
    """Each transition is a step of one episode of a Counter, and the next of its episode follows it."""
    for number in range(dataset.transition_count):
        one = picked(dataset, number)
        assert one.reward == one.observation[1] + 1
        if one.terminal:
            assert (one.observation[0] % 2, one.observation[1]) == (0, 5)
        else:
            np.testing.assert_array_equal(one.next_observation, one.observation + np.array([0, 1]))


def test_an_interrupted_append_leaves_the_step_or_not() -> None:
    tool = Interrupts(at="check", by="signal", within=["diskreplay.compat"])
    dataset, stamp = DiskDataset(limit=8, env=Counter()), 0
    for number in itertools.count(0, 2):

        def steps(stamp: int = stamp) -> None:
            dataset.append(np.array([stamp, 0]), 0, stamp)
            dataset.append(np.array([stamp, 1]), 1, stamp + 1)
            dataset.clip_episode(True)

        place = tool.interrupt(number, steps)
        dataset.clip_episode(False)
        dataset.append(np.array([stamp, 3]), 0, stamp + 3)
        dataset.clip_episode(True)
        rewards = dataset.store.get(dataset.store.items()).reward
        new = rewards[rewards >= stamp] - stamp
        assert new.tolist() in ([3], [0, 3], [0, 1, 3])
        stamp += 10
        if place is None:
            break
    assert number > 20
    assert new.tolist() == [0, 1, 3]


def test_episodes_are_added_whole(tmp_path: pathlib.Path) -> None:
    episodes = record(tmp_path / "store", VECTOR, BUTTONS)

    class Vectors(Counter):
        def __init__(self) -> None:
            self.observation_space, self.action_space = VECTOR, BUTTONS

    copy = DiskDataset(tmp_path / "copy", limit=1_000, env=Vectors())
    for one in DiskDataset(tmp_path / "store").episodes:
        copy.append_episode(one)
    copy.append_episode(Episode(np.zeros((1, 3)), np.zeros((1, 1)), np.zeros((1, 1)), False))  # has no transition
    assert_same_draws(copy, own_buffer(episodes))
    copy.append(np.zeros(3), np.array([0]), np.zeros(1))
    with pytest.raises(InputError, match="is running"):
        copy.append_episode(episodes[0])
    copy.clip_episode(False)
    before = copy.transition_count
    wrong: list[Any] = [
        Episode(np.zeros((4, 2)), np.zeros((4, 1)), np.zeros((4, 1)), True),
        Episode(np.zeros((4, 3)), np.full((4, 1), 7), np.zeros((4, 1)), True),
        Episode(np.zeros((4, 3)), np.zeros((4, 1)), np.full((4, 1), np.nan), True),
        Episode([np.zeros((4, 3))] * 2, np.zeros((4, 1)), np.zeros((4, 1)), True),
    ]  # fmt: skip
    for one in wrong:
        with pytest.raises(InputError):
            copy.append_episode(one)
    assert copy.transition_count == before


# What cannot be had


def test_what_is_refused_changes_nothing(tmp_path: pathlib.Path) -> None:
    dataset = DiskDataset(tmp_path / "store", limit=10, env=Counter())
    with pytest.raises(NotEnoughDataError):
        dataset.sample_transition()
    with pytest.raises(NotEnoughDataError):
        dataset.dump(io.BytesIO())
    dataset.append(np.zeros(2), 0, 0.0)
    dataset.append(np.ones(2), 1, 1.0)
    wrong: list[Any] = [
        (np.zeros(3), 0, 0.0), (np.zeros(2), 3, 0.0), (np.zeros(2), 0, np.nan), (np.zeros(2), 0, np.zeros(2)),
        ([np.zeros(2)] * 2, 0, 0.0), (np.zeros(2), 0.5, 0.0),
    ]  # fmt: skip
    for step in wrong:
        with pytest.raises(InputError):
            dataset.append(*step)
    with pytest.raises(InputError):
        dataset.clip_episode(False, np.zeros(3))
    dataset.clip_episode(True)
    assert dataset.transition_count == 2
    assert [picked(dataset, number).reward for number in (0, 1)] == [0, 1]
    for call in (dataset.load, dataset.from_episode_generator):
        with pytest.raises(InputError, match="DiskDataset"):
            call()
    with pytest.raises(InputError, match="append"):
        dataset.buffer.append(dataset.episodes[0], 0)
    with pytest.raises(InputError):
        dataset.episodes[0].deserialize({})
    with pytest.raises(InputError):
        dataset.sample_transition_batch(0)
    dataset.close()
    reading = DiskDataset(tmp_path / "store")
    for refused in (lambda: reading.append(np.zeros(2), 0, 0.0), lambda: reading.clip_episode(True),
                    lambda: reading.append_episode(reading.episodes[0])):  # fmt: skip
        with pytest.raises(ReadOnlyError, match="limit"):
            refused()


class Spaces:
    """An environment of which only the spaces are looked at."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space


def test_stores_that_cannot_be_opened(tmp_path: pathlib.Path) -> None:
    wrong: list[tuple[Any, Any]] = [
        (VECTOR, spaces.MultiDiscrete([2, 2])), (VECTOR, spaces.Discrete(3, start=1)), (spaces.Discrete(4), TORQUE),
        (VECTOR, spaces.Box(-1, 1, (2, 2), np.float32)), (spaces.Dict(a=spaces.MultiBinary(3)), BUTTONS),
    ]  # fmt: skip
    for number, pair in enumerate(wrong):
        with pytest.raises(InputError, match="d3rlpy takes"):
            DiskDataset(tmp_path / "made", limit=10, env=Spaces(*pair))
        assert not (tmp_path / "made").exists()
        dr.ReplayBuffer.create(tmp_path / str(number), *pair, capacity=10).close()
        with pytest.raises(InputError, match="d3rlpy takes"):
            DiskDataset(tmp_path / str(number))
        dr.ReplayBuffer.open(tmp_path / str(number)).close()  # nobody holds it
    agents = dr.MultiAgentReplayBuffer.create(tmp_path / "agents", VECTOR, BUTTONS, n_agents=2, capacity=10)
    agents.close()
    with pytest.raises(InputError, match="several agents"):
        DiskDataset(tmp_path / "agents")
    with pytest.raises(StoreNotFoundError):
        DiskDataset(tmp_path / "none")
    for options in ({}, {"path": tmp_path / "0", "env": Counter()}, {"path": tmp_path / "none", "limit": 10}):
        with pytest.raises(InputError):
            DiskDataset(**options)
    stacked = {"frame_stack": 4, "transition_picker": FrameStackTransitionPicker(4)}
    with pytest.raises(InputError, match="stacks of 4"):
        DiskDataset(tmp_path / "made", limit=10, env=Spaces(FRAME, BUTTONS), **stacked)
    assert not (tmp_path / "made").exists()
    with dr.ReplayBuffer.create(tmp_path / "more", VECTOR, BUTTONS, capacity=10, columns={"value": np.float32}):
        pass
    with pytest.raises(InputError, match="columns"):
        DiskDataset(tmp_path / "more", limit=10)
    with dr.ReplayBuffer.create(tmp_path / "finite", VECTOR, BUTTONS, capacity=10, finite=True):
        pass
    with pytest.raises(InputError, match="finite"):
        DiskDataset(tmp_path / "finite", limit=10).append(np.full(3, np.nan), 0, 0.0)
    with dr.ReplayBuffer.create(tmp_path / "invalid", VECTOR, BUTTONS, capacity=10) as rb:
        rb.add(np.zeros(3), 0, 0, np.ones(3), False, False, valid=False)
    with pytest.raises(InputError, match="no transitions"):
        DiskDataset(tmp_path / "invalid", limit=10)
    DiskDataset(tmp_path / "ring", limit=10, env=Counter()).close()
    with pytest.raises(InputError, match="this buffer for"):
        DiskDataset(tmp_path / "ring", limit=10, env=Spaces(VECTOR, BUTTONS))
    with pytest.raises(InputError, match="has the capacity 10, and 9 would keep fewer"):
        DiskDataset(tmp_path / "ring", limit=9)
    with pytest.raises(CheckpointError):
        DiskDataset(tmp_path / "ring", limit=10, checkpoint="none")


def test_checkpoints_and_rows_that_leave(tmp_path: pathlib.Path) -> None:
    writer = DiskDataset(tmp_path / "store", limit=10, env=Counter(), commit_rows=1)
    for step in range(11):
        writer.append(np.array([0, step]), 0, float(step + 1))
    writer.store.checkpoint("ten")
    dataset, kept = DiskDataset(tmp_path / "store"), DiskDataset(tmp_path / "store", checkpoint="ten")
    for step in range(11, 300):
        writer.append(np.array([0, step]), 0, float(step + 1))
    writer.close()
    for _ in range(3):
        assert kept.sample_transition_batch(8).rewards.max() <= 10
    with pytest.raises(EvictedError):
        dataset.store.refresh(), dataset.sample_transition_batch(8)
    back = DiskDataset(tmp_path / "store", limit=10, checkpoint="ten")
    assert [picked(back, number).reward for number in range(10)] == list(range(1, 11))
    back.close()
    grown = DiskDataset(tmp_path / "store", limit=15)
    assert [picked(grown, number).reward for number in range(10)] == list(range(1, 11))
    assert grown.store.capacity == 15
    grown.close()


def truncated_episode(rng: Any, steps: int, terminated: bool = False) -> Any:
    obs, rewards = rng.random((steps, 2)).astype(np.float32), rng.normal(size=(steps, 1)).astype(np.float32)
    return Episode(obs, rng.integers(3, size=(steps, 1)), rewards, terminated)


@pytest.mark.parametrize("by_step", [False, True])
@pytest.mark.parametrize(
    "picker", [BasicTransitionPicker(), SparseRewardTransitionPicker(-7.0), MultiStepTransitionPicker(2, 0.9)]
)
def test_truncated_episodes_have_d3rlpys_returns(by_step: bool, picker: Any, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    episodes = [truncated_episode(rng, steps, steps == 4) for steps in (5, 3, 4, 7, 2)]
    own = own_buffer(episodes, transition_picker=picker)
    dataset = DiskDataset(tmp_path / "s", limit=50, env=Counter(), transition_picker=picker)
    for one in episodes:
        if by_step:
            for step in zip(one.observations, one.actions, one.rewards, strict=True):
                dataset.append(*step)
            dataset.clip_episode(one.terminated)
        else:
            dataset.append_episode(one)
    for options in ({"limit": 50}, {}, {}):
        assert dataset.transition_count == own.transition_count
        for ours, theirs in zip(dataset.episodes, own.episodes, strict=True):
            assert (len(ours), ours.transition_count) == (len(theirs), theirs.transition_count)
            assert ours.compute_return() == theirs.compute_return()
            np.testing.assert_array_equal(ours.rewards, theirs.rewards)
            np.testing.assert_array_equal(ours.actions, theirs.actions)
        assert_same_draws(dataset, own)
        dataset.close()
        dataset = DiskDataset(tmp_path / "s", transition_picker=picker, **options)


def test_an_evaluator_of_returns_sees_those_of_d3rlpy(tmp_path: pathlib.Path) -> None:
    episodes = [truncated_episode(np.random.default_rng(seed), 6) for seed in range(5)]
    dataset = DiskDataset(limit=50, env=Counter())
    for one in episodes:
        dataset.append_episode(one)
    algo = d3rlpy.algos.DQNConfig().create()
    algo.create_impl((2,), 3)
    threshold = sorted(one.compute_return() for one in episodes)[2]
    evaluator = d3rlpy.metrics.SoftOPCEvaluator(threshold)
    assert evaluator(algo, dataset) == evaluator(algo, own_buffer(episodes))


def test_an_action_too_large_for_a_fact_leaves_the_reward() -> None:
    wide = spaces.Box(-1, 1, (1000,), np.float32)
    dataset = DiskDataset(limit=50, env=Spaces(VECTOR, wide))
    actions = np.random.default_rng(0).random((3, 1000)).astype(np.float32)
    dataset.append_episode(Episode(np.zeros((3, 3), np.float32), actions, np.full((3, 1), 5.0), False))
    assert dataset.episodes[0].compute_return() == 15
    np.testing.assert_array_equal(dataset.episodes[0].actions[-1], actions[1], "that of the step before")


def test_environments_of_gym() -> None:
    import gym

    class Old(gym.Env):  # type: ignore[misc]
        observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gym.spaces.Discrete(3)

    dataset = DiskDataset(limit=10, env=Old())
    assert dataset.dataset_info.action_size == 3
    dataset.append(np.zeros(2, np.float32), 1, 1.0)
    dataset.clip_episode(True)
    assert dataset.transition_count == 1
    assert dataset.store.schema.observation_space == spaces.Box(-1, 1, (2,), np.float32)
    Old.action_space = gym.spaces.MultiBinary(2)
    with pytest.raises(InputError, match="d3rlpy takes actions of a Box"):
        DiskDataset(limit=10, env=Old())


def test_append_broadcasts_and_cuts_nothing() -> None:
    dataset = DiskDataset(limit=10, env=Spaces(spaces.Box(0, 255, (2, 2), np.uint8), TORQUE))
    good = np.zeros((2, 2), np.uint8), np.zeros(TORQUE.shape, np.float32), 0.0
    wrong: list[Any] = [
        (0, np.zeros(2, np.uint8)), (0, 0), (0, np.full((2, 2), 1.5)), (0, np.full((2, 2), 256)), (0, "x"), (0, None),
        (1, 0.5), (1, np.full(TORQUE.shape, "a")), (2, np.zeros(2)), (2, "1"), (2, 1j),
    ]  # fmt: skip
    for place, bad in wrong:
        step = list(good)
        step[place] = bad
        with pytest.raises(InputError):
            dataset.append(*step)
    dataset.append(*good)
    for bad in ("abc", 2, None):
        with pytest.raises(InputError, match="terminated"):
            dataset.clip_episode(bad)
    dataset.clip_episode(1)
    assert dataset.transition_count == 1
