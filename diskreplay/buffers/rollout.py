"""The rollout buffer of on-policy learners: collect, finish, learn from minibatches, clear."""

from __future__ import annotations

from typing import Any, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.on_policy import LOG_PROB, VALUE, OnPolicyBuffer
from diskreplay.buffers.options import RolloutCreateOptions, Space, shared
from diskreplay.reading.samples import Samples
from diskreplay.storage.paths import PathLike
from diskreplay.views.batch import RolloutBatch


class RolloutBuffer(OnPolicyBuffer[RolloutBatch]):
    """A rollout buffer: steps on disk, small columns also in RAM; made by :meth:`create` or :meth:`open`.

    Collect with :meth:`add` until :attr:`full`, call :meth:`finish`, learn from :meth:`minibatches`, :meth:`clear`.
    """

    @classmethod
    @shared(RolloutCreateOptions)
    def create(
        cls, path: PathLike, observation_space: Space, action_space: Space, **options: Unpack[RolloutCreateOptions]
    ) -> Self:
        """Make a new store at ``path`` and open it for writing.

        Args:
            path, observation_space, action_space, num_envs: as in :meth:`diskreplay.ReplayBuffer.create`.
            **options: as described by their types.

        Raises SchemaError, InputError, StoreExistsError and WriteFailedError as that does.
        """
        return cls._create(path, (observation_space, action_space), options)

    @classmethod
    @shared(RolloutCreateOptions)
    def open_or_create(
        cls,
        path: PathLike,
        observation_space: Space,
        action_space: Space,
        *,
        checkpoint: str | None = None,
        take_over: bool = False,
        **options: Unpack[RolloutCreateOptions],
    ) -> Self:
        """Open the store at ``path``, or make it, as :meth:`diskreplay.ReplayBuffer.open_or_create`."""
        opening = {"checkpoint": checkpoint, "take_over": take_over}
        return cls._open_or_create(path, (observation_space, action_space), {**options, **opening})

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
