"""Samplers that are made of others: which they are made of, and whether one of these has priorities."""

from __future__ import annotations

from diskreplay.sampling.window import Prioritized, Sampler


class Composed(Prioritized):
    """The base of a sampler over others, which has a state of its own beside theirs."""

    @property
    def samplers(self) -> tuple[Sampler, ...]:
        """The samplers, as they were given."""
        raise NotImplementedError


def with_parts(sampler: Sampler) -> tuple[Sampler, ...]:
    """Return a sampler, followed by those that it is made of, and those that these are made of."""
    parts = sampler.samplers if isinstance(sampler, Composed) else ()
    return (sampler, *(each for part in parts for each in with_parts(part)))


def has_priorities(sampler: Sampler) -> bool:
    """Tell whether a sampler can be told priorities: one over others has a state, but they may have none of these."""
    if isinstance(sampler, Composed):
        return any(map(has_priorities, sampler.samplers))
    return isinstance(sampler, Prioritized)
