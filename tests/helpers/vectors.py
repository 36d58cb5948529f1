"""Gymnasium's vector environments in each mode of autoreset that the installed version has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from gymnasium.vector import SyncVectorEnv

from diskreplay.buffers.autoreset import NEXT_STEP, AutoresetMode


def lockstep(makers: Sequence[Callable[[], Any]], mode: AutoresetMode) -> SyncVectorEnv:
    """The environments in lockstep; the test is skipped where Gymnasium does not have the mode."""
    if NEXT_STEP:
        return SyncVectorEnv(makers, autoreset_mode=mode)
    if mode is not AutoresetMode.NEXT_STEP:
        pytest.skip(f"Gymnasium 1.0 does not have autoreset mode {mode.name}")
    return SyncVectorEnv(makers)
