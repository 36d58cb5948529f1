"""What is said of a dataset that no format recognises: what is in it, and what would take it."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Sequence

from diskreplay.errors import InputError
from diskreplay.formats.core.array_reader import files_of
from diskreplay.formats.core.choice import AS_IT_IS, Choice
from diskreplay.formats.core.convention import Convention
from diskreplay.formats.core.flat import leaves_of
from diskreplay.formats.core.format import Format
from diskreplay.formats.core.names import natural
from diskreplay.formats.core.refusing import Shapes, by_hand, call, listed, shapes_in
from diskreplay.formats.core.untrusted import begins

LOOKED_AT = 100
"""The most entries of a folder that are looked at to find a dataset in it."""
PICKLE = b"\x80"
"""The first byte of a pickle since protocol 2."""


def unknown(path: pathlib.Path, formats: Sequence[Format], choice: Choice = AS_IT_IS) -> str:
    """Return the error for a path that none of the formats recognises, with what the caller says of it."""
    said = f"{str(path)!r} is of no format known here"
    if below := _below(path, formats):
        return said + below
    for kind in dict.fromkeys(format.container for format in formats if format.container is not None):
        for file in files_of(path, kind)[:1]:
            if kind.recognise(file):
                with kind.opened(file) as container:
                    shapes = list(shapes_in(container, container.names()))
                there = dict.fromkeys(name for name, _, _ in shapes)
                wrong = [f"there is no {each!r} to map; " for each in choice.map.values() if not leaves_of(there, each)]
                where = "" if file == path else f" {file.name!r}"
                nearest = _nearest([format for format in formats if format.container is kind], shapes)
                holds = f"{where} holds {listed(shapes) or 'no array'}; {''.join(wrong[:1])}"
                return f"{said}:{holds}{nearest}; {by_hand(file, kind.loads, kind.item, shapes)}"
    if begins(path, PICKLE):
        given = ["obs=f['observations']", "action=f['actions']", "terminated=f['terminals']"]
        line = call(given, f"pickle.load(open({str(path)!r}, 'rb'))")
        return (
            f"{said}: it looks like a pickle, which is never loaded, for it can run any code; if you trust it, give "
            f"its arrays from Python: import pickle; {line}"
        )
    names = ", ".join(format.name for format in formats if format.read)
    return f"{said}; name one of {names} (--format)"


def _below(path: pathlib.Path, formats: Sequence[Format]) -> str:
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    for name in sorted(names, key=natural)[:LOOKED_AT]:
        for format in formats:
            with contextlib.suppress(InputError, OSError):
                if format.read is not None and format.recognise(path / name):
                    return f", but {name!r} in it is one, of {format.name}: import that"
    return ""


def _nearest(formats: Sequence[Format], shapes: Shapes) -> str:
    names = [name for name, _, _ in shapes]

    def lacks(table: Convention) -> list[str]:
        found = set(table.names_in(names))
        return [table.spelled(root) for root in table.required if root not in found]

    tables = [(format, table) for format in formats for table in format.tables if not table.episode]
    usual = [(format, table) for format, table in tables if not table.marks and not table.tells]
    format, missing = min(((format, lacks(table)) for format, table in usual or tables), key=lambda pair: len(pair[1]))
    if not missing:
        return f"nearest is {format.name} (--format {format.name})"
    option = f"--format {format.name} --map OURS=THEIRS"
    return f"nearest is {format.name}, which lacks {', '.join(missing)} ({option} says which it is)"
