"""The relabelling of steps: values that a function makes of each episode, written later to a column of the store.

1. All streams are opened to be written, so that nobody else adds, evicts or goes back meanwhile.
2. What the function returns of one episode after another is checked, and waits in a temporary file: where anything is
   wrong, or an interrupt comes, nothing was written.
3. The values are written in that order, and committed a few MB at a time. A kill or a full disk leaves the new values
   of the first episodes, and those of the others as they were; the same call again does the rest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import check_array
from diskreplay.errors import InputError, WriteFailedError
from diskreplay.formats.core.transitions import BLOCK_BYTES
from diskreplay.ops.convert import PLAIN
from diskreplay.ops.result import Result
from diskreplay.ops.signals import Progress, stoppable
from diskreplay.remote import local
from diskreplay.schema.columns import Column, Schema
from diskreplay.schema.ids import Ids, pack
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import PathLike
from diskreplay.storage.store import Store
from diskreplay.views.batch import Batch


@dataclasses.dataclass(frozen=True)
class Relabelled(Result):
    """The steps, of so many episodes, to which values were written, to a column of the store at a path."""

    path: str
    column: str
    steps: int
    episodes: int
    seconds: float


def relabel(
    path: PathLike, function: Callable[[Batch], Any], column: str | None = None, *, progress: Progress | None = None
) -> Relabelled:
    """Write what a function returns for each episode of the store at ``path`` to a column that is written later.

    Batches show it as ``extra[column]``, and as ``reward`` once the store is opened with ``reward_column=column``. The
    module's docstring says what an interrupt or a kill leaves. Memory holds one episode.

    Args:
        path: of the store, which nobody else may be writing.
        function: is given an episode as a batch of its ``T`` steps, in their order: ``obs``, ``action``, ``reward``,
            ``next_obs``, ``terminated``, ``truncated``, ``extra`` and ``index``; returns ``(T, *shape)`` of the
            column's shape, ``(T,)`` for rewards.
        column: its name; the only one that is written later if None.
        progress: called with steps done and in all, while the function is called.

    Raises:
        InputError: for a column that is not there, for what the function raises, and for what it returns that the
            column cannot hold, or is not finite; then nothing was written.
        LockedError: when a stream is being written.
        WriteFailedError, OpenError, CorruptionError: when the store cannot be written, opened or read.

    >>> import tempfile, gymnasium, diskreplay
    >>> options = {"capacity": 9, "later": {"shaped": "float32"}}
    >>> with tempfile.TemporaryDirectory() as path:
    ...     with diskreplay.ReplayBuffer.create(path, *[gymnasium.spaces.Discrete(9)] * 2, **options) as rb:
    ...         rb.add(0, 1, 1.0, 2, True, False)
    ...     relabel(path, lambda episode: episode.reward - 0.1).steps
    1
    """
    started = time.perf_counter()
    full = local(path, "relabelling")
    store = Store(full, LocalFiles())
    target = chosen_column(store.schema, column, full)
    with contextlib.ExitStack() as opened, stoppable(progress) as report:
        values = opened.enter_context(tempfile.TemporaryFile())
        buffers = [
            opened.enter_context(ReplayBuffer.open(full, mode="a", stream=name, **PLAIN))
            for name in store.stream_names()
        ]
        total, done, count = sum(map(len, buffers)), 0, 0
        for buffer in buffers:
            for ids in episodes(buffer):
                values.write(called(function, buffer.get(ids), target, count).tobytes())
                done, count = done + len(ids), count + 1
                report(done, total)
        values.seek(0)
        write(buffers, values, target)
    return Relabelled(full, target.name, done, count, time.perf_counter() - started)


def chosen_column(schema: Schema, name: str | None, path: str) -> Column:
    """Return the column that is written later of a name, or the only one; raise InputError if it is not there."""
    there = {column.name: column for column in schema.later}
    if name in there or (name is None and len(there) == 1):
        return there[name or next(iter(there))]
    known = ", ".join(map(repr, there)) or (
        "none. Declare one when it is made, create(..., later={'shaped': 'float32'}), or make a copy that has one: "
        "'diskreplay edit STORE COPY --later shaped'"
    )
    named = "name a column" if name is None else f"there is no column {name!r}"
    raise InputError(f"{named} that is written later: the store {path!r} has {known}")


def episodes(buffer: ReplayBuffer) -> Iterator[Ids]:
    """Yield the ids of each episode of the stream that a buffer writes, in the order of their numbers."""
    for one in buffer.episodes:
        yield pack(one.stream, np.arange(one.start, one.stop), one.env, buffer.num_envs)


def called(function: Callable[[Batch], Any], episode: Batch, column: Column, number: int) -> NDArray[Any]:
    """Return what a function makes of an episode as values of a column; raise InputError for what these cannot be."""
    where, wanted = f"episode {number}", (len(episode), *column.shape)
    try:
        given = check_array(column.name, function(episode))
    except InputError as error:
        raise InputError(f"{where}: {error}; nothing was written") from error
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"{where}: the function raised {type(error).__name__}: {error} ({frame.filename}, line {frame.lineno}); "
            "nothing was written"
        ) from error
    numbers = given.dtype.kind in "biufc" and np.can_cast(given.dtype, column.dtype, "same_kind")
    if given.shape != wanted or not numbers:
        said = f"{column.name} must be {column.dtype} {wanted}, got {given.dtype} {given.shape}"
        raise InputError(f"{where}: {said}; nothing was written")
    with np.errstate(over="ignore"):
        values = given.astype(column.dtype)
    wrong = np.argwhere(~np.isfinite(values) if column.dtype.kind in "fc" else values != given).tolist()
    if wrong:
        said = f"{column.name} must be a finite value of {column.dtype}, got {given[tuple(wrong[0])]}"
        raise InputError(f"{where}, step {wrong[0][0]}: {said}; nothing was written")
    return values


def write(buffers: Sequence[ReplayBuffer], values: IO[bytes], column: Column) -> None:
    """Write the values of all episodes from a file; raise WriteFailedError, saying how far it came."""
    count = committed = 0
    try:
        for buffer in buffers:
            waiting = 0
            for ids in episodes(buffer):
                shape = len(ids), *column.shape
                part = np.frombuffer(values.read(math.prod(shape) * column.dtype.itemsize), column.dtype)
                buffer.write(column.name, ids, part.reshape(shape))
                count, waiting = count + 1, waiting + part.nbytes
                if waiting >= BLOCK_BYTES:
                    buffer.commit()
                    committed, waiting = count, 0
            buffer.commit()
            committed = count
    except WriteFailedError as error:
        said = f"{committed:,} episodes have their new values; relabel again for the others"
        raise type(error)(error.errno, f"{error.strerror}; {said}") from error
