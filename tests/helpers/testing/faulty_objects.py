"""Object storage in RAM, and one that records every request, and fails at the ones it is told to."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from diskreplay.errors import RemoteError
from diskreplay.remote.objects import NEW, Object, Objects, TakenError

Fault = Literal["refused", "lost", "taken", "cut"]
"""The faults of a request.

``refused``: nothing was done. ``lost``: it was done, and nobody said so. ``taken``: a put on a condition is refused
though the condition holds (S3's 409); other requests are refused. ``cut``: a download ends early; other requests are
refused.
"""
FAULTS: tuple[Fault, ...] = ("refused", "lost", "taken", "cut")


class SimulatedObjects:
    """:class:`diskreplay.remote.objects.Objects` that keeps everything in RAM; thread-safe.

    Attributes:
        data: bytes of each object, by key; tests may change them.
    """

    def __init__(self, url: str = "s3://simulated/a.replay", data: dict[str, bytes] | None = None) -> None:
        """Take the URL, and ``data``, the first objects by key."""
        self.url = url
        self.data = dict(data or {})
        self._lock = threading.Lock()
        self._times: dict[str, int] = {}
        self._clock = itertools.count(1)

    def copy(self) -> SimulatedObjects:
        """Return another one with the same objects."""
        with self._lock:
            return SimulatedObjects(self.url, self.data)

    def get(self, key: str, span: tuple[int, int] | None = None) -> tuple[Object, Iterable[bytes]]:
        with self._lock:
            found, data = self._object(key), self.data[key]
        if span is not None and span[0] >= len(data):  # as S3 answers
            raise RemoteError(f"downloading {self.url}/{key} failed: InvalidRange")
        data = data if span is None else data[slice(*span)]
        middle = len(data) // 2
        return found, [data[:middle], data[middle:]]

    def head(self, key: str) -> Object | None:
        with self._lock:
            return self._object(key) if key in self.data else None

    def put(self, key: str, data: bytes, tag: str | None = None) -> str:
        with self._lock:
            there = self._object(key).tag if key in self.data else NEW
            if tag is not None and tag != there:
                raise TakenError(key)
            self.data[key] = bytes(data)
            self._times[key] = next(self._clock)
            return self._object(key).tag

    def list(self, prefix: str) -> list[Object]:
        with self._lock:
            return [self._object(key) for key in sorted(self.data) if key.startswith(prefix)]

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            with self._lock:
                self.data.pop(key, None)

    def _object(self, key: str) -> Object:
        if key not in self.data:
            raise FileNotFoundError(2, "there is no such object", f"{self.url}/{key}")
        data = self.data[key]
        # As on S3, the tag says what the bytes are, not when they were put.
        return Object(key, len(data), hashlib.md5(data, usedforsecurity=False).hexdigest(), self._times.get(key, 0))


@dataclasses.dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        name: ``get``, ``head``, ``put``, ``list`` or ``delete``: each deletion is a request of its own.
        key: the key of the object; of a listing, the prefix.
        span: the bytes that a download asks for, from the first on, below the second; None for all.
    """

    name: str
    key: str
    span: tuple[int, int] | None = None


class FaultyObjects:
    """Other objects, with faults.

    Attributes:
        inner: the objects below.
        requests: all since the last :meth:`heal`.
        decide: asked before each request, with its index: a fault, or None to go on; may do something else.
    """

    def __init__(self, inner: Objects) -> None:
        self.inner = inner
        self.url = inner.url
        self._lock = threading.Lock()
        self.heal()

    def heal(self) -> None:
        """End all faults, and forget the recorded requests."""
        self.requests: list[Request] = []
        self.decide: Callable[[int, Request], Fault | None] = lambda index, request: None

    def fail_at(self, count: int, fault: Fault = "refused", times: int | None = 1) -> None:
        """Heal, then have the request with this index fail, and those after it.

        Args:
            count: requests that still succeed.
            fault: the way in which they fail.
            times: the number of calls that fail; all from then on if None.
        """
        self.heal()
        self.decide = lambda index, request: (
            fault if index >= count and (times is None or index < count + times) else None
        )

    @contextlib.contextmanager
    def _passing(self, name: str, key: str, span: tuple[int, int] | None = None) -> Iterator[Fault | None]:
        """Run a request below, and fail before it, or after it if its answer is to be lost."""
        with self._lock:
            request = Request(name, key, span)
            self.requests.append(request)
            index = len(self.requests) - 1
        fault = self.decide(index, request)
        if fault == "refused" or (fault == "taken" and name != "put") or (fault == "cut" and name != "get"):
            raise _failed(request)
        yield fault
        if fault == "lost":
            raise _failed(request)

    def get(self, key: str, span: tuple[int, int] | None = None) -> tuple[Object, Iterable[bytes]]:
        with self._passing("get", key, span) as fault:
            found, pieces = self.inner.get(key, span)
            return found, list(pieces)[:-1] if fault == "cut" else pieces

    def head(self, key: str) -> Object | None:
        with self._passing("head", key):
            return self.inner.head(key)

    def put(self, key: str, data: bytes, tag: str | None = None) -> str:
        with self._passing("put", key) as fault:
            if fault == "taken":
                raise TakenError(key) if tag is not None else _failed(Request("put", key))
            return self.inner.put(key, data, tag)

    def list(self, prefix: str) -> list[Object]:
        with self._passing("list", prefix):
            return self.inner.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            with self._passing("delete", key):
                self.inner.delete([key])


def _failed(request: Request) -> RemoteError:
    return RemoteError(f"a fault that a test asked for: {request.name} {request.key}")
