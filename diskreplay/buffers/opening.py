"""The making and opening of a buffer, and its store: which one, where, and what of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from diskreplay.buffers import provenance
from diskreplay.buffers.comparing import is_there
from diskreplay.buffers.options import OPEN_DEFAULTS
from diskreplay.checks import check_flag
from diskreplay.engine import lifetime
from diskreplay.engine.run import EngineOptions, engine_options
from diskreplay.errors import CheckpointError, InputError, StoreExistsError, StoreNotFoundError
from diskreplay.index import rewards
from diskreplay.reading.open_stream import check_rewards
from diskreplay.schema.columns import Schema, refuse_ragged
from diskreplay.schema.ragged import check_forms
from diskreplay.schema.spec import build
from diskreplay.storage.files import Files
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import PathLike, checked_url, full_path, is_url
from diskreplay.storage.store import FIRST_STREAM, Checkpoint, Store, newest

Asked = tuple[Sequence[Any], Mapping[str, Any], dict[str, Any]]
"""The spaces and options of a new store, and the settings that its class keeps in it."""
OPENING: dict[str, Any] = {**OPEN_DEFAULTS, "num_envs": None, "capacity": None, "reward_column": None}
"""The options of ``open`` that a class's own may not have, or a call leaves out."""
APPEND = "a"
"""The mode of a buffer that opens only the stream that it writes."""
LATEST = "latest"
"""The name that stands for the newest checkpoint, whatever its own is."""
OPEN_ATTEMPTS = 50
"""The most attempts of a reader to open the newest checkpoint; one fails if it is dropped meanwhile."""


class Openable:
    """The making and opening of a class's stores; what is particular about it is in what it overrides."""

    _shown: ClassVar[tuple[str, ...]] = ()
    """The options for a view and a sampler, which its constructor takes, too; empty for a rollout, of one length."""
    _ragged: ClassVar[bool] = False
    """True if it takes ragged columns."""

    if TYPE_CHECKING:

        def __init__(self, store: Store, *, stream: str | None, run: EngineOptions, **options: Any) -> None: ...

    @classmethod
    def _asked(cls, given: Sequence[Any], options: Mapping[str, Any]) -> Asked:
        """Return what is asked for; ``given`` are the positional arguments of ``create`` after the path."""
        return given, options, {}

    @classmethod
    def _kept(
        cls, schema: Schema, stored: Mapping[str, Any], options: Mapping[str, Any], path: PathLike | None = None
    ) -> dict[str, Any]:
        """Return what a store keeps of what is shown of it, beside the settings that are ``stored``.

        Raises NotAStoreError if these are another class's, InputError if options do not go with them. ``path`` is None
        for a store that is not made yet.
        """
        raise NotImplementedError

    @classmethod
    def _create(cls, path: PathLike, given: Sequence[Any], options: Mapping[str, Any]) -> Self:
        """Return a buffer over a new store at ``path``, and its one stream."""
        spaces, options, settings = cls._asked(given, options)
        run, schema = engine_options(options), build(*spaces, **options)
        cls._check_ragged(schema, run)
        told = {**settings, **provenance.setting(options["provenance"])}
        kept = {**cls._kept(schema, told, options), **told}
        if is_url(path):
            raise InputError(
                f"rows are added to a local store, which is pushed: create(path, ..., remote={checked_url(path)!r})"
            )
        stream = options["stream"] or FIRST_STREAM
        claim = claimer(run["remote"], stream)
        files = options["files"] or LocalFiles()
        store = Store.create(full_path(path), files, schema, kept, stream, claim=claim)
        return cls(store, stream=stream, run=run, **{name: options[name] for name in cls._shown})

    @classmethod
    def _open(cls, path: PathLike, options: Mapping[str, Any]) -> Self:
        """Return a buffer over the store that is there."""
        run, options = engine_options(options), {**OPENING, **options}
        more = {name: options[name] for name in ("capacity", "reward_column", *cls._shown)}
        more["only_written"] = options["mode"] == APPEND
        left = OPEN_ATTEMPTS if (options["checkpoint"], options["mode"]) == (LATEST, "r") else 1
        while True:
            store, stream, cut = cls._found(path, options, run)
            left -= 1
            try:
                with store.reading(cut):
                    return cls(store, stream=stream, checkpoint=cut, run=run, **more)
            except CheckpointError:  # its writer may have made a newer one since, and dropped this one
                if not left or cut is None or store.has(cut):
                    raise

    @classmethod
    def _open_or_create(cls, path: PathLike, given: Sequence[Any], options: Mapping[str, Any]) -> Self:
        """Return a buffer over the store that is there, which must be as it is asked for, or over a new one."""
        spaces, asked, settings = cls._asked(given, options)
        engine_options(asked)
        schema = build(*spaces, **asked)

        def there() -> bool:
            return is_there(path, schema, asked, settings)

        if not there():
            try:
                return cls._create(path, given, options)
            except StoreExistsError:  # another process was first
                if not there():
                    raise
        sizes = {name: getattr(schema, name) if cls._shown else None for name in ("num_envs", "capacity")}
        return cls._open(path, {**options, **sizes, "or_last_commit": True})

    @classmethod
    def _found(
        cls, path: PathLike, options: Mapping[str, Any], run: EngineOptions
    ) -> tuple[Store, str | None, Checkpoint | None]:
        """Return the store at ``path``, the stream to write, made if it is new, and the checkpoint to go back to."""
        mode, checkpoint, url, stream = options["mode"], options["checkpoint"], run["remote"], options["stream"]
        num_envs, capacity, reward_column = options["num_envs"], options["capacity"], options["reward_column"]
        take_over = check_flag("take_over", options["take_over"])
        modes = ("r", "r+", APPEND) if cls._shown else ("r", "r+")
        if mode not in modes:
            raise InputError(f"mode must be {' or '.join(map(repr, modes))}, got {mode!r}")
        if mode == APPEND and checkpoint is not None:
            raise InputError(
                f"mode='a' goes on from the last commit; open the checkpoint {checkpoint!r} with mode='r+'"
            )
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

        def check(stored: Mapping[str, Any], schema: Schema) -> None:
            cls._check_ragged(schema, run)
            if reward_column is not None:
                rewards.check_column(schema, reward_column)
            cls._kept(schema, stored, options, path)

        full, files = located(path, options)
        try:
            store = Store(full, files)
        except StoreNotFoundError:
            new = checkpoint is None or (checkpoint == LATEST and options["or_last_commit"])
            if url is None or not new:
                raise
            from diskreplay.remote import ObjectStore, join_store

            joined = join_store(ObjectStore(url), full, files, stream, num_envs, capacity, check)
            if joined is None:
                raise
            store, stream = joined, None
        stream = written_stream(store, mode, stream)
        cut = None if checkpoint is None else find_checkpoint(store, checkpoint, stream, options["or_last_commit"])
        check({**store.settings, **(cut.state if cut else {})}, store.schema)
        if reward_column is not None:
            commits = cut.cut if cut else store.newest_commits()
            shown = {name: one for name, one in commits.items() if mode != APPEND or name == stream}
            check_rewards(store, reward_column, shown, cut is not None)
        if stream is None:
            return store, None, cut
        if store.has_stream(stream):
            store.check_stream(stream, num_envs, capacity, cut)
            if take_over:
                close_writer(store, stream)
        elif cut is not None:
            raise CheckpointError(
                f"checkpoint {cut.name!r} has no stream {stream!r}; open it without a checkpoint, which makes the "
                "stream"
            )
        else:
            if num_envs is None or capacity is None:
                first = store.first_commit()
                num_envs = first.num_envs if num_envs is None else num_envs
                capacity = first.capacity if capacity is None else capacity
            store.create_stream(stream, num_envs, capacity)
        return store, stream, cut

    @classmethod
    def _check_ragged(cls, schema: Schema, run: EngineOptions) -> None:
        """Raise InputError for forms of other columns, SchemaError for ragged ones that the class or opener refuses."""
        if not cls._ragged:
            refuse_ragged(schema, f"a {cls.__name__}")
        if run["ragged"] is None:
            refuse_ragged(schema, "what opens the store here")
        else:
            check_forms(run["ragged"], schema.ragged)


