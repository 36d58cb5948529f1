"""The making or opening of the store of another library's buffer."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from diskreplay.buffers.multi_agent import MultiAgentReplayBuffer
from diskreplay.buffers.opening import LATEST
from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.buffers.stored import StoredBuffer
from diskreplay.compat.location import Location
from diskreplay.errors import CheckpointError, InputError, end_block
from diskreplay.sampling.window import Sampler
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import FIRST_STREAM, Store, newest

SomeBuffer = TypeVar("SomeBuffer", ReplayBuffer, MultiAgentReplayBuffer)

CREATE_OPTIONS = ("codec", "chunk_rows", "shard_rows")
OPEN_OPTIONS = ("cache_bytes", "commit_rows", "commit_seconds", "take_over")
"""The options that a store can also be opened with."""
TAKE_OVER = "take_over"
"""The one of these options that a store can only be opened with."""


def open_or_create(
    kind: type[SomeBuffer], place: Location, options: Mapping[str, Any], create: Mapping[str, Any],
    facts: Mapping[str, Any] | None = None, grows: bool = False, **settings: Any,
) -> SomeBuffer:  # fmt: skip
    """Return the store at a place, or a new one.

    Args:
        kind: the kind of the buffer.
        place: the place of the store.
        options: the caller's, all for ``create``; ``open`` takes those of ``OPEN_OPTIONS``.
        create: further arguments of ``create``.
        facts: the arguments that an existing store must fit, see :func:`check_alike`; ``create`` if None.
        grows: True if a store that is there may become larger: nothing of it tells where a row stands in a ring.
        **settings: arguments of both.

    Raises InputError, the store closed again, where it was made for another buffer.
    """
    if not place.exists:
        making = {name: value for name, value in options.items() if name != TAKE_OVER}
        return kind.create(place.path, **create, **settings, **making, ragged=None)
    opening = {name: options[name] for name in OPEN_OPTIONS if name in options}
    buffer = kind.open(place.path, **settings, **opening, ragged=None)
    with closed_on_failure(buffer):
        check_alike(buffer, create if facts is None else facts, grows)
    return buffer


def check_checkpoint(place: Location, name: str) -> list[str]:
    """Return all names; raise InputError without a store at a place, CheckpointError without such a checkpoint."""
    if not place.exists:
        raise InputError(f"there is no store, and so no checkpoint {name!r}, at {place.path!r}")
    found = Store(place.path, LocalFiles()).checkpoint_names()
    if name not in found:
        raise CheckpointError(f"there is no checkpoint {name!r} at {place.path!r}; there are {found}")
    return found


def named_checkpoint(places: Sequence[Location], name: str | None) -> str | None:
    """Return the checkpoint of a name that the stores at all places have; "latest" is the newest of those.

    None for "latest" where there is none yet, and the last commits are to be opened, or new stores made. Raises
    InputError without a store at a place, CheckpointError without such a checkpoint.
    """
    if name is None or (name == LATEST and not all(place.exists for place in places)):
        return None
    if name != LATEST:
        for place in places:
            check_checkpoint(place, name)
        return name
    first, *others = (Store(place.path, LocalFiles()).checkpoints() for place in places)
    whole = {one.name for one in first}.intersection(*({one.name for one in each} for each in others))
    if LATEST in whole:
        return LATEST
    found = newest((one for one in first if one.name in whole), FIRST_STREAM)
    return None if found is None else found.name


def numbered(names: Iterable[str], prefix: str) -> dict[str, int]:
    """Return the checkpoints whose names are a prefix and a number, with their numbers."""
    matches = {name: re.fullmatch(re.escape(prefix) + r"([0-9]+)", name) for name in names}
    return {name: int(match[1]) for name, match in matches.items() if match}


@contextlib.contextmanager
def closed_on_failure(buffer: StoredBuffer) -> Iterator[None]:
    """Close a buffer that has just been opened if the block fails."""
    try:
        yield
    except BaseException as error:  # not left to the collector: a traceback that somebody keeps would hold the lock
        end_block(buffer.close, error)
        raise


def check_alike(buffer: SampledBuffer[Any], facts: Mapping[str, Any], grows: bool = False) -> None:
    """Raise InputError if a store was made for another buffer; with ``grows``, enlarge one that is too small.

    Args:
        buffer: the store.
        facts: the arguments of ``create`` that the store must fit, by name. Options, and frames by leaf, are not looked
            at.
    """
    schema = buffer.schema
    stored: dict[str, Any] = {
        "observation_space": schema.observation_space,
        "action_space": schema.action_space,
        "num_envs": buffer.num_envs,
        **({} if grows else {"capacity": schema.capacity}),
        "columns": {column.name: (column.shape, column.dtype) for column in schema.extra_columns},
        "sampler": _drawing(buffer.sampler),
    }
    if isinstance(facts.get("frame_stack"), int):
        stored["frame_stack"] = max(stack.frames for stack in schema.stacks)
    wanted = {name: _drawing(fact) if name == "sampler" else fact for name, fact in facts.items() if name in stored}
    differences = [
        f"{name} {stored[name]}, this buffer for {fact}" for name, fact in wanted.items() if stored[name] != fact
    ]
    if differences:
        raise InputError(
            f"the store at {buffer.path!r} was made with other spaces or sizes: it is for "
            f"{'; for '.join(differences)}; choose another path"
        )
    if grows:
        buffer.engine.grow(facts["capacity"])
    else:
        check_ring(buffer)


def check_ring(buffer: SampledBuffer[Any]) -> None:
    """Raise InputError if a store was resized: its rows stand at places of a ring, which are others by now."""
    made = buffer.schema.capacity
    if buffer.capacity != made:
        raise InputError(
            f"the store at {buffer.path!r} was resized from {made} to {buffer.capacity} transitions, and this buffer's "
            f"places are those of a ring of {made}: resize it to {made} again, or read it with ReplayBuffer.open"
        )


def _drawing(sampler: Sampler) -> dict[str, Any]:
    """Return the arguments that a sampler was made with, without ``beta``, which may be set later."""
    return {name: value for name, value in sampler.to_json().items() if name != "beta"}
