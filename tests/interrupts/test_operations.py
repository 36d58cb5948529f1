"""Interrupted at any place, every operation happened, or did not, or the buffer says what to do."""

from __future__ import annotations

import random

import pytest
from helpers.effort import examples, places
from helpers.forking import forked
from interrupts.table import USUAL, Operation, operations, run

TRIES = examples(7, "interrupts of an operation", least=2)
"""Interrupts of each operation: different places of each, the same in each run."""
OTHERS = places(len(USUAL) - 1, "errors and signals beside them")


def modes(operation: Operation) -> list[str]:
    """A Ctrl-C, and of the other kinds of interrupts all, or in the sampled form other ones for each."""
    return [USUAL[0], *random.Random(str(operation)).sample(USUAL[1:], OTHERS)]


@pytest.mark.long(quick=32)
@pytest.mark.parametrize("operation", operations(), ids=str)
def test_interrupted(operation: Operation) -> None:
    def tried() -> tuple[int, int, list[str]]:
        result = run(operation, TRIES, modes(operation))
        return result.tried.total(), sum(result.places.values()), result.wrong

    count, there, wrong = forked(tried)  # so that what an interrupt leaves in a process stays there
    assert count >= min(TRIES, there) // 2, "hardly any place was reached"
    assert not wrong, "\n".join([f"{len(wrong)} of {count}:", *wrong[:10]])
