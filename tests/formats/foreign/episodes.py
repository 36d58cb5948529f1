"""Layouts in which every episode has a group or a file of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
from formats.foreign.flat import FAMILIES
from formats.foreign.known import Known, Steps, steps
from formats.foreign.plan import File, Layout, Named, Plan, placed

START = 1_700_000_000
"""A time, in seconds, at which episodes begin to be written."""


def npz_episode(known: Sequence[Known], plan: Plan) -> File:
    """One NPZ file an episode, under one of the usual families of names, with its final observation or without."""
    (episode,) = known
    obs, action, reward, terminated, truncated, following = FAMILIES[plan.labels % len(FAMILIES)]
    count, how = len(episode), (episode.terminated, episode.truncated)
    last = np.arange(count) == count - 1
    given = episode.next_obs is not None or (plan.following and plan.variant % 2 == 0)
    final = plan.following and not given
    arrays: Named = {
        **placed(obs, episode.rows(count + final)), action: episode.action, reward: episode.reward, **episode.extra,
    }  # fmt: skip
    if given:
        arrays |= placed(following, episode.following())
    if plan.told == "flags":
        arrays |= {terminated: last & how[0], truncated: last & how[1]}
    elif plan.told == "single flags":
        arrays |= {terminated: np.array(how[0]), truncated: np.array(how[1])}
    elif plan.told == "done":
        arrays["dones"] = last
        how = (True, False)
    else:
        how = (False, True)
    wanted = steps(episode, final=plan.following, terminated=how[0], truncated=how[1])
    return File(
        arrays, [wanted], {name: {name} for name in episode.extra}, spots={"{}": count}, reward=reward, action=action
    )  # fmt: skip


def previous(episode: Known, action: str, keys: Named) -> File:
    """Rows of time steps: the action and the reward that led to the observation; the first ones count for nothing."""
    arrays = {action: np.append(np.zeros_like(episode.action[:1]), episode.action, axis=0), **keys}
    extras = {}
    for name, values in episode.extra.items():
        arrays[name] = np.append(values[:1], values, axis=0)
        extras[name] = [arrays[name][1:], arrays[name][:-1]]
    wanted = steps(episode, final=True, terminated=episode.terminated, truncated=not episode.terminated, extra=extras)
    return File(arrays, [wanted], {name: {name} for name in extras}, action=action)


def drqv2(known: Sequence[Known], plan: Plan) -> File:
    """facebookresearch/drqv2, rll-research/url_benchmark, denisyarats/exorl ``replay_buffer.py``.

    ``ReplayBufferStorage.add`` keeps each time step, that of the reset with it: action 0, reward 0, discount 1.
    ``_sample`` pairs ``observation[t - 1]``, ``action[t]``, ``reward[t]``, ``observation[t]``. Reward and discount are
    float32 ``(L + 1, 1)``.
    """
    (episode,) = known
    discount = np.ones((len(episode) + 1, 1), np.float32)
    discount[-1] = not episode.terminated
    reward = np.append(np.float32(0), episode.reward)[:, None]
    file = previous(
        episode, "action", {**placed("observation", dict(episode.obs)), "reward": reward, "discount": discount}
    )  # fmt: skip
    file.reward = "reward"
    if plan.told == "align":
        file.options["align"] = "previous"
    return file


def drqv2_name(number: int, episode: Known) -> str:
    return f"20240229T{number:06d}_{number}_{len(episode)}"


def exorl_name(number: int, episode: Known) -> str:
    return f"episode_{number:06d}_{len(episode)}"


def dreamer_2(known: Sequence[Known], plan: Plan) -> File:
    """danijar/dreamerv2 ``common/replay.py``, ``common/driver.py``: ``TIME-ID-LENGTH.npz``, LENGTH is rows - 1.

    Each row is an observation with the action that led to it. Before 2021 ``discount`` stood for the three flags.
    """
    (episode,) = known
    rows = np.arange(len(episode) + 1)
    flags: Named = {
        "is_first": rows == 0, "is_last": rows == len(episode),
        "is_terminal": (rows == len(episode)) & episode.terminated,
    }  # fmt: skip
    if plan.told == "discount":
        flags = {"discount": 1 - flags["is_terminal"].astype(np.float32)}
    reward = np.append(np.float32(0), episode.reward)
    file = previous(episode, "action", {**episode.obs, "reward": reward, **flags})
    file.reward, file.may = "reward", ("is_first", "is_last", "discount")
    return file


def dreamer_2_name(number: int, episode: Known) -> str:
    return f"20210131T{number:06d}-{number * 0x9E3779B97F4A7C15 % (1 << 128):032x}-{len(episode)}"


def dreamer_3(known: Sequence[Known], plan: Plan) -> dict[str, File]:
    """danijar/dreamerv3 ``embodied/core/chunk.py``, ``driver.py``: ``TIME-UUID-SUCC-LENGTH.npz``, LENGTH is rows.

    Row t has the action that was taken at its observation, and the reward that came with it; the action of an episode's
    last row is 0. Episodes run on in the chunk that SUCC names; that of the last one was never written.
    """
    parts: dict[str, list[np.ndarray]] = {}
    wanted = []
    for episode in known:
        rows = np.arange(len(episode) + 1)
        zero = np.zeros_like(episode.action[:1])
        more = {name: np.append(values, values[-1:], axis=0) for name, values in episode.extra.items()}
        for name, values in {
            **episode.obs, "action": np.append(episode.action, zero, axis=0),
            "reward": np.append(np.float32(0), episode.reward), "is_first": rows == 0, "is_last": rows == len(episode),
            "is_terminal": (rows == len(episode)) & episode.terminated, **more,
            "stepid": np.random.default_rng(len(wanted)).integers(0, 256, (len(rows), 20), np.uint8),
        }.items():  # fmt: skip
            parts.setdefault(name, []).append(values)
        extra = {name: [each[:-1], each[1:]] for name, each in more.items()}
        extra["stepid"] = [parts["stepid"][-1][:-1], parts["stepid"][-1][1:]]
        wanted.append(
            steps(episode, final=True, terminated=episode.terminated, truncated=not episode.terminated, extra=extra)
        )
    rows = {name: np.concatenate(each) for name, each in parts.items()}
    size, count = 3 + plan.variant % 7, len(rows["reward"])
    files: dict[str, File] = {}
    for number, start in enumerate(range(0, count, size)):
        stop = min(count, start + size)
        name = f"20240229T{number:06d}F000000-{uuid(number)}-{uuid(number + 1)}-{stop - start}"
        arrays = {key: values[start:stop] for key, values in rows.items()}
        extras = {key: {key} for key in (*known[0].extra, "stepid")}
        files[name] = File(
            arrays, wanted if not number else [], extras, may=("is_last",), reward="reward", action="action"
        )
    return files


def uuid(number: int) -> str:
    """A name of 22 letters and digits."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    value = (number * 0x9E3779B97F4A7C15 + 1) % (1 << 128)
    return "".join(digits[value // 62**place % 62] for place in reversed(range(22)))


def aloha(known: Sequence[Known], plan: Plan) -> File:
    """tonyzhaozh/act ``record_sim_episodes.py``, tonyzhaozh/aloha ``record_episodes.py``: ``episode_0.hdf5``.

    As many observations as actions: each was there before the action of its row. There are no rewards, and no flags.
    """
    (episode,) = known
    names = {"qpos": "qpos", "qvel": "qvel", "top": "images/top"}
    count = len(episode)
    arrays: Named = {f"observations/{names[leaf]}": values for leaf, values in episode.rows(count).items()}
    arrays |= {"action": episode.action, **episode.extra, "attrs/sim": bool(plan.variant % 2)}
    renamed = Known(
        {names[leaf]: values for leaf, values in episode.obs.items()}, episode.action, episode.reward,
        extra=episode.extra,
    )  # fmt: skip
    wanted = steps(renamed, final=False, terminated=False, truncated=True, reward=False)
    extras = {name: {name} for name in episode.extra}
    return File(arrays, [wanted], extras, may=(r"(.*\.)?attrs/sim",), spots={"{}": count}, action="action")


def demos(
    known: Sequence[Known], demo: Callable[[Known, str, File], tuple[Named, Steps]], place: str,
    may: Sequence[str] = (), rewards: bool = False, further: str = "",
) -> File:  # fmt: skip
    """A file with a group for each episode; ``further`` is the group of its further arrays."""
    file = File({}, [], may=tuple(may))
    for number, episode in enumerate(known):
        root = place.format(number)
        arrays, wanted = demo(episode, root, file)
        for name, values in episode.extra.items():
            arrays[f"{root}/{further}{name}"] = values
            file.extras.setdefault(name, set()).add(f"{root}/{further}{name}")
        if rewards:
            arrays[f"{root}/rewards"], file.reward = episode.reward, f"{root}/rewards"
        file.arrays |= arrays
        file.spots[f"{root}/{{}}"], file.action = len(episode), f"{root}/actions"
        file.episodes.append(wanted)
    return file


def robomimic(known: Sequence[Known], plan: Plan) -> File:
    """ARISE-Initiative/robomimic: ``data/demo_0`` with obs, actions, and ``dones``, 1 where the task was solved."""

    def demo(episode: Known, place: str, file: File) -> tuple[Named, Steps]:
        count = len(episode)
        arrays = {f"{place}/obs/{leaf or 'flat'}": values for leaf, values in episode.rows(count).items()}
        dones = np.zeros(count, np.int64)
        dones[-1] = episode.terminated
        arrays |= {f"{place}/actions": episode.action, f"{place}/dones": dones, f"{place}.attrs/num_samples": count}
        if plan.following:
            arrays |= {f"{place}/next_obs/{leaf or 'flat'}": each for leaf, each in episode.following().items()}
        if plan.variant % 2:
            arrays[f"{place}.attrs/model_file"] = "<mujoco/>"
            file.facts[len(file.episodes), "model_file"] = (f"{place}.attrs/model_file", "<mujoco/>")
        one, other = episode.terminated, not episode.terminated
        return arrays, steps(episode, final=plan.following, terminated=one, truncated=other, reward=rewards)

    rewards = plan.variant % 3 != 0
    file = demos(known, demo, "data/demo_{}", (r"data\.attrs/.*", r".*\.attrs/num_samples"), rewards)
    file.arrays |= {"data.attrs/total": sum(map(len, known)), "data.attrs/env_args": json.dumps({"env_name": "Lift"})}
    if plan.variant % 2:
        file.arrays["mask/train"] = np.array([b"demo_0"])
        file.unread.add("mask/train")
    return file


def isaac_lab(known: Sequence[Known], plan: Plan) -> File:
    """isaac-sim/IsaacLab ``hdf5_dataset_file_handler.py``, ``recorders.py``: no rewards, no flags.

    Observations and actions are recorded before a step, ``states`` after it, ``initial_state`` after the reset.
    Observations that the policy has as one array are a dataset ``obs``.
    """

    def demo(episode: Known, place: str, file: File) -> tuple[Named, Steps]:
        count, number, success = len(episode), len(file.episodes), bool(plan.variant % 2)
        arrays = placed(f"{place}/obs", episode.rows(count))
        arrays |= {
            f"{place}/actions": episode.action, f"{place}.attrs/num_samples": count,
            f"{place}.attrs/success": np.bool_(success), f"{place}.attrs/seed": np.int64(count),
            f"{place}/initial_state/articulation/robot/root_pose": np.zeros((1, 7), np.float32),
        }  # fmt: skip
        file.unread.add(f"{place}/initial_state/articulation/robot/root_pose")
        file.facts[number, "success"] = (f"{place}.attrs/success", success)
        file.facts[number, "seed"] = (f"{place}.attrs/seed", count)
        return arrays, steps(episode, final=False, terminated=False, truncated=True, reward=False)

    may = (r"data\.attrs/.*", r".*\.attrs/num_samples")
    file = demos(known, demo, "data/demo_{}", may, further="states/")
    env = json.dumps({"env_name": "Isaac-Stack-Cube-Franka-IK-Rel-v0", "type": 2})
    file.arrays |= {"data.attrs/total": sum(map(len, known)), "data.attrs/env_args": env}
    return file


def maniskill(known: Sequence[Known], plan: Plan) -> File:
    """haosulab/ManiSkill ``RecordEpisode.flush_trajectory``: observations and ``env_states`` have one row more."""

    def demo(episode: Known, place: str, file: File) -> tuple[Named, Steps]:
        count = len(episode)
        last = np.arange(count) == count - 1
        states = np.arange(13 * (count + 1), dtype=np.float32).reshape(-1, 13)
        own = {"success": last & episode.terminated, "env_states/actors/cube": states}
        arrays = placed(f"{place}/obs", dict(episode.obs))
        arrays |= {
            f"{place}/actions": episode.action, f"{place}/terminated": last & episode.terminated,
            f"{place}/truncated": last & episode.truncated, **{f"{place}/{name}": own[name] for name in own},
        }  # fmt: skip
        for name in own:
            file.extras.setdefault(name, set()).add(f"{place}/{name}")
        extra = {name: [values[:count]] for name, values in {**own, **episode.extra}.items()}
        one, other = episode.terminated, episode.truncated or not episode.terminated
        return arrays, steps(episode, final=True, terminated=one, truncated=other, extra=extra, reward=rewards)

    rewards = plan.variant % 2 == 0
    return demos(known, demo, "traj_{}", rewards=rewards)


def d3rlpy_2(known: Sequence[Known], plan: Plan) -> File:
    """takuseno/d3rlpy 2.x ``dataset/io.py``: arrays ``observations_0`` and so on, ``(n, 1)`` for single numbers."""
    file = File({}, [], may=("version", "columns", "num_episodes"))
    for number, episode in enumerate(known):
        count = len(episode)
        several = list(episode.obs) != [""]
        for leaf, values in enumerate(episode.rows(count).values()):
            file.arrays[f"observations_{number}_{leaf}" if several else f"observations_{number}"] = values
        action = episode.action[:, None] if episode.action.ndim == 1 else episode.action
        file.arrays |= {
            f"actions_{number}": action, f"rewards_{number}": episode.reward[:, None],
            f"terminated_{number}": episode.terminated,
        }  # fmt: skip
        named = {str(leaf) if several else "": episode.obs[name] for leaf, name in enumerate(episode.obs)}
        renamed = Known(named, action, episode.reward)
        one, other = episode.terminated, not episode.terminated
        file.episodes.append(steps(renamed, final=False, terminated=one, truncated=other))
        file.reward, file.action = f"rewards_{number}", f"actions_{number}"
    file.arrays |= {
        "columns": ["observations", "actions", "rewards", "terminated"], "num_episodes": len(known), "version": "2.1",
    }  # fmt: skip
    return file


IMAGE = (("image",), ("image", "q"))

LAYOUTS = (
    Layout(
        "npz-episodes", npz_episode, ".npz", True, told=("flags", "single flags", "done", "none"), following=True,
        open_end=True,
    ),
    Layout("drqv2", drqv2, ".npz", True, drqv2_name, leaves=(("",),), extras=("skill",)),
    Layout("exorl", drqv2, ".npz", True, exorl_name, leaves=(("",),), extras=("physics",)),
    Layout("previous", drqv2, ".npz", True, leaves=(("",),), told=("align",), extras=("physics",)),
    Layout(
        "dreamer-2", dreamer_2, ".npz", True, dreamer_2_name, leaves=IMAGE, told=("flags", "discount"), extras=("ram",)
    ),
    Layout("dreamer-3", dreamer_3, ".npz", True, leaves=IMAGE, extras=("dyn/deter",)),  # type: ignore[arg-type]
    Layout("aloha", aloha, ".hdf5", True, lambda number, _: f"episode_{number}", leaves=(("qpos", "qvel", "top"),),
           extras=("base_action",)),
    Layout("robomimic", robomimic, following=True, extras=("states", "deep/y")),
    Layout("isaac-lab", isaac_lab, extras=("articulation/robot/joint_position",)),
    Layout("maniskill", maniskill, ".h5", extras=("fail",)),
    Layout("d3rlpy-2", d3rlpy_2, ".h5", extras=()),
)  # fmt: skip
