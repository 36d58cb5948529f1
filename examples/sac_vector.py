"""SAC on Pendulum with four environments in lockstep, which may be killed at any moment.

The same command begins and goes on:

    python examples/sac_vector.py --path runs/sac

What it shows: `valid=` leaves out the steps in which an environment only resets; one `save` keeps store, networks and
random state together; environments are reset at each checkpoint, so that a run that was killed ends with the very
weights of one that never was.
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
parser.add_argument("--steps", type=int, default=20_000, help="of all environments together")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--warmup", type=int, default=500, help="random steps before learning")
parser.add_argument("--save-every", type=int, default=2_000)
parser.add_argument("--report-every", type=int, default=500)
args = parser.parse_args()

NUM_ENVS, BATCH, GAMMA, TAU = 4, 128, 0.99, 0.01

envs = gymnasium.make_vec("Pendulum-v1", num_envs=NUM_ENVS, vectorization_mode="sync")
obs_size, action_size = envs.single_observation_space.shape[0], envs.single_action_space.shape[0]
action_scale = float(envs.single_action_space.high[0])


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor = mlp(obs_size, 2 * action_size)
        self.critics = nn.ModuleList(mlp(obs_size + action_size, 1) for _ in range(2))
        self.targets = nn.ModuleList(mlp(obs_size + action_size, 1) for _ in range(2))
        self.targets.load_state_dict(self.critics.state_dict())
        self.log_alpha = nn.Parameter(torch.zeros(()))

    def act(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """An action ``(B, action_size)`` in [-1, 1], and its log-probability ``(B,)``."""
        mean, log_std = self.actor(obs).chunk(2, dim=-1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        raw = normal.rsample()
        squashed = 2 * (np.log(2) - raw - nn.functional.softplus(-2 * raw))  # log(1 - tanh(raw) ** 2)
        return raw.tanh(), (normal.log_prob(raw) - squashed).sum(-1)


def values(critics: nn.ModuleList, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Of both critics, ``(2, B)``."""
    return torch.stack([critic(torch.cat([obs, action], -1)).squeeze(-1) for critic in critics])


torch.set_num_threads(1)  # small networks; and the sums are in the same order in each run
torch.manual_seed(args.seed)
agent = Agent()
learned = {"actor": agent.actor.parameters(), "critic": agent.critics.parameters(), "alpha": [agent.log_alpha]}
optimizers = {name: torch.optim.Adam(parameters, lr=1e-3) for name, parameters in learned.items()}
learner = {"agent": agent, **optimizers}  # all that a checkpoint holds the state of


def learn(batch: dr.Batch) -> None:
    action, alpha = batch.action / action_scale, agent.log_alpha.exp().detach()
    with torch.no_grad():
        next_action, next_log_prob = agent.act(batch.next_obs)
        next_value = values(agent.targets, batch.next_obs, next_action).min(0).values - alpha * next_log_prob
        target = batch.reward + batch.discount * next_value
    descend("critic", (values(agent.critics, batch.obs, action) - target).square().mean(1).sum())
    new_action, log_prob = agent.act(batch.obs)
    descend("actor", (alpha * log_prob - values(agent.critics, batch.obs, new_action).min(0).values).mean())
    descend("alpha", -agent.log_alpha * (log_prob.detach().mean() - action_size))
    with torch.no_grad():
        for slow, fast in zip(agent.targets.parameters(), agent.critics.parameters(), strict=True):
            slow.lerp_(fast, TAU)


def descend(name: str, loss: torch.Tensor) -> None:
    optimizers[name].zero_grad()
    loss.backward()
    optimizers[name].step()


def save(done: int) -> None:
    """Names this point of the run: rows, sampler and learner in one checkpoint, in the place of the one before."""
    state = {key: part.state_dict() for key, part in learner.items()} | {"random": torch.get_rng_state()}
    files = {"learner.pt": lambda file: torch.save(state, file)}
    rb.checkpoint(f"step-{done}", {"step": done, "returns": returns}, attachments=files, keep=1)
    print(f"checkpoint step-{done}")


store, on_disk = args.path / "replay", 0
if (store / "zarr.json").exists():  # how far the run before this one came
    with dr.ReplayBuffer.open(store, mode="r") as reader:
        on_disk = reader.stats()["streams"]["0"]["end"] * NUM_ENVS
rb = dr.ReplayBuffer.open_or_create(
    store, envs.single_observation_space, envs.single_action_space, capacity=100_000, num_envs=NUM_ENVS,
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

for done in range(first, args.steps, NUM_ENVS):
    if done == first or done % args.save_every < NUM_ENVS:  # a start, and each checkpoint, begins new episodes
        obs, _ = envs.reset(seed=args.seed + done)
        rb.cut()
        ended, scores = np.zeros(NUM_ENVS, bool), np.zeros(NUM_ENVS)
    with torch.no_grad():
        action = agent.act(torch.from_numpy(obs))[0] if done >= args.warmup else 2 * torch.rand(NUM_ENVS, 1) - 1
    action = action.numpy() * action_scale
    next_obs, reward, terminated, truncated, _ = envs.step(action)
    rb.add(obs, action, reward, next_obs, terminated, truncated, valid=~ended)
    obs, ended, scores = next_obs, terminated | truncated, scores + reward
    returns = [*returns, *scores[ended].tolist()][-20:]
    scores[ended] = 0
    if done >= args.warmup:
        learn(rb.sample(BATCH).torch())
    after = done + NUM_ENVS
    if after % args.report_every < NUM_ENVS:
        rb.commit()
        print(f"step {after}: average return {np.mean(returns) if returns else np.nan:.1f}")
    if after % args.save_every < NUM_ENVS or after >= args.steps:
        save(after)
rb.close()
