"""The end, the commits and the checkpoints of what has one or several stores: a mixture, another library's buffer.

A checkpoint of several stores is one of each, under one name. That of the first store, the keeper, is made last and
dropped first, and holds the attachments. What a crash left of one in others is dropped by the next of that name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.buffers.stored import Restored
from diskreplay.engine import checkpointing
from diskreplay.engine.hooks import State
from diskreplay.errors import CheckpointError, InputError
from diskreplay.storage.attachments import Given
from diskreplay.storage.store import Checkpoint


class OverStores:
    """The part of an object that ends its stores."""

    def _written(self) -> Sequence[SampledBuffer[Any]]:
        """Return the stores that are written, the keeper first; none before the first step has made them."""
        store: SampledBuffer[Any] | None = getattr(self, "store")  # noqa: B009  # a method in XuanCe's buffers
        return () if store is None else (store,)

    def commit(self) -> None:
        """Make everything that was added durable, with errors as ``commit`` of a buffer."""
        for store in self._written():
            store.commit()

    def close(self) -> None:
        """Commit, and give the store to the next writer; from then on the buffer refuses every call."""
        with contextlib.ExitStack() as closing:
            for store in self._written():
                closing.push(store)  # of several that lose rows, the first error gets the others as notes


class Checkpointed(OverStores):
    """The part of an object that names points of its stores."""

    _what, _added = "buffer", "step"
    """The names of the object and of what is added first, for messages."""
    _lock: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    """The lock held while a checkpoint is made."""

    def checkpoint(
        self, name: str, metadata: Mapping[str, Any] | None = None, *, attachments: Given | None = None,
        keep: int | None = None,
    ) -> None:  # fmt: skip
        """Commit, and name this point in all stores that are written; it counts once it is in all of them.

        Args:
            name, metadata, attachments, keep: as in ``checkpoint`` of a buffer. The first store has the attachments.

        Raises InputError or CheckpointError for a bad name, metadata, attachment or ``keep``, with nothing changed, and
        what a function for an attachment and ``commit`` of a buffer raise. InputError before the first step, and
        ReadOnlyError where no store is written.
        """
        stores = self._written()
        if not stores:
            raise InputError(f"there is nothing to make a checkpoint of; add a {self._added} first")
        for store in stores:
            if name in self._leftovers(store):
                store.drop_checkpoint(name)
        keeper, *others = (store.engine for store in stores)
        wanted = checkpointing.wanted(keeper.store, name, metadata, attachments, keep)
        with checkpointing.staging(keeper, wanted.attachments) as staged, self._lock:
            for engine in others:
                engine.store.check_new_checkpoint(name)
            for engine in others:
                checkpointing.take(engine, wanted, None, self._mark)
            checkpointing.take(keeper, wanted, staged, self._state)
        checkpointing.drop_outdated(keeper, wanted, self.drop_checkpoint, self._counts)
        keeper.pushes.warn()

    @property
    def restored(self) -> Restored | None:
        """The checkpoint that the stores were opened at, its name and metadata, or None if they were opened at none."""
        return next((store.restored for store in self._written()), None)

    def attachment(self, name: str, checkpoint: str | None = None) -> BinaryIO:
        """Open a file that a checkpoint took along, as ``attachment`` of a buffer does."""
        for store in self._written():
            return store.attachment(name, checkpoint)
        raise CheckpointError(f"there is no checkpoint before the first {self._added}; add one")

    @property
    def checkpoints(self) -> list[str]:
        """The names of the checkpoints, by their numbers."""
        return [
            one.name for store in self._written()[:1] for one in store.engine.store.checkpoints() if self._counts(one)
        ]

    def drop_checkpoint(self, name: str) -> None:
        """Forget a checkpoint in all stores; their next commits give back the space that only it needed."""
        if name not in self.checkpoints:
            raise CheckpointError(f"there is no checkpoint {name!r} of the {self._what}; there are {self.checkpoints}")
        keeper, *others = self._written()
        keeper.drop_checkpoint(name)
        for store in others:
            if name in self._leftovers(store):
                store.drop_checkpoint(name)

    # What a checkpoint is

    def _counts(self, one: Checkpoint) -> bool:
        """Tell whether a checkpoint of the keeper is one of all stores."""
        return True

    def _leftovers(self, store: SampledBuffer[Any]) -> list[str]:
        """Return the checkpoints of a store that died being made or dropped."""
        return []

    def _mark(self) -> State:
        """Return what the checkpoint of a store that is not the keeper holds, beside its own state."""
        return checkpointing.nothing()

    def _state(self) -> State:
        """Return what the keeper's checkpoint holds, beside its own state."""
        return checkpointing.nothing()
