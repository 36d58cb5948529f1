"""RLlib's episode buffers over a store.

1. Steps go to disk as they are added, one environment of the store for each that samples in parallel; which row is
   which step of which episode stays in RAM, and is found again from the facts of the store's episodes.
2. Their state is the name of a checkpoint of the store: no row is copied, and setting it goes back there.

Needs RLlib's new API stack; :mod:`diskreplay.ray.algorithms` are the algorithms that hold them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils import force_list
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from ray.rllib.utils.replay_buffers import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import check_array, check_count
from diskreplay.compat.disk_array import ReadSequence
from diskreplay.compat.location import Location, close_with
from diskreplay.compat.sampler_draws import draw
from diskreplay.compat.stores import OPEN_OPTIONS, check_checkpoint, closed_on_failure, numbered
from diskreplay.errors import CheckpointError, InputError, NotEnoughDataError
from diskreplay.ray import episode_reads
from diskreplay.ray.episode_writes import Chunk, Lanes, chunk_of, write
from diskreplay.ray.episodes import Episodes, Held
from diskreplay.sampling.proportional import Proportional
from diskreplay.sampling.uniform import Uniform
from diskreplay.sampling.window import Sampler
from diskreplay.schema.spaces import unbounded
from diskreplay.storage.attachments import Given
from diskreplay.storage.paths import PathLike, checked_path

CHECKPOINT = "rllib-"
"""The prefix of the names of the store's checkpoints, before a number."""
ROOM = 2
"""The rows of the store for each step of the buffer's capacity: those of evicted episodes stand between the others."""
ROUNDS = 1000
"""The rounds of draws after which nothing is there that can be sampled."""
STORE_OPTIONS = ("codec", "chunk_rows", "shard_rows", "reward_dtype", *OPEN_OPTIONS)
IGNORED = "beta", "_enable_replay_buffer_api"
"""The entries of RLlib's ``replay_buffer_config`` that are none of the buffer's."""


