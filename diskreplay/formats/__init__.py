"""Datasets in and out: one module here for each format, imported when it is asked for, with the libraries it needs.

A format's module has ``FORMATS``: what each format in it is called and can hold, and how it is recognised, read and
written, as :class:`diskreplay.formats.core.format.Format`. ``core`` is what they share, ``files`` are the containers
that they keep arrays in. :mod:`diskreplay.ops.convert` imports and exports; docs/formats.md says how to add a format.
"""

from __future__ import annotations

import contextlib
import importlib
import pathlib
from typing import TYPE_CHECKING

from diskreplay.errors import InputError

if TYPE_CHECKING:
    from diskreplay.formats.core.format import Format

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
    "lerobot": "lerobot",
    "parquet": "parquet",
    "store": "store",
}
"""The module of each format, below this package."""
LOOKED_AT = 100
"""The most entries of a folder that are looked at to find a dataset in it."""


def get(name: str) -> Format:
    """Return the format of a name; raise InputError if there is none."""
    if name not in MODULES:
        raise InputError(f"there is no format {name!r}; the formats are {', '.join(MODULES)}")
    module = importlib.import_module(f"{__name__}.{MODULES[name]}")
    found: Format = next(format for format in module.FORMATS if format.name == name)
    return found


def every() -> list[Format]:
    """Return all formats."""
    return [get(name) for name in MODULES]


def guess(path: pathlib.Path) -> Format:
    """Return the format of the dataset at ``path``; raise InputError if none or several can read it."""
    from diskreplay.formats.core.reader import naming

    if not path.exists():
        raise InputError(f"there is no dataset at {str(path)!r}")
    with naming(path):
        found = [format for format in every() if format.read is not None and format.recognise(path)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError(
            f"{str(path)!r} is of no format known here{_below(path)}; name one of {', '.join(MODULES)} (--format)"
        )
    raise InputError(f"{str(path)!r} can be {' or '.join(format.name for format in found)}; name one (--format)")


def _below(path: pathlib.Path) -> str:
    """Return which entry of a folder is a dataset, to be said where the folder is none; nothing if there is none."""
    from diskreplay.formats.core.order import natural

    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    for name in sorted(names, key=natural)[:LOOKED_AT]:
        for format in every():
            with contextlib.suppress(InputError, OSError):
                if format.read is not None and format.recognise(path / name):
                    return f", but {name!r} in it is one, of {format.name}: import that"
    return ""
