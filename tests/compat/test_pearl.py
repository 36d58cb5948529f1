"""`compat.pearl` against a list of rows that does what the document says."""

from __future__ import annotations

import pathlib
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import diskreplay as dr
from diskreplay.compat import pearl
from diskreplay.compat.pearl import BaseBuffer, HERBuffer, ReplayBuffer, RolloutBuffer, Trajectories
from diskreplay.errors import InputError, NotEnoughDataError

FIELDS = ("observations", "actions", "rewards", "next_observations", "dones")
GOAL = spaces.Box(-9, 9, (2,), np.float64)
GOALS = spaces.Dict({"observation": spaces.Box(-9, 9, (3,), np.float32), "achieved_goal": GOAL, "desired_goal": GOAL})


class Toy(gym.Env):
    """Has spaces, and a reward for goals."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        return -np.abs(achieved - desired).sum(-1)


def env_of(observation_space: spaces.Space, action_space: spaces.Space, num_envs: int | None) -> Any:
    if num_envs is None:
        return Toy(observation_space, action_space)
    return gym.vector.SyncVectorEnv([lambda: Toy(observation_space, action_space)] * num_envs)


CARTPOLE = spaces.Box(-9, 9, (4,), np.float32)
CASES = {
    "CartPole": (CARTPOLE, spaces.Discrete(2), None),
    "three CartPoles": (CARTPOLE, spaces.Discrete(2), 3),
    "a vector of one": (CARTPOLE, spaces.Discrete(2), 1),
    "continuous": (spaces.Box(0, 255, (5, 4, 1), np.uint8), spaces.Box(-1, 1, (2,), np.float32), 2),
    "discrete": (spaces.Discrete(6), spaces.MultiDiscrete([3, 4]), None),
}


class Player:
    """Makes rows, gives them to a buffer and keeps them: for each row the five fields, ``(num_envs, ...)``."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, num_envs: int | None) -> None:
        self.spaces = observation_space, action_space
        for number, space in enumerate(self.spaces):
            space.seed(number)
        self.num_envs = num_envs or 1
        self.lead = num_envs is not None
        self.rng = np.random.default_rng(0)
        self.obs = self.observe()
        self.rows: list[list[Any]] = []

    def observe(self) -> Any:
        samples = [self.spaces[0].sample() for _ in range(self.num_envs)]
        if isinstance(samples[0], dict):
            return {key: np.stack([sample[key] for sample in samples]) for key in samples[0]}
        return np.stack(samples)

    def given(self, value: Any) -> Any:
        """As an environment gives it: without the leading axis where it is no vector environment."""
        if isinstance(value, dict):
            return {key: self.given(part) for key, part in value.items()}
        return value if self.lead else value[0]

    def play(self, buffer: BaseBuffer, rows: int) -> None:
        for _ in range(rows):
            action = np.stack([self.spaces[1].sample() for _ in range(self.num_envs)])
            reward = self.rng.normal(size=self.num_envs)
            done = self.rng.random(self.num_envs) < 0.2
            row = [self.obs, action, reward, self.observe(), done]
            buffer.add_trajectory(*map(self.given, row))
            self.rows.append(row)
            self.obs = self.observe() if done.all() else row[3]

    def expected(self, rows: list[int], flatten: bool, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
        fields = []
        for number, shape in enumerate(shapes):
            field = np.array([self.rows[row][number] for row in rows]).reshape(len(rows), self.num_envs, *shape)
            field = field.astype(np.float32) if number in (2, 4) else field
            together = flatten or self.num_envs == 1
            fields.append(field.reshape(-1, *shape) if together else field.swapaxes(0, 1))
        return fields


def shapes_of(buffer: BaseBuffer) -> list[tuple[int, ...]]:
    return [buffer.obs_shape, buffer.action_shape, (1,), buffer.obs_shape, (1,)]


def assert_equal(found: Any, expected: list[np.ndarray]) -> None:
    assert type(found) is Trajectories
    for name, want in zip(FIELDS, expected, strict=True):
        got = getattr(found, name)
        assert got.shape == want.shape, name
        assert got.dtype == want.dtype, name
        np.testing.assert_array_equal(got, want, name)


def rows_in(player: Player, buffer: BaseBuffer, found: Any, flatten: bool) -> list[int]:
    """The rows of a batch, found by their rewards, of which no two are the same."""
    rewards = {np.float32(row[2][0]): number for number, row in enumerate(player.rows)}
    first = found.rewards[:: player.num_envs, 0] if flatten else found.rewards.reshape(player.num_envs, -1)[0]
    return [rewards[reward] for reward in first]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [ReplayBuffer, RolloutBuffer])
