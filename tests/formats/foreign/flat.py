"""Layouts of flat arrays: one entry a step, episodes one behind another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from formats.foreign.known import Known, Steps, steps
from formats.foreign.plan import File, Layout, Named, Plan, joined, placed

FAMILIES = (
    ("obs", "action", "reward", "terminated", "truncated", "next_obs"),
    ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations"),
    ("observations", "actions", "rewards", "terminations", "truncations", "next_observations"),
    ("observation", "action", "reward", "terminated", "truncated", "next_observation"),
)
TIANSHOU = ("obs", "act", "rew", "terminated", "truncated", "obs_next")

BORDERS = ("starts", "start rows", "stops", "last rows", "lengths", "traj_lengths", "step_type", "step_types")
"""Arrays of others that tell where episodes begin or end."""
OPTIONS = ("--last", "--first", "--first rows", "--stops", "--lengths", "--episode", "--step_type")
"""The same in an array of any name, which the caller names."""
TOLD = ("flags", "terminated", "done", "done and truncated", *BORDERS, *OPTIONS, "limit")
UNTOLD = ("nothing", "terminated never", "wrong stops", "wrong lengths")


@dataclasses.dataclass
class Ends:
    """What tells the ends: arrays, how each episode ends by them, options of the import."""

    arrays: Named
    flags: list[tuple[bool, bool]]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def ends_of(known: Sequence[Known], plan: Plan, terminated: str, truncated: str) -> Ends:
    """The arrays that tell the ends of episodes, as ``plan.told`` says."""
    lengths = np.array([len(episode) for episode in known])
    stops, count = np.cumsum(lengths), int(lengths.sum())
    last = np.isin(np.arange(count), stops - 1)
    each = [(episode.terminated, episode.truncated) for episode in known]
    one, other = (np.zeros(count, bool) for _ in range(2))
    one[stops - 1], other[stops - 1] = np.array(each).T
    as_cuts = [(False, True)] * len(known)
    told = plan.told
    if told == "flags":
        return Ends({terminated: one, truncated: other}, each)
    if told == "terminated":
        return Ends({terminated: one}, [(flag, False) for flag, _ in each])
    if told == "done":
        return Ends({("done", "dones")[plan.variant % 2]: last}, [(True, False)] * len(known))
    if told == "done and truncated":
        return Ends({"dones": last, truncated: other & ~one}, [(not flag, flag) for flag in _cuts(each)])
    if told == "limit":
        return Ends({terminated: one}, [(flag, not flag) for flag, _ in each], {"max_episode_steps": plan.steps})
    if told in UNTOLD:
        wrong = {"wrong stops": {"episode_ends": stops + 2}, "wrong lengths": {"episode_lengths": lengths + 1},
                 "terminated never": {terminated: np.zeros(count, bool)}, "nothing": {}}  # fmt: skip
        return Ends(wrong[told], each)
    name, values = border(told, lengths)
    ends = Ends({name: values}, as_cuts, {"ends": f"{told.split()[0][2:]}={name}"} if told in OPTIONS else {})
    if plan.variant % 3 == 0:  # which of them were terminated stands in the usual array
        ends.arrays[terminated] = one
        ends.flags = [(flag, not flag) for flag, _ in each]
    return ends


def _cuts(each: Sequence[tuple[bool, bool]]) -> list[bool]:
    return [cut and not terminal for terminal, cut in each]


def border(told: str, lengths: np.ndarray) -> tuple[str, np.ndarray]:
    """An array of one of :data:`BORDERS` or :data:`OPTIONS`, with its name."""
    stops, count = np.cumsum(lengths), int(lengths.sum())
    begins, rows = stops - lengths, np.arange(count)
    types = np.where(np.isin(rows, stops - 1), 2, np.where(np.isin(rows, begins), 0, 1))
    return {
        "starts": ("episode_starts", np.isin(rows, begins)), "start rows": ("episode_starts", begins),
        "stops": ("episode_ends", stops), "last rows": ("episode_ends", stops - 1),
        "lengths": ("episode_lengths", lengths), "traj_lengths": ("traj_lengths", lengths),
        "step_type": ("step_type", types), "step_types": ("step_types", types.astype(np.int32)),
        "--last": ("border", np.isin(rows, stops - 1)), "--first": ("border", np.isin(rows, begins)),
        "--first rows": ("border", begins), "--stops": ("border", stops), "--lengths": ("border", lengths),
        "--episode": ("border", np.repeat(np.arange(len(lengths)) + 3, lengths)), "--step_type": ("border", types),
    }[told]  # fmt: skip


def flat(known: Sequence[Known], plan: Plan, labels: Sequence[str], further: str = "{}") -> File:
    """Flat arrays under some labels; ``further`` is where others stand."""
    obs, action, reward, terminated, truncated, following = labels
    ends = ends_of(known, plan, terminated, truncated)
    arrays = {
        **placed(obs, _leaves(known, lambda episode: episode.rows(len(episode)))),
        action: joined(known, lambda episode: episode.action), reward: joined(known, lambda episode: episode.reward),
        **ends.arrays,
    }  # fmt: skip
    if plan.following:
        arrays |= placed(following, _leaves(known, Known.following))
    extras: dict[str, set[str]] = {}
    for name in known[0].extra:
        arrays[further.format(name)] = joined(known, lambda episode, name=name: episode.extra[name])
        extras[name] = {further.format(name)}
    transitions = [
        steps(episode, final=plan.following, terminated=one, truncated=other)
        for episode, (one, other) in zip(known, ends.flags, strict=True)
    ]
    return File(
        arrays, transitions, extras, options=ends.options, spots={further: len(arrays[action])}, reward=reward,
        action=action,
    )  # fmt: skip


def _leaves(known: Sequence[Known], part: Any) -> dict[str, np.ndarray]:
    return {leaf: joined(known, lambda episode, leaf=leaf: part(episode)[leaf]) for leaf in known[0].obs}


def npz(known: Sequence[Known], plan: Plan) -> File:
    """One NPZ file under one of the usual families of names."""
    return flat(known, plan, FAMILIES[plan.labels % len(FAMILIES)])


def d4rl(known: Sequence[Known], plan: Plan) -> File:
    """Farama-Foundation/D4RL: ``terminals`` and ``timeouts`` of the row after which an episode ended."""
    return flat(known, plan, FAMILIES[1], "infos/{}")


def tianshou_labels(known: Sequence[Known], plan: Plan) -> File:
    """Tianshou's ``ReplayBuffer.from_data``: arrays obs, act, rew, terminated, truncated, done, obs_next."""
    file = flat(known, plan, TIANSHOU)
    if plan.told == "flags":
        file.arrays["done"] = file.arrays["terminated"] | file.arrays["truncated"]
        file.may = ("done",)
    return file


