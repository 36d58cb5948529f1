"""What all tests of stores under a URL share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from remote.world import Life


@pytest.fixture(autouse=True)
def _lives_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each writer of a test is closed after it, where the test has not done so."""
    begun: list[Life] = []
    begin = Life.__init__

    def noted(self: Life, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        begun.append(self)

    monkeypatch.setattr(Life, "__init__", noted)
    yield
    for life in begun:
        life.buffer.close()
