"""Episodes of a store as d3rlpy has them, read whole when somebody looks at one.

An episode of d3rlpy has one observation a step, and the last step of one that was not terminated is no transition: what
followed it is not known. A store knows it. So an episode of ``n`` steps that was not terminated has ``n + 1`` here, all
``n`` of them transitions by d3rlpy's own rule: the last one has the final observation, and the action and the reward
that the facts of the episode give it. Without such facts it has the action of the step before it, and no reward.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from d3rlpy.dataset import Signature

from diskreplay.buffers.replay import ReplayBuffer as Store
from diskreplay.checks import Array
from diskreplay.compat.d3rlpy.signatures import ObservationLeaves, joined
from diskreplay.compat.disk_array import ReadSequence
from diskreplay.compat.rows import EpisodePlace, episode_places, read_part
from diskreplay.errors import InputError
from diskreplay.schema.columns import REWARD
from diskreplay.schema.ids import Ids

Part = TypeVar("Part")

BLOCK_BYTES = 16 << 20
"""The most bytes of observations that are read at once."""
LAST_ACTION, LAST_REWARD = "d3rlpy_last_action", "d3rlpy_last_reward"
"""The facts that keep the last step of an episode that was not terminated: that step is not a transition."""
MOST_NUMBERS = 128
"""The most numbers of an action that is kept among the facts."""


def last_facts(action: Array, reward: Any) -> dict[str, Any]:
    """Return the facts of an episode's last step, which is not a transition, less an action that is too large."""
    facts: dict[str, Any] = {LAST_REWARD: float(reward)}
    if action.size <= MOST_NUMBERS and np.isfinite(action).all():
        facts[LAST_ACTION] = action.ravel().tolist()
    return facts


@dataclasses.dataclass(frozen=True, eq=False)
class LastStep:
    """An episode's last step, which is no transition.

    Attributes:
        action: ``(*action_shape)`` as the store has it; None where it is not known.
        reward: the reward of the step.
    """

    action: Array | None
    reward: Any


@dataclasses.dataclass(frozen=True, eq=False)
class NewestStep(LastStep):
    """The newest step of a running episode, which is no transition yet.

    Attributes:
        obs: ``(*shape)`` a leaf, as the store has it.
    """

    action: Array
    obs: list[Array]


