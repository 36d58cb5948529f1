"""What a row becomes on its way in: a start code, a frame in its place, and patches for what no row can hold.

The frames of these tests are filled with one number, which is what they are called by.
"""

import pathlib
from collections.abc import Callable
from unittest import mock

import gymnasium
import numpy as np
import pytest

import diskreplay as dr
from diskreplay.engine.appender import Appender
from diskreplay.engine.row_buffers import RowBuffers
from diskreplay.index.log import NEXT_PATCH
from diskreplay.schema.columns import CONTINUES, PATCHES, REPEAT, START, ZEROS

SHAPE = (2, 2)
SINGLE = gymnasium.spaces.Box(0, 255, SHAPE, np.uint8)
STACK = gymnasium.spaces.Box(0, 255, (3, *SHAPE), np.uint8)
ACTION = gymnasium.spaces.Discrete(3)


def frames(*names: int) -> np.ndarray:
    """One frame, or a stack of several, oldest first."""
    stack = np.array([np.full(SHAPE, name, np.uint8) for name in names])
    return stack[0] if len(names) == 1 else stack


@pytest.fixture
def make(tmp_path: pathlib.Path) -> Callable[..., dr.ReplayBuffer]:
    def made(space: gymnasium.Space = SINGLE, **options: object) -> dr.ReplayBuffer:
        given = {"capacity": 100, "commit_rows": 1000, "commit_seconds": 1e9, "codec": "none", **options}
        return dr.ReplayBuffer.create(tmp_path / "store", space, ACTION, **given)

    return made


def add(rb: dr.ReplayBuffer, obs: np.ndarray, following: np.ndarray, end: bool = False, **more: object) -> None:
    rb.add(obs, 1, 0.5, following, end, False, **more)


def starts(rb: dr.ReplayBuffer) -> list[int]:
    log = rb.engine.appender.log
    rows = np.arange(log.end)
    return log.take(START, rows, np.zeros_like(rows)).tolist()


def patches(rb: dr.ReplayBuffer) -> list[int]:
    """The names of the observations in the patch table, in order."""
    log = rb.engine.appender.log
    if "obs" in log.patches.arrays:
        return [int(value.flat[0]) for value in log.patches.span("obs", 0, log.patch_end)]
    column = rb.engine.appender.writer.patches["obs"]
    return [int(value.flat[0]) for value in column.read_rows(0, log.patch_end)[:, 0]]


def patch_of(rb: dr.ReplayBuffer, row: int) -> int:
    return int(rb.engine.appender.log.take(NEXT_PATCH, np.array([row]), np.array([0]))[0])


def test_a_row_that_goes_on_stores_no_observation_twice(make: Callable[..., dr.ReplayBuffer]) -> None:
    with make() as rb:
        for row in range(1, 5):
            add(rb, frames(row), frames(row + 1))
        assert (starts(rb), patches(rb)) == ([ZEROS, CONTINUES, CONTINUES, CONTINUES], [])
        assert [patch_of(rb, row) for row in range(4)] == [-1] * 4


def test_a_next_observation_that_no_row_has_is_a_patch(make: Callable[..., dr.ReplayBuffer]) -> None:
    with make() as rb:
        add(rb, frames(1), frames(2), end=True)
        add(rb, frames(7), frames(8))  # after an end
        add(rb, frames(8), frames(9))
        add(rb, frames(20), frames(21))  # in the middle
        assert (starts(rb), patches(rb)) == ([ZEROS, ZEROS, CONTINUES, ZEROS], [2, 9])
        assert [patch_of(rb, row) for row in range(4)] == [0, -1, 1, -1]


def test_an_end_begins_anew_though_the_observation_goes_on(make: Callable[..., dr.ReplayBuffer]) -> None:
    with make() as rb:
        add(rb, frames(1), frames(2), end=True)
        add(rb, frames(2), frames(3))
        rb.cut()
        add(rb, frames(3), frames(4))
        assert starts(rb) == [ZEROS, ZEROS, ZEROS]
        assert patches(rb) == []  # the next rows hold them


def test_flags_go_on_with_another_observation(make: Callable[..., dr.ReplayBuffer]) -> None:
    with make(continuity="flags") as rb:
        add(rb, frames(1), frames(2))
        add(rb, frames(3), frames(4))
        assert (starts(rb), patches(rb)) == ([ZEROS, CONTINUES], [2])


@pytest.mark.parametrize(
    ("first", "code", "kept"),
    [((0, 0, 5), ZEROS, []), ((5, 5, 5), REPEAT, []), ((3, 4, 5), PATCHES, [4, 3]), ((0, 4, 5), PATCHES, [4, 0])],
)
def test_the_older_frames_of_a_first_stack(
    make: Callable[..., dr.ReplayBuffer], first: tuple[int, ...], code: int, kept: list[int]
) -> None:
    with make(STACK, frame_stack=3) as rb:
        add(rb, frames(*first), frames(*first[1:], 6))
        assert (starts(rb), patches(rb)) == ([code], kept)
        batch = rb.get(np.array([0]))
        np.testing.assert_array_equal(batch.obs[0], frames(*first))
        np.testing.assert_array_equal(batch.next_obs[0], frames(*first[1:], 6))


