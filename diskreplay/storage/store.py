"""The store: one directory that is a Zarr v3 group of streams and checkpoints.

The root's attributes hold the format version, the schema and the settings that a buffer wants to find again; they are
written once. A checkpoint is a group below ``checkpoints`` whose attributes hold the commit record of every stream
at that moment and the state of whoever samples; it pins the rows that it needs until it is dropped. Checkpoints are
ordered by numbers, never by the clock: each has one more than the greatest that its maker saw.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import hashlib
import os
import secrets
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, TypeVar

from numpy.typing import NDArray

from diskreplay.checks import check_count, check_flag, check_key
from diskreplay.errors import (
    CheckpointError,
    CorruptionError,
    EvictedError,
    InputError,
    LockedError,
    NotAStoreError,
    RemoteError,
    SchemaError,
    StoreExistsError,
)
from diskreplay.process import lifecycle
from diskreplay.schema.columns import Continuity, Schema
from diskreplay.storage import attachments, checkpoint_arrays, metadata, root, stream, tail, temporaries
from diskreplay.storage import files as fs
from diskreplay.storage.attachments import Attachment, Staged
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.commit import MAX_ENVS, MAX_NUMBER, MAX_STREAMS, Commit, check_size
from diskreplay.storage.stream import TEMPORARY_STREAM, StreamReader, StreamWriter

STREAMS, CHECKPOINTS = stream.STREAMS, stream.CHECKPOINTS
FIRST_STREAM = "0"
PROVENANCE = "provenance"
"""The name of the setting that says where the steps come from."""
NO_CHECKPOINT = contextlib.nullcontext()
"""The block of a read that no checkpoint can go under."""
STORE_LOCK = "store-lock"
"""The file whose lock is the store's, in the scratch directory of the stream with the lowest number."""
LOCK_SECONDS = 60.0
"""The seconds to wait for another process that adds a stream, which takes it milliseconds."""


Said = TypeVar("Said")
Known = dict[str, tuple[bytes, Said]]
"""Of each checkpoint, by its name, the digest of its document, and something that it says."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A named cut over all streams.

    Attributes:
        name: the name of the checkpoint.
        cut: commit record of each stream, by its name.
        state: the state of the sampler, the random generator and the view; JSON.
        metadata: the user's own; JSON.
        time: seconds since the epoch, for people; nothing depends on it.
        arrays: dtype and length of the arrays that stand beside, by name.
        number: its place in the order of all, from 1 on.
        id: a random name: a checkpoint that was dropped and made again has another.
        maker: the stream whose writer made it; None where a reader of a remote store did.
        attachments: files that it took along, by name.
        kept: True if newer ones of its maker that are made with ``keep`` drop it.
        pending: True until its maker has looked whether other writers gave up what it pins: until then it pins, and is
            none to readers.
    """

    name: str
    cut: dict[str, Commit]
    state: dict[str, Any]
    metadata: dict[str, Any]
    time: float
    arrays: dict[str, Any] = dataclasses.field(default_factory=dict)
    number: int = 0
    id: str = ""
    maker: str | None = None
    attachments: dict[str, Attachment] = dataclasses.field(default_factory=dict)
    kept: bool = False
    pending: bool = False

    @property
    def order(self) -> tuple[int, str]:
        """The key that sorts checkpoints, the oldest first."""
        return self.number, self.name

    def numbered(self, number: int, maker: str | None, values: Mapping[str, NDArray[Any]]) -> Checkpoint:
        """Return the checkpoint as its maker writes it, with an id of its own, and with arrays ``(n,)`` by name."""
        arrays = checkpoint_arrays.facts(values) if values else {}
        return dataclasses.replace(self, number=number, id=secrets.token_hex(8), maker=maker, arrays=arrays)

    def made_by(self) -> str:
        """Return its maker, in words."""
        return "a reader" if self.maker is None else f"the writer of the stream {self.maker!r}"


class Made(NamedTuple):
    """What a store remembers of a checkpoint: its place in the order, some of its facts, and some streams' commits.

    ``cuts`` has None for a stream that the checkpoint has not.
    """

    order: tuple[int, str]
    kept: bool
    pending: bool
    maker: str | None
    cuts: dict[str, Commit | None]


