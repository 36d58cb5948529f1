"""The state that a buffer finds again beside its rows: view and sampler, as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import check_key
from diskreplay.errors import CorruptionError, FormatVersionError, InputError, SamplerWarning, SchemaError, warn_outside
from diskreplay.sampling import conforming
from diskreplay.sampling import registry as samplers
from diskreplay.sampling.uniform import Uniform
from diskreplay.sampling.window import Prioritized, Sampler
from diskreplay.schema.columns import DTYPES, Schema
from diskreplay.storage.metadata import plain
from diskreplay.storage.store import PROVENANCE
from diskreplay.views import registry
from diskreplay.views.transition import Transition
from diskreplay.views.view import Completes, View

UPDATED = "updated"
"""The key that tells whether a sampler was ever given priorities; where it is missing, it may have been."""
WRONG_STATE = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What a sampler's ``restore`` may raise where the state is none of its own."""
NOT_TAKEN_OVER = "its priorities cannot be taken over: {}"


def settings(
    schema: Schema, stored: Mapping[str, Any], view: View | None, sampler: Sampler | None
) -> tuple[View, Sampler]:
    """Return the given view and sampler, else the stored ones, else the plainest; the view goes with the schema."""
    try:
        if view is None:
            view = registry.from_json(stored["view"]) if "view" in stored else Transition()
        if sampler is None:
            sampler = samplers.from_json(stored["sampler"]) if "sampler" in stored else Uniform()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatVersionError(
            f"the store's own view or sampler is not one of this version ({error!r}); name one: view=..., sampler=..."
        ) from error
    if not isinstance(view, View) or isinstance(view, type):
        raise InputError(f"view must be one such as Transition(), Sequence(20) or PaddedEpisodes(100), got {view!r}")
    if isinstance(view, Completes):
        view = view.completed(stored.get(PROVENANCE) or {}, schema.videos)
    view.check(schema)
    conforming.check(sampler)
    sampler_facts(sampler)
    return view, sampler


def sampler_facts(sampler: Sampler) -> dict[str, Any]:
    """Return ``to_json`` of a sampler; raise InputError if a store could not keep it."""
    facts = sampler.to_json()
    if samplers.is_own(sampler):
        return facts
    if not isinstance(facts, Mapping) or not isinstance(facts.get("kind"), str):
        raise InputError(f"to_json of {sampler!r} must give a dict with its name as 'kind', got {facts!r:.80}")
    return plain(f"to_json of {sampler!r}", facts)


def sampler_state(sampler: Prioritized) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return all that a sampler needs to go on bit for bit, facts for JSON and arrays; raise InputError otherwise."""
    if samplers.is_own(sampler):
        return sampler.state()
    state = sampler.state()
    try:
        facts, arrays = state
        for name, values in arrays.items():
            check_key(name, "arrays")
            if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.name not in DTYPES:
                raise InputError(f"array {name!r} must be numbers (n,), got {values!r:.80}")
    except (TypeError, ValueError, AttributeError, InputError, SchemaError) as error:
        raise InputError(f"state of {sampler!r} must give facts and arrays (n,) by name: {error}") from error
    return plain(f"state of {sampler!r}", facts), dict(arrays)


def resumption(
    sampler: Sampler, view: View, stored: Mapping[str, Any], arrays: Callable[[], dict[str, NDArray[Any]]], what: str,
    *, anew: bool = False,
) -> Callable[[], bool]:  # fmt: skip
    """Read all that a sampler needs to go on from a stored state, and return a function that has it go on.

    Until that function is called the sampler stays as it is. It warns if the sampler begins anew, and returns True if
    it goes on. A sampler without a state has nothing to go on with; one that was used before keeps what it knows.

    Args:
        sampler, view: the sampler and the view in use now.
        stored: ``sampler``, ``view`` and ``priorities`` of a checkpoint, or of what closing kept.
        arrays: reads the arrays that go with it.
        what: the words for that state, for messages.
        anew: True if a sampler that was used before is to forget what it knows.
    """
    if not isinstance(sampler, Prioritized) or not (sampler.is_new or anew):
        return lambda: False
    why, found = "", dict[str, NDArray[Any]]()
    try:
        kinds = samplers.kinds(stored["sampler"])
        if kinds != samplers.kinds(sampler.to_json()) or stored["priorities"] is None:
            first, *more = map(str, kinds or ["none"])
            why = f"it holds the state of {first}" + (f" of {', '.join(more)}" if more else "")
        elif not registry.same_items(stored["view"], view.to_json()):
            why = f"its priorities are those of items of {stored['view']}, not of {view!r}"
        else:
            found = arrays()
    except WRONG_STATE as error:
        why = NOT_TAKEN_OVER.format(error)

    def resume() -> bool:
        reason = why
        if anew:
            sampler.clear()
        if not reason:
            try:
                sampler.restore(stored["priorities"], found)
                return True
            except WRONG_STATE as error:
                reason = NOT_TAKEN_OVER.format(error)
        begins_anew(sampler, what, reason)
        return False

    return resume


def begins_anew(sampler: Sampler, what: str, why: str) -> None:
    """Warn that a sampler goes on without ``what``, which was stored."""
    warn_outside(f"{sampler!r} begins anew, without {what}: {why}", SamplerWarning)


def check_items(sampler: Sampler, view: View, stored: Mapping[str, Any], name: str) -> None:
    """Raise InputError if the priorities of a checkpoint are those of other items than the view's."""
    if isinstance(sampler, Prioritized) and not registry.same_items(stored, view.to_json()):
        raise InputError(
            f"checkpoint {name!r} keeps priorities for the view {stored}, not for {view!r}; give a new sampler, too"
        )


def restore_sampler(sampler: Sampler, facts: Any, arrays: dict[str, NDArray[Any]], name: str) -> None:
    """Give a sampler its state back; raise CorruptionError if it is not one."""
    if isinstance(sampler, Prioritized) and facts is not None:
        try:
            sampler.restore(facts, arrays)
        except WRONG_STATE as error:
            raise CorruptionError(f"the priorities of checkpoint {name!r} cannot be read: {error!r}") from error
