"""`compat.sb3` beside Stable-Baselines3's own buffers: the same seed, the same batches, the same weights."""

from __future__ import annotations

import copy
import functools
import itertools
import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from helpers.crashes import die

torch = pytest.importorskip("torch", reason="torch is in the interop extra")
pytest.importorskip("stable_baselines3", reason="stable-baselines3 is in the interop extra")

from helpers.testing import Interrupts  # noqa: E402
from stable_baselines3 import DQN, SAC  # noqa: E402
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize  # noqa: E402

import diskreplay as dr  # noqa: E402
from diskreplay.compat.sb3 import DiskReplayBuffer  # noqa: E402
from diskreplay.errors import InputError, LockedError, NotEnoughDataError, SamplerWarning  # noqa: E402

ATTRIBUTES = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
BOX = spaces.Box(-1, 1, (3,), np.float32)
CHEAP = {"buffer_size": 90, "learning_starts": 20, "batch_size": 16, "seed": 1, "device": "cpu"}


class Toy(gym.Env):
    """Random observations of a space; episodes of 7 steps end, or of 9 if the action said so."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, start: int = 0) -> None:
        self.observation_space, self.action_space = copy.deepcopy((observation_space, action_space))
        self.start = start

    def _observe(self) -> Any:
        return self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = self.start
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        long = float(np.sum(action)) > 0.5
        return self._observe(), float(np.sum(action)), self.steps == 7 and not long, self.steps == 9, {}


def images(depth: int = 1, size: int = 36) -> spaces.Box:
    return spaces.Box(0, 255, (size, size, depth), np.uint8)


def vector(observation_space: spaces.Space, action_space: spaces.Space, num_envs: int) -> Callable[[], Any]:
    def make(number: int) -> Callable[[], gym.Env]:
        return lambda: Toy(observation_space, action_space, start=number)

    return lambda: DummyVecEnv([make(number) for number in range(num_envs)])


def stacked(make: Callable[[], Any], frames: int = 4) -> Callable[[], Any]:
    return lambda: VecFrameStack(make(), frames)


def train(algorithm: Any, policy: str, make: Callable[[], Any], buffer: Any, steps: int = 150, **kwargs: Any) -> Any:
    env = make()
    env.seed(3)
    options = kwargs.pop("options", {})
    model = algorithm(
        policy, env, replay_buffer_class=buffer, replay_buffer_kwargs=options, **{**CHEAP, **kwargs}
    )  # fmt: skip
    return model.learn(steps)


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def assert_same(ours: Any, theirs: Any) -> None:
    mine, own = ours.replay_buffer, theirs.replay_buffer
    assert (mine.pos, mine.full, mine.size()) == (own.pos, own.full, own.size())
    for name in ATTRIBUTES:
        found, expected = getattr(mine, name), getattr(own, name)
        if not isinstance(expected, dict):
            found, expected = {"": found}, {"": expected}
        assert found.keys() == expected.keys()
        for key, array in expected.items():
            assert (found[key].shape, found[key].dtype) == (array.shape, array.dtype)
            np.testing.assert_array_equal(np.asarray(found[key]), array, f"{name} {key}")
    pairs = list(zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True))
    assert pairs
    assert all(torch.equal(a, b) for a, b in pairs), "the same batches give the same weights"


NESTED = spaces.Dict({"camera": images(), "state": BOX, "kind": spaces.Discrete(3)})
CASES = {
    "DQN, stacked images": (DQN, "CnnPolicy", stacked(vector(images(), spaces.Discrete(3), 1)), ReplayBuffer),
    "DQN, 3 environments": (DQN, "CnnPolicy", stacked(vector(images(), spaces.Discrete(3), 3)), ReplayBuffer),
    "DQN, stacked colours": (DQN, "CnnPolicy", stacked(vector(images(3), spaces.Discrete(3), 2), 2), ReplayBuffer),
    "DQN, colours": (DQN, "CnnPolicy", vector(images(3), spaces.Discrete(3), 1), ReplayBuffer),
    "DQN, Discrete": (DQN, "MlpPolicy", vector(spaces.Discrete(5), spaces.Discrete(3), 2), ReplayBuffer),
    "DQN, MultiBinary": (DQN, "MlpPolicy", vector(spaces.MultiBinary(4), spaces.Discrete(3), 1), ReplayBuffer),
    "DQN, Dict": (DQN, "MultiInputPolicy", vector(NESTED, spaces.Discrete(3), 3), DictReplayBuffer),
    "SAC": (SAC, "MlpPolicy", vector(BOX, spaces.Box(-2, 2, (2,), np.float64), 2), ReplayBuffer),
    "SAC, Dict": (SAC, "MultiInputPolicy", vector(NESTED, spaces.Box(-2, 2, (2,), np.float32), 2), DictReplayBuffer),
    "SAC, normalised": (SAC, "MlpPolicy", lambda: VecNormalize(vector(BOX, BOX, 2)()), ReplayBuffer),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("handles_timeouts", [True, False])
def test_training_is_the_same_to_the_last_bit(case: str, handles_timeouts: bool) -> None:
    algorithm, policy, make, peer = CASES[case]
    options = {"handle_timeout_termination": handles_timeouts}
    ours = train(algorithm, policy, make, DiskReplayBuffer, options=options)
    theirs = train(algorithm, policy, make, peer, options=options)
    if not handles_timeouts:
        # SB3 then keeps no time limits; ours does, and gives the same batches.
        theirs.replay_buffer.timeouts = np.asarray(ours.replay_buffer.timeouts)
    assert_same(ours, theirs)


def test_frames_of_a_stack_are_stored_once_unasked() -> None:
    for case, stack in [("DQN, stacked images", (4, 0, False)), ("DQN, stacked colours", (2, 0, True))]:
        store = train(*CASES[case][:3], DiskReplayBuffer, 40).replay_buffer.store
        assert [(s.frames, s.axis, s.channels) for s in store.schema.stacks] == [stack]
        assert store.schema.obs_columns[0].item_bytes == 36 * 36 * (3 if stack[2] else 1)
        assert store.stats()["streams"]["0"]["patches"] <= 2 * (40 // 7 + 2), "only final observations"
    store = train(*CASES["DQN, colours"][:3], DiskReplayBuffer, 40).replay_buffer.store
    assert store.schema.stacks[0].frames == 1


class Blank(Toy):
    """A screen that stays black for a while, as at the start of many games."""

    def _observe(self) -> Any:
        return super()._observe() if self.steps > 2 else np.zeros(self.observation_space.shape, np.uint8)

    def reset(self, **kwargs: Any) -> Any:
        self.steps = 0
        return super().reset(**kwargs)


@pytest.mark.parametrize(("depth", "frames"), [(1, 4), (3, 1), (3, 2)])
def test_a_blank_first_step_is_taken_for_frames(depth: int, frames: int) -> None:
    def make() -> Any:
        plain = DummyVecEnv([lambda: Blank(images(depth), spaces.Discrete(3))])
        return VecFrameStack(plain, frames) if frames > 1 else plain

    ours = train(DQN, "CnnPolicy", make, DiskReplayBuffer)
    assert ours.replay_buffer.store.schema.stacks[0].frames == frames
    assert_same(ours, train(DQN, "CnnPolicy", make, ReplayBuffer))


@pytest.mark.parametrize("frame_stack", [4, {"obs": 4}, 1])
def test_frame_stack_can_be_named(frame_stack: Any) -> None:
    make = CASES["DQN, stacked images"][2]
    ours = train(DQN, "CnnPolicy", make, DiskReplayBuffer, options={"frame_stack": frame_stack})
    assert ours.replay_buffer.store.schema.stacks[0].frames == (1 if frame_stack == 1 else 4)
    assert_same(ours, train(DQN, "CnnPolicy", make, ReplayBuffer))


def test_pendulum_with_sac_and_a_path(tmp_path: pathlib.Path) -> None:
    def make() -> Any:
        return DummyVecEnv([lambda: gym.make("Pendulum-v1")])

    ours = train(SAC, "MlpPolicy", make, DiskReplayBuffer, 300, options={"path": tmp_path / "pendulum.replay"})
    assert_same(ours, train(SAC, "MlpPolicy", make, ReplayBuffer, 300))
    assert ours.replay_buffer.timeouts[:].sum() == 0, "200 steps an episode: one time limit, evicted since"
    ours.replay_buffer.close()
    with dr.ReplayBuffer.open(tmp_path / "pendulum.replay", mode="r") as store:
        assert len(store) == 90


# n-step returns


def test_n_step_returns_are_those_of_sb3() -> None:
    rng = np.random.default_rng(0)
    args = (60, BOX, spaces.Discrete(3), "cpu", 2)
    ours = DiskReplayBuffer(*args, n_steps=3, gamma=0.9, seed=0)
    theirs = NStepReplayBuffer(*args, n_steps=3, gamma=0.9)
    obs = rng.normal(size=(2, 3)).astype(np.float32)
    for _ in range(100):
        next_obs = rng.normal(size=(2, 3)).astype(np.float32)
        done = rng.random(2) < 0.2
        infos = [{"TimeLimit.truncated": bool(d and rng.random() < 0.5)} for d in done]
        step = (obs, next_obs, rng.integers(3, size=2), rng.normal(size=2).astype(np.float32), done, infos)
        ours.add(*step)
        theirs.add(*step)
        obs = np.where(done[:, None], rng.normal(size=(2, 3)), next_obs).astype(np.float32)
    got = ours.sample(200)
    # Where SB3 holds the same transition: by its reward and observation.
    places = [np.argwhere((theirs.observations == row).all(-1))[0] for row in got.observations.numpy()]
    positions, envs = np.array(places).T
    theirs_env = iter([envs])
    original = np.random.randint
    np.random.randint = lambda *a, **k: next(theirs_env)  # SB3 draws environments here
    try:
        expected = theirs._get_samples(positions)
    finally:
        np.random.randint = original
    for name in ("observations", "actions", "next_observations", "dones"):
        torch.testing.assert_close(getattr(got, name), getattr(expected, name), rtol=0, atol=0)
    torch.testing.assert_close(got.rewards, expected.rewards)
    torch.testing.assert_close(got.discounts * (1 - got.dones), expected.discounts * (1 - expected.dones))
    assert got.discounts.dtype == expected.discounts.dtype == torch.float32
    assert got.discounts.shape == expected.discounts.shape == (200, 1)


def test_n_steps_beyond_what_there_is() -> None:
    options = {"n_steps": 3, "gamma": 0.99}
    model = train(*CASES["SAC, Dict"][:3], DiskReplayBuffer, 60, options=options, batch_size=64)
    assert model.replay_buffer.sample(500).discounts.shape == (500, 1)
    with pytest.raises(InputError, match="n_steps"):
        DiskReplayBuffer(10, BOX, BOX, n_steps=3, view=dr.Transition(2))


# Hindsight and priorities


GOALS = spaces.Dict({"observation": BOX, "achieved_goal": BOX, "desired_goal": BOX})


def distance(achieved: Any, desired: Any, info: Any) -> Any:
    return -np.linalg.norm(achieved - desired, axis=-1)


def test_hindsight_with_sac_and_several_environments() -> None:
    view = dr.Hindsight(distance, ratio=1.0)
    model = train(SAC, "MultiInputPolicy", vector(GOALS, BOX, 2), DiskReplayBuffer, options={"view": view})
    batch = model.replay_buffer.sample(64)
    goals, reached = (batch.next_observations[key].numpy() for key in ("desired_goal", "achieved_goal"))
    np.testing.assert_allclose(batch.rewards.numpy()[:, 0], distance(reached, goals, None), rtol=1e-5)
    np.testing.assert_array_equal(batch.observations["desired_goal"].numpy(), goals)


def test_priorities() -> None:
    model = train(*CASES["SAC"][:3], DiskReplayBuffer, 60, options={"sampler": dr.Proportional(), "seed": 4})
    buffer = model.replay_buffer
    buffer.sample(8)
    chosen = buffer.index[0]
    buffer.store.update_priorities(buffer.index, np.where(buffer.index == chosen, 1e6, 1e-3))
    buffer.sample(64)
    assert buffer.weight.shape == (64,)
    assert (buffer.index == chosen).mean() > 0.9


# SB3's other methods


def test_an_interrupted_step_is_at_its_position_or_not_there() -> None:
    def add(buffer: DiskReplayBuffer, stamp: int) -> None:
        obs = np.full((2, 3), stamp, np.float32)
        buffer.add(obs, obs + 1, np.zeros((2, 1)), np.full(2, stamp), np.zeros(2), [{}, {}])

    tool = Interrupts(at="check", by="signal", within=["diskreplay.compat", "diskreplay.engine.engine"])
    for number in itertools.count():
        buffer = DiskReplayBuffer(8, spaces.Box(-1e6, 1e6, (3,), np.float32), spaces.Discrete(3), "cpu", n_envs=2)
        for stamp in range(6):
            add(buffer, stamp)
        place = tool.interrupt(number, functools.partial(add, buffer, 6))
        rewards = np.asarray(buffer.rewards)[:, 0].tolist()
        assert (buffer.pos, buffer.full, rewards) in ((2, True, [4, 5, 2, 3]), (3, True, [4, 5, 6, 3]))
        buffer.close()
        if place is None:
            break
    assert number > 5


@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"n_steps": 3}], ids=str)
def test_batch_sizes_without_a_batch(options: dict[str, Any]) -> None:
    """An empty buffer raises a ValueError, as SB3's own does, and draws nothing; 0 transitions are an empty batch."""
    observations, actions = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)
    theirs = ReplayBuffer(10, observations, actions, "cpu")
    ours = DiskReplayBuffer(10, observations, actions, "cpu", **options)
    with pytest.raises(ValueError, match="high <= 0"):
        theirs.sample(1)
    drawn = np.random.get_state()[2]
    with pytest.raises(NotEnoughDataError, match="the buffer is empty") as raised:
        ours.sample(1)
    assert isinstance(raised.value, ValueError)
    assert np.random.get_state()[2] == drawn
    step = (np.zeros((1, 2)), np.ones((1, 2)), np.array([1]), np.array([0.5]), np.array([False]), [{}])
    for buffer in (theirs, ours):
        buffer.add(*step)
    expected = theirs.sample(0)
    for name, tensor in ours.sample(0)._asdict().items():
        if name != "discounts":
            assert (tensor.shape, tensor.dtype) == (getattr(expected, name).shape, getattr(expected, name).dtype)
    for buffer in (theirs, ours):
        with pytest.raises(ValueError, match=r"negative|batch_size must be"):
            buffer.sample(-1)


