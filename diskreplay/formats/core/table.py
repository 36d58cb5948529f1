"""The table of what formats can hold, from their facts, for the command line and for ``docs/formats.md``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from diskreplay.formats.core.format import Format
from diskreplay.schema.columns import DTYPES

LOSSES = {
    "final_obs": "final observations",
    "next_obs": "next observations that differ from the next step's observation",
    "truncated": "truncations apart from terminations",
    "unfinished": "ends without a flag",
    "columns": "columns of your own",
    "provenance": "provenance",
    "facts": "facts of episodes",
    "ragged": "ragged columns of your own",
}
"""The words for each field of :class:`Holds` without which an export has to be allowed."""
REFUSALS = {
    "nested_obs": "Dict and Tuple observations",
    "nested_action": "Dict and Tuple actions",
    "empty": "a dataset without steps",
}
"""The words for each field without which an export is refused."""
OTHERS = {
    "layout": "bounds of spaces and frame stacks",
    "stacks": "stacks as they were given",
    "envs": "the environment of each episode",
}
"""The words for each field without which an export goes on."""
NAMES = {**LOSSES, **REFUSALS, **OTHERS}
"""The words for each field of :class:`Holds`."""


def ways(format: Format) -> str:
    """Return ``in and out``, ``in`` or ``out``."""
    return " and ".join(way for way, there in (("in", format.read), ("out", format.write)) if there is not None)


def lacks(format: Format) -> list[str]:
    """Return the names of what a format cannot hold."""
    return [*lost(format), *refused(format), *_missing(format, OTHERS)]


def lost(format: Format) -> list[str]:
    """Return the names of what an export leaves out once that is allowed."""
    return [what + _but(format) if what == LOSSES["ragged"] else what for what in _missing(format, LOSSES)]


def refused(format: Format) -> list[str]:
    """Return the names of what no export to a format may have."""
    dtypes = DTYPES - format.holds.dtypes
    ragged = [] if format.holds.ragged else [f"ragged observations and actions{_but(format)}"]
    return _missing(format, REFUSALS) + ragged + ([f"dtypes {', '.join(sorted(dtypes))}"] if dtypes else [])


def _but(format: Format) -> str:
    held = [*["video"] * format.holds.video, *["texts"] * format.holds.text]
    return f" but {' and '.join(held)}" if held else ""


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
    header = ["format", "in", "out", "a dataset is", "lost", "refused", "extra"]
    lines = [header, ["---"] * len(header)]
    for format in formats:
        out = format.write is not None
        lines.append(
            [
                f"`{format.name}`", _yes(format.read is not None), _yes(out), f"a {format.kind}",
                ", ".join(lost(format) if out else ()) or "-", ", ".join(refused(format) if out else ()) or "-",
                f"`{format.extra}`" if format.extra else "-",
            ]
        )  # fmt: skip
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _missing(format: Format, names: Mapping[str, str]) -> list[str]:
    return [name for field, name in names.items() if not getattr(format.holds, field)]


def _yes(there: bool) -> str:
    return "yes" if there else "-"
