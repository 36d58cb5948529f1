"""Columns that come from ``info``, of which some steps have none."""

from __future__ import annotations

import contextlib
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Text
from helpers.line import rows_in
from helpers.pool import Pool, garbled, step_on
from helpers.vectors import lockstep

import diskreplay as dr
from diskreplay.buffers.autoreset import AutoresetMode
from diskreplay.errors import InputError, MisuseWarning

MODES = list(AutoresetMode)
SAME = AutoresetMode.SAME_STEP
LENGTH = 5

Info = Callable[[int, bool], Any]


class Task(gymnasium.Env[Any, Any]):
    """Its info is a function of the number of the step and of whether it is the last one."""

    observation_space, action_space = Box(-1, 9, (1,), np.float32), Discrete(2)

    def __init__(self, info: Info) -> None:
        self.info, self.at = info, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        self.at += 1
        last = self.at == LENGTH
        return np.full(1, self.at, np.float32), 1.0, last, False, self.info(self.at, last)


def at_the_end(**values: Any) -> Info:
    return lambda at, last: values if last else {}


def record(path: str, info: Info, kind: Any, steps: int = 4 * LENGTH, **options: Any) -> dict[str, Any]:
    """The columns of recorded steps: by one environment, in the background, or by two of a mode, the first of them."""
    if isinstance(kind, AutoresetMode):
        envs = dr.VectorRecord(lockstep([lambda: Task(info)] * 2, kind), path, ragged="lists", **options)
        with contextlib.closing(envs):
            envs.reset(seed=0)
            while len(envs.buffer) < 2 * steps:
                *_, terminated, _, _ = envs.step(np.zeros(2, int))
                if kind is AutoresetMode.DISABLED and terminated.any():
                    envs.reset(options={"reset_mask": terminated})
            batch = envs.buffer.get(envs.buffer.items())
            assert (batch.terminated == (batch.next_obs[:, 0] == LENGTH)).all()
            return {name: list(values)[: 2 * steps : 2] for name, values in batch.extra.items()}
    with contextlib.closing(dr.Record(Task(info), path, background=kind, ragged="lists", **options)) as env:
        env.reset(seed=0)
        for _ in range(steps):
            if env.step(0)[2]:
                env.reset()
        env.flush()
        return {name: list(values) for name, values in env.buffer.get(np.arange(steps)).extra.items()}


KINDS = [False, True, *MODES]
VALUES: list[tuple[Any, Any, Any]] = [
    (np.bool_, True, False),
    (np.bool_, np.True_, False),
    (np.int64, 7, 0),
    (np.uint8, np.uint8(200), 0),
    (np.float32, 0.5, np.nan),
    (np.float64, np.float64(1 / 3), np.nan),
    (((2,), np.float32), np.array([1, 2], np.float32), [np.nan, np.nan]),
    (((2,), np.int32), np.array([1, 2]), [0, 0]),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "value", "blank"), VALUES)
