"""Recording: Gymnasium environments stepped with a random policy into a store.

1. A store that is begun holds nothing but what was recorded; one that is resumed must have the same spaces and number
   of environments. Its rows count: ``steps`` is what there is to be in all.
2. After a resume the environments are reset, and actions and environments go on from ``(seed, rows so far)``, so that
   the same interruptions give the same store. The episodes that were going on are cut there.
3. SIGINT and SIGTERM are noted and acted on between two steps: everything is committed and closed. SIGKILL loses what
   came after the last commit, no more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import check_count
from diskreplay.engine.run import COMMIT_SECONDS
from diskreplay.errors import InputError, StoreExistsError
from diskreplay.ops import envs
from diskreplay.ops.result import Compressed, Result
from diskreplay.process.locks import noted
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import PathLike, checked_path
from diskreplay.views.transition import Transition

CAPACITY = 1_000_000
REPORT_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Recorded(Compressed, Result):
    """The progress of a recording, or its result.

    Attributes:
        path: the path of the store.
        steps, total_steps: steps in the store and to be in it, of all environments together.
        new_steps, new_episodes: the steps and episodes of this run.
        transitions: the transitions in the store's window.
        resets: steps in the window in which an environment reset: they are no transitions.
        seconds: the seconds that this run spent on steps alone.
        raw_bytes: the bytes of one step in all columns, uncompressed, times the committed steps that are on disk.
        stored_bytes: the bytes that the store takes on disk.
        stopped: a signal ended it early.
    """

    path: str
    steps: int
    total_steps: int
    new_steps: int
    new_episodes: int
    transitions: int
    resets: int
    seconds: float
    raw_bytes: int
    stored_bytes: int
    stopped: bool

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "ratio": self.ratio}


Report = Callable[[Recorded], None]
"""A function that is called now and then with the progress of a recording."""


def record(
    env_id: str,
    path: PathLike,
    *,
    steps: int,
    num_envs: int | None = None,
    atari: bool = False,
    frame_stack: int | None = None,
    capacity: int | None = None,
    seed: int = 0,
    resume: bool = False,
    commit_seconds: float = COMMIT_SECONDS,
    progress: Report | None = None,
) -> Recorded:
    """Record until the store at ``path`` has had ``steps`` steps.

    Args:
        env_id: Gymnasium's name of the environment.
        path: the path of the store, which must not exist unless ``resume`` is set.
        steps: the steps of all environments together; made up to whole rows of ``num_envs``. A vector environment's
            reset steps count: they are rows, though never sampled.
        num_envs: environments in lockstep; 1, or those of the store, if None.
        atari: see :func:`diskreplay.ops.envs.make`.
        frame_stack: frames that a sample stacks; the frames are recorded once. 4 with ``atari``, else 1, if None.
        capacity: steps that the store keeps, older ones are evicted; a million, or ``steps`` if more, of a new one if
            None. One that is there can grow.
        seed: the seed of environments and actions.
        resume: go on with the store at ``path``; begin it when there is none yet.
        commit_seconds: the seconds after which steps are committed. A SIGKILL loses what came after the last commit.
        progress: a function, called about twice a second.

    Returns:
        What was recorded; ``stopped`` is set when a signal ended it early, with everything committed.

    Raises:
        InputError: for bad arguments, or environments that do not fit the store.
        StoreExistsError: when something is at ``path`` and ``resume`` is not set.
        ModuleNotFoundError: when a package that the environment needs is not installed.
        LockedError, WriteFailedError, CorruptionError: as :meth:`ReplayBuffer.open` and ``add`` raise them.
    """
    path = checked_path(path)
    _check_arguments(steps, num_envs, frame_stack, capacity, seed)
    there = os.path.lexists(path) and not _is_empty_directory(path)
    if there and not resume:
        raise StoreExistsError(f"{path!r} exists already; choose another path, or go on with it by --resume")
    with noted() as stop, contextlib.ExitStack() as opened:
        if there:
            buffer = ReplayBuffer.open(path, view=Transition(), commit_seconds=commit_seconds, ragged=None)
            opened.callback(buffer.close)
            stepper = opened.enter_context(contextlib.closing(envs.make(env_id, buffer.num_envs, atari)))
            _check_same(buffer, stepper, num_envs, frame_stack)
            if capacity is not None:
                buffer.engine.grow(capacity)
        else:
            count = num_envs or 1
            stepper = opened.enter_context(contextlib.closing(envs.make(env_id, count, atari)))
            buffer = ReplayBuffer.create(
                path, stepper.observation_space, stepper.action_space, num_envs=count,
                capacity=capacity or max(steps, CAPACITY, count), frame_stack=frame_stack or (4 if atari else 1),
                stack_axis=None, commit_seconds=commit_seconds, seed=seed, ragged=None,
                provenance=stepper.provenance,
            )  # fmt: skip
            opened.callback(buffer.close)
        stepper.record(buffer)
        recorded = _Recording(buffer, stepper, steps).run(seed, stop, progress or (lambda _: None))
    return dataclasses.replace(recorded, stored_bytes=LocalFiles().stored_bytes(path))  # closing has moved rows


def _check_arguments(
    steps: int, num_envs: int | None, frame_stack: int | None, capacity: int | None, seed: int
) -> None:
    check_count("steps", steps)
    check_count("seed", seed, least=0, most=(1 << 63) - 1)
    for what, value in (("envs", num_envs), ("frame_stack", frame_stack), ("capacity", capacity)):
        if value is not None:
            check_count(what, value, most=1 << 40)


def _check_same(
    buffer: ReplayBuffer, stepper: envs.Stepper, num_envs: int | None, frame_stack: int | None
) -> None:  # fmt: skip
    schema = buffer.schema
    given = {
        "observation space": (stepper.observation_space, schema.observation_space),
        "action space": (stepper.action_space, schema.action_space),
        "number of environments": (num_envs, buffer.num_envs),
        "frame stack": (frame_stack, max(stack.frames for stack in schema.stacks)),
    }
    for what, (wanted, stored) in given.items():
        if wanted is not None and wanted != stored:
            raise InputError(
                f"the store {buffer.path!r} cannot be resumed so: its {what} is {stored}, but {wanted} was asked for"
            )


class _Recording:
    """The loop, and what it counts."""

    def __init__(self, buffer: ReplayBuffer, stepper: envs.Stepper, steps: int) -> None:
        self.buffer, self.stepper = buffer, stepper
        self.num_envs = buffer.num_envs
        self.rows = -(-steps // self.num_envs)
        self.log = buffer.engine.appender.log
        self.first = self.row = self.log.end
        self.episodes = 0

    def run(self, seed: int, stopped: Callable[[], bool], progress: Report) -> Recorded:
        if self.row < self.rows:
            self.stepper.reset(int(np.random.SeedSequence([seed, self.row]).generate_state(1)[0] >> 1))
        self.started = reported = time.perf_counter()
        while self.row < self.rows and not stopped():
            self.episodes += self.stepper.step()
            self.row += 1
            if time.perf_counter() - reported >= REPORT_SECONDS:
                progress(self.state(False))
                reported = time.perf_counter()
        self.buffer.commit()
        state = self.state(self.row < self.rows)
        progress(state)
        return state

    def state(self, stopped: bool) -> Recorded:
        assert self.buffer.stream is not None
        committed = self.buffer.engine.streams.commits[self.buffer.stream].end - self.log.begin
        step_bytes = sum(column.item_bytes for column in self.buffer.schema.columns)
        return Recorded(
            path=self.buffer.path,
            steps=self.row * self.num_envs,
            total_steps=self.rows * self.num_envs,
            new_steps=(self.row - self.first) * self.num_envs,
            new_episodes=self.episodes,
            transitions=len(self.buffer),
            resets=(self.row - self.log.begin) * self.num_envs - len(self.buffer),
            seconds=time.perf_counter() - self.started,
            raw_bytes=max(0, committed) * self.num_envs * step_bytes,
            stored_bytes=LocalFiles().stored_bytes(self.buffer.path),
            stopped=stopped,
        )


def _is_empty_directory(path: str) -> bool:
    folder = pathlib.Path(path)
    return folder.is_dir() and not any(folder.iterdir())
