"""XuanCe's off-policy buffers of single steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import check_count, checked_number
from diskreplay.compat.kept import Held, InRows
from diskreplay.compat.rows import Grid, fit
from diskreplay.compat.xuance.memory import Buffer, Shape, Shapes, checked_shape, space_shape
from diskreplay.compat.xuance.steps import Steps, open_steps, stored_space
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.sampling.proportional import Proportional
from diskreplay.sampling.uniform import Uniform
from diskreplay.sampling.window import Sampler
from diskreplay.views.batch import Batch

Array = NDArray[Any]
Ids = NDArray[np.int64]

AUXILIARY = "auxiliary"
EPSILON = 1e-8
"""What a priority of 0 becomes."""


class StoredBuffer(InRows, Buffer):
    """Transitions of single steps in a store: what the off-policy buffers share.

    Keyword arguments of all of them, beside XuanCe's own:
        path: where the store is, or is to be made; None for a temporary directory that goes away with the buffer.
        seed: of draws of the store's own generator, whose state comes back with the store; the global generator if
            None.
        codec, chunk_rows, shard_rows, cache_bytes, commit_rows, commit_seconds: as of
            :meth:`diskreplay.ReplayBuffer.create`.

    Attributes:
        n_envs, n_size, batch_size: as given.
        observations, next_observations, actions, rewards, terminals: ``(n_envs, n_size, ...)``, or dicts of such for a
            Dict space; read from the store when they are indexed, and read-only. Zeros where nothing was stored.
        auxiliary_infos: likewise, of what ``store`` was given; None without an ``auxiliary_shape``.
        engine: the store, a :class:`diskreplay.ReplayBuffer`.
    """

    DTYPE: ClassVar[Any] = np.float32
    """Of observations."""

    def __init__(
        self, observation_space: Any, action_space: Any, auxiliary_shape: Mapping[str, Any] | None, n_envs: int,
        n_size: int, batch_size: int, sampler: Sampler, options: Mapping[str, Any], frame_stack: int = 1,
        held: Held | None = None,
    ) -> None:  # fmt: skip
        super().__init__(observation_space, action_space, auxiliary_shape)
        self.n_envs, self.n_size = check_count("n_envs", n_envs), check_count("n_size", n_size)
        self.batch_size = check_count("batch_size", batch_size)
        self._obs_shape = space_shape("observation_space", observation_space)
        self._action_shape = space_shape("action_space", action_space)
        self._auxiliary = _auxiliary_columns(auxiliary_shape)
        self._own_draws = options.get("seed") is not None
        self.engine: Steps = open_steps(
            self, stored_space(self._obs_shape, self.DTYPE), stored_space(self._action_shape, np.float32), self.n_envs,
            self.n_size, {name: (shape, np.float32) for name, shape in self._auxiliary.values()}, sampler, options,
            frame_stack=frame_stack, held=held,
        )  # fmt: skip

    # Storing

    def clear(self) -> None:
        """Empties the buffer; its space goes back with the next commit."""
        self.engine.clear()

    def store(self, obs: Any, acts: Any, rews: Any, terminals: Any, next_obs: Any, aux_info: Any = None) -> None:
        """Stores one step of all environments.

        Args:
            obs, next_obs: ``(n_envs, *obs_shape)``, or a dict of such with all keys of the space.
            acts: ``(n_envs, *action_shape)``.
            rews: ``(n_envs,)``, finite.
            terminals: ``(n_envs,)``, True or False.
            aux_info: values of ``auxiliary_shape``, ``(n_envs, ...)``; zeros where none are given.

        Raises InputError, with nothing stored, for wrong shapes and values.
        """
        ended = self._fit("terminals", terminals, (), np.float32)
        if not ((ended == 0) | (ended == 1)).all():
            raise InputError(f"terminals must be True or False, got {terminals!r}; nothing was stored")
        self.engine.add(
            self._fit("obs", obs, self._obs_shape, self.DTYPE),
            self._fit("acts", acts, self._action_shape, np.float32),
            self._fit("rews", rews, (), np.float32),
            self._fit("next_obs", next_obs, self._obs_shape, self.DTYPE),
            ended.astype(bool), self._fit("truncated", False, (), bool),
            slot=self._fit("slot", self.ptr, (), np.int32), **self._given_auxiliary(aux_info),
        )  # fmt: skip

    def _given_auxiliary(self, aux_info: Any) -> dict[str, Any]:
        if aux_info is None:
            aux_info = {}
        elif not self._auxiliary:
            raise InputError("there is no place for aux_info: the buffer was made without an auxiliary_shape")
        elif None in self._auxiliary:
            aux_info = {None: aux_info}
        if not isinstance(aux_info, Mapping) or aux_info.keys() - self._auxiliary.keys():
            raise InputError(f"aux_info must be a dict with keys of {list(self._auxiliary)}, got {aux_info!r}")
        return {
            name: self._fit(f"aux_info[{key!r}]", aux_info.get(key, 0.0), shape, np.float32)
            for key, (name, shape) in self._auxiliary.items()
        }

    def _fit(self, what: str, value: Any, shape: Shapes, dtype: Any) -> Any:
        """A step's values as the store takes them, which wants no axis of a single environment."""
        if isinstance(shape, dict):
            if not isinstance(value, Mapping) or value.keys() != shape.keys():
                raise InputError(f"{what} must be a dict with the keys {list(shape)}, got {value!r}")
            return {key: self._fit(f"{what}[{key!r}]", value[key], part, dtype) for key, part in shape.items()}
        if np.asarray(value).dtype.kind not in "biuf":
            raise InputError(f"{what} must be numbers ({self.n_envs}, *{shape}), got {value!r:.80}; nothing was stored")
        with np.errstate(all="ignore"):
            values = fit(what, value, (self.n_envs, *shape), dtype)
        if values.dtype.kind == "u" and not np.array_equal(
            values.ravel(), np.broadcast_to(value, values.shape).ravel()
        ):
            raise InputError(f"{what} must be whole numbers that {values.dtype} can hold; nothing was stored")
        return values[0] if self.n_envs == 1 else values

    # Arrays

    @property
    def observations(self) -> Any:
        return self._grids(lambda batch: batch.obs, self._obs_shape, self.DTYPE)

    @property
    def next_observations(self) -> Any:
        return self._grids(lambda batch: batch.next_obs, self._obs_shape, self.DTYPE)

    @property
    def actions(self) -> Any:
        return self._grids(lambda batch: batch.action, self._action_shape, np.float32)

    @property
    def rewards(self) -> Any:
        return self._grids(lambda batch: batch.reward, (), np.float32)

    @property
    def terminals(self) -> Any:
        return self._grids(lambda batch: batch.terminated, (), np.float32)

    @property
    def auxiliary_infos(self) -> Any:
        if self.auxiliary_shape is None:
            return None
        found = {
            key: self._grids(lambda batch, name=name: batch.extra[name], shape, np.float32)  # type: ignore[misc]
            for key, (name, shape) in self._auxiliary.items()
        }
        return found.get(None, found)

    def _grids(self, pick: Callable[[Batch], Any], shape: Shapes, dtype: Any) -> Any:
        """A field of all transitions, or a dict of such."""
        if isinstance(shape, dict):
            return {
                key: self._grids(lambda batch, key=key: pick(batch)[key], part, dtype)  # type: ignore[misc]
                for key, part in shape.items()
            }

        def read(places: Ids) -> Array:
            envs, slots = np.divmod(places, self.n_size)
            out = np.zeros((len(places), *shape), dtype)
            ptr, size = self._ring()
            there = slots < size
            if there.any():
                rows = self.engine.rows_of(ptr, self.n_size, slots[there])
                values = pick(self.engine.get(self.engine.ids(rows, envs[there])))
                out[there] = values.reshape(-1, *shape)
            return out

        return Grid((self.n_envs, self.n_size), shape, dtype, read)

    # Sampling

    def _transitions(self, ids: Ids) -> tuple[Any, Array, Array, Array, Any]:
        """Observations, actions, rewards, terminals and next observations."""
        batch = self.engine.batch(ids)
        obs, next_obs = (_shaped(part, self._obs_shape) for part in (batch.obs, batch.next_obs))
        return obs, batch.action, batch.reward, batch.terminated.astype(np.float32), next_obs

    def _check_filled(self) -> None:
        if not self.size:
            raise NotEnoughDataError("the buffer is empty: store a step before sampling")