@pytest.mark.filterwarnings("error::diskreplay.errors.MisuseWarning")
def test_a_value_that_only_ends_have(path: str, kind: Any, dtype: Any, value: Any, blank: Any) -> None:
    found = record(path, at_the_end(x=value), kind, columns={"x": dtype})["x"]
    np.testing.assert_array_equal(found, ([blank] * (LENGTH - 1) + [value]) * 4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_ends_lack_and_a_default(path: str, kind: Any) -> None:
    columns, defaults = {"x": np.float32, "y": ((2,), np.int8)}, {"x": -1, "y": [3, 4]}
    found = record(path, lambda at, last: {} if last else {"x": at / 8}, kind, columns=columns, defaults=defaults)
    assert np.array(found["x"]).tolist() == [1 / 8, 2 / 8, 3 / 8, 4 / 8, -1] * 4
    assert np.array(found["y"]).tolist() == [[3, 4]] * 20


@pytest.mark.parametrize("kind", KINDS)
def test_ragged_and_text_columns(path: str, kind: Any) -> None:
    columns = {"said": Text(9), "tokens": ((None,), np.int32), "points": ((None, 2), np.float32)}
    points = [[1.0, 2.0]] * 3
    given = at_the_end(said="done", tokens=[1, 2], points=points)
    found = record(path, given, kind, columns=columns, defaults={"tokens": [9]})
    assert ["".join(map(chr, row)) for row in found["said"]] == ["", "", "", "", "done"] * 4
    assert [row.tolist() for row in found["tokens"]] == [[9], [9], [9], [9], [1, 2]] * 4
    assert [row.tolist() for row in found["points"]] == [[], [], [], [], points] * 4
    text = {"said": "no word"}
    found = record(f"{path}-2", lambda at, last: {}, kind, columns={"said": Text(9)}, defaults=text)
    assert {"".join(map(chr, row)) for row in found["said"]} == {"no word"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_no_info_of_the_first_episode_had_is_told_once(path: str, kind: Any) -> None:
    with pytest.warns(MisuseWarning, match=r"first episode had \['succes'\]") as said:
        record(path, at_the_end(success=True), kind, columns={"succes": bool, "success": bool}, seeds=True)
    assert (len(said), said[0].filename) == (1, __file__)


def test_episodes_that_only_a_reset_or_close_ends(path: str) -> None:
    def made(name: str) -> Any:
        env = dr.Record(Task(lambda at, last: {}), f"{path}-{name}", columns={"x": int})
        env.reset()
        env.reset()
        env.step(0)
        return env

    env = made("a")
    with pytest.warns(MisuseWarning, match="'x'"):
        env.reset()
    env.step(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MisuseWarning)
        env.close()
    env = made("b")
    with pytest.warns(MisuseWarning, match="'x'"):
        env.close()
    assert rows_in(f"{path}-b") == 1


def test_values_at_an_end_that_are_of_the_episode_after_it(path: str) -> None:
    """ALE's own has ``lives`` of the new episode there, and nowhere those of the end."""

    def info(pool: Pool, final: np.ndarray, ended: np.ndarray) -> dict[str, Any]:
        return {"lives": np.full(pool.num_envs, 3), **garbled(pool, final, ended)}

    with contextlib.closing(dr.VectorRecord(Pool(SAME, info=info), path, columns={"lives": int})) as envs:
        envs.reset()
        with pytest.warns(MisuseWarning, match="has 'lives', but no 'final_info'") as said:
            step_on(envs, 40)
        assert len(said) == 1
        batch = envs.buffer.get(envs.buffer.items())
        assert (batch.extra["lives"] == np.where(batch.truncated, 0, 3)).all()


@pytest.mark.parametrize("form", ["whole", "masked", "mappings", "list", "other dtype"])
@pytest.mark.filterwarnings("error::diskreplay.errors.MisuseWarning")
def test_final_infos_in_all_forms(path: str, form: str) -> None:
    def info(pool: Pool, final: np.ndarray, ended: np.ndarray) -> dict[str, Any]:
        place = final[:, 0]
        told: dict[str, Any] = {"at": pool.at[:, 0].astype(np.int64 if form == "other dtype" else np.float32)}
        if not ended.any():
            return told
        each = [{"at": at} if end else None for at, end in zip(place, ended, strict=True)]
        last: Any = {"whole": {"at": place}, "masked": {"at": np.where(ended, place, 0), "_at": ended}}.get(form)
        if form == "other dtype":
            last = {"at": place + 0.5}
        told |= {"final_info": last if last is not None else np.array(each) if form == "mappings" else each}
        return told | garbled(pool, final, ended)

    with contextlib.closing(dr.VectorRecord(Pool(SAME, info=info), path, columns={"at": np.float32})) as envs:
        envs.reset()
        step_on(envs, 40)
        batch = envs.buffer.get(envs.buffer.items())
        more = np.where(batch.truncated, 0.5 * (form == "other dtype"), 0)
        np.testing.assert_array_equal(batch.extra["at"], batch.next_obs[:, 0] + more)


REFUSED: list[tuple[Any, str]] = [
    ([1], "defaults must be a mapping"),
    ({"succes": False}, r"defaults has \['succes'\], but the columns that come from info are"),
    ({"reward": 0.0}, r"defaults has \['reward'\]"),
    ({"seed": 3}, r"defaults has \['seed'\]"),
    ({"success": 2}, "defaults of success: must have dtype bool"),
    ({"success": "no"}, "defaults of success: must be numbers"),
    ({"success": None}, "defaults of success"),
    ({"count": 1.5}, "defaults of count: must have dtype int32"),
    ({"count": np.nan}, "defaults of count"),
    ({"pair": [1.0]}, r"defaults of pair: must have shape \(2,\), got \(1,\)"),
    ({"pair": [1.0, np.nan]}, "defaults of pair: must be finite"),
    ({"said": "longer than nine"}, "defaults of said: a row may have 9 items"),
    ({"said": 3.5}, "defaults of said"),
]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(("defaults", "error"), REFUSED)
def test_a_default_that_does_not_fit_makes_no_store(path: str, several: bool, defaults: Any, error: str) -> None:
    columns = {"success": bool, "count": np.int32, "pair": ((2,), np.float32), "said": Text(9)}
    options: Any = {"columns": columns, "defaults": defaults, "seeds": True, "finite": True}
    kind, env = (dr.VectorRecord, Pool()) if several else (dr.Record, Task(at_the_end()))
    made: Any = kind
    with pytest.raises(InputError, match=error):
        made(env, path, **options)
    assert not pathlib.Path(path).exists()


def test_a_buffer_of_the_users_own(path: str) -> None:
    task = Task(at_the_end(x=1))
    with dr.ReplayBuffer.create(
        path, task.observation_space, task.action_space, capacity=99, columns={"x": np.int32}
    ) as buffer:
        with pytest.raises(InputError, match="defaults of x: must have dtype int32"):
            dr.Record(task, buffer, defaults={"x": 0.5})
        env = dr.Record(task, buffer, defaults={"x": -1})
        env.reset()
        for _ in range(LENGTH):
            env.step(0)
        assert buffer.get(np.arange(LENGTH)).extra["x"].tolist() == [-1, -1, -1, -1, 1]


WRONG_INFO: list[tuple[Any, str]] = [
    ({"x": np.ones(2)}, r"info\['x'\] must have an entry for each of 3 environments"),
    ({"x": 1.0}, r"info\['x'\] must have an entry for each of 3"),
    ({"x": np.ones(3), "_x": np.array([True])}, r"info\['x'\] must have an entry for each of 3"),
    ({"x": {"a": 1, "b": 2, "c": 3}}, r"info\['x'\] must have an entry for each of 3"),
    ({"x": np.ones((3, 2))}, "x: must have shape"),
    ({"x": np.full(3, "one")}, "x: must be numbers"),
    ({"x": np.array([1.0, "one", None], object), "_x": np.array([True, True, False])}, "x: must be numbers"),
]


@pytest.mark.parametrize(("given", "error"), WRONG_INFO)
def test_infos_that_fit_no_column_are_refused_in_their_step(path: str, given: Any, error: str) -> None:
    pool = Pool(info=lambda pool, final, ended: given if pool.at[0, 0] == 3 else {"x": np.zeros(3)})
    with contextlib.closing(dr.VectorRecord(pool, path, columns={"x": float})) as envs:
        envs.reset()
        step_on(envs, 2)
        with pytest.raises(InputError, match=error):
            step_on(envs, 1)
        assert len(envs.buffer) == 6


def test_a_missing_number_of_a_finite_store_is_refused(path: str) -> None:
    with contextlib.closing(dr.Record(Task(at_the_end(x=0.5)), path, columns={"x": float}, finite=True)) as env:
        env.reset()
        with pytest.raises(InputError, match="x: must be finite"):
            env.step(0)
    found = record(f"{path}-2", at_the_end(x=0.5), False, columns={"x": float}, finite=True, defaults={"x": 0.0})
    assert found["x"] == [0, 0, 0, 0, 0.5] * 4
