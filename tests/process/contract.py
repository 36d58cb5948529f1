"""What holds after signals, forks and ends of programs: one table of cases, each of which is a program.

``python -m process.contract`` in ``tests`` prints the table, and with ``--write`` puts it into docs/durability.md;
``python -m process.contract --times 1000 SIGTERM`` tries the cases with such a name so often, with other moments each.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import pathlib
import signal
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from helpers import programs
from process.learner import WITNESS, check, opened

import diskreplay as dr
from diskreplay.errors import SamplerWarning
from diskreplay.ops.verify import verify
from diskreplay.process import lifecycle

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "durability.md"
MARKS = "<!-- python -m process.contract --write -->\n", "<!-- the end of the contract -->"

ALL, SO_FAR = "every row that `add` returned", "those of the last commit, or of the one in flight"
KEPT, NEW = "kept", "those of checkpoints; a `SamplerWarning` says so"
FREE, PARENTS = "free", "the parent's, then free"
WARNED = "was not closed; now it is, and its rows are committed"
NONE, NEXT = "none is left over", "leftovers go with the next opening to write"
MOMENTS = 12
"""The seeds with which a signal comes in each kind of call, with and without threads beside it."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A program, and what holds after it.

    Attributes:
        kind: of what happens, "signal", "child", "end" or "forgotten".
        by, what: happens; cases of one ``what`` after which the same holds share a row of the table.
        program: its text, to which ``path``, ``seed``, ``count`` and the names of :mod:`process.learner` are known.
        does: what comes of the program.
        status: its exit status.
        says: what stderr has, which is empty where this is; None where it may have errors of finalizers.
        rows, priorities, lock, files: one of the constants above, each of which has its check in :func:`holds`.
        ends: whether the first signal ends the program, so that only several runs have several moments.
    """

    kind: str
    by: str
    what: str
    program: str
    does: str = "goes on"
    status: int = 0
    says: str | None = ""
    rows: str = ALL
    priorities: str = KEPT
    lock: str = FREE
    files: str = NONE
    ends: bool = False

    def __str__(self) -> str:
        return f"{self.by} {self.what}".replace("`", "").strip()


LOST: dict[str, Any] = {"rows": SO_FAR, "priorities": NEW, "files": NEXT}


def signals() -> Iterator[Case]:
    whole = "the call has happened, or has not"
    ways: list[tuple[str, str, dict[str, Any]]] = [
        ("default", "without a handler of the program's own", {"does": "is killed", "ends": True, **LOST}),
        ("exits", "whose handler calls `sys.exit`", {"does": f"ends; {whole}", "status": 3, "ends": True}),
        ("raises", "whose handler raises, and who called goes on", {"does": f"goes on; {whole}", "says": None}),
        ("returns", "whose handler calls the buffer and returns", {"does": "goes on; both calls have happened"}),
    ]
    for number, name in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGUSR1, "SIGUSR1")):
        for does, what, more in ways:
            if does == "default":
                more = more | {"status": -number}
            if (name, does) == ("Ctrl-C", "default"):
                more = {"does": f"ends by KeyboardInterrupt; {whole}", "says": "KeyboardInterrupt", "ends": True}
                more |= {"status": -number}
            run = f"Learner(path, seed).interrupted({number:d}, {does!r}, count, seed % 4 in (1, 2))"
            yield Case("signal", name, what, run, **more)


METHODS = {
    "`os.fork`": "os.fork", "`multiprocessing`: fork": "fork", "forkserver": "forkserver", "spawn": "spawn"
}  # fmt: skip


def children() -> Iterator[Case]:
    draws, refused = "the child draws its own batches", "the child gets `StateError`"
    for beside, (by, method) in itertools.product((False, True), METHODS.items()):
        many = "count" if beside and method == "os.fork" else 2
        what = "of a reader" + " from which threads draw" * beside
        yield Case("child", by, what, f"reader_is_copied(path, {method!r}, {many}, {beside})", draws)
    for beside, (by, method) in itertools.product((False, True), METHODS.items()):
        many = "count" if beside and method == "os.fork" else 1
        does, wanted = refused, "StateError: this process was forked from the one that writes"
        if "fork" not in method.split("."):
            does, wanted = "`TypeError`: writers are not pickled", "TypeError: a ReplayBuffer that writes cannot be"
        run = f"writer_is_refused(path, {method!r}, {wanted!r}, {many}, {beside})"
        what = "of a writer" + " to which threads add" * beside
        yield Case("child", by, what, run, does, lock=PARENTS)
    drawn, used = "assert type(said) is list, said", "this process was forked while another thread was using the buffer"
    for what, does, run in (
        ("within a draw, by a view's own code", draws, f"said = view_forks(path)\n{drawn}"),
        ("of a reader that a thread uses for a moment", draws, f"said = reader_is_in_use(path, 800, True)\n{drawn}"),
        (
            f"of a reader that a thread uses for more than {lifecycle.FORK_SECONDS:g} s", refused,
            f"said = reader_is_in_use(path, 0.05, False)\nassert said.startswith('StateError: {used}'), said",
        ),
    ):  # fmt: skip
        yield Case("child", "`os.fork`", what, run, does)


def ends() -> Iterator[Case]:
    for what, last, more in (
        ("the end of a script without `close`", "", {}),
        ("`sys.exit(3)`", "sys.exit(3)", {"status": 3}),
        ("an exception", "raise KeyError('mine')", {"status": 1, "says": "'mine'"}),
        ("`os._exit(0)`", "os._exit(0)", LOST),
        ("the end of a script after which a thread and an exit handler still add", "add_late()", {}),
    ):  # fmt: skip
        yield Case("end", what, "", f"left.append(Learner(path))\n{last}", "ends", **more)
    for by, method in list(METHODS.items())[1:]:
        run = f"assert child({method!r}, learns, path) is None"
        yield Case("end", by, "of a process that writes, whose function returns", run, "the child ends")


def forgotten() -> Iterator[Case]:
    ring = "it = Learner(path)\nit.me = it\ndel it\nbefore = files(path)\ngc.collect()\nassert files(path) == before\n"
    other = "Learner(path + '-other').buffer.close()\n"
    for what, run, then, says in (
        ("the last reference is dropped", "Learner(path)\nis_kept(path)", "there and then", WARNED),
        (
            "the collector finds a buffer", f"{other}{ring}opened(path + '-other').close()\nis_kept(path)",
            "goes on: when it next opens a store", WARNED,
        ),
        ("the collector finds a buffer, and no store is opened", ring, "when it ends", ""),
    ):  # fmt: skip
        yield Case("forgotten", what, "", run, then, says=says)


CASES = (*signals(), *children(), *ends(), *forgotten())


def table() -> str:
    """In Markdown."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for case in CASES:
        held = case.what, case.does, case.rows, case.priorities, case.lock, case.files
        rows.setdefault(held, []).append(case.by)
    lines = ["| after | the program | rows | priorities | the lock | files |", "|---|---|---|---|---|---|"]
    for (what, *held), by in rows.items():
        lines.append(f"| {' | '.join([', '.join(by) + ' ' * bool(what) + what, *held])} |")
    return "\n".join(lines) + "\n"


