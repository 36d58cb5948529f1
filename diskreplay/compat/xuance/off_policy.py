"""XuanCe's off-policy buffers of single steps, each of which is a row of a store."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Array, check_array, check_count, checked_number
from diskreplay.compat import sampler_draws
from diskreplay.compat.adapter_state import RamState
from diskreplay.compat.ring import Field, nested, picked, shown
from diskreplay.compat.rows import ids_of
from diskreplay.compat.xuance.disk_buffer import (
    OneAgentBuffer,
    fit_step,
    open_off_policy,
    ring_size,
    sampled,
)
from diskreplay.compat.xuance.memory import Shape, checked_shape
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.sampling.proportional import Proportional
from diskreplay.sampling.uniform import Uniform
from diskreplay.sampling.window import Sampler
from diskreplay.schema.ids import Ids

AUXILIARY = "auxiliary"
ARRAYS = "observations", "actions", "rewards", "terminals", "next_observations"
PARTS = "obs", "actions", "rewards", "terminals", "obs_next"
"""The names of these in samples."""
EPSILON = 1e-8
"""The value that a priority of 0 becomes."""


class OffPolicyBuffer(OneAgentBuffer):
    """The base of the off-policy buffers: transitions of single steps in a store.

    Keyword arguments of all of them, beside XuanCe's own:
        path: where the store is, or is to be made; None for a temporary directory that goes away with the buffer.
        seed: of draws of the store's own generator, whose state comes back with the store; the global generator if
            None.
        codec, chunk_rows, shard_rows, cache_bytes, commit_rows, commit_seconds: as of
            :meth:`diskreplay.ReplayBuffer.create`.

    Attributes:
        n_envs, n_size, batch_size: the arguments of these names.
        observations, next_observations, actions, rewards, terminals: ``(n_envs, n_size, ...)``, or dicts of such for a
            Dict space; read from the store when they are indexed, and read-only. Zeros where nothing was stored.
        auxiliary_infos: likewise, of what ``store`` was given; None without an ``auxiliary_shape``.
        engine: the store, a :class:`diskreplay.ReplayBuffer`.
    """

    observations, actions, rewards, terminals, next_observations = map(shown, ARRAYS)

    def __init__(
        self, observation_space: Any, action_space: Any, auxiliary_shape: Mapping[str, Any] | None, n_envs: int,
        n_size: int, batch_size: int | None, sampler: Sampler, options: Mapping[str, Any], frame_stack: int = 1,
        ram: RamState | None = None,
    ) -> None:  # fmt: skip
        super().__init__(observation_space, action_space, auxiliary_shape, n_envs, n_size)
        self.batch_size = check_count("batch_size", batch_size)
        self._auxiliary = _auxiliary_columns(auxiliary_shape)
        auxiliary: Any = {key: Field(shape, part=("extra", name)) for key, (name, shape) in self._auxiliary.items()}
        fields = (
            nested(self._obs_shape, self.OBSERVED, "obs"),
            nested(self._action_shape, np.float32, "action"),
            Field(part=("reward",)),
            Field(part=("terminated",)),
            nested(self._obs_shape, self.OBSERVED, "next_obs"),
        )
        self._sampled = dict(zip(PARTS, fields, strict=True))
        self._own_draws = options.get("seed") is not None
        create = {
            **self._layout(), "sampler": sampler, "frame_stack": frame_stack,
            "columns": {name: (shape, np.float32) for name, shape in self._auxiliary.values()},
        }  # fmt: skip
        self.engine = open_off_policy(self, options, create)
        self._begin({**dict(zip(ARRAYS, fields, strict=True)), AUXILIARY: auxiliary.get(None, auxiliary)}, ram)

    @property
    def auxiliary_infos(self) -> Any:
        return None if self.auxiliary_shape is None else self._ring[AUXILIARY]

    # Storing

    def store(self, obs: Any, acts: Any, rews: Any, terminals: Any, next_obs: Any, aux_info: Any = None) -> None:
        """Store one step of all environments.

        Args:
            obs, next_obs: ``(n_envs, *obs_shape)``, or a dict of such with all keys of the space.
            acts: ``(n_envs, *action_shape)``.
            rews: ``(n_envs,)``, finite.
            terminals: ``(n_envs,)``, True or False.
            aux_info: values of ``auxiliary_shape``, ``(n_envs, ...)``; zeros where none are given.

        Raises InputError, with nothing stored, for wrong shapes and values.
        """
        step = self._step(obs, acts, rews, terminals)
        step["next_obs"] = fit_step("next_obs", next_obs, self.n_envs, self._obs_shape, self.OBSERVED)
        step.update(self._given_auxiliary(aux_info))
        self._ring.catch_up()
        self.engine.add(**step)

    def _given_auxiliary(self, aux_info: Any) -> dict[str, Any]:
        if aux_info is not None and not self._auxiliary:
            raise InputError("there is no place for aux_info: the buffer was made without an auxiliary_shape")
        given = {None: aux_info} if aux_info is not None and None in self._auxiliary else aux_info
        values = self._values(given, {key: shape for key, (_, shape) in self._auxiliary.items()})
        return {name: values[key] for key, (name, _) in self._auxiliary.items()}

    # Sampling

    def _shown(self, batch: Any, count: int, **more: Any) -> Any:
        return sampled({**picked(self._sampled, batch), **more}, count, self._by_name)

    def _check_filled(self) -> None:
        if not self.size:
            raise NotEnoughDataError("the buffer is empty: store a step before sampling")


class DummyOffPolicyBuffer(OffPolicyBuffer):
    """Transitions of single steps, drawn uniformly.

    Args:
        observation_space, action_space: Gymnasium's, or of another library that has ``shape``; a Dict of such.
        auxiliary_shape: shapes of further values by name; None for no values.
        n_envs: environments that step together.
        n_size: steps that are held of each environment.
        batch_size: transitions of a sample.
        buffer_size: the steps that are held of all environments, a keyword in the place of ``n_size``, as XuanCe 1.4.4
            names it. Samples are then dicts, as its agents take them.
        **options: the store's own, see :class:`OffPolicyBuffer`.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, auxiliary_shape: Mapping[str, Any] | None, n_envs: int,
        n_size: int | None = None, batch_size: int | None = None, *, buffer_size: int | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        self._by_name = buffer_size is not None
        n_size = ring_size(n_envs, n_size, buffer_size, "buffer_size")
        frames = check_count("frame_stack", options.pop("frame_stack", 1)) if self.OBSERVED is np.uint8 else 1
        super().__init__(
            observation_space, action_space, auxiliary_shape, n_envs, n_size, batch_size, Uniform(), options, frames
        )

    def sample(self, batch_size: int | None = None) -> Any:
        """Return a batch of ``B`` transitions drawn with replacement; ``B`` is ``batch_size``, or that of the buffer.

        Returns:
            ``obs`` ``(B, *obs_shape)``, ``acts`` ``(B, *action_shape)``, ``rews`` ``(B,)``, ``terminals`` ``(B,)`` and
            ``next_obs`` as ``obs``, all float32; dicts of such for Dict spaces. Of a buffer that was made with
            ``buffer_size`` a dict of ``obs``, ``actions``, ``rewards``, ``terminals``, ``obs_next`` and ``batch_size``.

        Raises NotEnoughDataError when the buffer is empty.
        """
        self._check_filled()
        count = self.batch_size if batch_size is None else check_count("batch_size", batch_size)
        envs = self._integers(self.n_envs, count)
        return self._shown(self._read(self._integers(self.size, count), envs), count)


