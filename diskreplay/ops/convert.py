"""Datasets out of stores and into them, in any format of :mod:`diskreplay.formats`.

1. What a format cannot hold is found before anything is written, and refused unless it is allowed.
2. A dataset is written beside its name and renamed; a fresh store too. An interrupt or an error leaves nothing, and
   what a kill left goes when the same is written again.
3. Rows that are added to a store that exists are taken back after an error: it goes back to a checkpoint made before.
4. While something is written, signals that ask to end are noted, and acted on between two blocks of steps: no library
   is torn out of a write, no dataset out of its renaming.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import gymnasium

from diskreplay import formats
from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import check_count
from diskreplay.errors import InputError, NotEnoughDataError, WriteFailedError
from diskreplay.formats.core.choice import Align, Choice
from diskreplay.formats.core.format import Format, Loss, check_choice, check_holds, check_installed
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.output import replacing
from diskreplay.formats.core.recorder import MAX_FRAME_STACK, Added, record, without_differing
from diskreplay.formats.core.selection import EVERYTHING, SelectedStore, Selection, open_selected
from diskreplay.formats.core.transitions import Source, Transitions
from diskreplay.formats.store import Copy, write_store
from diskreplay.ops.checkpoints import IMPORT_MARK, unfinished_imports
from diskreplay.ops.envs import make
from diskreplay.ops.result import Written
from diskreplay.ops.signals import Progress, stoppable
from diskreplay.sampling.uniform import Uniform
from diskreplay.schema.columns import Stack
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import PathLike, checked_path, is_url, on_this_machine
from diskreplay.storage.store import FIRST_STREAM
from diskreplay.views.transition import Transition

PLAIN: dict[str, Any] = {"view": Transition(), "sampler": Uniform()}
"""The arguments with which stores are opened that are only added to, whatever they are sampled with."""

GROUPED = ("minari", "minari-arrow")
"""The formats in which a dataset's name may be ``group/name-v0``."""

MAX_SPACE = 160
"""The most characters of a space that are printed."""


@dataclasses.dataclass(frozen=True)
class Exported(Written):
    """The dataset that an export wrote.

    Attributes:
        format: its name.
        raw_bytes: the bytes of the dataset's steps, decoded, each observation counted once; of video those of frames.
        lost: the parts that the format could not hold, and how much of each.
        envs: environments that the episodes come from; most formats do not say which is whose.
        cut_starts: episodes whose first steps had left the window; formats without facts of episodes do not say so.
        seconds: the seconds that the export took.
    """

    format: str
    raw_bytes: int
    lost: dict[str, int]
    envs: int
    cut_starts: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Imported(Written):
    """The store that took a dataset's steps; ``transitions`` and ``episodes`` count what was added, as it has them.

    Attributes:
        format: the format of the source.
        stream: the stream that took the steps.
        evicted: transitions of them, the oldest, for which ``capacity`` had no room.
        dropped: steps of the source that are no transitions: the source has no next observation for them.
        ignored: names in the source that were not read.
        seconds: the seconds that the import took.
        notes: what the import took for granted, a sentence each.
        unfinished: checkpoints that killed imports into the store left.
        differing: transitions whose next observation is not that of the next one of their episode. They are kept as the
            source has them; with any, the continuity of a new store is "flags".
    """

    format: str
    stream: str
    evicted: int
    dropped: int
    ignored: tuple[str, ...]
    seconds: float
    notes: tuple[str, ...]
    unfinished: tuple[str, ...]
    differing: int


