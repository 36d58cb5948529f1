"""The replay buffers of the notebook on prioritised replay, over stores on disk.

Transitions are named by their place in the ring, ``0`` to ``capacity - 1``. Samples are torch tensors, stacked as
``np.vstack`` does: a state ``(n,)`` gives ``(B, n)``, a number ``(B, 1)``, and ``(a, ...)`` gives ``(B * a, ...)``.
Where these classes do something else than the notebook's, and why, is in ``docs/compat.md``.

>>> buffer = Proportion_Replay_Buffer(1000)
>>> buffer.remember([0.0, 1.0], 1, 0.5, [1.0, 1.0], False)
>>> buffer.insert(0.7, 0)
>>> len(buffer), round(float(buffer.weights.vals[0]), 3)
(1, 0.866)
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from diskreplay.buffers.checkpointed import OverStores
from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import Array, check_array, check_count
from diskreplay.compat import sampler_draws
from diskreplay.compat.adapter_state import AdapterState
from diskreplay.compat.arguments import number
from diskreplay.compat.disk_array import ReadSequence
from diskreplay.compat.location import Location
from diskreplay.compat.rows import window
from diskreplay.compat.stores import closed_on_failure, open_or_create
from diskreplay.engine.inputs import check_range
from diskreplay.errors import InputError, NotEnoughDataError, StateError
from diskreplay.process.locks import uninterrupted
from diskreplay.sampling.proportional import Proportional
from diskreplay.sampling.rank_based import RankBased
from diskreplay.sampling.uniform import Uniform
from diskreplay.sampling.window import Sampler
from diskreplay.schema.spaces import unbounded
from diskreplay.storage.paths import PathLike
from diskreplay.views.batch import Batch
from diskreplay.views.transition import Transition

__all__ = [
    "ALPHA",
    "EPSILON",
    "TD_INIT",
    "Proportion_Replay_Buffer",
    "Rank_Replay_Buffer",
    "Replay_Buffer",
    "SumTree",
]

EPSILON = 0.05
"""The number that is added to each TD error of a proportional buffer made from now on."""
ALPHA = 0.5
"""The exponent of priorities in buffers made from now on."""
TD_INIT = 1
"""The TD error of new transitions of a proportional buffer made from now on."""

MOST_WAITING = 1024
MOST_ERROR = 1e100
MOST_REWARD = float(np.finfo(np.float32).max)

Transition5 = tuple[Array, Array, np.float32, Array, bool]


class SumTree:
    """A binary tree of sums over weights, to draw by.

    Args:
        capacity: weights.

    Attributes:
        vals: ``2 * capacity - 1`` sums; the children of ``i`` are ``2 * i + 1`` and ``2 * i + 2``, the weights are the
            last ``capacity``.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = check_count("capacity", capacity)
        self.vals: list[float] = [0] * (2 * self.capacity - 1)
        self._roots = _roots(self.capacity)

    def retrive(self, num: float) -> int:
        """Return the first index whose cumulated weight is no smaller than ``num``, among those with a weight above 0.

        Raises NotEnoughDataError where no weight is above 0, InputError where ``num`` is NaN.
        """
        if math.isnan(num):
            raise InputError("num must be a number, got NaN")
        roots = [root for root in self._roots if self.vals[root] > 0]
        if not roots:
            raise NotEnoughDataError("no weight of the tree is above 0")
        while roots[1:] and num > self.vals[roots[0]]:
            num -= self.vals[roots.pop(0)]
        at = roots[0]
        while at < self.capacity - 1:
            left = 2 * at + 1
            weight = self.vals[left]
            if weight > 0 and (num <= weight or not self.vals[left + 1] > 0):
                at = left
            else:
                num -= weight
                at = left + 1
        return at - self.capacity + 1

    def update(self, delta: float, ind: int) -> None:
        """Change the weight at ``ind`` by ``delta``; raise InputError if there is none, or if it would fall below 0."""
        if not 0 <= ind < self.capacity:
            raise InputError(f"ind must be 0 to {self.capacity - 1}, got {ind!r}")
        at = ind + self.capacity - 1
        weight = self.vals[at] + delta
        if not -1e-9 * abs(delta) <= weight < math.inf:  # a difference of two weights is rounded
            raise InputError(f"a weight must be finite and at least 0; {delta!r} makes that of {ind} {weight!r}")
        self.vals[at] = max(weight, 0)
        while at:
            at = (at - 1) // 2
            self.vals[at] = self.vals[2 * at + 1] + self.vals[2 * at + 2]


