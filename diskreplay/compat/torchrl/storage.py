"""A torchrl storage whose rows lie in a store on disk.

1. torchrl's writer says which slots are written. They must be the next ones of the ring: a store is appended to, and
   its window moves on, so that nothing is overwritten. Writers that overwrite are refused by their names.
2. A slot of the ring is translated into the id of a row. In a store that was opened anew the oldest row is in slot 0,
   and the buffer's writer is told where to go on; a checkpoint brings back the slots, too.
3. ``dumps`` and ``state_dict`` name a checkpoint of the store (:mod:`~diskreplay.compat.torchrl.storage_checkpoints`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Never

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data.replay_buffers.sample_units import Sequence
from torchrl.data.replay_buffers.samplers import ConsumingSampler
from torchrl.data.replay_buffers.storages import Storage, StoreStorage
from torchrl.data.replay_buffers.writers import (
    RoundRobinWriter,
    TensorDictMaxValueWriter,
    TensorDictRoundRobinWriter,
)

from diskreplay.buffers.checkpointed import Checkpointed
from diskreplay.buffers.replay import ReplayBuffer as Store
from diskreplay.checks import check_array, check_count
from diskreplay.compat.arguments import numbers, rewards
from diskreplay.compat.location import Location, close_with
from diskreplay.compat.ring import Ring
from diskreplay.compat.stores import OPEN_OPTIONS, TAKE_OVER, check_ring, closed_on_failure, named_checkpoint
from diskreplay.compat.torchrl import storage_checkpoints
from diskreplay.compat.torchrl.tensor_layout import TORCHRL, TensorLayout, layout_of, stored_layout
from diskreplay.compat.torchrl.tensordicts import TensorDictReader
from diskreplay.errors import DiskReplayError, InputError, ReadOnlyError, StateError
from diskreplay.sampling.uniform import Uniform
from diskreplay.schema.ids import Ids
from diskreplay.storage.attachments import Given
from diskreplay.storage.paths import PathLike
from diskreplay.views.transition import Transition


class DiskStorage(StoreStorage):  # type: ignore[misc]  # torchrl is not followed by mypy
    """The part of a storage that reads a store by slots; :class:`DiskReplayStorage` writes.

    A ``StoreStorage``, torchrl's storage of a key-value server, by name alone: for such a one its buffers take batches
    as they come, where they refuse a storage of a class that they do not know.
    """

    def __init__(self, max_size: int, device: Any) -> None:
        Storage.__init__(self, check_count("max_size", max_size))  # past StoreStorage's, which asks for Redis
        self.device = torch.device(device)
        self._last_cursor = None

    @property
    def checkpointer(self) -> Any:
        """The object that ``rb.dumps`` and ``rb.loads`` call."""
        return self._checkpointer

    @checkpointer.setter
    def checkpointer(self, checkpointer: Any) -> None:
        own = self._default_checkpointer
        if checkpointer is not None and type(checkpointer) is not own:
            raise InputError(
                f"{type(checkpointer).__name__} writes the rows as tensors, and a checkpoint of a store copies none; "
                "leave the checkpointer out, or use one of torchrl's own storages"
            )
        self._checkpointer = own() if checkpointer is None else checkpointer

    def attach(self, buffer: Any) -> None:
        """Take a buffer that reads here, and make its ``sample_unit=Sequence(...)`` one of the store's rows."""
        super().attach(buffer)
        unit = getattr(buffer, "_sample_unit", None)
        if type(unit) is Sequence:
            buffer._sample_unit = _Sequence.like(unit)

    def _reader(self) -> TensorDictReader | None:
        """Return the store's reader, or None if there is no store yet."""
        raise NotImplementedError

    def _ids(self, slots: Ids) -> Ids:
        raise NotImplementedError

    def _values(self, slots: Ids) -> Ids:
        """Return the values of leaves that show the number of a slot."""
        return slots

    def get(self, index: Any) -> TensorDict:
        """Return the rows in slots.

        Args:
            index: an integer, for one row without its axis; integers or a mask; a slice, whose leaves are read when
                they are first asked for; a leaf's key, for that leaf of all rows.

        Raises IndexError for slots that hold nothing, KeyError for a leaf that is not there.
        """
        if isinstance(index, str) or (isinstance(index, tuple) and index and isinstance(index[0], str)):
            return self._lazy(np.arange(len(self)))[index]
        if isinstance(index, slice):
            return self._lazy(np.arange(*index.indices(len(self))))
        slots = self._slots(index)
        flat = slots.reshape(-1)
        rows = self._opened().whole(self._ids(flat), self._values(flat))
        return rows.reshape(*slots.shape, *rows.batch_size[1:]) if slots.ndim != 1 else rows

    def __getitem__(self, index: Any) -> TensorDict:
        """Return rows as :meth:`get`, and lazily for a tuple too: torchrl's samplers look at a few leaves of those."""
        return self._lazy(self._slots(index)) if isinstance(index, tuple) else self.get(index)

    def _lazy(self, slots: Ids) -> TensorDict:
        return self._opened().lazy(self._ids(slots), self._values(slots))

    def _opened(self) -> TensorDictReader:
        reader = self._reader()
        if reader is None:
            raise StateError("cannot get elements out of an empty storage; add some")
        return reader

    def _slots(self, index: Any) -> Ids:
        if isinstance(index, tuple):
            if len(index) != 1:
                raise InputError(f"the storage has one axis: give one integer, mask or slice, got {len(index)} of them")
            index = index[0]
        given = check_array("index", index)
        if given.dtype == bool and given.ndim == 1:
            given = np.flatnonzero(given)
        if given.dtype.kind not in "iu" and given.size:
            raise InputError(f"slots are named by integers, a mask or a slice, got {index!r:.80}")
        held = len(self)
        slots: Ids = np.where(given < 0, given + held, given).astype(np.int64)
        wrong = (slots < 0) | (slots >= held)
        if wrong.any():
            raise IndexError(f"slot {given[wrong].flat[0]} holds nothing; slots are numbered 0 to {held - 1}")
        return slots

    def contains(self, item: Any) -> Any:
        """Tell whether a slot, or each of several, holds a row."""
        slots = torch.as_tensor(item)
        held = (slots < len(self)) & (slots >= -len(self))
        return bool(held) if held.ndim == 0 else held

    @property
    def _len(self) -> int:
        return len(self)

    # What PrioritizedSliceSampler asks a storage of torchrl's own for, by these names

    @property
    def shape(self) -> torch.Size:
        """The shape ``(slots that are taken,)``."""
        return torch.Size([len(self)])

    @property
    def _total_shape(self) -> torch.Size:
        return torch.Size([self.max_size])

    _len_along_dim0 = _len

    def register_save_hook(self, hook: Any) -> Never:
        """Raise InputError: hooks rewrite what is copied, and a checkpoint copies nothing."""
        raise InputError(
            "hooks are refused: a checkpoint of a store copies no data that a hook could rewrite; leave them out"
        )

    register_load_hook = register_save_hook


