"""The wrapper of a vector environment, whatever its autoreset mode."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Unpack

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

from diskreplay.buffers.autoreset import AutoresetMode, final_observations
from diskreplay.buffers.options import EitherOptions, shared
from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.errors import InputError
from diskreplay.paths import PathLike
from diskreplay.recording.copies import copied
from diskreplay.recording.opening import NO_SEED, SEED, info_columns, opened, seed_number
from diskreplay.sampling.window import Sampler
from diskreplay.spaces import is_ragged
from diskreplay.views.batch import map_arrays
from diskreplay.views.view import View

FINAL_OBS = ("final_obs", "final_observation")


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
        if options["video"] or (isinstance(path, ReplayBuffer) and path.schema.videos):
            raise InputError("VectorRecord cannot record video: use Record, with a stream for each environment")
        spaces = envs.single_observation_space, envs.single_action_space
        self.buffer = opened(envs, path, *spaces, envs.num_envs, capacity, view, sampler, seeds, options)
        """The buffer that takes the steps."""
        self._seeds = bool(seeds)
        self._names = info_columns(self.buffer, seeds)
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
        self._at = (
            self._kept_in_space(obs, self.env.single_observation_space),
            ended & ~resets,
            np.where(resets, numbers, before),
        )
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
        given = self._kept_in_space(actions, self.env.single_action_space)
        self._at = None
        next_obs, rewards, terminated, truncated, info = self.env.step(actions)
        done = np.logical_or(terminated, truncated)
        self._check_finals(info, done)
        valid = ~ended
        kept = self._kept_in_space(next_obs, self.env.single_observation_space)
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

    def _kept_in_space(self, value: Any, space: gymnasium.Space[Any]) -> Any:
        """Return a copy of observations or actions; of a ragged space, a list with one for each environment."""
        if not self.buffer.schema.ragged:
            return copied(value, self.buffer)
        if isinstance(space, gymnasium.spaces.Dict) and isinstance(value, Mapping):
            known = {key: self._kept_in_space(value[key], sub) for key, sub in space.spaces.items() if key in value}
            return {**value, **known}
        if isinstance(space, gymnasium.spaces.Tuple) and isinstance(value, tuple) and len(value) == len(space.spaces):
            return tuple(self._kept_in_space(part, sub) for part, sub in zip(value, space.spaces, strict=True))
        if not is_ragged(space, ""):
            return copied(value, self.buffer)
        return copy.deepcopy(list(value) if isinstance(value, tuple | np.ndarray) else value)

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
        return np.array([seed_number(one) for one in seed], np.int64)

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

    def _column(self, info: Mapping[str, Any], name: str, valid: NDArray[np.bool_], done: NDArray[np.bool_]) -> Any:
        """Return the values ``(num_envs, *shape)`` of a column, or a list of ragged ones.

        Where the step is no transition, there is any value.
        """
        ragged = name in self.buffer.schema.ragged
        values, has = _of(info, name, self.num_envs, ragged)
        if self.autoreset_mode is AutoresetMode.SAME_STEP and done.any():
            finals, final_has = _of(info.get("final_info", {}), name, self.num_envs, ragged)
            has = np.where(done, final_has, has)
            if finals is not None:
                values = finals if values is None else values.copy()
                values[done] = finals[done]
        lacking = np.flatnonzero(valid & ~has)
        if len(lacking):
            raise InputError(f"info of the environments {lacking.tolist()} has no {name!r}, which is a column")
        if ragged:
            return [None] * self.num_envs if values is None else values.tolist()
        if values is None:
            column = next(one for one in self.buffer.schema.extra_columns if one.name == name)
            return np.zeros((self.num_envs, *column.shape), column.dtype)
        return values


def _of(
    info: Any, name: str, num_envs: int, ragged: bool
) -> tuple[NDArray[Any] | None, NDArray[np.bool_]]:  # fmt: skip
    """Return the values of a key of a vector environment's ``info``, as objects if ragged, and who has one."""
    if name not in info:
        return None, np.zeros(num_envs, bool)
    values = np.fromiter(info[name], object, num_envs) if ragged else np.asarray(info[name])
    return values, np.asarray(info.get(f"_{name}", np.ones(num_envs, bool)))


def _first(value: Any) -> Any:
    """Return what a vector environment of one has for its only environment."""
    return map_arrays(lambda part: part[0] if isinstance(part, list) else np.asarray(part)[0], value)
