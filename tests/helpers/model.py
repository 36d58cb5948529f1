"""The naive oracle: every step as it was given to ``add``, in lists, and what a sample must be, computed step by step.

Nothing here knows how the store works. A transition is looked up by walking the list; stacks, n-step returns and the
window are recomputed each time from the definitions in the documentation.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

import diskreplay as dr

Rng = np.random.Generator

STREAM_SHIFT = 48


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of an observation as it is given: ``frames`` of them are stacked along ``axis``, or none if None."""

    shape: tuple[int, ...]
    dtype: Any = np.uint8
    frames: int = 1
    axis: Literal[0, -1] | None = None

    @property
    def frame_shape(self) -> tuple[int, ...]:
        if self.axis is None:
            return self.shape
        depth = self.shape[self.axis] // self.frames
        rest = self.shape[1:] if self.axis == 0 else self.shape[:-1]
        if depth == 1:
            return rest
        return (depth, *rest) if self.axis == 0 else (*rest, depth)

    @property
    def merged(self) -> bool:
        return self.axis is not None and self.shape[self.axis] != self.frames

    def join(self, frames: Sequence[np.ndarray]) -> np.ndarray:
        """Frames, oldest first, as one observation."""
        if self.axis is None:
            (frame,) = frames
            return frame
        return (np.concatenate if self.merged else np.stack)(frames, axis=self.axis)

    def split(self, obs: np.ndarray) -> list[np.ndarray]:
        """The frames of an observation, oldest first."""
        if self.axis is None:
            return [obs]
        parts = np.split(obs, self.frames, axis=self.axis)
        return parts if self.merged else [part.squeeze(self.axis) for part in parts]

    def frame(self, rng: Rng) -> np.ndarray:
        """A random frame; now and then all zeros or all ones, so that padding must be told from frames."""
        kind = rng.random()
        if kind < 0.15:
            return np.zeros(self.frame_shape, self.dtype)
        if kind < 0.25:
            return np.ones(self.frame_shape, self.dtype)
        return rng.integers(0, 100, self.frame_shape).astype(self.dtype)

    def fresh(self, rng: Rng) -> np.ndarray:
        """An observation that starts anew: padded with zeros, with its own frame, or not at all."""
        newest = self.frame(rng)
        count = 1 if self.axis is None else self.frames
        kind = rng.random()
        if kind < 0.4:
            older = [np.zeros_like(newest)] * (count - 1)
        elif kind < 0.75:
            older = [newest] * (count - 1)
        else:
            older = [self.frame(rng) for _ in range(count - 1)]
        return self.join([*older, newest])

    def following(self, obs: np.ndarray, rng: Rng) -> np.ndarray:
        """An observation that follows from ``obs``."""
        return self.join([*self.split(obs)[1:], self.frame(rng)])

    def space(self) -> spaces.Box:
        return spaces.Box(0, 100, self.shape, self.dtype)


@dataclasses.dataclass(frozen=True)
class RaggedLeaf:
    """A leaf whose values have different numbers of items, of this shape; never stacked."""

    item: tuple[int, ...] = ()
    dtype: Any = np.int16
    most: int = 9
    frames = 1
    axis = None

    def fresh(self, rng: Rng) -> np.ndarray:
        """A value out of nowhere; now and then an empty one, or one that comes again and again."""
        kind = rng.random()
        if kind < 0.2:
            return np.zeros((0, *self.item), self.dtype)
        if kind < 0.4:
            return np.full((3, *self.item), 7, self.dtype)
        return rng.integers(0, 100, (int(rng.integers(1, self.most)), *self.item)).astype(self.dtype)

    def following(self, obs: np.ndarray, rng: Rng) -> np.ndarray:
        kind = rng.random()
        if kind < 0.4 and len(obs) < 40:  # a value that grows, as a conversation does
            return np.concatenate([obs, self.fresh(rng)])
        return obs if kind < 0.6 else self.fresh(rng)

    def split(self, obs: np.ndarray) -> list[np.ndarray]:
        return [obs]

    def space(self) -> spaces.Sequence:
        return spaces.Sequence(spaces.Box(0, 100, self.item, self.dtype), stack=True)


Structure = Leaf | RaggedLeaf | dict[str, Any] | tuple[Any, ...]
"""A leaf, or a dict or tuple of structures."""


def leaves(structure: Structure) -> list[Any]:
    if isinstance(structure, Leaf | RaggedLeaf):
        return [structure]
    return [leaf for part in _parts(structure) for leaf in leaves(part)]


