"""Random datasets of others: each import is equal value for value, or refused where nothing else is right.

``python -m formats.foreign.cases SEED`` in ``tests`` says what the case of a seed is, and runs it.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from formats.foreign import episodes, files, flat
from formats.foreign.known import Known, Written, check
from formats.foreign.plan import File, Layout, Named, Plan

from diskreplay.errors import InputError

Rng = np.random.Generator

LAYOUTS = (*flat.LAYOUTS, *episodes.LAYOUTS)
TAKEN, REFUSED, EITHER = "taken", "refused", "taken or refused"

STYLES: tuple[Callable[[int], str], ...] = (
    "ep_{}".format, "{}".format, "run-{:04d}".format, "ep{}_success".format, "traj{}.part".format,
    lambda number: f"ep_{number}_{('failure', 'success')[number % 2]}",
)  # fmt: skip
"""Names of files whose order is that of their numbers, which ends in digits or not."""
FIRST = 98
"""The number of the first file: in the order of letters it does not come first."""
BESIDE = ("README.md", "notes.txt", "norm_stats.pkl", "meta_info.json")
"""Files that lie beside a dataset's own."""

BAD = {".npz": ("object", "compound", "long", "single"), ".zarr": ("long",), ".zarr.zip": ("long",), ".parquet": ()}
"""Arrays that cannot be columns, by the files that can hold them; HDF5 has those of NPZ but for objects."""
DAMAGE = ("action longer", "rewards of NaN", "half flags", "no action", "cut")


