"""Threads of a test."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def together(*jobs: Callable[[], Any]) -> None:
    """Does each job in a thread of its own; raises what the first that fails raises, once all have ended."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        done = [pool.submit(job) for job in jobs]
    for each in done:
        each.result()


@contextlib.contextmanager
def beside(job: Callable[[], Any]) -> Iterator[None]:
    """A thread does the job meanwhile, and is waited for at the end; raises what it raised."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(job)
        yield
    done.result()


@contextlib.contextmanager
def held(lock: Any) -> Iterator[None]:
    """Another thread holds a lock."""
    holds, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            holds.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()
