"""Random datasets of others in every layout: an import is equal value for value, or refused where it must be."""

from __future__ import annotations

import pathlib

import pytest
from formats.foreign.cases import LAYOUTS, run
from helpers.effort import examples

EACH = len(LAYOUTS) * 2
"""The cases of a block: two of each layout."""
COUNT = 2_000


@pytest.mark.long
@pytest.mark.parametrize("block", range(-(-COUNT // EACH)))
def test_every_import_is_exact_or_refused(block: int, tmp_path: pathlib.Path) -> None:
    seeds = range(block * EACH, min(COUNT, (block + 1) * EACH))[: examples(EACH, least=len(LAYOUTS))]
    taken = []
    for seed in seeds:
        (tmp_path / str(seed)).mkdir()
        taken.append(run(seed, tmp_path / str(seed)))
    assert sum(taken) >= 0.6 * len(taken)
