"""Datasets in and out: one module a format, imported when it is asked for, so that no format's library is needed
before.

Every module has ``FORMATS``, the facts about its formats as :class:`diskreplay.formats.facts.Format`. What is read is a
:class:`diskreplay.formats.steps.Source`; what is written is one, too. :mod:`diskreplay.ops.convert` joins the two.
"""

from __future__ import annotations

import importlib
import pathlib

from diskreplay.errors import InputError
from diskreplay.formats.facts import Format
from diskreplay.formats.reading import naming

MODULES = {
    "d4rl": "d4rl",
    "npz": "npz",
    "npz-episodes": "npz",
    "diffusion-policy": "diffusion_policy",
    "minari": "minari",
    "minari-arrow": "minari_arrow",
    "d3rlpy": "d3rlpy",
    "dopamine": "dopamine",
    "robomimic": "robomimic",
    "rlds": "rlds",
    "parquet": "parquet",
    "store": "store",
}
"""The module of each format, below this package."""


def get(name: str) -> Format:
    """The format of a name; InputError when there is none."""
    if name not in MODULES:
        raise InputError(f"there is no format {name!r}; the formats are {', '.join(MODULES)}")
    module = importlib.import_module(f"{__name__}.{MODULES[name]}")
    found: Format = next(format for format in module.FORMATS if format.name == name)
    return found


def every() -> list[Format]:
    """All formats."""
    return [get(name) for name in MODULES]


def guess(path: pathlib.Path) -> Format:
    """The format of the dataset at ``path``; InputError where there is not just one that it can be."""
    if not path.exists():
        raise InputError(f"there is no dataset at {str(path)!r}")
    with naming(path):
        found = [format for format in every() if format.read is not None and format.recognise(path)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError(f"{str(path)!r} is of no format known here; name one of {', '.join(MODULES)} (--format)")
    raise InputError(f"{str(path)!r} can be {' or '.join(format.name for format in found)}; name one (--format)")
