"""What the replay buffers share: a store whose transitions a sampler draws and a view shows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from diskreplay import notebooks
from diskreplay.buffers import owners, shuffle
from diskreplay.buffers.either import open_or_make, reopening
from diskreplay.buffers.loader import MOST_BEGUN, Loader, begun_ahead
from diskreplay.buffers.opening import APPEND, create_store, open_store
from diskreplay.buffers.options import OpenOptions, RunOptions, check_run, pick, shared
from diskreplay.buffers.passes import Passes
from diskreplay.buffers.selection import Selection
from diskreplay.buffers.state import (
    check_items,
    restore_sampler,
    resume_sampler,
    sampler_facts,
    sampler_state,
    settings,
)
from diskreplay.buffers.stored import StoredBuffer
from diskreplay.checks import check_count
from diskreplay.errors import DiskReplayError, EvictedError, InputError, NotEnoughDataError
from diskreplay.ids import checked_ids
from diskreplay.index.log import NEVER, NOW
from diskreplay.paths import PathLike
from diskreplay.reading import blocks
from diskreplay.reading.reads import Empty, Reads
from diskreplay.reading.stream import OpenStream
from diskreplay.remote.files import RemoteFiles
from diskreplay.remote.place import named
from diskreplay.sampling.registry import is_own, prepare
from diskreplay.sampling.window import Prioritized, Sampler, checked_draw
from diskreplay.schema import Schema
from diskreplay.storage.store import Checkpoint, Store
from diskreplay.views.batch import Batch
from diskreplay.views.view import Explains, View

SomeBatch = TypeVar("SomeBatch", bound=Batch)


class SampledBuffer(StoredBuffer, Generic[SomeBatch]):
    """A store that is sampled from; what ``add`` takes is the business of the classes over this one."""

    def __init__(
        self,
        store: Store,
        *,
        stream: str | None,
        checkpoint: Checkpoint | None = None,
        view: View | None = None,
        sampler: Sampler | None = None,
        only_written: bool = False,
        **options: Unpack[RunOptions],
    ) -> None:
        """Not for users: see :meth:`create` and :meth:`open`. ``stream`` is the one to write, None for none."""
        state = checkpoint.state if checkpoint else {}
        self._clearing = False
        """:meth:`clear` was begun and not ended."""
        self._view, self._sampler = settings({**store.settings, **state}, view, sampler)
        self._view.check(store.schema)
        prepare(self._sampler)
        self._priorities = self._sampler if isinstance(self._sampler, Prioritized) else None
        """The sampler, if it has some."""
        if checkpoint and sampler is None:
            check_items(self._sampler, self._view, state.get("view", {}), checkpoint.name)
            restore_sampler(self._sampler, state.get("priorities"), store.read_arrays(checkpoint), checkpoint.name)
        elif checkpoint:
            resume_sampler(self._sampler, self._view, state, lambda: store.read_arrays(checkpoint), checkpoint.name)
        # The sampler's own method: one of ours would make the buffer a reference cycle, and keep it and its lock alive.
        forget = self._priorities.forget if self._priorities is not None else lambda stream: None
        super().__init__(
            store, stream=stream, checkpoint=checkpoint, forget=forget, only_written=only_written, **options
        )
        self._drawing = self._lock.exclusive if is_own(self._sampler) else contextlib.nullcontext()
        """Around what a sampler does: one of the user's own may ask the buffer."""
        owners.take(self._sampler, self)

    @classmethod
    def _make(
        cls, path: PathLike, schema: Schema, own: Mapping[str, Any], view: View | None, sampler: Sampler | None,
        options: Mapping[str, Any],
    ) -> Self:  # fmt: skip
        """A new store, opened for writing; ``own`` are settings that the class keeps in it."""
        owners.check_free(sampler, None)
        view, sampler = settings({}, view, sampler)
        view.check(schema)
        kept = {"view": view.to_json(), "sampler": sampler_facts(sampler), **own}
        store, stream = create_store(path, schema, kept, options)
        return cls(store, stream=stream, view=view, sampler=sampler, **pick(options, RunOptions))

    @classmethod
    def _either(
        cls, path: PathLike, schema: Schema, own: Mapping[str, Any], view: View | None, sampler: Sampler | None,
        options: Mapping[str, Any],
    ) -> Self:  # fmt: skip
        """The store that is there, or a new one."""
        opening = {
            **reopening(options), "num_envs": schema.num_envs, "capacity": schema.capacity, "view": view,
            "sampler": sampler,
        }  # fmt: skip
        return open_or_make(
            path, schema, own, options, lambda: cls._make(path, schema, own, view, sampler, options),
            lambda: cls.open(path, **opening),
        )  # fmt: skip

    @classmethod
    @shared(OpenOptions)
    def open(
        cls,
        path: PathLike,
        *,
        num_envs: int | None = None,
        capacity: int | None = None,
        view: View | None = None,
        sampler: Sampler | None = None,
        **options: Unpack[OpenOptions],
    ) -> Self:
        """Opens the store at ``path`` at its last commit, or at a checkpoint.

        Priorities and random state come back with a checkpoint alone. In a process that is forked later, a buffer with
        mode "r" draws batches of its own, as follows from its seed, its draws and the number of the fork; one that
        writes raises StateError.

        Args:
            path: of the store; or a URL (``s3://bucket/name``) with mode "r", which is read through a mirror.
            mode: "r+" to write one stream and sample from all; "r" to sample beside a live writer, changing nothing;
                "a" to write one stream of many: only its rows are opened and sampled, so that memory and time to
                open do not grow with those of the others.
            stream: to write, the store's first if None; a new name makes a new stream, for another process. Ignored
                with mode "r".
            checkpoint: name of one to return to: data, sampler and random state are just as they were. With "r+" the
                rows of ``stream`` after it are discarded, unless a later checkpoint needs them. "latest" is, unless
                one has that name, the newest that a writer of ``stream`` made; with mode "r" the newest that a reader
                of a URL made, and where there is none the newest of all.
            or_last_commit: where there is no checkpoint "latest" yet, open at the last commit.
            take_over: where another buffer of this process writes the stream, commit and close that one first, so that
                a notebook's cell can be run again. Other processes, and mode "r", are not concerned.
            num_envs, capacity: of a new stream, as of the first if None; those of one that exists do not change.
            view, sampler: as the store was created with (or as of the checkpoint) if None. A new sampler that is given
                draws by its own arguments, and goes on with the checkpoint's priorities and counts where that has one
                of its class; where it cannot, a SamplerWarning says so.
            mirror: directory for copies of a remote store's shards; one of its own below the user's cache directory if
                None. Several processes may share it.
            mirror_bytes: that the copies may take; 16 GiB if None.
            cache_bytes, commit_rows, commit_seconds, remote, push_seconds, seed, files: as of ``create``; ``seed`` is
                not used with a checkpoint, which has its own random state.

        Raises:
            StoreNotFoundError, NotAStoreError, FormatVersionError, CheckpointError: when there is no such thing.
            LockedError: when another writer holds the stream.
            CorruptionError: when what was committed cannot be read.
        """
        check_run(options)

        def check(stored: Mapping[str, Any], schema: Schema) -> None:
            cls._check_kind(stored)
            owners.check_free(sampler, owners.store_key(schema, named(path)), options["take_over"])
            settings(stored, view, sampler)[0].check(schema)

        store, writes, cut = open_store(path, num_envs, capacity, check, options, ("r", "r+", APPEND))
        owners.check_free(sampler, owners.store_key(store.schema, store.path))
        return cls(
            store, stream=writes, checkpoint=cut, view=view, sampler=sampler, only_written=options["mode"] == APPEND,
            **pick(options, RunOptions),
        )  # fmt: skip

    @classmethod
    def _check_kind(cls, stored: Mapping[str, Any]) -> None:
        """NotAStoreError where the settings are those of another class's store."""

    def _opened_with(self) -> dict[str, Any]:
        return {"view": self._view, "sampler": self._sampler}

    def _state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        priorities, arrays = sampler_state(self._sampler)
        facts = {"view": self._view.to_json(), "sampler": sampler_facts(self._sampler), "priorities": priorities}
        return facts, arrays

    # Facts

    @property
    def view(self) -> View:
        """What a sample looks like."""
        return self._view

    @property
    def _shown(self) -> View:
        """What makes the batches: the view, or one over it."""
        return self._view

    @property
    def sampler(self) -> Sampler:
        """Which transitions a sample holds."""
        return self._sampler

    def clear(self) -> None:
        """Forgets all transitions of the stream that is written, and all priorities; ids go on.

        The next commit gives the disk space back, but for what a checkpoint pins. Raises what :meth:`commit` raises.
        """
        with self._write_lock:
            self._writable().check()
            with self._lock.exclusive:
                self._clearing = True
                self._settle()

    def _torn(self) -> bool:
        return self._clearing or super()._torn()

    def _settle(self) -> None:
        super()._settle()
        if self._clearing:
            if self._companion is not None:
                self._companion.forget()
            self._clear()
            if self._priorities is not None:
                self._priorities.clear()
            self._clearing = False

    def _thumbnails(self) -> str:
        """Of a few transitions from the oldest to the newest; nothing is drawn, and no random state moves."""
        items = self.items()
        if not len(items):
            return ""
        some = np.unique(np.linspace(0, len(items) - 1, notebooks.THUMBNAILS).astype(np.int64))
        try:
            batch = self.get(items[some])
        except DiskReplayError as error:
            return notebooks.heading(f"no pictures: {error}")
        return notebooks.pictures("obs", batch.obs, batch.leading_axes)

    # Sampling

    def sample(self, batch_size: int, *, within: Selection | None = None) -> SomeBatch:
        """A batch of ``batch_size`` transitions.

        Args:
            batch_size: of them.
            within: episodes to keep to, of :meth:`select`: their transitions are drawn uniformly, with replacement and
                weights of one, whatever the sampler is.

        Raises:
            InputError: for a selection of another buffer, or from before a checkpoint was returned to.
            NotEnoughDataError: when fewer are in the buffer.
            CorruptionError: when a chunk on disk is damaged; names the place.
        """
        batch_size = check_count("batch_size", batch_size)
        if within is not None:
            return cast(SomeBatch, self._beside_writers(lambda reads: self._draft_within(batch_size, within, reads)))
        return cast(SomeBatch, self._beside_writers(lambda reads: self._draft(batch_size, reads)))

    def _begin_sample(self, batch_size: int, empty: Empty = blocks.empty) -> Callable[[], Batch]:
        """As :meth:`sample`, in two halves: the batch is drawn now; ``empty`` makes its large arrays."""
        return self._begun(lambda reads: self._draft(batch_size, reads), empty)

    def _draft_within(self, batch_size: int, within: Selection, reads: Reads) -> Batch:
        streams = self._streams.all
        self._check_selection(within, streams)
        whole = len(streams) == 1 and within.ranges.least >= streams[0].log.first_id
        ids = within.ranges.sample(self._rng, self._standing if whole else self._standing_now, batch_size)
        return self._shown.draft(self.schema, streams, ids, np.ones(batch_size, np.float32), self._rng, reads)

    def _standing_now(self, ids: NDArray[np.int64]) -> NDArray[np.int8]:
        """As :meth:`_standing`, of ids that may have left the windows."""
        here = shuffle.in_windows(self._streams.all, ids)
        found = np.full(len(ids), NEVER, np.int8)
        found[here] = self._standing(ids[here])
        return found

    @staticmethod
    def _check_selection(within: Any, streams: list[OpenStream]) -> None:
        if not isinstance(within, Selection):
            raise InputError(f"within must be a selection, as rb.select(where) gives it, got {within!r:.100}")
        if not within.is_of(streams):
            raise InputError(f"{within!r} is of another buffer, or from before a checkpoint was returned to")

    def _draft(self, batch_size: int, reads: Reads) -> Batch:
        held = len(self._streams)
        if batch_size > held:
            raise NotEnoughDataError(
                f"sample({batch_size}): the buffer holds {held} transitions; add more steps, or ask for fewer"
            )
        windows = self._streams.windows()
        try:
            with self._drawing:
                drawn = self._sampler.sample(self._rng, windows, self._standing, batch_size)
        except NotEnoughDataError as error:
            lacking = self._view.lacking(self._streams.all) if isinstance(self._view, Explains) else None
            raise error if lacking is None else NotEnoughDataError(lacking) from error
        if is_own(self._sampler):
            ids, weight = drawn
        else:
            ids, weight = checked_draw(self._sampler, drawn, batch_size)
            try:
                self._streams.check(self._view, ids)
            except (InputError, EvictedError) as error:
                raise InputError(f"{self._sampler!r}.sample has drawn what cannot be sampled: {error}") from error
        return self._shown.draft(self.schema, self._streams.all, ids, weight, self._rng, reads)

    def _open_streams(self) -> list[OpenStream]:
        self._check_open()
        return self._streams.all

    def _standing(self, ids: NDArray[np.int64]) -> NDArray[np.int8]:
        return self._streams.standing(self._view, ids)

    def update_priorities(self, index: Any, priorities: Any) -> None:
        """Tells a prioritized sampler the TD errors of transitions.

        Args:
            index: ``(B,)`` integers, of batches. Those that have left the window since are ignored.
            priorities: ``(B,)`` TD errors, or their magnitudes; of a repeated index the last one counts.

        Raises InputError, with no priority changed, where a priority is not finite, an index names no transition, or
        the sampler has no priorities.
        """
        with self._lock:
            self._check_open()
            if self._priorities is None:
                raise InputError(f"{self._sampler!r} has no priorities; create or open the store with Proportional()")
            with self._drawing:
                self._priorities.update(index, priorities, self._streams.windows(), self._standing)

    def _check_given(self, ids: NDArray[np.int64]) -> None:
        """InputError where an index is that of no item, and never was."""
        with self._lock:
            self._check_open()
            self._streams.check_given(self._view, ids)

    def get(self, index: Any) -> SomeBatch:
        """The transitions that ``index``, int64 ``(B,)`` of some batch, names.

        Raises EvictedError where one has left the window, InputError where one was never given.
        """
        ids = checked_ids(np.atleast_1d(np.asarray(index)))

        def draft(reads: Reads) -> Batch:
            self._streams.check(self._view, ids)
            return self._shown.draft(self.schema, self._streams.all, ids, np.ones(len(ids), np.float32), None, reads)

        return cast(SomeBatch, self._beside_writers(draft))

    def items(self) -> NDArray[np.int64]:
        """The index of everything that the view shows in the windows of all streams, ascending: what :meth:`get` takes.

        As it is now: what a writer adds or evicts later changes nothing in it.
        """
        with self._lock:
            self._check_open()
            every = [np.arange(window.first, window.stop) for window in self._streams.windows()]
            ids: NDArray[np.int64] = np.concatenate(every) if every else np.empty(0, np.int64)
            found: NDArray[np.int64] = ids[self._standing(ids) == NOW]
            return found

    def loader(self, batch_size: int, *, prefetch: int = 2) -> Loader:
        """An endless iterator of batches that a background thread samples ahead.

        Args:
            batch_size: of each.
            prefetch: batches that may wait. They were drawn before rows that were added since; a checkpoint holds the
                random state with them already drawn. Of a remote store as many again, up to 4, are
                being downloaded.
        """
        batch_size = check_count("batch_size", batch_size)
        check_count("prefetch", prefetch, most=1 << 16)
        if not isinstance(self._store.files, RemoteFiles):
            return Loader(lambda: self.sample(batch_size), prefetch)

        return Loader(begun_ahead(lambda: self._begin_sample(batch_size), min(prefetch, MOST_BEGUN)), prefetch)

    def shuffled(
        self, batch_size: int, epochs: int = 1, *, within: Selection | None = None,
        pool_bytes: int = shuffle.POOL_BYTES, drop_last: bool = False,
    ) -> Iterator[SomeBatch]:  # fmt: skip
        """Walks all transitions of the windows without replacement, for offline training.

        Each pass reads every chunk once, from many places of the log at the same time, into a shuffle pool of about
        ``pool_bytes``. What is added meanwhile is not part of the pass.

        Args:
            batch_size: of every batch but a pass's last.
            epochs: passes.
            within: episodes to keep to, of :meth:`select`.
            pool_bytes: of decoded frames that are shuffled together.
            drop_last: leave out a last batch that is smaller.
        """
        batch_size = check_count("batch_size", batch_size)
        epochs = check_count("epochs", epochs)
        check_count("pool_bytes", pool_bytes)
        with self._lock:
            self._check_open()
            if within is not None:
                self._check_selection(within, self._streams.all)

        def begin() -> Iterator[SomeBatch]:
            batches = shuffle.Pass(
                self.schema, self._open_streams, self._shown, self._rng, batch_size, pool_bytes, drop_last, self._lock,
                self._caught_up, within.holds if within is not None else None,
            )  # fmt: skip
            return cast(Iterator[SomeBatch], batches)

        return Passes(begin, epochs)
