"""The work of the commands for stores under a URL: to push a local one, pull a copy, give space back."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import shutil
import time
from collections.abc import Iterator

from diskreplay.errors import CorruptionError, InputError
from diskreplay.formats.core.output import replacing
from diskreplay.ops.convert import absolute, vacant
from diskreplay.ops.result import Result
from diskreplay.ops.signals import Progress
from diskreplay.ops.verify import verify
from diskreplay.remote import (
    Garbage,
    Objects,
    ObjectStore,
    Push,
    RemoteFiles,
    collect_garbage,
    local,
    needed_arrays,
    needed_objects,
    open_remote,
)
from diskreplay.storage import metadata, root, tail
from diskreplay.storage.files import translate_reads
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import PathLike, checked_url, is_url
from diskreplay.storage.store import CHECKPOINTS, STREAMS, Store, checkpoint_files
from diskreplay.storage.stream import parents

PIECE_BYTES = 8 << 20
"""The bytes of a shard that are copied at a time."""


@dataclasses.dataclass(frozen=True)
class Pushed(Result):
    """The bytes and files that were sent.

    Attributes:
        url: the URL that was pushed to.
        streams: rows of each that are remote now, by name.
        requests, sent_bytes: made and sent.
        seconds: it took.
        taken: names of checkpoints that were not sent, since another's has the name there.
    """

    url: str
    streams: dict[str, int]
    requests: int
    sent_bytes: int
    seconds: float
    taken: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Pulled(Result):
    """The bytes and files that were copied.

    Attributes:
        path: the path of the copy.
        streams: rows of each, by name.
        checkpoints: names.
        stored_bytes: the bytes that the copy takes.
        seconds: it took.
    """

    path: str
    streams: dict[str, int]
    checkpoints: tuple[str, ...]
    stored_bytes: int
    seconds: float


def push(path: PathLike, url: str, objects: Objects | None = None) -> Pushed:
    """Send what is new of every stream of the store at ``path`` to a URL; nobody may write the streams meanwhile.

    Args:
        path: the path of a local store.
        url: the URL of the remote store, which is made if there is none.
        objects: the objects to send it to, in the place of those at the URL.

    Raises LockedError where a stream is being written (opened with ``remote=url`` its writer pushes), RemoteError,
    RemoteConflictError where the URL holds another store, or streams with other rows.
    """
    started = time.perf_counter()
    store = Store(local(path, "pushing"), LocalFiles())
    there = objects or ObjectStore(checked_url(url))
    pushes = {name: Push(store, name, there) for name in store.stream_names()}
    with contextlib.ExitStack() as opened:
        for name in pushes:
            writer = opened.enter_context(store.write_stream(name))
            opened.callback(writer.close_files)
        for one in [*pushes.values()] * 2:  # a checkpoint over several streams goes once all of them are there
            one.run()
    sent = [one.sent for one in pushes.values()]
    return Pushed(
        there.url, {name: one.sent.end for name, one in pushes.items()}, sum(one.requests for one in sent),
        sum(one.sent_bytes for one in sent), time.perf_counter() - started,
        tuple(dict.fromkeys(name for one in sent for name in one.taken)),
    )  # fmt: skip


def pull(
    url: str, path: PathLike, *, progress: Progress | None = None, objects: Objects | None = None
) -> Pulled:  # fmt: skip
    """Copy the store under a URL into a new local one: all streams as of their newest records, all checkpoints.

    Every chunk is verified before the copy has its name. It is a store of its own: what is added to it can be pushed to
    another URL, not to this one.

    Args:
        url: the URL of the remote store.
        path: the path of the copy, where nothing may be yet.
        progress: a function, called with the bytes done and in all.
        objects: the objects to read, in the place of those at the URL.

    Raises InputError where something is at ``path``, CorruptionError where the copy is not right, RemoteError.
    """
    if not is_url(url):
        raise InputError(f"pull copies a store from a URL such as s3://bucket/pong.replay, got {url!r}")
    started = time.perf_counter()
    target = absolute(path)
    vacant(target, "choose another name for the copy")
    with replacing(target, "directory") as temporary:
        mirror = temporary.with_name(f"{temporary.name}-mirror")
        files = open_remote(objects or ObjectStore(url), mirror)
        store = Store(files.url, files)
        first, keys = _copy_first(store, files, temporary)
        done = sum(first)
        total = done + sum(files.size(f"{files.url}/{key}") or 0 for key in keys)
        for key in keys:
            done += _copy(files, key, temporary / key)
            if progress is not None:
                progress(done, total)
        found = verify(temporary)
        if not found.ok:
            problem = found.problems[0]
            raise CorruptionError(f"the copy of {files.url!r} is not right: {problem}", file=files.url)
        copied = Store(str(temporary), LocalFiles())
        rows = {name: commit.end for name, commit in copied.newest_commits().items()}
        checkpoints = tuple(copied.checkpoint_names())
    return Pulled(str(target), rows, checkpoints, done, time.perf_counter() - started)


def gc(
    url: str, older_than: float, *, dry_run: bool = False, objects: Objects | None = None
) -> Garbage:  # fmt: skip
    """Remove objects of the store under a URL that nothing has needed for ``older_than`` seconds.

    Args:
        url: the URL of the remote store.
        older_than: seconds. Readers that refresh more often lose nothing that they read.
        dry_run: only say what would be removed.
        objects: the objects to use in the place of those at the URL.
    """
    if older_than < 0:
        raise InputError(f"older_than must be 0 or more seconds, got {older_than}")
    files = open_remote(objects or ObjectStore(checked_url(url)))
    return collect_garbage(files, older_than, dry_run=dry_run)


def _copy_first(store: Store, files: RemoteFiles, target: pathlib.Path) -> tuple[list[int], list[str]]:
    """Copy the documents and tails of one moment; return their bytes, and the keys of what else they need.

    They come first: a push removes a tail soon after its writer has left it, and then newer records name another.
    """
    while True:
        keys = list(dict.fromkeys(_keys(store)))
        commits = store.newest_commits()
        documents = [key for key in keys if _is_document(key)]
        tails = [key for key in keys if tail.number_of(key.rpartition("/")[2]) is not None]
        try:
            sizes = [_copy(files, key, target / key) for key in (*documents, *tails)]
            return sizes, [key for key in keys if key not in {*documents, *tails}]
        except CorruptionError:
            files.refresh()
            if store.newest_commits() == commits:
                raise
            shutil.rmtree(target)


def _keys(store: Store) -> Iterator[str]:
    yield metadata.NAME
    yield f"{STREAMS}/{metadata.NAME}"
    yield f"{CHECKPOINTS}/{metadata.NAME}"
    copies = root.copies(store.files, store.path)
    yield from (file.removeprefix(f"{store.path}/") for file, ours in copies.items() if ours == store.attributes)
    commits = store.newest_commits()
    checkpoints = [
        one for one in store.checkpoints()  # one that was listed after the records is of another moment
        if all(name in commits and cut.sequence <= commits[name].sequence for name, cut in one.cut.items())
    ]  # fmt: skip
    for name, newest in commits.items():
        arrays = *needed_arrays(store.schema, newest), *(column.name for column in store.schema.columns)
        nodes = {node for path in arrays for node in parents(path)}
        yield f"{STREAMS}/{name}/{metadata.NAME}"
        yield from (f"{STREAMS}/{name}/{node}/{metadata.NAME}" for node in sorted(nodes))
        for commit in (newest, *(checkpoint.cut[name] for checkpoint in checkpoints if name in checkpoint.cut)):
            yield from (one.key for one in needed_objects(store.schema, name, commit))
    for checkpoint in checkpoints:
        folder = f"{CHECKPOINTS}/{checkpoint.name}"
        yield f"{folder}/{metadata.NAME}"
        yield from (f"{folder}/{file}" for file in checkpoint_files(store.files, f"{store.path}/{folder}", checkpoint))


def _is_document(key: str) -> bool:
    return key.rpartition("/")[2] in (metadata.NAME, root.COPY)


def _copy(files: RemoteFiles, key: str, target: pathlib.Path) -> int:
    path = f"{files.url}/{key}"
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        if _is_document(key):
            data = files.read(path)
            target.write_bytes(data)
            return len(data)
        with translate_reads(path), target.open("wb") as out:
            file = files.open(path)
            file.pread(1, 0)  # downloads all of it: a copy may be larger than what was listed
            at = 0
            while piece := file.pread(PIECE_BYTES, at):
                out.write(piece)
                at += len(piece)
    except FileNotFoundError as error:
        raise CorruptionError(f"{path!r} is missing", file=path) from error
    return at
