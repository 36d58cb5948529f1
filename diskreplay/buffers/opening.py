"""The making and opening of a buffer, and its store: which one, where, and what of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from diskreplay.buffers import provenance
from diskreplay.buffers.comparing import is_there
from diskreplay.buffers.options import Opening, of
from diskreplay.buffers.stored import StoredBuffer
from diskreplay.checks import check_flag
from diskreplay.engine import forks
from diskreplay.engine.run import Run
from diskreplay.errors import CheckpointError, InputError, StoreExistsError, StoreNotFoundError
from diskreplay.index import rewards
from diskreplay.reading.open_stream import check_rewards
from diskreplay.remote import ObjectStore, checked_url, claim_url, is_url, join_store, locate_store
from diskreplay.schema.columns import Schema, refuse_ragged
from diskreplay.schema.ragged import check_forms
from diskreplay.schema.spec import StoreSpec, build
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import PathLike, full_path
from diskreplay.storage.store import FIRST_STREAM, Checkpoint, Store, newest

Buffer = TypeVar("Buffer", bound=StoredBuffer)

APPEND = "a"
"""The mode of a buffer that opens only the stream that it writes."""
LATEST = "latest"
"""The name that stands for the newest checkpoint, whatever its own is."""
OPEN_ATTEMPTS = 50
"""The most attempts of a reader to open the newest checkpoint; one fails if it is dropped meanwhile."""


def make_buffer(
    kind: type[Buffer], path: PathLike, spec: StoreSpec, options: Mapping[str, Any], **shown: Any
) -> Buffer:
    """Return a buffer of a class over a new store at ``path``, and its one stream; the class's rules take ``shown``."""
    run, opening, schema = of(Run, options), of(Opening, options), build(spec)
    check_ragged(kind, schema, run)
    told = {**spec.settings, **provenance.setting(spec.provenance)}
    kept = {**kind.RULES.kept(schema, told, **shown), **told}
    if is_url(path):
        raise InputError(
            f"rows are added to a local store, which is pushed: create(path, ..., remote={checked_url(path)!r})"
        )
    stream = opening.stream or FIRST_STREAM
    objects = ObjectStore(run.remote) if run.remote is not None else None

    def claim(document: dict[str, Any]) -> None:
        if objects is not None:
            claim_url(objects, document, stream)

    store = Store.create(full_path(path), opening.files or LocalFiles(), schema, kept, stream, claim=claim)
    return kind(store, stream=stream, run=run, **shown)


def check_ragged(kind: type[StoredBuffer], schema: Schema, run: Run) -> None:
    """Raise InputError for forms of other columns, SchemaError if a class, or who opens it, takes no ragged columns."""
    if not kind.RULES.ragged:
        refuse_ragged(schema, f"a {kind.__name__}")
    if run.ragged is None:
        refuse_ragged(schema, "what opens the store here")
    else:
        check_forms(run.ragged, schema.ragged)


def open_buffer(
    kind: type[Buffer], path: PathLike, options: Mapping[str, Any], num_envs: int | None = None,
    capacity: int | None = None, **shown: Any,
) -> Buffer:  # fmt: skip
    """Return a buffer over the store that is there; ``num_envs`` and ``capacity`` are those of the stream to write."""
    run, opening = of(Run, options), of(Opening, options)

    def check(stored: Mapping[str, Any], schema: Schema) -> None:
        check_ragged(kind, schema, run)
        if run.reward_column is not None:
            rewards.check_column(schema, run.reward_column)
        kind.RULES.check(kind, stored, schema, path, opening.take_over, **shown)

    options = {**shown, "run": run, "only_written": opening.mode == APPEND, "capacity": capacity}
    left = OPEN_ATTEMPTS if (opening.checkpoint, opening.mode) == (LATEST, "r") else 1
    while True:
        store, stream, cut = open_store(path, opening, run, kind.RULES.modes, num_envs, capacity, check)
        left -= 1
        try:
            with store.reading(cut):
                return kind(store, stream=stream, checkpoint=cut, **options)
        except CheckpointError:  # its writer may have made a newer one since, and dropped this one
            if not left or cut is None or store.has(cut):
                raise


def open_or_make_buffer(
    kind: type[Buffer], path: PathLike, spec: StoreSpec, options: Mapping[str, Any], **shown: Any
) -> Buffer:
    """Return a buffer over the store that is there, which must be as the spec says, or over a new one."""
    run, schema = of(Run, options), build(spec)

    def there() -> bool:
        return is_there(path, spec, schema, options["files"], run.remote)

    if not there():
        try:
            return make_buffer(kind, path, spec, options, **shown)
        except StoreExistsError:  # another process was first
            if not there():
                raise
    sizes = (schema.num_envs, schema.capacity) if kind.RULES.grows else ()
    return open_buffer(kind, path, {**options, "or_last_commit": True}, *sizes, **shown)


