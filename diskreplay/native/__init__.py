"""The compiled core: ``native/`` as one module, and the check that it was built from the sources that lie beside it."""

from __future__ import annotations

import hashlib
import os
import pathlib
import sys

try:
    from diskreplay.native import core
except ImportError as error:
    raise ImportError(
        f"diskreplay's compiled part is not there ({error}); run 'pip install .', or 'make' in a clone"
    ) from error

__all__ = ["core"]

_SOURCES = pathlib.Path(__file__).parents[2] / "native"


def _checksum() -> str:
    """Return the checksum of the sources and of the kind of machine, as hatch_build.py has it."""
    found = hashlib.sha256(f"{sys.platform} {os.uname().machine}".encode())
    for source in sorted(_SOURCES.glob("*.[chp]*")):
        found.update(source.read_bytes())
    return found.hexdigest()[:16]


if _SOURCES.is_dir() and _checksum() != core.sources:
    raise ImportError(f"diskreplay's compiled part was built from other sources than those in {_SOURCES}: run 'make'")
