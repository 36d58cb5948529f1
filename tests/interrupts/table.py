"""All operations, and what comes of it when they are interrupted at their places."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import multiprocessing
import os
import pathlib
import random
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from helpers.patience import PATIENCE
from helpers.testing import Interrupts
from interrupts import others, own, telling, writing
from interrupts.programs import (
    FRAMES,
    GOALS,
    RAGGED,
    SINGLE,
    VECTORS,
    Creating,
    Opening,
    Program,
    Reading,
    Replay,
    by_environment,
    proportional,
    rank_based,
    small,
)

import diskreplay as dr
from diskreplay.errors import ClosedError, CorruptionError, DiskReplayError, StateError

ENGINE = ("diskreplay", "contextlib")
"""Where the places are: what makes context managers out of generators is a part of the engine."""

MODES: dict[str, Callable[[], Interrupts]] = {
    "signal": lambda: Interrupts(at="check", by="signal", within=ENGINE),
    "memory": lambda: Interrupts(MemoryError, within=ENGINE),
    "own": lambda: Interrupts(functools.partial(RuntimeError, "of the user's own code"), within=[own.__name__]),
    "own, signal": lambda: Interrupts(at="check", by="signal", within=[own.__name__]),
}
"""What happens: a Ctrl-C, wherever CPython handles signals; no more memory, at any line; an error, or a Ctrl-C, in the
user's own code (a file system, views, samplers, functions)."""
USUAL = tuple(MODES)

Make = Callable[[pathlib.Path], Program]


@dataclasses.dataclass(frozen=True)
class Operation:
    """A public operation in a situation."""

    group: str
    name: str
    make: Make

    def __str__(self) -> str:
        return f"{self.group}: {self.name}" if self.name else self.group


def operation(group: str, name: str, program: Callable[..., Program], *arguments: Any, **options: Any) -> Operation:
    return Operation(group, name, lambda folder: program(folder, *arguments, **options))