class DiskEpisodeReplayBuffer(EpisodeReplayBuffer):  # type: ignore[misc]
    """RLlib's ``EpisodeReplayBuffer`` with its episodes on disk.

    Adding, evicting, lengths and metrics are RLlib's: an episode may come in chunks, and the oldest episodes go whole
    once there are more than ``capacity`` steps. ``episodes[i]`` is read from disk.

    Args:
        capacity: steps that are kept.
        path: the path of the store; None for a temporary one, which goes away with the buffer. A store that is at the
            path is continued.
        num_envs: environments that sample in parallel, ``num_env_runners * num_envs_per_env_runner``. More episodes
            than these at a time are kept too, but their observations stand on disk twice.
        observation_space, action_space: the spaces of the store; those of the first episode if None.
        keep_checkpoints: how many of the checkpoints that :meth:`get_state` makes are kept; older ones are dropped.
        seed: the seed of the draws.
        batch_size_B, batch_length_T, metrics_num_episodes_for_smoothing: as in RLlib's.
        **options: the options of the store: ``codec``, ``chunk_rows``, ``shard_rows``, ``reward_dtype`` (float64 if not
            given, as RLlib keeps it), ``cache_bytes``, ``commit_rows``, ``commit_seconds``.

    Raises InputError for an option that is none of these, and what :meth:`ReplayBuffer.open` raises.
    """

    def __init__(
        self, capacity: int = 10000, *, path: PathLike | None = None, num_envs: int = 1,
        observation_space: gymnasium.Space[Any] | None = None, action_space: gymnasium.Space[Any] | None = None,
        keep_checkpoints: int = 2, seed: int | None = None, batch_size_B: int = 16, batch_length_T: int = 64,
        metrics_num_episodes_for_smoothing: int = 100, **options: Any,
    ) -> None:  # fmt: skip
        # Not RLlib's own __init__: its lists of all steps, and trees of Python numbers, are what is replaced here.
        self.capacity = check_count("capacity", capacity)
        self.batch_size_B, self.batch_length_T = batch_size_B, batch_length_T
        self.sampled_timesteps = 0
        self.metrics = MetricsLogger(root=False)
        self._metrics_num_episodes_for_smoothing = metrics_num_episodes_for_smoothing
        self._num_timesteps_added = 0
        options = {name: value for name, value in options.items() if name not in IGNORED}
        unknown = sorted(options.keys() - set(STORE_OPTIONS))
        if unknown:
            raise InputError(f"unknown options {unknown}; there are {', '.join(STORE_OPTIONS)}")
        self._options = options
        self._num_envs = check_count("num_envs", num_envs)
        self._keep = check_count("keep_checkpoints", keep_checkpoints)
        self._seed = seed
        self._spaces = observation_space, action_space
        if path is not None and "://" in checked_path(path):
            raise InputError(f"an algorithm writes to a directory, got {path!r}")
        self._place = Location(path, self)
        self.store: ReplayBuffer | None = None
        """The store of the steps, or None before the first one."""
        self._index = Episodes()
        self._lanes = Lanes(self._num_envs)
        self._last_sampled_indices: list[int] = []
        if self._place.exists:
            self._open(None)

    # Opening

    def _sampler(self) -> Sampler:
        return Uniform()

    @property
    def _rows(self) -> int:
        return -(-ROOM * self.capacity // self._num_envs)

    def _open(self, checkpoint: str | None) -> None:
        opening = {name: self._options[name] for name in OPEN_OPTIONS if name in self._options}
        # A checkpoint's own sampler comes with its priorities, whatever beta it was at.
        sampler = self._sampler() if checkpoint is None else None
        store = ReplayBuffer.open(
            self._place.path, checkpoint=checkpoint, sampler=sampler, seed=self._seed, ragged=None, **opening
        )  # fmt: skip
        with closed_on_failure(store):
            self._check_sampler(store, checkpoint)
            capacity = self._rows * self._num_envs
            for what, has, asked in (
                ("environments", store.num_envs, self._num_envs),
                ("rows", store.capacity, capacity),
            ):
                if has != asked:
                    raise InputError(
                        f"the store at {store.path!r} was made for {has} {what}, this buffer needs {asked}: choose the "
                        "capacity and num_envs that it was made with, or another path"
                    )
            self._restore(store, store.checkpoint_metadata(checkpoint) if checkpoint else {})
        self._take(store)

    def _restore(self, store: ReplayBuffer, facts: Mapping[str, Any]) -> None:
        self._index = Episodes(store, facts.get("evicted", 0))
        self._num_timesteps_added = facts.get("added", self._index.steps)
        self.sampled_timesteps = facts.get("sampled", 0)
        self._lanes = Lanes(self._num_envs)
        self._last_sampled_indices = []

    def _create(self, first: SingleAgentEpisode, chunk: Chunk) -> ReplayBuffer:
        given = (first.observation_space, first.action_space)
        space, actions = (
            _plain(chosen or recorded) or _space_of(values)
            for chosen, recorded, values in zip(self._spaces, given, (chunk.obs, chunk.action), strict=True)
        )
        options = {"reward_dtype": np.float64, **self._options}
        store = ReplayBuffer.create(
            self._place.path, space, actions, capacity=self._rows * self._num_envs, num_envs=self._num_envs,
            continuity="flags", sampler=self._sampler(), seed=self._seed, ragged=None, **options,
        )  # fmt: skip
        self._take(store)
        return store

    def _take(self, store: ReplayBuffer) -> None:
        self.store = store
        close_with(self, store)

    def close(self) -> None:
        """Commit, and give the store to the next writer, which otherwise happens once the buffer is forgotten."""
        if self.store is not None:
            self.store.close()

    # Adding

    def add(self, episodes: Any, weight: float | None = None) -> None:
        """Add episodes, or chunks of them, as RLlib's buffer does.

        Raises InputError for values that are not of the store's spaces, and rewards that are not finite.
        """
        given = [episode for episode in force_list(episodes) if len(episode)]
        chunks = [chunk_of(episode) for episode in given]
        before, evicted_before = len(self._index) + self._index.evicted, self._index.evicted
        steps_before = self._index.steps
        added = sum(map(len, chunks))
        if chunks:
            store = self.store if self.store is not None else self._create(given[0], chunks[0])
            write(store, self._index, self._lanes, chunks)
            self._num_timesteps_added += added
            self._evict(store)
        new = len(self._index) + self._index.evicted - before
        gone, gone_steps = self._index.evicted - evicted_before, steps_before + added - self._index.steps
        self._update_add_metrics(
            num_episodes_added=new, num_env_steps_added=added, num_episodes_evicted=gone,
            num_env_steps_evicted=gone_steps, **_each("episodes_added", new), **_each("steps_added", added),
            **_each("episodes_evicted", gone), **_each("steps_evicted", gone_steps),
        )  # fmt: skip

    def _evict(self, store: ReplayBuffer) -> None:
        log, index = store.engine.appender.log, self._index
        while len(index) > 1 and (index.steps > self.capacity or (index.first_row() or 0) < log.begin):
            index.evict()
        first = index.first_row()
        if first is not None and first > log.begin:
            with store.engine.write_lock, store.engine.lock:
                log.slide(first)

    # Sampling

    def sample(
        self, num_items: int | None = None, *, batch_size_B: int | None = None, batch_length_T: int | None = None,
        n_step: int | tuple[int, int] | None = None, beta: float = 0.0, gamma: float = 0.99,
        include_infos: bool = False, include_extra_model_outputs: bool = False, sample_episodes: bool | None = False,
        to_numpy: bool = False, lookback: int = 0, min_batch_length_T: int = 0, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Draw as RLlib's buffer does.

        With ``sample_episodes`` a list of episodes of one (n-step) transition each, else a dict of arrays ``(B,
        T, ...)``.

        Raises InputError for sequences of episodes, infos and extra model outputs, which are not kept, and
        NotEnoughDataError where nothing is there that can be drawn.
        """
        size = self._size(num_items, batch_size_B)
        if not sample_episodes:
            return self._rows_of(size, check_count("batch_length_T", batch_length_T or self.batch_length_T))
        if n_step is None:
            raise InputError("sampling episodes needs n_step")
        if batch_length_T:
            raise InputError(
                "sequences of episodes are for stateful modules, whose states are not kept: use RLlib's own buffer"
            )
        _check_kept(include_infos, include_extra_model_outputs)
        return self._transitions(size, n_step, gamma, to_numpy, whole=False)

    def _size(self, num_items: int | None, batch_size_B: int | None) -> int:
        if num_items is not None and batch_size_B is not None:
            raise InputError("give num_items or batch_size_B, not both")
        return check_count("num_items", num_items or batch_size_B or self.batch_size_B)

    def _draw(self, count: int, fits: Callable[[Held, int], bool]) -> list[tuple[Held, int, int, float]]:
        """Return the episodes, steps, ids and weights of drawn steps that fit."""
        store = self.store
        if store is None or not len(self._index):
            raise NotEnoughDataError("the buffer is empty; add some episodes")
        found: list[tuple[Held, int, int, float]] = []
        self._drawn_in_vain = 0
        for _ in range(ROUNDS):
            ids, weights = draw(store, count - len(found))
            for place, id, weight in zip(self._index.at(store, ids), ids.tolist(), weights.tolist(), strict=True):
                if place is not None and fits(*place):
                    found.append((*place, id, weight))
                elif place is not None:
                    self._drawn_in_vain += 1
            if len(found) >= count:
                return found
        raise NotEnoughDataError("no step in the buffer has as many steps after it as n_step asks for; add more")

    def _transitions(
        self, size: int, n_step: int | tuple[int, int], gamma: float, to_numpy: bool, whole: bool
    ) -> list[SingleAgentEpisode]:
        """Return episodes of one transition each, with ``whole`` of all n steps, as prioritized sampling wants."""
        store, chosen = self.store, iter(self._steps_of(size, n_step))
        steps = next(chosen)

        def fits(held: Held, t: int) -> bool:
            nonlocal steps
            if whole and t + steps > len(held):
                return False
            lengths.append(min(steps, len(held) - t))
            steps = next(chosen, steps)
            return True

        lengths: list[int] = []
        drawn = self._draw(size, fits)
        assert store is not None
        found = episode_reads.transitions(store, drawn, lengths, gamma)
        self._last_sampled_indices = [id for _, _, id, _ in drawn]
        self.sampled_timesteps += size
        self._count(size, [(held.number, t) for held, t, _, _ in drawn], sum(lengths) / size, self._drawn_in_vain)
        return [episode.to_numpy() for episode in found] if to_numpy else found

    def _steps_of(self, size: int, n_step: int | tuple[int, int]) -> list[int]:
        if not isinstance(n_step, tuple):
            return [check_count("n_step", n_step)] * size
        store = self.store
        rng = np.random.default_rng() if store is None else store.engine.rng
        drawn: list[int] = rng.integers(*n_step, size=size).tolist()
        return drawn

    def _rows_of(self, size: int, length: int) -> dict[str, Any]:
        """Return rows of ``length`` observations: an episode from a drawn step on, then others from the first."""
        rounds = (self._draw(size, lambda held, t: True) for _ in itertools.count())
        drawn = itertools.chain.from_iterable(rounds)
        starts: list[list[tuple[Held, int, int]]] = [[] for _ in range(size)]
        for row in starts:
            left = length
            while left:
                held, first, *_ = next(drawn)
                t = 0 if row else first
                count = min(left, len(held) - t + 1)
                row.append((held, t, count))
                left -= count
        assert self.store is not None
        found = episode_reads.rows(self.store, starts)
        self.sampled_timesteps += size * length
        self._count(size * length, [(held.number, t) for row in starts for held, t, _ in row], None, 0)
        return found

    def _count(self, size: int, steps: list[tuple[int, int]], n_step: float | None, resampled: int) -> None:
        several, distinct = len({number for number, _ in steps}), len(set(steps))
        self._update_sample_metrics(
            num_env_steps_sampled=size, num_episodes_per_sample=several, num_env_steps_per_sample=distinct,
            sampled_n_step=n_step, num_resamples=resampled,
            agent_to_sampled_n_step={DEFAULT_AGENT_ID: n_step} if n_step else None,
            module_to_sampled_n_step={DEFAULT_MODULE_ID: n_step} if n_step else None,
            **_each("steps_sampled", size), **_each("episodes_per_sample", several),
            **_each("steps_per_sample", distinct), agent_to_num_resamples={DEFAULT_AGENT_ID: resampled},
            module_to_num_resamples={DEFAULT_MODULE_ID: resampled},
        )  # fmt: skip

    # Facts

    @property
    def episodes(self) -> Sequence[SingleAgentEpisode]:
        """The episodes, oldest first, each read from disk when it is indexed."""
        return ReadSequence(self.get_num_episodes, self._episode)

    def _episode(self, number: int) -> SingleAgentEpisode:
        assert self.store is not None
        return episode_reads.whole(self.store, self._index[number])

    def get_num_episodes(self, module_id: Any = None) -> int:
        return len(self._index)

    def get_num_episodes_evicted(self, module_id: Any = None) -> int:
        return self._index.evicted

    def get_num_timesteps(self, module_id: Any = None) -> int:
        return self._index.steps

    # Checkpoints

    def get_state(self) -> dict[str, Any]:
        """Make a checkpoint of the store, and return its name as the state: no row is copied.

        Raises InputError for a temporary store.
        """
        return {"path": self._place.path, "checkpoint": self.checkpoint()}

    def checkpoint(self, attachments: Given | None = None) -> str | None:
        """Make a checkpoint of the store, drop all but the newest ``keep_checkpoints`` of them, and return its name.

        Args:
            attachments: files that it takes along, as of ``diskreplay.ReplayBuffer.checkpoint``.

        Returns None before the first step, where there is no store yet. Raises InputError for a temporary one.
        """
        if self._place.temporary:
            raise InputError(
                "the buffer has no path, and goes away with its algorithm: give replay_buffer_config a 'path'"
            )
        if self.store is None:
            return None
        name = f"{CHECKPOINT}{max(numbered(self.store.checkpoints, CHECKPOINT).values(), default=0) + 1}"
        facts = {
            "evicted": self._index.evicted, "added": self._num_timesteps_added, "sampled": self.sampled_timesteps
        }  # fmt: skip
        self.store.checkpoint(name, facts, attachments=attachments, keep=self._keep)
        return name

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go back to a checkpoint of the store; steps that were added since, and later checkpoints, are given up.

        Raises InputError for a state of another buffer, and CheckpointError where the checkpoint is not there (any
        more), or one that :meth:`get_state` did not make needs steps that were added since; nothing has changed then.
        """
        if not isinstance(state, Mapping) or "checkpoint" not in state:
            raise InputError("this is no state of a DiskEpisodeReplayBuffer: it names no checkpoint of a store")
        name = state["checkpoint"]
        if name is None:
            if self.store is not None:
                self.store.clear()
                self._restore(self.store, {})
            return
        try:
            check_checkpoint(self._place, name)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}: only the newest keep_checkpoints={self._keep} are kept, and going back gives up later ones"
            ) from error
        if self.store is None:
            self._open(None)
        store = self.store
        assert store is not None
        numbers = numbered(store.checkpoints, CHECKPOINT)
        later = [one for one, number in numbers.items() if name in numbers and number > numbers[name]]
        with ReplayBuffer.open(self._place.path, mode="r", checkpoint=name) as then:
            self._check_sampler(then, name)
        assert store.stream is not None
        store.engine.store.check_going_back(store.stream, store.engine.store.checkpoint(name), later)
        for one in later:
            store.drop_checkpoint(one)
        store.close()
        self.store = None
        self._open(name)

    def _check_sampler(self, store: ReplayBuffer, checkpoint: str | None) -> None:
        if type(store.sampler) is not type(self._sampler()):
            raise InputError(f"the checkpoint {checkpoint!r} is of a buffer with {store.sampler!r}")

    def newest_with(self, attachment: str) -> str | None:
        """Return the newest checkpoint of :meth:`checkpoint` with an attachment of this name, or None."""
        if self.store is None:
            return None
        found = numbered(self.store.checkpoints, CHECKPOINT)
        having = [one.name for one in self.store.engine.store.checkpoints(found) if attachment in one.attachments]
        return max(having, key=found.__getitem__, default=None)


