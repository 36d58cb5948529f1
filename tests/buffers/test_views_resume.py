"""A checkpoint in the middle of an episode goes on bit for bit, with every view and every sampler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.configs import CONFIGS
from helpers.effort import examples
from helpers.model import arguments
from helpers.recording import Recording, recorded_in, recorded_store, reopen
from helpers.view_model import GOAL_CONFIGS, HINDSIGHT, content, name_of

import diskreplay as dr
from diskreplay.errors import InputError, OpenError, SamplerWarning

VIEWS = [
    (CONFIGS[4], dr.Transition(3, 0.9)),
    (CONFIGS[14], dr.Sequence(4, burn_in=2)),
    (CONFIGS[2], dr.Sequence(3, stride=2, pad=False, across=True)),
    (CONFIGS[18], dr.PaddedEpisodes(6)),
    *zip(GOAL_CONFIGS, HINDSIGHT, strict=True),
]
ROUNDS = examples(1000, "samples")
SAMPLERS: dict[str, Any] = {
    "uniform": dr.Uniform,
    "proportional": lambda: dr.Proportional(0.7, 0.4, beta_schedule=(1.0, 600)),
    "by rank": lambda: dr.RankBased(0.6, 0.5),
}


def go_on(buffer: dr.ReplayBuffer, recording: Recording, rows: list[Any], rounds: int = ROUNDS) -> list[bytes]:
    """Samples and updates, with the given rows in between; everything that came out."""
    seen = []
    for at in range(rounds):
        batch = buffer.sample(1 + at % 3)
        seen.append(content(batch))
        if not isinstance(buffer.sampler, dr.Uniform):
            buffer.update_priorities(batch.index, np.sin(batch.index + at))
        if at % 50 == 7:
            buffer.add(**arguments(recording.config.obs, rows[at // 50]))
    return seen


@pytest.mark.long
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(("config", "view"), VIEWS, ids=lambda each: name_of(each) if hasattr(each, "gamma") else "")
def test_a_thousand_samples_and_updates_are_the_same(path: str, config: Any, view: Any, sampler: str) -> None:
    with recorded_in(config, path, 30, seed=8, view=view, sampler=SAMPLERS[sampler]()) as (buffer, recording):
        go_on(buffer, recording, [recording.actor.row(["step"], False)], rounds=31)
        recording.add(buffer, 5, special=0.0)
        assert not any(step.terminated or step.truncated for step in recording.log.rows[-1])
        buffer.checkpoint("here")
        rows = [recording.actor.row([["step"], ["terminate"]][at % 6 == 4], False) for at in range(20)]
        expected = go_on(buffer, recording, rows)
    given = {"view": view} if isinstance(view, dr.Hindsight) else {}
    with reopen(config, path, checkpoint="here", seed=99, **given) as buffer:
        assert (buffer.view, go_on(buffer, recording, rows)) == (view, expected)


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_checkpoint_of_hindsight_says_to_give_the_view(path: str, mode: Any) -> None:
    config = GOAL_CONFIGS[0]
    recorded_store(config, path, 9)
    with reopen(config, path, view=HINDSIGHT[0]) as buffer:
        buffer.checkpoint("here")
        expected = content(buffer.sample(5))
    with pytest.raises(OpenError, match=r"reward_fn cannot be stored; give it: open\(path, view=Hindsight"):
        dr.ReplayBuffer.open(path, mode=mode, checkpoint="here")
    with dr.ReplayBuffer.open(path, mode=mode, checkpoint="here", view=HINDSIGHT[0]) as buffer:
        assert content(buffer.sample(5)) == expected


def test_priorities_of_other_items_are_not_taken_over(path: str) -> None:
    """They would give mass to what is no item of the new view."""
    config = CONFIGS[2]
    with recorded_in(config, path, 9, view=dr.Sequence(3), sampler=dr.Proportional()) as (buffer, _):
        buffer.sample(3)
        buffer.checkpoint("here")
    for view in (dr.Sequence(4), dr.Transition(), dr.PaddedEpisodes(3)):
        with pytest.raises(InputError, match="give a new sampler, too"):
            dr.ReplayBuffer.open(path, checkpoint="here", view=view)
        with pytest.warns(SamplerWarning, match="its priorities are those of items of"):
            buffer = dr.ReplayBuffer.open(path, mode="r", checkpoint="here", view=view, sampler=dr.Proportional())
        with buffer:
            assert buffer.view == view
    with dr.ReplayBuffer.open(path, checkpoint="here", view=dr.Sequence(3, gamma=0.5)) as buffer:
        assert (buffer.sample(3).discount <= 0.5).all()


@pytest.mark.parametrize("rows", [1, 5, 30])
def test_an_empty_window_is_opened_again(path: str, rows: int) -> None:
    """After ``clear``, and nothing since."""
    with recorded_in(CONFIGS[2], path, rows, commit=True) as (buffer, recording):
        buffer.clear()
    with reopen(CONFIGS[2], path) as buffer:
        assert len(buffer) == 0
        recording.log.cleared = rows
        recording.add(buffer, 7)
        recording.check(buffer)
