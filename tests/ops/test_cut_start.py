"""Episodes whose first steps had left the window: what they are in copies, and in copies of these."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from format.specreader import Store
from gymnasium import spaces
from helpers import line
from helpers.commands import command
from helpers.line import create

import diskreplay as dr
from diskreplay import formats
from diskreplay.errors import NotEnoughDataError
from diskreplay.ops.combine import merge, split
from diskreplay.ops.convert import export, import_dataset
from diskreplay.ops.edit import edit
from diskreplay.ops.inspect import inspect
from diskreplay.ops.verify import verify
from diskreplay.schema.columns import CUT_START, START

Lines = list[tuple[float, int, bool, dict[str, Any]]]


def play(buffer: dr.ReplayBuffer, first: int, count: int, length: int = 4, **facts: Any) -> None:
    """So many episodes, whose steps have the episode's number as reward."""
    for number in range(first, first + count):
        line.play(buffer, length, 10 * number, reward=number, **facts)


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    """Episodes 1 to 3; of the first the last three steps."""
    path = tmp_path / "a.replay"
    with create(path, 11) as buffer:
        play(buffer, 0, 4, prompt=7)
    return path


def lines(path: Any) -> Lines:
    """Of each episode its reward, length, whether its first step is there, and its facts."""
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        return [(e.total_reward / e.length, e.length, e.complete_start, e.facts) for e in buffer.episodes]


CUT: Lines = [(1.0, 3, False, {"prompt": 7}), (2.0, 4, True, {"prompt": 7}), (3.0, 4, True, {"prompt": 7})]

COPIES: dict[str, Callable[[pathlib.Path, pathlib.Path], object]] = {
    "merge": lambda path, out: merge(out, [path]),
    "edit": lambda path, out: edit(path, out, later={"value": ((), np.float32)}),
    "export": lambda path, out: export(path, out, "store"),
    "import": lambda path, out: import_dataset(path, out),
}


@pytest.mark.parametrize("chain", [*itertools.product(COPIES), ("merge", "export", "edit", "import", "merge")])
def test_it_stays_cut(store: pathlib.Path, chain: tuple[str, ...]) -> None:
    assert lines(store) == CUT
    path = store
    for number, name in enumerate(chain):
        out = store.with_name(f"{number}.replay")
        COPIES[name](path, out)
        path = out
        assert lines(path) == CUT
    assert verify(path).ok
    assert inspect(path).episodes.facts == {"prompt": 3}
    with dr.ReplayBuffer.open(path) as buffer:
        buffer.annotate_episode(buffer.episodes[0], note="x")
        buffer.commit()
        assert len(buffer.select("prompt == 7")) == 3
    assert lines(path) == [(1.0, 3, False, {"prompt": 7, "note": "x"}), *CUT[1:]]


