"""Whole episodes of several agents: half-built ones in RAM, finished ones as rows of a store.

1. ``store_transitions`` writes one step of every environment whose episode goes on into ``episode_data``.
2. ``finish_path`` writes what follows an episode's last step; from then on its steps are left alone.
3. ``store_episodes`` adds the finished episodes to the store, one after the other, as rows of one environment, in which
   :class:`~diskreplay.compat.xuance.episodes.FinishedEpisodes` finds them again.
4. What is read back is an episode of :class:`~diskreplay.PaddedEpisodes`, with XuanCe's axes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.multi_agent import MultiAgentReplayBuffer
from diskreplay.buffers.multi_agent_view import MultiAgentBatch
from diskreplay.checks import Array, check_array, check_count
from diskreplay.compat.adapter_state import MARKS, AdapterState, RamState
from diskreplay.compat.arguments import number
from diskreplay.compat.disk_array import fit
from diskreplay.compat.ring import Field, Ring, look_up
from diskreplay.compat.rows import column
from diskreplay.compat.stores import closed_on_failure
from diskreplay.compat.xuance.episodes import STEP, FinishedEpisodes
from diskreplay.compat.xuance.marl.base import AVAILABLE, REWARDS, TERMINALS, Fields, MultiAgentBuffer, needed
from diskreplay.errors import InputError
from diskreplay.schema.columns import TERMINATED, TRUNCATED
from diskreplay.schema.ids import Ids
from diskreplay.views.padded_episodes import PaddedEpisodes

FILLED = "filled"
EPISODE_DATA = "episode_data"


class CollectedEpisodes(AdapterState):
    """The state of an adapter with episodes: collected in RAM, then rows of a store for one environment.

    Args:
        buffer: the store.
        fields: the fields of an episode.
        n_envs: environments that are collected from.
        size: finished episodes that are held.

    Attributes:
        data: arrays ``(size, ...)`` of the finished episodes by key.
        collected: arrays ``(n_envs, ...)`` of the others; the marks ``done`` and ``steps`` say of each whether it is
            finished, and how many steps it has then.
    """

    buffer: MultiAgentReplayBuffer

    def __init__(self, buffer: MultiAgentReplayBuffer, fields: Fields, n_envs: int, size: int) -> None:
        self._fields, self._n_envs = fields, n_envs
        self._finished = FinishedEpisodes(buffer, size, functools.partial(_ended, buffer))
        self.data: dict[str, Any] = {}
        self.collected = {key: field.empty(n_envs) for key, field in fields.items()}
        marks = {name: np.zeros(n_envs, np.int64) for name in ("done", "steps")}
        arrays = {"data": self.data, EPISODE_DATA: self.collected, MARKS: marks}
        fills = {key: field.fill for key, field in fields.items()}
        ring = Ring(buffer, size=size, held=self._finished.held, read=self._episodes)
        super().__init__(buffer, RamState(arrays, fills, (EPISODE_DATA, MARKS)), ring)
        self.data.update(ring.arrays(fields))

    def _episodes(self, field: Field, episodes: Ids, envs: Ids) -> Array:
        return padded(self.buffer.get(self._finished.at(episodes)[0]), field)

    def episodes(self, slots: Ids) -> dict[str, Array]:
        """Return the finished episodes in slots, by key."""
        batch = self.buffer.get(self._finished.at(self.ring.entries(slots))[0])
        return {
            key: padded(batch, field) if field.part else self.data[key][slots] for key, field in self._fields.items()
        }

    # Collecting

    def collect(self, at: Ids, given: Mapping[str, Any]) -> None:
        """Write step ``at`` ``(n_envs,)`` of each environment, but leave those alone whose episode is finished."""
        envs, most = np.flatnonzero(self.ram.marks["done"] == 0), self._fields[FILLED].shape[0]
        if not ((at[envs] >= 0) & (at[envs] < most)).all():
            raise InputError(f"t_envs must be 0 to {most - 1}, got {at[envs].tolist()}")
        fields = self._fields
        steps = {
            key: fit(key, value, (self._n_envs, *fields[key].step_shape), fields[key].dtype)
            for key, value in given.items()
        }
        if not np.isfinite(steps["rewards"]).all():
            raise InputError("rewards must be finite; nothing was stored")
        written = [(self.collected[key], fields[key].at(envs, at[envs]), one[envs]) for key, one in steps.items()]
        with self.changing():
            _write(written)

    def finish(self, env: int, steps: int, given: Mapping[str, Any], estimates: Mapping[str, Array]) -> None:
        """Write what follows an episode's last step, and the estimates of its steps."""
        fields = self._fields
        written: list[Any] = [(self.collected[key], np.s_[env, :, :steps], one) for key, one in estimates.items()]
        for key, value in given.items():
            whole = key == FILLED
            shape = fields[key].shape if whole else fields[key].step_shape
            last = fit(key, _of_env(key, value, env, self._n_envs), shape, fields[key].dtype)
            if whole:
                last[steps:] = False
            written.append((self.collected[key], env if whole else fields[key].at(env, steps), last))
        marks = self.ram.marks
        with self.changing():
            _write([*written, (marks["done"], env, 1), (marks["steps"], env, steps)])

    def drop(self) -> None:
        """Forget the episodes that are being collected."""
        nothing = self._without_collected()
        with self.changing():
            _write(nothing)

    def _without_collected(self) -> list[Any]:
        data = [(self.collected, key, field.empty(self._n_envs)) for key, field in self._fields.items()]
        return [*data, *((mark, slice(None), 0) for mark in self.ram.marks.values())]

    def store(self) -> None:
        """Add the episodes that are finished, and forget those that are not."""
        slot, marks = self.ring.pos, self.ram.marks
        rows: list[dict[str, Any]] = []
        changes: list[Any] = []
        for env in np.flatnonzero(marks["done"]).tolist():
            episode = {key: values[env].copy() for key, values in self.collected.items()}
            changes += [(self.data[key], slot, episode[key]) for key, field in self._fields.items() if not field.part]
            rows += _rows(episode, int(marks["steps"][env]))
            slot = (slot + 1) % self.ring.size
        changes += self._without_collected()  # before a row is added: what lacks memory lacks it now
        with self.buffer.engine.write_lock:
            try:
                for row in rows:
                    self.buffer.add(**row)
                with self.changing():
                    _write(changes)
            except MemoryError as error:  # the rows may be there, and what stands beside them not
                self.buffer.engine.appender.writer.stop(error)
                raise


