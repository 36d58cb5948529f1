"""XuanCe's own PPO, with our on-policy buffer in the place of its own: it learns the very same parameters."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pytest
from helpers.stand_ins import XUANCE, stand_ins

from diskreplay.compat.xuance import DummyOnPolicyBuffer

torch = pytest.importorskip("torch", reason="torch is in the interop extra")

with stand_ins(XUANCE):
    pytest.importorskip("xuance.torch.agents", reason="XuanCe is installed by the target interop of the Makefile")
    from xuance.common import memory_tools as theirs
    from xuance.environment import make_envs
    from xuance.torch.agents import PPO_Agent, PPOKL_Agent
    from xuance.torch.agents.core import on_policy

pytestmark = pytest.mark.filterwarnings("ignore")

CONFIG = {
    "dl_toolbox": "torch", "logger": "tensorboard", "render": False, "render_mode": "rgb_array", "fps": 50,
    "device": "cpu", "distributed_training": False, "env_name": "Classic Control", "env_id": "CartPole-v1",
    "env_seed": 1, "vectorize": "DummyVecEnv", "policy": "Categorical_AC", "representation": "Basic_MLP",
    "runner": "DRL", "representation_hidden_size": [32], "actor_hidden_size": [32], "critic_hidden_size": [32],
    "activation": "leaky_relu", "seed": 1, "parallels": 4, "horizon_size": 64, "n_epochs": 4, "n_minibatch": 4,
    "learning_rate": 0.002, "vf_coef": 0.25, "ent_coef": 0.01, "target_kl": 0.25, "kl_coef": 1.0, "clip_range": 0.2,
    "gamma": 0.98, "use_gae": True, "gae_lambda": 0.95, "use_advnorm": True, "use_grad_clip": False,
    "grad_clip_norm": 0.5, "use_actions_mask": False, "use_obsnorm": True, "use_rewnorm": True, "obsnorm_range": 5,
    "rewnorm_range": 5, "running_steps": 4000, "eval_interval": 5000, "test_episode": 1,
}  # fmt: skip


def learned(agent_class: Any, options: dict[str, Any], steps: int, tmp_path: Any) -> tuple[list[np.ndarray], Any]:
    """Parameters and buffer of a learner after so many steps of all environments."""
    config = argparse.Namespace(**{**CONFIG, **options}, log_dir=str(tmp_path), model_dir=str(tmp_path))
    agent = agent_class(config, make_envs(config))
    initial = [value.detach().numpy().copy() for value in agent.policy.parameters()]
    agent.train(steps)
    trained = [value.detach().numpy().copy() for value in agent.policy.parameters()]
    assert max(np.abs(a - b).max() for a, b in zip(initial, trained, strict=True)) > 0.02
    return trained, agent.memory


CASES = {
    "PPO": (PPO_Agent, {"agent": "PPO", "learner": "PPO_Learner"}),
    "PPO, one environment": (
        PPO_Agent,
        {"agent": "PPO", "learner": "PPO_Learner", "use_advnorm": False, "parallels": 1},
    ),
    "PPO-KL, with objects": (PPOKL_Agent, {"agent": "PPO_KL", "learner": "PPOKL_Learner"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_learners_learn_the_same(case: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    agent_class, options = CASES[case]
    torch.set_num_threads(1)
    expected, memory = learned(agent_class, options, 800, tmp_path)
    assert type(memory) is theirs.DummyOnPolicyBuffer
    monkeypatch.setattr(on_policy, "DummyOnPolicyBuffer", DummyOnPolicyBuffer)
    found, memory = learned(agent_class, options, 800, tmp_path)
    assert type(memory) is DummyOnPolicyBuffer
    assert memory.engine.stats()["streams"]["0"]["end"] > 700
    for one, another in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, another, rtol=1e-3, atol=1e-4)
    memory.close()
