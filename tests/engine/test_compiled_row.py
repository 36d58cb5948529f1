"""A row that goes on is added by compiled code or by Python, and nobody can tell by which."""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import sys
import threading
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
from diskreplay import index, loading
from diskreplay.engine import compiled_row, engine
from diskreplay.engine.compiled_row import CompiledRow
from diskreplay.errors import InputError
from diskreplay.index import jit
from diskreplay.loading import BackgroundImport

BOX = gymnasium.spaces.Box(-9, 9, (3,), np.float32)
ACTION = gymnasium.spaces.Discrete(4)
SINGLE = [config for config in CONFIGS if "stack" not in config.name]


@contextlib.contextmanager
def compiled(*, ever: bool = True) -> Iterator[list[bool]]:
    """Rows are added by compiled code wherever it applies, or never; whether it did add each row it was asked for."""
    answers: list[bool] = []
    add = CompiledRow.add

    def noted(self: CompiledRow, *given: Any) -> bool:
        answers.append(add(self, *given))
        return answers[-1]

    with (
        mock.patch.object(compiled_row, "LOAD_AFTER", 0),
        mock.patch.object(compiled_row, "LOOK_EVERY", 0),
        mock.patch.object(compiled_row, "KERNEL", BackgroundImport(compiled_row._load if ever else lambda: None)),
        mock.patch.object(loading, "IN_BACKGROUND", 0),
        mock.patch.object(CompiledRow, "add", noted),
    ):
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
            mock.patch.object(engine, "COMMIT_BYTES", 1 << 30),  # when that many wait depends on threads
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
        assert answers == []  # it begins
        rb.add(**step(2))
        rb.add(**step(7))  # another observation
        rb.add(**{**step(8), "truncated": True})
        assert answers == [True, False, True]
        rb.add(**step(9))  # after an end
        rb.cut()
        rb.add(**step(10))
        rb.add(**step(11), valid=False)
        rb.add(**step(12))  # after a step that is none
        assert answers == [True, False, True]
        rb.add(**step(13))
        assert answers == [True, False, True, True]
        np.testing.assert_array_equal(rb.get([1]).next_obs[0], np.full(3, 3))


def test_bits_are_compared(tmp_path: pathlib.Path) -> None:
    with compiled() as answers, created(tmp_path) as rb:
        for name, following in ((1, np.nan), (np.nan, 0.0), (-0.0, 5)):
            rb.add(**step(name, following))
        assert answers == [True, False]


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
        assert answers == [True, True]


def test_large_values_are_read_where_they_are(tmp_path: pathlib.Path) -> None:
    space = gymnasium.spaces.Box(0, 255, (60, 60), np.uint8)
    values = np.random.default_rng(0).integers(0, 255, (41, 2, 60, 60, 3), np.uint8)[..., 1]  # not contiguous
    no, one = np.zeros(2, bool), np.ones(2)
    with (
        compiled() as answers, mock.patch.object(compiled_row, "STAGED_BYTES", 100),
        dr.ReplayBuffer.create(tmp_path / "a", space, ACTION, capacity=80, num_envs=2, commit_seconds=1e9) as rb,
    ):  # fmt: skip
        for at in range(40):
            rb.add(values[at], one.astype(int), one, values[at + 1], no, no)
        assert answers == [True] * 39
        rows, envs = np.divmod(np.arange(80), 2)
        batch = rb.get(np.arange(80))
        np.testing.assert_array_equal(batch.obs, values[rows, envs])
        np.testing.assert_array_equal(batch.next_obs, values[rows + 1, envs])


def test_it_is_loaded_when_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_row, "KERNEL", BackgroundImport(compiled_row._load))
    monkeypatch.setattr(loading, "IN_BACKGROUND", 0)
    monkeypatch.delitem(sys.modules, "diskreplay.index.jit", raising=False)
    assert compiled_row.load(compiled_row.LOAD_AFTER - 1) is None
    kernel = compiled_row.load(compiled_row.LOAD_AFTER)
    assert kernel is not None
    monkeypatch.setitem(sys.modules, "diskreplay.index.jit", jit)
    assert compiled_row.load(0) is kernel


def test_rows_are_added_in_python_while_it_is_loaded_and_then_compiled(tmp_path: pathlib.Path) -> None:
    leave = threading.Event()
    with (
        compiled() as answers,
        mock.patch.object(loading, "IN_BACKGROUND", 1),
        mock.patch.object(compiled_row, "KERNEL", BackgroundImport(lambda: (leave.wait(), compiled_row._load())[1])),
        created(tmp_path) as rb,
    ):
        for name in range(5):
            rb.add(**step(name))
        assert answers == []
        leave.set()
        compiled_row.KERNEL._wait()
        for name in range(5, 9):
            rb.add(**step(name))
        assert answers == [True] * 4
        assert rb.get(rb.items()).obs[:, 0].tolist() == [step(name)["obs"][0] for name in range(9)]


@pytest.mark.parametrize("ready", [True, False], ids=["", "while a thread loads the kernel"])
def test_forked_children(tmp_path: pathlib.Path, ready: bool) -> None:
    leave = threading.Event()
    with (
        compiled() as answers,
        mock.patch.object(loading, "IN_BACKGROUND", 1),
        mock.patch.object(compiled_row, "KERNEL", BackgroundImport(lambda: (leave.wait(), compiled_row._load())[1])),
    ):
        assert compiled_row.load(0) is None
        if ready:
            leave.set()
            assert compiled_row.KERNEL.now() is not None
        else:
            threading.Timer(0.05, leave.set).start()  # the fork waits for it

        def add() -> list[bool]:
            with created(tmp_path) as rb:
                for name in range(3):
                    rb.add(**step(name))
            return answers

        assert forked(add) == [True, True]


def test_rows_are_counted_now_and_then(tmp_path: pathlib.Path) -> None:
    with (
        mock.patch.object(compiled_row, "LOOK_EVERY", 4),
        mock.patch.object(compiled_row, "load", side_effect=[None, None, None]) as load,
        created(tmp_path) as rb,
    ):
        for name in range(14):
            rb.add(**step(name))
        assert [call.args for call in load.mock_calls] == [(4,), (8,), (12,)]


def test_without_a_compiler_all_is_left_to_python(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(index, "row_writes", raising=False)
    monkeypatch.setitem(sys.modules, "diskreplay.index.row_writes", None)
    with compiled() as answers, created(tmp_path) as rb:
        for name in range(5):
            rb.add(**step(name))
        assert compiled_row.KERNEL.missing
        assert answers == []
        assert len(rb) == 5


def test_a_lack_of_memory_stops_the_writer(tmp_path: pathlib.Path) -> None:
    with compiled():
        rb = created(tmp_path)
        rb.add(**step(1))
        rb.commit()
        with mock.patch.object(CompiledRow, "add", side_effect=MemoryError), pytest.raises(MemoryError):
            rb.add(**step(2))
        with pytest.raises(dr.errors.StateError, match="must be reopened"):
            rb.add(**step(2))
        with pytest.raises(dr.errors.StateError, match="cut short"):
            rb.close()
    assert rows_in(tmp_path / "a", mode="r+") == 1
