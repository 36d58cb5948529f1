"""Stores between Ray's processes: actors collect into them, Ray Data reads them, RLlib replays from them.

Needs Ray: ``pip install 'diskreplay[ray]'``. Each module is imported by its own name or through here, when it is used.
"""

from __future__ import annotations

import importlib
from typing import Any

EXPORTS = {
    "Collected": "collector",
    "Collector": "collector",
    "Collectors": "collectors",
    "DiskReplayDatasource": "data",
    "DiskEpisodeReplayBuffer": "rllib",
    "DiskPrioritizedEpisodeReplayBuffer": "rllib",
    "KeepsReplay": "algorithms",
    "DiskDQN": "algorithms",
    "DiskSAC": "algorithms",
    "DiskOfflineData": "offline",
}
"""The module of each name, below this package."""

__all__ = list(EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{EXPORTS[name]}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(__name__):
            raise
        raise ModuleNotFoundError(
            f"{__name__}.{name} needs {error.name}: pip install 'diskreplay[ray]'", name=error.name
        ) from error
    return getattr(module, name)
