"""Datasets with known episodes: what a file of others says, what must come in, and what must be named as not read.

A store is read through ``ReplayBuffer.get`` and ``episodes`` alone; nothing here knows the readers of formats.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import diskreplay as dr
from diskreplay.ops.convert import Imported, import_dataset

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Known:
    """An episode as a user knows it.

    Attributes:
        obs: ``(n + 1, *shape)`` by leaf, the final one included; an observation without parts has the leaf ``""``.
        action: ``(n, *shape)``.
        reward: ``(n,)``.
        terminated, truncated: of the last step.
        extra: ``(n, *shape)`` by name.
        next_obs: ``(n, *shape)`` by leaf, where they differ from the next rows' observations.
    """

    obs: Mapping[str, Array]
    action: Array
    reward: Array
    terminated: bool = False
    truncated: bool = False
    extra: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    next_obs: Mapping[str, Array] | None = None

    def __len__(self) -> int:
        return len(self.reward)

    def rows(self, count: int) -> dict[str, Array]:
        """The first observations."""
        return {leaf: values[:count] for leaf, values in self.obs.items()}

    def following(self) -> dict[str, Array]:
        """The next observation of each step."""
        return dict(self.next_obs or {leaf: values[1:] for leaf, values in self.obs.items()})


@dataclasses.dataclass(frozen=True)
class Steps:
    """Transitions of an episode that must come in.

    Attributes:
        obs, next_obs: ``(m, *shape)`` by leaf.
        action, reward: ``(m, ...)``; ``(m,)``, None if zeros.
        terminated, truncated: of the last step.
        own: the last next observation is in no file: it is not compared.
        extra: by name, the rows ``(m, ...)``; each of several where more than one alignment is right.
    """

    obs: Mapping[str, Array]
    next_obs: Mapping[str, Array]
    action: Array
    reward: Array | None
    terminated: bool
    truncated: bool
    own: bool = False
    extra: Mapping[str, Sequence[Array]] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.action)


@dataclasses.dataclass(frozen=True)
class Written:
    """A dataset on disk, and what must come of it.

    Attributes:
        path: the file or directory.
        episodes: what must come in, episode by episode; those without steps are left out.
        extras: files' full names by the name in :attr:`Steps.extra`: each is in the store, or named as not read.
        unread: full names that cannot be in the store, so that they must be named.
        facts: full names of attributes by ``(episode, key)``, with values: facts of episodes, or named.
        gone: full names of what belongs to episodes of which nothing comes in: a reader may name them.
        may: patterns of names that a reader may use, or name.
        actions: all actions of the files; where they are single integers, their range may be the space's.
        options: of the import.
    """

    path: pathlib.Path
    episodes: Sequence[Steps]
    extras: Mapping[str, set[str]] = dataclasses.field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    facts: Mapping[tuple[int, str], tuple[str, Any]] = dataclasses.field(default_factory=dict)
    gone: frozenset[str] = frozenset()
    may: tuple[str, ...] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    actions: Sequence[Array] = ()


def steps(
    known: Known, *, final: bool, terminated: bool, truncated: bool, extra: Mapping[str, Sequence[Array]] | None = None,
    reward: bool = True,
) -> Steps:  # fmt: skip
    """The transitions of an episode; ``final`` tells whether the file has its last next observation.

    Without one, the last step of an episode that was not terminated is left out.
    """
    count = len(known) if final or terminated else len(known) - 1
    extra = {name: [values] for name, values in known.extra.items()} if extra is None else extra
    return Steps(
        known.rows(count), {leaf: values[:count] for leaf, values in known.following().items()},
        known.action[:count], known.reward[:count] if reward else None, terminated, truncated, not final and terminated,
        {name: [values[:count] for values in each] for name, each in extra.items()},
    )  # fmt: skip


def check(written: Written, target: pathlib.Path) -> Imported:
    """Import a dataset, and compare the store with it, value for value."""
    result = import_dataset(written.path, target, **written.options)
    with dr.ReplayBuffer.open(target, mode="r", view=dr.Transition()) as buffer:
        episodes = sorted(buffer.episodes, key=lambda episode: (episode.stream, episode.start))
        found = [buffer.get(np.arange(each.start, each.stop)) for each in episodes]
        facts = [dict(each.facts or {}) for each in episodes]
        action_space = buffer.schema.action_space
    wanted = [each for each in written.episodes if len(each)]
    assert [len(batch.reward) for batch in found] == [len(each) for each in wanted], "lengths of episodes"
    assert (result.episodes, result.transitions) == (len(wanted), sum(map(len, wanted))), "what is said of them"
    for number, (batch, each) in enumerate(zip(found, wanted, strict=True)):
        check_episode(batch, each, f"episode {number}")
    check_actions(action_space, [each.action for each in wanted], written.actions)
    stored = check_extras(found, wanted, written)
    told = {name for (number, key), (name, value) in written.facts.items()
            if number < len(facts) and key in facts[number] and facts[number][key] == value}  # fmt: skip
    check_named(result.ignored, written, stored, told)
    return result


def check_episode(batch: Any, wanted: Steps, where: str) -> None:
    """The steps of an episode are what they must be."""
    count = len(wanted)
    same(leaves(batch.obs), dict(wanted.obs), f"{where}, obs")
    until = count - wanted.own
    same(
        {leaf: values[:until] for leaf, values in leaves(batch.next_obs).items()},
        {leaf: values[:until] for leaf, values in wanted.next_obs.items()}, f"{where}, next_obs",
    )  # fmt: skip
    equal(batch.action, as_actions(wanted.action), f"{where}, action", wanted.action.dtype.kind == "f")
    reward = np.zeros(count, np.float32) if wanted.reward is None else wanted.reward
    equal(np.asarray(batch.reward, np.float64), np.asarray(reward, np.float64), f"{where}, reward")
    last = np.arange(count) == count - 1
    equal(batch.terminated, last & wanted.terminated, f"{where}, terminated")
    equal(batch.truncated, last & wanted.truncated, f"{where}, truncated")


def as_actions(action: Array) -> Array:
    """Integers ``(n, 1)`` are single ones."""
    return action[:, 0] if action.dtype.kind in "iu" and action.shape[1:] == (1,) else action


def check_actions(space: Any, taken: Sequence[Array], given: Sequence[Array]) -> None:
    """Single integers are Discrete, from 0 or the least to the greatest; several are a MultiDiscrete, or a Box.

    The range is that of all actions in the files, or of those that came in.
    """
    every = [as_actions(np.concatenate(each)) for each in (taken, given or taken)]
    kind, values = type(space).__name__, every[0]
    if values.dtype.kind not in "iu":
        assert kind == "Box", space
    elif values.ndim == 1:
        assert kind == "Discrete", space
        ranges = [(min(0, int(each.min())), int(each.max())) for each in every]
        assert (space.start, space.start + space.n - 1) in ranges, f"{space} for {ranges}"
    elif min(each.min() for each in every) >= 0:
        assert kind == "MultiDiscrete", space
    elif values.min() < 0:
        assert kind == "Box", space
        assert (space.low > np.iinfo(values.dtype).min).all(), space


def check_extras(found: Sequence[Any], wanted: Sequence[Steps], written: Written) -> set[str]:
    """Those of a file's further arrays that are in the store have its values; return their names."""
    stored: set[str] = set()
    for name in written.extras:
        key = stored_as(name, found[0])
        if key is None:
            continue
        stored.add(name)
        for number, (batch, each) in enumerate(zip(found, wanted, strict=True)):
            values = columns(batch)[key]
            choices = each.extra[name]
            assert any(alike(values, choice) for choice in choices), f"episode {number}, {name}: {values} {choices}"
    return stored


