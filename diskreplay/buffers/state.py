"""What a buffer finds again beside its rows: view, sampler and random state, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from diskreplay.errors import CorruptionError, FormatVersionError, InputError
from diskreplay.sampling import uniform
from diskreplay.sampling.uniform import Uniform
from diskreplay.views import transition
from diskreplay.views.transition import Transition


def settings(stored: Mapping[str, Any], view: Transition | None, sampler: Uniform | None) -> tuple[Transition, Uniform]:
    """The given view and sampler, else the stored ones, else the plainest."""
    try:
        if view is None:
            view = transition.from_json(stored["view"]) if "view" in stored else Transition()
        if sampler is None:
            sampler = uniform.from_json(stored["sampler"]) if "sampler" in stored else Uniform()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatVersionError(
            f"the store's own view or sampler is not one of this version ({error}); name one: view=..., sampler=..."
        ) from error
    if not isinstance(view, Transition):
        raise InputError(f"view must be a Transition, got {view!r}")
    if not isinstance(sampler, Uniform):
        raise InputError(f"sampler must be Uniform, got {sampler!r}")
    return view, sampler


def rng_to_json(rng: np.random.Generator) -> dict[str, Any]:
    """The state of a PCG64 generator; its 128-bit numbers as text, for JSON readers that lack them."""
    state = rng.bit_generator.state
    numbers = {key: str(value) for key, value in state["state"].items()}
    return {**{key: state[key] for key in ("bit_generator", "has_uint32", "uinteger")}, "state": numbers}


def set_rng(rng: np.random.Generator, state: Mapping[str, Any], name: str) -> None:
    try:
        stored = state["rng"]
        numbers = {key: int(value) for key, value in stored["state"].items()}
        rng.bit_generator.state = {**stored, "state": numbers}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptionError(f"the random state of checkpoint {name!r} cannot be read: {error!r}") from error
