"""The package's own views by their names, and which of their arguments decide what an item is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from diskreplay.errors import OpenError
from diskreplay.views.hindsight import Hindsight
from diskreplay.views.padded_episodes import PaddedEpisodes
from diskreplay.views.sequence import Sequence
from diskreplay.views.transition import Transition
from diskreplay.views.view import View

VIEWS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Transition, Sequence, PaddedEpisodes)}

FREE = ("gamma", "max_length", "ratio", "strategy")
"""The arguments of views that do not decide which ids are items."""


def from_json(stored: Mapping[str, Any]) -> View:
    """Return the view of a document by ``to_json``; raise KeyError, TypeError or ValueError for an unknown one.

    Raise OpenError, which says to give the view, for one with functions: they are not stored.
    """
    if stored["kind"] == Hindsight.__name__:
        raise OpenError(
            f"the store's view is Hindsight(strategy={stored['strategy']!r}, ratio={stored['ratio']}), whose reward_fn "
            "cannot be stored; give it: open(path, view=Hindsight(reward_fn, ...))"
        )
    kind = VIEWS[stored["kind"]]
    view: View = kind(**{field.name: stored[field.name] for field in dataclasses.fields(kind)})
    return view


def same_items(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two views, by ``to_json``, have the same ids as items."""
    deciding, others = ({key: facts[key] for key in facts if key not in FREE} for facts in (one, other))
    return deciding == others
