"""Programs that learn, killed at any moment and started again: they end as one that was never killed, to the bit."""

import pathlib

import pytest
from helpers import effort, learning

KILLS = 20 // effort.stride(20, "kills of a learner")


@pytest.mark.long
@pytest.mark.parametrize("kind", learning.KINDS)
def test_a_learner_that_is_killed_ends_as_one_that_was_not(kind: str, tmp_path: pathlib.Path) -> None:
    learning.killed(pathlib.Path(learning.__file__), kind, tmp_path, KILLS)
