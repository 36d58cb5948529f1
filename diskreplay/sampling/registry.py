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
    """The sampler of a document by ``to_json``; KeyError, TypeError or ValueError where its kind is not known here."""
    return SAMPLERS[stored["kind"]](dict(stored))


def is_own(sampler: object) -> bool:
    """Whether it is one of this package's, whose answers need no check; of a mixture, whether all in it are."""
    if type(sampler) is sampler_mixture.SamplerMixture:
        return all(type(part) in OWN for part in sampler.samplers)
    return type(sampler) in OWN


def prepare(sampler: Sampler) -> None:
    """Import what a sampler of this package needs to draw; for the buffer that it is given to."""
    for part in (sampler, *sampler.samplers) if isinstance(sampler, sampler_mixture.SamplerMixture) else (sampler,):
        if isinstance(part, Priorities):
            part.prepare()


def kinds(stored: Mapping[str, Any]) -> list[Any]:
    """The kind of a document by ``to_json``; of a mixture, also those of what it is made of."""
    parts = stored.get("samplers", ()) if stored.get("kind") == "SamplerMixture" else ()
    return [stored.get("kind"), *(part.get("kind") for part in parts)]
