"""What a caller says about a dataset that the dataset does not say itself, and which part of it is wanted."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Literal

from diskreplay.checks import check_count
from diskreplay.errors import InputError

Align = Literal["next", "previous"]
KINDS = ("last", "first", "stops", "lengths", "episode", "step_type")
"""The kinds of arrays that tell where episodes end; see :mod:`diskreplay.formats.core.ends`."""
WHOLE = "whole"
"""What a caller says of arrays that are one episode."""


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

    def __post_init__(self) -> None:
        if self.align not in (None, "next", "previous"):
            raise InputError(f"align must be 'next' or 'previous', got {self.align!r}")
        if self.max_episode_steps is not None:
            check_count("max_episode_steps", self.max_episode_steps)
        if self.ends is not None and self.ends != WHOLE:
            named_kind(self.ends)
        if self.columns is not None and not self.columns:
            raise InputError("columns must name an observation; give none to read all")

    @property
    def tells(self) -> bool:
        """True if the caller says where episodes end."""
        return self.ends is not None or self.max_episode_steps is not None

    def wants(self, name: str) -> bool:
        """Tell whether an observation or column, by our name, is to be read."""
        return self.columns is None or any(name == one or name.startswith(f"{one}/") for one in self.columns)

    def check_columns(self, obs: Collection[str], columns: Collection[str]) -> None:
        """Raise InputError for a name that is none of these observations and columns, or if no observation is left."""
        known = [*obs, *columns]
        for name in self.columns or ():
            if not any(leaf == name or leaf.startswith(f"{name}/") for leaf in known):
                raise InputError(f"there is no column {name!r} to choose; there are {', '.join(known)}")
        if self.columns is not None and not any(map(self.wants, obs)):
            raise InputError(f"no observation is left; name one of {', '.join(obs)}, or obs for all of them")


AS_IT_IS = Choice()


def named_kind(ends: str) -> tuple[str, str]:
    """Return kind and array of a caller's ``KIND=NAME``; raise InputError for anything else."""
    kind, equals, name = ends.partition("=")
    if not equals or kind not in KINDS or not name:
        raise InputError(f"ends must be {WHOLE!r}, or KIND=NAME with a KIND of {', '.join(KINDS)}; got {ends!r}")
    return kind, name
