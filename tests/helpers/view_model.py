"""The naive oracle for views: which rows are items, and every step that one must show, looked up in the lists."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from helpers.configs import FRAME, Config
from helpers.model import STREAM_SHIFT, Leaf, Log, Transition, check_batch, flat, same

import diskreplay as dr
from diskreplay.index.log import Standing

Place = tuple[Log, int, int]
"""A row of an environment of a log."""

LOCAL = (1 << STREAM_SHIFT) - 1


def distance(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    """Of two arrays of goals ``(B, *goal_shape)``: ``(B,)``."""
    gap: np.ndarray = np.abs(achieved.astype(np.float64) - desired)
    return gap.reshape(len(gap), -1).sum(axis=1)


def reward_fn(achieved: np.ndarray, desired: np.ndarray, info: Mapping[str, np.ndarray]) -> np.ndarray:
    """Exact in float32; looks at the extra columns too."""
    found: np.ndarray = np.round(-distance(achieved, desired)) + info.get("bonus", 0.0)
    return found


def terminated_fn(achieved: np.ndarray, desired: np.ndarray, info: Mapping[str, np.ndarray]) -> np.ndarray:
    found: np.ndarray = distance(achieved, desired) < 60
    return found


def goals(goal: Leaf, **more: Any) -> dict[str, Any]:
    """The observations of a goal-conditioned environment."""
    return {**more, "achieved_goal": goal, "desired_goal": goal}


GOAL_CONFIGS = [
    Config("goals", goals(Leaf((2,), np.float64), observation=Leaf((3,), np.float32)), resident_bytes=64),
    Config(
        "goals of 3 environments, on disk", goals(Leaf((2,), np.float32), observation=Leaf((3,), np.float32)),
        num_envs=3, capacity=60, columns={"bonus": np.float32},
    ),
    Config(
        "goals that are images, beside stacked frames", goals(Leaf((5, 4)), camera=Leaf(FRAME)),
        frame_stack={"camera": 4}, num_envs=2, capacity=40, columns={"bonus": np.float32, "image": ((3, 3), np.int16)},
    ),
    Config(
        "goals beside given stacks", goals(Leaf((), np.int64), camera=Leaf((3, *FRAME), frames=3, axis=0)),
        frame_stack={"camera": 3}, num_envs=2, capacity=40, padding="reset", resident_bytes=8,
    ),
]  # fmt: skip

VIEWS: list[Any] = [
    dr.Transition(1, 0.9),
    dr.Transition(3, 0.9),
    dr.Sequence(4, gamma=0.9),
    dr.Sequence(1, gamma=0.5),
    dr.Sequence(3, burn_in=2, stride=2, gamma=0.9),
    dr.Sequence(2, burn_in=1, stride=5, pad=False, gamma=0.9),
    dr.Sequence(5, stride=1 << 40, gamma=1.0),
    dr.Sequence(4, across=True, gamma=0.9),
    dr.Sequence(3, burn_in=1, stride=3, pad=False, across=True, gamma=0.9),
    dr.PaddedEpisodes(1, 0.9),
    dr.PaddedEpisodes(3, 0.9),
    dr.PaddedEpisodes(40, 0.0),
    dr.DeltaTimestamps(
        {"obs": [-0.2, 0.0, 0.1], "action": [0.0, 0.1, 0.2, 0.5], "reward": [-0.1, 0.0]}, fps=10, tolerance_s=1e-6
    ),
    dr.DeltaTimestamps({"reward": [2.0], "action": [1.0, -9.0, 0.0]}, fps=1),
]
HINDSIGHT: list[Any] = [
    dr.Hindsight(reward_fn, "future", 0.8, None, 0.9),
    dr.Hindsight(reward_fn, "final", 1.0, terminated_fn, 0.9),
    dr.Hindsight(reward_fn, "episode", 0.5, terminated_fn, 0.9),
    dr.Hindsight(reward_fn, "random", 0.7, None, 0.9),
]


def name_of(view: Any) -> str:
    if isinstance(view, dr.DeltaTimestamps):
        return f"DeltaTimestamps({', '.join(view.deltas)})"
    return repr(view).split(" reward_fn")[0] if not isinstance(view, dr.Hindsight) else f"Hindsight({view.strategy})"


# Which rows are items


def run(log: Log, row: int, env: int) -> tuple[int, int, bool]:
    """The episode of a valid row: its first row in the window, one past its last, and whether it has ended."""
    first, last = row, row
    while first > log.begin and log.continues(first, env):
        first -= 1
    while last + 1 < log.end and log.continues(last + 1, env):
        last += 1
    return first, last + 1, log.cut(last, env)


def standing(view: Any, log: Log, row: int, env: int) -> Standing:
    """Of a row of the window."""
    if not log.rows[row][env].valid:
        return Standing.NEVER
    if isinstance(view, dr.Hindsight | dr.DeltaTimestamps):
        return Standing.NOW
    if isinstance(view, dr.Transition):
        return Standing.NOW if log.samples(row, env, view.n_step) else Standing.LATER
    _, stop, ended = run(log, row, env)
    begins = not log.continues(row, env)
    if isinstance(view, dr.PaddedEpisodes):
        return Standing.NEVER if not begins else Standing.NOW if ended else Standing.LATER
    if row % view.stride and (view.across or not begins):
        return Standing.NEVER
    if view.across:
        stop, ended = log.end, False
    if stop - row >= (view.burn_in + 1 if view.pad else view.burn_in + view.length):
        return Standing.NOW
    return Standing.NEVER if ended else Standing.LATER


def ids(log: Log) -> list[int]:
    """Of all rows of the window."""
    return [log.number << STREAM_SHIFT | at for at in range(log.begin * log.num_envs, log.end * log.num_envs)]


def standings(view: Any, logs: Sequence[Log]) -> dict[int, Standing]:
    """Of every id of the windows."""
    return {each: standing(view, *place(logs, each)) for log in logs for each in ids(log)}


def items(view: Any, logs: Sequence[Log]) -> list[int]:
    return [each for each, found in standings(view, logs).items() if found == Standing.NOW]


def place(logs: Sequence[Log], each: int) -> Place:
    """Where an id stands."""
    (log,) = [log for log in logs if log.number == each >> STREAM_SHIFT]
    return log, *divmod(each & LOCAL, log.num_envs)


# What an item shows


def length_of(view: Any) -> int:
    """``T``."""
    return int(view.max_length) if isinstance(view, dr.PaddedEpisodes) else int(view.burn_in + view.length)


def rows_of(view: Any, log: Log, row: int, env: int) -> list[int | None]:
    """The row of each of the ``T`` steps, None for none."""
    stop = log.end if isinstance(view, dr.Sequence) and view.across else run(log, row, env)[1]
    rows = range(row, row + length_of(view))
    return [each if each < stop and log.rows[each][env].valid else None for each in rows]


def check(batch: Any, view: Any, logs: Sequence[Log]) -> None:
    """Every item of a batch is, bit for bit, just what the logs say for its index."""
    assert batch.index.dtype == np.int64
    assert batch.weight.dtype == np.float32
    assert batch.weight.shape == batch.index.shape
    places = [place(logs, each) for each in batch.index.tolist()]
    assert all(standing(view, *at) == Standing.NOW for at in places)
    if isinstance(view, dr.Transition):
        return check_batch(batch, logs, view.n_step, view.gamma)
    if isinstance(view, dr.Hindsight):
        return check_hindsight(batch, view, logs, places)
    if isinstance(view, dr.DeltaTimestamps):
        return check_deltas(batch, view, places)
    rows = [rows_of(view, *at) for at in places]
    _check_mask(batch, view, places, rows)
    shown = [
        [None if row is None else log.transition(row, env, 1, view.gamma) for row in held]
        for (log, _, env), held in zip(places, rows, strict=True)
    ]
    for name in ("obs", "next_obs", "action"):
        for part, got in enumerate(flat(getattr(batch, name))):
            _check_field(got, [[want and getattr(want, name)[part] for want in held] for held in shown], name)
    for name, dtype in (("reward", np.float32), ("discount", np.float32), ("terminated", bool), ("truncated", bool)):
        wanted = [[want and np.asarray(getattr(want, name), dtype) for want in held] for held in shown]
        _check_field(getattr(batch, name), wanted, name)
    assert all(batch.extra.keys() == want.extra.keys() for want in shown[0] if want)
    for name, got in batch.extra.items():
        _check_field(got, [[want and want.extra[name] for want in held] for held in shown], name)


def _check_mask(batch: Any, view: Any, places: Sequence[Place], rows: list[list[int | None]]) -> None:
    there = np.array([[row is not None for row in held] for held in rows])
    if isinstance(view, dr.PaddedEpisodes):
        assert type(batch) is dr.EpisodeBatch
        assert same(batch.mask, there)
        assert same(batch.length, there.sum(axis=1))
        return
    first = [
        [row is not None and not log.continues(row, env) for row in held]
        for (log, _, env), held in zip(places, rows, strict=True)
    ]
    assert type(batch) is dr.SequenceBatch
    assert same(batch.mask, there)
    assert same(batch.is_first, np.array(first))


def _check_field(got: Any, wanted: list[list[Any]], what: str) -> None:
    assert got.shape[:2] == (len(wanted), len(wanted[0])), what
    for at, held in enumerate(wanted):
        for step, want in enumerate(held):
            if want is None:
                assert not any(got[at, step].tobytes()), f"{what} of item {at}, step {step}: no step, and no zeros"
            else:
                assert same(got[at, step], want), f"{what} of item {at}, step {step}: {got[at, step]}, not {want}"


# Arrays that are given


def outs(batch: Any, view: Any) -> Iterator[Any]:
    """Batches for ``out=`` like one, of any values; one has next observations in the same memory, where that can be."""
    made = batch.map(lambda array: np.frombuffer(bytearray(b"\5" * array.nbytes), array.dtype).reshape(array.shape))
    yield made
    if isinstance(view, dr.Sequence | dr.PaddedEpisodes) and not getattr(view, "across", False):
        overlapped: Any = dr.SequenceBatch.overlapped(made)
        for leaf in flat(overlapped.obs):
            leaf.base.reshape(-1).view(np.uint8)[...] = 5
        yield overlapped


def check_out(out: Any, batch: Any) -> None:
    """It shows what another batch of the same items shows."""
    if not any(np.shares_memory(*both) for both in zip(flat(out.obs), flat(out.next_obs), strict=False)):
        assert content(out) == content(batch)
        return
    there = np.pad(out.mask, ((0, 0), (0, 1))) | np.pad(out.mask, ((0, 0), (1, 0)))
    assert not any(leaf.base[~there].any() for leaf in flat(out.obs))
    shown = {}
    for name in ("obs", "next_obs"):
        parts: list[Any] = []
        for leaf in flat(getattr(out, name)):
            parts.append(leaf.copy())
            parts[-1][~out.mask] = 0
        assert all(same(*both) for both in zip(parts, flat(getattr(batch, name)), strict=True))
        shown[name] = None
    assert content(dataclasses.replace(out, **shown)) == content(dataclasses.replace(batch, **shown))


# Windows by time


def check_deltas(batch: Any, view: Any, places: Sequence[Place]) -> None:
    """The names of the view are fields of the batch, or columns of its ``extra``."""
    assert type(batch) is dr.DeltaBatch
    assert batch.is_pad.keys() == view.deltas.keys()

    def shown(name: str) -> list[list[Transition]]:
        found = []
        for at, (log, row, env) in enumerate(places):
            first, stop, _ = run(log, row, env)
            wanted = [row + round(delta * view.fps) for delta in view.deltas.get(name, [0.0])]
            if name in view.deltas:
                assert same(batch.is_pad[name][at], np.array([not first <= each < stop for each in wanted]))
            found.append([log.transition(min(max(each, first), stop - 1), env, 1, 1.0) for each in wanted])
        return found

    def compare(name: str, got: Any, wanted: list[list[Any]]) -> None:
        if name not in view.deltas:
            assert len(got) == len(wanted), name
            got = got[:, None]
        _check_field(got, wanted, name)

    for name in ("obs", "action"):
        for part, got in enumerate(flat(getattr(batch, name))):
            compare(name, got, [[getattr(want, name)[part] for want in held] for held in shown(name)])
    for name, dtype in (("reward", np.float32), ("terminated", bool), ("truncated", bool)):
        compare(name, getattr(batch, name), [[np.asarray(getattr(w, name), dtype) for w in h] for h in shown(name)])
    for name, got in batch.extra.items():
        compare(name, got, [[want.extra[name] for want in held] for held in shown(name)])
    assert all(batch.extra.keys() == want.extra.keys() for held in shown("")[:1] for want in held)


# Hindsight


def sources(view: Any, logs: Sequence[Log], log: Log, row: int, env: int) -> list[Place]:
    """The transitions after which the new goal of one may have been achieved, each as likely as the others."""
    if view.strategy == "random":
        return [place(logs, each) for each in items(view, logs)]
    first, stop, _ = run(log, row, env)
    rows = {"future": range(row, stop), "final": [stop - 1], "episode": range(first, stop)}[view.strategy]
    return [(log, each, env) for each in rows]


def after(log: Log, row: int, env: int, name: str) -> np.ndarray:
    """A goal in a row's next observation."""
    return log.rows[row][env].next_obs[log.names.index(name)]


