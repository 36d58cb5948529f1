"""What a caller says about a dataset that the dataset does not say itself, and which part of it is wanted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Literal

from diskreplay.errors import InputError

Align = Literal["next", "previous"]


@dataclasses.dataclass(frozen=True)
class Choice:
    """The choice of a caller for one import.

    Attributes:
        map: the array, as the file spells it, for some of our names: ``{"obs/joints": "observations/qpos"}``.
        columns: our names of the observations and columns that are read; all if None. Nothing else is looked at.
        ends: what tells the ends of episodes: ``"KIND=NAME"`` (see :mod:`diskreplay.formats.core.ends`) or ``"whole"``.
        align: where an entry's action and reward led: to the ``"next"`` observation, or from the ``"previous"`` one.
        max_episode_steps: the steps after which an environment's time limit ended an episode that has no flag.
        allow_loss: leave out episodes with a reward that is not finite.
        decoded: videos become ordinary columns of frames.
    """

    map: Mapping[str, str] = dataclasses.field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    ends: str | None = None
    align: Align | None = None
    max_episode_steps: int | None = None
    allow_loss: bool = False
    decoded: bool = False

    def wants(self, name: str) -> bool:
        """Tell whether an observation or column, by our name, is to be read."""
        return self.columns is None or any(name == one or name.startswith(f"{one}/") for one in self.columns)

    def check(self, names: Iterable[str]) -> None:
        """Raise InputError if one of ``columns`` is none of these, the observations and columns that can be read."""
        known = [*names]
        for one in self.columns or ():
            if not any(name == one or name.startswith(f"{one}/") for name in known):
                raise InputError(f"there is no column {one!r} to choose; there are {', '.join(known)}")


AS_IT_IS = Choice()
