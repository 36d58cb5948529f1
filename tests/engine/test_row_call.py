"""A row that goes on is added by the core or by Python, and nobody can tell by which."""

from __future__ import annotations

import collections
import contextlib
import itertools
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import pytest
from helpers.configs import CONFIGS, Config
from helpers.damage import files_below
from helpers.forking import forked
from helpers.line import rows_in
from helpers.model import KINDS, arguments
from helpers.recording import Recording, reopen
from helpers.testing import small_thresholds

import diskreplay as dr
from diskreplay.engine import commits
from diskreplay.errors import InputError
from diskreplay.native import core
from diskreplay.schema.columns import CONTINUES, START, ZEROS

BOX = gymnasium.spaces.Box(-9, 9, (3,), np.float32)
ACTION = gymnasium.spaces.Discrete(4)
SINGLE = [config for config in CONFIGS if "stack" not in config.name]


class Noted(core.Row):
    """A call that adds rows of the core's own way, or never, and notes for each row whether it did."""

    answers: list[bool]
    ever = True

    def add(self, *given: Any) -> int:
        done = super().add(*given) if self.ever else 0
        if done > 0 or len(given) > 8:  # Python asks for it with the locks held
            self.answers.append(done > 0)
        return done

    def put(self, values: list[Any]) -> int:
        done = super().put(values) if self.ever else 0
        if done:
            self.answers[-1] = True
        return done


@contextlib.contextmanager
def compiled(*, ever: bool = True) -> Iterator[list[bool]]:
    """Rows are added by the core wherever it can, or never; whether it did add each row that it was asked for."""
    answers: list[bool] = []
    with mock.patch.object(core, "Row", type("Noted", (Noted,), {"answers": answers, "ever": ever})):
        yield answers


def in_ram(rb: dr.ReplayBuffer) -> dict[str, Any]:
    """What a stream's log holds, its pending observation too, and which rows its columns have."""
    appender = rb.engine.appender
    log, frames = appender.log, {column.name for column in appender.schema.obs_columns}
    found: dict[str, Any] = {
        name: log.span(name, log.floor, log.end + (name in frames)).tobytes() for name in log.table.arrays
    }
    found |= {
        f"patches of {name}": log.patches.span(name, log.patch_begin, log.patch_end).tobytes()
        for name in log.patches.arrays
    }
    found |= {f"end of {name}": column.end for name, column in appender.writer.rows.items()}
    return found | {"window": (log.begin, log.end), "older": dict(log.older_patches), "invalid": log.invalid}


@pytest.mark.long(quick=6)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
@pytest.mark.parametrize("special", [0.02, 0.3])
@pytest.mark.parametrize("small", [False, True], ids=["", "small thresholds"])
def test_both_ways_write_the_same(tmp_path: pathlib.Path, config: Config, special: float, small: bool) -> None:
    recording = Recording(config, seed=1)
    rows = []
    for _ in range(60):
        kinds = [kind if recording.rng.random() < special else "step" for kind in recording.rng.choice(KINDS[3:], 5)]
        row = recording.actor.row(kinds, next_step=bool(recording.rng.random() < 0.5))
        recording.log.rows.append(row)
        rows.append(arguments(config.obs, row))
    found = []
    for ever in (True, False):
        path, numbers = tmp_path / str(ever), itertools.count()
        with (
            small_thresholds() if small else contextlib.nullcontext(),
            mock.patch("secrets.token_hex", lambda size=8, numbers=numbers: f"{next(numbers):0{2 * size}x}"),
            mock.patch("time.time", return_value=1e9),
            mock.patch.object(commits, "COMMIT_BYTES", 1 << 30),  # when that many wait depends on threads
            compiled(ever=ever) as answers,
        ):
            buffer = config.create(str(path))
            states = []
            for at, row in enumerate(rows):
                buffer.add(**row)
                states.append(in_ram(buffer))
                if at == 40:
                    buffer.close()
                    states.append(files_below(path))
                    buffer = reopen(config, str(path))
            recording.check(buffer)
            buffer.close()
            found.append([*states, files_below(path)])
        assert any(answers) == (ever and all(stack.axis is None for stack in buffer.engine.schema.stacks))
    assert found[0] == found[1]


def created(folder: pathlib.Path) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.create(folder / "a", BOX, ACTION, capacity=99, commit_seconds=1e9)