def _roots(capacity: int) -> list[int]:
    """Return the subtrees that hold all weights in order of index: one if the capacity is a power of 2."""
    left, right = [], []
    start, stop = capacity, 2 * capacity  # counted from 1, so that the parent of i is i // 2
    while start < stop:
        if start % 2:
            left.append(start - 1)
            start += 1
        if stop % 2:
            stop -= 1
            right.append(stop - 1)
        start, stop = start // 2, stop // 2
    return left + right[::-1]


class _PendingErrors(AdapterState):
    """The state of an adapter with TD errors until they count: callers give them one by one."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        super().__init__(buffer)
        self._waiting: dict[int, float] = {}
        """TD errors by id; the id that the next transition will have may be among them, and counts once that is stored.
        """

    def give(self, identity: int, error: float) -> None:
        """Note a transition's TD error, which counts from the next draw on."""
        with self.buffer.engine.write_lock:
            many = len(self._waiting) >= min(MOST_WAITING, self.buffer.schema.capacity)
            if many or (identity in self._waiting and identity < window(self.buffer).end):
                self.flush()  # the first one counts for the largest error so far
            self._waiting[identity] = error

    def flush(self) -> None:
        with self.buffer.engine.write_lock:
            end = window(self.buffer).end
            known = {identity: error for identity, error in self._waiting.items() if identity < end}
            if known:
                self.buffer.update_priorities(list(known), list(known.values()))
                self._waiting = {identity: error for identity, error in self._waiting.items() if identity >= end}

    def values(self) -> NDArray[np.float64]:
        """Return what the sampler's index holds for each row: ``p^alpha``, or TD errors if ranks count."""
        self.flush()
        return sampler_draws.priorities(self.buffer)


