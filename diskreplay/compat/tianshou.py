"""Tianshou's vector replay buffers with their observations on disk.

``Collector(policy, envs, DiskVectorReplayBuffer(20_000, len(envs), path="cartpole"))``; trainers take it likewise. The
base class draws the batches and walks along episodes, so that with the same seed they are those of its own buffer.

1. Each environment has a store of its own, in a folder of ``path``: Tianshou adds only those that are ready, and each
   has its own ring (``docs/design/0024-tianshou.md``). The first step makes them, and says what observations look like.
2. Observations are read from disk. What Tianshou walks along (rewards, flags, actions) is in RAM too, in the base
   class's arrays; they are filled from the stores when these are opened, or when an interrupted call left them behind.
3. A position of an environment's ring is translated into the id of a transition by a :class:`~.compat.ring.Ring`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import pathlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

try:
    import torch
    from tianshou.data import (
        Batch,
        PrioritizedReplayBuffer,
        PrioritizedVectorReplayBuffer,
        ReplayBuffer,
        ReplayBufferManager,
        VectorReplayBuffer,
    )
    from tianshou.data.batch import alloc_by_keys_diff
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("diskreplay.compat.tianshou needs Tianshou 2: pip install 'tianshou>=2,<3'") from error

from diskreplay.buffers.checkpointed import Checkpointed
from diskreplay.buffers.replay import ReplayBuffer as Store
from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.checks import Array, check_array, check_count
from diskreplay.compat import arguments
from diskreplay.compat.adapter_state import AdapterState, RamState
from diskreplay.compat.location import Location
from diskreplay.compat.ring import Ring
from diskreplay.compat.rows import column, read_pairs, window
from diskreplay.compat.stores import (
    CREATE_OPTIONS,
    OPEN_OPTIONS,
    check_checkpoint,
    closed_on_failure,
    named_checkpoint,
    open_or_create,
)
from diskreplay.errors import CheckpointError, InputError, SamplerWarning, warn_outside
from diskreplay.schema.columns import REWARD, TERMINATED, TRUNCATED
from diskreplay.schema.spaces import unbounded
from diskreplay.storage.paths import PathLike, full_path
from diskreplay.storage.store import Checkpoint
from diskreplay.views.batch import map_arrays

__all__ = ["DiskPrioritizedVectorReplayBuffer", "DiskVectorReplayBuffer"]

ON_DISK = "obs", "obs_next"
WEIGHTS = "priorities"
FLAGS = "terminated", "truncated"
NEEDED = "obs", "act", "rew", *FLAGS, "obs_next"


@dataclasses.dataclass
class _Kept(RamState):
    """The state that goes with the rows of an environment: weights, and how draws go on.

    Attributes:
        generators: the random generators that draw: the one of its ring and, kept with the first environment, the one
            of the buffer.
    """

    generators: Sequence[np.random.RandomState] = ()

    def to_state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        facts, arrays = super().to_state()
        states: list[Any] = [generator.get_state() for generator in self.generators]
        return {**facts, "random": [(keys.tolist(), *rest) for _, keys, *rest in states]}, arrays

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        _, unknown = super().to_state()  # where a buffer without weights was closed
        super().restore(facts, {**unknown, **arrays})
        for generator, (keys, *rest) in zip(self.generators, facts.get("random", ()), strict=False):
            generator.set_state(("MT19937", np.array(keys, np.uint32), *rest))


class _Env:
    """The store of one environment.

    Attributes:
        store: a ``diskreplay.ReplayBuffer`` of one environment.
        ring: the positions of its rows.
        left: the rows before this one are of an episode that nobody goes on with.
        restored: True if what is in RAM goes on from what was kept of these rows.
    """

    def __init__(self, store: Store, ring: Ring, restored: bool) -> None:
        self.store, self.ring, self.restored = store, ring, restored
        self.left = window(store).end

    def leave(self) -> None:
        """End the environment's episode at its reset: the next step begins one."""
        self.store.cut()
        self.left = window(self.store).end

    def small(self) -> tuple[Array, dict[str, Array]]:
        """Return the positions of all rows, oldest first, and the columns of theirs in RAM, ``(rows, *shape)``."""
        (begin, end), pos, _ = self.ring.catch_up()
        size = len(self.store) if end > begin else 0
        capacity = self.store.schema.capacity
        columns = {
            name: column(self.store, stored, begin, end)[:, 0]
            for name, stored in (
                ("act", self.store.schema.action_columns[0].name), ("rew", REWARD), ("terminated", TERMINATED),
                ("truncated", TRUNCATED),
            )
        }  # fmt: skip
        done = columns["terminated"] | columns["truncated"]
        for episode in self.store.episodes:
            done[episode.stop - 1 - begin] |= episode.ended or episode.stop == self.left
        return (pos - size + np.arange(size)) % capacity, {**columns, "done": done}


