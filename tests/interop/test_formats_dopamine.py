"""Logs that Dopamine's own circular replay buffer reads and writes.

Dopamine asks for TensorFlow, which is gigabytes; its buffer uses it to open files alone. Where TensorFlow is not
installed, these three functions stand in for it.
"""

from __future__ import annotations

import pathlib
import sys
import types
from typing import Any

import numpy as np
import pytest
from formats.roundtrip import CASES, Case, Episode, read

from diskreplay.ops.convert import export, import_dataset

CAPACITY = 1000
EXPORTED = [
    case
    for case in CASES
    if case.name
    in (
        "vectors, discrete actions", "vectors, continuous actions", "frames to be stacked", "columns", "both flags",
        "frames stacked with repeats", "one-step episodes", "several environments", "stacks, zeros first",
    )
]  # fmt: skip


class NotFoundError(Exception):
    def __init__(self, node: Any, op: Any, message: str) -> None:
        super().__init__(message)


def stand_in() -> types.ModuleType:
    """What Dopamine's buffer uses of TensorFlow."""
    tensorflow = types.ModuleType("tensorflow")
    gfile = types.SimpleNamespace(
        exists=lambda name: pathlib.Path(name).exists(),
        GFile=open,
        remove=lambda name: pathlib.Path(name).unlink(missing_ok=True),
    )
    tensorflow.io = types.SimpleNamespace(gfile=gfile)  # type: ignore[attr-defined]
    tensorflow.errors = types.SimpleNamespace(NotFoundError=NotFoundError)  # type: ignore[attr-defined]
    return tensorflow


@pytest.fixture(scope="module")
def buffers() -> Any:
    """Dopamine's module of circular replay buffers."""
    for module in ("dopamine", "gin", "absl"):
        pytest.importorskip(module, reason=f"{module} is installed by `make interop`")
    with pytest.MonkeyPatch.context() as patch:
        try:
            import tensorflow  # noqa: F401
        except ImportError:
            patch.setitem(sys.modules, "tensorflow", stand_in())
        from dopamine.tf.replay_memory import circular_replay_buffer
    return circular_replay_buffer


def frames_of(episode: Episode, what: str, step: int) -> np.ndarray:
    """A step's stack as Dopamine has it: oldest first, along a new last axis."""
    return np.moveaxis(getattr(episode, what)["obs"][step], 0, -1)


@pytest.mark.parametrize("case", EXPORTED, ids=repr)
def test_dopamine_samples_what_was_exported(case: Case, buffers: Any, path: str, tmp_path: pathlib.Path) -> None:
    """Every row that Dopamine holds for a transition is one of ours, with the same stacks, and none is missing."""
    case.make(path)
    export(path, tmp_path / "logs", "dopamine", allow_loss=True)
    episodes = read(path)
    first = episodes[0]
    frames, shape = first.obs["obs"].shape[1], first.obs["obs"].shape[2:]
    extra = [buffers.ReplayElement(name, values.shape[1:], values.dtype) for name, values in first.extra.items()]
    buffer = buffers.OutOfGraphReplayBuffer(
        shape, frames, CAPACITY, 1, extra_storage_types=extra, observation_dtype=first.obs["obs"].dtype,
        action_shape=first.action["action"].shape[1:], action_dtype=first.action["action"].dtype,
        reward_dtype=first.reward.dtype,
    )  # fmt: skip
    buffer.load(str(tmp_path / "logs"), 0)
    found = [index for index in range(CAPACITY) if buffer.is_valid_transition(index)]
    wanted = [
        (episode, step)
        for episode in episodes
        for step in range(len(episode))
        if step + 1 < len(episode) or episode.terminated[-1]
    ]
    assert len(found) == len(wanted)
    names = [element.name for element in buffer.get_transition_elements()]
    for index, (episode, step) in zip(found, wanted, strict=True):
        batch = dict(zip(names, buffer.sample_transition_batch(1, [index]), strict=True))
        np.testing.assert_array_equal(batch["state"][0], frames_of(episode, "obs", step))
        if not episode.terminated[step]:
            np.testing.assert_array_equal(batch["next_state"][0], frames_of(episode, "next_obs", step))
        np.testing.assert_array_equal(batch["action"][0], episode.action["action"][step])
        assert batch["reward"][0] == episode.reward[step]
        assert batch["terminal"][0] == episode.terminated[step]
        for name, values in episode.extra.items():
            np.testing.assert_array_equal(batch[name][0], values[step])
    if len(wanted) > 4:
        buffer.sample_transition_batch(4)


STACK = 4
Step = tuple[int, int, float, bool, bool]
"""Number of the row, counted from 1, action, reward, terminal, end of the episode."""


def played(buffer: Any, count: int, rng: np.random.Generator, *, ends: float = 0.1, cut: float = 0.3) -> list[Step]:
    """Steps that were added to a buffer, which may be in the midst of an episode."""
    steps: list[Step] = []
    for _ in range(count):
        # Padding comes first.
        number = int(buffer.add_count) + (STACK if buffer._next_experience_is_episode_start else 1)
        terminal = bool(rng.random() < ends * (1 - cut))
        end = terminal or bool(rng.random() < ends * cut)
        step = (number, int(rng.integers(0, 5)), float(np.float32(rng.normal())), terminal, end)
        frame = np.full((2, 3), number % 251 + 1, np.uint8)
        buffer.add(frame, np.int32(step[1]), np.float32(step[2]), np.uint8(terminal), episode_end=end)
        steps.append(step)
    return steps


