"""Actors over a world, step by step, with kills and losses of power; and random programs of them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Mapping, Sequence

from helpers.stream_model import maker
from helpers.stream_model.contents import ARRAYS, STREAMS, checkpoints
from helpers.stream_model.disk import Loss
from helpers.stream_model.reader import Reader
from helpers.stream_model.world import World
from helpers.stream_model.writer import Commit, Steps, Writer


@dataclasses.dataclass(frozen=True)
class Make:
    """A checkpoint; ``other`` with the other stream, whose record is read now if ``fresh``."""

    name: str
    other: bool = False
    fresh: bool = False


@dataclasses.dataclass(frozen=True)
class Refresh:
    """Reads the other stream's record, for the next checkpoint."""


@dataclasses.dataclass(frozen=True)
class Drop:
    name: str


@dataclasses.dataclass(frozen=True)
class Back:
    """Goes back to a checkpoint by name, or to one of those that there are then."""

    to: str | int


Operation = Commit | Make | Refresh | Drop | Back


def steps(writer: Writer, operation: Operation) -> Steps:
    """What a writer does, with recovery before it where it is dead."""
    if not writer.alive:
        yield from writer.recover()
    if isinstance(operation, Commit):
        yield from writer.commit(operation)
    elif isinstance(operation, Make):
        yield from maker.make(writer, operation.name, other=operation.other, fresh=operation.fresh)
    elif isinstance(operation, Refresh):
        yield from maker.read_other(writer)
    elif isinstance(operation, Drop):
        yield from writer.drop(operation.name)
    else:
        there = sorted(name for name, of in checkpoints(writer.disk).items() if writer.stream in of.cut)
        name = there[operation.to % len(there)] if isinstance(operation.to, int) and there else operation.to
        if isinstance(name, str):
            yield from maker.go_back(writer, name)
    writer.world.counts[type(operation).__name__] += 1


class Run:
    """Writers with programs, and readers. What dies begins again with the next operation of its program."""

    def __init__(
        self, world: World, programs: Mapping[str, Sequence[Operation]], readers: Sequence[str] = (), times: int = 2
    ) -> None:
        self.world, self.readers, self.times = world, readers, times
        self.programs = {stream: list(program) for stream, program in programs.items()}
        self.actors: dict[str, Steps] = {}
        self.start()

    def start(self) -> None:
        self.actors = {stream: self.program(stream) for stream in self.programs}
        for at, stream in enumerate(self.readers):
            self.actors[f"reader {at}"] = Reader(self.world, stream).run(self.times)

    def program(self, stream: str) -> Steps:
        while self.programs[stream]:
            operation = self.programs[stream].pop(0)
            self.world.disk.say(f"-- {stream}: {operation}")
            yield from steps(self.world.writers[stream], operation)

    def step(self, actor: str) -> None:
        try:
            next(self.actors[actor])
            self.world.disk.trace[-1] += f"   [{actor}]"
        except StopIteration:
            del self.actors[actor]
        self.world.check()

    def kill(self, stream: str) -> None:
        self.world.disk.say(f"=== {stream} is killed")
        self.world.writers[stream] = Writer(self.world, stream)
        self.actors[stream] = self.program(stream)

    def lose_power(self, loss: Loss) -> None:
        self.world.disk.lose_power(loss)
        self.world.writers = {stream: Writer(self.world, stream) for stream in STREAMS}
        self.world.disk.touched = {*STREAMS, "checkpoints"}
        self.start()
        self.world.check()


def finish(world: World, doing: Iterable[object]) -> None:
    """All steps, each checked."""
    for _ in doing:
        world.check()


def recover(world: World, most_steps: int | None = None) -> bool:
    """Both writers recover, twice, which is once; false where it took more steps than wanted."""
    disk, states = world.disk, []
    for _ in range(2):
        for stream in STREAMS:
            world.writers[stream] = Writer(world, stream)
            for _ in world.writers[stream].recover():
                world.check()
                if most_steps is not None:
                    most_steps -= 1
                    if most_steps < 0:
                        return False
        states.append({path: [entry[:2] for entry in file.data] for path, file in disk.names.items()})
    assert states[0] == states[1], f"recovery twice is not once: {states}"
    world.unsure.clear()
    world.check(recovered=True)
    world.check_files()
    return True


def settle(world: World) -> None:
    """Commits that leave the tail, after which no file is left that nobody needs; and recovery."""
    for stream in STREAMS:
        finish(world, steps(world.writers[stream], Commit((1, 0, 2, 0), 2, moves=True, begins=True)))
        world.check_evicted(stream)
        world.writers[stream] = Writer(world, stream)
    recover(world)


def program(rng: random.Random, stream: str) -> list[Operation]:
    """Operations of a writer; that of stream 1 also makes checkpoints of both."""
    found: list[Operation] = []
    made = 0
    for _ in range(rng.randint(4, 12)):
        drawn = rng.random()
        if drawn < 0.55:
            rows = [rng.choice((0, 0, 1, 2)) for _ in range(rng.choice((0, 1, 1, 2, 3, 5)))]
            moves, begins, forgets, clears = (rng.random() < share for share in (0.5, 0.4, 0.7, 0.06))
            found.append(Commit(rows, rng.choice((0, 0, 0, 1, 3)), moves, begins, forgets, clears))
        elif drawn < 0.66:
            keeps = tuple(array for array in ARRAYS if rng.random() < 0.25)
            found.append(Commit(begins=rng.random() < 0.3, forgets=False, closes=True, keeps=keeps))
        elif drawn < 0.82:
            found.append(Make(f"k{stream}{made}", stream == "1" and rng.random() < 0.75, rng.random() < 0.33))
            made += 1
        elif drawn < 0.85 and stream == "1":
            found.append(Refresh())
        elif drawn < 0.90 and made:
            found.append(Drop(f"k{stream}{rng.randrange(made)}"))
        else:
            found.append(Back(rng.randrange(4)))
    return found


def random_loss(rng: random.Random) -> Loss:
    share = rng.choice((0, 0.5, 0.9, 1))
    return Loss(
        lambda _: rng.random() < share,
        lambda count: (rng.randint(0, count), rng.random() < 0.3, lambda: rng.random() < 0.2),
    )


def random_run(seed: int, world: World) -> None:
    """Programs of both writers and maybe a reader, with kills and losses of power, also within recovery."""
    rng = random.Random(seed)
    run = Run(world, {stream: program(rng, stream) for stream in STREAMS}, rng.choice(((), ("0",), ("1",))), times=8)
    losses, kills, switches = rng.choice((0, 0.004, 0.02)), rng.choice((0, 0.01)), rng.choice((1, 0.3, 0.1, 0.03))
    actor = ""
    while run.actors:
        if actor not in run.actors or rng.random() < switches:
            actor = rng.choice(sorted(run.actors))
        run.step(actor)
        if rng.random() < kills:
            run.kill(rng.choice(STREAMS))
            world.counts["kills"] += 1
        if rng.random() < losses or not run.actors:
            interrupted = 3
            while True:
                run.lose_power(random_loss(rng))
                world.counts["losses of power"] += 1
                if recover(world, rng.randint(0, 30) if interrupted and rng.random() < 0.4 else None):
                    break
                interrupted -= 1
            world.writers = {stream: Writer(world, stream) for stream in STREAMS}
            if not any(run.programs.values()):
                break
    settle(world)