class Reader:
    """A reader of the steps of a store.

    Args:
        store: open, with transitions of one step for a view.
        newest: a function that returns the step that is no transition yet, where there is one.
    """

    def __init__(self, store: Store, newest: Callable[[], NewestStep | None]) -> None:
        self.store = store
        self.layout = ObservationLeaves(store.schema)
        self.newest = newest
        self._held: dict[str, tuple[Any, Any]] = {}

    def episode(self, place: EpisodePlace) -> DiskEpisode:
        """Return the episode of a transition."""
        return DiskEpisode(self, place, self.after(place))

    def after(self, place: EpisodePlace) -> LastStep | None:
        """Return the step after an episode's last transition: the newest one, or the one that its facts keep."""
        if place.terminated:
            return None
        running = self.newest() if place.newest else None
        if running is not None or LAST_REWARD not in place.facts:
            return running
        action = place.facts.get(LAST_ACTION)
        shaped = (
            None if action is None else np.array(action, self.layout.action_dtype).reshape(self.layout.action_shape)
        )
        return LastStep(shaped, place.facts[LAST_REWARD])

    def once(self, what: str, key: Any, read: Callable[[], Part]) -> Part:
        """Return what ``read`` gives, and hold it for the episode that was looked at last."""
        held = self._held.get(what)
        if held is None or held[0] != key:
            self._held.pop(what, None)  # before the next one is read
            held = self._held[what] = key, read()
        return cast(Part, held[1])

    def actions(self, ids: Ids) -> Array:
        """Return the actions ``(n, *action_shape)``."""
        column = self.store.schema.action_columns[0]
        found = read_part(self.store, ids, lambda samples: samples.values(column))
        return found.reshape(len(ids), *self.layout.action_shape)

    def rewards(self, ids: Ids) -> Array:
        """Return the rewards ``(n, 1)``."""
        return read_part(self.store, ids, lambda samples: samples.resident(REWARD))[:, None]

    def observations(self, ids: Ids) -> Iterator[tuple[slice, list[Array], list[Array]]]:
        """Yield slices of ids, and the observations and next observations there, ``(n, *shape)`` a leaf."""
        size = max(1, BLOCK_BYTES // max(1, 2 * self.layout.step_bytes))
        for start in range(0, len(ids), size):
            batch = self.store.get(ids[start : start + size])
            block = slice(start, start + len(batch))
            yield block, self.layout.leaves(batch.obs), self.layout.leaves(batch.next_obs)


def with_last(rewards: Array, complete: bool, after: LastStep | None) -> Array:
    """Return rewards ``(n, 1)``; if they are not complete, with that of the last step, which is not a transition."""
    if complete:
        return rewards[:, None]
    last = np.zeros(1, rewards.dtype) if after is None else np.asarray(after.reward, rewards.dtype).reshape(1)
    return np.concatenate([rewards, last])[:, None]


class DiskEpisode:
    """One episode, a ``d3rlpy.dataset.EpisodeBase``, read when it is looked at and held until another one is.

    Attributes:
        observations: ``(n, *shape)``, a list of such for several leaves.
        actions: ``(n, action_size)``, or ``(n, 1)`` integers.
        rewards: ``(n, 1)``.
        terminated: bool.
    """

    def __init__(self, reader: Reader, place: EpisodePlace, after: LastStep | None = None) -> None:
        self._reader, self._place, self._after = reader, place, after
        self.terminated = place.terminated

    @property
    def _ids(self) -> Ids:
        return cast(Ids, self._place.ids(np.arange(self._place.steps, dtype=np.int64)))

    def _once(self, what: str, read: Callable[[], Part]) -> Part:
        return self._reader.once(what, (self._place, self._after is None), read)

    @property
    def observations(self) -> Any:
        def read() -> Any:
            out = self._reader.layout.empty(len(self))
            for block, obs, following in self._reader.observations(self._ids):
                for whole, part, later in zip(out, obs, following, strict=True):
                    whole[block] = part
                    if not self.terminated and block.stop == self._place.steps:
                        whole[-1] = later[-1]
            return joined(out)

        return self._once("observations", read)

    @property
    def actions(self) -> Array:
        def read() -> Array:
            found = self._reader.actions(self._ids)
            if self.terminated:
                return found
            known = None if self._after is None else self._after.action
            last = found[-1] if known is None else known.reshape(found.shape[1:])
            return np.concatenate([found, last[None]])

        return self._once("actions", read)

    @property
    def rewards(self) -> Array:
        rewards = self._reader.rewards
        return self._once("rewards", lambda: with_last(rewards(self._ids)[:, 0], self.terminated, self._after))

    @property
    def observation_signature(self) -> Signature:
        return self._reader.layout.info.observation_signature

    @property
    def action_signature(self) -> Signature:
        return self._reader.layout.info.action_signature

    @property
    def reward_signature(self) -> Signature:
        return self._reader.layout.info.reward_signature

    def size(self) -> int:
        return self.transition_count + (not self.terminated)

    def __len__(self) -> int:
        return self.size()

    @property
    def transition_count(self) -> int:
        return int(self._place.steps)

    def compute_return(self) -> float:
        return float(np.sum(self.rewards))

    def serialize(self) -> dict[str, Any]:
        """Return what d3rlpy's ``dump`` writes."""
        return {
            "observations": self.observations, "actions": self.actions, "rewards": self.rewards,
            "terminated": self.terminated,
        }  # fmt: skip

    @classmethod
    def deserialize(cls, serializedData: dict[str, Any]) -> DiskEpisode:  # d3rlpy's name
        """Raise InputError: an episode is part of a store."""
        raise InputError("a DiskEpisode is part of a store; load d3rlpy.dataset.Episode, and append_episode it")

    def __repr__(self) -> str:
        return f"<DiskEpisode of {len(self)} steps at {self._reader.store.path!r}>"


def all_episodes(reader: Reader) -> Sequence[DiskEpisode]:
    """All episodes in the order of the transitions; an episode is read when somebody looks at it."""
    places = episode_places(reader.store)
    return ReadSequence(lambda: len(places), lambda number: reader.episode(places[number]))