def check_imported(path: str, *runs: list[Step]) -> int:
    """The store's steps are those of the runs, but for each end without a next frame; how many they are."""
    episodes = read(path)
    kept: list[list[Step]] = []
    for steps in runs:
        kept.append([])
        for step in steps:
            kept[-1].append(step)
            if step[4]:
                kept.append([])
    wanted = [(episode[: None if episode[-1][3] else -1], episode[-1]) for episode in kept if episode]
    wanted = [(episode, end) for episode, end in wanted if episode]
    assert len(episodes) == len(wanted)
    count = 0
    for found, (episode, end) in zip(episodes, wanted, strict=True):
        np.testing.assert_array_equal(found.obs["obs"][:, -1, 0, 0], [step[0] % 251 + 1 for step in episode])
        np.testing.assert_array_equal(found.action["action"], [step[1] for step in episode])
        np.testing.assert_array_equal(found.reward, np.array([step[2] for step in episode], np.float32))
        np.testing.assert_array_equal(found.terminated, [step[3] for step in episode])
        assert found.truncated[-1] == (end[4] and not end[3])
        assert found.obs["obs"].shape[1] == STACK
        count += len(episode)
    return count


@pytest.mark.parametrize("count", [30, 60, 200, 333])
def test_a_buffer_that_dopamine_saved(count: int, buffers: Any, path: str, tmp_path: pathlib.Path) -> None:
    """Not full, just full, and a ring that went round: every row that is no padding comes in, in its order."""
    buffer = buffers.OutOfGraphReplayBuffer((2, 3), STACK, 100, 1)
    steps = played(buffer, count, np.random.default_rng(count))
    logs = tmp_path / "logs"
    logs.mkdir()
    buffer.save(str(logs), 7)
    imported = import_dataset(logs, path)
    oldest = max(0, int(buffer.add_count) - 100)
    inside = [step for step in steps if step[0] > oldest]
    assert (imported.format, imported.transitions) == ("dopamine", check_imported(path, inside))
    # What Dopamine samples of it: fewer, because no stack may reach over the cursor, and rows of zeros after ends
    # that are not terminal, which are no steps.
    numbers = {int(number) for episode in read(path) for number in episode.obs["obs"][:, -1, 0, 0]}
    for index in range(100):
        if buffer.is_valid_transition(index) and buffer._store["observation"][index].any():
            assert int(buffer._store["observation"][index, 0, 0]) in numbers


def test_checkpoints_of_one_run_go_on(buffers: Any, path: str, tmp_path: pathlib.Path) -> None:
    """Rows that two checkpoints hold come in once, and episodes go on from one to the next."""
    buffer = buffers.OutOfGraphReplayBuffer((2, 3), STACK, 100, 1, checkpoint_duration=99)
    logs, rng, steps = tmp_path / "logs", np.random.default_rng(0), []
    logs.mkdir()
    for number, count in enumerate((20, 35, 60, 70)):
        steps += played(buffer, count, rng)
        buffer.save(str(logs), number)
    assert import_dataset(logs, path).transitions == check_imported(path, steps)


def logged(buffers: Any, logs: pathlib.Path, seed: int) -> tuple[list[Step], list[int]]:
    """Logs as the DQN Replay Dataset's buffer writes them, whenever one row is missing to a full ring; their counts.

    Where the padding of an episode goes over that row, a log is left out, as there.
    """
    buffer = buffers.OutOfGraphReplayBuffer((2, 3), STACK, 100, 1, checkpoint_duration=99)
    rng, steps = np.random.default_rng(seed), []
    counts: list[int] = []
    logs.mkdir()
    while buffer.add_count < 499:
        steps += played(buffer, 1, rng, ends=0.04, cut=0.0)
        if buffer.cursor() == 99:
            buffer.save(str(logs), len(counts))
            # The published logs are of a version that knows terminal rows alone.
            (logs / f"episode_end_indices_ckpt.{len(counts)}.gz").unlink()
            counts.append(int(buffer.add_count))
    return steps, counts


def test_the_logs_of_the_dqn_replay_dataset(buffers: Any, path: str, tmp_path: pathlib.Path) -> None:
    """The last row of each log is stale, and belongs before the first one."""
    logs = tmp_path / "logs"
    steps, counts = logged(buffers, logs, seed=0)
    assert counts == [99, 199, 299, 399, 499]
    assert import_dataset(logs, path).transitions == check_imported(path, steps)
    alone = tmp_path / "alone.replay"
    import_dataset(logs / "$store$_observation_ckpt.1.gz", alone)
    check_imported(str(alone), [step for step in steps if 99 < step[0] <= 199])


def test_a_log_that_was_left_out(buffers: Any, path: str, tmp_path: pathlib.Path) -> None:
    """Episodes do not go on over the gap."""
    logs = tmp_path / "logs"
    steps, counts = logged(buffers, logs, seed=8)
    assert counts == [99, 199, 299, 499]
    runs = [[step for step in steps if low < step[0] <= high] for low, high in ((0, 299), (399, 499))]
    assert import_dataset(logs, path).transitions == check_imported(path, *runs)
