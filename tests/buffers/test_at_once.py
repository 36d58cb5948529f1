"""Batches that one call of the core draws, and those that Python draws: the same bits, whatever happened before."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from helpers.configs import FRAME, Config
from helpers.model import Leaf
from helpers.recording import Recording, reopen
from helpers.view_model import content

import diskreplay as dr
from diskreplay.buffers.draws import Draws
from diskreplay.errors import DiskReplayError
from diskreplay.process import background
from diskreplay.reading import compiled
from diskreplay.reading.in_core import MOST_ARRAYS
from diskreplay.sampling.window import Prioritized

LATE_ROOM = 256
"""The ids that may come to wait at once, as native/priorities.pxi has it."""
FLOATS, FEW = Leaf((3,), np.float32), Leaf((), np.float32)
KINDS = [
    Config("one environment", FLOATS, resident_bytes=64, capacity=40),
    Config("four environments", FLOATS, num_envs=4, resident_bytes=64, capacity=120, columns={"logp": np.float32}),
    Config("three steps", FLOATS, num_envs=2, n_step=3, resident_bytes=64, capacity=60),
    Config("nested", {"a": FLOATS, "b": (FEW, FLOATS)}, resident_bytes=64, capacity=40, several_actions=True),
    Config("stacks in RAM", FLOATS, num_envs=2, frame_stack=3, resident_bytes=64, capacity=80),
]  # fmt: skip
STEPS_2: Any = {"frame_stack": 3, "padding": "reset", "num_envs": 2, "n_step": 3}
CACHED = [
    Config("frames", Leaf(FRAME), frame_stack=4, capacity=90),
    Config("frames, reset padding, three steps", Leaf((5, 4)), capacity=120, **STEPS_2),
    Config("given stacks", Leaf((4, *FRAME), frames=4, axis=0), frame_stack=4, capacity=90),
    Config("channels", Leaf((6, *FRAME), frames=2, axis=0), frame_stack=2, stack_axis=0, num_envs=2, capacity=90),
    Config("beside vectors", {"a": Leaf((5, 4)), "b": FLOATS}, frame_stack={"a": 2}, resident_bytes=12, capacity=90),
]
SAMPLERS = (
    dr.Uniform, dr.Proportional, lambda: dr.Proportional(by_env=True, beta_schedule=(1.0, 9)), dr.RankBased,
    lambda: dr.RankBased(segments=3), lambda: dr.Recent(newest=9), lambda: dr.Recent(fraction=0.3),
)  # fmt: skip


class Program:
    """What is done to a store, at random, and what came of it."""

    def __init__(self, config: Config, path: str, sampler: Any, share: float = 0.05, view: Any = None) -> None:
        self.config, self.path, self.sampler = config, path, sampler
        self.view = view or dr.Transition(config.n_step, config.gamma)
        self.share = share
        """The share of the steps that are out of the ordinary."""
        self.rng = np.random.default_rng(5)
        self.found: list[object] = []

    def run(self, steps: int) -> None:
        with contextlib.ExitStack() as opened:
            rb = opened.enter_context(self.config.create(self.path, sampler=self.sampler(), view=self.view))
            rows = Recording(self.config)
            for _ in range(steps):
                self.step(rb, rows)
            rb.checkpoint("a")
            self.step(rb, rows)
            rb.close()
            rb = opened.enter_context(reopen(self.config, self.path, checkpoint="a", sampler=self.sampler()))
            beside = opened.enter_context(reopen(self.config, self.path, stream="b", num_envs=1, capacity=17))
            rows, others = Recording(self.config, 1), Recording(dataclasses.replace(self.config, num_envs=1), 2)
            for _ in range(steps):
                self.step(rb, rows)
                if self.rng.random() < 0.3:
                    others.add(beside, int(self.rng.integers(4)), commit=True)
                    rb.refresh()
            self.found.append(self.state(rb))

    def step(self, rb: dr.ReplayBuffer, rows: Recording) -> None:
        match self.rng.integers(12):
            case 0:
                rb.commit()
            case 1:
                rb.resize(int(self.rng.integers(3, 9)) * 5 * self.config.num_envs)
            case 2 if self.rng.random() < 0.3:
                rb.clear()
                rows.lose(0)
            case _:
                rows.add(rb, int(self.rng.integers(9)), self.share)
        for _ in range(self.rng.integers(4)):
            self.draw(rb)
            self.get(rb)

    def draw(self, rb: dr.ReplayBuffer) -> None:
        size = int(self.rng.choice([1, 3, 4, 16]))
        try:
            batch = rb.sample(size)
        except DiskReplayError as error:
            self.found.append(repr(error))
            return
        self.found.append(content(batch))
        if isinstance(rb.sampler, Prioritized) and self.rng.random() < 0.8:
            dtype = np.float32 if self.rng.random() < 0.5 else np.float64
            rb.update_priorities(batch.index, self.rng.standard_normal(size).astype(dtype))

    def get(self, rb: dr.ReplayBuffer) -> None:
        """Items of the windows, and now and then an id that is none (any more)."""
        items = rb.items()
        ids = self.rng.choice(items if len(items) else np.arange(3), 5)
        if self.rng.random() < 0.3:
            ids[2] = self.rng.choice([ids[2] - 7, ids[2] + 7, -1, ids[2] + (1 << 48), 1 << 62])
        try:
            self.found.append(content(rb.get(ids)))
        except DiskReplayError as error:
            self.found.append(repr(error))

    def state(self, rb: dr.ReplayBuffer) -> object:
        state = [rb.engine.rng.bit_generator.state]
        if isinstance(rb.sampler, Prioritized):
            facts, arrays = rb.sampler.state()
            state += [facts, {name: array.tobytes() for name, array in arrays.items()}]
        return state


@contextlib.contextmanager
def counted() -> Iterator[list[bool]]:
    """Whether the calls of the core were made, in their order."""
    done: list[bool] = []
    at_once, get_at_once, update = Draws.at_once, Draws.get_at_once, Draws.update_at_once

    def sample(self: Draws[Any], size: int) -> Any:
        found = at_once(self, size)
        done.append(found is not None and not isinstance(found, tuple))
        return found

    def get(self: Draws[Any], ids: Any) -> Any:
        found = get_at_once(self, ids)
        done.append(found is not None)
        return found

    def told(self: Draws[Any], index: Any, priorities: Any) -> bool:
        done.append(update(self, index, priorities))
        return done[-1]

    counting = {"at_once": sample, "get_at_once": get, "update_at_once": told}
    with mock.patch.multiple(Draws, **counting):  # type: ignore[call-overload]
        yield done


@contextlib.contextmanager
def by_python() -> Iterator[None]:
    never = {
        "at_once": lambda self, size: None, "get_at_once": lambda self, ids: None,
        "update_at_once": lambda self, index, priorities: False,
    }  # fmt: skip
    with mock.patch.multiple(Draws, **never):  # type: ignore[call-overload]
        yield


@pytest.mark.long(quick=3)
@pytest.mark.parametrize("config", KINDS, ids=repr)
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: repr(sampler()))
def test_a_program_draws_the_same_both_ways(tmp_path: pathlib.Path, config: Config, sampler: Any) -> None:
    programs = [Program(config, str(tmp_path / way), sampler) for way in ("core", "python")]
    with counted() as done:
        programs[0].run(25)
    with by_python():
        programs[1].run(25)
    assert programs[0].found == programs[1].found
    assert sum(done) > len(done) / 6  # by environment most batch sizes are refused


@pytest.mark.long(quick=3)
@pytest.mark.parametrize("config", CACHED, ids=repr)
@pytest.mark.parametrize("sampler", SAMPLERS[:2], ids=lambda sampler: repr(sampler()))
def test_frames_that_the_cache_holds_are_the_same_both_ways(
    tmp_path: pathlib.Path, config: Config, sampler: Any
) -> None:
    programs = [Program(config, str(tmp_path / way), sampler, share=0.02) for way in ("core", "python")]
    with counted() as done:
        programs[0].run(40)
    with by_python():
        programs[1].run(40)
    assert programs[0].found == programs[1].found
    assert sum(done) > len(done) / 60  # where stacks are given, one in 35 to 50


SEQUENCES = (
    dr.Sequence(4),
    dr.Sequence(3, burn_in=2, pad=False),
    dr.Sequence(5, stride=3),
    dr.Sequence(4, across=True, stride=2),
)


@pytest.mark.long(quick=3)
@pytest.mark.parametrize("view", SEQUENCES, ids=repr)
@pytest.mark.parametrize("config", [KINDS[1], KINDS[3], CACHED[0], CACHED[2], CACHED[4]], ids=repr)
@pytest.mark.parametrize("sampler", SAMPLERS[:2], ids=lambda sampler: repr(sampler()))
def test_sequences_are_the_same_both_ways(tmp_path: pathlib.Path, config: Config, sampler: Any, view: Any) -> None:
    programs = [Program(config, str(tmp_path / way), sampler, view=view) for way in ("core", "python")]
    with counted() as done:
        programs[0].run(40)
    with by_python():
        programs[1].run(40)
    assert programs[0].found == programs[1].found
    assert sum(done) > (len(done) / 6 if config in KINDS else 0)


@pytest.mark.long(quick=3)
@pytest.mark.parametrize("config", [CACHED[0], CACHED[4]], ids=repr)
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: repr(sampler()))
def test_what_several_threads_copy_is_drawn_the_same_both_ways(
    tmp_path: pathlib.Path, config: Config, sampler: Any
) -> None:
    programs = [Program(config, str(tmp_path / way), sampler, share=0.02) for way in ("core", "python")]
    drafts = mock.patch.object(Draws, "draft_drawn", autospec=True, side_effect=Draws.draft_drawn)
    several = mock.patch.object(background, "THREADS", 2), mock.patch.object(compiled, "LEAST_HITS", 2)
    with drafts as drafted, several[0], several[1]:
        programs[0].run(25)
    with by_python():
        programs[1].run(25)
    assert programs[0].found == programs[1].found
    assert any(isinstance(call.args[2], int) and call.args[2] > 2 for call in drafted.call_args_list)


@pytest.mark.parametrize(
    "index", [np.array(3), np.zeros((1, 1), np.int64), np.zeros(0, np.int64), [1], np.arange(8)[::2]]
)
def test_any_arguments_are_those_of_python(path: str, index: Any) -> None:
    """Arrays without axes, with several, of no entries, and with gaps."""
    config = KINDS[0]
    found: list[Any] = []
    for way in (contextlib.nullcontext, by_python):
        with way(), config.create(f"{path}{way.__name__}", sampler=dr.Proportional()) as rb:
            Recording(config).add(rb, 20, 0)
            rb.sample(4)
            try:
                rb.update_priorities(index, np.ones(np.shape(index)))
            except DiskReplayError as error:
                found.append(str(error))
            sizes: tuple[Any, ...] = 1, np.int64(3)
            found.append([rb.sample(size).index.tolist() for size in sizes])
    assert found[: len(found) // 2] == found[len(found) // 2 :]


def test_more_columns_than_a_call_fills(path: str) -> None:
    config = dataclasses.replace(KINDS[0], columns={f"c{number}": np.float32 for number in range(MOST_ARRAYS)})
    with config.create(path) as rb, counted() as done:
        Recording(config).add(rb, 20, 0)
        assert len(rb.sample(4).extra) == MOST_ARRAYS
        rb.sample(4)
    assert not any(done)


def test_a_window_that_went_on_by_many_ids(path: str) -> None:
    config = dataclasses.replace(KINDS[0], capacity=2000)
    with config.create(path, sampler=dr.Proportional()) as rb, counted() as done:
        rows = Recording(config)
        for count in (20, 1, LATE_ROOM + 1, 1, 1):
            rows.add(rb, count, 0)
            rb.sample(4)
    assert done == [False, True, False, True, True]
