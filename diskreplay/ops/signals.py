"""The stopping at a good moment: a signal that asks to end is noted, and acted on between two steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from diskreplay.process.locks import noted

Progress = Callable[[int, int], None]
"""A function that is called now and then with what is done and what there is in all."""


@contextlib.contextmanager
def stoppable(progress: Progress | None) -> Iterator[Progress]:
    """Yield a function that passes progress on, and raises KeyboardInterrupt once a signal asked to end."""
    with noted() as asked:

        def report(done: int, total: int) -> None:
            if asked():
                raise KeyboardInterrupt
            if progress is not None:
                progress(done, total)

        yield report
