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

    def columns(self, start: Any) -> list[Any]:
        """Return the values of all columns, in the order of the store's columns."""
        return [
            *self.obs, *self.actions, self.reward, self.terminated, self.truncated, self.valid, start, *self.extras
        ]  # fmt: skip

    def values(self) -> list[Any]:
        """Return all values but ``valid``, in the order in which the core takes them."""
        return [
            *self.obs, *self.actions, self.reward, self.terminated, self.truncated, *self.extras, *self.next_obs
        ]  # fmt: skip

    def by_environment(self) -> Row:
        """Return the values of a single environment with an axis for it."""
        lead: Any = [
            [np.asarray(part)[None] for part in value] if isinstance(value, list) else np.asarray(value)[None]
            for value in self
        ]
        return Row(*lead)

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

    def slots(self) -> list[AnySlot]:
        """Return the rules in the order of :meth:`Row.values`."""
        flags = [self.flag[TERMINATED], self.flag[TRUNCATED]]
        return [*self.obs, *self.actions, self.reward, *flags, *self.extras.values(), *self.next_obs]

    def row(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any, valid: Any,
        extra: Mapping[str, Any],
    ) -> Row:  # fmt: skip
        """Return the checked arguments; raise InputError if one breaks its rule."""
        is_valid = self.all_valid if valid is None else self.flag[VALID].check(valid)
        given = self._check_leaves(self.obs, self.schema.obs_tree, obs, OBS, is_valid)
        following = self._check_leaves(self.next_obs, self.schema.obs_tree, next_obs, "next_obs", is_valid)
        self.check_columns(extra)
        extras = [slot.check(extra[name], is_valid) for name, slot in self.extras.items()]
        acting = (
            is_valid if self._alive is None else self.acting(is_valid, check_array(self._alive, extra[self._alive]))
        )
        actions = self._check_leaves(self.actions, self.schema.action_tree, action, "action", acting)
        rewards = self.reward.check(reward)
        check_reward(rewards, self._largest_reward)
        ends, cuts = self.flag[TERMINATED].check(terminated), self.flag[TRUNCATED].check(truncated)
        return Row(given, following, actions, rewards, ends, cuts, is_valid, extras)

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

    @staticmethod
    def _check_leaves(slots: list[AnySlot], tree: spaces.Tree, value: Any, what: str, is_valid: Any) -> list[Any]:
        flat = spaces.flatten(tree, value, what)
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
    leaves = [ObsLeaf(column, stack) for column, stack in zip(shown.obs_columns, shown.stacks, strict=True)]
    return Arguments(shown, leaves, 1, InputExceptions())
