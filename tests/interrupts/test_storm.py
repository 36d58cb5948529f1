"""Ten thousand real signals into a program that does all that a learner does: nothing is lost, and nothing spoiled."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from helpers.effort import examples
from helpers.patience import PATIENCE

TESTS = pathlib.Path(__file__).parent.parent


@pytest.mark.long(quick=1)
@pytest.mark.parametrize("sampler", ["Proportional", "Uniform", "RankBased"])
def test_ten_thousand_signals(tmp_path: pathlib.Path, sampler: str) -> None:
    signals = examples(10_000, "signals of a storm")
    folders = [TESTS, TESTS.parent, TESTS.parent / "cli", os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "interrupts.stormed", str(tmp_path / "a"), sampler, str(signals), "1"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}, cwd=TESTS, capture_output=True, text=True,
        timeout=PATIENCE * 10, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    came, raised, count = json.loads(done.stdout)
    assert came >= signals
    assert raised > came // 5
    assert min(count[what] for what in ("add", "sample", "commit")) > 0
