"""Values of a ragged column that begin with the value before them are stored as their rest, beside plain lists."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay as dr
from diskreplay.ops import combine
from diskreplay.ops.verify import verify

TALK = spaces.Sequence(spaces.Box(0, 9999, (), np.int32), stack=True)
CHOICE = spaces.Discrete(3)
SMALL: dict[str, Any] = {"chunk_rows": {"obs": 4, "said": 4}, "shard_rows": {"obs": 16, "said": 16}}
COLUMNS: dict[str, Any] = {"said": ((None,), np.int32)}


def create(path: Any, **options: Any) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.create(path, TALK, CHOICE, **{"capacity": 50, "columns": COLUMNS, **SMALL, **options})


def items(rb: dr.ReplayBuffer, name: str = "obs") -> int:
    return int(rb.engine.streams.writer.items[name].end)


def talk(length: int, first: int = 1) -> Any:
    return np.arange(first, first + length, dtype=np.int32)


def add(rb: dr.ReplayBuffer, obs: Any, next_obs: Any, ends: bool = False, said: Any = ()) -> None:
    rb.add(obs, 0, 0.0, next_obs, ends, False, said=np.array(said, np.int32))


def shown(rb: dr.ReplayBuffer) -> list[tuple[list[int], list[int], list[int]]]:
    batch = rb.get(rb.items())
    columns = (batch.obs, batch.next_obs, batch.extra["said"])
    return list(zip(*[[row.tolist() for row in column.lists()] for column in columns], strict=True))


def test_a_conversation_that_grows_is_stored_once(path: str) -> None:
    with create(path) as rb:
        for turn in range(10):
            add(rb, talk(3 * turn), talk(3 * turn + 3), said=talk(turn))
        assert (items(rb), items(rb, "said")) == (30, 9)
        rb.commit()
        add(rb, talk(30), talk(33), said=talk(10))  # over a commit too
        assert (items(rb), items(rb, "said")) == (33, 10)
        assert shown(rb) == [
            (talk(3 * turn).tolist(), talk(3 * turn + 3).tolist(), talk(turn).tolist()) for turn in range(11)
        ]
        assert len(rb.episodes) == 1
    assert verify(path).ok


@pytest.mark.long("test_values_that_grow_beside_plain_lists")
def test_many_steps_share_as_single_ones_do(path: str) -> None:
    values = [talk(turn) for turn in range(601)]  # over the slices of `extend`
    zeros, no = np.zeros(600, int), np.zeros(600, bool)
    with create(path, capacity=1_000) as rb:
        rb.extend(values[:-1], zeros, zeros * 0.0, values[1:], no, no, said=values[:-1])
        assert (items(rb), items(rb, "said")) == (600, 599)
        add(rb, values[-1], talk(602), said=values[-1])
        assert (items(rb), items(rb, "said")) == (602, 600)
        assert [len(obs) for obs, _, _ in shown(rb)] == list(range(601))


def test_only_the_newest_value_of_all_grows(path: str) -> None:
    with create(path, num_envs=2, chunk_rows=None, shard_rows=None) as rb:
        step: Any = [[0, 0], [0.0, 0.0]]
        rb.add([talk(4), talk(4, 50)], *step, [talk(4), talk(4, 50)], [False] * 2, [False] * 2, said=[[], []])
        rb.add([talk(4), talk(4, 50)], *step, [talk(4), talk(6, 50)], [False] * 2, [False] * 2, said=[[], []])
        assert items(rb) == 10, "the second environment's ends the array"
        rb.add([talk(5), talk(7, 50)], *step, [talk(5), talk(7, 50)], [False] * 2, [False] * 2, said=[[], []])
        assert items(rb) == 22, "then the first one's stands behind it, and nothing is shared"
        batch = rb.get(rb.items())
        lists = [row.tolist() for row in batch.obs.lists()]
        assert lists == [talk(n, first).tolist() for n, first in ((4, 1), (4, 50), (4, 1), (4, 50), (5, 1), (7, 50))]


def test_a_value_that_is_not_its_beginning(path: str) -> None:
    with create(path) as rb:
        add(rb, talk(5), talk(4))  # shorter: nothing is shared
        assert items(rb) == 9
        add(rb, talk(4), [*talk(3), 77, 78])  # another item in the middle
        assert items(rb) == 14
        add(rb, [], talk(3))  # an empty one takes no items, and every value begins with it
        assert items(rb) == 17
        assert [row[0] for row in shown(rb)] == [talk(5).tolist(), talk(4).tolist(), []]


def test_bits_are_compared_and_not_numbers(path: str) -> None:
    space = spaces.Sequence(spaces.Box(-np.inf, np.inf, (), np.float32), stack=True)
    nan = np.float32(np.nan)
    with dr.ReplayBuffer.create(path, space, CHOICE, capacity=9) as rb:
        rb.add([nan, 0.0], 0, 0.0, [nan, 0.0, 1.0], False, False)
        assert items(rb) == 3
        rb.add([nan, 0.0, 1.0], 0, 0.0, [nan, -0.0, 1.0, 2.0], False, False)
        assert items(rb) == 7
        batch = rb.get(rb.items())
        assert batch.next_obs.values.view(np.int32)[1, 1] == np.float32(-0.0).view(np.int32)


def test_a_value_that_grows_pins_only_itself(path: str) -> None:
    with create(path, capacity=20) as rb:
        for _ in range(60):
            for turn in range(4):
                add(rb, talk(turn * 5), talk(turn * 5 + 5), ends=turn == 3)
            rb.commit()
        begin, end, _ = rb.engine.streams.writer.commit_record.of("ragged/obs")
        assert (end, end - begin) == (60 * 20, 20 // 4 * 20)
        assert len(list(pathlib.Path(path).glob("streams/0/ragged/obs/c.*"))) <= (end - begin) // 16 + 2
        assert [len(obs) for obs, _, _ in shown(rb)] == [0, 5, 10, 15] * 5
    assert verify(path).ok


def test_a_value_grows_on_after_reopening(path: str) -> None:
    with create(path) as rb:
        add(rb, talk(4), talk(6))
    with dr.ReplayBuffer.open(path) as rb:
        add(rb, talk(6), talk(9))
        assert items(rb) == 9
        rb.checkpoint("nine")
        add(rb, talk(9), talk(12), ends=True)
        assert items(rb) == 12
    with dr.ReplayBuffer.open(path, checkpoint="nine") as rb:
        assert items(rb) == 9
        add(rb, talk(9), talk(20))
        assert (items(rb), [len(obs) for obs, _, _ in shown(rb)], len(rb.episodes)) == (20, [4, 6, 9], 1)
    assert verify(path).ok


def test_copies_share_again(path: str, tmp_path: pathlib.Path) -> None:
    with create(path) as rb:
        for turn in range(12):
            add(rb, talk(turn % 4), talk(turn % 4 + 1), ends=turn % 4 == 3, said=talk(turn % 4))
        want, ends = shown(rb), items(rb)
    combine.merge(tmp_path / "again", [path])
    with dr.ReplayBuffer.open(tmp_path / "again") as rb:
        assert shown(rb) == want
        assert items(rb) == ends == 12
    assert verify(tmp_path / "again").ok


MOVES = ["grow", "grow", "grow", "same", "new", "less", "commit", "reopen", "keep", "back"]


@dataclasses.dataclass
class Story:
    """Values as a list of lists: what the buffer holds, and at which checkpoint."""

    rows: list[tuple[list[int], list[int], list[int]]]
    kept: int = 0


@pytest.mark.long
@settings(max_examples=examples(100), deadline=None)
@given(
    moves=st.lists(st.sampled_from(MOVES)),
    many=st.booleans(), capacity=st.sampled_from([3, 7, 500]), seed=st.integers(0, 99),
)  # fmt: skip
def test_values_that_grow_beside_plain_lists(
    tmp_path_factory: pytest.TempPathFactory, moves: list[str], many: bool, capacity: int, seed: int
) -> None:
    path, rng = tmp_path_factory.mktemp("growing") / "a.replay", np.random.default_rng(seed)
    story, now, said = Story([]), [1, 2], [0]
    rb = create(path, capacity=capacity)
    for move in moves:
        if move == "commit":
            rb.commit()
        elif move == "reopen":
            rb.close()
            rb = dr.ReplayBuffer.open(path)
        elif move == "keep" and not story.kept and story.rows:
            rb.checkpoint("kept")
            story.kept = len(story.rows)
        elif move == "back" and story.kept:
            rb.close()
            rb = dr.ReplayBuffer.open(path, checkpoint="kept")
            del story.rows[story.kept :]
            now = story.rows[-1][1]
        elif move in ("grow", "same", "new", "less"):
            rest = rng.integers(0, 9, int(rng.integers(1, 9))).tolist()
            after = {"grow": now + rest, "same": now, "new": rest, "less": now[: len(now) // 2]}[move]
            said = said + rest if move == "grow" else rest
            if many:
                no = np.zeros(1, bool)
                rb.extend(
                    [np.array(now, np.int32)], [0], [0.0], [np.array(after, np.int32)], no, no,
                    said=[np.array(said, np.int32)],
                )  # fmt: skip
            else:
                add(rb, np.array(now, np.int32), np.array(after, np.int32), said=said)
            story.rows.append((now, after, said))
            now = after
    assert shown(rb) == story.rows[-capacity:]
    rb.close()
    assert verify(path).ok
