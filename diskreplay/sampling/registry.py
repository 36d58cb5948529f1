"""The package's own samplers by their names.

A store keeps ``to_json`` of its sampler; what this module knows by name is made from that when the store is opened. Any
other kind is given to ``open`` each time, and is asked more closely: what it draws is checked, its state is too. Which
of its arguments may differ from those that a state was made with is for its ``restore`` to say.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from diskreplay.sampling.composed import with_parts
from diskreplay.sampling.counting import Counting
from diskreplay.sampling.groups import Groups
from diskreplay.sampling.priorities import Priorities
from diskreplay.sampling.proportional import Proportional
from diskreplay.sampling.rank_based import RankBased
from diskreplay.sampling.recent import Recent
from diskreplay.sampling.sampler_mixture import SamplerMixture
from diskreplay.sampling.uniform import Uniform
from diskreplay.sampling.window import Sampler

OWN = (Uniform, Recent, Groups, Proportional, RankBased, SamplerMixture, Counting)
SAMPLERS: dict[str, Callable[..., Sampler]] = {kind.__name__: kind for kind in OWN}


def from_json(stored: Mapping[str, Any]) -> Sampler:
    """Return the sampler of a document by ``to_json``; raise KeyError, TypeError or ValueError for an unknown kind."""
    kind = SAMPLERS[stored["kind"]]
    given = {name: stored[name] for name in inspect.signature(kind).parameters if name in stored}
    if kind is SamplerMixture:
        given["samplers"] = [from_json(part) for part in given["samplers"]]
    if kind is Counting:
        given["sampler"] = from_json(given["sampler"])
    return kind(**given)


def is_own(sampler: Sampler) -> bool:
    """Tell whether a sampler, with all that it is made of, is this package's: its answers need no check."""
    return all(type(part) in OWN for part in with_parts(sampler))


def prepare(sampler: Sampler) -> None:
    """Import what a sampler of this package needs to draw; for the buffer that it is given to."""
    for part in with_parts(sampler):
        if isinstance(part, Priorities):
            part.prepare()


def kinds(stored: Mapping[str, Any]) -> list[Any]:
    """Return the kind of a document by ``to_json``, and of a sampler over others also the kinds of these."""
    parts: Iterable[Any] = ()
    if stored.get("kind") == SamplerMixture.__name__:
        parts = stored.get("samplers", ())
    elif stored.get("kind") == Counting.__name__:
        parts = (stored.get("sampler", {}),)
    return [stored.get("kind"), *(kind for part in parts for kind in kinds(part))]
