"""The table of what formats can hold, from their facts, for the command line and for ``docs/formats.md``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from diskreplay.formats.core.format import Format
from diskreplay.schema import DTYPES

NAMES = {
    "final_obs": "final observations",
    "next_obs": "next observations of their own",
    "truncated": "truncation apart from termination",
    "unfinished": "ends without a flag",
    "columns": "columns",
    "provenance": "where it comes from",
    "facts": "facts of episodes",
    "nested_obs": "Dict and Tuple observations",
    "nested_action": "Dict and Tuple actions",
    "empty": "no step at all",
    "layout": "spaces and frame stacks",
    "stacks": "stacks as given",
    "envs": "which environment",
}
"""The words for each field of :class:`Holds`."""


def ways(format: Format) -> str:
    """Return ``in and out``, ``in`` or ``out``."""
    return " and ".join(way for way, there in (("in", format.read), ("out", format.write)) if there is not None)


def lacks(format: Format) -> list[str]:
    """Return the names of what a format cannot hold."""
    found = [name for field, name in NAMES.items() if not getattr(format.holds, field)]
    missing = DTYPES - format.holds.dtypes
    return [*found, f"dtypes {', '.join(sorted(missing))}"] if missing else found


def facts(format: Format) -> dict[str, Any]:
    """Return the facts about a format as JSON has them."""
    return {
        "name": format.name,
        "title": format.title,
        "kind": format.kind,
        "in": format.read is not None,
        "out": format.write is not None,
        "holds": {**dataclasses.asdict(format.holds), "dtypes": sorted(format.holds.dtypes)},
        "compressions": list(format.compressions),
        "requires": list(format.requires),
        "extra": format.extra or None,
    }


def markdown(formats: Sequence[Format]) -> str:
    """Return the table of ``docs/formats.md``."""
    header = ["format", "in", "out", "a dataset is", *NAMES.values(), "dtypes", "extra"]
    lines = [header, ["---"] * len(header)]
    for format in formats:
        missing = sorted(DTYPES - format.holds.dtypes)
        lines.append(
            [
                f"`{format.name}`", _yes(format.read is not None), _yes(format.write is not None), f"a {format.kind}",
                *(_yes(getattr(format.holds, field)) for field in NAMES),
                f"not {', '.join(missing)}" if missing else "all", f"`{format.extra}`" if format.extra else "-",
            ]
        )  # fmt: skip
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _yes(there: bool) -> str:
    return "yes" if there else "-"
