"""The interface of a view, and four interfaces that a view may have in addition.

An *item* is what one entry of a batch shows: a transition, a sequence or an episode. The id of one of its rows, mostly
of the first, names the item. Samplers draw ids. A view tells which ids are items, and makes the arrays of a batch of
items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from diskreplay.reading.open_stream import OpenStream
from diskreplay.reading.reads import Reads
from diskreplay.schema.columns import Schema
from diskreplay.schema.ids import Ids
from diskreplay.video import Video
from diskreplay.views.batch import SomeBatch


@runtime_checkable
class View(Protocol[SomeBatch]):
    """A view, which makes batches of the class ``SomeBatch``.

    A view has no state besides its arguments. Each view of this package inherits from this class.
    """

    @property
    def reach(self) -> int:
        """How many rows an item can extend beyond the row that names it, next observations included.

        The arrays can also need rows before that row, for frame stacks, and rows from elsewhere, such as goals.
        """
        raise NotImplementedError

    def check(self, schema: Schema) -> None:
        """Raise InputError if the view cannot show a store of this schema. By default a view can show any store."""
        return

    def standing(self, stream: OpenStream, ids: Ids) -> NDArray[np.int8]:
        """Tell which ids are items: return the :class:`~diskreplay.index.log.Standing` of each id, ``(n,)``.

        Callers hold ``engine.lock``.
        """
        raise NotImplementedError

    def draft(
        self, schema: Schema, streams: Sequence[OpenStream], ids: Ids, weight: NDArray[Any],
        rng: np.random.Generator | None, reads: Reads,
    ) -> SomeBatch:  # fmt: skip
        """Return the batch of the items that ``ids`` name. Its large columns are read later, by ``reads``.

        Callers hold ``engine.lock``.

        Args:
            schema, streams: the columns and the streams of the store.
            ids: the ids of the items, ``(B,)``. The standing of each id is ``NOW``.
            weight: the importance weight of each item, ``(B,)``. The batch holds this array.
            rng: a generator for views that choose something at random. If it is None, such a view chooses nothing, and
                shows the items as they were recorded.
            reads: takes note of what must be read from disk.
        """
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return the name of the view's class as ``kind``, and the arguments with which the view was made.

        Functions among the arguments are left out, because a document cannot hold them.
        """
        raise NotImplementedError


@runtime_checkable
class Explains(Protocol):
    """A view that can explain why the windows hold no item."""

    def lacking(self, streams: Sequence[OpenStream]) -> str | None:
        """Return what is missing and what the user can do. Return None if adding more steps will help.

        Callers hold ``engine.lock``.
        """


@runtime_checkable
class Scattered(Protocol):
    """A view whose items need different rows of different columns.

    For any other view, an item may need each column at every row up to :attr:`View.reach`.
    """

    def rows_shown(self, schema: Schema) -> Mapping[str, Sequence[int]]:
        """Return, for each column by name, the rows that an item needs: 0 is the item's row, -1 the row before it."""
        raise NotImplementedError


@runtime_checkable
class Completes(Protocol):
    """A view that takes an argument from the store if the user did not give it."""

    def completed(self, provenance: Mapping[str, Any], videos: Mapping[str, Video]) -> View:
        """Return the view with all its arguments.

        ``provenance`` holds what a store says about its origin, ``videos`` the facts of its video columns. Raises
        InputError if they lack an argument that the view needs.
        """


def keep(view: View, **values: Any) -> None:
    """Set fields of a frozen view. Its ``__post_init__`` calls this with the arguments that it has checked."""
    for name, value in values.items():
        object.__setattr__(view, name, value)
