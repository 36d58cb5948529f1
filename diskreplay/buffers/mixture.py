"""A mixture of stores: every batch holds a fixed share of each.

1. How many items of a batch each part gives follows from the fractions and from what was drawn before
   (:mod:`diskreplay.sampling.shares`). A batch holds the items of the first part, then those of the second, and so on.
2. An index of the mixture is ``part << 59 | index``: that of the first part is its own. So indices of different stores,
   which are the same numbers, are kept apart, in the one int64 that a buffer's batch has.
3. A checkpoint of the mixture is one of each part that is written, under one name. That of the first of them, the
   keeper, is made last and dropped first, and holds what has been drawn of each part, and the sampler and random state
   of the parts that are only read. So the mixture's checkpoint exists if and only if the keeper's does; what a crash
   left of one in other parts is known by the keeper that it names, and is dropped by the next that needs its place.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.checkpointed import Checkpointed
from diskreplay.buffers.joining import Joint
from diskreplay.buffers.loader import Loader, endless, loading
from diskreplay.buffers.opening import find_checkpoint, located, written_stream
from diskreplay.buffers.owners import store_key
from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.buffers.state import resumption
from diskreplay.buffers.stored import Restored
from diskreplay.buffers.subscripts import Subscripted
from diskreplay.checks import check_array, check_count
from diskreplay.engine import pushes
from diskreplay.engine.generator import rng_to_json, set_rng
from diskreplay.engine.hooks import State
from diskreplay.errors import CheckpointError, CorruptionError, InputError, NotEnoughDataError, ReadOnlyError
from diskreplay.process.locks import Lock, held_back
from diskreplay.reading.reads import Reads
from diskreplay.sampling import shares
from diskreplay.sampling.composed import has_priorities, with_parts
from diskreplay.sampling.groups import Groups
from diskreplay.sampling.shares import FRACTIONS, GIVEN, KEEPER, MIXTURE, READ
from diskreplay.sampling.window import Prioritized, checked_updates
from diskreplay.schema.columns import RECORDED, REWARD
from diskreplay.schema.ids import Ids, checked_ids
from diskreplay.schema.ragged import Forms, Lists, Padded, pads_left
from diskreplay.storage.paths import PathLike, named
from diskreplay.storage.store import Checkpoint, Store
from diskreplay.views.batch import SomeBatch

PART_SHIFT = 59
"""The bits of an index that a part's own may have: its stream's number has the last 11 of them."""
MAX_PARTS = 1 << (63 - PART_SHIFT)
MAX_STREAMS = 1 << (PART_SHIFT - 48)
LEFT = "padded on the left"

Result = TypeVar("Result")
PartToOpen = PathLike | tuple[PathLike, Mapping[str, Any]]


class Mixture(Subscripted, Checkpointed, Generic[SomeBatch]):
    """A mixture of several stores that samples from each its share, as when learning online with prior data.

    Steps are added to the parts themselves. Several threads may sample; what one thread draws, another adds to.

    Args:
        parts: open buffers, 1 to 16, of any classes and modes, each with the view and the sampler that it has. Their
            batches must have the same class, and each field the same shape, dtype and side of padding in all parts.
        fractions: numbers above 0, one for each part, in proportion to their shares; all equal if None. Where a share
            of a batch is no whole number, batches take turns, so that of all that was ever drawn each part has given
            its share, to less than one.

    Raises InputError where an argument is none of that, before anything is drawn.
    """

    _what = "mixture"
    _walked_by = "mixture.sample(256) gives a batch of all parts; each of mixture.parts has items() and shuffled(256)"

    def __init__(self, parts: Sequence[SampledBuffer[SomeBatch]], fractions: Sequence[float] | None = None) -> None:
        if not isinstance(parts, list | tuple) or not 1 <= len(parts) <= MAX_PARTS:
            raise InputError(f"parts must be a list of 1 to {MAX_PARTS} buffers, got {parts!r:.200}")
        for part in parts:
            if not isinstance(part, SampledBuffer):
                raise InputError(f"a part must be an open buffer, such as ReplayBuffer.open(path), got {part!r:.200}")
            if any(isinstance(one, Groups) for one in with_parts(part.sampler)):
                raise InputError(f"a mixture takes no part that draws groups, such as {part!r} by {part.sampler!r}")
        if len({id(part) for part in parts}) < len(parts):
            raise InputError("a buffer can be one part alone; to draw twice from it, give it a SamplerMixture")
        self._parts: tuple[SampledBuffer[SomeBatch], ...] = tuple(parts)
        given = [1.0] * len(parts) if fractions is None else fractions
        self._shares = shares.of("fractions", given, len(parts))
        self._fractions = tuple(float(fraction) for fraction in given)
        self._left = _check_fit(self._parts)
        """The names of the arrays of a batch that are padded on the left."""
        self._lock = Lock("the mixture")
        """The lock held while what was drawn is counted."""
        self._given = [0] * len(parts)
        """The number of items that each part has given so far."""
        self._restored: Restored | None = None

    @classmethod
    def open(
        cls,
        parts: Sequence[PartToOpen],
        fractions: Sequence[float] | None = None,
        *,
        checkpoint: str | None = None,
        or_last_commit: bool = False,
        buffer: type[SampledBuffer[Any]] = ReplayBuffer,
    ) -> Self:
        """Open the stores of a mixture at their last commits, or at a checkpoint of the mixture.

        At a checkpoint, parts that are written are where they were; a part that is only read draws with the sampler and
        random state that it had, from what its store holds now.

        Args:
            parts: for each the path, to write to it, or the path and a dict with any options of ``open``, such as
                ``{"mode": "r"}``; not ``checkpoint``, but for a part that is only read.
            fractions: as in the class; those of the checkpoint if None. Where they are others, counting begins anew.
            checkpoint: name of one that :meth:`checkpoint` made; "latest" is the newest that was made with this stream
                of the first written part.
            or_last_commit: True to open at the last commits if there is no checkpoint "latest" yet.
            buffer: the class to open with.

        Raises InputError, what ``open`` of a buffer raises, and CheckpointError where there is no such checkpoint.
        """
        if not isinstance(parts, list | tuple) or not 1 <= len(parts) <= MAX_PARTS:
            raise InputError(f"parts must be a list of 1 to {MAX_PARTS} paths, got {parts!r:.200}")
        wanted = [_checked_part(part) for part in parts]
        written = [(path, options) for path, options in wanted if options["mode"] == "r+"]
        cut = _find(written, checkpoint, or_last_commit) if checkpoint is not None else None
        state = None if cut is None else _stored(cut, wanted)
        keeper = _store(*written[0]) if written else None
        if keeper is not None:
            for path, options in written:
                _drop_leftovers(buffer, path, options, keeper)
        if cut is not None:
            _check_going_back(written, cut.name)
        with contextlib.ExitStack() as opened:
            buffers = []
            for path, options in wanted:
                if cut is not None and options["mode"] == "r+":
                    options = {**options, "checkpoint": cut.name}
                buffers.append(opened.enter_context(buffer.open(path, **options)))
            mixture = cls(buffers, state[FRACTIONS] if fractions is None and state is not None else fractions)
            if cut is not None and state is not None and keeper is not None:
                mixture._restore(state, keeper.read_arrays(cut), cut.name)
                mixture._restored = mixture._written()[0].restored
            opened.pop_all()
        return mixture

    # Facts

    @property
    def parts(self) -> tuple[SampledBuffer[SomeBatch], ...]:
        """The buffers, as they were given."""
        return self._parts

    @property
    def fractions(self) -> tuple[float, ...]:
        """The fractions, as they were given."""
        return self._fractions

    @property
    def capacity(self) -> int:
        """The number of transitions that the windows of the parts can hold together, by each part's ``capacity``."""
        return sum(part.capacity for part in self._parts)

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """The space of an observation of the first part; those of the others have its shapes and dtypes."""
        return self._parts[0].observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The space of an action of the first part; those of the others have its shapes and dtypes."""
        return self._parts[0].action_space

    def __len__(self) -> int:
        """Return the number of transitions in the windows of all parts."""
        return sum(len(part) for part in self._parts)

    def __repr__(self) -> str:
        return f"<Mixture {list(self._parts)}, fractions={self._fractions}>"

    # Sampling

    def sample(self, batch_size: int) -> SomeBatch:
        """Return a batch of ``batch_size`` transitions, those of the first part first, then of the second, and so on.

        Its fields are those of the parts' batches; ``index`` names each transition in the mixture, and :meth:`split`
        takes it apart; ``weight`` is as each part gives it.

        Raises:
            NotEnoughDataError: when a part holds fewer than it is to give; names the part.
            CorruptionError: when a chunk on disk is damaged; names the place.
        """
        batch_size = check_count("batch_size", batch_size)
        with self._lock:  # of one draw all parts have been drawn from, or none
            before = self._given
            counts = self._shares.counts(before, batch_size)
            joint = Joint(counts, self._left)
            drawn, counted = [], contextlib.ExitStack()
            with counted:  # calls back only if a part cannot be drawn from
                for number, (part, count) in enumerate(zip(self._parts, counts, strict=True)):
                    if count:
                        draft = functools.partial(_draft, part, counted)
                        begin = functools.partial(part.engine.begin, draft, count, empty=joint.part(number))
                        drawn.append((number, part, _of_part(number, part, begin)))
                counted.pop_all()
            given = self._given = [have + count for have, count in zip(before, counts, strict=True)]
        batches: list[SomeBatch] = []
        try:
            for number, part, read in drawn:
                batch = _of_part(number, part, read)
                batch.index = _to_mixture(batch.index, number, part)
                batches.append(batch)
        except BaseException:
            with self._lock:
                if self._given is given:  # else others drew since, whose shares go on from these
                    self._given = before
            raise
        return cast(SomeBatch, joint.join(batches))

    def split(self, index: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the part's number, and the index in it, of each of ``index`` ``(B,)``: two arrays int64 ``(B,)``.

        Raises InputError where an index is none of a mixture of so many parts.
        """
        ids = checked_ids(index)
        numbers: Ids = ids >> PART_SHIFT
        wrong = ids[(numbers < 0) | (numbers >= len(self._parts))]
        if len(wrong):
            raise InputError(
                f"index {wrong[0]} is of none of the {len(self._parts)} parts; give batch.index of this mixture"
            )
        return numbers, ids & ((1 << PART_SHIFT) - 1)

    def update_priorities(self, index: Any, priorities: Any) -> None:
        """Give each part whose sampler has priorities the TD errors of its transitions; those of others are ignored.

        Args:
            index: ``(B,)`` integers, of batches of this mixture. Those that have left the window since are ignored.
            priorities: ``(B,)`` TD errors, or their magnitudes; of a repeated index the last one counts.

        Raises InputError, with no priority changed, where a priority is not finite, an index names no transition, or no
        part has priorities.
        """
        ids, errors = checked_updates(index, priorities)
        numbers, own = self.split(ids)
        told = [number for number, part in enumerate(self._parts) if has_priorities(part.sampler)]
        if not told:
            raise InputError("no part of the mixture has priorities; open one with sampler=Proportional()")
        if not np.isfinite(errors).all():
            raise InputError(f"priorities must be finite, got {errors[~np.isfinite(errors)][0]}")
        given = [(self._parts[number], numbers == number) for number in told]
        for part, here in given:
            with part.engine.lock:
                part.engine.check_open()
                part.engine.streams.check_given(part.view, own[here])
        with held_back():
            for part, here in given:
                if here.any():
                    part.update_priorities(own[here], errors[here])

    def write(self, name: str, index: Any, values: Any) -> None:
        """Give values of a column that is written later to the parts that are written; those of others are ignored.

        Args:
            name: the name of the column.
            index: ``(B,)`` integers, of batches of this mixture. Those that have left the window since are ignored.
            values: ``(B, *shape)``, as ``write`` of a buffer takes them; of a repeated index the last one counts.

        Raises InputError, with nothing written, for what ``write`` of a buffer refuses, and ReadOnlyError where no part
        is written.
        """
        numbers, own = self.split(index)
        written = {id(part) for part in self._written()}
        rows = values if isinstance(values, list | tuple) else np.atleast_1d(check_array(name, values))
        if len(rows) != len(own):
            raise InputError(f"{name}: must have a value for each of the {len(own)} indices, got {len(rows)}")
        given = []
        for number, part in enumerate(self._parts):
            if id(part) in written:
                here = np.flatnonzero(numbers == number)
                chosen = rows[here] if isinstance(rows, np.ndarray) else [rows[at] for at in here.tolist()]
                given.append((part, own[here], chosen))
                part.engine.check_write(name, own[here], chosen)
        with held_back():
            for part, ids, chosen in given:
                if len(ids):
                    part.write(name, ids, chosen)

    def get(self, index: Any) -> SomeBatch:
        """Return the transitions that ``index``, int64 ``(B,)`` of batches of this mixture, names, in this order.

        Raises EvictedError where one has left the window, InputError where one was never given.
        """
        numbers, own = self.split(index)
        order = np.argsort(numbers, kind="stable")
        batches: list[SomeBatch] = []
        for number in np.unique(numbers).tolist():
            batch = self._parts[number].get(own[numbers == number])
            batch.index = _to_mixture(batch.index, number, self._parts[number])
            batches.append(batch)
        if not batches:
            return self._parts[0].get(own)
        joined = cast(SomeBatch, Joint([len(batch) for batch in batches], self._left).join(batches))
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        found: SomeBatch = joined[back]
        return found

    def loader(self, batch_size: int, *, prefetch: int = 2, device: Any = None) -> Loader[SomeBatch]:
        """Return an endless iterator of batches that a background thread samples ahead.

        Args:
            batch_size: the number of transitions of each batch.
            prefetch: batches that may wait; a checkpoint holds the random states with them already drawn.
            device: as in a buffer's ``loader``.
        """
        batch_size = check_count("batch_size", batch_size)
        check_count("prefetch", prefetch, most=1 << 16)
        return loading(endless(lambda: self.sample(batch_size)), prefetch, device)

    # What is kept

    def refresh(self) -> bool:
        """Go on to the newest commits of the streams that others write, and return True if anything changed."""
        return any([part.refresh() for part in self._parts])

    @property
    def restored(self) -> Restored | None:
        """The checkpoint at which the mixture was opened, or None if it was opened at last commits, or made."""
        return self._restored

    def checkpoint_metadata(self, name: str) -> dict[str, Any]:
        """Return the metadata that the checkpoint was made with; raise CheckpointError if there is no such one."""
        return self._written()[0].checkpoint_metadata(name)

    def _written(self) -> list[SampledBuffer[SomeBatch]]:
        """Return the parts that are written, the keeper first."""
        found = [part for part in self._parts if not part.engine.read_only]
        if not found:
            raise ReadOnlyError("no part of the mixture is written; open one with mode='r+' to keep checkpoints in it")
        return found

    def _counts(self, one: Checkpoint) -> bool:
        return GIVEN in _held(one)

    def _leftovers(self, store: SampledBuffer[Any]) -> list[str]:
        return _leftovers(store.engine.store, self._written()[0].engine.store)

    def _mark(self) -> State:
        return {MIXTURE: {KEEPER: _key(self._written()[0].engine.store)}}, {}

    def _state(self) -> State:
        """Return what has been drawn, and the state of the parts that are only read."""
        read: list[Any] = []
        arrays: dict[str, NDArray[Any]] = {}
        for number, part in enumerate(self._parts):
            if not part.engine.read_only:
                read.append(None)
                continue
            with part.engine.lock:
                part.engine.check_open()
                facts, values = part.draws.state()
                timelines = {
                    str(stream.log.stream): stream.disk.commit_record.timeline for stream in part.engine.streams
                }
                rng, store = rng_to_json(part.engine.rng), _key(part.engine.store)
                read.append({**facts, "rng": rng, "timelines": timelines, "store": store})
            arrays |= {f"part{number}.{name}": value.copy() for name, value in values.items()}
        return {MIXTURE: {GIVEN: list(self._given), FRACTIONS: list(self._fractions), READ: read}}, arrays

    def _restore(self, state: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], name: str) -> None:
        """Go on from what a checkpoint holds; raise CorruptionError if that is not a state."""
        for number, (part, stored) in enumerate(zip(self._parts, state[READ], strict=True)):
            if stored is not None:
                mark = f"part{number}."
                own = {key[len(mark) :]: value for key, value in arrays.items() if key.startswith(mark)}
                try:
                    _restore_reader(part, stored, own, name)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    if isinstance(error, InputError):
                        raise
                    raise CorruptionError(f"the mixture of checkpoint {name!r} cannot be read: {error!r}") from error
        if list(self._fractions) == list(state[FRACTIONS]):
            try:
                self._given = self._shares.checked(state[GIVEN])
            except ValueError as error:
                raise CorruptionError(f"the mixture of checkpoint {name!r} cannot be read: {error}") from error

    # End

    def close(self) -> None:
        """Close all parts, the last one first, with errors as ``close`` of a buffer once all were closed."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        closing = contextlib.ExitStack()
        for part in self._parts:
            closing.push(part)  # of several that lose rows, the first error gets the others as notes
        closing.__exit__(*exception)


def _draft(part: SampledBuffer[SomeBatch], counted: contextlib.ExitStack, count: int, reads: Reads) -> SomeBatch:
    """Return what a part drafts; ``counted`` then takes its draws back if no batch comes of them."""
    made = part.draws.draft(count, reads)
    counted.callback(_take_back, part, made.index)
    return made


def _take_back(part: SampledBuffer[Any], ids: Ids) -> None:
    with part.engine.lock.exclusive:
        part.draws.take_back(ids)


def _of_part(number: int, part: SampledBuffer[Any], call: Callable[[], Result]) -> Result:
    """Return what a call gives; if a part does not have enough data, the error names it."""
    try:
        return call()
    except NotEnoughDataError as error:
        raise NotEnoughDataError(f"part {number} of the mixture, {part.path!r}: {error}") from error


def _check_fit(parts: Sequence[SampledBuffer[Any]]) -> frozenset[str]:
    """Return the names of the arrays that are padded on the left; raise InputError if two batches cannot be one.

    Each part is asked for an empty batch. Where parts show another column as rewards, not all have recorded ones apart.
    """
    some = {f"extra/{RECORDED}"} if any(part.engine.streams.reward != REWARD for part in parts) else set()
    empty = [part.get(np.empty(0, np.int64)) for part in parts]
    layouts = [dict(_layout("", vars(batch), part.engine.forms)) for part, batch in zip(parts, empty, strict=True)]
    for number, batch in enumerate(empty[1:], 1):
        of = f"the batches of part {number}, {parts[number].path!r}, do not fit those of part 0, {parts[0].path!r}"
        if type(batch) is not type(empty[0]):
            raise InputError(f"{of}: they are {type(batch).__name__} and {type(empty[0]).__name__}; give one view")
        ours, theirs = layouts[number], layouts[0]
        for name in sorted((ours.keys() | theirs.keys()) - some):
            if ours.get(name) != theirs.get(name):
                one, other = (each.get(name, "missing") for each in (ours, theirs))
                raise InputError(f"{of}: {name} is {one} here, and {other} there")
    return frozenset(name for name, what in layouts[0].items() if what == LEFT)


def _layout(name: str, value: Any, forms: Forms) -> list[tuple[str, str]]:
    """Return the name, and the dtype and shape of an item, of each array of a nested value, and sides of paddings."""
    if value is None:
        return [(name, "None")]
    if isinstance(value, Padded):
        side = LEFT if pads_left(forms, name) else "padded on the right"
        return [(name, side), *_layout(name, tuple(value), forms)]
    if isinstance(value, Lists):
        value = value.parts
    if isinstance(value, Mapping | tuple):
        members = value.items() if isinstance(value, Mapping) else enumerate(value)
        return [found for key, part in members for found in _layout(f"{name}/{key}" if name else str(key), part, forms)]
    return [(name, f"{value.dtype} {value.shape[1:]}")]


def _to_mixture(index: Ids, number: int, part: SampledBuffer[Any]) -> Ids:
    """Return the indices of a part as those of the mixture."""
    newest = part.engine.streams.newest
    if newest >= MAX_STREAMS:
        raise InputError(
            f"part {number}, {part.path!r}, has a stream with the number {newest}; in a mixture streams "
            f"have numbers below {MAX_STREAMS}"
        )
    return index | (number << PART_SHIFT) if number else index


def _checked_part(part: PartToOpen) -> tuple[str, dict[str, Any]]:
    path, options = part if isinstance(part, tuple) else (part, {})
    if not isinstance(options, Mapping):
        raise InputError(f"a part must be a path, or a path and a dict of options, got {part!r:.200}")
    options = {"mode": "r+", **options}
    if "checkpoint" in options and options["mode"] == "r+":
        raise InputError("a part that is written is opened at the mixture's checkpoint: Mixture.open(checkpoint=name)")
    return named(path), dict(options)


def _store(path: str, options: Mapping[str, Any]) -> Store:
    return Store(*located(path, options))


def _stream(store: Store, options: Mapping[str, Any]) -> str | None:
    return written_stream(store, options["mode"], options.get("stream"))


def _key(store: Store) -> str:
    return store_key(store.schema, store.path)


def _find(written: Sequence[tuple[str, dict[str, Any]]], name: str, or_last_commit: bool) -> Checkpoint | None:
    """Return the keeper's checkpoint of that name, or None to open the last commits in its place."""
    if not written:
        raise InputError(
            "a mixture of parts with mode='r' has no checkpoints; leave checkpoint= out, or open one part with "
            "mode='r+'"
        )
    path, options = written[0]
    keeper = _store(path, options)
    return find_checkpoint(
        keeper, name, _stream(keeper, options), or_last_commit, lambda one: GIVEN in _held(one),
        "the mixture that is kept in",
    )  # fmt: skip


