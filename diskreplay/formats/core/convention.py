"""How datasets of one layout call their arrays, end their episodes, and align actions and rewards with observations.

A :class:`Convention` is the table of one layout. :meth:`Convention.names_of` applies it to the names in a file, after
what the caller says. Our names are those of a store's columns (``obs/camera``, ``action``, ``reward``,
``terminated``), and some of arrays that become no column: ``next_obs``, ``.final_obs`` and those of
:mod:`diskreplay.formats.core.ends`.

The three ways in which arrays lie against each other:

============  ========================================================================================
``next``      entry ``t`` is a step: ``obs[t], action[t], reward[t]``, and then ``obs[t + 1]``
``previous``  entry ``t`` is what a step led to: ``obs[t - 1], action[t], reward[t], obs[t]``
``later``     ``obs[t], action[t]``, and what they led to: ``reward[t + 1], obs[t + 1]``
============  ========================================================================================
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Any, Literal

from diskreplay.errors import InputError
from diskreplay.formats.core.choice import AS_IT_IS, WHOLE, Choice, named_kind
from diskreplay.formats.core.container import Container, is_attribute
from diskreplay.formats.core.ends import CUT, DISCOUNT, DONE, TELLING
from diskreplay.formats.core.flat import FlatArrays
from diskreplay.formats.core.layout import Layout, column_name
from diskreplay.schema.columns import ACTION, OBS, REWARD, TERMINATED, TRUNCATED

NEXT_OBS, FINAL_OBS, OFFSETS, EXTRA = "next_obs", ".final_obs", ".offsets", "extra"
"""Our names of what is no column of a store: none can be called so."""
LAYOUT = "/layout"
"""Our name of the text in which an export left the layout."""
ROOTS = (OBS, ACTION, NEXT_OBS, FINAL_OBS, OFFSETS)
"""The names that may have parts: ``obs/camera``."""
TOLD = (TERMINATED, TRUNCATED, DONE, DISCOUNT, *TELLING)
"""Our names of what :func:`~diskreplay.formats.core.ends.ends_of` takes."""
SPECIAL = (*TOLD, CUT, LAYOUT)

ALIASES = {"done": DONE, "dones": DONE, "final_obs": FINAL_OBS, "offsets": OFFSETS}
"""Our names, or roots of them, as a caller may spell them."""
FLAT_NAMES = {
    "observations": OBS, "observation": OBS, "obs": OBS,
    "actions": ACTION, "action": ACTION, "act": ACTION,
    "rewards": REWARD, "reward": REWARD, "rew": REWARD,
    "next_observations": NEXT_OBS, "next_observation": NEXT_OBS, "next_obs": NEXT_OBS, "obs_next": NEXT_OBS,
    "terminals": TERMINATED, "terminal": TERMINATED, "terminations": TERMINATED, "terminated": TERMINATED,
    "timeouts": TRUNCATED, "truncations": TRUNCATED, "truncated": TRUNCATED, "dones": DONE, "done": DONE,
    "final_obs": FINAL_OBS, "last": "/last", "episode_starts": "/first", "episode_ends": "/ends",
    "episode_lengths": "/lengths", "traj_lengths": "/lengths", "step_type": "/step_type", "step_types": "/step_type",
    "infos": EXTRA, "info": EXTRA, "extra": EXTRA, "offsets": OFFSETS,
}  # fmt: skip
"""Our name of each name that flat files of many projects use, whatever container they are in.

