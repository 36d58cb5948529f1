"""Programs as a careless user writes them: they do what was meant, or say in a line what to write instead."""

from __future__ import annotations

import pathlib
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from helpers.vectors import lockstep

import diskreplay as dr
from diskreplay.buffers.autoreset import AutoresetMode
from diskreplay.errors import InputError, MisuseWarning
from diskreplay.ops.convert import export
from diskreplay.ops.verify import verify

pytestmark = pytest.mark.filterwarnings("error::diskreplay.errors.MisuseWarning")
LINE = Box(-np.inf, np.inf, (1,), np.float64)
EPISODE, EPISODES = 50, 6


def create(path: pathlib.Path, **options: Any) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.create(path / "a.replay", LINE, Discrete(2), capacity=10_000, **options)


def normalised(buffer: dr.ReplayBuffer) -> tuple[np.ndarray, np.ndarray]:
    """Steps whose observations are shifted by a running mean: what was next is not what comes next."""
    mean, given, following = 0.0, [], []
    for _ in range(EPISODES):
        for at in range(EPISODE):
            mean += 0.01
            given.append([at - mean])
            following.append([at + 1 - mean])
            buffer.add(given[-1], 0, 1.0, following[-1], at == EPISODE - 1, False)
    return np.array(given), np.array(following)


def test_observations_that_differ_are_cuts_and_it_is_said_once(tmp_path: pathlib.Path) -> None:
    with create(tmp_path) as buffer:
        with pytest.warns(MisuseWarning, match="continuity='flags'") as said:
            normalised(buffer)
        assert (len(said), said[0].filename) == (1, __file__)
        assert buffer.stats()["streams"]["0"]["ends"] == {
            "terminated": EPISODES, "truncated": 0, "cut off": EPISODES * (EPISODE - 1)
        }  # fmt: skip


def test_cuts_in_many_steps_at_once_are_told_once(tmp_path: pathlib.Path) -> None:
    obs, flags = np.arange(150.0)[:, None], np.zeros(150, bool)
    steps = obs, flags.astype(int), flags.astype(float), obs + 1.01, flags, flags
    with create(tmp_path) as buffer:
        with pytest.warns(MisuseWarning, match="steps do not continue the one before them") as said:
            buffer.extend(*steps)
        buffer.extend(*steps)
    assert (len(said), said[0].filename) == (1, __file__)


def test_nothing_is_said_of_what_another_program_recorded(tmp_path: pathlib.Path) -> None:
    """Cuts, as a copy has them where an episode ends in no flag."""
    with create(tmp_path) as buffer, warnings.catch_warnings():
        warnings.simplefilter("ignore", MisuseWarning)
        for at in range(300):
            if at % 3 == 0:
                buffer.cut()
            buffer.add([at], 0, 0.0, [at + (at % 2) + 1], False, False)
    export(str(tmp_path / "a.replay"), str(tmp_path / "b.replay"), "store")


@pytest.mark.parametrize("commit_rows", [7, 1000])
def test_flags_alone_end_an_episode(tmp_path: pathlib.Path, commit_rows: int) -> None:
    with create(tmp_path, continuity="flags", commit_rows=commit_rows) as buffer:
        obs, next_obs = normalised(buffer)
        assert buffer.stats()["streams"]["0"]["ends"] == {"terminated": EPISODES, "truncated": 0, "cut off": 0}
    assert verify(str(tmp_path / "a.replay")).ok
    path = tmp_path / "a.replay"
    with dr.ReplayBuffer.open(path, mode="r", seed=0) as buffer:
        batch = buffer.get(np.arange(len(obs)))
        np.testing.assert_array_equal(batch.obs, obs)
        np.testing.assert_array_equal(batch.next_obs, next_obs)
        assert [episode.length for episode in buffer.episodes] == [EPISODE] * EPISODES
    with dr.ReplayBuffer.open(path, mode="r", view=dr.Transition(n_step=3, gamma=1.0)) as buffer:
        batch = buffer.get(np.arange(EPISODE))
        np.testing.assert_array_equal(batch.reward, np.minimum(3, EPISODE - np.arange(EPISODE)))
        np.testing.assert_array_equal(batch.next_obs[: EPISODE - 2], next_obs[2:EPISODE])
    with dr.ReplayBuffer.open(path, mode="r", view=dr.Sequence(20), seed=0) as buffer:
        assert buffer.get([0]).mask.all()
        np.testing.assert_array_equal(buffer.get([0]).obs[0], obs[:20])
        np.testing.assert_array_equal(buffer.get([0]).next_obs[0], next_obs[:20])


