"""The guide's recipe for preemption with the workers of a DataLoader: the signal reaches them, too."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest
from helpers.patience import PATIENCE

import diskreplay as dr

pytest.importorskip("torch", reason="torch is in the torch and interop extras")

JOB = """
import signal, sys, warnings
warnings.simplefilter("ignore")
import gymnasium
import diskreplay as dr
from diskreplay.torch import DiskDataset
from torch.utils.data import DataLoader

path, persistent = sys.argv[1], sys.argv[2] == "persistent"
stopped = []
signal.signal(signal.SIGUSR1, lambda number, frame: stopped.append(number))
env = gymnasium.make("CartPole-v1")
spaces = env.observation_space, env.action_space
rb = dr.ReplayBuffer.open_or_create(path, *spaces, capacity=100_000, checkpoint="latest", seed=0)
print("holds", len(rb), flush=True)
obs, _ = env.reset(seed=0)
loader = batches = None
steps = 0
while not stopped:
    action = env.action_space.sample()
    next_obs, reward, terminated, truncated, _ = env.step(action)
    rb.add(obs, action, reward, next_obs, terminated, truncated)
    obs = next_obs if not (terminated or truncated) else env.reset()[0]
    steps += 1
    if steps == 40:
        rb.commit()
        loader = DataLoader(
            DiskDataset(path), batch_size=8, num_workers=2, multiprocessing_context="fork",
            persistent_workers=persistent,
        )
    if loader is not None:
        batch = next(batches, None) if batches is not None else None
        if batch is None:
            batches = iter(loader)
            next(batches)
        if steps == 60:
            print("ready", flush=True)
rb.checkpoint(f"stopped-{len(rb.checkpoints)}", {"transitions": len(rb)})
rb.close()
"""


@pytest.mark.parametrize("workers", ["persistent", "anew"])
def test_workers_of_a_loader_note_the_signal_and_go_on(tmp_path: pathlib.Path, workers: str) -> None:
    path, held = tmp_path / "a.replay", 0
    for turn in range(2):
        job = subprocess.Popen(
            [sys.executable, "-c", JOB, str(path), workers], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        assert job.stdout is not None
        printed = ""
        for line in job.stdout:
            printed += line
            if line == "ready\n":
                break
        os.killpg(job.pid, signal.SIGUSR1)
        try:
            printed += job.communicate(timeout=PATIENCE)[0]
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
        assert (job.returncode, printed) == (0, f"holds {held}\nready\n")
        with dr.ReplayBuffer.open(path, mode="r", checkpoint="latest") as buffer:
            assert len(buffer.checkpoints) == turn + 1
            assert buffer.restored is not None
            assert len(buffer) == buffer.restored.metadata["transitions"] >= held + 60
            held = len(buffer)
