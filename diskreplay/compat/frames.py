"""The frame-history buffer of the Atari courses, over a store on disk.

A step comes in two calls: ``store_frame`` gives the frame that an action is chosen from, ``store_effect`` what came of
it. The store takes whole transitions, so the newest frame waits here:

1. Each frame becomes one row, when the next frame is stored: only then is its next observation known.
2. An episode's last frame has no next one; its row ends there, and its next observation is all zeros.
3. A frame without an effect becomes a row that is never sampled, and later stacks still show it (special).
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from diskreplay.buffers.replay import ReplayBuffer as Store
from diskreplay.compat.place import Place, close_with, global_seed
from diskreplay.compat.rows import Rows
from diskreplay.errors import InputError, NotEnoughDataError, StateError
from diskreplay.paths import PathLike
from diskreplay.reading.stream import StreamPart
from diskreplay.schema import VALID, check_count
from diskreplay.views.batch import Batch
from diskreplay.views.transition import Transition

__all__ = ["ReplayBuffer"]

CACHE_BYTES = 256 << 20
ACTIONS = spaces.Box(np.iinfo(np.int32).min, np.iinfo(np.int32).max, (), np.int32)

Array = NDArray[Any]


class _EveryRow(Transition):
    """Transitions that can be looked at without an effect too; this module draws those that have one."""

    def standing(self, part: StreamPart, ids: NDArray[np.int64]) -> NDArray[np.int8]:
        return np.ones(len(ids), np.int8)


class ReplayBuffer:
    """A buffer of frames, each stored once, whose stacks are made when they are asked for.

    Args:
        size: frames that are held, at least 2; the oldest are dropped.
        frame_history_len: frames of one observation, at least 1.
        path: where the store is, or is to be made; None for a temporary directory that goes away with the buffer.
        cache_bytes: RAM for decoded frames.
        seed: of the draws; from numpy's global generator if None.
        **options: further ones of ``diskreplay.ReplayBuffer.create`` and ``open``: ``codec``, ``chunk_rows``,
            ``shard_rows``, ``commit_rows``, ``commit_seconds``.

    Attributes:
        size, frame_history_len: as given.
        next_idx: where the next frame is stored.
        num_in_buffer: frames held.
        obs, action, reward, done: arrays ``(size, *frame_shape)`` and ``(size,)`` int32, float32, bool by index;
            read-only, and read from the store when they are indexed. None before the first frame.
        store: the ``diskreplay.ReplayBuffer``; None before the first frame.
    """

    def __init__(
        self,
        size: int,
        frame_history_len: int,
        *,
        path: PathLike | None = None,
        cache_bytes: int = CACHE_BYTES,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        self.size = check_count("size", size, least=2)
        self.frame_history_len = check_count("frame_history_len", frame_history_len, most=1024)
        self._rng = np.random.default_rng(global_seed() if seed is None else seed)
        self._options = {"cache_bytes": cache_bytes, **options}
        self._place = Place(path, self)
        self._recent: collections.deque[Array] = collections.deque(maxlen=self.frame_history_len)
        """The newest frames of the episode, the newest frame of all last."""
        self._effect: tuple[np.int32, np.float32, bool] | None = None
        """Of the newest frame."""
        self._newest = False
        """Whether there is a frame that is no row yet."""
        self._lacking: collections.deque[int] = collections.deque()
        """Rows of the window without an effect, ascending."""
        self.store: Store | None = None
        self._begin = self._end = 0
        if self._place.exists:
            commits = {key: value for key, value in options.items() if key.startswith("commit_")}
            self._take(Store.open(self._place.path, cache_bytes=cache_bytes, view=_EveryRow(), **commits))

    # Opening

    def _create(self, frame: Array) -> None:
        """Makes the store for frames like the first one."""
        low, high = (0, 255) if frame.dtype == np.uint8 else (-np.inf, np.inf)
        space = spaces.Box(low, high, self._stack_shape(frame.shape), frame.dtype.type)
        count = 1 if frame.ndim == 1 else self.frame_history_len
        self._take(
            Store.create(
                self._place.path, space, ACTIONS, capacity=self.size - 1, frame_stack=count,
                stack_axis=-1 if count > 1 else None, view=_EveryRow(), seed=0, **self._options,
            )
        )  # fmt: skip

    def _stack_shape(self, frame_shape: tuple[int, ...]) -> tuple[int, ...]:
        """A state has no history."""
        return frame_shape if len(frame_shape) == 1 else (*frame_shape[:2], frame_shape[2] * self.frame_history_len)

    def _take(self, store: Store) -> None:
        """Goes on where the store ends; InputError, the store closed again, where it is not of such a buffer."""
        schema, stack = store.schema, store.schema.stacks[0]
        image = len(schema.observation_space.shape or ()) > 1
        frames = self.frame_history_len if image else 1
        alike = schema.action_space == ACTIONS and isinstance(schema.observation_space, spaces.Box)
        if not alike or (schema.capacity, stack.frames) != (self.size - 1, frames):
            store.close()
            raise InputError(
                f"the store at {store.path!r} holds {schema.capacity} transitions of {stack.frames} frames each; a "
                f"buffer of size {self.size} and {frames} frames needs one of {self.size - 1}, made by this class"
            )
        self.store = store
        close_with(self, store)
        held = store.stats()["streams"]["0"]
        self._begin, self._end = held["begin"], held["end"]
        if self._end > self._begin:
            valid = np.asarray(store.zarr()[f"streams/0/{VALID}"][self._begin : self._end, 0])  # type: ignore[index]
            self._lacking.extend((self._begin + np.flatnonzero(~valid)).tolist())

    def _opened(self) -> Store:
        if self.store is None:
            raise StateError("there is no frame yet; store one")
        return self.store

    def commit(self) -> None:
        """Makes the frames durable that the store has: all but the newest."""
        self._opened().commit()

    def close(self) -> None:
        """Stores the newest frame if it ended its episode, commits, and gives the store to the next writer.

        A newest frame whose next one is not known is dropped.
        """
        if self.store is None:
            return
        if self._newest and self._effect is not None and self._effect[2]:
            self._append(None)
            self._newest = False
        self.store.close()

    # Attributes

    @property
    def next_idx(self) -> int:
        return (self._end + self._newest) % self.size

    @property
    def num_in_buffer(self) -> int:
        return self._end - self._begin + self._newest

    @property
    def obs(self) -> Rows | None:
        if self.store is None:
            return None
        shape = self.store.schema.observation_space.shape or ()
        depth = shape[-1] if len(shape) == 1 else shape[-1] // self.frame_history_len
        newest = self._recent[-1] if self._newest else None
        return self._array(lambda batch: batch.obs[..., -depth:], (*shape[:-1], depth), self._dtype, newest)

    @property
    def action(self) -> Rows | None:
        return self._array(lambda batch: batch.action, (), np.int32, self._effect and self._effect[0])

    @property
    def reward(self) -> Rows | None:
        return self._array(lambda batch: batch.reward, (), np.float32, self._effect and self._effect[1])

    @property
    def done(self) -> Rows | None:
        return self._array(lambda batch: batch.terminated, (), np.bool, self._effect and self._effect[2])

    def _array(self, pick: Callable[[Batch], Array], shape: tuple[int, ...], dtype: Any, newest: Any) -> Rows | None:
        """A field of the rows by index; ``newest`` is the newest frame's. Zeros where there is none."""
        store = self.store
        if store is None:
            return None

        def read(positions: NDArray[np.int64]) -> Array:
            values = np.zeros((len(positions), *shape), dtype)
            rows = self._end - (self._end - positions) % self.size
            held = np.flatnonzero((rows >= self._begin) & (rows < self._end))
            if len(held):
                values[held] = pick(store.get(rows[held]))
            if self._newest and newest is not None:
                values[rows == self._end] = newest
            return values

        return Rows((self.size, *shape), dtype, read)

    # Storing

    def store_frame(self, frame: Any) -> int:
        """Stores one frame.

        Args:
            frame: ``(img_h, img_w, img_c)`` or ``(img_h, img_w)`` uint8, or a state ``(n,)``; other whole numbers are
                taken if they are 0 to 255, floats are stored as they are.

        Returns:
            The index of the frame, for ``store_effect``.

        Raises InputError, with nothing changed, for another shape or dtype than the first frame's.
        """
        given = self._check_frame(frame)
        if self.store is None:
            self._create(given)
        if self._newest:
            self._append(given)
        if self._effect is not None and self._effect[2]:
            self._recent.clear()
        self._recent.append(given)
        self._effect = None
        self._newest = True
        return self._end % self.size

    def store_effect(self, idx: int, action: int, reward: float, done: bool) -> None:
        """Stores what came of an action that was chosen at the newest frame.

        Args:
            idx: of the newest frame, as ``store_frame`` returned it. A second call for it replaces the first.
            action: int32.
            reward: float32, finite.
            done: whether the episode ended.

        Raises InputError, with nothing changed, for another frame's index: that one's row is written already, or its
        place was given to another frame.
        """
        if not self._newest or idx != self._end % self.size:
            newest = f"is {self._end % self.size}" if self._newest else "is none yet"
            raise InputError(f"idx must be that of the newest frame, which {newest}, got {idx!r}")
        chosen, value, ended = np.asarray(action), np.asarray(reward), np.asarray(done)
        most = np.iinfo(np.int32).max
        if chosen.size != 1 or chosen.dtype.kind not in "iub" or not -most <= chosen.item() <= most:
            raise InputError(f"action must be an int32, got {action!r}")
        if value.size != 1 or value.dtype.kind not in "fiub" or not abs(value.item()) <= np.finfo(np.float32).max:
            raise InputError(f"reward must be a finite float32, got {reward!r}")
        if ended.size != 1 or ended.item() not in (0, 1):
            raise InputError(f"done must be a bool, got {done!r}")
        self._effect = np.int32(chosen.item()), np.float32(value.item()), bool(ended.item())

    def _check_frame(self, frame: Any) -> Array:
        """A copy of the frame, ``(img_h, img_w, img_c)`` or ``(n,)``, in the dtype that is stored."""
        given = np.asarray(frame)
        if not 1 <= given.ndim <= 3 or given.dtype.kind not in "uifb" or not given.size:
            kinds = "(img_h, img_w, img_c), (img_h, img_w) or (n,)"
            raise InputError(f"a frame must be numbers {kinds}, got {given.dtype} {given.shape}")
        given = given[:, :, None] if given.ndim == 2 else given
        dtype = given.dtype if given.dtype.kind == "f" else np.dtype(np.uint8)
        if self.store is not None:
            dtype, stacked = self._dtype, self.store.schema.observation_space.shape
            if self._stack_shape(given.shape) != stacked:
                raise InputError(f"frames must be like the first, whose stacks are {stacked}; got {given.shape}")
        with np.errstate(all="ignore"):
            stored = np.array(given, dtype)
        if not np.array_equal(stored, given, equal_nan=given.dtype.kind == "f"):
            raise InputError(f"frames must be {dtype}; these {given.dtype} values do not fit without loss")
        return stored

    @property
    def _dtype(self) -> np.dtype[Any]:
        return self._opened().schema.obs_columns[0].dtype

    def _append(self, following: Array | None) -> None:
        """Makes the newest frame a row; ``following`` is the frame after it."""
        store = self._opened()
        action, reward, done = self._effect or (np.int32(0), np.float32(0), False)
        if following is None or done:
            following = np.zeros_like(self._recent[-1])
        stack, after = self._stack(self._recent), self._stack([*self._recent, following])
        store.add(stack, action, reward, after, done, False, valid=None if self._effect else False)
        if self._effect is None:
            self._lacking.append(self._end)
        self._end += 1
        self._begin = max(self._begin, self._end - self.size + 1)
        while self._lacking and self._lacking[0] < self._begin:
            self._lacking.popleft()

    def _stack(self, recent: Any) -> Array:
        """The observation of which ``recent`` are the frames, the newest last; zeros stand for those that lack."""
        newest: Array = recent[-1]
        if newest.ndim == 1:
            return newest
        frames = list(recent)[-self.frame_history_len :]
        return np.concatenate([np.zeros_like(newest)] * (self.frame_history_len - len(frames)) + frames, 2)

    # Sampling

    def can_sample(self, batch_size: int) -> bool:
        """Whether ``batch_size`` different transitions can be sampled."""
        return batch_size <= self._transitions

    @property
    def _transitions(self) -> int:
        return self._end - self._begin - len(self._lacking)

    def sample(self, batch_size: int) -> tuple[Array, Array, Array, Array, Array]:
        """``batch_size`` different transitions.

        Returns:
            ``obs_batch`` (B, img_h, img_w, img_c * frame_history_len) uint8, or (B, n) of states; ``act_batch`` (B,)
            int32; ``rew_batch`` (B,) float32; ``next_obs_batch`` as ``obs_batch``, zeros where the episode ended;
            ``done_mask`` (B,) float32, 1 there.

        Raises NotEnoughDataError when there are fewer.
        """
        batch_size = check_count("batch_size", batch_size)
        if not self.can_sample(batch_size):
            raise NotEnoughDataError(
                f"sample({batch_size}): the buffer holds {self._transitions} transitions; a frame becomes one when the "
                "next frame is stored"
            )
        ranks = self._rng.choice(self._transitions, batch_size, replace=False)
        if self._lacking:
            places = np.array(self._lacking) - self._begin
            ranks = ranks + np.searchsorted(places - np.arange(len(places)), ranks, side="right")
        batch = self._opened().get(self._begin + ranks)
        next_obs = np.ascontiguousarray(batch.next_obs)
        next_obs[batch.terminated] = 0
        return (
            np.ascontiguousarray(batch.obs), batch.action, batch.reward, next_obs, batch.terminated.astype(np.float32),
        )  # fmt: skip

    def encode_recent_observation(self) -> Array:
        """The newest frames: ``(img_h, img_w, img_c * frame_history_len)`` uint8, oldest first, zeros for those before
        the episode began; ``(n,)`` of states.

        Raises StateError before the first frame.
        """
        if not self._recent:
            raise StateError("there is no frame yet; store one")
        return self._stack(self._recent).copy()
