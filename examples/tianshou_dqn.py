"""DQN with Tianshou's collectors and trainer over stores on disk, which may be killed at any moment.

The same command begins and goes on (it needs `pip install 'tianshou>=2,<3'`):

    python examples/tianshou_dqn.py --path runs/tianshou

What it shows: the buffer is the only change (was: `VectorReplayBuffer(100_000, ENVS)`); its checkpoint brings back the
steps of all environments, how batches are drawn, and the algorithm. Exploration is drawn from numpy's global generator,
whose state is saved as well. The environments are reset at each checkpoint, and `buffer.cut()` says so: a run that was
killed ends with the very weights of one that never was.
"""

import argparse
import pathlib

import gymnasium
import numpy as np
import torch
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

import diskreplay as dr
from diskreplay.compat.tianshou import DiskVectorReplayBuffer

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--path", type=pathlib.Path, required=True, help="folder of the run")
parser.add_argument("--steps", type=int, default=40_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--warmup", type=int, default=2_000, help="random steps before learning")
parser.add_argument("--save-every", type=int, default=4_000)
parser.add_argument("--report-every", type=int, default=1_000)
args = parser.parse_args()

ENVS, BATCH, GAMMA, EXPLORATION = 4, 64, 0.99, 10_000
UPDATES_PER_STEP = 0.25
# A report ends where the target network follows, since Tianshou does not save how many updates ago it did.
TARGET_EVERY = round(args.report_every * UPDATES_PER_STEP)

torch.set_num_threads(1)  # small networks; and the sums are in the same order in each run
np.random.seed(args.seed)
torch.manual_seed(args.seed)
envs, test_envs = (DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(ENVS)]) for _ in range(2))
policy = DiscreteQLearningPolicy(
    model=Net(state_shape=(4,), action_shape=2, hidden_sizes=[120, 84]), action_space=envs.action_space[0]
)
algorithm = DQN(
    policy=policy, optim=AdamOptimizerFactory(lr=5e-4), gamma=GAMMA, n_step_return_horizon=3,
    target_update_freq=TARGET_EVERY,
)  # fmt: skip


def save(step: int) -> None:
    """Names this point of the run: all environments and the algorithm, in the place of the checkpoint before."""
    kind, keys, *rest = np.random.get_state()
    state = {"algorithm": algorithm.state_dict(), "random": (kind, torch.from_numpy(keys.copy()), *rest)}
    files = {"learner.pt": lambda file: torch.save(state, file)}
    buffer.checkpoint(f"step-{step}", {"step": step}, attachments=files, keep=1)
    print(f"checkpoint step-{step}")


first, on_disk = 0, 0
for store in (args.path / "replay").glob("env-*"):  # how far the run before this one came
    with dr.ReplayBuffer.open(store, mode="r") as reader:
        on_disk += reader.stats()["streams"]["0"]["end"]
buffer = DiskVectorReplayBuffer(
    100_000, ENVS, path=args.path / "replay", random_seed=args.seed, checkpoint="latest"
)  # fmt: skip
if buffer.restored:
    first = buffer.restored.metadata["step"]
    with buffer.attachment("learner.pt") as file:
        saved = torch.load(file)
    algorithm.load_state_dict(saved["algorithm"])
    kind, keys, *rest = saved["random"]
    np.random.set_state((kind, keys.numpy(), *rest))
    print(f"resumed at checkpoint {buffer.restored.name}; at least {on_disk - first} steps that came after it are lost")
else:
    buffer.clear()  # of a run that was killed before its first checkpoint

collector = Collector(algorithm, envs, buffer, exploration_noise=True)
trainer = algorithm.create_trainer(
    OffPolicyTrainerParams(
        training_collector=collector, test_collector=Collector(algorithm, test_envs), test_step_num_episodes=ENVS,
        epoch_num_steps=args.report_every, collection_step_num_env_steps=5 * ENVS, batch_size=BATCH,
        update_step_num_gradient_steps_per_sample=UPDATES_PER_STEP, verbose=False, show_progress=False,
    )
)  # fmt: skip
if first == 0:
    envs.seed(args.seed)
    collector.reset()
    collector.collect(n_step=args.warmup, random=True)
    first = args.warmup

for step in range(first, args.steps, args.report_every):
    if step == first or step % args.save_every == 0:  # a start, and each checkpoint, begins new episodes
        envs.seed(args.seed + step)
        test_envs.seed(args.seed + step)
        buffer.cut()
        trainer.reset()
    policy.set_eps_training(max(0.05, 1 - step / EXPLORATION))
    report = trainer.execute_epoch()
    buffer.commit()
    done = step + args.report_every
    print(f"step {done}: average return {report.test_collect_stat.returns_stat.mean:.1f}")
    if done % args.save_every == 0 or done >= args.steps:
        save(done)
buffer.close()
