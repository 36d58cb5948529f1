"""Modules of libraries that are not installed say what to install; with them: tests/interop."""

from __future__ import annotations

import importlib
import sys

import pytest

TORCHRL = r"needs torchrl: pip install 'diskreplay\[torchrl\]'"


@pytest.mark.parametrize(
    ("module", "library", "message"),
    [
        ("cleanrl", "torch", r"pip install 'diskreplay\[torch\]'"),
        ("d3rlpy", "d3rlpy", r"pip install 'd3rlpy>=2.8,<3'"),
        ("sb3", "stable_baselines3", "pip install stable-baselines3"),
        ("tianshou", "tianshou", r"pip install 'tianshou>=2,<3'"),
        pytest.param("torchrl", "torchrl", TORCHRL, marks=pytest.mark.long),  # imports torch, where that is there
        ("torchrl", "tensordict", TORCHRL),
    ],
)
def test_the_import_says_what_is_needed(
    module: str, library: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = f"diskreplay.compat.{module}"
    for name in [*sys.modules]:
        if f"{name}.".startswith((f"{ours}.", "stable_baselines3.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModuleNotFoundError, match=message):
        importlib.import_module(ours)