def test_a_next_stack_that_does_not_follow_is_kept_whole(make: Callable[..., dr.ReplayBuffer]) -> None:
    with make(STACK, frame_stack=3) as rb:
        add(rb, frames(0, 0, 1), frames(0, 1, 2))
        assert patches(rb) == []
        add(rb, frames(0, 1, 2), frames(9, 8, 7))
        assert sorted(patches(rb)) == [7, 8, 9]
        add(rb, frames(9, 8, 7), frames(8, 7, 6))  # its frames are no rows, so it begins anew
        assert (starts(rb)[:2], starts(rb)[2]) == ([ZEROS, CONTINUES], PATCHES)
        batch = rb.get(np.arange(3))
        np.testing.assert_array_equal(batch.next_obs[1], frames(9, 8, 7))
        np.testing.assert_array_equal(batch.obs[2], frames(9, 8, 7))


BAD = {
    "obs": (frames(1).astype(np.float64) + 0.5, 1, 0.5, frames(2), False, False),
    "action": (frames(1), 3, 0.5, frames(2), False, False),
    "reward": (frames(1), 1, float("nan"), frames(2), False, False),
    "next_obs": (frames(1), 1, 0.5, frames(2)[:1], False, False),
    "terminated": (frames(1), 1, 0.5, frames(2), 2, False),
    "truncated": (frames(1), 1, 0.5, frames(2), False, "no"),
}


@pytest.mark.parametrize("argument", BAD)
def test_bad_arguments_change_nothing(make: Callable[..., dr.ReplayBuffer], argument: str) -> None:
    with make() as rb:
        add(rb, frames(0), frames(1))
        before = starts(rb), patches(rb), rb.stats()
        with pytest.raises(dr.errors.InputError, match=argument):
            rb.add(*BAD[argument])
        assert before == (starts(rb), patches(rb), rb.stats())
        add(rb, frames(1), frames(2))
        assert starts(rb) == [ZEROS, CONTINUES]


@pytest.mark.parametrize(
    ("owner", "step"),
    [
        (Appender, "_find_break"), (Appender, "_begin"), (RowBuffers, "patch"), (RowBuffers, "write"),
        (Appender, "_keep"),
    ],
)  # fmt: skip
def test_a_row_that_was_begun_and_not_ended_stops_the_writer(
    make: Callable[..., dr.ReplayBuffer], owner: type, step: str, path: str
) -> None:
    rb = make(STACK, frame_stack=3)
    add(rb, frames(0, 0, 1), frames(0, 1, 2))
    rb.commit()
    add(rb, frames(0, 1, 2), frames(1, 2, 3))
    method = getattr(owner, step)

    def fails(self: object, *arguments: object, **named: object) -> None:
        method(self, *arguments, **named)
        raise MemoryError(step)

    with mock.patch.object(owner, step, fails), pytest.raises(MemoryError):
        add(rb, frames(5, 6, 7), frames(6, 7, 8))
    for call in (
        rb.__len__,
        rb.items,
        rb.commit,
        lambda: rb.sample(1),
        lambda: add(rb, frames(6, 7, 8), frames(7, 8, 9)),
    ):
        with pytest.raises(dr.errors.StateError, match=f"must be reopened; the last commit .*MemoryError\\('{step}'"):
            call()
    with pytest.raises(dr.errors.StateError, match="cut short"):
        rb.close()
    with dr.ReplayBuffer.open(rb.path, seed=0) as rb:
        assert len(rb) == 1
        add(rb, frames(0, 1, 2), frames(1, 2, 3))
        assert starts(rb) == [ZEROS, CONTINUES]


def test_the_window_moves_on_with_the_row_that_fills_it(make: Callable[..., dr.ReplayBuffer]) -> None:
    with make(capacity=3) as rb:
        for row in range(1, 8):
            add(rb, frames(row), frames(row + 1))
            assert len(rb) == min(row, 3)
        log = rb.engine.appender.log
        assert (log.begin, log.end) == (4, 7)


def test_a_number_stands_beside_a_stack_that_does_not_follow(tmp_path: pathlib.Path) -> None:
    space = gymnasium.spaces.Dict({"frames": STACK, "level": gymnasium.spaces.Discrete(9)})
    following = {"frames": frames(7, 8, 9), "level": 5}
    with dr.ReplayBuffer.create(
        tmp_path / "store", space, ACTION, capacity=10, frame_stack={"frames": 3, "level": 1}, commit_seconds=1e9
    ) as rb:
        rb.add({"frames": frames(0, 0, 1), "level": 3}, 1, 0.5, following, False, False)
        batch = rb.get(np.array([0]))
        np.testing.assert_array_equal(batch.next_obs["frames"][0], frames(7, 8, 9))
        assert batch.next_obs["level"].tolist() == [5]


def test_steps_that_follow_are_written_together(make: Callable[..., dr.ReplayBuffer]) -> None:
    episodes, length = 4, 5
    names = np.arange(episodes * length)
    ends = names % length == length - 1
    given = [np.array([frames(int(name) + more) for name in names]) for more in (0, 1)]
    with (
        make() as rb,
        mock.patch.object(RowBuffers, "write_run", autospec=True, side_effect=RowBuffers.write_run) as runs,
        mock.patch.object(RowBuffers, "write", autospec=True, side_effect=RowBuffers.write) as rows,
    ):
        rb.extend(given[0], names % 3, names / 2, given[1], ends, np.zeros_like(ends))
        assert starts(rb) == [ZEROS, *[CONTINUES] * (length - 1)] * episodes
        assert (rows.call_count, runs.call_count) == (1, episodes)  # the core adds the first rows of the other runs
