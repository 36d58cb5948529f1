"""XuanCe's single-agent buffers against plain arrays and lists in memory that do what its authors meant."""

from __future__ import annotations

import contextlib
import doctest
import itertools
import pathlib
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.crashes import die
from helpers.keys import check_keys
from helpers.testing import small_thresholds

from diskreplay import errors
from diskreplay.compat import xuance
from diskreplay.compat.rows import window
from diskreplay.compat.sampler_draws import probabilities
from diskreplay.errors import SamplerWarning
from diskreplay.ops.resize import resize
from diskreplay.sampling.proportional import Proportional
from diskreplay.storage import saved_state

N_SIZE, BATCH = 7, 16
BOX, DISCRETE = spaces.Box(-1, 1, (4,)), spaces.Discrete(3)
ARM = spaces.Box(-1, 1, (2,))
NESTED = spaces.Dict({"camera": spaces.Box(0, 1, (2, 3)), "joints": BOX})
IMAGE = spaces.Box(0, 255, (6, 5, 4), np.uint8)
SHAPES: dict[str, Any] = {"plain": (4,), "nested": {"camera": (2, 3), "joints": (4,)}, "atari": (6, 5, 4)}
SPACES = {"plain": BOX, "nested": NESTED, "atari": IMAGE}
FIELDS = ("observations", "actions", "rewards", "terminals", "next_observations")


def mapped(function: Callable[..., Any], *trees: Any) -> Any:
    if isinstance(trees[0], dict):
        return {key: mapped(function, *(tree[key] for tree in trees)) for key in trees[0]}
    return function(*trees)


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            same(found[key], expected[key])
        return
    if isinstance(expected, list | tuple):
        for value, wanted in zip(found, expected, strict=True):
            same(value, wanted)
        return
    found = np.asarray(found)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(found, expected)


