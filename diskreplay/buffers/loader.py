"""Batches that a background thread samples ahead."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable

from diskreplay.prefetch import Prefetcher
from diskreplay.views.batch import SomeBatch

MOST_BEGUN = 4
"""Batches of a remote store that are downloaded at the same time, beside the one that is waited for."""


class Loader(Prefetcher[SomeBatch]):
    """An endless iterator of batches; also a context manager. :meth:`close` ends its thread, as does forgetting it.

    An error of sampling is raised by ``next``, and ends the loader.
    """

    def __init__(self, sample: Callable[[], SomeBatch], prefetch: int) -> None:
        super().__init__(lambda: (sample() for _ in itertools.repeat(None)), prefetch, "loader")


def begun_ahead(begin: Callable[[], Callable[[], SomeBatch]], count: int) -> Callable[[], SomeBatch]:
    """What samples batches of which ``count`` more are begun always: their downloads go on at the same time.

    ``begin`` begins one; what it gives ends it.
    """
    begun: collections.deque[Callable[[], SomeBatch]] = collections.deque()

    def sample() -> SomeBatch:
        while len(begun) <= count:
            begun.append(begin())
        return begun.popleft()()

    return sample
