"""The one seam to object storage: every request of a remote store goes through here.

:class:`Objects` names the requests, :class:`ObjectStore` makes them through `obstore`, and a test puts another
implementation in its place to fail, delay or lose them. Keys are relative to the store's URL. What is assumed of the
storage: a put replaces an object whole or not at all; who reads or lists after a put sees it; a put with a condition
is done only where the condition holds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from diskreplay.errors import InputError, RemoteError
from diskreplay.process.background import start_thread
from diskreplay.process.locks import in_main_thread
from diskreplay.remote import failures, listing
from diskreplay.remote.downloads import Download
from diskreplay.storage.paths import checked_url

NEW = ""
"""The tag of an object that is not there: a put on this condition makes one, and replaces none."""
PIECE_BYTES = 8 << 20
"""The bytes of a piece of a large object that is downloaded."""
MOST_BYTES = 1 << 40
"""The most bytes of a shard, which its writer made."""
SMALL_BYTES = 256 << 10
"""The most bytes of an object whose put is answered as soon as a question is."""
ATTEMPTS = 10
"""The most tries of a put whose condition holds, and which the storage refuses."""
RETRY_SECONDS = 60.0
"""The seconds for which a request is tried again before it has failed."""
MOST_RETRIES = 10_000
"""More retries than fit into these seconds, which alone are to end them."""
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.1, 5.0
"""The seconds between two tries, at first and at most."""
CUT = "list response body"
"""The words of `obstore` for a listing that was cut on its way, which it does not ask for again itself."""
ANSWER_SECONDS = 30.0
"""The most seconds of one try of a question (:class:`Connections`), or until the next bytes of a download."""
TRANSFER_SECONDS = 600.0
"""The most seconds of one try of a whole transfer: a shard is put at once, and networks are slow."""

Answer = TypeVar("Answer")


class TakenError(Exception):
    """Raised by a put whose condition does not hold: somebody else was there, or this put was, and its answer lost."""


@dataclasses.dataclass(frozen=True)
class Object:
    """The facts of an object in a listing.

    Attributes:
        key: relative to the store's URL.
        size: bytes.
        tag: changes whenever the object is replaced.
        time: the time of the last put, seconds since the epoch, by the storage's clock.
    """

    key: str
    size: int
    tag: str
    time: float


class Objects(Protocol):
    """The requests of a remote store; a missing object is a FileNotFoundError, all other failures are RemoteErrors."""

    url: str
    """The URL as the user wrote it, without what is secret; keys are named below it."""

    def get(self, key: str, span: tuple[int, int] | None = None) -> tuple[Object, Iterable[bytes]]:
        """Return an object and its bytes piece by piece, only those from ``span[0]`` on below ``span[1]`` if given."""

    def head(self, key: str) -> Object | None:
        """Return an object, or None if there is none."""

    def put(self, key: str, data: bytes, tag: str | None = None) -> str:
        """Make or replace an object, and return its new tag.

        With a ``tag``: only if the object there has that one, or for :data:`NEW` if there is none; else raise
        TakenError.
        """

    def list(self, prefix: str) -> list[Object]:
        """Return all objects whose keys begin with ``prefix``, in the order of their keys."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; those that are missing do not matter."""


def read(objects: Objects, key: str, most: int) -> tuple[Object, bytes]:
    """Return a whole object of at most ``most`` bytes; raise RemoteError if it is larger or cut short."""
    found, pieces = objects.get(key)
    data = bytearray()
    for piece in pieces if found.size <= most else ():
        data += piece
        if len(data) > found.size:
            break
    if found.size > most:
        raise RemoteError(f"{objects.url}/{key} has {found.size:,} bytes; no such object has more than {most:,}")
    if len(data) != found.size:
        raise RemoteError(f"{objects.url}/{key} gave {len(data):,} bytes instead of {found.size:,}; try again")
    return found, bytes(data)


def find(objects: Objects, key: str, most: int = MOST_BYTES) -> tuple[Object, bytes] | None:
    """Return an object as :func:`read`, or None if there is none."""
    try:
        return read(objects, key, most)
    except FileNotFoundError:
        return None


def put_over(objects: Objects, key: str, data: bytes, tag: str, most: int = MOST_BYTES) -> str:
    """Replace the object with a tag, or none (``NEW``), and return the new tag; raise TakenError for another tag.

    One that is there has ``most`` bytes at the most.
    """
    for _ in range(ATTEMPTS):
        try:
            return objects.put(key, data, tag)
        except TakenError:
            there = find(objects, key, most)
            if there is not None and there[1] == data:
                return there[0].tag  # the answer was lost
            if (there[0].tag if there is not None else NEW) != tag:
                raise
            # A conflict with a put that was not done either.
    raise RemoteError(f"{objects.url}/{key}: the storage refuses the put again and again; try again")


