"""One live copy of a pushed directory, in a process that may be killed at a request; what it says by a pipe."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection

from remote.world import RUN, observation

import diskreplay as dr
from diskreplay.errors import RemoteConflictError
from diskreplay.remote.objects import Object, ObjectStore
from diskreplay.remote.push import Push
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Store


class Mortal:
    """Requests to real storage, of which one is the last: the process is killed before it, or after it was done."""

    def __init__(self, url: str, last: int | None, after: bool) -> None:
        self._objects = ObjectStore(url)
        self.url = self._objects.url
        self._left = last
        self._after = after

    def _asked(self, done: bool) -> None:
        if self._left is not None and done == self._after:
            self._left -= 1
            if self._left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def get(self, key: str, span: tuple[int, int] | None = None) -> tuple[Object, Iterable[bytes]]:
        self._asked(False)
        found, pieces = self._objects.get(key, span)
        whole = list(pieces)
        self._asked(True)
        return found, whole

    def head(self, key: str) -> Object | None:
        self._asked(False)
        found = self._objects.head(key)
        self._asked(True)
        return found

    def put(self, key: str, data: bytes, tag: str | None = None) -> str:
        self._asked(False)
        made = self._objects.put(key, data, tag)
        self._asked(True)
        return made

    def list(self, prefix: str) -> list[Object]:
        self._asked(False)
        found = self._objects.list(prefix)
        self._asked(True)
        return found

    def delete(self, keys: Iterable[str]) -> None:
        self._asked(False)
        self._objects.delete(keys)
        self._asked(True)


def push_copy(path: str, url: str, writer: int, first: int, seed: int, pipe: Connection) -> None:
    """Adds rows and pushes them, again and again; says which rows are confirmed, or what refused it.

    Args:
        path: of the copy.
        url: of the remote store.
        writer: that rows say they are of, from the number ``first`` on.
        seed: says how long after the start the first push is, how many rows go at once, whether it is killed, and when.
        pipe: what it says goes there: ("confirmed", first row, number of rows) or ("refused", why).
    """
    rng = random.Random(seed)
    last = rng.randrange(60) if rng.random() < 0.4 else None
    rounds = rng.randrange(1, 4)
    time.sleep(rng.choice((0.0, rng.uniform(0, 0.1), rng.uniform(0, 2))))
    with dr.ReplayBuffer.open(path, **RUN) as buffer:
        push = Push(Store(path, LocalFiles()), "0", Mortal(url, last, rng.random() < 0.5))
        number = buffer.stats()["streams"]["0"]["end"]
        for _ in range(rounds):
            for _ in range(rng.randrange(1, 20)):
                add(buffer, writer, number, first)
                number += 1
            buffer.commit()
            try:
                push.run()
            except RemoteConflictError as error:
                pipe.send(("refused", str(error)))
                return
            pipe.send(("confirmed", number))


def add(buffer: dr.ReplayBuffer, writer: int, number: int, first: int) -> None:
    """Adds the row ``number`` of the stream: of writer 0 below ``first``, of its own from there on."""
    row, after = (observation(writer, 0, number + step) for step in (0, 1))
    buffer.add(row, number % 5, float(number + 10_000 * writer), after, False, number % 10 == 9 or number == first - 1)
