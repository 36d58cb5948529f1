"""The interface of a view: at which rows its items can begin, and a batch of such items.

An *item* is what one entry of a batch shows: a transition, a sequence, an episode. It is named by the id of one row and
environment, which is what samplers draw; a view says of each id where it stands, and makes the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from diskreplay.ids import Ids
from diskreplay.reading.open_stream import OpenStream
from diskreplay.reading.reads import Reads
from diskreplay.schema import Schema
from diskreplay.views.batch import SomeBatch


@runtime_checkable
class View(Protocol[SomeBatch]):
    """A view, which says what a sample looks like: a ``SomeBatch``.

    Views have no state; the package's own are the classes that inherit from this one.
    """

    @property
    def reach(self) -> int:
        """The most rows after its own that an item's arrays come from."""
        raise NotImplementedError

    def check(self, schema: Schema) -> None:
        """InputError where the view has no meaning for a store of this schema; by default it has one for all."""
        return

    def standing(self, stream: OpenStream, ids: Ids) -> NDArray[np.int8]:
        """Return the :class:`~diskreplay.index.log.Standing` of ids as items; the caller holds the lock."""
        raise NotImplementedError

    def draft(
        self, schema: Schema, streams: Sequence[OpenStream], ids: Ids, weight: NDArray[Any],
        rng: np.random.Generator | None, reads: Reads,
    ) -> SomeBatch:  # fmt: skip
        """Return the batch of items ``ids``, ``(B,)``, all at NOW, complete after ``reads``; the caller holds the lock.

        ``rng`` is for views that choose; None where the items are to be shown as they were recorded.
        """
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return the constructor's arguments, and ``kind``."""
        raise NotImplementedError


@runtime_checkable
class Explains(Protocol):
    """A view that can say why nothing in the windows is an item of it."""

    def lacking(self, streams: Sequence[OpenStream]) -> str | None:
        """Return what is missing, and what to do, or None if more steps help; the caller holds the lock."""


@runtime_checkable
class Sure(Protocol):
    """A view that can say of a stream, without looking at its rows, that all of them are items."""

    def stands_everywhere(self, stream: OpenStream) -> bool:
        """Tell whether every id of the stream's window stands at NOW; the caller holds the lock."""
        raise NotImplementedError


def keep(view: View, **values: Any) -> None:
    """Put checked arguments, with plain numbers for those of numpy, into a frozen view."""
    for name, value in values.items():
        object.__setattr__(view, name, value)
