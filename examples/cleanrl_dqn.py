"""DQN in the manner of CleanRL's single files, with its buffer's calls, which may be killed at any moment.

The same command begins and goes on:

    python examples/cleanrl_dqn.py --path runs/cleanrl

What it shows: one import is swapped (was: `from cleanrl_utils.buffers import ReplayBuffer`), and a path is given;
`rb.store` is the store below, which makes the checkpoints. Batches are drawn from numpy's global generator, as
CleanRL's are, so that its state is saved as well. The environment is reset at each checkpoint: a run that was killed
ends with the very weights of one that never was.
"""

import argparse
import pathlib
import random

import gymnasium
import numpy as np
import torch
from torch import nn

import diskreplay as dr
from diskreplay.compat.cleanrl import ReplayBuffer

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
random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)
q_network, target_network = (
    nn.Sequential(nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2)) for _ in range(2)
)
target_network.load_state_dict(q_network.state_dict())
optimizer = torch.optim.Adam(q_network.parameters(), lr=5e-4)
learner = {"q_network": q_network, "target_network": target_network, "optimizer": optimizer}


def learn() -> None:
    data = rb.sample(BATCH)
    with torch.no_grad():
        target_max = target_network(data.next_observations).max(1).values
        td_target = data.rewards.flatten() + GAMMA * target_max * (1 - data.dones.flatten())
    old_value = q_network(data.observations).gather(1, data.actions).squeeze(1)
    optimizer.zero_grad()
    nn.functional.mse_loss(td_target, old_value).backward()
    optimizer.step()


def save(step: int) -> None:
    """Names this point of the run: rows and learner in one checkpoint, in the place of the one before."""
    kind, keys, *rest = np.random.get_state()
    state = {key: part.state_dict() for key, part in learner.items()}
    state["random"] = {"python": random.getstate(), "numpy": (kind, torch.from_numpy(keys.copy()), *rest)}
    files = {"learner.pt": lambda file: torch.save({**state, "returns": returns}, file)}
    rb.store.checkpoint(f"step-{step}", {"step": step}, attachments=files, keep=1)
    print(f"checkpoint step-{step}")


store, on_disk = args.path / "replay", 0
if (store / "zarr.json").exists():  # how far the run before this one came
    with dr.ReplayBuffer.open(store, mode="r") as reader:
        on_disk = reader.stats()["streams"]["0"]["end"]
rb = ReplayBuffer(
    100_000, env.observation_space, env.action_space, "cpu", handle_timeout_termination=False,
    path=store, checkpoint="latest", frame_stack=1,
)  # fmt: skip
first, returns = 0, []  # returns of the newest episodes
if rb.store.restored:
    with rb.store.attachment("learner.pt") as file:
        saved = torch.load(file)
    for key, part in learner.items():
        part.load_state_dict(saved[key])
    kind, keys, *rest = saved["random"]["numpy"]
    np.random.set_state((kind, keys.numpy(), *rest))
    random.setstate(saved["random"]["python"])
    first, returns = rb.store.restored.metadata["step"], saved["returns"]
    print(f"resumed at checkpoint step-{first}; at least {on_disk - first} steps that came after it are lost")
else:
    save(first)

ended = True
for step in range(first, args.steps):
    if ended or step % args.save_every == 0:  # a start, and each checkpoint, begins a new episode
        rb.store.cut()
        obs, _ = env.reset(seed=args.seed + step)
        score = 0.0
    epsilon = max(0.05, 1 - step / EXPLORATION)
    with torch.no_grad():
        greedy = int(q_network(torch.from_numpy(obs)).argmax())
    action = random.randrange(2) if random.random() < epsilon else greedy
    next_obs, reward, terminated, truncated, info = env.step(action)
    rb.add(obs[None], next_obs[None], np.array([action]), np.array([reward]), np.array([terminated]), [info])
    obs, ended, score = next_obs, terminated or truncated, score + float(reward)
    if ended:
        returns = [*returns, score][-20:]
    if step >= args.warmup and step % LEARN_EVERY == 0:
        learn()
    if step % TARGET_EVERY == 0:
        target_network.load_state_dict(q_network.state_dict())
    done = step + 1
    if done % args.report_every == 0:
        rb.store.commit()
        print(f"step {done}: average return {np.mean(returns) if returns else np.nan:.1f}")
    if done % args.save_every == 0 or done == args.steps:
        save(done)
rb.close()
