"""An adapter checks all of its input before the first store is touched, and one call is one change.

Those whose libraries are installed for them alone are in ``tests/interop/test_compat_refusals.py``.
"""

from __future__ import annotations

import pathlib

import pytest
from compat.cases import CASES
from helpers.refusals import check


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_refused_leaves_no_trace(name: str, seed: int, tmp_path: pathlib.Path) -> None:
    check(CASES[name], tmp_path, seed, 12, 8)


@pytest.mark.parametrize("name", ["frames", "Pearl", "XuanCe", "XuanCe, agents on-policy"])
def test_what_is_refused_leaves_no_trace_in_a_few_rounds(name: str, tmp_path: pathlib.Path) -> None:
    check(CASES[name], tmp_path, 0, 2, 4)
