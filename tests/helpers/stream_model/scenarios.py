"""Short programs, in all schedules of a few preemptions, with all outcomes of a loss of power after every step."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from helpers.stream_model.contents import STREAMS
from helpers.stream_model.disk import Disk, Loss
from helpers.stream_model.runs import Back, Drop, Make, Operation, Refresh, Run, finish, recover, settle, steps
from helpers.stream_model.world import World
from helpers.stream_model.writer import Commit


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Operations of streams one after another, then programs at once, with a reader of stream 0 if ``read``."""

    before: Sequence[tuple[str, Operation]]
    programs: dict[str, list[Operation]]
    read: bool = False


def commit(rows: int = 0, items: int = 0, *, moves: bool = False, begins: bool = False, clears: bool = False) -> Commit:
    return Commit([1, 0, 2, 0, 1, 1][:rows], items, moves=moves, begins=begins, clears=clears)


CLOSE = Commit(forgets=False, closes=True)
BOTH = Make("k10", other=True)
FRESH = Make("k10", other=True, fresh=True)
FIRST, SECOND = Make("k00"), Make("k01")
BACK = Back("k00")

SCENARIOS = {
    "maker beside tails": Scenario(
        [("0", commit(2)), ("1", Refresh())],
        {"1": [BOTH], "0": [commit(1, begins=True), commit(begins=True), commit(begins=True)]},
    ),
    "maker beside evictions": Scenario(
        [("0", commit(5, moves=True)), ("1", Refresh())], {"1": [BOTH], "0": [commit(6, moves=True, begins=True)]}
    ),
    "maker beside going back": Scenario(
        [("0", commit(2)), ("0", FIRST), ("0", commit(5, moves=True))],
        {"1": [FRESH], "0": [BACK, commit(3, moves=True)]},
    ),
    "maker beside a commit": Scenario([("0", commit(2, moves=True))], {"0": [commit(4, moves=True)], "1": [FRESH]}),
    "maker beside a floor": Scenario(
        [("0", commit(4, moves=True)), ("0", commit(clears=True)), ("1", Refresh())],
        {"1": [BOTH], "0": [commit(2, moves=True)]},
    ),
    "drop beside eviction": Scenario(
        [("0", commit(4, moves=True)), ("1", FRESH), ("0", commit(6, moves=True))],
        {"1": [Drop("k10")], "0": [commit(2, moves=True, begins=True)]},
    ),
    "equal ends": Scenario(
        [("0", commit(5)), ("0", FIRST), ("0", CLOSE), ("0", SECOND)],
        {"0": [BACK, commit(3, moves=True, begins=True), commit(3, moves=True), BACK]},
    ),
    "absent table": Scenario(
        [("0", Commit([0, 0])), ("0", FIRST), ("0", commit(0, 7, moves=True)), ("0", SECOND)],
        {"0": [BACK, commit(0, 5, moves=True)]},
    ),
    "reader beside going back": Scenario(
        [("0", commit(4, moves=True)), ("0", FIRST), ("0", commit(3, moves=True))],
        {"0": [BACK, commit(4, moves=True)]},
        read=True,
    ),
    "reader beside tails": Scenario(
        [("0", commit(5, moves=True))],
        {"0": [commit(3, begins=True), commit(4, moves=True, begins=True), commit(begins=True)]},
        read=True,
    ),
    "kill, then going back": Scenario(
        [("0", commit(3)), ("0", FIRST), ("0", commit(1))],
        {"0": [commit(4, moves=True, begins=True), BACK, commit(3, moves=True)]},
    ),
    "two checkpoints of a tail": Scenario(
        [("0", commit(2)), ("0", FIRST), ("0", commit(1)), ("0", SECOND), ("0", commit(1))],
        {"0": [commit(1, begins=True), commit(begins=True), Drop("k01"), commit(begins=True), BACK]},
    ),
}
RACE = "maker beside tails"
"""A maker of checkpoints beside a writer that leaves tails."""

