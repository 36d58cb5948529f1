"""What an interrupt leaves behind in the buffers of other libraries: regressions; all places: tests/interrupts."""

from __future__ import annotations

import functools
import gc
import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from helpers import effort
from helpers.crashes import die
from helpers.testing import Interrupts

from diskreplay.compat import frames, notebook, pearl, xuance, xuance_marl
from diskreplay.compat.rows import window
from diskreplay.compat.xuance import EpisodeBuffer
from diskreplay.errors import ClosedError, SamplerWarning, StateError
from diskreplay.storage import saved_state
from diskreplay.storage.stream import StreamWriter

BOX = spaces.Box(-1e6, 1e6, (2,), np.float32)
LARGE = spaces.Box(-1e6, 1e6, (), np.float32)
CHOICE = spaces.Discrete(5)


def interrupted(
    make: Callable[[], Any], call: Callable[[Any], object], stride: int = 1, below: str = "diskreplay.compat"
) -> Iterator[Any]:
    """Buffers, each after a call with a Ctrl-C at another place of a package, every ``stride``-th one."""
    stride *= effort.stride(7, "lines that are interrupted")
    tool = Interrupts(at="check", by="signal", within=["diskreplay.compat", below])
    for number in itertools.count(0, stride):
        buffer = make()
        if tool.interrupt(number, functools.partial(call, buffer)) is None:
            assert number > 2, "the call has hardly any place"
            return
        yield buffer
        buffer.close()


class Env(gymnasium.Env[Any, Any]):
    observation_space, action_space = BOX, CHOICE


def frame_history() -> frames.ReplayBuffer:
    buffer = frames.ReplayBuffer(5, 2, seed=0)
    for stamp in range(8):
        show(buffer, stamp)
    return buffer


def show(buffer: frames.ReplayBuffer, stamp: int) -> None:
    buffer.store_effect(buffer.store_frame(np.full((3, 3, 1), stamp, np.uint8)), stamp, float(stamp), False)


@pytest.mark.long
def test_a_frame_that_became_a_row_is_not_counted_again() -> None:
    for buffer in interrupted(frame_history, lambda buffer: show(buffer, 8)):
        assert buffer.num_in_buffer in (4, 5)
        assert buffer.can_sample(4)
        actions = sorted(buffer.sample(4)[1].tolist())
        assert actions in ([3, 4, 5, 6], [4, 5, 6, 7])
        assert buffer.action[[stamp % 5 for stamp in actions]].tolist() == actions
        show(buffer, 9)
        rows = buffer.sample(3)  # the frame before may lack its effect
        assert (rows[0][..., -1] == rows[1][:, None, None]).all()


def trajectories() -> pearl.ReplayBuffer:
    buffer = pearl.ReplayBuffer(Env(), 4, device="cpu", seed=0)
    for stamp in range(6):
        add(buffer, stamp)
    return buffer


def add(buffer: pearl.ReplayBuffer, stamp: int) -> None:
    buffer.add_trajectory(np.full(2, stamp, "f4"), stamp % 5, float(stamp), np.full(2, stamp + 1, "f4"), False)


def test_a_trajectory_that_was_added_is_counted() -> None:
    for buffer in interrupted(trajectories, lambda buffer: add(buffer, 6)):
        held = buffer.all().rewards[:, 0].tolist()
        assert held in ([2, 3, 4, 5], [3, 4, 5, 6])
        assert buffer.full
        assert buffer.pos == (held[-1] + 1) % 4
        assert np.asarray(buffer.rewards)[:, 0].tolist() == sorted(held, key=lambda stamp: stamp % 4)


def test_a_reset_that_was_interrupted_begins_at_position_0() -> None:
    for buffer in interrupted(trajectories, lambda buffer: buffer.reset(), below="diskreplay"):
        emptied = not buffer.full
        assert buffer.pos == (0 if emptied else 2)
        add(buffer, 6)
        assert buffer.rewards[0 if emptied else 2].tolist() == [6]


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


