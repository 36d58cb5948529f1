"""The view of transitions: an observation, an action, a reward, and the observation after ``n_step`` steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import check_count, check_share
from diskreplay.reading.open_stream import OpenStream
from diskreplay.reading.reads import Reads
from diskreplay.reading.samples import Samples
from diskreplay.schema import spaces
from diskreplay.schema.columns import TERMINATED, TRUNCATED, Schema
from diskreplay.schema.ids import Ids
from diskreplay.views.batch import Batch
from diskreplay.views.view import View, keep


@dataclasses.dataclass(frozen=True)
class Transition(View[Batch]):
    """A view of transitions of ``n_step`` steps (Sutton and Barto 2018, chapter 7).

    A store holds single steps; the returns are computed when a batch is sampled. A transition has fewer steps if its
    episode ends before. Let ``k`` be the number of a transition's steps:

    - ``reward`` is the sum of ``gamma ** i * reward_i`` over these steps, with ``i`` from 0 to ``k - 1``.
    - ``next_obs`` is the observation after the last of these steps.
    - ``discount`` is the factor for the value of ``next_obs``: 0 if the last step is terminated, else ``gamma ** k``.

    If an episode ends without termination, ``next_obs`` is its true last observation, and ``discount`` is not 0.

    Args:
        n_step: the number of steps of a transition, at least 1.
        gamma: the discount factor, 0 to 1.

    >>> Transition(n_step=3).to_json()
    {'kind': 'Transition', 'n_step': 3, 'gamma': 0.99}
    """

    n_step: int = 1
    gamma: float = 0.99

    def __post_init__(self) -> None:
        keep(self, n_step=check_count("n_step", self.n_step, most=1 << 16), gamma=check_share("gamma", self.gamma))

    @property
    def reach(self) -> int:
        return self.n_step

    def standing(self, stream: OpenStream, ids: Ids) -> NDArray[np.int8]:
        return stream.log.standing(*stream.log.locate(ids), self.n_step)

    def draft(
        self, schema: Schema, streams: Sequence[OpenStream], ids: Ids, weight: NDArray[Any],
        rng: np.random.Generator | None, reads: Reads,
    ) -> Batch:  # fmt: skip
        return transitions(Samples(schema, streams, ids, reads=reads), self.n_step, self.gamma, ids, weight)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "Transition", "n_step": self.n_step, "gamma": self.gamma}


def transitions(samples: Samples, n_step: int, gamma: float, index: Ids, weight: NDArray[Any]) -> Batch:
    """Return the batch of transitions of ``n_step`` steps that begin at the rows of ``samples``.

    ``index`` and ``weight`` become fields of the batch as they are.
    """
    schema = samples.schema
    if n_step == 1:
        samples.gather()
        reward, discount, ends = samples.rewards(), samples.full(gamma, np.float32), samples
        pairs = [samples.observe(leaf) for leaf in range(len(schema.stacks))]
    else:
        reward, discount, ends = samples.returns(n_step, gamma)
        pairs = [(samples.current(leaf), ends.observe_next(leaf)) for leaf in range(len(schema.stacks))]
    terminated, truncated = ends.resident(TERMINATED), ends.resident(TRUNCATED)
    discount[terminated] = 0.0
    return Batch(
        obs=spaces.unflatten(schema.obs_tree, [obs for obs, _ in pairs]),
        action=spaces.unflatten(schema.action_tree, [samples.values(column) for column in schema.action_columns]),
        reward=reward,
        next_obs=spaces.unflatten(schema.obs_tree, [following for _, following in pairs]),
        terminated=terminated,
        truncated=truncated,
        discount=discount,
        index=index,
        weight=weight,
        extra=samples.extra(),
    )


def maker(schema: Schema) -> Callable[[list[Any]], Batch]:
    """Return a function that makes a batch of its arrays: masks, discounts, ids, weights, and the columns.

    The masks, two arrays of sequences, are passed over. The columns stand in the order of
    :func:`diskreplay.reading.in_core.names`.
    """
    obs, action = 8 + len(schema.obs_columns), 8 + len(schema.obs_columns) + len(schema.action_columns)
    extra = [column.name for column in schema.extra_columns]
    following = action + len(extra)

    def made(arrays: list[Any]) -> Batch:
        _, _, discount, index, weight, reward, terminated, truncated = arrays[:8]
        return Batch(
            spaces.unflatten(schema.obs_tree, arrays[8:obs]),
            spaces.unflatten(schema.action_tree, arrays[obs:action]),
            reward,
            spaces.unflatten(schema.obs_tree, arrays[following:]),
            terminated,
            truncated,
            discount,
            index,
            weight,
            dict(zip(extra, arrays[action:following], strict=True)),
        )

    def plain(arrays: list[Any]) -> Batch:
        _, _, discount, index, weight, reward, terminated, truncated, obs, action, next_obs = arrays
        return Batch(obs, action, reward, next_obs, terminated, truncated, discount, index, weight, {})

    is_plain = not extra and isinstance(schema.obs_tree, str) and isinstance(schema.action_tree, str)
    return plain if is_plain else made