def stored_as(name: str, batch: Any) -> str | None:
    """The column, or the leaf of observations, that holds a file's array; either may have groups in front."""
    parts = name.split("/")
    candidates = [".".join(parts[start:]) for start in range(len(parts))]
    wanted = {*candidates, *(f"info_{each}" for each in candidates)}
    dotted = {key: key.replace("/", ".") for key in columns(batch)}
    return next((key for key, each in dotted.items() if each in wanted or each.endswith(f".{candidates[0]}")), None)


def columns(batch: Any) -> dict[str, Array]:
    """All columns, and leaves of observations."""
    return {**leaves(batch.obs), **(batch.extra or {})}


def check_named(ignored: Sequence[str], written: Written, stored: set[str], told: set[str]) -> None:
    """What is not in the store is named, with its count, and nothing else is."""
    missing = set(written.unread)
    missing |= {full for name, each in written.extras.items() if name not in stored for full in each}
    missing |= {name for name, _ in written.facts.values() if name not in told}
    patterns = [pattern_of(entry) for entry in ignored]
    for name in sorted(missing):
        assert any(pattern.fullmatch(name) for pattern, _ in patterns), f"{name} is not named: {ignored}"
    free = [re.compile(each) for each in written.may]
    for entry, (pattern, count) in zip(ignored, patterns, strict=True):
        matched, more = (sum(bool(pattern.fullmatch(name)) for name in names) for names in (missing, written.gone))
        if any(each.fullmatch(entry.rpartition(" (")[0] if count is not None else entry) for each in free):
            continue
        assert matched + more, f"{entry} is named, but it was read, or is not there"
        assert count is None or matched <= count <= matched + more, f"{entry} is named with a wrong count: {matched}"


def pattern_of(entry: str) -> tuple[re.Pattern[str], int | None]:
    """An entry of ``Imported.ignored``: what it matches, and how many it says there are."""
    counted = re.fullmatch(r"(.*\*.*) \(([\d,]+)\)", entry)
    name, count = (counted[1], int(counted[2].replace(",", ""))) if counted else (entry, None)
    return re.compile(re.escape(name).replace(r"\*", ".+")), count


def leaves(value: Any, name: str = "") -> dict[str, Array]:
    """Nested observations by leaf."""
    if not isinstance(value, (Mapping, tuple)):
        return {name: value}
    parts = value.items() if isinstance(value, Mapping) else enumerate(value)
    named = {f"{name}/{key}" if name else str(key): part for key, part in parts}
    return {leaf: each for key, part in named.items() for leaf, each in leaves(part, key).items()}


def same(found: dict[str, Array], wanted: dict[str, Array], what: str) -> None:
    """The wanted leaves are among those found, by name; a single one by whatever name."""
    found = {leaf.replace(".", "/"): values for leaf, values in found.items()}
    if len(wanted) == 1 and len(found) == 1:
        found = dict(zip(wanted, found.values(), strict=True))
    elif "" in wanted and "obs" in found:  # beside further arrays that are observations, too
        found[""] = found["obs"]
    assert wanted.keys() <= found.keys(), f"{what}: {sorted(found)} for {sorted(wanted)}"
    for leaf, values in wanted.items():
        equal(found[leaf], values, f"{what} {leaf}")


def equal(found: Array, wanted: Array, what: str, dtypes: bool = True) -> None:
    np.testing.assert_array_equal(found, wanted, what)
    assert not dtypes or found.dtype == wanted.dtype.newbyteorder("="), f"{what}: {found.dtype} for {wanted.dtype}"


def alike(found: Array, wanted: Array) -> bool:
    return found.shape == wanted.shape and bool((found == wanted).all())
