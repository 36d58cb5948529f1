"""Imports into new stores that go on where one that was killed stopped.

1. A new store is made in a directory beside its name. A mark there says what is imported: the layout of its steps, and
   the names, sizes and times of the dataset's files.
2. Where a process died, its directory stays. An import with the same mark takes it over, opens the store at its last
   commit, and leaves out the steps that it has. These and the facts of its episodes are compared with the dataset's:
   where something else has written to the store, or changed the dataset and left no trace, the import is refused, and
   both stay. A directory with another mark, or with a store that cannot be opened, is swept away.
3. So it is only where no ``capacity`` evicts steps.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from diskreplay.engine.facts import checked
from diskreplay.errors import CorruptionError, InputError, OpenError
from diskreplay.formats.core.recorder import Added
from diskreplay.formats.core.selection import open_selected
from diskreplay.formats.core.transitions import Source, Transitions
from diskreplay.index.facts import CUT_START
from diskreplay.schema.ragged import Lists

MARK = "import.json"


def mark_of(origin: pathlib.Path, source: Source) -> str | None:
    """Return the mark of an import, or None where none goes on."""
    if not source.steps:
        return None
    files = [origin] if origin.is_file() else sorted(_files_below(origin))
    states = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return json.dumps({"layout": source.layout.to_json(), "steps": source.steps, "files": states})


def _files_below(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield the files below a directory, also where a link leads to another one."""
    for parent, _, names in os.walk(folder, followlinks=True):
        yield from (file for name in names if (file := pathlib.Path(parent, name)).is_file())


class Rest:
    """The steps of a source after those that a store has which a killed import left.

    Args:
        source: the steps.
        mark: what the store's mark must be; None if no import is gone on with.

    Attributes:
        done: what the store has.
        goes_on_within: True if the first step after these goes on in their newest episode.
    """

    def __init__(self, source: Source, mark: str | None) -> None:
        self._source, self._mark = source, mark
        self._rest: Iterator[Transitions] | None = None
        self.done, self.goes_on_within = Added(), False

    def goes_on(self, store: pathlib.Path) -> bool:
        """Tell whether the import of a store was begun with the same mark, and pass over the steps that it has.

        Raises InputError where it has others: another program wrote to it, or the dataset is not what it was.
        """
        with contextlib.suppress(OSError, ValueError):
            if self._mark is None or (store.parent / MARK).read_text() != self._mark:
                return False
        with contextlib.suppress(CorruptionError, OpenError), open_selected(store) as part:
            self._pass_over(part.source(stacked=self._source.layout.stacked), store)
            self.done = Added(part.steps, len(part.episodes), part.own_next_obs())
            return True
        return False

    def _pass_over(self, left: Source, store: pathlib.Path) -> None:
        blocks = self._source.blocks()
        block, done = next(blocks, None), 0
        for theirs in left.blocks():
            at = 0
            while at < len(theirs):
                count = min(len(block), len(theirs) - at) if block is not None else 0
                if block is None or not _same(block.span(0, count), theirs.span(at, at + count)):
                    raise _differs(store, f"steps than the dataset, not before step {done:,}")
                at, done, self.goes_on_within = at + count, done + count, not block.last[count - 1]
                block = block.span(count, len(block)) if count < len(block) else next(blocks, None)
        none: dict[str, Any] = {}
        for number, (kept, told) in enumerate(itertools.zip_longest(left.facts, self._source.facts, fillvalue=none)):
            if not kept.items() <= checked(told, {}, (CUT_START,)).items():
                raise _differs(store, f"facts of episode {number:,} than the dataset")
        self._rest = itertools.chain([] if block is None else [block], blocks)

    def blocks(self) -> Iterator[Transitions]:
        """Return the steps that the store lacks; those of a killed import only once."""
        return self._source.blocks() if self._rest is None else self._rest


def _differs(store: pathlib.Path, what: str) -> InputError:
    return InputError(
        f"an import was killed, and what it left, {str(store)!r}, has other {what}: something else wrote to one of "
        "them since; move what was left away, or delete it, and import again"
    )


def _same(steps: Transitions, theirs: Transitions) -> bool:
    """Tell whether a store has these steps, with the dtypes of its own, to the bit."""
    return all(
        np.asarray(one).astype(other.dtype, copy=False).tobytes() == other.tobytes()
        for mine, kept in ((steps.columns(), theirs.columns()), (steps.next_obs, theirs.next_obs))
        for name, values in mine.items()
        for one, other in zip(_arrays(values), _arrays(kept[name]), strict=True)
    )


def _arrays(values: Any) -> tuple[Any, ...]:
    return values.parts if isinstance(values, Lists) else (values,)
