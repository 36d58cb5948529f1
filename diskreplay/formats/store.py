"""Our own stores as a format: the whole of one, or a selection, with spaces, columns and stacks as they were.

A store that is written has one stream of one environment, in which episodes stand one after another. Checkpoints,
priorities and the sampler's state belong to the store that made them, and are not copied.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.engine.inputs import InputExceptions
from diskreplay.errors import CorruptionError, FormatVersionError, OpenError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.format import Format, Holds
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.names import Names
from diskreplay.formats.core.reader import reader
from diskreplay.formats.core.recorder import Added, record
from diskreplay.formats.core.selection import Selection, open_selected
from diskreplay.formats.core.transitions import Source
from diskreplay.storage import metadata
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.metadata import CHECKPOINTS, NAME
from diskreplay.storage.store import Store
from diskreplay.storage.stream import STREAMS


class Copy(ReplayBuffer):
    """A buffer that takes whatever a store holds.

    Versions before this one did not look at discrete spaces, and a rollout may hold NaN in a store that refuses it.
    """

    _exceptions = InputExceptions(anything=True)


def write_store(
    source: Source, target: pathlib.Path, *, capacity: int | None = None, later: Mapping[str, Any] | None = None,
    kind: type[ReplayBuffer] = Copy,
) -> tuple[Added, int]:  # fmt: skip
    """Write a source to a new store, steps with their facts.

    Args:
        source: the steps.
        target: a path that will be renamed when the store is whole: until then its document may change.
        capacity: the steps that the store keeps; with less than the source has, the oldest go. All if None.
        later: the columns that are written later, as ``create`` takes them.
        kind: the buffer that takes the steps.

    Returns:
        What was added, and how many of these steps were evicted.
    """
    options = {**source.layout.create_arguments(), "continuity": "flags", "later": later or {}}
    options |= {"capacity": capacity or max(1, source.steps), "commit_rows": source.steps + 1}
    with kind.create(target, **options) as buffer:
        added, evicted = record(buffer, source, capacity)
    if not added.differing and source.layout.continuity == "observations":
        Store(str(target), LocalFiles()).write_continuity("observations")
    return added, evicted


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    write_store(source, target)


@reader
def read(path: pathlib.Path, choice: Choice) -> Iterator[Source]:
    """Open the chosen columns of a store as a source."""
    part = open_selected(path, Selection(columns=choice.columns))
    every, later = Layout.of(part.schema), [f"{column.name}, as written later" for column in part.schema.later]
    names = Names([*every.obs, *every.columns, *later, *metadata.nodes(LocalFiles(), str(path))])
    names.take(*part.layout.obs, *part.layout.columns, NAME, STREAMS, CHECKPOINTS)
    yield dataclasses.replace(part.source(stacked=True), names=names)


def recognise(path: pathlib.Path) -> bool:
    """Tell whether a path is a directory that opens as a store."""
    try:
        Store(str(path.absolute()), LocalFiles())
    except (CorruptionError, FormatVersionError):
        return True  # it is one, and opening it says what is wrong
    except OpenError:
        return False
    return True


FORMATS = (
    Format(
        "store", "a store of diskreplay's own", "directory", Holds(facts=True, stacks=True, ragged=True), recognise,
        read, write,
    ),
)  # fmt: skip