def test_extend_reset_and_an_empty_buffer() -> None:
    buffer = DiskReplayBuffer(10, images(4), spaces.Discrete(3), "cpu")
    with pytest.raises(NotEnoughDataError, match="the buffer is empty"):
        buffer.sample(1)
    rng = np.random.default_rng(0)
    steps = [
        (rng.integers(0, 255, (1, 36, 36, 4), np.uint8), rng.integers(0, 255, (1, 36, 36, 4), np.uint8),
         np.array([1]), np.array([0.5]), np.array([False]), [{}])
        for _ in range(4)
    ]  # fmt: skip
    buffer.extend(*zip(*steps, strict=True))
    assert (buffer.size(), buffer.pos, buffer.full) == (4, 4, False)
    np.testing.assert_array_equal(buffer.observations[:4], [step[0] for step in steps])
    np.testing.assert_array_equal(buffer.next_observations[:4], [step[1] for step in steps])
    assert not np.asarray(buffer.observations)[4:].any()
    buffer.reset()
    assert (buffer.size(), buffer.pos, len(buffer.store)) == (0, 0, 0)
    assert not np.asarray(buffer.observations).any()
    buffer.extend(*zip(*steps[:1], strict=True))
    np.testing.assert_array_equal(buffer.observations[0], steps[0][0])
    with pytest.raises(InputError, match="finite"):
        buffer.add(*steps[0][:3], np.array([np.nan]), *steps[0][4:])
    assert buffer.size() == 1


