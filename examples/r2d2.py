"""R2D2 (Kapturowski et al. 2019) on CartPole without its velocities, which may be killed at any moment.

The same command begins and goes on:

    python examples/r2d2.py --path runs/r2d2

What it shows: sequences with a burn-in are a view, their priorities a sampler, and the recurrent state that the actor
had at each step a column of its own. A run that was killed goes on with the rows, priorities and learner of its
checkpoint, and ends with the very weights of one that never was.
"""

import argparse
import pathlib

import gymnasium
import numpy as np
import torch
from torch import nn

import diskreplay as dr

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--path", type=pathlib.Path, required=True, help="folder of the run")
parser.add_argument("--steps", type=int, default=30_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--warmup", type=int, default=1_000, help="random steps before learning")
parser.add_argument("--save-every", type=int, default=5_000)
parser.add_argument("--report-every", type=int, default=1_000)
args = parser.parse_args()

LENGTH, BURN_IN, BATCH, GAMMA, LEARN_EVERY, TARGET_EVERY = 20, 10, 32, 0.99, 4, 500
EXPLORATION, LEAST_EPSILON, MEMORY = 8_000, 0.05, 64

env = gymnasium.make("CartPole-v1")
seen = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)  # where cart and pole are, not how fast they move
env = gymnasium.wrappers.TransformObservation(env, lambda obs: obs[[0, 2]] * np.float32([1, 10]), seen)
actions = int(env.action_space.n)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.GRU(2, MEMORY, batch_first=True)
        self.head = nn.Linear(MEMORY, actions)

    def forward(self, obs: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Values ``(B, T, actions)`` of the steps of sequences ``(B, T, 2)``, and the state after them."""
        hidden, state = self.memory(obs, state)
        return self.head(hidden), state


torch.set_num_threads(1)  # small networks; and the sums are in the same order in each run
torch.manual_seed(args.seed)
online, target = Network(), Network()
target.load_state_dict(online.state_dict())
optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
learner = {"online": online, "target": target, "optimizer": optimizer}  # all that a checkpoint holds the state of


def learn(batch: dr.SequenceBatch) -> np.ndarray:
    """Learns of sequences ``(B, T, ...)``, after a burn-in from the stored state; gives their priorities ``(B,)``."""
    start = batch["state"][:, 0][None]
    with torch.no_grad():
        whole = torch.cat([batch.obs[:, :1], batch.next_obs], 1)  # (B, T + 1, 2): next_obs is the next obs
        best = online(whole, start)[0][:, 1:].argmax(-1, keepdim=True)  # double Q-learning
        next_value = target(whole, start)[0][:, 1:].gather(-1, best).squeeze(-1)
        goal = (batch.reward + batch.discount * next_value)[:, BURN_IN:]
        _, warm = online(batch.obs[:, :BURN_IN], start)
    chosen = online(batch.obs[:, BURN_IN:], warm)[0].gather(-1, batch.action[:, BURN_IN:, None]).squeeze(-1)
    errors = (goal - chosen) * batch.mask[:, BURN_IN:]
    loss = nn.functional.smooth_l1_loss(errors, torch.zeros_like(errors), reduction="none").sum(1)
    optimizer.zero_grad()
    (batch.weight * loss).mean().backward()
    nn.utils.clip_grad_norm_(online.parameters(), 10.0)
    optimizer.step()
    sizes = errors.detach().abs()
    return (0.9 * sizes.amax(1) + 0.1 * sizes.mean(1)).numpy()


@torch.no_grad()
def act(obs: np.ndarray, state: torch.Tensor, step: int) -> tuple[int, torch.Tensor]:
    """The best action, or sometimes any; and what is remembered after it."""
    value, state = online(torch.from_numpy(obs)[None, None], state)
    epsilon = max(LEAST_EPSILON, 1 - (step - args.warmup) / EXPLORATION)
    explore = step < args.warmup or torch.rand(()) < epsilon
    return int(torch.randint(actions, ()) if explore else value.argmax()), state


def save(step: int) -> None:
    """Names this point of the run: rows, sampler and learner in one checkpoint, in the place of the one before."""
    state = {key: part.state_dict() for key, part in learner.items()} | {"random": torch.get_rng_state()}
    files = {"learner.pt": lambda file: torch.save(state, file)}
    rb.checkpoint(f"step-{step}", {"step": step, "returns": returns}, attachments=files, keep=1)
    print(f"checkpoint step-{step}")


store, on_disk = args.path / "replay", 0
if (store / "zarr.json").exists():  # how far the run before this one came
    with dr.ReplayBuffer.open(store, mode="r") as reader:
        on_disk = reader.stats()["streams"]["0"]["end"]
rb = dr.ReplayBuffer.open_or_create(
    store, env.observation_space, env.action_space, capacity=100_000,
    columns={"state": ((MEMORY,), np.float32)}, sampler=dr.Proportional(alpha=0.9, beta=0.6),
    view=dr.Sequence(LENGTH, burn_in=BURN_IN, stride=5, gamma=GAMMA), checkpoint="latest", seed=args.seed,
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
    if ended or step % args.save_every == 0:  # a start, and each checkpoint, begins a new episode
        rb.cut()
        obs, _ = env.reset(seed=args.seed + step)
        state, score = torch.zeros(1, 1, MEMORY), 0.0
    before, (action, state) = state, act(obs, state, step)
    next_obs, reward, terminated, truncated, _ = env.step(action)
    rb.add(obs, action, reward, next_obs, terminated, truncated, state=before.numpy()[0, 0])
    obs, ended, score = next_obs, terminated or truncated, score + float(reward)
    if ended:
        returns = [*returns, score][-20:]
    if step >= args.warmup and step % LEARN_EVERY == 0:
        batch = rb.sample(BATCH).torch()
        rb.update_priorities(batch.index, learn(batch))
    if step % TARGET_EVERY == 0:
        target.load_state_dict(online.state_dict())
    done = step + 1
    if done % args.report_every == 0:
        rb.commit()
        print(f"step {done}: average return {np.mean(returns) if returns else np.nan:.1f}")
    if done % args.save_every == 0 or done == args.steps:
        save(done)
rb.close()