def names(structure: Structure, prefix: str = "") -> list[str]:
    """Paths of the leaves, such as ``joints/0``."""
    if isinstance(structure, Leaf | RaggedLeaf):
        return [prefix]
    parts = structure.items() if isinstance(structure, dict) else enumerate(structure)
    return [name for key, part in parts for name in names(part, f"{prefix}/{key}" if prefix else str(key))]


def to_space(structure: Structure) -> gymnasium.Space[Any]:
    if isinstance(structure, Leaf | RaggedLeaf):
        return structure.space()
    if isinstance(structure, dict):
        return spaces.Dict([(key, to_space(part)) for key, part in structure.items()])
    return spaces.Tuple([to_space(part) for part in structure])


def nest(structure: Structure, values: Sequence[Any]) -> Any:
    """Values of the leaves, in order, as the space nests them."""
    remaining = list(values)

    def build(node: Structure) -> Any:
        if isinstance(node, Leaf | RaggedLeaf):
            return remaining.pop(0)
        if isinstance(node, dict):
            return {key: build(part) for key, part in node.items()}
        return tuple(build(part) for part in node)

    return build(structure)


def flat(value: Any) -> list[Any]:
    """The arrays of a nested value, in order; of ragged leaves the rows, without their padding."""
    if isinstance(value, dr.Padded):
        assert not np.asarray(value.values)[~value.mask].any(), "the padding is not zeros"
        assert (value.mask.sum(axis=-1) == value.length).all()
        return [value.lists()]
    if isinstance(value, Mapping):
        return [leaf for part in value.values() for leaf in flat(part)]
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in flat(part)]
    return [value]


def _parts(structure: Any) -> list[Any]:
    return list(structure.values()) if isinstance(structure, dict) else list(structure)


Obs = tuple[np.ndarray, ...]
"""One observation of one environment: its leaves."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of one environment, as it was given."""

    obs: Obs
    action: tuple[np.ndarray, ...]
    reward: float
    next_obs: Obs
    terminated: bool
    truncated: bool
    valid: bool
    extra: dict[str, np.ndarray]


Row = tuple[Step, ...]


@dataclasses.dataclass(frozen=True)
class Transition:
    """What a sample of one transition must be."""

    obs: Obs
    action: tuple[np.ndarray, ...]
    reward: float
    next_obs: Obs
    terminated: bool
    truncated: bool
    discount: float
    extra: dict[str, np.ndarray]


