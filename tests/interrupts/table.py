"""All operations, and what comes of it when they are interrupted at their places."""

from __future__ import annotations

import collections
import dataclasses
import functools
import pathlib
import random
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from helpers.patience import PATIENCE
from helpers.testing import Interrupts
from interrupts import others, own, telling
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
    for call in telling.FACTS:
        yield operation("facts", call, telling.Telling, call)
    for call in telling.VALUES:
        yield operation("written later", call, telling.Writing, call)
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

ENDINGS = ("goes on", "closes")


def trial(make: Make, tool: Interrupts, number: int, ending: str) -> tuple[str | None, str | None]:
    """One program, interrupted at a place and brought to its end: the place, None for none, and what was wrong."""
    kind = KeyboardInterrupt if tool.by == "signal" else type(tool.error())
    with tempfile.TemporaryDirectory() as folder, small, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that priorities were lost
        program = make(pathlib.Path(folder))
        try:
            if tool.interrupt(number, program.call) is None:
                return None, None
        except BaseException as error:
            told = isinstance(error, DiskReplayError) and not isinstance(error, CorruptionError)
            if tool._place is None or not told or not because(error, kind):
                return str(tool._place), described(error)
        try:
            bring_to_its_end(program, goes_on=ending == "goes on")
        except BaseException as error:
            return str(tool._place), described(error)
    return str(tool._place), None


def bring_to_its_end(program: Program, goes_on: bool = True) -> None:
    """Go on with a program, close and open again what it wrote."""
    kept = True
    if goes_on and not program.closed:
        try:
            program.look()
            program.go_on()
        except (StateError, ClosedError):
            kept = False
    try:
        program.close()
    except DiskReplayError as error:
        if isinstance(error, CorruptionError):
            raise
        kept = False
        program.close()
    program.again(kept)


def because(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether an error came of one of this class."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error is not None


def described(error: BaseException) -> str:
    """What it says, and where in the tests and in the engine it came up."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{pathlib.Path(frame.filename).name}:{frame.lineno}" for frame in frames if "numpy" not in frame.filename]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:240]} [{' < '.join(reversed(lines[-4:]))}]"


# All of them


@dataclasses.dataclass
class Result:
    """What came of an operation: its places and interrupts by mode, and what was wrong after an interrupt."""

    places: dict[str, int] = dataclasses.field(default_factory=dict)
    tried: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    wrong: list[str] = dataclasses.field(default_factory=list)


def run(each: Operation, tries: int | None = None, modes: Sequence[str] = USUAL) -> Result:
    """Interrupt an operation so often; everywhere, and with both endings, if None.

    What is wrong without any interrupt is raised: the program itself. What is done only once is done then, such as
    imports.
    """
    with tempfile.TemporaryDirectory() as folder, small:
        program = each.make(pathlib.Path(folder))
        program.call()
        bring_to_its_end(program)
    tools = {mode: MODES[mode]() for mode in modes}
    result = Result({mode: places(each.make, tool) for mode, tool in tools.items()})
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    for mode, number, ending in plan(str(each), result.places, tries):
        signal.alarm(int(PATIENCE))  # ends the process, which hangs
        place, wrong = trial(each.make, tools[mode], number, ending)
        while tries is not None and place is None and number:  # it had fewer places this time
            number //= 2
            place, wrong = trial(each.make, tools[mode], number, ending)
        result.tried[mode] += place is not None
        if wrong:
            result.wrong.append(f"{mode}, {ending}, at {place}: {wrong}")
    signal.alarm(0)
    signal.signal(signal.SIGINT, before)
    return result


def places(make: Make, tool: Interrupts) -> int:
    """Of the operation."""
    with tempfile.TemporaryDirectory() as folder, small:
        program = make(pathlib.Path(folder))
        count = tool.count(program.call)
        program.close()
    return count


def plan(name: str, counts: Mapping[str, int], tries: int | None) -> list[tuple[str, int, str]]:
    """Modes, places and endings: all, or so many, other places for each operation; one of each mode at least."""
    everything = [
        (mode, number, ending) for mode, count in counts.items() for number in range(count) for ending in ENDINGS
    ]
    if tries is None or tries >= len(everything):
        return everything
    rng = random.Random(name)
    chosen = [(mode, rng.randrange(count), rng.choice(ENDINGS)) for mode, count in counts.items() if count]
    return sorted({*chosen, *rng.sample(everything, max(0, tries - len(chosen)))})