class DiskReplayStorage(Checkpointed, DiskStorage):
    """A storage for torchrl's ``ReplayBuffer`` and ``TensorDictReplayBuffer``, with its rows in a store on disk.

    Takes tensordicts; the first one says which leaves there are, with which shapes and dtypes. Observations are stored
    once, where rows come in the order of time (:mod:`~diskreplay.compat.torchrl.tensor_layout`). Rows that no commit
    holds are lost when the process dies; the store commits by itself every ``commit_rows`` rows or ``commit_seconds``
    seconds.

    Args:
        max_size: rows that are held.
        path: the directory of the store, which is made if nothing is there; None for a temporary one that goes away
            with the storage.
        checkpoint: the checkpoint of the store at ``path`` to go back to; "latest" is the newest, or the last commit
            where there is none yet, or a new store.
        device: the device of the tensors that come back.
        cache_bytes: RAM for values, as in :meth:`diskreplay.ReplayBuffer.open`.
        keep_checkpoints: the number of checkpoints of :meth:`state_dict` that are kept, the newest ones; at least 1.
        frame_stack: frames of an observation that torchrl's ``CatFrames`` has stacked, by its key; stored once each.
        **options: further ones of ``diskreplay.ReplayBuffer.create`` and ``open``: ``codec``, ``chunk_rows``,
            ``shard_rows``, ``commit_rows``, ``commit_seconds``, ``stack_axis``, ``provenance``.

    Attributes:
        making: the checkpoint whose attachments are being written, which a state names meanwhile; None otherwise.
        store: the ``diskreplay.ReplayBuffer``; None before the first row.

    Raises InputError where the store at ``path`` was made for another size, or not by this class.
    """

    _default_checkpointer = storage_checkpoints.Checkpointer
    making: str | None = None
    _added = "row"

    def __init__(
        self,
        max_size: int,
        *,
        path: PathLike | None = None,
        checkpoint: str | None = None,
        device: Any = "cpu",
        cache_bytes: int | None = None,
        keep_checkpoints: int = 2,
        frame_stack: Mapping[Any, int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(max_size, device)
        self.keep_checkpoints = check_count("keep_checkpoints", keep_checkpoints)
        self._frame_stack = dict(frame_stack or {})
        self._options = {"cache_bytes": cache_bytes, **options}
        self._rows: TensorDictReader | None = None
        self._ring = Ring(lead=(max_size,))
        self._place = Location(path, self)
        checkpoint = named_checkpoint([self._place], checkpoint)
        if self._place.exists:
            self.open_store(checkpoint)

    # The store

    @property
    def store(self) -> Store | None:
        reader = self._reader()
        return None if reader is None else reader.store

    @property
    def path(self) -> str:
        """The store's directory, also before it is made."""
        return self._place.path

    @property
    def temporary(self) -> bool:
        """True if the store goes away with the storage."""
        return self._place.temporary

    @property
    def layout(self) -> TensorLayout | None:
        """The place of each leaf, or None before the first row."""
        reader = self._reader()
        return None if reader is None else reader.layout

    def _reader(self) -> TensorDictReader | None:
        if self._rows is None and self._place.exists:
            self.open_store()  # of a storage that was unpickled
        return self._rows

    def open_store(self, checkpoint: str | None = None, pos: int | None = None) -> None:
        """Open the store that is there, in the place of one that is open; ``pos`` is the slot of its next row."""
        if self._rows is not None:
            self._rows.store.close()
        opening = {name: self._options[name] for name in OPEN_OPTIONS if name in self._options}
        store = Store.open(self.path, view=Transition(), sampler=Uniform(), checkpoint=checkpoint, **opening)
        with closed_on_failure(store):
            layout = stored_layout(store.provenance)
            check_ring(store)
            if layout is None or store.capacity != self.max_size:
                made = "" if layout else ", and not by this class; DiskReplayDataset reads any store"
                raise InputError(
                    f"the store at {self.path!r} was made for {store.capacity} transitions{made}: this storage "
                    f"is for {self.max_size}; choose another path"
                )
            self._take(store, layout, pos)
        self._look_at_end()

    def make_store(self, layout: TensorLayout) -> None:
        """Make the store for tensordicts of a layout."""
        names = {leaf.key: leaf.name for leaf in layout.of("obs")}
        stacks = {key if isinstance(key, tuple) else (key,): count for key, count in self._frame_stack.items()}
        for key in stacks.keys() - names.keys():
            raise InputError(f"frame_stack: {key!r} is no observation; those are {sorted(names)}")
        options = {
            **self._options,
            "frame_stack": {names[key]: count for key, count in stacks.items()},
            "provenance": {**self._options.get("provenance", {}), TORCHRL: layout.to_json()},
        }
        options.pop(TAKE_OVER, None)
        store = Store.create(self.path, capacity=self.max_size, seed=0, **layout.create(), **options)
        with closed_on_failure(store):
            self._take(store, layout, None)

    def empty_copy(self, path: PathLike) -> DiskReplayStorage:
        """Return a DiskReplayStorage of the same size and options at a path without a store, also for a subclass."""
        return DiskReplayStorage(self.max_size, path=path, frame_stack=self._frame_stack, **self._options)

    def _take(self, store: Store, layout: TensorLayout, pos: int | None) -> None:
        close_with(self, store)
        self._ring.lay(store)
        if pos is not None:
            self._ring.turn(pos)
        self._rows = TensorDictReader(store, layout, self.device)

    def _look_at_end(self) -> None:
        """Tell samplers which row is the newest, and writers which slot is the next."""
        pos = self.pos
        self._set_last_cursor((pos - 1) % self.max_size if len(self) else None)
        for buffer in self._attached_entities:
            writer = getattr(buffer, "_writer", None)
            if isinstance(writer, RoundRobinWriter):
                writer._cursor = pos
        self._bump_mutation_revision()

    # What torchrl asks of a storage

    def attach(self, buffer: Any) -> None:
        """Take a buffer that reads and writes here, and have its writer go on after the newest row.

        Raises InputError for a writer or sampler that would overwrite rows.
        """
        _check_sampler(getattr(buffer, "_init_sampler", None), getattr(buffer, "_init_consume_after_n_samples", None))
        super().attach(buffer)
        if hasattr(buffer, "_maybe_make_writer") and getattr(buffer, "_writer", None) is None:
            # A buffer that is being made: torchrl takes a writer that is there already as it is.
            writer = buffer._init_writer = buffer._maybe_make_writer(buffer._init_writer)
            _check_writer(writer)
            if isinstance(writer, RoundRobinWriter):
                writer._cursor = self.pos

    @property
    def pos(self) -> int:
        """The slot of the next row."""
        self._reader()
        return self._ring.pos

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Append rows.

        Args:
            cursor: the next slot, or slots, of the ring.
            data: a tensordict of one row, ``(...)``, for an integer; else of rows ``(n, ...)``, or a list of them.

        Raises InputError, with nothing added, for other slots and for data unlike the first. Whatever ends it, the
        writers of attached buffers stand where the store does.
        """
        try:
            self._append(cursor, data, set_cursor)
        except BaseException:
            with contextlib.suppress(DiskReplayError):
                self._look_at_end()  # torchrl's writer moves on before it writes
            raise

    def _append(self, cursor: Any, data: Any, set_cursor: bool) -> None:
        for buffer in self._attached_entities:
            _check_writer(getattr(buffer, "_writer", None))
        if isinstance(data, list) and data and all(isinstance(one, TensorDictBase) for one in data):
            try:
                data = torch.stack(data)
            except (KeyError, RuntimeError) as error:
                raise InputError(f"the tensordicts of a list must be alike: {error}") from error
        if not isinstance(data, TensorDictBase):
            raise InputError(f"the storage takes tensordicts, got {type(data).__name__}; wrap tensors into one")
        slots = self._given_slots(cursor)
        rows = data.unsqueeze(0) if slots.ndim == 0 else data
        slots = slots.reshape(-1)
        if rows.batch_dims == 0 or len(rows) != len(slots):
            raise InputError(f"{len(slots)} slots need as many rows, got a tensordict {tuple(rows.batch_size)}")
        pos = self.pos
        expected = (pos + np.arange(len(slots))) % self.max_size
        if not set_cursor or not np.array_equal(slots, expected):
            raise InputError(
                f"rows of a store are never overwritten: slot {pos} is the next, got {_shown(slots)}; MaxValueWriter, "
                "ConsumingSampler, write_at and rb[...] = ... need torchrl's own storages"
            )
        reader = self._reader()
        layout = self._layout_of(rows) if reader is None else reader.layout
        values = layout.values(rows)
        steps = layout.rows(values)
        if reader is None:
            rewards("reward", steps["reward"], steps["reward"].shape, steps["reward"].dtype)
            for key, array in values.items() if self._options.get("finite") else ():
                numbers(str(key), array, array.shape, array.dtype, finite=True)
            self.make_store(layout)
        self._opened().store.extend(**steps)
        self._look_at_end()  # other buffers may write here, too

    def _given_slots(self, cursor: Any) -> Ids:
        if isinstance(cursor, slice):
            return np.arange(*cursor.indices(self.max_size))
        slots: Ids = check_array("cursor", cursor)
        if slots.dtype.kind not in "iu" or slots.ndim > 1 or not slots.size:
            raise InputError(f"slots are named by an integer, or by integers (n,), got {cursor!r:.80}")
        return slots

    def _layout_of(self, rows: TensorDictBase) -> TensorLayout:
        writers = [getattr(buffer, "_writer", None) for buffer in self._attached_entities]
        return layout_of(rows, any(isinstance(writer, TensorDictRoundRobinWriter) for writer in writers))

    def _ids(self, slots: Ids) -> Ids:
        return self._ring.entries(slots)

    def __len__(self) -> int:
        self._reader()
        return self._ring.count

    def clear(self) -> None:
        """Remove all rows; ``ReplayBuffer.empty`` does this."""
        if self.store is not None:
            self.store.clear()
        self._look_at_end()

    _empty = clear

    # Checkpoints

    def checkpoint(
        self, name: str, metadata: Mapping[str, Any] | None = None, *, attachments: Given | None = None,
        keep: int | None = None,
    ) -> None:  # fmt: skip
        """Commit, and name this point of the store, as ``diskreplay.ReplayBuffer.checkpoint``.

        A function for an attachment may save ``rb.state_dict()``, for ``rb.load_state_dict`` after opening at this
        checkpoint: the storage's part of it is this checkpoint's name. No other thread adds rows meanwhile.

        Raises InputError before the first row.
        """
        self.making = name
        try:
            super().checkpoint(name, metadata, attachments=attachments, keep=keep)
        finally:
            self.making = None

    def state_dict(self) -> dict[str, Any]:
        """Make a checkpoint of the store, and return its name and where the store is, or the rows of a temporary one.

        The newest ``keep_checkpoints`` of them are kept.
        """
        return storage_checkpoints.state_of(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go back to what :meth:`state_dict` gave.

        Where that is a checkpoint of the storage's own store, the rows after it are discarded. Where a later checkpoint
        needs those, and where it is of another store, its rows are copied, in the place of those that are here.

        Raises CheckpointError where the checkpoint is gone, and InputError where its ring has another size.
        """
        storage_checkpoints.load_state(self, state_dict)
        self._bump_mutation_revision()

    def restart(self, pos: int) -> None:
        """Put the next row in slot ``pos`` after the first rows were written."""
        self._ring.turn(pos)
        self._look_at_end()

    def __getstate__(self) -> dict[str, Any]:
        """Commit, and return where the store is; a copy opens it when first used, one process at a time."""
        if self.temporary and len(self):
            raise ReadOnlyError("a temporary store cannot be pickled; give the storage a path")
        self.commit()
        state: dict[str, Any] = Storage.__getstate__(self)
        for name in ("_rows", "_ring", "_place"):
            state.pop(name)
        return {**state, "path": None if self.temporary else self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        path = state.pop("path")
        Storage.__setstate__(self, {**state, "_rows": None, "_ring": Ring(lead=(state["max_size"],))})
        self._place = Location(path, self)

    def __repr__(self) -> str:
        where = "a temporary store" if self.temporary else repr(self.path)
        try:
            return f"DiskReplayStorage({where}, len={len(self)}, max_size={self.max_size})"
        except DiskReplayError:
            return f"DiskReplayStorage({where}, closed, max_size={self.max_size})"


class _Sequence(Sequence):  # type: ignore[misc]
    """torchrl's sequences, without its demand for a storage of its own: they read only a leaf and the cursor."""

    @classmethod
    def like(cls, unit: Any) -> _Sequence:
        found = cls.__new__(cls)
        found.__dict__.update(unit.__dict__)
        return found

    def _check_storage(self, storage: Any) -> None:
        """Accept any storage of a store."""


def _check_writer(writer: Any) -> None:
    if isinstance(writer, TensorDictMaxValueWriter):
        raise InputError(
            f"{type(writer).__name__} overwrites the rows of least value, and rows of a store are never overwritten; "
            "use RoundRobinWriter, or one of torchrl's own storages"
        )


def _check_sampler(sampler: Any, consume: Any) -> None:
    if consume is not None or isinstance(sampler, ConsumingSampler) or sampler is ConsumingSampler:
        raise InputError(
            "ConsumingSampler (consume_after_n_samples) has consumed rows overwritten, and rows of a store never are; "
            "use RandomSampler, or one of torchrl's own storages"
        )


def _shown(slots: Ids) -> str:
    return str(slots[0]) if len(slots) == 1 else f"{slots[0]} to {slots[-1]}"
