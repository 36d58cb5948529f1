"""Wrong clocks: what the package does must not depend on the time of day."""

from __future__ import annotations

import random
import time

import pytest

DAY = 86_400.0


class Clock:
    """A clock of the time of day in the place of the system's: ``set`` it, or let it jump at every call.

    Args:
        monkeypatch: of the test, which puts the system's back.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.time()
        self._random: random.Random | None = None
        monkeypatch.setattr(time, "time", self._read)

    def jump(self, seed: int) -> None:
        """From now on each call moves the clock by -1 to +1 day."""
        self._random = random.Random(seed)

    def _read(self) -> float:
        if self._random is not None:
            self.now = max(0.0, self.now + self._random.uniform(-DAY, DAY))
        return self.now
