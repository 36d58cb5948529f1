"""The package's own samplers by their names.

A store keeps ``to_json`` of its sampler; what this module knows by name is made from that when the store is opened. Any
other kind is given to ``open`` each time, and is asked more closely: what it draws is checked, its state is too. Which
of its arguments may differ from those that a state was made with is for its ``restore`` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from diskreplay.sampling import proportional, rank_based, recent, sampler_mixture, uniform
from diskreplay.sampling.priorities import Priorities
from diskreplay.sampling.window import Sampler

SAMPLERS: dict[str, Callable[[dict[str, Any]], Sampler]] = {
    "Uniform": uniform.from_json,
    "Recent": recent.from_json,
    "Proportional": proportional.from_json,
    "RankBased": rank_based.from_json,
    "SamplerMixture": lambda stored: sampler_mixture.from_json(stored, from_json),
}
OWN = (uniform.Uniform, recent.Recent, proportional.Proportional, rank_based.RankBased)


def from_json(stored: Mapping[str, Any]) -> Sampler:
    """Return the sampler of a document by ``to_json``; raise KeyError, TypeError or ValueError for an unknown kind."""
    return SAMPLERS[stored["kind"]](dict(stored))


def is_own(sampler: object) -> bool:
    """Tell whether a sampler, with all parts of a mixture, is this package's: its answers need no check."""
    if type(sampler) is sampler_mixture.SamplerMixture:
        return all(type(part) in OWN for part in sampler.samplers)
    return type(sampler) in OWN


def prepare(sampler: Sampler) -> None:
    """Import what a sampler of this package needs to draw; for the buffer that it is given to."""
    for part in (sampler, *sampler.samplers) if isinstance(sampler, sampler_mixture.SamplerMixture) else (sampler,):
        if isinstance(part, Priorities):
            part.prepare()


def kinds(stored: Mapping[str, Any]) -> list[Any]:
    """Return the kind of a document by ``to_json``, and of a mixture also the kinds of its parts."""
    parts = stored.get("samplers", ()) if stored.get("kind") == "SamplerMixture" else ()
    return [stored.get("kind"), *(part.get("kind") for part in parts)]