@dataclasses.dataclass(frozen=True)
class PartialStore:
    """One stream of a store whose others are elsewhere.

    Attributes:
        identity: the identity of the store.
        number: the number of the stream.
        num_envs, capacity: the number of environments and capacity of the stream.
        notes: files that stand in the stream's scratch directory from the beginning, by name.
    """

    identity: str
    number: int
    num_envs: int
    capacity: int
    notes: Mapping[str, bytes] = dataclasses.field(default_factory=dict)


class Store:
    """An open store directory, which holds no locks and no rows."""

    def __init__(self, path: str, files: fs.Files, read_root: root.Reading = root.read) -> None:
        """Open the store at ``path``, whose root ``read_root`` reads.

        Raises StoreNotFoundError, NotAStoreError, FormatVersionError or CorruptionError.
        """
        lifecycle.catch_up()  # a buffer that the collector found may still hold a lock
        self.path = path
        self.files = files
        self.attributes, self.root_copy = read_root(files, path)
        """Our attributes of the root, and the copy that they are from where its document cannot be read."""
        self.schema = Schema.from_json(self.attributes.get("schema"))
        settings = self.attributes.get("settings")
        self.settings: dict[str, Any] = settings if isinstance(settings, dict) else {}
        told = self.settings.get(PROVENANCE)
        self.provenance: dict[str, Any] = told if isinstance(told, dict) else {}
        self._greatest: int | None = None
        """The largest number of a checkpoint that was read, or None as long as not all were."""
        self._made: Known[Made] = {}
        self._cut_streams: set[str] = set()
        """The streams that :meth:`cuts` was asked for."""
        self._durable: dict[str, Commit] = {}
        """The record of each stream that was known to be durable last."""

    @staticmethod
    def create(
        path: str, files: fs.Files, schema: Schema, settings: dict[str, Any], first_stream: str = FIRST_STREAM,
        part: PartialStore | None = None, claim: Callable[[dict[str, Any]], None] = lambda document: None,
    ) -> Store:  # fmt: skip
        """Make a store with one empty stream, whole or not at all; raise SchemaError if its documents are too large.

        With ``part`` it is a part of a store that is elsewhere, too: one stream of it. ``claim`` is given the store's
        own document before there is a store at ``path``; what it raises leaves none.
        """
        parent, name = os.path.split(path)
        check_key(first_stream, "stream")
        part = part or PartialStore(secrets.token_hex(8), 0, schema.num_envs, schema.capacity)
        schema = dataclasses.replace(schema, identity=part.identity)
        document = root.document(schema, settings)
        try:
            metadata.compact(document, "the store's description")
            metadata.compact(stream.largest_record(schema).to_json(), "a commit of so many columns")
        except InputError as error:
            raise SchemaError(
                f"{error}: give a Box one bound for all elements (low=0, high=255), and the store fewer columns"
            ) from error
        with fs.translate("creating", path, kept=""), contextlib.ExitStack() as made:
            _check_free(files, path)
            made.enter_context(fs.made_dirs(files, parent))
            temporaries.sweep(files, parent, name)
            temporary, lock = temporaries.take(files, parent, name)
            try:
                fs.write(files, os.path.join(temporary, metadata.NAME), metadata.dump(document))
                for group in (STREAMS, CHECKPOINTS):
                    metadata.make(files, os.path.join(temporary, group), metadata.group_document())
                first = Commit.first(part.number, part.num_envs, part.capacity)
                place = os.path.join(temporary, STREAMS, first_stream)
                beside = {STORE_LOCK: b"", **root.copy(document), **part.notes}
                stream.create(files, place, schema, first, first_stream, beside)
                for directory in (os.path.join(temporary, STREAMS), os.path.join(temporary, CHECKPOINTS), temporary):
                    files.sync_dir(directory)
                claim(document)
                files.rename(temporary, path)
            except BaseException as error:
                with contextlib.suppress(OSError):  # what is left goes with the next store that is made there
                    fs.clear(files, temporary)
                if isinstance(error, OSError) and error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    _check_free(files, path)  # another process was first
                raise
            finally:
                lock.release()
            files.sync_dir(parent)
        return Store(path, files)

    def write_continuity(self, continuity: Continuity) -> None:
        """Write the store's own document again with another continuity, as long as it has no name yet (I2)."""
        self.schema = dataclasses.replace(self.schema, continuity=continuity)
        document = root.document(self.schema, self.settings)
        self.attributes = document["attributes"][metadata.KEY]
        with fs.translate("creating", self.path, kept=""):
            metadata.write(self.files, self.path, document)
            for file in root.copies(self.files, self.path):
                fs.replace(self.files, file, root.copy(document)[root.COPY])

    def stream_path(self, name: str) -> str:
        return f"{self.path}/{STREAMS}/{name}"

    def stream_names(self) -> list[str]:
        """Return the names of all streams, in the order of their numbers."""
        return list(self.newest_commits())

    def has_stream(self, name: str) -> bool:
        """Tell whether there is a stream of that name; where it has no record, which may be lost, all are listed."""
        file = os.path.join(self.stream_path(check_key(name, "stream")), metadata.NAME)
        with fs.translate_reads(file):
            return self.files.size(file) is not None or name in self.newest_commits()

    def newest_commits(self, writer: StreamWriter | None = None) -> dict[str, Commit]:
        """Return the newest commit of each stream by name, in the order of their numbers; a writer has its own."""
        commits = {} if writer is None else {writer.name: writer.commit_record}
        folder = os.path.join(self.path, STREAMS)
        names = [name for name in metadata.nodes(self.files, folder) if name not in commits]
        read = stream.read_commits(self.files, [f"{folder}/{name}" for name in names])
        for name in names:
            if (found := read.get(f"{folder}/{name}")) is not None:
                commits[name] = found
            elif self._is_stream(name):
                commits[name] = self.newest_commit(name)
        if not commits:
            stream.check_there(self.files, self.path)
            raise CorruptionError(f"{folder!r} holds no stream", file=folder)
        if len({commit.stream for commit in commits.values()}) != len(commits):
            numbers = sorted(commit.stream for commit in commits.values())
            raise CorruptionError(f"two streams of {self.path!r} have the same number: {numbers}", file=folder)
        return dict(sorted(commits.items(), key=lambda item: item[1].stream))

    def _is_stream(self, name: str) -> bool:
        """Tell whether what is there under a name is a stream: its record may be missing, but not all else."""
        place = self.stream_path(name)
        file = os.path.join(place, metadata.NAME)
        with fs.translate_reads(file):
            return self.files.size(file) is not None or name == FIRST_STREAM or bool(metadata.nodes(self.files, place))

    def check_stream(
        self, name: str, num_envs: int | None, capacity: int | None, checkpoint: Checkpoint | None = None
    ) -> None:
        """Raise InputError if a stream that exists is asked for with other environments, or less capacity.

        Less than it has, or had at a checkpoint; more is what it can grow to.
        """
        commit = self.newest_commit(name)
        if num_envs is not None and num_envs != commit.num_envs:
            raise InputError(
                f"num_envs of the stream {name!r} is {commit.num_envs} and does not change, got {num_envs!r}"
            )
        self._grown(name, checkpoint.cut.get(name, commit) if checkpoint is not None else commit, capacity)

    def _grown(self, name: str, commit: Commit, capacity: int | None) -> Commit:
        """Return the commit, with a larger capacity if given; raise InputError for a smaller one, as rows would go."""
        if capacity is None:
            return commit
        if check_size(commit.num_envs, capacity) < commit.capacity:
            raise InputError(
                f"the stream {name!r} has the capacity {commit.capacity:,}, and {capacity:,} would keep fewer rows: "
                f"where that is meant, call resize({capacity}) of the open buffer, or run 'diskreplay resize "
                f"{shlex.quote(self.path)} --stream {shlex.quote(name)} --capacity {capacity} --evict'"
            )
        return commit if capacity == commit.capacity else commit.resized(capacity, self.schema.context)

    def create_stream(self, name: str, num_envs: int, capacity: int) -> None:
        """Add an empty stream, which appears whole, between two listings of any reader."""
        check_key(name, "stream")
        check_sizes(num_envs, capacity)
        if num_envs != 1 and self.schema.videos:
            raise InputError(f"a store with video has one environment a stream, got num_envs={num_envs}")
        with fs.translate("creating the stream", name), self._locked() as scratch:
            others = self.newest_commits()
            if name in others:
                return
            number = 1 + max(commit.stream for commit in others.values())
            if number >= MAX_STREAMS:
                raise InputError(f"a store has at most {MAX_STREAMS} streams; write to another store")
            for left in self.files.list(scratch):
                if left.startswith(TEMPORARY_STREAM):  # of a process that died: this one holds the lock
                    fs.clear(self.files, os.path.join(scratch, left))
            temporary = fs.unused(self.files, os.path.join(scratch, f"{TEMPORARY_STREAM}{name}"))
            empty = Commit.first(number, num_envs, capacity)
            beside = root.copy(metadata.group_document(self.attributes)) if len(others) < root.COPIES else {}
            stream.create(self.files, temporary, self.schema, empty, name, beside)
            self.files.rename(temporary, self.stream_path(name))
            self.files.sync_dir(os.path.join(self.path, STREAMS))

    def put_root_back(self) -> None:
        """Write the root's document where a copy was read in its place, and nobody else has put it back."""
        with fs.translate("putting back the root document of", self.path), self._locked():
            try:
                root.read_document(self.files, self.path)
            except (NotAStoreError, CorruptionError):
                metadata.write(self.files, self.path, metadata.group_document(self.attributes))
        self.root_copy = None

    @contextlib.contextmanager
    def _locked(self, seconds: float = LOCK_SECONDS) -> Iterator[str]:
        """Hold the store's lock, and yield the scratch directory that it is in; LockedError after so many seconds."""
        file = stream.lock_file(self.stream_path(self.stream_names()[0]), STORE_LOCK)
        waited = time.monotonic()
        while (lock := self.files.lock(file)) is None:
            if time.monotonic() - waited >= seconds:
                raise LockedError(
                    f"{self.files.lock_holder(file)} has been adding a stream to {self.path!r} for "
                    f"{seconds:.0f} seconds; end it"
                )
            time.sleep(0.01)
        try:
            yield os.path.dirname(file)
        finally:
            lock.release()

    def first_commit(self) -> Commit:
        """Return the newest commit record of the store's first stream."""
        return next(iter(self.newest_commits().values()))

    def newest_commit(self, name: str) -> Commit:
        """Return the newest commit record of a stream, with errors as :func:`~.stream.newest_commit`."""
        return stream.newest_commit(self.files, self.stream_path(name), self.schema)

    def read_stream(self, name: str, commit: Commit, timeline: int) -> StreamReader:
        """Return the stream as of a commit; ``timeline`` is that of the newest one.

        CorruptionError also where a live writer has evicted a shard since, or went back: then there is a newer commit.
        """
        return StreamReader(self.files, self.stream_path(name), self.schema, commit, timeline)

    def write_stream(
        self, name: str, checkpoint: Checkpoint | None = None, may_go_back: Callable[[int], None] | None = None,
        capacity: int | None = None,
    ) -> StreamWriter:  # fmt: skip
        """Take the stream's lock and recover it, at its newest commit or back at a checkpoint's, or grown.

        Args:
            name: the name of the stream.
            checkpoint: the checkpoint to go back to.
            may_go_back: a function, called with the timeline that going back would begin, before anything is given up:
                it raises what stands against that.
            capacity: the capacity to which the stream grows; InputError if it has more.
        """

        def check() -> None:
            if checkpoint is not None:
                self.check_going_back(name, checkpoint)

        def choose(newest: Commit) -> Commit:
            stays = checkpoint is None or newest.says_the_same(checkpoint.cut[name])
            cut = self._grown(name, newest if checkpoint is None or stays else checkpoint.cut[name], capacity)
            if stays:
                return newest if cut == newest else cut.next()
            check()
            if may_go_back is not None:
                may_go_back(newest.timeline + 2)
            greatest = max(newest.last_checkpoint, cut.last_checkpoint)
            return dataclasses.replace(cut, sequence=newest.sequence, last_checkpoint=greatest).next(
                timeline=newest.timeline + 2  # going back is announced by a timeline of its own
            )

        if self.root_copy is not None:
            self.put_root_back()
        if checkpoint is not None and name not in checkpoint.cut:
            raise CheckpointError(
                f"checkpoint {checkpoint.name!r} has no stream {name!r}, which was made later; open its last commit"
            )
        writer = StreamWriter(
            self.files, self.stream_path(name), self.schema, functools.partial(self.cuts, name), choose, check,
            self._locked,
        )  # fmt: skip
        try:
            for one in self._checkpoints_made():
                if one.pending and one.maker == name:  # its maker was killed before it had looked
                    self.drop_checkpoint(one.order[1], writer)
        except BaseException:
            writer.release()
            raise
        return writer

    def check_going_back(self, name: str, checkpoint: Checkpoint, dropped: Collection[str] = ()) -> None:
        """Raise CheckpointError if other checkpoints need rows, or items, that going back to this one would discard.

        ``dropped`` names those that are to be dropped before.
        """
        cut = checkpoint.cut[name]
        later = [
            one.name for one in self._checkpoints()
            if name in one.cut and one.name not in dropped and one.cut[name].outlasts(cut)
        ]  # fmt: skip
        if later:
            raise CheckpointError(
                f"going back to checkpoint {checkpoint.name!r} would discard rows that {later} still need; drop "
                f"them first (drop_checkpoint), go on from the last commit, or open the checkpoint with mode='r'"
            )

    def readers(self, name: str, commit: Commit) -> dict[str, ColumnReader]:
        """Return readers of all columns of a stream by path below its group, with nothing loaded."""
        columns = self.schema.arrays | self.schema.logs
        return stream.open_columns(self.files, self.stream_path(name), self.schema, commit, ColumnReader, columns)

    def read_tail(self, name: str, commit: Commit) -> tail.Read:
        """Return what the tail of a commit holds; raise CorruptionError if it cannot be read."""
        return stream.read_tail(self.files, self.stream_path(name), self.schema, commit)

    def commit_before_damage(self, name: str, commit: Commit) -> Commit | None:
        """Return the commit of the last whole block of a damaged tail, as far as ``commit`` needs it, or None."""
        return stream.commit_before_damage(self.files, self.stream_path(name), self.schema, commit)

    def cuts(self, name: str) -> list[Commit]:
        """Return the commits of a stream that checkpoints hold."""
        self._cut_streams.add(name)
        made = self._checkpoints_made()
        while any(name not in one.cuts for one in made):  # they were remembered before this stream was asked for
            self._made = {}
            made = self._checkpoints_made()
        return [cut for one in made if (cut := one.cuts[name]) is not None]

    def cuts_of(self, names: Iterable[str]) -> dict[str, list[Commit]]:
        """Return the commits of several streams that checkpoints hold, by their names; each document is read once.

        What is made after this call needs no row that a record which is durable by now does not.
        """
        found: dict[str, list[Commit]] = {name: [] for name in names}
        for checkpoint in self._checkpoints():
            for name in found.keys() & checkpoint.cut.keys():
                cut = checkpoint.cut[name]
                if found[name][-1:] != [cut]:  # of most of many streams nothing is new between two checkpoints
                    found[name].append(cut)
        return found

    def checkpoint_names(self) -> list[str]:
        """Return the names of all checkpoints, oldest first."""
        return [one.order[1] for one in self._checkpoints_made() if not one.pending]

    def kept_checkpoint_names(self, maker: str | None) -> list[str]:
        """Return the names of those that a maker made with ``keep``, oldest first."""
        return [one.order[1] for one in self._checkpoints_made() if one.kept and one.maker == maker]

    def _checkpoints_made(self) -> list[Made]:
        """Return what is remembered of each checkpoint that is there now, oldest first."""
        self._made = known = self._said(self._remembered, self._made)
        made = sorted((one for _, one in known.values()), key=lambda one: one.order)
        self._greatest = max([self._greatest or 0, *(one.order[0] for one in made)])
        return made

    def _remembered(self, one: Checkpoint) -> Made:
        """Return what is remembered of a checkpoint."""
        return Made(
            one.order, one.kept, one.pending, one.maker, {name: one.cut.get(name) for name in self._cut_streams}
        )

    def checkpoints(self, among: Collection[str] | None = None) -> list[Checkpoint]:
        """Return all checkpoints, oldest first, or only those whose names are ``among`` these."""
        return [one for one in self._checkpoints(among) if not one.pending]

    def _checkpoints(self, among: Collection[str] | None = None) -> list[Checkpoint]:
        """Return checkpoints as :meth:`checkpoints`, and those that are pending."""
        found = sorted((one for _, one in self._said(lambda one: one, {}, among).values()), key=lambda one: one.order)
        if among is None:
            self._greatest = max([self._greatest or 0, *(one.number for one in found)])
        return found

    def _said(
        self, what: Callable[[Checkpoint], Said], known: Known[Said], among: Collection[str] | None = None
    ) -> Known[Said]:
        """Return something of each checkpoint that is there now, or of those ``among`` these names.

        All documents are read: one that was dropped may have been made again under its name. What has the bytes of a
        ``known`` one is not parsed again.
        """
        folder = os.path.join(self.path, CHECKPOINTS)
        found: Known[Said] = {}
        names = metadata.nodes(self.files, folder) if among is None else list(among)
        for name in names:
            directory = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # being dropped right now
                data = metadata.read_bytes(self.files, directory)
                digest = _digest(data)
                if name in known and known[name][0] == digest:
                    found[name] = known[name]
                    continue
                metadata.check_no_link(self.files, folder, directory)
                found[name] = digest, what(_checkpoint(directory, metadata.attributes(directory, data)))
        if among is None and len(found) < len(names) and metadata.other_nodes(self.files, folder, names):
            return self._said(what, known)
        return found

    def next_number(self, writer: StreamWriter | None = None) -> int:
        """Return one more than the greatest number of a checkpoint that was read, or that a writer noted.

        A writer notes its number in a commit before it makes the checkpoint: so documents need to be read once only,
        and no number is given again by whoever dropped its checkpoint.
        """
        if self._greatest is None:
            self.checkpoint_names()
        noted = (commit.last_checkpoint for commit in self.newest_commits(writer).values())
        return min(max([self._greatest or 0, *noted]) + 1, MAX_NUMBER)

    def checkpoint(self, name: str) -> Checkpoint:
        """Return the checkpoint of that name; raise CheckpointError if there is none."""
        found = self._said(lambda one: one, {}, [check_key(name, "checkpoint")])
        if name not in found or found[name][1].pending:
            raise self._no_checkpoint(name)
        return found[name][1]

    def _check_made(self, name: str) -> None:
        """Raise CheckpointError if there is no checkpoint of that name, pending or not."""
        if not self._said(self._remembered, self._made, [check_key(name, "checkpoint")]):
            raise self._no_checkpoint(name)

    def _no_checkpoint(self, name: str) -> CheckpointError:
        stream.check_there(self.files, self.path)
        return CheckpointError(f"there is no checkpoint {name!r}; there are {self.checkpoint_names() or 'none'}")

    def reading(self, checkpoint: Checkpoint | None) -> contextlib.AbstractContextManager[None]:
        """Return a block that raises CheckpointError if what is read in it has gone with the checkpoint it is of."""
        return NO_CHECKPOINT if checkpoint is None else self._reading(checkpoint)

    @contextlib.contextmanager
    def _reading(self, checkpoint: Checkpoint) -> Iterator[None]:
        try:
            yield
        except (CorruptionError, EvictedError, OSError) as error:
            if self.has(checkpoint):
                raise
            raise CheckpointError(
                f"the checkpoint {checkpoint.name!r} of {self.path!r} was dropped while it was read; open another "
                '("latest"), or the last commit'
            ) from error

    def has(self, checkpoint: Checkpoint) -> bool:
        """Tell whether a checkpoint that was read is still there."""
        with contextlib.suppress(RemoteError):
            self.files.refresh()
        with contextlib.suppress(CheckpointError):
            return self.checkpoint(checkpoint.name).id == checkpoint.id
        return False

    def check_new_checkpoint(self, name: str) -> str:
        """Return where a checkpoint of that name will stand; raise InputError or CheckpointError if none can."""
        target = os.path.join(self.path, CHECKPOINTS, check_key(name, "checkpoint"))
        with fs.translate_reads(target):
            taken = self.files.size(os.path.join(target, metadata.NAME)) is not None
        if taken:
            raise CheckpointError(f"there is a checkpoint {name!r} already; drop it first, or choose another name")
        return target

    def read_arrays(self, checkpoint: Checkpoint) -> dict[str, NDArray[Any]]:
        """Return the arrays that the checkpoint was written with, ``(n,)`` each, by name."""
        folder = os.path.join(self.path, CHECKPOINTS, checkpoint.name)
        with self.reading(checkpoint), fs.translate_reads(folder):
            return checkpoint_arrays.read(self.files, folder, checkpoint.arrays)

    def open_attachment(self, checkpoint: Checkpoint, name: str) -> BinaryIO:
        """Open a file of a checkpoint to be read; raise CheckpointError if it has none of that name."""
        if name not in checkpoint.attachments:
            has = f"it has {', '.join(map(repr, checkpoint.attachments))}" if checkpoint.attachments else "it has none"
            raise CheckpointError(f"the checkpoint {checkpoint.name!r} has no attachment {name!r}; {has}")
        folder = os.path.join(self.path, CHECKPOINTS, checkpoint.name)
        reading = functools.partial(self.reading, checkpoint)
        with reading():
            return attachments.open_attachment(self.files, folder, checkpoint.attachments[name], reading)

    def write_checkpoint(
        self, writer: StreamWriter, checkpoint: Checkpoint, values: Mapping[str, NDArray[Any]],
        staged: Staged | None = None,
    ) -> bool:  # fmt: skip
        """Make a checkpoint, with arrays ``(n,)`` by name, durable, with the number that the newest commit noted.

        It takes the files over that are ``staged``. False when another stream's writer gave up meanwhile what it pins:
        then there is none, and the files wait where they were.
        """
        target = self.check_new_checkpoint(checkpoint.name)
        checkpoint = checkpoint.numbered(writer.commit_record.last_checkpoint, writer.name, values)
        others = {name: commit for name, commit in checkpoint.cut.items() if name != writer.name}
        looked = checkpoint_document(checkpoint)
        made = checkpoint_document(dataclasses.replace(checkpoint, pending=True)) if others else looked
        writing = f"writing the checkpoint {checkpoint.name!r} of"
        with writer.fail_stop(writing):
            for name, commit in others.items():  # a record that was read may not be durable yet
                if self._durable.get(name) is not commit:
                    self.files.sync_dir(self.stream_path(name))
                    self._durable[name] = commit
            temporary = fs.unused(self.files, os.path.join(writer.scratch, f".tmp-checkpoint-{checkpoint.name}"))
            lay_out_checkpoint(self.files, temporary, made, values, staged)
            if moved := fs.allowed(self.files.rename, temporary, target, refusals=fs.TAKEN):
                self.files.sync_dir(os.path.dirname(target))
            else:  # another made one of that name meanwhile
                fs.clear(self.files, temporary)
        if not moved:
            self.check_new_checkpoint(checkpoint.name)
            raise CheckpointError(f"what is left of a dropped checkpoint is at {target!r}; choose another name")
        places = [self.stream_path(name) for name in others]
        read = stream.read_commits(self.files, places)
        for place, commit in zip(places, others.values(), strict=True):
            newest = read.get(place) or stream.read_commit(self.files, place)
            moved = newest is not commit and (newest.evicted_since(commit) or newest.timeline != commit.timeline)
            if moved or commit.back:
                self.drop_checkpoint(checkpoint.name, writer, staged)
                return False
        if others:
            with writer.fail_stop(writing):
                temporary = os.path.join(writer.scratch, ".tmp-looked")
                fs.replace(self.files, os.path.join(target, metadata.NAME), looked, temporary)
        self._made[checkpoint.name] = _digest(looked), self._remembered(checkpoint)  # to parse it would take as long
        return True

    def drop_checkpoint(self, name: str, writer: StreamWriter, staged: Staged | None = None) -> None:
        """Remove a checkpoint; the writer's next commit gives the space back that only it needed.

        Its files go back to where they were ``staged``, for the next attempt. What the system holds on to is left for
        the next opening. Raises CheckpointError, and the writer goes on, where that is the checkpoint itself.
        """
        action = f"dropping the checkpoint {name!r} of"
        writer.check_place(action)  # before another store's checkpoints are looked through
        self._check_made(name)
        place = os.path.join(self.path, CHECKPOINTS, name)
        writer.dropped = True
        with writer.fail_stop(action):
            doomed = fs.unused(self.files, os.path.join(writer.scratch, f".tmp-dropped-{name}"))
            if moved := fs.allowed(self.files.rename, place, doomed):
                self.files.sync_dir(os.path.dirname(place))
                if staged is not None:
                    self.files.rename(os.path.join(doomed, attachments.GROUP), staged.directory)
                fs.clear(self.files, doomed)
            elif moved := fs.allowed(self.files.unlink, os.path.join(place, metadata.NAME)):
                self.files.sync_dir(place)  # without a document there is no checkpoint
                writer.remove_half_made(place)
        if not moved:
            self._check_made(name)  # raises if another process has just dropped it
            raise CheckpointError(f"the file system does not let {place!r} be moved or removed; mend its permissions")


