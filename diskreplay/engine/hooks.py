"""The hooks: what stands beside the rows of an open store, and how the engine takes it along."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

State = tuple[dict[str, Any], dict[str, NDArray[Any]]]
"""The state that a checkpoint holds beside rows: facts for JSON, and arrays ``(n,)`` by name."""


class Hook(Protocol):
    """An object that follows the rows of one store, from ``engine.hooks.append(hook)`` until that is closed."""

    def state(self) -> State:
        """Return what a checkpoint must hold of it; the engine's lock is held."""
        raise NotImplementedError

    def forget(self) -> None:
        """Forget what belongs to the rows, which are being cleared; the engine's lock is held."""


class Companion(Hook, Protocol):
    """The state of another library's buffer beside its rows, from ``engine.companion = companion`` on.

    :mod:`diskreplay.compat.keeper` is the one there is.
    """

    def flush(self) -> None:
        """Add to the store what waits in RAM, before the last commit of ``close``."""
