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

from diskreplay.buffers.autoreset import HIDDEN, AutoresetMode, checked_info, final_observations
from diskreplay.buffers.options import CreateOptions, shared
from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import arrays, check_array, check_count
from diskreplay.errors import InputError
from diskreplay.recording.columns import SEED
from diskreplay.recording.copies import copied
from diskreplay.recording.opening import NO_SEED, opened, seed_number
from diskreplay.sampling.window import Sampler
from diskreplay.schema.columns import REWARD, TERMINATED, TRUNCATED
from diskreplay.schema.spaces import LEAF_SPACES, is_ragged
from diskreplay.storage.paths import PathLike
from diskreplay.views.batch import map_arrays
from diskreplay.views.view import View


class VectorRecord(VectorWrapper):  # not generic in Gymnasium 1.0
    """A vector environment whose steps are recorded into one stream of a store, whatever its autoreset mode.

    The mode is that of ``metadata["autoreset_mode"]``, ``NEXT_STEP`` where there is none. With ``NEXT_STEP`` the steps
    that reset are rows which are never sampled; with ``SAME_STEP`` the final observations come from ``info``, as
    :func:`diskreplay.final_observations` takes them, with a mask or without; with
    ``DISABLED`` environments that have ended must be reset before the next step, all or by
    ``options={"reset_mask": mask}``.

    Args:
        envs: a ``gymnasium.vector.VectorEnv``.
        stream: the stream to write, the store's first if None; another process writes another one.
        path, capacity, view, sampler, columns, defaults, seeds, provenance, **options: as in :class:`Record`. Where
            an environment ends with ``SAME_STEP``, ``info["final_info"]`` is where its columns are taken from. Of a
            seed that is an integer, environment ``i`` has that and ``i``.

    What an environment returns may be torch's tensors, on any device; so may actions.

    Raises what :class:`Record` raises, and InputError for an autoreset mode that is none of Gymnasium's and for spaces
    that are not those of ``num_envs`` environments. ``step`` raises InputError where the infos are a list, as those of
    Stable-Baselines3, which hides final observations or lacks columns.
    """

    @shared(CreateOptions)
    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        path: PathLike | ReplayBuffer,
        *,
        capacity: int | None = None,
        view: View | None = None,
        sampler: Sampler | None = None,
        seeds: bool = False,
        defaults: Mapping[str, Any] | None = None,
        checkpoint: str | None = None,
        take_over: bool = False,
        **options: Unpack[CreateOptions],
    ) -> None:
        if not isinstance(envs, VectorEnv):
            other = "; Record records single environments" if isinstance(envs, gymnasium.Env) else ""
            raise InputError(f"envs must be a gymnasium.vector.VectorEnv, got {type(envs).__name__}{other}")
        mode = (envs.metadata or {}).get("autoreset_mode", AutoresetMode.NEXT_STEP)
        if not isinstance(mode, AutoresetMode):
            raise InputError(
                f"metadata['autoreset_mode'] of envs must be a gymnasium.vector.AutoresetMode, got {mode!r}"
            )
        spaces = _single_spaces(envs)
        super().__init__(envs)
        self.autoreset_mode = mode
        if options["video"] or (isinstance(path, ReplayBuffer) and path.schema.videos):
            raise InputError("VectorRecord cannot record video: use Record, with a stream for each environment")
        opening = {**options, "checkpoint": checkpoint, "take_over": take_over}
        self.buffer, self._columns = opened(
            envs, path, *spaces, envs.num_envs, capacity, view, sampler, seeds, defaults, opening
        )
        """The buffer that takes the steps."""
        self._seeds = bool(seeds)
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
            self._kept_in_space("obs", obs, self.env.single_observation_space),
            ended & ~resets,
            np.where(resets, numbers, before),
        )
        if mask is None:
            self._columns.end_episode()
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
        given = self._kept_in_space("actions", actions, self.env.single_action_space)
        self._at = None
        next_obs, rewards, terminated, truncated, info = self.env.step(actions)
        flags = self.buffer.engine.appender.arguments.flag
        ends = np.reshape(flags[TERMINATED].check(terminated), self.num_envs)
        cuts = np.reshape(flags[TRUNCATED].check(truncated), self.num_envs)
        done, valid = ends | cuts, ~ended
        following = kept = self._kept_in_space("next_obs", next_obs, self.env.single_observation_space)
        infos = self._checked(info)
        if same := self.autoreset_mode is AutoresetMode.SAME_STEP:
            following = final_observations(kept, infos, done)
        extra = self._columns.of_steps(infos, valid, done & same)
        if self._seeds:
            extra[SEED] = seeds
        row: tuple[Any, ...] = (
            obs, given, arrays(REWARD, rewards), following, ends, cuts, valid if ended.any() else None
        )  # fmt: skip
        if self.num_envs == 1:
            row, extra = tuple(_first(part) for part in row), {name: _first(part) for name, part in extra.items()}
        self.buffer.add(*row, **extra)
        self._at = kept, done & (not same), np.where(done, NO_SEED, seeds)
        if done.any():
            self._columns.end_episode()
        return next_obs, rewards, terminated, truncated, info

    def close(self, **kwargs: Any) -> None:
        """Commit, close the store, and close the environments; a second call does nothing more."""
        try:
            self.buffer.close()
        finally:
            self.env.close(**kwargs)
        self._columns.end_episode()

    def _kept_in_space(self, what: str, value: Any, space: gymnasium.Space[Any]) -> Any:
        """Return a copy of observations or actions; of a ragged space, a list with one for each environment."""
        value = arrays(what, value)
        if not self.buffer.schema.ragged:
            return copied(what, value, self.buffer)
        if isinstance(space, gymnasium.spaces.Dict) and isinstance(value, Mapping):
            known = {
                key: self._kept_in_space(what, value[key], sub) for key, sub in space.spaces.items() if key in value
            }
            return {**value, **known}
        if isinstance(space, gymnasium.spaces.Tuple) and isinstance(value, tuple) and len(value) == len(space.spaces):
            return tuple(self._kept_in_space(what, part, sub) for part, sub in zip(value, space.spaces, strict=True))
        if not is_ragged(space, ""):
            return copied(what, value, self.buffer)
        return copy.deepcopy(list(value) if isinstance(value, tuple | np.ndarray) else value)

    def _mask(self, options: Mapping[str, Any] | None) -> NDArray[np.bool_] | None:
        if options is None or "reset_mask" not in options:
            return None
        mask = np.array(check_array("reset_mask", options["reset_mask"]))
        if mask.dtype != bool or mask.shape != (self.num_envs,):
            raise InputError(
                f"reset_mask must be bool of shape ({self.num_envs},), got {mask.dtype} of shape {mask.shape}"
            )
        return mask

    def _numbers(self, seed: Any) -> NDArray[np.int64]:
        if not self._seeds or seed is None:
            return np.full(self.num_envs, NO_SEED, np.int64)
        if isinstance(seed, int | np.integer):
            seed = [int(seed) + env for env in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise InputError(f"seed must be an integer or one for each of {self.num_envs} environments, got {seed!r}")
        return np.array([seed_number(one) for one in seed], np.int64)

    def _checked(self, info: Any) -> Mapping[str, Any]:
        same = self.autoreset_mode is AutoresetMode.SAME_STEP
        infos = checked_info(info, needed=same or bool(self._columns.names))
        if not same and (finals := HIDDEN & infos.keys()):
            raise InputError(
                f"info has {min(finals)!r}, as environments have it that reset in the same step, but the mode is "
                f"{self.autoreset_mode.name}: set metadata['autoreset_mode'] of the environments"
            )
        return infos


def _single_spaces(envs: VectorEnv[Any, Any, Any]) -> tuple[Any, Any]:
    count = check_count("num_envs of envs", getattr(envs, "num_envs", None))
    spaces = []
    for name in ("observation_space", "action_space"):
        one, all_ = getattr(envs, f"single_{name}", None), getattr(envs, name, None)
        if all_ is not None and all_ != one and not _is_batch(all_, one, count):  # EnvPool's are the same
            raise InputError(
                f"{name} of envs must be that of {count} environments with single_{name} {one}, got {all_}; steps of "
                "some environments at a time are not recorded"
            )
        spaces.append(one)
    return spaces[0], spaces[1]


def _is_batch(space: Any, one: Any, count: int) -> bool:
    """Tell whether a space has the structure and the shapes of a space of one environment for each of ``count``."""
    if isinstance(one, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        keys: Any = one.spaces.keys() if isinstance(one, gymnasium.spaces.Dict) else range(len(one.spaces))
        if not isinstance(space, type(one)) or len(space.spaces) != len(keys):
            return False
        parts: Any = space.spaces
        return all(key in keys and _is_batch(parts[key], one[key], count) for key in keys)
    return not isinstance(one, LEAF_SPACES) or space.shape == (count, *(one.shape or ()))


def _first(value: Any) -> Any:
    """Return what a vector environment of one has for its only environment."""
    return map_arrays(lambda part: part[0] if isinstance(part, list) else np.asarray(part)[0], value)
