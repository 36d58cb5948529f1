"""The steps under XuanCe's on-policy buffers: paths of a ring, their returns and advantages, and samples by index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from diskreplay.buffers import on_policy
from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.checks import Array, Floats, check_array
from diskreplay.compat.adapter_state import MARKS, AdapterState, RamState
from diskreplay.compat.ring import Field, Ring
from diskreplay.compat.rows import RowWindow, ids_of, rows_of_window, single_steps, window
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.schema.ids import Ids

Path = Mapping[str, Array]
"""Rewards, values and terminals of consecutive steps of an environment, ``(T, ...)`` by name."""

OPEN = "open"
"""The mark that counts the steps of each environment's open path, which end with the newest entry."""


class Rollout(AdapterState):
    """The state of an adapter with the steps of the present policy: observations in a store, all else in RAM.

    The newest step is held back until the next one comes, whose ``obs`` is its ``next_obs``.
    """

    def __init__(self, buffer: SampledBuffer[Any]) -> None:
        self._newest: tuple[int, dict[str, Any]] | None = None
        """The row that the newest step becomes, and the step."""
        lead = buffer.num_envs, rows_of_window(buffer)
        ring = Ring(buffer, lead=lead, axis=1, held=self._held, read=self._flushed)
        super().__init__(buffer, RamState({MARKS: {OPEN: np.zeros(buffer.num_envs, np.int64)}}), ring)

    def begin(self, owner: object, tables: Mapping[str, Mapping[str, Any]]) -> None:
        """Make the arrays of tables of fields, by group, and go on as ``owner`` was closed.

        A rollout whose estimates are lost is given up: it teaches nothing.
        """
        fields = [item for table in tables.values() for item in table.items()]
        self.ram.fills = {name: field.fill for name, field in fields if isinstance(field, Field)}
        self.ram.arrays.update(self.ring.arrays(tables))
        if not self.restore() and len(self.buffer):
            self.buffer.clear()
        self.attach(owner)

    # Paths

    @property
    def start_ids(self) -> Ids:
        """The position at which each environment's open path begins."""
        return (self.ring.pos - self.ram.marks[OPEN]) % self.ring.size

    def store(self, row: dict[str, Any], beside: Mapping[str, Mapping[str, Any]]) -> None:
        """Store a step: its row, and the values of arrays in RAM, by group and name; 0 for those that are not named."""
        with self.buffer.engine.write_lock:
            at, steps = (slice(None), self.ring.pos), self.ram.marks[OPEN]
            self._release(row)
            newest, longer = (window(self.buffer).end, row), np.minimum(steps + 1, self.ring.size)
            written = [
                (memory, values.get(name, 0))
                for group, values in beside.items()
                for name, memory in self.ram.arrays[group].items()
                if isinstance(memory, np.ndarray)
            ]
            with self.changing():
                self._newest = newest
                for memory, value in written:
                    memory[at] = value
                steps[:] = longer

    def finish(self, env: int, group: str, estimate: Callable[[Path], tuple[Array, Array]]) -> None:
        """Write the returns and advantages of an environment's open path, if it has steps, and end it.

        The next path begins with the next entry, and the newest step is truncated if it is not terminal.
        """
        steps, memory = self.ram.marks[OPEN][env], self.ram.arrays[group]
        if not steps:
            return
        at = env, (self.start_ids[env] + np.arange(steps)) % self.ring.size
        found = estimate({name: memory[name][at] for name in ("rewards", "values", "terminals")})
        written = [
            (memory[name], values.reshape(memory[name][at].shape))
            for name, values in zip(("returns", "advantages"), found, strict=True)
            if name in memory
        ]
        step, marks = self._waiting(), self.ram.marks[OPEN]
        with self.changing():
            for array, values in written:
                array[at] = values
            marks[env] = 0
            if step is not None:
                step["truncated"][env] = not step["terminated"][env]

    def chosen(self, indexes: Any) -> tuple[Ids, Ids]:
        """Return the environments and positions of indexes of a rollout, which must be full."""
        size = self.ring.size
        return np.divmod(checked_indexes(indexes, self.ring.count, size, self.buffer.num_envs * size), size)

    # The newest step

    def _held(self) -> RowWindow:
        begin, end = window(self.buffer)
        if self._waiting() is None:
            return RowWindow(begin, end)
        return RowWindow(max(begin, end + 1 - self.ring.size), end + 1)

    def _waiting(self) -> dict[str, Any] | None:
        """Return the newest step if it is not a row yet, or None."""
        newest = self._newest
        return newest[1] if newest is not None and newest[0] == window(self.buffer).end else None

    def _flushed(self, field: Field, rows: Ids, envs: Ids) -> Array:
        self.flush()
        return field.of(single_steps(self.buffer, ids_of(self.buffer, rows, envs)))

    def flush(self) -> None:
        """Add the newest step's row now, with its own ``obs`` as ``next_obs``: XuanCe's on-policy buffers show none."""
        with self.buffer.engine.write_lock:
            self._release(self._waiting() or {})

    def forget(self) -> None:
        self._newest = None
        super().forget()

    def _release(self, following: Mapping[str, Any]) -> None:
        buffer: Any = self.buffer
        step = self._waiting()
        if step is not None:
            buffer.add(**step, **{f"next_{name}": following[name] for name in ("obs", "state") if name in step})


