"""DQN on an Atari game, as of Mnih et al. 2015, which may be killed at any moment.

The same command begins and goes on (it needs `pip install 'diskreplay[atari,torch]'`):

    python examples/dqn_atari.py --path runs/pong --game ALE/Pong-v5

What it shows: single frames are given and stored once, compressed, and stacks of four are made when a batch is sampled;
n-step returns are an option of the view. A million steps take about 200 MB of disk. The game is begun anew at each
checkpoint, so that a run that was killed ends with the very weights of one that never was. SIGTERM, by which a cluster
preempts a job, has it make a checkpoint after the step that it is at, and end.
"""

import argparse
import pathlib
import signal

import ale_py
import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import AtariPreprocessing
from torch import nn

import diskreplay as dr

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--path", type=pathlib.Path, required=True, help="folder of the run")
parser.add_argument("--game", default="ALE/Pong-v5")
parser.add_argument("--steps", type=int, default=2_000_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--warmup", type=int, default=20_000, help="random steps before learning")
parser.add_argument("--save-every", type=int, default=50_000)
parser.add_argument("--report-every", type=int, default=5_000)
args = parser.parse_args()

FRAMES, BATCH, GAMMA, LEARN_EVERY, TARGET_EVERY = 4, 32, 0.99, 4, 8_000
EXPLORATION, LEAST_EPSILON = 250_000, 0.05

gymnasium.register_envs(ale_py)
env = AtariPreprocessing(gymnasium.make(args.game, frameskip=1), frame_skip=4, screen_size=84)
actions = int(env.action_space.n)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(FRAMES, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions),
    ).to(device)  # fmt: skip


def values(net: nn.Module, stacks: torch.Tensor) -> torch.Tensor:
    """Of each action, ``(B, actions)``, of stacks of frames ``(B, FRAMES, 84, 84)`` uint8."""
    return net(stacks.to(device).float() / 255)


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.set_num_threads(1)  # so that sums are in the same order in each run
torch.manual_seed(args.seed)
online, target = network(), network()
target.load_state_dict(online.state_dict())
optimizer = torch.optim.Adam(online.parameters(), lr=1e-4)
learner = {"online": online, "target": target, "optimizer": optimizer}  # all that a checkpoint holds the state of


def learn(batch: dr.Batch) -> None:
    with torch.no_grad():
        goal = batch.reward + batch.discount * values(target, batch.next_obs).max(1).values
    chosen = values(online, batch.obs).gather(1, batch.action[:, None]).squeeze(1)
    optimizer.zero_grad()
    nn.functional.smooth_l1_loss(chosen, goal).backward()
    optimizer.step()


def act(stack: np.ndarray, step: int) -> int:
    """The best action, or sometimes any."""
    epsilon = max(LEAST_EPSILON, 1 - (step - args.warmup) / EXPLORATION)
    if step < args.warmup or torch.rand(()) < epsilon:
        return int(torch.randint(actions, ()))
    with torch.no_grad():
        return int(values(online, torch.from_numpy(stack)[None]).argmax())


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
    store, env.observation_space, env.action_space, capacity=1_000_000, frame_stack=FRAMES,
    view=dr.Transition(n_step=3, gamma=GAMMA), checkpoint="latest", seed=args.seed,
)  # fmt: skip
first, returns = 0, []  # returns of the newest episodes
if rb.restored:
    first, returns = rb.restored.metadata["step"], rb.restored.metadata["returns"]
    with rb.attachment("learner.pt") as file:
        saved = torch.load(file, map_location=device)
    for key, part in learner.items():
        part.load_state_dict(saved[key])
    torch.set_rng_state(saved["random"].cpu())
    print(f"resumed at checkpoint {rb.restored.name}; at least {on_disk - first} steps that came after it are lost")
else:
    save(first)

preempted = []
signal.signal(signal.SIGTERM, lambda number, frame: preempted.append(number))
ended = True
for step in range(first, args.steps):
    if ended or step % args.save_every == 0:  # a start, and each checkpoint, begins a new game
        rb.cut()
        frame, _ = env.reset(seed=args.seed + step)
        stack, score = np.zeros((FRAMES, *frame.shape), frame.dtype), 0.0  # the store pads with zeros, too
        stack[-1] = frame
    action = act(stack, step)
    next_frame, reward, terminated, truncated, _ = env.step(action)
    rb.add(frame, action, np.sign(reward), next_frame, terminated, truncated)
    frame, ended, score = next_frame, terminated or truncated, score + reward
    stack = np.concatenate([stack[1:], frame[None]])
    if ended:
        returns = [*returns, score][-20:]
    if step >= args.warmup and step % LEARN_EVERY == 0:
        learn(rb.sample(BATCH).torch(device))
    if step % TARGET_EVERY == 0:
        target.load_state_dict(online.state_dict())
    done = step + 1
    if done % args.report_every == 0:
        rb.commit()
        print(f"step {done}: average return {np.mean(returns) if returns else np.nan:.1f}")
    if done % args.save_every == 0 or done == args.steps or preempted:
        save(done)
    if preempted:
        break
rb.close()
