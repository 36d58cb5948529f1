"""XuanCe's on-policy buffers of one agent. Observations are on disk, all else is in RAM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from diskreplay.checks import check_count, check_share
from diskreplay.compat.kept import Held, InHeld, Kept, Lagging, set_item
from diskreplay.compat.place import Place, close_with
from diskreplay.compat.rows import Grid, fit
from diskreplay.compat.xuance.marl.on_policy import next_entry, normalized
from diskreplay.compat.xuance.memory import Buffer, create_memory, sample_batch, space_shape
from diskreplay.compat.xuance.returns import path_estimates
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.paths import PathLike
from diskreplay.views.batch import Batch, map_arrays

CACHE_BYTES = 256 << 20
VALUE = "value"
COLUMNS = {VALUE: ((), np.float32)}
ALL = "all"
"""Where the actions of a space that is no Dict are held."""

Array = NDArray[Any]
Ids = NDArray[np.int64]


class LaggingSteps(Lagging[Batch], Kept):
    """Rows whose next observation comes with the row after them."""

    def _put(self, step: dict[str, Any], following: Mapping[str, Any]) -> None:
        step = {**step, "next_obs": following["obs"]}
        if self.num_envs == 1:
            step = {name: map_arrays(lambda array: array[0], value) for name, value in step.items()}
        self.add(**step)


def _in_ram(group: str, name: str) -> Any:
    """An array that is held."""

    def held(buffer: DummyOnPolicyBuffer) -> Any:
        buffer.engine.settle()
        return buffer._held.arrays[group][name]

    def put(buffer: DummyOnPolicyBuffer, array: Any) -> None:
        buffer.engine.settle()
        buffer._held.arrays[group][name] = array

    return property(held, put)


class DummyOnPolicyBuffer(InHeld, Buffer):
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

    OBSERVED: type[Any] = np.float32
    """The dtype of observations."""

    def __init__(
        self, observation_space: Any, action_space: Any, auxiliary_shape: Mapping[str, Any] | None, n_envs: int,
        n_size: int, use_gae: bool = True, use_advnorm: bool = True, gamma: float = 0.99, gae_lam: float = 0.95, *,
        path: PathLike | None = None, cache_bytes: int = CACHE_BYTES, **options: Any,
    ) -> None:  # fmt: skip
        self._held = Held()
        super().__init__(observation_space, action_space, auxiliary_shape)
        self.n_envs, self.n_size = check_count("n_envs", n_envs), check_count("n_size", n_size)
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
        self._held.marks = {name: np.zeros(self.n_envs, np.int64) for name in ("start_ids", "open")}
        self.engine = self._open(path, {"cache_bytes": cache_bytes, **options})
        with self.engine.opening():
            self._check_store(self.engine)
            self._held.arrays = self._arrays()
            self.engine.held = self._held
            self.observations: Any = self._on_disk()
            if not self.engine.take_back() and len(self.engine):
                self.engine.clear()  # a rollout whose estimates are lost cannot be learned from
            close_with(self, self.engine)

    # The store

    def _open(self, path: PathLike | None, options: dict[str, Any]) -> LaggingSteps:
        """The store at the path, or a new one."""
        place = Place(path, self)
        observed, acted = _space(self._obs_shape, self.OBSERVED), _space(self._action_shape, np.float32)
        if not place.exists:
            made = LaggingSteps.create(
                place.path, observed, acted, capacity=self.buffer_size, num_envs=self.n_envs, columns=COLUMNS, seed=0,
                **options,
            )  # fmt: skip
            assert isinstance(made, LaggingSteps)
            return made
        opening = {key: value for key, value in options.items() if key.startswith(("cache_", "commit_"))}
        found = LaggingSteps.open(place.path, seed=0, **opening)
        assert isinstance(found, LaggingSteps)
        return found

    def _check_store(self, found: LaggingSteps) -> None:
        """InputError where it is of another buffer."""
        schema = found.schema
        ours = _space(self._obs_shape, self.OBSERVED), _space(self._action_shape, np.float32)
        alike = (schema.observation_space, schema.action_space) == ours
        sizes = schema.capacity, found.num_envs, [column.name for column in schema.extra_columns]
        if not alike or sizes != (self.buffer_size, self.n_envs, [*COLUMNS]):
            raise InputError(f"the store at {found.path!r} was made with other spaces or sizes; choose another path")

    # The arrays

    rewards = _in_ram("steps", "rewards")
    returns = _in_ram("steps", "returns")
    values = _in_ram("steps", "values")
    terminals = _in_ram("steps", "terminals")
    advantages = _in_ram("steps", "advantages")

    @property
    def actions(self) -> Any:
        self.engine.settle()
        actions = self._held.arrays["actions"]
        return actions if isinstance(self._action_shape, dict) else actions[ALL]

    @actions.setter
    def actions(self, actions: Any) -> None:
        self.engine.settle()
        self._held.arrays["actions"] = actions if isinstance(self._action_shape, dict) else {ALL: actions}

    @property
    def auxiliary_infos(self) -> Any:
        self.engine.settle()
        return None if self.auxiliary_shape is None else self._held.arrays["auxiliary"]

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
        engine, held, dtype = self.engine, self._held, self.OBSERVED
        lead = self.n_envs, self.n_size
        n_size = self.n_size

        def grid(shape: tuple[int, ...], key: str | None) -> Grid:
            def read(places: Ids) -> Array:
                envs, slots = np.divmod(places, n_size)
                out = np.zeros((len(places), *shape), dtype)
                engine.flush()
                there = slots < held.size
                if there.any():
                    rows = engine.rows_of(held.ptr, n_size, slots[there])
                    out[there] = _seen(engine, engine.ids(rows, envs[there]), key)
                return out

            return Grid(lead, shape, dtype, read)

        if isinstance(self._obs_shape, dict):
            return {key: grid(shape, key) for key, shape in self._obs_shape.items()}
        return grid(self._obs_shape, None)

    @property
    def start_ids(self) -> Ids:
        """Where each environment's open path begins."""
        self.engine.settle()
        return self._held.marks["start_ids"]

    # XuanCe's methods

    def clear(self) -> None:
        """Empties the buffer, with all its paths; its space goes back with the next commit."""
        self.engine.clear()

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
        slot, size = self._ring()
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
        self.engine.put(
            *(set_item(array, (slice(None), slot), values) for array, values in pairs),
            *next_entry(self._held, slot, size, self.n_size),
            obs=step["obs"], action=step["actions"], reward=step["rewards"],
            terminated=step["terminals"].astype(bool), truncated=np.zeros(self.n_envs, bool), value=step["values"],
        )  # fmt: skip

    def _checked(self, obs: Any, acts: Any, rews: Any, value: Any, terminals: Any, aux_info: Any) -> dict[str, Any]:
        shapes = dict(self.auxiliary_shape or {})
        given = {} if aux_info is None else aux_info
        if not isinstance(given, Mapping) or not given.keys() <= shapes.keys():
            raise InputError(f"aux_info must be a dict with keys of {list(shapes)}, got {aux_info!r}")
        auxiliary = {
            name: _fit(f"aux_info[{name!r}]", given.get(name, 0), self.n_envs, shape or (), _dtype(shape))
            for name, shape in shapes.items()
        }
        step = {
            "obs": _fit("obs", obs, self.n_envs, self._obs_shape, self.OBSERVED),
            "actions": _fit("acts", acts, self.n_envs, self._action_shape, np.float32),
            "rewards": _fit("rews", rews, self.n_envs, (), np.float32),
            "values": _fit("value", 0 if value is None else value, self.n_envs, (), np.float32),
            "terminals": _fit("terminals", terminals, self.n_envs, (), np.float32),
            "auxiliary": auxiliary,
        }
        if not np.isfinite(step["rewards"]).all():
            raise InputError("rews must be finite; nothing was stored")
        if not np.isin(step["terminals"], (0, 1)).all():
            raise InputError("terminals must be True or False; nothing was stored")
        return step

    def finish_path(self, val: Any, i: int) -> None:
        """Computes returns and advantages of an environment's steps since the last call; without any, nothing.

        Args:
            val: the value of what follows the newest step; it does not count where that step is terminal.
            i: the environment.

        Raises InputError where there is no such environment or ``val`` is no number.
        """
        env = check_count("i", i, least=0, most=self.n_envs - 1)
        last = _fit("val", val, 1, (), np.float32)
        start_ids, steps = self.start_ids, self._held.marks["open"]
        count = int(steps[env])
        if not count:
            return
        slots = (start_ids[env] + np.arange(count)) % self.n_size
        path = self.rewards[env, slots], self.values[env, slots, None], last, self.terminals[env, slots] != 0
        if not np.isfinite(last).all() and not path[3][-1]:
            raise InputError(f"val must be finite where the newest step is not terminal, got {val!r}")
        lambdas = (self.gae_lam, self.gae_lam) if self.use_gae else (1.0, 0.0)
        self.engine.change(
            set_item(self.returns, (env, slots), path_estimates(*path, self.gamma, lambdas[0])[0][:, 0]),
            set_item(self.advantages, (env, slots), path_estimates(*path, self.gamma, lambdas[1])[1][:, 0]),
            set_item(steps, env, 0),
            set_item(start_ids, env, self.ptr),
            *self.engine.cut_off(env),
        )

    def sample(self, indexes: Any) -> tuple[Any, ...]:
        """The steps at ``indexes``, integers ``(B,)``: ``environment * n_size + step``.

        Returns:
            Observations, actions, returns, values, advantages and auxiliary values, each ``(B, ...)`` or a dict of
            such; None for auxiliary values that there are none of.

        Raises NotEnoughDataError until the buffer is full, InputError for indexes that there are not.
        """
        if not self.full:
            raise NotEnoughDataError(
                f"the buffer holds {self.size} of {self.n_size} steps; sample it when it is full, or call clear()"
            )
        chosen = np.asarray(indexes)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
            raise InputError(f"indexes must be integers of shape (B,), got {chosen.dtype} {chosen.shape}")
        if len(chosen) and not (chosen.min() >= 0 and chosen.max() < self.buffer_size):
            raise InputError(f"indexes must be 0 to {self.buffer_size - 1}, got {chosen.min()} to {chosen.max()}")
        at = np.divmod(chosen.astype(np.int64), self.n_size)
        advantages = self.advantages[at]
        return (
            sample_batch(self.observations, at), sample_batch(self.actions, at), self.returns[at], self.values[at],
            normalized(advantages) if self.use_advnorm else advantages, sample_batch(self.auxiliary_infos, at),
        )  # fmt: skip