class DiskPrioritizedEpisodeReplayBuffer(DiskEpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer):  # type: ignore[misc]
    """RLlib's ``PrioritizedEpisodeReplayBuffer`` with its episodes on disk, and priorities that checkpoints bring back.

    Args:
        alpha: the exponent of the priorities; 0 is uniform.
        **options: as in :class:`DiskEpisodeReplayBuffer`.
    """

    def __init__(self, capacity: int = 10000, *, alpha: float = 1.0, batch_length_T: int = 1, **options: Any) -> None:
        self._alpha = alpha
        super().__init__(capacity, batch_length_T=batch_length_T, **options)

    def _sampler(self) -> Sampler:
        return Proportional(alpha=self._alpha)

    def add(self, episodes: Any, weight: float | None = None) -> None:
        """Add episodes; ``weight`` is the priority of the new steps, the largest so far if None."""
        before = 0 if self.store is None else self.store.engine.appender.log.end
        super().add(episodes, weight)
        if weight is not None and self.store is not None:
            end = self.store.engine.appender.log.end
            ids = np.arange(before * self._num_envs, end * self._num_envs)
            new = np.array([place is not None for place in self._index.at(self.store, ids)], bool)
            self.store.update_priorities(ids[new], np.full(new.sum(), weight))

    def sample(
        self, num_items: int | None = None, *, batch_size_B: int | None = None, batch_length_T: int | None = None,
        n_step: int | tuple[int, int] | None = None, beta: float = 0.0, gamma: float = 0.99,
        include_infos: bool = False, include_extra_model_outputs: bool = False, to_numpy: bool = False,
        **kwargs: Any,
    ) -> list[SingleAgentEpisode]:  # fmt: skip
        """Draw as RLlib's buffer does: a list of episodes of one transition each, of all ``n_step`` steps."""
        size = self._size(num_items, batch_size_B)
        _check_kept(include_infos, include_extra_model_outputs)
        if self.store is not None:
            sampler = self.store.sampler
            assert isinstance(sampler, Proportional)
            sampler.beta = beta
        return self._transitions(size, n_step or 1, gamma, to_numpy, whole=True)

    def update_priorities(self, priorities: Any, module_id: Any = None) -> None:
        """Set new priorities, such as TD errors, of the transitions that were sampled last."""
        values = check_array("priorities", priorities)
        if values.shape != (len(self._last_sampled_indices),):
            raise InputError(
                f"priorities must have shape ({len(self._last_sampled_indices)},), as many as were sampled last, got "
                f"{values.shape}"
            )
        if len(values) and self.store is not None:
            self.store.update_priorities(np.array(self._last_sampled_indices), values)
        self._last_sampled_indices = []


def _plain(space: Any) -> Any:
    return space if isinstance(space, gymnasium.Space) else None


def _space_of(values: Any) -> gymnasium.Space[Any]:
    """Return the space of values ``(n, ...)`` that have none: any numbers of their dtypes."""
    if isinstance(values, Mapping):
        return gymnasium.spaces.Dict({name: _space_of(value) for name, value in values.items()})
    if isinstance(values, tuple):
        return gymnasium.spaces.Tuple([_space_of(value) for value in values])
    array = check_array("values", values)
    return unbounded(array.shape[1:], array.dtype)


def _each(what: str, count: float) -> dict[str, dict[str, float]]:
    return {f"agent_to_num_{what}": {DEFAULT_AGENT_ID: count}, f"module_to_num_{what}": {DEFAULT_MODULE_ID: count}}


def _check_kept(infos: bool, outputs: bool) -> None:
    if infos or outputs:
        raise InputError("infos and extra model outputs are not kept in the store: use RLlib's own buffer for them")
