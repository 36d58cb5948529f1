"""Rainbow on an Atari game (Hessel et al. 2018), which may be killed at any moment.

The same command begins and goes on, with the extras `atari` and `torch`:

    python examples/rainbow.py --path runs/rainbow --game ALE/Pong-v5

What it shows: priorities and n-step returns are a sampler and a view of frames that are stored once. A run that goes on
finds the priorities and the learner of its checkpoint, and ends with the very weights of one that was never killed.
"""

import argparse
import pathlib

import ale_py
import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from torch import nn

import diskreplay as dr

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--path", type=pathlib.Path, required=True, help="folder of the run")
parser.add_argument("--game", default="ALE/Pong-v5")
numbers = {"steps": 2_000_000, "seed": 0, "warmup": 20_000, "save-every": 50_000, "report-every": 5_000}
for name, value in numbers.items():
    parser.add_argument(f"--{name}", type=int, default=value)
args = parser.parse_args()

FRAMES, BATCH, GAMMA, LEARN_EVERY, TARGET_EVERY = 4, 32, 0.99, 4, 8_000
ATOMS, LEAST, MOST = 51, -10.0, 10.0  # of the distribution of returns

gymnasium.register_envs(ale_py)
env = AtariPreprocessing(gymnasium.make(args.game, frameskip=1), frame_skip=4, screen_size=84)
env = FrameStackObservation(env, FRAMES, padding_type="zero")
actions = int(env.action_space.n)


class Noisy(nn.Module):
    """A linear layer whose weights have learnt noise, which takes the place of random actions."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.mean, self.spread = nn.Linear(into, out), nn.Linear(into, out)
        for part in self.spread.parameters():
            nn.init.constant_(part, 0.5 / into**0.5)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        noise = (torch.randn(size) for size in self.mean.weight.shape[::-1])
        into, out = (one.sign() * one.abs().sqrt() for one in noise)
        weight = self.mean.weight + self.spread.weight * out[:, None] * into
        return nn.functional.linear(values, weight, self.mean.bias + self.spread.bias * out)


class Network(nn.Module):
    """Log probabilities ``(B, actions, ATOMS)`` of the returns of each action, of stacks ``(B, FRAMES, 84, 84)``."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(
            nn.Conv2d(FRAMES, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.value = nn.Sequential(Noisy(3136, 512), nn.ReLU(), Noisy(512, ATOMS))
        self.advantage = nn.Sequential(Noisy(3136, 512), nn.ReLU(), Noisy(512, actions * ATOMS))

    def forward(self, stacks: torch.Tensor) -> torch.Tensor:
        seen = self.see(stacks.float() / 255)
        advantage = self.advantage(seen).view(-1, actions, ATOMS)
        return (self.value(seen)[:, None] + advantage - advantage.mean(1, keepdim=True)).log_softmax(-1)


torch.set_num_threads(1)  # so that sums are in the same order in each run
torch.manual_seed(args.seed)
online, target = Network(), Network()
target.load_state_dict(online.state_dict())
optimizer = torch.optim.Adam(online.parameters(), lr=6.25e-5, eps=1.5e-4)
learner = {"online": online, "target": target, "optimizer": optimizer}  # all that a checkpoint holds the state of
atoms, rows = torch.linspace(LEAST, MOST, ATOMS), torch.arange(BATCH)


def learn(batch: dr.Batch) -> np.ndarray:
    """One step of the optimizer; the errors ``(B,)`` by which the transitions are drawn from now on."""
    with torch.no_grad():
        best = (online(batch.next_obs).exp() * atoms).sum(-1).argmax(-1)  # double Q-learning
        returns = (batch.reward[:, None] + batch.discount[:, None] * atoms).clamp(LEAST, MOST)
        place = (returns - LEAST) / (MOST - LEAST) * (ATOMS - 1)
        share = (1 - (place[:, None] - torch.arange(ATOMS)[:, None]).abs()).clamp(0, 1)
        goal = (share * target(batch.next_obs)[rows, best].exp()[:, None]).sum(-1)  # (B, ATOMS)
    errors = -(goal * online(batch.obs)[rows, batch.action]).sum(-1)
    optimizer.zero_grad()
    (batch.weight * errors).mean().backward()
    optimizer.step()
    return errors.detach().numpy()


def save(step: int) -> None:
    """Names this point of the run: rows, priorities and learner in one checkpoint, in the place of the one before."""
    state = {key: part.state_dict() for key, part in learner.items()} | {"random": torch.get_rng_state()}
    files = {"learner.pt": lambda file: torch.save(state, file)}
    rb.checkpoint(f"step-{step}", {"step": step, "returns": returns}, attachments=files, keep=1)
    print(f"checkpoint step-{step}")


store, on_disk = args.path / "replay", 0
if (store / "zarr.json").exists():  # how far the run before this one came
    with dr.ReplayBuffer.open(store, mode="r") as reader:
        on_disk = reader.stats()["streams"]["0"]["end"]
rb = dr.ReplayBuffer.open_or_create(
    store, env.observation_space, env.action_space, capacity=1_000_000, frame_stack=FRAMES,
    sampler=dr.Proportional(alpha=0.5, beta=0.4, beta_schedule=(1.0, args.steps // LEARN_EVERY)),
    view=dr.Transition(n_step=3, gamma=GAMMA), checkpoint="latest", seed=args.seed,
)  # fmt: skip
first, returns = 0, []  # returns of the newest episodes
if rb.restored:
    first, returns = rb.restored.metadata["step"], rb.restored.metadata["returns"]
    with rb.attachment("learner.pt") as file:
        saved = torch.load(file)
    for key, part in learner.items():
        part.load_state_dict(saved[key])
    torch.set_rng_state(saved["random"])
    print(f"resumed at checkpoint {rb.restored.name}; at least {on_disk - first} steps that came after it are lost")
else:
    save(first)

ended = True
for step in range(first, args.steps):
    if ended or step % args.save_every == 0:  # a start, and each checkpoint, begins a new game
        rb.cut()
        (stack, _), score = env.reset(seed=args.seed + step), 0.0
    with torch.no_grad():
        action = int((online(torch.from_numpy(stack)[None]).exp() * atoms).sum(-1).argmax())
    next_stack, reward, terminated, truncated, _ = env.step(action)
    rb.add(stack, action, np.sign(reward), next_stack, terminated, truncated)
    stack, ended, score = next_stack, terminated or truncated, score + reward
    if ended:
        returns = [*returns, score][-20:]
    if step >= args.warmup and step % LEARN_EVERY == 0:
        batch = rb.sample(BATCH)
        rb.update_priorities(batch.index, learn(batch.torch()))
    if step % TARGET_EVERY == 0:
        target.load_state_dict(online.state_dict())
    done = step + 1
    if done % args.report_every == 0:
        rb.commit()
        print(f"step {done}: average return {np.mean(returns) if returns else np.nan:.1f}")
    if done % args.save_every == 0 or done == args.steps:
        save(done)
rb.close()