def reached(places: Sequence[Place]) -> set[bytes]:
    return {after(*at, "achieved_goal").tobytes() for at in places}


def check_hindsight(batch: Any, view: Any, logs: Sequence[Log], places: Sequence[Place]) -> None:
    assert type(batch) is dr.HindsightBatch
    assert batch.relabelled.dtype == bool
    assert batch.relabelled.shape == batch.index.shape
    anywhere = reached(sources(view, logs, *places[0])) if view.strategy == "random" else None
    for at, (log, row, env) in enumerate(places):
        if not batch.relabelled[at]:
            _check_recorded(batch, at, log.transition(row, env, 1, view.gamma), log, [])
            continue
        goal = np.asarray(batch.obs["desired_goal"][at])
        assert same(batch.next_obs["desired_goal"][at], goal)
        assert goal.tobytes() in (anywhere or reached(sources(view, logs, log, row, env)))
        want = log.transition(row, env, 1, view.gamma)
        given = after(log, row, env, "achieved_goal")[None], goal[None], {k: v[None] for k, v in want.extra.items()}
        ended = bool(view.terminated_fn(*given)[0]) if view.terminated_fn else want.terminated
        changed = Transition(
            want.obs, want.action, float(view.reward_fn(*given)[0]), want.next_obs, ended, want.truncated,
            0.0 if ended else view.gamma, want.extra,
        )  # fmt: skip
        _check_recorded(batch, at, changed, log, ["desired_goal"])


def _check_recorded(batch: Any, at: int, want: Transition, log: Log, but: Sequence[str]) -> None:
    for name in ("obs", "next_obs"):
        for leaf, got, value in zip(log.names, flat(getattr(batch, name)), getattr(want, name), strict=True):
            assert leaf in but or same(got[at], value), f"{name}/{leaf}: {got[at]}, not {value}"
    for got, value in zip(flat(batch.action), want.action, strict=True):
        assert same(got[at], value)
    assert same(batch.reward[at], np.float32(want.reward))
    assert same(batch.discount[at], np.float32(want.discount))
    assert (batch.terminated[at], batch.truncated[at]) == (want.terminated, want.truncated)
    for name, value in want.extra.items():
        assert same(batch.extra[name][at], value)


def content(batch: Any) -> bytes:
    """All arrays of a batch as bytes."""
    parts: list[Any] = []
    batch.map(parts.append)
    return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