def step(name: int, following: int | None = None) -> dict[str, Any]:
    after = name + 1 if following is None else following
    return {
        "obs": np.full(3, name, np.float32), "action": 1, "reward": 0.5, "next_obs": np.full(3, after, np.float32),
        "terminated": False, "truncated": False,
    }  # fmt: skip


def test_what_does_not_go_on_is_left_to_python(tmp_path: pathlib.Path) -> None:
    with compiled() as answers, created(tmp_path) as rb:
        rb.add(**step(1))
        assert answers == [False]  # there is no row before
        rb.add(**step(2))
        rb.add(**step(7))  # another observation
        rb.add(**{**step(8), "truncated": True})
        rb.add(**step(9))  # after an end
        assert answers[1:] == [True] * 4
        rb.cut()
        rb.add(**step(10))
        rb.begin_episode(seed=3)
        rb.add(**step(11))
        assert answers[5:] == [False] * 2
        rb.add(**step(12), valid=False)
        rb.add(**step(13))  # after a step that is none
        assert answers[7:] == [False, True]  # the first ends an episode with facts
        np.testing.assert_array_equal(rb.get([1]).next_obs[0], np.full(3, 3))


def test_bits_are_compared(tmp_path: pathlib.Path) -> None:
    with compiled() as answers, created(tmp_path) as rb:
        for name, following in ((1, np.nan), (np.nan, 0.0), (-0.0, 5)):
            rb.add(**step(name, following))
        assert answers == [False, True, True]
        log = rb.engine.appender.log
        assert log.span(START, 0, 3)[:, 0].tolist() == [ZEROS, CONTINUES, ZEROS]


def test_bad_arguments_change_nothing(tmp_path: pathlib.Path) -> None:
    with compiled() as answers, created(tmp_path) as rb:
        rb.add(**step(1))
        rb.add(**step(2))
        before = in_ram(rb)
        for wrong in ({"reward": np.nan}, {"action": 4}, {"next_obs": np.zeros(4)}, {"truncated": 2}):
            with pytest.raises(InputError):
                rb.add(**{**step(3), **wrong})
            assert in_ram(rb) == before
        rb.add(**step(3))
        assert answers == [False, True, True]


SPACES: list[gymnasium.Space[Any]] = [
    gymnasium.spaces.Box(-9, 9, (), np.float32),
    gymnasium.spaces.Box(-9, 9, (2,), np.float64),
    gymnasium.spaces.Box(-9, 9, (2,), np.float16),
    gymnasium.spaces.Box(0, 255, (2,), np.uint8),
    gymnasium.spaces.Box(-9, 9, (), np.int16),
    gymnasium.spaces.Discrete(4),
    gymnasium.spaces.Discrete(4, start=-2),
    gymnasium.spaces.Discrete(4, dtype=np.int32),
    gymnasium.spaces.MultiDiscrete([2, 3]),
    gymnasium.spaces.MultiBinary(2),
    gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(3), "b": gymnasium.spaces.Box(0, 1, (1,), np.float32)}),
    gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3), gymnasium.spaces.Box(0, 1, (), np.float64)]),
]
NUMBERS: list[Any] = [
    0, 1, -1, 3, 4, 300, -(2**40), 2**24 + 1, 2**70, 0.5, -0.0, 1e39, float("nan"), float("inf"), True, np.True_,
    *(kind(value) for kind in (np.int8, np.int32, np.int64, np.uint8, np.float32, float) for value in (0, 1, 3, 7)),
    np.float32("nan"), np.float64(1e300), np.int64(-2), np.array(2), np.array(1.5, np.float32), "a", None, b"1", 1j,
]  # fmt: skip
ARRAYS: list[Any] = [
    *(np.array(values, kind) for kind in ["f4", "f8", "f2", ">f4", *"lBb?"] for values in ((0, 1), (1, 3))),
    np.array([np.nan, 1]), np.array([np.inf, 1], np.float32), np.arange(4.0, dtype=np.float32)[::2], np.ones((1, 2)),
    np.ones(3), [0, 1], (1, 0), [0.5, 2**60], np.array([2, 7]), np.array([-1, 0]), np.zeros((2, 1), np.uint8),
    {"a": 1, "b": np.ones(1, np.float32)}, {"b": [0.5], "a": np.int64(2)}, {"a": 3, "b": np.ones(1)}, {"a": 1}, (),
    (1, 0.5), [2, 0.25], (np.int64(0), np.float64(1)), (3, 0.0), collections.OrderedDict(b=np.ones(1, np.float32), a=0),
]  # fmt: skip