@pytest.mark.parametrize("flatten", [False, True])
def test_batches_are_those_of_the_oracle(case: str, kind: Any, flatten: bool) -> None:
    buffer = kind(env_of(*CASES[case]), 13, seed=3)
    player = Player(*CASES[case])
    for steps in (1, 5, 7, 3, 20):
        player.play(buffer, steps)
        held = list(range(len(player.rows)))[-13:]
        shapes = shapes_of(buffer)
        assert_equal(buffer.all(flatten), player.expected(held, flatten, shapes))
        each = player.num_envs if flatten else 1
        for count in {1, len(held) // 2 + 1, len(held)}:
            assert_equal(buffer.last(count * each, flatten), player.expected(held[-count:], flatten, shapes))
        found = buffer.sample(len(held) * each, flatten, dtype="numpy")
        drawn = rows_in(player, buffer, found, flatten)
        assert set(drawn) <= set(held)
        assert_equal(found, player.expected(drawn, flatten, shapes))
        if kind is RolloutBuffer:
            assert drawn == held
            some = rows_in(player, buffer, buffer.sample(max(1, len(held) // 2) * each, flatten), flatten)
            assert some == list(range(some[0], some[0] + len(some)))
        with pytest.raises(NotEnoughDataError):
            buffer.last(len(held) * each + 1, flatten)


@pytest.mark.parametrize("case", CASES)
def test_arrays_have_the_documents_shapes_and_the_rings_order(case: str) -> None:
    buffer, player = RolloutBuffer(env_of(*CASES[case]), 10), Player(*CASES[case])
    batch = (10,) if player.num_envs == 1 else (10, player.num_envs)
    assert buffer.batch_shape == batch
    assert buffer.observations.shape == buffer.next_observations.shape == (*batch, *buffer.obs_shape)
    assert buffer.actions.shape == (*batch, *buffer.action_shape)
    assert buffer.rewards.shape == buffer.dones.shape == (*batch, 1)
    assert (buffer.rewards.dtype, buffer.dones.dtype) == (np.float32, np.float32)
    if case == "CartPole":
        assert (buffer.obs_shape, buffer.action_shape) == ((4,), (1,))
    assert not np.asarray(buffer.observations).any()
    player.play(buffer, 13)
    assert (buffer.pos, buffer.full) == (3, True)
    names = ("observations", "actions", "rewards", "next_observations", "dones")
    order = [10, 11, 12, 3, 4, 5, 6, 7, 8, 9]
    for name, shape, want in zip(
        names, shapes_of(buffer), player.expected(order, True, shapes_of(buffer)), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(getattr(buffer, name)), want.reshape(*batch, *shape))
    buffer.reset()
    assert (buffer.pos, buffer.full) == (0, False)
    assert not np.asarray(buffer.observations).any()
    assert buffer.all().rewards.size == 0
    with pytest.raises(NotEnoughDataError):
        buffer.sample(1)
    player.rows.clear()
    player.play(buffer, 4)
    assert_equal(buffer.all(True), player.expected([0, 1, 2, 3], True, shapes_of(buffer)))


def test_every_row_of_a_full_buffer_is_sampled() -> None:
    for kind, size, counts in ((ReplayBuffer, 8, (150, 250)), (RolloutBuffer, 1, (150, 250))):
        buffer, player = kind(env_of(*CASES["CartPole"]), 8, seed=0), Player(*CASES["CartPole"])
        player.play(buffer, 11)
        drawn = [rows_in(player, buffer, buffer.sample(size), False) for _ in range(1600 // size)]
        rows, found = np.unique(drawn, return_counts=True)
        assert rows.tolist() == list(range(3, 11))
        assert counts[0] < found.min() <= found.max() < counts[1], "200 each, with a standard deviation of 13"


def test_flattened_batches_have_as_many_as_were_asked_for() -> None:
    buffer, player = ReplayBuffer(env_of(*CASES["three CartPoles"]), 10), Player(*CASES["three CartPoles"])
    player.play(buffer, 10)
    assert buffer.sample(7, flatten_env=True).observations.shape == (7, 4)
    assert buffer.sample(2, flatten_env=True).observations.shape == (2, 4)
    assert buffer.sample(40).observations.shape == (3, 40, 4), "with replacement"
    want = player.expected([7, 8, 9], True, shapes_of(buffer))
    assert_equal(buffer.last(7, flatten_env=True), [field[-7:] for field in want])


def test_several_trajectories_at_once() -> None:
    one, many = (ReplayBuffer(env_of(*CASES["CartPole"]), 10, seed=0) for _ in range(2))
    player = Player(*CASES["CartPole"])
    player.play(one, 6)
    fields = [np.array([row[number][0] for row in player.rows]) for number in range(5)]
    many.add_batch_trajectories(fields[0], fields[1].astype(np.float64), *fields[2:])
    assert_equal(many.all(), [getattr(one.all(), name) for name in FIELDS])


def test_types_and_texts() -> None:
    buffer, player = ReplayBuffer(env_of(*CASES["CartPole"]), 10), Player(*CASES["CartPole"])
    player.play(buffer, 3)
    for dtype in ("numpy", "NumPy", pearl.TrajectoryType.NUMPY):
        assert isinstance(buffer.sample(2, dtype=dtype).observations, np.ndarray)
    for wrong in ("jax", None, 3):
        with pytest.raises(InputError, match="dtype"):
            buffer.sample(2, dtype=wrong)


@pytest.mark.parametrize(
    "trajectory", [(np.zeros(3), 0, 0.0, np.zeros(4), False), (np.zeros(4), [0, 1], 0.0, np.zeros(4), False),
                   (np.zeros(4), 0, np.nan, np.zeros(4), False), (np.zeros(4), 0, 0.0, "obs", False),
                   (np.zeros(4), 0, 0.0, np.zeros(4), None)]
)  # fmt: skip
def test_bad_trajectories_change_nothing(trajectory: tuple[Any, ...]) -> None:
    buffer = ReplayBuffer(env_of(*CASES["CartPole"]), 10)
    with pytest.raises(InputError):
        buffer.add_trajectory(*trajectory)
    assert (buffer.pos, len(buffer.store)) == (0, 0)


# A buffer of one's own


class Mine(BaseBuffer):
    def reset(self) -> None:
        super().reset()

    def add_trajectory(self, observation: Any, action: Any, reward: Any, next_observation: Any, done: Any) -> None:
        self.observations[self.pos] = observation
        self.rewards[self.pos] = reward
        self.pos += 1

    def sample(self, batch_size: int, flatten_env: bool = False, dtype: Any = "numpy") -> Any:
        return self._transform(self.observations[:batch_size], dtype)

    last = all = sample


def test_a_buffer_of_ones_own_keeps_what_it_adds_in_the_arrays(tmp_path: pathlib.Path) -> None:
    with pytest.raises(TypeError, match="abstract"):
        BaseBuffer(env_of(*CASES["CartPole"]), 10)
    buffer = Mine(env=env_of(*CASES["CartPole"]), buffer_size=10, path=tmp_path / "arrays")
    shapes = [array.shape for array in (buffer.observations, buffer.actions, buffer.rewards, buffer.dones)]
    assert shapes == [(10, 4), (10, 1), (10, 1), (10, 1)], "as the document prints them"
    buffer.add_trajectory(np.arange(4), 1, 2.5, np.arange(4), False)
    assert buffer.sample(1).tolist() == [[0, 1, 2, 3]]
    again = Mine(env_of(*CASES["CartPole"]), 10, path=tmp_path / "arrays")
    assert again.rewards[0] == 2.5
    buffer.reset()
    assert (buffer.pos, buffer.observations.any()) == (0, False)


# Hindsight


def play_goals(num_envs: int | None, size: int, rows: int, **options: Any) -> tuple[HERBuffer, Player]:
    space = spaces.Box(-1, 1, (2,), np.float32)
    buffer = HERBuffer(env_of(GOALS, space, num_envs), size, seed=2, **options)
    player = Player(GOALS, space, num_envs)
    player.play(buffer, rows)
    return buffer, player


def reachable(player: Player, held: list[int], row: int, env: int, strategy: str) -> list[int]:
    """The rows of one environment after which a goal may have been achieved, by looking at each."""

    def begins(number: int) -> bool:
        before, here = player.rows[number - 1], player.rows[number]
        return bool(before[4][env]) or any((before[3][k][env] != here[0][k][env]).any() for k in before[3])

    first = last = row
    while first > held[0] and not begins(first):
        first -= 1
    while last < held[-1] and not begins(last + 1):
        last += 1
    return {"future": list(range(row, last + 1)), "final": [last], "episode": list(range(first, last + 1))}[strategy]


@pytest.mark.long(quick=9)
@pytest.mark.parametrize("num_envs", [None, 3])
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("method", ["sample", "last"])
def test_hindsight_goals_were_reached_and_have_their_rewards(num_envs: int | None, strategy: str, method: str) -> None:
    buffer, player = play_goals(num_envs, 25, 60, goal_selection_strategy=strategy, n_sampled_goal=3)
    held = list(range(35, 60))
    env = Toy(GOALS, spaces.Discrete(2))
    seen, relabelled = 0, 0
    for _ in range(20):
        found = getattr(buffer, method)(20)
        assert type(found) is pearl.DictTrajectories
        lead = (20,) if num_envs is None else (num_envs, 20)
        assert found.observations.keys() == found.next_observations.keys() == {"observation", "desired_goal"}
        assert found.observations["observation"].shape == (*lead, 3)
        assert found.observations["desired_goal"].shape == (*lead, 2)
        assert found.rewards.shape == found.dones.shape == (*lead, 1)
        np.testing.assert_array_equal(found.observations["desired_goal"], found.next_observations["desired_goal"])
        flat = {
            name: np.asarray(value).reshape(player.num_envs, 20, -1)
            for name, value in (
                ("obs", found.observations["observation"]), ("goal", found.observations["desired_goal"]),
                ("reward", found.rewards), ("done", found.dones), ("next", found.next_observations["observation"]),
            )
        }  # fmt: skip
        for e in range(player.num_envs):
            for b in range(20):
                row = next(r for r in held if (player.rows[r][0]["observation"][e] == flat["obs"][e, b]).all())
                if method == "last":
                    assert row == 40 + b
                obs, _, reward, following, done = player.rows[row]
                np.testing.assert_array_equal(flat["next"][e, b], following["observation"][e])
                assert flat["done"][e, b] == done[e]
                goal = flat["goal"][e, b]
                seen += 1
                if (goal == obs["desired_goal"][e]).all():
                    assert flat["reward"][e, b] == np.float32(reward[e])
                    continue
                relabelled += 1
                goals = [player.rows[r][3]["achieved_goal"][e] for r in reachable(player, held, row, e, strategy)]
                assert any((goal == reached).all() for reached in goals)
                expected = env.compute_reward(following["achieved_goal"][e], goal, {})
                assert flat["reward"][e, b] == pytest.approx(expected, rel=1e-5)
    assert buffer.her_ratio == 0.75
    assert abs(relabelled / seen - 0.75) < 5 * (0.75 * 0.25 / seen) ** 0.5


def test_hindsight_all_flattened_and_arrays() -> None:
    buffer, player = play_goals(2, 10, 14)
    found = buffer.all(flatten_env=True)
    want = np.array([row[0]["desired_goal"] for row in player.rows[4:]]).reshape(20, 2)
    np.testing.assert_array_equal(found.observations["desired_goal"], want)
    np.testing.assert_array_equal(found.rewards[:, 0], np.array([r[2] for r in player.rows[4:]], np.float32).ravel())
    assert buffer.sample(9, flatten_env=True).rewards.shape == (9, 1)
    assert buffer.last(9, flatten_env=True).rewards.shape == (9, 1)
    assert buffer.observations.shape == (10, 2, 3)
    assert buffer.desired_goals.shape == buffer.next_achieved_goals.shape == (10, 2, 2)
    np.testing.assert_array_equal(buffer.desired_goals[4:], [row[0]["desired_goal"] for row in player.rows[4:10]])
    reached = [row[3]["achieved_goal"] for row in player.rows[10:]]
    np.testing.assert_array_equal(buffer.next_achieved_goals[:4], reached)


def test_hindsight_arguments() -> None:
    env = env_of(GOALS, spaces.Discrete(2), None)
    buffer = HERBuffer(env, 10, pearl.GoalSelectionStrategy.FINAL, 4)
    assert buffer.her_ratio == pytest.approx(0.8)
    assert buffer.goal_selection_strategy is pearl.GoalSelectionStrategy.FINAL
    assert HERBuffer(env, 10, "Episode", n_sampled_goal=0).her_ratio == 0.0
    with pytest.raises(InputError, match="goal_selection_strategy"):
        HERBuffer(env, 10, "past")
    with pytest.raises(InputError, match="goal"):
        HERBuffer(env_of(*CASES["CartPole"]), 10)
    with pytest.raises(InputError, match="compute_reward"):
        HERBuffer(gym.make("CartPole-v1"), 10)
    with pytest.raises(NotEnoughDataError):
        buffer.sample(1)

    def ones(achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        return np.ones(len(achieved))

    buffer, _ = play_goals(None, 10, 10, n_sampled_goal=1000, compute_reward=ones)
    assert (buffer.sample(10).rewards == 1).mean() > 0.5


# Paths


@pytest.mark.parametrize("case", ["CartPole", "three CartPoles"])
def test_a_path_is_taken_up_again(case: str, tmp_path: pathlib.Path) -> None:
    player = Player(*CASES[case])
    for rows in (4, 5, 6):
        buffer = ReplayBuffer(env_of(*CASES[case]), 10, path=tmp_path / "store")
        player.play(buffer, rows)
        held = list(range(len(player.rows)))[-10:]
        assert_equal(buffer.all(True), player.expected(held, True, shapes_of(buffer)))
        buffer.close()
    with dr.ReplayBuffer.open(tmp_path / "store", mode="r") as store:
        assert len(store) == 10 * player.num_envs
    with pytest.raises(InputError, match="this buffer for"):
        ReplayBuffer(env_of(*CASES["discrete"]), 10, path=tmp_path / "store")


@pytest.mark.parametrize("case", ["CartPole", "three CartPoles"])
def test_a_store_grows_and_does_not_shrink(case: str, tmp_path: pathlib.Path) -> None:
    player, env = Player(*CASES[case]), env_of(*CASES[case])
    for size, kept in ((6, 6), (11, 10), (20, 14)):
        buffer = ReplayBuffer(env, size, path=tmp_path / "store")
        player.play(buffer, 4 if size > 6 else 8)
        held = list(range(len(player.rows)))[-kept:]
        assert_equal(buffer.all(True), player.expected(held, True, shapes_of(buffer)))
        buffer.close()
    with pytest.raises(InputError, match=r"has the capacity \d+, and \d+ would keep fewer rows.* resize"):
        ReplayBuffer(env, 19, path=tmp_path / "store")


def test_a_store_of_goals_is_taken_up_again(tmp_path: pathlib.Path) -> None:
    buffer, _ = play_goals(None, 10, 8, path=tmp_path / "store")
    before = buffer.all()
    buffer.close()
    again = HERBuffer(env_of(GOALS, spaces.Box(-1, 1, (2,), np.float32), None), 10, path=tmp_path / "store")
    np.testing.assert_array_equal(again.all().rewards, before.rewards)
    assert again.sample(8).rewards.shape == (8, 1)
    again.close()


def test_numbers_that_do_not_fit() -> None:
    """They became infinite."""
    buffer = ReplayBuffer(env_of(CARTPOLE, spaces.Box(-1, 1, (2,), np.float16), None), 4)
    good = [np.zeros(4), np.zeros(2), 0.0, np.zeros(4), False]
    for place, value, message in ((0, 1e300, "observation: 1e"), (1, 7e4, "action: 70000.0"), (3, 1e39, "next_obser")):
        step = list(good)
        step[place] = good[place] + value
        with pytest.raises(InputError, match=f"^{message}.* is too large for float"):
            buffer.add_trajectory(*step)
    buffer.add_trajectory(*good)
    assert buffer.pos == 1


def test_positions_are_as_before_where_a_ring_is_opened_again(tmp_path: pathlib.Path) -> None:
    env = env_of(*CASES["CartPole"])
    for steps in (3, 5, 12):
        path = tmp_path / str(steps)
        buffer = ReplayBuffer(env, 5, path=path, seed=0)
        for step in range(steps):
            buffer.add_trajectory(np.full(4, step), step % 2, step, np.full(4, step + 1), False)
        seen = buffer.pos, buffer.full, np.asarray(buffer.rewards)
        buffer.close()
        again = ReplayBuffer(env, 5, path=path, seed=0)
        assert (again.pos, again.full) == seen[:2] == (steps % 5, steps >= 5)
        np.testing.assert_array_equal(again.rewards, seen[2])
        again.close()


def test_what_is_no_trajectory_is_refused() -> None:
    for space in (spaces.Dict(desired_goal=GOALS["desired_goal"]), CASES["CartPole"][0]):
        with pytest.raises(InputError, match="observation"):
            HERBuffer(env_of(space, spaces.Discrete(2), None), 5, compute_reward=lambda *_: 0)
    buffer = HERBuffer(env_of(GOALS, spaces.Discrete(2), None), 5, compute_reward=lambda *_: 0)
    good = GOALS.sample()
    with pytest.raises(InputError, match="desired_goal"):
        buffer.add_trajectory({key: good[key] for key in ("observation", "achieved_goal")}, 0, 0.0, good, False)
    for place, bad in [(1, 0.5), (1, 2), (2, np.nan), (2, [1, 2]), (4, "abc"), (4, 2)]:
        step = [good, 0, 0.0, good, False]
        step[place] = bad
        with pytest.raises(InputError):
            buffer.add_trajectory(*step)
    observed = {key: np.stack([part] * 3) for key, part in good.items()}
    with pytest.raises(InputError, match="reward"):
        buffer.add_batch_trajectories(observed, [0] * 3, [0.0, 1.0, np.nan], observed, [False] * 3)
    with pytest.raises(InputError, match="one number of steps"):
        buffer.add_batch_trajectories(observed, [0] * 2, [0.0] * 3, observed, [False] * 3)
    assert len(buffer.store) == 0
