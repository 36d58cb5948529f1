"""DQN with hindsight on bit flipping (Andrychowicz et al. 2017), which may be killed at any moment.

The same command begins and goes on:

    python examples/her.py --path runs/her

What it shows: goals are relabelled when a batch is sampled, by `dr.Hindsight` and the environment's own reward; what is
stored is what was played. `--ratio 0` learns without hindsight, and finds nothing. Reset at each checkpoint, a run that
was killed ends with the very weights of one that never was.
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
parser.add_argument("--steps", type=int, default=20_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--warmup", type=int, default=1_000, help="steps before learning")
parser.add_argument("--save-every", type=int, default=5_000)
parser.add_argument("--report-every", type=int, default=2_000)
parser.add_argument("--ratio", type=float, default=0.8, help="of transitions with a goal of hindsight")
args = parser.parse_args()

BITS, BATCH, GAMMA, LEARN_EVERY, TARGET_EVERY = 12, 128, 0.95, 2, 200


class BitFlip(gymnasium.Env):
    """Each action flips a bit; -1 for each step until the bits are those of the goal."""

    def __init__(self) -> None:
        bits = gymnasium.spaces.Box(0, 1, (BITS,), np.float32)
        self.observation_space = gymnasium.spaces.Dict(observation=bits, achieved_goal=bits, desired_goal=bits)
        self.action_space = gymnasium.spaces.Discrete(BITS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bits, self.goal = self.np_random.integers(0, 2, (2, BITS)).astype(np.float32)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        self.bits[action] = 1 - self.bits[action]
        self.steps += 1
        done = bool(reached(self.bits, self.goal))
        return self.observe(), float(done) - 1, done, self.steps == BITS and not done, {}

    def observe(self):
        return dict(observation=self.bits.copy(), achieved_goal=self.bits.copy(), desired_goal=self.goal)


def reached(achieved, desired, info=None):
    """Whether one goal, or each of many ``(B, BITS)``, is reached: then the episode terminates."""
    return (achieved == desired).all(-1)


def values(net: nn.Module, obs: dict[str, torch.Tensor]) -> torch.Tensor:
    return net(torch.cat([obs["observation"], obs["desired_goal"]], -1))


env = BitFlip()
torch.set_num_threads(1)  # small networks; and the sums are in the same order in each run
torch.manual_seed(args.seed)
online, target = (nn.Sequential(nn.Linear(2 * BITS, 256), nn.ReLU(), nn.Linear(256, BITS)) for _ in range(2))
target.load_state_dict(online.state_dict())
optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
learner = {"online": online, "target": target, "optimizer": optimizer}  # all that a checkpoint holds the state of


def learn(batch: dr.HindsightBatch) -> None:
    with torch.no_grad():
        goal = batch.reward + batch.discount * values(target, batch.next_obs).max(1).values
    chosen = values(online, batch.obs).gather(1, batch.action[:, None]).squeeze(1)
    optimizer.zero_grad()
    nn.functional.smooth_l1_loss(chosen, goal).backward()
    optimizer.step()


@torch.no_grad()
def act(obs: dict[str, np.ndarray], step: int) -> int:
    """The best action, or sometimes any."""
    if torch.rand(()) < max(0.05, 1 - step / 10_000):
        return int(torch.randint(BITS, ()))
    return int(values(online, {key: torch.from_numpy(part) for key, part in obs.items()}).argmax())


def save(step: int) -> None:
    """Names this point of the run: rows, sampler and learner in one checkpoint, in the place of the one before."""
    state = {key: part.state_dict() for key, part in learner.items()} | {"random": torch.get_rng_state()}
    files = {"learner.pt": lambda file: torch.save(state, file)}
    rb.checkpoint(f"step-{step}", {"step": step, "returns": returns}, attachments=files, keep=1)
    print(f"checkpoint step-{step}")


view = dr.Hindsight(lambda *goals: reached(*goals) - 1.0, ratio=args.ratio, terminated_fn=reached, gamma=GAMMA)
store, on_disk = args.path / "replay", 0
if (store / "zarr.json").exists():  # how far the run before this one came
    with dr.ReplayBuffer.open(store, mode="r", view=view) as reader:
        on_disk = reader.stats()["streams"]["0"]["end"]
rb = dr.ReplayBuffer.open_or_create(
    store, env.observation_space, env.action_space, capacity=100_000, view=view, checkpoint="latest", seed=args.seed,
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
    action = act(obs, step)
    next_obs, reward, terminated, truncated, _ = env.step(action)
    rb.add(obs, action, reward, next_obs, terminated, truncated)
    obs, ended = next_obs, terminated or truncated
    if ended:
        returns = [*returns, float(terminated)][-100:]
    if step >= args.warmup and step % LEARN_EVERY == 0:
        learn(rb.sample(BATCH).torch())
    if step % TARGET_EVERY == 0:
        target.load_state_dict(online.state_dict())
    done = step + 1
    if done % args.report_every == 0:
        rb.commit()
        print(f"step {done}: goals reached {np.mean(returns) if returns else np.nan:.0%}")
    if done % args.save_every == 0 or done == args.steps:
        save(done)
rb.close()
