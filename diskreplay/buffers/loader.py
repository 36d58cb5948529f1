"""Batches that a background thread samples ahead."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from diskreplay.prefetch import Prefetcher
from diskreplay.views.batch import Batch


class Loader(Prefetcher[Batch]):
    """An endless iterator of batches; also a context manager. :meth:`close` ends its thread, as does forgetting it.

    An error of sampling is raised by ``next``, and ends the loader.
    """

    def __init__(self, sample: Callable[[], Batch], prefetch: int) -> None:
        super().__init__(lambda: (sample() for _ in itertools.repeat(None)), prefetch, "loader")