class EpisodeRing(MultiAgentBuffer):
    """A ring of ``buffer_size`` episodes, each padded to ``max_eps_len`` steps.

    Attributes:
        max_eps_len, dim_act: steps of an episode at most, and actions of an agent.
        episode_data: the episodes that are being collected, ``(n_envs, ...)`` with the axes of ``data``.
    """

    _adapter: CollectedEpisodes
    max_eps_len: int
    dim_act: int
    DTYPE: Any = np.float32
    """The dtype of observations, actions and rewards."""
    TAKEN: ClassVar[Mapping[str, str]] = {"actions": "actions_n"}
    """The entries of a dict of actions by our keys."""

    def _take(self, kwargs: Mapping[str, Any]) -> None:
        self.max_eps_len = check_count("max_episode_length", needed(kwargs, "max_episode_length"))
        self.dim_act = check_count("dim_act", needed(kwargs, "dim_act"))
        super()._take(kwargs)

    def _open(self, kwargs: dict[str, Any]) -> None:
        columns = {
            REWARDS: ((self.n_agents, *self.rew_space), self.DTYPE), TERMINALS: (self.done_space, bool),
            STEP: ((), np.int32), FILLED: ((), bool),
        }  # fmt: skip
        view, rows = PaddedEpisodes(self.max_eps_len), (self.buffer_size + 1) * self.max_eps_len
        self.engine = self._store(kwargs, view, 1, rows, columns, dtype=self.DTYPE, n_actions=self.dim_act)
        with closed_on_failure(self.engine):
            self._adapter = CollectedEpisodes(self.engine, self._table(), self.n_envs, self.buffer_size)
            self._data = self._adapter.data
            if not self._adapter.restore() and self._table_in_ram() and len(self.engine):
                self.engine.clear()  # a rollout whose estimates are lost: nothing can be learned from it
            self._adapter.attach(self)

    @property
    def episode_data(self) -> dict[str, Array]:
        self._adapter.check_whole()
        return self._adapter.collected

    def _table(self) -> Fields:
        agents, steps, more, dtype = self.n_agents, self.max_eps_len, self.max_eps_len + 1, self.DTYPE
        available, state = ("obs", AVAILABLE), Field((more, *(self.state_space or ())), np.float32, 0, *_pair("state"))
        return {
            "obs": Field((agents, more, *self.obs_space), dtype, 0, *_pair("obs", "obs"), time=1),
            "actions": Field((agents, steps, *self.act_space), dtype, part=("action",), time=1),
            "rewards": Field((agents, steps, *self.rew_space), dtype, part=("extra", REWARDS), time=1),
            **self._table_in_ram(),
            "terminals": Field((steps, *self.done_space), np.bool_, part=("extra", TERMINALS)),
            AVAILABLE: Field((agents, more, self.dim_act), np.bool_, 1, *_pair(*available), time=1),
            FILLED: Field((steps, 1), np.bool_, part=("extra", FILLED)),
            **({} if self.state_space is None else {"state": state}),
        }

    def _table_in_ram(self) -> Fields:
        return {}

    def clear_episodes(self) -> None:
        """Forget the episodes that are being collected."""
        self._adapter.drop()

    def store_episodes(self) -> None:
        """Store the episodes that are finished, and forget those that are not."""
        self._adapter.store()

    def store(self, *args: Any, **kwargs: Any) -> None:
        """Raise InputError that names ``store_transitions``."""
        raise InputError("a buffer of episodes takes steps by store_transitions(t_envs, ...)")

    def store_transitions(self, t_envs: Any, *transition_data: Any) -> None:
        """Store one step of all environments, but leave those alone whose episode is finished already.

        Args:
            t_envs: the step of all environments, or of each, ``(n_envs,)``; 0 to ``max_eps_len - 1``.
            transition_data: ``obs_n, actions_dict, state, rewards, terminated, avail_actions``, each ``(n_envs, ...)``;
                the actions' dict holds ``actions_n`` and what else the class says. ``state`` is not read where there is
                none; without ``avail_actions`` (None) all are available.

        Raises InputError, with nothing stored, for a wrong shape or a step that is out of range.
        """
        if len(transition_data) != 6:
            raise InputError(
                "store_transitions takes t_envs, obs_n, actions_dict, state, rewards, terminated and avail_actions"
            )
        obs, actions, state, rewards, terminated, available = transition_data
        given = {"obs": obs, "rewards": rewards, "terminals": terminated, **self._from_actions(actions)}
        if self.state_space is not None:
            given["state"] = state
        given[AVAILABLE] = np.True_ if available is None else available
        self._adapter.collect(fit("t_envs", t_envs, (self.n_envs,), np.int64), given)

    def _from_actions(self, actions: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of a dict of actions by our keys; raise InputError if one is missing."""
        for name in self.TAKEN.values():
            if not isinstance(actions, Mapping) or name not in actions:
                raise InputError(f"actions_dict lacks {name!r}")
        return {key: actions[name] for key, name in self.TAKEN.items()}

    def _finishing(self, i_env: Any, next_t: Any) -> tuple[int, int]:
        """Return the number of an environment, and the number of steps of its episode, which is finished."""
        env = check_count("i_env", i_env, least=0, most=self.n_envs - 1)
        steps = int(number("next_t", next_t, "a number of steps", "iu"))
        if steps < 1:
            raise InputError(f"next_t must be at least 1, an episode of one step, got {next_t!r}")
        return env, min(steps, self.max_eps_len)

    def _finish(
        self, env: int, steps: int, terminal_data: tuple[Any, ...], estimates: Mapping[str, Array] | None = None
    ) -> None:
        """Take what follows an episode's last step, and the estimates of its steps."""
        if len(terminal_data) != 4:
            raise InputError("finish_path takes i_env, next_t, obs_next, state_next, available_actions and filled")
        obs, state, available, filled = terminal_data
        given = {"obs": obs, FILLED: filled, AVAILABLE: np.ones(self.n_envs) if available is None else available}
        if self.state_space is not None:
            given["state"] = state
        self._adapter.finish(env, steps, given, estimates or {})


def _write(assignments: Iterable[tuple[Any, Any, Any]]) -> None:
    for values, at, value in assignments:
        values[at] = value


def _rows(data: Mapping[str, Array], steps: int) -> list[dict[str, Any]]:
    """Return an episode's rows, as the engine's ``add`` takes them."""

    def seen(step: int) -> dict[str, Any]:
        return {"obs": data["obs"][:, step], AVAILABLE: data[AVAILABLE][:, step].astype(np.int8)}

    rows = []
    for step in range(steps):
        newest = step + 1 == steps
        terminated = newest and bool(data["terminals"][step].all())
        row = {
            "obs": seen(step), "action": data["actions"][:, step],
            "reward": float(data["rewards"][:, step].mean(dtype=np.float64)), "next_obs": seen(step + 1),
            "terminated": terminated, "truncated": newest and not terminated,
            REWARDS: data["rewards"][:, step], TERMINALS: data["terminals"][step], FILLED: data[FILLED][step, 0],
            STEP: np.int32(step),
        }  # fmt: skip
        if "state" in data:
            row.update(state=data["state"][step], next_state=data["state"][step + 1])
        rows.append(row)
    return rows


def _pair(*names: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the parts of a batch that hold what is seen at a step, and after it."""
    return names, (f"next_{names[0]}", *names[1:])


def _ended(engine: MultiAgentReplayBuffer, start: int, stop: int) -> NDArray[np.bool_]:
    terminated, truncated = (column(engine, name, start, stop)[:, 0] for name in (TERMINATED, TRUNCATED))
    return terminated | truncated


def padded(batch: MultiAgentBatch, field: Field) -> Array:
    """Return whole episodes ``(B, *shape)`` with XuanCe's axes: agents before time, and perhaps one entry more."""
    out = field.empty(len(batch))
    by_time, values = np.moveaxis(out, 1 + field.time, 1), look_up(batch, field.part)
    by_time[:, : values.shape[1]][batch.mask] = values[batch.mask].reshape(-1, *by_time.shape[2:])
    if field.after:
        every = np.arange(len(batch))
        by_time[every, batch.length] = look_up(batch, field.after)[every, batch.length - 1]
    return out


def _of_env(key: str, value: Any, env: int, n_envs: int) -> Any:
    """Return an environment's part of a value that leads with ``n_envs``."""
    found = check_array(key, value)
    if found.shape[:1] != (n_envs,):
        raise InputError(f"{key} must lead with n_envs={n_envs}, got {value!r:.80}")
    return found[env]
