"""A buffer of another library over a store that its first step makes where that shows what is stacked.

A step of all environments is a row. What is asked of the ring before there is a store is that of an empty one.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium import spaces

from diskreplay.buffers.checkpointed import OverStores
from diskreplay.buffers.replay import ReplayBuffer as Store
from diskreplay.compat import arguments
from diskreplay.compat.location import Location, close_with
from diskreplay.compat.ring import Field, Ring, ring_property, shown
from diskreplay.compat.rows import ignore_resets
from diskreplay.compat.stacks import images_of, stacks_named, stacks_seen
from diskreplay.compat.stores import check_alike, check_checkpoint, open_or_create
from diskreplay.errors import NotEnoughDataError
from diskreplay.process.locks import uninterrupted
from diskreplay.storage.paths import PathLike, full_path
from diskreplay.views.batch import map_arrays

FrameStack = int | Mapping[str, int] | Literal["auto"]

FLOATS = np.dtype(np.float32), np.dtype(np.float64)


class SharedStore:
    """A store, closed when no buffer holds it any more; until then others of this process may find it by its path."""

    _all: ClassVar[weakref.WeakValueDictionary[str, SharedStore]] = weakref.WeakValueDictionary()

    def __init__(self, path: PathLike | None) -> None:
        self.place = Location(path, self)
        self.store: Store | None = None

    @classmethod
    def at(cls, path: PathLike | None) -> SharedStore:
        """One that is open, else a new one."""
        found = None if path is None else cls._all.get(full_path(path))
        return cls(path) if found is None or found.store is None or found.store.engine.gate.closed else found

    def keep(self, store: Store) -> None:
        self.store = store
        self._all[self.place.path] = self
        close_with(self, store)


class FirstStepBuffer(OverStores):
    """A buffer whose rows are steps of all environments; the first one makes the store where it shows what is stacked.

    A subclass calls :meth:`_begin`.
    """

    _shared: SharedStore
    _ring: Ring
    _ignores_resets = False
    """True if a ``next_obs`` may be the observation after a reset, without a warning."""

    def _begin(
        self, shared: SharedStore, facts: Mapping[str, Any], settings: Mapping[str, Any], options: Mapping[str, Any],
        frame_stack: FrameStack, *, fields: Any = None, checkpoint: str | None = None, single: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Open the store if there is one, else make it if it is known what is stacked.

        Args:
            shared: the store, or the place where the store is to be made.
            facts: the arguments of ``create`` that a store must fit. With a sampler the ring cannot become larger,
                because priorities are kept by places.
            settings: arguments of ``create`` and ``open``.
            options: the caller's.
            frame_stack: frames of an image observation, one number or by key; "auto" sees it from the first step.
            fields: the table of what a row holds.
            checkpoint: the checkpoint of the existing store to go back to.
            single: keys of observations that are no stacks, whatever the first step shows.
        """
        self._shared, self._making = shared, (facts, settings, options)
        envs = facts["num_envs"]
        self._ring = Ring(shared.store, fields, (facts["capacity"] // envs, envs))
        images = images_of(facts["observation_space"])
        self._images = {key: shape for key, shape in images.items() if key not in single}
        if shared.store is not None:
            check_alike(shared.store, facts, "sampler" not in facts)
        elif shared.place.exists:
            self._make({}, checkpoint)
        elif checkpoint is not None:
            check_checkpoint(shared.place, checkpoint)
        elif frame_stack != "auto":
            self._make(stacks_named(images, frame_stack))
        elif not images:
            self._make({})

    @uninterrupted
    def _make(self, stacked: Mapping[str, Any], checkpoint: str | None = None) -> None:
        facts, settings, options = self._making
        at = {} if checkpoint is None else {"checkpoint": checkpoint}
        store = open_or_create(
            Store, self._shared.place, options, {**facts, **stacked}, facts, grows="sampler" not in facts,
            **settings, **at,
        )  # fmt: skip
        self._shared.keep(store)
        self._ring.lay(store)
        if self._ignores_resets:
            ignore_resets(store)

    @property
    def store(self) -> Store | None:
        return self._shared.store

    pos = ring_property("pos", "The position of the next row.")

    def _filled(self) -> Store:
        """Return the store; raise NotEnoughDataError if it holds nothing."""
        if self.store is None or not self._ring.count:
            raise NotEnoughDataError("the buffer is empty; add some steps")
        return self.store

    def _add(self, steps: Sequence[tuple[Any, ...]]) -> None:
        """Add rows.

        Args:
            steps: arguments of ``store.add``, all checked.
        """
        if self.store is None and steps:
            shown = steps[0][0], steps[0][3]
            if self._making[0]["num_envs"] == 1:
                shown = map_arrays(lambda array: array[None], shown)
            self._make(stacks_seen(self._images, *shown))
        self._ring.add(steps)


class VectorBuffer(FirstStepBuffer):
    """Such a buffer that takes the steps of several environments, and shows the columns of single steps as arrays."""

    action_space: spaces.Space[Any]
    observation_space: spaces.Space[Any]
    obs_shape: Any
    full = ring_property("full", "Whether the ring has come round.")
    observations, next_observations, actions = map(shown, ("observations", "next_observations", "actions"))
    rewards, dones, timeouts = map(shown, ("rewards", "dones", "timeouts"))

    def _fields(self, actions: spaces.Space[Any]) -> dict[str, Any]:
        """Return the table of what a row holds, of stored ``actions``."""

        def seen(part: str) -> Any:
            space = self.observation_space
            if isinstance(space, spaces.Dict):
                return {key: Field(self.obs_shape[key], one.dtype, part=(part, key)) for key, one in space.items()}
            return Field(self.obs_shape, space.dtype, part=(part,))

        return {
            "observations": seen("obs"), "next_observations": seen("next_obs"), "rewards": Field(part=("reward",)),
            "actions": Field((math.prod(actions.shape or ()),), actions.dtype, part=("action",)),
            "dones": Field(part=lambda batch: batch.terminated | batch.truncated),
            "timeouts": Field(part=("truncated",)),
        }  # fmt: skip

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Add one step of each environment; arrays lead with ``n_envs``, which may be left out if it is 1.

        Args:
            obs, next_obs: observations; floating point ones in any precision.
            action, reward: likewise.
            done: True if a step ended its episode.
            infos: a dict for each environment, or that of a vector environment, which says of which a done is due to a
                time limit.

        Raises InputError, with nothing added, for wrong shapes, values that their space cannot hold, and rewards that
        are not finite.
        """
        self._add([self._checked(obs, next_obs, action, reward, done, infos)])

    def extend(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Add several steps at once, with errors as :meth:`add`; each of its arguments leads with their number."""
        given = {
            "obs": obs, "next_obs": next_obs, "action": action, "reward": reward, "done": done, "infos": infos,
        }  # fmt: skip
        self._add([self._checked(*step) for step in arguments.by_step(given)])

    @functools.cached_property
    def _plain(self) -> tuple[Any, ...]:
        """The shapes and dtypes of arguments of ``add`` that the store takes as they are; rewards have several."""
        facts = self._making[0]
        lead = (facts["num_envs"],)
        kinds = facts["observation_space"], facts["action_space"]
        obs, action = (((*lead, *(space.shape or ())), space.dtype) for space in kinds)
        return *obs, *obs, *action, lead, lead, np.dtype(bool)

    def _checked(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> tuple[Any, ...]:
        """Return the arguments of ``store.add`` for one step.

        Arrays that the store takes as they are have no check here but by the store, once that is there.
        """
        facts, _, options = self._making
        envs = facts["num_envs"]
        limits = None if infos is None else arguments.time_limits(infos, envs)
        try:
            given = (
                obs.shape, obs.dtype, next_obs.shape, next_obs.dtype, action.shape, action.dtype, reward.shape,
                done.shape, done.dtype,
            )  # fmt: skip
            is_plain = given == self._plain and reward.dtype in FLOATS and self.store is not None
        except AttributeError:  # not arrays
            is_plain = False
        if not is_plain:
            lead, finite = () if envs == 1 else (envs,), bool(options.get("finite"))
            space, stored = facts["observation_space"], facts["action_space"]
            obs = arguments.of_space("obs", obs, space, lead, finite=finite)
            next_obs = arguments.of_space("next_obs", next_obs, space, lead, finite=finite)
            action = arguments.actions("action", action, self.action_space, lead, stored.dtype, finite=finite)
            action = action.reshape((*lead, *stored.shape))
            done, reward = arguments.flags("done", done, lead), arguments.rewards("reward", reward, lead)
        elif envs == 1:
            obs, next_obs, action, reward, done = obs[0], next_obs[0], action[0], reward[0], done[0]
        if limits is None:
            return obs, action, reward, next_obs, done, False if envs == 1 else np.zeros(envs, bool)
        return obs, action, reward, next_obs, done > limits, limits

    @uninterrupted
    def reset(self) -> None:
        """Forget all transitions."""
        if self.store is not None:
            self.store.clear()
