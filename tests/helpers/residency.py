"""Which columns are held in RAM, and whose chunks have all environments: tests make stores whose small values are not.

Who opens a store decides, so a limit holds until the test ends; the session's ``conftest.py`` sees to that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from diskreplay.schema import columns, layout


def hold_up_to(size: int) -> None:
    """From now on to the end of the test, values of more bytes are reached on disk, each environment by itself."""
    columns.RESIDENT_ROW_BYTES = layout.SMALL_BYTES = size


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """After this the limits are as before it."""
    with (
        mock.patch.object(columns, "RESIDENT_ROW_BYTES", columns.RESIDENT_ROW_BYTES),
        mock.patch.object(layout, "SMALL_BYTES", layout.SMALL_BYTES),
    ):
        yield