def test_a_batch_is_the_users_own() -> None:
    buffer = train(*CASES["DQN, stacked images"][:3], DiskReplayBuffer, 60).replay_buffer
    batch = buffer.sample(8)
    expected = batch.next_observations.clone()
    batch.observations.zero_()
    assert torch.equal(batch.next_observations, expected)


# Saving


@pytest.mark.parametrize("case", ["DQN, stacked images", "SAC, Dict"])
@pytest.mark.parametrize("temporary", [True, False])
@pytest.mark.parametrize("dropped", [True, False])
def test_save_and_load_through_a_model(case: str, temporary: bool, dropped: bool, tmp_path: pathlib.Path) -> None:
    algorithm, policy, make, peer = CASES[case]
    options = {} if temporary else {"path": tmp_path / "store"}
    ours = train(algorithm, policy, make, DiskReplayBuffer, options=options)
    theirs = train(algorithm, policy, make, peer)
    for model in (ours, theirs):
        model.save_replay_buffer(tmp_path / "buffer.pkl")
        assert temporary or model is theirs or (tmp_path / "buffer.pkl").stat().st_size < 30_000, "no frames in it"
        if dropped:
            model.replay_buffer = None
        model.load_replay_buffer(tmp_path / "buffer.pkl")
        np.random.seed(5)
        torch.manual_seed(5)
        model.learn(60, reset_num_timesteps=False)
    assert_same(ours, theirs)


