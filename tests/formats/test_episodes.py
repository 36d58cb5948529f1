"""Episodes one after another, against lists of steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from gymnasium import spaces

from diskreplay.errors import InputError
from diskreplay.formats.core.episodes import (
    array_slice,
    episode_blocks,
    episodes_source,
    reshaped,
    widest,
)
from diskreplay.formats.core.flat import FlatArrays
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.transitions import Transitions


def blocks(lengths: list[int], size: int, open_end: bool) -> Iterator[Transitions]:
    """Steps that count up, in blocks of ``size``."""
    last = np.concatenate([np.arange(length) == length - 1 for length in lengths])
    if open_end:
        last[-1] = False
    values, none = np.arange(len(last), dtype=np.float32), np.zeros(len(last), bool)
    whole = Transitions({"obs": values}, {"obs": values + 1}, {"action": values}, {}, values, none, none, last)
    for start in range(0, len(last), size):
        yield whole.span(start, min(start + size, len(last)))


@pytest.mark.parametrize("open_end", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_numbered(size: int, open_end: bool) -> None:
    lengths = [3, 1, 1, 7, 4]
    found: dict[int, list[float]] = {}
    ended = []
    for piece in episode_blocks(blocks(lengths, size, open_end)):
        steps = found.setdefault(piece.number, [])
        assert piece.start == len(steps)
        steps += piece.steps.reward.tolist()
        assert piece.stop == len(steps)
        if piece.ends:
            ended.append(piece.number)
    starts = np.cumsum([0, *lengths])
    assert found == {n: list(range(starts[n], starts[n + 1])) for n in range(len(lengths))}
    assert ended == list(range(len(lengths)))


def test_nothing_is_numbered() -> None:
    assert list(episode_blocks([])) == []


def test_parts() -> None:
    base = np.arange(60).reshape(10, 6)
    view = array_slice(base, 3, 8)
    assert view.shape == (5, 6)
    for rows in (slice(None), slice(0, 2), slice(2, 9), slice(4, 4), slice(5, 3), slice(-2, None)):
        np.testing.assert_array_equal(view[rows], base[3:8][rows])
    np.testing.assert_array_equal(reshaped(base, (2, 3))[slice(1, 4)], base[1:4].reshape(3, 2, 3))
    assert reshaped(base, (6,)) is base
    assert reshaped(base, (4,)) is base  # what does not fit is told by whoever compares shapes


def test_the_widest_space() -> None:
    found = widest(
        [
            spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1, 1)),
            spaces.Dict(a=spaces.Discrete(5), b=spaces.Box(-2, 2)),
            spaces.Dict(a=spaces.Discrete(3, start=-1), b=spaces.Box(-1, 1)),
        ]
    )
    assert found == spaces.Dict(a=spaces.Discrete(6, start=-1), b=spaces.Box(-1, 1))


def test_lengths_are_checked() -> None:
    def opened(number: int, layout: Layout | None) -> FlatArrays:
        last = np.arange(3) == 2
        return FlatArrays(
            f"episode {number}", {"obs": np.zeros((3, 2))}, {"action": np.zeros(3, int)}, last, ~last, last
        )

    assert sum(map(len, episodes_source("here", [0, 1], [3, 3], opened).blocks())) == 6
    with pytest.raises(InputError, match="episode 1: ragged lengths: 4 steps are declared"):
        list(episodes_source("here", [0, 1], [3, 4], opened).blocks())
    with pytest.raises(InputError, match="here: there is no episode"):
        episodes_source("here", [], [], opened)
