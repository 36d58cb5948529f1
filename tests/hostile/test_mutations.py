"""Thousands of damaged and hostile stores: an error of ours or the right data, never anything else.

``DISKREPLAY_TEST_EFFORT=100`` tries 20,000 of them, in about an hour of one core.
"""

from __future__ import annotations

import pathlib
import shutil

import pytest
from helpers.effort import examples
from hostile import bases, pool

CASES = 200
SEED = 20_261_121


@pytest.mark.long
@pytest.mark.parametrize("name", bases.MAKERS)
def test_mutations(name: str, tmp_path: pathlib.Path, record_property: pytest.RecordProperty) -> None:
    cases = examples(CASES // len(bases.MAKERS), "mutations", least=6)
    bases.make(name, tmp_path).save(tmp_path / "base.pickle")
    outcome = pool.run("hostile.worker", tmp_path / "base.pickle", tmp_path / "worker", SEED, cases)
    record_property("ended", outcome.said())
    print(outcome.said())
    shutil.rmtree(tmp_path)  # tens of thousands of cases leave much behind
    assert not outcome.violations, "\n\n".join(outcome.violations)
    assert outcome.ended.total() == cases
    assert min(outcome.ended[name, "right"], outcome.ended[name, "refused"]) > cases // 20
