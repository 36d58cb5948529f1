"""DQN and R2D2 in torch, killed at any moment and started again: they end as one that was never killed, to the bit.

One kill of each; ``DISKREPLAY_TEST_EFFORT=20`` kills each twenty times. ``crash/test_learners.py`` does without torch.
"""

import pathlib

import pytest
from helpers import effort, learning

pytest.importorskip("torch", reason="torch is in the interop extra")

KILLS = effort.examples(1, "kills of a learner")
PROGRAM = pathlib.Path(__file__).parent / "learning.py"


@pytest.mark.parametrize("kind", learning.KINDS)
def test_a_learner_that_is_killed_ends_as_one_that_was_not(kind: str, tmp_path: pathlib.Path) -> None:
    learning.killed(PROGRAM, kind, tmp_path, KILLS)