def _check_going_back(written: Sequence[tuple[str, dict[str, Any]]], name: str) -> None:
    """Raise what stands against going back in any part, before the first part has gone back."""
    for path, options in written:
        store = _store(path, options)
        stream = _stream(store, options)
        if stream is not None and store.has_stream(stream) and not options.get("take_over"):  # which frees the lock
            pushes.check_going_back(store, stream, store.checkpoint(name), options.get("remote"))


def _held(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return what a checkpoint holds of a mixture, empty if it holds nothing."""
    found = checkpoint.state.get(MIXTURE)
    return found if isinstance(found, Mapping) else {}


def _stored(cut: Checkpoint, wanted: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return what a checkpoint holds of a mixture.

    CheckpointError where it is none of a mixture of so many parts, InputError where a part that is read is another
    store, or is to be written, or the other way round; nothing was opened yet.
    """
    state = _held(cut)
    if not all(isinstance(state.get(key), list) for key in (GIVEN, FRACTIONS, READ)):
        raise CheckpointError(
            f"the checkpoint {cut.name!r} was not made by a Mixture with this first written part; give its parts in "
            "their order"
        )
    if len(state[READ]) != len(wanted):
        raise CheckpointError(
            f"the checkpoint {cut.name!r} is of a mixture of {len(state[READ])} parts, not {len(wanted)}; give all "
            "of them"
        )
    for number, ((path, options), stored) in enumerate(zip(wanted, state[READ], strict=True)):
        if (options["mode"] == "r") != (stored is not None):
            how = "read" if stored is not None else "written"
            raise InputError(f"at the checkpoint {cut.name!r} part {number}, {path!r}, was {how}; open it so")
        if stored is not None and (
            not isinstance(stored, Mapping) or stored.get("store") != _key(_store(path, options))
        ):
            raise InputError(
                f"{path!r} is not part {number} of the checkpoint {cut.name!r}; give its parts in their order"
            )
    return dict(state)


def _leftovers(store: Store, keeper: Store) -> list[str]:
    """Return the checkpoints of a part whose keeper has none of that name: it died while making or dropping it."""
    if store.path == keeper.path:
        return []
    kept = set(keeper.checkpoint_names())
    return [one.name for one in store.checkpoints() if one.name not in kept and _held(one).get(KEEPER) == _key(keeper)]


def _drop_leftovers(kind: type[SampledBuffer[Any]], path: str, options: Mapping[str, Any], keeper: Store) -> None:
    """Drop what is left of the keeper's checkpoints in a part that is to be written."""
    names = _leftovers(_store(path, options), keeper)
    if names:
        with kind.open(path, **options) as part:
            for name in names:
                part.drop_checkpoint(name)


def _restore_reader(
    part: SampledBuffer[Any], stored: Mapping[str, Any], arrays: dict[str, NDArray[Any]], name: str
) -> None:
    """Give a part that is only read its random state, and its sampler's if that can be taken over."""
    with part.engine.lock:
        resume = resumption(part.sampler, part.view, stored, lambda: arrays, f"the state of checkpoint {name!r}")
        if resume() and isinstance(part.sampler, Prioritized):
            for stream in part.engine.streams:
                was = stored["timelines"].get(str(stream.log.stream))
                if was is not None and was != stream.disk.commit_record.timeline:
                    part.sampler.forget(stream.log.stream)
        set_rng(part.engine.rng, stored, name)
