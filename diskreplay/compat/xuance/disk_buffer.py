"""The store and ring that all XuanCe's buffers share, and the checks of a step that those for one agent share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import DTypeLike

from diskreplay.buffers.checkpointed import OverStores
from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.checks import Array, check_array, check_count
from diskreplay.compat import sampler_draws
from diskreplay.compat.adapter_state import AdapterState, RamState
from diskreplay.compat.disk_array import fit
from diskreplay.compat.location import Location
from diskreplay.compat.ring import Ring, ring_property
from diskreplay.compat.rows import ids_of, rows_of_window
from diskreplay.compat.stores import CREATE_OPTIONS, OPEN_OPTIONS, closed_on_failure, open_or_create
from diskreplay.compat.xuance.memory import Buffer, Shapes, space_shape
from diskreplay.errors import InputError
from diskreplay.schema.ids import Ids
from diskreplay.schema.spaces import unbounded


class DiskBuffer(OverStores):
    """The part of a buffer that is a store.

    Attributes:
        engine: the store.
    """

    engine: SampledBuffer[Any]
    _adapter: AdapterState
    _own_draws = False
    """True if draws come from the store's own generator, False if from numpy's global one."""

    ptr = ring_property("pos", "The entry to be written next.")
    size = ring_property("count", "Entries that are there.")
    full = ring_property("full", "Whether every entry is there.")

    @property
    def _ring(self) -> Ring:
        return self._adapter.ring

    def _begin(self, fields: Mapping[str, Any], ram: RamState | None = None) -> None:
        """Go on as the buffer was closed; arrays of the table of fields are ``(n_envs, n_size, ...)``."""
        with closed_on_failure(self.engine):
            lead = self.engine.num_envs, rows_of_window(self.engine)
            self._adapter = AdapterState(self.engine, ram, Ring(self.engine, fields, lead, axis=1))
            self._adapter.restore()
            self._adapter.attach(self)

    def _integers(self, most: int, size: int) -> Ids:
        """Draw whole numbers below ``most``."""
        return sampler_draws.integers(self.engine, most, size) if self._own_draws else np.random.choice(most, size)

    def _read(self, slots: Ids, envs: Ids) -> Any:
        self._adapter.flush()
        return self.engine.get(ids_of(self.engine, self._ring.entries(slots), envs))

    def clear(self, *args: Any) -> None:
        """Empty the buffer, with all that goes with its entries; the next commit gives the space back."""
        self.engine.clear()

    def commit(self) -> None:
        """Make everything durable, also what is in RAM."""
        self._adapter.save()

    def _written(self) -> tuple[SampledBuffer[Any]]:
        return (self.engine,)


class OneAgentBuffer(DiskBuffer, Buffer):
    """The part that buffers of single steps of one agent have in common: the shapes of a step, and its checks."""

    engine: ReplayBuffer
    OBSERVED: ClassVar[Any] = np.float32
    """The dtype of observations."""
    _by_name = False
    """True if samples are dicts."""

    def __init__(
        self, observation_space: Any, action_space: Any, auxiliary_shape: Mapping[str, Any] | None, n_envs: int,
        n_size: int,
    ) -> None:  # fmt: skip
        super().__init__(observation_space, action_space, auxiliary_shape)
        self.n_envs, self.n_size = check_count("n_envs", n_envs), check_count("n_size", n_size)
        self._obs_shape = space_shape("observation_space", observation_space)
        self._action_shape = space_shape("action_space", action_space)

    def _layout(self) -> dict[str, Any]:
        """Return the arguments of :meth:`diskreplay.ReplayBuffer.create` that follow from the shapes."""
        return {
            "observation_space": stored_space(self._obs_shape, self.OBSERVED),
            "action_space": stored_space(self._action_shape, np.float32), "num_envs": self.n_envs,
            "capacity": self.n_size * self.n_envs,
        }  # fmt: skip

    def _step(self, obs: Any, acts: Any, rews: Any, terminals: Any) -> dict[str, Any]:
        """Return a step of all environments as ``add`` takes it; raise InputError for wrong shapes and values."""
        return {
            "obs": fit_step("obs", obs, self.n_envs, self._obs_shape, self.OBSERVED),
            "action": fit_step("acts", acts, self.n_envs, self._action_shape, np.float32),
            "reward": fit_step("rews", rews, self.n_envs, (), np.float32),
            "terminated": fit_flags("terminals", terminals, self.n_envs).astype(bool),
            "truncated": np.zeros(self.n_envs, bool),
        }

    def _values(self, aux_info: Any, shapes: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return a step's auxiliary values by key, zeros where none are given; a shape of None stands for objects."""
        values = {} if aux_info is None else aux_info
        if not isinstance(values, Mapping) or values.keys() - shapes.keys():
            raise InputError(f"aux_info must be a dict with keys of {list(shapes)}, got {aux_info!r}")
        return {
            key: fit_step(f"aux_info[{key!r}]", values.get(key, 0), self.n_envs, shape or (), auxiliary_dtype(shape))
            for key, shape in shapes.items()
        }