HEAD = """
import diskreplay.process.lifecycle, sys  # before what others import, as programs may
sys.setswitchinterval(1e-4)
from process.learner import *
os.fsync = lambda descriptor: None  # nobody cuts the power here
path, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
"""


def holds(case: Case, path: str, seed: int = 0, count: int = 1) -> None:
    """Run the program, with ``count`` signals, and check what is left of it."""
    done = programs.run(HEAD + case.program, path, seed, count, flags=("-Walways::ResourceWarning",))
    assert done.returncode == case.status, f"{done.returncode}: {done.stderr[-3000:]}"
    if case.says is not None:
        assert case.says in done.stderr, done.stderr
        assert bool(case.says) == bool(done.stderr), done.stderr
    if case.files == NONE:
        assert not leftovers(path)
    witness = np.memmap(f"{path}.witness", WITNESS, "r", shape=1)[0]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        buffer = dr.ReplayBuffer.open(path)  # LockedError if the lock is not free
    assert [type(warning.message) for warning in told] == [SamplerWarning] * (case.priorities == NEW)
    with buffer:
        check(buffer, witness, rows="added" if case.rows == ALL else "committed", kept=case.priorities == KEPT)
        assert not leftovers(path)
        names = buffer.checkpoints
    assert verify(path).problems == ()
    assert names, "each program makes checkpoints"
    for known in witness["checkpoints"]:
        if (name := f"c{known['number']}") in names:
            with opened(path, checkpoint=name) as buffer:
                check(buffer, known)


def leftovers(path: str) -> list[str]:
    return [str(each) for each in pathlib.Path(path).rglob("*") if ".tmp" in each.name]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m process.contract", description=__doc__)
    parser.add_argument("name", nargs="?", default="", help="try the cases whose names contain this")
    parser.add_argument("--times", type=int, default=0, help="how often each is tried")
    parser.add_argument("--write", action="store_true", help="put the table into docs/durability.md")
    given = parser.parse_args()
    if given.write:
        before, _, rest = PAGE.read_text().partition(MARKS[0])
        PAGE.write_text(f"{before}{MARKS[0]}{table()}{MARKS[1]}{rest.partition(MARKS[1])[2]}")
    if not given.times:
        print(table())
    for case in CASES if given.times else ():
        if given.name in str(case):
            for seed in range(given.times):
                with tempfile.TemporaryDirectory() as folder:
                    holds(case, f"{folder}/a.replay", seed, count=30)
            print(f"{case}: {given.times} times", flush=True)


if __name__ == "__main__":
    main()
