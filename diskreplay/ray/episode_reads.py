"""The steps of the episodes of RLlib's buffer, read from its store and laid out as RLlib's buffer gives them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tree
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.spaces.space_utils import unbatch

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import Array
from diskreplay.ray.columns import column_names, next_name, read_columns
from diskreplay.ray.episode_writes import Chunk
from diskreplay.ray.episodes import Held
from diskreplay.schema import spaces
from diskreplay.schema.columns import REWARD, TERMINATED, TRUNCATED
from diskreplay.schema.ids import Ids


def steps(store: ReplayBuffer, held: Held, start: int, stop: int) -> Chunk:
    """Return steps ``[start, stop)`` of an episode."""
    schema = store.schema
    ids = np.array(held.ids(start, stop), np.int64)
    leaves = [column.name for column in schema.obs_columns]
    wanted = [name for name in column_names(schema) if name not in map(next_name, leaves)]
    values = read_columns(store, ids, wanted)
    last = read_columns(store, ids[-1:], [next_name(name) for name in leaves])
    obs = [np.concatenate([values[name], last[next_name(name)]]) for name in leaves]
    return Chunk(
        held.id, start, spaces.unflatten(schema.obs_tree, obs),
        spaces.unflatten(schema.action_tree, [values[column.name] for column in schema.action_columns]),
        values[REWARD], bool(values[TERMINATED][-1]), bool(values[TRUNCATED][-1]),
    )  # fmt: skip


def whole(store: ReplayBuffer, held: Held) -> SingleAgentEpisode:
    """Return all of an episode."""
    found = steps(store, held, 0, len(held))
    return SingleAgentEpisode(
        id_=held.id, observation_space=store.schema.observation_space, action_space=store.schema.action_space,
        observations=unbatch(found.obs), actions=unbatch(found.action),
        rewards=found.reward.tolist(), infos=[{}] * (len(found) + 1), terminated=found.terminated,
        truncated=found.truncated, t_started=0, len_lookback_buffer=0,
    )  # fmt: skip


def transitions(
    store: ReplayBuffer, drawn: Sequence[tuple[Held, int, int, float]], lengths: Sequence[int], gamma: float
) -> list[SingleAgentEpisode]:
    """Return episodes of one transition each, of as many steps as ``lengths`` say.

    ``drawn`` are the episode, the first step, its id and the weight of each.
    """
    ids = [held.ids(t, t + n) for (held, t, _, _), n in zip(drawn, lengths, strict=True)]
    first, last = np.array([each[0] for each in ids]), np.array([each[-1] for each in ids])
    *values, ends = _ends(store, first, last)
    obs, following, action = map(unbatch, values)
    rewards = read_columns(store, np.concatenate(ids).astype(np.int64), [REWARD])[REWARD]
    starts = np.cumsum([0, *lengths[:-1]])
    powers = gamma ** np.arange(max(lengths), dtype=np.float64)
    total = np.add.reduceat(rewards * np.concatenate([powers[:n] for n in lengths]), starts)
    space, actions = store.schema.observation_space, store.schema.action_space
    found = []
    for at, ((held, t, _, weight), n) in enumerate(zip(drawn, lengths, strict=True)):
        found.append(SingleAgentEpisode(
            id_=held.id, observation_space=space, action_space=actions,
            observations=[obs[at], following[at]], actions=[action[at]],
            rewards=[float(total[at])], infos=[{}, {}],
            terminated=bool(ends[TERMINATED][at]), truncated=bool(ends[TRUNCATED][at]),
            extra_model_outputs={"weights": [weight], "n_step": [n]}, t_started=t, len_lookback_buffer=0,
        ))  # fmt: skip
    return found


def _ends(store: ReplayBuffer, first: Ids, last: Ids) -> tuple[Any, Any, Any, dict[str, Array]]:
    schema = store.schema
    leaves = [column.name for column in schema.obs_columns]
    now, then = (
        [*leaves, *(c.name for c in schema.action_columns)],
        [*map(next_name, leaves), TERMINATED, TRUNCATED],
    )
    if (first == last).all():
        a = b = read_columns(store, first, [*now, *then])
    else:
        a, b = read_columns(store, first, now), read_columns(store, last, then)
    obs = spaces.unflatten(schema.obs_tree, [a[name] for name in leaves])
    following = spaces.unflatten(schema.obs_tree, [b[next_name(name)] for name in leaves])
    action = spaces.unflatten(schema.action_tree, [a[column.name] for column in schema.action_columns])
    return obs, following, action, {name: b[name] for name in (TERMINATED, TRUNCATED)}


def rows(store: ReplayBuffer, wanted: Sequence[Sequence[tuple[Held, int, int]]]) -> dict[str, Any]:
    """Return rows of observations and what belongs to them, by RLlib's names; a row has parts of episodes.

    A part is an episode, its first step, and how many observations of it are wanted.
    """
    parts = {(held.number, t, count): _part(store, held, t, count) for row in wanted for held, t, count in row}
    found = [[parts[held.number, t, count] for held, t, count in row] for row in wanted]
    groups = list(itertools.pairwise(itertools.accumulate(map(len, found), initial=0)))
    return {
        name: tree.map_structure(
            lambda *leaves: np.stack([np.concatenate(leaves[a:b]) for a, b in groups]),
            *[part[name] for row in found for part in row],
        )
        for name in found[0][0]
    }


def _part(store: ReplayBuffer, held: Held, t: int, count: int) -> dict[str, Any]:
    whole = steps(store, held, max(0, t - 1), min(len(held), t + count))
    back = min(t, 1)
    ends = t + count == len(held) + 1
    reward = np.concatenate([whole.reward[:back] if back else [0.0], whole.reward[back:]])[:count]
    action = tree.map_structure(lambda a: np.concatenate([a[back:], a[-1:]])[:count], whole.action)
    mark = np.zeros(count, bool)
    last, first = mark.copy(), mark.copy()
    first[0] = last[-1] = True
    return {
        "obs": tree.map_structure(lambda a: a[back:][:count], whole.obs),
        "actions": action,
        "rewards": reward,
        "is_first": first,
        "is_last": last,
        "is_terminated": last & (ends and whole.terminated),
        "is_truncated": last & (ends and whole.truncated and not whole.terminated),
    }
