"""Columns in RAM, copied by compiled code and by numpy: the same bits."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from helpers.configs import CONFIGS, WIDE, Config
from helpers.recording import Recording, reopen
from helpers.view_model import GOAL_CONFIGS, HINDSIGHT, VIEWS, content

import diskreplay as dr
from diskreplay.errors import NotEnoughDataError
from diskreplay.reading import planner
from diskreplay.reading.reads import Reads
from diskreplay.reading.resident import ResidentTable
from diskreplay.reading.samples import Samples
from diskreplay.schema.columns import START, TERMINATED


def by_numpy() -> Any:
    return mock.patch.object(ResidentTable, "gather", return_value=None)


@pytest.mark.long(quick=6)
@pytest.mark.parametrize("config", [*CONFIGS, *WIDE, *GOAL_CONFIGS], ids=repr)
def test_batches_have_the_same_bits(path: str, config: Config) -> None:
    """With final observations, two streams, padding, and a window that has moved on and whose ring has grown."""
    views = VIEWS + (HINDSIGHT if config in GOAL_CONFIGS else [])
    compared = 0
    with config.create(path) as buffer, reopen(config, path, stream="b", num_envs=1, capacity=17) as other:
        Recording(config).add(buffer, 45, 0.3)
        Recording(Config("b", config.obs, frame_stack=config.frame_stack, several_actions=config.several_actions,
                         columns=config.columns), seed=1).add(other, 30, 0.3)  # fmt: skip
        other.commit()
        for _ in range(2):
            for view in views:
                buffer.draws.view = buffer.draws.shown = view
                state = buffer.engine.rng.bit_generator.state
                try:
                    found = [content(buffer.sample(size)) for size in (1, 7)]
                except NotEnoughDataError:
                    continue
                buffer.engine.rng.bit_generator.state = state
                with by_numpy():
                    assert found == [content(buffer.sample(size)) for size in (1, 7)]
                compared += 1
            buffer.refresh()
    assert compared > len(views)


def test_every_array_is_given_out_once(path: str) -> None:
    """A view may ask for a column twice, and write into one of its arrays."""
    config = CONFIGS[0]
    with config.create(path) as buffer:
        Recording(config).add(buffer, 12)
        streams = buffer.engine.streams
        samples = Samples(buffer.schema, streams.all, buffer.sample(5).index, reads=Reads(tables=streams.tables))
        samples.gather()
        for name in (TERMINATED, START, "obs"):
            one, other = samples.resident(name), samples.resident(name)
            np.testing.assert_array_equal(one, other)
            assert not np.shares_memory(one, other)


def test_small_batches_are_copied_compiled_and_large_by_numpy(path: str) -> None:
    config = CONFIGS[0]
    with config.create(path) as buffer:
        Recording(config).add(buffer, 12)
        tables = buffer.engine.streams.tables
        assert tables is not None
        place, none = np.arange(2500), np.zeros(2500, np.int64)
        rows = none + tables.streams[0].log.begin
        with mock.patch.object(planner, "gather", wraps=planner.gather) as compiled:

            def gather(count: int, size: int) -> Any:
                ids, to = rows[:count], place[:count]
                return tables.resident.gather(tables.logs.facts, tables.drawn(ids), ids, to, size, partial=False)

            assert gather(8, 8) is not None
            assert compiled.call_count == 1
            assert gather(2500, 1 << 20) is None
            assert compiled.call_count == 1
            assert isinstance(buffer.sample(3), dr.Batch)
            assert compiled.call_count == 2
