"""Modules of libraries that are not installed say what to install; with them: tests/interop."""

from __future__ import annotations

import importlib
import sys

import pytest

NEEDS = {
    "cleanrl": ("torch", r"pip install 'diskreplay\[torch\]'"),
    "d3rlpy": ("d3rlpy", r"pip install 'd3rlpy>=2.8,<3'"),
    "tianshou": ("tianshou", r"pip install 'tianshou>=2,<3'"),
}


@pytest.mark.parametrize("module", NEEDS)
def test_the_import_says_what_is_needed(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library, message = NEEDS[module]
    monkeypatch.delitem(sys.modules, f"diskreplay.compat.{module}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModuleNotFoundError, match=message):
        importlib.import_module(f"diskreplay.compat.{module}")
