"""Programs that tell facts of episodes, and write values for rows that are already there, interrupted once."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from helpers import line
from helpers.testing import SimulatedDisk
from interrupts.programs import OPTIONS, PATH, Shown

import diskreplay as dr

WHERE = "seed >= 0 and tag == 'x'"
NO = np.zeros(2, bool)

Facts = list[tuple[int, int, dict[str, Any]]]


def facts_of(buffer: dr.ReplayBuffer) -> Facts:
    return [(episode.start, episode.env, episode.facts) for episode in buffer.episodes]


class Telling(Shown):
    """Two environments, whose episodes have facts; some are evicted, some in no commit.

    ``states`` are those that are allowed, of what is shown with the two episodes that the next row begins.
    """

    seen = staticmethod(facts_of)

    def __init__(self, folder: pathlib.Path, call: str) -> None:
        super().__init__(folder)
        self.name = call
        self.files = SimulatedDisk()
        self.at = np.zeros(2, np.float32)
        self.buffer = line.create(PATH, 24, 2, files=self.files, **OPTIONS)
        for number in range(5):
            self.buffer.begin_episode(env=number % 2, seed=number, tags=["x", "y"][: number % 3])
            self.rows(3, number % 2)
            if number == 2:
                self.buffer.commit()
        self.committed = self.buffer.stats()["streams"]["0"]["committed"]
        self.reader = dr.ReplayBuffer.open(PATH, mode="r", files=self.files, seed=0)
        if call == "refresh":
            self.buffer.commit()
        if call in ("add", "commit"):
            self.buffer.begin_episode(seed=99)
        self.selection = self.buffer.select(WHERE)
        self.batches = self.buffer.shuffled(3, within=self.selection)
        before = facts_of(self.buffer)
        end = self.buffer.stats()["streams"]["0"]["end"]
        self.states: list[Facts] = [before]
        if call == "annotate":
            last = max(at for at, (_, env, _) in enumerate(before) if env == 1)
            self.states.append(self.told(before, last))
        if call == "annotate_old":
            self.states.append(self.told(before, 1))
        if call == "add":
            self.states.append([*before, (end, 0, {"seed": 99}), (end, 1, {"seed": 99})])
        self.end = end

    @staticmethod
    def told(states: Facts, which: int) -> Facts:
        """The same, where success was told of one."""
        return [
            (row, env, {**facts, "success": True} if at == which else facts)
            for at, (row, env, facts) in enumerate(states)
        ]

    def rows(self, count: int, ends: int | None = None) -> None:
        for at in range(count):
            obs = self.at[:, None]
            done = np.array([at == count - 1 and env == ends for env in (0, 1)])
            self.buffer.add(obs, np.zeros(2, int), np.ones(2), obs + 1, done, NO)
            self.at = self.at + 1 + 10 * done

    def call(self) -> object:
        return FACTS[self.name](self)

    def look(self) -> None:
        now = facts_of(self.buffer)
        if now not in self.states:  # an episode whose first row has left the window shows with another one
            begin = self.buffer.stats()["streams"]["0"]["begin"]
            moved = [[(max(row, begin), env, facts) for row, env, facts in state] for state in self.states]
            assert now in moved, f"{now} is none of {moved}"
        chosen = [facts["seed"] for _, _, facts in now if "seed" in facts and "x" in facts.get("tags", [])]
        assert [episode.facts["seed"] for episode in self.buffer.select(WHERE).episodes] == chosen
        self.states = [now]
        self.reader.refresh()

    def go_on(self) -> None:
        waited = self.name in ("begin", "add", "commit")
        begun = self.buffer.stats()["streams"]["0"]["end"] > self.end
        now = facts_of(self.buffer)
        self.at = self.at + 100  # the environments were reset
        row = self.buffer.stats()["streams"]["0"]["end"]
        self.rows(2)
        new = {env: facts for start, env, facts in facts_of(self.buffer) if start == row}
        if self.name == "begin":
            assert new[0] in ({}, {"seed": 99})
            assert new[1] == {}
        elif waited and not begun:
            assert new == {0: {"seed": 99}, 1: {"seed": 99}}
        else:
            assert new == {0: {}, 1: {}}
        kept = [facts for start, _, facts in facts_of(self.buffer) if start < row]
        assert kept == [facts for _, _, facts in now][len(now) - len(kept) :]
        self.buffer.annotate_episode(env=0, success=False)
        batch = self.buffer.sample(7, within=self.buffer.select("success == false"))
        assert (batch.obs[:, 0] >= self.at[0] - 2).all()
        for part in self.batches:
            assert len(part)
        self.buffer.commit()
        self.reader.refresh()
        assert facts_of(self.reader) == facts_of(self.buffer)
        self.states = [facts_of(self.buffer)]

    def add_again(self) -> None:
        self.at = self.at + 1000
        self.buffer.begin_episode(seed=5)
        self.rows(1)
        assert [facts for _, _, facts in facts_of(self.buffer)[-2:]] == [{"seed": 5}, {"seed": 5}]


FACTS: dict[str, Callable[[Telling], object]] = {
    "begin": lambda told: told.buffer.begin_episode(env=0, seed=99),
    "annotate": lambda told: told.buffer.annotate_episode(env=1, success=True),
    "annotate_old": lambda told: told.buffer.annotate_episode(told.buffer.episodes[1], success=True),
    "add": lambda told: told.rows(1),
    "commit": lambda told: told.buffer.commit(),
    "select": lambda told: told.buffer.select(WHERE),
    "sample": lambda told: told.buffer.sample(5, within=told.selection),
    "shuffled": lambda told: next(told.batches),
    "refresh": lambda told: told.reader.refresh(),
}


LATER: dict[str, Any] = {"state": ((3,), np.float32), "wide": ((300,), np.float32)}
"""One in RAM, one on disk."""

Values = dict[int, dict[str, bytes]]


def values_of(buffer: dr.ReplayBuffer) -> Values:
    """The values of all rows of the window."""
    batch = buffer.get(buffer.items())
    return {
        int(number): {
            name: batch.extra[name][at].tobytes() for name in LATER if batch.extra[f"{name}_known"][at]
        }
        for at, number in enumerate(batch.index)
    }  # fmt: skip


class Writing(Shown):
    """Two environments; values of rows in RAM, on disk and evicted, some in no commit.

    ``states`` are those that are allowed.
    """

    seen = staticmethod(values_of)

    def __init__(self, folder: pathlib.Path, call: str) -> None:
        super().__init__(folder)
        self.name = call
        self.files = SimulatedDisk()
        self.rng = np.random.default_rng(0)
        self.at = 0.0
        self.buffer = line.create(PATH, 24, 2, files=self.files, later=LATER, **OPTIONS)
        for number in range(3):
            self.rows(5)
            self.write("state", 6)
            self.write("wide", 2)
            if number == 1:
                self.buffer.commit()
        self.reader = dr.ReplayBuffer.open(PATH, mode="r", files=self.files, seed=0)
        if call == "refresh":
            self.buffer.commit()
        name = "wide" if call == "write large" else "state"
        self.index = self.rng.choice(self.buffer.items(), 9)
        self.values = self.rng.random((9, *LATER[name][0]), np.float32)
        before = values_of(self.buffer)
        self.states = [before]
        if call in ("write", "write large"):
            after = {number: dict(values) for number, values in before.items()}
            for number, value in zip(self.index.tolist(), self.values, strict=True):
                after[number][name] = value.tobytes()
            self.states.append(after)
        if call == "add":
            end = self.buffer.stats()["streams"]["0"]["end"]
            rows = {number: values for number, values in before.items() if number >= min(before) + 2}
            self.states.append({**rows, 2 * end: {}, 2 * end + 1: {}})

    def rows(self, count: int) -> None:
        line.add(self.buffer, count, self.at)
        self.at += count

    def write(self, name: str, count: int) -> None:
        values = self.rng.random((count, *LATER[name][0]), np.float32)
        self.buffer.write(name, self.rng.choice(self.buffer.items(), count), values)

    def call(self) -> object:
        return VALUES[self.name](self)

    def look(self) -> None:
        self.values[:] = 0  # they are the program's again
        now = values_of(self.buffer)
        assert now in self.states
        self.states = [now]
        self.reader.refresh()

    def go_on(self) -> None:
        self.at += 100
        self.write("state", 4)
        self.rows(2)
        self.write("wide", 2)
        now = values_of(self.buffer)
        self.buffer.commit()
        assert values_of(self.buffer) == now
        self.reader.refresh()
        assert values_of(self.reader) == now
        self.states = [now]

    def add_again(self) -> None:
        self.at += 1000
        self.rows(1)
        self.write("state", 3)


VALUES: dict[str, Callable[[Writing], object]] = {
    "write": lambda it: it.buffer.write("state", it.index, it.values),
    "write large": lambda it: it.buffer.write("wide", it.index, it.values),
    "add": lambda it: it.rows(1),
    "commit": lambda it: it.buffer.commit(),
    "sample": lambda it: it.buffer.sample(5),
    "refresh": lambda it: it.reader.refresh(),
}