def tianshou(known: Sequence[Known], plan: Plan) -> File:
    """Tianshou's ``ReplayBuffer.save_hdf5``: ``to_hdf5(self.__dict__)``, all arrays with ``maxsize`` rows.

    Rows behind ``_size`` are zeros; a ring that wrapped begins at ``_insertion_idx`` (``_index`` before 2.0).
    """
    file = tianshou_labels(known, plan)
    count = len(file.arrays["rew"])
    wraps, more = plan.variant % 3 == 0, plan.variant % 5
    turn = (plan.variant * 7) % count if wraps else 0
    size = count if wraps else count + more

    def ring(values: np.ndarray) -> np.ndarray:
        empty = np.zeros((size - count, *values.shape[1:]), values.dtype)
        return np.roll(np.append(values, empty, axis=0), turn, axis=0)

    place = {name: f"_meta/info/{name}" for name in known[0].extra}
    arrays: Named = {f"_meta/{place.get(name, name).removeprefix('_meta/')}": ring(values)
                     for name, values in file.arrays.items()}  # fmt: skip
    file.extras = {name: {full} for name, full in place.items()}
    head = turn if wraps else count % size
    arrays |= {f"{name}.attrs/__data_type__": "ndarray" for name in list(arrays)}
    arrays |= {
        "_meta.attrs/__data_type__": "Batch", "attrs/maxsize": size, "attrs/_size": count, "attrs/stack_num": 1,
        f"attrs/{('_insertion_idx', '_index')[plan.labels % 2]}": head, "attrs/_save_obs_next": plan.following,
        "attrs/_ep_return": 0.0, "attrs/_ep_len": 0, "attrs/_ep_start_idx": 0, "options.attrs/stack_num": 1,
        "_indices": np.arange(size), "last_index": np.array([(head - 1) % size]),
        "_random_state": np.frombuffer(b"a pickle", np.int8), "_random_state.attrs/__data_type__": "RandomState",
    }  # fmt: skip
    if not place:
        arrays["_meta/info"] = None
    file.arrays = arrays
    file.may = (r".*attrs/.*", "_indices", "last_index", "_random_state", "_meta/done")
    file.spots, file.reward, file.action = {"_meta/info/{}": size}, "_meta/rew", "_meta/act"
    return file


