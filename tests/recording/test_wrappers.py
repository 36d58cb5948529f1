"""Environments whose steps are recorded as they pass."""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import vector
from helpers.testing import Interrupts
from helpers.vectors import lockstep

import diskreplay as dr
from diskreplay.buffers.autoreset import AutoresetMode
from diskreplay.errors import ClosedError, InputError, LockedError
from diskreplay.ops.verify import verify

MODES = list(AutoresetMode)
STEPS = 150
MODULES = [f"diskreplay.recording.{name}" for name in ("single", "vector", "opening", "copies", "columns")]


class Walk(gymnasium.Env[Any, Any]):
    """Shows which episode and step it is, in an array that it uses again."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, first: int = 3, nested: bool = False) -> None:
        box = Box(-np.inf, np.inf, (2,), np.float32)
        self.nested = nested
        self.observation_space = Dict({"here": box}) if nested else box
        self.action_space = Box(-1, 1, (1,), np.float32)
        self.obs = np.zeros(2, np.float32)
        self.first, self.episode, self.at = first, 0, 0

    def shown(self) -> Any:
        self.obs[:] = self.episode, self.at
        return {"here": self.obs} if self.nested else self.obs

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.at = self.episode + 1, 0
        self.obs = np.zeros(2, np.float32)  # Gymnasium's SAME_STEP keeps the old one, without a copy
        return self.shown(), {"at": 0, "twice": np.zeros(2)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        action *= 0  # as environments do that clip in place
        last = self.at == self.first + self.episode % 4
        info = {"at": self.at, "twice": np.full(2, self.at / 2)}
        return self.shown(), self.at / 8 + self.episode, last and self.episode % 2 == 0, last, info


def walks(mode: AutoresetMode, num_envs: int = 3, **options: Any) -> SyncVectorEnv:
    one = [lambda first=first: Walk(2 + first, **options) for first in range(num_envs)]
    return lockstep(one, mode)


def drive(envs: Any, mode: AutoresetMode, steps: int = STEPS, seed: int = 0) -> dict[int, list[tuple[float, int]]]:
    """Returns and lengths of the episodes of each environment, as RecordEpisodeStatistics has them."""
    envs = vector.RecordEpisodeStatistics(envs)
    found: dict[int, list[tuple[float, int]]] = {env: [] for env in range(envs.num_envs)}
    envs.reset(seed=seed)
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        actions = rng.uniform(-1, 1, (envs.num_envs, 1)).astype(np.float32)
        _, _, terminated, truncated, info = envs.step(actions)
        done = terminated | truncated
        for env in np.flatnonzero(done):
            found[int(env)].append((float(info["episode"]["r"][env]), int(info["episode"]["l"][env])))
        if mode is AutoresetMode.DISABLED and done.any():
            envs.reset(options={"reset_mask": done})
    return found


def play_on(envs: Any, steps: int) -> None:
    for _ in range(steps):
        envs.step(np.ones((envs.num_envs, 1), np.float32))


def recorded(buffer: dr.ReplayBuffer) -> dict[int, list[tuple[float, int]]]:
    found: dict[int, list[tuple[float, int]]] = {env: [] for env in range(buffer.num_envs)}
    for episode in buffer.episodes:
        if episode.terminated or episode.truncated:
            found[episode.env].append((episode.total_reward, episode.length))
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.filterwarnings("error::diskreplay.errors.MisuseWarning")
def test_returns_are_those_of_record_episode_statistics(
    path: str, mode: AutoresetMode, nested: bool, num_envs: int
) -> None:
    envs = dr.VectorRecord(walks(mode, num_envs, nested=nested), path, columns={"at": int, "twice": ((2,), float)})
    found = drive(envs, mode)
    assert all(len(episodes) > 15 for episodes in found.values())
    assert recorded(envs.buffer) == found
    envs.close()
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        assert (buffer.provenance["num_envs"], recorded(buffer)) == (num_envs, found)
        steps = sum(length for episodes in found.values() for _, length in episodes)
        batches = list(buffer.shuffled(64))
        assert steps <= sum(len(batch) for batch in batches) <= steps + num_envs * 20
        for batch in batches:
            obs, following = (part["here"] if nested else part for part in (batch.obs, batch.next_obs))
            np.testing.assert_array_equal(following, obs + np.array([0, 1], np.float32))
            np.testing.assert_array_equal(batch.extra["at"], following[:, 1])
            np.testing.assert_array_equal(batch.extra["twice"], following[:, [1, 1]] / 2)
            np.testing.assert_array_equal(batch.reward, following[:, 1] / 8 + following[:, 0])
            assert (batch.action != 0).all(), "as it was given"
            assert not (batch.terminated & (obs[:, 0] % 2 == 1)).any()


@pytest.mark.parametrize("mode", MODES)
def test_real_environments(path: str, mode: AutoresetMode) -> None:
    inner = lockstep([lambda: gymnasium.make("Pendulum-v1", max_episode_steps=20)] * 2, mode)
    envs = dr.VectorRecord(inner, path, reward_dtype=np.float64)
    found = drive(envs, mode, 90)
    for env, episodes in recorded(envs.buffer).items():
        np.testing.assert_allclose(episodes, found[env], rtol=1e-13)
    envs.close()


def play(env: Any, episodes: int, seed: int = 0) -> list[tuple[float, int]]:
    env = gymnasium.wrappers.RecordEpisodeStatistics(env)
    rng, found = np.random.default_rng(seed), []
    for episode in range(episodes):
        env.reset(seed=seed + episode if episode % 2 else None)
        ended = False
        while not ended:
            _, _, terminated, truncated, info = env.step(rng.uniform(-1, 1, 1).astype(np.float32))
            ended = terminated or truncated
        found.append((float(info["episode"]["r"]), int(info["episode"]["l"])))
    return found


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.filterwarnings("error::diskreplay.errors.MisuseWarning")
def test_one_environment_goes_on_when_it_is_opened_again(path: str, nested: bool) -> None:
    found = []
    for run in range(3):
        with dr.Record(Walk(nested=nested), path, columns={"at": np.int32}, seeds=True) as env:
            found += play(env, 10, seed=10 * run)
            assert recorded(env.buffer) == {0: found}
        env.close()
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        assert recorded(buffer) == {0: found}
        batch = buffer.get(np.arange(len(buffer)))
        obs, following = (part["here"] if nested else part for part in (batch.obs, batch.next_obs))
        np.testing.assert_array_equal(following, obs + np.array([0, 1], np.float32))
        assert (batch.action != 0).all()
        np.testing.assert_array_equal(batch.extra["at"], following[:, 1])
        starts = [episode.start for episode in buffer.episodes]
        assert batch.extra["seed"][starts].tolist() == [e if e % 2 else -1 for e in range(30)]


@pytest.mark.parametrize("mode", MODES)
def test_seeds_are_those_of_the_resets(path: str, mode: AutoresetMode) -> None:
    envs = dr.VectorRecord(walks(mode, 2), path, seeds=True, columns={"at": int})
    drive(envs, mode, 20, seed=5)
    envs.reset(seed=[7, None])
    envs.step(np.ones((2, 1), np.float32))
    envs.reset(seed=[8, 9], options={"reset_mask": np.array([False, True])})
    envs.step(np.ones((2, 1), np.float32))
    episodes = envs.buffer.episodes
    seeds = envs.buffer.get(np.array([e.start * 2 + e.env for e in episodes])).extra["seed"]
    ends = envs.buffer.stats()["streams"]["0"]["ends"]
    envs.close()
    of = [[int(seed) for e, seed in zip(episodes, seeds, strict=True) if e.env == env] for env in (0, 1)]
    assert (of[0][0], of[1][0]) == (5, 6)
    assert set(of[0][1:-1]) == set(of[1][1:-2]) == {-1}
    assert (of[0][-1], of[1][-2:]) == (7, [-1, 9])
    assert ends["cut off"] in (1, 2, 3), "left in the middle"


class Still(Walk):
    """Looks the same at every step."""

    def shown(self) -> Any:
        return np.zeros(2, np.float32)


def test_a_reset_in_the_middle_is_the_end_of_an_episode(path: str) -> None:
    for _ in range(2):
        with dr.Record(Still(50), path) as env:
            for steps in (3, 4):
                env.reset()
                for _ in range(steps):
                    env.step(np.ones(1, np.float32))
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        assert [episode.length for episode in buffer.episodes] == [3, 4, 3, 4]


def test_check_env(path: str) -> None:
    with dr.Record(gymnasium.make("CartPole-v1", render_mode=None), path) as env:
        said = []
        for one in (env, env.unwrapped):
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                check_env(one, skip_render_check=True)  # which needs pygame; spec is what it would make environments of
            said.append({str(warning.message) for warning in heard})
        (more,) = said[0] - said[1]
        assert "different from the unwrapped" in more
        assert len(env.buffer) > 0
        assert env.spec is not None
        assert not [one for one in env.spec.additional_wrappers if one.name == "Record"]
        gymnasium.make(env.spec).close()


def test_sampling_while_it_records(path: str) -> None:
    with dr.Record(gymnasium.make("CartPole-v1"), path, capacity=40, view=dr.Transition(n_step=3), seed=0) as env:
        env.reset(seed=0)
        for _ in range(60):
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                env.reset()
        assert len(env.buffer) == 40
        assert env.buffer.sample(8).obs.shape == (8, 4)


def test_each_environment_of_a_vector_writes_a_stream(path: str) -> None:
    dr.Record(Walk(), path).close()
    envs = SyncVectorEnv([lambda at=at: dr.Record(Walk(), path, stream=f"actor-{at}") for at in range(2)])
    envs.reset(seed=0)
    for _ in range(30):
        envs.step(np.ones((2, 1), np.float32))
    envs.close()
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        assert {e.stream for e in buffer.episodes} == {1, 2}
        assert buffer.stats()["streams"]["actor-1"]["ends"]["cut off"] == 0


# Misuse


def test_what_is_no_environment_makes_no_store(path: str) -> None:
    with pytest.raises(InputError, match=r"must be a gymnasium\.Env, got SyncVectorEnv; VectorRecord records"):
        dr.Record(walks(AutoresetMode.NEXT_STEP), path)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"must be a gymnasium\.vector\.VectorEnv, got Walk; Record records"):
        dr.VectorRecord(Walk(), path)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"seed.* is that column"):
        dr.Record(Walk(), path, seeds=True, columns={"seed": int})
    with pytest.raises(InputError, match="seeds must be True or False, got 3"):
        dr.Record(Walk(), path, seeds=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did you mean 'frame_stack'"):
        dr.Record(Walk(), path, frame_stacks=4)  # type: ignore[call-arg]
    envs = walks(AutoresetMode.NEXT_STEP)
    envs.metadata["autoreset_mode"] = "SameStep"
    with pytest.raises(InputError, match=r"must be a gymnasium\.vector\.AutoresetMode, got 'SameStep'"):
        dr.VectorRecord(envs, path)
    assert not pathlib.Path(path).exists()


def test_a_buffer_that_is_open(path: str) -> None:
    with dr.ReplayBuffer.create(path, Walk().observation_space, Walk().action_space, capacity=100) as buffer:
        with pytest.raises(InputError, match=r"has spaces and environments .* but what is recorded"):
            dr.Record(gymnasium.make("CartPole-v1"), buffer)
        with pytest.raises(InputError, match="has no column 'seed'"):
            dr.Record(Walk(), buffer, seeds=True)
        with dr.Record(Walk(), buffer) as env:
            assert env.buffer is buffer
            found = play(env, 5)
            assert recorded(buffer) == {0: found}
    with dr.ReplayBuffer.open(path, mode="r") as buffer, pytest.raises(InputError, match="open for writing"):
        dr.Record(Walk(), buffer)


def test_another_store_or_writer(path: str) -> None:
    env = dr.Record(Walk(), path)
    with pytest.raises(LockedError):
        dr.Record(Walk(), path)
    env.close()
    with pytest.raises(InputError, match="observation_space"):
        dr.Record(gymnasium.make("CartPole-v1"), path)
    with pytest.raises(InputError, match="columns"):
        dr.Record(Walk(), path, seeds=True)


def test_steps_need_a_reset(path: str) -> None:
    inner = Walk()
    with dr.Record(inner, path) as env:
        action = np.ones(1, np.float32)
        with pytest.raises(ResetNeeded, match="no episode has begun"):
            env.step(action)
        play(env, 1)
        at = inner.at
        with pytest.raises(ResetNeeded, match="it has ended"):
            env.step(action)
    for call in (env.reset, lambda: env.step(action)):
        with pytest.raises(ClosedError):
            call()
    assert (inner.at, inner.episode) == (at, 1), "untouched"


@pytest.mark.parametrize("several", [False, True])
def test_a_step_that_cannot_be_recorded(path: str, several: bool) -> None:
    """It is not there, nothing follows it, and the episodes before and after are whole."""
    inner = [Walk(20), Walk(20)]
    envs: Any = dr.Record(inner[0], path)
    if several:
        envs.close()
        path += "s"
        vectors = SyncVectorEnv([lambda: inner[0], lambda: inner[1]])
        envs = dr.VectorRecord(vectors, path)
    action = np.ones((2, 1) if several else 1, np.float32)
    for what, error in ((np.nan, InputError), (KeyboardInterrupt(), KeyboardInterrupt)):
        envs.reset()
        for _ in range(3):
            envs.step(action.copy())
        with pytest.MonkeyPatch.context() as patch:
            step = inner[0].step

            def bad(action: Any, what: Any = what, step: Any = step) -> Any:
                found = step(action)
                if isinstance(what, BaseException):
                    raise what
                return (found[0], what, *found[2:])

            patch.setattr(inner[0], "step", bad)
            with pytest.raises(error):
                envs.step(action.copy())
        with pytest.raises(ResetNeeded, match="cut short by an error"):
            envs.step(action.copy())
        if several:
            with pytest.raises(ResetNeeded, match="without a reset_mask"):
                envs.reset(options={"reset_mask": np.array([True, False])})
    envs.reset()
    envs.step(action.copy())
    assert sorted(e.length for e in envs.buffer.episodes) == [1, 3, 3] if not several else [1, 1, 3, 3, 3, 3]
    envs.close()


@pytest.mark.parametrize("several", [False, True])
def test_interrupted_at_any_line_what_is_recorded_is_true(path: str, several: bool) -> None:
    envs: Any = dr.VectorRecord(walks(AutoresetMode.SAME_STEP), path) if several else dr.Record(Walk(), path)
    interrupts = Interrupts(KeyboardInterrupt, within=MODULES)
    action = np.ones((3, 1) if several else 1, np.float32)
    places = 0
    for number in itertools.count():
        ends = [interrupts.interrupt(number, envs.reset)]
        envs.reset()
        envs.step(action.copy())
        ends.append(interrupts.interrupt(number, lambda: envs.step(action.copy())))
        places += sum(end is not None for end in ends)
        if ends == [None, None]:
            break
        with contextlib.suppress(ResetNeeded):
            envs.step(action.copy())
    assert places > 20
    batch = envs.buffer.get(envs.buffer.items())
    np.testing.assert_array_equal(batch.next_obs, batch.obs + np.array([0, 1], np.float32))
    assert (batch.obs[:, 1] <= 2).all()
    envs.close()
    assert verify(path).ok


def test_modes_that_are_not_what_they_say(path: str) -> None:
    actions = np.ones((3, 1), np.float32)
    envs = walks(AutoresetMode.SAME_STEP)
    del envs.metadata["autoreset_mode"]
    recording = dr.VectorRecord(envs, path)
    recording.reset()
    with pytest.raises(InputError, match=r"info has 'final_obs', .* the mode is NEXT_STEP: set metadata"):
        play_on(recording, 20)
    recording.close()
    envs = walks(AutoresetMode.NEXT_STEP)
    envs.metadata["autoreset_mode"] = AutoresetMode.SAME_STEP
    recording = dr.VectorRecord(envs, path + "s")
    with pytest.raises(InputError, match="lacks the final observations of the environments"):
        drive(recording, AutoresetMode.NEXT_STEP)
    recording.close()
    recording = dr.VectorRecord(walks(AutoresetMode.DISABLED), path + "d")
    with pytest.raises(ResetNeeded, match=r"environments \[0\] have ended and do not reset by themselves"):
        drive(recording, AutoresetMode.NEXT_STEP)
    assert len(recording.buffer) % 3 == 0
    with pytest.raises(InputError, match=r"reset_mask must be bool of shape \(3,\), got int64 of shape \(2,\)"):
        recording.reset(options={"reset_mask": np.array([1, 0])})
    mask = {"reset_mask": np.array([True, False, False])}
    recording.reset(options=mask)
    assert list(mask) == ["reset_mask"], "the caller's own mapping"
    recording.step(actions)
    with pytest.raises(InputError, match="seed must be an integer or one for each of 3"):
        dr.VectorRecord(walks(AutoresetMode.DISABLED), path + "e", seeds=True).reset(seed=[1, 2])
    recording.close()


def test_a_vector_stream_of_another_width(path: str) -> None:
    dr.VectorRecord(walks(AutoresetMode.NEXT_STEP), path).close()
    with pytest.raises(InputError, match="3"):
        dr.VectorRecord(walks(AutoresetMode.NEXT_STEP, 2), path)
    envs = dr.VectorRecord(walks(AutoresetMode.NEXT_STEP, 2), path, stream="narrow")
    drive(envs, AutoresetMode.NEXT_STEP, 9)
    envs.close()
    discrete = gymnasium.make("FrozenLake-v1")
    assert isinstance(discrete.observation_space, Discrete)
    with dr.Record(discrete, path + "f") as env:
        env.reset(seed=0)
        env.step(0)


def test_what_is_recorded_into_a_store_keeps_its_capacity(path: str) -> None:
    for asked, has in ((50, 50), (None, 50), (80, 80), (None, 80)):
        with contextlib.closing(dr.Record(Walk(), path, **({} if asked is None else {"capacity": asked}))) as env:
            play(env, 2)
            assert env.buffer.capacity == has
    with contextlib.closing(dr.Record(Walk(), f"{path}-2")) as env:
        assert env.buffer.capacity == 1_000_000


def test_a_recorded_stream_of_its_own_keeps_its_capacity(path: str) -> None:
    """The store's first stream may have any name, and a new one is as large as that."""
    for stream, asked, has in (("a", 50, 50), ("a", None, 50), ("b", None, 50), ("b", 80, 80), ("b", None, 80)):
        more = {} if asked is None else {"capacity": asked}
        with contextlib.closing(dr.Record(Walk(), path, stream=stream, **more)) as env:
            play(env, 2)
            assert env.buffer.capacity == has


