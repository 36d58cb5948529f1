"""Kernels: numba's functions, whole or not at all."""

from __future__ import annotations

import pathlib
import signal

import numba
import pytest
from numba import extending

from diskreplay.index.jit import kernel


def twice(value):  # type: ignore[no-untyped-def]  # numba compares signatures, with their annotations
    return 2 * value


@extending.overload(twice)
def compile_twice(value):  # type: ignore[no-untyped-def]
    """A person who presses Ctrl-C while numba is at work."""
    signal.raise_signal(signal.SIGINT)
    return lambda value: 2 * value


def test_an_interrupt_waits_until_it_is_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))  # compiled anew, whatever earlier runs have kept
    compiled = kernel(lambda value: twice(value) + 1)
    with pytest.raises(KeyboardInterrupt):
        compiled(3)
    assert len(compiled.signatures) == 1
    assert compiled(3) == 7
