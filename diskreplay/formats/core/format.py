"""The facts of a format, its :class:`Format`, by which the command line, the documentation and the tests go.

Where a dataset has what a format's :class:`Holds` lacks, that is a :class:`Loss`, which may be allowed, or an error:
``Holds`` says which.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from diskreplay.errors import InputError
from diskreplay.formats.core.choice import AS_IT_IS, Choice
from diskreplay.formats.core.container import Kind
from diskreplay.formats.core.convention import Convention
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.transitions import Source
from diskreplay.index.episodes import Episode
from diskreplay.schema.columns import DTYPES

TOLD = ("map", "ends", "align", "max_episode_steps")
"""The fields of :class:`~diskreplay.formats.core.choice.Choice` by which a caller says what named arrays are."""


@dataclasses.dataclass(frozen=True)
class Holds:
    """The features of a format.

    If a dataset needs one of the first seven and the format lacks it, an export names the loss. If the dataset needs
    ``nested_obs``, ``nested_action``, ``empty`` or a dtype that the format lacks, an export raises.

    Attributes:
        final_obs: the true next observation of an episode's last step. A format without it gives back episodes that
            were not terminated one step shorter, unless it has ``final_steps``.
        final_steps: without ``final_obs`` it gives back the last steps all the same, with their own observation as the
            next one.
        next_obs: the next observation of every step, where the next step's observation is another, as in a store whose
            continuity is that of flags. A format without it gives back the next step's observation.
        truncated: truncation, apart from termination.
        unfinished: an episode's end in neither flag, apart from truncation.
        columns: the user's own columns.
        provenance: the origin of the steps.
        facts: the facts of episodes: seeds, tags and others.
        layout: spaces with their bounds, and how frames are stacked; without it they are inferred.
        stacks: stacked observations just as they were given; without it single frames, stacked again when they are
            sampled.
        envs: the environment and stream that an episode comes from. A format without it keeps episodes one after
            another, environment by environment.
        nested_obs, nested_action: Dict and Tuple spaces.
        empty: a dataset without a step.
        dtypes: names of the data types that it keeps as they are.
        ragged: ragged columns, whose values are :class:`~diskreplay.schema.ragged.Lists`. Without it columns of the
            user are lost, and ragged observations and actions an error.
        video: video columns, with their packets as they are, where other ragged columns are not held.
        text: Text spaces and columns of texts, which a format may hold without other ragged values.
    """

    final_obs: bool = True
    final_steps: bool = False
    next_obs: bool = True
    truncated: bool = True
    unfinished: bool = True
    columns: bool = True
    provenance: bool = True
    facts: bool = False
    layout: bool = True
    stacks: bool = False
    envs: bool = False
    nested_obs: bool = True
    nested_action: bool = True
    empty: bool = True
    dtypes: frozenset[str] = DTYPES
    ragged: bool = False
    video: bool = False
    text: bool = False

    def odd(self, layout: Layout) -> set[str]:
        """Return the ragged columns of a layout that the format has no place for."""
        if self.ragged:
            return set()
        texts = layout.texts if self.text else set[str]()
        return layout.ragged - texts - (layout.video.keys() if self.video else set())


class Read(Protocol):
    """A function that opens a dataset as a source, and closes it."""

    def __call__(self, path: pathlib.Path, choice: Choice = ...) -> AbstractContextManager[Source]:
        """Return the dataset at a path, with what the caller says of it."""


Write = Callable[[Source, pathlib.Path, str], None]
"""A function that writes a source to a path that does not exist, with one of the format's compressions."""


@dataclasses.dataclass(frozen=True)
class Loss:
    """Something that a dataset has and a format cannot hold.

    Attributes:
        what: named in the plural, such as ``"final observations"``.
        count: the number of things that would be lost.
    """

    what: str
    count: int

    def __str__(self) -> str:
        return f"{self.what} ({self.count:,})"


