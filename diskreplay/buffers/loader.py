"""Batches that a background thread samples ahead."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from diskreplay.errors import InputError
from diskreplay.process.background import Prefetcher
from diskreplay.process.locks import held_back
from diskreplay.views.batch import SomeBatch

MOST_BEGUN = 4
"""The most batches of a remote store that are downloaded at the same time, beside the one that is waited for."""


class Loader(Prefetcher[SomeBatch]):
    """An endless iterator and context manager of batches; its thread ends with :meth:`close`, or once it is forgotten.

    An error of sampling is raised by ``next``, and ends the loader.
    """

    def __init__(
        self, batches: Callable[[], Iterator[Any]], prefetch: int, take: Callable[[Any], SomeBatch] | None = None
    ) -> None:
        super().__init__(batches, prefetch, "loader")
        self._take = take

    def __next__(self) -> SomeBatch:
        found = super().__next__()
        return found if self._take is None else self._take(found)


def loading(batches: Callable[[], Iterator[SomeBatch]], prefetch: int, device: Any) -> Loader[SomeBatch]:
    """Return a loader of batches; with a device, of tensors on it.

    Before anything begins: InputError where torch cannot use the device, ModuleNotFoundError where there is no torch.
    """
    if device is None:
        return Loader(batches, prefetch)
    if type(device).__module__.partition(".")[0] in ("jax", "jaxlib"):
        raise InputError(
            f"device must be one of torch, got {device!r:.80} of JAX: import diskreplay.jax, and place a batch by "
            "jax.device_put(batch, device)"
        )
    try:
        with held_back():
            from diskreplay.buffers.device import Sender
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("a loader's device needs torch: pip install 'diskreplay[torch]'") from error
    sender = Sender(device)
    return Loader(lambda: sender.sent(batches()), prefetch, sender.take)


def endless(sample: Callable[[], SomeBatch]) -> Callable[[], Iterator[SomeBatch]]:
    """Batches, as long as somebody asks for them."""
    return lambda: (sample() for _ in itertools.repeat(None))


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
