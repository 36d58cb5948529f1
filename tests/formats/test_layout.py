"""Layouts and what is left of them in a dataset: given back as they were, or refused in one line."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest

from diskreplay.errors import InputError
from diskreplay.formats.core.layout import Layout, map_leaves, read_description
from diskreplay.schema.columns import Stack

CAMERA = gymnasium.spaces.Box(0, 255, (5, 7), np.uint8)
ARM = gymnasium.spaces.Tuple([gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(3)])
LAYOUT = Layout(
    gymnasium.spaces.Dict({"arm": ARM, "camera": CAMERA}), gymnasium.spaces.Discrete(4),
    {"value": ((2,), np.dtype(np.float64))}, stacks=(Stack(), Stack(), Stack(4)),
)  # fmt: skip


def test_it_comes_back_from_json_and_from_its_text() -> None:
    stored = LAYOUT.to_json()
    assert Layout.from_json(stored, "here") == Layout.from_json(json.dumps(stored), "here") == LAYOUT


def test_shapes_of_a_step() -> None:
    assert {name: shape for name, (shape, _) in LAYOUT.step_shapes.items()} == {
        "obs/arm/0": (2,), "obs/arm/1": (), "obs/camera": (5, 7), "action": (), "value": (2,),
        "reward": (), "terminated": (), "truncated": (),
    }  # fmt: skip
    assert LAYOUT.step_bytes == 8 + 8 + 35 + 8 + 16 + 4 + 1 + 1


def test_leaves_are_changed_where_they_stand() -> None:
    changed = map_leaves(LAYOUT.observation_space, "obs", lambda leaf, name: CAMERA if name == "obs/arm/1" else leaf)
    assert changed == gymnasium.spaces.Dict({"arm": gymnasium.spaces.Tuple([ARM.spaces[0], CAMERA]), "camera": CAMERA})


@pytest.mark.parametrize(
    "change",
    [None, [], "{", {"keys": []}, {"layout": None}, {"layout": {}}, {"layout": "{"}, {"layout": {"columns": {"a": 3}}}],
    ids=str,
)
def test_a_damaged_description_is_named_once(change: Any) -> None:
    whole = {"layout": LAYOUT.to_json(), "keys": {"obs/camera": "camera"}}
    assert read_description(whole, "here") == (LAYOUT, {"camera": "obs/camera"})
    with pytest.raises(InputError, match=r"^here: .*cannot be read") as raised:
        read_description({**whole, **change} if isinstance(change, dict) else change, "here")
    assert str(raised.value).count("cannot be read") == 1
