"""Stable-Baselines3's SAC with its replay buffer on disk, which may be killed at any moment.

The same command begins and goes on:

    python examples/sb3_resume.py --path runs/sb3

What it shows: `replay_buffer_class` is the only change to the model, and `sb3.save` and `sb3.load` in the place of the
model's own keep networks, buffer and random state in one checkpoint of the store. SB3 resets the environment when it
loads, so a run that was killed is as good as one that was not, and not the same to the last bit.
"""

import argparse
import pathlib

import gymnasium
import numpy as np
import torch
from stable_baselines3 import SAC

import diskreplay as dr
from diskreplay.compat import sb3

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--path", type=pathlib.Path, required=True, help="folder of the run")
parser.add_argument("--steps", type=int, default=10_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--warmup", type=int, default=500, help="random steps before learning")
parser.add_argument("--save-every", type=int, default=2_000)
parser.add_argument("--report-every", type=int, default=500)
args = parser.parse_args()

torch.set_num_threads(1)  # small networks
env = gymnasium.make("Pendulum-v1")
store = args.path / "replay"
if sb3.saved(store):
    with dr.ReplayBuffer.open(store, mode="r") as reader:  # how far the run before this one came
        on_disk = reader.stats()["streams"]["0"]["end"]
    model = sb3.load(SAC, store, env)
    lost = on_disk - model.num_timesteps
    print(f"resumed at checkpoint step-{model.num_timesteps}; at least {lost} steps that came after it are lost")
else:
    model = SAC(
        "MlpPolicy", env, learning_rate=1e-3, learning_starts=args.warmup, policy_kwargs={"net_arch": [64, 64]},
        replay_buffer_class=sb3.DiskReplayBuffer, replay_buffer_kwargs={"path": str(store)}, seed=args.seed,
        device="cpu",
    )  # fmt: skip
    sb3.save(model)

while model.num_timesteps < args.steps:
    model.learn(args.report_every, reset_num_timesteps=False)
    model.replay_buffer.store.commit()
    returns = [episode["r"] for episode in model.ep_info_buffer]
    print(f"step {model.num_timesteps}: average return {np.mean(returns) if returns else np.nan:.1f}")
    if model.num_timesteps % args.save_every == 0 or model.num_timesteps >= args.steps:
        print(f"checkpoint {sb3.save(model)}")