def export(
    path: PathLike, out: PathLike, format: str = "d4rl", *, selection: Selection = EVERYTHING, allow_loss: bool = False,
    overwrite: bool = False, compression: str | None = None, task: str | None = None, reward_column: str | None = None,
    progress: Progress | None = None,
) -> Exported:  # fmt: skip
    """Write the last commit of the store at ``path``, or a part of it, as a dataset ``out``.

    The dataset appears whole, under its name, or not at all. The store may be written meanwhile.

    Args:
        path: the path of the store.
        out: the file or directory to write.
        format: name of one.
        selection: the part to export.
        allow_loss: go on where the format cannot hold all of it.
        overwrite: True if a dataset that is there may be replaced.
        compression: one that the format knows; its own choice if None.
        task: the column whose texts are the tasks of the steps, for a format that has tasks.
        reward_column: a column whose values go out as the rewards, as in :meth:`ReplayBuffer.open`; the recorded ones
            go out as the column ``recorded_reward``, if the format holds columns. Episodes are chosen by those.
        progress: a function, called with the transitions done and in all.

    Raises:
        InputError: when ``out`` exists, for what the format cannot hold, for arguments that break a rule.
        NotEnoughDataError: when no episode is chosen.
        ModuleNotFoundError: when the format's library is not installed.
        OpenError, CorruptionError: when the store cannot be opened or read.
        StateError: when a live writer evicted rows before they were read.
        DiskFullError: when there is no room for it.
    """
    started = time.perf_counter()
    chosen = formats.get(format)
    compression = chosen.compressions[0] if compression is None else compression
    if chosen.write is None:
        raise InputError(f"{format} datasets can only be read; 'diskreplay formats' lists what can be written")
    if compression not in chosen.compressions:
        raise InputError(f"{format}: compression must be one of {', '.join(chosen.compressions)}, got {compression!r}")
    if task is not None and not chosen.tasks:
        raise InputError(f"{format} datasets have no tasks that the texts of {task!r} could be; lerobot's have")
    check_installed(chosen)
    target = absolute(out)
    apart(path, target)
    with (
        grouped(target) if chosen.name in GROUPED else contextlib.nullcontext(),
        stoppable(progress) as report,
        replacing(target, chosen.kind, overwrite=overwrite, recognise=chosen.recognise) as temporary,
    ):
        part = open_selected(path, selection, reward_column)
        if selection != EVERYTHING and not part.steps:
            raise NotEnoughDataError(nothing_chosen(part))
        part.layout = dataclasses.replace(part.layout, task=task)
        source, losses = held(part, chosen, allow_loss, compression, lambda: report(0, part.steps))
        check_holds(chosen, source.layout, source.steps)
        sizes: dict[int, int] = {}
        chosen.write(counted(source, report, sizes), temporary, compression)
        report(source.steps, source.steps)
        episodes, raw = len(part.episodes), sum(sizes.values())
        envs = len({(episode.stream, episode.env) for episode in part.episodes})
        cut = sum(not episode.complete_start for episode in part.episodes)
    lost = {loss.what: loss.count for loss in losses}
    seconds = time.perf_counter() - started
    return Exported(str(target), source.steps, episodes, bytes_of(target), format, raw, lost, envs, cut, seconds)


@contextlib.contextmanager
def grouped(target: pathlib.Path) -> Iterator[None]:
    """Make the directory above ``target`` if it is missing, and remove it if nothing comes to be in it."""
    group = target.parent
    missing = not group.exists() and group.parent.is_dir()
    if missing:
        group.mkdir(exist_ok=True)
    try:
        yield
    finally:
        if missing:
            with contextlib.suppress(OSError):  # there is something in it
                group.rmdir()


def nothing_chosen(part: SelectedStore) -> str:
    """Return the message for a choice of no episode: what there is to choose from."""
    returns = [episode.total_reward for rows in part.streams for episode in rows.episodes]
    if not returns:
        return f"nothing of the store {part.path!r} is chosen: it has no episode"
    return (
        f"nothing of the store {part.path!r} is chosen: it has episodes 0 to {len(returns) - 1:,}, with returns from "
        f"{min(returns):.6g} to {max(returns):.6g}"
    )


def held(
    part: SelectedStore, format: Format, allow_loss: bool, compression: str = "none",
    between: Callable[[], object] = lambda: None, *, later: bool = False,
) -> tuple[Source, list[Loss]]:  # fmt: skip
    """Return what a format holds of a part, and what it loses; raise InputError that names the losses, if not allowed.

    ``between`` and ``later`` are those of :meth:`SelectedStore.losses`.
    """
    losses = part.losses(format.holds, between, later=later)
    losses += format.losses(part.layout, part.episodes, compression)
    if losses and not allow_loss:
        raise InputError(
            f"{format.name} cannot hold {', '.join(map(str, losses))}; to go on without, allow the loss (--allow-loss)"
        )
    source, holds = part.source(stacked=format.holds.stacks), format.holds
    every, ragged = source.layout.columns, source.layout.ragged_columns
    return without_columns(source, ragged & holds.odd(source.layout) if holds.columns else every), losses


