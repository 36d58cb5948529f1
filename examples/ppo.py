"""PPO on CartPole with four environments in lockstep, which may be killed at any moment.

The same command begins and goes on:

    python examples/ppo.py --path runs/ppo

What it shows: a rollout's steps are on disk, and small columns in RAM, too; `finish` computes the advantages, with the
value of the final observation where an episode was truncated; `valid=` leaves out the steps in which an environment
only resets. Environments are reset at each checkpoint, so that a run that was killed ends with the very weights of one
that never was.
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
parser.add_argument("--steps", type=int, default=100_000, help="of all environments together")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--save-every", type=int, default=16_384)
parser.add_argument("--report-every", type=int, default=4_096)
args = parser.parse_args()


NUM_ENVS, ROLLOUT, EPOCHS, BATCH, GAMMA, CLIP = 4, 128, 4, 128, 0.99, 0.2

envs = gymnasium.make_vec("CartPole-v1", num_envs=NUM_ENVS, vectorization_mode="sync")


def mlp(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


torch.set_num_threads(1)  # small networks; and the sums are in the same order in each run
torch.manual_seed(args.seed)
actor, critic = mlp(2), mlp(1)
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)
learner = {"actor": actor, "critic": critic, "optimizer": optimizer}  # all that a checkpoint holds the state of


def policy(obs: torch.Tensor) -> torch.distributions.Categorical:
    return torch.distributions.Categorical(logits=actor(obs))


@torch.no_grad()
def value(obs: np.ndarray) -> np.ndarray:
    return critic(torch.from_numpy(obs)).squeeze(-1).numpy()


def learn(batch: dr.RolloutBatch) -> None:
    distribution = policy(batch.obs)
    ratio = (distribution.log_prob(batch.action) - batch.log_prob).exp()
    gain = torch.min(ratio * batch.advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * batch.advantage).mean()
    value_loss = (critic(batch.obs).squeeze(-1) - batch.returns).square().mean()
    optimizer.zero_grad()
    (0.5 * value_loss - gain - 0.01 * distribution.entropy().mean()).backward()
    nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
    optimizer.step()


def save(step: int) -> None:
    """Names this point of the run: rows, sampler and learner in one checkpoint, in the place of the one before."""
    state = {key: part.state_dict() for key, part in learner.items()}
    state |= {"returns": returns, "random": torch.get_rng_state()}
    files = {"learner.pt": lambda file: torch.save(state, file)}
    rollout.checkpoint(f"step-{step}", {"step": step}, attachments=files, keep=1)
    print(f"checkpoint step-{step}")


store, on_disk = args.path / "rollout", 0
if (store / "zarr.json").exists():  # how far the run before this one came
    with dr.RolloutBuffer.open(store, mode="r") as reader:
        on_disk = reader.stats()["streams"]["0"]["end"] * NUM_ENVS
rollout = dr.RolloutBuffer.open_or_create(
    store, envs.single_observation_space, envs.single_action_space, steps=ROLLOUT, num_envs=NUM_ENVS,
    gamma=GAMMA, gae_lambda=0.95, checkpoint="latest", seed=args.seed,
)  # fmt: skip
first, returns = 0, []  # returns of the newest episodes
if rollout.restored:
    first = rollout.restored.metadata["step"]
    with rollout.attachment("learner.pt") as file:
        saved = torch.load(file)
    for key, part in learner.items():
        part.load_state_dict(saved[key])
    returns = saved["returns"]
    torch.set_rng_state(saved["random"])
    name = rollout.restored.name
    print(f"resumed at checkpoint {name}; at least {on_disk - first} steps that came after it are lost")
else:
    save(first)

per_rollout = ROLLOUT * NUM_ENVS
begin = True
for step in range(first, args.steps, per_rollout):
    if begin:  # a start, and each checkpoint, begins new episodes
        obs, _ = envs.reset(seed=args.seed + step)
        rollout.cut()
        ended, scores = np.zeros(NUM_ENVS, bool), np.zeros(NUM_ENVS)
    while not rollout.full:
        with torch.no_grad():
            distribution = policy(torch.from_numpy(obs))
            action = distribution.sample()
            log_prob = distribution.log_prob(action).numpy()
        next_obs, reward, terminated, truncated, _ = envs.step(action.numpy())
        rollout.add(
            obs, action.numpy(), reward, next_obs, terminated, truncated,
            value=value(obs), log_prob=log_prob, valid=~ended,
        )  # fmt: skip
        obs, ended, scores = next_obs, terminated | truncated, scores + reward
        returns = [*returns, *scores[ended].tolist()][-20:]
        scores[ended] = 0
    rollout.finish(value(obs), value_fn=value)
    for batch in rollout.minibatches(BATCH, EPOCHS):
        learn(batch.torch())
    rollout.clear()
    done = step + per_rollout
    if done % args.report_every < per_rollout:
        rollout.commit()
        print(f"step {done}: average return {np.mean(returns) if returns else np.nan:.1f}")
    begin = done % args.save_every < per_rollout
    if begin or done >= args.steps:
        save(done)
rollout.close()
