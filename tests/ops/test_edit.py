"""Stores without some of their steps, beside plain lists; what is refused, and what a kill leaves."""

from __future__ import annotations

import doctest
import pathlib
import signal
import tempfile
from typing import Any

import numpy as np
import pytest
from formats.roundtrip import CASES, Case, given_stacks, read, store
from gymnasium import spaces
from helpers.effort import examples
from helpers.programs import run
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.played import listed, play, recorded, without

import diskreplay as dr
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.formats.core import gaps
from diskreplay.ops import edit as edit_module
from diskreplay.ops import relabel as relabel_module
from diskreplay.ops.edit import edit
from diskreplay.ops.verify import verify

BOUNDS = st.none() | st.integers(-8, 8)
RANGES = st.lists(st.builds(slice, BOUNDS, BOUNDS), max_size=3)


def names(folder: str | pathlib.Path) -> list[str]:
    return sorted(entry.name for entry in pathlib.Path(folder).iterdir())


@given(
    seed=st.integers(0, 999), streams=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    frames=st.sampled_from([1, 3]), episodes=st.none() | st.builds(slice, BOUNDS, BOUNDS), ranges=RANGES,
    share=st.none() | st.floats(0, 1),
)  # fmt: skip
@settings(max_examples=examples(40), deadline=None)
def test_an_edited_store_is_what_lists_say(
    seed: int, streams: list[int], frames: int, episodes: slice | None, ranges: list[slice], share: float | None
) -> None:
    """By ranges of steps of some episodes, or by ids if ``share`` says how many."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        path, out = f"{folder}/a", f"{folder}/b"
        every = play(path, rng, streams, int(rng.integers(1, 25)), frame_stack=frames)
        options: dict[str, Any] = {"episodes": episodes, "steps": ranges} if ranges else {"drop_episodes": episodes}
        chosen = every[slice(None) if episodes is None else episodes]
        gone = {s.id for one in chosen for part in ranges or [slice(None)] for s in one.steps[part]}
        if share is not None:
            gone = {step.id for one in every for step in one.steps if rng.random() < share}
            options = {"ids": list(gone)}
        elif not (ranges or episodes is not None):
            options = {"drop": "length > 0"}
        total = sum(len(one.steps) for one in every)
        if len(gone) in (0, total):
            with pytest.raises(NotEnoughDataError):
                edit(path, out, **options)
            assert names(folder) == ["a"]
            return
        order = sorted(every, key=lambda one: (one.stream, one.env, one.start))
        parts = [part for one in order for part in without(one, gone)]
        foreseen = edit(path, out, dry_run=True, **options)
        assert names(folder) == ["a"]
        found = edit(path, out, **options)
        assert (foreseen.removed, foreseen.divided, foreseen.episodes) == (found.removed, found.divided, found.episodes)
        assert recorded(out, frames) == [listed(part, frames) for part in parts]
        assert (found.transitions, found.episodes) == (total - len(gone), len(parts))
        assert sum(counts["steps"] for counts in found.removed.values()) == len(gone)
        assert found.divided == sum(len(without(one, gone)) > 1 for one in every)
        assert verify(out).ok


def test_the_examples_run() -> None:
    for module in (edit_module, relabel_module, gaps):
        outcome = doctest.testmod(module, raise_on_error=True)
        assert outcome.attempted > 0
        assert outcome.failed == 0


def test_what_went_is_counted_by_its_place(path: str, tmp_path: pathlib.Path) -> None:
    store(lengths=[(6, (True, False)), (3, (True, False)), (9, (False, True))])(path)
    found = edit(path, tmp_path / "b", steps=[slice(0, 2), slice(4, 6), slice(-1, None)])
    assert found.removed == {
        "begin": {"steps": 4, "episodes": 2}, "middle": {"steps": 2, "episodes": 1}, "end": {"steps": 3, "episodes": 2},
        "whole": {"steps": 3, "episodes": 1},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "stay"),
    [
        ({"drop": "length > 4"}, [1, 1, 4, 3]),
        ({"keep": "length > 4"}, [5, 7, 6]),
        ({"drop_episodes": slice(0, 3)}, [1, 4, 3, 6]),
        ({"drop_episodes": (2, 6)}, [5, 1, 1, 4, 3]),
        ({"drop": "length == 7", "drop_episodes": slice(-1, None)}, [5, 1, 1, 4, 3]),
        ({"keep": "length > 3", "drop": "length > 5"}, [5, 4]),
        ({"keep": "length > 3", "steps": [slice(0, 3)], "where": "length < 6"}, [2, 7, 1, 6]),
        ({"drop": "length == 1", "steps": [slice(-1, None)], "episodes": slice(0, 3)}, [4, 6, 4, 3, 6]),
    ],
)  # fmt: skip
def test_whole_episodes_go_or_stay(path: str, tmp_path: pathlib.Path, options: dict[str, Any], stay: list[int]) -> None:
    """What ``--keep`` keeps is what ``export --where`` keeps; what ``--drop`` drops is the rest."""
    store()(path)  # of lengths 5, 1, 7, 1, 4, 3, 6
    edit(path, tmp_path / "b", **options)
    assert [len(one) for one in read(tmp_path / "b")] == stay


@pytest.mark.long(quick=4)
@pytest.mark.parametrize("case", [case for case in CASES if "one" not in case.name and not case.empty], ids=repr)
def test_every_kind_of_store_is_cut_and_stays_sound(case: Case, path: str, tmp_path: pathlib.Path) -> None:
    case.make(path)
    before = read(path)
    found = edit(path, tmp_path / "b", steps=[slice(1, 2)], allow_loss=True)
    after = read(tmp_path / "b")
    assert found.transitions == sum(map(len, after)) == sum(len(one) - (len(one) > 1) for one in before)
    wanted = [part for one in before for part in (slice(0, 1), slice(2, None)) if len(one.reward[part])]
    assert len(after) == len(wanted)
    rewards = [one.reward[part] for one in before for part in (slice(0, 1), slice(2, None)) if len(one.reward[part])]
    for one, reward in zip(after, rewards, strict=True):
        np.testing.assert_array_equal(one.reward, reward)
    assert verify(tmp_path / "b").ok


@pytest.mark.parametrize("padding", ["zero", "odd"])
def test_stacks_that_were_given_stay_as_they_were(padding: str, path: str, tmp_path: pathlib.Path) -> None:
    given_stacks(0, padding)(path)
    edit(path, tmp_path / "b", steps=[slice(2, 3)])
    before = np.concatenate(
        [np.delete(one.obs["obs"], 2, axis=0) if len(one) > 2 else one.obs["obs"] for one in read(path)]
    )
    np.testing.assert_array_equal(np.concatenate([one.obs["obs"] for one in read(tmp_path / "b")]), before)


def test_no_view_spans_a_gap(path: str, tmp_path: pathlib.Path) -> None:
    line, turn = spaces.Box(0, 99, (), np.float32), spaces.Discrete(2)
    with dr.ReplayBuffer.create(path, line, turn, capacity=20) as buffer:
        for step in range(10):
            buffer.add(step, 0, 1.0, step + 1, step == 9, False)
    edit(path, tmp_path / "b", steps=[slice(4, 6)])
    with dr.ReplayBuffer.open(tmp_path / "b", mode="r", view=dr.Sequence(3)) as cut:
        batch = cut.get(cut.items())
        seen = {tuple(obs[mask].tolist()) for obs, mask in zip(batch.obs, batch.mask, strict=True)}
        assert {one for one in seen if len(one) == 3} == {(0, 1, 2), (1, 2, 3), (6, 7, 8), (7, 8, 9)}
    with dr.ReplayBuffer.open(tmp_path / "b", mode="r", view=dr.Transition(n_step=3, gamma=0.5)) as cut:
        batch = cut.get(cut.items())
        assert batch.next_obs.tolist() == [3, 4, 4, 4, 9, 10, 10, 10]
        assert batch.discount.tolist() == [0.125, 0.125, 0.25, 0.5, 0.125, 0, 0, 0]


def test_a_new_column_for_rewards_and_nothing_taken(path: str, tmp_path: pathlib.Path) -> None:
    store()(path)
    found = edit(path, tmp_path / "b", later={"shaped": np.float32})
    assert (found.removed, found.transitions) == ({}, 27)
    with dr.ReplayBuffer.open(tmp_path / "b") as buffer:
        buffer.write("shaped", [0], [2.0])
        assert buffer.get([0]).extra["shaped"] == 2


def test_a_store_is_edited_beside_its_writer(path: str, tmp_path: pathlib.Path) -> None:
    store()(path)
    with dr.ReplayBuffer.open(path) as writer:
        obs = writer.get([0]).obs[0]
        writer.add(obs, np.zeros(2, np.float32), 0.0, obs, True, False)  # waits for a commit
        assert edit(path, tmp_path / "b", steps=[slice(1)]).transitions == 20


def test_what_cannot_be_edited_is_said_and_leaves_nothing(path: str, tmp_path: pathlib.Path) -> None:
    store()(path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_text("")
    some, out = [slice(0, 1)], tmp_path / "b"
    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (path, {"steps": some}, InputError, "not edited in its place.*checkpoints restore"),
        (f"{path}/b", {"steps": some}, InputError, "must lie apart"),
        (tmp_path / "there", {"steps": some}, InputError, "exists; choose another name"),
        (tmp_path / "no" / "b", {"steps": some}, InputError, "no directory"),
        ("s3://bucket/b", {"steps": some}, InputError, "a path on this machine"),
        (out, {}, InputError, "say what is to go: episodes by drop, keep or drop_episodes"),
        (out, {"where": "length > 3"}, InputError, r"need steps .*drop \(--drop .*keep \(--keep "),
        (out, {"episodes": slice(0, 2)}, InputError, r"need steps .*drop_episodes \(--drop-episodes "),
        (out, {"where": "length > 3", "drop": "length > 3"}, InputError, "need steps"),
        (out, {"drop": "length > 3", "ids": [1]}, InputError, "take ids alone"),
        (out, {"keep": "length > 3", "ids": [1]}, InputError, "take ids alone"),
        (out, {"steps": some, "ids": [1]}, InputError, "take ids alone"),
        (out, {"steps": [slice(0, 9, 2)]}, InputError, "must be a list of slices"),
        (out, {"steps": slice(0, 9)}, InputError, "must be a list of slices"),
        (out, {"steps": [3]}, InputError, "must be a list of slices"),
        (out, {"ids": [3, 99, 1 << 50]}, InputError, "2 of 3 ids name no step.*the first is 99"),
        (out, {"ids": [0.5]}, InputError, "index must be integers"),
        (out, {"episodes": (7,), "steps": some}, InputError, "no episode 7; there are 7"),
        (out, {"drop_episodes": (7,)}, InputError, "no episode 7; there are 7"),
        (out, {"drop_episodes": slice(7, 9)}, NotEnoughDataError, "none of .*7 episodes, .* of length 7"),
        (out, {"where": "length >", "steps": some}, InputError, "at character 9 invalid syntax"),
        (out, {"keep": "length >"}, InputError, "at character 9 invalid syntax"),
        (out, {"drop": "length > 0"}, NotEnoughDataError, "all of the 27 steps .* would go: choose some, and not all"),
        (out, {"keep": "length > 0"}, NotEnoughDataError, "none of the 27 steps .* would go"),
        (out, {"keep": "length > 9"}, NotEnoughDataError, "all of the 27 steps .* would go"),
        (out, {"later": {"x/y": "float32"}}, InputError, "x/y"),
    ]  # fmt: skip
    for target, options, error, said in cases:
        with pytest.raises(error, match=said):
            edit(path, target, **options)
    assert names(tmp_path) == ["a.replay", "there"]
    assert edit(path, out, later={"x": "float32"}).episodes == 7
    with pytest.raises(InputError, match="'x' already"):
        edit(out, tmp_path / "c", later={"x": "float32"})


def test_stacks_that_lost_their_begin_need_leave(path: str, tmp_path: pathlib.Path) -> None:
    next(case for case in CASES if case.name == "window that moved on").make(path)
    with pytest.raises(InputError, match="--allow-loss"):
        edit(path, tmp_path / "b", steps=[slice(1)])
    assert edit(path, tmp_path / "b", steps=[slice(1)], allow_loss=True).removed["begin"]["episodes"] == 3


KILLED = """
import os, signal, sys
from diskreplay.ops import edit
inner = edit.copy_later

def die(*arguments):
    inner(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

edit.copy_later = die
edit.edit(sys.argv[1], sys.argv[2], steps=[slice(0, 1)])
"""


@pytest.mark.long
def test_a_killed_edit_leaves_what_the_next_one_removes(path: str, tmp_path: pathlib.Path) -> None:
    play(path, np.random.default_rng(0), [2], 20)
    out = tmp_path / "b"
    assert run(KILLED, path, out).returncode == -signal.SIGKILL
    assert not out.exists()
    assert len(names(tmp_path)) == 2
    edit(path, out, steps=[slice(0, 1)])
    assert names(tmp_path) == ["a.replay", "b"]
    assert verify(out).ok