def checked_indexes(indexes: Any, held: int, size: int, count: int) -> Ids:
    """Return indexes ``(B,)`` of the ``count`` entries of a rollout; raise InputError if they are something else.

    NotEnoughDataError if it holds fewer than ``size`` entries of each environment.
    """
    if held < size:
        raise NotEnoughDataError(
            f"the buffer holds {held} of {size} entries; sample it when it is full, or call clear()"
        )
    chosen = check_array("indexes", indexes)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        raise InputError(f"indexes must be integers of shape (B,), got {chosen.dtype} {chosen.shape}")
    if len(chosen) and not (chosen.min() >= 0 and chosen.max() < count):
        raise InputError(f"indexes must be 0 to {count - 1}, got {chosen.min()} to {chosen.max()}")
    return chosen.astype(np.int64)


def normalized(advantages: Array, counted: Array | None = None) -> Array:
    """Return advantages with mean 0 and standard deviation 1 over those counted, all if None, and 0 elsewhere."""
    among = np.ones(advantages.shape, bool) if counted is None else counted
    return on_policy.normalized(advantages, among) if among.sum() > 1 else np.zeros_like(advantages)


def path_estimates(
    path: Path, next_value: Any, gamma: float, lambda_: float, normalizer: Any = None, td_targets: bool = False
) -> tuple[Floats, Floats]:
    """Return the returns and advantages ``(T, N)`` of ``T`` consecutive steps of ``N`` agents.

    Args:
        path: rewards and terminals, one for each agent and step, or one for all agents; values of each.
        next_value: the value of what follows the last step, ``N`` numbers or one; where that step is terminal, it does
            not count.
        gamma, lambda_: discount factor, and lambda of advantages or of targets.
        normalizer: an object with ``denormalize``; values are of what it normalises. Advantages and returns are of
            true values.
        td_targets: as in :func:`diskreplay.buffers.on_policy.estimated`.
    """
    count = len(path["values"])
    value = on_policy.true_values(path["values"].reshape(count, -1, 1), normalizer)[..., 0]
    agents = value.shape[1]
    given = check_array("the value of the last step", next_value)
    if given.dtype.kind not in "biuf" or given.size not in (1, agents):
        raise InputError(
            f"the value of the last step must be {agents} numbers, one for each agent, got {next_value!r:.80}"
        )
    with np.errstate(over="ignore"):
        last = np.broadcast_to(given.astype(np.float32).reshape(-1, 1), (agents, 1))
    terminated = np.broadcast_to(path["terminals"].reshape(count, -1) != 0, value.shape)
    if not np.isfinite(last[~terminated[-1]]).all():
        raise InputError(f"the value of the last step must be finite where it is not terminal, got {next_value!r:.80}")
    following = np.concatenate([value[1:], on_policy.true_values(last, normalizer).reshape(1, agents)])
    reward = np.broadcast_to(path["rewards"].reshape(count, -1), value.shape).astype(np.float64)
    cut = terminated | (np.arange(count) == count - 1)[:, None]
    return on_policy.estimated(reward, value, following, terminated, cut, gamma, lambda_, td_targets)