def import_dataset(
    source: PathLike | Source, path: PathLike, format: str | None = None, *, append: bool = False,
    capacity: int | None = None,
    observation_space: gymnasium.Space[Any] | None = None, action_space: gymnasium.Space[Any] | None = None,
    frame_stack: int | None = None, frames: Literal["packets", "decoded"] = "packets",
    map: Mapping[str, str] | None = None, columns: Sequence[str] | None = None, ends: str | None = None,
    align: Align | None = None, max_episode_steps: int | None = None, allow_loss: bool = False,
    progress: Progress | None = None,
) -> Imported:  # fmt: skip
    """Read the dataset ``source`` into a store at ``path``.

    A new store appears whole, or not at all. With ``append`` the steps go to the first stream of a store that is there,
    if that has one environment and room for all of them, and otherwise to a new stream, so that nothing is evicted.

    Episodes are those of the dataset, whatever its observations are. A next observation that is not the observation of
    the next step stays what it is.

    Args:
        source: the dataset; or arrays in RAM, as :mod:`diskreplay.formats.arrays` takes them.
        path: the path of the store.
        format: name of one; found from the source if None.
        append: add to a store that exists.
        capacity: the capacity of the new store or stream; just what is needed if None. With less, the oldest steps are
            evicted.
        observation_space, action_space: the spaces; those that the source names, or that follow from its arrays, if
            None.
        frame_stack: frames of an observation in samples; as the source says, or 1, if None.
        frames: "packets" keeps videos as they are; "decoded" makes ordinary columns of them, which take far more disk.
        map: the array, as the file spells it, for some of our names: ``{"obs/joints": "observations/qpos"}``.
        columns: our names of the observations and columns that are read, after ``map``; nothing else is looked at.
        ends: what tells where episodes end: ``"KIND=NAME"`` of an array, with a KIND of last, first, stops, lengths,
            episode or step_type (see :mod:`diskreplay.formats.core.ends`), or ``"whole"``: one episode, truncated.
        align: "next" if an entry's action and reward belong to its observation, "previous" if they led to it.
        max_episode_steps: the environment's time limit, where a file has terminations and no timeouts.
        allow_loss: leave out episodes with a reward that is not finite.
        progress: a function, called with the steps done and in all.

    Raises:
        InputError: when there is something at ``path`` already, for a source that is damaged or of another format, and
            for arguments that break a rule, and for next observations that the store to append to does not hold.
        StoreNotFoundError: when there is no store to append to.
        ModuleNotFoundError: when the format's library is not installed.
        DiskFullError: when there is no room for it.
    """
    started = time.perf_counter()
    target = absolute(path)
    source = source if isinstance(source, Source) else checked_path(source, "source")
    if append and frame_stack is not None:
        raise InputError("frame_stack belongs to a new store, not to one that is appended to")
    if not append:
        vacant(target, "choose another name, or add to the store that is there (--append)")
    if frames not in ("packets", "decoded"):
        raise InputError(f"frames must be 'packets' or 'decoded', got {frames!r}")
    choice = Choice(
        dict(map or {}), None if columns is None else tuple(columns), ends, align, max_episode_steps, allow_loss,
        frames == "decoded",
    )  # fmt: skip
    with opened(source, format, target, choice) as (name, found):
        wanted = dataclasses.replace(
            found, layout=overridden(found.layout, observation_space, action_space, frame_stack)
        )
        with stoppable(progress) as report:
            if capacity is not None:
                check_count("capacity", capacity)
            if append:
                stream, added, evicted = appended(wanted, target, capacity, report)
            else:
                stream, kind = FIRST_STREAM, Copy if name == "store" else ReplayBuffer
                with replacing(target, "directory") as temporary:
                    added, evicted = write_store(counted(wanted, report), temporary, capacity=capacity, kind=kind)
    return Imported(
        str(target), added.steps, added.episodes, bytes_of(target), name, stream, evicted, found.steps - added.steps,
        found.names.unread(), time.perf_counter() - started,
        found.notes if append else notes(found, observation_space, action_space),
        tuple(unfinished_imports(target)) if append else (), added.differing,
    )  # fmt: skip


