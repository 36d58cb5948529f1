"""The arguments of ``add``, each checked by its :class:`~diskreplay.engine.inputs.Slot` before anything changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from diskreplay.checks import Array, check_array
from diskreplay.engine.inputs import AnySlot, InputExceptions, Slot, action_slots, check_reward, column_slots, obs_slots
from diskreplay.engine.leaves import ObsLeaf
from diskreplay.errors import InputError
from diskreplay.schema import spaces
from diskreplay.schema.columns import OBS, REWARD, TERMINATED, TRUNCATED, VALID, Schema


class Row(NamedTuple):
    """The checked arguments of ``add``, each value ``([num_envs,] *shape)``.

    Attributes:
        obs, next_obs, actions, extras: lists with one value for each leaf, or column.
    """

    obs: list[Any]
    next_obs: list[Any]
    actions: list[Any]
    reward: Any
    terminated: Any
    truncated: Any
    valid: Any
    extras: list[Any]

    def columns(self, frames: list[Any], start: Any) -> list[Any]:
        """Return the values of all columns, in the order of the store's columns."""
        return [
            *frames, *self.actions, self.reward, self.terminated, self.truncated, self.valid, start, *self.extras
        ]  # fmt: skip

    def step(self, at: int) -> Row:
        """Return one of many steps, which are the first axis of each value."""
        return Row(*([part[at] for part in value] if isinstance(value, list) else value[at] for value in self))


