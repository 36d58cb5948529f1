"""After each case of the contract its row holds; docs/durability.md has these rows."""

from __future__ import annotations

import signal

import pytest
from helpers.effort import examples
from helpers.programs import printed
from process.contract import CASES, HEAD, MARKS, MOMENTS, PAGE, Case, holds, table

SIGNALS = examples(300, "signals of a case", least=30)


def cases(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [case for case in CASES if case.kind == kind], ids=str)


@pytest.mark.long(quick=4)
@cases("signal")
def test_a_signal(case: Case, path: str) -> None:
    first = CASES.index(case)  # so that the quick form, which has one moment of each, has several calls
    for moment in range(examples(MOMENTS, "moments of a signal") if case.ends else 1):
        holds(case, f"{path}-{moment}", first + moment, SIGNALS)


@pytest.mark.long(quick=3)
@cases("child")
def test_a_child(case: Case, path: str) -> None:
    holds(case, path, count=examples(50, "forks beside threads", least=4))


@pytest.mark.long(quick=2)
@cases("end")
def test_an_end(case: Case, path: str) -> None:
    holds(case, path)


@pytest.mark.long(quick=2)
@cases("forgotten")
def test_a_forgotten_buffer(case: Case, path: str) -> None:
    holds(case, path)


def test_the_page_has_the_table() -> None:
    print(table())
    there = PAGE.read_text().partition(MARKS[0])[2].partition(MARKS[1])[0]
    assert there == table(), "docs/durability.md: `python -m process.contract --write` in tests/ writes the table"


@pytest.mark.long("test_a_signal")
@pytest.mark.parametrize("sampler", ["Proportional", "Uniform", "RankBased"])
def test_ten_thousand_signals(path: str, sampler: str) -> None:
    """Of which a third raises, and a fifth draws, in a program that commits by itself, too."""
    count = examples(10_000, "signals of a storm")
    run = "it = Learner(path, seed, sys.argv[4], commit_rows=150).interrupted(int(sys.argv[5]), 'mixed', count)"
    said = printed(f"{HEAD}{run}\nprint(it.came, it.raised)", path, 1, count, sampler, int(signal.SIGALRM))
    came, raised = map(int, said.split())
    assert came >= count
    assert raised > came // 5