@pytest.mark.long
def test_a_transition_is_not_remembered_without_its_first_error() -> None:
    known = [(9.05) ** 0.5] * 4
    for buffer in interrupted(proportional, lambda buffer: remember(buffer, 5)):
        weights = known.copy()
        if len(buffer.memory) and buffer.ind_max == 6:
            weights[1] = 1.05**0.5
        np.testing.assert_allclose(buffer.weights.vals[3:], weights)


@pytest.mark.long
def test_errors_that_wait_are_not_lost() -> None:
    def make() -> notebook.Proportion_Replay_Buffer:
        buffer = proportional()
        buffer.insert(2.0, 3)
        return buffer

    for buffer in interrupted(make, lambda buffer: buffer.commit()):
        assert buffer.weights.vals[-1] == pytest.approx(2.05**0.5)


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


@pytest.mark.long
def test_a_step_of_a_rollout_is_stored_whole_or_not_at_all() -> None:
    for buffer in interrupted(rollout, lambda buffer: store(buffer, 5), 3):
        assert steps_of(buffer) in ([2, 3, 4], [3, 4, 5])
        store(buffer, 6)
        assert steps_of(buffer) in ([3, 4, 6], [4, 5, 6])
        assert buffer.start_ids.tolist() == [buffer.ptr] * 2  # a path as long as the ring


@pytest.mark.long
def test_a_path_is_finished_whole_or_not_at_all() -> None:
    for buffer in interrupted(lambda: rollout(4), lambda buffer: buffer.finish_path(0.0, 1)):
        done = bool(buffer.returns[1, 0])
        assert buffer.returns[1].tolist() == ([10, 9, 7, 4] if done else [0] * 4)
        assert buffer.start_ids.tolist() == [0, 0]
        store(buffer, 5)
        assert buffer.start_ids.tolist() == [1, 0 if done else 1]


def test_a_rollout_is_cleared_whole_or_not_at_all() -> None:
    for buffer in interrupted(rollout, lambda buffer: buffer.clear()):
        assert (buffer.ptr, buffer.size) in ((0, 0), (1, 3))
        assert steps_of(buffer) == ([2, 3, 4] if buffer.size else [])
        assert buffer.rewards.any() == (buffer.size > 0)


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


@pytest.mark.long
def test_episodes_are_stored_once_and_whole() -> None:
    for buffer in interrupted(episodes, lambda buffer: buffer.store_episodes(), 7):
        buffer.sample()
        found = np.asarray(buffer.data["rewards"])[:, 0, :, 0]
        assert (found == found[:, :1]).all()
        assert found[:, 0].tolist() in ([3, 1, 2], [3, 4, 5])
        buffer.store_episodes()
        assert np.asarray(buffer.data["rewards"])[:, 0, 0, 0].tolist() == [3, 4, 5]
        assert (buffer.ptr, buffer.size, window(buffer.engine).end) == (0, 3, 18)


@pytest.mark.long
def test_an_episode_of_one_agent_is_stored_once_and_whole() -> None:
    def make() -> xuance.RecurrentOffPolicyBuffer:
        buffer = xuance.RecurrentOffPolicyBuffer(BOX, LARGE, None, 1, 2, 4, 3, 2, seed=0)
        for stamp in range(3):
            put(buffer, stamp)
        return buffer

    def put(buffer: xuance.RecurrentOffPolicyBuffer, stamp: int) -> None:
        episode = EpisodeBuffer()
        episode.obs.append(np.full(2, stamp))
        for _ in range(3):
            episode.put([np.full(2, stamp), stamp, stamp, False])
        buffer.store(episode)

    for buffer in interrupted(make, lambda buffer: put(buffer, 3)):
        found = [one.reward for one in buffer.memory]
        assert found in ([[1] * 3, [2] * 3], [[2] * 3, [3] * 3])
        assert (buffer.ptr, buffer.size) == (1 if found[1][0] == 2 else 0, 2)


# Closing


def saved(path: pathlib.Path) -> notebook.Proportion_Replay_Buffer:
    return notebook.Proportion_Replay_Buffer(4, path=path, seed=0)


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


@pytest.mark.long("test_an_episode_of_one_agent_is_stored_once_and_whole")
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
