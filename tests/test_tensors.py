"""Arrays of others, as far as they need no library; the rest is in ``tests/interop/test_foreign_arrays.py``."""

from __future__ import annotations

import collections
import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from helpers.programs import printed

import diskreplay as dr
from diskreplay.checks import arrays, check_array
from diskreplay.errors import InputError

Pair = collections.namedtuple("Pair", "one other")
HIDDEN = np.ma.array([1.0, 2.0], mask=[False, True])


class Sparse:
    """As scipy's and JAX's sparse arrays are known."""

    def todense(self) -> Any:
        raise AssertionError


def test_what_needs_no_change_is_itself() -> None:
    for value in (np.zeros(3), 1, 1.5, True, "a", None, np.float32(1), [1, 2.0], (1, None), Box(0, 1), object()):
        assert arrays("x", value) is value
    nested = {"a": Pair([np.zeros(2)], ({"b": 1},))}
    found = arrays("x", nested)
    assert found == nested
    assert type(found["a"]) is Pair
    assert found["a"].one[0] is nested["a"].one[0]


@pytest.mark.parametrize("hidden", [HIDDEN, np.ma.masked, HIDDEN[1], np.ma.array([[1]], mask=True), Sparse()])
@pytest.mark.parametrize(
    "within",
    [lambda x: x, lambda x: [0.0, x], lambda x: ([x],), lambda x: {"b": (np.zeros(1), x)}, lambda x: Pair(1, x)],
)
def test_what_hides_values_is_refused_by_name_wherever_it_stands(hidden: Any, within: Any) -> None:
    with pytest.raises(InputError, match=r"^x(\['b'\])?: must (be dense|have no masked values), got "):
        arrays("x", within(hidden))


def test_a_masked_array_that_masks_nothing_goes_in() -> None:
    found = check_array("x", np.ma.array([1, 2], mask=[False, False]))
    assert type(found) is np.ndarray
    assert found.tolist() == [1, 2]


def test_what_is_no_array_is_refused_by_name() -> None:
    class Broken:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise RuntimeError("on a device")

    for value, message in (([[1], [1, 2]], "ragged"), (Broken(), "Broken: on a device"), ([Broken()], "on a device")):
        with pytest.raises(InputError, match=f"^x: must be an array, got .*{message}"):
            check_array("x", value)


def test_nothing_is_added_and_an_environment_is_not_stepped_by_what_is_refused(tmp_path: pathlib.Path) -> None:
    class Env(gymnasium.Env[Any, Any]):
        observation_space, action_space = Box(-9, 9, (2,), np.float32), Box(-9, 9, (2,), np.float32)
        steps = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            self.steps += 1
            return np.zeros(2, np.float32), HIDDEN[1] if self.steps == 2 else 0.0, False, False, {}

    with dr.Record(Env(), tmp_path / "a.replay", capacity=9) as env:
        env.reset()
        with pytest.raises(InputError, match=r"^action: must have no masked values"):
            env.step(HIDDEN)
        assert (env.unwrapped.steps, len(env.buffer)) == (0, 0)
        env.step(np.ma.array([1, 2], dtype=np.float32))
        with pytest.raises(InputError, match=r"^reward: must have no masked values"):
            env.step(np.zeros(2))
        assert len(env.buffer) == 1
        for call in (
            lambda: env.buffer.add(HIDDEN, np.zeros(2), 0.0, np.zeros(2), False, False),
            lambda: env.buffer.get(np.ma.array([0], mask=True)),
            lambda: env.buffer.annotate_episode(goal=HIDDEN),
            lambda: env.buffer.cut(np.ma.array([True], mask=True)),
        ):
            with pytest.raises(InputError, match="must have no masked values"):
                call()
        assert (len(env.buffer), env.buffer.episodes[0].facts) == (1, {})


def test_torch_is_not_imported(tmp_path: pathlib.Path) -> None:
    printed(f"""
        import sys, numpy as np, diskreplay as dr
        from gymnasium.spaces import Box, Discrete
        with dr.ReplayBuffer.create({str(tmp_path / "a")!r}, Box(-9, 9, (2,)), Discrete(2), capacity=9) as rb:
            rb.add([0, 0], np.ma.array(1), 0.0, (0.0, np.float32(1)), False, False)
        assert "torch" not in sys.modules
    """)
