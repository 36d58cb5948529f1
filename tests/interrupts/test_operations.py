"""Interrupted at any place, every operation happened, or did not, or the buffer says what to do."""

from __future__ import annotations

import collections
import random

import pytest
from helpers.effort import examples, places, stride
from helpers.forking import forked
from helpers.testing import Interrupts
from interrupts.table import ENDINGS, USUAL, Operation, operations, run, trial

TRIES = examples(7, "interrupts of an operation", least=2)
"""Interrupts of each operation: different places of each, the same in each run."""
OFTEN = 4
"""So often each line of an adapter is interrupted at least, if it is run as often."""
OF_ADAPTERS = [
    operation
    for operation in operations()
    # Pearl's buffers are closed by the store's own method.
    if operation.group.startswith("compat.")
    and not (operation.group == "compat.pearl" and operation.name.endswith("close"))
]
OTHERS = places(len(USUAL) - 1, "errors and signals beside them")


def modes(operation: Operation) -> list[str]:
    """A Ctrl-C, and of the other kinds of interrupts all, or in the sampled form other ones for each."""
    return [USUAL[0], *random.Random(str(operation)).sample(USUAL[1:], OTHERS)]


@pytest.mark.long(quick=32)
@pytest.mark.parametrize("operation", operations(), ids=str)
def test_interrupted(operation: Operation) -> None:
    def tried() -> tuple[int, int, list[str]]:
        result = run(operation, TRIES * (3 if operation.group == "add" else 1), modes(operation))
        return result.tried.total(), sum(result.places.values()), result.wrong

    count, there, wrong = forked(tried)  # so that what an interrupt leaves in a process stays there
    assert count >= min(TRIES, there) // 2, "hardly any place was reached"
    assert not wrong, "\n".join([f"{len(wrong)} of {count}:", *wrong[:10]])


@pytest.mark.long(quick=4)
@pytest.mark.parametrize("operation", OF_ADAPTERS, ids=str)
def test_a_ctrl_c_at_each_place_of_an_adapter(operation: Operation) -> None:
    """Of the lines that keep another library's numbers beside the rows, as Python may call handlers there.

    Where a line is run again and again, about a fourth of the times that follow ``OFTEN``.
    """
    tool, rng = Interrupts(at="check", by="signal", within=["diskreplay.compat"]), random.Random(str(operation))

    def tried() -> tuple[int, list[str]]:
        wrong, number, times = [], 0, collections.Counter[str]()
        step = stride(7, "places of adapters")
        while True:
            place, what = trial(operation.make, tool, number, ENDINGS[number % 2])
            if what:
                wrong.append(f"{place}: {what}")
            if place is None:
                return number, wrong
            times[place] += 1
            number += step if times[place] <= OFTEN else step * rng.randint(1, 7)

    count, wrong = forked(tried)
    assert count
    assert wrong == []
