"""Whole episodes of several agents: half-built ones in RAM, finished ones as rows of a store.

1. ``store_transitions`` writes one step of every environment whose episode goes on into ``episode_data``.
2. ``finish_path`` writes what follows an episode's last step; from then on its steps are left alone.
3. ``store_episodes`` adds the finished episodes to the store, one after the other, as rows of one environment. Each row
   knows the slot of the ring and its step, so that the ring is found again in the rows. Rows that an interrupt left are
   added before anything else is done (:class:`PendingRows`).
4. What is read back is an episode of :class:`~diskreplay.PaddedEpisodes`, with XuanCe's axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.multi_agent import MultiAgentReplayBuffer
from diskreplay.buffers.multi_agent_batch import MultiAgentBatch
from diskreplay.checks import check_count
from diskreplay.compat.arrays import DiskArray, Shape, fit
from diskreplay.compat.given import number
from diskreplay.compat.keeper import Assignment, Keeper, set_attribute, set_item
from diskreplay.compat.rows import SLOT, column, read_once, window
from diskreplay.compat.xuance.marl.base import MultiAgentBuffer, Spec, empty
from diskreplay.compat.xuance.marl.steps import AVAILABLE, REWARDS, TERMINALS, open_steps
from diskreplay.errors import InputError
from diskreplay.ids import Ids
from diskreplay.schema import TERMINATED, TRUNCATED
from diskreplay.views.padded_episodes import PaddedEpisodes

Array = NDArray[Any]

STEP, FILLED = "step", "filled"
ON_DISK = ("obs", "actions", "rewards", "terminals", AVAILABLE, FILLED, "state")
EPISODE_DATA = "episode_data"
MARKS = "done", "steps"
"""Of an environment's episode: whether it is finished, and its steps then."""


class PendingRows(Keeper):
    """Keeps rows that are being added, until all of them are there."""

    buffer: MultiAgentReplayBuffer
    _rows: tuple[int, Sequence[Mapping[str, Any]], tuple[Assignment, ...]] | None = None
    """The number of the first one, arguments of ``add``, and what goes with them."""

    def add_all(self, rows: Sequence[Mapping[str, Any]], *assignments: Assignment) -> None:
        """Adds rows, then does what goes with them; :meth:`flush` goes on with it where it was interrupted."""
        with self.buffer._write_lock:
            self.flush()
            self._rows = window(self.buffer).end, rows, assignments
            self.flush()

    def flush(self) -> None:
        with self.buffer._write_lock:
            self.finish_change()
            if self._rows is None:
                return
            first, rows, assignments = self._rows
            try:
                for row in rows[window(self.buffer).end - first :]:
                    self.buffer.add(**row)
            except InputError:
                self._rows = None
                raise
            self.change(*assignments, set_attribute(self, "_rows", None))

    def forget(self) -> None:
        self._rows = None
        super().forget()


