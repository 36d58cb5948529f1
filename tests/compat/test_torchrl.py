"""`compat.torchrl` where torchrl is missing; with it: tests/interop/test_compat_torchrl.py."""

from __future__ import annotations

import importlib
import sys

import pytest


@pytest.mark.parametrize("missing", ["torchrl", "tensordict"])
def test_without_torchrl_the_import_names_the_extra(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("diskreplay.compat.torchrl")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=r"needs torchrl: pip install 'diskreplay\[torchrl\]'"):
        importlib.import_module("diskreplay.compat.torchrl")
