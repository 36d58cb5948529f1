"""Draws of whole groups of episodes that share a fact, such as several answers to one prompt.

1. The episodes that a flag ended and that have one value of the fact are a group. It is ready when it has
   ``group_size`` episodes, all of them in the windows from their first step on. An episode that still goes on, or was
   cut off without a flag, is of no group: one whose writer ended may stay so for ever, and another takes its place.
2. An episode that left the window, even in part, keeps its group from being ready, so that none is ever drawn in part.
   That holds as long as no later episode is given the value of an older group.
3. A batch has different groups, each with the same probability. They stand in it one after another; within one its
   episodes come by stream, first row and environment, and within these their items by row.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import check_count
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.index.log import NOW
from diskreplay.sampling.fresh import check_by, fresh
from diskreplay.sampling.ranges import Ranges
from diskreplay.sampling.window import Standings, Windows, windows_with_facts
from diskreplay.schema.ids import Ids, checked_ids, pack

NAMES = (str, int, float, bool)
"""The types of values that can name a group."""


@dataclasses.dataclass(frozen=True)
class Groups:
    """A sampler of whole groups of episodes, whose batch size counts groups, as GRPO wants (Shao et al. 2024).

    ``sample(k)`` gives the items of ``k`` different groups, each drawn with the same probability: all transitions of
    their episodes, or with :class:`PaddedEpisodes` the ``k * group_size`` episodes, those of a group side by side. The
    importance weights are all one.

    Args:
        by: the name of a fact of :meth:`ReplayBuffer.begin_episode`, a text, number or flag: give each group a value
            of its own, such as the prompt with the number of the pass over the prompts.
        group_size: episodes of a group.
        version, within: draw only groups of which each episode has a number as its fact ``version`` that is at most
            ``within`` below the largest one, as ``by`` and ``within`` of :class:`Recent`.

    Raises InputError where an argument is none of that. A draw raises it where no episode has the fact, or more than
    ``group_size`` have one value, and NotEnoughDataError where fewer groups are ready.

    >>> import diskreplay as dr
    >>> dr.Groups(by="prompt", group_size=8)
    Groups(by='prompt', group_size=8, version=None, within=None)
    """

    by: str
    group_size: int
    version: str | None = None
    within: float | None = None

    def __post_init__(self) -> None:
        check_by("by", self.by)
        object.__setattr__(self, "group_size", check_count("group_size", self.group_size))
        if (self.version is None) != (self.within is None):
            raise InputError("Groups takes version and within together, as in version='version', within=2")
        if self.version is not None:
            object.__setattr__(self, "within", check_by("version", self.version, self.within))

    def sample(
        self, rng: np.random.Generator, windows: Windows, standing: Standings, size: int
    ) -> tuple[Ids, NDArray[np.float32]]:
        """Draw ``size`` different groups, and return the ids of all their items, int64, and weights of one, float32.

        Raises NotEnoughDataError where fewer are ready; the state of ``rng`` is then as it was, so that what is drawn
        later does not depend on how often a program asked before.
        """
        ready, before = self._ready(windows), rng.bit_generator.state
        order, found, need = rng.permutation(ready.shape[1]), [np.empty(0, np.int64)], size
        while need and len(order):
            items = self._items(ready[:, order[:need]], standing)
            order, found, need = order[need:], found + items, need - len(items)
        if need:
            rng.bit_generator.state = before
            raise NotEnoughDataError(
                f"sample({size}): {size - need} groups can be drawn: those whose {self.group_size} episodes are all "
                "finished, whole and, if there are bounds, new enough and not used up; add more, or ask for fewer"
            )
        ids = np.concatenate(found)
        return ids, np.ones(len(ids), np.float32)

    def probability(self, ids: Any, windows: Windows, standing: Standings) -> NDArray[np.float64]:
        """Return the probability of ids ``(B,)`` in a draw of one group, float64, 0 for what cannot be drawn."""
        groups = self._items(self._ready(windows), standing)
        every = np.concatenate([np.empty(0, np.int64), *groups])
        return np.isin(checked_ids(ids), every) / max(1, len(groups))

    def to_json(self) -> dict[str, Any]:
        return {"kind": "Groups", **dataclasses.asdict(self)}

    def _ready(self, windows: Windows) -> Ids:
        """Return the groups that are ready, by their first episodes, int64 ``(3, groups, group_size)``.

        The first is each episode's first id, the second their distance, the third how many there are.
        """
        if not any(window.stop > window.first for window in windows):
            raise NotEnoughDataError("the window is empty; add some steps")
        told = windows_with_facts(windows, self)
        seen: dict[tuple[bool, Any], int] = {}
        parts = []
        for episodes in told.episodes:
            table, values = episodes.table(), episodes.values(self.by).values.tolist()
            keys = ((type(value) is bool, value) if type(value) in NAMES else None for value in values)
            label = np.array([-1 if key is None else seen.setdefault(key, len(seen)) for key in keys], np.int64)
            first = pack(table.stream, table.start, table.env, table.num_envs)
            stride = np.full(len(table), table.num_envs)
            part = label, table.complete_start, first, stride, table.stop - table.start
            counted = (label >= 0) & (table.terminated | table.truncated)
            parts.append([column[counted] for column in part])
        label, whole, first, stride, length = map(np.concatenate, zip(*parts, strict=True))
        if not seen:
            raise told.unknown(self.by, "a text, number or flag", self)
        counts = np.bincount(label, minlength=len(seen))
        if counts.max() > self.group_size:
            value = list(seen)[int(counts.argmax())][1]
            raise InputError(
                f"{self}: {counts.max()} episodes have {value!r:.100} as their fact {self.by!r}, and a group has "
                f"{self.group_size}; give each group a value of its own, such as the prompt and the number of the pass"
            )
        if self.version is not None and self.within is not None:
            held = [window for window in windows if window.stop > window.first]
            whole &= np.isin(first, fresh(windows, held, self.version, self.within, self).first)
        ready = np.bincount(label[whole], minlength=len(counts)) == self.group_size
        kept = np.flatnonzero(ready[label])
        _, at = np.unique(label[kept], return_index=True)
        order = np.argsort(label[kept], kind="stable").reshape(-1, self.group_size)
        return np.stack([first, stride, length])[:, kept[order[np.argsort(at)]]]

    def _items(self, groups: Ids, standing: Standings) -> list[Ids]:
        """Return the ids of the items of each of some groups, without the groups of which an episode has none."""
        if not groups.size:
            return []
        ranges = Ranges(*groups.reshape(3, -1))
        ids = ranges.at(np.arange(ranges.count))
        now = standing(ids) == NOW
        ends = np.cumsum(ranges.length)
        there = np.add.reduceat(now, ends - ranges.length, dtype=np.int64).reshape(-1, self.group_size) > 0
        every: NDArray[np.bool_] = np.logical_and.reduce(there, axis=1)
        cuts = ends[self.group_size - 1 :: self.group_size][:-1]
        parts = zip(np.split(ids, cuts), np.split(now, cuts), every.tolist(), strict=True)
        return [part[good] for part, good, whole in parts if whole]