class Replay_Buffer(OverStores):
    """Uniform replay.

    Args:
        capacity: transitions that are held; the oldest is overwritten.
        batch_size: taken and ignored, as in the notebook, but by :class:`Rank_Replay_Buffer`.
        path: the directory of the store, which is made if nothing is there; None for a temporary one that goes away
            with the buffer.
        cache_bytes: RAM for values, as in :meth:`diskreplay.ReplayBuffer.open`.
        seed: the seed of the draws; from Python's global generator if None.
        **options: further ones of :meth:`diskreplay.ReplayBuffer.create` and ``open``: ``codec``, ``chunk_rows``,
            ``shard_rows``, ``commit_rows``, ``commit_seconds``.

    Attributes:
        capacity, batch_size: the arguments of these names.
        memory: a sequence of ``capacity`` tuples ``(state, action, reward, next_state, done)``, None where there is
            none yet; read-only, and read from the store when it is indexed.
        ind_max: transitions ever remembered.
        store: the :class:`diskreplay.ReplayBuffer`; None before the first transition.
    """

    def __init__(
        self,
        capacity: int = int(1e6),
        batch_size: int | None = None,
        *,
        path: PathLike | None = None,
        cache_bytes: int | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        self.capacity = check_count("capacity", capacity)
        self.batch_size = None if batch_size is None else check_count("batch_size", batch_size)
        self._options = {"cache_bytes": cache_bytes, **options}
        self._seed = seed
        self._place = Location(path, self)
        self.store: ReplayBuffer | None = None
        if self._place.exists:
            self._open()

    def _sampler(self) -> Sampler:
        return Uniform()

    # The store

    def _open(self, state: Array | None = None, action: Array | None = None) -> None:
        """Open the store, or make it for transitions like the first one."""
        facts = {"num_envs": 1, "capacity": self.capacity, "columns": {}, "sampler": self._sampler()}
        create: dict[str, Any] = {}
        if state is not None and action is not None:
            space = unbounded(state.shape, state.dtype)
            create = {**facts, "observation_space": space, "action_space": _actions(action.shape)}
        seed = random.getrandbits(31) if self._seed is None else self._seed
        store = open_or_create(ReplayBuffer, self._place, self._options, create, facts, view=Transition(), seed=seed)
        with closed_on_failure(store):
            schema, adapter = store.schema, _PendingErrors(store)
            box = isinstance(schema.observation_space, spaces.Box)
            if not box or schema.action_space != _actions(schema.action_space.shape or ()):
                raise InputError(f"the store at {store.path!r} is of another buffer; choose another path")
            adapter.restore(draws=self._seed is None)
            adapter.attach(self)
        self._adapter, self.store = adapter, store

    def _opened(self) -> ReplayBuffer:
        if self.store is None:
            raise StateError("there is no transition yet; remember one")
        return self.store

    def commit(self) -> None:
        """Make everything durable, priorities too."""
        self._opened()
        self._adapter.save()

    # The ring

    @property
    def ind_max(self) -> int:
        return 0 if self.store is None else window(self.store).end

    @property
    def memory(self) -> Sequence[Transition5 | None]:
        return ReadSequence(lambda: self.capacity, self._at)

    def _at(self, place: int) -> Transition5 | None:
        if place >= len(self):
            return None
        batch = self._opened().get([self._newest(place)])
        return batch.obs[0], batch.action[0], batch.reward[0], batch.next_obs[0], bool(batch.terminated[0])

    def __len__(self) -> int:
        return min(self.ind_max, self.capacity)

    def _newest(self, place: int) -> int:
        """Return the id of the transition that stands at a place."""
        return self.ind_max - 1 - (self.ind_max - 1 - place) % self.capacity

    # Remembering

    @uninterrupted
    def remember(self, state: Any, action: Any, reward: Any, next_state: Any, done: Any) -> None:
        """Store one transition; the first one's shapes are those of all.

        Args:
            state, next_state: numbers of any shape; uint8 is kept, everything else becomes float32.
            action: whole numbers of any shape.
            reward: one number, finite.
            done: bool.

        Raises InputError, with nothing changed.
        """
        given = [_checked("state", state), _checked("next_state", next_state)]
        if given[0].shape != given[1].shape:
            raise InputError(
                f"state has the shape {given[0].shape} and next_state {given[1].shape}; the order is state, action, "
                "reward, next_state, done"
            )
        chosen = _whole("action", action)
        value = number("reward", reward, "one finite number", allowed=lambda number: abs(number) <= MOST_REWARD)
        over = number("done", done, "True or False", allowed=(0, 1).__contains__)
        dtype = np.dtype(np.uint8) if all(array.dtype == np.uint8 for array in given) else np.dtype(np.float32)
        if self.store is not None:
            dtype = self.store.schema.obs_columns[0].dtype
            if dtype == np.uint8 and any(array.dtype != np.uint8 for array in given):
                raise InputError(f"states must be uint8, as the first were, got {given[0].dtype}, {given[1].dtype}")
        with np.errstate(over="ignore"):
            states = [array.astype(dtype) for array in given]
        for what, values, state in zip(("state", "next_state"), given, states, strict=True):
            check_range(what, values, state)
        if self.store is None:
            self._open(states[0], chosen)
        self._before()
        self._opened().add(states[0], chosen, np.float32(value), states[1], bool(over), False)

    def _before(self) -> None:
        """Prepare for a transition that is about to be stored."""

    # Sampling

    @uninterrupted
    def sample(self, k: int) -> Any:
        """Return ``k`` different transitions.

        Returns:
            ``states``, ``actions``, ``rewards``, ``next_states``, ``dones``: tensors, ``actions`` int64, the others
            float32.

        Raises NotEnoughDataError when there are fewer, ModuleNotFoundError without torch.
        """
        tensor = _tensors()
        k = check_count("k", k)
        if k > len(self):
            raise NotEnoughDataError(f"sample({k}): the buffer holds {len(self)} transitions; remember more")
        return tuple(_fields(tensor, self._opened().get(sampler_draws.draw_unique(self._opened(), k))))


class _PrioritisedBuffer(Replay_Buffer):
    """The base of the buffers with priorities."""

    def __init__(
        self, capacity: int = int(1e6), batch_size: int | None = None, *, path: PathLike | None = None,
        cache_bytes: int | None = None, seed: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self._alpha = ALPHA
        self._epsilon = EPSILON
        self.default = TD_INIT
        self._drawn: dict[int, int] = {}
        """Ids of the last sample, by their place."""
        super().__init__(capacity, batch_size, path=path, cache_bytes=cache_bytes, seed=seed, **options)

    @property
    def alpha(self) -> float:
        """The exponent of priorities."""
        return self._alpha

    def _draw(self, size: int, tensor: Any) -> Any:
        store = self._opened()
        self._adapter.flush()
        ids, _ = sampler_draws.draw(store, size)
        places: list[int] = (ids % self.capacity).tolist()
        probabilities = sampler_draws.probabilities(store, ids)[:, None]
        found = (places, *_fields(tensor, store.get(ids)), tensor(probabilities).float())
        self._drawn = dict(zip(places, ids.tolist(), strict=True))
        return found

    @uninterrupted
    def insert(self, error: Any, index: int) -> None:
        """Set the TD error of the transition at ``index``; only its magnitude counts.

        An index of the last sample means the transition that was sampled: where that was overwritten since, its error
        is ignored.

        Raises InputError, with nothing changed, where no transition is there or the error is not finite.
        """
        value = number("error", error, "a finite number", "fiu", lambda number: abs(number) <= MOST_ERROR)
        at = number("index", index, "that of a transition", "iu")
        if not 0 <= at < len(self):
            raise InputError(f"index must be that of a transition, 0 to {len(self) - 1}, got {index!r}")
        self._adapter.give(self._drawn.get(at, self._newest(at)), abs(float(value)))


class Proportion_Replay_Buffer(_PrioritisedBuffer):
    """Proportional prioritised replay: ``P(i)`` goes with ``(|error| + EPSILON) ** ALPHA``.

    Args:
        capacity, batch_size, path, cache_bytes, seed, **options: as in :class:`Replay_Buffer`.

    Attributes:
        alpha: ``ALPHA``.
        default: the TD error of new transitions.
        weights: a copy of the weights, in a :class:`SumTree`.
    """

    def _sampler(self) -> Sampler:
        return Proportional(alpha=self._alpha, epsilon=self._epsilon)

    def _before(self) -> None:
        self._adapter.give(self.ind_max, abs(self.default))

    @property
    def weights(self) -> SumTree:
        """The weights as of now, by place; a change of the tree changes nothing here."""
        tree = SumTree(self.capacity)
        if len(self):
            ids = np.arange(*window(self._opened()))
            leaves = np.zeros(self.capacity)
            leaves[ids % self.capacity] = self._adapter.values()
            tree.vals[self.capacity - 1 :] = leaves.tolist()
            for at in range(self.capacity - 2, -1, -1):
                tree.vals[at] = tree.vals[2 * at + 1] + tree.vals[2 * at + 2]
        return tree

    @uninterrupted
    def sample(self, batch_size: int) -> Any:
        """Return ``batch_size`` transitions, one from each of as many equal slices of the total weight.

        Returns:
            ``index_set``, a list of their indexes; then as of :class:`Replay_Buffer`; then ``probs``, ``(B, 1)``
            float32, the probability of each.

        Raises NotEnoughDataError when there is none, ModuleNotFoundError without torch.
        """
        tensor = _tensors()
        batch_size = check_count("batch_size", batch_size)
        if not len(self):
            raise NotEnoughDataError("the buffer is empty; remember a transition")
        return self._draw(batch_size, tensor)


class Rank_Replay_Buffer(_PrioritisedBuffer):
    """Rank-based prioritised replay: ``P(i)`` goes with ``rank(i) ** -ALPHA``, rank 1 being the largest error.

    A new transition has the largest error so far, 1 at first; of equal errors the newer one comes first.

    Args:
        batch_size: transitions of a sample.
        capacity, path, cache_bytes, seed, **options: as in :class:`Replay_Buffer`.

    Attributes:
        alpha: ``ALPHA``.
        errors: ``(-error, index)`` of all transitions by rank; a copy.
        memory_to_rank: for each index its rank, counted from 0, None where there is no transition; a copy.
        total_weights: the sum of all ``rank ** -ALPHA``.
        cumulated_weights: the same up to each rank.
        segments: -1, then the last rank, counted from 0, of each of ``batch_size`` segments of equal weight; None for
            each while there are fewer transitions.
    """

    batch_size: int

    def __init__(
        self, capacity: int = int(1e6), batch_size: int = 64, *, path: PathLike | None = None,
        cache_bytes: int | None = None, seed: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        batch_size = check_count("batch_size", batch_size)
        super().__init__(capacity, batch_size, path=path, cache_bytes=cache_bytes, seed=seed, **options)

    def _sampler(self) -> Sampler:
        return RankBased(alpha=self._alpha)

    def _before(self) -> None:
        self._adapter.flush()  # a new transition has the largest error that was given before it

    @property
    def errors(self) -> list[tuple[float, int]]:
        if not len(self):
            return []
        errors = self._adapter.values()
        ids = np.arange(*window(self._opened()))
        order = np.lexsort((-ids, -errors))
        return list(zip((-errors[order]).tolist(), (ids[order] % self.capacity).tolist(), strict=True))

    @property
    def memory_to_rank(self) -> list[int | None]:
        found: list[int | None] = [None] * self.capacity
        for rank, (_, index) in enumerate(self.errors):
            found[index] = rank
        return found

    @property
    def cumulated_weights(self) -> list[float]:
        found: list[float] = np.cumsum(np.arange(1.0, len(self) + 1) ** -self._alpha).tolist()
        return found

    @property
    def total_weights(self) -> float:
        return self.cumulated_weights[-1] if len(self) else 0.0

    @property
    def segments(self) -> list[int | None]:
        count = self.batch_size
        if len(self) < count:
            return [-1, *[None] * count]
        cumulated = self.cumulated_weights
        ends = np.searchsorted(cumulated, np.arange(1, count + 1) / count * cumulated[-1] * (1 - 1e-12))
        return [-1, *ends.tolist()]

    @uninterrupted
    def sample(self, batch_size: int | None = None) -> Any:
        """Return as many transitions as the buffer was made for, one from each of as many segments of equal weight.

        Args:
            batch_size: not used, as in the notebook.

        Returns:
            As of :class:`Proportion_Replay_Buffer`.

        Raises NotEnoughDataError when there are fewer, ModuleNotFoundError without torch.
        """
        tensor = _tensors()
        if len(self) < self.batch_size:
            raise NotEnoughDataError(
                f"the buffer holds {len(self)} transitions, a sample has {self.batch_size}; remember more"
            )
        return self._draw(self.batch_size, tensor)

    def pop(self, index: int) -> None:
        """Do nothing: a transition keeps its rank until :meth:`insert` changes it."""

    def update_segments(self) -> None:
        """Do nothing: segments follow from the number of transitions."""


def _actions(shape: tuple[int, ...]) -> spaces.Box:
    most = np.iinfo(np.int64).max
    return spaces.Box(-most, most, shape, np.int64)


def _checked(name: str, value: Any) -> Array:
    given = check_array(name, value)
    if given.dtype.kind not in "fiub" or not given.size:
        raise InputError(f"{name} must be numbers, got {given.dtype} {given.shape}")
    return given


def _whole(name: str, value: Any) -> Array:
    given = _checked(name, value)
    whole = given.dtype.kind != "f" or ((np.abs(given) < 2**53).all() and (given == np.trunc(given)).all())
    if not whole or (given.dtype == np.uint64 and (given >> 63).any()):
        raise InputError(f"{name} must be whole numbers, which int64 can hold, got {value!r}")
    return given.astype(np.int64)


def _tensors() -> Any:
    """Return ``torch.from_numpy``."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("sample() returns tensors of torch: pip install 'diskreplay[torch]'") from error
    return torch.from_numpy


def _fields(tensor: Any, batch: Batch) -> Iterator[Any]:
    """Yield states, actions, rewards, next states and dones."""
    yield tensor(_vstack(batch.obs)).float()
    yield tensor(_vstack(batch.action)).long()
    yield tensor(_vstack(batch.reward)).float()
    yield tensor(_vstack(batch.next_obs)).float()
    yield tensor(_vstack(batch.terminated).astype(np.uint8)).float()


def _vstack(values: Array) -> Array:
    """Return ``np.vstack`` of entries that are stacked already, ``(B, ...)``."""
    shape = values.shape[2:] if values.ndim > 2 else (math.prod(values.shape[1:]),)
    return np.ascontiguousarray(values).reshape(-1, *shape)
