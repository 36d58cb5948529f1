"""One reader for all datasets that are named arrays: a container, and a table of what its names mean.

1. A dataset is a file, or a folder of files of one kind, in the natural order of their names.
2. It holds runs: a file, a numbered episode in one, or files that go on in each other.
3. The :class:`~diskreplay.formats.core.convention.Convention` gives each array our name. What nobody asked for was not
   read, and is listed so.
4. Every run is opened once before anything is written: its flags and lengths are checked, and its integer actions
   widen the space.
5. Then the steps are read, run by run, a few MB at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np

from diskreplay.errors import InputError
from diskreplay.formats.core.choice import AS_IT_IS, Choice
from diskreplay.formats.core.container import Container, Kind
from diskreplay.formats.core.convention import FINAL_OBS, LAYOUT, NEXT_OBS, Convention, is_column
from diskreplay.formats.core.ends import EndsUnknown
from diskreplay.formats.core.episodes import widest
from diskreplay.formats.core.flat import ArrayLike, FlatArrays, Joined, leaves_of
from diskreplay.formats.core.format import Format, Holds, Write
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.names import Names, files_below, natural, numbered
from diskreplay.formats.core.reader import reader
from diskreplay.formats.core.refusing import by_hand, listed, shapes_in
from diskreplay.formats.core.runs import steps_of
from diskreplay.formats.core.transitions import Source, Transitions
from diskreplay.formats.core.untrusted import declared_count, read_text
from diskreplay.schema.columns import ACTION, DTYPES, OBS

LAYOUT_FILE = "layout.json"
"""The file beside those of a folder in which an export left the layout."""
STRAYS = 4
"""The files of a folder that are looked at to find its format: one that is no part of it may come first."""


class Files:
    """The files of a dataset, one of which is open, as a container; the names that it is asked for count as read.

    Attributes:
        path: the dataset.
        kind: of its files.
        every: its files, in order.
        several: True if the dataset is a folder of them.
        beside: the names of files beside them.
        listed: the names in all of them, and which are read.
        container: the file that is open.
    """

    container: Container

    def __init__(self, path: pathlib.Path, kind: Kind, stack: contextlib.ExitStack) -> None:
        self.path, self.kind, self.every = path, kind, files_of(path, kind)
        self.several = self.every != [path]
        read = {part for file in self.every for part in kind.parts(file)}
        others = files_below(path) if path.is_dir() and path not in read else ()
        self.beside = {name for name in others if not {path / name, *(path / name).parents} & read}
        self.listed = Names(self.beside)
        self._opened: pathlib.Path | None = None
        self._stack = stack

    def open(self, file: pathlib.Path) -> Self:
        """Open a file, and close the one before."""
        if self._opened != file:
            self._stack.close()
            self.container, self._opened = self._stack.enter_context(self.kind.opened(file)), file
        return self

    def key(self, name: str) -> str:
        """Return the name in the whole dataset of one in the open file."""
        return f"{self._opened.name}/{name}" if self.several and self._opened else name

    def names(self) -> Iterable[str]:
        return self.container.names()

    def array(self, name: str) -> ArrayLike:
        self.listed.take(self.key(name))
        return self.container.array(name)

    def value(self, name: str) -> Any:
        self.listed.take(self.key(name))
        return self.container.value(name)


def files_of(path: pathlib.Path, kind: Kind) -> list[pathlib.Path]:
    """Return the files of a dataset in order: itself, or those of a kind in a folder.

    A file that is none, and is called as if it were one, is damaged: it is not passed over.
    """
    if not path.is_dir() or kind.recognise(path):
        return [path]
    below = sorted(path.iterdir(), key=lambda file: natural(file.name))
    endings = {file.suffix for file in below if kind.recognise(file)} - {""}
    return [file for file in below if file.suffix in endings or kind.recognise(file)]


def matches(kind: Kind, tables: Sequence[Convention], path: pathlib.Path, choice: Choice = AS_IT_IS) -> bool:
    """Tell whether a path holds a dataset of a kind that one of the tables fits, with what the caller says of it."""
    for file in files_of(path, kind)[:STRAYS] if kind.folders or kind.recognise(path) else ():
        if kind.recognise(file):
            facts = [(part, part.stat()) for part in kind.parts(file)]
            try:
                names = _names(kind, file, *((part, one.st_size, one.st_mtime_ns, one.st_ino) for part, one in facts))
                with kind.opened(file) as container:
                    if any(one.matches(file, container, choice, names) for one in tables):
                        return True
            except ModuleNotFoundError:
                return True  # the user is told what to install before it is read
    return False


@functools.lru_cache(maxsize=2 * STRAYS)
def _names(kind: Kind, file: pathlib.Path, *facts: Any) -> frozenset[str]:
    """Return the names in a file, which many formats look at before one of them reads it; ``facts`` tell it changed."""
    with kind.opened(file) as container:
        return frozenset(container.names())


def array_format(
    name: str, title: str, kind: Literal["file", "directory"], container: Kind, tables: Sequence[Convention],
    holds: Holds = Holds(), write: Write | None = None, compressions: tuple[str, ...] = ("none",), **more: Any,  # noqa: B008
) -> Format:  # fmt: skip
    """Return a format whose datasets are named arrays in a container; the first of its tables that fits is taken.

    The arguments are those of :class:`Format`; of those that are not named here ``recognise`` may be given.
    """

    @reader
    def read(path: pathlib.Path, choice: Choice) -> Iterator[Source]:
        with contextlib.ExitStack() as stack:
            yield _Dataset(Files(path, container, stack), tables, choice).source()

    recognise = more.pop("recognise", functools.partial(matches, container, tables))
    return Format(
        name, title, kind, holds, recognise, read, write, compressions, container=container, tables=tables, **more
    )


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of steps.

    Attributes:
        where: its name in errors.
        files: the files that hold it, in order.
        names: the name in a file of each name in the run.
        number: of the episode, if a file has several.
    """

    where: str
    files: Sequence[pathlib.Path]
    names: Mapping[str, str]
    number: int | None = None


