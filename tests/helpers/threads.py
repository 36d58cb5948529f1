"""Threads of a test."""

from __future__ import annotations

import collections
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def together(*jobs: Callable[[], Any]) -> None:
    """Does each job in a thread of its own; raises what the first that fails raises, once all have ended."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        done = [pool.submit(job) for job in jobs]
    for each in done:
        each.result()


def over_and_over(
    jobs: Mapping[str, Callable[[], object]], least: Mapping[str, int], turns: collections.Counter[str]
) -> None:
    """Does each job again and again in a thread of its own, until they had more turns than the least, or one failed.

    Args:
        jobs: by name.
        least: of turns, of some of them.
        turns: how many each had; they are counted here.
    """
    stop = threading.Event()

    def run(name: str, job: Callable[[], object]) -> None:
        try:
            while not stop.is_set():
                job()
                turns[name] += 1
        except BaseException:
            stop.set()
            raise

    def wait() -> None:
        while not stop.wait(0.02) and not all(turns[name] > count for name, count in least.items()):
            pass
        stop.set()

    together(wait, *(functools.partial(run, name, job) for name, job in jobs.items()))


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