class DummyOffPolicyBuffer_Atari(DummyOffPolicyBuffer):
    """Transitions of single steps with images, uint8, for observations.

    Args:
        observation_space, action_space, auxiliary_shape, n_envs, n_size, batch_size, buffer_size, **options: as in
            :class:`DummyOffPolicyBuffer`.
        frame_stack: the frames of an observation, on its first or last axis, by keyword; each is then stored once.
    """

    OBSERVED = np.uint8


class PerOffPolicyBuffer(OffPolicyBuffer):
    """Transitions of single steps, drawn by their priorities, equally many from each environment.

    Each environment has priorities, a largest one and weights for itself.

    Args:
        observation_space, action_space, auxiliary_shape, n_envs, n_size, buffer_size, **options: as in
            :class:`DummyOffPolicyBuffer`.
        batch_size: transitions of a sample, ``batch_size // n_envs`` of each environment; at least ``n_envs``.
        alpha: the exponent of the priorities; 0 is uniform.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, auxiliary_shape: Mapping[str, Any] | None, n_envs: int,
        n_size: int | None = None, batch_size: int | None = None, alpha: float = 0.6, *,
        buffer_size: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self._by_name = buffer_size is not None
        check_count("batch_size", batch_size, least=check_count("n_envs", n_envs))
        n_size = ring_size(n_envs, n_size, buffer_size, "buffer_size")
        drawn = np.full((n_envs, n_size), -1, np.int64)
        ram = RamState(arrays={"drawn": {"rows": drawn}}, fills={"rows": -1})
        super().__init__(
            observation_space, action_space, auxiliary_shape, n_envs, n_size, batch_size,
            Proportional(alpha=alpha, epsilon=EPSILON, by_env=True), options, ram=ram,
        )  # fmt: skip

    @property
    def _drawn(self) -> Ids:
        """The row that stood at each position when it was drawn last, ``(n_envs, n_size)``."""
        drawn: Ids = self._adapter.ram.arrays["drawn"]["rows"]
        return drawn

    def sample(self, beta: float) -> Any:
        """Return a batch of ``B = n_envs * (batch_size // n_envs)`` transitions, those of environment 0 first.

        Args:
            beta: the exponent of the importance weights, above 0.

        Returns:
            ``obs``, ``acts``, ``rews``, ``terminals`` and ``next_obs`` as of :class:`DummyOffPolicyBuffer`; ``weights``
            float64 and ``step_choices`` int64, both ``(n_envs, B / n_envs)``: positions 0 to ``n_size - 1``. Of a
            buffer that was made with ``buffer_size`` a dict, likewise.

        Raises NotEnoughDataError when the buffer is empty, InputError for a beta that is not above 0.
        """
        sampler = self.engine.sampler
        assert isinstance(sampler, Proportional)
        beta = checked_number("beta", beta, above=True)
        sampler.beta = beta
        ids, weights, slots = self._draw(self.batch_size // self.n_envs)
        batch = self.engine.get(ids)
        rows, envs = np.divmod(ids, self.n_envs)
        self._drawn[envs, slots] = rows
        shape = self.n_envs, -1
        chosen = {"weights": weights.astype(np.float64).reshape(shape), "step_choices": slots.reshape(shape)}
        return self._shown(batch, self.batch_size, **chosen)

    def _draw(self, each: int) -> tuple[Ids, Array, Ids]:
        """Return ids, weights and positions of ``each`` transitions of each environment."""
        self._check_filled()
        ids, weights = sampler_draws.draw(self.engine, each * self.n_envs, None if self._own_draws else _PythonsGlobal)
        return ids, weights, self._ring.positions(ids // self.n_envs)

    def _sample_proportional(self, env_idx: int, batch_size: int) -> list[int]:
        """Return positions of transitions of an environment, one from each equal slice of its priorities."""
        env = check_count("env_idx", env_idx, least=0, most=self.n_envs - 1)
        each = check_count("batch_size", batch_size)
        _, _, slots = self._draw(each)
        found: list[int] = slots.reshape(self.n_envs, each)[env].tolist()
        return found

    def update_priorities(self, idxes: Any, priorities: Any) -> None:
        """Set the priorities of transitions.

        A position means the transition that it had when it was drawn last; where that was overwritten since, its
        priority is ignored.

        Args:
            idxes: positions ``(n_envs, K)``, as ``step_choices``.
            priorities: a number for each in the same order, in any shape: TD errors, or their magnitudes.

        Raises InputError, with no priority changed, for positions that hold nothing and numbers that are not finite.
        """
        slots, values = check_array("idxes", idxes), check_array("priorities", priorities)
        if slots.dtype.kind not in "iu" or slots.ndim != 2 or len(slots) != self.n_envs:
            raise InputError(f"idxes must be integers ({self.n_envs}, K), got {slots.dtype} {slots.shape}")
        if values.size != slots.size:
            raise InputError(f"there must be {slots.size} priorities, as many as idxes, got shape {values.shape}")
        slots = slots.astype(np.int64)
        if ((slots < 0) | (slots >= self.size)).any():
            raise InputError(f"idxes must be positions 0 to {self.size - 1}, got {slots.min()} to {slots.max()}")
        envs = np.broadcast_to(np.arange(self.n_envs)[:, None], slots.shape)
        drawn = self._drawn[envs, slots]
        rows = np.where(drawn >= 0, drawn, self._ring.entries(slots))
        self.engine.update_priorities(ids_of(self.engine, rows, envs).ravel(), values.ravel())


class _PythonsGlobal:
    """Python's global generator, as far as samplers ask a generator of numpy."""

    @staticmethod
    def random(size: int) -> NDArray[np.float64]:
        return np.array([random.random() for _ in range(size)])


def _auxiliary_columns(auxiliary_shape: Any) -> dict[Any, tuple[str, Shape]]:
    """Return the column and shape of each auxiliary value by its key, None for the only one."""
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
