"""What has no meaning is said by the constructor, or by ``create`` and ``open``, and nothing is made."""

from __future__ import annotations

import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from helpers.view_model import GOAL_CONFIGS, HINDSIGHT, VIEWS, name_of, reward_fn

import diskreplay as dr
from diskreplay.errors import FormatVersionError, InputError, OpenError
from diskreplay.views.registry import from_json
from diskreplay.views.view import View


def box(*shape: int, dtype: Any = np.float32) -> Box:
    return Box(-1, 1, shape, dtype)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dr.Sequence(0), "length must be"),
        (lambda: dr.Sequence(2.0), "length must be"),  # type: ignore[arg-type]
        (lambda: dr.Sequence(1 << 21), "length must be"),
        (lambda: dr.Sequence(3, burn_in=-1), "burn_in must be"),
        (lambda: dr.Sequence(3, stride=0), "stride must be"),
        (lambda: dr.Sequence(3, pad=1), "pad must be True or False, got 1"),  # type: ignore[arg-type]
        (lambda: dr.Sequence(3, across=None), "across must be True or False, got None"),  # type: ignore[arg-type]
        (lambda: dr.Sequence(3, gamma=1.1), "gamma must be 0 to 1, got 1.1"),
        (lambda: dr.PaddedEpisodes(0), "max_length must be"),
        (lambda: dr.PaddedEpisodes(3, float("nan")), "gamma must be 0 to 1, got nan"),
        (lambda: dr.DeltaTimestamps({}, fps=10), "deltas must be seconds by name, such as .*, got {}"),
        (lambda: dr.DeltaTimestamps([0.1], fps=10), "deltas must be seconds by name"),  # type: ignore[arg-type]
        (lambda: dr.DeltaTimestamps({3: [0.1]}), "deltas of 3 must be a list"),  # type: ignore[dict-item]
        (lambda: dr.DeltaTimestamps({"a": []}), "deltas of 'a' must be a list of 1 to 65536 finite numbers .*, got"),
        (lambda: dr.DeltaTimestamps({"a": 0.1}), "deltas of 'a' must be a list"),  # type: ignore[dict-item]
        (lambda: dr.DeltaTimestamps({"a": ["1"]}), "deltas of 'a' must be a list"),  # type: ignore[list-item]
        (lambda: dr.DeltaTimestamps({"a": [0.0, True]}), "deltas of 'a' must be a list"),
        (lambda: dr.DeltaTimestamps({"a": [0.0, float("nan")]}), "deltas of 'a' must be a list"),
        (lambda: dr.DeltaTimestamps({"a": [0.0, float("inf")]}, fps=10), "deltas of 'a' must be a list"),
        (
            lambda: dr.DeltaTimestamps({"b": [0.1], "a": [0.0, 0.1499]}, fps=10),
            "deltas of 'a': 0.1499 s is no multiple of 1/fps = 1/10 s within tolerance_s=0.0001; the nearest is 0.1",
        ),
        (lambda: dr.DeltaTimestamps({"a": [1e6]}, fps=30), "1000000.0 s are 30000000 rows, and 1048576 are allowed"),
        (lambda: dr.DeltaTimestamps({"a": [0.1]}, fps=0), "fps must be a finite number above 0, got 0"),
        (lambda: dr.DeltaTimestamps({"a": [0.1]}, fps="10"), "fps must be a finite number"),  # type: ignore[arg-type]
        (lambda: dr.DeltaTimestamps({"a": [0.1]}, tolerance_s=-1.0), "tolerance_s must be a finite number of at least"),
        (lambda: dr.Hindsight(None), "reward_fn and terminated_fn must be functions"),  # type: ignore[arg-type]
        (lambda: dr.Hindsight(reward_fn, terminated_fn=3), "must be functions"),  # type: ignore[arg-type]
        (lambda: dr.Hindsight(reward_fn, "last"), "one of future, final, episode, random, got 'last'"),  # type: ignore[arg-type]
        (lambda: dr.Hindsight(reward_fn, ratio=1.5), "ratio must be 0 to 1, got 1.5"),
        (lambda: dr.Hindsight(reward_fn, ratio="1"), "ratio must be 0 to 1, got '1'"),  # type: ignore[arg-type]
        (lambda: dr.Hindsight(reward_fn, gamma=-0.5), "gamma must be 0 to 1, got -0.5"),
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        (box(3), {}, "needs a Dict observation space with achieved_goal and desired_goal"),
        (Dict(achieved_goal=box(2)), {}, "needs a Dict observation space"),
        (gymnasium.spaces.Tuple([box(2), box(2)]), {}, "needs a Dict observation space"),
        (Dict(achieved_goal=box(2), desired_goal=box(3)), {}, "must be arrays of one shape"),
        (Dict(achieved_goal=Dict(a=box(2)), desired_goal=Dict(a=box(2))), {}, "must be arrays of one shape"),
        (
            Dict(achieved_goal=box(2, dtype=np.float64), desired_goal=box(2)), {},
            "desired_goal must hold each achieved_goal exactly, got float32 and float64",
        ),
        (
            Dict(camera=box(5, 5), achieved_goal=box(2), desired_goal=box(2)), {"frame_stack": 3},
            "goals must not be stacked, got frame_stack=3",
        ),
    ],
)  # fmt: skip
def test_hindsight_needs_goals(path: str, space: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dr.ReplayBuffer.create(path, space, Discrete(2), capacity=9, view=dr.Hindsight(reward_fn), **options)
    assert not pathlib.Path(path).exists()
    dr.ReplayBuffer.create(path, space, Discrete(2), capacity=9, **options).close()
    with pytest.raises(InputError, match=message):
        dr.ReplayBuffer.open(path, view=dr.Hindsight(reward_fn))
    dr.ReplayBuffer.open(path).close()


def test_a_hindsight_store_is_opened_with_its_function(path: str) -> None:
    GOAL_CONFIGS[0].create(path, view=HINDSIGHT[1]).close()
    with pytest.raises(OpenError, match=r"view is Hindsight\(strategy='final', ratio=1.0\).* give it: open"):
        dr.ReplayBuffer.open(path)
    with dr.ReplayBuffer.open(path, view=HINDSIGHT[1]) as buffer:
        assert buffer.view == HINDSIGHT[1]
    with dr.ReplayBuffer.open(path, mode="r", view=dr.Transition()) as buffer:
        assert buffer.view == dr.Transition()


@pytest.mark.parametrize("view", [*VIEWS, *HINDSIGHT], ids=name_of)
def test_views_as_json(view: Any) -> None:
    assert isinstance(view, View)
    stored = view.to_json()
    assert stored["kind"] == type(view).__name__
    if not isinstance(view, dr.Hindsight):
        assert from_json(stored) == view


@pytest.mark.parametrize("stored", [{"kind": "Sequence"}, {"kind": "PaddedEpisodes", "max_length": []}, {"kind": "?"}])
def test_a_stored_view_of_another_version(path: str, stored: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(dr.Sequence, "to_json", lambda self: stored)
        dr.ReplayBuffer.create(path, box(3), Discrete(2), view=dr.Sequence(3), capacity=9).close()
    with pytest.raises(FormatVersionError, match="not one of this version"):
        dr.ReplayBuffer.open(path)
    dr.ReplayBuffer.open(path, view=dr.Sequence(3)).close()


@pytest.mark.parametrize("name", ["reward_fn", "terminated_fn"])
@pytest.mark.parametrize("answer", [0.0, np.zeros(3), np.zeros((4, 2)), [[0.0] * 4]])
def test_functions_that_answer_wrongly(path: str, name: str, answer: Any) -> None:
    functions: dict[str, Any] = {"reward_fn": reward_fn, name: lambda *given: answer}
    with GOAL_CONFIGS[0].create(path, view=dr.Hindsight(**functions, ratio=1.0)) as buffer:
        goal = {"observation": np.zeros(3, np.float32), "achieved_goal": np.zeros(2), "desired_goal": np.ones(2)}
        for _ in range(6):
            buffer.add(goal, 0, 0.0, goal, False, False)
        with pytest.raises(InputError, match=f"{name} must return 4 values for 4 goals, got shape"):
            buffer.sample(4)
        assert not buffer.get([0]).relabelled.any()