They are those of D4RL, Gymnasium, Stable-Baselines (``episode_starts``), Tianshou (``obs``, ``act``, ``rew``, ``done``,
``obs_next``), RL Unplugged (``step_type``) and our own exports.
"""


@dataclasses.dataclass(frozen=True)
class Convention:
    """The table of a layout.

    Attributes:
        names: our name of each of theirs, or of each group of theirs (``"observations": "obs"`` also says
            ``observations/qpos``, ``"data/*": "obs"`` each array right below ``data``); :data:`EXTRA` for columns.
        separator: what stands between the parts of their names.
        marks: names that are there in this layout, which tell it from others.
        absent: names that are never there.
        tells: something in it tells where episodes end, or the caller says so.
        named: tells by a file's name, and what is in it, whether it can be of this layout.
        columns: arrays with an entry a step that have no other meaning become columns.
        episode: matches the name of an array of a numbered episode, with the groups ``episode`` and ``name``, and maybe
            ``leaf``; empty if a file is not divided.
        label: what one is called in errors.
        count: the array that says how many numbered episodes are read.
        length: the attribute of an episode that says how many steps it has.
        single: the part of the observations that stands for them all if it is the only one.
        closed: each file, or numbered episode, is an episode.
        align: how arrays lie against each other.
        unclear: tells of a file whether ``next`` and ``previous`` both fit; where they do in all, a caller has to say.
        required: our names of what a dataset must have.
        written: the name in the file of each of our names, for a layout that an export left; relative to an episode.
        missing: what to say where observations are missing.
        prepared: makes the arrays of a run ready, by our names, with its container at hand.
        own: names of what an export leaves besides, which the layout says again; any tells a dataset without episodes.
        described: returns an inferred layout with what the arrays say besides.
        provenance: returns the origin of the steps that a container tells.
        check: raises InputError for a container that says it is of another version.
        chains: returns the files of each run of steps, in order; each file is a run of its own if None.
    """

    names: Mapping[str, str]
    separator: str = "/"
    marks: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    tells: bool = False
    named: Callable[[pathlib.Path, Container], bool] = lambda path, container: True
    columns: bool = False
    episode: str = ""
    label: str = "episode {}"
    count: str = ""
    length: str = ""
    single: str = ""
    closed: bool = False
    align: Literal["next", "previous", "later"] = "next"
    unclear: Callable[[pathlib.Path, Container], bool] = lambda path, container: False
    required: tuple[str, ...] = (OBS, ACTION)
    written: Callable[[Layout], dict[str, str]] | None = None
    missing: str = ""
    prepared: Callable[[dict[str, Any], Container], dict[str, Any]] = lambda arrays, container: arrays
    own: tuple[str, ...] = ()
    described: Callable[[Layout, FlatArrays], Layout] = lambda layout, arrays: layout
    provenance: Callable[[Container, str], dict[str, Any]] = lambda container, where: {}
    check: Callable[[Container, str], None] = lambda container, where: None
    chains: Callable[[Sequence[pathlib.Path]], list[list[pathlib.Path]]] | None = None

    def split(self, names: Iterable[str]) -> dict[int | None, dict[str, str]]:
        """Return the names in each numbered episode, each with its name in the file; those of none below None."""
        found: dict[int | None, dict[str, str]] = {}
        for name in names:
            match = re.fullmatch(self.episode, name) if self.episode else None
            if match is None:
                found.setdefault(None, {})[name] = name
                continue
            parts = match.groupdict()
            own = parts["name"].removeprefix("/") + (f"/{parts['leaf']}" if parts.get("leaf") else "")
            found.setdefault(int(parts["episode"]), {})[own] = name
        return found

    def shown(self, name: str) -> str:
        """Return a name with ``*`` in place of the number of its episode."""
        match = re.fullmatch(self.episode, name) if self.episode else None
        if match is None:
            return name
        start, stop = match.span("episode")
        return f"{name[:start]}*{name[stop:]}"

    def matches(self, path: pathlib.Path, container: Container, choice: Choice, names: Set[str]) -> bool:
        """Tell whether a file of these names is of this layout, with what the caller says of them."""
        if not self.marks <= names or self.absent & names:
            return False
        split = self.split(names)
        own = split.pop(None, {})
        if self.episode:
            return bool(split or self.marks or names & {*self.own})
        found = self.names_in(own, choice)
        untold = self.tells and not (choice.tells or choice.map) and found.isdisjoint({*TOLD} - {TRUNCATED})
        described = any(self.names.get(name) == LAYOUT for name in own)
        there = described or (found >= {*self.needed(choice)} and not untold)
        return there and self.named(path, container)

    def needed(self, choice: Choice) -> list[str]:
        """Return our names of what must be there, with what the caller says."""
        return [name for name in self.required if name not in (TERMINATED, "/stops") or not choice.tells]

    def names_in(self, names: Collection[str], choice: Choice = AS_IT_IS) -> set[str]:
        """Return our names, whole and of their roots, of the arrays of a run."""
        try:
            found = self._meanings(names, self._chosen(names, choice, "")).values()
        except InputError:
            return set()
        return {*found, *(ours.partition("/")[0] for ours in found)}

    def names_of(self, names: Iterable[str], layout: Layout | None, choice: Choice, where: str) -> dict[str, str]:
        """Return the name in an episode, or file, of each of our names.

        Args:
            names: all names in the episode.
            layout: the layout that an export left, if any.
            choice: what the caller says.
            where: the name of the dataset in errors.

        Raises InputError where two arrays are the same, or what the caller names is not there.
        """
        there = list(names)
        given = self._chosen(there, choice, where)
        if layout is not None and self.written is not None and not given:
            kept = set(there)
            return {ours: theirs for ours, theirs in self.written(layout).items() if theirs in kept}
        found: dict[str, str] = {}
        for theirs, ours in self._meanings(there, given).items():
            if ours in found:
                raise InputError(
                    f"{where}: {found[ours]!r} and {theirs!r} both are its {ours.strip('/')}; say which: "
                    f"--map {ours.strip('/')}={theirs}"
                )
            found[ours] = theirs
        found.pop(LAYOUT, None)
        for ours, theirs in found.items():
            if whole := found.get(ours.rpartition("/")[0]):
                raise InputError(f"{where}: {theirs!r} is a part of {whole!r}, which is an array")
        return found

    def _chosen(self, names: Collection[str], choice: Choice, where: str) -> dict[str, str]:
        found: dict[str, str] = {}
        wanted = list(choice.map.items())
        if choice.ends not in (None, WHOLE):
            kind, name = named_kind(choice.ends or "")
            wanted.append((f"/{kind}", name))
        for ours, spelled in wanted:
            theirs = re.sub(r".*\*/|_\*", "", spelled)  # as what was not read is shown: data/demo_*/states
            below = [name for name in names if name == theirs or name.startswith(theirs + self.separator)]
            if not below:
                there = ", ".join(sorted(name for name in names if not is_attribute(name)))
                raise InputError(
                    f"{where}: there is no array {spelled!r} for {ours.strip('/')}; there are {there[:500]}"
                )
            root, slash, part = ours.partition("/")
            for name in below:
                full = ALIASES.get(root, root) + slash + part + name[len(theirs) :].replace(self.separator, "/")
                if name in found:
                    raise InputError(f"{where}: {name!r} cannot be both {found[name]} and {full}")
                found[name] = column_name(full) if is_column(full) else full
        return found

    def _meanings(self, names: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
        """Return our name of each name that has one; what the caller gave displaces what the table says."""
        taken = set(given.values())
        displaced = {ours.partition("/")[0] for ours in taken if ours.partition("/")[0] in ROOTS}
        displaced |= set(TELLING) if not taken.isdisjoint(TELLING) else set()
        found = dict(given)
        for name in names:
            ours = None if name in given else self._meaning(name)
            if ours is not None and ours not in taken and displaced.isdisjoint({ours, ours.partition("/")[0]}):
                found[name] = ours
        return found

    def _meaning(self, name: str) -> str | None:
        if is_attribute(name):
            return self.names.get(name) or None
        parts = name.split(self.separator)
        for count in range(len(parts), 0, -1):
            ours = self.names.get(self.separator.join(parts[:count]))
            if ours is not None:
                rest = list(filter(None, parts[count:]))
                if ours == EXTRA:
                    return column_name("/".join(rest) or name)
                return "/".join([ours, *rest]) if ours in ROOTS or (ours and not rest) else None
        folder, _, last = name.rpartition("/")
        each = self.names.get(f"{folder}/*" if folder else "*")
        if each is not None:
            return f"{each}/{last}"
        return column_name(name) if self.columns else None

    def guessed(self, name: str) -> bool:
        """Tell whether an array has its meaning only because it has no other."""
        return not any(name == key or name.startswith(key + self.separator) for key in self.names)

    def spelled(self, ours: str) -> str:
        """Return how the layout calls an array first of all."""
        return next((theirs for theirs, name in self.names.items() if name == ours), ours)


def is_column(ours: str) -> bool:
    """Tell whether one of our names is that of a further column."""
    return ours.partition("/")[0] not in (*ROOTS, REWARD, "") and ours not in SPECIAL