@dataclasses.dataclass
class Log:
    """All rows of a stream up to now, and the capacity of its window in transitions."""

    obs: Structure
    padding: Literal["zero", "reset"]
    frame_stack: int | Mapping[str, int]
    number: int
    num_envs: int
    capacity: int
    rows: list[Row] = dataclasses.field(default_factory=list)
    timeline: int = 0
    """How often it went back to a checkpoint."""
    tail: tuple[int, int] = (0, 0)
    """The number of its last commit's tail, and the least that is still there."""
    cleared: int = 0
    """The first row that was left when it was cleared or resized last."""
    found: dict[tuple[int, int], tuple[Step, Step, bool]] = dataclasses.field(default_factory=dict)
    """Pairs of steps that were compared already, and whether the second one goes on from the first."""

    def __post_init__(self) -> None:
        self.leaves = leaves(self.obs)
        self.names = names(self.obs)

    def upto(self, end: int) -> Log:
        """The stream as it was when it had ``end`` rows."""
        return dataclasses.replace(self, rows=self.rows[:end])

    def outran(self, seen: Log) -> bool:
        """Whether rows of the same stream as somebody saw it may be gone: evicted, given up, or with their tail."""
        return self.begin > seen.begin or self.timeline != seen.timeline or 0 < seen.tail[0] < self.tail[1]

    @property
    def end(self) -> int:
        return len(self.rows)

    @property
    def begin(self) -> int:
        return max(self.cleared, self.end - self.capacity // self.num_envs)

    def resize(self, capacity: int) -> None:
        """Rows that were evicted before do not come back."""
        self.cleared, self.capacity = self.begin, capacity
        self.cleared = self.begin

    def __len__(self) -> int:
        return sum(step.valid for row in self.rows[self.begin :] for step in row)

    def ended(self, row: int, env: int) -> bool:
        step = self.rows[row][env]
        return step.terminated or step.truncated

    def follows(self, row: int, env: int) -> bool:
        """Whether the row's next stacks are its stacks moved on by one frame."""
        step = self.rows[row][env]
        return all(
            same(old, new)
            for leaf, a, b in zip(self.leaves, step.obs, step.next_obs, strict=True)
            for old, new in zip(leaf.split(a)[1:], leaf.split(b)[:-1], strict=True)
        )

    def continues(self, row: int, env: int) -> bool:
        """Whether the row goes on where the row before it stopped."""
        if row == 0:
            return False
        before, now = self.rows[row - 1][env], self.rows[row][env]
        key = id(before), id(now)
        if key not in self.found:
            goes_on = before.valid and now.valid and not self.ended(row - 1, env) and self.follows(row - 1, env)
            self.found[key] = before, now, goes_on and all(map(same, before.next_obs, now.obs))
        return self.found[key][2]

    def cut(self, row: int, env: int) -> bool:
        """Whether nothing is known to follow from the row."""
        return self.ended(row, env) or (row + 1 < self.end and not self.continues(row + 1, env))

    def samples(self, row: int, env: int, n_step: int) -> bool:
        """Whether the row is a transition of the window whose steps are all known."""
        if not (self.begin <= row < self.end and self.rows[row][env].valid):
            return False
        return row + n_step <= self.end or any(self.cut(later, env) for later in range(row, self.end))

    def ids(self, n_step: int) -> list[int]:
        """The ids of all transitions that can be sampled."""
        return [
            self.number << STREAM_SHIFT | row * self.num_envs + env
            for row in range(self.begin, self.end)
            for env in range(self.num_envs)
            if self.samples(row, env, n_step)
        ]

    def depth(self, at: int) -> int:
        """Frames that a sample of leaf ``at`` stacks from single frames."""
        return self.frame_stack if isinstance(self.frame_stack, int) else self.frame_stack.get(self.names[at], 1)

    def stack(self, row: int, env: int, at: int) -> list[np.ndarray]:
        """The frames of leaf ``at`` that end in this row, oldest first, stacked from single frames."""
        frames = [self.rows[row][env].obs[at]]
        while len(frames) < self.depth(at):
            if self.continues(row, env):
                row -= 1
                frames.insert(0, self.rows[row][env].obs[at])
            else:
                frames.insert(0, np.zeros_like(frames[0]) if self.padding == "zero" else frames[0])
        return frames

    def transition(self, row: int, env: int, n_step: int, gamma: float) -> Transition:
        """The transition that starts in this row."""
        last, reward = row, self.rows[row][env].reward
        while last - row + 1 < n_step and not self.cut(last, env):
            last += 1
            reward += gamma ** (last - row) * self.rows[last][env].reward
        first, final = self.rows[row][env], self.rows[last][env]
        obs, next_obs = [], []
        for at, leaf in enumerate(self.leaves):
            if leaf.axis is not None or self.depth(at) == 1:
                obs.append(first.obs[at])
                next_obs.append(final.next_obs[at])
            else:
                obs.append(np.stack(self.stack(row, env, at)))
                next_obs.append(np.stack([*self.stack(last, env, at)[1:], final.next_obs[at]]))
        return Transition(
            tuple(obs), first.action, reward, tuple(next_obs), final.terminated, final.truncated,
            0.0 if final.terminated else gamma ** (last - row + 1), first.extra,
        )  # fmt: skip

    def runs(self) -> list[tuple[int, int, int]]:
        """Environment, first and one past the last row of every run of valid steps in the window."""
        found = []
        for env in range(self.num_envs):
            start = None
            for row in range(self.begin, self.end):
                if not self.rows[row][env].valid:
                    continue
                if start is None or not self.continues(row, env):
                    start = row
                if row + 1 == self.end or not self.continues(row + 1, env):
                    found.append((env, start, row + 1))
        return sorted(found, key=lambda run: (run[1], run[0]))


def same(a: Any, b: Any) -> bool:
    """Whether two arrays are the same bit for bit, in shape and dtype too."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def check_batch(batch: Any, logs: Sequence[Log], n_step: int, gamma: float) -> None:
    """Every transition of a batch is just what the logs say for its index."""
    by_number = {log.number: log for log in logs}
    assert batch.index.dtype == np.int64
    for at, index in enumerate(batch.index.tolist()):
        log = by_number[index >> STREAM_SHIFT]
        row, env = divmod(index & ((1 << STREAM_SHIFT) - 1), log.num_envs)
        where = f"stream {log.number} row {row} env {env} of rows {log.begin} to {log.end}"
        assert log.samples(row, env, n_step), f"{where}: is no transition that can be sampled"
        expected = log.transition(row, env, n_step, gamma)
        for name in ("obs", "next_obs", "action"):
            for part, (got, want) in enumerate(zip(flat(getattr(batch, name)), getattr(expected, name), strict=True)):
                assert same(got[at], want), f"{where}: {name}[{part}]: got {got[at].tolist()}, not {want.tolist()}"
        np.testing.assert_allclose(batch.reward[at], expected.reward, rtol=1e-5, atol=1e-5, err_msg=where)
        np.testing.assert_allclose(batch.discount[at], expected.discount, rtol=1e-6, err_msg=where)
        assert batch.terminated[at] == expected.terminated, where
        assert batch.truncated[at] == expected.truncated, where
        assert batch.extra.keys() == expected.extra.keys(), where
        for name, want in expected.extra.items():
            assert same(flat(batch.extra[name])[0][at], want), f"{where}: {name}"


def check_buffer(buffer: Any, logs: Sequence[Log], n_step: int, gamma: float) -> None:
    """The buffer holds just what the logs say: its length, its episodes, and every transition."""
    assert len(buffer) == sum(len(log) for log in logs)
    ids = [index for log in sorted(logs, key=lambda log: log.number) for index in log.ids(n_step)]
    if ids:
        check_batch(buffer.get(np.array(ids)), logs, n_step, gamma)
    found = [(e.stream, e.env, e.start, e.stop) for e in buffer.episodes]
    assert found == [(log.number, *run) for log in sorted(logs, key=lambda log: log.number) for run in log.runs()]


KINDS = ("step", "step", "step", "terminate", "truncate", "cut", "jump", "skip")


class Actor:
    """Makes up the steps of one stream's environments.

    A kind of step for each environment: an ordinary one, one that ends the episode, one that begins with an
    observation out of nowhere (``cut``), one whose next stack does not follow from its stack (``jump``), one that is no
    transition (``skip``). After an ending step, ``next_step`` environments come with the final observation and an
    invalid row, the others with the observation after the reset.
    """

    def __init__(
        self,
        log: Log,
        rng: Rng,
        action: Callable[[Rng], tuple[np.ndarray, ...]],
        extra: Callable[[Rng], dict[str, Any]],
    ) -> None:
        self.log = log
        self.rng = rng
        self.action = action
        self.extra = extra
        self.current: list[Obs] = [self.fresh() for _ in range(log.num_envs)]
        self.resetting = [False] * log.num_envs

    def fresh(self) -> Obs:
        return tuple(leaf.fresh(self.rng) for leaf in self.log.leaves)

    def restart(self) -> None:
        """After rows were lost: goes on anew, or from the newest row that is left."""
        for env in range(self.log.num_envs):
            self.resetting[env] = False
            if self.log.end and self.rng.random() < 0.6:
                self.current[env] = self.log.rows[-1][env].next_obs
            else:
                self.current[env] = self.fresh()

    def row(self, kinds: Sequence[str], next_step: bool) -> Row:
        """One step of every environment."""
        return tuple(self._step(env, kinds[env % len(kinds)], next_step) for env in range(self.log.num_envs))

    def _step(self, env: int, kind: str, next_step: bool) -> Step:
        if kind == "cut":
            self.current[env] = self.fresh()
        obs = self.current[env]
        ends = kind in ("terminate", "truncate")
        valid = kind != "skip"
        following = tuple(leaf.following(x, self.rng) for leaf, x in zip(self.log.leaves, obs, strict=True))
        if self.resetting[env]:
            self.resetting[env], ends, valid, following = False, False, False, self.fresh()
        elif kind == "jump":
            following = self.fresh()
        step = Step(
            obs, self.action(self.rng), float(self.rng.integers(-4, 5)), following,
            ends and kind == "terminate", ends and kind == "truncate", valid, self.extra(self.rng),
        )  # fmt: skip
        self.current[env] = following
        if ends and next_step:
            self.resetting[env] = True
        elif ends:
            self.current[env] = self.fresh()
        return step


def arguments(structure: Structure, row: Row, always_valid: bool = True) -> dict[str, Any]:
    """A row as the arguments of ``add``, copied: arrays lead with the number of environments when there are several."""

    ragged = [isinstance(leaf, RaggedLeaf) for leaf in leaves(structure)]

    def join(values: Sequence[Any], ragged: bool = False) -> Any:
        if ragged or len({np.shape(value) for value in values}) > 1:
            return copy.deepcopy(values[0] if len(row) == 1 else list(values))
        return copy.copy(values[0]) if len(row) == 1 else np.stack(values)

    count = len(row[0].obs)
    actions = [join([step.action[at] for step in row]) for at in range(len(row[0].action))]
    return {
        "obs": nest(structure, [join([step.obs[at] for step in row], ragged[at]) for at in range(count)]),
        "action": actions[0] if len(actions) == 1 else tuple(actions),
        "reward": join([step.reward for step in row]),
        "next_obs": nest(structure, [join([step.next_obs[at] for step in row], ragged[at]) for at in range(count)]),
        "terminated": join([step.terminated for step in row]),
        "truncated": join([step.truncated for step in row]),
        "valid": None if always_valid and all(step.valid for step in row) else join([step.valid for step in row]),
        **{name: join([step.extra[name] for step in row]) for name in row[0].extra},
    }
