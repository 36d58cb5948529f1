"""Which columns are held in RAM, and whose chunks have all environments: tests make stores whose values are on disk.

Who opens a store decides, so a limit holds until the test ends; the session's ``conftest.py`` sees to that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from diskreplay.reading import budget
from diskreplay.schema import columns, layout

LIMITS = (
    (columns, "RESIDENT_ROW_BYTES"), (columns, "RESIDENT_COLUMN_BYTES"), (layout, "SMALL_BYTES"),
    (budget, "HELD_SHARE"),
)  # fmt: skip


def hold_up_to(size: int) -> None:
    """From now on to the end of the test, values of more bytes are reached on disk, each environment by itself."""
    columns.RESIDENT_ROW_BYTES = layout.SMALL_BYTES = size
    budget.HELD_SHARE = 0.0


def hold_windows_up_to(size: int) -> None:
    """From now on to the end of the test, columns whose window has more bytes are reached on disk."""
    columns.RESIDENT_COLUMN_BYTES, budget.HELD_SHARE = size, 0.0


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """After this the limits are as before it."""
    with contextlib.ExitStack() as stack:
        for module, name in LIMITS:
            stack.enter_context(mock.patch.object(module, name, getattr(module, name)))
        yield
