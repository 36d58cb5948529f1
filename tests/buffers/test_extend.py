"""Many steps at once are just those steps one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.configs import CONFIGS, RAGGED, Config
from helpers.effort import examples
from helpers.model import KINDS, arguments
from helpers.recording import Recording, reopen

import diskreplay as dr
from diskreplay.errors import InputError


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


@pytest.mark.long(quick=10)
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


def test_commits_come_as_they_come_with_add(path: str) -> None:
    config = CONFIGS[0]
    recording = Recording(config)
    with config.create(path, commit_rows=7) as buffer:
        for count in (3, 9, 30):
            given = rows(recording, count, 0.0)
            buffer.extend(**together(given, config.num_envs))
            end, committed = (buffer.stats()["streams"]["0"][name] for name in ("end", "committed"))
            assert committed == end // 7 * 7


def test_nothing_is_added_where_one_step_is_wrong(path: str) -> None:
    config = CONFIGS[0]
    recording = Recording(config)
    with config.create(path) as buffer:
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