class _Meta(Batch):  # type: ignore[misc]  # Tianshou is not followed by mypy
    """The values of a buffer in RAM, with observations of no entries; rows taken out of it have theirs on disk.

    ``ReplayBuffer.update(ours)`` looks at shapes by ``items()`` and takes rows out.
    """

    __slots__ = ("_owner",)

    @classmethod
    def of(cls, owner: Any, batch: Any) -> _Meta:
        """Return the arrays of a batch, of ``owner``, a buffer whose ``get`` reads observations."""
        found = cls()
        object.__setattr__(found, "_owner", weakref.ref(owner))
        found.__dict__.update(batch.__dict__)
        return found

    def items(self) -> Any:
        return {**self.__dict__, **self._owner().shapes()}.items()

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        if isinstance(index, str | slice):
            return found
        owner = self._owner()
        found.__dict__.update({key: owner.get(index, key, stack_num=1) for key in ON_DISK})
        return found


def _refused(why: str) -> Any:
    """Return a method of Tianshou's that raises NotImplementedError; braces stand for the name of the class."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(why.format(type(self).__name__))

    return method


def _whole(key: str) -> Any:
    """Return a property that reads a field at all positions."""
    return property(
        lambda self: self.get(np.arange(self.maxsize), key, stack_num=1), doc="All entries, read from disk."
    )


class _Ring:
    """The ring of one environment, as Tianshou's managers have it; its observations are read by the whole buffer."""

    maxsize: int

    def join(self, whole: Any, first: int) -> None:
        """Make the ring a part of the whole buffer, in which it begins at position ``first``."""
        self._whole: Callable[[], Any] = weakref.ref(whole)
        self._first = first

    def get(self, index: Any, key: str, default_value: Any = None, stack_num: int | None = None) -> Any:
        if key not in ON_DISK:
            return super().get(index, key, default_value, stack_num)  # type: ignore[misc]  # of Tianshou's classes
        at = check_array("index", index)
        at = np.flatnonzero(at) if at.dtype == np.bool_ else at
        if at.size and not (-self.maxsize <= at.min() and at.max() < self.maxsize):
            raise IndexError(f"index {index!r:.80} is out of bounds for {self.maxsize} positions")
        return self._whole().get(self._first + at % self.maxsize, key, stack_num=stack_num)

    def __getitem__(self, index: Any) -> Any:
        return ReplayBuffer.__getitem__(self, index)  # a ring of a prioritized buffer has no weights of its own

    obs, obs_next = map(_whole, ON_DISK)

    def set_batch(self, batch: Any) -> None:
        self._meta = _Meta.of(self, batch)

    def shapes(self) -> dict[str, Any]:
        return {key: value[: self.maxsize] for key, value in self._whole().shapes().items()}

    add = _refused("steps are added to the whole buffer, with the numbers of their environments")
    update = _refused("the whole buffer takes steps, by add alone")
    dropnull = _refused("rows that are on disk are not dropped; refuse NaN where it is made")
    save_hdf5 = _refused("the rows are on disk already; checkpoint(name) of the whole buffer names this point")

    def __reduce__(self) -> Any:
        raise TypeError("the ring of a buffer on disk is not pickled; open the whole buffer by its path again")


