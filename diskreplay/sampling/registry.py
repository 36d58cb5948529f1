"""The package's own samplers by their names: each stands in the module of its name, ``RankBased`` in ``rank_based``.

A store keeps ``to_json`` of its sampler; what this module knows by name is made from that when the store is opened. Any
other kind is given to ``open`` each time, and is asked more closely: what it draws is checked, its state is too. Which
of its arguments may differ from those that a state was made with is for its ``restore`` to say.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from diskreplay.sampling.composed import with_parts
from diskreplay.sampling.window import Sampler

WORD = re.compile(r"\B(?=[A-Z])")


def named(name: str) -> Callable[..., Sampler]:
    """Return the class of a name; raise KeyError if there is none."""
    with contextlib.suppress(ModuleNotFoundError, AttributeError):
        kind: Callable[..., Sampler] = getattr(import_module(f"{__package__}.{WORD.sub('_', name).lower()}"), name)
        if "to_json" in vars(kind):
            return kind
    raise KeyError(name)


def from_json(stored: Mapping[str, Any]) -> Sampler:
    """Return the sampler of a document by ``to_json``; raise KeyError, TypeError or ValueError for an unknown kind."""
    kind = named(stored["kind"])
    given = {name: stored[name] for name in inspect.signature(kind).parameters if name in stored}
    for name in given.keys() & {"sampler", "samplers"}:
        given[name] = from_json(given[name]) if name == "sampler" else list(map(from_json, given[name]))
    return kind(**given)


def is_own(sampler: Sampler) -> bool:
    """Tell whether a sampler, with all that it is made of, is this package's: its answers need no check."""
    return all(type(part).__module__.startswith(f"{__package__}.") for part in with_parts(sampler))


def kinds(stored: Mapping[str, Any]) -> list[Any]:
    """Return the kind of a document by ``to_json``, and of a sampler over others also the kinds of these."""
    own = stored.get("kind")
    parts: Any = stored.get("samplers", ()) if own == "SamplerMixture" else ()
    parts = (stored.get("sampler", {}),) if own == "Counting" else parts
    return [own, *(kind for part in parts for kind in kinds(part))]