def claimer(url: str | None, stream: str) -> Callable[[dict[str, Any]], None]:
    """Return a function that claims a URL, if there is one, for a store of the document it is given, and a stream."""
    if url is None:
        return lambda document: None
    from diskreplay.remote import ObjectStore, claim_url

    objects = ObjectStore(url)
    return lambda document: claim_url(objects, document, stream)


def located(path: PathLike, options: Mapping[str, Any]) -> tuple[str, Files]:
    """Return the full path, or the URL, of a store, and its files; raise what ``remote.locate_store`` does."""
    files, mirror, mirror_bytes = (options.get(name) for name in ("files", "mirror", "mirror_bytes"))
    if not is_url(path) and mirror is None and mirror_bytes is None:
        return full_path(path), files or LocalFiles()
    from diskreplay.remote import locate_store

    return locate_store(path, files, mirror, mirror_bytes)


def close_writer(store: Store, stream: str) -> None:
    """Commit and close the buffer of this process that writes a stream of a store, if there is one.

    So a cell of a notebook that opens a store can be run again. A thread that is in the middle of a call of that buffer
    ends this call first; its next one raises ClosedError. Raises what ``close`` raises; it is closed all the same.
    """
    for engine in lifetime.opened():
        writer = engine.streams.writer
        if writer is not None and writer.writes(store.stream_path(stream)):
            engine.close()


def written_stream(store: Store, mode: str, stream: str | None) -> str | None:
    """Return the stream that ``open`` writes, the store's first if none is named, or None with mode "r"."""
    if mode == "r":
        return None
    return store.stream_names()[0] if stream is None else stream


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