def stable_baselines(known: Sequence[Known], plan: Plan) -> File:
    """hill-a/stable-baselines ``generate_expert_traj``: the ends of episodes are told by ``episode_starts`` alone."""
    count = sum(map(len, known))
    begins = np.cumsum([0, *map(len, known)])[:-1]
    arrays = {
        "actions": joined(known, lambda episode: episode.action),
        "rewards": joined(known, lambda episode: episode.reward),
        "obs": joined(known, lambda episode: episode.obs[""][:-1]),
        "episode_returns": np.array([float(episode.reward.sum()) for episode in known]),
        "episode_starts": np.isin(np.arange(count), begins),
    }  # fmt: skip
    wanted = [steps(episode, final=False, terminated=False, truncated=True, extra={}) for episode in known]
    return File(arrays, wanted, unread={"episode_returns"}, spots={"{}": count}, reward="rewards", action="actions")


def d3rlpy_casts(known: Known) -> Known:
    """d3rlpy 1.x keeps float32, bytes of images, and int32."""
    obs = known.obs[""]
    obs = obs if obs.ndim == 4 and obs.dtype == np.uint8 else obs.astype(np.float32)
    action = known.action.reshape(-1).astype(np.int32) if known.action.dtype.kind in "iu" else known.action
    return dataclasses.replace(
        known, obs={"": obs}, action=action if action.dtype.kind == "i" else action.astype(np.float32),
        reward=known.reward.astype(np.float32),
    )  # fmt: skip


def d3rlpy_1(known: Sequence[Known], plan: Plan) -> File:
    """takuseno/d3rlpy 1.1.1 ``MDPDataset.dump``: ``terminals`` and ``episode_terminals`` are float32."""
    count = sum(map(len, known))
    stops = np.cumsum([len(episode) for episode in known])
    last = np.isin(np.arange(count), stops - 1)
    terminals = last.copy()
    terminals[stops - 1] = [episode.terminated for episode in known]
    arrays: Named = {
        "observations": joined(known, lambda episode: episode.obs[""][:-1]),
        "actions": joined(known, lambda episode: episode.action),
        "rewards": joined(known, lambda episode: episode.reward),
        "terminals": terminals.astype(np.float32), "episode_terminals": last.astype(np.float32),
        "discrete_action": known[0].action.dtype.kind in "iu", "version": "1.0",
    }  # fmt: skip
    if plan.told == "no version":
        del arrays["version"]
        arrays |= {"create_mask": False, "mask_size": 1}
    wanted = [
        steps(episode, final=False, terminated=episode.terminated, truncated=not episode.terminated, extra={})
        for episode in known
    ]
    may = ("version", "discrete_action")
    return File(arrays, wanted, may=may, spots={"{}": count}, reward="rewards", action="actions")