def test_a_path_is_taken_up_again_by_a_new_model(tmp_path: pathlib.Path) -> None:
    path, (algorithm, policy, make, _) = tmp_path / "store", CASES["DQN, stacked images"]
    first = train(algorithm, policy, make, DiskReplayBuffer, 52, options={"path": path})
    held = np.asarray(first.replay_buffer.observations)
    with pytest.raises(LockedError):
        DiskReplayBuffer(90, first.observation_space, spaces.Discrete(3), path=path)
    first.replay_buffer.close()
    second = DiskReplayBuffer(90, first.observation_space, spaces.Discrete(3), path=path)
    assert (second.pos, second.full) == (52, False)
    np.testing.assert_array_equal(np.asarray(second.observations), held)
    second.store.checkpoint("here")
    second.close()
    for changed in ({"action_space": spaces.Discrete(4)}, {"observation_space": BOX}):
        arguments = {
            "buffer_size": 90,
            "observation_space": first.observation_space,
            "action_space": spaces.Discrete(3),
        }
        with pytest.raises(InputError, match="this buffer for"):
            DiskReplayBuffer(**{**arguments, **changed}, path=path)
    third = DiskReplayBuffer(90, first.observation_space, spaces.Discrete(3), path=path, checkpoint="here")
    assert third.pos == 52
    third.close()
    with pytest.raises(InputError, match="no checkpoint"):
        DiskReplayBuffer(90, BOX, BOX, path=tmp_path / "other", checkpoint="here")


