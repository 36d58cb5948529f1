"""Ray: many processes and machines that collect into a store, read it and learn from it."""

from __future__ import annotations

try:
    import ray  # noqa: F401  # what is needed is looked for here, so that one sentence says what to install
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("diskreplay.ray needs Ray: pip install 'diskreplay[ray]'", name=error.name) from error

from diskreplay.ray.collector import Collected, Collector
from diskreplay.ray.collectors import Collectors

__all__ = ["Collected", "Collector", "Collectors"]
