"""The frames a second of windows by time, where a store's video tells them."""

from __future__ import annotations

import dataclasses
import fractions
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.packets import clip

import diskreplay as dr
from diskreplay.errors import InputError


@pytest.mark.parametrize("told", [None, {}, {"robot": "so101"}])
def test_windows_by_time_know_the_frames_a_second(told: Any, path: str) -> None:
    shown = clip(count=9)
    facts, slow = (dataclasses.replace(shown.facts, fps=fps) for fps in (fractions.Fraction(30000, 1001), 10))
    view = dr.DeltaTimestamps({"at": [-1001 / 30000, 0.0]})
    pair = spaces.Dict({"a": spaces.Box(0, 255, facts.shape, np.uint8), "at": spaces.Discrete(99)})

    def record(where: str, video: dict[str, dr.Video], **options: Any) -> None:
        columns = {"wrist": (facts.shape, np.uint8)}
        arguments = {"capacity": 20, "columns": columns, "provenance": told, **options}
        with dr.ReplayBuffer.create(where, pair, spaces.Discrete(2), video=video, **arguments) as rb:
            for at in range(8):
                now, after = ({"a": shown.values[number], "at": number} for number in (at, at + 1))
                rb.add(now, 0, 0.0, after, False, False, wrist=shown.values[at])

    record(path, {"a": facts, "wrist": facts}, view=view)
    with dr.open(path) as rb:
        assert rb.view == dr.DeltaTimestamps(view.deltas, fps=30000 / 1001)
        assert rb.get([3]).obs["at"].tolist() == [[2, 3]]
    record(f"{path}.two", {"a": facts, "wrist": slow})
    with pytest.raises(InputError, match=r"the video columns differ, 29\.97 of 'obs/a', 10 of 'wrist': give fps="):
        dr.open(f"{path}.two", view=view)
    with dr.open(f"{path}.two", view=dr.DeltaTimestamps({"at": [0.1]}, fps=10)) as rb:
        assert rb.get([3]).obs["at"].tolist() == [[4]]
    record(f"{path}.told", {"a": facts, "wrist": slow}, provenance={"fps": 5})
    with dr.open(f"{path}.told", view=dr.DeltaTimestamps({"at": [0.2]})) as rb:
        assert rb.get([3]).obs["at"].tolist() == [[4]]
