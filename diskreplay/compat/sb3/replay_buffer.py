"""The replay buffer, whose batches SB3's base class draws: with the same seed they are its own buffer's, bit for bit.

1. SB3 hands over one step of all environments, the final observation of an episode already in its place; a done that
   is marked ``TimeLimit.truncated`` is truncation.
2. Stacked images (VecFrameStack) are stored as single frames. How many are stacked is seen from the first step.
3. A position of SB3's ring is translated into the id of a transition, and back where an attribute is read.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

from diskreplay.buffers.joining import Joint
from diskreplay.checks import check_count
from diskreplay.compat.disk_array import DiskArray
from diskreplay.compat.first_step import FrameStack, SharedStore, VectorBuffer
from diskreplay.compat.location import global_seed
from diskreplay.compat.rows import ids_of, window
from diskreplay.errors import InputError
from diskreplay.process.locks import uninterrupted
from diskreplay.sampling.window import Sampler
from diskreplay.schema.spaces import unbounded
from diskreplay.storage.paths import PathLike
from diskreplay.views.batch import Batch
from diskreplay.views.hindsight import ACHIEVED, DESIRED, Hindsight
from diskreplay.views.transition import Transition
from diskreplay.views.view import View

__all__ = ["DiskReplayBuffer"]

UNPICKLED = "_shared", "_images", "_making", "_ring", "_stored_actions"
"""The attributes that a buffer makes anew when it is unpickled."""


class DiskReplayBuffer(VectorBuffer, ReplayBuffer):  # type: ignore[misc]  # SB3 is not followed by mypy
    """SB3's ``ReplayBuffer``, ``DictReplayBuffer`` and ``NStepReplayBuffer`` in one, with its rows on disk.

    The first seven arguments are SB3's, which its algorithms give; the others come by ``replay_buffer_kwargs``.

    Args:
        buffer_size: transitions (rows x environments) that can be sampled. A store that has less grows.
        observation_space, action_space, device, n_envs: as in SB3.
        optimize_memory_usage: taken and ignored: frames are stored once in any case, and final observations kept.
        handle_timeout_termination: do not give out dones that are due to a time limit.
        path: the directory of the store, which is made if nothing is there; None for a temporary one that goes away
            with the buffer.
        checkpoint: the checkpoint of the store at ``path`` to go back to.
        frame_stack: frames of an image observation, one number or by key; "auto" sees it from the first step.
        n_steps, gamma: the steps and the discount of n-step returns, as in SB3's ``NStepReplayBuffer``; here for Dict
            observations too.
        view, sampler: others of this package, such as ``Hindsight(...)`` and ``Proportional(...)``.
        cache_bytes: RAM for values, as in :meth:`diskreplay.ReplayBuffer.open`.
        seed: the seed of this buffer's own draws, which are used with ``n_steps``, ``view``, ``sampler`` or ``seed``;
            otherwise SB3 draws from numpy's global generator.
        **options: further ones of ``diskreplay.ReplayBuffer.create`` and ``open``: ``codec``, ``chunk_rows``,
            ``shard_rows``, ``commit_rows``, ``commit_seconds``.

    Attributes:
        store: the ``diskreplay.ReplayBuffer``; None until the first step where ``frame_stack`` is to be seen from it.
        path: the path of the store; None if that is temporary.
        pos, full: as in SB3.
        index, weight: ``(B,)`` int64, float32 of the newest batch, for ``store.update_priorities``.
        observations, next_observations, actions, rewards, dones, timeouts: ``(buffer_size, n_envs, ...)``, a dict of
            such for Dict observations; read-only, and read from the store when they are indexed.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        path: PathLike | None = None,
        checkpoint: str | None = None,
        frame_stack: FrameStack = "auto",
        n_steps: int = 1,
        gamma: float = 0.99,
        view: View | None = None,
        sampler: Sampler | None = None,
        cache_bytes: int | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        # Past ReplayBuffer, whose constructor allocates.
        super(ReplayBuffer, self).__init__(buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        self.n_steps, self.gamma = n_steps, gamma
        if view is not None and n_steps != 1:
            raise InputError(
                f"n_steps={n_steps} and view exclude each other; give Transition(n_step={n_steps}), or leave view out"
            )
        self._draws = sampler is not None or seed is not None or not (view is None and n_steps == 1)
        if seed is None:
            seed = global_seed() if self._draws else 0
        self._settings: dict[str, Any] = {
            "view": Transition(n_steps, gamma) if view is None else view, "sampler": sampler,
            "cache_bytes": cache_bytes, "seed": seed,
        }  # fmt: skip
        self._options = options
        self._frame_stack = frame_stack
        self._open(SharedStore(path), checkpoint)

    def _open(self, shared: SharedStore, checkpoint: str | None = None) -> None:
        facts = {
            "observation_space": self.observation_space, "action_space": self._stored_actions,
            "num_envs": self.n_envs, "capacity": self.buffer_size * self.n_envs,
        }  # fmt: skip
        goals = (ACHIEVED, DESIRED) if isinstance(self._settings["view"], Hindsight) else ()
        self._begin(
            shared, facts, self._settings, self._options, self._frame_stack, fields=self._fields(self._stored_actions),
            checkpoint=checkpoint, single=goals,
        )  # fmt: skip

    @functools.cached_property
    def _stored_actions(self) -> Any:
        """The space of what SB3 stores: continuous actions flat, in units of its policies, and never float64."""
        if not isinstance(self.action_space, spaces.Box):
            return self.action_space
        return unbounded((self.action_dim,), self._maybe_cast_dtype(self.action_space.dtype))

    @property
    def path(self) -> str | None:
        """The store's path, or None for one in a temporary directory."""
        return None if self._shared.place.temporary else self._shared.place.path

    # SB3 sets both when a buffer is made or emptied; here they are those of the rows.

    pos, full = (found.setter(lambda self, value: None) for found in (VectorBuffer.pos, VectorBuffer.full))

    def __getstate__(self) -> dict[str, Any]:
        """Return all that a pickle holds: where the committed store is, or the files of a temporary one."""
        state = {key: value for key, value in vars(self).items() if key not in UNPICKLED}
        state.update(pos=self.pos, full=self.full, _end=0)
        if self.store is not None:
            self.store.commit()
            state["_end"] = window(self.store).end
        place, state["path"] = self._shared.place, self.path
        if place.temporary:
            root = pathlib.Path(place.path)
            state["files"] = {
                str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()
            }
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the store, or share it with the buffer that was pickled if that is still open in this process."""
        path, files = state.pop("path"), state.pop("files", {})
        pos, end, _ = (state.pop(name) for name in ("pos", "_end", "full"))
        self.__dict__.update(state)
        shared = SharedStore.at(path)
        for name, content in files.items():
            file = pathlib.Path(shared.place.path, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        self._settings = {**self._settings, "seed": global_seed() if self._draws else 0}
        self._open(shared)
        if self.store is not None:
            self._ring.turn((pos + window(self.store).end - end) % self.buffer_size)

    # SB3's methods

    @uninterrupted
    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Return a batch as torch tensors on ``device``, normalised by ``env`` (a VecNormalize) if there is one.

        ``observations``, ``next_observations`` are ``(B, *obs_shape)`` in the dtype of their space, or dicts of such;
        ``actions`` ``(B, action_dim)``; ``dones``, ``rewards`` ``(B, 1)`` float32; ``discounts`` likewise
        with ``n_steps`` above 1, 0 where the episode terminated; otherwise None.

        Raises NotEnoughDataError, a ValueError as of SB3, where the buffer is empty.
        """
        check_count("batch_size", batch_size, 0)
        store, batches = self._filled(), []
        if not self._draws:
            return super().sample(batch_size, env=env)
        while batch_size > 0:  # SB3 asks for more than there is, when it begins to learn
            batches.append(store.sample(min(batch_size, len(store))))
            batch_size -= len(batches[-1])
        batches = batches or [store.get([])]
        return self._tensors(Joint([len(batch) for batch in batches], ()).join(batches), env)

    def _get_samples(self, batch_inds: NDArray[np.int64], env: Any = None) -> Any:
        store, ids = self._filled(), self._ring.entries(batch_inds)
        if self.n_envs > 1:  # to draw the only one takes no bits
            ids = ids_of(store, ids, np.random.randint(0, high=self.n_envs, size=(len(batch_inds),)))
        return self._tensors(store.get(ids), env)

    def _tensors(self, batch: Batch, env: Any) -> Any:
        self.index, self.weight = batch.index, batch.weight
        nested, count, shape = type(batch.obs) is dict, len(batch), self.obs_shape
        # Nobody else has a batch's arrays. SB3's `to_torch` takes four times as long for those that stay on the CPU.
        tensor = torch.from_numpy if self.device.type == "cpu" else functools.partial(self.to_torch, copy=False)

        def tensors(obs: Any) -> Any:
            if nested:
                obs = {key: value.reshape(count, *shape[key]) for key, value in obs.items()}
                return {key: tensor(value) for key, value in self._normalize_obs(obs, env).items()}
            return tensor(self._normalize_obs(obs.reshape(count, *shape), env))

        dones = batch.terminated if self.handle_timeout_termination else batch.terminated | batch.truncated
        return (DictReplayBufferSamples if nested else ReplayBufferSamples)(
            observations=tensors(batch.obs),
            actions=tensor(batch.action.reshape(count, self.action_dim)),
            next_observations=tensors(batch.next_obs),
            dones=tensor(dones.astype(np.float32).reshape(-1, 1)),
            rewards=tensor(self._normalize_reward(batch.reward.reshape(-1, 1), env)),
            discounts=tensor(batch.discount.reshape(-1, 1)) if self.n_steps > 1 else None,
        )

    # SB3's attributes

    @property
    def dones(self) -> Any:
        return self._ring.arrays(self._ring.fields["dones"], functools.partial(_Dones, self._mark))

    def _mark(self, position: Any, done: Any) -> None:
        """End the episodes where the newest row is marked as done, as SB3 does before it begins to learn anew."""
        newest = (self.pos - 1) % self.buffer_size
        if self.store is None or np.ndim(position) or position != newest or not np.all(done):
            raise InputError(
                f"dones are read from the store: only the newest row, {newest}, may be marked as True, which ends its "
                "episodes"
            )
        self.store.cut()


class _Dones(DiskArray):
    """An array that tells ``mark`` of what is written into it."""

    def __init__(self, mark: Callable[[Any, Any], None], *array: Any) -> None:
        super().__init__(*array)
        self._mark = mark

    def __setitem__(self, key: Any, value: Any) -> None:
        self._mark(key, value)
