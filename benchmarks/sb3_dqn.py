"""DQN of Stable-Baselines3 learns Atari Pong: wall time and memory with our buffer, and with its own.

1. One long run of each buffer tells wall time and how much resident memory grew during ``learn``.
2. Several short runs alternate, so that noise of the machine hits all alike: their medians tell the ratio of times.
3. Each run is a process of its own, with the same seed. Before it measures it trains on a few steps with a small
   buffer, so that what torch allocates once is not counted.
4. Batches are the same with every buffer, so all runs do the same work; the sum of the weights shows it.
"""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

import harness

STEPS = 20_000
SHORT_STEPS = 2_000
ROUNDS = 7
THREADS = 1
BUFFER_SIZE = 100_000
CONTENDERS = ("diskreplay", "sb3", "sb3, optimize_memory_usage")
LEARNING = {
    "buffer_size": BUFFER_SIZE, "learning_starts": 1_000, "train_freq": 4, "batch_size": 32, "learning_rate": 1e-4,
    "target_update_interval": 1_000, "exploration_fraction": 0.5, "device": "cpu", "seed": 0,
}  # fmt: skip


def make_env() -> Any:
    import ale_py
    import gymnasium
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    gymnasium.register_envs(ale_py)
    return VecFrameStack(make_atari_env("ALE/Pong-v5", 1, seed=0, env_kwargs={"frameskip": 1}), 4)


def make_model(contender: str, **changes: Any) -> Any:
    from stable_baselines3 import DQN

    kwargs: dict[str, Any] = {}
    if contender == "diskreplay":
        from diskreplay.compat.sb3 import DiskReplayBuffer

        kwargs["replay_buffer_class"] = DiskReplayBuffer
    elif contender != "sb3":
        kwargs["optimize_memory_usage"] = True
        kwargs["replay_buffer_kwargs"] = {"handle_timeout_termination": False}
    return DQN("CnnPolicy", make_env(), **{**LEARNING, **changes}, **kwargs)


def learn(contender: str, steps: int) -> dict[str, float]:
    """Seconds and growth of resident memory in bytes of one run, and the seconds that the buffer took of it."""
    import torch

    torch.set_num_threads(THREADS)
    make_model(contender, buffer_size=200, learning_starts=50).learn(150)
    gc.collect()
    model = make_model(contender)
    before = harness.resident_bytes()
    buffer = model.replay_buffer
    with harness.time_spent_in(buffer, "add") as adding, harness.time_spent_in(buffer, "sample") as sampling:
        start, worked = time.perf_counter(), time.process_time()
        model.learn(steps)
        seconds, worked = time.perf_counter() - start, time.process_time() - worked
    gc.collect()
    return {
        "seconds": seconds,
        "worked": worked,
        "bytes": harness.resident_bytes() - before,
        "adding": sum(adding),
        "sampling": sum(sampling),
        "trace": float(sum(parameter.double().sum().item() for parameter in model.policy.parameters())),
    }


def run(contender: str, steps: int) -> dict[str, float]:
    found: dict[str, float] = harness.fresh(learn, contender, steps)
    print(f"{contender}, {steps:,} steps: {found}", flush=True)
    return found


def main() -> None:
    options = harness.parser(__doc__, STEPS).parse_args()
    long = {contender: run(contender, options.steps) for contender in CONTENDERS}
    short: dict[str, list[dict[str, float]]] = {contender: [] for contender in CONTENDERS}
    for _ in range(ROUNDS):
        for contender in CONTENDERS:
            short[contender].append(run(contender, SHORT_STEPS))
    report(options.steps, long, short)


def report(steps: int, long: dict[str, dict[str, float]], short: dict[str, list[dict[str, float]]]) -> None:
    def median(contender: str, key: str) -> float:
        return statistics.median(found[key] for found in short[contender])

    ours, *others = CONTENDERS
    figures = []
    for other in others:
        for key, name in (("worked", "processor time"), ("seconds", "wall time")):
            label = f"{SHORT_STEPS:,} steps, {name}, beside {other}"
            figures.append(harness.Figure(label, median(ours, key), 1.1, "s", median(other, key)))
        mine, theirs = long[ours], long[other]
        label = f"{steps:,} steps, wall time of one run, beside {other}"
        figures.append(harness.Figure(label, mine["seconds"], 1.1, "s", theirs["seconds"]))
        label = f"{steps:,} steps, growth of memory, beside {other}"
        figures.append(harness.Figure(label, mine["bytes"] / 1e6, 0.1, "MB", theirs["bytes"] / 1e6))
    rows = [
        (
            contender,
            *(f"{long[contender][key]:.1f}" for key in ("seconds", "adding", "sampling")),
            f"{long[contender]['bytes'] / 1e6:.0f}",
            ", ".join(f"{found['seconds']:.1f}" for found in short[contender]),
            ", ".join(f"{found['worked']:.1f}" for found in short[contender]),
            f"{long[contender]['trace']:.6f}",
        )
        for contender in CONTENDERS
    ]
    header = (
        "buffer", "`learn`, s", "of it `add`, s", "of it `sample`, s", "memory grown, MB", "short runs, s",
        "their processor time, s", "weights",
    )  # fmt: skip
    body = (
        f"ALE/Pong-v5, 84x84, stacks of 4, {BUFFER_SIZE:,} transitions of capacity, batches of 32 every 4 steps after "
        f"1,000, {THREADS} torch thread. One run of {steps:,} steps each, and {ROUNDS} alternating ones of "
        f"{SHORT_STEPS:,}, whose medians are compared. Wall times of single runs scatter with "
        "what else runs; processor time counts all threads of the process, those that compress too. Memory is what "
        "resident memory grew by during `learn`. `weights` is the sum of all weights after the long run: the same "
        f"seed gives the same batches.\n\n{harness.figures(figures)}\n\n{harness.table(header, rows)}"
    )
    packages = harness.versions("numpy", "torch", "stable-baselines3", "ale-py", "gymnasium")
    harness.write_section("sb3", "DQN of Stable-Baselines3 on Atari Pong", packages, body, keep=steps == STEPS)


if __name__ == "__main__":
    main()
