"""Other libraries' own tests, with our class in the place of theirs (``suites/``)."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

SUITES = pathlib.Path(__file__).parent / "suites"
NO_TESTS = 3


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(path.stem for path in SUITES.glob("*.toml")))
def test_own_tests(name: str) -> None:
    """Those pass that the list does not name, and the others fail as it says."""
    variable = f"DISKREPLAY_CHECKOUT_{name.upper()}"
    checkout = [os.environ[variable]] if variable in os.environ else []
    command = [sys.executable, str(SUITES / "suite.py"), name, *checkout, "-n", "2", "--tb=short"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == NO_TESTS and not checkout:
        pytest.skip(f"{done.stderr.strip()}; {variable} names a checkout")
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-2_000:]}"
