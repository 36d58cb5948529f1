"""Gymnasium wrappers that record what passes through them into a store.

1. A wrapper changes nothing of what passes. It adds a step once the environment has returned it, with observations of
   its own: environments may reuse their arrays, and programs change them.
2. What it has to know between two steps is one value, set at the end of a call. A call that is ended half-way, by an
   error or an interrupt, leaves None there: whether that step happened nobody can know, so the next one needs a reset.
3. A reset in the middle of an episode cuts it. So does opening a store again: its episodes do not go on.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Unpack

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

from diskreplay.buffers.autoreset import AutoresetMode, final_observations
from diskreplay.buffers.comparing import found
from diskreplay.buffers.options import EitherOptions, shared
from diskreplay.buffers.provenance import provenance
from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import check_count, check_flag
from diskreplay.errors import InputError
from diskreplay.paths import PathLike
from diskreplay.sampling.window import Sampler
from diskreplay.schema import refuse_ragged
from diskreplay.storage.local_files import LocalFiles
from diskreplay.views.batch import map_arrays
from diskreplay.views.view import View

CAPACITY = 1_000_000
SEED = "seed"
"""The name of the column of ``seeds=True``."""
NO_SEED = -1
FINAL_OBS = ("final_obs", "final_observation")


class Record(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose steps are recorded into a store.

    A store that is there goes on. ``env.buffer`` is the :class:`~diskreplay.ReplayBuffer` that is written: what it
    holds can be sampled at any time. :meth:`close` commits.

    ``spec`` is that of the environment without this wrapper: whoever makes it again records nothing.

    Args:
        env: a Gymnasium environment. It must not reset by itself: put ``gymnasium.wrappers.Autoreset`` around this one.
        path, view, sampler: as in :meth:`diskreplay.ReplayBuffer.open_or_create`; or, in the place of a path and of all
            options, a buffer with the environment's spaces that is open for writing. :meth:`close` closes it, too.
        capacity: steps that the store keeps; older ones are evicted. If None, as many as the one that is there does, or
            1,000,000 in a new one.
        columns: further values of each step, by name: a dtype, ``(shape, dtype)`` or a space. They are taken from
            ``info[name]`` of the step, which must have it.
        seeds: keep the seed that each episode's ``reset`` was given in the column ``"seed"``, int64; -1 where none was.
        provenance: the store's provenance; that of :func:`diskreplay.provenance` if None.
        **options: all others of :meth:`diskreplay.ReplayBuffer.open_or_create`; ``seed`` is that of its sampler.

    Raises InputError for what is no environment, and what ``open_or_create`` raises. ``step`` and ``reset`` raise what
    ``add`` and ``cut`` of the buffer raise, InputError where ``info`` lacks a column.
    """

    @shared(EitherOptions)
    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        path: PathLike | ReplayBuffer,
        *,
        capacity: int | None = None,
        view: View | None = None,
        sampler: Sampler | None = None,
        seeds: bool = False,
        **options: Unpack[EitherOptions],
    ) -> None:
        if not isinstance(env, gymnasium.Env):
            other = "; VectorRecord records vector environments" if isinstance(env, VectorEnv) else ""
            raise InputError(f"env must be a gymnasium.Env, got {type(env).__name__}{other}")
        super().__init__(env)
        self.buffer = _opened(
            env, path, env.observation_space, env.action_space, 1, capacity, view, sampler, seeds, options
        )
        """The buffer that takes the steps."""
        self._seeds = bool(seeds)
        self._names = _names(self.buffer, seeds)
        self._at: tuple[Any, int] | None = None
        """The observation that the next step begins with, and the seed of its episode, or None between episodes."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        len(self.buffer)  # ClosedError, before the environment is touched
        number = _number(seed) if self._seeds else NO_SEED
        self._at = None
        obs, info = self.env.reset(seed=seed, options=options)
        self.buffer.cut()
        self._at = _kept(obs, self.buffer), number
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        len(self.buffer)
        if self._at is None:
            raise ResetNeeded(
                "call reset() before step(): no episode has begun, or it has ended, or a step was cut short by an error"
            )
        obs, seed = self._at
        given = _kept(action, self.buffer)
        self._at = None
        next_obs, reward, terminated, truncated, info = self.env.step(action)
        following = _kept(next_obs, self.buffer)
        extra = {name: _value(info, name) for name in self._names}
        if self._seeds:
            extra[SEED] = seed
        self.buffer.add(obs, given, reward, following, terminated, truncated, **extra)
        if not (terminated or truncated):
            self._at = following, seed
        return next_obs, reward, terminated, truncated, info

    def close(self) -> None:
        """Commit, close the store, and close the environment; a second call does nothing more."""
        try:
            self.buffer.close()
        finally:
            self.env.close()

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        """The spec of the environment that is recorded."""
        return self.env.spec


class VectorRecord(VectorWrapper):  # not generic in Gymnasium 1.0
    """A vector environment whose steps are recorded into one stream of a store, whatever its autoreset mode.

    The mode is that of ``metadata["autoreset_mode"]``, ``NEXT_STEP`` where there is none. With ``NEXT_STEP`` the steps
    that reset are rows which are never sampled; with ``SAME_STEP`` the final observations come from ``info``; with
    ``DISABLED`` environments that have ended must be reset before the next step, all or by
    ``options={"reset_mask": mask}``.

    Args:
        envs: a ``gymnasium.vector.VectorEnv``.
        stream: the stream to write, the store's first if None; another process writes another one.
        path, capacity, view, sampler, columns, seeds, provenance, **options: as in :class:`Record`. Where an
            environment ends with ``SAME_STEP``, ``info["final_info"]`` is where its columns are taken from. Of a seed
            that is an integer, environment ``i`` has that and ``i``.

    Raises what :class:`Record` raises.
    """

    @shared(EitherOptions)
    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        path: PathLike | ReplayBuffer,
        *,
        capacity: int | None = None,
        view: View | None = None,
        sampler: Sampler | None = None,
        seeds: bool = False,
        **options: Unpack[EitherOptions],
    ) -> None:
        if not isinstance(envs, VectorEnv):
            other = "; Record records single environments" if isinstance(envs, gymnasium.Env) else ""
            raise InputError(f"envs must be a gymnasium.vector.VectorEnv, got {type(envs).__name__}{other}")
        mode = envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        if not isinstance(mode, AutoresetMode):
            raise InputError(
                f"metadata['autoreset_mode'] of envs must be a gymnasium.vector.AutoresetMode, got {mode!r}"
            )
        super().__init__(envs)
        self.autoreset_mode = mode
        spaces = envs.single_observation_space, envs.single_action_space
        if isinstance(path, ReplayBuffer):
            refuse_ragged(path.schema, "VectorRecord")
        fixed: EitherOptions = {**options, "ragged": None}
        self.buffer = _opened(envs, path, *spaces, envs.num_envs, capacity, view, sampler, seeds, fixed)
        """The buffer that takes the steps."""
        self._seeds = bool(seeds)
        self._names = _names(self.buffer, seeds)
        self._at: tuple[Any, NDArray[np.bool_], NDArray[np.int64]] | None = None
        """The state before the next step, or None if no episodes are going on.

        It holds the observations that the next step begins with, which environments have ended and wait for
        their reset, and the seeds of their episodes.
        """

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:  # fmt: skip
        len(self.buffer)
        mask = self._mask(options)
        numbers = self._numbers(seed)
        ended, before = np.zeros(self.num_envs, bool), numbers
        if mask is not None:
            if self._at is None:
                raise ResetNeeded("call reset() without a reset_mask first: no episode has begun")
            _, ended, before = self._at
        self._at = None
        # Gymnasium's vector environments take the mask out of the mapping that they are given.
        obs, info = self.env.reset(seed=seed, options=None if options is None else dict(options))
        self.buffer.cut(mask)
        resets = np.ones(self.num_envs, bool) if mask is None else mask
        self._at = _kept(obs, self.buffer), ended & ~resets, np.where(resets, numbers, before)
        return obs, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        len(self.buffer)
        if self._at is None:
            raise ResetNeeded("call reset() before step(): no episodes have begun, or a step was cut short by an error")
        obs, ended, seeds = self._at
        if self.autoreset_mode is AutoresetMode.DISABLED and ended.any():
            raise ResetNeeded(
                f"the environments {np.flatnonzero(ended).tolist()} have ended and do not reset by themselves: call "
                "reset(options={'reset_mask': terminated | truncated}) before step()"
            )
        given = _kept(actions, self.buffer)
        self._at = None
        next_obs, rewards, terminated, truncated, info = self.env.step(actions)
        done = np.logical_or(terminated, truncated)
        self._check_finals(info, done)
        valid = ~ended
        kept = _kept(next_obs, self.buffer)
        extra = {name: self._column(info, name, valid, done) for name in self._names}
        if self._seeds:
            extra[SEED] = seeds
        row: tuple[Any, ...] = (
            obs, given, rewards, final_observations(kept, info), terminated, truncated, valid if ended.any() else None
        )  # fmt: skip
        if self.num_envs == 1:
            row, extra = tuple(_first(part) for part in row), {name: _first(part) for name, part in extra.items()}
        self.buffer.add(*row, **extra)
        waits = done & (self.autoreset_mode is not AutoresetMode.SAME_STEP)
        self._at = kept, waits, np.where(done, NO_SEED, seeds)
        return next_obs, rewards, terminated, truncated, info

    def close(self, **kwargs: Any) -> None:
        """Commit, close the store, and close the environments; a second call does nothing more."""
        try:
            self.buffer.close()
        finally:
            self.env.close(**kwargs)

    def _mask(self, options: Mapping[str, Any] | None) -> NDArray[np.bool_] | None:
        """Return which environments a reset is for, or None for all."""
        if options is None or "reset_mask" not in options:
            return None
        mask = np.array(options["reset_mask"])
        if mask.dtype != bool or mask.shape != (self.num_envs,):
            raise InputError(
                f"reset_mask must be bool of shape ({self.num_envs},), got {mask.dtype} of shape {mask.shape}"
            )
        return mask

    def _numbers(self, seed: Any) -> NDArray[np.int64]:
        """Return the seed of each environment."""
        if not self._seeds or seed is None:
            return np.full(self.num_envs, NO_SEED, np.int64)
        if isinstance(seed, int | np.integer):
            seed = [int(seed) + env for env in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise InputError(f"seed must be an integer or one for each of {self.num_envs} environments, got {seed!r}")
        return np.array([_number(one) for one in seed], np.int64)

    def _check_finals(self, info: Mapping[str, Any], done: NDArray[np.bool_]) -> None:
        """Raise InputError if the environments are seen to be in another mode than they say."""
        finals = next((key for key in FINAL_OBS if key in info), None)
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            if finals is not None:
                raise InputError(
                    f"info has {finals!r}, as environments have it that reset in the same step, but the mode is "
                    f"{self.autoreset_mode.name}: set metadata['autoreset_mode'] of the environments"
                )
        elif done.any() and (finals is None or not np.all(info[f"_{finals}"][done])):
            raise InputError(
                f"info lacks the final observations of the environments {np.flatnonzero(done).tolist()}, which "
                "SAME_STEP promises as info['final_obs']"
            )

    def _column(
        self, info: Mapping[str, Any], name: str, valid: NDArray[np.bool_], done: NDArray[np.bool_]
    ) -> NDArray[Any]:  # fmt: skip
        """Return the values ``(num_envs, *shape)`` of a column, any value where the step is no transition."""
        values, has = _of(info, name, self.num_envs)
        if self.autoreset_mode is AutoresetMode.SAME_STEP and done.any():
            finals, final_has = _of(info.get("final_info", {}), name, self.num_envs)
            has = np.where(done, final_has, has)
            if finals is not None:
                values = finals if values is None else values.copy()
                values[done] = finals[done]
        lacking = np.flatnonzero(valid & ~has)
        if len(lacking):
            raise InputError(f"info of the environments {lacking.tolist()} has no {name!r}, which is a column")
        if values is None:
            column = next(one for one in self.buffer.schema.extra_columns if one.name == name)
            return np.zeros((self.num_envs, *column.shape), column.dtype)
        return values


def _opened(
    env: Any, path: PathLike | ReplayBuffer, observation_space: Any, action_space: Any, num_envs: int,
    capacity: int | None, view: View | None, sampler: Sampler | None, seeds: bool, options: EitherOptions,
) -> ReplayBuffer:  # fmt: skip
    if isinstance(path, ReplayBuffer):
        has = path.schema.observation_space, path.schema.action_space, path.num_envs
        wanted = observation_space, action_space, num_envs
        if has != wanted:
            raise InputError(
                f"the buffer {path.path!r} has spaces and environments {has}, but what is recorded {wanted}"
            )
        if seeds and SEED not in {column.name for column in path.schema.extra_columns}:
            raise InputError(
                f"the buffer {path.path!r} has no column {SEED!r}: create it with columns={{'seed': 'int64'}}"
            )
        if path.engine.streams.writer is None:
            raise InputError(f"the buffer {path.path!r} must be open for writing: open it with mode='r+'")
        return path
    columns = dict(options["columns"] or {})
    if check_flag("seeds", seeds):
        if SEED in columns:
            raise InputError(f"columns must not have {SEED!r} with seeds=True, which is that column")
        columns[SEED] = np.int64
    told = provenance(env) if options["provenance"] is None else options["provenance"]
    more: EitherOptions = {**options, "columns": columns, "provenance": told}
    return ReplayBuffer.open_or_create(
        path, observation_space, action_space,
        capacity=_capacity(path, options) if capacity is None else capacity, num_envs=num_envs, view=view,
        sampler=sampler, **more,
    )  # fmt: skip


def _capacity(path: PathLike, options: EitherOptions) -> int:
    """Return the capacity of the stream that is there, or that a new one gets."""
    store = found(path, options["files"] or LocalFiles())
    if store is None:
        return CAPACITY
    stream = options["stream"]
    if stream is None or not store.has_stream(stream):
        return store.first_commit().capacity
    return store.newest_commit(stream).capacity


def _names(buffer: ReplayBuffer, seeds: bool) -> list[str]:
    """Return the columns that come from ``info``."""
    return [column.name for column in buffer.schema.extra_columns if not (seeds and column.name == SEED)]


def _number(seed: Any) -> int:
    """Return a seed as the column has it; raise InputError if it cannot hold it."""
    return NO_SEED if seed is None else check_count("seed", seed, least=0, most=(1 << 63) - 1)


def _value(info: Mapping[str, Any], name: str) -> Any:
    try:
        return info[name]
    except KeyError:
        raise InputError(f"info of a step has no {name!r}, which is a column; it has {sorted(info)}") from None


def _of(info: Any, name: str, num_envs: int) -> tuple[NDArray[Any] | None, NDArray[np.bool_]]:
    """Return the values of a key of a vector environment's ``info``, and which environments have one."""
    if name not in info:
        return None, np.zeros(num_envs, bool)
    values = np.asarray(info[name])
    return values, np.asarray(info.get(f"_{name}", np.ones(num_envs, bool)))


def _kept(value: Any, buffer: ReplayBuffer) -> Any:
    """Return a copy of an observation or an action."""
    return copy.deepcopy(value) if buffer.schema.ragged else map_arrays(np.array, value)


def _first(value: Any) -> Any:
    """Return what a vector environment of one has for its only environment."""
    return map_arrays(lambda part: np.asarray(part)[0], value)
