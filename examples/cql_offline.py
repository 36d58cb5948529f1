"""Offline conservative Q-learning (CQL, Kumar et al. 2020) from a recorded store, which may be killed at any moment.

The same command begins and goes on:

    python examples/cql_offline.py --path runs/cql --data datasets/cartpole-v1.replay

What it shows: a `DataLoader` over a store that is larger than RAM, each transition once an epoch, from which a run that
was killed goes on with the very next batch: the sampler's state is a few integers beside the networks. The store is
only read. A run that was killed ends with the very weights of one that never was.
"""

import argparse
import pathlib

import gymnasium
import torch
from torch import nn
from torch.utils.data import DataLoader

import diskreplay as dr
from diskreplay.torch import DiskDataset, PassSampler

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--path", type=pathlib.Path, required=True, help="folder of the run")
parser.add_argument("--data", type=pathlib.Path, default="datasets/cartpole-v1.replay", help="of CartPole, recorded")
parser.add_argument("--steps", type=int, default=10_000, help="gradient steps")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--save-every", type=int, default=2_000)
parser.add_argument("--report-every", type=int, default=500)
args = parser.parse_args()

BATCH, ALPHA, GAMMA, TAU, EPISODES = 128, 1.0, 0.99, 0.005, 3


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))


torch.set_num_threads(1)  # small networks; and the sums are in the same order in each run
torch.manual_seed(args.seed)
online, target = network(), network()
target.load_state_dict(online.state_dict())
optimizer = torch.optim.Adam(online.parameters(), lr=3e-4)
dataset = DiskDataset(args.data, view=dr.Transition(n_step=3, gamma=GAMMA))
sampler = PassSampler(dataset, BATCH, seed=args.seed)
learner = {"online": online, "target": target, "optimizer": optimizer}  # all that a checkpoint holds the state of


def learn(batch: dr.Batch) -> None:
    with torch.no_grad():
        goal = batch.reward + batch.discount * target(batch.next_obs).max(1).values
    values = online(batch.obs)
    chosen = values.gather(1, batch.action[:, None]).squeeze(1)
    conservative = (values.logsumexp(1) - chosen).mean()  # what nobody did is not worth more than what was done
    optimizer.zero_grad()
    (nn.functional.smooth_l1_loss(chosen, goal) + ALPHA * conservative).backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
            slow.lerp_(fast, TAU)


@torch.no_grad()
def average_return() -> float:
    """Of a few episodes of the greedy policy."""
    env, total = gymnasium.make("CartPole-v1"), 0.0
    for episode in range(EPISODES):
        obs, _ = env.reset(seed=1_000 + episode)
        ended = False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(int(online(torch.from_numpy(obs)).argmax()))
            ended, total = terminated or truncated, total + float(reward)
    return total / EPISODES


def save(step: int, used: int) -> None:
    """Whole or not at all: the file takes the older one's place when it is written."""
    state = {key: part.state_dict() for key, part in learner.items()}
    torch.save({**state, "sampler": sampler.state_dict(batches=used), "step": step}, args.path / "partial.pt")
    (args.path / "partial.pt").replace(args.path / "checkpoint.pt")
    print(f"checkpoint step-{step}")


args.path.mkdir(parents=True, exist_ok=True)
progress, step = args.path / "progress.txt", 0
if (args.path / "checkpoint.pt").exists():
    saved = torch.load(args.path / "checkpoint.pt")
    for key, part in learner.items():
        part.load_state_dict(saved[key])
    sampler.load_state_dict(saved["sampler"])
    step = saved["step"]
    reached = int(progress.read_text() or step) if progress.exists() else step
    print(f"resumed at checkpoint step-{step}; at least {max(0, reached - step)} steps that came after it are lost")

while step < args.steps:
    for used, batch in enumerate(DataLoader(dataset, sampler=sampler, batch_size=None), start=1):  # an epoch
        learn(batch)
        step += 1
        if step % args.report_every == 0:
            progress.write_text(str(step))
            print(f"step {step}: average return {average_return():.1f}")
        if step % args.save_every == 0 or step == args.steps:
            save(step, used)
        if step == args.steps:
            break
dataset.close()