class DummyOffPolicyBuffer(StoredBuffer):
    """Transitions of single steps, drawn uniformly.

    Args:
        observation_space, action_space: Gymnasium's, or of another library that has ``shape``; a Dict of such.
        auxiliary_shape: shapes of further values by name; None for no values.
        n_envs: environments that step together.
        n_size: steps that are held of each environment.
        batch_size: transitions of a sample.
        **options: the store's own, see :class:`StoredBuffer`.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, auxiliary_shape: Mapping[str, Any] | None, n_envs: int,
        n_size: int, batch_size: int, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            observation_space, action_space, auxiliary_shape, n_envs, n_size, batch_size, Uniform(), options
        )

    def sample(self) -> tuple[Any, Array, Array, Array, Any]:
        """A batch of ``B = batch_size`` transitions, drawn with replacement.

        Returns:
            ``obs`` ``(B, *obs_shape)``, ``acts`` ``(B, *action_shape)``, ``rews`` ``(B,)``, ``terminals`` ``(B,)`` and
            ``next_obs`` as ``obs``, all float32; dicts of such for Dict spaces.

        Raises NotEnoughDataError when the buffer is empty.
        """
        self._check_filled()
        envs = self.engine.integers(self.n_envs, self.batch_size, self._own_draws)
        ptr, size = self._ring()
        slots = self.engine.integers(size, self.batch_size, self._own_draws)
        rows = self.engine.rows_of(ptr, self.n_size, slots)
        return self._transitions(self.engine.ids(rows, envs))


class DummyOffPolicyBuffer_Atari(DummyOffPolicyBuffer):
    """Transitions of single steps with images, uint8, for observations.

    Args:
        observation_space, action_space, auxiliary_shape, n_envs, n_size, batch_size, **options: as of
            :class:`DummyOffPolicyBuffer`.
        frame_stack: frames of an observation, on its first or last axis; each is then stored once.
    """

    DTYPE = np.uint8

    def __init__(
        self, observation_space: Any, action_space: Any, auxiliary_shape: Mapping[str, Any] | None, n_envs: int,
        n_size: int, batch_size: int, *, frame_stack: int = 1, **options: Any,
    ) -> None:  # fmt: skip
        super(DummyOffPolicyBuffer, self).__init__(
            observation_space, action_space, auxiliary_shape, n_envs, n_size, batch_size, Uniform(), options,
            frame_stack,
        )  # fmt: skip


class PerOffPolicyBuffer(StoredBuffer):
    """Transitions of single steps, drawn by their priorities, equally many from each environment.

    Each environment has priorities, a largest one and weights for itself.

    Args:
        observation_space, action_space, auxiliary_shape, n_envs, n_size, **options: as of
            :class:`DummyOffPolicyBuffer`.
        batch_size: transitions of a sample, ``batch_size // n_envs`` of each environment; at least ``n_envs``.
        alpha: how much priorities count.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, auxiliary_shape: Mapping[str, Any] | None, n_envs: int,
        n_size: int, batch_size: int, alpha: float = 0.6, **options: Any,
    ) -> None:  # fmt: skip
        check_count("batch_size", batch_size, least=check_count("n_envs", n_envs))
        drawn = np.full((n_envs, check_count("n_size", n_size)), -1, np.int64)
        self._held = Held(arrays={"drawn": {"rows": drawn}}, fills={"rows": -1})
        super().__init__(
            observation_space, action_space, auxiliary_shape, n_envs, n_size, batch_size,
            Proportional(alpha=alpha, epsilon=EPSILON, by_env=True), options,
            held=self._held,
        )  # fmt: skip

    @property
    def _drawn(self) -> Ids:
        """The row that stood at each position when it was drawn last, ``(n_envs, n_size)``."""
        self.engine.settle()
        drawn: Ids = self._held.arrays["drawn"]["rows"]
        return drawn

    def clear(self) -> None:
        """Empties the buffer, and forgets all priorities."""
        super().clear()

    def sample(self, beta: float) -> tuple[Any, Array, Array, Array, Any, Array, Ids]:
        """A batch of ``B = n_envs * (batch_size // n_envs)`` transitions, those of environment 0 first.

        Args:
            beta: how much of the bias the weights take back, above 0.

        Returns:
            ``obs``, ``acts``, ``rews``, ``terminals`` and ``next_obs`` as of :class:`DummyOffPolicyBuffer`; ``weights``
            float64 and ``step_choices`` int64, both ``(n_envs, B / n_envs)``: positions 0 to ``n_size - 1``.

        Raises NotEnoughDataError when the buffer is empty, InputError for a beta that is not above 0.
        """
        sampler = self.engine.sampler
        assert isinstance(sampler, Proportional)
        beta = checked_number("beta", beta, above=True)
        sampler.beta = beta
        ids, weights, slots = self._draw(self.batch_size // self.n_envs)
        transitions = self._transitions(ids)
        rows, envs = np.divmod(ids, self.n_envs)
        self._drawn[envs, slots] = rows
        shape = self.n_envs, -1
        return *transitions, weights.astype(np.float64).reshape(shape), slots.reshape(shape)

    def _draw(self, each: int) -> tuple[Ids, Array, Ids]:
        """Ids, weights and positions of so many transitions of each environment."""
        self._check_filled()
        ids, weights = self.engine.weighted(each * self.n_envs, self._own_draws)
        slots: Ids = (self.ptr - self.engine.end + ids // self.n_envs) % self.n_size
        return ids, weights, slots

    def _sample_proportional(self, env_idx: int, batch_size: int) -> list[int]:
        """Positions of ``batch_size`` transitions of an environment, one of each equal slice of its priorities."""
        env = check_count("env_idx", env_idx, least=0, most=self.n_envs - 1)
        each = check_count("batch_size", batch_size)
        _, _, slots = self._draw(each)
        found: list[int] = slots.reshape(self.n_envs, each)[env].tolist()
        return found

    def update_priorities(self, idxes: Any, priorities: Any) -> None:
        """Takes over priorities.

        A position means the transition that it had when it was drawn last; where that was overwritten since, its
        priority is ignored.

        Args:
            idxes: positions ``(n_envs, K)``, as ``step_choices``.
            priorities: as many numbers in the same order, in any shape: TD errors, or their magnitudes.

        Raises InputError, with no priority changed, for positions that hold nothing and numbers that are not finite.
        """
        slots, values = np.asarray(idxes), np.asarray(priorities)
        if slots.dtype.kind not in "iu" or slots.ndim != 2 or len(slots) != self.n_envs:
            raise InputError(f"idxes must be integers ({self.n_envs}, K), got {slots.dtype} {slots.shape}")
        if values.size != slots.size:
            raise InputError(f"there must be {slots.size} priorities, as many as idxes, got shape {values.shape}")
        slots = slots.astype(np.int64)
        if ((slots < 0) | (slots >= self.size)).any():
            raise InputError(f"idxes must be positions 0 to {self.size - 1}, got {slots.min()} to {slots.max()}")
        envs = np.broadcast_to(np.arange(self.n_envs)[:, None], slots.shape)
        drawn = self._drawn[envs, slots]
        rows = np.where(drawn >= 0, drawn, self.engine.rows_of(self.ptr, self.n_size, slots))
        self.engine.update_priorities(self.engine.ids(rows, envs).ravel(), values.ravel())


def _shaped(values: Any, shape: Shapes) -> Any:
    """A batch's observations in the space's shape."""
    if isinstance(shape, dict):
        return {key: _shaped(values[key], part) for key, part in shape.items()}
    return values.reshape(-1, *shape)


def _auxiliary_columns(auxiliary_shape: Any) -> dict[Any, tuple[str, Shape]]:
    """Column and shape of each auxiliary value by its key, None for the only one."""
    if auxiliary_shape is None:
        return {}
    if not isinstance(auxiliary_shape, Mapping):
        return {None: (AUXILIARY, checked_shape("auxiliary_shape", auxiliary_shape))}
    found = {}
    for key, shape in auxiliary_shape.items():
        if shape is None:
            raise InputError(
                f"auxiliary_shape[{key!r}] is None, which stands for Python objects; a store holds arrays alone: give "
                "the shape of numbers"
            )
        found[key] = f"{AUXILIARY}_{key}", checked_shape(f"auxiliary_shape[{key!r}]", shape)
    return found
