"""The views of this package by name. A store keeps a view as a document, from which it is made again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from diskreplay.errors import OpenError
from diskreplay.views.view import View

VIEWS = {
    "Transition": "transition",
    "Sequence": "sequence",
    "PaddedEpisodes": "padded_episodes",
    "DeltaTimestamps": "delta_timestamps",
}
"""The module of each view, below this package."""

FREE = ("deltas", "fps", "gamma", "max_length", "ratio", "strategy", "tolerance_s")
"""The arguments of views that have no influence on which ids are items."""


def from_json(stored: Mapping[str, Any]) -> View:
    """Return the view whose ``to_json`` gave this document.

    Raises OpenError for :class:`Hindsight`: a store cannot keep its functions, so the user must give the view.
    Raises KeyError, TypeError or ValueError if the document describes no view of this package.
    """
    name = stored["kind"]
    if name == "Hindsight":
        raise OpenError(
            f"the store's view is Hindsight(strategy={stored['strategy']!r}, ratio={stored['ratio']}), whose reward_fn "
            "cannot be stored; give it: open(path, view=Hindsight(reward_fn, ...))"
        )
    kind: type[Any] = getattr(import_module(f"{__package__}.{VIEWS[name]}"), name)
    view: View = kind(**{field.name: stored[field.name] for field in dataclasses.fields(kind)})
    return view


def same_items(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if two views certainly have the same items. Each view is given as ``to_json`` returns it.

    Returns False if the views are of different classes, or if their arguments alone do not show that the items are the
    same.
    """
    deciding, others = ({key: facts[key] for key in facts if key not in FREE} for facts in (one, other))
    return deciding == others