class Talk(gymnasium.Env[Any, Any]):
    """Observations that get longer with each step: their length is one more than the number of the step."""

    observation_space = spaces.Dict(
        text=spaces.Text(99), seen=spaces.Sequence(spaces.Discrete(99)), at=spaces.Box(0, 99, (1,), np.float32),
        pair=spaces.Tuple([spaces.Text(99), spaces.Discrete(99)]),
        graph=spaces.Graph(spaces.Box(0, 99, (1,), np.float32), spaces.Discrete(9)),
    )  # fmt: skip
    action_space = spaces.Sequence(spaces.Discrete(9))

    def __init__(self, length: int) -> None:
        self.length = length

    def _obs(self) -> dict[str, Any]:
        count = self.count + 1
        edges = (np.zeros(self.count, np.int64), np.zeros((self.count, 2), np.int32)) if self.count else (None, None)
        return {
            "text": "a" * count, "seen": (self.length,) * count, "at": np.full(1, count, np.float32),
            "pair": ("b" * count, count), "graph": spaces.GraphInstance(np.ones((count, 1), np.float32), *edges),
        }  # fmt: skip

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._obs(), float(self.count), self.count == self.length, False, {"tokens": [7] * self.count}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_envs", [1, 3])
def test_ragged_values_of_vector_environments(path: str, mode: AutoresetMode, num_envs: int) -> None:
    inner = lockstep([lambda length=length: Talk(length) for length in range(2, 2 + num_envs)], mode)
    envs = dr.VectorRecord(inner, path, columns={"tokens": ((None,), np.int32)}, ragged="lists")
    envs.reset()
    for _ in range(24):
        _, _, terminated, truncated, _ = envs.step(tuple((at,) * (at + 1) for at in range(num_envs)))
        if mode is AutoresetMode.DISABLED and terminated.any():
            envs.reset(options={"reset_mask": terminated | truncated})
    batch = envs.buffer.get(envs.buffer.items())
    number = batch.reward.astype(int)
    for obs, count in ((batch.obs, number), (batch.next_obs, number + 1)):
        for leaf in (obs["text"], obs["seen"], obs["pair"][0], obs["graph"]["nodes"]):
            assert leaf.length.tolist() == count.tolist()
        assert obs["graph"]["edges"].length.tolist() == obs["graph"]["edge_links"].length.tolist()
        assert obs["graph"]["edges"].length.tolist() == (count - 1).tolist()
        assert obs["at"][:, 0].tolist() == obs["pair"][1].tolist() == count.tolist()
    assert [set(tokens.tolist()) for tokens in batch.extra["tokens"]] == [{7}] * len(batch)
    assert batch.extra["tokens"].length.tolist() == number.tolist()
    assert batch.action.length.tolist() == [set(row.tolist()).pop() + 1 for row in batch.action]
    assert [episode.length for episode in envs.buffer.episodes if episode.env == 0 and episode.ended] == [2] * (
        8 if mode is AutoresetMode.NEXT_STEP else 12
    )
    assert batch.terminated.tolist() == [
        set(row.tolist()) == {n} for row, n in zip(batch.obs["seen"], number, strict=True)
    ]
    envs.close()


def test_vector_environments_record_no_video(path: str) -> None:
    facts = dr.Video("h264", 64, 48)
    with pytest.raises(InputError, match="VectorRecord cannot record video"):
        dr.VectorRecord(walks(MODES[0], 1), path, video={"camera": facts})
    assert not pathlib.Path(path).exists()