class _Dataset:
    """A dataset whose runs are known."""

    def __init__(self, files: Files, conventions: Sequence[Convention], choice: Choice) -> None:
        self._files, self._where, self._choice = files, str(files.path), choice
        every: dict[pathlib.Path, list[str]] = {}
        for file in files.every:
            every[file] = list(files.open(file).names())
            files.listed.add(*map(files.key, every[file]))
        self._layout: Layout | None = None
        if files.several and (described := files.path / LAYOUT_FILE).is_file():
            files.listed.take(LAYOUT_FILE)
            self._layout = Layout.from_json(read_text(described), str(described))
        if not every and self._layout is None:
            raise InputError(f"{self._where!r} holds no {files.kind.title}")
        pairs = itertools.product(files.every[:STRAYS], conventions)
        fit = (one for file, one in pairs if one.matches(file, files.open(file), choice, set(every[file])))
        found = next(fit, conventions[-1])
        self._convention = found if choice.align is None else dataclasses.replace(found, align=choice.align)
        files.listed.shown = self._shown
        chains = found.chains(files.every) if found.chains is not None else [[file] for file in files.every]
        self._runs = [run for chain in chains for run in self._found(chain, every)]
        self._notes: dict[str, None] = {}
        self._unclear = bool(every) and all(found.unclear(file, files.open(file)) for file in files.every)

    def _shown(self, name: str) -> str:
        """Return a name with ``*`` in place of what is numbered: files, and episodes in them."""
        if name in self._files.beside:
            return numbered(name)
        own = name.partition("/")[2] if self._files.several else name
        return "*/" * self._files.several + self._convention.shown(own)

    def _found(self, chain: Sequence[pathlib.Path], every: Mapping[pathlib.Path, Sequence[str]]) -> Iterator[Run]:
        """Yield the runs in files that go on in each other, after what the files say of themselves."""
        for file in chain:
            self._convention.check(self._files.open(file), str(file))
        first = chain[0]
        opened = self._files.open(first)
        split = self._convention.split(every[first])
        outside = split.pop(None, {})
        for name in outside:
            if self._layout is None and not self._choice.map and self._convention.names.get(name) == LAYOUT:
                told = opened.value(name)
                told = told.get("layout") if isinstance(told, dict) else told
                self._layout = Layout.from_json(str(told) if isinstance(told, np.ndarray) else told, str(first))
        if self._layout is not None:
            opened.listed.take(*map(opened.key, self._convention.own))
        if not self._convention.episode:
            yield Run(str(first if len(chain) == 1 else first.parent), chain, outside)
        numbers = sorted(number for number in split if number is not None)
        if self._convention.count and self._convention.count in outside:
            count = declared_count(opened.value(self._convention.count), f"{first}: its episodes")
            numbers = [number for number in numbers if number < count]
        for number in numbers:
            yield Run(f"{first}, {self._convention.label.format(number)}", chain, split[number], number)

    def source(self) -> Source:
        """Return the steps of all runs."""
        layout, runs = self._layout, self._runs
        if not runs and layout is None:
            raise InputError(f"{self._where}: there is no episode, and nothing else says what its steps look like")
        if layout is not None:
            layout = layout.only(self._choice.columns)
        keys = self._first_keys() if runs else {}
        steps = episodes = 0
        actions = []
        described = layout
        for run in runs:
            arrays = self._opened(run, keys, described)
            part = arrays.source()
            steps, episodes = steps + part.steps, episodes + (part.episodes or 0)
            described = described or part.layout
            if layout is None:
                actions.append(arrays.action_space())
        assert described is not None
        if layout is None:
            origin = self._convention.provenance(self._files.open(runs[0].files[0]), self._where)
            described = dataclasses.replace(described, action_space=widest(actions), provenance=origin)
            described = self._convention.described(described, arrays)

        def blocks() -> Iterator[Transitions]:
            for run in runs:
                yield from self._opened(run, keys, described).source().blocks()

        return Source(
            described, steps, blocks, episodes, names=self._files.listed, notes=tuple(self._notes),
            inferred=layout is None,
        )  # fmt: skip

    def _first_keys(self) -> dict[str, str]:
        run, choice = self._runs[0], self._choice
        found = self._convention.names_of(run.names, self._layout, choice, run.where)
        choice.check_columns(leaves_of(found, OBS), list(filter(is_column, found)))
        found, chosen = {ours: theirs for ours, theirs in found.items() if self._is_wanted(ours)}, choice.columns or ()
        roots = {ours.partition("/")[0]: theirs for ours, theirs in found.items()} | found
        for root in self._convention.needed(choice):
            if root not in roots:
                raise InputError(f"{self._missing(run, root)}; {self._found_there(run)}")
        container = self._files.open(run.files[0]).container
        count = tuple(container.array(run.names[roots[ACTION]]).shape[:1])

        def fits(theirs: str) -> bool:
            try:
                array = container.array(run.names[theirs])
            except InputError:
                return False
            return tuple(array.shape[:1]) == count and 0 not in array.shape[1:] and str(array.dtype) in DTYPES

        return {
            ours: theirs for ours, theirs in found.items()
            if not (is_column(ours) and self._convention.guessed(theirs)) or ours in chosen or fits(theirs)
        }  # fmt: skip

    def _is_wanted(self, ours: str) -> bool:
        root, slash, rest = ours.partition("/")
        if root in (OBS, NEXT_OBS, FINAL_OBS):
            return self._choice.wants(OBS + slash + rest)
        return not is_column(ours) or self._choice.wants(ours)

    def _missing(self, run: Run, root: str) -> str:
        if root == OBS and self._convention.missing:
            return f"{run.where}: {self._convention.missing}"
        option = f"--ends {root[1:]}=NAME" if root.startswith("/") else f"--map {root}=NAME"
        stray = "; move the file elsewhere if it is none of the dataset" if self._files.several else ""
        return (
            f"{run.where}: the array {self._convention.spelled(root)!r} is missing ({option} says which it is{stray})"
        )

    def _found_there(self, run: Run) -> str:
        shapes, kind = list(shapes_in(self._files.open(run.files[0]), run.names.values())), self._files.kind
        return f"there are {listed(shapes) or 'none'}; {by_hand(run.files[0], kind.loads, kind.item, shapes)}"

    def _opened(self, run: Run, first: Mapping[str, str], layout: Layout | None) -> FlatArrays:
        own = self._convention.names_of(run.names, self._layout, self._choice, run.where)
        for ours, theirs in first.items():
            if ours not in own and not leaves_of(own, ours.partition("/")[0]):
                raise InputError(f"{run.where}: the array {self._spelled(theirs, run)!r} is missing")
        keys = {
            ours: theirs for ours, theirs in own.items()
            if ours in first or not (is_column(ours) or self._convention.guessed(theirs) or not self._is_wanted(ours))
        }  # fmt: skip
        part = f"/{self._convention.single}"
        if [name for name in keys if name.startswith(f"{OBS}/")] == [f"{OBS}{part}"]:
            keys = {name.removesuffix(part): theirs for name, theirs in keys.items()}
        arrays = {ours: self._array(run, theirs) for ours, theirs in keys.items()}
        arrays = self._convention.prepared(arrays, self._files.open(run.files[0]))
        keys = {name: self._spelled(keys.get(name, name), run) for name in {**arrays, **keys}}
        try:
            found, notes = steps_of(run.where, arrays, keys, self._convention, self._choice, layout, self._unclear)
        except EndsUnknown as error:
            raise InputError(f"{error}; {self._found_there(run)}") from error
        self._notes |= dict.fromkeys(notes)
        declared = run.names.get(self._convention.length) if self._convention.length else None
        if declared is not None:
            count = declared_count(self._files.open(run.files[0]).value(declared), f"{run.where}: its length")
            if count != len(found.last):
                raise InputError(
                    f"{run.where}: ragged lengths: {count:,} steps are declared, there are {len(found.last):,}"
                )
        return found

    def _spelled(self, theirs: str, run: Run) -> str:
        """Return a name in a run as its error should have it: as in the episode, or with the number in it."""
        full = self._runs[0].names.get(theirs, theirs)
        if run.number is None or full.endswith(theirs):
            return theirs
        return self._convention.shown(full).replace("*", str(run.number))

    def _array(self, run: Run, theirs: str) -> ArrayLike:
        def opened(number: int) -> ArrayLike:
            return self._files.open(run.files[number]).array(run.names[theirs])

        parts = [opened(number) for number in range(len(run.files))]
        return parts[0] if len(parts) == 1 else Joined(f"{run.where}: {theirs}", parts, opened)
