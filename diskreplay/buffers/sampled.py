"""The base of the replay buffers: a store whose transitions a sampler draws and a view shows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Generic

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers import copies, owners, shuffle
from diskreplay.buffers.draws import Draws
from diskreplay.buffers.loader import MOST_BEGUN, Loader, begun_ahead, endless, loading
from diskreplay.buffers.passes import Passes
from diskreplay.buffers.saved_sampler import SavedSampler
from diskreplay.buffers.selection import Selection
from diskreplay.buffers.state import UPDATED, check_items, restore_sampler, resumption, sampler_facts, settings
from diskreplay.buffers.stored import StoredBuffer
from diskreplay.checks import check_array, check_count
from diskreplay.errors import DiskReplayError
from diskreplay.index.log import NOW
from diskreplay.sampling.window import Prioritized, Sampler
from diskreplay.schema.columns import Schema
from diskreplay.schema.ids import checked_ids
from diskreplay.storage.paths import PathLike, named
from diskreplay.storage.store import Checkpoint, Store
from diskreplay.views import notebooks
from diskreplay.views.batch import SomeBatch
from diskreplay.views.view import View


class SampledBuffer(StoredBuffer, Generic[SomeBatch]):
    """A store that is sampled from; the classes over this one say what ``add`` takes."""

    _shown = ("view", "sampler")
    _ragged = True

    def __init__(
        self,
        store: Store,
        *,
        stream: str | None,
        checkpoint: Checkpoint | None = None,
        view: View | None = None,
        sampler: Sampler | None = None,
        **options: Any,
    ) -> None:
        """Take a store and the ``options`` of :class:`StoredBuffer`; users call :meth:`create` or :meth:`open`."""
        owners.check_free(sampler, owners.store_key(store.schema, store.path))
        state = checkpoint.state if checkpoint else {}
        view, drawing = settings(store.schema, {**store.settings, **state}, view, given := sampler)
        priorities = drawing if isinstance(drawing, Prioritized) else None
        resume: Callable[[], object] | None = None
        if checkpoint and given is None:
            check_items(drawing, view, state.get("view", {}), checkpoint.name)
            restore_sampler(drawing, state.get("priorities"), store.read_arrays(checkpoint), checkpoint.name)
        elif checkpoint:
            # With a stream, rows are taken back whose ids others get: one that was used may know them.
            resume = resumption(
                drawing, view, state, lambda: store.read_arrays(checkpoint),
                f"the state of checkpoint {checkpoint.name!r}", anew=stream is not None,
            )  # fmt: skip
        # The sampler's own method: one of ours would make the buffer a reference cycle, and keep it and its lock alive.
        forget = priorities.forget if priorities is not None else lambda stream: None
        super().__init__(store, stream=stream, checkpoint=checkpoint, forget=forget, **options)
        engine = self.engine
        try:
            if resume is not None:  # not before: a sampler whose store is not opened after all keeps what it knows
                resume()
            updated = priorities is not None and not priorities.is_new and state.get(UPDATED, True)
            self.draws = Draws(engine, view, self._showing(view), drawing, updated)
            engine.hooks.append(self.draws)
            self.saved_sampler: SavedSampler | None = None
            if engine.streams.writer is not None:
                self.saved_sampler = SavedSampler(engine, self.draws, engine.streams.writer, take=checkpoint is None)
                engine.saving = self.saved_sampler.save
        except BaseException:
            self.close()
            raise
        owners.take(drawing, engine)

    open: ClassVar[Callable[..., Any]]
    """The method that opens a store at a commit or a checkpoint; see :meth:`diskreplay.ReplayBuffer.open`."""

    @classmethod
    def _kept(
        cls, schema: Schema, stored: Mapping[str, Any], options: Mapping[str, Any], path: PathLike | None = None
    ) -> dict[str, Any]:
        store = None if path is None else owners.store_key(schema, named(path))
        owners.check_free(options["sampler"], store, path is not None and options["take_over"])
        view, sampler = settings(schema, stored, options["view"], options["sampler"])
        return {"view": view.to_json(), "sampler": sampler_facts(sampler)}

    def _showing(self, view: View[Any]) -> View[SomeBatch]:
        """Return the view that makes the batches: ``view``, or one over it."""
        return view

    def __reduce__(self) -> tuple[Any, ...]:
        return copies.reduce(type(self), self.engine, {"view": self.view, "sampler": self.sampler})

    # Facts

    @property
    def view(self) -> View:
        """The view, which says what a sample looks like."""
        return self.draws.view

    @property
    def sampler(self) -> Sampler:
        """The sampler, which says which transitions a sample holds."""
        return self.draws.sampler

    def clear(self) -> None:
        """Forget all transitions of the stream that is written, with their priorities and counts; ids go on.

        The next commit gives the disk space back, but for what a checkpoint pins. Raises what :meth:`commit` raises.
        """
        self.engine.clear()

    def resize(self, capacity: int) -> None:
        """Let the window of the stream that is written hold more transitions, or fewer, and commit.

        Ids, priorities and the episodes that are under way go on. With fewer the oldest rows are evicted; the disk
        space of those that a checkpoint pins comes back when that is dropped. What was evicted does not come back.

        Args:
            capacity: transitions (rows x environments), of this stream alone; one row at the least.

        Raises InputError for another number, and what :meth:`commit` raises: opened again, the store has the capacity
        of before, or this one.
        """
        self.engine.resize(capacity)

    def _thumbnails(self) -> str:
        """Return pictures of a few transitions from oldest to newest; no draw is made, and no random state moves."""
        items = self.items()
        if not len(items):
            return ""
        some = np.unique(np.linspace(0, len(items) - 1, notebooks.THUMBNAILS).astype(np.int64))
        try:
            batch = self.get(items[some])
        except (DiskReplayError, ImportError) as error:  # the latter where video cannot be decoded
            return notebooks.heading(f"no pictures: {error}")
        return notebooks.pictures("obs", batch.obs, batch.leading_axes, getattr(batch, "mask", None))

    # Sampling

    def sample(self, batch_size: int, *, within: Selection | None = None, out: Any = None) -> SomeBatch:
        """Return a batch of ``batch_size`` transitions.

        Args:
            batch_size: the number of transitions.
            within: episodes to keep to, of :meth:`select`: their transitions are drawn uniformly, with replacement and
                weights of one, whatever the sampler is.
            out: a batch to fill and return: one that this buffer gave, of as many transitions, or arrays like its. What
                it held is lost, also where reading fails. In a batch of sequences ``next_obs`` may be ``obs`` one step
                later, see :meth:`SequenceBatch.overlapped`.

        Raises:
            InputError: for a selection of another buffer, or from before a checkpoint was returned to; for any where
                the sampler counts draws of groups. Where an array of ``out`` has another shape or dtype, is read-only,
                or shares memory with another, and where the store has ragged columns. Nothing was drawn.
            NotEnoughDataError: when fewer are in the buffer.
            CorruptionError: when a chunk on disk is damaged; names the place.
        """
        engine, draws = self.engine, self.draws
        if out is not None:
            given = draws.out(out, batch_size := check_count("batch_size", batch_size), engine)
            drawn = draws.at_once(batch_size, draw_only=True) if within is None else None
            draft = (draws.draft_drawn, [drawn]) if drawn is not None else (draws.draft,)
            draft = (*draft, batch_size) if within is None else (draws.draft_within, batch_size, within)
            engine.read(draws.draft_into, given, *draft)
            found: SomeBatch = out
            return found
        made = draws.at_once(batch_size) if within is None else None
        if isinstance(made, tuple):
            return engine.read(draws.draft_drawn, [made], batch_size)
        if made is not None:
            return made
        batch_size = check_count("batch_size", batch_size)
        if within is not None:
            return engine.read(draws.draft_within, batch_size, within)
        return engine.read(draws.draft, batch_size)

    def times_sampled(self, index: Any) -> NDArray[np.int64]:
        """Return how often transitions were drawn; the sampler must be a :class:`~diskreplay.Counting`.

        Args:
            index: ``(B,)`` integers, of batches or :meth:`items`.

        Returns int64 ``(B,)``. Raises EvictedError where one has left the window, InputError where one was never given,
        or the sampler does not count.
        """
        ids = checked_ids(np.atleast_1d(check_array("index", index)))
        with self.engine.lock:
            self.engine.check_open()
            with self.engine.lock.exclusive:
                return self.draws.times_sampled(ids)

    def update_priorities(self, index: Any, priorities: Any) -> None:
        """Tell a prioritized sampler the TD errors of transitions.

        Args:
            index: ``(B,)`` integers, of batches. Those that have left the window since are ignored.
            priorities: ``(B,)`` TD errors, or their magnitudes; of a repeated index the last one counts.

        Raises InputError, with no priority changed, where a priority is not finite, an index names no transition, or
        the sampler has no priorities.
        """
        if self.draws.update_at_once(index, priorities):
            return
        with self.engine.lock:
            self.engine.check_open()
            self.draws.update(index, priorities)

    def get(self, index: Any) -> SomeBatch:
        """Return the transitions that ``index``, int64 ``(B,)`` of some batch, names.

        Raises EvictedError where one has left the window, InputError where one was never given.
        """
        ids = checked_ids(np.atleast_1d(check_array("index", index)))
        made = self.draws.get_at_once(ids)
        return self.engine.read(self.draws.draft_ids, ids) if made is None else made

    def items(self) -> NDArray[np.int64]:
        """Return the index of all that the view shows in the windows of all streams, ascending, for :meth:`get`.

        As it is now: what a writer adds or evicts later changes nothing in it.
        """
        with self.engine.lock:
            self.engine.check_open()
            every = [np.arange(window.first, window.stop) for window in self.engine.streams.windows()]
            ids: NDArray[np.int64] = np.concatenate(every) if every else np.empty(0, np.int64)
            found: NDArray[np.int64] = ids[self.draws.standing(ids) == NOW]
            return found

    def loader(self, batch_size: int, *, prefetch: int = 2, device: Any = None) -> Loader[SomeBatch]:
        """Return an endless iterator of batches that a background thread samples ahead.

        Args:
            batch_size: the number of transitions of each batch.
            prefetch: batches that may wait. They were drawn before rows that were added since; a checkpoint holds the
                random state with them already drawn. Of a remote store as many again, up to 4, are
                being downloaded.
            device: a device of torch, such as ``"cuda"``: batches are tensors there, copied while the program learns
                before; None for arrays, which ``jax.device_put`` places after ``import diskreplay.jax``.

        Raises InputError for a device that torch cannot use, ModuleNotFoundError where there is no torch.
        """
        batch_size = check_count("batch_size", batch_size)
        check_count("prefetch", prefetch, most=1 << 16)
        if not self.engine.store.files.remote:
            return loading(endless(lambda: self.sample(batch_size)), prefetch, device)
        engine, draft = self.engine, self.draws.draft
        ahead = begun_ahead(lambda: engine.begin(draft, batch_size), min(prefetch, MOST_BEGUN))
        return loading(endless(ahead), prefetch, device)

    def shuffled(
        self, batch_size: int, epochs: int = 1, *, within: Selection | None = None,
        pool_bytes: int = shuffle.POOL_BYTES, drop_last: bool = False,
    ) -> Iterator[SomeBatch]:  # fmt: skip
        """Walk all transitions of the windows without replacement, for offline training.

        Each pass reads every chunk once, from many places of the log at the same time, into a shuffle pool of about
        ``pool_bytes``. What is added meanwhile is not part of the pass.

        Args:
            batch_size: the number of transitions of every batch but a pass's last.
            epochs: passes.
            within: episodes to keep to, of :meth:`select`.
            pool_bytes: the bytes of decoded frames that are shuffled together.
            drop_last: leave out a last batch that is smaller.

        Raises InputError, from ``next`` too, for a selection of another buffer, or from before a checkpoint was
        returned to.
        """
        batch_size = check_count("batch_size", batch_size)
        epochs = check_count("epochs", epochs)
        check_count("pool_bytes", pool_bytes)
        engine, draws = self.engine, self.draws
        with engine.lock:
            engine.check_open()
            if within is not None:
                draws.check_selection(within)

        def begin() -> Iterator[SomeBatch]:
            given = engine, draws.shown, batch_size, pool_bytes, drop_last
            if within is None:
                return shuffle.Pass(*given)
            return shuffle.Pass(*given, within.holds, functools.partial(draws.check_selection, within))

        return Passes(begin, epochs)