def diffusion_policy(known: Sequence[Known], plan: Plan) -> File:
    """real-stanford/diffusion_policy ``ReplayBuffer``: ``meta/episode_ends`` is one past each episode's last step."""
    flags = plan.told == "flags"
    stops = np.cumsum([len(episode) for episode in known])
    count = int(stops[-1])
    arrays: Named = {
        f"data/{leaf or 'obs'}": joined(known, lambda episode: episode.obs[leaf][:-1])  # noqa: B023
        for leaf in known[0].obs
    }
    arrays |= {"data/action": joined(known, lambda episode: episode.action), "meta/episode_ends": stops}
    if plan.variant % 2:
        arrays["data/reward"] = joined(known, lambda episode: episode.reward)
    if plan.told == "wrong stops":
        arrays["meta/episode_ends"] = stops + 2
    if flags:
        for name in ("terminated", "truncated"):
            arrays[f"data/{name}"] = np.zeros(count, bool)
            arrays[f"data/{name}"][stops - 1] = [getattr(episode, name) for episode in known]
    wanted: list[Steps] = []
    for episode in known:
        one, other = (episode.terminated, episode.truncated) if flags else (False, True)
        wanted.append(steps(episode, final=False, terminated=one, truncated=other, reward=bool(plan.variant % 2)))
    for name in known[0].extra:
        arrays[f"data/{name}"] = joined(known, lambda episode, name=name: episode.extra[name])
    return File(
        arrays, wanted, {name: {f"data/{name}"} for name in known[0].extra}, may=(r".*attrs/.*",),
        spots={"data/{}": count}, reward="data/reward" if plan.variant % 2 else "", action="data/action",
    )  # fmt: skip


def parquet(known: Sequence[Known], plan: Plan) -> File:
    """Parquet with LeRobot's columns; the rows of episodes stand in their order, unless the plan says otherwise.

    Episodes are numbered through all files, or in each.
    """
    count = sum(map(len, known))
    number, row = plan.before if plan.variant % 2 else (0, 0)
    arrays: Named = {
        **placed("observation", _leaves(known, lambda episode: episode.rows(len(episode)))),
        "action": joined(known, lambda episode: episode.action),
        "next.reward": joined(known, lambda episode: episode.reward),
        "episode_index": number + np.repeat(np.arange(len(known)), [len(episode) for episode in known]),
        "frame_index": np.concatenate([np.arange(len(episode)) for episode in known]), "index": row + np.arange(count),
    }  # fmt: skip
    arrays = {name.replace("/", "."): values for name, values in arrays.items()}
    stops = np.cumsum([len(episode) for episode in known])
    for name in ("terminated", "truncated"):
        arrays[f"next.{name}"] = np.zeros(count, bool)
        arrays[f"next.{name}"][stops - 1] = [getattr(episode, name) for episode in known]
    for name in known[0].extra:
        arrays[name.replace("/", ".")] = joined(known, lambda episode, name=name: episode.extra[name])
    if plan.told == "shuffled":
        order = np.roll(np.arange(count), 1) if plan.variant % 2 else np.arange(count)[::-1]
        arrays = {name: values[order] for name, values in arrays.items()}
    wanted = [
        steps(episode, final=False, terminated=episode.terminated, truncated=episode.truncated) for episode in known
    ]
    extras = {name: {name.replace("/", ".")} for name in known[0].extra}
    return File(arrays, wanted, extras, may=("index",), reward="next.reward", action="action")


LAYOUTS = (
    Layout(
        "d4rl", d4rl, told=("flags", "flags", "terminated", "limit"), untold=("terminated never",), following=True,
        open_end=True,
    ),
    Layout("npz", npz, ".npz", told=TOLD, untold=UNTOLD, following=True, open_end=True),
    Layout("tianshou-npz", tianshou_labels, ".npz", told=TOLD, untold=UNTOLD, following=True, open_end=True),
    Layout("tianshou-hdf5", tianshou_labels, told=("flags",), following=True, open_end=True),
    Layout("tianshou", tianshou, folder=False, following=True, open_end=True),
    Layout("stable-baselines", stable_baselines, ".npz", leaves=(("",),), extras=(), least=2),
    Layout(
        "d3rlpy-1", d3rlpy_1, ".h5", leaves=(("",),), untold=("no version",), actions="fi", extras=(),
        known=d3rlpy_casts,
    ),
    Layout("diffusion-policy", diffusion_policy, ".zarr", False, told=("flags", "stops"), untold=("wrong stops",)),
    Layout("diffusion-policy-zip", diffusion_policy, ".zarr.zip", told=("flags", "stops"), untold=("wrong stops",)),
    Layout("parquet", parquet, ".parquet", untold=("shuffled",), observations="fd", extras=("x", "z")),
)  # fmt: skip
