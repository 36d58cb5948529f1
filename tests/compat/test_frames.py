"""`compat.frames` against a plain list of frames that does what its document says."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import diskreplay as dr
from diskreplay.compat.frames import ReplayBuffer
from diskreplay.errors import InputError, NotEnoughDataError, StateError

Effect = tuple[int, float, bool]


class Oracle:
    """Frames and effects in lists; a stack is built frame by frame, backwards from its newest."""

    def __init__(self, size: int, history: int) -> None:
        self.size, self.history = size, history
        self.frames: list[np.ndarray] = []
        self.effects: list[Effect | None] = []

    def store_frame(self, frame: np.ndarray) -> int:
        self.frames.append(frame.copy())
        self.effects.append(None)
        return (len(self.frames) - 1) % self.size

    def store_effect(self, *effect: Any) -> None:
        self.effects[-1] = effect

    def stack(self, number: int) -> np.ndarray:
        newest = self.frames[number]
        if newest.ndim == 1:
            return newest
        found = [newest]
        while len(found) < self.history:
            number -= 1
            if number < 0 or (self.effects[number] or (0, 0, False))[2]:
                found = [np.zeros_like(newest)] * (self.history - len(found)) + found
            else:
                found.insert(0, self.frames[number])
        return np.concatenate(found, 2)

    @property
    def held(self) -> range:
        return range(max(0, len(self.frames) - self.size), len(self.frames))

    @property
    def transitions(self) -> list[tuple[Any, ...]]:
        found = []
        for number in self.held:
            effect = self.effects[number]
            if effect is not None and number + 1 < len(self.frames):
                obs = self.stack(number)
                following = np.zeros_like(obs) if effect[2] else self.stack(number + 1)
                found.append((obs, *effect[:2], following, float(effect[2])))
        return found


FRAMES = {
    "grey": ((6, 5, 1), np.uint8), "colour": ((4, 3, 3), np.uint8), "state": ((7,), np.uint8),
    "floats": ((3,), np.float64), "float images": ((4, 4, 1), np.float32),
}  # fmt: skip


def play(buffer: ReplayBuffer, oracle: Oracle, rng: np.random.Generator, kind: str, steps: int) -> None:
    shape, dtype = FRAMES[kind]
    for _ in range(steps):
        frame = rng.integers(1, 256, shape).astype(dtype)
        idx = buffer.store_frame(frame)
        assert idx == oracle.store_frame(frame)
        frame[...] = 0  # the caller may use its array again
        np.testing.assert_array_equal(buffer.encode_recent_observation(), oracle.stack(len(oracle.frames) - 1))
        if rng.random() >= 0.1:
            effect = int(rng.integers(-5, 5)), float(np.float32(rng.normal())), bool(rng.random() < 0.2)
            buffer.store_effect(idx, *effect)
            oracle.store_effect(*effect)


def assert_alike(buffer: ReplayBuffer, oracle: Oracle) -> None:
    expected = sorted(oracle.transitions, key=lambda step: step[2])
    count = len(expected)
    assert buffer.num_in_buffer == len(oracle.held)
    assert buffer.next_idx == len(oracle.frames) % oracle.size
    assert buffer.can_sample(count)
    assert not buffer.can_sample(count + 1)
    with pytest.raises(NotEnoughDataError):
        buffer.sample(count + 1)
    for number in oracle.held:
        idx = number % oracle.size
        np.testing.assert_array_equal(buffer.obs[idx], oracle.frames[number])
        assert (buffer.action[idx], buffer.reward[idx], buffer.done[idx]) == (oracle.effects[number] or (0, 0, False))
    if not count:
        return
    fields = buffer.sample(count)
    obs, action, reward, next_obs, done = fields
    assert obs.shape == next_obs.shape == (count, *expected[0][0].shape)
    assert action.shape == reward.shape == done.shape == (count,)
    kinds = [expected[0][0].dtype, np.int32, np.float32, expected[0][0].dtype, np.float32]
    assert [field.dtype for field in fields] == kinds
    for mine, theirs in zip(sorted(zip(*fields, strict=True), key=lambda step: step[2]), expected, strict=True):
        for got, want in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.long(quick=5)
@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("history", [1, 2, 4])
@pytest.mark.parametrize("size", [2, 13, 200])
def test_frames_come_back_as_the_oracle_stacks_them(kind: str, history: int, size: int) -> None:
    rng = np.random.default_rng([history, size])
    buffer, oracle = ReplayBuffer(size, history, seed=1), Oracle(size, history)
    for _ in range(10):
        play(buffer, oracle, rng, kind, 5)
        assert_alike(buffer, oracle)


def grey(value: int) -> np.ndarray:
    return np.full((2, 2, 1), value, np.uint8)


def test_before_the_first_frame() -> None:
    buffer = ReplayBuffer(10, 4)
    assert (buffer.obs, buffer.action, buffer.reward, buffer.done) == (None,) * 4
    assert (buffer.size, buffer.frame_history_len, buffer.next_idx, buffer.num_in_buffer) == (10, 4, 0, 0)
    assert not buffer.can_sample(1)
    with pytest.raises(StateError):
        buffer.encode_recent_observation()
    with pytest.raises(NotEnoughDataError):
        buffer.sample(1)
    with pytest.raises(InputError, match="none yet"):
        buffer.store_effect(0, 1, 1.0, False)


def test_attributes_have_the_documents_shapes_and_dtypes() -> None:
    buffer = ReplayBuffer(10, 4)
    buffer.store_frame(np.full((6, 5, 1), 3))
    arrays = (buffer.obs, buffer.action, buffer.reward, buffer.done)
    assert [array.shape for array in arrays] == [(10, 6, 5, 1), (10,), (10,), (10,)]
    assert [array.dtype for array in arrays] == [np.uint8, np.int32, np.float32, np.bool_]
    assert (np.asarray(buffer.obs)[0].max(), buffer.obs[1:].max()) == (3, 0)


def test_samples_are_different_and_reach_every_transition() -> None:
    buffer = ReplayBuffer(50, 2, seed=0)
    for number in range(31):
        buffer.store_effect(buffer.store_frame(grey(number)), number, 0.0, False)
    counts = np.zeros(31, int)
    for _ in range(600):
        action = buffer.sample(10)[1]
        assert len(set(action.tolist())) == 10
        counts[action] += 1
    assert counts[30] == 0, "its next frame is not there yet"
    assert counts[:30].min() > 120, "each 200 times, with a standard deviation of 12"
    assert counts[:30].max() < 280


def test_frames_without_an_effect_stay_in_stacks_alone() -> None:
    buffer = ReplayBuffer(20, 3, seed=0)
    for number in range(1, 9):
        idx = buffer.store_frame(grey(number))
        if number % 3 == 0:
            buffer.store_effect(idx, number, 0.0, False)
    assert buffer.num_in_buffer == 8
    assert buffer.can_sample(2)
    assert not buffer.can_sample(3)
    obs, action, _, next_obs, _ = buffer.sample(2)
    for stack, following, number in zip(obs, next_obs, action, strict=True):
        assert stack[0, 0].tolist() == [number - 2, number - 1, number]
        assert following[0, 0].tolist() == [number - 1, number, number + 1]


def test_an_effect_is_replaced_until_the_next_frame_comes() -> None:
    buffer = ReplayBuffer(3, 1)
    first = buffer.store_frame(grey(0))
    buffer.store_effect(first, 1, 1.0, True)
    buffer.store_effect(first, 2, 2.0, False)
    second = buffer.store_frame(grey(1))
    _, action, reward, _, done = buffer.sample(1)
    assert (action[0], reward[0], done[0]) == (2, 2.0, 0.0)
    for idx in (first, 2, 7, -1):
        with pytest.raises(InputError, match="newest frame"):
            buffer.store_effect(idx, 5, 5.0, True)
    buffer.store_effect(second, 3, 3.0, False)
    assert buffer.action[second] == 3


BAD_EFFECTS = [
    (1.5, 0.0, False),
    (1 << 31, 0.0, False),
    (1, np.nan, False),
    (1, np.inf, False),
    (1, 0.0, 2),
    (None, 0, 0),
]


@pytest.mark.parametrize("effect", BAD_EFFECTS)
def test_bad_effects_change_nothing(effect: tuple[Any, ...]) -> None:
    buffer = ReplayBuffer(5, 1)
    idx = buffer.store_frame(grey(0))
    with pytest.raises(InputError):
        buffer.store_effect(idx, *effect)
    buffer.store_frame(grey(1))
    assert not buffer.can_sample(1)


@pytest.mark.parametrize(
    "frame", [np.full((2, 2, 1), 256), np.full((2, 2, 1), -1), np.full((2, 2, 1), 0.5), np.zeros((3, 2, 1)),
              np.zeros((2, 2, 2), np.uint8), np.zeros(4, np.uint8), np.zeros((1, 2, 2, 1)), "frame"]
)  # fmt: skip
def test_bad_frames_change_nothing(frame: Any) -> None:
    buffer = ReplayBuffer(5, 2)
    buffer.store_effect(buffer.store_frame(grey(7)), 1, 1.0, False)
    with pytest.raises(InputError):
        buffer.store_frame(frame)
    assert (buffer.num_in_buffer, buffer.encode_recent_observation()[0, 0].tolist()) == (1, [0, 7])
    buffer.store_frame(np.full((2, 2, 1), 8, np.int64))
    assert buffer.sample(1)[3][0, 0, 0].tolist() == [7, 8]


def test_images_without_channels_are_of_one_channel() -> None:
    buffer = ReplayBuffer(5, 2)
    for value in (1, 2, 3):
        buffer.store_effect(buffer.store_frame(np.full((2, 3), value, np.uint8)), value, 0.0, False)
    assert buffer.encode_recent_observation().shape == (2, 3, 2)
    obs, action, *_ = buffer.sample(2)
    assert [stack[0, 0].tolist() for stack in obs] == [[value - 1, value] for value in action]


@pytest.mark.parametrize(("size", "history"), [(1, 4), (0, 4), (10, 0), (2.5, 4)])
def test_bad_sizes(size: Any, history: Any) -> None:
    with pytest.raises(InputError):
        ReplayBuffer(size, history)


def test_draws_follow_the_seed_or_numpys_global_generator() -> None:
    def draws(seed: int | None) -> list[int]:
        np.random.seed(3)
        buffer = ReplayBuffer(100, 1, seed=seed)
        for number in range(90):
            buffer.store_effect(buffer.store_frame(np.zeros(3, np.uint8)), number, 0.0, False)
        return buffer.sample(20)[1].tolist()

    assert (draws(None), draws(5)) == (draws(None), draws(5))
    assert draws(5) != draws(None)


# Paths


def test_a_path_is_taken_up_again(tmp_path: pathlib.Path) -> None:
    for number in range(3):
        buffer = ReplayBuffer(10, 2, path=tmp_path / "frames")
        assert buffer.num_in_buffer == buffer.next_idx == 2 * number
        for value in (1, 2):
            buffer.store_effect(buffer.store_frame(grey(value)), value, 0.0, value == 2)
        buffer.close()
        buffer.close()
    buffer = ReplayBuffer(10, 2, path=tmp_path / "frames")
    obs, action, _, next_obs, done = buffer.sample(6)
    assert sorted(action.tolist()) == [1, 1, 1, 2, 2, 2]
    for stack, following, value, ended in zip(obs, next_obs, action, done, strict=True):
        assert stack[0, 0].tolist() == [value - 1, value]
        assert following[0, 0].tolist() == ([0, 0] if ended else [1, 2])
    with pytest.raises(InputError, match="like the first"):
        buffer.store_frame(np.zeros((3, 2, 1), np.uint8))
    buffer.close()


def test_commit_and_lacking_effects_after_reopening(tmp_path: pathlib.Path) -> None:
    buffer = ReplayBuffer(10, 1, path=tmp_path / "frames")
    with pytest.raises(StateError):
        buffer.commit()
    for value in range(6):
        idx = buffer.store_frame(grey(value))
        if value not in (1, 4):
            buffer.store_effect(idx, value, 0.0, False)
    buffer.commit()
    with dr.ReplayBuffer.open(tmp_path / "frames", mode="r") as reader:
        assert len(reader) == 3
    buffer.close()
    buffer = ReplayBuffer(10, 1, path=tmp_path / "frames")
    assert buffer.num_in_buffer == 5, "the next frame of the newest is not known"
    assert sorted(buffer.sample(3)[1].tolist()) == [0, 2, 3]
    assert not buffer.can_sample(4)
    buffer.close()


def test_a_store_of_another_kind_is_refused(tmp_path: pathlib.Path) -> None:
    buffer = ReplayBuffer(10, 4, path=tmp_path / "frames")
    buffer.store_frame(grey(0))
    buffer.close()
    for size, history in ((11, 4), (10, 3)):
        with pytest.raises(InputError, match="needs one of"):
            ReplayBuffer(size, history, path=tmp_path / "frames")
    with dr.ReplayBuffer.open(tmp_path / "frames") as store:
        assert len(store) == 0, "a refused buffer does not keep the lock"
