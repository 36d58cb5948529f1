"""Hooks: objects with state beside the rows of an open store, which the engine puts into checkpoints."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

State = tuple[dict[str, Any], dict[str, NDArray[Any]]]
"""The state that a checkpoint holds beside rows: facts for JSON, and arrays ``(n,)`` by name."""


class Hook(Protocol):
    """An object whose state goes with the rows of a store, from ``engine.hooks.append(hook)`` until that closes."""

    def state(self) -> State:
        """Return the state for a checkpoint; the engine's lock is held."""
        raise NotImplementedError

    def forget(self) -> None:
        """Forget the state that belongs to the rows, which are being cleared; the engine's lock is held."""


class Companion(Hook, Protocol):
    """The hook of an adapter, with the state of another library's buffer, from ``engine.companion = companion`` on.

    :mod:`diskreplay.compat.adapter_state` has the only one.
    """

    def flush(self) -> None:
        """Add the rows that wait in RAM to the store, before the last commit of ``close``."""
