"""XuanCe's own learners, with our buffers in the place of theirs: they learn the very same parameters.

DRQN's agent gives the size of all environments without a name; that is what the subclass here translates.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from helpers.stand_ins import XUANCE, stand_ins
from interop.xuance_learning import check_same, learned

from diskreplay.compat import xuance as ours

pytest.importorskip("torch", reason="torch is in the interop extra")

with stand_ins(XUANCE):
    pytest.importorskip("xuance.torch.agents", reason="XuanCe is installed by the target interop of the Makefile")
    from xuance.common import memory_tools as theirs
    from xuance.environment import make_envs
    from xuance.torch.agents import DQN_Agent, DRQN_Agent, PerDQN_Agent, SAC_Agent
    from xuance.torch.agents.core import off_policy
    from xuance.torch.agents.qlearning_family import drqn_agent, perdqn_agent

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_torch_thread")]

PARTS = ("obs", "actions", "rewards", "terminals", "obs_next", "weights", "step_choices")
CONFIG = {
    "dl_toolbox": "torch", "logger": "tensorboard", "render": False, "render_mode": "rgb_array", "fps": 50,
    "device": "cpu", "distributed_training": False, "env_name": "Classic Control", "env_id": "CartPole-v1",
    "env_seed": 1, "vectorize": "DummyVecEnv", "policy": "Basic_Q_network", "representation": "Basic_MLP",
    "runner": "DRL", "representation_hidden_size": [32], "q_hidden_size": [32], "activation": "relu", "seed": 1,
    "parallels": 4, "buffer_size": 1600, "batch_size": 32, "learning_rate": 0.001, "gamma": 0.99, "start_greedy": 0.5,
    "end_greedy": 0.05, "decay_step_greedy": 2000, "sync_frequency": 50, "training_frequency": 4,
    "running_steps": 4000, "start_training": 200, "use_grad_clip": False, "grad_clip_norm": 0.5,
    "use_actions_mask": False, "use_obsnorm": False, "use_rewnorm": False, "obsnorm_range": 5, "rewnorm_range": 5,
    "n_epochs": 1, "eval_interval": 5000, "test_episode": 1,
}  # fmt: skip


class Mended(theirs.PerOffPolicyBuffer):
    """XuanCe's own, which never draws the newest place: ``sum(0, end)`` ends before ``end``."""

    def _sample_proportional(self, env_idx: int, batch_size: int) -> list[int]:
        tree = self._it_sum[env_idx]
        piece = tree.sum(0, self.size) / batch_size
        return [tree.find_prefixsum_idx(random.random() * piece + i * piece) for i in range(batch_size)]


class Recurrent(ours.RecurrentOffPolicyBuffer):
    def __init__(
        self, obs: Any, act: Any, aux: Any, n_envs: int, buffer_size: int, batch_size: int, **more: Any
    ) -> None:
        super().__init__(obs, act, aux, n_envs, buffer_size // n_envs, batch_size, **more)

    def sample(self) -> Any:
        return {**dict(zip(PARTS[:4], super().sample(), strict=True)), "batch_size": self.batch_size}


class Copying(theirs.RecurrentOffPolicyBuffer):
    """XuanCe's own, which keeps episodes whose final observation its agent then overwrites with that of the reset."""

    def store(self, episode: Any) -> None:
        super().store(copy.deepcopy(episode))


DRQN = {
    "agent": "DRQN", "learner": "DRQN_Learner", "policy": "DRQN_Policy", "rnn": "LSTM", "recurrent_hidden_size": 32,
    "recurrent_layer_N": 1, "dropout": 0, "lookup_length": 10, "batch_size": 8, "buffer_size": 120,
    "training_frequency": 16,
}  # fmt: skip
SAC = {
    "learner": "SAC_Learner", "policy": "Gaussian_SAC", "env_id": "Pendulum-v1", "actor_hidden_size": [32],
    "critic_hidden_size": [32], "activation_action": "tanh", "learning_rate_actor": 0.001,
    "learning_rate_critic": 0.001, "alpha": 0.2, "use_automatic_entropy_tuning": True, "tau": 0.005,
}  # fmt: skip
CASES = {
    "SAC": (SAC_Agent, SAC, off_policy, ours.DummyOffPolicyBuffer, theirs.DummyOffPolicyBuffer),
    "DQN": (DQN_Agent, {"learner": "DQN_Learner"}, off_policy, ours.DummyOffPolicyBuffer, theirs.DummyOffPolicyBuffer),
    "PERDQN": (
        PerDQN_Agent, {"learner": "PerDQN_Learner", "PER_alpha": 0.5, "PER_beta0": 0.4}, perdqn_agent,
        ours.PerOffPolicyBuffer, Mended,
    ),
    "DRQN": (DRQN_Agent, DRQN, drqn_agent, Recurrent, Copying),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_learners_learn_the_same(case: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    agent_class, options, where, mine, other = CASES[case]
    name = next(base.__name__ for base in mine.__mro__ if base.__module__.startswith("diskreplay"))
    config = {**CONFIG, "agent": case, **options}
    monkeypatch.setattr(where, name, other)
    expected, memory = learned(agent_class, config, make_envs, 1000, tmp_path)
    assert type(memory) is other
    monkeypatch.setattr(where, name, mine)
    found, memory = learned(agent_class, config, make_envs, 1000, tmp_path)
    assert type(memory) is mine
    assert memory.full
    check_same(found, expected)
    memory.close()
