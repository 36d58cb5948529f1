"""Every sampler works with every view: what it draws are items, and priorities are those of items."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.effort import examples
from helpers.priority_model import chi_square
from helpers.recording import recorded_in
from helpers.view_model import GOAL_CONFIGS, HINDSIGHT, VIEWS, check, items, name_of

import diskreplay as dr
from diskreplay.errors import InputError

SAMPLERS: dict[str, Any] = {
    "uniform": dr.Uniform,
    "proportional": lambda: dr.Proportional(0.8, 0.5),
    "by environment": lambda: dr.Proportional(0.8, 0.5, by_env=True),
    "by rank": lambda: dr.RankBased(0.8, 0.5),
}


@pytest.mark.long(quick=8)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("view", [*VIEWS, *HINDSIGHT], ids=name_of)
def test_sample_update_sample(path: str, view: Any, sampler: str) -> None:
    config = GOAL_CONFIGS[2]
    with recorded_in(config, path, seed=11, view=view, sampler=SAMPLERS[sampler]()) as (buffer, recording):
        for _ in range(3):
            recording.add(buffer, 18)
            for at in range(4):
                batch = buffer.sample(6)
                check(batch, view, [recording.log])
                if sampler != "uniform":
                    buffer.update_priorities(batch.index, np.sin(batch.index + at))
        if sampler == "uniform":
            with pytest.raises(InputError, match="has no priorities"):
                buffer.update_priorities(batch.index, batch.reward)
            return
        there = items(view, [recording.log])
        every = np.arange(recording.log.begin * 2, recording.log.end * 2)
        never = sorted(set(every.tolist()) - set(there))
        if never:
            with pytest.raises(InputError, match=f"index {never[0]} names no transition that can be sampled"):
                buffer.update_priorities([there[0], never[0]], [1.0, 1.0])


@pytest.mark.long
@pytest.mark.parametrize("view", [dr.Sequence(3, stride=2), dr.PaddedEpisodes(4)], ids=name_of)
def test_priorities_of_items_decide(path: str, view: Any) -> None:
    """By the chances that the sampler itself names, and the paper's formula."""
    config = GOAL_CONFIGS[2]
    with recorded_in(config, path, 60, seed=11, view=view, sampler=dr.Proportional(1.0, 1.0, epsilon=1e-9)) as (
        buffer,
        recording,
    ):
        there = items(view, [recording.log])
        errors = np.arange(1.0, len(there) + 1)
        buffer.update_priorities(there, errors)
        batches = [buffer.sample(10) for _ in range(examples(600, "draws", least=300))]
        chances = dict(zip(there, errors / errors.sum(), strict=True))
        assert chi_square(np.concatenate([batch.index for batch in batches]), chances) <= 1
        for batch in batches[:20]:
            np.testing.assert_allclose(batch.weight, [1 / errors.sum() / chances[each] for each in batch.index], 1e-5)