def test_each_part_of_a_split_has_its_own(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    outs = [tmp_path / "x", tmp_path / "y"]
    split(store, [0.5], outs)
    assert sorted(line[:3] for out in outs for line in lines(out)) == [line[:3] for line in CUT]


def test_several_environments_and_streams(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a"
    with create(path, 20, num_envs=2) as buffer:
        for step in range(23):
            obs, last = np.full((2, 1), step, np.float32), np.array([step % 4 == 3, step % 7 == 6])
            buffer.add(obs, [0, 0], [1.0, 1.0], obs + 1, last, [False, False])
        with dr.ReplayBuffer.open(path, stream="b", num_envs=1, capacity=5) as other:
            play(other, 0, 2)
        buffer.refresh()
        wanted = [e.complete_start for e in sorted(buffer.episodes, key=lambda e: (e.stream, e.env, e.start))]
    assert wanted.count(False) == 3
    merge(tmp_path / "b", [path])
    merge(tmp_path / "c", [tmp_path / "b", path])
    assert [line[2] for line in lines(tmp_path / "b")] == wanted
    assert [line[2] for line in lines(tmp_path / "c")] == wanted * 2


def test_parts_of_one_that_is_edited(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Whichever of its steps go, the first ones stay missing; those of a whole one were taken away on purpose."""
    edit(store, tmp_path / "b", steps=[slice(1, 2)])
    of_whole = [(1, True), (2, True)]
    assert [line[1:3] for line in lines(tmp_path / "b")] == [(1, False), (1, False), *of_whole, *of_whole]
    edit(store, tmp_path / "c", steps=[slice(0, 1)])
    assert [line[1:3] for line in lines(tmp_path / "c")] == [(2, False), (3, True), (3, True)]


def test_it_is_no_item_where_whole_episodes_are(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    merge(tmp_path / "b", [store])
    for path in (store, tmp_path / "b"):
        with dr.ReplayBuffer.open(path, mode="r", view=dr.PaddedEpisodes(9)) as buffer:
            assert sorted(buffer.get(buffer.items()).reward[:, 0].tolist()) == [2.0, 3.0]
        groups = dr.Groups(by="prompt", group_size=3)
        with (
            dr.ReplayBuffer.open(path, mode="r", sampler=groups) as buffer,
            pytest.raises(NotEnoughDataError, match="0 groups"),
        ):
            buffer.sample(1)


def test_padded_episodes_with_priorities_leave_it_out(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    merge(tmp_path / "b", [store])
    options = {"view": dr.PaddedEpisodes(9), "sampler": dr.Proportional(), "seed": 0}
    with dr.ReplayBuffer.open(tmp_path / "b", **options) as buffer:
        seen = {float(reward) for _ in range(20) for reward in buffer.sample(2).reward[:, 0]}
        assert seen == {2.0, 3.0}


def codes(path: pathlib.Path) -> list[int]:
    """The start codes of the episodes' first steps."""
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        log = buffer.engine.streams.all[0].log
        return [int(log.take(START, *np.array([[e.start], [e.env]]))[0]) for e in buffer.episodes]


@pytest.mark.parametrize(("padding", "code"), [("zero", 1), ("reset", 2)])
def test_a_start_code_says_it_of_single_frames(tmp_path: pathlib.Path, padding: Any, code: int) -> None:
    with create(tmp_path / "a", 11, frame_stack=3, stack_padding=padding) as buffer:
        play(buffer, 0, 4)
    merge(tmp_path / "b", [tmp_path / "a"], allow_loss=True)
    merge(tmp_path / "c", [tmp_path / "b"], allow_loss=True)
    assert codes(tmp_path / "b") == codes(tmp_path / "c") == [code + CUT_START, code, code]
    check_samples(tmp_path / "c")


@pytest.mark.parametrize(("older", "code"), [((0.0, 0.0), 1), ((2.0, 2.0), 2), ((7.0, 8.0), 3)])
def test_a_start_code_says_it_of_stacks(tmp_path: pathlib.Path, older: tuple[float, float], code: int) -> None:
    """The first step that is left has older frames that are zeros, its own frame again, or others."""
    box = spaces.Box(-99, 99, (3,), np.float32)
    with dr.ReplayBuffer.create(
        tmp_path / "a", box, spaces.Discrete(2), capacity=3, frame_stack=3, stack_axis=0
    ) as buffer:
        buffer.add([9.0, *older], 0, 1.0, [*older, 2.0], False, False)
        buffer.add([*older, 2.0], 0, 1.0, [older[1], 2.0, 3.0], False, False)
        buffer.add([older[1], 2.0, 3.0], 0, 1.0, [2.0, 3.0, 4.0], True, False)
        buffer.add([5.0, 5.0, 5.0], 0, 1.0, [5.0, 5.0, 6.0], True, False)
    merge(tmp_path / "b", [tmp_path / "a"])
    assert codes(tmp_path / "b") == [code + CUT_START, 2]
    check_samples(tmp_path / "b")
    with dr.ReplayBuffer.open(tmp_path / "b", mode="r") as buffer:
        assert buffer.get([0, 1, 2]).obs.tolist() == [[*older, 2.0], [older[1], 2.0, 3.0], [5.0, 5.0, 5.0]]
        assert buffer.sample(3).obs.shape == (3, 3)


def check_samples(path: pathlib.Path) -> None:
    """As an independent reader of the format has them, too."""
    assert verify(path).ok
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        ids = buffer.items()
        (stream,) = Store(path).streams.values()
        batch = buffer.get(ids)
        assert ids.tolist() == stream.ids()
        for at, number in enumerate(ids.tolist()):
            one = stream.transition(number)
            np.testing.assert_array_equal(batch.obs[at], one["obs"]["obs"])
            np.testing.assert_array_equal(batch.next_obs[at], one["next_obs"]["obs"])


def test_the_flag_is_of_one_row(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a", 11) as buffer:
        buffer.engine.cut(np.ones(1, bool), first_missing=True)
        buffer.cut()
        line.play(buffer, 2)
        buffer.engine.cut(np.ones(1, bool), first_missing=True)
        line.play(buffer, 2)
        line.play(buffer, 2)
    assert codes(tmp_path / "a") == [1, 5, 1]


def test_a_fact_may_have_any_name(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a", 11) as buffer:
        play(buffer, 0, 1, cut_start=True, discarded=False)
    merge(tmp_path / "b", [tmp_path / "a", store])
    assert lines(tmp_path / "b") == [(0.0, 4, True, {"cut_start": True, "discarded": False}), *CUT]


def test_one_that_fills_its_facts_is_copied(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a", 3) as buffer:
        play(buffer, 0, 1, text="x" * (4096 - len('{"text":""}')))
    merge(tmp_path / "b", [tmp_path / "a"])
    merge(tmp_path / "c", [tmp_path / "b"])
    assert lines(tmp_path / "c") == lines(tmp_path / "a")
    assert not lines(tmp_path / "c")[0][2]


HOLDING = [one.name for one in formats.every() if one.holds.facts and one.write and one.read and one.name != "store"]


@pytest.mark.long(quick=3)
@pytest.mark.parametrize("name", HOLDING)
def test_formats_with_facts_bring_it_back(store: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    out = tmp_path / ("group/a-v0" if "minari" in name else "a")
    assert export(store, out, name, allow_loss=True).cut_starts == 1
    import_dataset(out, tmp_path / "back", name)
    assert [line[2] for line in lines(tmp_path / "back")] == [False, True, True]
    assert all(line[3] == {"prompt": 7} for line in lines(tmp_path / "back"))


def test_an_import_that_appends_brings_it_in(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "b", 99) as buffer:
        play(buffer, 9, 1)
    import_dataset(store, tmp_path / "b", append=True)
    assert [line[2] for line in lines(tmp_path / "b")] == [True, False, True, True]


def test_other_formats_say_it_in_a_line(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    def said(*words: Any) -> str:
        result = command(*words)
        assert result.exit_code == 0, result.output
        return result.output

    line = "not kept: that the first steps of 1 episode had left the window"
    assert line in said("export", store, tmp_path / "a.npz", "--format", "npz", "--allow-loss")
    assert line not in said("export", store, tmp_path / "b", "--format", "store")
    with create(tmp_path / "whole", 99) as buffer:
        play(buffer, 0, 2)
    assert "first steps" not in said("export", tmp_path / "whole", tmp_path / "c.npz", "--format", "npz")
    assert '"cut_starts": 1' in said("export", store, tmp_path / "d.npz", "--format", "npz", "--allow-loss", "--json")


def test_it_is_no_loss(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a", 3) as buffer:
        line.play(buffer, 4)
    result = export(tmp_path / "a", tmp_path / "b", "npz")
    assert (result.lost, result.cut_starts) == ({}, 1)
