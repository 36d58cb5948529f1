"""What the formats that pyarrow reads have in common."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

from diskreplay.formats.core import untrusted


@contextlib.contextmanager
def damage(path: pathlib.Path) -> Iterator[None]:
    """What pyarrow raises for a damaged file, as InputError."""
    import pyarrow

    with untrusted.damage(repr(str(path)), (pyarrow.ArrowException, OSError, ValueError, TypeError)):
        yield
