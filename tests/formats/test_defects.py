"""Files as labs publish them, whose meaning was once guessed: each comes in with the right values, or is refused.

What else tests the kinds of faults:

===============  ===================================================================================================
kind             tests
===============  ===================================================================================================
alignment        here; test_foreign (every layout), test_property
ends             here; test_foreign (every way to tell them), test_parquet (rows out of order)
files' names     here; test_order, test_parquet (natural order)
not read         here; test_names (Minari, RLDS, Dopamine, stores), test_parquet
without flags    here; test_robomimic
texts            test_texts: tasks of LeRobot, strings in Parquet and the others, several candidates
filters          test_refusals
refusals         test_refusals; test_names (a folder above a dataset), test_rewards (rewards that are not finite)
next obs         test_imported_episodes, test_continuity: episodes do not fall apart where they differ
integers         test_refusals; test_episodes (``test_the_widest_space``)
===============  ===================================================================================================
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from formats.foreign.ramps import (
    ACT,
    BEGINS,
    ENDS,
    FLAT,
    NOT_LAST,
    OBS,
    REW,
    STOPS,
    ZARR,
    N,
    T,
    demos,
    refused,
    same,
    taken,
    written,
)  # fmt: skip

# Alignment


def exorl(folder: pathlib.Path, name: str, count: int = 10, **changes: Any) -> pathlib.Path:
    """An episode of ExORL: entry 0 is of the reset."""
    arrays = {
        "observation": OBS[:count], "action": ACT[:count], "reward": REW[:count, None],
        "discount": np.ones((count, 1), np.float32), "physics": OBS[:count],
    }  # fmt: skip
    written(folder, name, arrays | changes)
    return folder


TERMINAL = np.append(np.ones(9), 0)[:, None].astype(np.float32)


@pytest.mark.parametrize(
    ("name", "changes", "flags"),
    [
        ("episode_000000_9.npz", {}, {"truncated": [8]}),
        ("20240101T120000_0_9.npz", {"discount": TERMINAL}, {"terminated": [8]}),
        ("episode_000000_9.npz", {"reward": np.append(np.nan, REW[1:10]).astype("f4")}, {"truncated": [8]}),
        ("episode_000000_9.npz", {"action": T[:10]}, {"truncated": [8]}),
    ],
    ids=["truncated", "terminated", "no reward of the reset", "integers"],
)
def test_entries_that_led_to_their_observation(name: str, changes: Any, flags: Any, tmp_path: pathlib.Path) -> None:
    folder = exorl(tmp_path / "a", name, **changes)
    same(taken(folder)[1], range(9), led=1, **flags)
    same(taken(folder / name)[1], range(9), led=1, **flags)  # one file alone


def test_episodes_of_several_lengths_in_their_order(tmp_path: pathlib.Path) -> None:
    folder = exorl(tmp_path / "a", "episode_10_4.npz", 5)
    exorl(folder, "episode_2_9.npz")
    same(taken(folder)[1], [*range(9), *range(4)], led=1, truncated=[8, 3])


@pytest.mark.parametrize("name", ["episode_000000_10.npz", "good.npz"])
def test_names_that_count_no_steps(name: str, tmp_path: pathlib.Path) -> None:
    folder = exorl(tmp_path / "a", name)
    refused(folder, "--align next", "--align previous")
    same(taken(folder, align="previous")[1], range(9), led=1, truncated=[8])
    same(taken(folder, align="next")[1], range(9), truncated=[8])
    refused(folder, "must end in its number of steps, 9", format="exorl")


def test_one_name_among_many_that_counts_none(tmp_path: pathlib.Path) -> None:
    folder = exorl(exorl(tmp_path / "a", "episode_0_9.npz"), "episode_1_10.npz")
    refused(folder, "episode_1_10.npz: its name must end in its number of steps, 9")


@pytest.mark.parametrize("name", ["a.npz", "a.hdf5"])
def test_flat_files_are_aligned_as_the_caller_says(name: str, tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "a", name, FLAT | {"terminals": ENDS})
    same(taken(path, align="previous")[1], NOT_LAST, led=1, terminated=[8, 18])
    path = written(tmp_path / "b", name, FLAT | {"terminals": ENDS})
    same(taken(path, align="next")[1], range(N), terminated=[9, 19])


# Ends

TYPES = np.where(ENDS, 2, 1)
TELLS = {
    "starts": {"episode_starts": BEGINS}, "starts as numbers": {"episode_starts": BEGINS.astype(np.float32)},
    "first rows": {"episode_starts": [0, 10]}, "stops": {"episode_ends": STOPS}, "last rows": {"episode_ends": [9, 19]},
    "flags of ends": {"episode_ends": ENDS}, "stops from 0": {"episode_ends": [0, 10, 20]},
    "types": {"step_types": TYPES}, "types of all": {"step_type": np.where(BEGINS, 0, TYPES)},
    "lengths": {"traj_lengths": [10, 10]}, "an empty one": {"episode_lengths": [10, 0, 10]},
    "lengths (2, 1)": {"episode_lengths": [[10], [10]]},
    "two that agree": {"episode_ends": STOPS, "episode_lengths": [10, 10]},
}  # fmt: skip


@pytest.mark.parametrize("name", ["a.npz", "a.hdf5"])
@pytest.mark.parametrize("told", TELLS.values(), ids=TELLS)
def test_what_tells_ends(told: dict[str, Any], name: str, tmp_path: pathlib.Path) -> None:
    said, batch = taken(written(tmp_path / "a", name, FLAT | {key: np.asarray(told[key]) for key in told}))
    same(batch, NOT_LAST, truncated=[8, 18])
    assert (said.episodes, said.dropped, said.ignored) == (2, 2, ())


def test_the_last_episode_may_go_on(tmp_path: pathlib.Path) -> None:
    arrays = FLAT | {"step_type": np.where(BEGINS, 0, 1)}
    same(taken(written(tmp_path / "a", "a.npz", arrays))[1], NOT_LAST, truncated=[8])


WRONG = {
    "nothing": ({}, "--ends KIND=NAME"), "too many rows": ({"episode_lengths": [10, 11]}, "21 rows in all, for 20"),
    "too few rows": ({"episode_ends": [10, 15]}, "ends at 15, and there are 20 steps"),
    "no first row": ({"episode_starts": [1, 10]}, "first rows must go from 0"),
    "backwards": ({"episode_ends": [20, 10]}, "must grow"), "odd types": ({"step_type": T % 4}, "must be 0, 1 or 2"),
    "texts": ({"episode_starts": ["a"] * N}, "must be whole numbers"),
    "never terminated": ({"terminals": np.zeros(N, bool)}, "'terminals' is never set"),
    "contradiction": ({"episode_ends": STOPS, "episode_lengths": [5, 15]}, "episode_lengths, episode_ends tell"),
    "another first": ({"episode_ends": STOPS, "episode_starts": [0, 7, 10]}, "tell different ends of episodes"),
}  # fmt: skip


@pytest.mark.parametrize(("told", "said"), WRONG.values(), ids=WRONG)
def test_ends_that_cannot_be(told: dict[str, Any], said: str, tmp_path: pathlib.Path) -> None:
    refused(written(tmp_path / "a", "a.npz", FLAT | {name: np.asarray(told[name]) for name in told}), said)


KINDS = [("last", ENDS), ("last", [9, 19]), ("first", BEGINS), ("first", [0, 10]), ("stops", STOPS),
         ("lengths", [10, 10]), ("episode", T // 10 + 5), ("step_type", TYPES)]  # fmt: skip


@pytest.mark.parametrize(("kind", "values"), KINDS)
@pytest.mark.parametrize("name", ["a.npz", "a.hdf5", "a.zarr"])
def test_ends_that_the_caller_names(kind: str, values: Any, name: str, tmp_path: pathlib.Path) -> None:
    """It displaces what the layout would take, which is wrong here."""
    wrong = "meta/episode_ends" if name == "a.zarr" else "episode_ends"
    arrays = (ZARR if name == "a.zarr" else FLAT) | {wrong: STOPS // 2, "border": np.asarray(values)}
    said, batch = taken(written(tmp_path / "a", name, arrays), ends=f"{kind}=border")
    same(batch, NOT_LAST, truncated=[8, 18])
    assert said.ignored == (wrong,)


@pytest.mark.parametrize(("name", "arrays"), [("a.npz", FLAT), ("a.hdf5", FLAT), ("a.zarr.zip", ZARR)])
def test_a_file_that_the_caller_calls_one_episode(name: str, arrays: Any, tmp_path: pathlib.Path) -> None:
    format = "diffusion-policy" if arrays is ZARR else None
    same(taken(written(tmp_path / "a", name, arrays), ends="whole", format=format)[1], range(19), truncated=[18])


LIMITS = {
    "after a terminal": ({"terminals": T == 7}, {4, 12, 17, 19}, {"terminated": [7], "truncated": [3, 11, 16]}),
    "never terminated": ({"terminals": np.zeros(N, bool)}, {4, 9, 14, 19}, {"truncated": [3, 8, 13, 18]}),
    "no flags": ({}, {4, 9, 14, 19}, {"truncated": [3, 8, 13, 18]}),
    "timeouts say it": (
        {"terminals": T == 7, "timeouts": T == 12}, {12, 19}, {"terminated": [7], "truncated": [11]},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("told", "left", "flags"), LIMITS.values(), ids=LIMITS)
def test_time_limits(told: Any, left: set[int], flags: Any, tmp_path: pathlib.Path) -> None:
    """Rows that a limit cut have no next observation; steps are counted from the step after each end."""
    for number, name in enumerate(("a.npz", "a.hdf5")):
        said, batch = taken(written(tmp_path / str(number), name, FLAT | told), max_episode_steps=5)
        same(batch, sorted({*range(N)} - left), **flags)
        assert ("timeouts" in told) == any("no time limit was needed" in note for note in said.notes)


# Names of files, and what is not read


def test_files_of_a_folder(tmp_path: pathlib.Path) -> None:
    """All of them, in the order of their numbers, whatever else is in their names."""
    order = ["2_3.txt.npz", "ep0.npz", "ep1_success.npz", "ep2.npz", "ep2_a.npz", "ep10_failure.npz", "final.npz"]
    for name in reversed(order):
        arrays = {"obs": OBS[:6], "actions": ACT[:5], "rewards": np.full(5, order.index(name)), "dones": T[:5] == 4}
        written(tmp_path / "a", name, arrays)
    (tmp_path / "a/notes.txt").write_text("x")
    said, batch = taken(tmp_path / "a")
    assert batch.reward[::5].tolist() == [*range(len(order))]
    assert (said.episodes, said.ignored) == (len(order), ("notes.txt",))
    written(tmp_path / "a", "statistics.npz", {"mean": OBS[0]})
    refused(tmp_path / "a", "statistics.npz: the array 'obs' is missing")


@pytest.mark.parametrize(
    ("each", "second", "count", "columns", "ignored"),
    [
        ({}, {}, 18, [], ()),
        ({"states/robot/joints": OBS[:10], "initial_state/robot": OBS[:1]}, {}, 18, ["states.robot.joints"],
         ("data/demo_*/initial_state/robot (2)",)),
        ({"dones": ENDS[:10]}, {"states": OBS[:10]}, 20, [], ("data/demo_*/states (1)",)),
        ({"rewards": REW[:10]}, {"actions.attrs/unit": "m"}, 18, [], ("data/demo_*/actions.attrs/unit (1)",)),
        ({"obs/q": OBS[:11]}, {".attrs/success": True}, 20, [], ("data/demo_*.attrs/success (1)",)),
    ],
    ids=["bare", "states", "later states", "later attribute", "final observations"],
)  # fmt: skip
def test_demonstrations(
    each: Any, second: Any, count: int, columns: list[str], ignored: Any, tmp_path: pathlib.Path
) -> None:
    """Without flags they end truncated, which is said; what only a later one has is named."""
    said, batch = taken(demos(tmp_path / "a", each, second))
    assert (said.transitions, said.episodes, said.ignored) == (count, 2, ignored)
    assert [*batch.extra] == columns
    done = "dones" in each
    assert batch.obs["q"][batch.terminated if done else batch.truncated, 0].tolist() == [count // 2 - 1] * 2
    assert done != any("each ends truncated" in note for note in said.notes)


def test_a_leaf_that_only_a_later_demonstration_has(tmp_path: pathlib.Path) -> None:
    path = demos(tmp_path / "a", {}, {"obs/late": OBS[:10]})
    refused(path, "demo_1: obs/late is not in the description of its steps")
    assert taken(path, columns=["obs/q"])[0].ignored == ("data/demo_*/obs/late (1)",)


@pytest.mark.parametrize("name", ["a.npz", "a.hdf5"])
@pytest.mark.parametrize(
    ("more", "columns", "ignored"),
    [
        ({"infos": T}, ["infos"], ()), ({"info": T, "seed": np.int64(3)}, ["info_info"], ("seed",)),
        ({"infos/speed": T, "mean": OBS[0]}, ["speed"], ("mean",)), ({"junk": T[:5]}, [], ("junk",)),
    ],
    ids=["array", "another name", "group", "other length"],
)  # fmt: skip
def test_further_arrays(name: str, more: Any, columns: list[str], ignored: Any, tmp_path: pathlib.Path) -> None:
    said, batch = taken(written(tmp_path / "a", name, FLAT | {"terminals": ENDS} | more))
    assert ([*batch.extra], said.ignored) == (columns, ignored)
    for column in columns:
        assert batch.extra[column].tolist() == T.tolist()


def test_a_group_below_data(tmp_path: pathlib.Path) -> None:
    arrays = ZARR | {"data/obs/q": OBS, "meta/episode_ends": STOPS}
    said, batch = taken(written(tmp_path / "a", "a.zarr", arrays))
    same(batch, NOT_LAST, truncated=[8, 18])
    assert said.ignored == ("data/obs/q",)


ODD = {
    "pickled": np.array([{}] * N, object), "compound": np.zeros(N, [("x", "f4"), ("y", "f4")]),
    "texts": np.array(["a"] * N), "over-long": T[:5], "single": np.float32(1),
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_columns_that_are_left_out_keep_nothing_out(odd: Any, tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "a", "a.npz", FLAT | {"terminals": ENDS, "infos": odd})
    refused(path, "infos")
    refused(path, "infos", columns=["obs", "infos"])
    said, batch = taken(path, columns=["obs"])
    same(batch, range(N), terminated=[9, 19])
    assert said.ignored == ("infos",)
