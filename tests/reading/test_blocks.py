"""Memory for batches is used again, and never given to two at once."""

import collections
import signal
from collections.abc import Iterator
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import pytest

import diskreplay as dr
from diskreplay.reading import blocks

SHAPE = (blocks.LEAST_BYTES,)


@pytest.fixture(autouse=True)
def no_blocks() -> Iterator[None]:
    with mock.patch.object(blocks, "_blocks", []):
        yield


def test_a_block_is_given_out_again_once_nobody_holds_it() -> None:
    first = blocks.empty(SHAPE, np.uint8)
    address, view = first.ctypes.data, first[5:]
    del first
    second = blocks.empty(SHAPE, np.uint8)
    assert second.ctypes.data != address
    del view
    assert blocks.empty(SHAPE, np.uint8).ctypes.data == address
    assert blocks.empty((2, SHAPE[0]), np.uint8).ctypes.data != address


def test_only_some_are_kept() -> None:
    held = [blocks.empty((SHAPE[0] + 8 * more,), np.uint8) for more in range(blocks.MOST + 3)]
    assert len({one.ctypes.data for one in held}) == blocks.MOST + 3
    assert len(blocks._blocks) == blocks.MOST
    held.clear()
    newest = [block.nbytes for block in blocks._blocks[-blocks.KEPT :]]
    blocks.empty(SHAPE, np.uint8)
    assert [block.nbytes for block in blocks._blocks] == [*newest, SHAPE[0]]


def test_batches_that_wait_in_a_row_go_round() -> None:
    """As those of a loader do, of which more wait than blocks are kept when nobody holds them."""
    waiting = collections.deque(blocks.empty(SHAPE, np.uint8) for _ in range(2 * blocks.KEPT))
    known = {id(block) for block in blocks._blocks}
    for _ in range(100):
        waiting.popleft()
        waiting.append(blocks.empty(SHAPE, np.uint8))
    assert {id(block) for block in blocks._blocks} == known


def test_a_handler_that_asks_in_between_gets_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: between the look at a block's count and its use, a signal's handler got the same one."""
    blocks.empty(SHAPE, np.uint8)
    inner: list[Any] = []
    getrefcount = blocks.sys.getrefcount

    class Counting:
        @staticmethod
        def getrefcount(block: Any) -> int:
            if not inner:
                inner.append(None)
                inner.append(blocks.empty(SHAPE, np.uint8))
            return getrefcount(block) - 1  # this parameter

    monkeypatch.setattr(blocks, "sys", Counting)
    outer = blocks.empty(SHAPE, np.uint8)
    assert not np.shares_memory(outer, inner[1])


def test_a_handler_that_samples_while_the_cache_is_filled(tmp_path: Any) -> None:
    """Regression: it waited for ever for the lock that the interrupted thread held."""
    box = gymnasium.spaces.Box(0, 255, (48, 48), np.uint8)
    with dr.ReplayBuffer.create(tmp_path / "a", box, gymnasium.spaces.Discrete(2), capacity=200) as rb:
        for row in range(100):
            rb.add(np.full((48, 48), row), 0, row, np.full((48, 48), row + 1), False, False)
    with dr.ReplayBuffer.open(tmp_path / "a", mode="r", seed=0) as rb:
        cache, within = rb.engine.streams.cache, []
        keep = cache._keep

        def keeping(*chunk: Any) -> None:
            if not within:
                within.append(None)
                signal.raise_signal(signal.SIGUSR1)
            keep(*chunk)

        def handler(number: int, frame: object) -> None:
            within.append(rb.sample(20))

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            with mock.patch.object(cache, "_keep", keeping):
                batches = [rb.sample(20)]
        finally:
            signal.signal(signal.SIGUSR1, before)
        for batch in (*batches, within[1]):
            np.testing.assert_array_equal(batch.obs[:, 0, 0], batch.reward)
            np.testing.assert_array_equal(batch.next_obs[:, 5, 5], batch.reward + 1)
