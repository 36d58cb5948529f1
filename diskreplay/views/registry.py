"""The package's own views by their names, and which of their arguments decide what an item is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from diskreplay.views import hindsight, padded_episodes, sequence, transition
from diskreplay.views.view import View

VIEWS: dict[str, Callable[[dict[str, Any]], View]] = {
    "Transition": transition.from_json,
    "Sequence": sequence.from_json,
    "Hindsight": hindsight.from_json,
    "PaddedEpisodes": padded_episodes.from_json,
}

FREE = ("gamma", "max_length", "ratio", "strategy")
"""The arguments of views that do not decide which ids are items."""


def from_json(stored: Mapping[str, Any]) -> View:
    """Return the view of a document by ``to_json``; raise KeyError, TypeError or ValueError for an unknown one."""
    return VIEWS[stored["kind"]](dict(stored))


def same_items(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two views, by ``to_json``, have the same ids as items."""
    deciding, others = ({key: facts[key] for key in facts if key not in FREE} for facts in (one, other))
    return deciding == others
