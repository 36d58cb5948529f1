"""Interrupted at any place, every operation happened, or did not, or the buffer says what to do."""

from __future__ import annotations

import pytest
from effort import examples
from interrupts.table import Operation, operations, run

TRIES = examples(7)
"""Interrupts of each operation: different places of each, the same in each run."""


@pytest.mark.parametrize("operation", operations(), ids=str)
def test_interrupted(operation: Operation) -> None:
    result = run(operation, TRIES)
    assert sum(result.tried.values()) >= min(TRIES, sum(result.places.values())) // 2, "hardly any place was reached"
    wrong = [f"{each.mode}, {each.ending}, at {each.place}: {each.what}" for each in result.failures]
    assert not wrong, "\n".join([f"{len(wrong)} of {sum(result.tried.values())}:", *wrong[:10]])
