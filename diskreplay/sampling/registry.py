"""The package's own samplers by their names, and what any object must have to be one.

A sampler is known by its methods, not by its class. A store keeps ``to_json`` of it; what this module knows by name is
made from that when the store is opened. Any other kind is given to ``open`` each time, and is asked more closely: what
it draws is checked, its state is too. Which of its arguments may differ from those that a state was made with is for
its ``restore`` to say.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from diskreplay.errors import InputError
from diskreplay.sampling import proportional, rank_based, uniform
from diskreplay.sampling.window import Sampler

SAMPLERS: dict[str, Callable[[dict[str, Any]], Sampler]] = {
    "Uniform": uniform.from_json,
    "Proportional": proportional.from_json,
    "RankBased": rank_based.from_json,
}
OWN = (uniform.Uniform, proportional.Proportional, rank_based.RankBased)

NEEDED = ("sample", "probability", "to_json")
NEEDED_WITH_PRIORITIES = ("update", "forget", "clear", "is_new", "state", "restore")
MARKS_OF_PRIORITIES = frozenset({"update", "forget", "state", "restore"})
"""Who has one of these means to have priorities, or another state, and must have all that goes with them."""


def from_json(stored: Mapping[str, Any]) -> Sampler:
    """The sampler of a document by ``to_json``; KeyError, TypeError or ValueError where its kind is not known here."""
    return SAMPLERS[stored["kind"]](dict(stored))


def is_own(sampler: object) -> bool:
    """Whether it is one of this package's, whose answers need no check."""
    return type(sampler) in OWN


def takes_over(given: Sampler, stored: Mapping[str, Any]) -> bool:
    """Whether a sampler that is given to ``open`` goes on from a checkpoint's state.

    One of this package begins anew: without one, its like is made from the checkpoint. Of another kind it is the only
    way to go on.
    """
    kind = stored.get("kind")
    return kind not in SAMPLERS and kind == given.to_json()["kind"]


def check(sampler: object) -> None:
    """InputError where an object is no sampler."""
    if isinstance(sampler, type):
        raise InputError(f"sampler must be an object, got the class {sampler.__name__}; write {sampler.__name__}(...)")
    lacking = _lacking(sampler, NEEDED)
    if lacking:
        raise InputError(
            "sampler must be Uniform, Proportional, RankBased or an object with sample, probability and to_json, got "
            f"{sampler!r}, which lacks {', '.join(lacking)}"
        )
    marks = [name for name in NEEDED_WITH_PRIORITIES if name in MARKS_OF_PRIORITIES and hasattr(type(sampler), name)]
    if not marks:
        return
    lacking = _lacking(sampler, NEEDED_WITH_PRIORITIES)
    if lacking:
        raise InputError(
            f"sampler {sampler!r} has {marks[0]}, so it must have all of {', '.join(NEEDED_WITH_PRIORITIES)}; it lacks "
            f"{', '.join(lacking)}"
        )
    try:
        weakref.ref(sampler)
    except TypeError:
        raise InputError(
            f"a sampler with priorities must take weak references, got {sampler!r}; add '__weakref__' to its __slots__"
        ) from None


def _lacking(sampler: object, names: tuple[str, ...]) -> list[str]:
    kind = type(sampler)
    return [
        name for name in names if not hasattr(kind, name) or (name != "is_new" and not callable(getattr(kind, name)))
    ]
