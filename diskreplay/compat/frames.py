"""The frame-history buffer of the Atari courses, over a store on disk.

A step comes in two calls: ``store_frame`` gives the frame that an action is chosen from, ``store_effect`` what came of
it. The store takes whole transitions, so the newest frame waits here:

1. Each frame becomes one row, when the next frame is stored: only then is its next observation known.
2. An episode's last frame has no next one; its row ends there, and its next observation is all zeros.
3. A frame without an effect becomes a row that is never sampled, and later stacks still show it (special).

The newest frame notes the number of the row that it becomes (:class:`_Newest`). Once the store has that row, no frame
waits any more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from diskreplay.buffers.checkpointed import OverStores
from diskreplay.buffers.replay import ReplayBuffer as Store
from diskreplay.checks import Array, check_array, check_count
from diskreplay.compat.arguments import number
from diskreplay.compat.disk_array import DiskArray
from diskreplay.compat.location import Location, close_with, global_seed
from diskreplay.compat.rows import RowWindow, invalid_rows, transitions, window
from diskreplay.compat.stores import closed_on_failure, open_or_create
from diskreplay.errors import DiskReplayError, InputError, NotEnoughDataError, StateError, end_block
from diskreplay.process.locks import uninterrupted
from diskreplay.reading.open_stream import OpenStream
from diskreplay.schema.spaces import unbounded
from diskreplay.storage.paths import PathLike
from diskreplay.views.batch import Batch
from diskreplay.views.transition import Transition

__all__ = ["ReplayBuffer"]

ACTIONS = unbounded((), np.int32)


class _EveryRow(Transition):
    """A view of all transitions, also those without an effect; ``sample`` leaves these out by itself."""

    def standing(self, stream: OpenStream, ids: NDArray[np.int64]) -> NDArray[np.int8]:
        return np.ones(len(ids), np.int8)


@dataclasses.dataclass(frozen=True)
class _Newest:
    """The newest frame.

    Attributes:
        row: the row that the frame becomes.
        recent: the newest frames of its episode, itself the last.
        effect: action, reward and done; None where there is none yet.
    """

    row: int
    recent: tuple[Array, ...]
    effect: tuple[np.int32, np.float32, bool] | None = None

    @property
    def ended(self) -> bool:
        """True if it is its episode's last."""
        return self.effect is not None and self.effect[2]


