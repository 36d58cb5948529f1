"""Columns in RAM, copied by compiled code and by numpy: the same bits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest
from helpers.configs import CONFIGS, WIDE, Config
from helpers.recording import Recording, recorded_in, reopen
from helpers.view_model import GOAL_CONFIGS, HINDSIGHT, VIEWS, content

from diskreplay.buffers.draws import Draws
from diskreplay.errors import NotEnoughDataError
from diskreplay.native import core
from diskreplay.reading.reads import Reads
from diskreplay.reading.samples import Samples
from diskreplay.schema.columns import START, TERMINATED


@contextlib.contextmanager
def by_numpy() -> Iterator[None]:
    with (
        mock.patch.object(Draws, "at_once", return_value=None),
        mock.patch.object(Samples, "gather", return_value=None),
    ):
        yield


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
    with recorded_in(config, path, 12) as (buffer, _):
        streams = buffer.engine.streams
        samples = Samples(buffer.schema, streams.all, buffer.sample(5).index, reads=Reads(addresses=streams.addresses))
        samples.gather()
        for name in (TERMINATED, START, "obs"):
            one, other = samples.resident(name), samples.resident(name)
            np.testing.assert_array_equal(one, other)
            assert not np.shares_memory(one, other)


def test_small_batches_are_copied_compiled_and_large_by_numpy(path: str) -> None:
    config = CONFIGS[0]
    with recorded_in(config, path, 12) as (buffer, _):
        where = buffer.engine.streams.addresses
        assert where is not None
        assert where.rows is not None
        ids = np.full(1 << 20, where.streams[0].log.first_id)
        place = np.arange(len(ids))
        found = where.rows.gather(ids[:8], place[:8], 8)
        assert found is not None
        assert {"obs", core.NEXT_OWN + "obs", TERMINATED} < found.keys()
        assert where.rows.gather(ids, place, len(ids)) is None
        assert where.rows.gather(ids[:8] + (1 << 40), place[:8], 8) is None
        for wrong in (np.array([8]), np.array([-1]), np.array([1 << 62]), np.array([0, 1])):
            with pytest.raises(IndexError, match="has a place"):
                where.rows.gather(ids[:1], wrong, 8)
