"""What a batch shows of itself, and what is said where there can be none."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay as dr
from diskreplay.errors import InputError, NotEnoughDataError, SchemaError


def create(path: pathlib.Path, **options: Any) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.create(
        path / "a.replay", Box(-9, 9, (2,), np.float32), Discrete(2), **{"capacity": 1000, **options}
    )


def episodes(buffer: dr.ReplayBuffer, lengths: list[int]) -> None:
    for length in lengths:
        for at in range(length):
            buffer.add([at, 0], 0, 0.0, [at + 1, 0], at == length - 1, False)


def test_a_batch_shows_shapes_and_dtypes(tmp_path: pathlib.Path) -> None:
    space = Dict(a=Box(0, 255, (4, 4), np.uint8), b=Discrete(3))
    with dr.ReplayBuffer.create(
        tmp_path / "a.replay", space, Discrete(2), capacity=10, columns={"value": np.float32}
    ) as buffer:  # fmt: skip
        given = {"a": np.zeros((4, 4), np.uint8), "b": 1}
        buffer.add(given, 0, 0.0, given, False, False, value=1)
        shown = repr(buffer.sample(1))
    assert shown.startswith("Batch(obs={a: uint8[1, 4, 4], b: int64[1]}, action=int64[1], reward=float32[1], ")
    assert "extra={value: float32[1]}" in shown


def test_padding_has_one_name(tmp_path: pathlib.Path) -> None:
    with create(tmp_path, view=dr.PaddedEpisodes(6)) as buffer:
        episodes(buffer, [3, 5])
        batch = buffer.sample(4)
    assert isinstance(batch, dr.EpisodeBatch)
    assert batch.mask.shape == (4, 6)
    assert not hasattr(batch, "filled")


@pytest.mark.parametrize(
    ("view", "lengths", "capacity", "said"),
    [
        (dr.Sequence(40, pad=False), [20] * 5, 1000, "the longest of the episodes that ended has 20; .*pad=True"),
        (dr.Sequence(5, burn_in=30), [20] * 5, 1000, "a sequence has 31 steps, and the longest .* has 20"),
        (dr.Sequence(40, pad=False), [20] * 5, 30, "no sequence of 40 steps fits into windows of 30 rows"),
        (dr.Sequence(40, pad=False, across=True), [20], 1000, "add more steps"),
        (dr.Sequence(40, pad=False), [], 1000, "the buffer holds 0 transitions; add more steps"),
    ],
)
def test_why_nothing_can_be_sampled(
    tmp_path: pathlib.Path, view: dr.Sequence, lengths: list[int], capacity: int, said: str
) -> None:
    with create(tmp_path, view=view, capacity=capacity) as buffer:
        episodes(buffer, lengths)
        with pytest.raises(NotEnoughDataError, match=said):
            buffer.sample(1)


@pytest.mark.parametrize(
    ("shape", "asks"), [((12, 84, 84), 0), ((84, 84, 12), -1), ((16, 8, 8), 0), ((84, 84, 3), None), ((20, 8, 8), None)]
)
def test_a_stack_of_colour_frames_is_asked_about(tmp_path: pathlib.Path, shape: Any, asks: int | None) -> None:
    space = Box(0, 255, shape, np.uint8)

    def made(name: str, **options: Any) -> dr.ReplayBuffer:
        return dr.ReplayBuffer.create(tmp_path / name, space, Discrete(2), capacity=10, frame_stack=4, **options)

    if asks is None:
        made("a").close()
        return
    with pytest.raises(SchemaError, match=f"say stack_axis={asks} if it does, stack_axis=None"):
        made("a")
    made("b", stack_axis=None).close()
    with made("c", stack_axis=asks) as buffer:
        assert buffer.schema.stacks[0].channels


@pytest.mark.parametrize("which", ["obs", "next_obs"])
@pytest.mark.parametrize("bad", [np.zeros(3), "x", [[1], [1, 2]], [np.nan, 0.0]])
def test_a_bad_observation_is_named(tmp_path: pathlib.Path, which: str, bad: Any) -> None:
    with create(tmp_path, finite=True) as buffer:
        given: dict[str, Any] = {"obs": [0.0, 0.0], "next_obs": [0.0, 0.0], which: bad}
        with pytest.raises(InputError, match=f"^{which}: "):
            buffer.add(given["obs"], 0, 0.0, given["next_obs"], False, False)


@pytest.mark.long(quick=23)
@pytest.mark.parametrize(
    ("shape", "axis", "options"),
    [
        ((40, 40), None, {"frame_stack": 4}),
        ((4, 40, 40), 0, {"frame_stack": 4}),
        ((40, 40, 4), -1, {"frame_stack": 4}),
        ((12, 40, 40), 0, {"frame_stack": 4}),
        ((40, 40, 12), -1, {"frame_stack": 4}),
        ((40, 40), None, {}),
        ((3,), None, {"frame_stack": 3}),
    ],
)
@pytest.mark.parametrize("view", [dr.Transition(), dr.Transition(n_step=3), dr.Sequence(5), dr.PaddedEpisodes(7)])
def test_arrays_of_a_batch_share_no_memory(
    tmp_path: pathlib.Path, shape: Any, axis: Any, options: Any, view: Any
) -> None:
    """Normalising one in place must not change another."""
    space, rng = Box(0, 255, shape, np.uint8), np.random.default_rng(0)
    with dr.ReplayBuffer.create(
        tmp_path / "a.replay", space, Discrete(2), capacity=100, stack_axis=axis, view=view, chunk_rows=4, **options
    ) as buffer:
        given = rng.integers(0, 255, (31, *shape), np.uint8)
        for at in range(30):
            buffer.add(given[at], 0, 0.0, given[at + 1], at % 10 == 9, False)
        batch = buffer.sample(3)
        again = buffer.get(batch.index)
    arrays = {name: value for name, value in vars(batch).items() if isinstance(value, np.ndarray)}
    for name, array in arrays.items():
        assert not any(np.shares_memory(array, other) for what, other in arrays.items() if what != name), name
    batch.obs[...] = 7
    np.testing.assert_array_equal(batch.next_obs, again.next_obs)


def test_a_batch_is_normalised_as_users_write_it(tmp_path: pathlib.Path) -> None:
    """``batch.obs /= 255`` is a change in place and an assignment: an error after the change would leave it done."""
    with create(tmp_path) as buffer:
        episodes(buffer, [20])
        batch = buffer.sample(4)
        again = buffer.get(batch.index)
    batch.obs /= 2
    batch.reward = batch.reward - 1
    np.testing.assert_array_equal(batch.obs, again.obs / 2)
    np.testing.assert_array_equal(batch.next_obs, again.next_obs)
    batch.advantage = batch.reward  # type: ignore[attr-defined]
    np.testing.assert_array_equal(batch.map(np.copy).reward, again.reward - 1)