class _PlainRing(_Ring, ReplayBuffer):  # type: ignore[misc]
    pass


class _PrioritizedRing(_Ring, PrioritizedReplayBuffer):  # type: ignore[misc]
    pass


class _DiskVector(Checkpointed, ReplayBufferManager):  # type: ignore[misc]  # Tianshou is not followed by mypy
    """The base of both buffers, which adds to Tianshou's class; that comes after this one in their bases."""

    def __init__(
        self, total_size: int, buffer_num: int, *, path: PathLike | None = None, checkpoint: str | None = None,
        cache_bytes: int | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        check_count("total_size", total_size)
        check_count("buffer_num", buffer_num)
        options = {name: kwargs.pop(name) for name in (*CREATE_OPTIONS, *OPEN_OPTIONS) if name in kwargs}
        self._envs: list[_Env] = []
        self._changing: dict[int, int] = {}
        """The environments that a call has begun to change and not ended, and where in their rings it began."""
        super().__init__(total_size, buffer_num, **kwargs)
        # What Tianshou leaves out with ignore_obs_next costs nothing here.
        self._save_obs_next = True
        self._ring_size = self.maxsize // buffer_num
        for number, ring in enumerate(self.buffers):
            ring.__class__ = _PrioritizedRing if isinstance(ring, PrioritizedReplayBuffer) else _PlainRing
            ring.join(self, number * self._ring_size)
        self._options = {"cache_bytes": None if cache_bytes is None else max(1, cache_bytes // buffer_num), **options}
        self._read: tuple[Any, Any] | None = None
        paths = [None if path is None else pathlib.Path(full_path(path), f"env-{n}") for n in range(buffer_num)]
        self._places = [Location(one, self) for one in paths]
        self._reopened = self._places[0].exists
        if path is not None and pathlib.Path(full_path(path), f"env-{buffer_num}").exists():
            raise InputError(
                f"the store at {str(path)!r} has more than buffer_num={buffer_num} environments; give their "
                "number, or another path"
            )
        checkpoint = named_checkpoint(self._places, checkpoint)
        if checkpoint is not None:
            named = [set(check_checkpoint(place, checkpoint)) for place in self._places]
            whole = set.intersection(*named)
            for place, names in zip(self._places, named, strict=True):
                if left := names - whole:  # of a call that was killed
                    with Store.open(place.path) as store:
                        for name in left:
                            store.drop_checkpoint(name)
        if self._reopened:
            self._open({}, checkpoint)

    # Stores

    @property
    def stores(self) -> list[Store]:
        """The ``diskreplay.ReplayBuffer`` of each environment; empty before the first step."""
        return [env.store for env in self._envs]

    def _written(self) -> list[Store]:
        return self.stores

    def checkpoint(self, name: str, *args: Any, **options: Any) -> None:
        """Name this point, as ``checkpoint`` of a buffer; raise CheckpointError where the name is in use."""
        if name in self.checkpoints:
            raise CheckpointError(f"checkpoint {name!r} exists; drop it, or choose another name")
        super().checkpoint(name, *args, **options)

    def _counts(self, one: Checkpoint) -> bool:
        return all(one.name in store.checkpoints for store in self.stores)

    def _leftovers(self, store: SampledBuffer[Any]) -> list[str]:
        whole = self.checkpoints
        return [name for name in store.checkpoints if name not in whole]

    def _open(self, made_for: Mapping[str, Any], checkpoint: str | None = None) -> None:
        """Open the stores that are there, and make the others for spaces."""
        opened: list[_Env] = []
        with contextlib.ExitStack() as failing:
            for number, place in enumerate(self._places):
                facts: dict[str, Any] = {"num_envs": 1, "capacity": self._ring_size}
                if opened:
                    schema = opened[0].store.schema
                    facts.update(observation_space=schema.observation_space, action_space=schema.action_space)
                elif not place.exists:
                    facts.update(made_for)
                create = {**facts, "reward_dtype": np.float64}
                settings = {"seed": 0} if checkpoint is None else {"seed": 0, "checkpoint": checkpoint}
                store = open_or_create(Store, place, self._options, create, facts, **settings)
                failing.enter_context(closed_on_failure(store))
                adapter = AdapterState(store, self._kept(number))
                restored = adapter.restore(draws=False, checkpoint=checkpoint)
                opened.append(_Env(store, adapter.ring, restored))
                adapter.attach(self)
            for number, env in enumerate(opened):
                self._fill(number, env)
        self._envs = opened

    def _kept(self, number: int) -> _Kept:
        """Return what goes with the rows of an environment, in RAM alone."""
        ring = self.buffers[number]._random_state
        return _Kept(generators=[ring] if number else [ring, self._random_state])

    def _fill(self, number: int, env: _Env) -> None:
        """Take what is in RAM over from an environment's store."""
        positions, columns = env.small()
        columns["act"] = _as_given(columns["act"], env.store.schema.action_space)
        if not self._meta.get_keys():
            arrays = {name: np.zeros((self.maxsize, *value.shape[1:]), value.dtype) for name, value in columns.items()}
            nothing = {key: np.zeros((self.maxsize, 0)) for key in ON_DISK}
            self._meta: Any = _Meta.of(self, Batch(**nothing, **arrays))
            self._set_batch_for_children()
        offset = int(self._offset[number])
        for name, value in columns.items():
            self._meta[name][offset + positions] = value
        ring, pos, size = self.buffers[number], env.ring.pos, len(positions)
        ends = np.flatnonzero(columns["done"])
        running = size - 1 - int(ends[-1]) if len(ends) else size
        ring._insertion_idx, ring._size = pos, size
        ring._ep_len, ring._ep_return = running, float(columns["rew"][size - running :].sum())
        ring._ep_start_idx = (pos - running) % self._ring_size
        ring.last_index = np.array([(pos - 1) % self._ring_size if size else 0])
        self.last_index[number] = offset + ring.last_index[0]
        self._lengths[number] = size

    def _catch_up(self) -> None:
        """Bring what is in RAM up to the stores, where an interrupted call left it behind."""
        for number, begun in self._changing.items():
            self._fill(number, self._envs[number])
            count = (self.buffers[number]._insertion_idx - begun) % self._ring_size
            if count:  # Tianshou's tree does not come back from a change of nothing
                self._entered(number * self._ring_size + (begun + np.arange(count)) % self._ring_size)
        self._changing = {}

    def _entered(self, positions: Array) -> None:
        """Learn that new transitions are at positions which :meth:`add` could no longer report."""

    # Adding

    def add(self, batch: Any, buffer_ids: Any = None) -> tuple[Array, Array, Array, Array]:
        """Add a step of each environment that ``buffer_ids`` names; the others have none.

        Args:
            batch: ``obs``, ``act``, ``rew``, ``terminated``, ``truncated``, ``obs_next``, ``(n, ...)``; ``obs_next`` is
                the true next one, at an episode's end too. ``info``, ``policy`` stay in RAM.
            buffer_ids: ``(n,)``; all environments if None.

        Returns positions, and returns, lengths and first positions of the episodes, ``(n,)``: 0 where one goes on.

        Raises InputError, with nothing added, for missing keys, and values of other shapes or types than those of the
        first step, and rewards that are not one finite number each.
        """
        ids = np.arange(self.buffer_num) if buffer_ids is None else check_array("buffer_ids", buffer_ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or ((ids < 0) | (ids >= self.buffer_num)).any():
            raise InputError(f"buffer_ids must be numbers from 0 to {self.buffer_num - 1}, got {buffer_ids!r:.80}")
        if not isinstance(batch, Batch):
            raise InputError(f"add takes a Batch, got {type(batch).__name__}")
        missing = [key for key in NEEDED if key not in batch.get_keys()]
        if missing:
            raise InputError(
                f"add: {', '.join(missing)} missing; obs_next must be the true one at an episode's end too"
            )
        self._catch_up()
        values = self._checked(batch, len(ids))
        kept = self._checked_kept(batch, len(ids))
        if not self._envs:
            self._open(
                {"observation_space": _space("obs", values["obs"]), "action_space": _space("act", values["act"])}
            )
        self._changing = {number: self.buffers[number]._insertion_idx for number in ids.tolist()}
        for place, number in enumerate(ids.tolist()):
            step = [
                map_arrays(operator.itemgetter(place), values[key]) for key in ("obs", "act", "rew", "obs_next", *FLAGS)
            ]
            env = self._envs[number]
            env.ring.catch_up()
            env.store.add(*step)
        # Observations of no entries: Tianshou's class keeps the rest as it always does.
        nothing = np.zeros((len(ids), 1, 0) if self._save_only_last_obs else (len(ids), 0))
        added: tuple[Array, Array, Array, Array] = super().add(
            _joined({**values, **dict.fromkeys(ON_DISK, nothing), **kept}), ids
        )
        more = _joined({key: value for key, value in kept.items() if key not in self._reserved_keys})
        if more.get_keys():
            alloc_by_keys_diff(self._meta, more, self.maxsize, False)
            for key in more.get_keys():
                self._meta[key][added[0]] = more[key]
        self._changing = {}
        return added

    def _checked(self, batch: Any, count: int) -> dict[str, Any]:
        raw = {key: batch[key] for key in NEEDED}
        if self._save_only_last_obs:
            for key in ON_DISK:
                raw[key] = _newest_frames(key, raw[key])
        if self._envs:
            schema = self._envs[0].store.schema
            observation, action = schema.observation_space, schema.action_space
        else:
            observation, action = _space("obs", raw["obs"]), _space("act", raw["act"])
        values = {key: _fitted(key, raw[key], observation, count) for key in ON_DISK}
        values["act"] = _fitted("act", raw["act"], action, count)
        values["rew"] = arguments.rewards("rew", raw["rew"], (count,), np.float64)
        return {**values, **{key: arguments.flags(key, raw[key], (count,)) for key in FLAGS}}

    def _checked_kept(self, batch: Any, count: int) -> dict[str, Any]:
        """Return what of a batch stays in RAM, as Tianshou keeps it: ``info``, ``policy``, and keys of hooks.

        Raises InputError for what it cannot hold beside what it holds: tried on as many entries as are to come.
        """
        kept = {key: batch[key] for key in batch.get_keys() if key not in (*NEEDED, "done")}
        trial, held = _joined(kept), Batch()
        for key in kept.keys() & set(self._meta.get_keys()):
            held.__dict__[key] = self._meta[key][np.zeros(count, np.int64)] if _length(self._meta[key]) else Batch()
        try:
            for key, value in kept.items():
                _check_lengths(key, value, count)
            alloc_by_keys_diff(held, trial, count, False)
            held[np.arange(count)] = trial
        except (IndexError, KeyError, RuntimeError, TypeError, ValueError, Warning) as error:  # Warning: by a filter
            raise InputError(f"{', '.join(kept)}: cannot be kept beside those of the steps before: {error}") from error
        return kept

    update = set_batch = _refused("{} takes steps by add alone")
    dropnull = _refused("rows that are on disk are not dropped; refuse NaN where it is made")
    save_hdf5 = _refused("the rows are on disk already; checkpoint(name) names this point")

    def __reduce__(self) -> Any:
        raise TypeError(f"a {type(self).__name__} is not pickled: its rows are on disk; open it by its path again")

    def reset(self, keep_statistics: bool = False) -> None:
        """Forget all transitions of a new buffer, but not of one that was opened: :meth:`clear` forgets those too.

        With ``keep_statistics``, as trainers of on-policy algorithms call it between updates, all are forgotten in both
        cases, and the episodes go on. Otherwise the next step of each environment begins an episode.
        """
        if keep_statistics or not self._reopened:
            self._forget(keep_statistics)
        else:
            self.cut()

    def cut(self) -> None:
        """End the episodes of all environments without a flag: the next step of each begins one.

        Call it where the environments are reset and the transitions kept, as by a trainer's ``reset()`` or
        ``run()`` after steps were collected: Tianshou does not tell its buffers of it.
        """
        self._catch_up()
        for number, env in enumerate(self._envs):
            env.leave()
            self._fill(number, env)

    def clear(self) -> None:
        """Forget all transitions, even of a buffer that was opened; the next commit gives the space back."""
        self._forget(False)

    def _forget(self, keep_statistics: bool) -> None:
        self._catch_up()
        self._changing = {number: ring._insertion_idx for number, ring in enumerate(self.buffers[: len(self._envs)])}
        for env in self._envs:
            if not keep_statistics:
                env.leave()
            env.store.clear()
        super().reset(keep_statistics)
        self._changing = {}

    # Reading

    def sample_indices(self, batch_size: int | None) -> Array:
        self._catch_up()
        found: Array = super().sample_indices(batch_size)
        return found

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            index = self.sample_indices(0) if index == slice(None) else self._indices[: len(self)][index]
        self._read = index, self._transitions(check_array("index", index))
        try:
            return super().__getitem__(index)
        finally:
            self._read = None

    def get(self, index: Any, key: str, default_value: Any = None, stack_num: int | None = None) -> Any:
        """Return a field at positions; a stack of ``obs_next`` takes its older frames from ``obs``."""
        if key not in ON_DISK:
            return super().get(index, key, default_value, stack_num)
        frames = self.stack_num if stack_num is None else stack_num
        if self._read is not None and self._read[0] is index and frames == self.stack_num:
            return _batch(self._read[1][key])
        return _batch(self._transitions(check_array("index", index), frames)[key])

    def _transitions(self, index: Array, frames: int | None = None) -> dict[str, Any]:
        if not self._envs:
            raise AttributeError("obs: the buffer is empty; add some steps")
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)
        if index.size and not (-self.maxsize <= index.min() and index.max() < self.maxsize):
            raise IndexError(f"index {index.max()} is out of bounds for {self.maxsize} positions")
        frames = self.stack_num if frames is None else frames
        steps = [index.ravel() % self.maxsize]
        for _ in range(frames - 1):
            steps.insert(0, self.prev(steps[0]))
        found = self._pairs(np.stack(steps, axis=-1).ravel())
        lead = index.shape if frames == 1 else (*index.shape, frames)
        pairs = {key: map_arrays(lambda array: array.reshape((*lead, *array.shape[1:])), found[key]) for key in ON_DISK}
        if frames > 1:
            pairs["obs_next"] = _moved_on(pairs["obs"], pairs["obs_next"], index.ndim)
        return pairs

    def _pairs(self, flat: Array) -> dict[str, Any]:
        """Return single frames at positions ``(n,)`` in bounds, in one read, with zeros where none is held."""
        numbers, positions = np.divmod(flat, self._ring_size)
        stores, rows, places = [], [], []
        for number in np.unique(numbers).tolist() or [0]:
            env, here = self._envs[number], np.flatnonzero(numbers == number)
            newest = env.ring.entries(positions[here])
            held = newest >= window(env.store).begin
            stores.append(env.store)
            rows.append(newest[held])
            places.append(here[held])
        space = self._envs[0].store.schema.observation_space
        pairs = read_pairs(stores, rows, places, len(flat))
        return {key: _as_given(found, space) for key, found in zip(ON_DISK, pairs, strict=True)}

    obs, obs_next = map(_whole, ON_DISK)

    def shapes(self) -> dict[str, Any]:
        """Return arrays of the shapes and dtypes of ``obs`` and ``obs_next`` that take no room."""
        if not self._envs:
            return {}
        space = self._envs[0].store.schema.observation_space
        return dict.fromkeys(ON_DISK, _zeros(space, self.maxsize))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} of {self.maxsize:,} transitions, {self.buffer_num} environments>"


class DiskVectorReplayBuffer(_DiskVector, VectorReplayBuffer):  # type: ignore[misc]
    """Tianshou's ``VectorReplayBuffer`` with its observations on disk.

    Args:
        total_size: transitions of all environments, as of Tianshou.
        buffer_num: environments.
        stack_num, save_only_last_obs, sample_avail, random_seed: keyword arguments, as in Tianshou.
        ignore_obs_next: taken and ignored: frames are stored once in any case, and final observations kept.
        path: a directory for the stores; None for temporary ones that go away with the buffer.
        checkpoint: the checkpoint of the stores at ``path`` to go back to; "latest" is the newest, or the last commits
            where there is none yet, or new stores.
        cache_bytes: RAM for values, of all environments together.
        codec, chunk_rows, shard_rows, commit_rows, commit_seconds: keyword arguments, as in
            ``diskreplay.ReplayBuffer``, for each environment.
    """


class DiskPrioritizedVectorReplayBuffer(_DiskVector, PrioritizedVectorReplayBuffer):  # type: ignore[misc]
    """Tianshou's ``PrioritizedVectorReplayBuffer`` with its observations on disk.

    Weights come back with a checkpoint, and when a buffer that was closed is opened again; after a crash all those of
    an environment that has newer ones are new, which a SamplerWarning says.

    Args:
        alpha, beta, weight_norm: keyword arguments, as in Tianshou.
        all others: as in :class:`DiskVectorReplayBuffer`.
    """

    def __init__(self, total_size: int, buffer_num: int, **kwargs: Any) -> None:
        self._bounds = np.ones(2)
        """The largest and the least priority, an array that all stores save."""
        super().__init__(total_size, buffer_num, **kwargs)

    def update_weight(self, index: Any, new_weight: Any) -> None:
        """Give transitions the new priorities ``|new_weight|``, as Tianshou's does.

        Raises InputError, with none changed, for positions that there are not, and weights that are not as many finite
        numbers.
        """
        at = check_array("index", index)
        if at.dtype.kind not in "iu" or (at.size and not (at.min() >= 0 and at.max() < self.maxsize)):
            raise InputError(f"index must be positions, 0 to {self.maxsize - 1}, got {index!r:.80}")
        numbers = check_array("new_weight", new_weight)
        arguments.rewards("new_weight", numbers, at.shape, np.float64)
        super().update_weight(at, numbers)  # in its own precision, as Tianshou counts
        self._bounds[:] = self._max_prio, self._min_prio

    def _open(self, made_for: Mapping[str, Any], checkpoint: str | None = None) -> None:
        super()._open(made_for, checkpoint)
        self._max_prio, self._min_prio = self._bounds.tolist()
        self._weigh()
        if lost := [number for number, env in enumerate(self._envs) if env.ring.count and not env.restored]:
            why = "the program that added their newest rows ended without close"
            warn_outside(f"the weights of the environments {lost} begin anew: {why}", SamplerWarning)

    def _weigh(self) -> None:
        """Build the tree over the leaves; a leaf that is held and has no weight yet is new."""
        every = np.arange(self.maxsize)
        leaves = self.weight._value[self.weight._bound :][: self.maxsize]
        held = every % self._ring_size < np.repeat(self._lengths, self._ring_size)
        self.weight[every] = np.where(held, np.where(leaves == 0, self._max_prio**self._alpha, leaves), 0.0)

    def _kept(self, number: int) -> _Kept:
        start = self.weight._bound + number * self._ring_size
        weights = self.weight._value[start : start + self._ring_size]
        arrays = {WEIGHTS: {"weight": weights, "bounds": self._bounds}}
        return dataclasses.replace(super()._kept(number), arrays=arrays, lasting=(WEIGHTS,))

    def _entered(self, positions: Array) -> None:
        self.init_weight(positions)
        self._weigh()

    def _forget(self, keep_statistics: bool) -> None:
        super()._forget(keep_statistics)
        self._bounds[:] = self._max_prio = self._min_prio = 1.0
        self._weigh()


# Nested arrays


def _space(key: str, value: Any) -> spaces.Space[Any]:
    if isinstance(value, Batch | Mapping):
        if key == "act" or not len(value.keys()):
            raise InputError(
                f"{key} must be an array{'' if key == 'act' else ' or a Batch of arrays'}, got {value!r:.80}"
            )
        return spaces.Dict({name: _space(f"{key}.{name}", value[name]) for name in value.keys()})  # noqa: SIM118
    array = check_array(key, value)
    shape, dtype = array.shape[1:], array.dtype
    if dtype.kind == "b":
        return spaces.MultiBinary(shape or 1) if shape else spaces.Discrete(2)
    if dtype.kind not in "fiu":
        raise InputError(f"{key} must be numbers, got {dtype}")
    return unbounded(shape, dtype)


def _leaf_dtype(space: spaces.Space[Any]) -> np.dtype[Any]:
    """Return the dtype of arrays that come back: MultiBinary and Discrete stand for bool."""
    return np.dtype(space.dtype if isinstance(space, spaces.Box) else np.bool_)


def _fitted(key: str, value: Any, space: spaces.Space[Any], count: int) -> Any:
    """Return ``value`` as arrays ``(count, *shape)`` of a space; raise InputError if it is something else."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Batch | Mapping) or set(value.keys()) != set(space.spaces):
            raise InputError(f"{key} must be a Batch with the keys {sorted(space.spaces)}, got {value!r:.80}")
        return {name: _fitted(f"{key}.{name}", value[name], part, count) for name, part in space.spaces.items()}
    return arguments.numbers(key, value, (count, *(space.shape or ())), _leaf_dtype(space))


def _as_given(found: Any, space: spaces.Space[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _as_given(found[name], part) for name, part in space.spaces.items()}
    return found.astype(_leaf_dtype(space), copy=False)


def _moved_on(obs: Any, obs_next: Any, axis: int) -> Any:
    """Return stacks along an axis, moved on by the frame that follows their newest one."""
    if isinstance(obs, dict):
        return {name: _moved_on(part, obs_next[name], axis) for name, part in obs.items()}
    stacks, following = np.moveaxis(obs, axis, 0), np.moveaxis(obs_next, axis, 0)
    return np.moveaxis(np.concatenate([stacks[1:], following[-1:]]), 0, axis)


def _batch(value: Any) -> Any:
    return Batch(value) if isinstance(value, dict) else value


def _zeros(space: spaces.Space[Any], count: int) -> Any:
    """Return zeros of a space, ``(count, *shape)``, that take no room and cannot be written."""
    if isinstance(space, spaces.Dict):
        return _joined({name: _zeros(part, count) for name, part in space.spaces.items()})
    return np.broadcast_to(np.zeros((), _leaf_dtype(space)), (count, *(space.shape or ())))


def _joined(values: Mapping[str, Any]) -> Any:
    found = Batch()
    found.__dict__.update({key: _batch(value) for key, value in values.items()})
    return found


def _newest_frames(key: str, value: Any) -> Any:
    try:
        return value[:, -1]
    except (IndexError, TypeError) as error:
        raise InputError(f"{key} must be stacks (n, frames, ...), got {value!r:.80}") from error


def _check_lengths(key: str, value: Any, count: int) -> None:
    if isinstance(value, Batch):
        for name in value.get_keys():
            _check_lengths(f"{key}.{name}", value[name], count)
    elif isinstance(value, np.ndarray | torch.Tensor) and (value.ndim == 0 or len(value) != count):
        raise InputError(f"{key} must lead with {count}, one for each environment, got {tuple(value.shape)}")


def _length(value: Any) -> int:
    return len(value.get_keys()) if isinstance(value, Batch) else 1
