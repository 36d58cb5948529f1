"""What the buffers of other libraries keep, and say, when they are closed: after an interrupt, too."""

from __future__ import annotations

import gc
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from helpers import effort
from helpers.crashes import die
from helpers.testing import Interrupts

from diskreplay.compat import frames, notebook, pearl, xuance, xuance_marl
from diskreplay.errors import ClosedError, SamplerWarning, StateError
from diskreplay.storage import saved_state
from diskreplay.storage.stream import StreamWriter

BOX = spaces.Box(-1e6, 1e6, (2,), np.float32)
LARGE = spaces.Box(-1e6, 1e6, (), np.float32)
CHOICE = spaces.Discrete(5)


class Env(gymnasium.Env[Any, Any]):
    observation_space, action_space = BOX, CHOICE


def frame_history() -> frames.ReplayBuffer:
    buffer = frames.ReplayBuffer(5, 2, seed=0)
    for stamp in range(8):
        show(buffer, stamp)
    return buffer


def show(buffer: frames.ReplayBuffer, stamp: int) -> None:
    buffer.store_effect(buffer.store_frame(np.full((3, 3, 1), stamp, np.uint8)), stamp, float(stamp), False)


def trajectories() -> pearl.ReplayBuffer:
    buffer = pearl.ReplayBuffer(Env(), 4, device="cpu", seed=0)
    for stamp in range(6):
        add(buffer, stamp)
    return buffer


def add(buffer: pearl.ReplayBuffer, stamp: int) -> None:
    buffer.add_trajectory(np.full(2, stamp, "f4"), stamp % 5, float(stamp), np.full(2, stamp + 1, "f4"), False)


def proportional() -> notebook.Proportion_Replay_Buffer:
    buffer = notebook.Proportion_Replay_Buffer(4, seed=0)
    for stamp in range(5):
        remember(buffer, stamp)
    for place in range(4):
        buffer.insert(9.0, place)
    buffer.weights  # noqa: B018  # the errors count from here on
    return buffer


def remember(buffer: notebook.Replay_Buffer, stamp: int) -> None:
    buffer.remember([stamp], stamp, stamp, [stamp + 1], False)


def rollout(n_size: int = 3) -> xuance.DummyOnPolicyBuffer:
    buffer = xuance.DummyOnPolicyBuffer(BOX, LARGE, None, 2, n_size, use_advnorm=False, gamma=1.0, gae_lam=1.0)
    for stamp in range(1, 5):
        store(buffer, stamp)
    return buffer


def store(buffer: xuance.DummyOnPolicyBuffer, stamp: int) -> None:
    buffer.store(np.full((2, 2), stamp), *[np.full(2, stamp)] * 3, np.zeros(2))


def steps_of(buffer: xuance.DummyOnPolicyBuffer) -> list[float]:
    """The stamps of the entries, oldest first, of what is on disk and of what is in RAM."""
    places = (buffer.ptr - 1 - np.arange(buffer.size)[::-1]) % buffer.n_size
    arrays = buffer.rewards, buffer.values, buffer.actions, buffer.observations[..., 0]
    found: list[Any] = [np.asarray(array)[:, places].tolist() for array in arrays]
    assert all(one == found[0] for one in found), found
    assert found[0][0] == found[0][1]
    return list(found[0][0])


def episodes() -> xuance_marl.MARL_OffPolicyBuffer_RNN:
    buffer = xuance_marl.MARL_OffPolicyBuffer_RNN(
        2, None, (2,), (), (1,), (2,), 2, 3, 4, max_episode_length=3, dim_act=5
    )
    for stamp in (0, 2):
        collect(buffer, stamp)
        buffer.store_episodes()
    collect(buffer, 4)
    return buffer


def collect(buffer: xuance_marl.MARL_OffPolicyBuffer_RNN, stamp: int) -> None:
    """One episode of each environment, the second of which is one stamp ahead."""
    agents = np.full((2, 2), stamp) + np.arange(2)[:, None]
    obs = np.repeat(agents[..., None], 2, -1)
    for step in range(3):
        buffer.store_transitions(step, obs, {"actions_n": agents}, None, agents[..., None], np.zeros((2, 2)), None)
    for env in range(2):
        buffer.finish_path(env, 3, obs, None, None, np.ones((2, 3, 1)))


def saved(path: pathlib.Path) -> notebook.Proportion_Replay_Buffer:
    return notebook.Proportion_Replay_Buffer(4, path=path, seed=0)


@pytest.mark.long
def test_errors_that_wait_are_not_lost_by_an_interrupted_commit() -> None:
    tool = Interrupts(at="check", by="signal", within=["diskreplay.compat"])
    place: object = "the first"
    for number in itertools.count(0, effort.stride(7, "lines that are interrupted")):
        if place is None:
            break
        buffer = proportional()
        buffer.insert(2.0, 3)
        place = tool.interrupt(number, buffer.commit)
        assert buffer.weights.vals[-1] == pytest.approx(2.05**0.5)
        buffer.close()
    assert number > 2


