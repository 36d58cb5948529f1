"""Stores of every kind, and what of them must come back from a format that holds this and that.

The oracle reads a store through ``ReplayBuffer.get`` alone, episode by episode; it knows nothing of formats.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import diskreplay as dr
from diskreplay import formats
from diskreplay.errors import DiskReplayError, InputError
from diskreplay.formats.core.format import Format, Holds
from diskreplay.ops.convert import import_dataset
from diskreplay.schema.columns import Stack

Rng = np.random.Generator
VECTOR = spaces.Box(-np.inf, np.inf, (5,), np.float32)
MATRIX = spaces.Box(-9, 9, (3, 4), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
FRAME = spaces.Box(0, 255, (40, 40), np.uint8)
NESTED = spaces.Dict(camera=IMAGE, arm=spaces.Dict(joints=spaces.Box(-9, 9, (2,), np.float64), grip=spaces.Discrete(4)))
FORCE = spaces.Box(-1, 1, (2,), np.float32)
NO_END, TERMINATED, TRUNCATED, BOTH = (False, False), (True, False), (False, True), (True, True)


@dataclasses.dataclass
class Episode:
    """An episode as ``get`` gives it.

    Attributes:
        obs, next_obs: ``(n, frames, *frame_shape)`` by leaf, oldest frame first.
        action, extra: ``(n, *shape)`` by leaf and name.
        reward, terminated, truncated: ``(n,)``.
    """

    obs: dict[str, np.ndarray]
    next_obs: dict[str, np.ndarray]
    action: dict[str, np.ndarray]
    extra: dict[str, np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    def __len__(self) -> int:
        return len(self.reward)


def installed(name: str) -> Format:
    """The format of a name; the test is skipped where a library is missing that it needs."""
    found = formats.get(name)
    for module in found.requires:
        pytest.importorskip(module, reason=f"{name} is an extra")
    return found


def refused(
    dataset: pathlib.Path, said: str, format: str | None = None, error: type[DiskReplayError] = InputError
) -> None:  # fmt: skip
    """An import is refused: one short line says why and names the dataset, and nothing of a store is left."""
    before = sorted(dataset.parent.iterdir())
    with pytest.raises(error, match=said) as failure:
        import_dataset(dataset, dataset.parent / "a.replay", format)
    text = str(failure.value)
    assert "\n" not in text
    assert dataset.name in text
    assert len(text) < 1200
    assert sorted(dataset.parent.iterdir()) == before


def read(path: Any) -> list[Episode]:
    """All episodes of a store: stream by stream, environment by environment, in the order of their steps."""
    with dr.ReplayBuffer.open(path, mode="r", view=dr.Transition()) as buffer:
        envs = [stream["num_envs"] for stream in buffer.stats()["streams"].values()]
        found = sorted(buffer.episodes, key=lambda e: (e.stream, e.env, e.start))
        return [_read(buffer, np.arange(e.start, e.stop) * envs[e.stream] + e.env + (e.stream << 48)) for e in found]


def _read(buffer: dr.ReplayBuffer, ids: np.ndarray) -> Episode:
    batch = buffer.get(ids)
    obs, next_obs = ({leaf: value for leaf, value in leaves(part, "obs")} for part in (batch.obs, batch.next_obs))
    stacks = dict(zip(obs, buffer.schema.stacks, strict=True))
    return Episode(
        {leaf: frames(value, stacks[leaf]) for leaf, value in obs.items()},
        {leaf: frames(value, stacks[leaf]) for leaf, value in next_obs.items()},
        dict(leaves(batch.action, "action")), dict(batch.extra or {}), batch.reward, batch.terminated, batch.truncated,
    )  # fmt: skip


def leaves(value: Any, name: str) -> list[tuple[str, np.ndarray]]:
    """Nested arrays, flat."""
    if isinstance(value, dict):
        return [leaf for key, part in value.items() for leaf in leaves(part, f"{name}/{key}")]
    if isinstance(value, tuple):
        return [leaf for key, part in enumerate(value) for leaf in leaves(part, f"{name}/{key}")]
    return [(name, value)]


def frames(values: np.ndarray, stack: Stack) -> np.ndarray:
    """Observations ``(n, ...)`` as ``(n, frames, *frame_shape)``, however they hold their stack."""
    if stack.frames == 1 and stack.axis is None:
        return values[:, None]
    axis = 1 if stack.axis in (0, None) else values.ndim - 1
    parts = np.split(values, stack.frames, axis)
    return np.stack(parts if stack.channels else [part.squeeze(axis) for part in parts], axis=1)


def expected(episodes: list[Episode], holds: Holds) -> list[Episode]:
    """What must come back of these episodes."""
    kept = []
    for whole in episodes:
        episode = dataclasses.replace(whole)
        if not holds.unfinished and not (episode.terminated[-1] or episode.truncated[-1]):
            episode.truncated = np.append(episode.truncated[:-1], True)
        if not holds.columns:
            episode.extra = {}
        episode.next_obs = dict(episode.next_obs)
        if not holds.next_obs:
            following = {leaf: values[1:] for leaf, values in episode.obs.items()}
            episode.next_obs = {
                leaf: np.append(following[leaf], values[-1:], axis=0) for leaf, values in episode.next_obs.items()
            }
        if not holds.final_obs and holds.final_steps:
            for leaf, values in episode.obs.items():  # the last step's own frame, after those before it
                own = np.append(values[-1:, 1:], values[-1:, -1:], axis=1)
                episode.next_obs[leaf] = np.append(episode.next_obs[leaf][:-1], own, axis=0)
        elif not holds.final_obs and not episode.terminated[-1]:
            if len(episode) == 1:
                continue
            flag = episode.truncated[-1]
            episode = _cut(episode)
            episode.truncated = np.append(episode.truncated[:-1], flag)
        kept.append(episode)
    return kept


def _cut(episode: Episode) -> Episode:
    """Without its last step."""
    parts: dict[str, Any] = {}
    for field in dataclasses.fields(episode):
        value = getattr(episode, field.name)
        parts[field.name] = {k: v[:-1] for k, v in value.items()} if isinstance(value, dict) else value[:-1]
    return Episode(**parts)


def check(found: list[Episode], wanted: list[Episode], holds: Holds, history: bool = True) -> None:
    """Two lists of episodes are the same, bit for bit, dtypes included, in all that a format holds.

    Args:
        found, wanted: the episodes.
        holds: of the format.
        history: whether older frames of stacks must be the same, too.
    """
    assert [len(episode) for episode in found] == [len(episode) for episode in wanted]
    for one, other in zip(found, wanted, strict=True):
        for what in ("obs", "next_obs", "action", "extra"):
            mine, theirs = getattr(one, what), getattr(other, what)
            assert mine.keys() == theirs.keys()
            for leaf in theirs:
                count = len(one)
                if what == "next_obs" and not holds.final_obs and one.terminated[-1]:
                    count -= 1  # a terminated step's next observation is not known
                newest = slice(None) if history or what not in ("obs", "next_obs") else slice(-1, None)
                if what in ("obs", "next_obs"):
                    _same(mine[leaf][:count, newest], theirs[leaf][:count, newest], f"{what} {leaf}")
                else:
                    _same(mine[leaf], theirs[leaf], f"{what} {leaf}")
        _same(one.reward, other.reward, "reward")
        _same(one.terminated, other.terminated, "terminated")
        if holds.truncated:
            _same(one.truncated, other.truncated, "truncated")


def _same(mine: np.ndarray, theirs: np.ndarray, what: str) -> None:
    assert mine.dtype == theirs.dtype, what
    np.testing.assert_array_equal(mine, theirs, what)


# Stores


@dataclasses.dataclass(frozen=True)
class Case:
    """A kind of store.

    Attributes:
        name: of the case.
        make: writes such a store at a path.
        history: whether its stacks begin as padding says, so that formats of single frames give them back.
        stacked: whether observations are given stacked.
        nested_obs, nested_action, empty, columns, own_next_obs: what a format may refuse, or lose.
    """

    name: str
    make: Callable[[str], None]
    history: bool = True
    stacked: bool = False
    nested_obs: bool = False
    nested_action: bool = False
    empty: bool = False
    columns: bool = False
    own_next_obs: bool = False

    def __repr__(self) -> str:
        return self.name


def play(buffer: dr.ReplayBuffer, lengths: list[tuple[int, tuple[bool, bool]]], seed: int = 0) -> None:
    """Adds episodes of these lengths and ends to a buffer of one environment, with random values.

    Where the buffer's continuity is that of flags, no step observes the next observation of the one before.
    """
    by_flags = buffer.schema.continuity == "flags"
    space, action, rng = buffer.schema.observation_space, buffer.schema.action_space, np.random.default_rng(seed)
    for length, end in lengths:
        obs = sample(space, rng)
        for step in range(length):
            following = sample(space, rng)
            flags = end if step == length - 1 else NO_END
            extra = {
                column.name: rng.integers(0, 99, column.shape).astype(column.dtype)
                for column in buffer.schema.extra_columns
            }
            buffer.add(obs, sample(action, rng), np.float32(rng.normal()), following, *flags, **extra)
            obs = sample(space, rng) if by_flags else following
        if by_flags:
            buffer.cut()


def sample(space: gymnasium.Space[Any], rng: Rng) -> Any:
    """A random value of a space."""
    if isinstance(space, spaces.Dict):
        return {key: sample(part, rng) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(sample(part, rng) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.start, space.start + space.n, dtype=space.dtype.type)
    if isinstance(space, spaces.Text):
        return "".join(rng.choice(list(space.characters), rng.integers(space.min_length, space.max_length + 1)))
    if isinstance(space, spaces.MultiBinary | spaces.MultiDiscrete):
        return rng.integers(0, 2, space.shape).astype(space.dtype)
    assert isinstance(space, spaces.Box)
    if space.dtype == np.uint8:
        return rng.integers(0, 256, space.shape, np.uint8)
    return rng.normal(size=space.shape).astype(space.dtype)


USUAL = [(5, TERMINATED), (1, TERMINATED), (7, TRUNCATED), (1, TRUNCATED), (4, NO_END), (3, TERMINATED), (6, NO_END)]
"""Ends of all kinds, episodes of one step, a cut without a flag, and an episode that still goes on."""


def store(
    obs: gymnasium.Space[Any] = VECTOR, action: gymnasium.Space[Any] = FORCE, lengths: Any = USUAL, **options: Any
) -> Callable[[str], None]:
    """Makes a store of one environment."""

    def make(path: str) -> None:
        with dr.ReplayBuffer.create(path, obs, action, **{"capacity": 200, "seed": 0, **options}) as buffer:
            play(buffer, lengths)

    return make


def several_envs(path: str, num_envs: int = 3, rows: int = 23) -> None:
    """Environments in lockstep with next-step autoreset: rows that are no transitions, episodes across each other."""
    rng = np.random.default_rng(1)
    with dr.ReplayBuffer.create(path, VECTOR, spaces.Discrete(4), capacity=300, num_envs=num_envs, seed=0) as buffer:
        obs, valid, age = (
            rng.normal(size=(num_envs, 5)).astype(np.float32),
            np.ones(num_envs, bool),
            np.arange(num_envs),
        )
        for _ in range(rows):
            following = rng.normal(size=(num_envs, 5)).astype(np.float32)
            age = np.where(valid, age + 1, 0)
            done = valid & (age >= 6)
            late = rng.random(num_envs) < 0.5
            buffer.add(
                obs, rng.integers(4, size=num_envs), rng.normal(size=num_envs).astype(np.float32), following,
                done & ~late, done & late, valid=valid,
            )  # fmt: skip
            obs, valid = following, ~done


def several_streams(path: str) -> None:
    several_envs(path)
    with dr.ReplayBuffer.open(path, stream="second", num_envs=1, seed=0) as buffer:
        play(buffer, USUAL, seed=2)


def moved_window(path: str) -> None:
    """The first episode of the window began before it."""
    with dr.ReplayBuffer.create(path, FRAME, spaces.Discrete(3), capacity=20, frame_stack=3, seed=0) as buffer:
        play(buffer, [(9, TERMINATED), (8, TRUNCATED), (9, TERMINATED)])


def same_observation(path: str) -> None:
    """Episodes without a flag that end with just what the next begins with."""
    with dr.ReplayBuffer.create(path, VECTOR, FORCE, capacity=50, seed=0) as buffer:
        zero, action = np.zeros(5, np.float32), np.zeros(2, np.float32)
        for number in range(3):
            for step in range(3):
                buffer.add(zero, action, float(10 * number + step), zero, False, False)
            buffer.add(zero, action, -1.0, zero, False, False, valid=False)


def given_stacks(axis: int, padding: str) -> Callable[[str], None]:
    """Observations that hold their stack, with older frames that no padding explains in the second episode."""

    def make(path: str) -> None:
        shape = (3, 8, 8) if axis == 0 else (8, 8, 3)
        space = spaces.Box(0, 255, shape, np.uint8)
        rng = np.random.default_rng(3)
        with dr.ReplayBuffer.create(
            path, space, spaces.Discrete(3), capacity=90, frame_stack=3, stack_axis=axis, seed=0
        ) as buffer:
            for length, end in USUAL:
                first = rng.integers(0, 256, (8, 8), np.uint8)
                if padding == "odd":
                    stack = [rng.integers(0, 256, (8, 8), np.uint8), np.zeros_like(first), first]
                else:
                    stack = [first if padding == "reset" else np.zeros_like(first)] * 2 + [first]
                for step in range(length):
                    following = [*stack[1:], rng.integers(0, 256, (8, 8), np.uint8)]
                    flags = end if step == length - 1 else NO_END
                    obs, next_obs = (np.stack(part, axis=axis) for part in (stack, following))
                    buffer.add(obs, rng.integers(3), 1.0, next_obs, *flags)
                    stack = following

    return make


COLUMNS = {"log_prob": np.float32, "hidden": ((3,), np.float64), "valid_move": bool}
CASES = [
    Case("vectors, continuous actions", store()),
    Case("vectors, discrete actions", store(action=spaces.Discrete(6))),
    Case("discrete actions from 3", store(action=spaces.Discrete(4, start=3))),
    Case("double precision", store(spaces.Box(-9, 9, (4,), np.float64), reward_dtype=np.float64)),
    Case("several choices", store(action=spaces.MultiDiscrete([2, 3, 4]))),
    Case("matrices", store(MATRIX)),
    Case("discrete observations", store(spaces.Discrete(16), spaces.Discrete(4))),
    Case("colour images", store(IMAGE, spaces.Discrete(6))),
    Case("frames to be stacked", store(FRAME, spaces.Discrete(6), frame_stack=4)),
    Case("frames stacked with repeats", store(FRAME, spaces.Discrete(6), frame_stack=3, stack_padding="reset")),
    Case("dict", store(NESTED), nested_obs=True),
    Case(
        "tuple and nested actions", store(spaces.Tuple((VECTOR, IMAGE)), spaces.Dict(a=FORCE, b=spaces.Discrete(3))),
        nested_obs=True, nested_action=True,
    ),
    Case("columns", store(columns=COLUMNS), columns=True),
    Case("next observations of their own", store(continuity="flags"), own_next_obs=True),
    Case(
        "frames encoded anew", store(FRAME, spaces.Discrete(6), frame_stack=3, continuity="flags"), own_next_obs=True
    ),
    Case("several environments", several_envs),
    Case("several streams", several_streams),
    Case("window that moved on", moved_window, history=False),
    Case("the same observation again", same_observation),
    Case("both flags", store(lengths=[(3, BOTH), (2, TERMINATED), (1, BOTH)])),
    Case("one-step episodes", store(lengths=[(1, TERMINATED), (1, TRUNCATED), (1, TERMINATED)])),
    Case("one step", store(lengths=[(1, TERMINATED)])),
    Case("one step that goes on", store(lengths=[(1, NO_END)])),
    Case("empty", store(lengths=[]), empty=True),
    Case("stacks, zeros first", given_stacks(0, "zero"), stacked=True),
    Case("stacks, repeats first, last axis", given_stacks(-1, "reset"), stacked=True),
    Case("stacks that begin oddly", given_stacks(0, "odd"), stacked=True, history=False),
]  # fmt: skip