def test_priorities_survive_a_close_and_not_a_kill(tmp_path: pathlib.Path) -> None:
    def opened() -> DiskReplayBuffer:
        return DiskReplayBuffer(20, BOX, BOX, "cpu", path=tmp_path / "store", sampler=dr.Proportional(), seed=0)

    buffer = opened()
    for step in range(6):
        obs = np.full((1, 3), step / 9, np.float32)
        buffer.add(obs, obs + 1 / 9, obs, np.ones(1), np.zeros(1), [{}])
    buffer.sample(4)
    buffer.store.update_priorities(buffer.index[:1], [1e6])
    largest = buffer.store.sampler.maximum
    buffer.close()
    buffer = opened()
    assert buffer.store.sampler.maximum == largest > 1e5
    buffer.sample(4)
    buffer.store.update_priorities(buffer.index[:1], [1.0])
    die(buffer.store)
    with pytest.warns(SamplerWarning, match="ended without close"):
        buffer = opened()
    assert buffer.store.sampler.maximum == 1
    buffer.close()


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_reopened_store_grows_and_does_not_shrink(num_envs: int, tmp_path: pathlib.Path) -> None:
    path, kept = tmp_path / "store", []
    for size, held, pos in ((8, 8, 4), (20, 20, 0), (40, 32, 32)):
        buffer = DiskReplayBuffer(size * num_envs, BOX, spaces.Discrete(3), n_envs=num_envs, path=path)
        for step in steps_of(num_envs, count=12):
            buffer.add(*step)
            kept.append(step[0])
        assert (buffer.size(), buffer.pos, buffer.full) == (held, pos, held == size)
        found = np.asarray(buffer.observations)[(np.arange(held) + (pos if buffer.full else 0)) % size]
        np.testing.assert_array_equal(found, np.array(kept[-held:]).reshape(found.shape))
        buffer.sample(4)
        buffer.close()
    with pytest.raises(InputError, match=r"has the capacity \d+, and \d+ would keep fewer .*diskreplay resize"):
        DiskReplayBuffer(39 * num_envs, BOX, spaces.Discrete(3), n_envs=num_envs, path=path)
    with pytest.raises(InputError, match="this buffer for"):
        DiskReplayBuffer(90 * num_envs, BOX, spaces.Discrete(4), n_envs=num_envs, path=path)
    with dr.open(path) as store:
        assert store.capacity == 40 * num_envs


