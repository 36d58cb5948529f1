"""Batches that a background thread samples ahead."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable

from diskreplay.prefetch import Prefetcher
from diskreplay.views.batch import SomeBatch

MOST_BEGUN = 4
"""The most batches of a remote store that are downloaded at the same time, beside the one that is waited for."""


class Loader(Prefetcher[SomeBatch]):
    """An endless iterator and context manager of batches; its thread ends with :meth:`close`, or once it is forgotten.

    An error of sampling is raised by ``next``, and ends the loader.
    """

    def __init__(self, sample: Callable[[], SomeBatch], prefetch: int) -> None:
        super().__init__(lambda: (sample() for _ in itertools.repeat(None)), prefetch, "loader")


def begun_ahead(begin: Callable[[], Callable[[], SomeBatch]], count: int) -> Callable[[], SomeBatch]:
    """Return a function that samples batches while ``count`` more are begun: their downloads run at the same time.

    ``begin()`` starts a batch's downloads, and returns a function that waits for them and returns the batch.
    """
    begun: collections.deque[Callable[[], SomeBatch]] = collections.deque()

    def sample() -> SomeBatch:
        while len(begun) <= count:
            begun.append(begin())
        return begun.popleft()()

    return sample
