"""Many steps at once are just those steps one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.configs import CONFIGS, RAGGED, Config
from helpers.diff import diff
from helpers.effort import examples
from helpers.model import KINDS, arguments
from helpers.recording import Recording, recorded_in, reopen
from numpy.typing import NDArray

import diskreplay as dr
from diskreplay.errors import InputError
from diskreplay.index.log import NEXT_PATCH
from diskreplay.ops.verify import verify
from diskreplay.schema.spaces import flatten
from diskreplay.views.batch import map_arrays


def stacked(parts: list[Any]) -> Any:
    """Nested values of several steps as arrays that lead with the steps."""
    first = parts[0]
    if isinstance(first, dict):
        return {key: stacked([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(stacked([part[at] for part in parts]) for at in range(len(first)))
    if any(isinstance(part, list) for part in parts) or len({np.shape(part) for part in parts}) > 1:  # ragged rows
        return parts
    return np.stack(parts)


def together(given: list[dict[str, Any]], num_envs: int) -> dict[str, Any]:
    """The arguments of ``extend`` for those of several calls of ``add``; no ``valid`` where none was given."""
    lead = (num_envs,) if num_envs > 1 else ()
    if any(row["valid"] is not None for row in given):
        given = [{**row, "valid": np.ones(lead, bool) if row["valid"] is None else row["valid"]} for row in given]
    else:
        given = [{name: value for name, value in row.items() if name != "valid"} for row in given]
    return {name: stacked([row[name] for row in given]) for name in given[0]}


def rows(recording: Recording, count: int, special: float) -> list[dict[str, Any]]:
    """Steps that the oracle has taken, as arguments of ``add``."""
    found = []
    for _ in range(count):
        kinds = [kind if recording.rng.random() < special else "step" for kind in recording.rng.choice(KINDS[3:], 5)]
        row = recording.actor.row(kinds, next_step=bool(recording.rng.random() < 0.5))
        found.append(arguments(recording.config.obs, row))
        recording.log.rows.append(row)
    return found


@pytest.mark.long(quick=5)
@pytest.mark.parametrize("config", [*CONFIGS, *RAGGED], ids=lambda config: config.name)
@pytest.mark.parametrize("special", [0.0, 0.02, 0.3])
def test_extend_is_add_many_times(path: str, config: Config, special: float) -> None:
    recording = Recording(config, seed=int(special * 100))
    buffer = config.create(path)
    for at in range(examples(12, least=8)):
        given = rows(recording, int(recording.rng.integers(1, 14)), special)
        if at % 4 == 3:
            for row in given:
                buffer.add(**row)
        else:
            buffer.extend(**together(given, config.num_envs))
        if at % 5 == 4:
            buffer.commit()
        if at % 7 == 6:
            buffer.close()
            buffer = reopen(config, path)
        recording.check(buffer)
    buffer.close()


@pytest.mark.usefixtures("commits_at_once")
def test_commits_come_as_they_come_with_add(path: str) -> None:
    config = CONFIGS[0]
    with recorded_in(config, path, commit_rows=7) as (buffer, recording):
        for count in (3, 9, 30):
            given = rows(recording, count, 0.0)
            buffer.extend(**together(given, config.num_envs))
            end, committed = (buffer.stats()["streams"]["0"][name] for name in ("end", "committed"))
            assert committed == end // 7 * 7


def test_nothing_is_added_where_one_step_is_wrong(path: str) -> None:
    config = CONFIGS[0]
    with recorded_in(config, path) as (buffer, recording):
        given = rows(recording, 5, 0.0)
        good = together(given, config.num_envs)
        reward = np.array(good["reward"], np.float64)
        reward[3] = np.nan
        for wrong in (
            {"reward": reward},
            {"terminated": good["terminated"][:4]},
            {"action": np.asarray(good["action"]) + 0.5},
            {"reward": 1.0},
            {"unknown": np.zeros(5)},
        ):
            with pytest.raises(InputError):
                buffer.extend(**{**good, **wrong})
        assert len(buffer) == 0
        buffer.extend(**good)
        recording.check(buffer)
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        recording.check(reader)


SPACES = {
    "resident": spaces.Box(-9, 9, (3,), np.float32),
    "on disk": spaces.Box(0, 255, (40, 50), np.uint8),
    "scalars": spaces.Discrete(99),
    "dict": spaces.Dict(a=spaces.Box(0, 255, (), np.uint8), b=spaces.Box(-9, 9, (2, 2), np.float64)),
    "text": spaces.Text(5),
}


def sampled(space: spaces.Space[Any], shape: tuple[int, ...]) -> Any:
    """Values of a space, as arrays that lead with ``shape``."""
    if not shape:
        return space.sample()
    return stacked([sampled(space, shape[1:]) for _ in range(shape[0])])


def swapped(mask: NDArray[np.bool_], one: Any, other: Any) -> Any:
    """The values of ``one``, but where the mask says those of ``other``."""
    if isinstance(one, dict):
        return {key: swapped(mask, one[key], other[key]) for key in one}
    return np.where(mask.reshape(mask.shape + (1,) * (one.ndim - mask.ndim)), other, one)


def shown(buffer: dr.ReplayBuffer) -> list[Any]:
    """All that a stream has: its rows, with their patches, and the table of these."""
    log = buffer.engine.appender.log
    rows = range(log.begin, log.end)
    names = ["start", "valid", "terminated", "truncated", NEXT_PATCH]
    held = [log.span(name, rows.start, rows.stop).tolist() for name in names]
    patches = {name: log.patches.span(name, log.patch_begin, log.patch_end).tolist() for name in log.patches.arrays}
    ids = np.arange(log.first_id, log.stop_id)[log.span("valid", rows.start, rows.stop).ravel()]
    batch = buffer.get(ids)
    values = [flatten(buffer.schema.obs_tree, each, "obs") for each in (batch.obs, batch.next_obs)]
    return [held, patches, [[[np.asarray(value).tolist() for value in leaf] for leaf in leaves] for leaves in values]]


@pytest.mark.usefixtures("commits_at_once")
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("continuity", ["flags", "observations"])
def test_rows_and_patches_are_those_of_add(path: str, name: str, num_envs: int, continuity: str) -> None:
    """Next observations that the next steps do not have: all, some or none of them, over commits and openings."""
    space, rng = SPACES[name], np.random.default_rng(0)
    space.seed(0)
    options: dict[str, Any] = {
        "num_envs": num_envs, "capacity": 150 * num_envs, "continuity": continuity, "commit_rows": 45,
        "commit_seconds": 1e9, "chunk_rows": 8, "shard_rows": 32, "ragged": "lists",
    }  # fmt: skip
    lead = (num_envs,) if num_envs > 1 else ()
    paths = [f"{path}-{kind}" for kind in ("add", "extend")]
    made = [dr.ReplayBuffer.create(each, space, spaces.Discrete(9), **options) for each in paths]
    for count, share, ends in ((130, 1.0, 0.02), (1, 1.0, 0.0), (90, 0.3, 0.1), (70, 0.0, 0.02), (64, 1.0, 0.0)):
        shape = (count + 1, *lead)
        obs = sampled(space, shape)
        slices = (slice(count), slice(1, count + 1))
        here, there = (map_arrays(lambda part, rows=rows: part[rows], obs) for rows in slices)
        following = swapped(rng.random(shape[:1] + lead)[1:] < share, there, sampled(space, (count, *lead)))
        terminated, truncated, valid = (rng.random((count, *lead)) < p for p in (ends, ends, 1 - ends / 4))
        one, other = made
        for at in range(count):
            o, f = (map_arrays(lambda part, at=at: part[at], each) for each in (here, following))
            flags = terminated[at], truncated[at], valid[at]
            one.add(o, np.zeros(lead, int), np.zeros(lead), f, *flags)
        zeros = np.zeros((count, *lead))
        other.extend(here, zeros.astype(int), zeros, following, terminated, truncated, valid)
        assert shown(one) == shown(other)
        assert one.engine.appender.signs.differing == other.engine.appender.signs.differing
        assert one.engine.appender.signs.episodes == other.engine.appender.signs.episodes
        if count == 90:
            for each in made:
                each.close()
            reopened = {"commit_rows": 45, "commit_seconds": 1e9, "ragged": "lists"}
            made = [dr.ReplayBuffer.open(each, **reopened) for each in paths]
    for each in made:
        each.close()
    assert diff(*paths) is None
    assert all(verify(each).ok for each in paths)


def no_steps(given: Any) -> Any:
    """Nested values as they are where there is no step."""
    if isinstance(given, dict):
        return {key: no_steps(value) for key, value in given.items()}
    return tuple(map(no_steps, given)) if isinstance(given, tuple) else given[:0]


@pytest.mark.parametrize("config", [*CONFIGS, *RAGGED], ids=lambda config: config.name)
def test_no_steps_change_nothing(config: Config, path: str) -> None:
    recording = Recording(config)
    with config.create(path) as buffer:
        for _ in range(2):
            given = rows(recording, 1, 0.0)
            none = no_steps(together(given, config.num_envs))
            buffer.extend(**none)
            buffer.add(**given[0])
            buffer.extend(**none)
        recording.check(buffer)
