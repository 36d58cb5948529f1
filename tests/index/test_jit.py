"""Kernels: numba's functions, whole or not at all."""

from __future__ import annotations

import pathlib
import platform
import signal

import numba
import pytest
from llvmlite import binding
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


def test_what_is_kept_for_one_processor_is_no_other_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Two machines that write to one folder at once: numba would point the one's entry to the other's code."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    kept = []
    # An old LLVM calls a processor that is newer than itself "generic".
    plain = {"x86_64": "core2", "AMD64": "core2"}.get(platform.machine(), "cortex-a57")
    for name in ("", plain if binding.get_host_cpu_name() == "generic" else "generic"):
        monkeypatch.setattr(numba.config, "CPU_NAME", name)

        def plus(value: int) -> int:
            return value + 1

        assert kernel(plus)(3) == 4
        kept.append({file.name for file in tmp_path.rglob("*.nb?")})
    both = [kept[0], kept[1] - kept[0]]
    assert [len(names) for names in both] == [2, 2]  # an index and its code
    assert len({name.rpartition(".py3")[0] for name in kept[1]}) == 2
