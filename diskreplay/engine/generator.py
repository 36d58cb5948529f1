"""The random generator of an open store: its state as JSON and back, and new generators for copies of the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from diskreplay.errors import CorruptionError


def rng_to_json(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a PCG64 generator for JSON; its 128-bit numbers are text, for readers that lack them."""
    state = rng.bit_generator.state
    numbers = {key: str(value) for key, value in state["state"].items()}
    return {**{key: state[key] for key in ("bit_generator", "has_uint32", "uinteger")}, "state": numbers}


def set_rng(rng: np.random.Generator, state: Mapping[str, Any], name: str) -> None:
    """Give a generator the state in a checkpoint; raise CorruptionError, with the checkpoint's name, if it is none."""
    try:
        stored = state["rng"]
        numbers = {key: int(value) for key, value in stored["state"].items()}
        rng.bit_generator.state = {**stored, "state": numbers}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CorruptionError(f"the random state of checkpoint {name!r} cannot be read: {error!r}") from error


def reseeded(rng: np.random.Generator, fork: int) -> np.random.Generator:
    """Return a new generator, whose seed follows from the state of ``rng`` and the number of the fork."""
    state: Any = rng.bit_generator.state["state"]
    return np.random.Generator(np.random.PCG64([state["state"], state["inc"], fork]))