Schedule = tuple[str, tuple[int, ...]]
"""Who begins, and after which steps the other one goes on."""


class Explorer:
    """Runs a scenario in one schedule after another; what was seen after a loss of power is not tried again.

    Attributes:
        world: the world of the schedule that is run, whose trace tells a violation.
        schedules, crashes: how many were tried.
    """

    def __init__(self, name: str, bug: str | None = None, *, crashes: bool = False) -> None:
        self.scenario, self.bug, self.with_crashes = SCENARIOS[name], bug, crashes
        self.world = World(bug)
        self.schedules = self.crashes = 0
        self.seen: set[int] = set()

    def run(self, schedule: Schedule) -> int:
        """One schedule; its steps."""
        world = self.world = World(self.bug)
        for stream, operation in self.scenario.before:
            finish(world, steps(world.writers[stream], operation))
        run = Run(world, self.scenario.programs, ("0",) if self.scenario.read else ())
        actor, switches = schedule
        at = 0
        while run.actors:
            if at in switches or actor not in run.actors:
                actor = next((other for other in sorted(run.actors) if other != actor), actor)
            run.step(actor)
            at += 1
            if self.with_crashes and at > max(switches, default=0):  # before that it is another schedule's beginning
                self.crash_everywhere()
        self.schedules += 1
        return at

    def every(self, preemptions: int) -> Iterator[int]:
        """All schedules of so many preemptions and fewer, those of fewer first: the steps of each."""
        actors = Run(World(), self.scenario.programs, ("0",) if self.scenario.read else ()).actors
        longest = {actor: self.run((actor, ())) for actor in sorted(actors)}
        yield from longest.values()
        for count in range(1, preemptions + 1 if len(actors) > 1 else 1):
            for actor, length in longest.items():
                for switches in itertools.combinations(range(1, length + 5), count):
                    yield self.run((actor, switches))

    def crash_everywhere(self) -> None:
        """All that a loss of power may leave now: recovery, a commit, and a second loss after it."""
        world = self.world
        if not self.is_new(world, repr((world.disk.names, world.disk.durable, world.disk.pending))):
            return
        for loss in outcomes(world.disk):
            copy = self.world = world.copy()
            copy.disk.lose_power(loss)
            if not self.is_new(copy, repr(sorted((path, file.data) for path, file in copy.disk.names.items()))):
                continue
            self.crashes += 1
            copy.disk.touched = {*STREAMS, "checkpoints"}
            copy.check()
            for stream in STREAMS:
                finish(copy, steps(copy.writers[stream], commit(1)))
            Run(copy, {}).lose_power(NOTHING)
            recover(copy)
            settle(copy)
        self.world = world

    def is_new(self, world: World, state: str) -> bool:
        """Whether no world of this state, and these promises, was seen."""
        before = len(self.seen)
        self.seen.add(hash((state, tuple(world.returned.items()), tuple(sorted(world.promised)))))
        return len(self.seen) > before


NOTHING = Loss(lambda _: False, lambda _: (0, False, lambda: False))
"""Of what was not synced, nothing survives."""


def outcomes(disk: Disk) -> Iterator[Loss]:
    """Subsets of the names that were not synced; of them each with files kept, lost, torn, and with holes."""
    count = len(disk.pending)
    names: list[tuple[bool, ...]]
    if count <= 4:
        names = list(itertools.product((True, False), repeat=count))
    else:
        names = [(True,) * count, (False,) * count]
        names += [tuple((at == one) is kept for at in range(count)) for one in range(count) for kept in (True, False)]
    files = [(1, False, False), (0, False, False), (1, True, False), (1, False, True)]
    for kept in names:
        for share, torn, holes in files if any(file.since for file in disk.names.values()) else files[:1]:
            yield chosen(kept, share, torn, holes)


def chosen(kept: Sequence[bool], share: int, torn: bool, holes: bool) -> Loss:
    return Loss(lambda at: kept[at], lambda count: (count * share, torn, lambda: holes))