@dataclasses.dataclass(frozen=True)
class Format:
    """A format that datasets come in from, go out to, or both.

    Attributes:
        name: the name by which the command line knows the format.
        title: one line about it.
        kind: "file" or "directory", which a dataset is.
        holds: the parts of a store that the format can hold.
        recognise: tells whether a path holds a dataset of this format; looks at as little as it can. Raises InputError
            only for a file that nobody can read.
        read: a generator under ``core.reader.reader`` that opens a dataset, yields a source, and closes it; it raises
            InputError for what is wrong in the dataset. ``FlatArrays`` (one entry a step) and ``episodes_source``
            (arrays for each episode) make sources. Before it uses a size that a file declares, it lets
            ``core.untrusted`` compare the size with the bytes that are there. None if datasets only go out.
        write: a function ``(source, target, compression)`` that writes a dataset to ``target``, which is renamed when
            it is whole. ``source.blocks()`` gives transitions of a few MB, episode after episode. A format that has a
            place for ``source.layout.to_json()`` keeps it there, so that ``read`` can give back spaces and frame
            stacks. ``write`` does not look for losses: ``holds`` tells them before. None if datasets only come in.
        compressions: the compressions that ``write`` knows; the first one is used if none is named.
        requires: modules that reading and writing import, beyond what this package always needs.
        extra: this package's extra that installs what the format needs.
        check: raises InputError for a layout that the format cannot hold for a reason of its own.
        losses: what it loses besides, of a layout, its episodes, and a compression.
        container, tables: of a format that is named arrays, what holds them, and what their names mean.
        videos: whether its datasets can have videos, which ``Choice.decoded`` makes ordinary columns of frames.
        tasks: whether its steps have tasks, which may be the texts of a column: ``Layout.task``.
    """

    name: str
    title: str
    kind: Literal["file", "directory"]
    holds: Holds
    recognise: Callable[[pathlib.Path], bool]
    read: Read | None = None
    write: Write | None = None
    compressions: tuple[str, ...] = ("none",)
    requires: tuple[str, ...] = ()
    extra: str = ""
    check: Callable[[Layout], None] = lambda layout: None
    losses: Callable[[Layout, Sequence[Episode], str], list[Loss]] = lambda layout, episodes, compression: []
    videos: bool = False
    container: Kind | None = None
    tables: Sequence[Convention] = ()
    tasks: bool = False


def check_installed(format: Format) -> None:
    """Raise ModuleNotFoundError, which says what to install, if a module is missing that a format needs."""
    for module in format.requires:
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(
                f"{format.name} datasets need {module}: pip install 'diskreplay[{format.extra}]'", name=module
            )


def check_choice(format: Format, choice: Choice, every: Callable[[], Iterable[Format]]) -> None:
    """Raise InputError for what a caller says and the datasets say themselves; ``every`` gives all formats."""
    for field in TOLD if format.container is None else ():
        if getattr(choice, field) != getattr(AS_IT_IS, field):
            others, option = ", ".join(one.name for one in every() if one.container), field.replace("_", "-")
            raise InputError(f"{format.name} datasets say themselves what their arrays are; --{option} is for {others}")


def check_holds(format: Format, layout: Layout, steps: int) -> None:
    """Raise InputError if a format has no way to hold such steps at all."""
    holds, name = format.holds, format.name
    if not holds.nested_obs and "obs" not in layout.obs:
        raise InputError(
            f"{name} holds one observation array, not {', '.join(layout.obs)}; choose one of its --columns"
        )
    if not holds.nested_action and "action" not in layout.action:
        raise InputError(f"{name} holds one action array, not {', '.join(layout.action)}")
    if odd := holds.odd(layout):
        raise InputError(
            f"{name} cannot hold the ragged columns {', '.join(sorted(odd))}; choose others with --columns, "
            "or export to npz, npz-episodes, parquet, rlds or store"
        )
    if not steps and not holds.empty:
        raise InputError(f"{name} cannot hold a dataset without a step")
    for column, (_, dtype) in {**layout.obs, **layout.action, **layout.columns}.items():
        if dtype.name not in holds.dtypes:
            raise InputError(
                f"{name} cannot hold {column}, of dtype {dtype}; it holds {', '.join(sorted(holds.dtypes))}"
            )
    format.check(layout)
