"""The rollout buffer of on-policy learners: collect, finish, learn from minibatches, clear."""

from __future__ import annotations

from typing import Any, Self, Unpack

import gymnasium
import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.on_policy import LOG_PROB, VALUE, OnPolicyBuffer, with_steps_of
from diskreplay.buffers.opening import make_buffer, open_or_make_buffer
from diskreplay.buffers.options import CreateOptions, EitherOptions, shared
from diskreplay.reading.samples import Samples
from diskreplay.storage.paths import PathLike
from diskreplay.views.batch import RolloutBatch


class RolloutBuffer(OnPolicyBuffer[RolloutBatch]):
    """A rollout buffer: steps on disk, small columns also in RAM; made by :meth:`create` or :meth:`open`.

    Collect with :meth:`add` until :attr:`full`, call :meth:`finish`, learn from :meth:`minibatches`, :meth:`clear`.
    """

    @classmethod
    @shared(CreateOptions)
    def create(
        cls,
        path: PathLike,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        steps: int,
        num_envs: int = 1,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        normalize_advantage: bool = True,
        **options: Unpack[CreateOptions],
    ) -> Self:
        """Make a new store at ``path`` and open it for writing.

        Args:
            path, observation_space, action_space, num_envs: as in :meth:`diskreplay.ReplayBuffer.create`.
            steps: the steps of each environment until the rollout is full.
            gamma: discount factor, 0 to 1.
            gae_lambda: the lambda of generalised advantage estimation (Schulman et al. 2016), 0 to 1; 1 gives
                discounted returns.
            normalize_advantage: give each minibatch's advantages mean 0 and standard deviation 1.
            frame_stack, stack_axis, stack_padding, columns, later, reward_dtype, codec, chunk_rows, shard_rows, finite,
                continuity, provenance, cache_bytes, commit_rows, commit_seconds, seed, files: as of
                :meth:`diskreplay.ReplayBuffer.create`.

        Raises SchemaError, InputError, StoreExistsError and WriteFailedError as that does.
        """
        spec = cls._spec(
            (observation_space, action_space), steps, num_envs, (), options,
            gamma=gamma, gae_lambda=gae_lambda, normalize_advantage=normalize_advantage,
        )  # fmt: skip
        return make_buffer(cls, path, spec, options)

    @classmethod
    @shared(EitherOptions)
    def open_or_create(
        cls,
        path: PathLike,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        steps: int,
        num_envs: int = 1,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        normalize_advantage: bool = True,
        **options: Unpack[EitherOptions],
    ) -> Self:
        """Open the store at ``path``, or make it, as :meth:`diskreplay.ReplayBuffer.open_or_create`."""
        spec = cls._spec(
            (observation_space, action_space), steps, num_envs, (), options,
            gamma=gamma, gae_lambda=gae_lambda, normalize_advantage=normalize_advantage,
        )  # fmt: skip
        return with_steps_of(spec, open_or_make_buffer(cls, path, spec, options))

    def add(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any, *,
        value: Any, log_prob: Any, final_value: Any = None, valid: Any = None, **extra: Any,
    ) -> None:  # fmt: skip
        """Add one step of each environment; arrays lead with ``num_envs`` when it is above 1.

        Args:
            obs, action, reward, next_obs, terminated, truncated, valid, **extra: as in
                :meth:`diskreplay.ReplayBuffer.add`.
            value: the critic's value of ``obs``, scalar.
            log_prob: the policy's log-probability of ``action``, scalar.
            final_value: the value of ``next_obs``, scalar, read where an episode was truncated; NaN, or None for all,
                where :meth:`finish` shall ask its ``value_fn``. NaN is allowed with ``finite=True`` too.

        Raises InputError, StateError when the rollout is full, and what :meth:`diskreplay.ReplayBuffer.add` raises.
        """
        self._collect(
            obs, action, reward, next_obs, terminated, truncated, valid, final_value,
            {VALUE: value, LOG_PROB: log_prob, **extra},
        )  # fmt: skip

    def _batch(self, samples: Samples, ids: NDArray[np.int64], mask: NDArray[Any]) -> RolloutBatch:
        return RolloutBatch(**self._fields(samples, ids, mask))
