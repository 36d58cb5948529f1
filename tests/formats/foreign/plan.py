"""What one dataset of a layout is like, and one file of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from formats.foreign.known import Known, Steps

Named = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a dataset is written.

    Attributes:
        following: whether the next observations have arrays of their own, or, in files of an episode, a final row.
        told: what tells the ends of episodes; see each layout's ``told``.
        labels: which of several families of names is used.
        steps: the limit of steps, where ``told`` is "limit".
        variant: a number for what else may differ.
        before: the episodes and the steps in the files before.
    """

    following: bool = False
    told: str = "flags"
    labels: int = 0
    steps: int = 0
    variant: int = 0
    before: tuple[int, int] = (0, 0)


@dataclasses.dataclass
class File:
    """A file, and what must come of it; the attributes are those of :class:`~formats.foreign.known.Written`.

    Attributes:
        arrays: by name; see :mod:`formats.foreign.files`.
        spots: where further arrays may lie, with the number of rows that they must have.
        counts: the arrays whose rows are steps.
    """

    arrays: Named
    episodes: list[Steps]
    extras: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    unread: set[str] = dataclasses.field(default_factory=set)
    facts: dict[tuple[int, str], tuple[str, Any]] = dataclasses.field(default_factory=dict)
    may: tuple[str, ...] = ()
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    spots: dict[str, int] = dataclasses.field(default_factory=dict)
    reward: str = ""
    action: str = ""


@dataclasses.dataclass(frozen=True)
class Layout:
    """A layout of the page of formats.

    Attributes:
        name: of the layout.
        write: the file of some episodes.
        suffix: of its files.
        folder: True if there is one file for each episode; None if a folder of files is possible.
        named: the name of a file, without the suffix, from its number and its steps; any numbered one if None.
        leaves: the names that observations may have; ``("",)`` where they have no parts.
        told: what may tell the ends.
        untold: what leaves them open, so that the dataset must be refused.
        following: whether next observations may differ from the next rows.
        actions, observations: the dtypes that it can hold.
        open_end: whether the last episode of a file may go on.
        extras: names of further arrays.
        least: the fewest steps of an episode.
        known: what the writer makes of an episode, such as other dtypes.
    """

    name: str
    write: Callable[[Sequence[Known], Plan], File]
    suffix: str = ".hdf5"
    folder: bool | None = None
    named: Callable[[int, Known], str] | None = None
    leaves: tuple[tuple[str, ...], ...] = (("",), ("q", "cam"))
    told: tuple[str, ...] = ("flags",)
    untold: tuple[str, ...] = ()
    following: bool = False
    actions: str = "fiIkn"
    observations: str = "fdu"
    open_end: bool = False
    extras: tuple[str, ...] = ("x", "deep/y")
    least: int = 1
    known: Callable[[Known], Known] = lambda episode: episode


def joined(known: Sequence[Known], part: Callable[[Known], np.ndarray]) -> np.ndarray:
    """One array of all episodes, one behind another."""
    return np.concatenate([part(episode) for episode in known])


def placed(root: str, leaves: Mapping[str, np.ndarray]) -> Named:
    """Leaves below a name, or the single one at it."""
    return {f"{root}/{leaf}" if leaf else root: values for leaf, values in leaves.items()}