def replay_operations() -> Iterator[Operation]:
    vectors = functools.partial(operation, program=Replay, config=VECTORS)
    frames = functools.partial(operation, program=Replay, config=FRAMES)
    single = functools.partial(operation, program=Replay, config=SINGLE)
    ragged = functools.partial(operation, program=Replay, config=RAGGED)
    for rows in ([0, 0], [0, 3], [0, 7], [9, 2], [26, 4]):
        yield vectors("add", f"vectors, after {sum(rows)} rows", rows=rows, call=Replay.add)
    for rows in ([0, 0], [0, 3], [4, 1], [20, 3]):
        yield frames("add", f"stacks, after {sum(rows)} rows", rows=rows, call=Replay.add)
    yield single("add", "single frames, after 17 rows", rows=[14, 3], call=Replay.add)
    yield vectors("add", "with a commit", rows=[26, 3], call=Replay.add, commit_rows=4)
    yield frames("add", "stacks, with a commit", rows=[20, 3], call=Replay.add, commit_rows=4)
    yield vectors("extend", "vectors", rows=[26, 3], call=Replay.extend)
    yield vectors("extend", "vectors, with a commit", rows=[26, 3], call=Replay.extend, commit_rows=5)
    yield single("extend", "single frames", rows=[14, 2], call=Replay.extend)
    for rows in ([0, 0], [0, 3], [14, 2]):
        yield ragged("add", f"ragged, after {sum(rows)} rows", rows=rows, call=Replay.add)
    yield ragged("add", "ragged, with a commit", rows=[13, 3], call=Replay.add, commit_rows=4)
    yield ragged("extend", "ragged", rows=[13, 3], call=Replay.extend)
    yield ragged("commit", "ragged", rows=[13, 7], call=Replay.commit)
    yield ragged("checkpoint", "ragged", rows=[13, 7], call=Replay.checkpoint, checkpoints=["first"])
    yield ragged("sample", "ragged", rows=[13, 3], call=Replay.sample)
    yield vectors("commit", "vectors", rows=[26, 7], call=Replay.commit)
    yield frames("commit", "stacks", rows=[20, 7], call=Replay.commit)
    yield single("commit", "single frames", rows=[14, 9], call=Replay.commit)
    yield vectors("commit", "the first", rows=[0, 5], call=Replay.commit)
    yield vectors("checkpoint", "vectors", rows=[26, 7], call=Replay.checkpoint, checkpoints=["first"])
    yield frames("checkpoint", "stacks", rows=[20, 7], call=Replay.checkpoint)
    yield vectors("checkpoint", "with priorities", rows=[20, 7], call=Replay.checkpoint, sampler=proportional)
    yield vectors("drop_checkpoint", "", rows=[20, 7], call=Replay.drop, checkpoints=["first"])
    yield vectors("clear", "vectors", rows=[20, 7], call=Replay.clear)
    yield vectors("clear", "with priorities", rows=[20, 7], call=Replay.clear, sampler=proportional)
    for name, call in (("more", Replay.grow), ("fewer", Replay.shrink)):
        yield vectors("resize", f"{name}, with priorities", rows=[26, 7], call=call, sampler=proportional)
        yield frames("resize", f"{name}, stacks", rows=[20, 7], call=call)
    for rows, age in (([26, 3], "after adding"), ([26, 0], "after a commit")):
        yield vectors("sample", f"uniform, {age}", rows=rows, call=Replay.sample)
        yield single("sample", f"uniform, single frames, {age}", rows=rows, call=Replay.sample)
    for name, sampler in (("proportional", proportional), ("by rank", rank_based)):
        yield vectors("sample", name, rows=[20, 7], call=Replay.sample, sampler=sampler)
        yield frames("sample", f"{name}, stacks", rows=[20, 3], call=Replay.sample, sampler=sampler)
        yield vectors("update_priorities", name, rows=[20, 7], call=Replay.update, sampler=sampler)
        yield vectors("update_priorities", f"{name}, nothing new", rows=[20, 0], call=Replay.update, sampler=sampler)
    for name, call in (("sample", Replay.sample), ("update_priorities", Replay.update)):
        yield frames(name, "by environment", rows=[20, 3], call=call, sampler=by_environment)
    views: dict[str, Any] = {
        "sequences": dr.Sequence(4, burn_in=1, gamma=0.9), "episodes": dr.PaddedEpisodes(5, 0.9),
        "own": own.View(2, 0.9),
        "windows": dr.DeltaTimestamps({"obs": [-1.0, 0.0], "action": [0.0, 1.0, 2.0]}, fps=1),
    }  # fmt: skip
    for name, view in views.items():
        yield vectors("sample", name, rows=[20, 8], call=Replay.sample, view=view)
        yield vectors("get", name, rows=[20, 8], call=Replay.get, view=view)
    yield vectors(
        "sample", "sequences by priority", rows=[20, 7], call=Replay.sample, view=views["sequences"],
        sampler=proportional,
    )  # fmt: skip
    yield vectors("sample", "own sampler", rows=[20, 7], call=Replay.sample, sampler=own.Sampler)
    yield frames("get", "stacks", rows=[20, 3], call=Replay.get)
    goals = dr.Hindsight(own.reward_fn, "future", 0.8, None, 0.9)
    yield operation("sample", "hindsight", Replay, GOALS, [20, 7], Replay.sample, view=goals)
    yield vectors("loader", "", rows=[20, 7], call=Replay.next_loaded)
    yield single("shuffled", "", rows=[14, 5], call=Replay.next_batch)
    yield vectors("close", "vectors", rows=[26, 7], call=Replay.close_)
    yield frames("close", "stacks", rows=[20, 7], call=Replay.close_)
    yield operation("open", "vectors", Opening, VECTORS, [26, 7], Opening.reopen)
    yield operation("open", "stacks", Opening, FRAMES, [20, 7], Opening.reopen)
    yield operation("open", "ragged, at a checkpoint", Opening, RAGGED, [13, 7], Opening.go_back, checkpoints=["first"])
    yield operation("open", "at a checkpoint", Opening, VECTORS, [20, 7], Opening.go_back, checkpoints=["first"])
    yield operation("create", "", Creating, VECTORS, [], Creating.create)
    for name, config in (("vectors", VECTORS), ("stacks", FRAMES)):
        yield operation("refresh", name, Reading, config, [20, 7], Reading.refresh)
    yield operation("refresh", "with priorities", Reading, VECTORS, [20, 7], Reading.refresh, sampler=proportional)
    for call in telling.CALLS:
        yield operation("facts", call, telling.Telling, call)
    for call in writing.CALLS:
        yield operation("written later", call, writing.Writing, call)
    yield operation("refresh", "of nothing yet", Reading, VECTORS, [0, 3], Reading.refresh)


