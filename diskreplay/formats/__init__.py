"""Datasets in and out: one module here for each format, imported when it is asked for, with the libraries it needs.

A format's module has ``FORMATS``: what each format in it is called and can hold, and how it is recognised, read and
written, as :class:`diskreplay.formats.core.format.Format`. ``core`` is what they share, ``files`` are the containers
that they keep arrays in. :mod:`diskreplay.ops.convert` imports and exports; docs/formats.md says how to add a format.
"""

from __future__ import annotations

import importlib
import pathlib
from typing import TYPE_CHECKING, Any

from diskreplay.errors import InputError

if TYPE_CHECKING:
    from diskreplay.formats.arrays import from_arrays, from_sb3
    from diskreplay.formats.core.choice import Choice
    from diskreplay.formats.core.format import Format

__all__ = ["MODULES", "every", "from_arrays", "from_sb3", "get", "guess"]

MODULES = {
    "d4rl": "d4rl",
    "exorl": "exorl",
    "dreamer": "dreamer",
    "npz": "npz",
    "npz-episodes": "npz",
    "diffusion-policy": "diffusion_policy",
    "minari": "minari",
    "minari-arrow": "minari_arrow",
    "d3rlpy": "d3rlpy",
    "dopamine": "dopamine",
    "robomimic": "robomimic",
    "aloha": "aloha",
    "maniskill": "maniskill",
    "tianshou": "tianshou",
    "rlds": "rlds",
    "lerobot": "lerobot",
    "parquet": "parquet",
    "store": "store",
}
"""The module of each format, below this package."""


def __getattr__(name: str) -> Any:
    """Return a function for arrays in RAM, imported when it is asked for."""
    if name not in ("from_arrays", "from_sb3"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.arrays"), name)


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


def guess(path: pathlib.Path, choice: Choice | None = None) -> Format:
    """Return the first format that can read the dataset at ``path``, with what the caller says of it.

    Raises InputError if none can.
    """
    from diskreplay.formats.core.array_reader import matches
    from diskreplay.formats.core.choice import AS_IT_IS
    from diskreplay.formats.core.reader import naming
    from diskreplay.formats.core.untrusted import check_regular
    from diskreplay.formats.unknown import unknown

    if not path.exists():
        raise InputError(f"there is no dataset at {str(path)!r}")
    with naming(path):
        check_regular(path)
        found = [format for format in every() if format.read is not None and format.recognise(path)]
        if not found and choice is not None and (choice.map or choice.tells):
            named = [(format, format.container) for format in every() if format.container is not None]
            found = [format for format, kind in named if matches(kind, format.tables, path, choice)]
            found.sort(key=lambda format: path.is_dir() != (format.kind == "directory"))
        if found:
            return found[0]
        raise InputError(unknown(path, every(), choice or AS_IT_IS))
