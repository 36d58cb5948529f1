"""The package's own samplers by their names.

A store keeps ``to_json`` of its sampler; what this module knows by name is made from that when the store is opened. Any
other kind is given to ``open`` each time, and is asked more closely: what it draws is checked, its state is too. Which
of its arguments may differ from those that a state was made with is for its ``restore`` to say.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from diskreplay.sampling.priorities import Priorities
from diskreplay.sampling.proportional import Proportional
from diskreplay.sampling.rank_based import RankBased
from diskreplay.sampling.recent import Recent
from diskreplay.sampling.sampler_mixture import SamplerMixture
from diskreplay.sampling.uniform import Uniform
from diskreplay.sampling.window import Sampler

OWN = (Uniform, Recent, Proportional, RankBased)
SAMPLERS: dict[str, Callable[..., Sampler]] = {kind.__name__: kind for kind in (*OWN, SamplerMixture)}


def from_json(stored: Mapping[str, Any]) -> Sampler:
    """Return the sampler of a document by ``to_json``; raise KeyError, TypeError or ValueError for an unknown kind."""
    kind = SAMPLERS[stored["kind"]]
    given = {name: stored[name] for name in inspect.signature(kind).parameters if name in stored}
    if kind is SamplerMixture:
        given["samplers"] = [from_json(part) for part in given["samplers"]]
    return kind(**given)


def is_own(sampler: object) -> bool:
    """Tell whether a sampler, with all parts of a mixture, is this package's: its answers need no check."""
    if type(sampler) is SamplerMixture:
        return all(type(part) in OWN for part in sampler.samplers)
    return type(sampler) in OWN


def prepare(sampler: Sampler) -> None:
    """Import what a sampler of this package needs to draw; for the buffer that it is given to."""
    for part in (sampler, *sampler.samplers) if isinstance(sampler, SamplerMixture) else (sampler,):
        if isinstance(part, Priorities):
            part.prepare()


def kinds(stored: Mapping[str, Any]) -> list[Any]:
    """Return the kind of a document by ``to_json``, and of a mixture also the kinds of its parts."""
    parts = stored.get("samplers", ()) if stored.get("kind") == SamplerMixture.__name__ else ()
    return [stored.get("kind"), *(part.get("kind") for part in parts)]