def notes(
    source: Source, observation_space: gymnasium.Space[Any] | None, action_space: gymnasium.Space[Any] | None
) -> tuple[str, ...]:
    """Return what an import took for granted, a sentence each: of its reader, and the spaces that it inferred."""
    spaces = (
        ("observations", source.layout.observation_space, observation_space),
        ("actions", source.layout.action_space, action_space),
    )
    inferred = [f"{what} {short(str(found))}" for what, found, given in spaces if source.inferred and given is None]
    said = f"inferred from the values: {', '.join(inferred)}; --env ID takes an environment's spaces"
    return (*source.notes, said) if inferred else source.notes


def short(space: str) -> str:
    return space if len(space) <= MAX_SPACE else f"{space[:MAX_SPACE]}..."


@contextlib.contextmanager
def opened(
    source: PathLike | Source, format: str | None, target: pathlib.Path, choice: Choice
) -> Iterator[tuple[str, Source]]:
    """Open a dataset as a source, with the name of its format."""
    if isinstance(source, Source):
        yield "arrays", source
        return
    if is_url(source):
        raise InputError(f"datasets are imported from files; 'diskreplay pull {os.fspath(source)} PATH' makes a store")
    origin = pathlib.Path(checked_path(source, "source")).absolute()
    if not origin.exists():
        raise InputError(f"there is no dataset at {str(origin)!r}")
    chosen = formats.guess(origin, choice) if format is None else formats.get(format)
    if chosen.read is None:
        raise InputError(f"{chosen.name} datasets can only be written; 'diskreplay formats' lists what can be read")
    check_installed(chosen)
    apart(origin, target)
    if choice.decoded and not chosen.videos:
        raise InputError(f"{chosen.name} datasets have no videos whose frames could be decoded")
    check_choice(chosen, choice, formats.every)
    with chosen.read(origin, choice) as found:
        yield chosen.name, found


def appended(source: Source, target: pathlib.Path, capacity: int | None, report: Progress) -> tuple[str, Added, int]:
    """Add a source to the store at ``target``, or leave that as it was; return stream, steps added and evicted."""
    room = max(1, source.steps)
    with ReplayBuffer.open(target, mode="r", **PLAIN) as buffer:
        check_fits(source.layout, Layout.of(buffer.schema, stacked=True))
        names, first = list(buffer.engine.streams.commits), buffer.engine.streams.commits[FIRST_STREAM]
        next(without_differing(source.blocks(), source.layout, buffer), None)  # mostly errors leave the store untouched
        fits = first.num_envs == 1 and capacity is None and first.end - first.begin + room <= first.capacity
    stream = FIRST_STREAM if fits else str(1 + max(int(name) for name in names if name.isdecimal()))
    name = f"before-import-{os.getpid()}"
    more: dict[str, Any] = {} if fits else {"num_envs": 1, "capacity": capacity or room}
    with ReplayBuffer.open(target, stream=stream, **more, **PLAIN) as buffer:
        buffer.checkpoint(name, {IMPORT_MARK: stream})
        try:
            added, evicted = record(buffer, counted(source, report), capacity)
            buffer.commit()
        except BaseException:
            take_back(buffer, target, stream, name)
            raise
        buffer.drop_checkpoint(name)
    return stream, added, evicted


def take_back(buffer: ReplayBuffer, target: pathlib.Path, stream: str, checkpoint: str) -> None:
    """Bring a stream back to a checkpoint, and drop that; raise WriteFailedError, saying what is left, on failure."""
    try:
        with contextlib.suppress(WriteFailedError):  # what could not be committed is given up all the same
            buffer.close()
        with ReplayBuffer.open(target, stream=stream, checkpoint=checkpoint, **PLAIN) as restored:
            restored.drop_checkpoint(checkpoint)
    except WriteFailedError as error:
        raise type(error)(
            error.errno,
            f"{error.strerror}; what was added stays, after the checkpoint {checkpoint!r}: "
            f"'{command('checkpoints', 'restore', target, checkpoint)}' takes it back",
        ) from error


def command(*words: object) -> str:
    return shlex.join(["diskreplay", *map(str, words)])


