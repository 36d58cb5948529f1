"""The README's examples with other libraries (```py blocks; those that need none are run by tests/test_readme.py)."""

from __future__ import annotations

import pathlib
import re

import pytest

pytest.importorskip("stable_baselines3", reason="stable-baselines3 is in the interop extra")

README = pathlib.Path(__file__).parent.parent.parent / "README.md"


def test_examples(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```py\n(.*?)```", README.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(README), "exec"), {})
    assert (tmp_path / "dqn.replay" / "zarr.json").exists()