def test_frames_encoded_anew_keep_their_stacks(tmp_path: pathlib.Path) -> None:
    """Large single frames, stacked when they are sampled; the last bit of each flickers."""
    space = Box(0, 255, (40, 40), np.uint8)
    path, rng = tmp_path / "a.replay", np.random.default_rng(0)
    shown = rng.integers(0, 255, (60, 40, 40), np.uint8)
    with dr.ReplayBuffer.create(
        path, space, Discrete(2), capacity=100, frame_stack=4, stack_axis=None, continuity="flags", chunk_rows=8
    ) as buffer:
        for at in range(59):
            buffer.add(shown[at], 0, 0.0, shown[at + 1] ^ 1, False, at % 20 == 19)
    assert verify(str(path)).ok
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        batch = buffer.get(np.arange(59))
        for at in range(59):
            first = at // 20 * 20
            stack = [shown[row] if row >= first else np.zeros_like(shown[0]) for row in range(at - 3, at + 1)]
            np.testing.assert_array_equal(batch.obs[at], stack)
            np.testing.assert_array_equal(batch.next_obs[at], [*stack[1:], shown[at + 1] ^ 1])


def test_stacked_input_goes_on_where_its_older_frames_do(tmp_path: pathlib.Path) -> None:
    space = Box(-9, 9, (3, 2), np.float32)
    path = tmp_path / "a.replay"
    frames = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    with dr.ReplayBuffer.create(
        path, space, Discrete(2), capacity=100, frame_stack=3, continuity="flags"
    ) as buffer:  # fmt: skip
        for at in range(3, 28):
            stack, following = frames[at - 2 : at + 1], frames[at - 1 : at + 2].copy()
            following[-1] += 1
            buffer.add(stack, 0, 0.0, following, False, False)
        assert len(buffer.episodes) == 1
        buffer.add(frames[:3], 0, 0.0, frames[1:4], False, False)  # another history: nothing can go on with that
        assert len(buffer.episodes) == 2
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        batch = buffer.get(np.arange(26))
        for at in range(25):
            np.testing.assert_array_equal(batch.obs[at], frames[at + 1 : at + 4])
            np.testing.assert_array_equal(batch.next_obs[at, :-1], frames[at + 2 : at + 4])
            np.testing.assert_array_equal(batch.next_obs[at, -1], frames[at + 4] + 1)
        np.testing.assert_array_equal(batch.obs[25], frames[:3])


@pytest.mark.parametrize("continuity", ["observations", "flags"])
def test_cut_begins_an_episode(tmp_path: pathlib.Path, continuity: Any) -> None:
    with create(tmp_path, num_envs=2, continuity=continuity, view=dr.Transition(n_step=5, gamma=1.0)) as buffer:
        for at in range(12):
            now, done = np.full((2, 1), at, float), np.zeros(2, bool)
            if at == 4:
                buffer.cut([True, False])
            if at == 8:
                buffer.cut(np.array([True, False]))
                buffer.cut(np.array([False, True]))
            buffer.add(now, [0, 0], [1.0, 1.0], now + 1, done, done)
        assert [(e.env, e.start, e.stop) for e in buffer.episodes] == [
            (0, 0, 4), (1, 0, 8), (0, 4, 8), (0, 8, 12), (1, 8, 12)
        ]  # fmt: skip
        assert buffer.stats()["streams"]["0"]["ends"] == {"terminated": 0, "truncated": 0, "cut off": 3}
        batch = buffer.get([6, 7])  # row 3 of both
        np.testing.assert_array_equal(batch.reward, [1, 5])
        np.testing.assert_array_equal(batch.next_obs, [[4], [8]])
        with pytest.raises(InputError, match=r"envs must be bool of shape \(2,\)"):
            buffer.cut([True])