class EpisodeRing(MultiAgentBuffer):
    """A ring of ``buffer_size`` episodes, each padded to ``max_eps_len`` steps.

    Attributes:
        max_eps_len, dim_act: steps of an episode at most, and actions of an agent.
        episode_data: the episodes that are being collected, ``(n_envs, ...)`` with the axes of ``data``.
    """

    _keeper: PendingRows
    max_eps_len: int
    dim_act: int
    DTYPE: Any = np.float32
    """Of observations, actions and rewards."""
    MARKS: ClassVar[tuple[str, ...]] = MARKS

    def _build(self, kwargs: dict[str, Any]) -> None:
        self._firsts = np.zeros(self.buffer_size, np.int64)
        """First row of the episode in each slot."""
        agents, dtype = (self.n_agents,), self.DTYPE
        self.engine = open_steps(
            self, kwargs, PaddedEpisodes(self.max_eps_len), self.n_agents, 1,
            (self.buffer_size + 1) * self.max_eps_len, self.obs_space, self.act_space, self.state_space, dtype=dtype,
            n_actions=self.dim_act,
            columns={
                REWARDS: (agents + self.rew_space, dtype), TERMINALS: (self.done_space, bool),
                STEP: ((), np.int32), FILLED: ((), bool),
            },
        )  # fmt: skip
        self._episode_data = {key: empty((self.n_envs,), spec) for key, spec in self._specs().items()}
        marks = {name: np.zeros(self.n_envs, np.int64) for name in self.MARKS}
        ram = self._ram(marks, **{EPISODE_DATA: self._episode_data})
        ram.lasting = EPISODE_DATA, *MARKS
        self._keep(PendingRows(self.engine, ram))

    def _look(self) -> None:
        self._find_episodes()

    def _find_episodes(self) -> int:
        """Finds the finished episodes in the rows; how many are in the window."""
        begin, end = window(self.engine)
        step, slot, terminated, truncated = (
            column(self.engine, name, begin, end)[:, 0] for name in (STEP, SLOT, TERMINATED, TRUNCATED)
        )
        ended = np.flatnonzero(terminated | truncated)
        firsts = begin + ended - step[ended]
        whole = firsts >= begin
        slots = slot[ended[whole]]
        self._firsts[slots] = firsts[whole]
        if len(slots):
            self._next_slot = (int(slots[-1]) + 1) % self.buffer_size
        return len(slots)

    def _recover(self) -> None:
        ram = self._keeper.ram
        ram.size = min(self._find_episodes(), self.buffer_size)
        ram.ptr = self._next_slot if ram.size else 0

    _next_slot = 0

    def _ring(self) -> tuple[int, int]:
        return self._keeper.ring()

    @property
    def episode_data(self) -> dict[str, Array]:
        self._keeper.finish_change()
        return self._episode_data

    @property
    def full(self) -> bool:
        """Whether there are ``buffer_size`` episodes."""
        return bool(self.size >= self.buffer_size)

    # Arrays

    def _specs(self) -> dict[str, Spec]:
        agents, steps, dtype = (self.n_agents,), (self.max_eps_len,), self.DTYPE
        more = (self.max_eps_len + 1,)
        specs: dict[str, Spec] = {
            "obs": (agents + more + self.obs_space, dtype, 0),
            "actions": (agents + steps + self.act_space, dtype, 0),
            "rewards": (agents + steps + self.rew_space, dtype, 0),
            **self._specs_in_ram(),
            "terminals": (steps + self.done_space, np.bool_, 0),
            AVAILABLE: ((*agents, *more, self.dim_act), np.bool_, 1),
            FILLED: ((*steps, 1), np.bool_, 0),
        }
        if self.state_space is not None:
            specs["state"] = (more + self.state_space, np.float32, 0)
        return specs

    def _specs_in_ram(self) -> dict[str, Spec]:
        return {}

    def _arrays(self) -> dict[str, Any]:
        return {
            key: self._on_disk(key, spec) if key in ON_DISK else empty((self.buffer_size,), spec)
            for key, spec in self._specs().items()
        }

    def _on_disk(self, key: str, spec: Spec) -> DiskArray:
        engine, ring, firsts, specs = self.engine, self._keeper.ring, self._firsts, {key: spec}

        def read(slots: Ids) -> Array:
            out = empty((len(slots),), spec)
            taken = slots < ring()[1]
            if taken.any():
                out[taken] = padded(read_once(engine, firsts[slots[taken]]), specs)[key]
            return out

        return DiskArray((self.buffer_size,), spec[0], spec[1], read)

    def _episodes(self, slots: Ids) -> dict[str, Array]:
        """The episodes in slots, by key, in the order of ``data``."""
        specs = self._specs()
        batch = read_once(self.engine, self._firsts[slots])
        read = padded(batch, {key: specs[key] for key in ON_DISK if key in specs})
        return {key: read[key] if key in read else self.data[key][slots] for key in self.data}

    def clear_episodes(self) -> None:
        """Forgets the episodes that are being collected."""
        self._keeper.flush()
        self._keeper.change(*self._without_episodes())

    def _without_episodes(self) -> list[Assignment]:
        """What forgets the episodes that are being collected."""
        data = [set_item(self._episode_data, key, empty((self.n_envs,), spec)) for key, spec in self._specs().items()]
        return [*data, *(set_item(self._keeper.ram.marks[mark], slice(None), 0) for mark in MARKS)]

    # Collecting

    def store(self, *args: Any, **kwargs: Any) -> None:
        """Not here: InputError that names ``store_transitions``."""
        raise InputError("a buffer of episodes takes steps by store_transitions(t_envs, ...)")

    def store_transitions(self, t_envs: Any, *transition_data: Any) -> None:
        """Stores one step of all environments; those whose episode is finished already are left alone.

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
        self._keeper.flush()
        obs, actions, state, rewards, terminated, available = transition_data
        given = {"obs": obs, "rewards": rewards, "terminals": terminated, **self._from_actions(actions)}
        if self.state_space is not None:
            given["state"] = state
        given[AVAILABLE] = np.True_ if available is None else available
        at = fit("t_envs", t_envs, (self.n_envs,), np.int64)
        envs = np.flatnonzero(self._keeper.ram.marks["done"] == 0)
        if not ((at[envs] >= 0) & (at[envs] < self.max_eps_len)).all():
            raise InputError(f"t_envs must be 0 to {self.max_eps_len - 1}, got {at[envs].tolist()}")
        specs = self._specs()
        steps = {key: fit(key, value, (self.n_envs, *_of_one_step(key, specs[key])), specs[key][1])
                 for key, value in given.items()}  # fmt: skip
        if not np.isfinite(steps["rewards"]).all():
            raise InputError("rewards must be finite; nothing was stored")
        places = {key: (envs, at[envs]) if key in WITHOUT_AGENTS else (envs, slice(None), at[envs]) for key in steps}
        self._keeper.change(
            *(set_item(self.episode_data[key], places[key], values[envs]) for key, values in steps.items())
        )

    def _from_actions(self, actions: Mapping[str, Any]) -> dict[str, Any]:
        """The entries of an actions' dict by our keys; InputError where one is missing."""
        if not isinstance(actions, Mapping) or "actions_n" not in actions:
            raise InputError("actions_dict lacks 'actions_n'")
        return {"actions": actions["actions_n"]}

    def _length(self, next_t: Any) -> int:
        """The steps of an episode that is finished."""
        steps = int(number("next_t", next_t, "a number of steps", "iu"))
        if steps < 1:
            raise InputError(f"next_t must be at least 1, an episode of one step, got {next_t!r}")
        return min(steps, self.max_eps_len)

    def _env(self, i_env: Any) -> int:
        """The number of an environment."""
        return check_count("i_env", i_env, least=0, most=self.n_envs - 1)

    def _finish(self, i_env: int, steps: int, terminal_data: tuple[Any, ...], *more: Assignment) -> None:
        """Writes what follows an episode's last step, and what else is known when it is finished."""
        if len(terminal_data) != 4:
            raise InputError("finish_path takes i_env, next_t, obs_next, state_next, available_actions and filled")
        obs, state, available, filled = terminal_data
        given = {"obs": obs, FILLED: filled, AVAILABLE: np.ones(self.n_envs) if available is None else available}
        if self.state_space is not None:
            given["state"] = state
        specs, last = self._specs(), {}
        for key, value in given.items():
            shape = specs[FILLED][0] if key == FILLED else _of_one_step(key, specs[key])
            last[key] = fit(key, _of_env(key, value, i_env, self.n_envs), shape, specs[key][1])
        last[FILLED][steps:] = False
        data, marks = self.episode_data, self._keeper.ram.marks
        at = {"obs": (i_env, slice(None), steps), AVAILABLE: (i_env, slice(None), steps), "state": (i_env, steps)}
        self._keeper.change(
            *(set_item(data[key], at.get(key, i_env), value) for key, value in last.items()),
            *more,
            set_item(marks["done"], i_env, 1),
            set_item(marks["steps"], i_env, steps),
        )

    def store_episodes(self) -> None:
        """Stores the episodes that are finished, and forgets those that are not."""
        slot, size = self._ring()
        first, ram = window(self.engine).end, self._keeper.ram
        rows: list[dict[str, Any]] = []
        changes: list[Assignment] = []
        for env in np.flatnonzero(ram.marks["done"]).tolist():
            episode = {key: values[env].copy() for key, values in self.episode_data.items()}
            changes += [
                set_item(array, slot, episode[key]) for key, array in self.data.items() if isinstance(array, np.ndarray)
            ]
            changes.append(set_item(self._firsts, slot, first + len(rows)))
            rows += self._rows(episode, int(ram.marks["steps"][env]), slot)
            slot, size = (slot + 1) % self.buffer_size, min(size + 1, self.buffer_size)
        changes += [set_attribute(ram, "ptr", slot), set_attribute(ram, "size", size)]
        self._keeper.add_all(rows, *changes, *self._without_episodes())

    def _rows(self, data: Mapping[str, Array], steps: int, slot: int) -> list[dict[str, Any]]:
        """An episode's rows, as the engine's ``add`` takes them."""

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
                STEP: np.int32(step), SLOT: np.int32(slot),
            }  # fmt: skip
            if self.state_space is not None:
                row.update(state=data["state"][step], next_state=data["state"][step + 1])
            rows.append(row)
        return rows