def test_a_pickle_of_a_buffer_without_steps(tmp_path: pathlib.Path) -> None:
    buffer = DiskReplayBuffer(10, images(4), spaces.Discrete(3), path=tmp_path / "store")
    loaded = pickle.loads(pickle.dumps(buffer))
    assert loaded.size() == 0
    with pytest.raises(NotEnoughDataError):
        loaded._get_samples(np.array([0]))


def steps_of(num_envs: int, space: spaces.Space = BOX, count: int = 23) -> list[tuple[Any, ...]]:
    """Arguments of ``add``: random steps, of which some end or run into a time limit."""
    rng = np.random.default_rng(3)
    space.seed(3)
    steps = []
    for _ in range(count):
        obs, following = (np.stack([space.sample() for _ in range(num_envs)]) for _ in range(2))
        done = rng.random(num_envs) < 0.3
        infos = [{"TimeLimit.truncated": bool(ended and rng.random() < 0.5)} for ended in done]
        steps.append((obs, following, rng.integers(0, 3, (num_envs, 1)), rng.random(num_envs), done, infos))
    return steps


@pytest.mark.parametrize("num_envs", [1, 2])
def test_arrays_of_an_n_step_buffer_are_single_steps(num_envs: int) -> None:
    arguments = 10 * num_envs, BOX, spaces.Discrete(3), "cpu", num_envs
    ours = DiskReplayBuffer(*arguments, n_steps=3)
    theirs = NStepReplayBuffer(*arguments, n_steps=3)
    for step in steps_of(num_envs):
        ours.add(*step)
        theirs.add(*step)
        for name in ATTRIBUTES:
            np.testing.assert_array_equal(np.asarray(getattr(ours, name)), getattr(theirs, name), name)
            newest = (theirs.pos - 1) % theirs.buffer_size
            np.testing.assert_array_equal(getattr(ours, name)[newest], getattr(theirs, name)[newest], name)