def test_after_opening_flags_say_nothing_of_what_was_before(tmp_path: pathlib.Path) -> None:
    with create(tmp_path, continuity="flags") as buffer:
        buffer.add([0.0], 0, 0.0, [1.0], False, False)
    with dr.ReplayBuffer.open(tmp_path / "a.replay") as buffer:
        buffer.add([5.0], 0, 0.0, [6.0], False, False)
        buffer.add([6.5], 0, 0.0, [7.0], False, False)
    with dr.ReplayBuffer.open(tmp_path / "a.replay") as buffer:
        buffer.add([7.0], 0, 0.0, [8.0], False, False)
        assert [(e.start, e.stop) for e in buffer.episodes] == [(0, 1), (1, 4)]


def test_a_wrong_continuity_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="'observations' or 'flags', got 'flag'"):
        create(tmp_path, continuity="flag")
    assert not (tmp_path / "a.replay").exists()


def vectors(mode: str, env: str) -> Any:
    return lockstep([lambda: gymnasium.make(env)] * 3, AutoresetMode[mode])


def collect(path: pathlib.Path, mode: str, kind: str, env: str = "CartPole-v1") -> None:
    envs = vectors(mode, env)
    envs.action_space.seed(0)
    with dr.ReplayBuffer.create(
        path / "a.replay", envs.single_observation_space, envs.single_action_space, capacity=3000, num_envs=3
    ) as buffer:
        obs, _ = envs.reset(seed=0)
        done = np.zeros(3, bool)
        for _ in range(150):
            action = envs.action_space.sample()
            next_obs, reward, terminated, truncated, info = envs.step(action)
            following = dr.final_observations(next_obs, info) if kind == "final" else next_obs
            buffer.add(obs, action, reward, following, terminated, truncated, ~done if kind == "valid" else None)
            obs, done = next_obs, terminated | truncated
    envs.close()


@pytest.mark.parametrize(("mode", "line"), [("NEXT_STEP", "valid=~previous_done"), ("SAME_STEP", "final_observations")])
def test_each_autoreset_mistake_is_told_once(tmp_path: pathlib.Path, mode: str, line: str) -> None:
    with pytest.warns(MisuseWarning, match=line) as said:
        collect(tmp_path, mode, "careless")
    assert len(said) == 1


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_autoreset_mistakes_are_told_without_rewards(tmp_path: pathlib.Path, mode: str) -> None:
    """FrozenLake: a step into the wall stays, and a reset has no less reward than other steps: both lines are told."""
    with pytest.warns(MisuseWarning, match="(?s)valid=~previous_done.*with same-step .*final_observations") as said:
        collect(tmp_path, mode, "careless", "FrozenLake-v1")
    assert len(said) == 1


def test_a_reset_whose_observation_is_not_taken_is_told(tmp_path: pathlib.Path) -> None:
    """``env.reset()`` without ``obs, info =``: the classic mistake with a single environment."""
    with create(tmp_path) as buffer, pytest.warns(MisuseWarning, match=r"write obs, info = env\.reset\(\)") as said:
        careless_resets(buffer)
    assert len(said) == 1


def careless_resets(buffer: dr.ReplayBuffer) -> None:
    obs = 0.0
    for at in range(60):
        state = at % 10
        buffer.add([obs], 0, 1.0, [state + 1.0], state == 9, False)
        obs = state + 1.0


@pytest.mark.parametrize("env", ["CartPole-v1", "FrozenLake-v1"])
@pytest.mark.parametrize(("mode", "kind"), [("NEXT_STEP", "valid"), ("SAME_STEP", "final")])
def test_nothing_is_said_where_it_is_right(tmp_path: pathlib.Path, mode: str, kind: str, env: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        collect(tmp_path, mode, kind, env)


def test_an_environment_that_never_moves_is_no_mistake(tmp_path: pathlib.Path) -> None:
    """A bandit: every observation is the same."""
    with create(tmp_path) as buffer:
        for _ in range(200):
            buffer.add([0.0], 0, 0.0, [0.0], True, False)


def test_a_few_short_episodes_are_no_mistake(tmp_path: pathlib.Path) -> None:
    with create(tmp_path) as buffer:
        for at in range(400):
            first = at // 40 * 1000
            buffer.add([first + at], 0, 0.0, [first + at + 1.0], False, False)
