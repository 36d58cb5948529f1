"""XuanCe's on-policy buffers of one agent. Observations are on disk, all else is in RAM."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import check_count, check_share
from diskreplay.compat.keeper import PendingStep, RamState, set_item
from diskreplay.compat.opening import open_or_create
from diskreplay.compat.place import Place
from diskreplay.compat.rows import ring_array
from diskreplay.compat.xuance import rollouts
from diskreplay.compat.xuance.disk_buffer import (
    DiskBuffer,
    fit_flags,
    fit_step,
    ring_size,
    stored_space,
    without_env_axis,
)
from diskreplay.compat.xuance.memory import create_memory, sample_batch, space_shape
from diskreplay.errors import InputError
from diskreplay.ids import Ids
from diskreplay.paths import PathLike

CACHE_BYTES = 256 << 20
VALUE = "value"
COLUMNS = {VALUE: ((), np.float32)}
ALL = "all"
"""Where the actions of a space that is no Dict are held."""

Array = NDArray[Any]


def _in_ram(group: str, name: str) -> Any:
    """An array in RAM, as a property."""

    def get(buffer: DummyOnPolicyBuffer) -> Any:
        return buffer._keeper.ram.arrays[group][name]

    def put(buffer: DummyOnPolicyBuffer, array: Any) -> None:
        buffer._keeper.ram.arrays[group][name] = array

    return property(get, put)


class DummyOnPolicyBuffer(DiskBuffer):
    """Steps of the present policy, with returns and advantages.

    Args:
        observation_space, action_space: Gymnasium's, of one environment; a Dict of such.
        auxiliary_shape: shapes of further values by name, None for Python objects; None for no values.
        n_envs: parallel environments.
        n_size: steps of each.
        use_gae: advantages by generalised advantage estimation, else of one step; returns are these and the values,
            else discounted sums.
        use_advnorm: give each sample's advantages mean 0 and standard deviation 1.
        gamma, gae_lam: discount factor and lambda, 0 to 1.
        horizon_size: in the place of ``n_size``, by keyword, as XuanCe 1.4.4 names it. Samples are then dicts, as its
            agents take them.
        path: where the store is, or is to be made; None for a temporary directory that goes away with the buffer.
        cache_bytes: RAM for decoded observations.
        **options: further ones of :meth:`diskreplay.ReplayBuffer.create` and ``open``: ``codec``, ``chunk_rows``,
            ``shard_rows``, ``commit_rows``, ``commit_seconds``.

    Attributes:
        observation_space, ..., gae_lam: as given.
        buffer_size: ``n_size * n_envs``.
        ptr, size: the step that is written next, and how many there are.
        start_ids: ``(n_envs,)`` int64, the step where each environment's open path begins.
        observations: ``(n_envs, n_size, *obs_shape)`` float32, or a dict of such; read-only, and read from the store
            when it is indexed.
        rewards, values, terminals, returns, advantages: arrays ``(n_envs, n_size)`` float32, which may be rewritten in
            place.
        actions: ``(n_envs, n_size, *action_shape)`` float32, or a dict of such; likewise.
        auxiliary_infos: a dict of arrays ``(n_envs, n_size, *shape)`` float32, or ``(n_envs, n_size)`` of objects;
            likewise. None without ``auxiliary_shape``.
        engine: the store, a :class:`diskreplay.ReplayBuffer`.

    Raises InputError for objects with a ``path``: they cannot be written to disk.
    """

    _keeper: PendingStep

    OBSERVED: ClassVar[type[Any]] = np.float32
    """The dtype of observations."""

    def __init__(
        self, observation_space: Any, action_space: Any, auxiliary_shape: Mapping[str, Any] | None, n_envs: int,
        n_size: int | None = None, use_gae: bool = True, use_advnorm: bool = True, gamma: float = 0.99,
        gae_lam: float = 0.95, *, horizon_size: int | None = None, path: PathLike | None = None,
        cache_bytes: int = CACHE_BYTES, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(observation_space, action_space, auxiliary_shape)
        self._by_name = horizon_size is not None
        total = None if horizon_size is None else check_count("horizon_size", horizon_size) * n_envs
        self.n_envs = check_count("n_envs", n_envs)
        self.n_size = ring_size(self.n_envs, n_size, total, "horizon_size")
        self.buffer_size = self.n_size * self.n_envs
        self.use_gae, self.use_advnorm = bool(use_gae), bool(use_advnorm)
        self.gamma, self.gae_lam = check_share("gamma", gamma), check_share("gae_lam", gae_lam)
        self._obs_shape = space_shape("observation_space", observation_space)
        self._action_shape = space_shape("action_space", action_space)
        self._objects = [name for name, shape in (auxiliary_shape or {}).items() if shape is None]
        if self._objects and path is not None:
            raise InputError(
                f"auxiliary_shape has objects ({self._objects[0]!r}: None), which are not written to disk: give their "
                "shape, or leave out path"
            )
        ram = RamState(marks=rollouts.path_marks(self.n_envs), arrays=self._arrays())
        create = {
            "observation_space": stored_space(self._obs_shape, self.OBSERVED),
            "action_space": stored_space(self._action_shape, np.float32), "num_envs": self.n_envs,
            "capacity": self.buffer_size, "columns": COLUMNS,
        }  # fmt: skip
        given = {"cache_bytes": cache_bytes, **options}
        self.engine = open_or_create(ReplayBuffer, Place(path, self), given, create, seed=0)
        self._keeper = PendingStep(self.engine, ram, functools.partial(_add_row, self.engine))
        with self._keeper.opening(self):
            self.observations: Any = self._on_disk()
            if not self._keeper.restore() and len(self.engine):
                self.engine.clear()  # a rollout whose estimates are lost cannot be learned from

    # The arrays

    rewards = _in_ram("steps", "rewards")
    returns = _in_ram("steps", "returns")
    values = _in_ram("steps", "values")
    terminals = _in_ram("steps", "terminals")
    advantages = _in_ram("steps", "advantages")

    @property
    def actions(self) -> Any:
        actions = self._keeper.ram.arrays["actions"]
        return actions if isinstance(self._action_shape, dict) else actions[ALL]

    @actions.setter
    def actions(self, actions: Any) -> None:
        self._keeper.ram.arrays["actions"] = actions if isinstance(self._action_shape, dict) else {ALL: actions}

    @property
    def auxiliary_infos(self) -> Any:
        return None if self.auxiliary_shape is None else self._keeper.ram.arrays["auxiliary"]

    def _arrays(self) -> dict[str, dict[str, Any]]:
        """The arrays in RAM, with nothing in them."""
        shape = self.n_envs, self.n_size
        names = ("rewards", "returns", "values", "terminals", "advantages")
        actions = create_memory(self._action_shape, *shape)
        return {
            "steps": {name: create_memory((), *shape) for name in names},
            "actions": actions if isinstance(actions, dict) else {ALL: actions},
            "auxiliary": create_memory(self.auxiliary_shape, *shape) or {},
        }

    def _on_disk(self) -> Any:
        lead = self.n_envs, self.n_size
        array = functools.partial(ring_array, self.engine, self._keeper.ring, lead, dtype=self.OBSERVED)
        if isinstance(self._obs_shape, dict):
            return {
                key: array(shape=shape, pick=lambda batch, key=key: batch.obs[key])  # type: ignore[misc]
                for key, shape in self._obs_shape.items()
            }
        return array(shape=self._obs_shape, pick=lambda batch: batch.obs)

    def _ring(self) -> tuple[int, int]:
        ram = self._keeper.ram
        return ram.ptr, ram.size

    @property
    def start_ids(self) -> Ids:
        """Where each environment's open path begins."""
        return self._keeper.ram.marks[rollouts.START_IDS]

    # XuanCe's methods

    def store(self, obs: Any, acts: Any, rews: Any, value: Any, terminals: Any, aux_info: Any = None) -> None:
        """Stores one step of all environments.

        Args:
            obs: ``(n_envs, *obs_shape)``, or a dict of such.
            acts: ``(n_envs, *action_shape)``, or a dict of such.
            rews: ``(n_envs,)``, finite.
            value: ``(n_envs,)``; None for zeros.
            terminals: ``(n_envs,)``, True where the episode terminated.
            aux_info: ``(n_envs, *shape)`` by name; what is left out is 0.

        Raises InputError, with nothing stored, for a wrong shape or rewards that are not finite.
        """
        step = self._checked(obs, acts, rews, value, terminals, aux_info)
        ram = self._keeper.ram
        beside = (
            (self.actions, step["actions"]),
            (self.rewards, step["rewards"]),
            (self.values, step["values"]),
            (self.terminals, step["terminals"]),
            (self.returns, np.zeros(self.n_envs)),
            (self.advantages, np.zeros(self.n_envs)),
            (self.auxiliary_infos or {}, step["auxiliary"]),
        )
        pairs = [pair for memory, given in beside for pair in _pairs(memory, given)]
        row = {
            "obs": step["obs"], "action": step["actions"], "reward": step["rewards"], VALUE: step["values"],
            "terminated": step["terminals"].astype(bool), "truncated": np.zeros(self.n_envs, bool),
        }  # fmt: skip
        self._keeper.put(
            row,
            *(set_item(array, (slice(None), ram.ptr), values) for array, values in pairs),
            *rollouts.next_entry(ram, self.n_size),
        )

    def _checked(self, obs: Any, acts: Any, rews: Any, value: Any, terminals: Any, aux_info: Any) -> dict[str, Any]:
        shapes = dict(self.auxiliary_shape or {})
        given = {} if aux_info is None else aux_info
        if not isinstance(given, Mapping) or not given.keys() <= shapes.keys():
            raise InputError(f"aux_info must be a dict with keys of {list(shapes)}, got {aux_info!r}")
        auxiliary = {
            name: fit_step(f"aux_info[{name!r}]", given.get(name, 0), self.n_envs, shape or (), _dtype(shape))
            for name, shape in shapes.items()
        }
        step = {
            "obs": fit_step("obs", obs, self.n_envs, self._obs_shape, self.OBSERVED),
            "actions": fit_step("acts", acts, self.n_envs, self._action_shape, np.float32),
            "rewards": fit_step("rews", rews, self.n_envs, (), np.float32),
            "values": fit_step("value", 0 if value is None else value, self.n_envs, (), np.float32),
            "terminals": fit_flags("terminals", terminals, self.n_envs),
            "auxiliary": auxiliary,
        }
        if not np.isfinite(step["rewards"]).all():
            raise InputError("rews must be finite; nothing was stored")
        return step

    def finish_path(self, val: Any, i: int) -> None:
        """Computes returns and advantages of an environment's steps since the last call; without any, nothing.

        Args:
            val: the value of what follows the newest step; it does not count where that step is terminal.
            i: the environment.

        Raises InputError where there is no such environment or ``val`` is no number.
        """
        env = check_count("i", i, least=0, most=self.n_envs - 1)
        last = fit_step("val", val, 1, (), np.float32)
        ram = self._keeper.ram
        slots = rollouts.path_slots(ram, env, self.n_size)
        if not len(slots):
            return
        path = self.rewards[env, slots], self.values[env, slots, None], last, self.terminals[env, slots] != 0
        if not np.isfinite(last).all() and not path[3][-1]:
            raise InputError(f"val must be finite where the newest step is not terminal, got {val!r}")
        lambdas = (self.gae_lam, self.gae_lam) if self.use_gae else (1.0, 0.0)
        self._keeper.change(
            set_item(self.returns, (env, slots), rollouts.path_estimates(*path, self.gamma, lambdas[0])[0][:, 0]),
            set_item(self.advantages, (env, slots), rollouts.path_estimates(*path, self.gamma, lambdas[1])[1][:, 0]),
            *rollouts.end_path(ram, env),
            *self._keeper.cut(env),
        )

    def sample(self, indexes: Any) -> Any:
        """The steps at ``indexes``, integers ``(B,)``: ``environment * n_size + step``.

        Returns:
            Observations, actions, returns, values, advantages and auxiliary values, each ``(B, ...)`` or a dict of
            such; None for auxiliary values that there are none of. Of a buffer that was made with ``horizon_size`` a
            dict of ``obs``, ``actions``, ``returns``, ``values``, ``advantages``, ``aux_batch`` and ``batch_size``.

        Raises NotEnoughDataError until the buffer is full, InputError for indexes that there are not.
        """
        rollouts.check_full(self.size, self.n_size)
        at = np.divmod(rollouts.checked_indexes(indexes, self.buffer_size), self.n_size)
        advantages = self.advantages[at]
        found = (
            sample_batch(self.observations, at), sample_batch(self.actions, at), self.returns[at], self.values[at],
            rollouts.normalized(advantages) if self.use_advnorm else advantages, sample_batch(self.auxiliary_infos, at),
        )  # fmt: skip
        return self._sampled(("obs", "actions", "returns", "values", "advantages", "aux_batch"), found, len(at[0]))


class DummyOnPolicyBuffer_Atari(DummyOnPolicyBuffer):
    """As :class:`DummyOnPolicyBuffer`, with uint8 observations.

    With ``frame_stack``, the frames of an observation, each frame is stored once, as of
    :meth:`diskreplay.ReplayBuffer.create`.
    """

    OBSERVED = np.uint8


def _add_row(engine: ReplayBuffer, step: Mapping[str, Any], following: Mapping[str, Any]) -> None:
    engine.add(**without_env_axis({**step, "next_obs": following["obs"]}, engine.num_envs))


def _dtype(shape: Any) -> type[Any]:
    return object if shape is None else np.float32


def _pairs(memory: Any, given: Any) -> list[tuple[Array, Array]]:
    """Arrays of a memory and what is to be written into them."""
    return [(memory[key], given[key]) for key in given] if isinstance(given, dict) else [(memory, given)]
