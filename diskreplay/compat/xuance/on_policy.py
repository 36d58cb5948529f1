"""XuanCe's on-policy buffers of one agent, with observations on disk and all else in RAM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import check_count, check_share
from diskreplay.compat.location import Location
from diskreplay.compat.ring import Field, nested
from diskreplay.compat.stores import closed_on_failure, open_or_create
from diskreplay.compat.xuance import rollouts
from diskreplay.compat.xuance.disk_buffer import OneAgentBuffer, auxiliary_dtype, fit_step, ring_size, sampled
from diskreplay.compat.xuance.memory import sample_batch
from diskreplay.errors import InputError
from diskreplay.schema.ids import Ids
from diskreplay.storage.paths import PathLike

VALUE = "value"
COLUMNS = {VALUE: ((), np.float32)}
IN_RAM = "rewards", "returns", "values", "terminals", "advantages"
OBSERVED = "observations"
ALL = "all"
"""The key for the actions of a space that is not a Dict."""


def _in_ram(name: str) -> Any:
    """Return a property that shows an array in RAM."""

    def get(self: DummyOnPolicyBuffer) -> Any:
        return self._adapter.ram.arrays["steps"][name]

    def put(self: DummyOnPolicyBuffer, array: Any) -> None:
        self._adapter.ram.arrays["steps"][name] = array

    return property(get, put)


class DummyOnPolicyBuffer(OneAgentBuffer):
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
        horizon_size: the keyword that XuanCe 1.4.4 has in the place of ``n_size``. Samples are then dicts, as its
            agents take them.
        path: the directory of the store, which is made if nothing is there; None for a temporary one that goes away
            with the buffer.
        cache_bytes: RAM for values, as in :meth:`diskreplay.ReplayBuffer.open`.
        **options: further ones of :meth:`diskreplay.ReplayBuffer.create` and ``open``: ``codec``, ``chunk_rows``,
            ``shard_rows``, ``commit_rows``, ``commit_seconds``.

    Attributes:
        observation_space, ..., gae_lam: the arguments of these names.
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

    _adapter: rollouts.Rollout

    def __init__(
        self, observation_space: Any, action_space: Any, auxiliary_shape: Mapping[str, Any] | None, n_envs: int,
        n_size: int | None = None, use_gae: bool = True, use_advnorm: bool = True, gamma: float = 0.99,
        gae_lam: float = 0.95, *, horizon_size: int | None = None, path: PathLike | None = None,
        cache_bytes: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self._by_name = horizon_size is not None
        total = None if horizon_size is None else check_count("horizon_size", horizon_size) * n_envs
        n_size = ring_size(check_count("n_envs", n_envs), n_size, total, "horizon_size")
        super().__init__(observation_space, action_space, auxiliary_shape, n_envs, n_size)
        self.buffer_size = self.n_size * self.n_envs
        self.use_gae, self.use_advnorm = bool(use_gae), bool(use_advnorm)
        self.gamma, self.gae_lam = check_share("gamma", gamma), check_share("gae_lam", gae_lam)
        shapes = dict(auxiliary_shape or {})
        objects = [name for name, shape in shapes.items() if shape is None]
        if objects and path is not None:
            raise InputError(
                f"auxiliary_shape has objects ({objects[0]!r}: None), which are not written to disk: give their "
                "shape, or leave out path"
            )
        create = {**self._layout(), "columns": COLUMNS}
        given = {"cache_bytes": cache_bytes, **options}
        self.engine = open_or_create(ReplayBuffer, Location(path, self), given, create, seed=0)
        with closed_on_failure(self.engine):
            self._adapter = rollouts.Rollout(self.engine)
            by_key = self._action_shape if isinstance(self._action_shape, dict) else {ALL: self._action_shape}
            tables = {
                OBSERVED: {OBSERVED: nested(self._obs_shape, self.OBSERVED, "obs")},
                "steps": dict.fromkeys(IN_RAM, Field()),
                "actions": nested(by_key, np.float32),
                "auxiliary": {name: Field(shape or (), auxiliary_dtype(shape)) for name, shape in shapes.items()},
            }
            self._adapter.begin(self, tables)
        self.observations: Any = self._adapter.ram.arrays[OBSERVED][OBSERVED]

    # The arrays

    rewards, returns, values, terminals, advantages = map(_in_ram, IN_RAM)

    @property
    def _by_key(self) -> bool:
        return isinstance(self._action_shape, dict)

    @property
    def actions(self) -> Any:
        actions = self._adapter.ram.arrays["actions"]
        return actions if self._by_key else actions[ALL]

    @actions.setter
    def actions(self, actions: Any) -> None:
        self._adapter.ram.arrays["actions"] = actions if self._by_key else {ALL: actions}

    @property
    def auxiliary_infos(self) -> Any:
        return None if self.auxiliary_shape is None else self._adapter.ram.arrays["auxiliary"]

    @property
    def start_ids(self) -> Ids:
        """The position at which each environment's open path begins."""
        return self._adapter.start_ids

    # XuanCe's methods

    def store(self, obs: Any, acts: Any, rews: Any, value: Any, terminals: Any, aux_info: Any = None) -> None:
        """Store one step of all environments.

        Args:
            obs: ``(n_envs, *obs_shape)``, or a dict of such.
            acts: ``(n_envs, *action_shape)``, or a dict of such.
            rews: ``(n_envs,)``, finite.
            value: ``(n_envs,)``; None for zeros.
            terminals: ``(n_envs,)``, True where the episode terminated.
            aux_info: ``(n_envs, *shape)`` by name; what is left out is 0.

        Raises InputError, with nothing stored, for a wrong shape or rewards that are not finite.
        """
        row = self._step(obs, acts, rews, terminals)
        if not np.isfinite(row["reward"]).all():
            raise InputError("rews must be finite; nothing was stored")
        row[VALUE] = fit_step("value", 0 if value is None else value, self.n_envs, (), np.float32)
        beside = {
            "steps": {"rewards": row["reward"], "values": row[VALUE], "terminals": row["terminated"]},
            "actions": row["action"] if self._by_key else {ALL: row["action"]},
            "auxiliary": self._values(aux_info, self.auxiliary_shape or {}),
        }
        self._adapter.store(row, beside)

    def finish_path(self, val: Any, i: int) -> None:
        """Compute returns and advantages of an environment's steps since the last call, if there are any.

        Args:
            val: the value of what follows the newest step; it does not count where that step is terminal.
            i: the environment.

        Raises InputError where there is no such environment or ``val`` is no number.
        """
        env = check_count("i", i, least=0, most=self.n_envs - 1)
        last = fit_step("val", val, 1, (), np.float32)

        def estimate(path: rollouts.Path) -> tuple[Any, Any]:
            if not np.isfinite(last).all() and not path["terminals"][-1]:
                raise InputError(f"val must be finite where the newest step is not terminal, got {val!r}")
            lambdas = (self.gae_lam, self.gae_lam) if self.use_gae else (1.0, 0.0)
            returns, advantages = (rollouts.path_estimates(path, last, self.gamma, lambda_) for lambda_ in lambdas)
            return returns[0], advantages[1]

        self._adapter.finish(env, "steps", estimate)

    def sample(self, indexes: Any) -> Any:
        """Return the steps at ``indexes``, integers ``(B,)``: ``environment * n_size + step``.

        Returns:
            Observations, actions, returns, values, advantages and auxiliary values, each ``(B, ...)`` or a dict of
            such; None for auxiliary values that there are none of. Of a buffer that was made with ``horizon_size`` a
            dict of ``obs``, ``actions``, ``returns``, ``values``, ``advantages``, ``aux_batch`` and ``batch_size``.

        Raises NotEnoughDataError until the buffer is full, InputError for indexes that there are not.
        """
        at = self._adapter.chosen(indexes)
        advantages = self.advantages[at]
        found = {
            "obs": sample_batch(self.observations, at), "actions": sample_batch(self.actions, at),
            "returns": self.returns[at], "values": self.values[at],
            "advantages": rollouts.normalized(advantages) if self.use_advnorm else advantages,
            "aux_batch": sample_batch(self.auxiliary_infos, at),
        }  # fmt: skip
        return sampled(found, len(at[0]), self._by_name)


class DummyOnPolicyBuffer_Atari(DummyOnPolicyBuffer):
    """A :class:`DummyOnPolicyBuffer` with uint8 observations.

    With ``frame_stack``, the frames of an observation, each frame is stored once, as of
    :meth:`diskreplay.ReplayBuffer.create`.
    """

    OBSERVED = np.uint8