class Arguments:
    """The rules for the arguments of ``add`` to one stream."""

    def __init__(self, schema: Schema, leaves: list[ObsLeaf], num_envs: int, exceptions: InputExceptions) -> None:
        self.schema = schema
        self.lead = 0 if num_envs == 1 else 1
        """The number of axes before a value: 1, for the environments, if there are several."""
        self.obs, self.next_obs = obs_slots(schema, [leaf.shape for leaf in leaves], num_envs, exceptions)
        self.actions = action_slots(schema, num_envs, exceptions)
        dtype = next(column.dtype for column in schema.columns if column.name == REWARD)
        self.reward = Slot(REWARD, (), dtype, num_envs, lossy=True)
        self.flag = {name: Slot(name, (), np.dtype(bool), num_envs) for name in (TERMINATED, TRUNCATED, VALID)}
        self.extras = column_slots(schema, num_envs, exceptions)
        self.all_valid: Any = np.ones(num_envs, bool) if self.lead else True
        self._alive = exceptions.alive
        self._largest_reward = float(np.finfo(dtype).max)
        self._nested_obs = not isinstance(schema.obs_tree, str)
        self._nested_action = not isinstance(schema.action_tree, str)

    def row(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any, valid: Any,
        extra: Mapping[str, Any],
    ) -> Row:  # fmt: skip
        """Return the checked arguments; raise InputError if one breaks its rule."""
        is_valid = self.all_valid if valid is None else self.flag[VALID].check(valid)
        if self._nested_obs:
            given = self._check_obs(self.obs, obs, OBS, is_valid)
            following = self._check_obs(self.next_obs, next_obs, "next_obs", is_valid)
        else:
            given, following = [self.obs[0].check(obs, is_valid)], [self.next_obs[0].check(next_obs, is_valid)]
        extras = []
        if extra or self.extras:
            self.check_columns(extra)
            extras = [slot.check(extra[name], is_valid) for name, slot in self.extras.items()]
        acting = (
            is_valid if self._alive is None else self.acting(is_valid, check_array(self._alive, extra[self._alive]))
        )
        if self._nested_action:
            flat = spaces.flatten(self.schema.action_tree, action, "action")
            actions = [slot.check(value, acting) for slot, value in zip(self.actions, flat, strict=True)]
        else:
            actions = [self.actions[0].check(action, acting)]
        rewards = self._reward(reward)
        ends, cuts = self.flag[TERMINATED].check(terminated), self.flag[TRUNCATED].check(truncated)
        return Row(given, following, actions, rewards, ends, cuts, is_valid, extras)

    def _reward(self, reward: Any) -> Any:
        slot = self.reward
        if type(reward) is np.ndarray and reward.dtype.kind == "f" and reward.shape == slot.shape:  # finite in one look
            with np.errstate(all="ignore"):
                rewards = reward.astype(slot.dtype, copy=False)
            if np.count_nonzero(np.isfinite(rewards)) == rewards.size:
                return rewards
        rewards = slot.check(reward)
        if type(rewards) is not float:  # the slot has checked its bounds
            check_reward(rewards, self._largest_reward)
        return rewards

    def steps(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any, valid: Any,
        extra: Mapping[str, Any],
    ) -> Row:  # fmt: skip
        """Return the checked arguments of many steps; the steps are the first axis of every array."""
        rewards = check_array(REWARD, reward)
        if rewards.ndim != 1 + self.lead:
            raise InputError(f"reward must lead with the steps, got shape {rewards.shape}")
        count = len(rewards)
        is_valid = None if valid is None else self.flag[VALID].check_steps(valid, count)
        counts = True if is_valid is None else is_valid
        leaves, following = (
            [
                slot.check_steps(part, count, counts)
                for slot, part in zip(slots, spaces.flatten(self.schema.obs_tree, given, what), strict=True)
            ]
            for what, slots, given in ((OBS, self.obs, obs), ("next_obs", self.next_obs, next_obs))
        )
        flat = spaces.flatten(self.schema.action_tree, action, "action")
        actions = [slot.check_steps(part, count, counts) for slot, part in zip(self.actions, flat, strict=True)]
        rewards = self.reward.check_steps(rewards, count)
        if not np.isfinite(rewards).all():
            step = int(np.argwhere(~np.isfinite(rewards))[0, 0])
            raise InputError(f"reward of step {step} must be finite, got {rewards[step]}; nothing was added")
        ends = self.flag[TERMINATED].check_steps(terminated, count)
        cuts = self.flag[TRUNCATED].check_steps(truncated, count)
        if is_valid is None:
            is_valid = np.ones(ends.shape, bool)
        self.check_columns(extra)
        extras = [slot.check_steps(extra[name], count, counts) for name, slot in self.extras.items()]
        return Row(leaves, following, actions, rewards, ends, cuts, is_valid, extras)

    def _check_obs(self, slots: list[AnySlot], value: Any, what: str, is_valid: Any) -> list[Array]:
        """Return the leaves of a nested observation, as given."""
        flat = spaces.flatten(self.schema.obs_tree, value, what)
        return [slot.check(part, is_valid) for slot, part in zip(slots, flat, strict=True)]

    def check_columns(self, extra: Mapping[str, Any]) -> None:
        """Raise InputError if these are not exactly the user's columns."""
        if extra.keys() != self.extras.keys():
            missing, unknown = sorted(self.extras.keys() - extra.keys()), sorted(extra.keys() - self.extras.keys())
            if missing:
                raise InputError(f"add: the columns {missing} are missing")
            made = f"the store was made with columns {sorted(self.extras)}, and write sets later ones"
            raise InputError(f"add: unknown columns {unknown}; {made}")

    @staticmethod
    def acting(is_valid: Any, alive: Any) -> Array:
        """Return which agents act in a transition, ``(..., n_agents)``."""
        acting: Array = np.asarray(is_valid)[..., None] & np.asarray(alive, bool)
        return acting


def of_frames(schema: Schema) -> Arguments:
    """Return the rules for rows whose video columns are given as frames, and not as packets."""
    ragged = {name: column for name, column in schema.ragged.items() if column.video is None}
    shown = dataclasses.replace(schema, columns=tuple(map(schema.picture, schema.columns)), ragged=ragged)
    leaves = [ObsLeaf(column, stack, 1) for column, stack in zip(shown.obs_columns, shown.stacks, strict=True)]
    return Arguments(shown, leaves, 1, InputExceptions())
