"""The columns of some rows of an open store: what is not asked for is neither read nor decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.reading.reads import Reads
from diskreplay.reading.samples import Samples
from diskreplay.schema.columns import OBS, REWARD, TERMINATED, TRUNCATED, Schema
from diskreplay.schema.ids import Ids
from diskreplay.views.transition import Transition

NEXT = f"next_{OBS}"
STEPS = Transition()
"""The view by which rows are read: each is a transition of one step."""


def next_name(name: str) -> str:
    """Return the name of the next observation of a leaf: ``next_obs/camera`` for ``obs/camera``."""
    return NEXT + name.removeprefix(OBS)


def column_names(schema: Schema) -> list[str]:
    """Return the names of all that a row shows, from observation leaves to the user's columns."""
    obs = [column.name for column in schema.obs_columns]
    return [
        *obs, *(column.name for column in schema.action_columns), REWARD, *map(next_name, obs), TERMINATED, TRUNCATED,
        *(column.name for column in schema.extra_columns),
    ]  # fmt: skip


def checked_columns(wanted: Sequence[str] | None, there: Sequence[str]) -> list[str]:
    """Return the wanted columns, all if None; raise InputError for one that is not there, or wanted twice."""
    if wanted is None:
        return list(there)
    if isinstance(wanted, str):
        raise InputError(f"columns must be a list of names, got the text {wanted!r}")
    names = list(wanted)
    for name in names:
        if name not in there:
            raise InputError(f"there is no column {name!r}; there are {', '.join(there)}")
    if not names or len(set(names)) != len(names):
        raise InputError(f"columns must name at least one column, and each once, got {names}")
    return names


def read_columns(buffer: ReplayBuffer, ids: Ids, names: Sequence[str], *, stack: bool = True) -> dict[str, Array]:
    """Return columns of transitions ``ids``, ``(n,)``, as arrays ``(n, *shape)`` by name.

    Without ``stack`` an observation is the newest frame of its stack alone.

    Raises EvictedError where a row has left the window, and CorruptionError for a damaged chunk.
    """

    def draft(reads: Reads) -> Any:
        streams = buffer.engine.streams
        streams.check(STEPS, ids)
        return _arrays(Samples(buffer.schema, streams.all, ids, reads=reads), names, stack)

    return cast(dict[str, Array], buffer.engine.read(draft))


def _arrays(samples: Samples, names: Sequence[str], stack: bool) -> dict[str, Array]:
    schema = samples.schema
    columns = {column.name: column for column in (*schema.action_columns, *schema.extra_columns)}
    found: dict[str, Array] = {name: samples.values(columns[name]) for name in names if name in columns}
    found |= {name: samples.resident(name) for name in names if name in (REWARD, TERMINATED, TRUNCATED)}
    for leaf, column in enumerate(schema.obs_columns):
        now, following = column.name in names, next_name(column.name) in names
        if not stack and schema.stacks[leaf].frames > 1:
            found |= {column.name: samples.values(column)} if now else {}
            found |= {next_name(column.name): samples.next_values(leaf)} if following else {}
        elif now and following:
            found[column.name], found[next_name(column.name)] = samples.observe(leaf)
        elif now:
            found[column.name] = samples.current(leaf)
        elif following:
            found[next_name(column.name)] = samples.observe_next(leaf)
    return {name: found[name] for name in names}