class Model:
    """The document's ring: arrays in memory, and the priorities of each place."""

    def __init__(self, kind: str, n_envs: int, alpha: float = 0.6) -> None:
        self.kind, self.n_envs, self.alpha = kind, n_envs, alpha
        self.dtype = np.uint8 if kind == "atari" else np.float32
        self.rows = 0
        self.clear()

    def clear(self) -> None:
        lead = (self.n_envs, N_SIZE)
        obs = [mapped(lambda shape: np.zeros(lead + shape, self.dtype), SHAPES[self.kind]) for _ in range(2)]
        action = (2,) if self.kind == "nested" else ()
        others = [np.zeros(lead + shape, np.float32) for shape in (action, (), ())]
        self.data = [obs[0], *others, obs[1]]
        self.priorities = np.zeros(lead)
        self.maxima = np.ones(self.n_envs)
        self.drawn = np.full(lead, -1)
        self.row_at = np.full(lead[1:], -1)
        self.ptr = self.size = 0

    def store(self, *step: Any) -> None:
        for memory, value in zip(self.data, step, strict=True):
            mapped(lambda array, values: array.__setitem__((slice(None), self.ptr), values), memory, value)
        self.priorities[:, self.ptr] = self.maxima
        self.row_at[self.ptr] = self.rows
        self.rows += 1
        self.ptr = (self.ptr + 1) % N_SIZE
        self.size = min(self.size + 1, N_SIZE)

    def at(self, envs: Any, slots: Any) -> list[Any]:
        return [mapped(lambda array: array[envs, slots], memory) for memory in self.data]

    # Priorities, by the formulas of Schaul et al. 2016

    def chances(self) -> np.ndarray:
        masses = np.where(np.arange(N_SIZE) < self.size, self.priorities, 0) ** self.alpha
        masses[:, self.size :] = 0
        return masses / masses.sum(1, keepdims=True)

    def draw(self, each: int) -> np.ndarray:
        """Positions by one number of Python's generator for each slice."""
        order = sorted(range(self.size), key=lambda slot: self.row_at[slot] % N_SIZE)
        found = np.zeros((self.n_envs, each), np.int64)
        for env, chances in enumerate(self.chances()):
            until = np.cumsum(chances[order])
            for piece in range(each):
                at = np.searchsorted(until, (piece + random.random()) / each, side="right")
                found[env, piece] = order[min(int(at), self.size - 1)]
        for env in range(self.n_envs):
            self.drawn[env, found[env]] = self.row_at[found[env]]
        return found

    def weights(self, slots: np.ndarray, beta: float) -> np.ndarray:
        """``(N P(i))^-beta``, divided by the largest of the environment."""
        found = []
        for chances, chosen in zip(self.chances(), slots, strict=True):
            every = (self.size * chances[: self.size]) ** -beta
            found.append(every[chosen] / every.max())
        return np.array(found)

    def update(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        for env in range(self.n_envs):
            for slot, priority in dict(zip(slots[env], priorities[env], strict=True)).items():
                drawn = self.drawn[env, slot]
                if drawn in (-1, self.row_at[slot]):
                    self.priorities[env, slot] = abs(priority) + 1e-8
                    self.maxima[env] = max(self.maxima[env], self.priorities[env, slot])


class Play:
    """Random steps of several environments, which go on from one to the next unless an episode ended."""

    def __init__(self, model: Model, seed: int = 0) -> None:
        self.model, self.rng = model, np.random.default_rng(seed)
        self.obs = self._observe()

    def _observe(self) -> Any:
        draw = self.rng.integers if self.model.kind == "atari" else self.rng.uniform
        return mapped(
            lambda shape: draw(0, 200, (self.model.n_envs, *shape)).astype(self.model.dtype), SHAPES[self.model.kind]
        )

    def step(self) -> tuple[Any, ...]:
        n_envs = self.model.n_envs
        actions = self.rng.integers(3, size=n_envs)
        if self.model.kind == "nested":
            actions = self.rng.uniform(size=(n_envs, 2)).astype(np.float32)
        rewards, after = self.rng.normal(size=n_envs).astype(np.float32), self._observe()
        terminals, cut = self.rng.random(n_envs) < 0.2, self.rng.random(n_envs) < 0.2
        found = self.obs, actions, rewards, terminals, after

        def begun(new: np.ndarray, old: np.ndarray) -> np.ndarray:
            over = (terminals | cut).reshape(n_envs, *[1] * (old.ndim - 1))
            return np.where(over, new, old)

        self.obs = mapped(begun, self._observe(), after)
        return found

    def into(self, buffer: Any) -> None:
        """A step into a buffer, and into the model."""
        step = self.step()
        buffer.store(*step)
        self.model.store(*step)


def uniform(model: Model, path: str | None = None, **options: Any) -> Any:
    kind = xuance.DummyOffPolicyBuffer_Atari if model.kind == "atari" else xuance.DummyOffPolicyBuffer
    action = ARM if model.kind == "nested" else DISCRETE
    return kind(SPACES[model.kind], action, None, model.n_envs, N_SIZE, BATCH, path=path, **options)


def prioritized(model: Model, path: str | None = None, **options: Any) -> Any:
    action = ARM if model.kind == "nested" else DISCRETE
    batch = BATCH + model.n_envs - 1
    return xuance.PerOffPolicyBuffer(
        SPACES[model.kind], action, {}, model.n_envs, N_SIZE, batch, model.alpha, path=path, **options
    )


def begun(
    make: Any, path: str | None = None, n_envs: int = 1, rows: int = 0, alpha: float = 0.6, **options: Any
) -> tuple[Any, Model, Play]:
    """A buffer of vectors, its model, and steps for both, of which some rows are stored."""
    model = Model("plain", n_envs, alpha)
    buffer, play = make(model, path, **options), Play(model)
    for _ in range(rows):
        play.into(buffer)
    return buffer, model, play


def seeded(seed: int, call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives from here on in the global generators."""
    np.random.seed(seed)
    random.seed(seed)
    return call(*arguments)


def check_arrays(buffer: Any, model: Model) -> None:
    assert (buffer.ptr, buffer.size, buffer.full) == (model.ptr, model.size, model.size == N_SIZE)
    for name, values in zip(FIELDS, model.data, strict=True):
        same(getattr(buffer, name), values)


# Basic tools


def test_memory_is_zeros_in_ram() -> None:
    memory = xuance.create_memory((2,), 3, 5)
    assert (memory.shape, memory.dtype, memory.any()) == ((3, 5, 2), np.float32, False)
    assert xuance.create_memory((), 3, 5, np.uint8).dtype == np.uint8
    assert xuance.create_memory(None, 3, 5) is None
    memory = xuance.create_memory({"a": (2,), "b": None}, 3, 5, np.uint8)
    assert {key: (part.shape, part.dtype) for key, part in memory.items()} == {
        "a": ((3, 5, 2), np.uint8), "b": ((3, 5), object),
    }  # fmt: skip
    for shape in (3, "ab", {"a": 3}, (0.5,)):
        with pytest.raises(errors.InputError):
            xuance.create_memory(shape, 3, 5)


def test_elements_are_stored_and_sampled() -> None:
    memory = xuance.create_memory({"a": (2,), "b": None}, 3, 5)
    values = np.arange(6.0).reshape(3, 2)
    xuance.store_element({"a": values, "b": ["x", None, 3]}, memory, 4)
    xuance.store_element({"a": 7.0}, memory, 0)
    xuance.store_element(None, memory, 0)
    found = xuance.sample_batch(memory, (np.array([0, 2, 1]), np.array([4, 4, 0])))
    np.testing.assert_array_equal(found["a"], [[0, 1], [4, 5], [7, 7]])
    assert found["b"].tolist() == ["x", 3, 0]
    plain = xuance.create_memory((), 3, 5)
    xuance.store_element(np.array([1, 2, 3]), plain, 1)
    assert xuance.sample_batch(plain, (1, 1)) == 2
    assert xuance.sample_batch(None, 3) is None


@pytest.mark.parametrize("data", [{"a": 1.0, "c": 2.0}, {"b": ["x", 1, 2], "a": np.zeros((4, 2))}, np.zeros((3, 2))])
def test_an_element_that_does_not_fit_changes_nothing(data: Any) -> None:
    memory = xuance.create_memory({"a": (2,), "b": None}, 3, 5)
    with pytest.raises(errors.InputError):
        xuance.store_element(data, memory, 0)
    assert not memory["a"].any()
    assert not memory["b"].any()


def test_an_element_needs_a_memory() -> None:
    with pytest.raises(errors.InputError, match="no memory"):
        xuance.store_element(1.0, None, 0)
    with pytest.raises(errors.InputError, match="must be one too"):
        xuance.store_element({"a": 1.0}, np.zeros((3, 5)), 0)


def test_the_base_class() -> None:
    class Least(xuance.Buffer):
        n_size = 2

        def store(self, *args: Any) -> None:
            self.size += 1

        def clear(self, *args: Any) -> None:
            self.size = 0

        def sample(self, *args: Any) -> Any:
            return None

    buffer = Least(BOX, DISCRETE, {"a": ()})
    assert (buffer.observation_space, buffer.action_space, buffer.auxiliary_shape) == (BOX, DISCRETE, {"a": ()})
    assert (buffer.ptr, buffer.size, buffer.full, buffer.finish_path(1, 2)) == (0, 0, False, None)
    buffer.store()
    buffer.store()
    assert buffer.full
    with pytest.raises(TypeError):
        xuance.Buffer(BOX, DISCRETE, None)  # type: ignore[abstract]


def episode(length: int, seed: int, space: Any = BOX) -> xuance.EpisodeBuffer:
    rng = np.random.default_rng(seed)

    def observe() -> Any:
        return mapped(lambda shape: rng.random(shape).astype("f4"), (4,) if space is BOX else SHAPES["nested"])

    found = xuance.EpisodeBuffer()
    found.obs.append(observe())
    for at in range(length):
        done = at + 1 == length and seed % 2 == 0
        found.put([observe(), int(rng.integers(3)), np.float32(rng.random()), done])
    return found


def test_an_episode_gives_its_steps() -> None:
    full = episode(6, 1)
    assert len(full) == 6
    found = full.sample(3, 2)
    same(found["obs"], np.array(full.obs[2:6]))
    same(found["acts"], np.array(full.action[2:5]))
    same(found["rews"], np.array(full.reward[2:5]))
    same(found["done"], np.array(full.done[2:5]))
    assert {key: len(values) for key, values in full.sample().items()} == {"obs": 7, "acts": 6, "rews": 6, "done": 6}
    assert len(full.sample(lookup_step=9, idx=4)["acts"]) == 2
    with pytest.raises(errors.InputError):
        full.sample(3, -1)
    for transition in ([1, 2, 3], 4):
        with pytest.raises(errors.InputError):
            full.put(transition)
    assert len(full.obs) == 7


# Uniform


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("n_envs", [1, 4])
def test_uniform(path: str, kind: str, n_envs: int) -> None:
    model = Model(kind, n_envs)
    play = Play(model)
    buffer = uniform(model, path)
    with pytest.raises(errors.NotEnoughDataError):
        buffer.sample()
    for at in range(40):
        if at in (5, 25):
            buffer.clear()
            model.clear()
            check_arrays(buffer, model)
        if at in (3, 5, 12, 26):
            buffer.close()
            buffer = uniform(model, path)
            check_arrays(buffer, model)
        play.into(buffer)
        found = seeded(at, buffer.sample)
        expected = seeded(at, lambda: model.at(np.random.choice(n_envs, BATCH), np.random.choice(model.size, BATCH)))
        assert len(found) == 5
        same(found, expected)
    check_arrays(buffer, model)
    assert (buffer.n_envs, buffer.n_size, buffer.batch_size) == (n_envs, N_SIZE, BATCH)
    buffer.close()


def test_arrays_are_indexed_as_arrays(path: str) -> None:
    buffer, model, _ = begun(uniform, path, 4, rows=9)
    obs, wanted = buffer.observations, model.data[0]
    for key in ((0,), (1, 2), (slice(None), 3), ([0, 3], [1, 1]), (2, slice(1, 4), 0)):
        np.testing.assert_array_equal(obs[key], wanted[key])
    for seed, (name, values) in enumerate(zip(FIELDS, model.data, strict=True)):
        check_keys(getattr(buffer, name), values, 20, seed)
    buffer.close()


def test_frames_of_a_stack_are_stored_once(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (60, 84, 84), np.uint8)
    space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    sizes = {}
    for count in (1, 4):
        path = str(tmp_path / f"{count}.replay")
        buffer = xuance.DummyOffPolicyBuffer_Atari(space, DISCRETE, None, 1, 50, 8, path=path, frame_stack=count)
        stacks = [np.moveaxis(frames[at : at + 4], 0, -1) for at in range(51)]
        for obs, after in itertools.pairwise(stacks):
            buffer.store(obs[None], [1], [0.0], [False], after[None])
        same(np.asarray(buffer.observations[0]), np.stack(stacks[:-1]))
        obs, *_, after = buffer.sample()
        assert obs.shape == after.shape == (8, 84, 84, 4)
        buffer.close()
        sizes[count] = sum(file.stat().st_size for file in pathlib.Path(path).rglob("*") if file.is_file())
    assert sizes[4] < 0.5 * sizes[1]


# Priorities


@pytest.mark.parametrize("kind", ["plain", "nested"])
@pytest.mark.parametrize("n_envs", [1, 4])
def test_prioritized(path: str, kind: str, n_envs: int) -> None:
    model = Model(kind, n_envs)
    play, rng = Play(model), np.random.default_rng(1)
    buffer = prioritized(model, path)
    each = BATCH // n_envs
    with pytest.raises(errors.NotEnoughDataError):
        buffer.sample(0.5)
    late: list[Any] = []
    for at in range(60):
        if at in (5, 35):
            buffer.clear()
            model.clear()
            late.clear()
        if at in (3, 12, 29, 36):
            buffer.close()
            buffer = prioritized(model, path)
            check_arrays(buffer, model)
        play.into(buffer)
        if at % 3 == 2:
            continue
        beta = 0.4 + at / 100
        *found, weights, slots = seeded(at, buffer.sample, beta)
        same(slots, seeded(at, model.draw, each))
        assert (weights.shape, weights.dtype) == ((n_envs, each), np.float64)
        np.testing.assert_allclose(weights, model.weights(slots, beta), rtol=1e-5)
        envs = np.repeat(np.arange(n_envs), each)
        for value, wanted in zip(found, model.at(envs, slots.ravel()), strict=True):
            same(value, wanted)
        late.append(slots)
        if len(late) == 3:  # by now some were overwritten
            for slots in late:
                errors_ = rng.normal(size=slots.shape) * (rng.random(slots.shape) < 0.9)
                buffer.update_priorities(slots, errors_.ravel().astype(np.float32))
                model.update(slots, errors_.astype(np.float32).astype(np.float64))
            late.clear()
            np.testing.assert_allclose(buffer.engine.sampler.maxima, model.maxima, rtol=1e-6)
    check_arrays(buffer, model)
    buffer.close()


def test_a_late_priority_does_not_go_to_another_transition(path: str) -> None:
    buffer, model, play = begun(prioritized, path, rows=N_SIZE)
    *_, slots = buffer.sample(1.0)
    play.into(buffer)
    play.into(buffer)
    buffer.close()
    buffer = prioritized(model, path)
    overwritten = int((slots < 2).sum())
    assert overwritten
    buffer.update_priorities(slots, np.full(slots.size, 1e6))
    assert buffer.engine.sampler.ignored_updates == overwritten
    ids = window(buffer.engine).end - N_SIZE + np.arange(N_SIZE)
    chances = probabilities(buffer.engine, ids)
    assert chances[-2:].max() < 1e-3
    assert chances[:-2].min() > 0.1
    buffer.close()


def test_a_cleared_buffer_forgets_what_was_drawn() -> None:
    buffer, _, play = begun(prioritized, rows=1)
    buffer.sample(1.0)
    buffer.clear()
    play.into(buffer)
    buffer.update_priorities(np.array([[0]]), [7.0])
    assert buffer.engine.sampler.maximum == pytest.approx(7.0)
    assert buffer.engine.sampler.ignored_updates == 0


@pytest.mark.long
def test_prioritized_draws_follow_the_probabilities() -> None:
    buffer, model, _ = begun(prioritized, n_envs=4, rows=10, alpha=0.7, seed=3)
    rng = np.random.default_rng(4)
    slots = np.broadcast_to(np.arange(N_SIZE), (4, N_SIZE))
    priorities = rng.random((4, N_SIZE)) * 3
    buffer.update_priorities(slots, priorities)
    model.update(slots, priorities)
    counts, rounds, each = np.zeros((4, N_SIZE)), 3000, BATCH // 4
    for _ in range(rounds):
        found = buffer.sample(0.5)[-1]
        for env in range(4):
            counts[env] += np.bincount(found[env], minlength=N_SIZE)
    expected = model.chances() * rounds * each
    statistic = ((counts - expected) ** 2 / expected).sum(axis=1)
    assert statistic.max() < 22.5  # chi-square with 6 degrees of freedom, p = 0.001; slices only lower it
    assert len({tuple(row) for row in counts}) == 4


def test_positions_beyond_a_byte() -> None:
    buffer = xuance.PerOffPolicyBuffer(spaces.Box(-1, 1000, ()), DISCRETE, None, 2, 600, 64, seed=0)
    for at in range(600):
        buffer.store([at, at + 0.5], [0, 0], [0.0, 0.0], [False, False], [at + 1, at + 1.5])
    obs, *_, slots = buffer.sample(1.0)
    np.testing.assert_array_equal(obs.reshape(2, 32), slots + np.array([[0.0], [0.5]], np.float32))
    assert slots.max() > 512


def test_episodes_whose_marks_are_too_large_for_ram(tmp_path: pathlib.Path) -> None:
    def make() -> xuance.RecurrentOffPolicyBuffer:
        return xuance.RecurrentOffPolicyBuffer(
            spaces.Box(-1, 1000, ()), DISCRETE, None, 1, 20, 4, 100, 3, path=tmp_path / "s"
        )

    with small_thresholds(in_format=False):
        buffer = make()
        assert not {"step", "last"} & set(buffer.engine.engine.streams.shown.log.resident)
        lengths = [1 + number % 5 for number in range(23)]
        for number, length in enumerate(lengths):
            buffer.store({
                "obs": np.full(length + 1, number), "acts": np.zeros(length), "rews": np.zeros(length),
                "done": np.zeros(length),
            })  # fmt: skip
        buffer.close()
        again = make()
        assert (again.ptr, again.size, [len(one) for one in again.memory]) == (3, 20, lengths[3:])
        assert again.memory[19].obs[0] == 22
        again.close()


def test_one_environment_is_drawn_from_by_itself() -> None:
    buffer, _, _ = begun(prioritized, n_envs=4, rows=N_SIZE)
    slots = np.broadcast_to(np.arange(N_SIZE), (4, N_SIZE))
    priorities = np.full((4, N_SIZE), 1e-9)
    priorities[2, 5] = priorities[3, 1] = 1e12
    buffer.update_priorities(slots, priorities)
    assert (buffer._sample_proportional(2, 6), buffer._sample_proportional(3, 2)) == ([5] * 6, [1] * 2)
    with pytest.raises(errors.InputError):
        buffer._sample_proportional(4, 2)


def test_own_draws_go_on_where_they_were(tmp_path: pathlib.Path) -> None:
    for make, arguments in ((uniform, ()), (prioritized, (0.5,))):
        found = []
        for reopened in (False, True):
            path = str(tmp_path / f"{make.__name__}{reopened}.replay")
            buffer, model, _ = begun(make, path, 4, rows=N_SIZE, seed=11)
            first = buffer.sample(*arguments)
            if reopened:
                buffer.close()
                buffer = make(model, path, seed=12)
            found.append([first, *(buffer.sample(*arguments) for _ in range(3))])
            buffer.close()
        for ours, theirs in zip(*found, strict=True):
            same(ours, theirs)


# Whole episodes


def recurrent(path: str | None = None, space: Any = BOX, n_size: int = 5, **options: Any) -> Any:
    return xuance.RecurrentOffPolicyBuffer(space, DISCRETE, None, 1, n_size, 6, 9, 4, path=path, **options)


def expected_sequences(memory: list[xuance.EpisodeBuffer]) -> list[Any]:
    chosen = [memory[at] for at in np.random.choice(len(memory), 6)]
    count = min(4, *map(len, chosen))
    parts = [one.sample(count, np.random.randint(0, len(one) - count + 1)) for one in chosen]
    obs = [part["obs"] for part in parts]
    if obs[0].dtype == object:
        keys = obs[0][0].keys()
        whole: Any = {key: np.array([[step[key] for step in one] for one in obs]) for key in keys}
    else:
        whole = np.array(obs)
    return [whole, *(np.array([part[name] for part in parts]) for name in ("acts", "rews", "done"))]


@pytest.mark.parametrize("space", [BOX, NESTED], ids=["plain", "nested"])
def test_recurrent(path: str, space: Any) -> None:
    buffer, memory = recurrent(path, space), []
    rng = np.random.default_rng(0)
    with pytest.raises(errors.NotEnoughDataError):
        buffer.sample()
    stored = 0
    for at in range(24):
        if at in (4, 17):
            buffer.clear()
            memory.clear()
            stored = 0
        if at in (3, 4, 9, 18):
            buffer.close()
            buffer = recurrent(path, space)
        one = episode(int(rng.integers(1, 10)), at, space)
        buffer.store(one)
        memory, stored = [*memory, one][-5:], stored + 1
        assert (buffer.size, buffer.ptr, buffer.full) == (len(memory), stored % 5, len(memory) == 5)
        assert buffer.can_sample() is False
        same(seeded(at, buffer.sample), seeded(at, expected_sequences, memory))
    assert len(buffer.memory) == 5
    for mine, theirs in zip(buffer.memory, memory, strict=True):
        for name in ("obs", "action", "reward", "done"):
            assert len(getattr(mine, name)) == len(getattr(theirs, name))
            for value, wanted in zip(getattr(mine, name), getattr(theirs, name), strict=True):
                mapped(np.testing.assert_array_equal, value, wanted)
    assert [len(one) for one in buffer.memory[1:3]] == [len(one) for one in memory[1:3]]
    assert recurrent(n_size=6, seed=1).can_sample() is False
    buffer.close()


def test_recurrent_can_sample_when_there_are_as_many_episodes() -> None:
    buffer = recurrent(n_size=6, seed=1)
    for at in range(6):
        assert not buffer.can_sample()
        buffer.store(episode(5, at))
    assert buffer.can_sample()
    obs, acts, rews, terminals = buffer.sample()
    assert (obs.shape, acts.shape, rews.shape, terminals.shape) == ((6, 5, 4), (6, 4), (6, 4), (6, 4))
    assert (obs.dtype, acts.dtype, rews.dtype, terminals.dtype) == (np.float32, np.int64, np.float32, bool)


def test_a_dict_is_an_episode_too() -> None:
    one, two = recurrent(), recurrent()
    full = episode(5, 0)
    one.store(full)
    two.store(full.sample(5, 0))
    same(np.array(one.memory[0].obs), np.array(two.memory[0].obs))


@pytest.mark.parametrize(
    "what", ["no first observation", "no last reward", "empty", "too long", "shape", "done", "nan"]
)
def test_an_episode_that_does_not_fit_is_refused(what: str) -> None:
    buffer = recurrent()
    buffer.store(episode(3, 1))
    bad = episode({"empty": 0, "too long": 10}.get(what, 4), 2)
    if what == "no first observation":
        del bad.obs[0]
    elif what == "no last reward":
        del bad.reward[-1]
    elif what == "shape":
        bad.obs[2] = np.zeros(3)
    elif what == "done":
        bad.done[0] = 2
    elif what == "nan":
        bad.reward[0] = np.nan
    with pytest.raises(errors.InputError):
        buffer.store(bad)
    assert (buffer.size, window(buffer.engine).end, buffer.ptr) == (1, 3, 1)
    with pytest.raises(errors.InputError):
        buffer.store(what)


# What is in the store


@pytest.mark.parametrize("make", [uniform, prioritized])
def test_rows_survive_a_buffer_that_was_not_closed(path: str, make: Any) -> None:
    buffer, model, play = begun(make, path, 4, rows=5)
    buffer.close()
    buffer = make(model, path)
    for _ in range(11):
        play.into(buffer)
    buffer.engine.commit()
    die(buffer.engine)
    lost = pytest.warns(SamplerWarning, match="rows were committed")
    with lost if make is prioritized else contextlib.nullcontext():
        again = make(model, path)
    check_arrays(again, model)
    again.close()


def halve(buffer: Any, count: int) -> None:
    """Half an episode, as when the process dies in the middle of one."""
    zeros, obs = np.zeros(count), np.zeros((count, 4), "f4")
    flags = zeros.astype(bool)
    buffer.engine.extend(obs, zeros.astype(int), zeros, obs, flags, flags, step=np.arange(count), last=flags)
    buffer.engine.commit()
    die(buffer.engine)


def test_episodes_survive_a_buffer_that_was_not_closed(path: str) -> None:
    buffer = recurrent(path)
    for at in range(7):
        buffer.store(episode(4 + at % 3, at))
    lengths = [len(one) for one in buffer.memory]
    halve(buffer, 2)
    again = recurrent(path)
    assert ([len(one) for one in again.memory], again.ptr) == (lengths, 2)
    again.store(episode(3, 99))
    assert [len(one) for one in again.memory] == [*lengths[1:], 3]
    again.close()


@pytest.mark.parametrize(("count", "left"), [(5, 4), (8, 3)])
def test_halves_of_episodes_may_take_the_rows_of_old_ones(path: str, count: int, left: int) -> None:
    stored = []
    for at in range(9):
        buffer = recurrent(path)
        assert [one.reward for one in buffer.memory] == [one.reward for one in stored[len(stored) - buffer.size :]]
        stored.append(episode(9, at))
        buffer.store(stored[-1])
        assert 1 <= buffer.size <= 5
        for mine, theirs in zip(buffer.memory, stored[-buffer.size :], strict=True):
            same(np.array(mine.obs), np.array(theirs.obs))
        size = buffer.size
        same(seeded(at, buffer.sample), seeded(at, expected_sequences, stored[-size:]))
        halve(buffer, count)
    assert size == left


def test_a_commit_keeps_the_priorities(path: str) -> None:
    buffer, model, _ = begun(prioritized, path, rows=N_SIZE)
    buffer.update_priorities(np.array([[3]]), [50.0])
    buffer.commit()
    chances = probabilities(buffer.engine, np.arange(N_SIZE))
    die(buffer.engine)
    again = prioritized(model, path)
    np.testing.assert_array_equal(probabilities(again.engine, np.arange(N_SIZE)), chances)
    assert chances[3] > 0.5
    again.close()


def test_a_crash_goes_back_to_the_last_commits_priorities(path: str) -> None:
    buffer, model, play = begun(prioritized, path, 4, seed=5)
    wanted: Any = None
    for at in range(3 * N_SIZE):
        step = play.step()
        buffer.store(*step)
        if at < 2 * N_SIZE:
            model.store(*step)
        buffer.update_priorities(np.full((4, 1), at % buffer.size), np.arange(4.0) + at)
        if at == 2 * N_SIZE - 1:
            buffer.commit()
            ids = window(buffer.engine).begin * 4 + np.arange(4 * N_SIZE)
            wanted = probabilities(buffer.engine, ids), buffer.engine.sampler.maxima, buffer.sample(0.5)
    die(buffer.engine)
    for _ in range(2):  # a look and another crash change nothing
        again = prioritized(model, path, seed=6)
        check_arrays(again, model)
        np.testing.assert_array_equal(probabilities(again.engine, ids), wanted[0])
        np.testing.assert_array_equal(again.engine.sampler.maxima, wanted[1])
        same(again.sample(0.5), wanted[2])
        again.store(*play.step())
        die(again.engine)


def test_a_crash_in_the_middle_of_a_commit_leaves_one_state(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, model, play = begun(prioritized, path, rows=1)
    for priority in (20.0, 30.0):
        buffer.update_priorities(np.array([[0]]), [priority])
        buffer.commit()
    buffer.update_priorities(np.array([[0]]), [40.0])
    with monkeypatch.context() as patched:
        patched.setattr(saved_state, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            buffer.commit()
    die(buffer.engine)
    again = prioritized(model, path)
    assert (again.engine.sampler.maximum, again.engine.checkpoints) == (pytest.approx(30.0), [])
    again.store(*play.step())
    again.engine.commit()  # as the store does by itself: what was saved is of older rows
    die(again.engine)
    with pytest.warns(SamplerWarning, match="rows were committed"):
        last = prioritized(model, path)
    assert (last.size, last.engine.sampler.maximum) == (2, 1.0)
    last.close()


def test_another_buffers_store_is_refused_and_left_as_it_is(path: str) -> None:
    buffer, model, _ = begun(prioritized, path, 4, rows=1)
    buffer.close()
    for other in (
        lambda: uniform(model, path), lambda: prioritized(Model("plain", 2), path),
        lambda: prioritized(Model("nested", 4), path), lambda: prioritized(Model("plain", 4, alpha=0.5), path),
        lambda: recurrent(path),
        lambda: xuance.PerOffPolicyBuffer(BOX, DISCRETE, {"a": ()}, 4, N_SIZE, BATCH, path=path),
        lambda: xuance.PerOffPolicyBuffer(BOX, DISCRETE, None, 4, N_SIZE + 1, BATCH, path=path),
    ):  # fmt: skip
        with pytest.raises(errors.InputError, match="choose another path"):
            other()
    again = prioritized(model, path)
    check_arrays(again, model)
    again.close()
    made = 4 * N_SIZE
    for size in (made + 4, made):
        resize(path, size)
        if size != made:
            with pytest.raises(errors.InputError, match=rf"resized from {made} to {size} .*places are those of a ring"):
                prioritized(model, path)
    again = prioritized(model, path)
    check_arrays(again, model)
    again.close()


def test_auxiliary_values(path: str) -> None:
    shapes = {"a": (2,), "b": ()}
    buffer = xuance.DummyOffPolicyBuffer(BOX, DISCRETE, shapes, 4, N_SIZE, BATCH, path=path)
    step = Play(Model("plain", 4)).step()
    buffer.store(*step)
    buffer.store(*step, {"a": np.arange(8.0).reshape(4, 2)})
    buffer.close()
    buffer = xuance.DummyOffPolicyBuffer(BOX, DISCRETE, shapes, 4, N_SIZE, BATCH, path=path)
    found = buffer.auxiliary_infos
    assert {key: (values.shape, values.dtype) for key, values in found.items()} == {
        "a": ((4, N_SIZE, 2), np.float32), "b": ((4, N_SIZE), np.float32),
    }  # fmt: skip
    np.testing.assert_array_equal(found["a"][:, 1], np.arange(8.0).reshape(4, 2))
    assert not np.asarray(found["a"])[:, 0].any()
    with pytest.raises(errors.InputError, match="keys of"):
        buffer.store(*step, {"c": 1.0})
    assert buffer.size == 2
    buffer.close()
    only = xuance.DummyOffPolicyBuffer(BOX, DISCRETE, (3,), 1, N_SIZE, BATCH)
    only.store(*Play(Model("plain", 1)).step(), np.ones((1, 3)))
    np.testing.assert_array_equal(only.auxiliary_infos[0, :2], [[1, 1, 1], [0, 0, 0]])
    none = uniform(Model("plain", 1))
    assert none.auxiliary_infos is None
    with pytest.raises(errors.InputError, match="without an auxiliary_shape"):
        none.store(*Play(Model("plain", 1)).step(), {"a": 1.0})
    with pytest.raises(errors.InputError, match="Python objects"):
        xuance.DummyOffPolicyBuffer(BOX, DISCRETE, {"a": None}, 1, N_SIZE, BATCH)


def test_spaces_of_other_libraries() -> None:
    obs = types.SimpleNamespace(shape=(4,))
    buffer = xuance.DummyOffPolicyBuffer({"x": obs}, types.SimpleNamespace(shape=()), None, 1, N_SIZE, 2)
    buffer.store({"x": np.ones((1, 4))}, [1], [0.5], [True], {"x": np.zeros((1, 4))})
    found, acts, rews, terminals, after = buffer.sample()
    assert (found["x"].tolist(), after["x"].any()) == ([[1.0] * 4] * 2, False)
    assert (acts.tolist(), rews.tolist(), terminals.tolist()) == ([1, 1], [0.5, 0.5], [1, 1])
    episodes = xuance.RecurrentOffPolicyBuffer(obs, DISCRETE, {"a": None}, 1, 3, 2, 9, 4)
    episodes.store(episode(5, 1))
    assert episodes.sample()[0].dtype == np.float32
    for space in (types.SimpleNamespace(), spaces.Sequence(BOX), None):
        with pytest.raises(errors.InputError, match="observation_space"):
            xuance.DummyOffPolicyBuffer(space, DISCRETE, None, 1, N_SIZE, 2)


GOOD: dict[str, Any] = {
    "obs": np.zeros((4, 4)), "acts": np.zeros(4), "rews": np.zeros(4), "terminals": np.zeros(4),
    "next_obs": np.zeros((4, 4)),
}  # fmt: skip


@pytest.mark.parametrize(
    "bad",
    [
        {"obs": np.zeros((3, 4))}, {"obs": {"a": 1}}, {"acts": np.zeros(3)}, {"rews": [0, 0, np.nan, 0]},
        {"rews": [1e60] * 4}, {"terminals": [0, 0, 0.5, 1]}, {"next_obs": np.zeros((4, 5))}, {"next_obs": None},
    ],
)  # fmt: skip
def test_a_step_that_does_not_fit_is_refused(bad: dict[str, Any]) -> None:
    buffer = xuance.DummyOffPolicyBuffer(BOX, DISCRETE, None, 4, N_SIZE, BATCH)
    buffer.store(**GOOD)
    with pytest.raises(errors.InputError):
        buffer.store(**{**GOOD, **bad})
    assert (buffer.size, buffer.ptr, window(buffer.engine).end) == (1, 1, 1)


def test_images_are_whole_numbers() -> None:
    buffer = xuance.DummyOffPolicyBuffer_Atari(IMAGE, DISCRETE, None, 1, N_SIZE, 2)
    image = np.full((1, 6, 5, 4), 200.0)
    buffer.store(image, [0], [0.0], [False], image)
    assert buffer.sample()[0].dtype == np.uint8
    for wrong in (image / 3, image + 100, -image, image * np.nan):
        with pytest.raises(errors.InputError, match="whole numbers"):
            buffer.store(wrong, [0], [0.0], [False], image)


def test_arguments_are_checked() -> None:
    buffer, model, _ = begun(prioritized, n_envs=4, rows=1)
    for beta in (0.0, -1.0, np.nan, "1"):
        with pytest.raises(errors.InputError, match="beta"):
            buffer.sample(beta)
    zeros = np.zeros((4, 2), np.int64)
    for slots, priorities in (
        (zeros + 1, np.ones((4, 2))), (zeros - 1, np.ones((4, 2))), (zeros[:3], np.ones(6)), (zeros, np.ones(7)),
        (zeros * 0.0, np.ones(8)), (zeros, np.full(8, np.nan)),
    ):  # fmt: skip
        with pytest.raises(errors.InputError):
            buffer.update_priorities(slots, priorities)
    sampler = buffer.engine.sampler
    assert isinstance(sampler, Proportional)
    assert sampler.maximum == 1.0
    with pytest.raises(errors.InputError, match="batch_size"):
        xuance.PerOffPolicyBuffer(BOX, DISCRETE, None, 4, N_SIZE, 3)
    with pytest.raises(errors.InputError, match="unknown option"):
        uniform(model, nonsense=1)
    with pytest.raises(errors.InputError, match="n_size"):
        xuance.DummyOffPolicyBuffer(BOX, DISCRETE, None, 4, 0, 3)


def test_the_example() -> None:
    assert doctest.testmod(xuance).failed == 0


def test_sizes_and_samples_as_newer_versions_name_them() -> None:
    box, choice = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)
    step = np.zeros((2, 2)), np.zeros(2), np.ones(2), np.zeros(2), np.ones((2, 2))
    for kind, more in [
        (xuance.DummyOffPolicyBuffer, ()), (xuance.DummyOffPolicyBuffer_Atari, ()), (xuance.PerOffPolicyBuffer, (0.4,)),
    ]:  # fmt: skip
        named = kind(box, choice, None, n_envs=2, buffer_size=10, batch_size=4)
        plain = kind(box, choice, None, 2, 5, 4)
        for buffer in (named, plain):
            assert (buffer.n_size, buffer.batch_size) == (5, 4)
            buffer.store(*step)
        sample, expected = (seeded(0, buffer.sample, *more) for buffer in (named, plain))
        assert sample.pop("batch_size") == 4
        names = ["obs", "actions", "rewards", "terminals", "obs_next", "weights", "step_choices"]
        assert list(sample) == names[: len(expected)]
        for found, other in zip(sample.values(), expected, strict=True):
            np.testing.assert_array_equal(found, other)
    assert named.sample(0.4)["step_choices"].shape == (2, 2)
    for sizes in ({"n_size": 5, "buffer_size": 10}, {}, {"buffer_size": 9}, {"buffer_size": 0}):
        with pytest.raises(errors.InputError, match="buffer_size"):
            xuance.DummyOffPolicyBuffer(box, choice, None, 2, batch_size=4, **sizes)
    with pytest.raises(errors.InputError, match="batch_size"):
        xuance.DummyOffPolicyBuffer(box, choice, None, 2, buffer_size=10)


def test_a_rollout_as_newer_versions_name_it() -> None:
    box, choice = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)
    named = xuance.DummyOnPolicyBuffer(box, choice, None, n_envs=2, horizon_size=3, use_advnorm=False)
    plain = xuance.DummyOnPolicyBuffer(box, choice, None, 2, 3, use_advnorm=False)
    for buffer in (named, plain):
        for step in range(3):
            buffer.store(np.full((2, 2), step), np.zeros(2), np.ones(2), np.ones(2), np.zeros(2))
        assert buffer.full
    sample, expected = (buffer.sample(np.arange(4)) for buffer in (named, plain))
    assert list(sample) == ["obs", "actions", "returns", "values", "advantages", "aux_batch", "batch_size"]
    for found, other in zip(sample.values(), (*expected, 4), strict=True):
        np.testing.assert_array_equal(found, other)
    with pytest.raises(errors.InputError, match="horizon_size"):
        xuance.DummyOnPolicyBuffer(box, choice, None, 2, 3, horizon_size=3)
