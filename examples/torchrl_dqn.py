"""DQN with torchrl's replay buffer over a store, which may be killed at any moment.

The same command begins and goes on (it needs `pip install 'diskreplay[torchrl]'`):

    python examples/torchrl_dqn.py --path runs/torchrl

What it shows: the storage is the only change to the buffer (was: `LazyMemmapStorage`); a checkpoint of it takes the
buffer's `state_dict` along, and the networks. Batches are drawn from torch's global generator,
whose state is saved as well. The environment is reset at each checkpoint: a run that was killed ends with the very
weights of one that never was.
"""

import argparse
import pathlib
from typing import BinaryIO

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import TensorDictReplayBuffer

import diskreplay as dr
from diskreplay.compat.torchrl import DiskReplayStorage

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--path", type=pathlib.Path, required=True, help="folder of the run")
parser.add_argument("--steps", type=int, default=40_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--warmup", type=int, default=2_000, help="random steps before learning")
parser.add_argument("--save-every", type=int, default=5_000)
parser.add_argument("--report-every", type=int, default=1_000)
args = parser.parse_args()

BATCH, GAMMA, LEARN_EVERY, TARGET_EVERY, EXPLORATION = 128, 0.99, 4, 500, 10_000

env = gymnasium.make("CartPole-v1")
torch.set_num_threads(1)  # small networks; and the sums are in the same order in each run
torch.manual_seed(args.seed)
q_network, target_network = (
    nn.Sequential(nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2)) for _ in range(2)
)
target_network.load_state_dict(q_network.state_dict())
optimizer = torch.optim.Adam(q_network.parameters(), lr=5e-4)
learner = {"q_network": q_network, "target_network": target_network, "optimizer": optimizer}


def learn() -> None:
    data = rb.sample()
    after = data["next"]
    with torch.no_grad():
        next_value = target_network(after["observation"]).max(1).values
        goal = after["reward"].squeeze(1) + GAMMA * next_value * ~after["terminated"].squeeze(1)
    chosen = q_network(data["observation"]).gather(1, data["action"]).squeeze(1)
    optimizer.zero_grad()
    nn.functional.mse_loss(chosen, goal).backward()
    optimizer.step()


def save(step: int) -> None:
    """Names this point of the run: rows, buffer and learner in one checkpoint, in the place of the one before."""

    def write(file: BinaryIO) -> None:
        state = {key: part.state_dict() for key, part in learner.items()}
        torch.save({**state, "returns": returns, "random": torch.get_rng_state()}, file)

    storage.checkpoint(f"step-{step}", {"step": step}, attachments={"learner.pt": write}, keep=1)
    print(f"checkpoint step-{step}")


store, on_disk = args.path / "replay", 0
if (store / "zarr.json").exists():  # how far the run before this one came
    with dr.ReplayBuffer.open(store, mode="r") as reader:
        on_disk = reader.stats()["streams"]["0"]["end"]
storage = DiskReplayStorage(100_000, path=store, checkpoint="latest")
rb = TensorDictReplayBuffer(storage=storage, batch_size=BATCH)
learner["rb"] = rb
first, returns = 0, []  # returns of the newest episodes
if storage.restored:
    first = storage.restored.metadata["step"]
    with storage.attachment("learner.pt") as file:
        saved = torch.load(file)
    for key, part in learner.items():
        part.load_state_dict(saved[key])
    torch.set_rng_state(saved["random"])
    returns = saved["returns"]
    print(f"resumed at checkpoint step-{first}; at least {on_disk - first} steps that came after it are lost")
else:
    rb.empty()  # of a run that was killed before its first checkpoint

ended = True
for step in range(first, args.steps):
    if ended or step % args.save_every == 0:  # a start, and each checkpoint, begins a new episode
        obs, _ = env.reset(seed=args.seed + step)
        score = 0.0
    with torch.no_grad():
        greedy = int(q_network(torch.from_numpy(obs)).argmax())
    action = int(torch.randint(2, ())) if torch.rand(()) < max(0.05, 1 - step / EXPLORATION) else greedy
    next_obs, reward, terminated, truncated, _ = env.step(action)
    obs, given, ended, score = next_obs, obs, terminated or truncated, score + float(reward)
    after = {
        "observation": torch.from_numpy(next_obs), "reward": torch.tensor([reward], dtype=torch.float32),
        "terminated": torch.tensor([terminated]), "done": torch.tensor([ended]),
    }  # fmt: skip
    rb.add(TensorDict({"observation": torch.from_numpy(given), "action": torch.tensor([action]), "next": after}))
    if ended:
        returns = [*returns, score][-20:]
    if step >= args.warmup and step % LEARN_EVERY == 0:
        learn()
    if step % TARGET_EVERY == 0:
        target_network.load_state_dict(q_network.state_dict())
    done = step + 1
    if done % args.report_every == 0:
        storage.commit()
        print(f"step {done}: average return {np.mean(returns) if returns else np.nan:.1f}")
    if done % args.save_every == 0 or done == args.steps:
        save(done)
storage.close()
