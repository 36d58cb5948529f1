"""Spans beside a scan of the rows, under the same random operations."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from helpers.effort import examples
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from diskreplay.index.log import StreamLog
from diskreplay.index.spans import Spans
from diskreplay.schema.columns import REWARD, START, TERMINATED, TRUNCATED, VALID, Start
from diskreplay.schema.spec import build

BOX = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
SEEDS = st.integers(0, 2**32 - 1)


def new_log(num_envs: int, rows: int, context: int, stream: int = 0) -> StreamLog:
    schema = build(BOX, gymnasium.spaces.Discrete(2), capacity=rows * num_envs, num_envs=num_envs)
    held = schema.held(rows * num_envs)
    return StreamLog(stream, schema.columns, schema.patch_columns, num_envs, rows * num_envs, context, held=held)


class Rows:
    """What was added, in lists: ``(starts, terminated, truncated, valid)`` of each row, arrays ``(num_envs,)``."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.rows: list[tuple[np.ndarray, ...]] = []

    def make(self, rng: np.random.Generator, share: float) -> None:
        """A row that keeps the format's rules; about this share of its entries is out of the ordinary."""
        starts = np.where(rng.random(self.num_envs) < share, rng.integers(1, 4, self.num_envs), 0)
        terminated, truncated = (rng.random((2, self.num_envs)) < share / 2).tolist()
        valid = rng.random(self.num_envs) >= share / 2
        fresh = np.ones(self.num_envs, bool)
        if self.rows:
            _, was_terminated, was_truncated, was_valid = self.rows[-1]
            fresh = was_terminated | was_truncated | ~was_valid
        starts = np.where((starts == 0) & (fresh | ~valid), 1, starts)
        self.rows.append((starts.astype(np.uint8), np.array(terminated), np.array(truncated), valid))

    def values(self, log: StreamLog, start: int, stop: int) -> dict[str, np.ndarray]:
        """Of a log's resident columns."""
        count = stop - start
        arrays = {name: log.table.arrays[name] for name in log.resident}
        found = {name: np.zeros((count, *array.shape[1:]), array.dtype) for name, array in arrays.items()}
        for at, name in enumerate((START, TERMINATED, TRUNCATED, VALID)):
            found[name] = np.array([row[at] for row in self.rows[start:stop]]).reshape(count, self.num_envs)
        found[REWARD][:] = 0
        return found

    def read_into(self, log: StreamLog, stop: int, begin: int) -> None:
        def read(name: str, start: int, out: np.ndarray) -> None:
            out[:] = self.values(log, start, start + len(out))[name]

        log.extend(stop - log.end, begin, read)

    def continues(self, row: int, env: int) -> bool:
        return bool(self.rows[row][0][env] == Start.CONTINUES)

    def cut(self, row: int, env: int) -> bool:
        _, terminated, truncated, valid = self.rows[row]
        ended = terminated[env] or truncated[env] or not valid[env]
        return bool(ended or (row + 1 < len(self.rows) and not self.continues(row + 1, env)))

    def span(self, row: int, env: int, begin: int) -> tuple[int, int, bool]:
        first = last = row
        while first > begin and self.continues(first, env):
            first -= 1
        while not self.cut(last, env) and last + 1 < len(self.rows):
            last += 1
        return first, last + 1, self.cut(last, env)


def check(spans: Spans, log: StreamLog, rows: Rows) -> None:
    """Every row of the window is in the span that a scan finds."""
    places = [(row, env) for row in range(log.begin, log.end) for env in range(log.num_envs)]
    if not places:
        return
    at, envs = np.array(places).T
    found = zip(spans.first(at, envs).tolist(), spans.stop(at, envs).tolist(), spans.is_cut(at, envs), strict=True)
    for place, each in zip(places, found, strict=True):
        assert each == rows.span(*place, log.begin), place


class SpansMachine(RuleBasedStateMachine):
    """A log that grows, slides, is emptied, and is opened anew; spans look at it now and then."""

    @initialize(
        num_envs=st.integers(1, 3), rows=st.sampled_from([1, 2, 7, 30]), context=st.sampled_from([0, 3]), seed=SEEDS
    )
    def begin(self, num_envs: int, rows: int, context: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.log = new_log(num_envs, rows, context)
        self.rows = Rows(num_envs)
        self.spans = Spans(self.log)

    @rule(count=st.integers(1, 40), share=st.sampled_from([0.0, 0.02, 0.1, 0.5]), at_once=st.booleans())
    def add(self, count: int, share: float, at_once: bool) -> None:
        """As a reader takes them over, many rows together, or as a writer does, one after another."""
        for _ in range(count):
            self.rows.make(self.rng, share)
            if not at_once:
                self.take_over()
        self.take_over()

    def take_over(self) -> None:
        log, end = self.log, len(self.rows.rows)
        begin = max(log.begin, end - log.rows)
        floor = max(0, min(begin, end - 1) - log.context)
        if floor > log.end:
            log.restart(begin, floor, 0)
        self.rows.read_into(log, end, begin)

    @rule()
    def look(self) -> None:
        self.spans.catch_up()
        check(self.spans, self.log, self.rows)

    @rule(count=st.integers(1, 9))
    def evict(self, count: int) -> None:
        self.log.slide(min(self.log.begin + count, self.log.end))

    @rule()
    def clear(self) -> None:
        self.log.slide(self.log.end)

    @rule()
    def reopen(self) -> None:
        old = self.log
        self.log = new_log(old.num_envs, old.rows, old.context)
        self.spans = Spans(self.log)
        self.log.restart(old.begin, old.floor, 0)
        self.take_over()

    @precondition(lambda self: self.log.end > self.log.begin)
    @rule()
    def take_a_half_row_back(self) -> None:
        """As after an interrupt: others come in its place, once the spans have seen that it is gone."""
        self.log.end -= 1
        del self.rows.rows[self.log.end :]
        self.look()


SpansMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestSpans = SpansMachine.TestCase


@pytest.mark.long
@pytest.mark.parametrize("step", [1, 7, 1000, 5000])
def test_rings_that_grow_and_turn_over(step: int) -> None:
    """Windows longer than a ring at first, whatever is caught up with together; one episode longer than the window."""
    rng = np.random.default_rng(step)
    log, rows = new_log(2, 2500, 2), Rows(2)
    spans = Spans(log)
    for row in range(9000):
        rows.make(rng, 0.0 if 3000 <= row < 6500 else 0.01)
    for start in range(0, 9000, step):
        stop = min(start + step, 9000)
        begin = max(0, stop - 2500)
        if max(0, begin - 2) > log.end:
            log.restart(begin, max(0, min(begin, stop - 1) - log.context), 0)
        rows.read_into(log, stop, begin)
        spans.catch_up()
        if stop % 1000 == 0:
            upto = Rows(2)
            upto.rows = rows.rows[:stop]
            at = rng.integers(log.begin, log.end, 50)
            envs = rng.integers(0, 2, 50)
            found = zip(spans.first(at, envs).tolist(), spans.stop(at, envs).tolist(), strict=True)
            for row, env, each in zip(at.tolist(), envs.tolist(), found, strict=True):
                assert each == upto.span(row, env, log.begin)[:2]
    assert spans._table.length <= 2500 + 2 + 2, "rows that left the window take memory"