def other_operations() -> Iterator[Operation]:
    for call in ("store", "finish", "minibatches", "clear"):
        yield operation("rollout", call, others.Rollout, call)
    for call in ("store", "sample"):
        yield operation("several agents", call, others.Agents, call)
    for call in ("store", "finish"):
        yield operation("several agents' rollout", call, others.AgentsRollout, call)
    yield operation("export", "", others.Converting, "export")
    yield operation("import", "", others.Converting, "import_")
    for name, program, calls in (
        ("frames", others.FrameHistory, ("store", "read", "close")),
        ("notebook", others.Notebook, ("store", "insert", "commit", "close", "open")),
        ("notebook, by rank", others.RankNotebook, ("store", "insert", "close")),
        ("xuance", others.Xuance, ("store", "sample", "clear", "close", "open")),
        (
            "xuance, by priority", others.XuancePriorities,
            ("store", "sample", "update", "clear", "commit", "close", "open"),
        ),
        ("xuance, rollout", others.XuanceRollout, ("store", "finish", "sample", "clear", "commit", "close", "open")),
        ("xuance, episodes", others.EpisodesOfXuance, ("store", "sample", "clear", "close", "open")),
        ("xuance_marl", others.AgentsOfXuance, ("store", "sample", "clear", "close", "open")),
        ("xuance_marl, rollout", others.AgentsRolloutOfXuance, ("store", "finish", "sample", "clear", "close", "open")),
        ("xuance_marl, episodes", others.AgentsEpisodesOfXuance, ("store", "sample", "clear", "close", "open")),
        (
            "xuance_marl, episodes of a rollout", others.AgentsRolloutEpisodesOfXuance,
            ("store", "sample", "clear", "commit", "close", "open"),
        ),
        ("pearl", others.Pearl, ("store", "sample", "clear", "close", "open")),
        ("pearl, rollout", others.PearlRollout, ("store", "sample", "close")),
        ("pearl, hindsight", others.PearlHindsight, ("store", "sample", "close")),
    ):  # fmt: skip
        for call in calls:
            yield operation(f"compat.{name.split(',')[0]}", f"{name}, {call}", program, call)


def operations() -> list[Operation]:
    return [*replay_operations(), *other_operations()]


# One trial


@dataclasses.dataclass(frozen=True)
class Failure:
    """What was wrong after an interrupt."""

    operation: str
    mode: str
    place: str
    ending: str
    what: str


ENDINGS = ("goes on", "closes")


def trial(make: Make, tool: Interrupts, number: int, ending: str) -> tuple[str | None, str | None]:
    """One program, interrupted at a place and brought to its end: the place, None for none, and what was wrong."""
    kind = KeyboardInterrupt if tool.by == "signal" else type(tool.error())
    told = False
    with tempfile.TemporaryDirectory() as folder, small:
        program = make(pathlib.Path(folder))
        try:
            found = tool.interrupt(number, program.call)
            if found is None:
                return None, None
            place = str(found)
        except DiskReplayError as error:
            place = str(tool._place)
            if tool._place is None or isinstance(error, CorruptionError) or not because(error, kind):
                return place, described(error)
        except BaseException as error:
            return str(tool._place), described(error)
        try:
            if ending == "goes on" and not program.closed:
                try:
                    program.look()
                    program.go_on()
                except (StateError, ClosedError) as error:
                    told = bool(error)
            kept = not told
            try:
                program.close()
            except DiskReplayError as error:
                if isinstance(error, CorruptionError):
                    raise
                kept = False
                program.close()
            program.again(kept)
        except BaseException as error:
            return place, described(error)
    return place, None


def uninterrupted(make: Make) -> str | None:
    """What is wrong without any interrupt: the program itself. What is done only once is done then, such as imports."""
    with tempfile.TemporaryDirectory() as folder, small:
        try:
            program = make(pathlib.Path(folder))
            program.call()
            if not program.closed:
                program.look()
                program.go_on()
            program.close()
            program.again(True)
        except BaseException as error:
            return described(error)
    return None


def because(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether an error came of one of this class."""
    chain: BaseException | None = error
    while chain is not None and not isinstance(chain, kind):
        chain = chain.__cause__ or chain.__context__
    return chain is not None


def described(error: BaseException) -> str:
    """What it says, and where in the tests and in the engine it came up."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{pathlib.Path(frame.filename).name}:{frame.lineno}" for frame in frames if "numpy" not in frame.filename]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:240]} [{' < '.join(reversed(lines[-4:]))}]"