def test_learning_anew_with_optimize_memory_usage() -> None:
    env = vector(BOX, spaces.Discrete(2), 1)()
    model = DQN(
        "MlpPolicy", env, replay_buffer_class=DiskReplayBuffer, optimize_memory_usage=True,
        replay_buffer_kwargs={"handle_timeout_termination": False}, **CHEAP,
    )  # fmt: skip
    model.learn(32)
    ended = len([episode for episode in model.replay_buffer.store.episodes if episode.ended])
    with pytest.warns(UserWarning, match="The last trajectory in the replay buffer will be truncated"):
        model.learn(32)
    assert model.replay_buffer.size() == 64
    assert len([episode for episode in model.replay_buffer.store.episodes if episode.ended]) > ended
    dones = model.replay_buffer.dones
    for position, value in [(0, True), (63, False), (slice(None), True)]:
        with pytest.raises(InputError, match="only the newest row, 63"):
            dones[position] = value


def test_goals_that_are_pictures_are_no_stacks() -> None:
    picture = spaces.Box(0, 255, (8, 8, 3), np.uint8)
    space = spaces.Dict({"observation": BOX, "achieved_goal": picture, "desired_goal": picture})
    view = dr.Hindsight(lambda achieved, desired, info: (achieved == desired).all(axis=(1, 2, 3)).astype("f4"))
    for moved_along in (0, 1, 2):
        buffer = DiskReplayBuffer(9, space, spaces.Discrete(2), "cpu", view=view, seed=0)
        seen = np.random.default_rng(0).integers(0, 255, (8, 8, 3), np.uint8)
        moved = np.roll(seen, -1, axis=moved_along)
        obs, following = (
            {"observation": np.zeros((1, 3), "f4"), "achieved_goal": one[None], "desired_goal": one[None]}
            for one in (seen, moved)
        )
        buffer.add(obs, following, [[1]], [0.0], [False], [{}])
        assert [stack.frames for stack in buffer.store.schema.stacks] == [1, 1, 1]
        assert buffer.sample(4).observations["achieved_goal"].shape == (4, 8, 8, 3)


def test_a_picture_that_scrolls_is_one_frame() -> None:
    for shape, axis in [((8, 8, 3), 0), ((8, 8, 3), 1), ((3, 8, 8), 1), ((3, 8, 8), 2), ((6, 9, 3), 0), ((3, 6, 9), 2)]:
        buffer = DiskReplayBuffer(9, spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(2), "cpu")
        seen = np.random.default_rng(0).integers(0, 255, shape, np.uint8)
        buffer.add(seen[None], np.roll(seen, -1, axis)[None], [[1]], [0.0], [False], [{}])
        assert buffer.store.schema.stacks[0].frames == 1, (shape, axis)


def test_extend_adds_all_or_nothing() -> None:
    arguments = 20, BOX, spaces.Discrete(3), "cpu", 2
    one, several = DiskReplayBuffer(*arguments), DiskReplayBuffer(*arguments)
    steps = steps_of(2, count=7)
    for step in steps:
        one.add(*step)
    columns = [list(column) for column in zip(*steps, strict=True)]
    for place, bad in [(0, "x"), (2, [[7], [0]]), (3, [np.nan, 0]), (4, [2, 0]), (5, [{}])]:
        wrong = [list(column) for column in columns]
        wrong[place][5] = bad
        with pytest.raises(InputError):
            several.extend(*wrong)
    with pytest.raises(InputError, match="one number of steps"):
        several.extend(*columns[:5], columns[5][:-1])
    assert several.size() == 0
    several.extend(*columns)
    for name in ATTRIBUTES:
        np.testing.assert_array_equal(np.asarray(getattr(one, name)), np.asarray(getattr(several, name)), name)


def test_a_first_step_that_is_refused_leaves_no_store(tmp_path: pathlib.Path) -> None:
    buffer = DiskReplayBuffer(9, images(4), spaces.Discrete(2), "cpu", path=tmp_path / "s")
    blank = np.zeros((1, 36, 36, 4), np.uint8)
    for reward, action in [(np.nan, 0), (0.0, 2)]:
        with pytest.raises(InputError):
            buffer.add(blank, blank, [[action]], [reward], [False], [{}])
    assert buffer.store is None
    assert not (tmp_path / "s").exists()