WITHOUT_AGENTS = ("terminals", FILLED, "state")
"""Keys whose arrays have no axis of agents."""


def padded(batch: MultiAgentBatch, specs: Mapping[str, Spec]) -> dict[str, Array]:
    """Whole episodes ``(B, T, ...)`` with XuanCe's axes: agents before time, and one more observation at the end."""
    count, length = len(batch), batch.length
    sources = {
        "obs": (batch.obs["obs"], batch.next_obs["obs"]),
        AVAILABLE: (batch.obs[AVAILABLE], batch.next_obs[AVAILABLE]),
        "state": (batch.state, batch.next_state),
        "actions": (batch.action, None),
        "rewards": (batch.extra[REWARDS], None),
        "terminals": (batch.extra[TERMINALS], None),
        FILLED: (batch.extra[FILLED][..., None], None),
    }
    found = {}
    for key, spec in specs.items():
        values, following = sources[key]
        out = empty((count,), spec)
        by_time = out if key in WITHOUT_AGENTS else np.moveaxis(out, 2, 1)
        by_time[:, : values.shape[1]][batch.mask] = values[batch.mask]
        if following is not None:
            by_time[np.arange(count), length] = following[np.arange(count), length - 1]
        found[key] = out
    return found


def _of_env(key: str, value: Any, env: int, n_envs: int) -> Any:
    """The part of an environment of a value that leads with ``n_envs``."""
    try:
        if len(value) == n_envs:
            return value[env]
    except TypeError:
        pass
    raise InputError(f"{key} must lead with n_envs={n_envs}, got {value!r:.80}")


def _of_one_step(key: str, spec: Spec) -> Shape:
    """The shape of one step of an episode's array."""
    shape = spec[0]
    return shape[1:] if key in WITHOUT_AGENTS else (shape[0], *shape[2:])