class DummyOnPolicyBuffer_Atari(DummyOnPolicyBuffer):
    """As :class:`DummyOnPolicyBuffer`, with uint8 observations.

    With ``frame_stack``, the frames of an observation, each frame is stored once, as of
    :meth:`diskreplay.ReplayBuffer.create`.
    """

    OBSERVED = np.uint8


def _space(shape: Any, dtype: type[Any]) -> spaces.Space[Any]:
    if isinstance(shape, dict):
        return spaces.Dict({key: _space(part, dtype) for key, part in shape.items()})
    low, high = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
    return spaces.Box(low, high, shape, dtype)


def _seen(engine: LaggingSteps, ids: Ids, key: str | None) -> Array:
    """Observations, or the part ``key`` of them, of ids; each is read once."""
    wanted, where = np.unique(ids, return_inverse=True)
    found = engine.get(wanted).obs
    values: Array = found if key is None else found[key]
    return values[where]


def _dtype(shape: Any) -> type[Any]:
    return object if shape is None else np.float32


def _fit(what: str, value: Any, n_envs: int, shape: Any, dtype: type[Any]) -> Any:
    """``value`` as an array ``(n_envs, *shape)``, or a dict of such; InputError where it does not fit."""
    if isinstance(shape, dict):
        if not isinstance(value, Mapping) or value.keys() != shape.keys():
            raise InputError(f"{what} must be a dict with the keys {list(shape)}, got {value!r}")
        return {key: _fit(f"{what}[{key!r}]", value[key], n_envs, part, dtype) for key, part in shape.items()}
    if value is None and dtype is not object:
        raise InputError(f"{what} must have the shape {(n_envs, *shape)}, got None")
    found = fit(what, value, (n_envs, *shape), dtype)
    if dtype is np.uint8 and not np.array_equal(found, fit(what, value, found.shape, np.float64)):
        raise InputError(f"{what} must be whole numbers from 0 to 255")
    return found


def _pairs(memory: Any, given: Any) -> list[tuple[Array, Array]]:
    """Arrays of a memory and what is to be written into them."""
    return [(memory[key], given[key]) for key in given] if isinstance(given, dict) else [(memory, given)]
