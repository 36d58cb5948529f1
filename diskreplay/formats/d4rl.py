"""Export to the HDF5 layout of D4RL (Fu et al. 2020, "D4RL: Datasets for Deep Data-Driven Reinforcement Learning").

One flat array a key, one entry a transition:

======================  =======================  ======================================================
key                     shape                    from
======================  =======================  ======================================================
``observations``        ``(N, *obs_shape)``      ``obs``
``actions``             ``(N, *action_shape)``   ``action``
``rewards``             ``(N,)``                 ``reward``
``terminals``           ``(N,)`` bool            ``terminated``
``timeouts``            ``(N,)`` bool            ``truncated``, and every other end of a run that is no terminal
``next_observations``   ``(N, *obs_shape)``      the true next observations, final ones included
``infos/<name>``        ``(N, *shape)``          the user's own columns
======================  =======================  ======================================================

1. Transitions stand environment by environment, each in the order of its steps, so that the format's rule holds: an
   entry's next observation is the next entry's observation, unless ``terminals`` or ``timeouts`` is set.
2. Episodes that were cut off without a flag, and those that still go on, therefore end in a timeout.
3. Rows that are no transition (a vector environment's reset step) are left out.
4. Frames are written as they are stored, single: an observation that stacks ``k`` frames is ``k`` consecutive entries
   of one episode. The file's attribute ``frame_stack`` says how many.
5. Dict and Tuple observations and actions become groups: ``observations/<name>``. Dtypes are kept.

Everything else about the store stands in the file's attributes, where no reader mistakes it for data.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from diskreplay import spaces
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.formats import Exported, Progress
from diskreplay.formats.rows import Block, LogRows, open_rows
from diskreplay.schema import ACTION, OBS, REWARD, Schema

CHUNK_BYTES = 1 << 20
"""Decoded bytes of an HDF5 chunk: what h5py advises as the most, and what its chunk cache holds."""
MAX_CHUNK_ROWS = 1 << 14

Array = NDArray[Any]
Compression = Literal["gzip", "lzf", "none"]
PathLike = str | os.PathLike[str]


class Column:
    """One HDF5 array that is filled from its first entry to its last, a whole chunk at a time."""

    def __init__(
        self,
        file: h5py.File,
        key: str,
        count: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        compression: Compression,
    ) -> None:
        item = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.chunk_rows = max(1, min(CHUNK_BYTES // item, MAX_CHUNK_ROWS, count))
        self._data = file.create_dataset(
            key, (count, *shape), dtype, chunks=(self.chunk_rows, *shape),
            compression=None if compression == "none" else compression,
            shuffle=dtype.itemsize > 1 and compression != "none",
        )  # fmt: skip
        self._waiting: list[Array] = []
        self._waiting_rows = 0
        self._end = 0
        self.raw_bytes = count * item

    def append(self, values: Array) -> None:
        """Takes ``(n, *shape)`` and writes the whole chunks that are there."""
        self._waiting.append(values)
        self._waiting_rows += len(values)
        whole = self._waiting_rows // self.chunk_rows * self.chunk_rows
        if whole:
            self._write(whole)

    def _write(self, rows: int) -> None:
        values = np.concatenate(self._waiting) if len(self._waiting) > 1 else self._waiting[0]
        self._data[self._end : self._end + rows] = values[:rows]
        self._end += rows
        self._waiting, self._waiting_rows = [values[rows:].copy()], len(values) - rows

    def finish(self) -> None:
        """Writes the rest."""
        if self._waiting_rows:
            self._write(self._waiting_rows)


def export(
    path: PathLike,
    out: PathLike,
    *,
    overwrite: bool = False,
    compression: Compression = "gzip",
    progress: Progress | None = None,
) -> Exported:
    """Writes the last commit of the store at ``path`` to the HDF5 file ``out``; see the module's docstring.

    The file appears whole, under its name, or not at all. Memory is bounded by a few blocks of 4 MB, beside the small
    columns that every open store keeps in RAM. The store may be written meanwhile.

    Args:
        path: of the store.
        out: the file to write.
        overwrite: whether an existing file may be replaced.
        compression: "gzip", which every HDF5 reader knows, "lzf" (h5py's own, faster and larger), or "none".
        progress: called with transitions done and in all.

    Raises:
        InputError: when ``out`` exists, or for an unknown compression.
        NotEnoughDataError: when there is no transition to write.
        OpenError, CorruptionError: when the store cannot be opened or read.
        StateError: when a live writer evicted rows before they were read.
    """
    started = time.perf_counter()
    if compression not in ("gzip", "lzf", "none"):
        raise InputError(f"compression must be 'gzip', 'lzf' or 'none', got {compression!r}")
    target = pathlib.Path(out).resolve()
    if target.is_dir():
        raise InputError(f"{str(target)!r} is a directory; name the file to write")
    if target.exists() and not overwrite:
        raise InputError(
            f"{str(target)!r} exists; choose another name, or say that it may be overwritten (--overwrite)"
        )
    if not target.parent.is_dir():
        raise InputError(f"there is no directory {str(target.parent)!r} to write {target.name!r} into")
    store, streams = open_rows(str(pathlib.Path(path).absolute()))
    with contextlib.closing(store), _replacing(target) as temporary:
        count = sum(len(rows) for rows in streams)
        if not count:
            raise NotEnoughDataError(f"the store {store.path!r} holds no committed transition to export")
        with h5py.File(temporary, "w") as file:
            columns = _columns(file, store.schema, count, compression)
            _describe(file, store.schema, streams)
            episodes = _fill(columns, streams, count, progress)
        raw_bytes = sum(column.raw_bytes for column in columns.values())
    size = target.stat().st_size
    return Exported(str(target), count, episodes, raw_bytes, size, time.perf_counter() - started)


@contextlib.contextmanager
def _replacing(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """A name beside ``target`` that takes its place at the end, or goes away after an error."""
    temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _key(name: str) -> str:
    """The HDF5 key of a column: ``obs/camera`` is ``observations/camera``."""
    for ours, theirs in ((OBS, "observations"), (ACTION, "actions")):
        if name == ours or name.startswith(f"{ours}/"):
            return theirs + name.removeprefix(ours)
    return "rewards" if name == REWARD else f"infos/{name}"


def _next_key(name: str) -> str:
    return f"next_{_key(name)}"


def _columns(file: h5py.File, schema: Schema, count: int, compression: Compression) -> dict[str, Column]:
    """All arrays of the file by their key."""
    layouts = {_key(column.name): (column.shape, column.dtype) for column in schema.obs_columns}
    layouts |= {_next_key(column.name): (column.shape, column.dtype) for column in schema.obs_columns}
    layouts |= {_key(column.name): (column.shape, column.dtype) for column in schema.action_columns}
    layouts |= {_key(column.name): (column.shape, column.dtype) for column in schema.extra_columns}
    layouts["rewards"] = ((), next(column.dtype for column in schema.columns if column.name == REWARD))
    layouts |= {name: ((), np.dtype(bool)) for name in ("terminals", "timeouts")}
    return {key: Column(file, key, count, shape, dtype, compression) for key, (shape, dtype) in layouts.items()}


def _describe(file: h5py.File, schema: Schema, streams: Sequence[LogRows]) -> None:
    file.attrs["format"] = "D4RL"
    file.attrs["written_by"] = "diskreplay"
    file.attrs["observation_space"] = json.dumps(spaces.to_json(schema.observation_space))
    file.attrs["action_space"] = json.dumps(spaces.to_json(schema.action_space))
    file.attrs["frame_stack"] = [stack.frames for stack in schema.stacks]
    file.attrs["frame_stack_note"] = (
        "observations hold single frames; a stack of k frames is k consecutive entries of one episode, "
        f"padded with {'zeros' if schema.padding.name == 'ZEROS' else 'its first frame'} at its start"
    )
    file.attrs["num_envs"] = [rows.log.num_envs for rows in streams]


def _fill(columns: Mapping[str, Column], streams: Sequence[LogRows], count: int, progress: Progress | None) -> int:
    """Writes all transitions; how many episodes they are."""
    done = episodes = 0
    for rows in streams:
        for env in range(rows.log.num_envs):
            for block in rows.blocks(env):
                for key, values in _entries(block):
                    columns[key].append(values)
                done += len(block)
                episodes += int(block.last.sum())
                if progress:
                    progress(done, count)
    for column in columns.values():
        column.finish()
    return episodes


def _entries(block: Block) -> Iterator[tuple[str, Array]]:
    for name, values in (*block.obs.items(), *block.action.items(), *block.extra.items()):
        yield _key(name), values
    for name, values in block.next_obs.items():
        yield _next_key(name), values
    yield "rewards", block.reward
    yield "terminals", block.terminated
    yield "timeouts", block.truncated | (block.last & ~block.terminated)
