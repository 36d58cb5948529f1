"""What somebody keeps beside a buffer's rows, and how the buffer takes it along."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray


class Companion(Protocol):
    """Follows the rows of one buffer, from its ``_companion = companion`` until the buffer is closed.

    :mod:`diskreplay.compat.keeper` is the one there is.
    """

    @property
    def torn(self) -> bool:
        """Whether an interrupted call has left something for :meth:`settle`."""
        raise NotImplementedError

    def settle(self) -> None:
        """Does what an interrupted call left undone; before any other call of the buffer, with its lock held."""

    def forget(self) -> None:
        """The buffer is being cleared; may be called again where that is interrupted. With the buffer's lock held."""

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """More that a checkpoint must hold: facts for JSON, and arrays ``(n,)``. With the buffer's lock held."""
        raise NotImplementedError

    def committed(self) -> None:
        """Rows were committed."""

    def save(self) -> None:
        """Commits, in the place of the last commit of ``close``."""
