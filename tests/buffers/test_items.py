"""The ids of all that a view shows."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import lives
from helpers.configs import CONFIGS, WIDE, Config
from helpers.recording import leaves, recorded_in

import diskreplay as dr
from diskreplay.errors import ClosedError


@pytest.mark.usefixtures("both_thresholds")
def test_items_are_what_get_takes(path: str) -> None:
    with lives.create(path) as buffer:
        assert buffer.items().tolist() == []
        for row in range(30):
            buffer.add(**lives.step(0, row, 2), valid=np.array([row % 5 != 4, True]))
        with dr.ReplayBuffer.open(path, stream="other") as other:
            for row in range(7):
                other.add(**lives.step(1, row, 2))
        buffer.commit()
        buffer.refresh()
        for view in (dr.Transition(), dr.Transition(n_step=3), dr.Sequence(4), dr.PaddedEpisodes(8)):
            with dr.ReplayBuffer.open(path, mode="r", view=view, seed=0) as reader:
                items = reader.items()
                assert items.dtype == np.int64
                assert (np.diff(items) > 0).all()
                assert reader.get(items).index.tolist() == items.tolist()
                walked = np.concatenate([batch.index for batch in reader.shuffled(7)])
                assert sorted(walked.tolist()) == items.tolist()
        assert len(buffer.items()) == 54 + 14
    with pytest.raises(ClosedError):
        buffer.items()


@pytest.mark.parametrize("config", [*CONFIGS, *WIDE], ids=lambda config: config.name)
def test_no_items_make_an_empty_batch(config: Config, path: str) -> None:
    with recorded_in(config, path, 9) as (buffer, _):
        one, none = (leaves(buffer.get(buffer.items()[:count])) for count in (1, 0))
    assert [array.shape for array in none] == [(0, *array.shape[1:]) for array in one]
    assert [array.dtype for array in none] == [array.dtype for array in one]
