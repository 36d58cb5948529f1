"""`compat.sb3` where Stable-Baselines3 is missing; with it: tests/interop/test_compat_sb3.py."""

from __future__ import annotations

import importlib
import sys

import pytest


def test_without_stable_baselines3_the_import_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "stable_baselines3"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "diskreplay.compat.sb3", raising=False)
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    with pytest.raises(ModuleNotFoundError, match="pip install stable-baselines3"):
        importlib.import_module("diskreplay.compat.sb3")