@dataclasses.dataclass(frozen=True)
class Case:
    """A dataset to be written.

    Attributes:
        layout: of it.
        known: its episodes.
        plan: how they are written.
        parts: the numbers of episodes in each file; None for a single file.
        style: of the names of several files.
        beside: further files.
        bad: an array that cannot be a column; "later" for one that is only in a later file or group.
        chosen: whether the observations alone are asked for.
        damage: what is wrong in one file.
        outcome: what an import may do.
    """

    layout: Layout
    known: tuple[Known, ...]
    plan: Plan
    parts: tuple[int, ...] | None
    style: int
    beside: tuple[str, ...]
    bad: str
    chosen: bool
    damage: str
    outcome: str

    def __str__(self) -> str:
        lengths = "".join(
            f" {len(each)}{'T' * each.terminated}{'C' * each.truncated}" for each in self.known
        )  # fmt: skip
        first = self.known[0]
        arrays = ", ".join(f"{leaf or 'obs'} {a.dtype} {a.shape[1:]}" for leaf, a in first.obs.items())
        return (
            f"{self.layout.name}, must be {self.outcome}: episodes{lengths}; {arrays}; action {first.action.dtype} "
            f"{first.action.shape[1:]}; extra {list(first.extra)}; next_obs {first.next_obs is not None}; {self.plan}; "
            f"files {self.parts}, style {self.style}, beside {self.beside}; bad {self.bad!r}, chosen {self.chosen}, "
            f"damage {self.damage!r}"
        )

    def write(self, folder: pathlib.Path) -> Written:
        """Write the dataset below a folder."""
        named = self._files()
        several = self.parts is not None
        path = folder / ("set" if several else f"set{self.layout.suffix}")
        if several:
            path.mkdir()
        if self.damage:
            _damage(self.damage, next(iter(named.values())))
        for name, file in named.items():
            files.write(path / f"{name}{self.layout.suffix}" if several else path, file.arrays)
        if self.damage == "cut":
            first = path / f"{next(iter(named))}{self.layout.suffix}" if several else path
            first.write_bytes(first.read_bytes()[: first.stat().st_size * 6 // 10])
        for name in self.beside:
            (path / name).write_bytes(b"mine")
        return self._written(path, named)

    def _files(self) -> dict[str, File]:
        """The files by name, in the order of their episodes."""
        layout = self.layout
        if layout.name == "dreamer-3":
            found: dict[str, File] = layout.write(self.known, self.plan)  # type: ignore[assignment]
            _spoil(self.bad, list(found.values()))
            return found
        named: dict[str, File] = {}
        start = 0
        for number, count in enumerate(self.parts or (len(self.known),)):
            part = self.known[start : start + count]
            plan = dataclasses.replace(self.plan, before=(start, sum(map(len, self.known[:start]))))
            start += count
            style = STYLES[self.style](FIRST + number)
            named[layout.named(number, part[0]) if layout.named else style] = layout.write(part, plan)
        _spoil(self.bad, list(named.values()))
        return named

    def _written(self, path: pathlib.Path, named: dict[str, File]) -> Written:
        several = self.parts is not None
        extras: dict[str, set[str]] = {}
        unread, wanted, gone, may = set(self.beside), [], set(), []
        facts: dict[tuple[int, str], tuple[str, Any]] = {}
        options: dict[str, Any] = {"columns": self.columns()} if self.chosen else {}
        for name, file in named.items():
            # Rows of several tables are one table: its columns have no file.
            before = f"{name}{self.layout.suffix}/" if several and self.layout.suffix != ".parquet" else ""
            for key, full in file.extras.items():
                extras.setdefault(key, set()).update(before + each for each in full)
            unread |= {before + each for each in file.unread}
            at = sum(len(each) > 0 for each in wanted) + np.cumsum([0, *(len(each) > 0 for each in file.episodes)])
            for (number, key), (full, value) in file.facts.items():
                if len(file.episodes[number]):
                    facts[int(at[number]), key] = (before + full, value)
                else:
                    gone.add(before + full)
            wanted += file.episodes
            may += [f"(.+/)?{each}" for each in file.may]
            options |= file.options
        actions = [each.action for each in self.known]
        return Written(path, wanted, extras, frozenset(unread), facts, frozenset(gone), tuple(may), options, actions)

    def columns(self) -> tuple[str, ...]:
        """Our names of the observations."""
        if self.layout.name.startswith("diffusion-policy"):  # where each further array is an observation, too
            return tuple(f"obs/{leaf}" for leaf in self.known[0].obs)
        return ("obs",)


def _spoil(bad: str, named: Sequence[File]) -> None:
    """Add an array that cannot be a column to the first file, or one to the last group or file alone."""
    if not bad:
        return
    file = named[-1] if bad == "later" else named[0]
    if not file.spots:
        return
    spot = list(file.spots)[-1 if bad == "later" else 0]
    name, rows = spot.format(bad), file.spots[spot]
    file.arrays[name] = {
        "object": lambda: np.array([{"a": 1}] * rows, object), "long": lambda: np.zeros((rows + 3, 2), np.float32),
        "compound": lambda: np.zeros(rows, [("a", "f4"), ("b", "i4")]), "single": lambda: np.float64(3),
        "later": lambda: np.ones((rows, 2), np.float32),
    }[bad]()  # fmt: skip
    file.unread.add(name)


def _damage(damage: str, file: File) -> None:
    arrays = file.arrays
    if damage == "action longer":
        arrays[file.action] = np.append(arrays[file.action], arrays[file.action][:1].repeat(2, axis=0), axis=0)
    elif damage == "rewards of NaN":
        arrays[file.reward] = np.full_like(arrays[file.reward], np.nan)
    elif damage == "no action":
        del arrays[file.action]
    elif damage == "half flags":
        name = flags_of(arrays)[0]
        arrays[name] = np.full(arrays[name].shape, 0.5)


def flags_of(arrays: Named) -> list[str]:
    """The names of flags that must be 0 or 1."""
    kinds = ("terminated", "terminals", "terminations", "dones", "is_terminal", "next.terminated")
    return [name for name in arrays if name.rpartition("/")[2] in kinds]


# Which case a seed has


def case_of(seed: int) -> Case:
    """The case of a seed: the layouts take turns, and of some cases in a row each kind has its share."""
    rng = np.random.default_rng(seed)
    layout = LAYOUTS[seed % len(LAYOUTS)]
    kind = seed * 0.6180339887 % 1
    outcome, chosen, bad, damage = TAKEN, False, "", ""
    told = str(rng.choice(layout.told))
    if kind < 0.12 and layout.untold:
        told, outcome = str(rng.choice(layout.untold)), REFUSED
    elif kind < 0.2:
        damage, outcome = str(rng.choice(DAMAGE)), REFUSED
    elif kind < 0.3:
        bad, outcome = str(rng.choice(bad_of(layout, rng))), EITHER
    elif kind < 0.45:
        bad, chosen = str(rng.choice(bad_of(layout, rng))), True
    elif kind < 0.55:
        bad = "later"
    plan = Plan(
        bool(layout.following and rng.random() < 0.5), told, int(rng.integers(4)), 6, int(rng.integers(210))
    )  # fmt: skip
    count = int(rng.integers(1, 6)) + (bad == "later")
    # A file of a folder of NPZ is an episode, whatever its flags say of its last step: that is told.
    parts = (
        None
        if told == "nothing" or (told == "terminated never" and layout.suffix == ".npz")
        else parts_of(layout, count, rng)
    )
    known = tuple(layout.known(each) for each in known_of(layout, plan, count, parts, rng))
    beside = tuple(map(str, rng.choice(BESIDE, rng.integers(3), replace=False))) if parts else ()
    case = Case(layout, known, plan, parts, int(rng.integers(len(STYLES))), beside, bad, chosen, damage, outcome)
    return possible(case)


def possible(case: Case) -> Case:
    """The case without what its layout cannot be made to have."""
    layout, first = case.layout, next(iter(case._files().values()))
    if case.bad == "later" and (layout.folder is False or len(first.spots) < 2) and len(case.parts or ()) < 2:
        case = dataclasses.replace(case, bad="")
    if case.bad and not first.spots:
        case = dataclasses.replace(case, bad="")
    if not case.bad and case.outcome == EITHER:
        case = dataclasses.replace(case, outcome=TAKEN)
    if case.chosen and layout.name.startswith("diffusion-policy") and "" in case.known[0].obs:
        case = dataclasses.replace(case, chosen=False, outcome=EITHER)
    again = layout.suffix == ".parquet" and len(case.parts or ()) > 1 and not case.plan.variant % 2
    if again and case.outcome == TAKEN:
        case = dataclasses.replace(case, outcome=EITHER)  # several episodes of one number
    impossible = {
        "rewards of NaN": not first.reward, "half flags": not flags_of(first.arrays),
        "action longer": layout.suffix == ".parquet", "cut": layout.suffix == ".zarr",
    }  # fmt: skip
    if impossible.get(case.damage):
        case = dataclasses.replace(case, damage="no action")
    return case


def bad_of(layout: Layout, rng: Rng) -> Sequence[str]:
    return BAD.get(layout.suffix, BAD[".npz"][1:]) or ("",)


def parts_of(layout: Layout, count: int, rng: Rng) -> tuple[int, ...] | None:
    """How many episodes each file has."""
    if layout.folder:
        return (1,) * count
    if layout.folder is False or rng.random() < 0.6:
        return None
    borders = sorted(rng.choice(np.arange(1, count), rng.integers(count), replace=False)) if count > 1 else []
    return tuple(np.diff([0, *borders, count]).tolist())


def known_of(layout: Layout, plan: Plan, count: int, parts: tuple[int, ...] | None, rng: Rng) -> list[Known]:
    """Episodes whose ends a layout can tell."""
    lengths = [max(layout.least, int(rng.integers(1, 7))) for _ in range(count)]
    lengths[0] = max(2, lengths[0])
    ends = [[(True, False), (False, True)][rng.integers(2)] for _ in range(count)]
    if plan.told in ("terminated", "terminated never"):
        ends = [(True, False)] * count
    elif plan.told == "limit":  # episodes up to the limit, then such as end before
        full = int(rng.integers(count + 1))
        ends = [(number >= full, number < full) for number in range(count)]
        lengths = [plan.steps] * full + [min(length, plan.steps - 2) for length in lengths[full:]]
    elif plan.told == "flags" and layout.open_end and rng.random() < 0.3:
        ends = [(True, True) if each[0] else each for each in ends]
    single = parts is None or layout.folder
    goes_on = plan.told == "flags" or (plan.told == "terminated" and count > 1)
    if layout.open_end and single and goes_on and rng.random() < 0.4:
        ends[-1] = (False, False)
    kind = str(rng.choice(list(layout.actions)))
    obs = str(rng.choice(list(layout.observations)))
    leaves = layout.leaves[rng.integers(len(layout.leaves))]
    reward = np.dtype(str(rng.choice(["f4", "f8"])))
    extras = [name for name in layout.extras if rng.random() < 0.5]
    differ = str(rng.choice(["equal", "close", "other"])) if plan.following else "equal"
    size = int(rng.integers(1, 4))
    found = []
    for length, (terminated, truncated) in zip(lengths, ends, strict=True):
        observed = {leaf: values_of(leaf, obs, length + 1, size, rng) for leaf in leaves}
        extra = {name: extra_of(name, length, rng) for name in extras}
        following = None if differ == "equal" else {leaf: changed(each[1:], differ) for leaf, each in observed.items()}
        found.append(
            Known(observed, action_of(kind, length, rng), rng.normal(size=length).astype(reward), terminated, truncated,
                  extra, following)
        )  # fmt: skip
    return found


def values_of(leaf: str, kind: str, count: int, size: int, rng: Rng) -> np.ndarray:
    """Observations of a leaf: images where its name, or the kind, says so."""
    if leaf in ("cam", "top", "image") or (kind == "u" and not leaf):
        return rng.integers(0, 256, (count, 3, 4, size), np.uint8)
    return rng.normal(size=(count, size)).astype(np.float64 if kind == "d" else np.float32)


def action_of(kind: str, count: int, rng: Rng) -> np.ndarray:
    """Actions: floats, single integers in two forms, vectors of integers, negative ones."""
    if kind == "f":
        return rng.normal(size=(count, 2)).astype(np.float32)
    if kind == "k":
        return rng.integers(-2 * (count % 2), 5, (count, 3))
    low = -3 if kind == "n" else 0
    values = rng.integers(low, 6, count).astype(np.int64 if kind == "i" else np.int32)
    return values[:, None] if kind == "I" else values


def extra_of(name: str, count: int, rng: Rng) -> np.ndarray:
    return rng.normal(size=(count, 2)).astype(np.float32) if len(name) % 2 else rng.integers(0, 9, count)


def changed(values: np.ndarray, how: str) -> np.ndarray:
    """Next observations that are not the next row's."""
    if values.dtype == np.uint8:
        return values ^ np.uint8(1)
    return values + values.dtype.type(1e-5 if how == "close" else 3)


# Running it


def run(seed: int, folder: pathlib.Path) -> bool:
    """Write a case below an empty folder, import it, and compare; tell whether it was taken."""
    case = case_of(seed)
    source, target = folder / "source", folder / "store" / "a.replay"
    source.mkdir()
    target.parent.mkdir()
    try:
        written = case.write(source)
        try:
            check(written, target)
        except InputError as error:
            refusal = str(error)
        else:
            refusal = ""
        assert case.outcome != (TAKEN if refusal else REFUSED), refusal or "taken"
        assert not refusal or list(target.parent.iterdir()) == [], "something is left"
        assert "\n" not in refusal
    except BaseException as error:
        error.add_note(f"seed {seed}: {case}")
        error.add_note(f"again, in tests: python -m formats.foreign.cases {seed}")
        raise
    return not refusal


if __name__ == "__main__":
    print(case_of(int(sys.argv[1])))
    with tempfile.TemporaryDirectory() as place:
        print(TAKEN if run(int(sys.argv[1]), pathlib.Path(place)) else REFUSED)
