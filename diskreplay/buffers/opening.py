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
from diskreplay.storage.store import FIRST_STREAM, Checkpoint, Store

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
    cut = find_checkpoint(store, checkpoint, options["or_last_commit"]) if checkpoint is not None else None
    check({**store.settings, **(cut.state if cut else {})}, store.schema)
    if mode == "r":
        return store, None, cut
    stream = store.stream_names()[0] if options["stream"] is None else options["stream"]
    if store.has_stream(stream):
        store.check_stream(stream, num_envs, capacity)
        if take_over:
            taking_over.close_writer(store, stream)
    elif cut is not None:
        raise CheckpointError(f"checkpoint {checkpoint!r} knows no stream {stream!r}")
    else:
        store.create_stream(
            stream,
            check_count("num_envs", num_envs if num_envs is not None else store.schema.num_envs),
            check_count("capacity", capacity if capacity is not None else store.schema.capacity),
        )
    return store, stream, cut


def find_checkpoint(store: Store, name: str, or_last_commit: bool) -> Checkpoint | None:
    """The checkpoint of that name, or the newest for "latest"; CheckpointError where there is none.

    None where there is none "latest", and ``or_last_commit``.
    """
    if name != LATEST or LATEST in store.checkpoint_names():
        return store.checkpoint(name)
    latest = store.latest_checkpoint()
    if latest is None and not or_last_commit:
        raise CheckpointError(
            f"the store {store.path!r} has no checkpoint yet; make one with checkpoint(name), or open the last commit "
            "with or_last_commit=True"
        )
    return latest
