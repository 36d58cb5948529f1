"""Systems that are not Linux, faked by taking away what they lack."""

from __future__ import annotations

import subprocess
import sys

import pytest

WINDOWS = """
import sys
sys.modules.update(fcntl=None, resource=None)
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "use", ["import diskreplay", "import diskreplay.errors", "from diskreplay.compat import frames"]
)
def test_windows_is_told_of_wsl_at_import(use: str) -> None:
    done = run(WINDOWS + use)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: diskreplay runs on Linux and macOS")
    assert "on Windows use it within WSL (https://learn.microsoft.com/windows/wsl/install)" in last


def test_windows_is_told_of_wsl_by_the_command_in_one_line() -> None:
    done = run(WINDOWS + "from diskreplay_cli.start import main; main()")
    assert done.returncode == 1
    assert done.stderr.startswith("diskreplay: diskreplay runs on Linux and macOS")
    assert done.stderr.count("\n") == 1
