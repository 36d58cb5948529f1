"""The view of transitions: an observation, an action, a reward, and the observation after ``n_step`` steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from diskreplay.checks import check_count, check_share
from diskreplay.index.log import NOW
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
        if self.stands_everywhere(stream):
            return _full(len(ids), NOW, np.int8)
        return stream.log.standing(*stream.log.locate(ids), self.n_step)

    def stands_everywhere(self, stream: OpenStream) -> bool:
        """Return True if ``n_step`` is 1 and each row of the stream's window is a transition."""
        return self.n_step == 1 and not stream.log.invalid

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
        last_rows = None
        reward, terminated = samples.rewards(), samples.resident(TERMINATED)
        truncated = samples.resident(TRUNCATED)
        discount = samples.full(gamma, np.float32)
    else:
        ends = samples.returns(n_step, gamma)
        last_rows = [last for _, last, _ in ends]
        reward = samples.scatter([total for total, _, _ in ends])
        terminated, truncated = samples.later(TERMINATED, last_rows), samples.later(TRUNCATED, last_rows)
        discount = samples.scatter([scale.astype(np.float32) for _, _, scale in ends])
    discount[terminated] = 0.0
    pairs = [samples.observe(leaf, last_rows) for leaf in range(len(schema.stacks))]
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


def _full(count: int, value: float, dtype: DTypeLike) -> NDArray[Any]:
    """Return what ``np.full`` returns. For few values ``np.full`` takes longer."""
    found = np.empty(count, dtype)
    found.fill(value)
    return found