class ReplayBuffer(OverStores):
    """A buffer of frames, each stored once, whose stacks are made when they are asked for.

    Args:
        size: frames that are held, at least 2; the oldest are dropped.
        frame_history_len: frames of one observation, at least 1.
        path: the directory of the store, which is made if nothing is there; None for a temporary one that goes away
            with the buffer.
        cache_bytes: RAM for values, as in :meth:`diskreplay.ReplayBuffer.open`.
        seed: the seed of the draws; from numpy's global generator if None.
        **options: further ones of ``diskreplay.ReplayBuffer.create`` and ``open``: ``codec``, ``chunk_rows``,
            ``shard_rows``, ``commit_rows``, ``commit_seconds``.

    Attributes:
        size, frame_history_len: the arguments of these names.
        next_idx: the place of the next frame.
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
        cache_bytes: int | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        self.size = check_count("size", size, least=2)
        self.frame_history_len = check_count("frame_history_len", frame_history_len, most=1024)
        self._rng = np.random.default_rng(global_seed() if seed is None else seed)
        self._options = {"cache_bytes": cache_bytes, **options}
        self._place = Location(path, self)
        self._newest: _Newest | None = None
        self.store: Store | None = None
        if self._place.exists:
            self._open()

    # Opening

    def _open(self, frame: Array | None = None) -> None:
        """Open the store, or make it for frames like the first one."""
        create: dict[str, Any] = {}
        if frame is not None:
            count = 1 if frame.ndim == 1 else self.frame_history_len
            create = {
                "observation_space": unbounded(self._stack_shape(frame.shape), frame.dtype),
                "action_space": ACTIONS, "capacity": self.size - 1, "frame_stack": count,
                "stack_axis": -1 if count > 1 else None, "seed": 0,
            }  # fmt: skip
        store = open_or_create(Store, self._place, self._options, create, facts={}, view=_EveryRow())
        with closed_on_failure(store):
            self._check_store(store)
            close_with(self, store)
        self.store = store

    def _stack_shape(self, frame_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of an observation; a state has no history."""
        return frame_shape if len(frame_shape) == 1 else (*frame_shape[:2], frame_shape[2] * self.frame_history_len)

    def _check_store(self, store: Store) -> None:
        schema, stack = store.schema, store.schema.stacks[0]
        image = len(schema.observation_space.shape or ()) > 1
        frames = self.frame_history_len if image else 1
        alike = schema.action_space == ACTIONS and isinstance(schema.observation_space, spaces.Box)
        if not alike or (schema.capacity, stack.frames) != (self.size - 1, frames):
            raise InputError(
                f"the store at {store.path!r} holds {schema.capacity} transitions of {stack.frames} frames each; a "
                f"buffer of size {self.size} and {frames} frames needs one of {self.size - 1}, made by this class"
            )

    def _opened(self) -> Store:
        if self.store is None:
            raise StateError("there is no frame yet; store one")
        return self.store

    def commit(self) -> None:
        """Make durable all frames but the newest one, which is not in the store yet."""
        self._opened().commit()

    def close(self) -> None:
        """Store the newest frame if it ended its episode, commit, and give the store to the next writer.

        A newest frame whose next one is not known is dropped.
        """
        try:
            newest = None if self.store is None or self.store.engine.gate.closed else self._waiting()
            if newest is not None and newest.ended:
                self._append(newest, None)
        except DiskReplayError as error:
            end_block(super().close, error)
            raise
        super().close()

    # What is held

    def _window(self) -> RowWindow:
        return RowWindow(0, 0) if self.store is None else window(self.store)

    def _waiting(self) -> _Newest | None:
        """Return the newest frame if it is not a row yet, or None."""
        newest = self._newest
        return newest if newest is not None and newest.row == self._window().end else None

    # Attributes

    @property
    def next_idx(self) -> int:
        return (self._window().end + (self._waiting() is not None)) % self.size

    @property
    def num_in_buffer(self) -> int:
        held = self._window()
        return held.end - held.begin + (self._waiting() is not None)

    @property
    def obs(self) -> DiskArray | None:
        if self.store is None:
            return None
        shape = self.store.schema.observation_space.shape or ()
        depth = shape[-1] if len(shape) == 1 else shape[-1] // self.frame_history_len
        return self._array(
            lambda batch: batch.obs[..., -depth:], (*shape[:-1], depth), self._dtype, lambda newest: newest.recent[-1]
        )

    @property
    def action(self) -> DiskArray | None:
        return self._array(lambda batch: batch.action, (), np.int32, _part_of_effect(0))

    @property
    def reward(self) -> DiskArray | None:
        return self._array(lambda batch: batch.reward, (), np.float32, _part_of_effect(1))

    @property
    def done(self) -> DiskArray | None:
        return self._array(lambda batch: batch.terminated, (), np.bool_, _part_of_effect(2))

    def _array(
        self, pick: Callable[[Batch], Array], shape: tuple[int, ...], dtype: Any, pick_newest: Callable[[_Newest], Any]
    ) -> DiskArray | None:
        """Return a field by index of the rows and the newest frame, zeros elsewhere; None before there is a store."""
        store = self.store
        if store is None:
            return None

        def read(positions: NDArray[np.int64]) -> Array:
            values = np.zeros((len(positions), *shape), dtype)
            (begin, end), newest = self._window(), self._waiting()
            rows = end - (end - positions) % self.size
            held = np.flatnonzero((rows >= begin) & (rows < end))
            if len(held):
                values[held] = pick(store.get(rows[held]))
            value = None if newest is None else pick_newest(newest)
            if value is not None:
                values[rows == end] = value
            return values

        return DiskArray((self.size,), shape, dtype, read)

    # Storing

    @uninterrupted
    def store_frame(self, frame: Any) -> int:
        """Store one frame.

        Args:
            frame: ``(img_h, img_w, img_c)`` or ``(img_h, img_w)`` uint8, or a state ``(n,)``; other whole numbers are
                taken if they are 0 to 255, floats are stored as they are.

        Returns:
            The index of the frame, for ``store_effect``.

        Raises InputError, with nothing changed, for another shape or dtype than the first frame's.
        """
        given = self._check_frame(frame)
        if self.store is None:
            self._open(given)
            given = self._check_frame(frame)
        waiting, before = self._waiting(), self._newest
        if waiting is not None:
            self._append(waiting, given)
        recent = () if before is None or before.ended else before.recent
        row = self._window().end
        self._newest = _Newest(row, (*recent, given)[-self.frame_history_len :])
        return row % self.size

    @uninterrupted
    def store_effect(self, idx: int, action: int, reward: float, done: bool) -> None:
        """Store what came of an action that was chosen at the newest frame.

        Args:
            idx: the place of the newest frame, as ``store_frame`` returned it. A second call for it replaces the first.
            action: int32.
            reward: float32, finite.
            done: True if the episode ended.

        Raises InputError, with nothing changed, for another frame's index: that one's row is written already, or its
        place was given to another frame.
        """
        newest = self._waiting()
        if newest is None or number("idx", idx, "that of the newest frame", "iu") != newest.row % self.size:
            which = "is none yet" if newest is None else f"is {newest.row % self.size}"
            raise InputError(f"idx must be that of the newest frame, which {which}, got {idx!r}")
        most, largest = np.iinfo(np.int32).max, float(np.finfo(np.float32).max)
        chosen = number("action", action, "an int32", "iub", lambda number: -most <= number <= most)
        value = number("reward", reward, "a finite float32", allowed=lambda number: abs(number) <= largest)
        ended = number("done", done, "a bool", allowed=(0, 1).__contains__)
        effect = np.int32(chosen), np.float32(value), bool(ended)
        self._newest = dataclasses.replace(newest, effect=effect)

    def _check_frame(self, frame: Any) -> Array:
        """Return a copy of the frame, ``(img_h, img_w, img_c)`` or ``(n,)``, in the dtype that is stored."""
        given = check_array("frame", frame)
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

    def _append(self, newest: _Newest, following: Array | None) -> None:
        """Make the newest frame a row; ``following`` is the frame after it."""
        action, reward, done = newest.effect or (np.int32(0), np.float32(0), False)
        if following is None or done:
            following = np.zeros_like(newest.recent[-1])
        stack, after = self._stack(newest.recent), self._stack((*newest.recent, following))
        self._opened().add(stack, action, reward, after, done, False, valid=None if newest.effect else False)

    def _stack(self, recent: tuple[Array, ...]) -> Array:
        """Return the observation of the frames ``recent``, the newest last, with zeros for those that are missing."""
        newest = recent[-1]
        if newest.ndim == 1:
            return newest
        frames = recent[-self.frame_history_len :]
        return np.concatenate([*[np.zeros_like(newest)] * (self.frame_history_len - len(frames)), *frames], 2)

    # Sampling

    def can_sample(self, batch_size: int) -> bool:
        """Tell whether ``batch_size`` different transitions can be sampled."""
        return batch_size <= self._transitions

    @property
    def _transitions(self) -> int:
        return 0 if self.store is None else transitions(self.store)

    @uninterrupted
    def sample(self, batch_size: int) -> tuple[Array, Array, Array, Array, Array]:
        """Return ``batch_size`` different transitions.

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
        store, begin = self._opened(), self._window().begin
        ranks = self._rng.choice(self._transitions, batch_size, replace=False)
        lacking = invalid_rows(store) - begin
        if len(lacking):
            ranks = ranks + np.searchsorted(lacking - np.arange(len(lacking)), ranks, side="right")
        batch = store.get(begin + ranks)
        next_obs = np.ascontiguousarray(batch.next_obs)
        next_obs[batch.terminated] = 0
        return (
            np.ascontiguousarray(batch.obs), batch.action, batch.reward, next_obs, batch.terminated.astype(np.float32),
        )  # fmt: skip

    def encode_recent_observation(self) -> Array:
        """Return the newest frames, ``(img_h, img_w, img_c * frame_history_len)`` uint8, or the newest state, ``(n,)``.

        Frames are oldest first, with zeros for those before the episode began.

        Raises StateError before the first frame.
        """
        if self._newest is None:
            raise StateError("there is no frame yet; store one")
        return self._stack(self._newest.recent).copy()


def _part_of_effect(number: int) -> Callable[[_Newest], Any]:
    """Return a function that gives the action, reward or done of the newest frame."""
    return lambda newest: None if newest.effect is None else newest.effect[number]
