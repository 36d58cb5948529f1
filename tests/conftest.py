"""What all tests share."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_fsync() -> Iterator[None]:
    """No test cuts the power, and syncing is most of the time that these would take; the seam still counts it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture
def path(tmp_path: pathlib.Path) -> str:
    """Where a store can be made."""
    return str(tmp_path / "a.replay")


def pytest_report_header() -> str:
    return f"test effort: {os.environ.get('DISKREPLAY_TEST_EFFORT', '1')} (DISKREPLAY_TEST_EFFORT=20 searches longer)"
