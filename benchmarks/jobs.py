"""Processes that learn with priorities, ours and cpprb's: processor time and memory of each, from start to end."""

from __future__ import annotations

import importlib.util
import os
import resource
import statistics
import subprocess
import sys

import harness

JOB = """
import itertools, numpy as np, gymnasium
from pathlib import Path
steps, quiet = {steps}, {quiet}
box, obs = gymnasium.spaces.Box(-9, 9, (17,), np.float32), np.random.default_rng(0).random((1000, 17), np.float32)
def private():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1e3
def learn(add, update):
    for step, (now, after) in zip(range(steps), itertools.pairwise(itertools.cycle(obs))):
        add(now, after)
        if step >= quiet:
            update()
    print(private() - bare - steps * row_bytes / 1e6)
bare = private()
"""
"""Each step adds a row, and from `quiet` on draws 32 and sets their priorities; says which memory is its own, in MB."""
PROGRAMS = {
    "ours": JOB
    + """
import tempfile
import diskreplay as dr
row_bytes = 17 * 4 + 8 + 4 + 1 + 1
with tempfile.TemporaryDirectory(dir={folder!r}) as folder:
    store, options = folder + "/a.replay", dict(capacity=steps, sampler=dr.Proportional(), seed=0)
    with dr.ReplayBuffer.create(store, box, gymnasium.spaces.Discrete(2), **options) as rb:
        learn(
            lambda obs, after: rb.add(obs, 0, 1.0, after, False, False),
            lambda: rb.update_priorities(rb.sample(32).index, np.ones(32)),
        )
""",
    "cpprb": JOB
    + """
import cpprb
row_bytes = (2 * 17 + 3) * 4
fields = {{"obs": {{"shape": 17}}, "act": {{}}, "rew": {{}}, "next_obs": {{"shape": 17}}, "done": {{}}}}
rb = cpprb.PrioritizedReplayBuffer(steps, fields)
learn(
    lambda obs, after: rb.add(obs=obs, act=0, rew=1.0, next_obs=after, done=False),
    lambda: rb.update_priorities(rb.sample(32)["indexes"], np.ones(32)),
)
""",
}


def run(program: str) -> tuple[float, str]:
    """Processor seconds of a process that runs the program and ends, and what it printed; bytecode is kept."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def by_turns(steps: int, quiet: int, times: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Processor seconds of each of so many processes, ours and cpprb's by turns; and private MB, in the middle."""
    found: dict[str, list[tuple[float, float]]] = {
        name: [] for name in PROGRAMS if name == "ours" or importlib.util.find_spec(name)
    }
    with harness.scratch() as folder:
        for _ in range(times):
            for name, each in found.items():
                seconds, said = run(PROGRAMS[name].format(steps=steps, quiet=quiet, folder=str(folder)))
                each.append((seconds, float(said)))
    return (
        {name: [seconds for seconds, _ in each] for name, each in found.items()},
        {name: statistics.median(private for _, private in each) for name, each in found.items()},
    )
