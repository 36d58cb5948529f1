"""The jobs of docs/slurm.md and docs/guide.md, from the pages alone: a scheduler's signal ends them in good order."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from helpers.patience import PATIENCE
from helpers.programs import printed

import diskreplay as dr
from diskreplay.ops.verify import verify

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "slurm.md").read_text()
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
WITH_SRUN, WITHOUT, ARRAY = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = {
    "srun": f"""#!{sys.executable}
import pathlib, subprocess, sys
step = subprocess.Popen(sys.argv[1:], start_new_session=True)
pathlib.Path("step").write_text(str(step.pid))
sys.exit(step.wait())
""",
    "scontrol": '#!/bin/sh\necho "$@" >> scontrol.log\n',
    "python": f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n',
}
"""What a cluster has, as far as the scripts need it: ``srun`` starts a process group, which is sent the signals."""


@pytest.fixture
def cluster(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with the program, whose steps never end of themselves, and the commands."""
    (tmp_path / "train.py").write_text(PROGRAM.replace("100_000, 10_000", "10**9, 10**9"))
    for name, text in COMMANDS.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def run(command: list[str], folder: pathlib.Path, stop: Callable[[subprocess.Popen[str]], None] | None) -> str:
    """What a job prints that is stopped once it goes on; it must end with 0, and leave no process."""
    paths = [str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ, "PATH": os.pathsep.join([str(folder / "bin"), os.environ["PATH"]]), "SCRATCH": str(folder),
        "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore", "SLURM_JOB_NAME": "pole",
        "SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "16", "SLURM_ARRAY_TASK_ID": "3",
    }  # fmt: skip
    job = subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    printed = ""
    try:
        assert job.stdout is not None
        for line in job.stdout:
            printed += line
            if line.startswith("goes on"):
                break
        if stop is not None:
            stop(job)
        printed += job.communicate(timeout=PATIENCE)[0]  # which ends when no worker holds the pipe any more
    finally:
        for group in (job.pid, *(int(each.read_text()) for each in folder.glob("step"))):
            if job.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
    assert job.returncode == 0, printed
    return printed


def to_all(job: subprocess.Popen[str]) -> None:
    """As ``srun`` hands a signal on: to the program and to its forked workers."""
    os.killpg(job.pid, signal.SIGUSR1)


def saved(store: pathlib.Path, checkpoints: int) -> int:
    """The step of the newest of so many checkpoints, which has all rows of the store."""
    with dr.ReplayBuffer.open(store, mode="r") as latest, dr.ReplayBuffer.open(
        store, mode="r", checkpoint="latest"
    ) as buffer:  # fmt: skip
        assert (len(buffer), len(latest.checkpoints)) == (len(latest), checkpoints)
        assert buffer.restored is not None
        step = int(buffer.restored.metadata["step"])
        assert buffer.restored.name == f"step-{step}"
        assert np.load(buffer.attachment("weights.npy")).shape == (4,)
        assert sum(commit.end for commit in buffer.engine.streams.commits.values()) == step
    assert verify(store).ok
    return step


@pytest.mark.long
def test_a_signal_to_the_whole_group_makes_one_checkpoint(cluster: pathlib.Path) -> None:
    """Regression: forked workers made the checkpoint, too, and the program ended with 1."""
    store = cluster / "pole.replay"
    command = [sys.executable, "train.py", str(store)]
    assert run(command, cluster, to_all).startswith("goes on at step 0\n")
    first = saved(store, 1)
    assert run(command, cluster, to_all).startswith(f"goes on at step {first}\n")
    assert saved(store, 2) > first


@pytest.mark.long("test_a_signal_to_the_whole_group_makes_one_checkpoint")
@pytest.mark.parametrize(
    ("script", "name", "requeued"), [(WITH_SRUN, "pole", "17"), (WITHOUT, "pole", "17"), (ARRAY, "pole-3", "16_3")]
)
def test_the_scripts_requeue_a_job_that_was_stopped(
    cluster: pathlib.Path, script: str, name: str, requeued: str
) -> None:
    """Without srun, ``B:`` has the signal go to the script alone."""
    (cluster / "job.sh").write_text(script)
    before = 0

    def stop(job: subprocess.Popen[str]) -> None:
        if "srun" in script:
            os.killpg(int((cluster / "step").read_text()), signal.SIGUSR1)
        else:
            job.send_signal(signal.SIGUSR1)

    for turn in range(1, 3):
        assert run(["bash", "job.sh"], cluster, stop).startswith(f"goes on at step {before}\n")
        before = saved(cluster / f"{name}.replay", turn)
        assert (cluster / "scontrol.log").read_text() == f"requeue {requeued}\n" * turn


@pytest.mark.long("test_a_signal_to_the_whole_group_makes_one_checkpoint")
@pytest.mark.parametrize("script", [WITH_SRUN, WITHOUT])
def test_a_job_that_is_done_is_not_requeued(cluster: pathlib.Path, script: str) -> None:
    (cluster / "job.sh").write_text(script)
    (cluster / "train.py").write_text(PROGRAM.replace("100_000, 10_000", "30, 20"))
    run(["bash", "job.sh"], cluster, None)
    assert (cluster / "pole.replay.done").exists()
    assert not (cluster / "scontrol.log").exists()
    with dr.ReplayBuffer.open(cluster / "pole.replay", mode="r") as buffer:
        assert len(buffer.checkpoints) == 1


def test_a_job_that_fails_is_not_requeued(cluster: pathlib.Path) -> None:
    (cluster / "train.py").write_text('import sys\nprint("goes on", flush=True)\nsys.exit(3)\n')
    for script in (WITH_SRUN, WITHOUT):
        (cluster / "job.sh").write_text(script)
        with pytest.raises(AssertionError):
            run(["bash", "job.sh"], cluster, None)
        assert not (cluster / "scontrol.log").exists()


@pytest.mark.long
def test_the_job_of_the_guide_goes_on(tmp_path: pathlib.Path) -> None:
    guide = (ROOT / "docs" / "guide.md").read_text()
    (program,) = [part.split("```")[0] for part in guide.split("```python\n") if "stopped = []" in part]
    for times in (1, 2):
        sent = f"""
import os, signal, threading
os.chdir({str(tmp_path)!r})
os.fsync = lambda descriptor: None
def send():
    while 'step' not in globals() or len(rb) <= {times}:
        pass
    os.kill(os.getpid(), signal.SIGUSR1)
threading.Thread(target=send, daemon=True).start()
"""
        printed(sent + program.replace("1_000", "10**9"))
        with dr.ReplayBuffer.open(tmp_path / "job.replay", mode="r", checkpoint="latest") as buffer:
            assert len(buffer.checkpoints) == times
            saved = buffer.checkpoint_metadata(buffer.checkpoints[-1])["transitions"]
            assert len(buffer) == saved > times
            assert np.load(buffer.attachment("weights.npy")).any()
        assert verify(tmp_path / "job.replay").ok