def auxiliary_dtype(shape: Any) -> Any:
    """Return the dtype of auxiliary values of a shape, of Python objects if it is None."""
    return object if shape is None else np.float32


def sampled(parts: Mapping[str, Any], count: int, by_name: bool) -> Any:
    """Return a sample as a tuple, or as a dict with the batch size, which XuanCe's agents take then."""
    return {**parts, "batch_size": count} if by_name else tuple(parts.values())


OPTIONS = ("path", "seed", *CREATE_OPTIONS, *OPEN_OPTIONS)


def open_off_policy(owner: object, options: Mapping[str, Any], create: Mapping[str, Any]) -> ReplayBuffer:
    """Return the store of an off-policy buffer: that at the path, or a new one.

    Args:
        owner: the buffer.
        options: the options of ``OPTIONS``.
        create: arguments of :meth:`diskreplay.ReplayBuffer.create`.

    Raises InputError for an unknown option, or where the store at the path is that of another buffer.
    """
    unknown = sorted(options.keys() - set(OPTIONS))
    if unknown:
        raise InputError(f"unknown option {unknown[0]!r}; the options are {', '.join(OPTIONS)}")
    others = {name: value for name, value in options.items() if name not in ("path", "seed")}
    return open_or_create(ReplayBuffer, Location(options.get("path"), owner), others, create, seed=options.get("seed"))


def ring_size(n_envs: int, n_size: Any, total: Any, name: str) -> int:
    """Return the entries of each environment, ``n_size``, or a share of the total that newer versions of XuanCe give.

    Raises InputError where both or none of them are given, or the total is not the same for each environment.
    """
    if (n_size is None) == (total is None):
        raise InputError(f"give n_size, of one environment, or {name}, of all of them: got {n_size!r} and {total!r}")
    if total is None:
        return check_count("n_size", n_size)
    if check_count(name, total) % check_count("n_envs", n_envs):
        raise InputError(f"{name} must be a multiple of n_envs={n_envs}, got {total}")
    return int(total) // n_envs


def stored_space(shape: Shapes, dtype: DTypeLike) -> spaces.Space[Any]:
    """Return the space of any values of a shape and dtype, or of a dict of shapes."""
    if isinstance(shape, dict):
        return spaces.Dict([(key, stored_space(part, dtype)) for key, part in shape.items()])
    return unbounded(shape, dtype)


def fit_step(what: str, value: Any, n_envs: int, shape: Shapes, dtype: Any) -> Any:
    """Return a step's values as an array ``(n_envs, *shape)``, or a dict; raise InputError if they do not fit."""
    if isinstance(shape, dict):
        if not isinstance(value, Mapping) or value.keys() != shape.keys():
            raise InputError(f"{what} must be a dict with the keys {list(shape)}, got {value!r}")
        return {key: fit_step(f"{what}[{key!r}]", value[key], n_envs, part, dtype) for key, part in shape.items()}
    if dtype is not object and check_array(what, value).dtype.kind not in "biuf":
        raise InputError(f"{what} must have the shape {(n_envs, *shape)} and be numbers, got {value!r:.80}")
    if dtype is np.uint8:
        exact = fit(what, value, (n_envs, *shape), np.float64)
        if not ((exact >= 0) & (exact <= 255) & (exact == np.trunc(exact))).all():
            raise InputError(f"{what} must be whole numbers from 0 to 255; nothing was stored")
    return fit(what, value, (n_envs, *shape), dtype)


def fit_flags(what: str, value: Any, n_envs: int) -> Array:
    """Return True and False as float32 ``(n_envs,)``; raise InputError if there is something else."""
    flags: Array = fit_step(what, value, n_envs, (), np.float32)
    if not ((flags == 0) | (flags == 1)).all():
        raise InputError(f"{what} must be True or False, got {value!r}; nothing was stored")
    return flags