class ObjectStore:
    """Requests by `obstore`, which takes credentials and endpoints from the environment, as the AWS tools do.

    Args:
        url: the URL of the store.

    Raises InputError for a URL that names none, ImportError's message as InputError where obstore is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = checked_url(url)
        self._process = os.getpid()
        self._obstore = _obstore()
        self._connected: Connections | None = None
        self._bare_tags = False
        """True if the storage compares tags without their quotation marks."""
        with self._requests("", "opening"):
            self._connections()

    def get(self, key: str, span: tuple[int, int] | None = None) -> tuple[Object, Iterable[bytes]]:
        options: Any = None if span is None else {"range": span}

        def ask() -> Any:
            return self._obstore.get(self._connections().download, key, options=options)

        found = self._ask("downloading", key, ask)
        return _object(key, found.meta), self._pieces(key, found)

    def _pieces(self, key: str, found: Any) -> Iterator[bytes]:
        stream = iter(found.stream(min_chunk_size=PIECE_BYTES))
        while True:
            try:
                with self._requests(key, "downloading"):
                    piece = next(stream, None)
            except FileNotFoundError as error:
                raise RemoteError(f"{self.url}/{key} was removed while it was downloaded; try again") from error
            if piece is None:
                return
            yield bytes(piece)

    def head(self, key: str) -> Object | None:
        try:
            found = self._ask("looking for", key, lambda: self._obstore.head(self._connections().question, key))
            return _object(key, found)
        except FileNotFoundError:
            return None

    def put(self, key: str, data: bytes, tag: str | None = None) -> str:
        bare = tag.strip('"') if tag else tag
        if bare == tag:
            return self._put(key, data, tag)
        if not self._bare_tags:
            try:
                return self._put(key, data, tag)
            except TakenError:
                # Ceph's gateway compares the quotation marks, too, and what it keeps has none.
                found = self.head(key)
                if found is None or found.tag != tag:
                    raise
        made = self._put(key, data, bare)
        self._bare_tags = True
        return made

    def _put(self, key: str, data: bytes, tag: str | None) -> str:
        mode: Any = "overwrite" if tag is None else "create" if tag == NEW else {"e_tag": tag}
        # Conditions do not go with uploads in parts; and what is small needs none.
        whole = tag is not None or len(data) <= PIECE_BYTES
        if tag and self.url.startswith("file://"):
            return self._put_local(key, data, tag)

        def ask() -> Any:
            connections = self._connections()
            store = connections.question if len(data) <= SMALL_BYTES else connections.upload
            return self._obstore.put(store, key, data, mode=mode, use_multipart=not whole)

        try:
            answer = self._ask("uploading", key, ask)
        except FileNotFoundError as error:
            if not tag:
                raise RemoteError(
                    f"uploading {self.url}/{key} failed: there is no such bucket or folder; make it, or name another"
                ) from error
            raise TakenError(key) from error  # so S3 says that there is nothing to replace
        return str(answer["e_tag"] or "")

    def _put_local(self, key: str, data: bytes, tag: str) -> str:
        """Put on a file system, which knows no conditions: who replaces looks before, one at a time."""
        with self._requests(key, "uploading"), _locked(self.url.partition("://")[2]):
            found = self.head(key)
            if found is None or found.tag != tag:
                raise TakenError(key)
            return self.put(key, data)

    def list(self, prefix: str) -> list[Object]:
        def ask() -> list[Object]:
            # `obstore` lists below a prefix of whole parts.
            until, pause = time.monotonic() + RETRY_SECONDS, FIRST_PAUSE_SECONDS
            while True:
                try:
                    listed = listing.metas(self._obstore, self._connections().question, prefix.rpartition("/")[0])
                    return [_object(str(one["path"]), one) for one in listed]
                except self._obstore.exceptions.BaseError as error:
                    if CUT not in str(error) or time.monotonic() + pause > until:
                        raise
                time.sleep(pause)
                pause = min(2 * pause, MOST_PAUSE_SECONDS)

        found = self._ask("listing", prefix, ask)
        return sorted((one for one in found if one.key.startswith(prefix)), key=lambda one: one.key)

    def delete(self, keys: Iterable[str]) -> None:
        def ask(key: str) -> Any:
            return self._obstore.delete(self._connections().question, key)

        for key in keys:
            try:
                self._ask("deleting", key, functools.partial(ask, key))
            except FileNotFoundError:
                continue

    def _ask(self, action: str, key: str, ask: Callable[[], Answer]) -> Answer:
        if os.getpid() != self._process:
            raise RemoteError(
                f"{action} {self.url}/{key}: a forked process has none of the threads that requests need; start it "
                "with multiprocessing's 'spawn' or 'forkserver', or open the store in it"
            )
        with self._requests(key, action):
            if not in_main_thread():
                return ask()
            asked = Download(lambda _: ask())  # a Ctrl-C is noticed while it is waited for, not in obstore itself
            start_thread(asked.run, "diskreplay-request")
            return asked.result()

    def _connections(self) -> Connections:
        found = self._connected
        if found is None:
            found = self._connected = Connections.of(self.url)
        return found

    @contextlib.contextmanager
    def _requests(self, key: str, action: str) -> Iterator[None]:
        """Turn obstore's errors inside into FileNotFoundError, TakenError or RemoteError that names the object."""
        place = f"{self.url}/{key}" if key else self.url
        errors = self._obstore.exceptions
        try:
            yield
        except (RemoteError, InputError, TakenError):
            raise
        except (errors.BaseError, OSError, ValueError) as error:
            text = str(error)
            if (
                isinstance(error, errors.NotFoundError | FileNotFoundError)
                and failures.code(text) not in failures.BUCKET
            ):
                raise FileNotFoundError(2, "there is no such object", place) from None
            if isinstance(error, errors.InvalidPathError):
                raise RemoteError(
                    f"{action} {place} failed: an object there has a name that no store has: {text.splitlines()[0]}; "
                    "remove it"
                ) from None
            if isinstance(error, errors.AlreadyExistsError | errors.PreconditionError):
                raise TakenError(place) from None
            denied = errors.PermissionDeniedError | errors.UnauthenticatedError | PermissionError
            refused = isinstance(error, denied)
            if failures.is_of_credentials(text, refused):
                self._connected = None  # the next request looks for credentials anew
            # What obstore says is not shown beside ours: it repeats all that the storage said, secrets among it.
            raise RemoteError(f"{action} {place} failed: {failures.explained(text, refused)}") from None


