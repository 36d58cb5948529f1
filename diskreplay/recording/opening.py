"""The buffer that a wrapper records into, and its columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from diskreplay.buffers.comparing import found
from diskreplay.buffers.provenance import provenance
from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import check_count, check_flag
from diskreplay.errors import InputError
from diskreplay.recording.columns import SEED, InfoColumns
from diskreplay.sampling.window import Sampler
from diskreplay.schema.spec import build
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import PathLike
from diskreplay.views.view import View

CAPACITY = 1_000_000
NO_SEED = -1


def opened(
    env: Any, path: PathLike | ReplayBuffer, observation_space: Any, action_space: Any, num_envs: int,
    capacity: int | None, view: View | None, sampler: Sampler | None, seeds: bool, defaults: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> tuple[ReplayBuffer, InfoColumns]:  # fmt: skip
    """Return the buffer, opened or made if it is not one, and its columns that come from ``info``."""
    if isinstance(path, ReplayBuffer):
        has = path.schema.observation_space, path.schema.action_space, path.num_envs
        wanted = observation_space, action_space, num_envs
        if has != wanted:
            raise InputError(
                f"the buffer {path.path!r} has spaces and environments {has}, but what is recorded {wanted}"
            )
        if seeds and SEED not in {column.name for column in path.schema.extra_columns}:
            raise InputError(
                f"the buffer {path.path!r} has no column {SEED!r}: create it with columns={{'seed': 'int64'}}"
            )
        if path.engine.streams.writer is None:
            raise InputError(f"the buffer {path.path!r} must be open for writing: open it with mode='r+'")
        return path, InfoColumns(path.schema, seeds, defaults)
    columns = dict(options["columns"] or {})
    if check_flag("seeds", seeds):
        if SEED in columns:
            raise InputError(f"columns must not have {SEED!r} with seeds=True, which is that column")
        columns[SEED] = np.int64
    told = provenance(env) if options["provenance"] is None else options["provenance"]
    more: dict[str, Any] = {**options, "columns": columns, "provenance": told}
    capacity = _capacity(path, options) if capacity is None else capacity
    spaces = observation_space, action_space
    infos = InfoColumns(build(*spaces, capacity=capacity, num_envs=num_envs, **more), seeds, defaults)
    buffer = ReplayBuffer.open_or_create(
        path, *spaces, capacity=capacity, num_envs=num_envs, view=view, sampler=sampler, **more
    )
    return buffer, infos


def _capacity(path: PathLike, options: Mapping[str, Any]) -> int:
    store = found(path, options["files"] or LocalFiles())
    if store is None:
        return CAPACITY
    stream = options["stream"]
    if stream is None or not store.has_stream(stream):
        return store.first_commit().capacity
    return store.newest_commit(stream).capacity


def seed_number(seed: Any) -> int:
    """Return a seed as the column has it; raise InputError if it cannot hold it."""
    return NO_SEED if seed is None else check_count("seed", seed, least=0, most=(1 << 63) - 1)
