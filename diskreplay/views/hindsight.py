"""The view of hindsight experience replay (Andrychowicz et al. 2017).

It replaces the goals of some transitions by goals that were achieved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Dict, Tuple
from numpy.typing import NDArray

from diskreplay.checks import check_array, check_share
from diskreplay.errors import InputError
from diskreplay.reading.open_stream import OpenStream
from diskreplay.reading.reads import Reads
from diskreplay.reading.samples import Samples
from diskreplay.reading.unroll import episode_stop
from diskreplay.schema import spaces
from diskreplay.schema.columns import OBS, VALID, Schema, refuse_ragged
from diskreplay.schema.ids import Ids, stream_of
from diskreplay.views.batch import Batch, HindsightBatch
from diskreplay.views.transition import Transition, transitions
from diskreplay.views.view import View, keep

Goal = Callable[[NDArray[Any], NDArray[Any], Mapping[str, Any]], Any]

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
STRATEGIES = ("future", "final", "episode", "random")


@dataclasses.dataclass(frozen=True)
class Hindsight(View[HindsightBatch]):
    """A view of transitions with goals. Some transitions of a batch get a new goal: they are relabelled.

    Observations are those of Gymnasium-Robotics' ``GoalEnv``: a Dict with ``achieved_goal`` and ``desired_goal``. For
    each relabelled transition ``strategy`` chooses a transition. The goal that was achieved after the chosen transition
    is the new goal. It replaces ``desired_goal`` in ``obs`` and ``next_obs``, and ``reward_fn`` computes the reward for
    this goal. The store does not change. A batch is a :class:`~diskreplay.HindsightBatch`.

    Args:
        reward_fn: a function ``(achieved_goal, desired_goal, info) -> reward``, as ``GoalEnv.compute_reward``. It is
            called at most once a batch, for the ``n`` relabelled transitions. Both goals have the shape
            ``(n, *goal_shape)``: ``achieved_goal`` is the goal achieved after the transition, ``desired_goal`` the new
            goal. ``info`` has the user's own columns by name. The function returns ``(n,)`` rewards.
        strategy: which transition is chosen. "future": the relabelled transition or a later one of its episode, at
            random. "final": the newest transition of its episode. "episode": any transition of its episode that the
            window still holds, at random. "random": any transition in any window, at random.
        ratio: the probability with which a transition is relabelled, 0 to 1. In the paper it is 0.8.
        terminated_fn: a function with the arguments of ``reward_fn``, as ``GoalEnv.compute_terminated``. It returns
            ``(n,)`` new values of ``terminated``. If it is None, ``terminated`` stays as it was recorded.
        gamma: the discount factor, 0 to 1, for the field ``discount``.

    >>> Hindsight(lambda achieved, desired, info: -(achieved != desired).any(axis=1)).ratio
    0.8
    """

    reward_fn: Goal
    strategy: Literal["future", "final", "episode", "random"] = "future"
    ratio: float = 0.8
    terminated_fn: Goal | None = None
    gamma: float = 0.99

    def __post_init__(self) -> None:
        if not callable(self.reward_fn) or not (self.terminated_fn is None or callable(self.terminated_fn)):
            raise InputError("reward_fn and terminated_fn must be functions (achieved_goal, desired_goal, info)")
        if self.strategy not in STRATEGIES:
            raise InputError(f"strategy must be one of {', '.join(STRATEGIES)}, got {self.strategy!r}")
        keep(self, ratio=check_share("ratio", self.ratio), gamma=check_share("gamma", self.gamma))

    @property
    def reach(self) -> int:
        return 1

    def check(self, schema: Schema) -> None:
        """Raise InputError if the observations have no goals that can be replaced, or if a column is ragged."""
        refuse_ragged(schema, "Hindsight")
        space = schema.observation_space
        if not isinstance(space, Dict) or not {ACHIEVED, DESIRED} <= space.spaces.keys():
            raise InputError(f"Hindsight needs a Dict observation space with {ACHIEVED} and {DESIRED}, got {space}")
        achieved, desired = space[ACHIEVED], space[DESIRED]
        if isinstance(achieved, Dict | Tuple) or achieved.shape != desired.shape:
            raise InputError(f"{ACHIEVED} and {DESIRED} must be arrays of one shape, got {achieved} and {desired}")
        leaves = _leaf(schema, ACHIEVED), _leaf(schema, DESIRED)
        reached, wanted = (schema.obs_columns[leaf].dtype for leaf in leaves)
        if not np.can_cast(reached, wanted):
            raise InputError(f"{DESIRED} must hold each {ACHIEVED} exactly, got {wanted} and {reached}")
        frames = max(schema.stacks[leaf].frames for leaf in leaves)
        if frames > 1:
            raise InputError(
                f"goals must not be stacked, got frame_stack={frames}; give it by name of the other leaves"
            )

    def standing(self, stream: OpenStream, ids: Ids) -> NDArray[np.int8]:
        return Transition().standing(stream, ids)

    def draft(
        self, schema: Schema, streams: Sequence[OpenStream], ids: Ids, weight: NDArray[Any],
        rng: np.random.Generator | None, reads: Reads,
    ) -> HindsightBatch:  # fmt: skip
        plain = transitions(Samples(schema, streams, ids, reads=reads), 1, self.gamma, ids, weight)
        chosen = np.zeros(len(ids), bool) if rng is None else rng.random(len(ids)) < self.ratio
        batch = HindsightBatch(**vars(plain), relabelled=chosen)
        if rng is not None and chosen.any():
            goals = Samples(schema, streams, self._goals(schema, streams, ids[chosen], rng), reads=reads)
            reached = goals.observe_next(_leaf(schema, ACHIEVED))
            reads.then(lambda: self._relabel(batch, chosen, reached, streams))
        return batch

    def _goals(self, schema: Schema, streams: Sequence[OpenStream], ids: Ids, rng: np.random.Generator) -> Ids:
        if self.strategy == "random":
            return _anywhere(schema, streams, len(ids), rng)
        at = Samples(schema, streams, ids)
        rows = at.each(lambda stream, rows, envs: rows)
        stop = at.each(episode_stop)
        num_envs = at.each(lambda stream, rows, envs: np.full(len(rows), stream.log.num_envs))
        if self.strategy == "final":
            goal_rows = stop - 1
        elif self.strategy == "future":
            goal_rows = rng.integers(rows, stop)
        else:
            goal_rows = rng.integers(at.each(lambda stream, rows, envs: stream.spans().first(rows, envs)), stop)
        found: Ids = ids + (goal_rows - rows) * num_envs
        return found

    def _relabel(
        self, batch: Batch, chosen: NDArray[np.bool_], goals: NDArray[Any], streams: Sequence[OpenStream]
    ) -> None:
        goals = goals.astype(batch.obs[DESIRED].dtype, copy=False)
        batch.obs[DESIRED][chosen] = goals
        batch.next_obs[DESIRED][chosen] = goals
        achieved = batch.next_obs[ACHIEVED][chosen]
        info = {name: values[chosen] for name, values in batch.extra.items()}
        made = self.reward_fn(achieved, goals, info)
        batch.reward[chosen] = _answers("reward_fn", made, batch.index[chosen], streams)
        if self.terminated_fn is not None:
            made = self.terminated_fn(achieved, goals, info)
            ended = _answers("terminated_fn", made, batch.index[chosen], streams).astype(bool)
            batch.terminated[chosen] = ended
            batch.discount[chosen] = np.where(ended, 0.0, self.gamma)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "Hindsight", "strategy": self.strategy, "ratio": self.ratio, "gamma": self.gamma}


def _leaf(schema: Schema, goal: str) -> int:
    return spaces.leaves(schema.obs_tree).index(f"{OBS}/{goal}")


def _anywhere(schema: Schema, streams: Sequence[OpenStream], count: int, rng: np.random.Generator) -> Ids:
    """Return ``count`` ids of transitions in the windows. Each transition has the same probability."""
    firsts = np.array([stream.log.first_id for stream in streams])
    lengths = np.array([stream.log.stop_id - stream.log.first_id for stream in streams])
    ends = np.cumsum(lengths)
    found, missing = np.empty(count, np.int64), np.arange(count)
    while len(missing):
        picks = rng.integers(ends[-1], size=len(missing))
        which = np.searchsorted(ends, picks, side="right")
        found[missing] = firsts[which] + picks - (ends - lengths)[which]
        missing = missing[~Samples(schema, streams, found[missing]).resident(VALID)]
    return found


def _answers(name: str, given: Any, ids: Ids, streams: Sequence[OpenStream]) -> NDArray[Any]:
    """Return what a function has made for transitions, ``(n,)``; raise InputError for what is no finite float32."""
    answers, count = check_array(name, given), len(ids)
    if answers.shape not in ((count,), (count, 1)) or answers.dtype.kind not in "biuf":
        got = f"shape {answers.shape} of {answers.dtype}"
        raise InputError(f"{name} must return {count} values for {count} goals, got {got}")
    answers = answers.reshape(count)
    with np.errstate(over="ignore"):
        wrong = np.flatnonzero(~np.isfinite(answers.astype(np.float32)))
    if len(wrong):
        stream = next(one for one in streams if one.log.stream == stream_of(ids[wrong[0]]))
        row, env = (int(each[0]) for each in stream.log.locate(ids[wrong[:1]]))
        raise InputError(
            f"{name} must return finite values, got {answers[wrong[0]]} for row {row} of environment {env} of stream "
            f"{stream.disk.name!r}: rb.get([{ids[wrong[0]]}]) shows it as it was recorded"
        )
    return answers
