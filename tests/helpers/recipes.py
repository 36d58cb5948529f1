"""The recipes of ``datasets/``, a folder that is no package."""

from __future__ import annotations

import importlib.util
import pathlib
import types

DATASETS = pathlib.Path(__file__).parent.parent.parent / "datasets"


def load() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("make_datasets", DATASETS / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