@dataclasses.dataclass(frozen=True)
class Connections:
    """The storage at a URL as `obstore` has it, by how long a request may take.

    Attributes:
        question: for what is answered at once: listings, deletions, puts of small objects.
        download: for what is answered at once, and then may take long as long as bytes come.
        upload: for what is answered when all is there.
    """

    question: Any
    download: Any
    upload: Any

    @staticmethod
    def of(url: str) -> Connections:
        options = _options(url)
        if not url.startswith("file://"):
            answer, transfer = (datetime.timedelta(seconds=most) for most in (ANSWER_SECONDS, TRANSFER_SECONDS))
            question = _connected(url, options, timeout=answer)
            download = _connected(url, options, timeout=transfer, read_timeout=answer)
            return Connections(question, download, _connected(url, options, timeout=transfer))
        store = _connected(url, options)
        return Connections(store, store, store)


def _object(key: str, meta: Any) -> Object:
    return Object(key, int(meta["size"]), str(meta["e_tag"] or ""), meta["last_modified"].timestamp())


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Hold the lock of a directory, against others who ask for it."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _obstore() -> Any:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise InputError("stores under a URL need obstore: pip install 'diskreplay[remote]'") from error
    return obstore


def connect(url: str) -> Any:
    """Return the storage at a URL as `obstore` has it, to be read."""
    return Connections.of(url).download


def _connected(url: str, options: Mapping[str, Any], **seconds: datetime.timedelta) -> Any:
    client = {"client_options": {**options["client_options"], **seconds}} if seconds else {}
    return _obstore().store.from_url(url, **{**options, **client})


def _options(url: str) -> dict[str, Any]:
    scheme = url.partition("://")[0]
    if scheme == "file":
        return {"mkdir": True}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    # Who wrote an endpoint without TLS wants that.
    client = {"allow_http": True} if scheme == "s3" and endpoint.startswith("http://") else {}
    total, first, most = (
        datetime.timedelta(seconds=seconds) for seconds in (RETRY_SECONDS, FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS)
    )
    pauses = {"init_backoff": first, "max_backoff": most}
    retry = {"retry_timeout": total, "max_retries": MOST_RETRIES, "backoff": pauses}
    return {"client_options": client, "retry_config": retry, **(_amazon(endpoint) if scheme == "s3" else {})}


def _amazon(endpoint: str) -> dict[str, Any]:
    """Return what the AWS tools know and `obstore` does not look for: the endpoint of S3 alone, profiles in files."""
    # Objects are deleted one by one, which every server knows; of many at once some know nothing.
    found: dict[str, Any] = {"disable_bulk_delete": True, **({"endpoint": endpoint} if endpoint else {})}
    if "AWS_ACCESS_KEY_ID" not in os.environ and os.environ.get("AWS_SKIP_SIGNATURE", "") not in ("true", "1"):
        try:
            import boto3
            from obstore.auth.boto3 import Boto3CredentialProvider
        except ImportError:
            return found
        session = boto3.Session()
        if session.get_credentials() is not None:
            found["credential_provider"] = Boto3CredentialProvider(session)
            if session.region_name and "AWS_REGION" not in os.environ:
                found["region"] = session.region_name
    return found