def check_fits(layout: Layout, store: Layout) -> None:
    """Raise InputError if steps of a layout are not what a store takes."""
    for what, given, expected in (
        ("observations", layout.obs, store.obs), ("actions", layout.action, store.action),
        ("columns", dict(layout.columns), dict(store.columns)),
    ):  # fmt: skip
        if given != expected:
            raise InputError(f"the source's {what} {described(given)} are not the store's {described(expected)}")
    if layout.video != store.video:
        raise InputError(
            "the source's video has another codec or other parameters than the store's: import it into a store of its "
            "own; 'diskreplay merge' joins the two if codec, size and frames a second are the same"
        )
    if layout.ragged != store.ragged:
        raise InputError(
            f"the source's ragged columns {sorted(layout.ragged)} are not the store's {sorted(store.ragged)}"
        )


def described(shapes: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{name}: {dtype} {shape}" for name, (shape, dtype) in shapes.items()) + "}"


def overridden(
    layout: Layout, observation_space: gymnasium.Space[Any] | None, action_space: gymnasium.Space[Any] | None,
    frame_stack: int | None,
) -> Layout:  # fmt: skip
    """Return the layout with what the caller gave in place of what was found."""
    found = layout
    layout = dataclasses.replace(
        found,
        observation_space=found.observation_space if observation_space is None else observation_space,
        action_space=found.action_space if action_space is None else action_space,
    )
    for what, before, after in (("observation", found.obs, layout.obs), ("action", found.action, layout.action)):
        if {name: shape for name, (shape, _) in before.items()} != {name: shape for name, (shape, _) in after.items()}:
            raise InputError(f"the source's {what}s {described(before)} are not of the space given, {described(after)}")
    if frame_stack is not None:
        check_count("frame_stack", frame_stack, most=MAX_FRAME_STACK)
        layout = dataclasses.replace(layout, stacks=tuple(Stack(frame_stack) for _ in layout.obs))
    return layout


def without_columns(source: Source, names: Collection[str]) -> Source:
    """Return the source without some of its further columns."""
    kept = [name for name in source.layout.columns if name not in names]

    def without(steps: Transitions) -> Transitions:
        return dataclasses.replace(steps, extra={name: steps.extra[name] for name in kept})

    layout = source.layout.only((*source.layout.obs, *kept))
    return dataclasses.replace(source, layout=layout, blocks=lambda: map(without, source.blocks()))


def counted(source: Source, progress: Progress, sizes: dict[int, int] | None = None) -> Source:
    """Return the source that tells how many of its steps were read; ``sizes`` gets the decoded bytes of each block."""

    def blocks() -> Iterator[Transitions]:
        done = 0
        for steps in source.blocks():
            if sizes is not None:
                sizes[done] = steps.decoded_bytes(source.layout.video)
            yield steps
            done += len(steps)
            progress(done, source.steps)

    return dataclasses.replace(source, blocks=blocks)


def env_spaces(env_id: str) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Return the observation and action space of a Gymnasium environment; raise InputError if it cannot be made."""
    with contextlib.closing(make(env_id, 1, atari=False)) as env:
        return env.observation_space, env.action_space


def absolute(path: PathLike) -> pathlib.Path:
    """Return the path without links in it, but for its last part."""
    full = pathlib.Path(on_this_machine(path)).absolute()
    return full.parent.resolve() / full.name


def new_store(out: PathLike, *paths: PathLike) -> pathlib.Path:
    """Return where a store is to be made of those at ``paths``; raise InputError if it is in one, or not vacant."""
    target = absolute(out)
    for path in paths:
        apart(path, target)
    vacant(target, "choose another name, or remove it before")
    return target


def vacant(target: pathlib.Path, instead: str) -> None:
    """Raise InputError, saying what to do instead, if something but an empty directory is at a path."""
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(f"{str(target)!r} exists; {instead}")


def apart(path: PathLike, target: pathlib.Path) -> None:
    """Raise InputError if one of two paths lies in the other; a URL lies apart from all."""
    if is_url(path):
        return
    source = pathlib.Path(checked_path(path))
    one, other = source.resolve(), target.resolve()
    if one == other or one in other.parents or other in one.parents:
        raise InputError(f"{str(source)!r} and {str(target)!r} must lie apart, none within the other")


def bytes_of(path: pathlib.Path) -> int:
    """Return the number of bytes that a file, or a directory with all in it, takes."""
    return path.stat().st_size if path.is_file() else LocalFiles().stored_bytes(str(path))
