"""What a batch on a GPU costs the thread that trains: `loader(n, device="cuda")`, and other libraries' ways there.

50,000 Atari steps, 84x84 uint8 frames, stacks of 4. Between two batches the device multiplies matrices, as a training
step does; each turn ends when the device is done. What is lost per batch is the time of a turn with a batch, less that
of the product alone. cpprb's batch goes there by `torch.from_numpy(...).to(device)`, each array by itself; SB3's buffer
is made with `device=`. The kinds alternate in blocks; each buffer's batches are looked at once.

It runs where torch finds a CUDA device, and says so where it finds none.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import contenders
import frames
import harness
import torch
import workload

STEPS = 50_000
SIZES = (32, 256)
ROUNDS = 15
TURNS = 40
PRODUCT = 4096
"""Rows and columns of the matrices."""
DEVICE = "cuda"
OURS = '`loader(n, device="cuda")`'


def turns(step: Callable[[], Any]) -> float:
    """Milliseconds of one of `TURNS` turns, each until the device is done."""
    start = time.perf_counter()
    for _ in range(TURNS):
        step()
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / TURNS


def samplers(store: Any, steps: int, scratch: str, batch_size: int, loader: Any) -> dict[str, Callable[[], Any]]:
    """What gets a batch to the device: stacks as obs and next_obs, and the rest."""
    cpprb, _ = contenders.cpprb(steps, scratch)
    sb3, unpack_sb3 = contenders.stable_baselines3(steps, scratch, optimize=True, device=DEVICE)

    def by_cpprb() -> Any:
        return {name: torch.from_numpy(array).to(DEVICE) for name, array in cpprb(batch_size).items()}

    made: dict[str, Callable[[], Any]] = {
        OURS: lambda: next(loader),
        "`sample(n).torch(device)`": lambda: store.sample(batch_size).torch(DEVICE),
        "cpprb, `torch.from_numpy(...).to(device)`": by_cpprb,
        "SB3, `optimize_memory_usage`": lambda: sb3(batch_size),
    }
    cpprbs, ours = by_cpprb(), next(loader)
    for stacks in (
        [cpprbs[name].movedim(-1, 1) for name in ("obs", "next_obs")],
        unpack_sb3(sb3(batch_size)),
        (ours.obs, ours.next_obs),
    ):
        contenders.check(*(each.cpu().numpy() for each in stacks), batch_size)
    return made


def measured(path: str, steps: int, scratch: str, batch_size: int, rounds: int) -> dict[str, float]:
    """Milliseconds a turn, of the product alone and with each kind of batch; medians of the rounds."""
    left = torch.randn(PRODUCT, PRODUCT, device=DEVICE)
    out = torch.empty_like(left)
    with (
        contenders.open_store(path, mode="r", seed=0) as buffer,
        buffer.loader(batch_size, device=DEVICE) as loader,
    ):
        kinds = {"alone": lambda: None, **samplers(buffer, steps, scratch, batch_size, loader)}
        found: dict[str, list[float]] = {kind: [] for kind in kinds}
        for turn in range(rounds + 1):
            for kind, batch in kinds.items():
                took = turns(lambda batch=batch: (torch.matmul(left, left, out=out), batch()))
                if turn:  # the first is not counted
                    found[kind].append(took)
    return {kind: statistics.median(each) for kind, each in found.items()}


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"nothing is measured: torch {torch.__version__} finds no CUDA device here")
        return
    frames.ensure(frames.GAMES, steps=arguments.steps)
    targets, rows = [], []
    with harness.scratch() as scratch:
        path = str(scratch / "store")
        with contenders.create_store(path, arguments.steps) as buffer:
            for episode in workload.mixture(arguments.steps):
                for step in episode.singles():
                    buffer.add(*step)
        for size in SIZES:
            found = harness.fresh(measured, path, arguments.steps, str(scratch), size, arguments.rounds)
            lost = {kind: each - found["alone"] for kind, each in found.items() if kind != "alone"}
            rows += [(f"{size}", kind, f"{each:.2f} ms") for kind, each in lost.items()]
            for kind in list(lost)[2:]:
                targets.append(
                    harness.Figure(f"lost per batch of {size}, over {kind}", lost[OURS], 1, "ms", lost[kind])
                )
    body = (
        f"{torch.cuda.get_device_name()}; {arguments.steps:,} steps. Time lost per batch:\n\n"
        + harness.table(("batch", "by", "lost"), rows) + "\n\n" + harness.figures(targets)
    )  # fmt: skip
    keep = arguments.steps == STEPS and arguments.rounds == ROUNDS
    packages = harness.versions("diskreplay", "numpy", "torch", "cpprb", "stable-baselines3")
    harness.write_section("device", "To a GPU", packages, body, keep=keep)


if __name__ == "__main__":
    main()