@pytest.mark.long(quick=4)
@pytest.mark.parametrize("finite", [False, True])
@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_both_ways_take_the_same_arguments(tmp_path: pathlib.Path, space: gymnasium.Space[Any], finite: bool) -> None:
    found = []
    for ever in (True, False):
        with (
            compiled(ever=ever) as answers,
            dr.ReplayBuffer.create(
                tmp_path / str(ever),
                BOX,
                space,
                capacity=999,
                finite=finite,
                columns={"x": ((2,), "f4"), "y": ((), "i4")},
            ) as rb,
        ):
            space.seed(0)
            fitting, given = space.sample(), []
            for value in (fitting, *NUMBERS, *ARRAYS):
                for name in ("action", "reward", "x", "y", "truncated"):
                    row = {**step(len(rb)), "action": fitting, "x": np.zeros(2, np.float32), "y": 0, name: value}
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        try:
                            rb.add(**row)
                            given.append("")
                        except InputError as error:
                            given.append(str(error))
            assert any(answers) == ever
            found.append((given, in_ram(rb)))
    assert found[0][0] == found[1][0]
    assert found[0][1] == found[1][1]


def test_values_that_are_not_contiguous(tmp_path: pathlib.Path) -> None:
    space = gymnasium.spaces.Box(0, 255, (60, 60), np.uint8)
    values = np.random.default_rng(0).integers(0, 255, (41, 2, 60, 60, 3), np.uint8)[..., 1]  # not contiguous
    no, one = np.zeros(2, bool), np.ones(2)
    with (
        compiled() as answers,
        dr.ReplayBuffer.create(tmp_path / "a", space, ACTION, capacity=80, num_envs=2, commit_seconds=1e9) as rb,
    ):  # fmt: skip
        for at in range(40):
            rb.add(values[at], one.astype(int), one, values[at + 1], no, no)
        assert answers == [False] + [True] * 39
        rows, envs = np.divmod(np.arange(80), 2)
        batch = rb.get(np.arange(80))
        np.testing.assert_array_equal(batch.obs, values[rows, envs])
        np.testing.assert_array_equal(batch.next_obs, values[rows + 1, envs])


def test_flags_that_are_not_contiguous(tmp_path: pathlib.Path) -> None:
    valid, ends = np.ones((2, 20, 2, 2), bool)[..., 1]
    valid[9, 1] = False
    ends[:] = np.arange(20)[:, None] % 5 == 4
    obs = np.arange(21 * 2 * 3, dtype=np.float32).reshape(21, 2, 3)
    with dr.ReplayBuffer.create(tmp_path / "a", BOX, ACTION, capacity=80, num_envs=2) as rb:
        for at in range(20):
            if at in (5, 7):
                rb.cut(valid[at] if at == 5 else ends[at])
            rb.add(obs[at], np.zeros(2, int), np.ones(2), obs[at + 1], ends[at], ~ends[at] & False, valid=valid[at])
        assert rb.items().tolist() == [at for at in range(40) if at != 19]
        rows, envs = np.divmod(rb.items(), 2)
        batch = rb.get(rb.items())
        np.testing.assert_array_equal(batch.obs, obs[rows, envs])
        np.testing.assert_array_equal(batch.terminated, ends[rows, envs])


def test_forked_children(tmp_path: pathlib.Path) -> None:
    with compiled() as answers:

        def add() -> list[bool]:
            with created(tmp_path) as rb:
                for name in range(3):
                    rb.add(**step(name))
            return answers

        assert forked(add) == [False, True, True]


def test_a_lack_of_memory_stops_the_writer(tmp_path: pathlib.Path) -> None:
    with compiled():
        rb = created(tmp_path)
        rb.add(**step(1))
        rb.commit()
        with (
            mock.patch.object(core.Row, "ever", new=False),
            mock.patch.object(core.Row, "write", side_effect=MemoryError),
            pytest.raises(MemoryError),
        ):
            rb.add(**step(2))
        with pytest.raises(dr.errors.StateError, match="must be reopened"):
            rb.add(**step(2))
        with pytest.raises(dr.errors.StateError, match="cut short"):
            rb.close()
    assert rows_in(tmp_path / "a", mode="r+") == 1
