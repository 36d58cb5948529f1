"""The recipes of ``datasets/``, a folder that is no package."""

from __future__ import annotations

import importlib.util
import pathlib
import types

DATASETS = pathlib.Path(__file__).parent.parent.parent / "datasets"


def load() -> types.ModuleType:
    return load_from(DATASETS / "make.py")


def load_from(path: pathlib.Path) -> types.ModuleType:
    """A module that stands in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
