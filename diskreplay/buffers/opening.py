"""Making and opening the store of a buffer: which one, where, and what of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from diskreplay.buffers import provenance, taking_over
from diskreplay.buffers.options import OpenOptions
from diskreplay.checks import check_count, check_flag
from diskreplay.errors import CheckpointError, InputError, StoreNotFoundError
from diskreplay.paths import PathLike, full_path
from diskreplay.remote import joining
from diskreplay.remote.objects import ObjectStore, checked_url, is_url
from diskreplay.remote.place import place
from diskreplay.schema import Schema
from diskreplay.storage.files import LocalFiles
from diskreplay.storage.store import FIRST_STREAM, Checkpoint, Store, newest

APPEND = "a"
"""The mode of a buffer that opens only the stream that it writes."""
LATEST = "latest"
"""Of checkpoints: the newest one, whatever its name is."""


def create_store(
    path: PathLike, schema: Schema, settings: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Store, str]:
    """A new store at ``path``, and its one stream."""
    if is_url(path):
        raise InputError(
            f"rows are added to a local store, which is pushed: create(path, ..., remote={checked_url(path)!r})"
        )
    stream = options["stream"] or FIRST_STREAM
    kept = {**settings, **provenance.setting(options)}
    objects = ObjectStore(options["remote"]) if options["remote"] is not None else None

    def claim(document: dict[str, Any]) -> None:
        if objects is not None:
            joining.claim(objects, document, stream)

    store = Store.create(full_path(path), options["files"] or LocalFiles(), schema, kept, stream, claim=claim)
    return store, stream


def open_store(
    path: PathLike, num_envs: int | None, capacity: int | None,
    check: Callable[[Mapping[str, Any], Schema], object], options: OpenOptions, modes: tuple[str, ...] = ("r", "r+"),
) -> tuple[Store, str | None, Checkpoint | None]:  # fmt: skip
    """The store at ``path``, the stream to write in it, made where it is new, and the checkpoint to return to.

    ``check`` is given the settings that were stored and the schema, before a stream is made; ``modes`` are allowed.
    """
    mode, checkpoint = options["mode"], options["checkpoint"]
    take_over = check_flag("take_over", options["take_over"])
    if mode not in modes:
        raise InputError(f"mode must be {' or '.join(map(repr, modes))}, got {mode!r}")
    if mode == APPEND and checkpoint is not None:
        raise InputError(f"mode='a' goes on from the last commit; open the checkpoint {checkpoint!r} with mode='r+'")
    if options["remote"] is not None and mode == "r":
        raise InputError("remote= is where a buffer that writes is pushed to; to read a remote store, open its URL")
    if mode != "r" and is_url(path):
        raise InputError(
            "a store under a URL is opened with mode='r'; to add rows, open a local one with "
            f"remote={checked_url(path)!r}"
        )
    full, files = place(path, options["files"], options["mirror"], options["mirror_bytes"])
    try:
        store = Store(full, files)
    except StoreNotFoundError:
        new = checkpoint is None or (checkpoint == LATEST and options["or_last_commit"])
        if options["remote"] is None or not new:
            raise
        objects = ObjectStore(options["remote"])
        joined = joining.join(objects, full, files, options["stream"], num_envs, capacity, check)
        if joined is None:
            raise
        store = joined
        options = {**options, "stream": store.stream_names()[0]}
    stream = written_stream(store, options)
    cut = find_checkpoint(store, checkpoint, stream, options["or_last_commit"]) if checkpoint is not None else None
    check({**store.settings, **(cut.state if cut else {})}, store.schema)
    if stream is None:
        return store, None, cut
    if store.has_stream(stream):
        store.check_stream(stream, num_envs, capacity)
        if take_over:
            taking_over.close_writer(store, stream)
    elif cut is not None:
        raise CheckpointError(f"checkpoint {cut.name!r} knows no stream {stream!r}")
    else:
        store.create_stream(
            stream,
            check_count("num_envs", num_envs if num_envs is not None else store.schema.num_envs),
            check_count("capacity", capacity if capacity is not None else store.schema.capacity),
        )
    return store, stream, cut


def written_stream(store: Store, options: Mapping[str, Any]) -> str | None:
    """The stream that ``open`` with these options writes: the store's first where none is named; None with mode "r"."""
    if options.get("mode", "r+") == "r":
        return None
    named: str | None = options.get("stream")
    return store.stream_names()[0] if named is None else named


def find_checkpoint(
    store: Store, name: str, stream: str | None, or_last_commit: bool,
    counts: Callable[[Checkpoint], bool] = lambda checkpoint: True, what: str = "the store",
) -> Checkpoint | None:  # fmt: skip
    """The checkpoint of that name, or the latest one for "latest"; CheckpointError where there is none.

    Args:
        store: that holds it.
        name: of the checkpoint; one that is called "latest" is meant by that.
        stream: that is opened to be written: its latest is the newest that its own writer made. With None, the newest
            that a reader made, and where there is none the newest of all.
        or_last_commit: give None where there is none "latest".
        counts: says whether a checkpoint may be "latest".
        what: has the checkpoints, for errors.
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
