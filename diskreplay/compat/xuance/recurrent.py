"""XuanCe's off-policy buffer of whole episodes.

1. An episode's steps are rows of a store for one environment. Each knows its step, and the last one that it is the
   last, so that :class:`~diskreplay.compat.xuance.episodes.FinishedEpisodes` finds the finished ones again.
2. What is drawn are an episode and a step in it; the rows from there on are read.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import Array, check_array, check_count
from diskreplay.compat.adapter_state import AdapterState
from diskreplay.compat.disk_array import ReadSequence
from diskreplay.compat.ring import Ring
from diskreplay.compat.rows import column, ids_of
from diskreplay.compat.stores import closed_on_failure
from diskreplay.compat.xuance.disk_buffer import DiskBuffer, open_off_policy, stored_space
from diskreplay.compat.xuance.episodes import STEP, FinishedEpisodes
from diskreplay.compat.xuance.memory import Buffer, EpisodeBuffer, Shapes, space_shape
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.sampling.uniform import Uniform
from diskreplay.schema.ids import Ids
from diskreplay.views.batch import map_arrays

LAST = "last"
FIELDS = "obs", "acts", "rews", "done"
LISTS = "obs", "action", "reward", "done"
"""The lists of an :class:`EpisodeBuffer` that hold these."""


class RecurrentOffPolicyBuffer(DiskBuffer, Buffer):
    """Whole episodes, of which sequences are drawn, for recurrent learners.

    Args:
        observation_space, action_space: Gymnasium's, or of another library that has ``shape``; a Dict of such. Their
            dtypes are those of the episodes; float32 where they have none.
        auxiliary_shape: taken and ignored.
        n_envs: environments; whose an episode is does not matter.
        n_size: episodes that are held.
        batch_size: sequences of a sample.
        episode_length: steps of an episode at most.
        lookup_length: steps of a sequence at most.
        path: the directory of the store, which is made if nothing is there; None for a temporary one that goes away
            with the buffer.
        **options: ``seed``, ``codec``, ``chunk_rows``, ``shard_rows``, ``cache_bytes``, ``commit_rows``,
            ``commit_seconds``, as of :class:`DummyOffPolicyBuffer`.

    Attributes:
        memory: the episodes, oldest first, as :class:`EpisodeBuffer`; read from the store when they are indexed.
        n_envs, n_size, batch_size, episode_length, lookup_length: the arguments of these names.
        engine: the store, a :class:`diskreplay.ReplayBuffer` of one environment.
    """

    engine: ReplayBuffer

    def __init__(
        self, observation_space: Any, action_space: Any, auxiliary_shape: Mapping[str, Any] | None, n_envs: int,
        n_size: int, batch_size: int, episode_length: int, lookup_length: int, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(observation_space, action_space, auxiliary_shape)
        self.n_envs, self.n_size = check_count("n_envs", n_envs), check_count("n_size", n_size)
        self.batch_size = check_count("batch_size", batch_size)
        self.episode_length = check_count("episode_length", episode_length)
        self.lookup_length = check_count("lookup_length", lookup_length)
        create = {
            "observation_space": _typed_space("observation_space", observation_space),
            "action_space": _typed_space("action_space", action_space), "num_envs": 1,
            "capacity": (self.n_size + 1) * self.episode_length,
            "columns": {STEP: ((), np.int32), LAST: ((), bool)}, "sampler": Uniform(),
        }  # fmt: skip
        self._own_draws = options.get("seed") is not None
        self.engine = open_off_policy(self, options, create)
        with closed_on_failure(self.engine):
            self._episodes = FinishedEpisodes(self.engine, self.n_size, functools.partial(_ended, self.engine))
            self._adapter = AdapterState(self.engine, ring=Ring(size=self.n_size, held=self._episodes.held))
            self._adapter.restore()
            self._adapter.attach(self)

    @property
    def memory(self) -> Sequence[EpisodeBuffer]:
        firsts, lengths = self._episodes.at(np.arange(*self._episodes.held()))
        engine = self.engine
        return ReadSequence(lambda: len(firsts), lambda at: _episode(engine, int(firsts[at]), int(lengths[at])))

    def can_sample(self) -> bool:
        """Tell whether there are ``batch_size`` episodes."""
        return bool(self.size >= self.batch_size)

    def store(self, episode: Any) -> None:
        """Store a copy of an episode.

        Args:
            episode: an :class:`EpisodeBuffer` of ``T`` steps, 1 to ``episode_length``, and ``T + 1`` observations; or a
                dict of ``obs`` ``(T + 1, ...)``, ``acts``, ``rews`` and ``done`` ``(T, ...)``.

        Raises InputError, with nothing stored, for other shapes and lengths.
        """
        obs, acts, rews, done = self._checked(episode)
        count = len(rews)
        ended = done.astype(bool)
        self._ring.catch_up()
        last = np.arange(count) == count - 1
        self.engine.extend(
            map_arrays(lambda values: values[:-1], obs), acts, rews, map_arrays(lambda values: values[1:], obs), ended,
            last & ~ended, step=np.arange(count, dtype=np.int32), last=last,
        )  # fmt: skip

    def _checked(self, episode: Any) -> tuple[Any, Any, Array, Array]:
        try:
            by_key = isinstance(episode, Mapping)
            given = [episode[name] for name in FIELDS] if by_key else [getattr(episode, name) for name in LISTS]
        except (AttributeError, KeyError) as error:
            raise InputError(f"an episode must be an EpisodeBuffer, or a dict of {FIELDS}: {error}") from error
        space = self.engine.schema
        obs = _stacked("obs", given[0], space_shape("obs", space.observation_space))
        acts = _stacked("acts", given[1], space_shape("acts", space.action_space))
        rews, done = (_stacked(name, values, ()) for name, values in zip(FIELDS[2:], given[2:], strict=True))
        lengths = {_length(obs) - 1, _length(acts), len(rews), len(done)}
        if len(lengths) > 1:
            raise InputError(
                "an episode must have as many rewards and dones as actions, and one observation more (append the first "
                f"one to obs before the first put): got {_length(obs)} observations, {_length(acts)} actions, "
                f"{len(rews)} rewards and {len(done)} dones"
            )
        if not 1 <= len(rews) <= self.episode_length:
            raise InputError(f"an episode must have 1 to episode_length={self.episode_length} steps, got {len(rews)}")
        if not ((done == 0) | (done == 1)).all():
            raise InputError("done must be True or False; nothing was stored")
        return obs, acts, rews, done

    def sample(self) -> tuple[Any, Array, Array, Array]:
        """Return ``B = batch_size`` sequences, as long as the shortest episode drawn, at most ``lookup_length`` steps.

        Episodes are drawn with replacement, and where a sequence begins, uniformly.

        Returns:
            ``obs`` ``(B, T + 1, *obs_shape)``, with the observation after the last step; ``acts`` ``(B, T, ...)``;
            ``rews`` ``(B, T)`` float32; ``terminals`` ``(B, T)`` bool. Dtypes of the spaces.

        Raises NotEnoughDataError when the buffer is empty.
        """
        begin, end = self._episodes.held()
        if begin == end:
            raise NotEnoughDataError("the buffer is empty: store an episode before sampling")
        firsts, lengths = self._episodes.at(begin + self._integers(end - begin, self.batch_size))
        count = min(self.lookup_length, *lengths.tolist())
        starts = [int(self._integers(length - count + 1, 1)[0]) for length in lengths.tolist()]
        parts = _read(self.engine, firsts + starts, count)
        return parts[0], parts[1], parts[2], parts[3]


def _episode(engine: ReplayBuffer, first: int, count: int) -> EpisodeBuffer:
    obs, acts, rews, done = _read(engine, np.array([first]), count)

    def steps(values: Any, length: int = count) -> list[Any]:
        return [map_arrays(operator.itemgetter((0, at)), values) for at in range(length)]

    episode = EpisodeBuffer()
    episode.obs, episode.action, episode.reward, episode.done = steps(obs, count + 1), *map(steps, (acts, rews, done))
    return episode


def _ended(engine: ReplayBuffer, start: int, stop: int) -> NDArray[np.bool_]:
    return column(engine, LAST, start, stop)[:, 0]


def _read(engine: ReplayBuffer, firsts: Ids, count: int) -> list[Any]:
    """Return observations ``(B, count + 1, ...)`` and other fields ``(B, count, ...)`` from rows ``(B,)`` on."""
    batch = engine.get(ids_of(engine, firsts[:, None] + np.arange(count), 0).ravel())

    def sequences(values: Any) -> Any:
        return map_arrays(lambda array: array.reshape(len(firsts), count, *array.shape[1:]), values)

    obs, after = sequences(batch.obs), sequences(batch.next_obs)
    if isinstance(obs, Mapping):
        whole: Any = {key: np.concatenate([obs[key], after[key][:, -1:]], 1) for key in obs}
    else:
        whole = np.concatenate([obs, after[:, -1:]], 1)
    return [whole, *(sequences(values) for values in (batch.action, batch.reward, batch.terminated))]


def _stacked(what: str, values: Any, shape: Shapes) -> Any:
    """Return a list of values as an array, or a list of dicts as a dict of arrays."""
    try:
        if isinstance(shape, dict):
            if isinstance(values, Mapping):
                return {key: _stacked(what, values[key], part) for key, part in shape.items()}
            return {key: _stacked(what, [value[key] for value in values], part) for key, part in shape.items()}
        array = check_array(what, values)
        return array.reshape(len(array), *shape)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{what} of an episode must have the shape {shape} each: {error}") from error


def _length(values: Any) -> int:
    return len(next(iter(values.values()))) if isinstance(values, Mapping) else len(values)


def _typed_space(what: str, space: Any) -> Any:
    """Return the space of any values of the shape and dtype of a space."""
    parts = getattr(space, "spaces", space)
    if not isinstance(parts, Mapping):
        return stored_space(space_shape(what, space), getattr(space, "dtype", None) or np.float32)
    return spaces.Dict([(key, _typed_space(f"{what}[{key!r}]", part)) for key, part in parts.items()])