@pytest.mark.parametrize("written", [True, False])
def test_an_interrupted_close_saves_when_called_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    buffer = saved(tmp_path / "s")
    remember(buffer, 0)
    remember(buffer, 1)
    buffer.commit()
    buffer.insert(9.0, 1)
    whole = saved_state.replace

    def cut(*arguments: Any) -> None:
        if written:
            whole(*arguments)  # it is there, but nobody was told
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(saved_state, "replace", cut)
        with pytest.raises(KeyboardInterrupt):
            buffer.close()
    buffer.insert(7.0, 0)
    buffer.close()
    again = saved(tmp_path / "s")
    np.testing.assert_allclose(again.weights.vals[3:5], [7.05**0.5, 9.05**0.5])
    again.close()


@pytest.mark.long
def test_what_was_saved_outlives_an_opening_that_was_interrupted(tmp_path: pathlib.Path) -> None:
    def make() -> xuance.DummyOnPolicyBuffer:
        return xuance.DummyOnPolicyBuffer(BOX, LARGE, None, 2, 3, path=tmp_path / "s", chunk_rows=2, shard_rows=4)

    buffer = make()
    for stamp in (1, 2, 3):
        store(buffer, stamp)
    buffer.close()
    del buffer
    tool = Interrupts(at="check", by="signal", within=["diskreplay.compat"])
    opened: list[Any] = []
    for number in itertools.count(0, 11 * effort.stride(5, "lines that are interrupted")):
        if tool.interrupt(number, lambda: opened.append(make())) is None:
            break
        gc.collect()
        again = make()
        assert steps_of(again) == [1, 2, 3]
        again.close()
    assert number > 20
    opened[0].close()


def test_a_store_that_keeps_nothing_of_what_was_in_ram_is_opened(tmp_path: pathlib.Path) -> None:
    """As one that was written without the adapter."""

    def make() -> xuance_marl.MARL_OffPolicyBuffer_RNN:
        return xuance_marl.MARL_OffPolicyBuffer_RNN(
            1, None, (2,), (), (1,), (1,), 1, 4, 2, path=tmp_path / "s", max_episode_length=3, dim_act=5
        )

    buffer = make()
    one, obs = np.ones((1, 1)), np.ones((1, 1, 2))
    buffer.store_transitions(0, obs, {"actions_n": one}, None, one[..., None], one, None)
    buffer.finish_path(0, 1, obs, None, None, np.ones((1, 3, 1)))
    buffer.store_episodes()
    buffer._adapter.state = lambda: ({"held": {}}, {})  # type: ignore[method-assign]
    buffer.commit()
    die(buffer.engine)
    again = make()
    assert (again.ptr, again.size) == (1, 1)
    again.close()


def test_a_store_that_stopped_writing_is_closed_all_the_same(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a frame, a step and priorities that wait in RAM."""

    def cut(*arguments: Any) -> None:
        raise MemoryError

    def history() -> frames.ReplayBuffer:
        return frames.ReplayBuffer(5, 2, path=tmp_path / "frames", seed=0)

    def on_policy() -> xuance.DummyOnPolicyBuffer:
        return xuance.DummyOnPolicyBuffer(BOX, LARGE, None, 2, 3, path=tmp_path / "rollout")

    first = history()
    first.store_frame(np.zeros((3, 3, 1), np.uint8))
    first.store_effect(first.store_frame(np.zeros((3, 3, 1), np.uint8)), 1, 1.0, True)
    second, third = on_policy(), saved(tmp_path / "s")
    store(second, 1)
    remember(third, 1)
    for buffer in (first, second, third):
        with monkeypatch.context() as patch:
            patch.setattr(StreamWriter, "_append", cut)
            with pytest.raises(MemoryError):
                buffer.commit()
        with pytest.raises(StateError, match="reopened"):
            buffer.close()
        buffer.close()
    history().close()
    on_policy().close()
    with pytest.warns(SamplerWarning, match="ended without close"):
        saved(tmp_path / "s").close()


def test_closed_buffers_say_so() -> None:
    frame = frame_history()
    uses: list[tuple[Any, list[Callable[[Any], object]]]] = [
        (frame, [lambda b: show(b, 1), lambda b: b.sample(1), lambda b: b.can_sample(1), lambda b: b.obs[0]]),
        (trajectories(), [lambda b: add(b, 1), lambda b: b.sample(1), lambda b: b.all(), lambda b: b.pos]),
        (proportional(), [lambda b: remember(b, 1), lambda b: b.memory[0], lambda b: b.insert(1, 0), len]),
        (rollout(), [lambda b: store(b, 1), lambda b: b.sample(np.arange(6)), lambda b: b.clear()]),
        (episodes(), [lambda b: collect(b, 1), lambda b: b.sample(), lambda b: b.store_episodes()]),
        (
            xuance.DummyOffPolicyBuffer(BOX, CHOICE, None, 1, 4, 2),
            [lambda b: b.store(np.zeros(2), 0, 0, 0, np.zeros(2)), lambda b: b.size, lambda b: b.sample()],
        ),
    ]
    for buffer, calls in uses:
        buffer.close()
        buffer.close()
        for call in calls:
            with pytest.raises(ClosedError, match="is closed"):
                call(buffer)