def check_sizes(num_envs: int, capacity: int) -> None:
    """Raise InputError if no stream can have so many environments, and transitions in its window."""
    check_size(check_count("num_envs", num_envs, most=MAX_ENVS), capacity)


def _digest(document: bytes) -> bytes:
    return hashlib.blake2b(document, digest_size=16).digest()


def newest(checkpoints: Iterable[Checkpoint], maker: str | None) -> Checkpoint | None:
    """Return the newest checkpoint of a stream's writer, or of a reader (None), which without its own takes any."""
    found = list(checkpoints)
    own = [one for one in found if one.maker == maker]
    return max(own if own or maker is not None else found, key=lambda one: one.order, default=None)


def read_checkpoint(files: fs.Files, folder: str) -> Checkpoint:
    """Read the checkpoint at a directory; raise FileNotFoundError or NotADirectoryError if there is none."""
    return _checkpoint(folder, metadata.read_attributes(files, folder))


def _checkpoint(folder: str, stored: dict[str, Any]) -> Checkpoint:
    """Return the checkpoint at a directory whose document has these attributes."""
    file = os.path.join(folder, metadata.NAME)
    try:
        cut = {check_key(of, "cut"): Commit.from_json(record, file) for of, record in stored["cut"].items()}
        parts = dict(stored["state"]), dict(stored["metadata"]), float(stored["time"]), dict(stored["arrays"])
        number = check_count("number", stored["number"], least=0, most=MAX_NUMBER)
        id, maker = stored["id"], stored["maker"]
        if not isinstance(id, str) or not isinstance(maker, str | None):
            raise ValueError(f"id must be text, and maker text or null, got {id!r} and {maker!r}")
        beside = attachments.from_json(stored.get(attachments.GROUP, {}))
        kept, pending = (check_flag(flag, stored.get(flag, False)) for flag in ("kept", "pending"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptionError(f"the checkpoint {file!r} cannot be read: {error!r}", file=file) from error
    return Checkpoint(os.path.basename(folder), cut, *parts, number, id, maker, beside, kept, pending)


def checkpoint_document(checkpoint: Checkpoint, parent: str = CHECKPOINTS) -> bytes:
    """Return the document of a checkpoint in a directory called ``parent``; raise InputError if it is too large."""
    attributes: dict[str, Any] = {
        "state": checkpoint.state,
        "metadata": checkpoint.metadata,
        "time": checkpoint.time,
        "arrays": checkpoint.arrays,
        "number": checkpoint.number,
        "id": checkpoint.id,
        "maker": checkpoint.maker,
        **({attachments.GROUP: attachments.to_json(checkpoint.attachments)} if checkpoint.attachments else {}),
        **{flag: True for flag in ("kept", "pending") if getattr(checkpoint, flag)},
    }
    parts = {name: metadata.canonical(value) for name, value in attributes.items()}
    parts["cut"] = metadata.joined({name: commit.text for name, commit in checkpoint.cut.items()})
    what = f"the checkpoint {checkpoint.name!r}, with the sampler's state,"
    return metadata.group_bytes(parts, f"{parent}/{checkpoint.name}", what)


def lay_out_checkpoint(
    files: fs.Files, directory: str, document: bytes, values: Mapping[str, NDArray[Any]], staged: Staged | None
) -> None:
    """Make a checkpoint's group in a directory that does not exist, its document last, from ``staged`` files."""
    files.mkdir(directory)
    if values:
        checkpoint_arrays.write(files, directory, values)
    if staged is not None:
        files.rename(staged.directory, os.path.join(directory, attachments.GROUP))
    fs.replace(files, os.path.join(directory, metadata.NAME), document)


def checkpoint_files(files: fs.Files, folder: str, checkpoint: Checkpoint) -> list[str]:
    """Return the files of a checkpoint below its directory ``folder``, but for its document."""
    group = [f"{attachments.GROUP}/{metadata.NAME}"] if checkpoint.attachments else []
    nodes = [*checkpoint.arrays, *(f"{attachments.GROUP}/{name}" for name in checkpoint.attachments)]
    return [*group, *(f"{node}/{name}" for node in nodes for name in files.list(os.path.join(folder, node)))]


def _check_free(files: fs.Files, path: str) -> None:
    """Raise StoreExistsError if something is at the path."""
    if files.size(os.path.join(path, metadata.NAME)) is not None:
        raise StoreExistsError(
            f"{path!r} holds a store, or another Zarr hierarchy, already"
            "; ReplayBuffer.open and open_or_create open a store"
        )
    kind = files.kind(path)
    if kind is not None and (kind != "directory" or files.list(path)):
        raise StoreExistsError(f"{path!r} exists and is not an empty directory; choose another path")