# All of them, in processes of their own


def work(name: str, modes: Sequence[str], tries: int | None, start: int, pipe: Connection) -> None:
    """Tries the places of an operation, from one of the plan on, and tells of each before and after it."""
    os.fsync = lambda fd: None  # type: ignore[assignment]  # no power is cut here
    signal.signal(signal.SIGINT, signal.default_int_handler)
    make = {str(each): each.make for each in operations()}[name]
    wrong = uninterrupted(make)
    if wrong:
        pipe.send(("tried", "nowhere", wrong))
        return pipe.send(("done",))
    tools = {mode: MODES[mode]() for mode in modes}
    counts = {mode: places(make, tool) for mode, tool in tools.items()}
    pipe.send(("places", counts))
    for at, (mode, number, ending) in list(enumerate(plan(name, counts, tries)))[start:]:
        pipe.send(("trying", at, mode, number, ending))
        told = trial(make, tools[mode], number, ending)
        while tries is not None and told[0] is None and number:  # it had fewer places this time
            number //= 2
            told = trial(make, tools[mode], number, ending)
        pipe.send(("tried", *told))
    pipe.send(("done",))


def places(make: Make, tool: Interrupts) -> int:
    """Of the operation."""
    with tempfile.TemporaryDirectory() as folder, small:
        program = make(pathlib.Path(folder))
        count = tool.count(program.call)
        program.close()
    return count


Try = tuple[str, int, str]
"""Mode, number of a place, ending."""


def plan(name: str, counts: Mapping[str, int], tries: int | None) -> list[Try]:
    """What is tried: everything, or so many, other places for each operation; one of each mode at least."""
    everything = [
        (mode, number, ending) for mode, count in counts.items() for number in range(count) for ending in ENDINGS
    ]
    if tries is None or tries >= len(everything):
        return everything
    rng = random.Random(name)
    chosen = [(mode, rng.randrange(count), rng.choice(ENDINGS)) for mode, count in counts.items() if count]
    return sorted({*chosen, *rng.sample(everything, max(0, tries - len(chosen)))})


@dataclasses.dataclass
class Result:
    """What came of an operation.

    Attributes:
        places: that it has, of each mode.
        tried: interrupts.
        failures: those after which something was wrong.
    """

    operation: Operation
    places: dict[str, int] = dataclasses.field(default_factory=dict)
    tried: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    failures: list[Failure] = dataclasses.field(default_factory=list)


@functools.cache
def processes() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["diskreplay.buffers.replay", "interrupts.table", "diskreplay.sampling.places"])
    return context


def run(each: Operation, tries: int | None = None, modes: Sequence[str] = USUAL) -> Result:
    """Interrupts an operation so often; everywhere, and with both endings, if None."""
    result = Result(each)
    start = 0
    while start >= 0:
        start = _run_in_process(result, modes, tries, start)
    return result


def _run_in_process(result: Result, modes: Sequence[str], tries: int | None, start: int) -> int:
    """Goes on with the plan from there; where it is to go on after a hang, -1 when all is done."""
    here, there = processes().Pipe()
    process = processes().Process(target=work, args=(str(result.operation), modes, tries, start, there), daemon=True)
    process.start()
    there.close()
    at, mode, number, ending = -1, "", -1, ""
    try:
        with contextlib.closing(here):
            while True:
                if not here.poll(PATIENCE):
                    raise EOFError(f"hangs, for {PATIENCE:g} seconds")
                what, *facts = here.recv()
                if what == "done":
                    process.join(PATIENCE)
                    return -1
                if what == "places":
                    (result.places,) = facts
                elif what == "trying":
                    at, mode, number, ending = facts
                elif facts[0] is not None:
                    result.tried[mode] += 1
                    if facts[1] is not None:
                        result.failures.append(Failure(str(result.operation), mode, facts[0], ending, facts[1]))
    except EOFError as error:
        result.tried[mode] += 1
        what = f"the process {error.args[0] if error.args else 'died'}"
        result.failures.append(Failure(str(result.operation), mode, f"place {number}", ending, what))
        return at + 1 if at >= 0 else -1
    finally:
        process.kill()
        process.join()
