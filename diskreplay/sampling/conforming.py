"""The methods that make an object a sampler: it is known by these, not by its class."""

from __future__ import annotations

import weakref

from diskreplay.errors import InputError

NEEDED = ("sample", "probability", "to_json")
NEEDED_WITH_PRIORITIES = ("update", "forget", "clear", "is_new", "state", "restore")
MARKS_OF_PRIORITIES = frozenset({"update", "forget", "state", "restore"})
"""The methods of a sampler with priorities, or another state; one that has any of them must have all."""


def check(sampler: object) -> None:
    """Raise InputError if an object is not a sampler."""
    if isinstance(sampler, type):
        raise InputError(f"sampler must be an object, got the class {sampler.__name__}; write {sampler.__name__}(...)")
    lacking = _lacking(sampler, NEEDED)
    if lacking:
        raise InputError(
            "sampler must be Uniform, Recent, Groups, Proportional, RankBased, SamplerMixture, Counting or an "
            f"object with sample, probability and to_json, got {sampler!r}, which lacks {', '.join(lacking)}"
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
