"""The way of steps of RLlib's episodes into a store: several at once, of several environments."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.spaces.space_utils import batch as batched

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import Array, check_array
from diskreplay.errors import InputError
from diskreplay.index.spans import EpisodeSpan
from diskreplay.ray.episodes import ID, NUMBER, STEP, Episodes, goes_on
from diskreplay.schema import spaces
from diskreplay.schema.columns import TERMINATED, TRUNCATED, VALID


@dataclasses.dataclass(frozen=True)
class Chunk:
    """The steps of an episode on their way in; arrays lead with their number, observations with one more."""

    id: str
    t: int
    obs: Any
    action: Any
    reward: Array
    terminated: bool
    truncated: bool

    def __len__(self) -> int:
        return len(self.reward)


def chunk_of(episode: SingleAgentEpisode) -> Chunk:
    def values(given: Any) -> Any:
        return batched(given) if isinstance(given, list) else given

    return Chunk(
        str(episode.id_), int(episode.t_started), values(episode.get_observations()), values(episode.get_actions()),
        check_array("reward", episode.get_rewards()).astype(np.float64), bool(episode.is_terminated),
        bool(episode.is_truncated),
    )  # fmt: skip


class Rows:
    """The rows of all environments on their way into a store; one that no chunk has is not a transition."""

    def __init__(self, store: ReplayBuffer, rows: int, first: int) -> None:
        lead = (rows, store.num_envs)
        schema = store.schema
        self._store, self._first = store, first
        self._obs = [np.zeros((*lead, *column.shape), column.dtype) for column in schema.obs_columns]
        self._next = [np.zeros_like(values) for values in self._obs]
        self._action = [np.zeros((*lead, *column.shape), column.dtype) for column in schema.action_columns]
        self._reward = np.zeros(lead, np.float64)
        self._flags = {name: np.zeros(lead, bool) for name in (TERMINATED, TRUNCATED, VALID)}

    def put(self, chunk: Chunk, lane: int, row: int) -> None:
        """Put a chunk at its place; raise InputError for values that are not of the store's spaces."""
        schema, at = self._store.schema, slice(row - self._first, row - self._first + len(chunk))
        for slots, (tree_, value, what) in (
            ((self._obs, self._next), (schema.obs_tree, chunk.obs, "obs")),
            ((self._action,), (schema.action_tree, chunk.action, "action")),
        ):
            for number, leaf in enumerate(spaces.flatten(tree_, value, what)):
                given = check_array(what, leaf)
                slot = slots[0][number]
                if given.shape[1:] != slot.shape[2:] or not np.can_cast(given.dtype, slot.dtype, "same_kind"):
                    raise InputError(
                        f"{what} of episode {chunk.id!r}: must be {slot.dtype} {slot.shape[2:]}, got {given.dtype} "
                        f"{given.shape[1:]}"
                    )
                slot[at, lane] = given[: len(chunk)]
                if len(slots) > 1:
                    slots[1][number][at, lane] = given[1:]
        self._reward[at, lane] = chunk.reward
        self._flags[VALID][at, lane] = True
        self._flags[TERMINATED][at.stop - 1, lane] = chunk.terminated
        self._flags[TRUNCATED][at.stop - 1, lane] = chunk.truncated

    def extend(self, start: int, stop: int) -> None:
        """Add rows ``[start, stop)`` to the store."""
        schema, at = self._store.schema, slice(start - self._first, stop - self._first)

        def part(values: Array) -> Array:
            return values[at, 0] if self._store.num_envs == 1 else values[at]

        self._store.extend(
            spaces.unflatten(schema.obs_tree, [part(values) for values in self._obs]),
            spaces.unflatten(schema.action_tree, [part(values) for values in self._action]),
            part(self._reward),
            spaces.unflatten(schema.obs_tree, [part(values) for values in self._next]),
            part(self._flags[TERMINATED]), part(self._flags[TRUNCATED]), valid=part(self._flags[VALID]),
        )  # fmt: skip


class Lanes:
    """The environments of a store in which the episodes that are not done go on.

    Args:
        count: environments of the store.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._running: collections.OrderedDict[str, int] = collections.OrderedDict()
        """The environments by episode, the one that was not added to for longest first."""

    def take(self, chunk: Chunk, lengths: Sequence[int]) -> int:
        """Return the environment of the store that takes a chunk: its episode's, or the emptiest that is free."""
        lane = self._running.pop(chunk.id, None)
        if lane is None:
            taken = set(self._running.values())
            free = [number for number in range(self._count) if number not in taken]
            lane = min(free, key=lengths.__getitem__) if free else self._running.popitem(last=False)[1]
        if not (chunk.terminated or chunk.truncated):
            self._running[chunk.id] = lane
        return lane


def write(store: ReplayBuffer, index: Episodes, lanes: Lanes, chunks: Sequence[Chunk]) -> None:
    """Add chunks of episodes to a store, and to the index of what it holds."""
    lengths = [0] * store.num_envs
    log = store.engine.appender.log
    first = log.end
    newest: dict[str, EpisodeSpan] = {}
    """The newest span of each episode, by its id."""
    begins: dict[int, list[tuple[str, EpisodeSpan]]] = collections.defaultdict(list)
    """By row: the ids and spans that do not go on with the row before it."""
    placed: list[tuple[Chunk, EpisodeSpan]] = []
    for chunk in chunks:
        lane = lanes.take(chunk, lengths)
        held, last, row = index.find(chunk.id), newest.get(chunk.id), first + lengths[lane]
        if last is None and held is not None:
            last = held.spans[-1]
        number, step = (index.new_number(), 0) if last is None else (last.episode, last.step + len(last))
        span = EpisodeSpan(log.stream, log.num_envs, lane, row, row + len(chunk), number, step)
        if last is None or not goes_on(last, span):
            begins[row].append((chunk.id, span))
        newest[chunk.id] = span
        placed.append((chunk, span))
        lengths[lane] += len(chunk)
    rows = Rows(store, max(lengths), first)
    for chunk, span in placed:
        rows.put(chunk, span.env, span.start)
    for start, stop in itertools.pairwise(sorted({first, first + max(lengths), *begins})):
        for id, span in begins.get(start, ()):
            store.begin_episode(env=span.env, **{ID: id, NUMBER: span.episode, STEP: span.step})
        rows.extend(start, stop)
    for chunk, span in placed:
        index.extend(chunk.id, span)
