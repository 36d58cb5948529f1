"""QMIX (Rashid et al. 2018) on its two-step game, which may be killed at any moment.

The same command begins and goes on:

    python examples/qmix.py --path runs/qmix

What it shows: one step of all agents is one transition, with the global state that the mixing network is made from. In
the first step agent 0 alone chooses what the second one is worth: always 7, or up to 8 where both agents agree. A run
that was killed ends with the very weights of one that never was.
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
parser.add_argument("--steps", type=int, default=10_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--save-every", type=int, default=2_000)
parser.add_argument("--report-every", type=int, default=500)
args = parser.parse_args()

N_AGENTS, ACTIONS, STATES, BATCH, GAMMA, TARGET_EVERY, EXPLORATION = 2, 2, 3, 64, 0.99, 100, 6_000
PAYOFF = np.float32([[[7, 7], [7, 7]], [[0, 1], [1, 8]]])  # of states 1 and 2, by both agents' actions


def play(place: int, action: np.ndarray) -> tuple[int, float, bool]:
    """The next place, the reward, and whether the game has ended."""
    if place == 0:
        return 1 + int(action[0]), 0.0, False
    return place, float(PAYOFF[place - 1][tuple(action)]), True


def look(place: int) -> tuple[np.ndarray, np.ndarray]:
    """What each agent sees, ``(N_AGENTS, STATES)``, and the global state, ``(STATES,)``."""
    state = np.eye(STATES, dtype=np.float32)[place]
    return np.stack([state] * N_AGENTS), state


class Agents(nn.Module):
    """Values of each agent's actions, and what they are worth together: more where any of them is more."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(STATES + N_AGENTS, 64), nn.ReLU(), nn.Linear(64, ACTIONS))
        self.weights = nn.ModuleList([nn.Linear(STATES, N_AGENTS * 8), nn.Linear(STATES, 8)])
        self.biases = nn.ModuleList([nn.Linear(STATES, 8), nn.Linear(STATES, 1)])

    def values(self, obs: torch.Tensor) -> torch.Tensor:
        """``(B, N_AGENTS, ACTIONS)``; the agents share a network that is told who asks."""
        return self.each(torch.cat([obs, torch.eye(N_AGENTS).expand(len(obs), -1, -1)], -1))

    def mix(self, chosen: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Of the values of the agents' actions, ``(B, N_AGENTS)``, one for all, ``(B,)``."""
        first = self.weights[0](state).abs().view(-1, N_AGENTS, 8)
        hidden = nn.functional.elu((chosen[:, None] @ first).squeeze(1) + self.biases[0](state))
        return (hidden * self.weights[1](state).abs()).sum(1) + self.biases[1](state).squeeze(1)


torch.set_num_threads(1)  # small networks; and the sums are in the same order in each run
torch.manual_seed(args.seed)
online, target = Agents(), Agents()
target.load_state_dict(online.state_dict())
optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
learner = {"online": online, "target": target, "optimizer": optimizer}  # all that a checkpoint holds the state of


def learn(batch: dr.MultiAgentBatch) -> None:
    with torch.no_grad():
        best = target.values(batch.next_obs).max(-1).values
        goal = batch.reward + batch.discount * target.mix(best, batch.next_state)
    chosen = online.values(batch.obs).gather(-1, batch.action[..., None]).squeeze(-1)
    optimizer.zero_grad()
    (online.mix(chosen, batch.state) - goal).square().mean().backward()
    optimizer.step()


@torch.no_grad()
def act(obs: np.ndarray, step: int) -> np.ndarray:
    """Each agent's best action, or sometimes any."""
    best, explore = online.values(torch.from_numpy(obs)[None])[0].argmax(-1), max(0.05, 1 - step / EXPLORATION)
    return torch.where(torch.rand(N_AGENTS) < explore, torch.randint(ACTIONS, (N_AGENTS,)), best).numpy()


def save(step: int) -> None:
    """Names this point of the run: rows, sampler and learner in one checkpoint, in the place of the one before."""
    state = {key: part.state_dict() for key, part in learner.items()} | {"random": torch.get_rng_state()}
    files = {"learner.pt": lambda file: torch.save(state, file)}
    rb.checkpoint(f"step-{step}", {"step": step, "returns": returns}, attachments=files, keep=1)
    print(f"checkpoint step-{step}")


store, on_disk = args.path / "replay", 0
if (store / "zarr.json").exists():  # how far the run before this one came
    with dr.MultiAgentReplayBuffer.open(store, mode="r") as reader:
        on_disk = reader.stats()["streams"]["0"]["end"]
seen = gymnasium.spaces.Box(0, 1, (STATES,), np.float32)  # by an agent, and by the mixing network
rb = dr.MultiAgentReplayBuffer.open_or_create(
    store, seen, gymnasium.spaces.Discrete(ACTIONS), N_AGENTS, capacity=100_000, state_space=seen,
    view=dr.Transition(gamma=GAMMA), checkpoint="latest", seed=args.seed,
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
        place = 0
    obs, state = look(place)
    action = act(obs, step)
    place, reward, ended = play(place, action)
    next_obs, next_state = look(place)
    rb.add(obs, action, reward, next_obs, ended, False, state=state, next_state=next_state)
    if ended:
        returns = [*returns, reward][-100:]
    if step >= BATCH:
        learn(rb.sample(BATCH).torch())
    if step % TARGET_EVERY == 0:
        target.load_state_dict(online.state_dict())
    done = step + 1
    if done % args.report_every == 0:
        rb.commit()
        print(f"step {done}: average return {np.mean(returns):.2f}")
    if done % args.save_every == 0 or done == args.steps:
        save(done)
rb.close()