def open_store(
    path: PathLike, opening: Opening, run: Run, modes: tuple[str, ...], num_envs: int | None,
    capacity: int | None, check: Callable[[Mapping[str, Any], Schema], object],
) -> tuple[Store, str | None, Checkpoint | None]:  # fmt: skip
    """Return the store at ``path``, the stream to write, made if it is new, and the checkpoint to go back to.

    Args:
        run: the options of the open store: the URL to which the stream is pushed, and the column of the rewards.
        modes: the modes that are allowed.
        num_envs, capacity: the environments and the capacity of a new stream; an old one gets at least this capacity.
        check: a function that is given the stored settings and the schema before a stream is made.
    """
    mode, checkpoint, url = opening.mode, opening.checkpoint, run.remote
    take_over = check_flag("take_over", opening.take_over)
    if mode not in modes:
        raise InputError(f"mode must be {' or '.join(map(repr, modes))}, got {mode!r}")
    if mode == APPEND and checkpoint is not None:
        raise InputError(f"mode='a' goes on from the last commit; open the checkpoint {checkpoint!r} with mode='r+'")
    if capacity is not None and mode == "r":
        raise InputError(
            "a buffer with mode='r' takes no capacity, which is that of the stream that it writes; leave it out"
        )
    if url is not None and mode == "r":
        raise InputError("remote= is where a buffer that writes is pushed to; to read a remote store, open its URL")
    if mode != "r" and is_url(path):
        raise InputError(
            "a store under a URL is opened with mode='r'; to add rows, open a local one with "
            f"remote={checked_url(path)!r}"
        )
    full, files = locate_store(path, opening.files, opening.mirror, opening.mirror_bytes)
    try:
        store = Store(full, files)
    except StoreNotFoundError:
        new = checkpoint is None or (checkpoint == LATEST and opening.or_last_commit)
        if url is None or not new:
            raise
        joined = join_store(ObjectStore(url), full, files, opening.stream, num_envs, capacity, check)
        if joined is None:
            raise
        store = joined
        opening = dataclasses.replace(opening, stream=store.stream_names()[0])
    stream = written_stream(store, opening)
    cut = find_checkpoint(store, checkpoint, stream, opening.or_last_commit) if checkpoint is not None else None
    check({**store.settings, **(cut.state if cut else {})}, store.schema)
    if run.reward_column is not None:
        commits = cut.cut if cut else store.newest_commits()
        shown = {name: one for name, one in commits.items() if mode != APPEND or name == stream}
        check_rewards(store, run.reward_column, shown, cut is not None)
    if stream is None:
        return store, None, cut
    if store.has_stream(stream):
        store.check_stream(stream, num_envs, capacity, cut)
        if take_over:
            close_writer(store, stream)
    elif cut is not None:
        raise CheckpointError(
            f"checkpoint {cut.name!r} has no stream {stream!r}; open it without a checkpoint, which makes the stream"
        )
    else:
        if num_envs is None or capacity is None:
            first = store.first_commit()
            num_envs = first.num_envs if num_envs is None else num_envs
            capacity = first.capacity if capacity is None else capacity
        store.create_stream(stream, num_envs, capacity)
    return store, stream, cut


def close_writer(store: Store, stream: str) -> None:
    """Commit and close the buffer of this process that writes a stream of a store, if there is one.

    So a cell of a notebook that opens a store can be run again. A thread that is in the middle of a call of that buffer
    ends this call first; its next one raises ClosedError. Raises what ``close`` raises; it is closed all the same.
    """
    for engine in forks.opened():
        writer = engine.streams.writer
        if writer is not None and writer.writes(store.stream_path(stream)):
            engine.close()


def written_stream(store: Store, opening: Opening) -> str | None:
    """Return the stream that ``open`` writes, the store's first if none is named, or None with mode "r"."""
    if opening.mode == "r":
        return None
    return store.stream_names()[0] if opening.stream is None else opening.stream


def find_checkpoint(
    store: Store, name: str, stream: str | None, or_last_commit: bool,
    counts: Callable[[Checkpoint], bool] = lambda checkpoint: True, what: str = "the store",
) -> Checkpoint | None:  # fmt: skip
    """Return the checkpoint of that name, or the latest one for "latest"; raise CheckpointError if there is none.

    Args:
        store: the store that holds the checkpoints.
        name: the name of the checkpoint; "latest" means one of that name, if there is one.
        stream: the stream to write: its latest checkpoint is the newest that its own writer made. With None, it is the
            newest that a reader made or, if there is none, the newest of all.
        or_last_commit: give None where there is none "latest".
        counts: a function that tells whether a checkpoint may be "latest".
        what: the words for what has the checkpoints, for errors.
    """
    if name != LATEST:
        return store.checkpoint(name)
    there = store.checkpoints()
    latest = next((one for one in there if one.name == LATEST), None) or newest(filter(counts, there), stream)
    if latest is not None or or_last_commit:
        return latest
    if not (others := list(filter(counts, there))):
        raise CheckpointError(
            f"{what} {store.path!r} has no checkpoint yet; make one with checkpoint(name), or open the last commit "
            "with or_last_commit=True"
        )
    raise CheckpointError(
        f"{what} {store.path!r} has no checkpoint of the writer of the stream {stream!r} yet; the newest, "
        f"{others[-1].name!r}, is of {others[-1].made_by()}: open it by its name, or the last commit with "
        "or_last_commit=True"
    )
