"""docs/tutorial.md from its lines alone, in the order in which a reader runs them, in an empty directory.

The block that installs is the one that is not run: this environment has what it names.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is in the interop extra")

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
NAMES = re.findall(r"Save this as `(.*?)`:", PAGE)


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path}


def sh(commands: str, folder: pathlib.Path) -> str:
    done = subprocess.run(
        ["sh", "-e", "-c", commands], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def killed(command: str, kill: str, folder: pathlib.Path, number: int = 0, status: int = -signal.SIGKILL) -> str:
    """What the program prints until it is killed after the line that the page names, the first or the second one."""
    line = re.findall(r"printed the line `(.*?)`", PAGE)[number]
    printed, process = "", ""
    with subprocess.Popen(command.split(), cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout
        for text in program.stdout:
            printed += text
            process = process or text.removeprefix("process ").strip()
            if text.startswith(line):
                sh(kill.replace("PROCESS", process), folder)
    assert program.returncode == status, printed
    return printed


def saved(printed: str) -> dict[str, str]:
    """Of each step that was saved, what the line says of it."""
    return dict(re.findall(r"^(?:saved|resumed) step (\d+): (.*)$", printed, re.MULTILINE))


def test_the_tutorial_ends_where_a_whole_run_ends(tmp_path: pathlib.Path) -> None:
    shell = [block for language, block in BLOCKS if language == "sh"]
    programs = [block for language, block in BLOCKS if language == "python"]
    assert len(shell) + len(programs) == len(BLOCKS)
    for name, program in zip(NAMES, programs, strict=True):
        (tmp_path / name).write_text(program)
    install, first, train, kill, look, again, whole, *_ = shell
    assert install.startswith("git clone")
    assert "obs=float32[32, 4]" in sh(first, tmp_path)

    before = saved(killed(train, kill, tmp_path))
    assert list(before)[:2] == ["1000", "2000"]
    newest = max(map(int, re.findall(r"\bstep-(\d+)", sh(look, tmp_path))))
    again_printed = sh(again, tmp_path)
    assert newest < 5_000
    assert again_printed.startswith(f"resumed step {newest}: ")
    after = saved(again_printed)
    assert (list(after)[-1], before | after) == ("5000", saved(sh(whole, tmp_path)))
    assert all(after[step] == line for step, line in before.items() if step in after)


def test_a_program_that_is_stopped_saves_the_step_that_it_is_at(tmp_path: pathlib.Path) -> None:
    *_, train, stop = [block for language, block in BLOCKS if language == "sh"]
    (tmp_path / "dqn.py").write_text([block for language, block in BLOCKS if language == "python"][-1])
    printed = killed(train, stop, tmp_path, number=1, status=0)
    (*_, (step, line)) = saved(printed).items()
    assert printed.splitlines()[-1] == f"saved step {step}: {line}"
    again = sh(train, tmp_path)
    assert again.startswith(f"resumed step {step}: {line}\n")
    assert "saved step 5000" in again
