"""Reading ahead: while one block is worked on, a thread reads the next."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

AHEAD = 2
"""Blocks that may wait."""


def read_ahead(items: Callable[[], Iterator[Item]]) -> Iterator[Item]:
    """What the iterator gives, in the same order; an exception of it is raised here, in its turn.

    Where this generator is closed before its end, the thread ends after the block that it is at.
    """
    waiting: queue.Queue[tuple[bool, Item | BaseException | None]] = queue.Queue(AHEAD)
    stopped = threading.Event()

    def offer(going_on: bool, item: Item | BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                waiting.put((going_on, item), timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def run() -> None:
        try:
            for item in items():
                if not offer(True, item):
                    return
            offer(False, None)
        except BaseException as error:
            offer(False, error)

    thread = threading.Thread(target=run, name="diskreplay-read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            going_on, item = waiting.get()
            if not going_on:
                if item is not None:
                    raise item  # type: ignore[misc]  # an exception, where there is no more to come
                return
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join()
